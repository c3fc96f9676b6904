//! The protocol, checked exhaustively within bounds: what callers, a network that loses and repeats, a reconciler and a
//! person can do to one intent, in every order.
//!
//! The decisions are the library's own. Around them stand two callers that crash anywhere and may try again, a
//! downstream that de-duplicates, or can be asked, or neither, and a clock that may tick between any two steps. Callers
//! keep the contract's two rules: they start the effect only while their lease runs, and say "did not happen" only when
//! they know. To show that the check can fail, [`Rules`] break one decision each, and a counterexample must be found.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use intent_ledger::domain::{
    attempt::{Failure, Fate, GrantedOn},
    canonical_json::Json,
    decision::{BeginCall, Candidate, Decision, ExecuteReason, Facts, decide},
    fingerprint::fingerprint,
    identity::{Call, Key, KeyBasis, downstream_digest},
    intent::{Intent, RecipeVersion, ResultBody, State},
    report::{Complete, Fail, NEVER_GRANTED, Outcome, complete, fail},
    review::{Resolution, Reviewer, resolve},
    time::Timestamp,
    tool::{StatusRule, ToolPolicy},
    verdict::{Answer, Asked, is_due, reconcile},
};
use stateright::{Checker, Model, Property};
use uuid::Uuid;

const CALLERS: usize = 2;
/// How many attempts each caller mints: a run that is resumed after a crash mints a new one.
type Attempts = [u8; CALLERS];
/// Enough for every promise to be at stake.
const ONE_EACH: Attempts = [1, 1];
/// With a retry after a crash there are half a million states and more.
const ONE_RETRIES: Attempts = [2, 1];

/// The clock's smallest step. Spans are whole numbers of it, so that every order of ends is met.
const TICK: Duration = Duration::from_secs(60);
const LEASE_TICKS: u8 = 1;
const VISIBILITY_TICKS: u8 = 1;
/// A second attempt fits in while the first one's lease has just ended, and not a tick later.
const WINDOW_TICKS: u8 = 3;
/// No Begin arrives later. By then no further lease fits into the window of a first attempt, and a retry can follow on
/// an absence.
const BEGIN_TICKS: u8 = 2;
/// The clock ends once the last attempt's fate can be found out.
const CLOCK_TICKS: u8 = BEGIN_TICKS + LEASE_TICKS + VISIBILITY_TICKS;

type AttemptId = u8;

/// What the policy says of the downstream, and the downstream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Downstream {
    /// Every call has its effect, and nobody can ask.
    Plain,
    /// Every call has its effect; it can be asked, and sees an effect a tick late.
    Asked,
    /// Calls with our key are one effect while the window is open.
    Deduplicates,
}

/// The contract, or the contract with one decision broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Contract,
    /// A lapsed lease is taken for a failure.
    AgeGrants,
    /// The last report decides, whatever became of the other attempts.
    LastReportFails,
    /// The last success decides.
    LastCompleteWins,
    /// An absence counts at once.
    NoVisibility,
    /// An absence counts from when it is heard of, not from when the question went out.
    LateAnswersAreFresh,
}

/// What travels to the ledger. Once sent it may arrive at any time, any number of times or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Begin(AttemptId),
    Complete(AttemptId),
    NotExecuted(AttemptId),
    NeverGranted(AttemptId),
    Lost(AttemptId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    /// Remembers nothing; its next attempt id is fresh.
    Idle,
    /// Has sent Begin.
    Waiting { attempt: AttemptId, sent_at: u8 },
    /// Has received EXECUTE, and counts the lease from when it sent the call.
    Holding { attempt: AttemptId, deadline: u8 },
    /// Has called the downstream.
    Acting { attempt: AttemptId },
}

/// An effect on its way; it lands before the caller's own time-out, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Flight {
    attempt: AttemptId,
    deadline: u8,
}

/// What the world holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct World {
    /// When each real effect happened.
    effects: Vec<u8>,
    /// The calls that the downstream answered with success.
    landed: BTreeSet<AttemptId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Word {
    Found,
    Absent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row(Option<Arc<Intent>>);

/// The checker tells states apart by this alone, so it covers all that a decision reads and a step changes.
impl Hash for Row {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Some(row) = &self.0 else { return 0_u8.hash(hasher) };
        (row.state, row.attempts_forgiven, row.needs_attention, row.conflict).hash(hasher);
        row.result.as_ref().map(|result| result.sha256).hash(hasher);
        let probing = &row.probing;
        (probing.absences, probing.last_absence_at, probing.asked_since).hash(hasher);
        row.settlement.as_ref().map(|settled| settled.provenance).hash(hasher);
        for attempt in &row.attempts {
            (attempt.id, attempt.granted_on, attempt.granted_at, attempt.lease_expires_at)
                .hash(hasher);
            (attempt.fate, &attempt.reports).hash(hasher);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Protocol {
    now: u8,
    row: Row,
    callers: [Caller; CALLERS],
    minted: [u8; CALLERS],
    sent: BTreeSet<Message>,
    /// EXECUTE answers: the attempt, and what is left of its lease.
    granted: BTreeSet<(AttemptId, u8)>,
    flights: BTreeSet<Flight>,
    world: World,
    /// A probe that is out, with the answer that it will bring.
    probe: Option<(HashedAsked, Word)>,
    /// The result that the intent completed with first.
    first_result: Option<[u8; 32]>,
    /// Whether an EXECUTE was granted on an unsettled row for no reason but the clock.
    granted_by_age: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HashedAsked(Asked);

impl Hash for HashedAsked {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        format!("{:?}", self.0).hash(hasher);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    /// A caller mints an attempt and sends Begin.
    Begin(usize),
    /// A message arrives at the ledger; it stays in the network, to arrive again.
    Arrive(Message),
    /// A caller receives its EXECUTE.
    Hear(usize, u8),
    /// A caller loses its memory, before or after the effect.
    Crash(usize),
    /// A caller calls the downstream.
    Act(usize),
    Land(Flight),
    /// The downstream refuses for certain, and the caller hears it.
    Reject(usize, Flight),
    Report(usize, Message),
    Ask(Word),
    Answer,
    /// A person who has looked at the world says what it holds.
    Resolve(Word),
}

struct Ledger {
    downstream: Downstream,
    rules: Rules,
    attempts: Attempts,
    policy: ToolPolicy,
    candidate: Candidate,
}

fn time(tick: u8) -> Timestamp {
    Timestamp::from_micros(0) + TICK * u32::from(tick)
}

fn id(attempt: AttemptId) -> Uuid {
    Uuid::from_u128(u128::from(attempt))
}

fn result(of: &str) -> ResultBody {
    ResultBody::reported(Some(of.into()), String::new(), None, 64)
}

impl Ledger {
    fn new(downstream: Downstream, rules: Rules, attempts: Attempts) -> Self {
        let mut policy = ToolPolicy {
            listed: true,
            lease: TICK * u32::from(LEASE_TICKS),
            resend_window: TICK * u32::from(LEASE_TICKS),
            max_attempts: 2,
            ..ToolPolicy::default()
        };
        match downstream {
            Downstream::Plain => {}
            Downstream::Asked => {
                policy.downstream.status = Some(StatusRule {
                    visibility: TICK * u32::from(VISIBILITY_TICKS),
                    confirmations: 1,
                    probe_on_begin: false,
                });
            }
            Downstream::Deduplicates => {
                policy.downstream.dedup_window = Some(TICK * u32::from(WINDOW_TICKS));
            }
        }
        let key = Key::from_bytes([1; 32]);
        let arguments = Json::parse("{}").expect("an empty object is valid");
        let call = Call {
            namespace: "n",
            tool: "t",
            run_id: "r",
            step_id: "",
            idempotency_key: "k",
            business_ids: &BTreeMap::new(),
            arguments: &arguments,
        };
        let print = fingerprint(&policy.recipe, &[], &call, &key, KeyBasis::IdempotencyKey);
        let recipe = RecipeVersion { policy: 1, hash: policy.recipe.hash_version };
        let candidate = Candidate {
            recipe,
            key,
            downstream: downstream_digest(&key, None, recipe.hash),
            basis: KeyBasis::IdempotencyKey,
            print,
            kept: BTreeMap::new(),
        };
        Self { downstream, rules, attempts, policy, candidate }
    }

    /// How long after the tick of an effect the downstream, or a person who looks, may still miss it.
    fn lag(&self) -> u8 {
        if self.downstream == Downstream::Asked { VISIBILITY_TICKS } else { 0 }
    }

    fn words(&self, state: &Protocol) -> impl Iterator<Item = Word> {
        let effects = &state.world.effects;
        let found = !effects.is_empty();
        let absent = effects.iter().all(|at| state.now <= at + self.lag());
        [(found, Word::Found), (absent, Word::Absent)]
            .into_iter()
            .filter_map(|(may_be_said, word)| may_be_said.then_some(word))
    }

    fn begin(&self, state: &mut Protocol, attempt: AttemptId) {
        let call = BeginCall {
            free_text: Vec::new(),
            namespace: "n".to_owned(),
            tool: "t".to_owned(),
            run_id: "r".to_owned(),
            step_id: String::new(),
            attempt_id: id(attempt),
            caller: (attempt / 10).to_string(),
            tool_call_id: String::new(),
            lease: None,
            labels: BTreeMap::new(),
            arguments_json: "{}".to_owned(),
        };
        let facts = Facts::at(time(state.now));
        let decide = |row: Option<&Intent>| {
            decide(row, &call, &self.candidate, &self.policy, &facts).expect("Begin is total")
        };
        let row = state.row.0.as_deref();
        let decision = match row {
            Some(row) if self.rules == Rules::AgeGrants && is_due(row, facts.now) => {
                let mut broken = row.clone();
                broken.state = State::Failed;
                decide(Some(&broken))
            }
            row => decide(row),
        };
        let Decision::Execute { reason, write, .. } = decision else { return };
        if let Some(write) = write {
            let unsettled = row.is_some_and(|row| row.state.is_unsettled());
            let rests_on_downstream =
                reason == ExecuteReason::Granted(GrantedOn::DownstreamDedupes);
            state.granted_by_age |= unsettled && !rests_on_downstream;
            state.row = Row(Some(Arc::from(write.intent)));
        }
        let current = state.row.0.as_deref().and_then(Intent::current).expect("it was granted");
        let left = current.lease_expires_at.since(facts.now).as_secs() / TICK.as_secs();
        state.granted.insert((attempt, u8::try_from(left).expect("leases are short")));
    }

    fn arrive(&self, state: &mut Protocol, message: Message) {
        if let Message::Begin(attempt) = message {
            return self.begin(state, attempt);
        }
        // Without a row a report would become an orphan fact, and every Begin be held.
        let Some(row) = &state.row.0 else { return };
        let now = time(state.now);
        let outcome = match message {
            Message::Begin(_) => unreachable!("it is answered above"),
            Message::Complete(attempt) => {
                let report = Complete {
                    attempt_id: id(attempt),
                    result: result(&attempt.to_string()),
                    downstream_ref: None,
                };
                let mut outcome = complete(row, &report, now).expect("Complete is total");
                if self.rules == Rules::LastCompleteWins {
                    outcome.intent.result = Some(report.result);
                }
                outcome
            }
            Message::NotExecuted(attempt) => self.fail(row, attempt, true, "http_422", now),
            Message::NeverGranted(attempt) => self.fail(row, attempt, true, NEVER_GRANTED, now),
            Message::Lost(attempt) => self.fail(row, attempt, false, "http_504", now),
        };
        self.keep(state, outcome);
    }

    fn fail(
        &self,
        row: &Intent,
        attempt: AttemptId,
        not_executed: bool,
        code: &str,
        now: Timestamp,
    ) -> Outcome {
        let failure = Failure { not_executed, code: code.to_owned(), message: String::new() };
        let report = Fail { attempt_id: id(attempt), failure, downstream_ref: None };
        let mut outcome = fail(row, &report, &self.policy, now).expect("Fail is total");
        let reported = outcome.intent.is_current(report.attempt_id) && not_executed;
        if self.rules == Rules::LastReportFails && reported && row.state.is_unsettled() {
            outcome.intent.state = State::Failed;
        }
        outcome
    }

    fn keep(&self, state: &mut Protocol, outcome: Outcome) {
        let row = outcome.intent;
        if row.state == State::Completed && state.first_result.is_none() {
            state.first_result = row.result.as_ref().map(|result| result.sha256);
        }
        state.row = Row(Some(Arc::new(row)));
    }

    fn answer(&self, state: &mut Protocol, asked: Asked, word: Word) {
        let Some(row) = &state.row.0 else { return };
        let answer = match word {
            Word::Found => Answer::Executed { result: result("found"), downstream_ref: None },
            Word::Absent => Answer::Absent,
        };
        let mut rule = self.policy.downstream.status.expect("only such a downstream is asked");
        let mut row = Intent::clone(row);
        if self.rules == Rules::NoVisibility {
            rule.visibility = Duration::ZERO;
            for attempt in &mut row.attempts {
                attempt.promise.visibility = Duration::ZERO;
            }
        }
        let mut asked = asked;
        let unchanged = (0..=state.now).any(|tick| asked == Asked::of(&row, time(tick)));
        if self.rules == Rules::LateAnswersAreFresh && unchanged {
            asked = Asked::of(&row, time(state.now));
        }
        let outcome = reconcile(&row, asked, &answer, rule, TICK * 100, time(state.now))
            .expect("answers are total");
        self.keep(state, outcome);
    }

    fn resolve(&self, state: &mut Protocol, word: Word) {
        let Some(row) = &state.row.0 else { return };
        let reviewer =
            Reviewer { actor: "ann".to_owned(), reason: "looked".to_owned(), etag: row.etag() };
        let resolution = match word {
            Word::Found => Resolution::Executed(result("seen")),
            Word::Absent => Resolution::NotExecuted,
        };
        let outcome = resolve(row, &reviewer, &resolution, None, time(state.now))
            .expect("people are answered");
        self.keep(state, outcome);
    }

    fn land(&self, state: &mut Protocol, flight: Flight) {
        state.flights.remove(&flight);
        state.world.landed.insert(flight.attempt);
        let known = self.downstream == Downstream::Deduplicates
            && state.world.effects.last().is_some_and(|at| state.now < at + WINDOW_TICKS);
        if !known {
            state.world.effects.push(state.now);
        }
    }
}

impl Model for Ledger {
    type State = Protocol;
    type Action = Step;

    fn init_states(&self) -> Vec<Protocol> {
        vec![Protocol {
            now: 0,
            row: Row(None),
            callers: [Caller::Idle; CALLERS],
            minted: [0; CALLERS],
            sent: BTreeSet::new(),
            granted: BTreeSet::new(),
            flights: BTreeSet::new(),
            world: World::default(),
            probe: None,
            first_result: None,
            granted_by_age: false,
        }]
    }

    fn actions(&self, state: &Protocol, steps: &mut Vec<Step>) {
        let settled = state.row.0.as_ref().is_some_and(|row| !row.state.is_unsettled());
        // No decision on a settled row reads the clock.
        let ends = if settled { BEGIN_TICKS } else { CLOCK_TICKS };
        let completed = state.first_result.is_some() && state.flights.is_empty();
        // Time starts with the first call.
        if state.now < ends && !completed && state.minted[0] > 0 {
            steps.push(Step::Tick);
        }
        let arriving = state.sent.iter().filter(|message| match message {
            Message::Begin(_) => state.now <= BEGIN_TICKS,
            Message::Complete(_)
            | Message::NotExecuted(_)
            | Message::NeverGranted(_)
            | Message::Lost(_) => true,
        });
        steps.extend(arriving.map(|message| Step::Arrive(*message)));
        for (index, caller) in state.callers.iter().enumerate() {
            match *caller {
                Caller::Idle => {
                    // Callers are alike: the second one is heard of after the first.
                    let in_turn = index == 0 || state.minted[0] > 0;
                    let in_time = state.now <= BEGIN_TICKS;
                    if state.minted[index] < self.attempts[index] && in_turn && in_time {
                        steps.push(Step::Begin(index));
                    }
                    continue;
                }
                Caller::Waiting { attempt, .. } => {
                    let answers = state.granted.iter().filter(|(granted, _)| *granted == attempt);
                    steps.extend(answers.map(|(_, left)| Step::Hear(index, *left)));
                    steps.push(Step::Report(index, Message::NeverGranted(attempt)));
                }
                Caller::Holding { attempt, deadline } => {
                    if state.now < deadline {
                        steps.push(Step::Act(index));
                    }
                    steps.push(Step::Report(index, Message::NotExecuted(attempt)));
                }
                Caller::Acting { attempt } => {
                    let flight = state.flights.iter().find(|flight| flight.attempt == attempt);
                    steps.extend(flight.map(|flight| Step::Reject(index, *flight)));
                    steps.push(Step::Report(index, Message::Lost(attempt)));
                    if state.world.landed.contains(&attempt) {
                        steps.push(Step::Report(index, Message::Complete(attempt)));
                    }
                }
            }
            // A caller that could not try again might as well stand still.
            if state.minted[index] < self.attempts[index] {
                steps.push(Step::Crash(index));
            }
        }
        let landing = state.flights.iter().filter(|flight| state.now < flight.deadline);
        steps.extend(landing.map(|flight| Step::Land(*flight)));
        let Some(row) = &state.row.0 else { return };
        let may_ask = self.downstream == Downstream::Asked && state.probe.is_none();
        if may_ask && is_due(row, time(state.now)) {
            steps.extend(self.words(state).map(Step::Ask));
        }
        if state.probe.is_some() {
            steps.push(Step::Answer);
        }
        if row.state.is_unsettled() {
            steps.extend(self.words(state).map(Step::Resolve));
        }
    }

    fn next_state(&self, last: &Protocol, step: Step) -> Option<Protocol> {
        let mut next = last.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Begin(index) => {
                next.minted[index] += 1;
                let attempt = u8::try_from(index * 10).ok()? + next.minted[index];
                next.callers[index] = Caller::Waiting { attempt, sent_at: last.now };
                next.sent.insert(Message::Begin(attempt));
            }
            Step::Arrive(message) => self.arrive(&mut next, message),
            Step::Hear(index, left) => {
                let Caller::Waiting { attempt, sent_at } = last.callers[index] else { return None };
                next.callers[index] = Caller::Holding { attempt, deadline: sent_at + left };
            }
            Step::Crash(index) => next.callers[index] = Caller::Idle,
            Step::Act(index) => {
                let Caller::Holding { attempt, deadline } = last.callers[index] else {
                    return None;
                };
                next.callers[index] = Caller::Acting { attempt };
                next.flights.insert(Flight { attempt, deadline });
            }
            Step::Land(flight) => self.land(&mut next, flight),
            Step::Reject(index, flight) => {
                next.flights.remove(&flight);
                next.callers[index] = Caller::Holding { attempt: flight.attempt, deadline: 0 };
            }
            Step::Report(index, message) => {
                next.sent.insert(message);
                // Who has only lost track may still learn better.
                if !matches!(message, Message::Lost(_)) {
                    next.callers[index] = Caller::Idle;
                }
            }
            Step::Ask(word) => {
                next.probe =
                    Some((HashedAsked(Asked::of(last.row.0.as_ref()?, time(last.now))), word));
            }
            Step::Answer => {
                let (asked, word) = next.probe.take()?;
                self.answer(&mut next, asked.0, word);
            }
            Step::Resolve(word) => self.resolve(&mut next, word),
        }
        // What can no longer land, or no longer be heard, is no part of the state.
        let now = next.now;
        next.flights.retain(|flight| now < flight.deadline);
        let callers = next.callers;
        next.granted.retain(|(granted, _)| {
            callers.iter().any(
                |caller| matches!(caller, Caller::Waiting { attempt, .. } if attempt == granted),
            )
        });
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn state(protocol: &Protocol) -> Option<State> {
            protocol.row.0.as_ref().map(|row| row.state)
        }
        vec![
            Property::always(ONE_EFFECT, |_, protocol: &Protocol| {
                protocol.world.effects.len() <= 1
            }),
            Property::always(ONE_EXECUTOR, |model: &Self, protocol: &Protocol| {
                let may_act = |caller: &&Caller| match caller {
                    Caller::Holding { deadline, .. } => protocol.now < *deadline,
                    Caller::Idle | Caller::Waiting { .. } | Caller::Acting { .. } => false,
                };
                let acting = protocol.callers.iter().filter(may_act).count();
                model.downstream == Downstream::Deduplicates || acting + protocol.flights.len() <= 1
            }),
            Property::always(COMPLETED_IS_FINAL, |_, protocol: &Protocol| {
                match protocol.first_result {
                    None => true,
                    Some(first) => protocol.row.0.as_ref().is_some_and(|row| {
                        row.state == State::Completed
                            && row.result.as_ref().is_some_and(|kept| kept.sha256 == first)
                    }),
                }
            }),
            Property::always(NEVER_BY_AGE, |_, protocol: &Protocol| !protocol.granted_by_age),
            Property::always(FAILED_IS_TRUE, |_, protocol: &Protocol| {
                state(protocol) != Some(State::Failed)
                    || (protocol.world.effects.is_empty() && protocol.flights.is_empty())
            }),
            Property::always(COMPLETED_IS_TRUE, |_, protocol: &Protocol| {
                state(protocol) != Some(State::Completed) || !protocol.world.effects.is_empty()
            }),
            Property::always(FATES_ARE_TRUE, |_, protocol: &Protocol| {
                let attempts = protocol.row.0.iter().flat_map(|row| &row.attempts);
                let landed =
                    |attempt: Uuid| protocol.world.landed.iter().any(|at| id(*at) == attempt);
                attempts.into_iter().all(|attempt| match attempt.fate {
                    Fate::Executed => landed(attempt.id),
                    Fate::NotExecuted | Fate::NeverBegan | Fate::Fenced => !landed(attempt.id),
                    Fate::Open | Fate::Unknown => true,
                })
            }),
            Property::always(NOTHING_IS_STUCK, |model: &Self, protocol: &Protocol| {
                let settles = |word| {
                    let mut next = protocol.clone();
                    model.resolve(&mut next, word);
                    next.row.0.is_some_and(|row| !row.state.is_unsettled())
                };
                let unsettled = state(protocol).is_some_and(State::is_unsettled);
                !unsettled || protocol.now < CLOCK_TICKS || model.words(protocol).any(settles)
            }),
            Property::sometimes("it completes", |_, protocol: &Protocol| {
                state(protocol) == Some(State::Completed)
            }),
            Property::sometimes("it holds", |_, protocol: &Protocol| {
                state(protocol) == Some(State::Unknown) && !protocol.world.effects.is_empty()
            }),
            Property::sometimes("it recovers", |_, protocol: &Protocol| {
                state(protocol) == Some(State::Completed)
                    && protocol.row.0.as_ref().is_some_and(|row| row.attempts.len() > 1)
            }),
            Property::sometimes("all attempts are used up", |model: &Self, protocol: &Protocol| {
                protocol.row.0.as_ref().is_some_and(|row| {
                    row.state == State::Failed && row.attempts_used() >= model.policy.max_attempts
                })
            }),
        ]
    }
}

const ONE_EFFECT: &str = "the effect happens at most once";
const ONE_EXECUTOR: &str = "at most one executor, unless the downstream de-duplicates";
const COMPLETED_IS_FINAL: &str = "completed is final, and its result the first one";
const NEVER_BY_AGE: &str = "age alone never grants";
const FAILED_IS_TRUE: &str = "failed means that nothing happened and nothing is under way";
const COMPLETED_IS_TRUE: &str = "completed means that it happened";
const NOTHING_IS_STUCK: &str = "in the end a person who looks can settle it";
const FATES_ARE_TRUE: &str = "what is known of an attempt is true";

/// Explores everything, and answers how many states there were.
#[track_caller]
fn prove(downstream: Downstream, attempts: Attempts) {
    let checker =
        Ledger::new(downstream, Rules::Contract, attempts).checker().threads(2).spawn_bfs().join();
    println!("{downstream:?} {attempts:?}: {} unique states", checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "the bounds leave little to explore");
}

/// Breaks a rule, and demands that the check notices.
#[track_caller]
fn refute(downstream: Downstream, rules: Rules, promises: &[&'static str]) {
    for &promise in promises {
        let checker = Ledger::new(downstream, rules, ONE_EACH)
            .checker()
            .threads(2)
            .finish_when(stateright::HasDiscoveries::AnyOf([promise].into()))
            .spawn_bfs()
            .join();
        assert!(checker.discovery(promise).is_some(), "{rules:?} breaks {promise:?} unnoticed");
    }
}

#[test]
fn a_plain_downstream_sees_the_effect_at_most_once() {
    prove(Downstream::Plain, ONE_EACH);
}

#[test]
fn a_downstream_that_is_asked_sees_the_effect_at_most_once() {
    prove(Downstream::Asked, ONE_EACH);
}

#[test]
fn a_downstream_that_deduplicates_sees_many_calls_as_one_effect() {
    prove(Downstream::Deduplicates, ONE_EACH);
}

#[test]
#[ignore = "1.6 million states: minutes in a debug build"]
fn a_caller_that_crashes_and_tries_again_changes_nothing() {
    for downstream in [Downstream::Plain, Downstream::Asked] {
        prove(downstream, ONE_RETRIES);
    }
}

#[test]
fn were_a_lapsed_lease_a_failure_the_effect_would_happen_twice() {
    refute(Downstream::Plain, Rules::AgeGrants, &[NEVER_BY_AGE, ONE_EFFECT]);
}

#[test]
fn were_the_last_report_to_decide_failed_would_not_be_true() {
    refute(Downstream::Deduplicates, Rules::LastReportFails, &[FAILED_IS_TRUE]);
}

#[test]
fn were_the_last_success_to_decide_completed_would_not_be_final() {
    refute(Downstream::Deduplicates, Rules::LastCompleteWins, &[COMPLETED_IS_FINAL]);
}

#[test]
fn were_an_absence_to_count_at_once_the_effect_would_happen_twice() {
    refute(Downstream::Asked, Rules::NoVisibility, &[FAILED_IS_TRUE, ONE_EFFECT]);
}

/// The check found this in the code as it was, through an answer that a stalled process heard late.
#[test]
fn were_a_late_answer_taken_for_a_fresh_one_the_effect_would_happen_twice() {
    refute(Downstream::Asked, Rules::LateAnswersAreFresh, &[FAILED_IS_TRUE, ONE_EFFECT]);
}
