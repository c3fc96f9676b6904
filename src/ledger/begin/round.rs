//! One try at a Begin, decided on one version of the policy and one reading of the row.

use std::sync::Arc;

use super::{
    BeginAnswer, Checked, answer,
    candidates::{Candidates, invalid_identity},
};
use crate::{
    clock::Deadline,
    domain::{
        decision::{self, Candidate, Decision, Facts, RefuseReason, decide, decide_unrecorded},
        fingerprint::fingerprint,
        time::Timestamp,
        tool::{Class, ToolPolicy},
    },
    ledger::{Ledger, LedgerError, Violation},
    policy::PolicySet,
    store::{Stored, Write, Written, row_id},
};

/// One try; it ends without an answer where somebody else's write came first.
pub(super) struct Round<'a> {
    ledger: &'a Ledger,
    checked: &'a Checked,
    policies: Arc<PolicySet>,
    policy: Arc<ToolPolicy>,
    candidates: Candidates,
    deadline: Deadline,
}

impl<'a> Round<'a> {
    pub(super) fn new(ledger: &'a Ledger, checked: &'a Checked, deadline: Deadline) -> Self {
        let policies = ledger.policies.current();
        let call = &checked.call;
        let policy = Arc::clone(policies.active().tool(&call.namespace, &call.tool));
        let candidates = Candidates::of(&policies, &checked.as_call(), &checked.call.free_text);
        Self { ledger, checked, policies, policy, candidates, deadline }
    }

    /// Whether this round was decided by a policy that is no longer the active one.
    pub(super) async fn was_behind(&self) -> Result<bool, LedgerError> {
        self.ledger.policies.was_behind(&self.ledger.store, &self.policies).await
    }

    pub(super) async fn run(&self) -> Result<Option<BeginAnswer>, LedgerError> {
        let records = self.policy.class == Class::Effectful;
        if !records && !self.candidates.recorded_before() {
            // Nothing to record and no older row that could decide: not even a key is needed.
            return self.not_recorded().await;
        }
        // Free text that a listed tool's caller declares is refused, unless a row says otherwise.
        let declares = self.policy.listed && !self.checked.call.free_text.is_empty();
        if records && self.candidates.is_plain() && !declares {
            if self.policy.refuses_tool() && self.candidates.active.is_err() {
                return self.refused_unlisted();
            }
            if let Some(decided) = self.insert_unread().await? {
                return Ok(decided);
            }
        }
        let found = self.ledger.store.find(&self.candidates.keys()).await?;
        let now = found.now;
        match self.candidates.row(found) {
            Some(stored) => self.decide_present(&stored, now).await,
            None => self.decide_absent(now).await,
        }
    }

    /// The common case: a fresh key, written without reading first.
    ///
    /// All times of a new row are relative to its write, so the decision is made for the epoch and
    /// shifted by it. `None` where only a reading of the row can tell.
    async fn insert_unread(&self) -> Result<Option<Option<BeginAnswer>>, LedgerError> {
        let candidate = self.active()?;
        let now = Timestamp::default();
        let decision = decide(None, &self.checked.call, candidate, &self.policy, &Facts::at(now))?;
        let Decision::Execute { write: Some(written), .. } = &decision else {
            return Ok(None);
        };
        let write = self.insertion(written, now, false);
        match self.ledger.writer.write(write.clone(), self.deadline).await? {
            Written::Done { at } => Ok(Some(Some(self.with_row(decision, &write, candidate, at)))),
            Written::PolicyMoved => {
                self.ledger.policies.reload(&self.ledger.store).await?;
                Ok(Some(None))
            }
            Written::Missed => Ok(None),
        }
    }

    /// No row under any key: orphan facts may still speak.
    async fn decide_absent(&self, now: Timestamp) -> Result<Option<BeginAnswer>, LedgerError> {
        self.check_free_text()?;
        if self.policy.class != Class::Effectful {
            return self.not_recorded().await;
        }
        if self.policy.refuses_tool() {
            return self.refused_unlisted();
        }
        let candidate = self.active()?;
        let mut orphans = Vec::new();
        for key in self.candidates.keys() {
            orphans.extend(self.ledger.store.orphans(&key).await?);
        }
        let orphans_seen = !orphans.is_empty();
        let facts = Facts { orphans, ..Facts::at(now) };
        let decision = decide(None, &self.checked.call, candidate, &self.policy, &facts)?;
        match written_by(&decision) {
            Some(written) => {
                let write = self.insertion(written, now, orphans_seen);
                self.finish(decision, write, candidate).await
            }
            None => self.without_row(decision),
        }
    }

    /// The key has a row: it is judged under its own recipe.
    async fn decide_present(
        &self,
        stored: &Stored,
        now: Timestamp,
    ) -> Result<Option<BeginAnswer>, LedgerError> {
        let row = &stored.intent;
        let call = &self.checked.call;
        let recipe = self.policies.recipe_of(row.recipe, &call.namespace, &call.tool);
        let Some(recipe) = recipe else {
            // Another replica made the row under a policy that this one has not heard of.
            if self.was_behind().await? {
                return Ok(None);
            }
            let version = row.recipe.policy;
            return Err(LedgerError::Internal(format!("policy version {version} is not kept")));
        };
        let candidate = Candidate {
            recipe: row.recipe,
            key: row.key,
            basis: row.key_basis,
            print: fingerprint(
                &recipe,
                &row.free_text,
                &self.checked.as_call(),
                &row.key,
                row.key_basis,
            ),
        };
        let decision = decide(Some(row), call, &candidate, &self.policy, &Facts::at(now))?;
        if let Decision::ParametersChanged { pointers } = decision {
            let intent = Box::new(row.clone());
            return Err(LedgerError::ParametersChanged { intent, pointers });
        }
        // Another call under this key leaves no trace on the row, not even here.
        let replayed = matches!(decision, Decision::Replay { .. });
        self.ledger.repeats.seen(row_id(&row.key, row.recipe.hash), replayed);
        match written_by(&decision) {
            Some(written) => {
                let version = Some(self.policies.active().version());
                let (intent, events) = ((*written.intent).clone(), written.events.clone());
                let write = Write::replace(stored, intent, events, now, version);
                self.finish(decision, write, &candidate).await
            }
            None => Ok(Some(answer::with_row(
                decision,
                row.clone(),
                &candidate,
                self.checked,
                &self.policy,
                now,
            ))),
        }
    }

    /// No write would catch that the policy has moved, or that the store is gone: it is asked.
    async fn not_recorded(&self) -> Result<Option<BeginAnswer>, LedgerError> {
        if self.was_behind().await? {
            return Ok(None);
        }
        self.without_row(decide_unrecorded(&self.policy, &Facts::at(Timestamp::default())))
    }

    /// The policy is asked before the key: a tool that it refuses is refused whatever the call lacks.
    fn refused_unlisted(&self) -> Result<Option<BeginAnswer>, LedgerError> {
        self.without_row(Decision::Refuse { reason: RefuseReason::ToolNotListed })
    }

    async fn finish(
        &self,
        decision: Decision,
        write: Write,
        candidate: &Candidate,
    ) -> Result<Option<BeginAnswer>, LedgerError> {
        match self.ledger.writer.write(write.clone(), self.deadline).await? {
            Written::Done { at } => Ok(Some(self.with_row(decision, &write, candidate, at))),
            Written::PolicyMoved => {
                self.ledger.policies.reload(&self.ledger.store).await?;
                Ok(None)
            }
            Written::Missed => Ok(None),
        }
    }

    fn insertion(&self, written: &decision::Written, now: Timestamp, orphans_seen: bool) -> Write {
        let (intent, events) = ((*written.intent).clone(), written.events.clone());
        Write::insert(intent, events, now, orphans_seen, self.policies.active().version())
    }

    fn active(&self) -> Result<&Candidate, Violation> {
        self.candidates.active.as_ref().map_err(invalid_identity)
    }

    /// A caller may declare free text only where no policy does.
    fn check_free_text(&self) -> Result<(), Violation> {
        if self.policy.listed && !self.checked.call.free_text.is_empty() {
            return Err(Violation::new(
                "free_text",
                "FREE_TEXT_NOT_ALLOWED",
                "the tool has a policy, and only the policy declares its free text",
            ));
        }
        Ok(())
    }

    fn without_row(&self, decision: Decision) -> Result<Option<BeginAnswer>, LedgerError> {
        answer::without_row(decision, self.checked, &self.policy).map(Some)
    }

    fn with_row(
        &self,
        decision: Decision,
        write: &Write,
        candidate: &Candidate,
        at: Timestamp,
    ) -> BeginAnswer {
        let intent = write.stamped(at);
        let version = write.version_after();
        self.ledger.recent.put(write.row_id(), Stored { intent: intent.clone(), version });
        answer::with_row(decision, intent, candidate, self.checked, &self.policy, at)
    }
}

fn written_by(decision: &Decision) -> Option<&decision::Written> {
    match decision {
        Decision::Execute { write, .. }
        | Decision::Hold { write, .. }
        | Decision::AwaitApproval { write } => write.as_ref(),
        Decision::Replay { .. }
        | Decision::Refuse { .. }
        | Decision::ParametersChanged { .. }
        | Decision::WeakKey
        | Decision::NotRecorded => None,
    }
}
