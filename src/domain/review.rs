//! What people decide about an intent: approve, deny, resolve.

use super::{
    approval::Verdict,
    attempt::Fate,
    event::{Event, EventKind, Provenance},
    intent::{Intent, ResultBody, State, Transition, TransitionError},
    report::{Outcome, Refusal, settle},
    schedule::visible_from,
    time::Timestamp,
    tool::StatusRule,
};

/// Who decides, why, and having looked at which version of the intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewer {
    /// The person's name.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// The [`Intent::etag`] that the person saw.
    pub etag: String,
}

/// How a person settles what nobody else can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The effect happened, with this result.
    Executed(ResultBody),
    /// The effect did not happen.
    NotExecuted,
    /// Seen; nothing more is needed.
    Acknowledged,
}

/// A person says yes to what awaits approval; never whoever proposed it.
pub fn approve(
    intent: &Intent,
    reviewer: &Reviewer,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    decide(intent, reviewer, true, now)
}

/// A person says no to what awaits approval.
pub fn deny(
    intent: &Intent,
    reviewer: &Reviewer,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    decide(intent, reviewer, false, now)
}

fn decide(
    intent: &Intent,
    reviewer: &Reviewer,
    yes: bool,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    if yes && intent.approval.as_ref().is_some_and(|approval| approval.is_own(&reviewer.actor)) {
        return Ok(Outcome::unchanged(intent, Err(Refusal::OwnProposal)));
    }
    match intent.approval.as_ref().map(|approval| &approval.verdict) {
        None => return Ok(Outcome::unchanged(intent, Err(Refusal::NotProposed))),
        Some(verdict)
            if matches!(
                (verdict, yes),
                (Verdict::Approved { .. }, true) | (Verdict::Denied { .. }, false)
            ) =>
        {
            // A yes that has run out since decides nothing any more.
            let lapsed = intent.state == State::Approved
                && intent.approval.as_ref().is_some_and(|asked| now >= asked.good_until());
            let answer = if lapsed { Err(Refusal::AlreadyDecided) } else { Ok(()) };
            return Ok(Outcome::unchanged(intent, answer));
        }
        Some(Verdict::Approved { .. } | Verdict::Denied { .. } | Verdict::Expired) => {
            return Ok(Outcome::unchanged(intent, Err(Refusal::AlreadyDecided)));
        }
        Some(Verdict::Pending) => {}
    }
    if intent.state != State::AwaitingApproval {
        return Ok(Outcome::unchanged(intent, Err(Refusal::AlreadyDecided)));
    }
    if reviewer.etag != intent.etag() {
        return Ok(Outcome::unchanged(intent, Err(Refusal::EtagMismatch)));
    }
    if intent.approval.as_ref().is_some_and(|approval| approval.ran_out(now)) {
        let mut outcome = expire(intent, now)?;
        outcome.answer = Err(Refusal::AlreadyDecided);
        return Ok(outcome);
    }
    let mut next = intent.clone();
    next.go(if yes { Transition::Approve } else { Transition::Deny })?;
    if let Some(approval) = &mut next.approval {
        approval.verdict = if yes {
            Verdict::Approved {
                by: reviewer.actor.clone(),
                reason: reviewer.reason.clone(),
                valid_until: now + approval.valid_for,
            }
        } else {
            Verdict::Denied { by: reviewer.actor.clone(), reason: reviewer.reason.clone() }
        };
    }
    if !yes {
        settle(&mut next, Provenance::Operator, &reviewer.actor, &reviewer.reason, now);
    }
    let kind = if yes { EventKind::Approved } else { EventKind::Denied };
    let events = vec![event(intent, &next, kind, reviewer, now)];
    Ok(Outcome { intent: next, events, answer: Ok(()) })
}

/// Nobody decided in time.
pub fn expire(intent: &Intent, now: Timestamp) -> Result<Outcome, TransitionError> {
    let open = matches!(intent.state, State::AwaitingApproval | State::Approved);
    let due = open && intent.approval.as_ref().is_some_and(|asked| now >= asked.good_until());
    if !due {
        return Ok(Outcome::unchanged(intent, Ok(())));
    }
    let why = if intent.state == State::Approved {
        "approved, and not begun in time"
    } else {
        "nobody decided in time"
    };
    let mut next = intent.clone();
    next.go(Transition::Deny)?;
    if let Some(approval) = &mut next.approval {
        approval.verdict = Verdict::Expired;
    }
    settle(&mut next, Provenance::Policy, "", why, now);
    let nobody = Reviewer { actor: String::new(), reason: String::new(), etag: String::new() };
    let expired = Event {
        provenance: Provenance::Policy,
        ..event(intent, &next, EventKind::ApprovalExpired, &nobody, now)
    };
    Ok(Outcome { intent: next, events: vec![expired], answer: Ok(()) })
}

/// A person settles what nobody else can. `rule` is what the policy says today of the downstream's answers:
/// until when an effect may still come to light binds people too.
pub fn resolve(
    intent: &Intent,
    reviewer: &Reviewer,
    resolution: &Resolution,
    rule: Option<StatusRule>,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    match resolution {
        Resolution::Acknowledged => Ok(acknowledge(intent, reviewer, now)),
        Resolution::Executed(result) => resolve_executed(intent, reviewer, result, now),
        Resolution::NotExecuted => resolve_not_executed(intent, reviewer, rule, now),
    }
}

fn acknowledge(intent: &Intent, reviewer: &Reviewer, now: Timestamp) -> Outcome {
    if !intent.needs_attention {
        return Outcome::unchanged(intent, Ok(()));
    }
    if reviewer.etag != intent.etag() {
        return Outcome::unchanged(intent, Err(Refusal::EtagMismatch));
    }
    let mut next = intent.clone();
    next.needs_attention = false;
    let events = vec![event(intent, &next, EventKind::Acknowledged, reviewer, now)];
    Outcome { intent: next, events, answer: Ok(()) }
}

fn resolve_executed(
    intent: &Intent,
    reviewer: &Reviewer,
    result: &ResultBody,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    match intent.state {
        State::Completed => {
            // The same decision again, or a late one: the first result stays.
            let agrees = result.bytes.is_none() || intent.has_result(result);
            let answer = if agrees { Ok(()) } else { Err(Refusal::AlreadySettled) };
            return Ok(Outcome::unchanged(intent, answer));
        }
        State::AwaitingApproval | State::Approved | State::Denied => {
            return Ok(Outcome::unchanged(intent, Err(Refusal::NotStarted)));
        }
        State::Started | State::Unknown | State::Failed => {}
    }
    if reviewer.etag != intent.etag() {
        return Ok(Outcome::unchanged(intent, Err(Refusal::EtagMismatch)));
    }
    let mut next = intent.clone();
    // Somebody had said that nothing happened, and a person now knows better.
    next.conflict |= intent.state == State::Failed;
    next.go(Transition::Executed)?;
    next.result = Some(result.clone());
    next.needs_attention = false;
    settle(&mut next, Provenance::Operator, &reviewer.actor, &reviewer.reason, now);
    let resolved = Event {
        result_sha256: Some(result.sha256),
        ..event(intent, &next, EventKind::Resolved, reviewer, now)
    };
    Ok(Outcome { intent: next, events: vec![resolved], answer: Ok(()) })
}

fn resolve_not_executed(
    intent: &Intent,
    reviewer: &Reviewer,
    rule: Option<StatusRule>,
    now: Timestamp,
) -> Result<Outcome, TransitionError> {
    match intent.state {
        State::Completed => {
            return Ok(Outcome::unchanged(intent, Err(Refusal::AlreadySettled)));
        }
        // What a denial was resolved to: the same decision again.
        State::AwaitingApproval => return Ok(Outcome::unchanged(intent, Ok(()))),
        State::Approved => {
            return Ok(Outcome::unchanged(intent, Err(Refusal::NotStarted)));
        }
        State::Failed if intent.attempts_used() == 0 => {
            // Already reopened: the same decision again.
            return Ok(Outcome::unchanged(intent, Ok(())));
        }
        State::Started | State::Unknown | State::Failed | State::Denied => {}
    }
    if reviewer.etag != intent.etag() {
        return Ok(Outcome::unchanged(intent, Err(Refusal::EtagMismatch)));
    }
    let mut next = intent.clone();
    if intent.state == State::Denied && intent.pruned {
        // What a person was shown is gone, so that the next Begin has to propose it anew.
        if let Some(approval) = &mut next.approval {
            approval.verdict = Verdict::Expired;
        }
    } else if intent.state == State::Denied {
        next.go(Transition::Propose)?;
        if let Some(approval) = &mut next.approval {
            approval.expires_at = now + approval.expires_at.since(approval.proposed_at);
            approval.proposed_at = now;
            approval.verdict = Verdict::Pending;
        }
        next.unsettle();
    } else {
        let least = rule.map(|rule| rule.visibility).unwrap_or_default();
        if let Some(until) = visible_from(intent, least).filter(|until| now < *until) {
            return Ok(Outcome::unchanged(intent, Err(Refusal::LeaseRunning { until })));
        }
        next.go(Transition::NotExecuted)?;
        for attempt in next.attempts.iter_mut().filter(|attempt| !attempt.fate.is_harmless()) {
            attempt.fate = Fate::NotExecuted;
        }
        // What a person has looked into gets a fresh budget.
        next.attempts_forgiven = next.current().map_or(0, |attempt| attempt.number);
        settle(&mut next, Provenance::Operator, &reviewer.actor, &reviewer.reason, now);
    }
    next.needs_attention = false;
    let events = vec![event(intent, &next, EventKind::Resolved, reviewer, now)];
    Ok(Outcome { intent: next, events, answer: Ok(()) })
}

fn event(
    before: &Intent,
    after: &Intent,
    kind: EventKind,
    reviewer: &Reviewer,
    now: Timestamp,
) -> Event {
    Event {
        at: now,
        kind,
        provenance: Provenance::Operator,
        actor: reviewer.actor.clone(),
        attempt_id: None,
        state_before: before.state,
        state_after: after.state,
        code: String::new(),
        note: reviewer.reason.clone(),
        downstream_ref: None,
        result_sha256: None,
    }
}

#[cfg(test)]
mod tests;
