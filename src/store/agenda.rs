//! Which intents the reconciler must look at, and when.
//!
//! Grants are remembered a batch at a time and go on the agenda only if they are unsettled when
//! their lease is over: nearly all effects never cost an entry. An entry is claimed by
//! compare-and-set on its own version, so that each intent is looked at by one, and a settlement
//! never has to wait for it.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use uuid::Uuid;

use super::{StoreError, Version};
use crate::domain::time::Timestamp;

/// An intent that somebody must look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The row's id.
    pub id: Uuid,
    /// The tenant.
    pub namespace: String,
    /// The tool.
    pub tool: String,
    /// When to look at it next.
    pub due_at: Timestamp,
    /// How often its downstream was asked since its last grant or heartbeat.
    pub probes: u32,
    /// When it was last asked.
    pub asked_at: Option<Timestamp>,
    /// Until when somebody has it for himself.
    pub claimed_until: Option<Timestamp>,
    /// Raised by every change; 0 for one that is not on the agenda yet.
    pub version: Version,
}

impl Entry {
    /// Whether somebody has it for himself at `now`.
    pub fn is_claimed(&self, now: Timestamp) -> bool {
        self.claimed_until.is_some_and(|until| now < until)
    }
}

/// A tool of a tenant that has something on the agenda.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolKey {
    /// The tenant.
    pub namespace: String,
    /// The tool.
    pub tool: String,
}

/// What becomes of an entry that was claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The entry's intent.
    pub id: Uuid,
    /// The version that the claim left.
    pub version: Version,
    /// Until when the claim was given: an entry that went and came again counts its versions anew.
    pub claimed_until: Timestamp,
    /// When to look again; `None` takes it off the agenda.
    pub next: Option<Next>,
}

/// When an entry is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// When.
    pub due_at: Timestamp,
    /// How often its downstream was asked so far.
    pub probes: u32,
    /// When it was last asked.
    pub asked_at: Option<Timestamp>,
}

/// How far intents that wait for a person are counted.
pub const WAITING_MAX: u64 = 10_000;

/// What is due, by time.
#[async_trait]
pub trait Agenda {
    /// Puts on the agenda what is still unsettled of batches whose first lease is over, `batches_max`
    /// of them at most, and files all of their intents in the calendar of retention, to be looked at
    /// `kept_for` after that. Says how many batches there were.
    async fn gather(&self, batches_max: usize, kept_for: Duration) -> Result<usize, StoreError>;

    /// The tools that have something due now and unclaimed that may be asked about, of one tenant or of
    /// all.
    async fn due_tools(&self, namespace: Option<&str>) -> Result<Vec<ToolKey>, StoreError>;

    /// What is due now of a tool and unclaimed, longest due first, with the store's time.
    async fn due(
        &self,
        tool: &ToolKey,
        rows_max: usize,
    ) -> Result<(Timestamp, Vec<Entry>), StoreError>;

    /// The proposals whose time is over now and unclaimed, longest due first, of one namespace and tool
    /// or of all. They are in no tool's [`due`](Self::due).
    async fn due_proposals(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Result<Vec<Entry>, StoreError>;

    /// The entry of an intent, with the store's time.
    async fn entry(&self, id: Uuid) -> Result<(Timestamp, Option<Entry>), StoreError>;

    /// Claims each entry that still has its version for `span` from now; those with version 0 are
    /// put on the agenda by it. After it returns, a time means that nobody else claims it before
    /// then, and its version is one higher.
    async fn claim(
        &self,
        entries: &[Entry],
        span: Duration,
    ) -> Result<Vec<Option<Timestamp>>, StoreError>;

    /// How many intents only a person can move on in each namespace that has any, counted up to
    /// [`WAITING_MAX`] in all.
    async fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError>;

    /// Gives claimed entries back. One that was put on the agenda anew meanwhile stays as it is.
    async fn release(&self, releases: &[Release]) -> Result<(), StoreError>;
}
