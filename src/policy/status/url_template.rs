//! The URL that a question goes to: text from the policy, with values of the intent in between.

use std::fmt;

use url::Url;

use super::{Question, address::refused_host};
use crate::policy::mistake::did_you_mean;

/// The names of the placeholders, as a message shows them.
const PLACEHOLDERS: [&str; 4] = ["downstream_key", "downstream_ref", "key", "business.NAME"];

/// A URL with placeholders in its path or its query.
///
/// What a value looks like decides nothing: it is percent-encoded but for letters, digits and
/// `-._~`, so it stays within its segment of the path or its part of the query. A value that would
/// still be read as a step of the path (`.`, `..`, or those between slashes, which some servers
/// decode first) is refused, and so is an empty one: `/by-key/` often lists everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policy) struct UrlTemplate {
    origin: Origin,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value(Placeholder),
}

/// A value of the intent in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Placeholder {
    DownstreamKey,
    DownstreamRef,
    Key,
    Business(String),
}

/// Why a URL cannot be filled in for an intent: it cannot be asked about at this endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MissingValue {
    /// The intent has no such value, or an empty one.
    #[error("the intent has no {placeholder}")]
    Absent {
        /// The placeholder, such as `business.order`.
        placeholder: String,
    },
    /// The value would be read as a step of the path.
    #[error("the {placeholder} of the intent would lead to another path")]
    Unfit {
        /// The placeholder.
        placeholder: String,
    },
}

/// Scheme, host and port, normalized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policy) struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
    }
}

impl Origin {
    /// The origin of a text that begins with one, and what follows it.
    pub(in crate::policy) fn of(text: &str) -> Result<(Self, &str), String> {
        let after_scheme = ["http://", "https://"].iter().find_map(|s| text.strip_prefix(s));
        let Some(after_scheme) = after_scheme else {
            return Err("must begin with http:// or https://".to_owned());
        };
        // So that no two readers can take the text apart in two ways.
        if let Some(odd) = text.chars().find(|c| !is_of_a_url(*c)) {
            return Err(format!("must not have {odd:?} in it: write it percent-encoded"));
        }
        if text.contains("${") {
            return Err("takes no environment variables; a header does".to_owned());
        }
        let end = after_scheme.find(['/', '?', '#']).unwrap_or(after_scheme.len());
        let (authority, rest) = after_scheme.split_at(end);
        if authority.contains(['{', '}']) {
            return Err("must have its placeholders in the path or the query".to_owned());
        }
        if authority.contains('@') {
            return Err("must not name a user or a password; a header does".to_owned());
        }
        let before = &text[..text.len() - rest.len()];
        let url = Url::parse(before).map_err(|error| format!("is no URL: {error}"))?;
        let host = url.host_str().filter(|_| !authority.is_empty()).ok_or("has no host")?;
        if let Some(refused) = refused_host(host) {
            return Err(format!("must not be asked at {host}: it is {refused}"));
        }
        let port = url.port_or_known_default().unwrap_or_default();
        if port == 0 {
            return Err("has no port that can be asked".to_owned());
        }
        let (scheme, host) = (url.scheme().to_owned(), host.to_owned());
        Ok((Self { scheme, host, port }, rest))
    }
}

impl UrlTemplate {
    /// The template that a policy writes.
    pub(in crate::policy) fn parse(text: &str) -> Result<Self, String> {
        let (origin, rest) = Origin::of(text)?;
        if rest.contains('#') {
            return Err("must not have a fragment (#)".to_owned());
        }
        let bytes = rest.as_bytes();
        let encoded = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
        if rest.match_indices('%').any(|(at, _)| !encoded(at + 1) || !encoded(at + 2)) {
            return Err("has a % that encodes nothing: write %25".to_owned());
        }
        let pieces = pieces(rest)?;
        if !pieces.iter().any(|piece| matches!(piece, Piece::Value(_))) {
            let known = PLACEHOLDERS.join("}, {");
            return Err(format!("asks the same of every call: name one of {{{known}}}"));
        }
        // With any value in the place of the placeholders, so that what is left is the policy's own.
        let bare: String = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.as_str(),
                Piece::Value(_) => "x",
            })
            .collect();
        if has_dot_segment(&bare) {
            return Err("must not have a segment . or .. in its path".to_owned());
        }
        Ok(Self { origin, pieces })
    }

    /// Scheme, host and port.
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether it is our key that the question is asked by.
    pub(in crate::policy) fn asks_by_downstream_key(&self) -> bool {
        self.pieces.contains(&Piece::Value(Placeholder::DownstreamKey))
    }

    /// The names in the `{business.NAME}` placeholders.
    pub(super) fn business_names(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Value(Placeholder::Business(name)) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The URL for one intent.
    pub(super) fn fill(&self, question: &Question) -> Result<String, MissingValue> {
        let Origin { scheme, host, port } = &self.origin;
        let mut url = format!("{scheme}://{host}");
        if (scheme.as_str(), *port) != ("http", 80) && (scheme.as_str(), *port) != ("https", 443) {
            url.push_str(&format!(":{port}"));
        }
        let path = url.len();
        if !matches!(self.pieces.first(), Some(Piece::Text(text)) if text.starts_with('/')) {
            url.push('/');
        }
        for piece in &self.pieces {
            let placeholder = match piece {
                Piece::Text(text) => {
                    url.push_str(text);
                    continue;
                }
                Piece::Value(placeholder) => placeholder,
            };
            let value = placeholder.value(question).filter(|value| !value.is_empty());
            let absent = || MissingValue::Absent { placeholder: placeholder.to_string() };
            let value = value.ok_or_else(absent)?;
            let in_path = !url[path..].contains('?');
            push_encoded(&mut url, value);
            let steps = in_path && value.split(['/', '\\']).any(is_dots);
            if steps || has_dot_segment(&url[path..]) {
                return Err(MissingValue::Unfit { placeholder: placeholder.to_string() });
            }
        }
        Ok(url)
    }
}

impl fmt::Display for UrlTemplate {
    /// As it was written, but for the host and the port, which are normalized.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => f.write_str(text)?,
                Piece::Value(placeholder) => write!(f, "{{{placeholder}}}")?,
            }
        }
        Ok(())
    }
}

impl Placeholder {
    fn named(name: &str) -> Option<Self> {
        match name {
            "downstream_key" => Some(Self::DownstreamKey),
            "downstream_ref" => Some(Self::DownstreamRef),
            "key" => Some(Self::Key),
            _ => {
                let name = name.strip_prefix("business.").filter(|name| !name.is_empty())?;
                Some(Self::Business(name.to_owned()))
            }
        }
    }

    fn value<'a>(&self, question: &'a Question) -> Option<&'a str> {
        match self {
            Self::DownstreamKey => Some(&question.downstream_key),
            Self::DownstreamRef => question.downstream_ref.as_deref(),
            Self::Key => Some(&question.key),
            Self::Business(name) => question.business.get(name).map(String::as_str),
        }
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DownstreamKey => f.write_str("downstream_key"),
            Self::DownstreamRef => f.write_str("downstream_ref"),
            Self::Key => f.write_str("key"),
            Self::Business(name) => write!(f, "business.{name}"),
        }
    }
}

fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(open);
        let name = from.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, after) = name.ok_or("has a brace without its other one")?;
        let Some(placeholder) = Placeholder::named(name) else {
            let known = PLACEHOLDERS.join("}, {");
            let hint = did_you_mean(name, &PLACEHOLDERS);
            return Err(format!(
                "has the unknown placeholder {{{name}}}{hint}; known: {{{known}}}"
            ));
        };
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        pieces.push(Piece::Value(placeholder));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

/// A character of RFC 3986, or one of the braces that placeholders have.
fn is_of_a_url(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=%{}".contains(c)
}

fn push_encoded(url: &mut String, value: &str) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// Whether a path, up to its query, has a segment that clients take for a step.
fn has_dot_segment(path_and_query: &str) -> bool {
    let path = path_and_query.split('?').next().unwrap_or_default();
    path.split('/').any(is_dots)
}

/// `.` and `..`, also where a dot is percent-encoded: clients normalize those too.
fn is_dots(segment: &str) -> bool {
    matches!(segment.replace("%2e", ".").replace("%2E", ".").as_str(), "." | "..")
}

#[cfg(test)]
mod tests;
