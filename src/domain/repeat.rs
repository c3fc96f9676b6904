//! Who began a call again: what is remembered of every Begin after the first on a key.

use uuid::Uuid;

use super::{
    attempt::{GrantedOn, Layer, Provenance},
    canonical_json::Pointer,
    decision::{Decision, ExecuteReason, HoldReason, RefuseReason},
    intent::Intent,
    time::Timestamp,
};

/// How many repeats of a key are kept one by one; further ones are counted only.
pub const REPEATS_KEPT_MAX: u32 = 100;

/// How many pointers to what differs are kept of a repeat, and how long they may be, in bytes.
const CHANGED_MAX: usize = 16;
const CHANGED_BYTES_MAX: usize = 256;

/// What is kept of the pointers to what differs.
pub fn kept_pointers(pointers: &[Pointer]) -> Vec<String> {
    // A line each, in stores.
    let fits = |text: &String| text.len() <= CHANGED_BYTES_MAX && !text.contains(char::is_control);
    pointers.iter().map(ToString::to_string).filter(fits).take(CHANGED_MAX).collect()
}

/// The trace that a call was part of, as the W3C writes it.
pub type TraceId = [u8; 16];

/// What a Begin was answered, in one word: the decision with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answered {
    /// EXECUTE: the key was new.
    New,
    /// EXECUTE: a person approved it.
    Approved,
    /// EXECUTE: every earlier attempt failed before the effect.
    Retry,
    /// EXECUTE: the downstream said that nothing had happened.
    NotExecuted,
    /// EXECUTE: the downstream de-duplicates.
    DownstreamDedupes,
    /// EXECUTE: the superseded transaction rolls back.
    Fenced,
    /// EXECUTE once more to the same attempt.
    Resent,
    /// EXECUTE of a tool that leaves no record.
    NotRecorded,
    /// REPLAY with the first result.
    Completed,
    /// REPLAY from a tombstone.
    ResultPruned,
    /// HOLD: another attempt holds the lease.
    InFlight,
    /// HOLD: the attempt id is no longer good.
    Superseded,
    /// HOLD: nobody knows.
    OutcomeUnknown,
    /// HOLD: only a person can move it on.
    NeedsAttention,
    /// AWAIT_APPROVAL.
    AwaitApproval,
    /// REFUSE: no attempts are left.
    FailedFinal,
    /// REFUSE: a person said no.
    Denied,
    /// REFUSE: the policy does not list the tool.
    ToolNotListed,
    /// REFUSE: the tool is halted.
    ToolHalted,
    /// REFUSE: the run's limit is used up.
    RunLimit,
    /// REFUSE: another intent looks the same.
    LookAlikeLimit,
    /// An error: the same key with other binding arguments.
    ParametersChanged,
    /// An error: the key would be too weak for approval.
    WeakKey,
    /// An error: the call lacks what its downstream is asked by.
    BusinessIdRequired,
    /// An error: the call lacks the run that its limit counts.
    RunRequired,
}

impl Answered {
    /// Every one, in the order of their declaration.
    pub const ALL: [Self; 25] = [
        Self::New,
        Self::Approved,
        Self::Retry,
        Self::NotExecuted,
        Self::DownstreamDedupes,
        Self::Fenced,
        Self::Resent,
        Self::NotRecorded,
        Self::Completed,
        Self::ResultPruned,
        Self::InFlight,
        Self::Superseded,
        Self::OutcomeUnknown,
        Self::NeedsAttention,
        Self::AwaitApproval,
        Self::FailedFinal,
        Self::Denied,
        Self::ToolNotListed,
        Self::ToolHalted,
        Self::RunLimit,
        Self::LookAlikeLimit,
        Self::ParametersChanged,
        Self::WeakKey,
        Self::BusinessIdRequired,
        Self::RunRequired,
    ];

    /// Whether the right to execute was given; not where a lost answer was only sent again.
    pub fn executes(self) -> bool {
        match self {
            Self::New
            | Self::Approved
            | Self::Retry
            | Self::NotExecuted
            | Self::DownstreamDedupes
            | Self::Fenced
            | Self::NotRecorded => true,
            Self::Resent
            | Self::Completed
            | Self::ResultPruned
            | Self::InFlight
            | Self::Superseded
            | Self::OutcomeUnknown
            | Self::NeedsAttention
            | Self::AwaitApproval
            | Self::FailedFinal
            | Self::Denied
            | Self::ToolNotListed
            | Self::ToolHalted
            | Self::RunLimit
            | Self::LookAlikeLimit
            | Self::ParametersChanged
            | Self::WeakKey
            | Self::BusinessIdRequired
            | Self::RunRequired => false,
        }
    }
}

impl From<GrantedOn> for Answered {
    fn from(granted_on: GrantedOn) -> Self {
        match granted_on {
            GrantedOn::New => Self::New,
            GrantedOn::Approved => Self::Approved,
            GrantedOn::Retry => Self::Retry,
            GrantedOn::NotExecuted => Self::NotExecuted,
            GrantedOn::DownstreamDedupes => Self::DownstreamDedupes,
            GrantedOn::Fenced => Self::Fenced,
        }
    }
}

impl From<&Decision> for Answered {
    fn from(decision: &Decision) -> Self {
        match decision {
            Decision::Execute { reason: ExecuteReason::Granted(on), .. } => (*on).into(),
            Decision::Execute { reason: ExecuteReason::Resent, .. } => Self::Resent,
            Decision::NotRecorded => Self::NotRecorded,
            Decision::Replay { pruned: false } => Self::Completed,
            Decision::Replay { pruned: true } => Self::ResultPruned,
            Decision::Hold { reason, .. } => match reason {
                HoldReason::InFlight => Self::InFlight,
                HoldReason::Superseded => Self::Superseded,
                HoldReason::OutcomeUnknown => Self::OutcomeUnknown,
                HoldReason::NeedsAttention => Self::NeedsAttention,
            },
            Decision::AwaitApproval { .. } => Self::AwaitApproval,
            Decision::Refuse { reason } => match reason {
                RefuseReason::FailedFinal => Self::FailedFinal,
                RefuseReason::Denied => Self::Denied,
                RefuseReason::ToolNotListed => Self::ToolNotListed,
                RefuseReason::ToolHalted => Self::ToolHalted,
                RefuseReason::RunLimit => Self::RunLimit,
                RefuseReason::LookAlikeLimit => Self::LookAlikeLimit,
            },
            Decision::ParametersChanged { .. } => Self::ParametersChanged,
            Decision::WeakKey => Self::WeakKey,
            Decision::BusinessIdRequired { .. } => Self::BusinessIdRequired,
            Decision::RunRequired => Self::RunRequired,
        }
    }
}

/// One Begin after the first on a key, as it was asked and answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    /// The store's time of the answer.
    pub at: Timestamp,
    /// The calling process, as it named itself.
    pub caller: String,
    /// The attempt that it asked for; `None` where it named none.
    pub attempt_id: Option<Uuid>,
    /// The model's id of the tool call.
    pub tool_call_id: String,
    /// The run it came from.
    pub run_id: String,
    /// The step it came from.
    pub step_id: String,
    /// Whether its free text differs from that of the first.
    pub free_text_changed: bool,
    /// Where its binding arguments differ from those of the first: JSON Pointers, the first few.
    pub changed: Vec<String>,
    /// The trace it was part of.
    pub trace_id: Option<TraceId>,
    /// What it was answered.
    pub answered: Answered,
    /// Which layer repeated the call.
    pub layer: Layer,
}

/// How many repeats came from each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerCounts([u64; Layer::ALL.len()]);

impl LayerCounts {
    /// Counts `more` repeats of a layer.
    pub fn add(&mut self, layer: Layer, more: u64) {
        let count = &mut self.0[layer as usize];
        *count = count.saturating_add(more);
    }

    /// Counts what another has counted.
    pub fn add_all(&mut self, other: &Self) {
        for (layer, count) in other.iter() {
            self.add(layer, count);
        }
    }

    /// How many repeats came from a layer.
    pub fn of(&self, layer: Layer) -> u64 {
        self.0[layer as usize]
    }

    /// How many there were.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each layer with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Layer, u64)> + '_ {
        Layer::ALL.into_iter().map(|layer| (layer, self.of(layer)))
    }
}

/// Where the first Begin of a row came from, and what it was answered: the row itself says so.
///
/// A row that was not granted at once knows no attempt of its first Begin, and its caller only where
/// it proposed something.
pub fn first_begin(row: &Intent) -> (Provenance<'_>, Answered) {
    let granted = row.attempts.first().filter(|attempt| attempt.granted_on == GrantedOn::New);
    let (attempt_id, caller, answered) = match (granted, &row.approval) {
        (Some(attempt), _) => (Some(attempt.id), attempt.caller.as_str(), Answered::New),
        // Who proposed it again later is somebody else, as far as anybody knows.
        (None, Some(approval)) if approval.proposed_at > row.created_at => {
            (None, "", Answered::AwaitApproval)
        }
        (None, Some(approval)) => (None, approval.proposer.as_str(), Answered::AwaitApproval),
        // Reports had come before it.
        (None, None) => (None, "", Answered::NeedsAttention),
    };
    let first = Provenance {
        attempt_id,
        caller,
        run_id: &row.run_id,
        step_id: &row.step_id,
        tool_call_id: &row.tool_call_id,
    };
    (first, answered)
}

/// Which layer repeated the call that `row` is about, as the row was before the answer.
///
/// Whichever attempt is asked for a second time was resent, not only the first; `resent` says that of
/// one that was never granted.
pub fn layer_of(row: &Intent, repeat: &Provenance<'_>, resent: bool) -> Layer {
    if resent || repeat.attempt_id.is_some_and(|id| row.attempt(id).is_some()) {
        return Layer::Transport;
    }
    Layer::of(&first_begin(row).0, repeat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{Story, attempt_id, plain};

    #[test]
    fn every_answer_stands_at_its_own_place() {
        for (place, answered) in Answered::ALL.into_iter().enumerate() {
            assert_eq!(answered as usize, place, "{answered:?}");
        }
        for (place, layer) in Layer::ALL.into_iter().enumerate() {
            assert_eq!(layer as usize, place, "{layer:?}");
        }
    }

    #[test]
    fn an_attempt_that_was_granted_later_is_resent_all_the_same() {
        let story = Story::under(plain()).begin(1).failed(1).begin(2);
        let row = story.row();
        let asked = |id| Provenance {
            attempt_id: Some(attempt_id(id)),
            caller: "worker-1",
            run_id: &row.run_id,
            step_id: &row.step_id,
            tool_call_id: &row.tool_call_id,
        };
        assert_eq!(layer_of(row, &asked(1), false), Layer::Transport);
        assert_eq!(layer_of(row, &asked(2), false), Layer::Transport);
        assert_eq!(layer_of(row, &asked(3), false), Layer::Orchestrator);
        // It was asked for before, and never granted.
        assert_eq!(layer_of(row, &asked(3), true), Layer::Transport);
    }

    #[test]
    fn of_what_differs_the_first_few_pointers_are_kept_that_fit_a_line() {
        let pointer = |text: &str| Pointer::parse(text).expect("a pointer");
        let long = format!("/{}", "x".repeat(CHANGED_BYTES_MAX));
        let mut pointers = vec![pointer(&long), pointer("/a\nb"), pointer("/a")];
        assert_eq!(kept_pointers(&pointers), ["/a"]);
        pointers.extend((0..30).map(|n| pointer(&format!("/items/{n}"))));
        assert_eq!(kept_pointers(&pointers).len(), CHANGED_MAX);
    }

    #[test]
    fn the_row_tells_who_began_it() {
        let granted = Story::under(plain()).begin(1);
        let (first, answered) = first_begin(granted.row());
        assert_eq!((first.attempt_id, first.caller), (Some(attempt_id(1)), "worker-1"));
        assert_eq!(answered, Answered::New);
        // Who proposed is not who was granted.
        let proposed = Story::gated().begin(1).approved().begin(2);
        let (first, answered) = first_begin(proposed.row());
        assert_eq!((first.attempt_id, first.caller), (None, "worker-1"));
        assert_eq!(answered, Answered::AwaitApproval);
        // Nor is it who proposed it again.
        let mut again = Story::gated().begin(1).row().clone();
        let approval = again.approval.as_mut().unwrap();
        approval.proposed_at = again.created_at + std::time::Duration::from_secs(1);
        approval.proposer = "worker-2".to_owned();
        assert_eq!(first_begin(&again).0.caller, "");
    }

    #[test]
    fn counts_add_up_layer_by_layer() {
        let mut one = LayerCounts::default();
        one.add(Layer::Model, 2);
        let mut other = LayerCounts::default();
        other.add(Layer::Model, 1);
        other.add(Layer::Transport, 4);
        one.add_all(&other);
        assert_eq!((one.of(Layer::Model), one.of(Layer::Transport), one.total()), (3, 4, 7));
    }
}
