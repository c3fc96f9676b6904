//! What people decide: ApproveIntent, DenyIntent, and ResolveIntent, which settles what nobody else
//! can.

use std::sync::Arc;

use super::{Ledger, LedgerError, Violation, shape, shape::ReportedResult};
use crate::{
    clock::Deadline,
    domain::{
        intent::Intent,
        review::{Resolution, Reviewer, approve, deny, resolve},
    },
    store::Stored,
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

/// An ApproveIntent or a DenyIntent, as a person's client sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// The key.
    pub key: String,
    /// The etag of the intent that the person looked at.
    pub etag: String,
    /// Why.
    pub reason: String,
    /// Who.
    pub actor: String,
    /// Whether it is a yes.
    pub yes: bool,
}

/// What every word of a person must bring: what was looked at, why, and who.
fn reviewer(etag: String, reason: String, actor: String) -> Result<Reviewer, Violation> {
    shape::words("etag", "ETAG_REQUIRED", &etag, shape::WORDS_BYTES_MAX)?;
    shape::words("reason", "REASON_REQUIRED", &reason, shape::WORDS_BYTES_MAX)?;
    shape::words("actor", "ACTOR_REQUIRED", &actor, shape::WORDS_BYTES_MAX)?;
    shape::name("actor", &actor)?;
    Ok(Reviewer { actor, reason, etag })
}

impl Ledger {
    /// Records a person's yes or no to a proposal.
    pub async fn decide(
        &self,
        request: DecisionRequest,
        deadline: Deadline,
    ) -> Result<Arc<Stored>, LedgerError> {
        let namespace = shape::namespace(&request.namespace)?.to_owned();
        let key = shape::key("key", &request.key)?;
        let reviewer = reviewer(request.etag, request.reason, request.actor)?;
        let decide = |intent: &Intent, now| {
            let decide = if request.yes { approve } else { deny };
            Ok((decide(intent, &reviewer, now)?, ()))
        };
        Ok(self.change(&namespace, &key, deadline, None, None, decide).await?.stored)
    }

    /// Records what a person found out.
    pub async fn resolve(
        &self,
        request: ResolveRequest,
        deadline: Deadline,
    ) -> Result<Arc<Stored>, LedgerError> {
        let namespace = shape::namespace(&request.namespace)?.to_owned();
        let key = shape::key("key", &request.key)?;
        let resolution = request.resolution.ok_or_else(|| {
            Violation::new(
                "resolution",
                "RESOLUTION_REQUIRED",
                "must be EXECUTED, NOT_EXECUTED or ACKNOWLEDGED",
            )
        })?;
        let reviewer = reviewer(request.etag, request.reason, request.actor)?;
        if resolution != ResolutionRequest::Executed && request.result.bytes.is_some() {
            let misplaced = Violation::new(
                "result",
                "RESULT_NOT_ALLOWED",
                "goes with the resolution EXECUTED only",
            );
            return Err(misplaced.into());
        }
        let result = request.result.check()?;
        let decide = |intent: &Intent, now| {
            let policy = self.policy(intent);
            let resolution = match resolution {
                ResolutionRequest::Executed => {
                    Resolution::Executed(result.body(policy.max_result_bytes))
                }
                ResolutionRequest::NotExecuted => Resolution::NotExecuted,
                ResolutionRequest::Acknowledged => Resolution::Acknowledged,
            };
            let rule = policy.downstream.status;
            Ok((resolve(intent, &reviewer, &resolution, rule, now)?, ()))
        };
        Ok(self.change(&namespace, &key, deadline, None, None, decide).await?.stored)
    }
}
