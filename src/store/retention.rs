//! Which rows are looked at for their retention, and when; and what is left of them.
//!
//! An index over the time of settling would make every settlement write all indexes of its row. So a
//! calendar holds the ids of all rows, some hundred in an entry, each filed by the earliest time at which
//! something can be due: from the batch that granted it until nothing is left of it.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::{StoreError, Stored, Version};
use crate::domain::{
    intent::Intent,
    retention::{Term, tombstone},
    time::Timestamp,
};

/// How many rows are filed together at most: what is read, and written, by one statement.
pub const FILED_TOGETHER_MAX: usize = 256;

/// Rows to look at, as they stand in the calendar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filed {
    /// Tells one entry from another.
    pub id: Uuid,
    /// The time that it is filed under; a claim moves it.
    pub due_at: Timestamp,
    /// The ids of the rows.
    pub rows: Vec<Uuid>,
}

/// What is to be known of a row to say whether something is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The tenant.
    pub namespace: String,
    /// The tool.
    pub tool: String,
    /// Its version.
    pub version: Version,
    /// What the rule asks for.
    pub term: Term,
    /// Bytes of the result that are kept.
    pub result_bytes: u64,
}

/// A tombstone to be left of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// What is left.
    pub intent: Intent,
    /// The version that the row must still have.
    pub expected: Version,
    /// The version that the tombstone gets: far above those of a row that is begun, settled and retried.
    ///
    /// Once it is purged and its key begun anew, the versions start again at 1. Nobody who still decides on
    /// the tombstone can then take the new row for it.
    pub version: Version,
}

impl Tombstone {
    /// What is left of a row at `now`.
    pub fn of(row: &Stored, now: Timestamp) -> Self {
        let minutes = u32::try_from(now.micros() / 60_000_000).unwrap_or(0);
        Self {
            intent: tombstone(&row.intent),
            expected: row.version,
            version: minutes.max(row.version + 1),
        }
    }
}

/// When rows are looked at again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextLook {
    /// When.
    pub due_at: Timestamp,
    /// The rows, each with the claimed entry that it comes from.
    pub rows: Vec<(Uuid, Uuid)>,
}

/// Keeps results for their time, and keys for theirs.
#[async_trait]
pub trait Retention {
    /// Claims entries that are due, `entries_max` of them at most, for `span` from now: until then nobody else is given
    /// them. Says the store's time too.
    async fn claim_filed(
        &self,
        entries_max: usize,
        span: Duration,
    ) -> Result<(Timestamp, Vec<Filed>), StoreError>;

    /// What is to be known of these rows; nothing of those that are not there.
    async fn kept(&self, ids: &[Uuid]) -> Result<Vec<Option<Kept>>, StoreError>;

    /// Leaves tombstones of rows that still have their version and are settled, without their events, if `policy` is
    /// still the active one. Says of each whether it was left.
    async fn prune(&self, tombstones: &[Tombstone], policy: u32) -> Result<Vec<bool>, StoreError>;

    /// Leaves nothing of tombstones that still have their version, nor of what belongs to them, if `policy` is still the
    /// active one. Says of each whether it is gone.
    async fn purge(&self, rows: &[(Uuid, Version)], policy: u32) -> Result<Vec<bool>, StoreError>;

    /// Files the rows of claimed entries anew, and takes the entries out; rows that are not among `looks` are in the
    /// calendar no more. All of it or nothing: an entry whose claim is over stays as it is, and so do its rows.
    async fn file(&self, claimed: &[Filed], looks: &[NextLook]) -> Result<(), StoreError>;
}
