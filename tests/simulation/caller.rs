//! A caller: begins, has its effect, reports; dies anywhere between.
//!
//! It keeps the contract's rule for callers: it starts the effect only while its lease runs on its
//! own clock, counted from the moment at which it sent the Begin or the Extend.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use intent_ledger::{
    domain::{
        decision::{Decision, ExecuteReason, HoldReason, RefuseReason},
        report::{NEVER_GRANTED, Refusal},
        time::Timestamp,
    },
    ledger::{
        BeginAnswer, BeginRequest, CompleteRequest, ExtendRequest, FailRequest, IdentityRequest,
        LedgerError, ReportedResult,
    },
};
use uuid::Uuid;

use super::{
    calendar::EPOCH,
    mutation::Mutation,
    network::{Delivery, Message, Reply, send},
    oracle::{ACTION, Fact},
    provider::Effect,
    run::{NAMESPACE, World},
    tool::Tool,
};
use crate::dice::Dice;

/// How long before its lease a caller stops: the store's clock may be some microseconds ahead of everybody's.
const SPARE: Duration = Duration::from_millis(1);

/// How often one who insists asks before we call it a dead end: once an hour for months.
const INSISTS_MAX: usize = 3000;

/// One process that wants an action done.
pub(crate) struct Caller {
    pub(crate) world: Arc<World>,
    pub(crate) dice: Dice,
    pub(crate) name: String,
    pub(crate) action: usize,
    /// Whether it asks until the answer is final; it then never dies.
    pub(crate) insists: bool,
}

/// What a caller does next.
enum Next {
    /// It has its answer, or it has died.
    Done,
    Again(Duration),
}

/// The right to execute, as its holder sees it.
struct Grant {
    attempt: Uuid,
    key: String,
    downstream_key: String,
    until: Timestamp,
}

/// How a call to the downstream goes.
#[derive(Debug, Clone, Copy)]
enum Course {
    Answered,
    /// It lands, and the answer is lost or is an error.
    LandsUnseen,
    /// It never lands, and nobody says so.
    Vanishes,
    /// The downstream refuses it, or was never reached: certainly nothing.
    Refused,
}

impl Caller {
    pub(crate) async fn live(mut self, at: Timestamp) {
        self.world.calendar.sleep_until(at).await;
        let tries = if self.insists { INSISTS_MAX } else { 1 + self.dice.below(7) as usize };
        for _ in 0..tries {
            match self.one_try().await {
                Next::Done => return,
                Next::Again(pause) => self.world.calendar.sleep(pause).await,
            }
        }
        if self.insists {
            self.world.oracle.violated(self.action, "no final answer, however often it was asked");
        }
    }

    fn tool(&self) -> Tool {
        self.world.oracle.tool(self.action).clone()
    }

    /// Whether something goes wrong that one who insists is spared.
    fn fails(&mut self, percent: u64) -> bool {
        self.dice.percent(percent) && !self.insists
    }

    fn note(&self, words: impl FnOnce() -> String) {
        self.world.note_of(self.action, || format!("{} {}", self.name, words()));
    }

    fn pause(&mut self) -> Duration {
        let longest = self.dice.one_of(&[5, 60, 3600, 12 * 3600]);
        Duration::from_secs(1 + self.dice.below(longest))
    }

    async fn one_try(&mut self) -> Next {
        let attempt = self.dice.id();
        let Some((begun, sent_at)) = self.begin(attempt).await else {
            if self.fails(30) {
                return Next::Done;
            }
            return Next::Again(self.pause());
        };
        let told = briefly(&begun.decision);
        self.world.trace.count(format!("begin: {told}"));
        self.note(|| format!("is told {told}"));
        match begun.decision {
            Decision::Execute { .. } => {
                if begun.attempt_id != Some(attempt) {
                    self.world.oracle.violated(self.action, "EXECUTE of another attempt");
                }
                self.world.oracle.told(self.action, Fact::Granted { attempt });
                let intent = &begun.row.as_ref().expect("it is recorded").intent;
                let grant = Grant {
                    attempt,
                    key: intent.key.to_string(),
                    downstream_key: begun.downstream_key,
                    until: sent_at + begun.lease.unwrap_or_default().saturating_sub(SPARE),
                };
                self.execute(grant).await
            }
            Decision::Replay { .. } => {
                let result = begun.row.and_then(|row| row.intent.result.clone());
                let result = result.and_then(|result| result.bytes);
                self.world.oracle.told(self.action, Fact::Completed { result });
                Next::Done
            }
            Decision::Hold { reason: HoldReason::Superseded, .. } => {
                // Its EXECUTE was lost on the way, so it has certainly done nothing.
                if self.insists || self.dice.percent(70) {
                    let key = begun.row.map(|row| row.intent.key.to_string()).unwrap_or_default();
                    self.fail(&key, attempt, true, NEVER_GRANTED).await;
                }
                Next::Again(self.pause())
            }
            Decision::Hold { retry_after, .. } => {
                let pause = retry_after.unwrap_or(Duration::from_secs(3600));
                let longer = self.pause();
                Next::Again(if self.dice.percent(50) { pause } else { pause.max(longer) })
            }
            Decision::Refuse { reason: RefuseReason::FailedFinal } => Next::Done,
            other => {
                self.world.oracle.violated(self.action, format!("is told {other:?}"));
                Next::Done
            }
        }
    }

    /// Begins until there is an answer, or for a while; says when the answered call was sent.
    async fn begin(&mut self, attempt: Uuid) -> Option<(Box<BeginAnswer>, Timestamp)> {
        let order = format!("o-{}", self.action);
        let half = self.tool().lease / 2;
        let request = BeginRequest {
            namespace: NAMESPACE.into(),
            identity: IdentityRequest {
                tool: self.tool().name,
                run_id: "run".into(),
                ..IdentityRequest::default()
            },
            arguments_json: format!("{{\"order\":\"{order}\"}}"),
            attempt_id: attempt.to_string(),
            lease: self.dice.percent(20).then_some(half),
            caller: self.name.clone(),
            labels: BTreeMap::from([(ACTION.to_owned(), self.action.to_string())]),
            ..BeginRequest::default()
        };
        for _ in 0..1 + self.dice.below(4) {
            let sent_at = self.world.calendar.now();
            match send(&self.world, &mut self.dice, Message::Begin(request.clone())).await {
                Delivery::Answered(Ok(Reply::Begun(begun))) => return Some((begun, sent_at)),
                Delivery::Answered(Ok(_)) => unreachable!("a Begin was sent"),
                Delivery::Answered(Err(error)) => self.expect_passing(&error),
                Delivery::NoAnswer | Delivery::NotSent => {}
            }
            let pause = self.dice.one_of(&[1, 3, 20]);
            self.world.calendar.sleep(Duration::from_secs(pause)).await;
        }
        None
    }

    /// Has the effect, if the lease still runs, and reports it, if it lives that long.
    async fn execute(&mut self, mut grant: Grant) -> Next {
        if self.fails(8) {
            self.note(|| "dies before the effect".into());
            return Next::Done;
        }
        self.dawdle(&mut grant).await;
        let may_act = self.world.calendar.now() < grant.until
            || self.world.mutation == Some(Mutation::ActsWithoutLease);
        if !may_act {
            if self.dice.percent(60) {
                self.fail(&grant.key, grant.attempt, true, "LEASE_OVER").await;
            }
            return Next::Again(self.pause());
        }
        let course = match self.dice.below(100) {
            _ if self.insists => Course::Answered,
            0..45 => Course::Answered,
            45..68 => Course::LandsUnseen,
            68..83 => Course::Vanishes,
            _ => Course::Refused,
        };
        self.world.trace.count(format!("effect: {course:?}"));
        self.note(|| format!("acts: {course:?}"));
        match course {
            Course::Answered => self.answered(grant).await,
            Course::LandsUnseen => self.lands_unseen(grant).await,
            Course::Vanishes => {
                self.give_up_waiting(&grant).await;
                self.in_the_dark(&grant).await
            }
            Course::Refused => {
                if self.fails(20) {
                    return Next::Done;
                }
                self.fail(&grant.key, grant.attempt, true, "http_422").await;
                Next::Again(self.pause())
            }
        }
    }

    /// Takes its time before the effect, and may ask for more.
    async fn dawdle(&mut self, grant: &mut Grant) {
        let lease = self.tool().lease;
        let span = match self.dice.below(10) {
            _ if self.insists => Duration::from_millis(200),
            0 => lease.mul_f64(self.dice.below(300) as f64 / 100.0),
            1 | 2 => lease.mul_f64(self.dice.below(100) as f64 / 100.0),
            _ => Duration::from_millis(self.dice.below(4000)),
        };
        self.world.calendar.sleep(span / 2).await;
        if span > lease / 4 && self.dice.percent(50) {
            self.extend(grant, "").await;
        }
        self.world.calendar.sleep(span / 2).await;
    }

    async fn extend(&mut self, grant: &mut Grant, reference: &str) {
        let request = ExtendRequest {
            namespace: NAMESPACE.into(),
            key: grant.key.clone(),
            attempt_id: grant.attempt.to_string(),
            lease: None,
            downstream_ref: reference.to_owned(),
        };
        let sent_at = self.world.calendar.now();
        match send(&self.world, &mut self.dice, Message::Extend(request)).await {
            Delivery::Answered(Ok(Reply::Extended(extended))) => {
                grant.until = grant.until.max(sent_at + extended.lease.saturating_sub(SPARE));
                self.note(|| format!("has its lease extended by {:?}", extended.lease));
            }
            Delivery::Answered(Err(error)) => self.expect_passing(&error),
            Delivery::Answered(Ok(_)) | Delivery::NoAnswer | Delivery::NotSent => {}
        }
    }

    /// Sends the call on its way: when it lands and comes to light, within what the policy promises.
    fn act(&mut self, grant: &Grant, lands_at: Timestamp) {
        let tool = self.tool();
        let latest = lands_at.max(grant.until + tool.visibility);
        let visible_at = match self.dice.below(3) {
            0 => lands_at,
            1 => latest,
            _ => lands_at + latest.since(lands_at).mul_f64(self.dice.below(100) as f64 / 100.0),
        };
        let hours = |at: Timestamp| at.since(EPOCH).as_secs_f64() / 3600.0;
        self.note(|| {
            let (until, lands, visible) = (hours(grant.until), hours(lands_at), hours(visible_at));
            format!("may act until {until:.3} h, lands {lands:.3} h, visible {visible:.3} h")
        });
        let index = self.world.oracle.tool_of(self.action);
        let key = &grant.downstream_key;
        self.world.providers.send(index, self.action, key, lands_at, visible_at);
    }

    fn effect(&self, grant: &Grant) -> Option<Effect> {
        let index = self.world.oracle.tool_of(self.action);
        self.world.providers.answer(index, &grant.downstream_key)
    }

    async fn answered(&mut self, mut grant: Grant) -> Next {
        let now = self.world.calendar.now();
        let left = grant.until.since(now).min(Duration::from_secs(3));
        let lands_at = now + left.mul_f64(self.dice.below(100) as f64 / 100.0);
        self.act(&grant, lands_at);
        self.world.calendar.sleep_until(lands_at + Duration::from_millis(1)).await;
        let Some(effect) = self.effect(&grant) else {
            self.world.oracle.violated(self.action, "the simulation lost an effect");
            return Next::Done;
        };
        if self.fails(12) {
            self.note(|| "dies after the effect".into());
            return Next::Done;
        }
        if self.dice.percent(10) {
            self.extend(&mut grant, &effect.id).await;
        }
        if self.fails(20) {
            let pause = self.pause();
            self.world.calendar.sleep(pause).await;
        }
        self.complete(&grant, &effect).await
    }

    async fn lands_unseen(&mut self, grant: Grant) -> Next {
        let tool = self.tool();
        let now = self.world.calendar.now();
        // What can only be asked about may land after the lease, as long as it comes to light in time.
        let late = tool.asks && tool.window.is_none();
        let latest = grant.until + if late { tool.visibility } else { Duration::ZERO };
        let lands_at = now + latest.since(now).mul_f64(self.dice.below(100) as f64 / 100.0);
        self.act(&grant, lands_at);
        if tool.window.is_some() && self.dice.percent(30) {
            // Its HTTP client repeats the call, under the same key and inside the lease.
            self.act(&grant, now + grant.until.since(now) / 2);
        }
        self.give_up_waiting(&grant).await;
        if self.fails(20) {
            // The answer turns up, hours later.
            self.world.calendar.sleep_until(lands_at + Duration::from_millis(1)).await;
            let pause = self.pause();
            self.world.calendar.sleep(pause).await;
            if let Some(effect) = self.effect(&grant) {
                return self.complete(&grant, &effect).await;
            }
        }
        self.in_the_dark(&grant).await
    }

    /// Waits for an answer for part of what is left of the lease.
    async fn give_up_waiting(&mut self, grant: &Grant) {
        let left = grant.until.since(self.world.calendar.now());
        let patience = left.mul_f64(self.dice.below(100) as f64 / 100.0);
        self.world.calendar.sleep(patience).await;
    }

    /// Nobody knows whether it happened.
    async fn in_the_dark(&mut self, grant: &Grant) -> Next {
        let confuses = self.world.mutation == Some(Mutation::TakesTimeoutForFailure);
        match self.dice.below(10) {
            0..3 => {
                self.note(|| "dies in the dark".into());
                Next::Done
            }
            3..8 => {
                self.fail(&grant.key, grant.attempt, confuses, "timeout").await;
                Next::Again(self.pause())
            }
            _ => Next::Again(self.pause()),
        }
    }

    async fn complete(&mut self, grant: &Grant, effect: &Effect) -> Next {
        let request = CompleteRequest {
            namespace: NAMESPACE.into(),
            key: grant.key.clone(),
            attempt_id: grant.attempt.to_string(),
            result: ReportedResult {
                bytes: Some(effect.result().into_bytes()),
                content_type: "application/json".into(),
                ..ReportedResult::default()
            },
            downstream_ref: if self.dice.percent(50) { effect.id.clone() } else { String::new() },
        };
        self.settle(Message::Complete(request), |result| Fact::Completed { result }).await;
        if self.fails(50) { Next::Done } else { Next::Again(self.pause()) }
    }

    async fn fail(&mut self, key: &str, attempt: Uuid, not_executed: bool, code: &str) {
        let request = FailRequest {
            namespace: NAMESPACE.into(),
            key: key.to_owned(),
            attempt_id: attempt.to_string(),
            not_executed,
            code: code.to_owned(),
            ..FailRequest::default()
        };
        self.settle(Message::Fail(request), |_| Fact::Failed { attempt, not_executed }).await;
    }

    /// Reports until it is heard, or for a while.
    async fn settle(&mut self, message: Message, fact: impl Fn(Option<Vec<u8>>) -> Fact) {
        for _ in 0..if self.insists { 100 } else { 1 + self.dice.below(6) } {
            match send(&self.world, &mut self.dice, message.clone()).await {
                Delivery::Answered(Ok(Reply::Settled(settled))) => {
                    let result = settled.row.intent.result.clone();
                    let result = result.and_then(|result| result.bytes);
                    return self.world.oracle.told(self.action, fact(result));
                }
                Delivery::Answered(Ok(_)) => unreachable!("a report was sent"),
                Delivery::Answered(Err(LedgerError::Refused { refusal, .. })) => {
                    let expected =
                        matches!(refusal, Refusal::AttemptSuperseded | Refusal::AlreadySettled);
                    if !expected {
                        self.world.oracle.violated(self.action, format!("refused: {refusal}"));
                    }
                    return self.note(|| format!("is refused: {refusal}"));
                }
                Delivery::Answered(Err(error)) => self.expect_passing(&error),
                Delivery::NoAnswer | Delivery::NotSent => {}
            }
            let pause = self.pause();
            self.world.calendar.sleep(pause).await;
        }
    }

    /// Errors that pass: whatever else a caller is told is a fault of the ledger's.
    fn expect_passing(&mut self, error: &LedgerError) {
        let passes = matches!(
            error,
            LedgerError::StoreUnavailable(_)
                | LedgerError::CommitInDoubt(_)
                | LedgerError::DeadlinePassed
                | LedgerError::Stopping
                | LedgerError::Refused { refusal: Refusal::LeaseLost(_), .. }
        );
        self.note(|| format!("is told of an error: {error}"));
        if !passes {
            self.world.oracle.violated(self.action, format!("is told {error:?}"));
        }
    }
}

fn briefly(decision: &Decision) -> String {
    match decision {
        Decision::Execute { reason: ExecuteReason::Granted(on), .. } => format!("EXECUTE {on:?}"),
        Decision::Execute { reason: ExecuteReason::Resent, .. } => "EXECUTE Resent".into(),
        Decision::Hold { reason, .. } => format!("HOLD {reason:?}"),
        Decision::Refuse { reason } => format!("REFUSE {reason:?}"),
        Decision::Replay { .. } => "REPLAY".into(),
        other => format!("{other:?}"),
    }
}
