//! Complete and Fail: what became of an attempt.

use std::sync::Arc;

use super::{Ledger, LedgerError, Reading, shape, shape::ReportedResult};
use crate::{
    clock::Deadline,
    domain::{
        attempt::Failure,
        event::{Event, EventKind, Provenance},
        identity::Key,
        intent::{Intent, State, TransitionError},
        report::{Complete, Fail, Outcome, complete, fail},
        time::Timestamp,
    },
    store::{OrphanFact, Stored, row_id},
};

/// A Complete, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompleteRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// The key that Begin answered.
    pub key: String,
    /// The attempt that had the effect.
    pub attempt_id: String,
    /// What the effect returned.
    pub result: ReportedResult,
    /// The downstream's id; empty if there is none.
    pub downstream_ref: String,
}

/// A Fail, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// The key that Begin answered.
    pub key: String,
    /// The attempt that failed.
    pub attempt_id: String,
    /// Whether the effect certainly did not happen.
    pub not_executed: bool,
    /// A short code.
    pub code: String,
    /// The words.
    pub message: String,
    /// The downstream's id; empty if there is none.
    pub downstream_ref: String,
}

/// What a report is answered.
#[derive(Debug, Clone)]
pub struct SettleAnswer {
    /// The row afterwards.
    pub row: Arc<Stored>,
    /// What the caller should know.
    pub warnings: Vec<&'static str>,
}

impl Ledger {
    /// Records that an attempt had its effect.
    pub async fn complete(
        &self,
        request: CompleteRequest,
        deadline: Deadline,
    ) -> Result<SettleAnswer, LedgerError> {
        self.pace.called();
        let namespace = shape::namespace(&request.namespace)?.to_owned();
        let key = shape::key("key", &request.key)?;
        let attempt_id = shape::settling_attempt_id(&request.attempt_id)?;
        let downstream_ref = shape::downstream_ref(request.downstream_ref)?;
        let result = request.result.check()?;
        let report = |bytes_max| Complete {
            attempt_id,
            result: result.body(bytes_max),
            downstream_ref: downstream_ref.clone(),
        };
        let orphan = || Event {
            attempt_id: Some(attempt_id),
            code: "COMPLETE".to_owned(),
            downstream_ref: downstream_ref.clone(),
            result_sha256: Some(result.body(0).sha256),
            ..orphan_event()
        };
        // A success asks for no time but that of its write, so a reading made at the grant will do.
        let recent = self.recent(&namespace, &key);
        let row = self
            .settle(&namespace, key, deadline, recent, orphan, |intent, now| {
                complete(intent, &report(self.policy(intent).max_result_bytes), now)
            })
            .await?;
        let cut = row.intent.result.as_ref().is_some_and(|result| result.truncated);
        Ok(SettleAnswer { row, warnings: cut.then_some("result_truncated").into_iter().collect() })
    }

    /// Records that an attempt did not have its effect, or that nobody knows.
    pub async fn fail(
        &self,
        request: FailRequest,
        deadline: Deadline,
    ) -> Result<SettleAnswer, LedgerError> {
        self.pace.called();
        let namespace = shape::namespace(&request.namespace)?.to_owned();
        let key = shape::key("key", &request.key)?;
        let attempt_id = shape::settling_attempt_id(&request.attempt_id)?;
        let downstream_ref = shape::downstream_ref(request.downstream_ref)?;
        shape::name("code", &request.code)?;
        let mut warnings = Vec::new();
        let mut message = request.message;
        if message.len() > shape::WORDS_BYTES_MAX {
            // A long stack trace must not cost the report.
            message.truncate(message.floor_char_boundary(shape::WORDS_BYTES_MAX));
            warnings.push("message_truncated");
        }
        let report = Fail {
            attempt_id,
            failure: Failure { not_executed: request.not_executed, code: request.code, message },
            downstream_ref,
        };
        let kind = if report.failure.not_executed { "NOT_EXECUTED" } else { "OUTCOME_UNKNOWN" };
        let orphan = || Event {
            attempt_id: Some(attempt_id),
            code: format!("FAIL {kind} {}", report.failure.code).trim_end().to_owned(),
            note: report.failure.message.clone(),
            downstream_ref: report.downstream_ref.clone(),
            ..orphan_event()
        };
        let row = self
            .settle(&namespace, key, deadline, None, orphan, |intent, now| {
                fail(intent, &report, &self.policy(intent), now)
            })
            .await?;
        Ok(SettleAnswer { row, warnings })
    }

    /// Settles by a report; one for a key that was never begun is kept.
    async fn settle(
        &self,
        namespace: &str,
        key: Key,
        deadline: Deadline,
        recent: Option<Reading>,
        orphan: impl FnOnce() -> Event,
        report: impl Fn(&Intent, Timestamp) -> Result<Outcome, TransitionError>,
    ) -> Result<Arc<Stored>, LedgerError> {
        let decide = |intent: &Intent, now: Timestamp| Ok((report(intent, now)?, ()));
        match self.change(namespace, &key, deadline, recent, None, decide).await {
            Err(LedgerError::NotFound { .. }) => {}
            changed => return changed.map(|changed| changed.stored),
        }
        // Kept first and looked for again after: a Begin that comes between either sees the fact or
        // is seen here.
        let kept = self.keep_orphan(namespace, key, orphan()).await?;
        match self.change(namespace, &key, deadline, None, None, decide).await {
            Err(LedgerError::NotFound { .. }) => {
                Err(LedgerError::NotFound { report_kept: Some(kept) })
            }
            changed => changed.map(|changed| changed.stored),
        }
    }

    async fn keep_orphan(
        &self,
        namespace: &str,
        key: Key,
        event: Event,
    ) -> Result<bool, LedgerError> {
        let fact = OrphanFact {
            namespace: namespace.to_owned(),
            key,
            id: row_id(&key, self.policies.current().hash_version()),
            event,
        };
        let kept = self.store.keep_orphans(&[fact]).await?.first() == Some(&true);
        if !kept {
            tracing::warn!(namespace, %key, "too many orphan facts; this one was not kept");
        }
        Ok(kept)
    }
}

fn orphan_event() -> Event {
    Event {
        at: Timestamp::default(),
        kind: EventKind::OrphanFact,
        provenance: Provenance::Caller,
        actor: String::new(),
        attempt_id: None,
        state_before: State::Unknown,
        state_after: State::Unknown,
        code: String::new(),
        note: String::new(),
        downstream_ref: None,
        result_sha256: None,
    }
}
