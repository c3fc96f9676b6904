//! Tables for each rule, then properties over random values and their random spellings.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

fn canonical(text: &str) -> String {
    match Json::parse(text) {
        Ok(value) => value.canonical(),
        Err(error) => panic!("{text}: {error}"),
    }
}

fn refusal(text: &str) -> JsonError {
    match Json::parse(text) {
        Ok(value) => panic!("{text:?} was read as {value:?}"),
        Err(error) => error,
    }
}

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).expect("a pointer")
}

/// Case 24.
#[test]
fn numbers_are_one_exactly_if_their_values_are() {
    let table: &[&[&str]] = &[
        &["10", "10.0", "1e1", "1E+1", "0.1e2", "100e-1", "10.000e00", "1000000e-5"],
        &["0", "-0", "-0.0", "0e5", "0.000e-999999999999999999999", "-0e+9223372036854775808"],
        &["9007199254740992", "9007199254740992.0", "9.007199254740992e15"],
        &["9007199254740993", "9007199254740993.000"],
        &["18446744073709551616", "1.8446744073709551616e19"],
        &["18446744073709551617"],
        &["0.1", "0.10", "1e-1", "0.01e1", "1e-00000000000000000000000001"],
        &["0.10000000000000001"],
        &["-0.1"],
        &["1e2147483647", "10e2147483646", "0.1e2147483648"],
        &["1e-2147483648", "0.1e-2147483647", "10e-2147483649"],
    ];
    for (index, spellings) in table.iter().enumerate() {
        for spelling in *spellings {
            assert_eq!(canonical(spelling), canonical(spellings[0]), "{spelling}");
            for others in &table[index + 1..] {
                assert_ne!(canonical(spelling), canonical(others[0]), "{spelling}");
            }
        }
    }
}

#[test]
fn numbers_are_laid_out_as_ecmascript_does_with_all_their_digits() {
    for (text, expected) in [
        ("1e20", "100000000000000000000"),
        ("123456789012345678901", "123456789012345678901"),
        ("1e21", "1e+21"),
        ("1234567890123456789012", "1.234567890123456789012e+21"),
        ("123456789012345678901.25", "123456789012345678901.25"),
        ("1234567890123456789012.5", "1.2345678901234567890125e+21"),
        ("0.000001", "0.000001"),
        ("0.00000123", "0.00000123"),
        ("0.0000001", "1e-7"),
        ("0.000000123", "1.23e-7"),
        ("-12.50", "-12.5"),
        ("-1e-7", "-1e-7"),
        ("333333333.33333329", "333333333.33333329"),
        ("5e-324", "5e-324"),
        ("1e400", "1e+400"),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
    ] {
        assert_eq!(canonical(text), expected);
    }
    assert_eq!(Number::from(u64::MAX).as_str(), canonical("18446744073709551615"));
}

#[test]
fn an_exponent_out_of_range_is_refused_by_value_not_by_spelling() {
    for text in [
        "1e2147483648",
        "10e2147483647",
        "1e-2147483649",
        "0.1e-2147483648",
        "1e9223372036854775807",
        "-1e-9223372036854775808",
        "1e99999999999999999999999999",
        "0.001e99999999999999999999999999",
        "1000e-99999999999999999999999999",
    ] {
        assert_eq!(refusal(text), JsonError::NumberOutOfRange { offset: 0 }, "{text}");
    }
    let padded = format!("0.{}1e100001", "0".repeat(100_000));
    assert_eq!(canonical(&padded), "1");
}

/// Case 23.
#[test]
fn member_order_does_not_count_and_array_order_does() {
    assert_eq!(
        canonical(r#"{"a":{"x":1,"y":2},"b":3}"#),
        canonical(r#" { "b" : 3 , "a" : { "y" : 2 , "x" : 1 } } "#)
    );
    assert_ne!(canonical(r#"["debit","credit"]"#), canonical(r#"["credit","debit"]"#));
    assert_eq!(canonical("\t[ ]\r\n"), "[]");
    assert_eq!(canonical("[{},[],true,false,null]"), "[{},[],true,false,null]");
}

#[test]
fn members_are_sorted_by_utf16_code_units() {
    // The example of RFC 8785: U+1F600 is a surrogate pair and so sorts before U+FB33, whose NFC
    // is two letters of U+05xx.
    assert_eq!(
        canonical(r#"{"\ufb33":1,"\uffff":2,"😀":3,"ö":4,"€":5,"1":6,"\r":7,"\u0080":8}"#),
        "{\"\\r\":7,\"1\":6,\"\u{80}\":8,\"ö\":4,\"\u{5d3}\u{5bc}\":1,\"€\":5,\"😀\":3,\
         \"\u{ffff}\":2}"
    );
    assert_eq!(canonical(r#"{"b":1,"aa":1,"":1,"a":1}"#), r#"{"":1,"a":1,"aa":1,"b":1}"#);
}

/// Case 25.
#[test]
fn a_null_member_is_an_absent_one_and_a_null_element_is_not() {
    assert_eq!(canonical(r#"{"coupon":null}"#), canonical("{}"));
    assert_ne!(canonical(r#"{"coupon":""}"#), canonical("{}"));
    assert_eq!(canonical(r#"{"a":{"b":null},"c":[{"d":null}]}"#), r#"{"a":{},"c":[{}]}"#);
    assert_eq!(canonical("[null]"), "[null]");
    assert_eq!(canonical("null"), "null");
    assert_eq!(Json::parse(r#"{"a":null}"#), Json::parse("{}"));
}

/// Case 25.
#[test]
fn strings_and_names_become_nfc() {
    assert_eq!(canonical("\"caf\u{e9}\""), "\"caf\u{e9}\"");
    assert_eq!(canonical("\"cafe\u{301}\""), "\"caf\u{e9}\"");
    assert_eq!(canonical(r#""cafe\u0301""#), "\"caf\u{e9}\"");
    assert_eq!(canonical("{\"e\u{301}\":1}"), "{\"\u{e9}\":1}");
    assert_eq!(canonical("\"\u{212b}\u{1d160}\""), "\"\u{c5}\u{1d158}\u{1d165}\u{1d16e}\"");
    assert_ne!(canonical("\"\u{fb01}\""), canonical("\"fi\""), "compatibility forms stay apart");
    assert!(matches!(nfc("plain"), Cow::Borrowed(_)));
}

#[test]
fn strings_are_escaped_as_rfc_8785_says() {
    assert_eq!(
        canonical(
            r#""\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\/\u0008\u000c\u000d\u0009\u007f""#
        ),
        "\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\\b\\f\\r\\t\u{7f}\""
    );
    assert_eq!(canonical(r#""\u0000\u001F\uD83D\uDE00""#), "\"\\u0000\\u001f😀\"");
    assert_ne!(canonical("1"), canonical(r#""1""#));
}

/// Case 24.
#[test]
fn a_doubled_name_is_refused_once_unescaped_and_nfc() {
    for (text, name) in [
        (r#"{"amount":1,"amount":9999}"#, "amount"),
        (r#"{"amount":1,"b":2,"amo\u0075nt":1}"#, "amount"),
        ("{\"\u{e9}\":1,\"e\u{301}\":1}", "\u{e9}"),
        (r#"{"a":null,"a":1}"#, "a"),
        (r#"{"a":null,"a":null}"#, "a"),
        (r#"[{"":{"x":1,"y":1,"x":1}}]"#, "x"),
    ] {
        assert_eq!(refusal(text), JsonError::DoubledMember { name: name.to_owned() });
    }
    assert_eq!(canonical(r#"{"a":{"a":[{"a":1}]}}"#), r#"{"a":{"a":[{"a":1}]}}"#);
}

/// Case 24.
#[test]
fn lone_surrogates_are_refused() {
    for (text, offset) in [
        (r#""\ud800""#, 1),
        (r#""ab\uDFFF""#, 3),
        (r#""\ud83dx\ude00""#, 1),
        (r#""\ud83d\ud83d\ude00""#, 1),
        (r#""\ud83d\n""#, 1),
        (r#""\ude00\ud83d""#, 1),
        (r#"{"\ud800":1}"#, 2),
    ] {
        assert_eq!(refusal(text), JsonError::LoneSurrogate { offset }, "{text}");
    }
}

/// Case 24.
#[test]
fn what_is_not_json_is_refused_and_placed() {
    for (text, offset, expected) in [
        ("", 0, "a value"),
        (" \n", 2, "a value"),
        ("\u{feff}{}", 0, "a value"),
        ("NaN", 0, "a value"),
        ("[Infinity]", 1, "a value"),
        ("-Infinity", 1, "a digit"),
        ("nul", 0, "a value"),
        ("True", 0, "a value"),
        ("01", 0, "a number without leading zeros"),
        ("[-00.5]", 1, "a number without leading zeros"),
        ("+1", 0, "a value"),
        (".5", 0, "a value"),
        ("1.", 2, "a digit"),
        ("1.e5", 2, "a digit"),
        ("1e", 2, "a digit"),
        ("1e+-5", 3, "a digit"),
        ("-", 1, "a digit"),
        ("0x10", 1, "the end of the text"),
        ("1 2", 2, "the end of the text"),
        ("{} {}", 3, "the end of the text"),
        ("nullnull", 4, "the end of the text"),
        ("[1,]", 3, "a value"),
        ("[1 2]", 3, "`,` or `]`"),
        ("[", 1, "a value"),
        ("[1", 2, "`,` or `]`"),
        ("{", 1, "a member name"),
        (r#"{"a":1,}"#, 7, "a member name"),
        ("{a:1}", 1, "a member name"),
        (r#"{"a"}"#, 4, "`:`"),
        (r#"{"a":1;"b":2}"#, 6, "`,` or `}`"),
        (r#""abc"#, 4, "the end of the string"),
        (r#""\"#, 1, "an escape JSON knows"),
        (r#""\x41""#, 1, "an escape JSON knows"),
        (r#""\u12g4""#, 5, "four hexadecimal digits"),
        (r#""\u+123""#, 3, "four hexadecimal digits"),
        (r#""\u00é""#, 5, "four hexadecimal digits"),
        ("'a'", 0, "a value"),
        ("[1]//", 3, "the end of the text"),
        ("\u{a0}1", 0, "a value"),
    ] {
        assert_eq!(refusal(text), JsonError::Syntax { offset, expected }, "{text:?}");
    }
    assert_eq!(refusal("\"a\nb\""), JsonError::ControlCharacter { offset: 2 });
    assert_eq!(refusal("\"\0\""), JsonError::ControlCharacter { offset: 1 });
}

#[test]
fn nesting_and_size_are_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(canonical(&nested(DEPTH_MAX)), nested(DEPTH_MAX));
    assert_eq!(refusal(&nested(DEPTH_MAX + 1)), JsonError::TooDeep { offset: DEPTH_MAX });
    assert_eq!(refusal(&"[".repeat(TEXT_BYTES_MAX)), JsonError::TooDeep { offset: DEPTH_MAX });
    let objects = format!("{}1{}", r#"{"a":"#.repeat(128), "}".repeat(128));
    assert_eq!(canonical(&objects), objects);
    assert!(matches!(refusal(&format!("[{objects}]")), JsonError::TooDeep { .. }));

    let string = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    assert_eq!(canonical(&string(TEXT_BYTES_MAX)), string(TEXT_BYTES_MAX));
    let bytes = TEXT_BYTES_MAX + 1;
    assert_eq!(refusal(&string(bytes)), JsonError::TooLarge { bytes });
}

/// Each would take minutes here if any step were quadratic.
#[test]
fn the_largest_texts_are_read_in_linear_time() {
    let full = |open: &str, unit: &str, close: &str| {
        let times = (TEXT_BYTES_MAX - open.len() - close.len()) / unit.len();
        format!("{open}{}{close}", unit.repeat(times))
    };
    for text in [
        full("", "9", ""),
        full("-1", "0", ""),
        full("0.", "0", "1"),
        full("0.", "0", "e-99999999999"),
        full("1e", "0", ""),
        full("[1e20", ",1e20", "]"),
        full("\"", "\\u0301", "\""),
        full("\"a", "\u{301}", "\""),
        full("\"a", "\u{301}\u{316}", "\""),
        full("\"", "\u{1d160}", "\""),
        full("[{}", ",{}", "]"),
    ] {
        let value = Json::parse(&text).expect("a value");
        assert!(!value.canonical().is_empty());
    }
    let names: Vec<_> = (0..20_000).rev().map(|n| format!("\"k{n}\":1")).collect();
    assert!(Json::parse(&format!("{{{}}}", names.join(","))).is_ok());
}

#[test]
fn messages_read_after_failed_to_read_and_stay_short() {
    let name = "\u{1}é".repeat(50_000);
    let message = JsonError::DoubledMember { name }.to_string();
    assert!(message.len() < 600 && !message.contains('\u{1}'), "{message}");
    assert_eq!(refusal("[1,]").to_string(), "expected a value at byte 3");
    assert_eq!(refusal(r#""\ud800""#).reason(), "ARGUMENTS_LONE_SURROGATE");
}

#[test]
fn pointers_follow_rfc_6901() {
    let document = Json::parse(
        r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8,
            "01":9,"caf\u00e9":10}"#,
    )
    .expect("a document");
    for (text, expected) in [
        ("/foo", Some(r#"["bar","baz"]"#)),
        ("/foo/0", Some(r#""bar""#)),
        ("/foo/1", Some(r#""baz""#)),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/00", None),
        ("/foo/+1", None),
        ("/foo/18446744073709551617", None),
        ("/foo/0/x", None),
        ("/", Some("0")),
        ("/a~1b", Some("1")),
        ("/c%d", Some("2")),
        ("/e^f", Some("3")),
        ("/g|h", Some("4")),
        ("/i\\j", Some("5")),
        ("/k\"l", Some("6")),
        ("/ ", Some("7")),
        ("/m~0n", Some("8")),
        ("/01", Some("9")),
        ("/cafe\u{301}", Some("10")),
        ("/~01", None),
        ("/nothing", None),
    ] {
        let found = document.pointer(&pointer(text)).map(Json::canonical);
        assert_eq!(found.as_deref(), expected, "{text}");
    }
    assert_eq!(document.pointer(&pointer("")), Some(&document));
    for text in ["", "/", "/a~1b~0~01", "//", "/caf\u{e9}"] {
        assert_eq!(pointer(text).to_string(), text);
    }
    assert_eq!(pointer("/~01").tokens(), ["~1"]);
    assert_eq!(pointer("/cafe\u{301}"), pointer("/caf\u{e9}"));
    assert_eq!(Pointer::member("a/b"), pointer("/a~1b"));
    assert_eq!(Pointer::parse("foo"), Err(PointerError::NoLeadingSlash));
    for text in ["/~", "/a~2", "/~~0", "/a~/b"] {
        assert_eq!(Pointer::parse(text), Err(PointerError::BadEscape), "{text}");
    }
}

#[test]
fn removing_leaves_everything_else_where_it_was() {
    let before = r#"{"a":{"b":1},"c":[{"d":1,"e":2},"f",3],"g":4}"#;
    for (pointers, expected) in [
        (&[][..], before),
        (&["/nothing", "/a/x", "/c/3", "/c/-", "/g/x", "/c/01"], before),
        (&["/g"], r#"{"a":{"b":1},"c":[{"d":1,"e":2},"f",3]}"#),
        (&["/a/b"], r#"{"a":{},"c":[{"d":1,"e":2},"f",3],"g":4}"#),
        (&["/c/0", "/c/1"], r#"{"a":{"b":1},"c":[null,null,3],"g":4}"#),
        (&["/c/0/d", "/c/0/e"], r#"{"a":{"b":1},"c":[{},"f",3],"g":4}"#),
        (&["/a", "/a/b"], r#"{"c":[{"d":1,"e":2},"f",3],"g":4}"#),
        (&["/a/b", "/a"], r#"{"c":[{"d":1,"e":2},"f",3],"g":4}"#),
        (&["/c/0", "/c/0/d"], r#"{"a":{"b":1},"c":[null,"f",3],"g":4}"#),
        (&[""], "null"),
    ] {
        let pointers: Vec<_> = pointers.iter().map(|text| pointer(text)).collect();
        let after = Json::parse(before).expect("a document").without(&pointers);
        assert_eq!(after.canonical(), expected, "{pointers:?}");
    }
}

#[test]
fn members_gathered_by_hand_keep_the_order_and_drop_nulls() {
    let member = |name: &str, value: u64| (name.to_owned(), Json::Number(Number::from(value)));
    let members: Members =
        [member("b", 1), ("c".to_owned(), Json::Null), member("a", 2), member("b", 3)]
            .into_iter()
            .collect();
    assert_eq!(members.get("c"), None);
    assert_eq!(Json::Object(members).canonical(), r#"{"a":2,"b":1}"#);
}

/// A value as mathematics sees it: digits × 10^exponent without outer zeros, NFC, no null members.
#[derive(Debug, Clone, PartialEq)]
enum Model {
    Null,
    Bool(bool),
    Number(bool, String, i64),
    String(String),
    Array(Vec<Model>),
    Object(BTreeMap<String, Model>),
}

fn any_model() -> impl Strategy<Value = Model> {
    let text = prop_oneof!["[abé\u{301}\u{1f600}\u{fb33}\n\"\\\\/]{0,4}", any::<String>()];
    let text = text.prop_map(|text| nfc(&text).into_owned());
    let leaf = prop_oneof![
        Just(Model::Null),
        any::<bool>().prop_map(Model::Bool),
        (any::<bool>(), "[0-9]{1,3}|[0-9]{15,40}", -40..40i64).prop_map(
            |(negative, digits, exponent)| {
                let kept = digits.trim_end_matches('0');
                let exponent = exponent + (digits.len() - kept.len()) as i64;
                match kept.trim_start_matches('0') {
                    "" => Model::Number(false, "0".to_owned(), 0),
                    digits => Model::Number(negative, digits.to_owned(), exponent),
                }
            }
        ),
        text.clone().prop_map(Model::String),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        let some = inner.clone().prop_filter("no null members", |value| *value != Model::Null);
        prop_oneof![
            vec(inner, 0..5).prop_map(Model::Array),
            btree_map(text.clone(), some, 0..5).prop_map(Model::Object),
        ]
    })
}

/// Makes the choices that a spelling leaves open.
struct Speller(u64);

impl Speller {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }

    fn spell(&mut self, model: &Model) -> String {
        let text = match model {
            Model::Null => "null".to_owned(),
            Model::Bool(value) => value.to_string(),
            Model::Number(negative, digits, exponent) => self.number(*negative, digits, *exponent),
            Model::String(text) => self.string(text),
            Model::Array(elements) => {
                let elements: Vec<_> = elements.iter().map(|element| self.spell(element)).collect();
                format!("[{}{}]", self.blanks(), elements.join(","))
            }
            Model::Object(members) => {
                let mut spelt = Vec::new();
                for (name, value) in members {
                    let colon = format!("{}:{}", self.blanks(), self.blanks());
                    spelt.push(format!(
                        "{}{}{colon}{}",
                        self.blanks(),
                        self.string(name),
                        self.spell(value)
                    ));
                }
                if self.below(2) == 0 && !members.contains_key("absent") {
                    spelt.push("\"absent\":null".to_owned());
                }
                for index in (1..spelt.len()).rev() {
                    spelt.swap(index, self.below(index + 1));
                }
                format!("{{{}{}}}", self.blanks(), spelt.join(","))
            }
        };
        format!("{}{text}{}", self.blanks(), self.blanks())
    }

    fn blanks(&mut self) -> &'static str {
        ["", "", " ", "\n", "\t \r\n"][self.below(5)]
    }

    fn number(&mut self, negative: bool, digits: &str, exponent: i64) -> String {
        let sign = if negative || (digits == "0" && self.below(2) == 0) { "-" } else { "" };
        let zeros = self.below(30);
        let padding = "0".repeat(zeros);
        let (mantissa, exponent) = match self.below(3) {
            0 if digits != "0" => (format!("{digits}{padding}"), exponent - zeros as i64),
            1 => (format!("0.{padding}{digits}"), exponent + (zeros + digits.len()) as i64),
            _ => {
                let (whole, fraction) = digits.split_at(1 + self.below(digits.len()));
                (format!("{whole}.{fraction}{padding}0"), exponent + fraction.len() as i64)
            }
        };
        let e = ["e", "E"][self.below(2)];
        match (exponent, self.below(3)) {
            (0, 0) => format!("{sign}{mantissa}"),
            (0.., 1) => format!("{sign}{mantissa}{e}+{exponent}"),
            (0.., _) => format!("{sign}{mantissa}{e}{padding}{exponent}"),
            (..0, _) => format!("{sign}{mantissa}{e}-{padding}{}", -exponent),
        }
    }

    fn string(&mut self, text: &str) -> String {
        let text = if self.below(2) == 0 { text.to_owned() } else { text.nfd().collect() };
        let mut out = "\"".to_owned();
        for c in text.chars() {
            let must = c < ' ' || c == '"' || c == '\\';
            match (c, self.below(3)) {
                ('"' | '\\' | '/', 0) => out.extend(['\\', c]),
                ('\n', 0) => out.push_str("\\n"),
                (_, 1) | (_, 0) if must => self.escape(c, &mut out),
                (_, 2) => self.escape(c, &mut out),
                _ => out.push(c),
            }
        }
        out + "\""
    }

    fn escape(&mut self, c: char, out: &mut String) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let escape =
                if self.below(2) == 0 { format!("{unit:04x}") } else { format!("{unit:04X}") };
            out.push_str("\\u");
            out.push_str(&escape);
        }
    }
}

/// Text that is nearly JSON: a spelling with a few characters replaced.
fn nearly_json() -> impl Strategy<Value = String> {
    let damage = vec((any::<prop::sample::Index>(), r#"[0-9\[\]{}",:\\ueE+\-. a]{0,2}"#), 0..3);
    (any_model(), any::<u64>(), damage).prop_map(|(model, seed, damage)| {
        let mut chars: Vec<char> = Speller(seed).spell(&model).chars().collect();
        for (index, replacement) in damage {
            if !chars.is_empty() {
                let index = index.index(chars.len());
                chars.splice(index..=index, replacement.chars());
            }
        }
        chars.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_canonical_text_is_its_own_canonical_text(model in any_model(), seed: u64) {
        let once = canonical(&Speller(seed).spell(&model));
        prop_assert_eq!(canonical(&once), once);
    }

    #[test]
    fn every_spelling_of_a_value_has_one_canonical_text(model in any_model(), a: u64, b: u64) {
        let (a, b) = (Speller(a).spell(&model), Speller(b).spell(&model));
        let (read_a, read_b) = (Json::parse(&a), Json::parse(&b));
        prop_assert_eq!(&read_a, &read_b);
        prop_assert_eq!(canonical(&a), canonical(&b));
        prop_assert!(read_a.is_ok());
    }

    #[test]
    fn differing_values_have_differing_texts(a in any_model(), b in any_model(), seed: u64) {
        let (text_a, text_b) = (Speller(seed).spell(&a), Speller(seed).spell(&b));
        prop_assert_eq!(a == b, canonical(&text_a) == canonical(&text_b));
        prop_assert_eq!(a == b, Json::parse(&text_a) == Json::parse(&text_b));
    }

    #[test]
    fn numbers_agree_with_integers(a: i128, b in prop_oneof![any::<i128>(), -9..9i128]) {
        let next = a.saturating_add(b);
        let [one, other] = [a, next].map(|value| canonical(&value.to_string()));
        prop_assert_eq!(a == next, one == other);
        if a.unsigned_abs() < 10u128.pow(21) {
            prop_assert_eq!(one, a.to_string());
        }
    }

    #[test]
    fn numbers_are_laid_out_as_a_double_prints(
        mantissa in -9007199254740992i64..=9007199254740992,
        shift in 0..20u32,
    ) {
        // Rust's `{}` never uses an exponent, and ECMAScript does not in this range.
        let value = mantissa as f64 / f64::from(1u32 << shift);
        let text = format!("{value}");
        prop_assume!(value == 0.0 || value.abs() >= 1e-6);
        prop_assert_eq!(canonical(&text), if value == 0.0 { "0".to_owned() } else { text });
    }

    #[test]
    fn serde_json_agrees_on_what_is_json(text in prop_oneof![nearly_json(), any::<String>()]) {
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        match Json::parse(&text) {
            // It cannot read what overflows a double, and keeps the last of a doubled name.
            Ok(_) => prop_assert!(
                theirs.as_ref().map_or_else(|e| e.to_string().contains("out of range"), |_| true),
                "{:?}: only we accept, {:?}", text, theirs
            ),
            Err(JsonError::DoubledMember { .. } | JsonError::NumberOutOfRange { .. }) => {}
            Err(error) => prop_assert!(theirs.is_err(), "{:?}: only we refuse, {}", text, error),
        }
    }

    #[test]
    fn no_text_makes_it_panic(
        text in prop_oneof![nearly_json(), any::<String>()],
        at in "(/[a-b0-1é~]?){0,3}",
    ) {
        if let (Ok(value), Ok(at)) = (Json::parse(&text), Pointer::parse(&at)) {
            let without = value.without(std::slice::from_ref(&at));
            prop_assert!(matches!(without.pointer(&at), None | Some(Json::Null)));
            prop_assert_eq!(Pointer::parse(&at.to_string()), Ok(at));
        }
    }
}
