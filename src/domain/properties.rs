//! The contract's promises, over random histories of one intent.
//!
//! Every step goes through the functions that answer live calls, and its outcome becomes the row of
//! the next; the promises are asserted after each. `expect` on a transition is an assertion too: no
//! history leads a row to a move that the state machine does not have.

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;

use super::{
    approval::Verdict,
    attempt::{Failure, Fate, GrantedOn},
    decision::{BeginCall, Decision, ExecuteReason},
    fixtures::*,
    identity::Key,
    intent::{Intent, RunSlot, State},
    report::{NEVER_GRANTED, Refusal},
    review::{Resolution, Reviewer},
    time::Timestamp,
    tool::{StatusRule, ToolPolicy},
    verdict::{Answer, Asked, Look},
};

/// Attempt ids are few, so that known ones come back, also by another caller.
const ATTEMPTS: u128 = 6;

#[derive(Debug, Clone)]
enum Step {
    Begin {
        attempt: u128,
        caller: u8,
        lease: Option<Duration>,
        halted: bool,
        slot_free: bool,
    },
    Complete {
        attempt: u128,
        result: Option<u8>,
        reference: Option<u8>,
    },
    Fail {
        attempt: u128,
        code: &'static str,
        not_executed: bool,
        reference: Option<u8>,
    },
    Extend {
        attempt: u128,
        lease: Duration,
        reference: Option<u8>,
    },
    Resolve {
        resolution: Resolution,
        stale: bool,
    },
    Review {
        yes: bool,
        stale: bool,
    },
    Expire,
    /// A probe goes out; what it hears comes later.
    Ask,
    Hear(Answer),
    Look,
    Wait(Duration),
    Policy(Box<ToolPolicy>),
}

fn spans() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (1..=1000_u64).prop_map(Duration::from_millis),
        (1..=3600_u64).prop_map(Duration::from_secs),
        (1..=400_u32).prop_map(|days| DAY * days),
        edges(),
    ]
}

/// To, just before and just after the ends of leases, windows and visibility.
fn edges() -> impl Strategy<Value = Duration> {
    let edge = prop::sample::select(vec![MINUTE, VISIBILITY, HOUR - MINUTE, HOUR, WINDOW - MINUTE]);
    let off = prop::sample::select(vec![Duration::ZERO, Duration::from_micros(1), SECOND]);
    (edge, off, any::<bool>())
        .prop_map(|(edge, off, late)| if late { edge + off } else { edge - off })
}

fn references() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![3 => Just(None), 1 => (0..2_u8).prop_map(Some)]
}

fn policies() -> impl Strategy<Value = ToolPolicy> {
    let window =
        prop_oneof![Just(None), Just(Some(WINDOW)), Just(Some(HOUR)), Just(Some(2 * MINUTE))];
    let status = prop_oneof![
        Just(None),
        Just(Some(STATUS)),
        Just(Some(StatusRule { visibility: SECOND, ..STATUS }))
    ];
    let approval = prop::sample::select(vec![None, gated().approval]);
    let limit = prop::option::of(1..3_u32);
    let approval = (approval, limit);
    (window, status, approval, prop::bool::weighted(0.2), 1..4_u32, any::<bool>(), any::<bool>())
        .prop_map(
            |(
                dedup_window,
                status,
                (approval, limit_per_run),
                same_transaction,
                max_attempts,
                retry_failed,
                new_key,
            )| {
                let mut policy =
                    ToolPolicy { approval, limit_per_run, max_attempts, retry_failed, ..plain() };
                policy.downstream.dedup_window = dedup_window;
                policy.downstream.status = status;
                policy.downstream.same_transaction = same_transaction;
                policy.downstream.new_key_after_failed = new_key;
                policy
            },
        )
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::Absent),
        1 => references().prop_map(|reference| Answer::Executed { result: body("found"), downstream_ref: named(reference) }),
        1 => Just(Answer::Several { result: body("found"), downstream_refs: vec!["a".to_owned(), "b".to_owned()] }),
        1 => Just(Answer::Running),
        1 => Just(Answer::Unmapped { note: "?".to_owned() }),
        1 => Just(Answer::unreachable("refused")),
        1 => Just(Answer::Taken { downstream_ref: "a".to_owned(), other: Key::from_bytes([7; 32]) }),
    ]
}

fn resolutions() -> impl Strategy<Value = Resolution> {
    prop_oneof![
        4 => Just(Resolution::NotExecuted),
        1 => Just(Resolution::Executed(body("seen"))),
        1 => Just(Resolution::Executed(no_body())),
        2 => Just(Resolution::Acknowledged),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let attempts = 1..=ATTEMPTS;
    let stale = prop::bool::weighted(0.1);
    let lease = prop::option::weighted(0.3, spans());
    let codes = prop_oneof![Just("http_422"), Just("http_500"), Just(NEVER_GRANTED)];
    prop_oneof![
        8 => (attempts.clone(), 1..=2_u8, lease, prop::bool::weighted(0.05), prop::bool::weighted(0.9))
            .prop_map(|(attempt, caller, lease, halted, slot_free)| {
                Step::Begin { attempt, caller, lease, halted, slot_free }
            }),
        2 => (attempts.clone(), prop::option::of(0..2_u8), references())
            .prop_map(|(attempt, result, reference)| Step::Complete { attempt, result, reference }),
        5 => (attempts.clone(), codes, any::<bool>(), references())
            .prop_map(|(attempt, code, not_executed, reference)| Step::Fail { attempt, code, not_executed, reference }),
        2 => (attempts, spans(), references())
            .prop_map(|(attempt, lease, reference)| Step::Extend { attempt, lease, reference }),
        2 => (resolutions(), stale).prop_map(|(resolution, stale)| Step::Resolve { resolution, stale }),
        2 => (prop::bool::weighted(0.8), stale).prop_map(|(yes, stale)| Step::Review { yes, stale }),
        1 => Just(Step::Expire),
        2 => Just(Step::Ask),
        4 => answers().prop_map(Step::Hear),
        2 => Just(Step::Look),
        6 => spans().prop_map(Step::Wait),
        1 => policies().prop_map(|policy| Step::Policy(Box::new(policy))),
    ]
}

fn named(reference: Option<u8>) -> Option<String> {
    reference.map(|number| format!("ref-{number}"))
}

/// A history and what must be remembered of it to check the promises.
struct History {
    story: Story,
    asked: Option<Asked>,
    /// Ids that got an EXECUTE for a new attempt.
    granted: BTreeSet<u128>,
    /// Reports that were answered OK, with and without their references.
    accepted: BTreeSet<String>,
}

impl History {
    fn new(policy: ToolPolicy) -> Self {
        let mut story = Story::under(policy);
        story.facts.approval_required = story.policy.approval.is_some();
        Self { story, asked: None, granted: BTreeSet::new(), accepted: BTreeSet::new() }
    }

    fn take(&mut self, step: &Step) {
        let before = self.story.row.clone();
        self.story.events.clear();
        match step {
            Step::Wait(span) => self.story.facts.now = self.story.facts.now + *span,
            Step::Policy(policy) => {
                self.story.policy = (**policy).clone();
                self.story.facts.approval_required = self.story.policy.approval.is_some();
            }
            Step::Begin { attempt, caller, lease, halted, slot_free } => {
                self.story.policy.halted = *halted;
                self.story.facts.slot_free = *slot_free;
                self.begin(*attempt, *caller, *lease, before.as_ref());
            }
            _ if before.is_none() => return,
            Step::Ask => self.asked = Some(Asked::of(self.story.row(), self.story.now())),
            Step::Hear(answer) => {
                let asked = self
                    .asked
                    .take()
                    .unwrap_or_else(|| Asked::of(self.story.row(), self.story.now()));
                self.story.apply_answer(asked, answer);
            }
            Step::Look => self.look(),
            Step::Expire => self.story = self.story.clone().expired(),
            Step::Review { yes, stale } => {
                let reviewer = self.reviewer(*stale);
                if let Some(approval) = &self.story.row().approval {
                    let own = Reviewer { actor: approval.proposer.clone(), ..reviewer.clone() };
                    let refused = self.story.clone().decide(true, &own);
                    assert_eq!(refused, Err(Refusal::OwnProposal));
                }
                let _ = self.story.decide(*yes, &reviewer);
            }
            Step::Resolve { resolution, stale } => {
                let reviewer = self.reviewer(*stale);
                let _ = self.story.resolve_as(resolution, &reviewer);
            }
            Step::Complete { .. } | Step::Fail { .. } | Step::Extend { .. } => {
                self.report(step, before.as_ref().expect("it has begun"));
            }
        }
        if let (Some(before), Some(after)) = (&before, &self.story.row) {
            self.check(step, before, after);
        }
    }

    /// What is unsettled has a way out: it is looked at again, or a person is told. And a look by itself
    /// never settles anything.
    fn look(&mut self) {
        let Some(before) = self.story.row.clone() else { return };
        let led_to = self.story.look();
        let after = self.story.row().clone();
        if matches!(before.state, State::AwaitingApproval | State::Approved) {
            let asked = before.approval.as_ref().expect("a proposal has its terms");
            let over = self.story.now() >= asked.good_until();
            assert_eq!(matches!(led_to, Look::Expired(_)), over, "{led_to:?}");
            assert_eq!(after.state == State::Denied, over);
            return;
        }
        assert!(after.state == before.state || after.state == State::Unknown);
        if !before.state.is_unsettled() {
            assert_eq!(led_to, Look::Done);
            return;
        }
        match led_to {
            Look::Ask => assert!(self.story.policy.downstream.status.is_some()),
            Look::Later(at) => assert!(at > self.story.now()),
            Look::Person(_) => assert!(after.needs_attention),
            Look::Done => assert!(before.waits_for_a_person(), "{before:?}"),
            Look::Expired(_) => panic!("only a proposal runs out"),
        }
    }

    fn reviewer(&self, stale: bool) -> Reviewer {
        let reviewer = self.story.reviewer();
        if stale { Reviewer { etag: "stale".to_owned(), ..reviewer } } else { reviewer }
    }

    /// P2: a grant rests on evidence, on de-duplication whose window is open, or on a fence.
    fn begin(
        &mut self,
        attempt: u128,
        caller: u8,
        lease: Option<Duration>,
        before: Option<&Intent>,
    ) {
        let call = BeginCall { caller: format!("worker-{caller}"), lease, ..call(attempt) };
        let decision = self.story.begin_as(&call);
        let now = self.story.now();
        let Decision::Execute { reason, write, .. } = &decision else { return };
        let ExecuteReason::Granted(granted_on) = reason else {
            assert_eq!(*write, None, "RESENT writes nothing");
            let current = before.and_then(Intent::current).expect("it was granted before");
            assert_eq!((current.id, &current.caller), (call.attempt_id, &call.caller));
            assert!(now.since(current.granted_at) < self.story.policy.resend_window);
            assert!(current.lease_runs(now) && self.granted.contains(&attempt));
            return;
        };
        assert!(!self.story.policy.halted, "the switch stands before every grant");
        if self.story.policy.limit_per_run.is_some() {
            let held = before.is_some_and(|before| before.slot == RunSlot::Held);
            assert!(held || self.story.facts.slot_free, "a grant has a slot");
            assert_eq!(self.story.row().slot, RunSlot::Held);
        }
        // Nothing of a gated tool is granted first without a person's yes, which is good for one.
        if let Some(approval) = before.and_then(|before| before.approval.as_ref()) {
            let decided = before.is_some_and(|before| before.state.is_unsettled());
            assert!(decided || approval.is_valid(now), "{before:?}");
        } else {
            assert!(before.is_some() || !self.story.facts.approval_required);
        }
        assert!(self.granted.insert(attempt), "an attempt id is granted at most once");
        let current = self.story.row().current().expect("it is granted now");
        assert!(current.lease_expires_at <= now + self.story.policy.lease_max);
        let Some(before) = before else { return };
        assert_ne!(before.state, State::Completed, "nothing is granted after a success");
        assert!(
            !before.current().is_some_and(|held| held.fate == Fate::Open && held.lease_runs(now)),
            "a running lease is never taken away"
        );
        if before.is_harmless() {
            assert!(matches!(before.state, State::Approved | State::Failed), "{}", before.state);
            return;
        }
        match granted_on {
            GrantedOn::Fenced => {
                assert!(before.attempts.iter().all(|attempt| attempt.promise.same_transaction));
            }
            GrantedOn::DownstreamDedupes => {
                self.inside_the_window(before, current.lease_expires_at)
            }
            GrantedOn::New | GrantedOn::Approved | GrantedOn::Retry | GrantedOn::NotExecuted => {
                panic!("{granted_on:?} although an attempt may have had its effect");
            }
        }
    }

    fn inside_the_window(&self, before: &Intent, lease_end: Timestamp) {
        let open: Vec<_> =
            before.attempts.iter().filter(|attempt| !attempt.fate.is_harmless()).collect();
        let current = self.story.row().current().expect("it is granted now");
        for attempt in open {
            assert_eq!(attempt.promise.key_attempt, current.promise.key_attempt, "one key");
            assert_eq!(attempt.promise.uuid_key, current.promise.uuid_key, "one form of it");
            let promised = attempt.promise.dedup_window.expect("it was promised");
            assert!(lease_end < attempt.granted_at + promised, "inside what was promised");
        }
        let today = self.story.policy.downstream.dedup_window.expect("it still holds");
        let first = self.story.row().sharing_key().next().expect("there is one").granted_at;
        assert!(lease_end < first + today, "inside what holds today");
    }

    /// P6: a report that is not the exact repeat of an accepted one leaves a trace; and the same
    /// report again gets the same answer.
    fn report(&mut self, step: &Step, before: &Intent) {
        let answer = self.send(step);
        let after = self.story.row().clone();
        let traced = after != *before || !self.story.events.is_empty();
        let again = self.send(step);
        if let Step::Extend { .. } = step {
            assert!(traced || answer.is_ok(), "{step:?} leaves a trace");
            assert_eq!(again, answer, "{step:?} again");
            return;
        }
        // A stranger's report before approval takes the row out of the approval's reach.
        let started = answer == Err(Refusal::NotStarted);
        assert_eq!(
            again,
            if started { Err(Refusal::NotGranted) } else { answer },
            "{step:?} again"
        );
        assert_eq!(self.story.state(), after.state, "{step:?} again moves nothing");
        let bare = format!("{:?}", with_reference(step, None));
        let exact = format!("{step:?}");
        let known = self.accepted.contains(&exact)
            || (self.accepted.contains(&bare) && reference_of(step) == before.downstream_ref);
        assert!(traced || known, "{step:?} leaves a trace");
        if answer.is_ok() {
            self.accepted.extend([bare, exact]);
        }

        // Were it to bring another reference, that would be kept.
        let story = self.story.clone();
        let _ = self.send(&with_reference(step, Some(9)));
        let kept = self.story.row() != story.row() || !self.story.events.is_empty();
        assert!(kept, "{step:?} with another reference leaves a trace");
        self.story = story;
    }

    fn send(&mut self, step: &Step) -> Result<(), Refusal> {
        self.story.events.clear();
        match step {
            Step::Complete { attempt, result, reference } => {
                let result = result.map_or_else(no_body, |number| body(&number.to_string()));
                self.story.report_complete(*attempt, result, named(*reference).as_deref())
            }
            Step::Fail { attempt, code, not_executed, reference } => {
                let failure = Failure {
                    not_executed: *not_executed,
                    code: (*code).to_owned(),
                    message: String::new(),
                };
                self.story.report_failure(*attempt, failure, named(*reference).as_deref())
            }
            Step::Extend { attempt, lease, reference } => {
                self.story.report_extend(*attempt, *lease, named(*reference).as_deref()).0
            }
            other => unreachable!("{other:?} is no report"),
        }
    }

    fn check(&self, step: &Step, before: &Intent, after: &Intent) {
        // P3: completed is final, and its result never changes.
        if before.state == State::Completed {
            assert_eq!((after.state, &after.result), (State::Completed, &before.result));
            assert_eq!(
                (&after.settlement, after.settled_at),
                (&before.settlement, before.settled_at)
            );
        }
        // The fate of every attempt: FAILED only when none can have had its effect.
        if after.state == State::Failed {
            assert!(after.is_harmless(), "FAILED although {:?}", after.attempts);
        }
        // What may have happened is never called undecided, approved, denied or failed.
        if !after.is_harmless() {
            assert!(matches!(after.state, State::Started | State::Unknown | State::Completed));
        }
        // P4: UNKNOWN is left by evidence or by a grant, never by age.
        if before.state == State::Unknown && after.state != State::Unknown {
            let evidence = match step {
                Step::Begin { .. } => after.attempts.len() > before.attempts.len(),
                Step::Complete { .. } | Step::Fail { .. } | Step::Resolve { .. } => true,
                Step::Hear(answer) => !matches!(
                    answer,
                    Answer::Running
                        | Answer::Unmapped { .. }
                        | Answer::Unreachable { .. }
                        | Answer::Taken { .. }
                ),
                Step::Look
                | Step::Extend { .. }
                | Step::Review { .. }
                | Step::Expire
                | Step::Ask => false,
                Step::Wait(_) | Step::Policy(_) => false,
            };
            assert!(evidence, "{step:?} led out of UNKNOWN");
        }
        // Attempts are appended and never lost; what was promised to them stays.
        assert!(after.attempts.len() >= before.attempts.len());
        for (old, new) in before.attempts.iter().zip(&after.attempts) {
            assert_eq!((old.id, old.number, old.promise), (new.id, new.number, new.promise));
            assert!(new.lease_expires_at >= old.lease_expires_at);
        }
        // A slot is held by what may have happened, and by nothing that certainly did not.
        assert!(after.state != State::Failed || after.slot != RunSlot::Held);
        if before.slot == RunSlot::Held && after.state != State::Failed {
            assert_eq!(after.slot, RunSlot::Held, "{step:?} lost a slot");
        }
        if !matches!(step, Step::Begin { .. }) && after.slot != before.slot {
            let settled = matches!(after.state, State::Failed | State::Completed);
            assert!(settled, "{step:?} moved a slot");
        }
        // Whoever proposed it never said yes to it; and its arguments stay until it has happened.
        if let Some(approval) = &after.approval {
            if let Verdict::Approved { by, .. } = &approval.verdict {
                assert!(!approval.is_own(by));
            }
            assert_eq!(approval.arguments_json.is_empty(), after.state == State::Completed);
        }
        // A state that is not settled names nobody who settled it.
        let settled = matches!(after.state, State::Completed | State::Failed | State::Denied);
        assert_eq!((after.settlement.is_some(), after.settled_at.is_some()), (settled, settled));
        let mut counted = after.clone();
        counted.replay_count += 1;
        counted.last_seen_at = Some(self.story.now());
        assert_eq!(counted.etag(), after.etag(), "counters are not covered");
    }
}

fn with_reference(report: &Step, other: Option<u8>) -> Step {
    let mut changed = report.clone();
    if let Step::Complete { reference, .. } | Step::Fail { reference, .. } = &mut changed {
        *reference = other;
    }
    changed
}

fn reference_of(report: &Step) -> Option<String> {
    match report {
        Step::Complete { reference, .. } | Step::Fail { reference, .. } => named(*reference),
        other => unreachable!("{other:?} settles nothing"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_promises_hold_over_every_history(
        policy in policies(),
        steps in prop::collection::vec(steps(), 1..40),
    ) {
        let mut history = History::new(policy);
        for step in &steps {
            history.take(step);
        }
    }

    #[test]
    fn age_alone_grants_nothing(
        policy in policies(),
        steps in prop::collection::vec(steps(), 1..20),
        waits in prop::collection::vec(spans(), 1..8),
    ) {
        let mut history = History::new(policy);
        for step in &steps {
            history.take(step);
        }
        let Some(row) = history.story.row.clone() else { return Ok(()) };
        let policy = &history.story.policy;
        let reclaimable = row.is_fenced() || row.dedup_until(policy).is_some();
        if row.state.is_unsettled() && !reclaimable {
            for (attempt, wait) in (100..).zip(waits) {
                history.story = history.story.wait(wait);
                let decision = history.story.begin_as(&call(attempt));
                prop_assert!(matches!(decision, Decision::Hold { .. }), "{decision:?}");
                prop_assert_eq!(history.story.row(), &row);
            }
        }
    }

    #[test]
    fn two_who_report_at_once_agree_on_one_result_whoever_is_first(
        policy in policies(),
        steps in prop::collection::vec(steps(), 1..20),
        first in 1..=ATTEMPTS,
        second in 1..=ATTEMPTS,
    ) {
        let mut history = History::new(policy);
        for step in &steps {
            history.take(step);
        }
        if history.story.row.is_none() {
            return Ok(());
        }
        let mut settle = |attempt, result| {
            let step = Step::Complete { attempt, result: Some(result), reference: None };
            history.take(&step);
            history.story.row().result.clone()
        };
        let kept = settle(first, 0);
        let after = settle(second, 1);
        prop_assert!(kept.is_none() || kept == after);
    }
}

#[test]
fn histories_reach_every_state_and_every_reason() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let (mut states, mut reasons) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..512 {
        let strategy = (policies(), prop::collection::vec(steps(), 1..40));
        let (policy, steps) = strategy.new_tree(&mut runner).expect("a history").current();
        let mut history = History::new(policy);
        for step in &steps {
            history.take(step);
            let Some(row) = &history.story.row else { continue };
            states.insert(row.state);
            reasons.extend(row.attempts.iter().map(|attempt| format!("{:?}", attempt.granted_on)));
        }
    }
    assert_eq!(states.into_iter().collect::<Vec<_>>(), State::ALL);
    let expected = ["Approved", "DownstreamDedupes", "Fenced", "New", "Retry"];
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), expected);
}
