//! What stands before a grant, found out for the tools that have it: whether a person is needed, what
//! looks the same, and whether the run has a slot left.

use std::sync::Arc;

use uuid::Uuid;

use super::round::Round;
use crate::{
    domain::{
        canonical_json::Pointer,
        decision::{BeginCall, Decision, Facts, Written},
        intent::{Intent, RunSlot},
        look_alike::LookAlikeAction,
        time::Timestamp,
    },
    ledger::LedgerError,
    policy::{ApprovalCall, Policy},
    store::{
        Write,
        guards::{LookAlike, Subject, run_of},
    },
};

/// Arguments up to this length are looked at at once, in some milliseconds whatever the expression.
const AT_ONCE_BYTES_MAX: usize = 1024;

/// Another intent that looks the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Similar {
    /// It.
    pub intent: LookAlike,
    /// Where in the arguments both agree.
    pub pointers: Vec<Pointer>,
}

/// What was found out for a new call of a tool with gates.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// What looks the same.
    pub(super) similar: Vec<Similar>,
    /// What the new row is remembered under.
    subject: Option<Subject>,
    /// Words for the caller.
    pub(super) warnings: Vec<&'static str>,
}

impl Gates {
    /// The write, with what it takes beside its row.
    pub(super) fn guard(&self, write: Write, grants: bool, limit: Option<u32>) -> Write {
        // A proposal is the most that can be asked for: it need not be alone.
        let subject = self.subject.map(|subject| Subject {
            alone_since: subject.alone_since.filter(|_| grants),
            ..subject
        });
        write.limited_to(limit).about(subject)
    }
}

impl Round<'_> {
    /// Finds out what a new call is decided on, as of `now`.
    pub(super) async fn gates(
        &self,
        now: Timestamp,
        facts: &mut Facts,
    ) -> Result<Gates, LedgerError> {
        facts.approval_required = self.needs_approval().await?;
        let mut gates = Gates::default();
        let Some(rule) = &self.policy.look_alike else { return Ok(gates) };
        let Some(subject) = rule.subject_of(&self.checked.as_call()) else {
            gates.warnings.push("look_alike_unchecked");
            return Ok(gates);
        };
        let since = rule.since(now);
        let found = self.ledger.store.look_alikes(subject, since).await?;
        facts.similar = found.iter().map(|other| other.key).collect();
        if !found.is_empty() {
            gates.warnings.push("look_alike");
        }
        gates.similar =
            found.into_iter().map(|intent| Similar { intent, pointers: rule.pointers() }).collect();
        gates.subject = Some(Subject {
            id: subject,
            window: rule.window,
            // Two at once must not both pass for the first; where one is only told, they may.
            alone_since: Some(since).filter(|_| rule.action != LookAlikeAction::Warn),
        });
        Ok(gates)
    }

    /// Whether the policy asks for a person before a new call. What an expression has to say of long
    /// arguments may take it long, so that is found out where nobody else waits for it.
    pub(super) async fn needs_approval(&self) -> Result<bool, LedgerError> {
        let (call, policy) = (&self.checked.call, self.policies.active());
        let is_short = call.arguments_json.len() <= AT_ONCE_BYTES_MAX;
        if is_short || policy.approval_when(&call.namespace, &call.tool).is_none() {
            return Ok(needs_approval(policy, call));
        }
        let turn = Arc::clone(&self.ledger.long_conditions).acquire_owned().await;
        let turn = turn.map_err(|_| LedgerError::Stopping)?;
        let (policy, call) = (Arc::clone(policy), call.clone());
        let asked = tokio::task::spawn_blocking(move || {
            // It goes on without a caller who has gone away, and is counted until it ends.
            let _turn = turn;
            needs_approval(&policy, &call)
        });
        // It fails closed.
        Ok(asked.await.unwrap_or(true))
    }

    /// The run whose slot a decision would take, if the tool has a limit and the intent holds none yet.
    pub(super) fn wanted_slot(&self, row: Option<&Intent>, decision: &Decision) -> Option<Uuid> {
        self.policy.limit_per_run?;
        let Decision::Execute { write: Some(Written { intent, .. }), .. } = decision else {
            return None;
        };
        let held = row.map_or(RunSlot::None, |row| row.slot);
        (intent.slot == RunSlot::Held && held != RunSlot::Held).then(|| run_of(intent))
    }

    /// Whether a run has a slot left.
    pub(super) async fn slot_is_free(&self, run: Uuid) -> Result<bool, LedgerError> {
        let Some(limit) = self.policy.limit_per_run else { return Ok(true) };
        Ok(self.ledger.store.slots_held(run).await? < u64::from(limit))
    }
}

fn needs_approval(policy: &Policy, call: &BeginCall) -> bool {
    let asked = ApprovalCall {
        arguments_json: &call.arguments_json,
        tool: &call.tool,
        run_id: &call.run_id,
        labels: &call.labels,
    };
    policy.approval_need(&call.namespace, &asked).is_there()
}
