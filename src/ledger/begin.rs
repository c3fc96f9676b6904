//! Begin: may this caller have its effect now, or what has happened already?

use std::{collections::BTreeMap, time::Duration};

use uuid::Uuid;

use super::{Ledger, LedgerError, ROUNDS_MAX, Violation, model_message, shape};
use crate::{
    clock::Deadline,
    domain::{
        attempt::GrantedOn,
        canonical_json::{Json, Pointer},
        decision::{BeginCall, Candidate, Decision, ExecuteReason, Facts, decide},
        fingerprint::fingerprint,
        identity::{Call, IdentityError, KeyBasis, Recipe, identify},
        intent::{Intent, RecipeVersion},
        time::Timestamp,
        tool::{Class, ToolPolicy},
    },
    policy::{PolicySet, VersionedRecipe},
    store::{Found, RowKey, Stored, Write, Written, row_id},
};

/// What names an intent, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityRequest {
    /// The tool.
    pub tool: String,
    /// The run; may be empty.
    pub run_id: String,
    /// The step; may be empty.
    pub step_id: String,
    /// What the action is about.
    pub business_ids: BTreeMap<String, String>,
    /// The caller's own key.
    pub idempotency_key: String,
}

/// A Begin, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BeginRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// What names the intent.
    pub identity: IdentityRequest,
    /// The arguments, as JSON text.
    pub arguments_json: String,
    /// The caller's id of this try; empty for one minted here.
    pub attempt_id: String,
    /// The lease asked for.
    pub lease: Option<Duration>,
    /// The model's id of the tool call.
    pub tool_call_id: String,
    /// The calling process.
    pub caller: String,
    /// Pointers to what may be reworded, for a tool without a policy.
    pub free_text: Vec<String>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
}

/// What a Begin is answered.
#[derive(Debug, Clone)]
pub struct BeginAnswer {
    /// The decision, written already.
    pub decision: Decision,
    /// The row; `None` where nothing is recorded.
    pub intent: Option<Intent>,
    /// The id of the granted attempt, with EXECUTE only.
    pub attempt_id: Option<Uuid>,
    /// What is left of the lease, with EXECUTE only.
    pub lease: Option<Duration>,
    /// The key to send downstream; empty where nothing is recorded.
    pub downstream_key: String,
    /// The arguments that a person approved, with EXECUTE APPROVED only.
    pub approved_arguments_json: String,
    /// What a tool may hand to the model.
    pub model_message: String,
    /// What the caller should know.
    pub warnings: Vec<&'static str>,
    /// The tool, where the policy lists it: a bound on the names that metrics carry.
    pub listed_tool: Option<String>,
}

/// A Begin whose shape is right.
struct Checked {
    call: BeginCall,
    identity: IdentityRequest,
    arguments: Json,
    free_text: Vec<Pointer>,
}

impl Checked {
    fn as_call(&self) -> Call<'_> {
        Call {
            namespace: &self.call.namespace,
            tool: &self.call.tool,
            run_id: &self.call.run_id,
            step_id: &self.call.step_id,
            idempotency_key: &self.identity.idempotency_key,
            business_ids: &self.identity.business_ids,
            arguments: &self.arguments,
        }
    }
}

/// Every way in which the call may be known, the active recipe's first.
pub(super) struct Candidates {
    pub(super) active: Result<(Candidate, bool), IdentityError>,
    /// Under recipes that rows may still have, the newest first.
    pub(super) older: Vec<Candidate>,
}

impl Candidates {
    pub(super) fn of(policies: &PolicySet, call: &Call<'_>, free_text: &[Pointer]) -> Self {
        let identified = |versioned: &VersionedRecipe<'_>| {
            let identified = identify(&versioned.recipe, call)?;
            let candidate = Candidate {
                recipe: versioned.version,
                key: identified.key,
                basis: identified.basis,
                print: fingerprint(
                    &versioned.recipe,
                    free_text,
                    call,
                    &identified.key,
                    identified.basis,
                ),
            };
            Ok((candidate, identified.overridden))
        };
        let active = identified(&policies.active_recipe(call.namespace, call.tool));
        let older = policies
            .older_recipes(call.namespace, call.tool)
            .iter()
            .filter_map(|versioned| identified(versioned).ok().map(|(candidate, _)| candidate))
            .collect();
        Self { active, older }
    }

    /// Every key to look up, the oldest recipe's first: the row that was made for exactly this
    /// call is found before one that a coarser or finer recipe made later.
    pub(super) fn keys(&self, namespace: &str) -> Vec<RowKey> {
        self.all()
            .map(|candidate| RowKey {
                namespace: namespace.to_owned(),
                id: row_id(&candidate.key, candidate.recipe.hash),
            })
            .collect()
    }

    /// The first row that is there, in the order of [`Self::keys`].
    pub(super) fn row(&self, found: Found) -> Option<(Stored, &Candidate)> {
        self.all().zip(found.rows).find_map(|(candidate, row)| {
            row.filter(|stored| stored.intent.key == candidate.key)
                .map(|stored| (stored, candidate))
        })
    }

    fn all(&self) -> impl Iterator<Item = &Candidate> {
        let active = self.active.as_ref().ok().map(|(candidate, _)| candidate);
        self.older.iter().rev().chain(active)
    }
}

pub(super) fn invalid_identity(error: &IdentityError) -> Violation {
    Violation::new(error.field(), error.reason(), error.to_string())
}

impl Ledger {
    /// Decides a Begin, and writes the decision before it is answered.
    pub async fn begin(
        &self,
        request: BeginRequest,
        deadline: Deadline,
    ) -> Result<BeginAnswer, LedgerError> {
        let checked = check(request)?;
        for _ in 0..ROUNDS_MAX {
            if deadline.has_passed() {
                return Err(LedgerError::DeadlinePassed);
            }
            let policies = self.policies.current();
            let answer = match self.begin_once(&checked, &policies, deadline).await {
                Ok(None) => continue,
                Ok(Some(answer)) => Ok(answer),
                Err(error) => Err(error),
            };
            // Nothing was written, so nothing has compared the policy's version yet.
            let refused = match &answer {
                Ok(answer) => matches!(answer.decision, Decision::Refuse { .. }),
                Err(error) => matches!(error, LedgerError::Invalid(_)),
            };
            if !refused || !self.policies.was_behind(&self.store, &policies).await? {
                return answer;
            }
        }
        Err(LedgerError::Internal("a Begin met somebody else's write too often".to_owned()))
    }

    /// One round: `None` if somebody else's write came first.
    async fn begin_once(
        &self,
        checked: &Checked,
        policies: &PolicySet,
        deadline: Deadline,
    ) -> Result<Option<BeginAnswer>, LedgerError> {
        let policy = policies.active().tool(&checked.call.namespace, &checked.call.tool);
        let candidates = Candidates::of(policies, &checked.as_call(), &checked.free_text);

        // Nothing to record and no older row that could decide: not even a key is needed.
        if policy.class != Class::Effectful && candidates.older.is_empty() {
            let recorded_nothing = Answer { checked, policy, candidate: None, overridden: false };
            return Ok(Some(recorded_nothing.not_recorded()));
        }
        let new = candidates.active.as_ref().map_err(|error| invalid_identity(error).into());
        if candidates.older.is_empty() {
            free_text_allowed(policy, checked)?;
            let (candidate, overridden) = new.clone().map_err(|error: LedgerError| error)?;
            let answer =
                Answer { checked, policy, candidate: Some(candidate), overridden: *overridden };
            // The common case: a fresh key, written without reading first. All its times are
            // relative to the write, so the decision is made for the epoch and shifted by it.
            let now = Timestamp::default();
            let decision = decide(None, &checked.call, candidate, policy, &Facts::at(now))?;
            if let Decision::Execute { write: Some(written), .. } = &decision {
                let write = Write::insert(
                    (*written.intent).clone(),
                    written.events.clone(),
                    now,
                    false,
                    policies.active().version(),
                );
                match self.writer.write(write.clone(), deadline).await? {
                    Written::Done { at } => {
                        return Ok(Some(answer.recorded(decision, write.stamped(at), at)));
                    }
                    Written::PolicyMoved => {
                        self.policies.reload(&self.store).await?;
                        return Ok(None);
                    }
                    Written::Missed => {}
                }
            }
        }

        let found = self.store.find(&candidates.keys(&checked.call.namespace)).await?;
        let now = found.now;
        if let Some((stored, candidate)) = candidates.row(found) {
            return self
                .begin_present(checked, policies, policy, candidate, stored, now, deadline)
                .await;
        }
        free_text_allowed(policy, checked)?;
        if policy.class != Class::Effectful {
            let recorded_nothing = Answer { checked, policy, candidate: None, overridden: false };
            return Ok(Some(recorded_nothing.not_recorded()));
        }
        let (candidate, overridden) = new?;
        let answer =
            Answer { checked, policy, candidate: Some(candidate), overridden: *overridden };
        let key = RowKey {
            namespace: checked.call.namespace.clone(),
            id: row_id(&candidate.key, candidate.recipe.hash),
        };
        let facts = Facts { orphans: self.store.orphans(&key).await?, ..Facts::at(now) };
        let decision = decide(None, &checked.call, candidate, policy, &facts)?;
        let Some(written) = written_by(&decision) else {
            return Ok(Some(answer.unrecorded(decision)?));
        };
        let write = Write::insert(
            (*written.intent).clone(),
            written.events.clone(),
            now,
            !facts.orphans.is_empty(),
            policies.active().version(),
        );
        self.finish(answer, decision, write, deadline).await
    }

    /// The key has a row: it is judged under its own recipe.
    #[expect(clippy::too_many_arguments, reason = "the parts of one round, read from two places")]
    async fn begin_present(
        &self,
        checked: &Checked,
        policies: &PolicySet,
        policy: &ToolPolicy,
        candidate: &Candidate,
        stored: Stored,
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<Option<BeginAnswer>, LedgerError> {
        let row = &stored.intent;
        let recipe = policies.recipe_of(row.recipe, &checked.call.namespace, &checked.call.tool);
        let Some(recipe) = recipe else {
            // Another replica made the row under a policy that this one has not heard of.
            return match self.policies.was_behind(&self.store, policies).await? {
                true => Ok(None),
                false => Err(unknown_recipe(row.recipe)),
            };
        };
        if candidate_basis_moved(row, candidate) {
            return Err(LedgerError::Internal("a key was found under another basis".to_owned()));
        }
        let own = under(&recipe, checked, row, candidate);
        self.repeats.count(row_id(&row.key, row.recipe.hash));
        let overridden = candidate_overridden(checked, row.key_basis);
        let answer = Answer { checked, policy, candidate: Some(&own), overridden };
        let decision = decide(Some(row), &checked.call, &own, policy, &Facts::at(now))?;
        if let Decision::ParametersChanged { pointers } = decision {
            return Err(LedgerError::ParametersChanged { intent: Box::new(row.clone()), pointers });
        }
        let Some(written) = written_by(&decision) else {
            return Ok(Some(answer.recorded(decision, stored.intent, now)));
        };
        let write = Write::replace(
            &stored,
            (*written.intent).clone(),
            written.events.clone(),
            now,
            Some(policies.active().version()),
        );
        self.finish(answer, decision, write, deadline).await
    }

    async fn finish(
        &self,
        answer: Answer<'_>,
        decision: Decision,
        write: Write,
        deadline: Deadline,
    ) -> Result<Option<BeginAnswer>, LedgerError> {
        match self.writer.write(write.clone(), deadline).await? {
            Written::Done { at } => Ok(Some(answer.recorded(decision, write.stamped(at), at))),
            Written::PolicyMoved => {
                self.policies.reload(&self.store).await?;
                Ok(None)
            }
            Written::Missed => Ok(None),
        }
    }
}

fn check(request: BeginRequest) -> Result<Checked, LedgerError> {
    let namespace = shape::namespace(&request.namespace)?.to_owned();
    let identity = request.identity;
    shape::tool(&identity.tool)?;
    shape::name("identity.run_id", &identity.run_id)?;
    shape::name("identity.step_id", &identity.step_id)?;
    shape::name("tool_call_id", &request.tool_call_id)?;
    shape::name("caller", &request.caller)?;
    shape::labels(&request.labels)?;
    shape::lease(request.lease)?;
    let free_text = shape::free_text(&request.free_text)?;
    let attempt_id = shape::attempt_id(&request.attempt_id)?;
    let arguments = shape::arguments(&request.arguments_json)?;
    let call = BeginCall {
        namespace,
        tool: identity.tool.clone(),
        run_id: identity.run_id.clone(),
        step_id: identity.step_id.clone(),
        attempt_id: attempt_id.unwrap_or_else(crate::ids::random),
        caller: request.caller,
        tool_call_id: request.tool_call_id,
        lease: request.lease,
        labels: request.labels,
        arguments_json: request.arguments_json,
    };
    Ok(Checked { call, identity, arguments, free_text })
}

/// A caller may declare free text only where no policy does.
fn free_text_allowed(policy: &ToolPolicy, checked: &Checked) -> Result<(), Violation> {
    if policy.listed && !checked.free_text.is_empty() {
        return Err(Violation::new(
            "free_text",
            "FREE_TEXT_NOT_ALLOWED",
            "the tool has a policy, and only the policy declares its free text",
        ));
    }
    Ok(())
}

/// The call's fingerprint under the recipe of the row that its key found.
fn under(recipe: &Recipe, checked: &Checked, row: &Intent, candidate: &Candidate) -> Candidate {
    Candidate {
        recipe: row.recipe,
        print: fingerprint(recipe, &checked.free_text, &checked.as_call(), &row.key, row.key_basis),
        ..candidate.clone()
    }
}

fn candidate_basis_moved(row: &Intent, candidate: &Candidate) -> bool {
    row.key_basis != candidate.basis
}

/// Whether a policy's pointers won over what the caller sent.
fn candidate_overridden(checked: &Checked, basis: KeyBasis) -> bool {
    let sent =
        !checked.identity.idempotency_key.is_empty() || !checked.identity.business_ids.is_empty();
    basis == KeyBasis::Policy && sent
}

fn unknown_recipe(version: RecipeVersion) -> LedgerError {
    LedgerError::Internal(format!("policy version {} is not kept", version.policy))
}

fn written_by(decision: &Decision) -> Option<&crate::domain::decision::Written> {
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

/// What an answer is made from.
#[derive(Clone, Copy)]
struct Answer<'a> {
    checked: &'a Checked,
    policy: &'a ToolPolicy,
    candidate: Option<&'a Candidate>,
    overridden: bool,
}

impl Answer<'_> {
    fn not_recorded(self) -> BeginAnswer {
        self.assemble(Decision::NotRecorded, None)
    }

    /// A decision that leaves no row behind.
    fn unrecorded(self, decision: Decision) -> Result<BeginAnswer, LedgerError> {
        if decision == Decision::WeakKey {
            return Err(Violation::new(
                "identity",
                "WEAK_KEY",
                "the tool needs approval, so the call must be named by a key, business ids or \
                 the policy's pointers",
            )
            .into());
        }
        Ok(self.assemble(decision, None))
    }

    /// A decision about a row, as it is after the decision was written.
    fn recorded(self, decision: Decision, intent: Intent, now: Timestamp) -> BeginAnswer {
        let mut answer = self.assemble(decision, Some(&intent));
        if let Decision::Execute { reason, .. } = answer.decision
            && let Some(attempt) = intent.current()
        {
            answer.attempt_id = Some(attempt.id);
            answer.lease = Some(attempt.lease_expires_at.since(now));
            if reason == ExecuteReason::Granted(GrantedOn::Approved)
                && let Some(approval) = &intent.approval
            {
                answer.approved_arguments_json.clone_from(&approval.arguments_json);
            }
        }
        answer.downstream_key = intent.downstream_key();
        answer.intent = Some(intent);
        answer
    }

    fn assemble(self, decision: Decision, row: Option<&Intent>) -> BeginAnswer {
        let mut warnings = Vec::new();
        if self.overridden {
            warnings.push("identity_overridden");
        }
        if let Some(candidate) = self.candidate {
            if candidate.basis == KeyBasis::StepArguments {
                warnings.push("weak_key");
            }
            let reworded =
                row.is_some_and(|row| row.digests.free_text_differs(&candidate.print.digests));
            if reworded {
                warnings.push("free_text_changed");
            }
        }
        if let Decision::Execute { lease_clamped: true, .. } = decision {
            warnings.push("lease_clamped");
        }
        let message = model_message(&decision, row, self.policy, &self.checked.call.tool);
        BeginAnswer {
            decision,
            intent: None,
            attempt_id: None,
            lease: None,
            downstream_key: String::new(),
            approved_arguments_json: String::new(),
            model_message: message,
            warnings,
            listed_tool: self.policy.listed.then(|| self.checked.call.tool.clone()),
        }
    }
}
