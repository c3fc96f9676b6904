//! ResolveIntent: a person settles what nobody else can.

use super::{Ledger, LedgerError, ROUNDS_MAX, Violation, shape, shape::ReportedResult};
use crate::{
    clock::Deadline,
    domain::{
        intent::Intent,
        review::{Resolution, Reviewer, resolve},
    },
};

/// What a person found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolutionRequest {
    /// The effect happened.
    Executed,
    /// The effect did not happen.
    NotExecuted,
    /// Seen; nothing more is needed.
    Acknowledged,
}

/// A ResolveIntent, as a person's client sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolveRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// The key.
    pub key: String,
    /// The etag of the intent that the person looked at.
    pub etag: String,
    /// What was found out; `None` where the request does not say.
    pub resolution: Option<ResolutionRequest>,
    /// The result, where the effect happened.
    pub result: ReportedResult,
    /// Why.
    pub reason: String,
    /// Who.
    pub actor: String,
}

impl Ledger {
    /// Records what a person found out.
    pub async fn resolve(
        &self,
        request: ResolveRequest,
        deadline: Deadline,
    ) -> Result<Intent, LedgerError> {
        let namespace = shape::namespace(&request.namespace)?.to_owned();
        let key = shape::key("key", &request.key)?;
        let resolution = request.resolution.ok_or_else(|| {
            Violation::new(
                "resolution",
                "RESOLUTION_REQUIRED",
                "must be EXECUTED, NOT_EXECUTED or ACKNOWLEDGED",
            )
        })?;
        shape::words("etag", "ETAG_REQUIRED", &request.etag, shape::WORDS_BYTES_MAX)?;
        shape::words("reason", "REASON_REQUIRED", &request.reason, shape::WORDS_BYTES_MAX)?;
        shape::words("actor", "ACTOR_REQUIRED", &request.actor, shape::WORDS_BYTES_MAX)?;
        shape::name("actor", &request.actor)?;
        if resolution != ResolutionRequest::Executed && request.result.bytes.is_some() {
            let misplaced = Violation::new(
                "result",
                "RESULT_NOT_ALLOWED",
                "goes with the resolution EXECUTED only",
            );
            return Err(misplaced.into());
        }
        let result = request.result.check()?;
        let reviewer =
            Reviewer { actor: request.actor, reason: request.reason, etag: request.etag };
        for _ in 0..ROUNDS_MAX {
            if deadline.has_passed() {
                return Err(LedgerError::DeadlinePassed);
            }
            let (now, stored) = self.find(&namespace, &key).await?;
            let stored = stored.ok_or(LedgerError::NotFound { report_kept: None })?;
            let resolution = match resolution {
                ResolutionRequest::Executed => {
                    Resolution::Executed(result.body(self.policy(&stored.intent).max_result_bytes))
                }
                ResolutionRequest::NotExecuted => Resolution::NotExecuted,
                ResolutionRequest::Acknowledged => Resolution::Acknowledged,
            };
            let outcome = resolve(&stored.intent, &reviewer, &resolution, now)?;
            let Some(intent) = self.write_outcome(&stored, &outcome, now, deadline).await? else {
                continue;
            };
            return match outcome.answer {
                Ok(()) => Ok(intent),
                Err(refusal) => {
                    Err(LedgerError::Refused { refusal, intent: Box::new(intent), now })
                }
            };
        }
        Err(LedgerError::Internal("a decision met somebody else's write too often".to_owned()))
    }
}
