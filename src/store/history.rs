//! Who repeated a call, how often what was decided, and what is open: kept for people, beside the rows.
//!
//! All of it is written behind and added up: no effect costs a statement or a row of its own, and
//! replicas that write the same counter only add to it. Nothing is decided by it.

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::StoreError;
use crate::domain::{
    attempt::Layer,
    identity::{Key, downstream_uuid},
    repeat::{Answered, LayerCounts, Repeat},
    time::Timestamp,
};

/// What a row was asked again since this was last written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// The row.
    pub id: Uuid,
    /// How many repeats there were.
    pub layers: LayerCounts,
    /// The first of them, in their order; the others are counted only.
    pub records: Vec<Repeat>,
}

/// Repeats of one row that were kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptRepeats {
    /// How many there have been, kept or not.
    pub layers: LayerCounts,
    /// How many are kept.
    pub kept: u64,
    /// Those that were asked for, in their order, each with its number.
    pub records: Vec<(u32, Repeat)>,
}

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// Begins that were answered so.
    Answered(Answered),
    /// Begins that this layer repeated.
    Repeated(Layer),
    /// Rows that were made.
    Begun,
}

/// How often something happened with a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCount {
    /// The tenant.
    pub namespace: String,
    /// The tool.
    pub tool: String,
    /// What is counted.
    pub counted: Counted,
    /// How often.
    pub count: u64,
}

impl ToolCount {
    /// Where its counters are filed.
    pub fn id(&self) -> Uuid {
        counter_id(&[&self.namespace, &self.tool])
    }
}

/// How many intents of one tool were executed in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCount {
    /// The tenant.
    pub namespace: String,
    /// The tool.
    pub tool: String,
    /// The run.
    pub run_id: String,
    /// How many.
    pub count: u64,
}

impl RunCount {
    /// Where its counter is filed.
    pub fn id(&self) -> Uuid {
        counter_id(&[&self.namespace, &self.tool, &self.run_id])
    }
}

/// An id for what has names only, so that a distributed store can place it.
fn counter_id(names: &[&str]) -> Uuid {
    let mut hash = Sha256::new();
    for name in names {
        hash.update((name.len() as u64).to_be_bytes());
        hash.update(name);
    }
    downstream_uuid(hash.finalize().into())
}

/// What stands open at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpenNow {
    /// The store's time.
    pub now: Timestamp,
    /// How many intents are STARTED or UNKNOWN.
    pub unsettled: u64,
    /// The oldest of them, and when it was begun.
    pub oldest: Option<(Key, Timestamp)>,
    /// How many only a person can move on.
    pub needs_attention: u64,
    /// How many wait for an approval.
    pub awaiting_approval: u64,
    /// Whether more might be open than was looked at, so that all of these are lower bounds.
    pub bounded: bool,
}

/// Up to when each kind of counter is to be forgotten, or rolled up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepFrom {
    /// Minutes before this become hours.
    pub minutes: Timestamp,
    /// Hours before this are forgotten.
    pub hours: Timestamp,
    /// Runs that executed nothing since are forgotten.
    pub runs: Timestamp,
}

/// How far what is open is looked at, of each kind: a bound on what a broken downstream can make a
/// question cost.
pub const OPEN_MAX: usize = 10_000;

/// What is remembered beside the rows.
#[async_trait]
pub trait History {
    /// After it returns, every repeat is counted by its layer, and kept if fewer than
    /// [`REPEATS_KEPT_MAX`](crate::domain::repeat::REPEATS_KEPT_MAX) of its row were, whoever else
    /// remembers at the same time. No row may be named twice in one call.
    async fn remember(&self, repeats: &[Repeated]) -> Result<(), StoreError>;

    /// What is remembered of a row: its counts, and `records_max` records after number `after`.
    async fn repeats(
        &self,
        id: Uuid,
        after: u32,
        records_max: usize,
    ) -> Result<KeptRepeats, StoreError>;

    /// Adds to the counters of the minute that it is written in, and to those of runs.
    async fn count(&self, tools: &[ToolCount], runs: &[RunCount]) -> Result<(), StoreError>;

    /// What was counted with a tool, or with all of a tenant, since a time.
    async fn counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
    ) -> Result<Vec<ToolCount>, StoreError>;

    /// Runs that executed a tool more than once and last did since a time, the most executions first.
    async fn run_counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
        rows_max: usize,
    ) -> Result<Vec<RunCount>, StoreError>;

    /// Adds old minutes up to hours and forgets what is older still. Counts stay what they are.
    async fn roll_counts(&self, keep_from: KeepFrom) -> Result<(), StoreError>;

    /// What stands open, of a tenant and tool or of all. Found by the agenda, by the mark of what needs
    /// a person, and by the `ends_max` batches of grants whose leases end first and as many that end last:
    /// what nobody settles is among the first, what is under way among the last. Of what is settled only
    /// those batches are looked at.
    async fn open_now(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        ends_max: usize,
    ) -> Result<OpenNow, StoreError>;
}
