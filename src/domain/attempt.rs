//! One try at an intent's effect: who was granted the right to execute, on what, and what became of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    time::Timestamp,
    tool::{KeyFormat, ToolPolicy},
};

/// Why an attempt was granted the right to execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GrantedOn {
    /// The key was new.
    New,
    /// A person approved it.
    Approved,
    /// Every earlier attempt failed before the effect.
    Retry,
    /// The downstream, asked at this Begin, said that nothing happened.
    NotExecuted,
    /// The downstream de-duplicates on our key and still does.
    DownstreamDedupes,
    /// Effect and settlement are one transaction: the superseded one rolls back.
    Fenced,
}

impl GrantedOn {
    /// Whether attempt `number` was granted in the belief that no earlier one had its effect.
    fn believes_nothing_happened(self, number: u32) -> bool {
        match self {
            Self::Retry | Self::NotExecuted => true,
            Self::Approved => number > 1,
            Self::New | Self::DownstreamDedupes | Self::Fenced => false,
        }
    }
}

/// What is known of an attempt's effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fate {
    /// Granted, and nothing was reported.
    Open,
    /// The effect happened.
    Executed,
    /// The effect certainly did not happen.
    NotExecuted,
    /// The caller never received its EXECUTE, so it never began; costs no attempt.
    NeverBegan,
    /// The caller tried and does not know.
    Unknown,
    /// A transaction guarantees that a late effect of this attempt rolls back.
    Fenced,
}

impl Fate {
    /// Its name, as it is hashed.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Executed => "EXECUTED",
            Self::NotExecuted => "NOT_EXECUTED",
            Self::NeverBegan => "NEVER_BEGAN",
            Self::Unknown => "UNKNOWN",
            Self::Fenced => "FENCED",
        }
    }

    /// Whether the attempt's effect is known not to be in the world.
    pub fn is_harmless(self) -> bool {
        match self {
            Self::NotExecuted | Self::NeverBegan | Self::Fenced => true,
            Self::Open | Self::Executed | Self::Unknown => false,
        }
    }
}

/// What was promised about the downstream when the attempt was granted.
///
/// It stays with the attempt; a later policy may only tighten it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Promise {
    /// Whether the downstream key is a UUID.
    pub uuid_key: bool,
    /// The attempt whose number is hashed into the downstream key; `None` for the intent's own.
    pub key_attempt: Option<u32>,
    /// How long the downstream de-duplicates, from the first grant; `None` where it does not.
    pub dedup_window: Option<Duration>,
    /// How long after the lease's end an absence proves nothing.
    pub visibility: Duration,
    /// Whether effect and settlement are one transaction.
    pub same_transaction: bool,
}

impl Promise {
    /// What `policy` promises to attempt `number`, granted now after `previous`.
    ///
    /// Attempts that are to be de-duplicated against each other must carry the same key, so its
    /// form and number are inherited until a policy asks for a new key after a definite failure.
    pub fn of(
        policy: &ToolPolicy,
        granted_on: GrantedOn,
        number: u32,
        previous: Option<&Attempt>,
    ) -> Self {
        let downstream = &policy.downstream;
        let after_failure = granted_on.believes_nothing_happened(number);
        let inherited = previous.map(|attempt| attempt.promise);
        Self {
            uuid_key: inherited
                .map_or(downstream.key_format == KeyFormat::Uuid, |promise| promise.uuid_key),
            key_attempt: if downstream.new_key_after_failed && after_failure {
                Some(number)
            } else {
                inherited.and_then(|promise| promise.key_attempt)
            },
            dedup_window: downstream.dedup_window,
            visibility: downstream.status.map_or(Duration::ZERO, |rule| rule.visibility),
            same_transaction: downstream.same_transaction,
        }
    }
}

/// Why an attempt did not succeed, in the reporter's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Whether the effect certainly did not happen.
    pub not_executed: bool,
    /// A short code, such as `http_422`.
    pub code: String,
    /// The words.
    pub message: String,
}

/// Eight bytes that tell one report of an attempt from another.
pub type ReportDigest = [u8; 8];

/// One try, granted once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The caller's own id of the try; also the fence for settling.
    pub id: Uuid,
    /// Counted from 1 within the intent.
    pub number: u32,
    /// The process that holds the right, as it named itself; may be empty.
    pub caller: String,
    /// Why it was granted.
    pub granted_on: GrantedOn,
    /// When it was granted.
    pub granted_at: Timestamp,
    /// When the right to execute ends, unless extended.
    pub lease_expires_at: Timestamp,
    /// Whether the caller has sent a heartbeat.
    pub extended: bool,
    /// What is known of its effect.
    pub fate: Fate,
    /// Reports that were accepted, so that the same one again gets the same answer.
    pub reports: Vec<ReportDigest>,
    /// The latest failure that it reported.
    pub failure: Option<Failure>,
    /// What was promised about the downstream.
    pub promise: Promise,
}

impl Attempt {
    /// Whether the right to execute is still held at `now`.
    pub fn lease_runs(&self, now: Timestamp) -> bool {
        now < self.lease_expires_at
    }

    /// How long the right to execute was given for, extensions included.
    pub fn lease(&self) -> Duration {
        self.lease_expires_at.since(self.granted_at)
    }

    /// When an absence downstream starts to prove something.
    pub fn visible_from(&self) -> Timestamp {
        self.lease_expires_at + self.promise.visibility
    }

    /// Whether the attempt was granted in the belief that no earlier one had its effect.
    pub fn believed_nothing_happened(&self) -> bool {
        self.granted_on.believes_nothing_happened(self.number)
    }
}

/// The layer that repeated a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// An HTTP or gRPC client resent the same attempt.
    Transport,
    /// The orchestrator ran the same tool call again.
    Orchestrator,
    /// The model asked again, usually in other words.
    Model,
    /// Another process took the run up.
    ResumedRun,
    /// Nothing in the call tells.
    UnknownLayer,
}

/// Where a call says that it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provenance<'a> {
    /// The caller's id of the try.
    pub attempt_id: Option<Uuid>,
    /// The process, as it names itself.
    pub caller: &'a str,
    /// The run.
    pub run_id: &'a str,
    /// The step within the run.
    pub step_id: &'a str,
    /// The model's id of the tool call.
    pub tool_call_id: &'a str,
}

impl Layer {
    /// Every layer, in the order of their declaration.
    pub const ALL: [Self; 5] =
        [Self::Transport, Self::Orchestrator, Self::Model, Self::ResumedRun, Self::UnknownLayer];

    /// Its public name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transport => "TRANSPORT",
            Self::Orchestrator => "ORCHESTRATOR",
            Self::Model => "MODEL",
            Self::ResumedRun => "RESUMED_RUN",
            Self::UnknownLayer => "UNKNOWN_LAYER",
        }
    }

    /// Which layer made `repeat` out of `first`.
    pub fn of(first: &Provenance<'_>, repeat: &Provenance<'_>) -> Self {
        if repeat.attempt_id.is_some() && repeat.attempt_id == first.attempt_id {
            return Self::Transport;
        }
        let same_run = !repeat.run_id.is_empty() && repeat.run_id == first.run_id;
        if same_run && both_differ(first.caller, repeat.caller) {
            Self::ResumedRun
        } else if same_run && both_differ(first.tool_call_id, repeat.tool_call_id) {
            Self::Model
        } else if same_run
            && repeat.step_id == first.step_id
            && repeat.tool_call_id == first.tool_call_id
            && !(repeat.step_id.is_empty() && repeat.tool_call_id.is_empty())
        {
            Self::Orchestrator
        } else {
            Self::UnknownLayer
        }
    }
}

fn both_differ(first: &str, repeat: &str) -> bool {
    !first.is_empty() && !repeat.is_empty() && first != repeat
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_names_its_layer() {
        let id = |n| Some(Uuid::from_u128(n));
        let first = Provenance {
            attempt_id: id(1),
            caller: "worker-1",
            run_id: "r1",
            step_id: "s4",
            tool_call_id: "call_1",
        };
        let rows = [
            (Provenance { ..first }, Layer::Transport),
            (Provenance { attempt_id: id(2), ..first }, Layer::Orchestrator),
            (Provenance { attempt_id: id(2), tool_call_id: "call_2", ..first }, Layer::Model),
            (
                Provenance {
                    attempt_id: id(2),
                    caller: "worker-2",
                    tool_call_id: "call_2",
                    ..first
                },
                Layer::ResumedRun,
            ),
            (
                Provenance {
                    attempt_id: None,
                    caller: "",
                    run_id: "",
                    step_id: "",
                    tool_call_id: "",
                },
                Layer::UnknownLayer,
            ),
            (Provenance { attempt_id: id(2), run_id: "r2", ..first }, Layer::UnknownLayer),
        ];
        for (repeat, layer) in rows {
            assert_eq!(Layer::of(&first, &repeat), layer, "{repeat:?}");
        }
        // A run alone does not tell who in it asked again.
        let bare = Provenance { step_id: "", tool_call_id: "", ..first };
        let again = Provenance { attempt_id: id(2), ..bare };
        assert_eq!(Layer::of(&bare, &again), Layer::UnknownLayer);
    }
}
