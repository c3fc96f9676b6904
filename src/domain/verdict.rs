//! What an answer of the downstream does to an unsettled intent.

use std::time::Duration;

use super::{
    attempt::{Attempt, Fate},
    event::{Event, EventKind, Provenance},
    intent::{Intent, Probing, ResultBody, State, Transition, TransitionError},
    report::{Outcome, replaced_reference, settle},
    time::Timestamp,
    tool::StatusRule,
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
    state: State,
    attempts: usize,
    lease_expires_at: Option<Timestamp>,
}

impl Asked {
    /// Remembers the intent as it stands before a probe that goes out at `at`.
    pub fn of(intent: &Intent, at: Timestamp) -> Self {
        Self {
            at,
            state: intent.state,
            attempts: intent.attempts.len(),
            lease_expires_at: intent.current().map(|attempt| attempt.lease_expires_at),
        }
    }
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
    // Somebody settled, began or extended while the probe was out: their word is newer.
    if asked != Asked::of(intent, asked.at) || !is_due(intent, now) {
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
        Answer::Absent => absent(intent, rule, asked.at, now),
        Answer::Running => Ok(undecided(intent, "still running", give_up_after, now)),
        Answer::Unmapped { note } => Ok(undecided(intent, note, give_up_after, now)),
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

/// It was not there when the question went out, at `seen`. The answer may have been long on its way,
/// so that is the time that counts.
fn absent(
    intent: &Intent,
    rule: StatusRule,
    seen: Timestamp,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    let mut next = intent.clone();
    // The downstream once gave an id for it: that it knows nothing now proves nothing. Nor does it
    // where somebody acted without a grant, since no lease says until when that effect may land.
    let note = if intent.downstream_ref.is_some() {
        Some("absent, although it had given a reference")
    } else if intent.is_harmless() {
        Some("absent, but acted on without a grant")
    } else {
        None
    };
    if let Some(note) = note {
        if intent.needs_attention {
            return Ok(Outcome::unchanged(intent, Ok(())));
        }
        next.needs_attention = true;
        let events = vec![event(intent, &next, EventKind::Probed, note, now)];
        return Ok(Outcome { intent: next, events, answer: Ok(()) });
    }
    let visible = intent
        .attempts
        .iter()
        .filter(|attempt| !attempt.fate.is_harmless())
        .map(|attempt| attempt.visible_from().max(attempt.lease_expires_at + rule.visibility))
        .max();
    let too_early = visible.is_some_and(|from| seen < from);
    let too_close =
        intent.probing.last_absence_at.is_some_and(|last| seen.since(last) < rule.visibility / 2);
    if too_early || too_close {
        return Ok(Outcome::unchanged(intent, Ok(())));
    }
    next.probing.absences += 1;
    next.probing.last_absence_at = Some(seen);
    if next.probing.absences < rule.confirmations {
        return Ok(Outcome { intent: next, events: Vec::new(), answer: Ok(()) });
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
fn undecided(intent: &Intent, note: &str, give_up_after: Duration, now: Timestamp) -> Outcome {
    let mut next = intent.clone();
    let since = *next.probing.asked_since.get_or_insert(now);
    next.probing.absences = 0;
    next.probing.last_absence_at = None;
    let mut events = Vec::new();
    if now.since(since) >= give_up_after && !intent.needs_attention {
        next.needs_attention = true;
        events.push(event(intent, &next, EventKind::Probed, note, now));
    }
    Outcome { intent: next, events, answer: Ok(()) }
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
