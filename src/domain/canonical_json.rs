//! Canonical JSON: one text for every spelling of one value. The only canonicaliser.
//!
//! It is RFC 8785 but for three things, because keys and fingerprints are hashed over it:
//!
//! - Numbers keep their exact decimal value and are written in ECMAScript's layout with as many
//!   digits as they have. Nothing passes through a double, so 9007199254740992 and
//!   9007199254740993 stay two numbers while 10, 10.0 and 1e1 are one.
//! - Strings and member names are NFC.
//! - A null member equals an absent one and is not written. A null array element stays.
//!
//! The reader is our own because a general one loses what counts here: exact numbers, and the
//! fact that a name stood twice. It reads strictly (RFC 8259 and no more), in one pass and in time
//! linear in the text but for the sorting of members; any input gives a value or an error.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use unicode_normalization::{IsNormalized, UnicodeNormalization as _, is_nfc_quick};

mod pointer;
mod reader;

pub use pointer::{Pointer, PointerError};

/// Texts longer than this are refused. An argument that large is an attachment, not a parameter.
pub const TEXT_BYTES_MAX: usize = 256 * 1024;

/// Arrays and objects nested deeper than this are refused, which also bounds every recursion here.
pub const DEPTH_MAX: usize = 128;

/// A JSON value with exact numbers and NFC strings.
///
/// Two values made by [`Json::parse`] are equal exactly if their canonical texts are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`, at the top or in an array; an object has no null members.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number by its exact value.
    Number(Number),
    /// A string; [`Json::parse`] makes it NFC, and it is written as it stands.
    String(String),
    /// An array, whose order counts.
    Array(Vec<Json>),
    /// An object, whose order does not.
    Object(Members),
}

/// Why a text is not JSON as we read it. Offsets are bytes from its start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is longer than [`TEXT_BYTES_MAX`].
    #[error("the text is {bytes} bytes long, more than {TEXT_BYTES_MAX}")]
    TooLarge {
        /// The length of the text.
        bytes: usize,
    },
    /// Arrays and objects are nested deeper than [`DEPTH_MAX`].
    #[error("nested deeper than {DEPTH_MAX} levels at byte {offset}")]
    TooDeep {
        /// Where the first bracket too many stands.
        offset: usize,
    },
    /// A name stands twice in one object, once escapes are read and NFC is applied.
    #[error("the member {} stands twice in one object", excerpt(name))]
    DoubledMember {
        /// The name, in NFC.
        name: String,
    },
    /// A `\u` escape is half of a surrogate pair without the other half.
    #[error("lone surrogate in the escape at byte {offset}")]
    LoneSurrogate {
        /// Where the escape begins.
        offset: usize,
    },
    /// A string holds a control character that must be escaped.
    #[error("unescaped control character in the string at byte {offset}")]
    ControlCharacter {
        /// Where the character stands.
        offset: usize,
    },
    /// A number is so large or so small that its exponent does not fit; see [`Number`].
    #[error("the number at byte {offset} is out of range")]
    NumberOutOfRange {
        /// Where the number begins.
        offset: usize,
    },
    /// The grammar of JSON asks for something else here.
    #[error("expected {expected} at byte {offset}")]
    Syntax {
        /// Where reading stopped.
        offset: usize,
        /// What should have stood there.
        expected: &'static str,
    },
}

impl JsonError {
    /// The cause as a word for machines: a name of the public enum of reasons.
    pub fn reason(&self) -> &'static str {
        match self {
            JsonError::TooLarge { .. } => "ARGUMENTS_TOO_LARGE",
            JsonError::TooDeep { .. } => "ARGUMENTS_TOO_DEEP",
            JsonError::DoubledMember { .. } => "ARGUMENTS_DUPLICATE_MEMBER",
            JsonError::LoneSurrogate { .. } => "ARGUMENTS_LONE_SURROGATE",
            JsonError::ControlCharacter { .. }
            | JsonError::NumberOutOfRange { .. }
            | JsonError::Syntax { .. } => "ARGUMENTS_MALFORMED",
        }
    }
}

impl Json {
    /// Reads one JSON text, strictly.
    pub fn parse(text: &str) -> Result<Json, JsonError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(JsonError::TooLarge { bytes: text.len() });
        }
        reader::read(text)
    }

    /// The canonical text.
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        self.write_canonical(&mut out);
        out
    }

    /// Appends the canonical text to `out`.
    pub fn write_canonical(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(true) => out.push_str("true"),
            Json::Bool(false) => out.push_str("false"),
            Json::Number(number) => out.push_str(number.as_str()),
            Json::String(text) => write_string(text, out),
            Json::Array(elements) => {
                out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    element.write_canonical(out);
                }
                out.push(']');
            }
            Json::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_string(name, out);
                    out.push(':');
                    value.write_canonical(out);
                }
                out.push('}');
            }
        }
    }

    /// The value at `pointer`, if there is one.
    pub fn pointer(&self, pointer: &Pointer) -> Option<&Json> {
        pointer.tokens().iter().try_fold(self, |value, token| match value {
            Json::Object(members) => members.get(token),
            Json::Array(elements) => elements.get(pointer::array_index(token)?),
            _ => None,
        })
    }

    /// A copy without the values at `pointers`; those that find nothing change nothing.
    ///
    /// A member goes, and its object stays even if empty. An array element becomes null, so that
    /// no other element moves to another index; so does the whole value under the empty pointer.
    pub fn without(&self, pointers: &[Pointer]) -> Json {
        let mut copy = self.clone();
        for pointer in pointers {
            copy.remove(pointer.tokens());
        }
        copy
    }

    fn remove(&mut self, tokens: &[String]) {
        let Some((token, rest)) = tokens.split_first() else {
            *self = Json::Null;
            return;
        };
        match self {
            Json::Object(members) => {
                let Ok(index) = members.find(token) else {
                    return;
                };
                if rest.is_empty() {
                    members.0.remove(index);
                } else {
                    members.0[index].1.remove(rest);
                }
            }
            Json::Array(elements) => {
                let index = pointer::array_index(token);
                if let Some(element) = index.and_then(|index| elements.get_mut(index)) {
                    element.remove(rest);
                }
            }
            _ => {}
        }
    }
}

/// A number by its exact decimal value, kept as its canonical text.
///
/// The layout is that of ECMAScript's `Number::toString` with all the digits there are: plain up
/// to 21 integer digits and down to `0.000001`, with an exponent (`1e+21`, `1e-7`) beyond. Zero
/// is `0` whatever its sign and exponent. Otherwise the exponent, counted with one digit before the
/// point, must fit an `i32`: whether a number is in range follows from its value, not its spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Number(String);

impl Number {
    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number ±`whole`.`fraction` × 10^`exponent`, or `None` if it is out of range.
    fn new(negative: bool, whole: &str, fraction: &str, exponent: i64) -> Option<Number> {
        let digits = [whole, fraction].concat();
        let unpadded = digits.trim_start_matches('0');
        let leading_zeros = digits.len() - unpadded.len();
        let digits = unpadded.trim_end_matches('0');
        if digits.is_empty() {
            return Some(Number("0".to_owned()));
        }
        // The value is 0.DIGITS × 10^point, so `point` digits stand before the decimal point.
        let point = exponent.saturating_add(whole.len() as i64 - leading_zeros as i64);
        let exponent = i32::try_from(point.saturating_sub(1)).ok()?;

        let mut text = String::with_capacity(digits.len() + 24);
        if negative {
            text.push('-');
        }
        match point {
            -5..=0 => {
                text.push_str("0.");
                text.extend(std::iter::repeat_n('0', -point as usize));
                text.push_str(digits);
            }
            1..=21 if digits.len() <= point as usize => {
                text.push_str(digits);
                text.extend(std::iter::repeat_n('0', point as usize - digits.len()));
            }
            1..=21 => {
                let (whole, fraction) = digits.split_at(point as usize);
                text.extend([whole, ".", fraction]);
            }
            _ => {
                let (first, rest) = digits.split_at(1);
                text.push_str(first);
                if !rest.is_empty() {
                    text.extend([".", rest]);
                }
                let _ = write!(text, "e{exponent:+}");
            }
        }
        Some(Number(text))
    }
}

impl From<u64> for Number {
    fn from(value: u64) -> Number {
        // A u64 has at most 20 digits, and those are written plainly.
        Number(value.to_string())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The members of an object: sorted by the UTF-16 code units of their names as RFC 8785 asks, each
/// name once, no null among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members(Vec<(String, Json)>);

impl Members {
    /// The members as a text had them; a name that stands twice is the error, null or not.
    fn from_text(mut members: Vec<(String, Json)>) -> Result<Members, String> {
        members.sort_by(|(a, _), (b, _)| utf16_order(a, b));
        if let Some(twins) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(twins[0].0.clone());
        }
        members.retain(|(_, value)| *value != Json::Null);
        Ok(Members(members))
    }

    /// The value under `name`.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.find(name).ok().map(|index| &self.0[index].1)
    }

    /// All members in canonical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| utf16_order(other, name))
    }
}

/// Of members with the same name the first is kept; null members are dropped.
impl FromIterator<(String, Json)> for Members {
    fn from_iter<I: IntoIterator<Item = (String, Json)>>(members: I) -> Members {
        let mut members: Vec<_> = members.into_iter().collect();
        members.sort_by(|(a, _), (b, _)| utf16_order(a, b));
        members.dedup_by(|(later, _), (first, _)| later == first);
        members.retain(|(_, value)| *value != Json::Null);
        Members(members)
    }
}

/// `text` in Unicode Normalization Form C.
pub fn nfc(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.nfc().collect())
    }
}

fn into_nfc(text: String) -> String {
    match nfc(&text) {
        Cow::Owned(normalized) => normalized,
        Cow::Borrowed(_) => text,
    }
}

/// The beginning of a text from outside, quoted and escaped, to be shown in a message.
pub(super) fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 48;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

fn utf16_order(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

/// Appends `text` as a JSON string, byte by byte but for what must be escaped.
pub(super) fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    // What must be escaped is ASCII, so every index is a boundary of characters.
    while let Some(index) =
        rest.bytes().position(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\'))
    {
        out.push_str(&rest[..index]);
        match rest.as_bytes()[index] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\x08' => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            b'\x0c' => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            control => {
                let _ = write!(out, "\\u{control:04x}");
            }
        }
        rest = &rest[index + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

#[cfg(test)]
mod tests;
