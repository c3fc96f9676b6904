//! What an error of the ledger is called in gRPC. The only place that names `tonic::Code`.

use std::{collections::HashMap, time::Duration};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    domain::{
        decision::Decision,
        report::{LostLease, Refusal},
        tool::ToolPolicy,
    },
    ledger::{LedgerError, Violation, model_message},
};

/// The domain of every reason.
const DOMAIN: &str = "intent-ledger";

/// When to ask again after an outage or a full queue.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The longest text in a status or a detail: they travel in headers.
const TEXT_BYTES_MAX: usize = 900;

/// How many differing pointers are named.
const POINTERS_MAX: usize = 16;

/// The status of an error.
pub(super) fn status(error: &LedgerError) -> Status {
    let (.., effect, _) = shape(error);
    status_with(error, effect)
}

/// The status of an error that a report met: whoever reports may have had the effect, even where
/// the report is too malformed to be looked at.
pub(super) fn status_of_report(error: &LedgerError) -> Status {
    let (.., effect, _) = shape(error);
    status_with(error, effect || matches!(error, LedgerError::Invalid(_)))
}

fn status_with(error: &LedgerError, effect: bool) -> Status {
    let (code, reason, _, next) = shape(error);
    let mut metadata = HashMap::from([
        ("effectMayHaveHappened".to_owned(), effect.to_string()),
        ("nextAction".to_owned(), next.to_owned()),
    ]);
    let mut details = ErrorDetails::new();
    match error {
        LedgerError::Invalid(violation) => {
            details
                .add_bad_request_violation(short(&violation.field), short(&violation.description));
        }
        LedgerError::ParametersChanged { intent, pointers } => {
            let named: Vec<String> =
                pointers.iter().take(POINTERS_MAX).map(ToString::to_string).collect();
            metadata.insert("pointers".to_owned(), short(&named.join(" ")));
            metadata.insert("state".to_owned(), intent.state.to_string());
            metadata.insert("firstSeen".to_owned(), intent.created_at.to_string());
            metadata.insert("key".to_owned(), intent.key.to_string());
            let changed = Decision::ParametersChanged { pointers: Vec::new() };
            let message = model_message(&changed, None, &ToolPolicy::default(), &intent.tool);
            metadata.insert("model_message".to_owned(), message);
        }
        LedgerError::Refused { refusal, intent, now } => {
            metadata.insert("state".to_owned(), intent.state.to_string());
            match refusal {
                Refusal::LeaseLost(cause) => {
                    metadata.insert("cause".to_owned(), lost(*cause).to_owned());
                }
                Refusal::LeaseRunning { until } => {
                    metadata.insert("until".to_owned(), until.to_string());
                    metadata
                        .insert("waitSeconds".to_owned(), until.since(*now).as_secs().to_string());
                }
                Refusal::EtagMismatch => {
                    metadata.insert("etag".to_owned(), intent.etag());
                }
                Refusal::AttemptSuperseded
                | Refusal::AlreadySettled
                | Refusal::EvidenceRequired
                | Refusal::NotStarted
                | Refusal::NotProposed
                | Refusal::NotGranted
                | Refusal::UseTransaction
                | Refusal::AlreadyDecided
                | Refusal::OwnProposal => {}
            }
        }
        LedgerError::NotFound { report_kept: Some(kept) } => {
            metadata.insert("reportKept".to_owned(), kept.to_string());
        }
        LedgerError::StoreUnavailable(_)
        | LedgerError::QueueFull
        | LedgerError::Stopping
        | LedgerError::PolicyMoved
        | LedgerError::CommitInDoubt(_) => {
            details.set_retry_info(Some(RETRY_DELAY));
        }
        LedgerError::Internal(cause) => {
            // What went wrong inside stays inside; the log has it.
            tracing::error!(cause, "a call failed inside the ledger");
        }
        LedgerError::NotFound { report_kept: None } | LedgerError::DeadlinePassed => {}
    }
    let text = match error {
        LedgerError::Internal(_) => "the ledger is at fault; see its log".to_owned(),
        other => short(&other.to_string()),
    };
    details.set_error_info(reason, DOMAIN, metadata);
    Status::with_error_details(code, text, details)
}

/// The reason of an error, as clients read it.
pub(super) fn reason(error: &LedgerError) -> &'static str {
    shape(error).1
}

/// Code, reason, whether the effect may have happened, and what to do next.
fn shape(error: &LedgerError) -> (Code, &'static str, bool, &'static str) {
    match error {
        LedgerError::Invalid(Violation { reason, .. }) => {
            (Code::InvalidArgument, reason, false, "FIX_REQUEST")
        }
        LedgerError::ParametersChanged { intent, .. } => (
            Code::FailedPrecondition,
            "PARAMETERS_CHANGED",
            intent.effect_may_have_happened(),
            "DO_NOT_EXECUTE",
        ),
        LedgerError::Refused { refusal, intent, .. } => {
            let (reason, next) = refused(*refusal);
            let code = match refusal {
                Refusal::OwnProposal => Code::PermissionDenied,
                _ => Code::FailedPrecondition,
            };
            (code, reason, intent.effect_may_have_happened(), next)
        }
        LedgerError::NotFound { report_kept } => {
            let next = if report_kept.is_some() { "TELL_AN_OPERATOR" } else { "BEGIN" };
            (Code::NotFound, "INTENT_NOT_FOUND", report_kept.is_some(), next)
        }
        // Whether an earlier attempt had the effect cannot be known without the store.
        LedgerError::StoreUnavailable(_) => {
            (Code::Unavailable, "STORE_UNAVAILABLE", true, "RETRY_SAME_ATTEMPT")
        }
        // Only the reconciler meets it, and looks again.
        LedgerError::PolicyMoved => {
            (Code::Unavailable, "STORE_UNAVAILABLE", true, "RETRY_SAME_ATTEMPT")
        }
        LedgerError::QueueFull => (Code::Unavailable, "QUEUE_FULL", true, "RETRY_SAME_ATTEMPT"),
        LedgerError::Stopping => (Code::Unavailable, "SHUTTING_DOWN", true, "RETRY_SAME_ATTEMPT"),
        LedgerError::CommitInDoubt(_) => {
            (Code::Unavailable, "COMMIT_IN_DOUBT", true, "RETRY_SAME_ATTEMPT")
        }
        LedgerError::DeadlinePassed => {
            (Code::DeadlineExceeded, "DEADLINE_PASSED", true, "RETRY_SAME_ATTEMPT")
        }
        LedgerError::Internal(_) => (Code::Internal, "INTERNAL", true, "TELL_AN_OPERATOR"),
    }
}

fn refused(refusal: Refusal) -> (&'static str, &'static str) {
    match refusal {
        Refusal::AttemptSuperseded => ("ATTEMPT_SUPERSEDED", "STOP"),
        Refusal::AlreadySettled => ("ALREADY_SETTLED", "STOP"),
        Refusal::EvidenceRequired => ("EVIDENCE_REQUIRED", "SEND_EVIDENCE"),
        Refusal::NotStarted => ("NOT_STARTED", "TELL_AN_OPERATOR"),
        Refusal::NotProposed => ("NOT_STARTED", "LOOK_AGAIN"),
        Refusal::NotGranted => ("NOT_GRANTED", "BEGIN"),
        Refusal::UseTransaction => ("USE_TRANSACTION", "COMPLETE_IN_TRANSACTION"),
        Refusal::LeaseLost(_) => ("LEASE_LOST", "STOP_AND_SETTLE"),
        Refusal::LeaseRunning { .. } => ("LEASE_RUNNING", "WAIT"),
        Refusal::EtagMismatch => ("ETAG_MISMATCH", "LOOK_AGAIN"),
        Refusal::AlreadyDecided => ("ALREADY_DECIDED", "LOOK_AGAIN"),
        Refusal::OwnProposal => ("PERMISSION_DENIED", "ASK_ANOTHER_PERSON"),
    }
}

fn lost(cause: LostLease) -> &'static str {
    match cause {
        LostLease::Expired => "EXPIRED",
        LostLease::Superseded => "SUPERSEDED",
        LostLease::Settled => "SETTLED",
    }
}

fn short(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(TEXT_BYTES_MAX)])
}
