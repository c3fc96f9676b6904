//! Headers of a question, with secrets that stay in the environment.

use std::fmt;

/// Headers that the ledger or the protocol sets, whatever a policy says. `accept-encoding` is among
/// them because an answer is compared and replayed byte for byte.
const OURS: [&str; 11] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What gRPC sets besides.
const OURS_IN_GRPC: [&str; 2] = ["content-type", "user-agent"];

/// A header, or in gRPC an entry of the metadata, that goes with every question to an endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    /// The name, in lower case.
    pub name: String,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Variable(String),
}

/// Why a header has no value on this machine. The value itself is never told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MissingVariable {
    /// The environment has no such variable, or an empty one.
    #[error("the environment variable {name} is not set")]
    Unset {
        /// The variable.
        name: String,
    },
    /// It holds a line break or something else that no header may have.
    #[error("the environment variable {name} has a character that no header may have")]
    Unfit {
        /// The variable.
        name: String,
    },
}

/// What is wrong with a header of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policy) enum HeaderProblem {
    /// With its name.
    Name(String),
    /// With its value.
    Value(String),
}

impl Header {
    /// The header that a policy writes, for HTTP or for gRPC.
    pub(in crate::policy) fn parse(
        name: &str,
        value: &str,
        is_grpc: bool,
    ) -> Result<Self, HeaderProblem> {
        let name = name.to_ascii_lowercase();
        if let Some(problem) = name_problem(&name, is_grpc) {
            return Err(HeaderProblem::Name(problem));
        }
        let pieces = pieces(value).map_err(HeaderProblem::Value)?;
        Ok(Self { name, pieces })
    }

    /// The value, with the variables filled in from the environment.
    ///
    /// # Errors
    ///
    /// Where a variable is not set, is empty, or holds what no header may have: a question without
    /// its credentials would only be answered 401.
    pub fn value(&self, env: impl Fn(&str) -> Option<String>) -> Result<String, MissingVariable> {
        let mut value = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => value.push_str(text),
                Piece::Variable(name) => {
                    let found = env(name).filter(|found| !found.is_empty());
                    let found =
                        found.ok_or_else(|| MissingVariable::Unset { name: name.clone() })?;
                    if !found.chars().all(is_visible) {
                        return Err(MissingVariable::Unfit { name: name.clone() });
                    }
                    value.push_str(&found);
                }
            }
        }
        Ok(value)
    }

    /// The environment variables that the value needs.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Variable(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }
}

/// Without the text of the value: somebody may have written a secret there after all.
impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables: Vec<&str> = self.variables().collect();
        f.debug_struct("Header")
            .field("name", &self.name)
            .field("variables", &variables)
            .finish_non_exhaustive()
    }
}

fn name_problem(name: &str, is_grpc: bool) -> Option<String> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(token) {
        return Some("is no name of a header".to_owned());
    }
    if OURS.contains(&name) || (is_grpc && OURS_IN_GRPC.contains(&name)) {
        return Some("is set by the ledger itself".to_owned());
    }
    if is_grpc && name.starts_with("grpc-") {
        return Some("is reserved: names that begin with \"grpc-\" are gRPC's own".to_owned());
    }
    if is_grpc && name.ends_with("-bin") {
        return Some("would be binary, which is not supported".to_owned());
    }
    None
}

/// `Bearer ${TOKEN}`: text and variables. `$$` is a dollar.
fn pieces(value: &str) -> Result<Vec<Piece>, String> {
    if !value.chars().all(is_visible) {
        return Err("must have visible ASCII characters and blanks only".to_owned());
    }
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = value;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(more) = rest.strip_prefix('$') {
            text.push('$');
            rest = more;
        } else if let Some(more) = rest.strip_prefix('{') {
            let (name, more) = more.split_once('}').ok_or("has a ${ without its }")?;
            if !is_variable(name) {
                return Err(format!("{name:?} is no name of an environment variable"));
            }
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(Piece::Variable(name.to_owned()));
            rest = more;
        } else {
            return Err("has a $ alone: write ${NAME} for a variable, $$ for a dollar".to_owned());
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

fn is_variable(name: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn is_visible(c: char) -> bool {
    c == '\t' || (' '..='~').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("s3cret".to_owned()),
            "_U2" => Some("$x".to_owned()),
            "EMPTY" => Some(String::new()),
            "LINES" => Some("a\nb".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_stand_anywhere_in_a_value() {
        let unset = |name: &str| Err(MissingVariable::Unset { name: name.to_owned() });
        let table: &[(&str, Result<&str, MissingVariable>)] = &[
            ("plain", Ok("plain")),
            ("", Ok("")),
            ("${TOKEN}", Ok("s3cret")),
            ("Bearer ${TOKEN}", Ok("Bearer s3cret")),
            ("${TOKEN}:${_U2};", Ok("s3cret:$x;")),
            ("$$5 $${TOKEN}", Ok("$5 ${TOKEN}")),
            ("${NONE}", unset("NONE")),
            ("Bearer ${EMPTY}", unset("EMPTY")),
            ("${LINES}", Err(MissingVariable::Unfit { name: "LINES".to_owned() })),
        ];
        for (written, expected) in table {
            let header = Header::parse("Authorization", written, false).expect("it is a header");
            assert_eq!(header.name, "authorization");
            assert_eq!(header.value(env), expected.clone().map(str::to_owned), "{written}");
        }
        let header = Header::parse("a", "${A}-${B_1}", true).expect("it is a header");
        assert_eq!(header.variables().collect::<Vec<_>>(), ["A", "B_1"]);
    }

    #[test]
    fn what_is_no_header_says_why() {
        // Name, value, whether it is for gRPC; whether the name is at fault, and part of the words.
        let table: &[(&str, &str, bool, bool, &str)] = &[
            ("", "x", false, true, "no name of a header"),
            ("a b", "x", false, true, "no name of a header"),
            ("a:", "x", false, true, "no name of a header"),
            ("é", "x", false, true, "no name of a header"),
            ("Host", "x", false, true, "is set by the ledger itself"),
            ("content-length", "1", false, true, "is set by the ledger itself"),
            ("Accept-Encoding", "gzip", false, true, "is set by the ledger itself"),
            ("Content-Type", "x", true, true, "is set by the ledger itself"),
            ("grpc-timeout", "1S", true, true, "reserved"),
            ("trace-bin", "x", true, true, "binary"),
            ("a", "x\ny", false, false, "visible"),
            ("a", "ü", false, false, "visible"),
            ("a", "$TOKEN", false, false, "$$ for a dollar"),
            ("a", "5$", false, false, "$$ for a dollar"),
            ("a", "${TOKEN", false, false, "without its }"),
            ("a", "${}", false, false, "no name of an environment variable"),
            ("a", "${1A}", false, false, "no name of an environment variable"),
            ("a", "${A-B}", false, false, "no name of an environment variable"),
        ];
        for (name, value, is_grpc, in_name, part) in table {
            let (is_name, words) = match Header::parse(name, value, *is_grpc) {
                Err(HeaderProblem::Name(words)) => (true, words),
                Err(HeaderProblem::Value(words)) => (false, words),
                Ok(header) => panic!("{header:?}"),
            };
            assert_eq!(is_name, *in_name, "{name}: {value}");
            assert!(words.contains(part), "{words}");
        }
        for name in ["content-type", "user-agent", "grpc-x", "x-bin"] {
            assert!(Header::parse(name, "x", false).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_value_is_not_shown() {
        let header = Header::parse("authorization", "Basic dXNlcg ${TOKEN}", false);
        assert!(!format!("{header:?}").contains("dXNlcg"), "{header:?}");
    }
}
