//! Extend: a heartbeat of the attempt that holds the lease.

use std::{sync::Arc, time::Duration};

use super::{Ledger, LedgerError, shape};
use crate::{
    clock::Deadline,
    domain::{
        intent::Intent,
        report::{Extend, extend},
    },
    store::Stored,
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
    /// The row afterwards.
    pub row: Arc<Stored>,
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
        let decide = |intent: &Intent, now| {
            let (outcome, clamped) = extend(intent, &report, &self.policy(intent), now);
            // Counted from the decision, which is before the write: never more than is held.
            let current = outcome.intent.current();
            let lease = current.map_or(Duration::ZERO, |it| it.lease_expires_at.since(now));
            Ok((outcome, (lease, clamped)))
        };
        let changed = self.change(&namespace, &key, deadline, None, None, decide).await?;
        let (lease, clamped) = changed.more;
        let warnings = clamped.then_some("lease_clamped").into_iter().collect();
        Ok(ExtendAnswer { row: changed.stored, lease, warnings })
    }
}
