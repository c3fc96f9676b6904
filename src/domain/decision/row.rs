//! The rows that a decision leaves: a new one, a further attempt, a proposal.

use super::{BeginCall, Candidate, Decision, ExecuteReason, Facts, Written, gates, missing_id};
use crate::domain::{
    approval::Approval,
    attempt::{Attempt, Fate, GrantedOn, Promise},
    event::{Event, EventKind, Provenance},
    intent::{Intent, Probing, RunSlot, State, Transition, TransitionError},
    time::Timestamp,
    tool::{ApprovalRule, ToolPolicy},
};

pub(super) fn grant(
    row: &Intent,
    call: &BeginCall,
    candidate: &Candidate,
    policy: &ToolPolicy,
    granted_on: GrantedOn,
    facts: &Facts,
) -> Result<Decision, TransitionError> {
    // A row that was begun without a run, before there was a limit, counts for none.
    let limited = policy.limit_per_run.is_some() && !row.run_id.is_empty();
    if let Some(refused) = gates(policy, facts, limited && row.slot != RunSlot::Held) {
        return Ok(refused);
    }
    let mut next = row.clone();
    let mut events = Vec::new();
    if row.state.is_unsettled() {
        events.push(Event {
            kind: EventKind::Superseded,
            attempt_id: row.current().map(|attempt| attempt.id),
            actor: call.caller.clone(),
            state_after: State::Started,
            ..plain_event(row.state, facts.now)
        });
    }
    if granted_on == GrantedOn::Fenced {
        for attempt in next.attempts.iter_mut().filter(|attempt| !attempt.fate.is_harmless()) {
            attempt.fate = Fate::Fenced;
        }
    }
    next.go(Transition::Grant)?;
    if limited {
        next.slot = RunSlot::Held;
    }
    // What an attempt of unknown fate is asked by stays.
    for (name, value) in &candidate.kept {
        next.kept.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if let Some(missing) = missing_id(&next.kept, policy) {
        return Ok(missing);
    }
    let lease_clamped = push_attempt(&mut next, call, policy, granted_on, facts.now);
    next.unsettle();
    next.needs_attention = next.conflict;
    next.probing = Probing::default();
    Ok(Decision::Execute {
        reason: ExecuteReason::Granted(granted_on),
        write: Some(Written { intent: Box::new(next), events }),
        lease_clamped,
    })
}

/// Appends a granted attempt; tells whether it got less lease than it asked for.
pub(super) fn push_attempt(
    intent: &mut Intent,
    call: &BeginCall,
    policy: &ToolPolicy,
    granted_on: GrantedOn,
    now: Timestamp,
) -> bool {
    let previous = intent.current();
    let number = previous.map_or(1, |attempt| attempt.number + 1);
    let promise = Promise::of(policy, granted_on, number, previous);
    let wanted = call.lease.unwrap_or(policy.lease);
    // Most intents have one: a vector that grows by itself would make room for four.
    intent.attempts.reserve_exact(1);
    intent.attempts.push(Attempt {
        id: call.attempt_id,
        number,
        caller: call.caller.clone(),
        granted_on,
        granted_at: now,
        lease_expires_at: now + wanted.min(policy.lease_max),
        extended: false,
        fate: Fate::Open,
        reports: Vec::new(),
        failure: None,
        promise,
    });
    let until = intent.dedup_until(policy);
    let Some(attempt) = intent.current_mut() else { return false };
    // A window that is over limits nothing: the attempt does not rest on it.
    if let Some(until) = until.filter(|until| now < *until) {
        attempt.lease_expires_at = attempt.lease_expires_at.min(until);
    }
    attempt.lease_expires_at < now + wanted
}

pub(super) fn propose_again(
    row: &Intent,
    call: &BeginCall,
    policy: &ToolPolicy,
    now: Timestamp,
) -> Result<Decision, TransitionError> {
    let mut next = row.clone();
    next.go(Transition::Propose)?;
    next.unsettle();
    let events = vec![propose(&mut next, call, policy, now)];
    Ok(Decision::AwaitApproval { write: Some(Written { intent: Box::new(next), events }) })
}

/// Writes the proposal into the row.
pub(super) fn propose(
    intent: &mut Intent,
    call: &BeginCall,
    policy: &ToolPolicy,
    now: Timestamp,
) -> Event {
    // Where the policy has dropped the gate since, the row keeps its own terms.
    let own = intent.approval.as_ref().map(|old| ApprovalRule {
        expires: old.expires_at.since(old.proposed_at),
        valid_for: old.valid_for,
    });
    let rule = policy.approval.or(own).unwrap_or_default();
    let before = intent.state;
    intent.approval = Some(Approval::propose(rule, &call.caller, &call.arguments_json, now));
    Event {
        kind: EventKind::Proposed,
        actor: call.caller.clone(),
        attempt_id: Some(call.attempt_id),
        ..plain_event(before, now)
    }
}

pub(super) fn new_intent(
    call: &BeginCall,
    candidate: &Candidate,
    state: State,
    now: Timestamp,
) -> Intent {
    Intent {
        namespace: call.namespace.clone(),
        key: candidate.key,
        downstream: candidate.downstream,
        key_basis: candidate.basis,
        recipe: candidate.recipe,
        free_text: call.free_text.clone(),
        fingerprint: candidate.print.fingerprint,
        digests: candidate.print.digests.clone(),
        tool: call.tool.clone(),
        run_id: call.run_id.clone(),
        step_id: call.step_id.clone(),
        tool_call_id: call.tool_call_id.clone(),
        kept: candidate.kept.clone(),
        labels: call.labels.clone(),
        created_at: now,
        state,
        attempts: Vec::new(),
        attempts_forgiven: 0,
        approval: None,
        slot: RunSlot::None,
        result: None,
        pruned: false,
        settlement: None,
        settled_at: None,
        downstream_ref: None,
        needs_attention: false,
        conflict: false,
        probing: Probing::default(),
        replay_count: 0,
        last_seen_at: None,
    }
}

pub(super) fn plain_event(state: State, now: Timestamp) -> Event {
    Event {
        at: now,
        kind: EventKind::Superseded,
        provenance: Provenance::Caller,
        actor: String::new(),
        attempt_id: None,
        state_before: state,
        state_after: state,
        code: String::new(),
        note: String::new(),
        downstream_ref: None,
        result_sha256: None,
    }
}
