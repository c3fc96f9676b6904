//! Why a call of a server has no answer, for people and for programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt,
    time::Duration,
};

use serde::Serialize;
use tonic::Status;
use tonic_types::StatusExt;

use super::output::{self, plain};

/// The flags by which people give the fields that the server's errors name.
const FLAGS: [(&str, &str); 21] = [
    ("attempt_id", "--attempt"),
    ("actor", "--actor"),
    ("arguments_json", "--args"),
    ("business_ids", "--business-id"),
    ("caller", "--caller"),
    ("downstream_key", "--downstream-key"),
    ("downstream_ref", "--downstream-ref"),
    ("etag", "--etag"),
    ("free_text", "--free-text"),
    ("idempotency_key", "--key"),
    ("labels", "--label"),
    ("lease", "--lease"),
    ("namespace", "--namespace"),
    ("page_token", "--page-token"),
    ("reason", "--reason"),
    ("result_content_type", "--content-type"),
    ("run_id", "--run"),
    ("step_id", "--step"),
    ("tool_call_id", "--tool-call-id"),
    ("wait", "--wait"),
    ("window", "--window"),
];

/// What lies under an error: the layers of a connection add nothing that a person could use.
pub(super) fn deepest(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// What the library says, for want of a type, where the deadline has passed.
const LATE: &str = "Timeout expired";

/// What it says where something answers that is no gRPC server.
const NO_GRPC: &str = "grpc-status header missing, mapped from ";

/// Why there is no answer of a ledger at all.
#[derive(Debug)]
enum Silence {
    /// The time of the flags was over.
    Late,
    /// Something else answered; what it said.
    NoGrpc(String),
    /// A gRPC server answered that has no such call.
    NoSuchCall,
    /// The connection broke, or never was one of gRPC; why.
    Broken(String),
}

impl Silence {
    fn of(status: &Status, code: &str) -> Option<Self> {
        let message = status.message();
        if message == LATE {
            return Some(Self::Late);
        }
        // An HTTP server's words, taken for a message.
        if code == "INTERNAL" && message.contains("invalid compression flag") {
            return Some(Self::NoGrpc("it speaks HTTP only".to_owned()));
        }
        // Nobody here cancels: what the library cancelled had lost its connection.
        match (code, message.strip_prefix(NO_GRPC), status.source()) {
            (_, Some(answer), _) => Some(Self::NoGrpc(answer.to_owned())),
            (_, None, Some(cause)) => Some(Self::Broken(deepest(cause))),
            ("CANCELLED", None, None) => Some(Self::Broken(message.to_owned())),
            ("UNIMPLEMENTED", None, None) => Some(Self::NoSuchCall),
            _ => None,
        }
    }

    /// What was tried, and what to look at.
    fn told(&self, address: &str, timeout: Duration) -> String {
        let port = "the one that `serve` prints as grpc= (7070 unless it is told otherwise), not \
                    that of HTTP";
        match self {
            Self::Late => {
                let span = output::span(timeout);
                format!("no answer from {address} in time (--timeout is {span})")
            }
            Self::NoGrpc(answer) => format!(
                "no gRPC server answers at {address} ({answer}); is --server its gRPC address? It is \
                 {port}"
            ),
            Self::NoSuchCall => format!(
                "the gRPC server at {address} has no such call; is it an intent-ledger of this \
                 version? --server names another"
            ),
            Self::Broken(cause) => format!(
                "failed to talk to {address}: {cause}; does the server still run, and is --server \
                 its gRPC address? It is {port}"
            ),
        }
    }
}

/// What the server said instead of an answer, or why it said nothing.
#[derive(Debug, Default, Serialize)]
pub(super) struct CallError {
    code: String,
    reason: String,
    message: String,
    metadata: BTreeMap<String, String>,
    violations: Vec<FieldViolation>,
    #[serde(skip)]
    silence: Option<Silence>,
    /// The command's own flags, before [`FLAGS`].
    #[serde(skip)]
    flags: &'static [(&'static str, &'static str)],
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

    /// The same, where the command has a flag of its own for a field.
    pub(super) fn naming(mut self, flags: &'static [(&'static str, &'static str)]) -> Self {
        self.flags = flags;
        self
    }

    /// The same, with the address where nobody answered.
    pub(super) fn at(mut self, address: &str, timeout: Duration) -> Self {
        if let Some(silence) = &self.silence {
            self.message = silence.told(address, timeout);
        }
        self
    }

    /// The flags of the fields that the error names, by field.
    fn named_flags(&self) -> Vec<(&'static str, &'static str)> {
        let Self { message, violations, .. } = self;
        // A field of one plain word may be meant as a word, unless it is what is wrong.
        let spoken = words(message).chain(violations.iter().flat_map(|it| words(&it.description)));
        let spoken = spoken.filter(|word| word.contains('_'));
        let wrong = violations.iter().flat_map(|it| words(&it.field));
        let named: BTreeSet<&str> = spoken.chain(wrong).collect();
        let own = self.flags.iter();
        let others = FLAGS.iter().filter(|(field, _)| own.clone().all(|(name, _)| name != field));
        own.clone().chain(others).filter(|(field, _)| named.contains(field)).copied().collect()
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
        let silence = Some(&code).filter(|_| reason.is_empty());
        let silence = silence.and_then(|code| Silence::of(&status, code));
        match silence {
            Some(Silence::Late) => code = "DEADLINE_EXCEEDED".to_owned(),
            Some(Silence::Broken(_)) => code = "UNAVAILABLE".to_owned(),
            Some(Silence::NoGrpc(_) | Silence::NoSuchCall) | None => {}
        }
        let message = status.message().to_owned();
        Self { code, reason, message, metadata, violations, silence, ..Self::default() }
    }
}

impl Error for CallError {}

impl fmt::Display for CallError {
    /// The reason and the text; then, one a line, what else is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, reason, message, metadata, violations, .. } = self;
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
        if reason == "INTENT_NOT_FOUND" {
            let hint = "a KEY is the intent's own, on the line `key:`, and no downstream key";
            write!(f, "\n  {hint}")?;
        }
        let flags = self.named_flags();
        if !flags.is_empty() {
            let flags = flags.iter().map(|(field, flag)| format!("{field} is {flag}"));
            write!(f, "\n  here: {}", flags.collect::<Vec<_>>().join(", "))?;
        }
        for (name, value) in metadata {
            if name != "nextAction" && name != "model_message" {
                write!(f, "\n  {}: {}", plain(name), plain(value))?;
            }
        }
        Ok(())
    }
}

/// The words that may be names of fields.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
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
