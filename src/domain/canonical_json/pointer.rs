//! JSON Pointers (RFC 6901): how a policy names a place in the arguments.

use std::fmt;

use super::{into_nfc, nfc};

/// A JSON Pointer (RFC 6901) whose tokens are NFC, as the names they are compared with.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer(Vec<String>);

/// Why a text is not a JSON Pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// A pointer is empty or begins with `/`.
    #[error("a JSON Pointer must be empty or begin with `/`")]
    NoLeadingSlash,
    /// `~` stands only in `~0` (for `~`) and `~1` (for `/`).
    #[error("`~` in a JSON Pointer must be written `~0`, and `/` in a name `~1`")]
    BadEscape,
}

impl Pointer {
    /// Reads the string form, such as `/order/id`; the empty text points at the whole value.
    pub fn parse(text: &str) -> Result<Pointer, PointerError> {
        if text.is_empty() {
            return Ok(Pointer::default());
        }
        let tokens = text.strip_prefix('/').ok_or(PointerError::NoLeadingSlash)?;
        tokens.split('/').map(unescape_token).collect::<Result<_, _>>().map(Pointer)
    }

    /// The pointer at the top-level member `name`.
    pub fn member(name: &str) -> Pointer {
        Pointer(vec![nfc(name).into_owned()])
    }

    /// The names and indexes along the way, unescaped.
    pub fn tokens(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.0 {
            write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

fn unescape_token(token: &str) -> Result<String, PointerError> {
    let mut pieces = token.split('~');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (unescaped, rest) = match piece.as_bytes().first() {
            Some(b'0') => ('~', &piece[1..]),
            Some(b'1') => ('/', &piece[1..]),
            _ => return Err(PointerError::BadEscape),
        };
        text.push(unescaped);
        text.push_str(rest);
    }
    Ok(into_nfc(text))
}

/// RFC 6901 knows no signs and no leading zeros.
pub(super) fn array_index(token: &str) -> Option<usize> {
    token.parse().ok().filter(|index: &usize| index.to_string() == token)
}
