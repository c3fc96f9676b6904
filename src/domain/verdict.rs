//! What an answer of the downstream does to an unsettled intent.

use std::time::Duration;

use super::{
    attempt::{Attempt, Fate},
    decision::only_a_person_can_help,
    event::{Event, EventKind, Provenance},
    identity::Key,
    intent::{HandedOver, Intent, Probing, ResultBody, State, Transition, TransitionError},
    report::{Outcome, replaced_reference, settle},
    review::expire,
    schedule::{LONGEST_WAIT, visibility, visible_from},
    time::Timestamp,
    tool::{StatusRule, ToolPolicy},
};

/// What the downstream answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It happened.
    Executed {
        /// The result, mapped from the answer.
        result: ResultBody,
        /// The downstream's id.
        downstream_ref: Option<String>,
    },
    /// It is not there.
    Absent,
    /// It is still running.
    Running,
    /// More than one object carries our key.
    Several {
        /// The first one's result.
        result: ResultBody,
        /// The downstream's ids.
        downstream_refs: Vec<String>,
    },
    /// It names an object that carries our key, but whose id belongs to another intent already.
    Taken {
        /// The downstream's id.
        downstream_ref: String,
        /// The key of the other intent.
        other: Key,
    },
    /// Nothing in the policy claims the answer.
    Unmapped {
        /// What was seen, briefly.
        note: String,
    },
    /// No answer: says nothing about the effect, and is not counted.
    Unreachable {
        /// Why there was none, briefly.
        note: String,
    },
}

impl Answer {
    /// An answer that nothing in the policy claims.
    pub fn unmapped(note: impl Into<String>) -> Self {
        Self::Unmapped { note: note.into() }
    }

    /// No answer.
    pub fn unreachable(note: impl Into<String>) -> Self {
        Self::Unreachable { note: note.into() }
    }
}

/// What was read before the downstream was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    at: Timestamp,
    /// Whether the question before this one had no answer.
    after_silence: bool,
    state: State,
    attempts: usize,
    lease_expires_at: Option<Timestamp>,
}

impl Asked {
    /// Remembers the intent as it stands before a probe that goes out at `at`.
    pub fn of(intent: &Intent, at: Timestamp) -> Self {
        Self {
            at,
            after_silence: false,
            state: intent.state,
            attempts: intent.attempts.len(),
            lease_expires_at: intent.current().map(|attempt| attempt.lease_expires_at),
        }
    }

    /// Says whether the question before this one had no answer.
    pub fn after_silence(self, silence: bool) -> Self {
        Self { after_silence: silence, ..self }
    }
}

/// What a look at an intent leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// Ask the downstream.
    Ask,
    /// Nothing to do before this time.
    Later(Timestamp),
    /// Only a person can move it on, which is now on record.
    Person(Box<Outcome>),
    /// Nobody decided on the proposal in time, or began what was approved, which is now on record.
    Expired(Box<Outcome>),
    /// Nothing to look for: it is settled, or a person has been told.
    Done,
}

/// Looks at an intent that is on the agenda.
pub fn look(intent: &Intent, policy: &ToolPolicy, now: Timestamp) -> Result<Look, TransitionError> {
    if matches!(intent.state, State::AwaitingApproval | State::Approved) {
        let outcome = expire(intent, now)?;
        if outcome.intent.state == State::Denied {
            return Ok(Look::Expired(Box::new(outcome)));
        }
        return Ok(intent.first_look_at().map_or(Look::Done, Look::Later));
    }
    if !intent.state.is_unsettled() || intent.waits_for_a_person() {
        return Ok(Look::Done);
    }
    if !is_due(intent, now) {
        let end = intent.current().map(|attempt| attempt.lease_expires_at);
        return Ok(end.map_or(Look::Done, Look::Later));
    }
    if policy.downstream.status.is_some() {
        return Ok(Look::Ask);
    }
    let nobody_else = only_a_person_can_help(intent, policy, now);
    if nobody_else
        && let Some(outcome) = hand_over(intent, HandedOver::NoEndpoint, "no status endpoint", now)?
    {
        return Ok(Look::Person(Box::new(outcome)));
    }
    // While the downstream takes a repeat for the first call, or a transaction fences, the next Begin
    // is the way out; who has acknowledged it knows. The policy may still learn how to ask.
    let open_until = intent.dedup_until(policy).map(|until| until - policy.lease);
    let until = open_until.filter(|until| now < *until).unwrap_or(now + LONGEST_WAIT);
    Ok(Look::Later(until.min(now + POLICY_WAIT)))
}

/// How long what cannot be asked about sleeps at most: a policy may learn how to ask.
const POLICY_WAIT: Duration = Duration::from_secs(60 * 60);

/// Whether the question that was asked of `asked` still matters: nobody has settled, begun or
/// extended since.
pub fn still_matters(intent: &Intent, asked: Asked, now: Timestamp) -> bool {
    let unchanged = Asked::of(intent, asked.at).after_silence(asked.after_silence);
    asked == unchanged && is_due(intent, now)
}

/// Whether the downstream should be asked at `now`.
pub fn is_due(intent: &Intent, now: Timestamp) -> bool {
    intent.state == State::Unknown
        || (intent.state == State::Started
            && intent.current().is_none_or(|attempt| !attempt.lease_runs(now)))
}

/// Applies an answer to the question asked of `asked`.
pub fn reconcile(
    intent: &Intent,
    asked: Asked,
    answer: &Answer,
    rule: StatusRule,
    give_up_after: Duration,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    // The word of whoever came between is newer; and so is another answer, but for a success.
    let found = matches!(answer, Answer::Executed { .. } | Answer::Several { .. });
    let overtaken = intent.probing.heard_at.is_some_and(|heard| asked.at < heard);
    if !still_matters(intent, asked, now) || (overtaken && !found) {
        return Ok(Outcome::unchanged(intent, Ok(())));
    }
    match answer {
        Answer::Executed { result, downstream_ref } => {
            let references: Vec<String> = downstream_ref.iter().cloned().collect();
            executed(intent, result, &references, false, now)
        }
        Answer::Several { result, downstream_refs } => {
            executed(intent, result, downstream_refs, true, now)
        }
        Answer::Absent => absent(intent, rule, asked, now),
        Answer::Taken { downstream_ref, other } => {
            let note = format!("the downstream names {downstream_ref}, which is {other}'s");
            let next = heard(intent, asked, now);
            Ok(hand_over(&next, HandedOver::Taken, &note, now)?.unwrap_or_else(|| silent(next)))
        }
        Answer::Running => undecided(intent, asked, "still running", give_up_after, now),
        Answer::Unmapped { note } => undecided(intent, asked, note, give_up_after, now),
        Answer::Unreachable { .. } => Ok(Outcome::unchanged(intent, Ok(()))),
    }
}

fn executed(
    intent: &Intent,
    result: &ResultBody,
    references: &[String],
    several: bool,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    let mut next = intent.clone();
    next.go(Transition::Executed)?;
    next.result = Some(result.clone());
    next.downstream_ref = references.first().cloned().or(next.downstream_ref);
    next.conflict |= several;
    next.needs_attention = next.conflict;
    settle(&mut next, Provenance::Reconciler, "", "the downstream says that it happened", now);
    let kind = if several { EventKind::Contradiction } else { EventKind::Reconciled };
    let mut events: Vec<Event> = references
        .iter()
        .map(|reference| Event {
            downstream_ref: Some(reference.clone()),
            ..event(intent, &next, kind, "", now)
        })
        .collect();
    if events.is_empty() {
        events.push(event(intent, &next, kind, "", now));
    }
    events.extend(replaced_reference(intent, &next, event(intent, &next, kind, "", now)));
    Ok(Outcome { intent: next, events, answer: Ok(()) })
}

/// It was not there when the question went out. The answer may have been long on its way, so that is the
/// time that counts against leases and visibility.
fn absent(
    intent: &Intent,
    rule: StatusRule,
    asked: Asked,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    let seen = asked.at;
    let too_early = visible_from(intent, rule.visibility).is_some_and(|from| seen < from);
    let spacing = visibility(intent, rule) / 2;
    let too_close = intent.probing.last_absence_at.is_some_and(|last| seen.since(last) < spacing);
    if too_early || too_close {
        return Ok(Outcome::unchanged(intent, Ok(())));
    }
    // The downstream once gave an id for it: that it knows nothing now proves nothing. Nor does it
    // where somebody acted without a grant, since no lease says until when that effect may land.
    let unproven = if intent.downstream_ref.is_some() {
        Some((HandedOver::AbsentDespiteReference, "absent, although it had given a reference"))
    } else if intent.is_harmless() {
        Some((HandedOver::ActedWithoutGrant, "absent, but acted on without a grant"))
    } else {
        None
    };
    if let Some((reason, note)) = unproven {
        let handed_over = hand_over(intent, reason, note, now)?;
        return Ok(handed_over.unwrap_or_else(|| Outcome::unchanged(intent, Ok(()))));
    }
    let mut next = intent.clone();
    leave_silence_out(&mut next.probing, asked, now);
    // What counted under a shorter visibility, before the policy was tightened, counts no longer.
    let visible = visible_from(intent, rule.visibility);
    if next.probing.last_absence_at.is_some_and(|last| visible.is_some_and(|from| last < from)) {
        next.probing.absences = 0;
    }
    next.probing.absences += 1;
    // The next one is spaced from when this answer was there.
    next.probing.last_absence_at = Some(now);
    if next.probing.absences < rule.confirmations {
        return Ok(silent(next));
    }
    next.go(Transition::NotExecuted)?;
    let open: fn(&&mut Attempt) -> bool = |attempt| !attempt.fate.is_harmless();
    for attempt in next.attempts.iter_mut().filter(open) {
        attempt.fate = Fate::NotExecuted;
    }
    next.needs_attention = next.conflict;
    next.probing = Probing::default();
    settle(&mut next, Provenance::Reconciler, "", "the downstream does not know it", now);
    let events = vec![event(intent, &next, EventKind::Reconciled, "absent", now)];
    Ok(Outcome { intent: next, events, answer: Ok(()) })
}

/// An answer without a verdict: the confirmations start again, and the time of asking runs.
fn undecided(
    intent: &Intent,
    asked: Asked,
    note: &str,
    give_up_after: Duration,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    let next = heard(intent, asked, now);
    let long_enough =
        next.probing.asked_since.is_some_and(|since| now.since(since) >= give_up_after);
    if long_enough && let Some(outcome) = hand_over(&next, HandedOver::GaveUp, note, now)? {
        return Ok(outcome);
    }
    Ok(silent(next))
}

/// The intent after an answer without a verdict.
fn heard(intent: &Intent, asked: Asked, now: Timestamp) -> Intent {
    let mut next = intent.clone();
    let probing = &mut next.probing;
    leave_silence_out(probing, asked, now);
    probing.asked_since = probing.asked_since.or(Some(now));
    probing.absences = 0;
    probing.last_absence_at = None;
    next
}

/// An answer is there again: a span in which a question had none does not count towards giving up.
fn leave_silence_out(probing: &mut Probing, asked: Asked, now: Timestamp) {
    let silence = probing.heard_at.filter(|_| asked.after_silence).map(|heard| now.since(heard));
    probing.asked_since = probing.asked_since.map(|since| since + silence.unwrap_or_default());
    probing.heard_at = Some(now);
}

fn silent(intent: Intent) -> Outcome {
    Outcome { intent, events: Vec::new(), answer: Ok(()) }
}

/// The object that settled an intent has settled `other` too.
pub fn shares_object(intent: &Intent, other: &Key, now: Timestamp) -> Outcome {
    if intent.state != State::Completed || intent.conflict {
        return Outcome::unchanged(intent, Ok(()));
    }
    let mut next = intent.clone();
    next.conflict = true;
    next.needs_attention = true;
    let note = format!("the same object settled {other}");
    let events = vec![Event {
        downstream_ref: intent.downstream_ref.clone(),
        ..event(intent, &next, EventKind::Contradiction, &note, now)
    }];
    Outcome { intent: next, events, answer: Ok(()) }
}

/// Only a person can move it on: says so once. Who has acknowledged it is not told again for the same
/// reason.
fn hand_over(
    intent: &Intent,
    reason: HandedOver,
    note: &str,
    now: Timestamp,
) -> Result<Option<Outcome>, TransitionError> {
    if intent.probing.handed_over == Some(reason) {
        return Ok(None);
    }
    let mut next = intent.clone();
    next.go(Transition::LoseTrack)?;
    next.needs_attention = true;
    next.probing.handed_over = Some(reason);
    let events = vec![event(intent, &next, EventKind::Probed, note, now)];
    Ok(Some(Outcome { intent: next, events, answer: Ok(()) }))
}

fn event(before: &Intent, after: &Intent, kind: EventKind, note: &str, now: Timestamp) -> Event {
    Event {
        at: now,
        kind,
        provenance: Provenance::Reconciler,
        actor: String::new(),
        attempt_id: None,
        state_before: before.state,
        state_after: after.state,
        code: String::new(),
        note: note.to_owned(),
        downstream_ref: None,
        result_sha256: None,
    }
}

#[cfg(test)]
mod tests;
