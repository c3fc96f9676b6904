//! Facts about an intent that are out of the ordinary, kept for people.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{intent::State, time::Timestamp};

/// Who settled an intent, or reported a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Provenance {
    /// The caller that held the attempt.
    Caller,
    /// The reconciler, on an answer of the downstream.
    Reconciler,
    /// A person.
    Operator,
    /// A rule of the policy, such as an expiry.
    Policy,
}

/// What kind of fact it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// Evidence moved the intent out of UNKNOWN.
    LeftUnknown,
    /// A success was reported by an attempt that had been superseded, or after another settlement.
    LateComplete,
    /// A success was reported without evidence while the outcome was unknown, or beside the
    /// transaction that alone can prove it.
    Unproven,
    /// A failure was reported after the intent had completed, or against an earlier report.
    LateFail,
    /// A report contradicts what was believed: the effect may have happened twice.
    Contradiction,
    /// A settlement came from an attempt that was never granted.
    NotGranted,
    /// A settlement came before approval, or for a denied intent.
    NotStarted,
    /// A heartbeat came from one who no longer holds the lease.
    LeaseLost,
    /// A new attempt was granted while an earlier one was unsettled.
    Superseded,
    /// A report came for a key that had never been begun.
    OrphanFact,
    /// The downstream was asked and settled the intent.
    Reconciled,
    /// The downstream was asked and the answer settled nothing.
    Probed,
    /// A person resolved the intent.
    Resolved,
    /// A person acknowledged what needed attention.
    Acknowledged,
    /// A call was proposed for approval.
    Proposed,
    /// A person approved.
    Approved,
    /// A person denied.
    Denied,
    /// The approval ran out.
    ApprovalExpired,
}

/// One fact, as a person will read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When the store recorded it.
    pub at: Timestamp,
    /// What kind of fact it is.
    pub kind: EventKind,
    /// Who reported it.
    pub provenance: Provenance,
    /// The name of the person or process, where known.
    pub actor: String,
    /// The attempt that it is about.
    pub attempt_id: Option<Uuid>,
    /// The state before.
    pub state_before: State,
    /// The state after.
    pub state_after: State,
    /// The reporter's code, such as `http_504`.
    pub code: String,
    /// The reporter's words.
    pub note: String,
    /// The downstream's id of the effect, where reported.
    pub downstream_ref: Option<String>,
    /// SHA-256 of the reported result, where there is one.
    pub result_sha256: Option<[u8; 32]>,
}
