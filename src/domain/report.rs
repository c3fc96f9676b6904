//! What callers report of their attempts, and what follows for the intent.
//!
//! Reports settle *attempts*; the intent follows from them. A report that cannot be taken as it is
//! meant is answered with a [`Refusal`] and kept as an event all the same.

use std::time::Duration;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

use super::{
    attempt::{Attempt, Failure, Fate, GrantedOn, ReportDigest},
    decision::only_a_person_can_help,
    event::{Event, EventKind, Provenance},
    intent::{Intent, ResultBody, Settlement, State, Transition, TransitionError},
    time::Timestamp,
    tool::ToolPolicy,
};

/// The code of a Fail by a caller that never received its EXECUTE.
pub const NEVER_GRANTED: &str = "NEVER_GRANTED";

/// Why a report, a heartbeat or a person's decision was not taken as it was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A newer attempt holds the right.
    #[error("the attempt has been superseded by a newer one")]
    AttemptSuperseded,
    /// It was settled before, otherwise; the first settlement stays.
    #[error("the intent has already been settled otherwise")]
    AlreadySettled,
    /// A success while the outcome is unknown needs a result or a downstream_ref.
    #[error("the outcome is unknown; a success needs a result or a downstream_ref as evidence")]
    EvidenceRequired,
    /// Nobody had approved it.
    #[error("the intent had not been approved, so nothing may have been executed")]
    NotStarted,
    /// There is no proposal to decide on.
    #[error("the intent awaits no approval: look at it, and resolve it if its outcome is unknown")]
    NotProposed,
    /// This attempt never held the right to execute.
    #[error("the attempt was never granted for this intent")]
    NotGranted,
    /// The tool is settled by its SQL function only.
    #[error("the tool is settled inside its own transaction, by intent_ledger.complete()")]
    UseTransaction,
    /// The lease cannot be extended by this attempt.
    #[error("the attempt no longer holds the lease: {0}")]
    LeaseLost(LostLease),
    /// A person says that nothing happened while it still may.
    #[error(
        "the attempt may still be executing; wait until its lease and the visibility window are over"
    )]
    LeaseRunning {
        /// From when the decision will be taken.
        until: Timestamp,
    },
    /// The person looked at an older version of the intent.
    #[error("the intent has changed since the etag was read; look again")]
    EtagMismatch,
    /// A person has decided the opposite.
    #[error("the proposal has already been decided otherwise, or has run out")]
    AlreadyDecided,
    /// The approver is the one who proposed.
    #[error("whoever proposed it must not approve it")]
    OwnProposal,
}

/// Why a lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LostLease {
    /// Its time is over.
    #[error("it ran out")]
    Expired,
    /// A newer attempt was granted.
    #[error("a newer attempt was granted")]
    Superseded,
    /// The attempt has been settled.
    #[error("the attempt has been settled, or its outcome is unknown")]
    Settled,
}

/// What follows from something that happened to an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The intent afterwards; equal to the one before if nothing changed.
    pub intent: Intent,
    /// Facts to keep.
    pub events: Vec<Event>,
    /// What the reporter is told.
    pub answer: Result<(), Refusal>,
}

impl Outcome {
    /// Nothing follows but the answer.
    pub fn unchanged(intent: &Intent, answer: Result<(), Refusal>) -> Self {
        Self { intent: intent.clone(), events: Vec::new(), answer }
    }
}

/// "The effect happened."
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complete {
    /// Which attempt had the effect.
    pub attempt_id: Uuid,
    /// The result, already cut to the policy's size.
    pub result: ResultBody,
    /// The downstream's id of the effect.
    pub downstream_ref: Option<String>,
}

/// "The effect did not happen", or "I do not know".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fail {
    /// Which attempt.
    pub attempt_id: Uuid,
    /// Whether it certainly did not happen, and why.
    pub failure: Failure,
    /// The downstream's id, where it had given one.
    pub downstream_ref: Option<String>,
}

/// "I am still at it."
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extend {
    /// Which attempt.
    pub attempt_id: Uuid,
    /// How long from now; the tool's lease if absent.
    pub lease: Option<Duration>,
    /// What the downstream answered so far.
    pub downstream_ref: Option<String>,
}

impl Complete {
    fn has_evidence(&self) -> bool {
        self.result.bytes.is_some() || self.result.size > 0 || self.downstream_ref.is_some()
    }

    fn digest(&self) -> ReportDigest {
        digest(&[
            b"complete",
            &[u8::from(self.result.bytes.is_some())],
            &self.result.sha256,
            &self.result.size.to_be_bytes(),
        ])
    }
}

impl Fail {
    fn digest(&self) -> ReportDigest {
        let kind: &[u8] = if self.failure.not_executed { b"not_executed" } else { b"unknown" };
        digest(&[b"fail", kind, self.failure.code.as_bytes()])
    }

    fn fate(&self) -> Fate {
        if !self.failure.not_executed {
            Fate::Unknown
        } else if self.failure.code == NEVER_GRANTED {
            Fate::NeverBegan
        } else {
            Fate::NotExecuted
        }
    }
}

fn digest(parts: &[&[u8]]) -> ReportDigest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut short = ReportDigest::default();
    short.copy_from_slice(&hash.finalize()[..8]);
    short
}

/// A success, reported by an attempt.
pub fn complete(
    intent: &Intent,
    report: &Complete,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    let event = |kind| Event {
        downstream_ref: report.downstream_ref.clone(),
        result_sha256: Some(report.result.sha256),
        ..event_of(intent, report.attempt_id, kind, now)
    };
    let Some(attempt) = intent.attempt(report.attempt_id) else {
        return ungranted(intent, event(EventKind::NotGranted), true, true);
    };
    if attempt.promise.same_transaction {
        let mut outcome = Outcome::unchanged(intent, Err(Refusal::UseTransaction));
        outcome.events.push(event(EventKind::Unproven));
        return Ok(outcome);
    }
    if attempt.reports.contains(&report.digest()) {
        return Ok(repeated_complete(intent, report, event(EventKind::LateComplete)));
    }
    if intent.state == State::Completed {
        return Ok(complete_after_completion(intent, attempt, report, &event));
    }
    if intent.state == State::Unknown && !report.has_evidence() {
        let mut outcome = Outcome::unchanged(intent, Err(Refusal::EvidenceRequired));
        outcome.events.push(event(EventKind::Unproven));
        return Ok(outcome);
    }

    // Somebody acted, or was about to act, in the belief that this effect was not in the world.
    let believed_absent = !matches!(intent.state, State::Started | State::Unknown)
        || attempt.fate.is_harmless()
        || newer_attempts(intent, attempt).any(Attempt::believed_nothing_happened);

    let mut next = intent.clone();
    next.go(Transition::Executed)?;
    mark_executed(&mut next, report);
    next.result = Some(report.result.clone());
    next.downstream_ref = report.downstream_ref.clone().or(next.downstream_ref);
    settle(&mut next, Provenance::Caller, &attempt.caller, "", now);
    if believed_absent {
        next.conflict = true;
    }
    next.needs_attention = next.conflict;

    let kind = if believed_absent {
        Some(EventKind::Contradiction)
    } else if intent.state == State::Unknown {
        Some(EventKind::LeftUnknown)
    } else if !intent.is_current(attempt.id) {
        Some(EventKind::LateComplete)
    } else {
        None
    };
    let of = |kind| Event { state_after: next.state, ..event(kind) };
    let mut events: Vec<Event> = kind.map(of).into_iter().collect();
    events.extend(replaced_reference(intent, &next, of(EventKind::Contradiction)));
    Ok(Outcome { intent: next, events, answer: Ok(()) })
}

/// The reference that `next` no longer carries, as a fact: it would be lost with the row.
pub(super) fn replaced_reference(intent: &Intent, next: &Intent, event: Event) -> Option<Event> {
    let replaced =
        intent.downstream_ref.clone().filter(|_| intent.downstream_ref != next.downstream_ref)?;
    Some(Event { kind: EventKind::Contradiction, downstream_ref: Some(replaced), ..event })
}

/// The same success again is the same answer; another reference with it is a fact to keep.
fn repeated_complete(intent: &Intent, report: &Complete, event: Event) -> Outcome {
    let mut outcome = Outcome::unchanged(intent, Ok(()));
    if differs(&report.downstream_ref, &intent.downstream_ref) {
        outcome.events.push(event);
    }
    outcome
}

fn complete_after_completion(
    intent: &Intent,
    attempt: &Attempt,
    report: &Complete,
    event: &dyn Fn(EventKind) -> Event,
) -> Outcome {
    let by_others =
        intent.settlement.as_ref().is_some_and(|settled| settled.provenance != Provenance::Caller);
    let same = intent.has_result(&report.result);
    // An attempt that has reported its success already may not change it, whoever settled.
    let changed_its_mind = attempt.fate == Fate::Executed;
    let accepted = !changed_its_mind && (by_others || same);

    let mut next = intent.clone();
    if !changed_its_mind {
        mark_executed(&mut next, report);
        if !accepted && let Some(attempt) = next.attempt_mut(report.attempt_id) {
            attempt.reports.retain(|known| *known != report.digest());
        }
    }
    // A newer attempt was granted in the belief that this one had done nothing.
    let twice = executed_twice(&next)
        || newer_attempts(intent, attempt).any(Attempt::believed_nothing_happened);
    if twice && !intent.conflict {
        next.conflict = true;
        next.needs_attention = true;
    }
    let kind = if twice { EventKind::Contradiction } else { EventKind::LateComplete };
    Outcome {
        intent: next,
        events: vec![event(kind)],
        answer: if accepted { Ok(()) } else { Err(Refusal::AlreadySettled) },
    }
}

/// A failure, or an outcome that the caller does not know.
pub fn fail(
    intent: &Intent,
    report: &Fail,
    policy: &ToolPolicy,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    let event = |kind| Event {
        code: report.failure.code.clone(),
        note: report.failure.message.clone(),
        downstream_ref: report.downstream_ref.clone(),
        ..event_of(intent, report.attempt_id, kind, now)
    };
    let Some(attempt) = intent.attempt(report.attempt_id) else {
        let may_have_acted = report.fate() != Fate::NeverBegan;
        let doubts = !report.failure.not_executed;
        return ungranted(intent, event(EventKind::NotGranted), may_have_acted, doubts);
    };
    if attempt.reports.contains(&report.digest()) {
        return Ok(repeated_fail(intent, attempt, report, event(EventKind::LateFail)));
    }
    let superseded = !intent.is_current(attempt.id);
    let mut next = intent.clone();
    next.downstream_ref = next.downstream_ref.or_else(|| report.downstream_ref.clone());

    if attempt.fate == Fate::Executed || intent.state == State::Completed {
        if attempt.fate != Fate::Executed {
            mark_failed(&mut next, report, false);
        }
        let events = vec![event(EventKind::LateFail)];
        return Ok(Outcome { intent: next, events, answer: Err(Refusal::AlreadySettled) });
    }
    if attempt.fate.is_harmless() {
        // Known not to have happened. The same belief in other words changes nothing; a weaker one
        // contradicts what later grants may rest on, so it is kept and the first report stays.
        if report.fate() == Fate::NeverBegan && attempt.reports.is_empty() && !attempt.extended {
            // Others found that out; only its caller knows that it costs no attempt.
            mark_failed(&mut next, report, !superseded);
        }
        if !report.failure.not_executed {
            next.conflict = true;
            next.needs_attention = true;
        }
        return Ok(match (superseded, report.failure.not_executed) {
            (true, _) => Outcome {
                intent: next,
                events: vec![event(EventKind::LateFail)],
                answer: Err(Refusal::AttemptSuperseded),
            },
            (false, true) => {
                Outcome { intent: next, events: vec![event(EventKind::LateFail)], answer: Ok(()) }
            }
            (false, false) => Outcome {
                intent: next,
                events: vec![event(EventKind::LateFail)],
                answer: Err(Refusal::AlreadySettled),
            },
        });
    }

    mark_failed(&mut next, report, !superseded);
    let mut events = Vec::new();
    if next.is_harmless() {
        next.go(Transition::NotExecuted)?;
        settle(&mut next, Provenance::Caller, &attempt.caller, "", now);
        next.needs_attention = next.conflict;
        if intent.state == State::Unknown {
            events.push(Event { state_after: next.state, ..event(EventKind::LeftUnknown) });
        }
    } else if !superseded {
        next.go(Transition::LoseTrack)?;
        next.needs_attention |= only_a_person_can_help(&next, policy, now);
    }
    if events.is_empty() && (superseded || differs(&report.downstream_ref, &next.downstream_ref)) {
        events.push(Event { state_after: next.state, ..event(EventKind::LateFail) });
    }
    let answer = if superseded { Err(Refusal::AttemptSuperseded) } else { Ok(()) };
    Ok(Outcome { intent: next, events, answer })
}

/// The same failure again is the same answer; other words or another reference are facts to keep.
fn repeated_fail(intent: &Intent, attempt: &Attempt, report: &Fail, event: Event) -> Outcome {
    let mut outcome = Outcome::unchanged(intent, Ok(()));
    if attempt.failure.as_ref() != Some(&report.failure)
        || differs(&report.downstream_ref, &intent.downstream_ref)
    {
        outcome.intent.downstream_ref =
            intent.downstream_ref.clone().or_else(|| report.downstream_ref.clone());
        outcome.events.push(event);
    }
    outcome
}

/// Whether the report brings a reference that the row does not carry.
fn differs(reported: &Option<String>, stored: &Option<String>) -> bool {
    reported.is_some() && reported != stored
}

/// A heartbeat; `clamped` in the answer tells that less was given than was asked for.
pub fn extend(
    intent: &Intent,
    report: &Extend,
    policy: &ToolPolicy,
    now: Timestamp,
) -> (Outcome, bool) {
    let event = |kind| Event {
        downstream_ref: report.downstream_ref.clone(),
        ..event_of(intent, report.attempt_id, kind, now)
    };
    let mut next = intent.clone();
    let Some(attempt) = intent.attempt(report.attempt_id) else {
        let mut outcome = Outcome::unchanged(intent, Err(Refusal::NotGranted));
        outcome.events.push(event(EventKind::NotGranted));
        return (outcome, false);
    };
    let lost = if !intent.is_current(attempt.id) {
        Some(LostLease::Superseded)
    } else if intent.state != State::Started || attempt.fate != Fate::Open {
        Some(LostLease::Settled)
    } else if !attempt.lease_runs(now) {
        Some(LostLease::Expired)
    } else {
        None
    };
    if let Some(lost) = lost {
        next.downstream_ref = next.downstream_ref.or_else(|| report.downstream_ref.clone());
        let events = vec![event(EventKind::LeaseLost)];
        let answer = Err(Refusal::LeaseLost(lost));
        return (Outcome { intent: next, events, answer }, false);
    }

    let mut events = Vec::new();
    if let Some(reference) = &report.downstream_ref {
        next.downstream_ref = Some(reference.clone());
        events.extend(replaced_reference(intent, &next, event(EventKind::Contradiction)));
    }
    let wanted = now + report.lease.unwrap_or(policy.lease);
    let longest = attempt.granted_at + policy.lease_max;
    // A window that was over at the grant limits nothing: the attempt does not rest on it.
    let window = intent.window_end(policy).filter(|until| {
        attempt.granted_at < *until || attempt.granted_on == GrantedOn::DownstreamDedupes
    });
    let limit = window.map_or(longest, |until| longest.min(until));
    let end = wanted.min(limit).max(attempt.lease_expires_at);
    if let Some(attempt) = next.current_mut() {
        attempt.lease_expires_at = end;
        attempt.extended = true;
    }
    next.probing = super::intent::Probing::default();
    (Outcome { intent: next, events, answer: Ok(()) }, wanted > end)
}

/// A report by an attempt that was never granted.
///
/// `doubts` says that it speaks of an effect which the row believes not to be in the world.
fn ungranted(
    intent: &Intent,
    event: Event,
    may_have_acted: bool,
    doubts: bool,
) -> Result<Outcome, TransitionError> {
    let mut next = intent.clone();
    match intent.state {
        State::AwaitingApproval | State::Denied if may_have_acted => {
            next.go(Transition::LoseTrack)?;
            next.unsettle();
            next.needs_attention = true;
            let events =
                vec![Event { kind: EventKind::NotStarted, state_after: next.state, ..event }];
            Ok(Outcome { intent: next, events, answer: Err(Refusal::NotStarted) })
        }
        State::Approved | State::Failed if doubts => {
            next.conflict = true;
            next.needs_attention = true;
            Ok(Outcome { intent: next, events: vec![event], answer: Err(Refusal::NotGranted) })
        }
        State::AwaitingApproval
        | State::Denied
        | State::Approved
        | State::Started
        | State::Unknown
        | State::Completed
        | State::Failed => {
            Ok(Outcome { intent: next, events: vec![event], answer: Err(Refusal::NotGranted) })
        }
    }
}

fn newer_attempts<'a>(
    intent: &'a Intent,
    than: &'a Attempt,
) -> impl Iterator<Item = &'a Attempt> + 'a {
    intent.attempts.iter().filter(|attempt| attempt.number > than.number)
}

/// Whether two attempts had their effect and no de-duplication downstream made them one.
fn executed_twice(intent: &Intent) -> bool {
    let executed: Vec<u32> = intent
        .attempts
        .iter()
        .filter(|attempt| attempt.fate == Fate::Executed)
        .map(|attempt| attempt.number)
        .collect();
    let (Some(first), Some(last)) = (executed.first(), executed.last()) else { return false };
    intent.attempts.iter().any(|attempt| {
        attempt.number > *first && attempt.number <= *last && attempt.believed_nothing_happened()
    })
}

fn mark_executed(next: &mut Intent, report: &Complete) {
    if let Some(attempt) = next.attempt_mut(report.attempt_id) {
        attempt.fate = Fate::Executed;
        attempt.reports.push(report.digest());
    }
}

fn mark_failed(next: &mut Intent, report: &Fail, accepted: bool) {
    if let Some(attempt) = next.attempt_mut(report.attempt_id) {
        attempt.fate = report.fate();
        attempt.failure = Some(report.failure.clone());
        if accepted {
            attempt.reports.push(report.digest());
        }
    }
}

pub(super) fn settle(
    next: &mut Intent,
    provenance: Provenance,
    by: &str,
    note: &str,
    now: Timestamp,
) {
    next.settlement = Some(Settlement { provenance, by: by.to_owned(), note: note.to_owned() });
    // Nobody has to be asked any more, and what they say of people is not ours to keep.
    next.kept.clear();
    next.settled_at = Some(now);
    // What is known of a tombstone now is kept from now on.
    next.pruned = false;
}

/// An event about `attempt_id` that changes no state and was reported by the caller.
fn event_of(intent: &Intent, attempt_id: Uuid, kind: EventKind, now: Timestamp) -> Event {
    Event {
        at: now,
        kind,
        provenance: Provenance::Caller,
        actor: intent.attempt(attempt_id).map_or_else(String::new, |known| known.caller.clone()),
        attempt_id: Some(attempt_id),
        state_before: intent.state,
        state_after: intent.state,
        code: String::new(),
        note: String::new(),
        downstream_ref: None,
        result_sha256: None,
    }
}

#[cfg(test)]
mod tests;
