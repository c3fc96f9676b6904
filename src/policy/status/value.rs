//! From the JSON of an answer to the values that expressions work on, and back.
//!
//! The reader is strict: a text in which a name stands twice, or which is nested deeper than
//! [`DEPTH_MAX`], is no JSON, so that no rule is decided by the one reading of it that we happen to
//! have. Numbers are never rounded in silence: a whole number is an `int` or a `uint`, a number with
//! a point or an exponent is a `double`, and one that none of these holds exactly stays as it is
//! written. Such a number equals itself, however it is spelled, and nothing else; comparing it or
//! counting with it is an error. What remains is the language's own: where a rule compares an `int`
//! with a `double`, it compares doubles, and above 2^53 those are coarser.

use std::any::Any;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use cel::common::{
    types::{
        CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString,
        CelUInt, Type,
    },
    value::{StaticVal, Val},
};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::domain::canonical_json::Json;

/// How deep the JSON of an answer may be nested, which bounds every recursion over its values.
const DEPTH_MAX: usize = 128;

type Boxed = Box<dyn Val>;

/// The value of a JSON text; `None` where it is none.
pub(in crate::policy) fn read(text: &str) -> Option<Boxed> {
    value(serde_json::from_str(text).ok()?, DEPTH_MAX)
}

/// Reads one level at a time: the parser skips what is inside without recursion.
fn value(raw: &RawValue, depth: usize) -> Option<Boxed> {
    let text = raw.get();
    Some(match text.as_bytes().first()? {
        b'{' => {
            let depth = depth.checked_sub(1)?;
            let Members(members) = serde_json::from_str(text).ok()?;
            let members = members
                .into_iter()
                .map(|(name, raw)| Some((CelMapKey::from(name), value(raw, depth)?)));
            Box::new(CelMap::from(members.collect::<Option<std::collections::HashMap<_, _>>>()?))
        }
        b'[' => {
            let depth = depth.checked_sub(1)?;
            let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            let elements = elements.into_iter().map(|raw| value(raw, depth));
            Box::new(CelList::from(elements.collect::<Option<Vec<Boxed>>>()?))
        }
        b'"' => Box::new(string(serde_json::from_str(text).ok()?)),
        b't' => Box::new(CelBool::from(true)),
        b'f' => Box::new(CelBool::from(false)),
        b'n' => Box::new(CelNull),
        _ => number(text),
    })
}

/// A string.
pub(in crate::policy) fn string(text: String) -> CelString<'static> {
    CelString::from(text)
}

fn number(text: &str) -> Boxed {
    if !text.contains(['.', 'e', 'E']) {
        if let Ok(number) = text.parse::<i64>() {
            return Box::new(CelInt::from(number));
        }
        if let Ok(number) = text.parse::<u64>() {
            return Box::new(CelUInt::from(number));
        }
    } else if let Ok(number) = text.parse::<f64>()
        && number.is_finite()
        && canonical(text) == canonical(&format!("{number:?}"))
    {
        return Box::new(CelDouble::from(number));
    }
    Box::new(Exact { text: text.to_owned() })
}

/// One text for every spelling of a number; its own where it is out of all range.
fn canonical(text: &str) -> String {
    Json::parse(text).map_or_else(|_| text.to_owned(), |number| number.canonical())
}

/// The members of an object, no name twice.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        let mut names = std::collections::HashSet::new();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom("a name stands twice"));
            }
            members.push((name, value));
        }
        Ok(Members(members))
    }
}

/// A number that neither an integer of 64 bits nor a double holds, as it is written.
#[derive(Debug)]
struct Exact {
    text: String,
}

static EXACT: Type = Type::new_unspecified_type("exact_number");

impl Val for Exact {
    fn get_type(&self) -> &Type {
        &EXACT
    }

    fn cel_type() -> &'static Type {
        &EXACT
    }

    fn equals(&self, other: &dyn Val) -> bool {
        let other = other.downcast_ref::<Exact>();
        other.is_some_and(|other| canonical(&self.text) == canonical(&other.text))
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(Self { text: self.text.clone() })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Exact {}

/// A value as JSON, the members of objects in the order of their names; `None` where JSON has no
/// such value: infinity, a type, an optional, a map with keys that are no strings.
pub(super) fn write(value: &dyn Val) -> Option<String> {
    let mut out = String::new();
    push(value, &mut out)?;
    Some(out)
}

fn push(value: &dyn Val, out: &mut String) -> Option<()> {
    if value.downcast_ref::<CelNull>().is_some() {
        out.push_str("null");
    } else if let Some(it) = value.downcast_ref::<CelBool>() {
        out.push_str(if *it.inner() { "true" } else { "false" });
    } else if let Some(it) = value.downcast_ref::<CelInt>() {
        out.push_str(&it.inner().to_string());
    } else if let Some(it) = value.downcast_ref::<CelUInt>() {
        out.push_str(&it.inner().to_string());
    } else if let Some(it) = value.downcast_ref::<CelDouble>() {
        let number = Some(*it.inner()).filter(|number| number.is_finite())?;
        out.push_str(&serde_json::to_string(&number).ok()?);
    } else if let Some(it) = value.downcast_ref::<Exact>() {
        out.push_str(&it.text);
    } else if let Some(it) = value.downcast_ref::<CelString>() {
        push_string(it.inner(), out)?;
    } else if let Some(it) = value.downcast_ref::<CelBytes>() {
        push_string(&BASE64_STANDARD.encode(it.inner()), out)?;
    } else if let Some(it) = value.downcast_ref::<CelList>() {
        out.push('[');
        for (i, element) in it.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { "," });
            push(element.as_ref(), out)?;
        }
        out.push(']');
    } else if let Some(it) = value.downcast_ref::<CelMap>() {
        let member = |(key, value): (&CelMapKey<'_>, _)| match key {
            CelMapKey::String(name) => Some((name.inner().to_owned(), value)),
            _ => None,
        };
        let mut members =
            it.iter().map(member).collect::<Option<Vec<(String, &Box<dyn Val>)>>>()?;
        members.sort_by(|(a, _), (b, _)| a.cmp(b));
        out.push('{');
        for (i, (name, value)) in members.into_iter().enumerate() {
            out.push_str(if i == 0 { "" } else { "," });
            push_string(&name, out)?;
            out.push(':');
            push(value.as_ref(), out)?;
        }
        out.push('}');
    } else {
        return None;
    }
    Some(())
}

fn push_string(text: &str, out: &mut String) -> Option<()> {
    out.push_str(&serde_json::to_string(text).ok()?);
    Some(())
}

/// A whole number or a text, as the downstream's id of something is; `None` for anything else.
pub(super) fn id(value: &dyn Val) -> Option<String> {
    if let Some(it) = value.downcast_ref::<CelString>() {
        Some(it.inner().to_owned())
    } else if let Some(it) = value.downcast_ref::<CelInt>() {
        Some(it.inner().to_string())
    } else if let Some(it) = value.downcast_ref::<CelUInt>() {
        Some(it.inner().to_string())
    } else {
        let it = value.downcast_ref::<Exact>()?;
        Some(it.text.clone()).filter(|text| !text.contains(['.', 'e', 'E']))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Option<String> {
        write(read(text)?.as_ref())
    }

    #[test]
    fn what_is_read_is_written_again() {
        let same = [
            "null",
            "true",
            "[]",
            "{}",
            "[1,-1,0,9223372036854775807,-9223372036854775808,18446744073709551615]",
            // Beyond 64 bits, and beyond a double.
            "[18446744073709551616,-9223372036854775809,123456789012345678901234567890]",
            "[0.1,1.0,-0.0,1e+300,0.30000000000000004,0.12345678901234567890123,1e400,1e99999999999]",
            r#"{"a":null,"b":[{"c":"d"}],"é":"\u0001\"\\/"}"#,
        ];
        for text in same {
            assert_eq!(written(text).as_deref(), Some(text));
        }
        let other = [
            (" [ 1 , 2 ]\n", "[1,2]"),
            (r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#),
            ("[1.50,1E2,-0]", "[1.5,100.0,0]"),
            (r#""\u00e9\ud83d\ude00""#, "\"é😀\""),
        ];
        for (text, expected) in other {
            assert_eq!(written(text).as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_no_json() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "NaN",
            "01",
            "1 2",
            "'a'",
            "\u{feff}{}",
            r#"{"a":1,"a":1}"#,
            r#"[{"a":1,"\u0061":2}]"#,
            r#"["\ud800"]"#,
            "[\"\n\"]",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(read(&nested(DEPTH_MAX)).is_some());
        assert!(read(&nested(DEPTH_MAX + 1)).is_none());
        assert!(read(&nested(32 * 1024)).is_none());
        assert!(read(&"[".repeat(64 * 1024)).is_none());
        assert!(read(&"{\"a\":".repeat(13 * 1024)).is_none());
        let wide = format!("[{}0]", "0,".repeat(32 * 1024 - 2));
        assert!(read(&wide).is_some());
    }

    #[test]
    fn numbers_are_equal_only_if_they_are() {
        let same = |a: &str, b: &str| read(a).expect("a").equals(read(b).expect("b").as_ref());
        for (a, b) in [
            ("1", "1.0"),
            ("1e2", "100"),
            ("18446744073709551616", "1.8446744073709551616e19"),
            ("1e400", "10e399"),
        ] {
            assert!(same(a, b) && same(b, a), "{a} {b}");
        }
        for (a, b) in [
            ("9007199254740992", "9007199254740993"),
            ("18446744073709551616", "18446744073709551617"),
            ("18446744073709551616", "18446744073709551615"),
            ("0.1", "0.10000000000000000001"),
            ("1", "\"1\""),
        ] {
            assert!(!same(a, b) && !same(b, a), "{a} {b}");
        }
    }

    #[test]
    fn ids_are_texts_and_whole_numbers() {
        for (text, expected) in [
            ("\"re_1\"", Some("re_1")),
            ("\"\"", Some("")),
            ("17", Some("17")),
            ("18446744073709551615", Some("18446744073709551615")),
            ("123456789012345678901234567890", Some("123456789012345678901234567890")),
            ("1.0", None),
            ("1e400", None),
            ("null", None),
            ("true", None),
            ("[1]", None),
        ] {
            let value = read(text).expect("it is JSON");
            assert_eq!(id(value.as_ref()).as_deref(), expected, "{text}");
        }
    }
}
