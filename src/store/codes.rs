//! The numbers that stand for the words of the domain on disk.

use super::{StoreError, columns::corrupt, history::Counted};
use crate::domain::{
    attempt::{Fate, GrantedOn, Layer},
    event::Provenance,
    identity::KeyBasis,
    intent::State,
    repeat::Answered,
};

/// The two directions of a code that is written to disk, from one table.
macro_rules! codes {
    ($type:ty, $to:ident, $from:ident, $($variant:ident = $code:literal),+ $(,)?) => {
        pub(super) fn $to(value: $type) -> i16 {
            match value { $(<$type>::$variant => $code),+ }
        }

        pub(super) fn $from(code: i16) -> Result<$type, StoreError> {
            match code {
                $($code => Ok(<$type>::$variant),)+
                other => Err(corrupt(stringify!($type), format!("has no code {other}"))),
            }
        }
    };
}

codes!(
    State,
    state_to_code,
    state_from_code,
    AwaitingApproval = 1,
    Approved = 2,
    Started = 3,
    Unknown = 4,
    Completed = 5,
    Failed = 6,
    Denied = 7,
);
codes!(
    KeyBasis,
    basis_to_code,
    basis_from_code,
    IdempotencyKey = 1,
    BusinessIds = 2,
    Policy = 3,
    StepArguments = 4,
);
codes!(
    GrantedOn,
    granted_on_to_code,
    granted_on_from_code,
    New = 1,
    Approved = 2,
    Retry = 3,
    NotExecuted = 4,
    DownstreamDedupes = 5,
    Fenced = 6,
);
codes!(
    Fate,
    fate_to_code,
    fate_from_code,
    Open = 1,
    Executed = 2,
    NotExecuted = 3,
    NeverBegan = 4,
    Unknown = 5,
    Fenced = 6,
);
codes!(
    Provenance,
    provenance_to_code,
    provenance_from_code,
    Caller = 1,
    Reconciler = 2,
    Operator = 3,
    Policy = 4,
);
codes!(
    Layer,
    layer_to_code,
    layer_from_code,
    Transport = 1,
    Orchestrator = 2,
    Model = 3,
    ResumedRun = 4,
    UnknownLayer = 5,
);
codes!(
    Answered,
    answered_to_code,
    answered_from_code,
    New = 1,
    Approved = 2,
    Retry = 3,
    NotExecuted = 4,
    DownstreamDedupes = 5,
    Fenced = 6,
    Resent = 7,
    NotRecorded = 8,
    Completed = 20,
    ResultPruned = 21,
    InFlight = 30,
    Superseded = 31,
    OutcomeUnknown = 32,
    NeedsAttention = 33,
    AwaitApproval = 40,
    FailedFinal = 50,
    Denied = 51,
    ToolNotListed = 52,
    ToolHalted = 53,
    RunLimit = 54,
    LookAlikeLimit = 55,
    ParametersChanged = 60,
    WeakKey = 61,
    BusinessIdRequired = 62,
    RunRequired = 63,
);

/// Layers are counted beside answers, from here on.
const LAYERS: i16 = 100;

const BEGUN: i16 = 120;

pub(super) fn counted_to_code(counted: Counted) -> i16 {
    match counted {
        Counted::Answered(answered) => answered_to_code(answered),
        Counted::Repeated(layer) => LAYERS + layer_to_code(layer),
        Counted::Begun => BEGUN,
    }
}

pub(super) fn counted_from_code(code: i16) -> Result<Counted, StoreError> {
    match code {
        BEGUN => Ok(Counted::Begun),
        code if code > LAYERS => layer_from_code(code - LAYERS).map(Counted::Repeated),
        code => answered_from_code(code).map(Counted::Answered),
    }
}
