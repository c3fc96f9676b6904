//! Rules broken on purpose: what the simulation must notice.

/// A rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The policy says that an absence proves something at once, and the downstream is as slow as ever.
    TrustsAbsenceEarly,
    /// A downstream that does not answer is taken for one that knows of nothing.
    CountsOutages,
    /// The store replaces a row whatever its version is.
    SkipsCompareAndSet,
    /// The store acknowledges a write now and then that it does not keep.
    LosesWrites,
    /// The store forgets now and then to put a row on the agenda.
    LosesAgenda,
    /// The policy says that the downstream remembers our keys for longer than it does.
    TrustsWindowTooLong,
    /// Callers act however long their lease has been over.
    ActsWithoutLease,
    /// A caller whose call was not answered says that nothing happened.
    TakesTimeoutForFailure,
    /// The store does not take back what a failure gives back.
    KeepsSlots,
}

impl Mutation {
    pub(crate) const ALL: [Self; 9] = [
        Self::TrustsAbsenceEarly,
        Self::CountsOutages,
        Self::SkipsCompareAndSet,
        Self::LosesWrites,
        Self::LosesAgenda,
        Self::TrustsWindowTooLong,
        Self::ActsWithoutLease,
        Self::TakesTimeoutForFailure,
        Self::KeepsSlots,
    ];
}
