//! Lookup: what is known of an intent, now or once it changes.

use std::time::Duration;

use uuid::Uuid;

use super::{
    IdentityRequest, Ledger, LedgerError, Violation,
    begin::candidates::{Candidates, invalid_identity},
    shape,
};
use crate::{
    clock::Deadline,
    domain::{
        event::Event,
        identity::{Call, Key, downstream_uuid},
        intent::Intent,
    },
    store::{Reference, RowKey, Stored},
};

/// What is kept free of a caller's deadline, so that the answer of a wait still arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);

/// The longest wait of a caller that sets no deadline.
const WAIT_MAX: Duration = Duration::from_secs(10 * 60);

/// Which intent is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By its key.
    Key(String),
    /// By what a Begin would send.
    Identity(IdentityRequest),
    /// By the key that was sent downstream.
    DownstreamKey(String),
    /// By the downstream's own id.
    DownstreamRef(String),
    /// By the model's id of the call that began it.
    ToolCallId(String),
}

/// A Lookup, as a caller sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// Which intent; `None` where the request names none.
    pub target: Option<Target>,
    /// The arguments, where the target is an identity.
    pub arguments_json: String,
    /// Whether to add the events.
    pub full: bool,
    /// How long to wait for the state to change.
    pub wait: Option<Duration>,
}

/// What a Lookup is answered.
#[derive(Debug, Clone)]
pub struct LookupAnswer {
    /// The intent.
    pub intent: Intent,
    /// The facts kept beside it, where they were asked for.
    pub events: Vec<Event>,
}

impl Ledger {
    /// Finds an intent; with a wait, answers once its state is another than at arrival.
    pub async fn lookup(
        &self,
        request: LookupRequest,
        deadline: Deadline,
    ) -> Result<LookupAnswer, LedgerError> {
        let namespace = shape::namespace(&request.namespace)?;
        let target = request.target.as_ref().ok_or_else(|| {
            Violation::new(
                "key",
                "LOOKUP_TARGET_REQUIRED",
                "one of key, identity, downstream_key, downstream_ref or tool_call_id must be given",
            )
        })?;
        let mut stored = self.target(namespace, target, &request.arguments_json).await?;
        if let Some(wait) = request.wait.filter(|wait| !wait.is_zero()) {
            stored = self.wait(stored, wait, deadline).await?;
        }
        let events =
            if request.full { self.store.events(stored.intent.id()).await? } else { Vec::new() };
        Ok(LookupAnswer { intent: stored.intent, events })
    }

    async fn wait(
        &self,
        stored: Stored,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<Stored, LedgerError> {
        let id = stored.intent.id();
        let key = RowKey { namespace: stored.intent.namespace.clone(), id };
        let arrival = stored.intent.state;
        let until =
            Deadline::after(Some(deadline.left(WAIT_MAX).saturating_sub(ANSWER_MARGIN).min(wait)));
        let mut waiter = self.watchers.watch(id);
        let mut stored = stored;
        loop {
            // Read again after the watch has begun: a change in between is not missed.
            let found = self.reader.find(vec![key.clone()]).await?;
            let row = found.rows.into_iter().next().flatten();
            stored = row.unwrap_or(stored);
            let left = until.left(WAIT_MAX);
            if stored.intent.state != arrival
                || left.is_zero()
                || !waiter.newer_than(stored.version, left).await
            {
                return Ok(stored);
            }
        }
    }

    async fn target(
        &self,
        namespace: &str,
        target: &Target,
        arguments_json: &str,
    ) -> Result<Stored, LedgerError> {
        let absent = || LedgerError::NotFound { report_kept: None };
        match target {
            Target::Key(text) => {
                let key = shape::key("key", text)?;
                self.find(namespace, &key).await?.1.ok_or_else(absent)
            }
            Target::Identity(identity) => {
                self.find_identity(namespace, identity, arguments_json).await?.ok_or_else(absent)
            }
            Target::DownstreamKey(text) => {
                self.find_downstream_key(namespace, text).await?.ok_or_else(absent)
            }
            Target::DownstreamRef(text) => {
                let reference = shape::downstream_ref(text.clone())?.ok_or_else(|| {
                    Violation::new("downstream_ref", "LOOKUP_TARGET_REQUIRED", "must be given")
                })?;
                let reference = Reference::DownstreamRef(reference);
                self.store.find_by_reference(namespace, &reference).await?.ok_or_else(absent)
            }
            Target::ToolCallId(text) => {
                shape::name("tool_call_id", text)?;
                if text.is_empty() {
                    let missing =
                        Violation::new("tool_call_id", "LOOKUP_TARGET_REQUIRED", "must be given");
                    return Err(missing.into());
                }
                let reference = Reference::ToolCallId(text.clone());
                self.store.find_by_reference(namespace, &reference).await?.ok_or_else(absent)
            }
        }
    }

    async fn find_identity(
        &self,
        namespace: &str,
        identity: &IdentityRequest,
        arguments_json: &str,
    ) -> Result<Option<Stored>, LedgerError> {
        shape::tool(&identity.tool)?;
        shape::name("identity.run_id", &identity.run_id)?;
        shape::name("identity.step_id", &identity.step_id)?;
        let arguments = shape::arguments(arguments_json)?;
        let call = Call {
            namespace,
            tool: &identity.tool,
            run_id: &identity.run_id,
            step_id: &identity.step_id,
            idempotency_key: &identity.idempotency_key,
            business_ids: &identity.business_ids,
            arguments: &arguments,
        };
        loop {
            let policies = self.policies.current();
            let candidates = Candidates::of(&policies, &call, &[], &[]);
            let keys = candidates.keys();
            let found = self.reader.find(keys).await?;
            if let Some(stored) = candidates.row(found) {
                return Ok(Some(stored));
            }
            // "Never begun" must hold under the policy that other replicas begin under.
            if !self.policies.was_behind(&self.store, &policies).await? {
                return match candidates.active {
                    Err(error) => Err(invalid_identity(&error).into()),
                    Ok(_) => Ok(None),
                };
            }
        }
    }

    async fn find_downstream_key(
        &self,
        namespace: &str,
        text: &str,
    ) -> Result<Option<Stored>, LedgerError> {
        let invalid = || {
            Violation::new(
                "downstream_key",
                "KEY_INVALID",
                "must be 64 lower-case hexadecimal digits or a UUID",
            )
        };
        // The row is filed under the key's UUID form, which both forms tell.
        let (id, digest) = match text.parse::<Key>() {
            Ok(digest) => (downstream_uuid(*digest.as_bytes()), Some(*digest.as_bytes())),
            Err(_) => (Uuid::try_parse(text).map_err(|_| invalid())?, None),
        };
        let key = RowKey { namespace: namespace.to_owned(), id };
        let found = self.reader.find(vec![key]).await?;
        if let Some(stored) = found.rows.into_iter().next().flatten() {
            return Ok(
                Some(stored).filter(|it| digest.is_none_or(|own| own == it.intent.downstream))
            );
        }
        // An attempt with a downstream key of its own, which is filed in its UUID form too.
        let found = self.store.find_by_reference(namespace, &Reference::DownstreamKey(id)).await?;
        Ok(found.filter(|stored| {
            let row = &stored.intent;
            let digests = row.attempts.iter().map(|it| row.downstream_digest(it));
            digest.is_none_or(|digest| digests.into_iter().any(|own| own == digest))
        }))
    }
}
