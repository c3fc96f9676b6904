//! When a result is pruned, and when a key is forgotten.

use std::{collections::BTreeMap, time::Duration};

use super::{
    approval::{Approval, Verdict},
    attempt::{Attempt, Failure},
    intent::{Intent, ResultBody, Settlement, State},
    time::Timestamp,
    tool::ToolPolicy,
};

/// What retention asks of a row; no result has to be read for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Where the intent stands.
    pub state: State,
    /// When it was settled.
    pub settled_at: Option<Timestamp>,
    /// When its result was pruned, if it is a tombstone.
    pub pruned_at: Option<Timestamp>,
    /// Whether a person is yet to look at it.
    pub needs_attention: bool,
}

/// What becomes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// It stays as it is, and nothing else can be due before this time.
    Keep(Timestamp),
    /// Its retention is over: a tombstone is left of it.
    Prune,
    /// Its tombstone's time is over too: nothing is left of it.
    Purge,
}

/// How long a tombstone stays at least, whatever the policy says.
///
/// A server may decide on a row that it has seen lately, by its version; a key that is begun anew starts
/// with the versions of before. Nobody keeps a reading for so long.
pub const TOMBSTONE_LEAST: Duration = Duration::from_secs(60 * 60);

/// How soon a row that a person has yet to look at is looked at again: that may end any day.
const ATTENTION_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// What becomes of a row at `now`, by the policy that holds for its tool now.
pub fn retention(term: &Term, policy: &ToolPolicy, now: Timestamp) -> Retention {
    let settled_at = match term.state {
        State::AwaitingApproval | State::Approved | State::Started | State::Unknown => None,
        State::Completed | State::Failed | State::Denied => term.settled_at,
    };
    let Some(settled_at) = settled_at else {
        // However old. Settled right now, it would stay for its whole retention.
        return Retention::Keep(now + policy.retention);
    };
    if let Some(pruned_at) = term.pruned_at {
        let until = pruned_at + policy.tombstone.max(TOMBSTONE_LEAST);
        return if now >= until && term.needs_attention {
            // A late report that contradicts the tombstone: the facts that a person has not seen yet.
            Retention::Keep(now + ATTENTION_WAIT)
        } else if now >= until {
            Retention::Purge
        } else if term.state == State::Completed {
            Retention::Keep(until)
        } else {
            // It may be begun again, and is no tombstone then.
            Retention::Keep(until.min(now + policy.retention))
        };
    }
    let until = settled_at + policy.retention;
    if now < until {
        Retention::Keep(until)
    } else if term.needs_attention {
        // The facts that a person has not seen yet would go with the result.
        Retention::Keep(now + policy.retention.min(ATTENTION_WAIT))
    } else {
        Retention::Prune
    }
}

/// What is left of an intent: what a Begin and a late report are answered from. Its result, its words and
/// what a person was shown are gone.
pub fn tombstone(intent: &Intent) -> Intent {
    let attempts = intent.attempts.iter().map(|attempt| Attempt {
        failure: attempt
            .failure
            .as_ref()
            .map(|failure| Failure { message: String::new(), ..failure.clone() }),
        ..attempt.clone()
    });
    let verdict = |verdict: &Verdict| match verdict {
        // What was approved is forgotten, so that a retry must be approved anew.
        Verdict::Approved { .. } if intent.state == State::Failed => Verdict::Expired,
        Verdict::Approved { by, valid_until, .. } => {
            let (by, valid_until) = (by.clone(), *valid_until);
            Verdict::Approved { by, reason: String::new(), valid_until }
        }
        Verdict::Denied { by, .. } => Verdict::Denied { by: by.clone(), reason: String::new() },
        Verdict::Pending | Verdict::Expired => verdict.clone(),
    };
    Intent {
        pruned: true,
        labels: BTreeMap::new(),
        kept: BTreeMap::new(),
        attempts: attempts.collect(),
        approval: intent.approval.as_ref().map(|approval| Approval {
            arguments_json: String::new(),
            verdict: verdict(&approval.verdict),
            ..approval.clone()
        }),
        result: intent.result.as_ref().map(|result| ResultBody {
            bytes: None,
            content_type: result.content_type.clone(),
            ..*result
        }),
        settlement: intent
            .settlement
            .as_ref()
            .map(|settled| Settlement { note: String::new(), ..settled.clone() }),
        ..intent.clone()
    }
}

/// How far apart two looks may be that are made together: a small part of the wait, an hour at most.
fn slack(wait: Duration) -> Duration {
    (wait / 64).min(Duration::from_secs(60 * 60))
}

/// Files looks together that are due at about the same time, `together_max` at most: each group at the
/// time of its last, so that all of it is due.
pub fn file_together<T>(
    mut looks: Vec<(Timestamp, T)>,
    together_max: usize,
    now: Timestamp,
) -> Vec<(Timestamp, Vec<T>)> {
    looks.sort_by_key(|(due_at, _)| *due_at);
    let mut groups: Vec<(Timestamp, Vec<T>)> = Vec::new();
    let mut latest = Timestamp::default();
    for (due_at, look) in looks {
        match groups.last_mut() {
            Some((at, group)) if due_at <= latest && group.len() < together_max => {
                *at = due_at;
                group.push(look);
            }
            _ => {
                latest = due_at + slack(due_at.since(now));
                groups.push((due_at, vec![look]));
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests;
