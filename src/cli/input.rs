//! What people type: pairs, spans, and texts that may come from a file or from standard input.

use std::{collections::BTreeMap, fs, io::Read, time::Duration};

use thiserror::Error;

/// What is wrong with the command line beyond what the parser can tell; exits 64.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// `NAME=VALUE`; the value may have further `=` in it.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Pairs as a map; a name that is given twice has no one meaning.
pub(super) fn map(
    flag: &str,
    pairs: &[(String, String)],
) -> Result<BTreeMap<String, String>, UsageError> {
    let mut map = BTreeMap::new();
    for (name, value) in pairs {
        if map.insert(name.clone(), value.clone()).is_some() {
            return Err(UsageError(format!("{flag}: {name} is given twice")));
        }
    }
    Ok(map)
}

/// A span such as `60s` or `1h 30m`, as the contract carries it.
pub(super) fn span(span: Duration) -> Result<prost_types::Duration, UsageError> {
    prost_types::Duration::try_from(span)
        .map_err(|_| UsageError("the span is too long to be sent".to_owned()))
}

/// The bytes behind `TEXT`, `@FILE` or `-`.
pub(super) fn bytes(flag: &str, text: &str) -> Result<Vec<u8>, UsageError> {
    match text.strip_prefix('@') {
        Some(path) => file(flag, path),
        None if text == "-" => file(flag, "-"),
        None => Ok(text.as_bytes().to_owned()),
    }
}

/// The text behind `TEXT`, `@FILE` or `-`.
pub(super) fn text(flag: &str, text: &str) -> Result<String, UsageError> {
    utf8(flag, bytes(flag, text)?)
}

/// The text of a file, or of standard input for `-`.
pub(super) fn file_text(what: &str, path: &str) -> Result<String, UsageError> {
    utf8(what, file(what, path)?)
}

fn utf8(what: &str, bytes: Vec<u8>) -> Result<String, UsageError> {
    String::from_utf8(bytes).map_err(|_| UsageError(format!("{what}: is not UTF-8")))
}

fn file(what: &str, path: &str) -> Result<Vec<u8>, UsageError> {
    let read = if path == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    let name = if path == "-" { "standard input" } else { path };
    read.map_err(|error| UsageError(format!("{what}: failed to read {name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_split_at_its_first_equals_sign() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        for text in ["", "a", "=b"] {
            assert!(pair(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_name_that_is_given_twice_is_refused() {
        let pairs = [pair("a=1").unwrap(), pair("a=1").unwrap()];
        assert_eq!(map("--label", &pairs).unwrap_err().0, "--label: a is given twice");
    }

    #[test]
    fn a_text_stands_for_itself_and_a_file_for_its_bytes() {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), [0, 255]).unwrap();
        let named = format!("@{}", path.path().display());
        assert_eq!(bytes("--result", "a@b").unwrap(), b"a@b");
        assert_eq!(bytes("--result", &named).unwrap(), [0, 255]);
        assert_eq!(text("--args", &named).unwrap_err().0, "--args: is not UTF-8");
        assert!(bytes("--result", "@/nowhere").unwrap_err().0.starts_with("--result: failed to"));
    }
}
