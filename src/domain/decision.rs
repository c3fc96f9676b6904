//! What a Begin is answered: the table of the contract, as one pure function.

mod row;

use std::{collections::BTreeMap, time::Duration};

use uuid::Uuid;

use self::row::{grant, new_intent, propose, propose_again, push_attempt};
use super::{
    approval::Verdict,
    attempt::{Fate, GrantedOn},
    canonical_json::Pointer,
    event::Event,
    fingerprint::Fingerprinted,
    identity::{Key, KeyBasis},
    intent::{Intent, RecipeVersion, RunSlot, State, TransitionError},
    look_alike::LookAlikeAction,
    time::Timestamp,
    tool::{Class, ToolPolicy},
    verdict::is_due,
};

/// How long a caller should wait before it asks about an unknown outcome again.
const UNKNOWN_RETRY_AFTER: Duration = Duration::from_secs(30);

/// How many attempts a row may have: each is remembered for good, since it is granted once. Past
/// that a caller that loops inside a downstream's window waits for a person.
const ATTEMPTS_MAX: usize = 1000;

/// A call, identified under one recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The recipe's version.
    pub recipe: RecipeVersion,
    /// The key.
    pub key: Key,
    /// What the downstream key is made of; it follows from the key.
    pub downstream: [u8; 32],
    /// What the key was made from.
    pub basis: KeyBasis,
    /// Hash and digests of the arguments.
    pub print: Fingerprinted,
    /// Business ids of the call that the policy asks the downstream by.
    pub kept: BTreeMap<String, String>,
}

/// A Begin, after its shape has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeginCall {
    /// The tenant.
    pub namespace: String,
    /// The tool.
    pub tool: String,
    /// The run; may be empty.
    pub run_id: String,
    /// The step; may be empty.
    pub step_id: String,
    /// The caller's id of this try.
    pub attempt_id: Uuid,
    /// The calling process, as it names itself; may be empty.
    pub caller: String,
    /// The model's id of the tool call; may be empty.
    pub tool_call_id: String,
    /// The lease asked for; the tool's if absent.
    pub lease: Option<Duration>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Free text that the caller declares.
    pub free_text: Vec<Pointer>,
    /// The arguments as they were sent; kept only for a person to approve.
    pub arguments_json: String,
}

/// What else a decision rests on, found out before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The store's time.
    pub now: Timestamp,
    /// Whether the downstream has just been asked for this Begin.
    pub probed: bool,
    /// Whether the run has a slot left, for an intent that holds none.
    pub slot_free: bool,
    /// Other intents that look the same, begun within the tool's window.
    pub similar: Vec<Key>,
    /// Whether the policy's expression asks for a person.
    pub approval_required: bool,
    /// Reports that came for this key before it was ever begun.
    pub orphans: Vec<Event>,
}

impl Facts {
    /// Nothing stands in the way at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self {
            now,
            probed: false,
            slot_free: true,
            similar: Vec::new(),
            approval_required: false,
            orphans: Vec::new(),
        }
    }
}

/// Why the right to execute is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecuteReason {
    /// A new attempt was granted.
    Granted(GrantedOn),
    /// The same attempt asks again: its first answer was lost.
    Resent,
}

/// Why the caller must not execute now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// Another attempt holds the lease.
    InFlight,
    /// This attempt id was granted before and is no longer good.
    Superseded,
    /// Somebody tried and nobody knows.
    OutcomeUnknown,
    /// Only a person can move it on.
    NeedsAttention,
}

/// Why the call is refused for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefuseReason {
    /// No attempts are left, or failures are final.
    FailedFinal,
    /// A person said no.
    Denied,
    /// The policy does not list the tool.
    ToolNotListed,
    /// The tool is halted.
    ToolHalted,
    /// The run's limit is used up.
    RunLimit,
    /// Another intent looks the same.
    LookAlikeLimit,
}

/// What a Begin is answered, and what is written before the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Execute now. `write` is the row to write first; a resent answer writes nothing.
    Execute {
        /// Why.
        reason: ExecuteReason,
        /// The row that grants it.
        write: Option<Written>,
        /// Whether less lease was given than was asked for.
        lease_clamped: bool,
    },
    /// It has happened: here is the first result, or its tombstone.
    Replay {
        /// Whether the result was removed after its retention.
        pruned: bool,
    },
    /// Do not execute now.
    Hold {
        /// Why.
        reason: HoldReason,
        /// When to ask again.
        retry_after: Option<Duration>,
        /// The row that makes orphan facts visible to people.
        write: Option<Written>,
    },
    /// A person must decide first.
    AwaitApproval {
        /// The proposal, if this call makes one.
        write: Option<Written>,
    },
    /// Not now and not later.
    Refuse {
        /// Why.
        reason: RefuseReason,
    },
    /// The same key with other binding arguments.
    ParametersChanged {
        /// Where they differ, as far as is known.
        pointers: Vec<Pointer>,
    },
    /// The only basis left for the key is too weak for a tool that needs approval.
    WeakKey,
    /// The policy asks the downstream by a business id that the call does not bring: nobody could
    /// ever ask what became of it.
    BusinessIdRequired {
        /// Its name.
        name: String,
    },
    /// The tool's limit counts for a run, and the call names none.
    RunRequired,
    /// Execute; the tool needs no record.
    NotRecorded,
}

/// A row to write, with the facts to keep beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The row.
    pub intent: Box<Intent>,
    /// The facts.
    pub events: Vec<Event>,
}

/// Decides a Begin, given the row of its key, the policy and the facts.
///
/// `candidate` is the identification under the row's own recipe, or under the active one where
/// there is no row.
pub fn decide(
    row: Option<&Intent>,
    call: &BeginCall,
    candidate: &Candidate,
    policy: &ToolPolicy,
    facts: &Facts,
) -> Result<Decision, TransitionError> {
    match row {
        None => Ok(decide_absent(call, candidate, policy, facts)),
        Some(row) => decide_present(row, call, candidate, policy, facts),
    }
}

/// Whether the downstream should be asked before a Begin that meets this row is decided: somebody
/// tried, nobody has settled, and the policy says to look before a retry.
pub fn should_look_first(
    row: &Intent,
    call: &BeginCall,
    candidate: &Candidate,
    policy: &ToolPolicy,
    now: Timestamp,
) -> bool {
    policy.downstream.status.is_some_and(|rule| rule.probe_on_begin)
        && row.fingerprint == candidate.print.fingerprint
        && row.attempt(call.attempt_id).is_none()
        && is_due(row, now)
}

/// Decides a Begin of a tool whose calls leave no record and need no key.
pub fn decide_unrecorded(policy: &ToolPolicy, facts: &Facts) -> Decision {
    gates(policy, facts, false).unwrap_or(Decision::NotRecorded)
}

fn decide_absent(
    call: &BeginCall,
    candidate: &Candidate,
    policy: &ToolPolicy,
    facts: &Facts,
) -> Decision {
    if policy.class != Class::Effectful {
        return decide_unrecorded(policy, facts);
    }
    if policy.refuses_tool() {
        return Decision::Refuse { reason: RefuseReason::ToolNotListed };
    }
    if !facts.orphans.is_empty() {
        let mut intent = new_intent(call, candidate, State::Unknown, facts.now);
        intent.needs_attention = true;
        return Decision::Hold {
            reason: HoldReason::NeedsAttention,
            retry_after: None,
            write: Some(Written { intent: Box::new(intent), events: facts.orphans.clone() }),
        };
    }
    if let Some(missing) = missing_id(&candidate.kept, policy) {
        return missing;
    }
    let limited = policy.limit_per_run.is_some();
    if limited && call.run_id.is_empty() {
        return Decision::RunRequired;
    }
    let rule = policy.look_alike.as_ref().filter(|_| !facts.similar.is_empty());
    let action = rule.map(|rule| rule.action);
    if action == Some(LookAlikeAction::Refuse) {
        return Decision::Refuse { reason: RefuseReason::LookAlikeLimit };
    }
    let looks_alike = action == Some(LookAlikeAction::AwaitApproval);
    let gated = facts.approval_required || looks_alike;
    if (gated || policy.approval.is_some()) && candidate.basis == KeyBasis::StepArguments {
        return Decision::WeakKey;
    }
    if gated {
        let mut intent = new_intent(call, candidate, State::AwaitingApproval, facts.now);
        let mut event = propose(&mut intent, call, policy, facts.now);
        if looks_alike {
            // Whoever decides can then look at the other one.
            event.note = looks_like(&facts.similar);
        }
        let write = Some(Written { intent: Box::new(intent), events: vec![event] });
        return Decision::AwaitApproval { write };
    }
    if let Some(refused) = gates(policy, facts, limited) {
        return refused;
    }
    let mut intent = new_intent(call, candidate, State::Started, facts.now);
    if limited {
        intent.slot = RunSlot::Held;
    }
    let lease_clamped = push_attempt(&mut intent, call, policy, GrantedOn::New, facts.now);
    Decision::Execute {
        reason: ExecuteReason::Granted(GrantedOn::New),
        write: Some(Written { intent: Box::new(intent), events: Vec::new() }),
        lease_clamped,
    }
}

fn decide_present(
    row: &Intent,
    call: &BeginCall,
    candidate: &Candidate,
    policy: &ToolPolicy,
    facts: &Facts,
) -> Result<Decision, TransitionError> {
    // In every state, tombstones included: a key never changes its meaning.
    if row.fingerprint != candidate.print.fingerprint {
        let pointers = row.digests.differing(&candidate.print.digests);
        return Ok(Decision::ParametersChanged { pointers });
    }
    let now = facts.now;
    match row.state {
        State::Completed => Ok(Decision::Replay { pruned: row.pruned }),
        State::AwaitingApproval => match &row.approval {
            Some(approval) if approval.ran_out(now) => propose_again(row, call, policy, now),
            _ => Ok(Decision::AwaitApproval { write: None }),
        },
        State::Denied => match &row.approval {
            Some(approval) if approval.verdict == Verdict::Expired => {
                propose_again(row, call, policy, now)
            }
            _ => Ok(Decision::Refuse { reason: RefuseReason::Denied }),
        },
        State::Started | State::Unknown | State::Failed | State::Approved
            if row.attempt(call.attempt_id).is_some() =>
        {
            Ok(known_attempt(row, call, policy, now))
        }
        // Somebody reported a success without having begun it: a person looks first.
        State::Approved if row.needs_attention => Ok(Decision::Hold {
            reason: HoldReason::NeedsAttention,
            retry_after: None,
            write: None,
        }),
        State::Approved => {
            if row.approval.as_ref().is_some_and(|approval| approval.is_valid(now)) {
                grant(row, call, candidate, policy, GrantedOn::Approved, facts)
            } else {
                propose_again(row, call, policy, now)
            }
        }
        State::Started => match row.current() {
            Some(current) if current.lease_runs(now) => Ok(Decision::Hold {
                reason: HoldReason::InFlight,
                retry_after: Some(current.lease_expires_at.since(now)),
                write: None,
            }),
            _ => unsettled(row, call, candidate, policy, facts),
        },
        State::Unknown => unsettled(row, call, candidate, policy, facts),
        State::Failed => failed(row, call, candidate, policy, facts),
    }
}

/// The attempt was granted before: it gets the same answer while that is certainly safe.
fn known_attempt(row: &Intent, call: &BeginCall, policy: &ToolPolicy, now: Timestamp) -> Decision {
    let resent = row.current().is_some_and(|current| {
        row.state == State::Started
            && current.id == call.attempt_id
            && current.caller == call.caller
            && current.fate == Fate::Open
            && !current.extended
            && current.lease_runs(now)
            && now.since(current.granted_at) < policy.resend_window
    });
    if resent {
        Decision::Execute { reason: ExecuteReason::Resent, write: None, lease_clamped: false }
    } else {
        Decision::Hold { reason: HoldReason::Superseded, retry_after: None, write: None }
    }
}

/// Somebody tried and nobody has settled: age alone grants nothing.
fn unsettled(
    row: &Intent,
    call: &BeginCall,
    candidate: &Candidate,
    policy: &ToolPolicy,
    facts: &Facts,
) -> Result<Decision, TransitionError> {
    if row.is_fenced() && row.attempts.len() < ATTEMPTS_MAX {
        return grant(row, call, candidate, policy, GrantedOn::Fenced, facts);
    }
    let lease = call.lease.unwrap_or(policy.lease).min(policy.lease_max);
    if absorbs_repeat(row, policy, facts.now + lease) {
        return grant(row, call, candidate, policy, GrantedOn::DownstreamDedupes, facts);
    }
    if row.needs_attention || only_a_person_can_help(row, policy, facts.now) {
        return Ok(Decision::Hold {
            reason: HoldReason::NeedsAttention,
            retry_after: None,
            write: None,
        });
    }
    Ok(Decision::Hold {
        reason: HoldReason::OutcomeUnknown,
        retry_after: Some(UNKNOWN_RETRY_AFTER),
        write: None,
    })
}

fn failed(
    row: &Intent,
    call: &BeginCall,
    candidate: &Candidate,
    policy: &ToolPolicy,
    facts: &Facts,
) -> Result<Decision, TransitionError> {
    // A person who reopens a final failure gives a fresh budget, whatever the policy's habit.
    let reopened = row.attempts_forgiven > 0 && row.attempts_used() == 0;
    if (!policy.retry_failed && !reopened && row.attempts_used() > 0)
        || row.attempts_used() >= policy.max_attempts
    {
        return Ok(Decision::Refuse { reason: RefuseReason::FailedFinal });
    }
    // Reported before it was ever begun, and found not to have happened: no gate has seen it yet.
    if row.attempts.is_empty() && row.approval.is_none() {
        if policy.limit_per_run.is_some() && row.run_id.is_empty() {
            return Ok(Decision::RunRequired);
        }
        if policy.approval.is_some() && row.key_basis == KeyBasis::StepArguments {
            return Ok(Decision::WeakKey);
        }
        if facts.approval_required {
            return propose_again(row, call, policy, facts.now);
        }
    }
    match &row.approval {
        Some(approval) if !approval.is_valid(facts.now) => {
            propose_again(row, call, policy, facts.now)
        }
        _ => {
            let granted_on = if facts.probed { GrantedOn::NotExecuted } else { GrantedOn::Retry };
            grant(row, call, candidate, policy, granted_on, facts)
        }
    }
}

/// Whether the downstream takes a further attempt that ends at `lease_end` for the one of unknown
/// fate.
///
/// Where every granted attempt is harmless, somebody without a grant has acted: that effect need
/// not carry our key, and no approval covers it.
fn absorbs_repeat(row: &Intent, policy: &ToolPolicy, lease_end: Timestamp) -> bool {
    !row.is_harmless()
        && row.attempts.len() < ATTEMPTS_MAX
        && row.dedup_until(policy).is_some_and(|until| lease_end < until)
}

/// Whether neither the downstream nor a retry can settle what is unsettled.
pub fn only_a_person_can_help(row: &Intent, policy: &ToolPolicy, now: Timestamp) -> bool {
    policy.downstream.status.is_none()
        && !absorbs_repeat(row, policy, now + policy.lease)
        && !(row.is_fenced() && row.attempts.len() < ATTEMPTS_MAX)
}

/// A call that lacks what its downstream is asked by, so that nobody could ever ask.
fn missing_id(kept: &BTreeMap<String, String>, policy: &ToolPolicy) -> Option<Decision> {
    let name = policy.downstream.asks_by.iter().find(|name| !kept.contains_key(*name))?;
    Some(Decision::BusinessIdRequired { name: name.clone() })
}

fn looks_like(similar: &[Key]) -> String {
    let keys: Vec<String> = similar.iter().map(Key::to_string).collect();
    format!("looks like {}", keys.join(" "))
}

/// What stands before every EXECUTE but a resent one. An intent that holds a slot of its run needs no
/// second one.
fn gates(policy: &ToolPolicy, facts: &Facts, needs_slot: bool) -> Option<Decision> {
    let reason = if policy.refuses_tool() {
        // Its rows still replay; a new grant is what the policy forbids.
        RefuseReason::ToolNotListed
    } else if policy.halted {
        RefuseReason::ToolHalted
    } else if needs_slot && !facts.slot_free {
        RefuseReason::RunLimit
    } else {
        return None;
    };
    Some(Decision::Refuse { reason })
}

#[cfg(test)]
mod tests;
