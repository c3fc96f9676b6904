//! One try at a Begin, decided on one version of the policy and one reading of the row.

use std::sync::{Arc, OnceLock};

use super::{
    BeginAnswer, Checked, answer,
    candidates::{Candidates, invalid_identity},
};
use crate::{
    clock::Deadline,
    domain::{
        decision::{
            self, Candidate, Decision, Facts, RefuseReason, decide, decide_unrecorded,
            should_look_first,
        },
        fingerprint::fingerprint,
        identity::named_ids,
        intent::Intent,
        repeat::{Answered, kept_pointers},
        time::Timestamp,
        tool::{Class, ToolPolicy},
    },
    ledger::{Ledger, LedgerError, Reading, Violation, history::Met, write_batcher::Outcome},
    policy::PolicySet,
    store::{RowKey, Stored, Write},
};

/// One try; it ends without an answer where somebody else's write came first.
pub(super) struct Round<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) checked: &'a Checked,
    pub(super) policies: Arc<PolicySet>,
    pub(super) policy: Arc<ToolPolicy>,
    candidates: Candidates,
    deadline: Deadline,
    /// The row that was met, once the call has been decided on it.
    met: OnceLock<Met>,
}

impl<'a> Round<'a> {
    pub(super) fn new(ledger: &'a Ledger, checked: &'a Checked, deadline: Deadline) -> Self {
        let policies = ledger.policies.current();
        let call = &checked.call;
        let policy = Arc::clone(policies.active().tool(&call.namespace, &call.tool));
        let candidates = Candidates::of(
            &policies,
            &checked.as_call(),
            &checked.call.free_text,
            &policy.downstream.asks_by,
        );
        Self { ledger, checked, policies, policy, candidates, deadline, met: OnceLock::new() }
    }

    /// Whether the policy lists the tool.
    pub(super) fn is_listed(&self) -> bool {
        self.policy.listed
    }

    /// The row that the call met, as it was before.
    pub(super) fn met(&self) -> Option<&Met> {
        self.met.get()
    }

    /// Whether this round was decided by a policy that is no longer the active one.
    pub(super) async fn was_behind(&self) -> Result<bool, LedgerError> {
        self.ledger.policies.was_behind(&self.ledger.store, &self.policies).await
    }

    /// Decides, after an insertion that did not.
    pub(super) async fn run(&self, inserted: Inserted) -> Result<Option<BeginAnswer>, LedgerError> {
        let records = self.policy.class == Class::Effectful;
        if !records && !self.candidates.recorded_before() {
            // Nothing to record and no older row that could decide: not even a key is needed.
            return self.not_recorded().await;
        }
        match inserted {
            Inserted::Answered(answer) => return Ok(Some(*answer)),
            Inserted::PolicyMoved => return Ok(None),
            Inserted::Met(reading) => return self.decide_present(reading).await,
            Inserted::ReadFirst => {}
        }
        if self.is_plain() && self.policy.refuses_tool() && self.candidates.active.is_err() {
            return self.refused_unlisted();
        }
        if let Some(reading) = self.unchanged().await? {
            return self.decide_present(reading).await;
        }
        let found = self.ledger.reader.find(self.candidates.keys()).await?;
        let now = found.now;
        match self.candidates.row(found) {
            Some(stored) => self.decide_present(Reading { now, stored: Arc::new(stored) }).await,
            None => self.decide_absent(now).await,
        }
    }

    /// Whether only a row under the active recipe's key can decide otherwise than for a new call.
    fn is_plain(&self) -> bool {
        // Free text that a listed tool's caller declares is refused, unless a row says otherwise.
        let declares = self.policy.listed && !self.checked.call.free_text.is_empty();
        self.policy.class == Class::Effectful && self.candidates.is_plain() && !declares
    }

    /// The row of the only key that can be this call's, if this server has seen it lately and the
    /// store says that it is still as it was.
    async fn unchanged(&self) -> Result<Option<Reading>, LedgerError> {
        let Some(stored) = self.recent() else { return Ok(None) };
        let id = stored.intent.id();
        let (now, version) = self.ledger.reader.version(id).await?;
        Ok((version == Some(stored.version)).then_some(Reading { now, stored }))
    }

    /// The row of the only key that can be this call's, if this server has seen it lately.
    fn recent(&self) -> Option<Arc<Stored>> {
        let candidate = self.candidates.only()?;
        let RowKey { namespace, id } = self.candidates.row_key(candidate);
        let stored = self.ledger.recent.get(id)?;
        let same = stored.intent.namespace == namespace && stored.intent.key == candidate.key;
        same.then_some(stored)
    }

    /// The common case: a fresh key, written without reading first.
    ///
    /// All times of a new row are those of its write, so that any will do for the decision.
    pub(super) async fn insert_unread(&self) -> Result<Inserted, LedgerError> {
        let Ok(candidate) = &self.candidates.active else { return Ok(Inserted::ReadFirst) };
        if !self.is_plain() || self.policy.is_gated() || self.recent().is_some() {
            return Ok(Inserted::ReadFirst);
        }
        let facts = Facts::at(Timestamp::default());
        let mut decision = decide(None, &self.checked.call, candidate, &self.policy, &facts)?;
        let Decision::Execute { write, .. } = &mut decision else {
            return Ok(Inserted::ReadFirst);
        };
        let Some(written) = write.take() else { return Ok(Inserted::ReadFirst) };
        let write = Write::insert(written.intent, written.events, false);
        match self.ledger.writer.write(write, self.deadline).await? {
            Outcome::Done(reading) => {
                Ok(Inserted::Answered(Box::new(self.with_row(decision, reading, candidate))))
            }
            Outcome::PolicyMoved => {
                self.ledger.policies.reload(&self.ledger.store).await?;
                Ok(Inserted::PolicyMoved)
            }
            Outcome::Missed(Some(reading)) => Ok(Inserted::Met(reading)),
            Outcome::Missed(None) | Outcome::Guarded => Ok(Inserted::ReadFirst),
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
        let mut facts = Facts { orphans, ..Facts::at(now) };
        let gates = self.gates(now, &mut facts).await?;
        let call = &self.checked.call;
        let mut decision = decide(None, call, candidate, &self.policy, &facts)?;
        if let Some(run) = self.wanted_slot(None, &decision) {
            facts.slot_free = self.slot_is_free(run).await?;
            decision = decide(None, call, candidate, &self.policy, &facts)?;
        }
        let grants = matches!(decision, Decision::Execute { .. });
        let answer = match written_by(&mut decision) {
            Some(written) => {
                let write = Write::insert(written.intent, written.events, orphans_seen);
                let write = gates.guard(write, grants, self.policy.limit_per_run);
                self.finish(decision, write, candidate).await?
            }
            None => self.without_row(decision)?,
        };
        Ok(answer.map(|mut answer| {
            answer.warnings.extend(&gates.warnings);
            answer.similar = gates.similar;
            answer
        }))
    }

    /// The key has a row: it is judged under its own recipe, after a look at what became of it where
    /// the policy says so.
    async fn decide_present(&self, reading: Reading) -> Result<Option<BeginAnswer>, LedgerError> {
        let Some(candidate) = self.judged_as(&reading.stored.intent).await? else {
            return Ok(None);
        };
        let row = &reading.stored.intent;
        let call = &self.checked.call;
        if !should_look_first(row, call, &candidate, &self.policy, reading.now) {
            return self.decide_known(reading, candidate, false).await;
        }
        self.ledger.look_first(row, self.deadline).await;
        let key = self.candidates.row_key(&candidate);
        let found = self.ledger.reader.find(vec![key]).await?;
        match found.rows.into_iter().next().flatten() {
            Some(stored) => {
                let reading = Reading { now: found.now, stored: Arc::new(stored) };
                self.decide_known(reading, candidate, true).await
            }
            None => Ok(None),
        }
    }

    /// The call as it is under the recipe of a row; `None` where this server has to catch up first.
    async fn judged_as(&self, row: &Intent) -> Result<Option<Candidate>, LedgerError> {
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
        Ok(Some(Candidate {
            recipe: row.recipe,
            key: row.key,
            downstream: row.downstream,
            basis: row.key_basis,
            print: fingerprint(
                &recipe,
                &row.free_text,
                &self.checked.as_call(),
                &row.key,
                row.key_basis,
            ),
            kept: named_ids(&self.policy.downstream.asks_by, &recipe, &self.checked.as_call()),
        }))
    }

    async fn decide_known(
        &self,
        reading: Reading,
        candidate: Candidate,
        probed: bool,
    ) -> Result<Option<BeginAnswer>, LedgerError> {
        let row = &reading.stored.intent;
        let call = &self.checked.call;
        let mut facts = Facts { probed, ..Facts::at(reading.now) };
        if row.attempts.is_empty() && row.approval.is_none() {
            facts.approval_required = self.needs_approval().await?;
        }
        let mut decision = decide(Some(row), call, &candidate, &self.policy, &facts)?;
        if let Some(run) = self.wanted_slot(Some(row), &decision) {
            facts.slot_free = self.slot_is_free(run).await?;
            decision = decide(Some(row), call, &candidate, &self.policy, &facts)?;
        }
        let met = Met {
            row: Arc::clone(&reading.stored),
            now: reading.now,
            answered: Answered::from(&decision),
            free_text_changed: row.digests.free_text_differs(&candidate.print.digests),
            changed: match &decision {
                Decision::ParametersChanged { pointers } => kept_pointers(pointers),
                _ => Vec::new(),
            },
        };
        self.met.set(met).ok();
        if let Decision::ParametersChanged { pointers } = decision {
            let intent = Box::new(row.clone());
            return Err(LedgerError::ParametersChanged { intent, pointers });
        }
        if matches!(decision, Decision::BusinessIdRequired { .. }) {
            return self.without_row(decision);
        }
        match written_by(&mut decision) {
            Some(written) => {
                let policy = Some(self.policies.active().version());
                let decision::Written { intent, events } = written;
                let write = Write::replace(&reading.stored, intent, events, policy)
                    .limited_to(self.policy.limit_per_run);
                self.finish(decision, write, &candidate).await
            }
            None => {
                // Answered without a write, and perhaps asked again.
                let id = row.id();
                self.ledger.recent.put(id, Arc::clone(&reading.stored));
                Ok(Some(self.answer(decision, reading, &candidate)))
            }
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
        match self.ledger.writer.write(write, self.deadline).await? {
            Outcome::Done(reading) => Ok(Some(self.with_row(decision, reading, candidate))),
            Outcome::PolicyMoved => {
                self.ledger.policies.reload(&self.ledger.store).await?;
                Ok(None)
            }
            Outcome::Missed(_) | Outcome::Guarded => Ok(None),
        }
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

    fn with_row(&self, decision: Decision, reading: Reading, candidate: &Candidate) -> BeginAnswer {
        let row = &reading.stored.intent;
        let id = row.id();
        self.ledger.recent.put(id, Arc::clone(&reading.stored));
        self.answer(decision, reading, candidate)
    }

    fn answer(&self, decision: Decision, reading: Reading, candidate: &Candidate) -> BeginAnswer {
        answer::with_row(
            decision,
            reading,
            candidate,
            self.checked,
            &self.policy,
            &self.ledger.notes,
        )
    }
}

/// What became of an insertion without reading.
pub(super) enum Inserted {
    /// It is written, and this is the answer.
    Answered(Box<BeginAnswer>),
    /// The decision rested on an older policy.
    PolicyMoved,
    /// There is this row.
    Met(Reading),
    /// Only a reading can tell.
    ReadFirst,
}

/// Takes out of a decision what is to be written.
fn written_by(decision: &mut Decision) -> Option<decision::Written> {
    match decision {
        Decision::Execute { write, .. }
        | Decision::Hold { write, .. }
        | Decision::AwaitApproval { write } => write.take(),
        Decision::Replay { .. }
        | Decision::Refuse { .. }
        | Decision::ParametersChanged { .. }
        | Decision::WeakKey
        | Decision::BusinessIdRequired { .. }
        | Decision::RunRequired
        | Decision::NotRecorded => None,
    }
}
