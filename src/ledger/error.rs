//! Why the ledger did not do what it was asked.

use std::sync::Arc;

use thiserror::Error;

use crate::domain::{
    canonical_json::Pointer,
    intent::{Intent, TransitionError},
    report::Refusal,
    time::Timestamp,
};
use crate::store::StoreError;
pub(super) use crate::telemetry::chain;

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field to mend, as a path.
    pub field: String,
    /// The cause as a word for machines; a name of the public enum of reasons.
    pub reason: &'static str,
    /// The cause in words.
    pub description: String,
}

impl Violation {
    /// A violation of `field`.
    pub fn new(
        field: impl Into<String>,
        reason: &'static str,
        description: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), reason, description: description.into() }
    }
}

/// Why the ledger did not do what it was asked.
#[derive(Debug, Clone, Error)]
pub enum LedgerError {
    /// The request is malformed; nothing was read or written.
    #[error("{}: {}", .0.field, .0.description)]
    Invalid(Violation),
    /// The same key was begun with other binding arguments.
    #[error("the key was begun with other arguments")]
    ParametersChanged {
        /// The row, untouched.
        intent: Box<Intent>,
        /// Where the arguments differ, as far as is known.
        pointers: Vec<Pointer>,
    },
    /// A report or a decision was not taken as it was meant; it was kept as an event.
    #[error("{refusal}")]
    Refused {
        /// Why.
        refusal: Refusal,
        /// The row as it stands.
        intent: Box<Intent>,
        /// The store's time.
        now: Timestamp,
    },
    /// There is no such intent in this namespace.
    #[error("there is no such intent in this namespace")]
    NotFound {
        /// Whether the report was kept for a person; `None` where nothing was reported.
        report_kept: Option<bool>,
    },
    /// The store cannot be reached; nothing was written.
    #[error("the store cannot be reached")]
    StoreUnavailable(#[source] Arc<StoreError>),
    /// More is queued than the server takes; nothing was written.
    #[error("too many calls are waiting")]
    QueueFull,
    /// The server is stopping; nothing was written.
    #[error("the server is stopping")]
    Stopping,
    /// The answer to a commit was lost.
    #[error("the answer to the commit was lost; it may stand")]
    CommitInDoubt(#[source] Arc<StoreError>),
    /// Another policy became active while this was decided; nothing was written.
    #[error("the policy changed meanwhile")]
    PolicyMoved,
    /// The caller's deadline passed before the write.
    #[error("the deadline passed before anything was written")]
    DeadlinePassed,
    /// A fault of the ledger itself.
    #[error("the ledger is at fault: {0}")]
    Internal(String),
}

impl From<Violation> for LedgerError {
    fn from(violation: Violation) -> Self {
        Self::Invalid(violation)
    }
}

impl From<StoreError> for LedgerError {
    fn from(error: StoreError) -> Self {
        Arc::new(error).into()
    }
}

impl From<Arc<StoreError>> for LedgerError {
    fn from(error: Arc<StoreError>) -> Self {
        match *error {
            StoreError::Unavailable(_) | StoreError::Locked(_) => Self::StoreUnavailable(error),
            StoreError::Indeterminate(_) => Self::CommitInDoubt(error),
            StoreError::Rejected(_) | StoreError::Corrupt(_) => Self::Internal(chain(&error)),
        }
    }
}

impl From<TransitionError> for LedgerError {
    fn from(error: TransitionError) -> Self {
        Self::Internal(format!("failed to {error}"))
    }
}
