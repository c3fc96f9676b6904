//! Extend: a heartbeat of the attempt that holds the lease.

use std::time::Duration;

use super::{Ledger, LedgerError, ROUNDS_MAX, shape};
use crate::{
    clock::Deadline,
    domain::{
        intent::Intent,
        report::{Extend, extend},
    },
};

/// An Extend, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtendRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// The key that Begin answered.
    pub key: String,
    /// The attempt that holds the lease.
    pub attempt_id: String,
    /// How long from now; the tool's lease if absent.
    pub lease: Option<Duration>,
    /// What the downstream answered so far; empty if nothing.
    pub downstream_ref: String,
}

/// What a heartbeat is answered.
#[derive(Debug, Clone)]
pub struct ExtendAnswer {
    /// The intent afterwards.
    pub intent: Intent,
    /// What is left of the lease.
    pub lease: Duration,
    /// What the caller should know.
    pub warnings: Vec<&'static str>,
}

impl Ledger {
    /// Prolongs the lease of the attempt that holds it.
    pub async fn extend(
        &self,
        request: ExtendRequest,
        deadline: Deadline,
    ) -> Result<ExtendAnswer, LedgerError> {
        let namespace = shape::namespace(&request.namespace)?.to_owned();
        let key = shape::key("key", &request.key)?;
        shape::lease(request.lease)?;
        let report = Extend {
            attempt_id: shape::settling_attempt_id(&request.attempt_id)?,
            lease: request.lease,
            downstream_ref: shape::downstream_ref(request.downstream_ref)?,
        };
        for _ in 0..ROUNDS_MAX {
            if deadline.has_passed() {
                return Err(LedgerError::DeadlinePassed);
            }
            let (now, stored) = self.find(&namespace, &key).await?;
            let stored = stored.ok_or(LedgerError::NotFound { report_kept: None })?;
            let (outcome, clamped) =
                extend(&stored.intent, &report, &self.policy(&stored.intent), now);
            let Some(intent) = self.write_outcome(&stored, &outcome, now, deadline).await? else {
                continue;
            };
            if let Err(refusal) = outcome.answer {
                return Err(LedgerError::Refused { refusal, intent: Box::new(intent), now });
            }
            // Counted from the decision, which is before the write: never more than is held.
            let lease = outcome
                .intent
                .current()
                .map_or(Duration::ZERO, |attempt| attempt.lease_expires_at.since(now));
            let warnings = clamped.then_some("lease_clamped").into_iter().collect();
            return Ok(ExtendAnswer { intent, lease, warnings });
        }
        Err(LedgerError::Internal("a heartbeat met somebody else's write too often".to_owned()))
    }
}
