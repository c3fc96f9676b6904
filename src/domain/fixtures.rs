//! A story told to the pure functions: rows, calls and reports for the domain's own tests.

use std::{collections::BTreeMap, time::Duration};

use uuid::Uuid;

use super::{
    attempt::Failure,
    canonical_json::Json,
    decision::{
        BeginCall, Candidate, Decision, ExecuteReason, Facts, HoldReason, RefuseReason, decide,
    },
    event::{Event, EventKind},
    fingerprint::fingerprint,
    identity::{Call, Key, KeyBasis, downstream_digest},
    intent::{Intent, RecipeVersion, ResultBody, State},
    look_alike::{LookAlikeAction, LookAlikeRule},
    report::{Complete, Extend, Fail, NEVER_GRANTED, Outcome, Refusal, complete, extend, fail},
    review::{Resolution, Reviewer, approve, deny, expire, resolve},
    time::Timestamp,
    tool::{ApprovalRule, StatusRule, ToolPolicy},
    verdict::{Answer, Asked, Look, look, reconcile},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Of every policy here: how long a downstream de-duplicates.
pub(crate) const WINDOW: Duration = DAY;
/// Of every policy here: how long an absence proves nothing.
pub(crate) const VISIBILITY: Duration = Duration::from_secs(120);
/// How long the reconciler asks without a verdict.
pub(crate) const GIVE_UP_AFTER: Duration = DAY;

pub(crate) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// The kinds of policy that the contract's tables tell apart.
pub(crate) fn plain() -> ToolPolicy {
    ToolPolicy { listed: true, ..ToolPolicy::default() }
}

pub(crate) fn deduplicating() -> ToolPolicy {
    let mut policy = plain();
    policy.downstream.dedup_window = Some(WINDOW);
    policy
}

pub(crate) fn transactional() -> ToolPolicy {
    let mut policy = plain();
    policy.downstream.same_transaction = true;
    policy
}

pub(crate) const STATUS: StatusRule =
    StatusRule { visibility: VISIBILITY, confirmations: 2, probe_on_begin: true };

pub(crate) fn asking() -> ToolPolicy {
    let mut policy = plain();
    policy.downstream.status = Some(STATUS);
    policy
}

pub(crate) fn gated() -> ToolPolicy {
    let approval = Some(ApprovalRule { expires: 72 * HOUR, valid_for: HOUR });
    ToolPolicy { approval, ..plain() }
}

/// The policy, with an action for what looks the same.
pub(crate) fn looking_alike(policy: ToolPolicy, action: LookAlikeAction) -> ToolPolicy {
    let rule = LookAlikeRule { subject: Vec::new(), window: 10 * MINUTE, action };
    ToolPolicy { look_alike: Some(rule), ..policy }
}

pub(crate) fn attempt_id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// The call that every story is about, identified.
pub(crate) fn candidate(arguments: &str, basis: KeyBasis) -> Candidate {
    let key = Key::from_bytes([7; 32]);
    let policy = plain();
    let business_ids = BTreeMap::new();
    let arguments = Json::parse(arguments).expect("the arguments are valid JSON");
    let call = Call {
        namespace: "acme",
        tool: "charge",
        run_id: "run",
        step_id: "step",
        idempotency_key: "",
        business_ids: &business_ids,
        arguments: &arguments,
    };
    Candidate {
        recipe: RecipeVersion { policy: 1, hash: policy.recipe.hash_version },
        key,
        downstream: downstream_digest(&key, None, policy.recipe.hash_version),
        basis,
        print: fingerprint(&policy.recipe, &[], &call, &key, basis),
        kept: BTreeMap::new(),
    }
}

pub(crate) const ARGUMENTS: &str = r#"{"amount":1200,"order":"o-17"}"#;

/// Callers are named after their attempts, so that a test needs one number for both.
pub(crate) fn call(attempt: u128) -> BeginCall {
    BeginCall {
        free_text: Vec::new(),
        namespace: "acme".to_owned(),
        tool: "charge".to_owned(),
        run_id: "run".to_owned(),
        step_id: "step".to_owned(),
        attempt_id: attempt_id(attempt),
        caller: format!("worker-{attempt}"),
        tool_call_id: String::new(),
        lease: None,
        labels: BTreeMap::new(),
        arguments_json: ARGUMENTS.to_owned(),
    }
}

pub(crate) fn body(text: &str) -> ResultBody {
    ResultBody::reported(Some(text.into()), "text/plain".to_owned(), None, 1024)
}

pub(crate) fn no_body() -> ResultBody {
    ResultBody::reported(None, String::new(), None, 1024)
}

/// One intent, from before its first Begin.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) row: Option<Intent>,
    pub(crate) policy: ToolPolicy,
    pub(crate) facts: Facts,
    /// Of the last step only.
    pub(crate) events: Vec<Event>,
}

impl Story {
    pub(crate) fn under(policy: ToolPolicy) -> Self {
        Self { row: None, policy, facts: Facts::at(START), events: Vec::new() }
    }

    /// A story whose tool asks for a person.
    pub(crate) fn gated() -> Self {
        let mut story = Self::under(gated());
        story.facts.approval_required = true;
        story
    }

    pub(crate) fn row(&self) -> &Intent {
        self.row.as_ref().expect("the intent has begun")
    }

    pub(crate) fn state(&self) -> State {
        self.row().state
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.facts.now
    }

    pub(crate) fn wait(mut self, span: Duration) -> Self {
        self.facts.now = self.facts.now + span;
        self
    }

    /// What a Begin would be answered; nothing is written.
    pub(crate) fn ask(&self, call: &BeginCall) -> Decision {
        let candidate = candidate(ARGUMENTS, KeyBasis::BusinessIds);
        decide(self.row.as_ref(), call, &candidate, &self.policy, &self.facts)
            .expect("every row is answered")
    }

    pub(crate) fn begin_as(&mut self, call: &BeginCall) -> Decision {
        let decision = self.ask(call);
        self.events.clear();
        if let Some(written) = written(&decision) {
            self.row = Some((*written.intent).clone());
            self.events = written.events.clone();
        }
        decision
    }

    pub(crate) fn begin(mut self, attempt: u128) -> Self {
        self.begin_as(&call(attempt));
        self
    }

    /// Keeps what follows from a step.
    pub(crate) fn apply(&mut self, outcome: Outcome) -> Result<(), Refusal> {
        self.row = Some(outcome.intent);
        self.events = outcome.events;
        outcome.answer
    }

    pub(crate) fn report_complete(
        &mut self,
        attempt: u128,
        result: ResultBody,
        downstream_ref: Option<&str>,
    ) -> Result<(), Refusal> {
        let report = Complete {
            attempt_id: attempt_id(attempt),
            result,
            downstream_ref: downstream_ref.map(str::to_owned),
        };
        let outcome = complete(self.row(), &report, self.now()).expect("reports are total");
        self.apply(outcome)
    }

    pub(crate) fn report_fail(
        &mut self,
        attempt: u128,
        not_executed: bool,
        code: &str,
    ) -> Result<(), Refusal> {
        let failure = Failure { not_executed, code: code.to_owned(), message: String::new() };
        self.report_failure(attempt, failure, None)
    }

    pub(crate) fn report_failure(
        &mut self,
        attempt: u128,
        failure: Failure,
        downstream_ref: Option<&str>,
    ) -> Result<(), Refusal> {
        let report = Fail {
            attempt_id: attempt_id(attempt),
            failure,
            downstream_ref: downstream_ref.map(str::to_owned),
        };
        let outcome =
            fail(self.row(), &report, &self.policy, self.now()).expect("reports are total");
        self.apply(outcome)
    }

    pub(crate) fn report_extend(
        &mut self,
        attempt: u128,
        lease: Duration,
        downstream_ref: Option<&str>,
    ) -> (Result<(), Refusal>, bool) {
        let report = Extend {
            attempt_id: attempt_id(attempt),
            lease: Some(lease),
            downstream_ref: downstream_ref.map(str::to_owned),
        };
        let (outcome, clamped) = extend(self.row(), &report, &self.policy, self.now());
        (self.apply(outcome), clamped)
    }

    pub(crate) fn completed(mut self, attempt: u128, result: &str) -> Self {
        self.report_complete(attempt, body(result), None).expect("the success is taken");
        self
    }

    /// Fail, definitely.
    pub(crate) fn failed(mut self, attempt: u128) -> Self {
        let _ = self.report_fail(attempt, true, "http_422");
        self
    }

    /// Fail, outcome unknown.
    pub(crate) fn lost(mut self, attempt: u128) -> Self {
        let _ = self.report_fail(attempt, false, "http_504");
        self
    }

    pub(crate) fn never_granted(mut self, attempt: u128) -> Self {
        let _ = self.report_fail(attempt, true, NEVER_GRANTED);
        self
    }

    /// A person who has just looked.
    pub(crate) fn reviewer(&self) -> Reviewer {
        Reviewer {
            actor: "ann".to_owned(),
            reason: "looked into it".to_owned(),
            etag: self.row().etag(),
        }
    }

    pub(crate) fn decide(&mut self, yes: bool, reviewer: &Reviewer) -> Result<(), Refusal> {
        let decide = if yes { approve } else { deny };
        let outcome = decide(self.row(), reviewer, self.now()).expect("people are answered");
        self.apply(outcome)
    }

    pub(crate) fn approved(mut self) -> Self {
        self.decide(true, &self.reviewer()).expect("the approval is taken");
        self
    }

    pub(crate) fn denied(mut self) -> Self {
        self.decide(false, &self.reviewer()).expect("the denial is taken");
        self
    }

    pub(crate) fn expired(mut self) -> Self {
        let outcome = expire(self.row(), self.now()).expect("expiry is total");
        self.apply(outcome).expect("expiry refuses nothing");
        self
    }

    pub(crate) fn resolve_as(
        &mut self,
        resolution: &Resolution,
        reviewer: &Reviewer,
    ) -> Result<(), Refusal> {
        let rule = self.policy.downstream.status;
        let outcome = resolve(self.row(), reviewer, resolution, rule, self.now());
        let outcome = outcome.expect("people are answered");
        self.apply(outcome)
    }

    pub(crate) fn resolved(mut self, resolution: &Resolution) -> Self {
        self.resolve_as(resolution, &self.reviewer()).expect("the resolution is taken");
        self
    }

    /// The downstream is asked and answers at once.
    pub(crate) fn hear(mut self, answer: &Answer) -> Self {
        let asked = Asked::of(self.row(), self.now());
        self.apply_answer(asked, answer);
        self
    }

    pub(crate) fn apply_answer(&mut self, asked: Asked, answer: &Answer) {
        let rule = self.policy.downstream.status.unwrap_or(STATUS);
        let outcome = reconcile(self.row(), asked, answer, rule, GIVE_UP_AFTER, self.now())
            .expect("answers are total");
        self.apply(outcome).expect("an answer is not refused");
    }

    /// A look at it, as the reconciler makes it.
    pub(crate) fn look(&mut self) -> Look {
        let led_to = look(self.row(), &self.policy, self.now()).expect("looks are total");
        if let Look::Person(outcome) | Look::Expired(outcome) = &led_to {
            self.apply((**outcome).clone()).expect("a look is not refused");
        }
        led_to
    }

    pub(crate) fn kinds(&self) -> Vec<EventKind> {
        self.events.iter().map(|event| event.kind).collect()
    }
}

fn written(decision: &Decision) -> Option<&super::decision::Written> {
    match decision {
        Decision::Execute { write, .. }
        | Decision::Hold { write, .. }
        | Decision::AwaitApproval { write } => write.as_ref(),
        Decision::Replay { .. }
        | Decision::Refuse { .. }
        | Decision::ParametersChanged { .. }
        | Decision::WeakKey
        | Decision::BusinessIdRequired { .. }
        | Decision::RunRequired
        | Decision::NotRecorded => None,
    }
}

/// The decision in the words of the contract's table; a new proposal says so.
pub(crate) fn words(decision: &Decision) -> &'static str {
    use super::attempt::GrantedOn as G;
    match decision {
        Decision::Execute { reason: ExecuteReason::Resent, .. } => "EXECUTE RESENT",
        Decision::Execute { reason: ExecuteReason::Granted(on), .. } => match on {
            G::New => "EXECUTE NEW",
            G::Approved => "EXECUTE APPROVED",
            G::Retry => "EXECUTE RETRY",
            G::NotExecuted => "EXECUTE NOT_EXECUTED",
            G::DownstreamDedupes => "EXECUTE DOWNSTREAM_DEDUPES",
            G::Fenced => "EXECUTE FENCED",
        },
        Decision::Replay { pruned: false } => "REPLAY COMPLETED",
        Decision::Replay { pruned: true } => "REPLAY RESULT_PRUNED",
        Decision::Hold { reason, .. } => match reason {
            HoldReason::InFlight => "HOLD IN_FLIGHT",
            HoldReason::Superseded => "HOLD SUPERSEDED",
            HoldReason::OutcomeUnknown => "HOLD OUTCOME_UNKNOWN",
            HoldReason::NeedsAttention => "HOLD NEEDS_ATTENTION",
        },
        Decision::AwaitApproval { write: None } => "AWAIT_APPROVAL",
        Decision::AwaitApproval { write: Some(_) } => "AWAIT_APPROVAL, new",
        Decision::Refuse { reason } => match reason {
            RefuseReason::FailedFinal => "REFUSE FAILED_FINAL",
            RefuseReason::Denied => "REFUSE DENIED",
            RefuseReason::ToolNotListed => "REFUSE TOOL_NOT_LISTED",
            RefuseReason::ToolHalted => "REFUSE TOOL_HALTED",
            RefuseReason::RunLimit => "REFUSE RUN_LIMIT",
            RefuseReason::LookAlikeLimit => "REFUSE LOOK_ALIKE_LIMIT",
        },
        Decision::ParametersChanged { .. } => "PARAMETERS_CHANGED",
        Decision::WeakKey => "WEAK_KEY",
        Decision::BusinessIdRequired { .. } => "BUSINESS_ID_REQUIRED",
        Decision::RunRequired => "RUN_REQUIRED",
        Decision::NotRecorded => "EXECUTE NOT_RECORDED",
    }
}
