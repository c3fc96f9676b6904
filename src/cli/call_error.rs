//! Why a call of a server has no answer, for people and for programs.

use std::{collections::BTreeMap, error::Error, fmt};

use serde::Serialize;
use tonic::Status;
use tonic_types::StatusExt;

use super::output::plain;

/// What the server said instead of an answer, or why it said nothing.
#[derive(Debug, Default, Serialize)]
pub(super) struct CallError {
    code: String,
    reason: String,
    message: String,
    metadata: BTreeMap<String, String>,
    violations: Vec<FieldViolation>,
}

#[derive(Debug, Serialize)]
struct FieldViolation {
    field: String,
    description: String,
}

/// An error as it is printed for programs.
#[derive(Serialize)]
pub(super) struct ErrorObject<'a> {
    pub(super) error: &'a CallError,
}

impl CallError {
    /// An error that is not the server's own.
    pub(super) fn new(code: &str, message: String) -> Self {
        Self { code: code.to_owned(), message, ..Self::default() }
    }

    /// Whether the server may have done what it was asked all the same.
    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(self.code.as_str(), "DEADLINE_EXCEEDED" | "INTERNAL" | "UNAVAILABLE" | "UNKNOWN")
    }

    /// Adds what the caller needs to go on.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.metadata.insert(name.to_owned(), value.to_owned());
        self
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let (reason, metadata) = details
            .error_info()
            .map(|info| (info.reason.clone(), info.metadata.clone().into_iter().collect()))
            .unwrap_or_default();
        let violations = details.bad_request().map_or_else(Vec::new, |request| {
            let named = request.field_violations.iter();
            named
                .map(|it| FieldViolation {
                    field: it.field.clone(),
                    description: it.description.clone(),
                })
                .collect()
        });
        let mut code = screaming(&format!("{:?}", status.code()));
        let mut message = status.message().to_owned();
        // Nobody here cancels: it is how the library says that the deadline has passed.
        if code == "CANCELLED" && reason.is_empty() {
            code = "DEADLINE_EXCEEDED".to_owned();
            message = "no answer within the time of --timeout".to_owned();
        }
        Self { code, reason, message, metadata, violations }
    }
}

impl Error for CallError {}

impl fmt::Display for CallError {
    /// The reason and the text; then, one a line, what else is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, reason, message, metadata, violations } = self;
        let word = if reason.is_empty() { code } else { reason };
        write!(f, "{}: {}", plain(word), plain(message))?;
        if let Some(next) = metadata.get("nextAction") {
            write!(f, " (next: {})", plain(next))?;
        }
        for FieldViolation { field, description } in violations {
            if *message != format!("{field}: {description}") {
                write!(f, "\n  {}: {}", plain(field), plain(description))?;
            }
        }
        for (name, value) in metadata {
            if name != "nextAction" && name != "model_message" {
                write!(f, "\n  {}: {}", plain(name), plain(value))?;
            }
        }
        Ok(())
    }
}

/// `FailedPrecondition` as gRPC writes it.
fn screaming(camel: &str) -> String {
    let mut words = String::new();
    for letter in camel.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(letter.to_uppercase());
    }
    words
}
