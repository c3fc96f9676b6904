//! Where intents are kept: the `Store` trait and its words.
//!
//! A store moves rows: it inserts what is absent, hands back what is there, and replaces a row if
//! its version is still the one that was read. The domain decides; SQL only guards.

pub mod agenda;
mod codes;
mod columns;
pub mod guards;
pub mod history;
pub mod observed;
mod opening;
pub mod postgres;
pub mod retention;
pub mod sqlite;

use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use uuid::Uuid;

pub use self::opening::{
    CONNECTIONS_MAX, OpenError, Statements, StoreOptions, is_embedded, migrate, open, open_as_is,
};
use self::{
    agenda::{Agenda, ToolKey},
    guards::{Guarded, Guards, SlotMove, Subject},
    history::History,
    retention::Retention,
};
use crate::domain::{
    attempt::{Fate, GrantedOn},
    event::Event,
    identity::{Key, downstream_digest, downstream_uuid},
    intent::{Intent, RunSlot, State},
    time::Timestamp,
};

/// A row's version; raised by every replacement.
pub type Version = u32;

/// An intent as it is stored, with the version for compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The intent.
    pub intent: Intent,
    /// Its version when it was read or written.
    pub version: Version,
}

/// The id that a row is filed under: the intent's downstream key in its UUID form.
///
/// It is one hash away from the public key and carried whole by the downstream key, so that both
/// find the row by its primary key.
pub fn row_id(key: &Key, hash_version: u32) -> Uuid {
    downstream_uuid(downstream_digest(key, None, hash_version))
}

/// What must hold for a write to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// There is no row, and no orphan fact unless the decision has seen them.
    Absent {
        /// Whether orphan facts were part of the decision.
        orphans_seen: bool,
    },
    /// The row still has this version.
    Version(Version),
}

/// How much of a row a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// There was no row.
    New,
    /// Only what an ordinary settlement brings: state, fate, result, reference, and that it is
    /// settled now. A store may write just that, and leave what it would have to repeat.
    Settlement,
    /// Anything else.
    Other {
        /// Whether the row is settled now.
        settles: bool,
    },
}

/// One row to write.
///
/// The store's clock is the only clock. A new row is decided on before the store was asked for the
/// time, and a settlement may be; the write gives them its own time. A further grant and a longer
/// lease are decided on a reading and keep its time: moved, a write that has waited would carry the
/// lease past the end of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    id: Uuid,
    /// The row as it is to be.
    pub intent: Box<Intent>,
    /// What must hold.
    expected: Expected,
    /// How much of the row that changes.
    change: Change,
    /// Facts to keep beside the row; written only if the row is.
    pub events: Vec<Event>,
    /// The policy version that must still be active; `None` for writes that rest on no policy.
    policy: Option<u32>,
    /// When the reconciler must look at the row, if this write is what decides that.
    look_at: Option<Timestamp>,
    /// What it takes beside the row; ordinary writes take nothing.
    guards: Option<Box<Guards>>,
}

impl Write {
    /// A row for a key that has none: created, and granted if it has an attempt, when it is written.
    ///
    /// Nobody can have reported on it yet, so a store need not write what only reports bring:
    /// result, settlement, references, conflict, or what a heartbeat changes.
    pub fn insert(intent: impl Into<Box<Intent>>, events: Vec<Event>, orphans_seen: bool) -> Self {
        let intent: Box<Intent> = intent.into();
        debug_assert!(
            intent.result.is_none()
                && !intent.pruned
                && intent.settlement.is_none()
                && intent.settled_at.is_none()
                && intent.downstream_ref.is_none()
                && !intent.conflict
                && intent.attempts.len() <= 1
                && intent.attempts.iter().all(|attempt| {
                    attempt.number == 1
                        && attempt.granted_on == GrantedOn::New
                        && attempt.granted_at == intent.created_at
                        && attempt.fate == Fate::Open
                        && !attempt.extended
                        && attempt.reports.is_empty()
                        && attempt.promise.key_attempt.is_none()
                }),
            "nobody has reported on a new row"
        );
        Self {
            id: intent.id(),
            // Made under the policy that decided.
            policy: Some(intent.recipe.policy),
            guards: Guards::of(RunSlot::None, &intent).map(Box::new),
            // A grant is remembered with its batch; a proposal is looked at when it runs out.
            look_at: intent.first_look_at().filter(|_| intent.state == State::AwaitingApproval),
            intent,
            expected: Expected::Absent { orphans_seen },
            change: Change::New,
            events,
        }
    }

    /// A row in place of one that was read.
    pub fn replace(
        old: &Stored,
        intent: impl Into<Box<Intent>>,
        events: Vec<Event>,
        policy: Option<u32>,
    ) -> Self {
        let intent: Box<Intent> = intent.into();
        let settles = intent.settled_at.is_some() && intent.settled_at != old.intent.settled_at;
        // What rests on a policy is guarded by its version, which the narrow form does not carry.
        let narrow = settles && policy.is_none();
        let change = if narrow && columns::differ_by_settlement(&old.intent, &intent) {
            Change::Settlement
        } else {
            Change::Other { settles }
        };
        let look_at = intent.first_look_at().filter(|at| old.intent.first_look_at() != Some(*at));
        let guards = Guards::of(old.intent.slot, &intent).map(Box::new);
        Self {
            id: intent.id(),
            intent,
            expected: Expected::Version(old.version),
            change,
            events,
            policy,
            look_at,
            guards,
        }
    }

    /// A slot that it takes is one of at most `limit` of the run.
    #[must_use]
    pub fn limited_to(mut self, limit: Option<u32>) -> Self {
        if let Some(Guards { slot: Some(SlotMove::Take { limit: most, .. }), .. }) =
            self.guards.as_deref_mut()
        {
            *most = limit;
        }
        self
    }

    /// Its new row is remembered under a subject.
    #[must_use]
    pub fn about(mut self, subject: Option<Subject>) -> Self {
        if subject.is_some() {
            self.guards.get_or_insert_default().subject = subject;
        }
        self
    }

    /// What it takes beside the row, if anything.
    pub fn guards(&self) -> Option<&Guards> {
        self.guards.as_deref()
    }

    /// The id of the row.
    pub fn row_id(&self) -> Uuid {
        self.id
    }

    /// What must hold for it to happen.
    pub fn expected(&self) -> Expected {
        self.expected
    }

    /// The policy version that must still be active; `None` where it rests on no policy.
    pub fn policy(&self) -> Option<u32> {
        self.policy
    }

    /// When the reconciler must look at the row, if this write is what decides that.
    pub fn look_at(&self) -> Option<Timestamp> {
        self.look_at
    }

    /// The version that the row has after this write.
    pub fn version_after(&self) -> Version {
        match self.expected {
            Expected::Absent { .. } => 1,
            Expected::Version(version) => version + 1,
        }
    }

    /// Whether there was no row.
    pub fn is_new(&self) -> bool {
        self.change == Change::New
    }

    /// When the lease of a new row that has been stamped is over, if it was granted one.
    pub fn first_lease_end(&self) -> Option<Timestamp> {
        match self.change {
            Change::New if self.look_at.is_none() => self.intent.first_look_at(),
            Change::New | Change::Settlement | Change::Other { .. } => None,
        }
    }

    /// Gives the intent the times of the write: what it is once it has been written at `now`.
    pub fn stamp(&mut self, now: Timestamp) {
        match self.change {
            Change::New => {
                self.intent.created_at = now;
                if let Some(attempt) = self.intent.attempts.last_mut() {
                    attempt.lease_expires_at = now + attempt.lease();
                    attempt.granted_at = now;
                }
            }
            Change::Settlement | Change::Other { settles: true } => {
                self.intent.settled_at = Some(now);
            }
            Change::Other { settles: false } => {}
        }
    }

    /// The events with the time of the write.
    pub fn stamped_events(&self, now: Timestamp) -> impl Iterator<Item = Event> + '_ {
        self.events.iter().map(move |event| Event { at: now, ..event.clone() })
    }
}

/// What became of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is durable, since this time.
    Done {
        /// The store's time of the write.
        at: Timestamp,
    },
    /// What was expected does not hold: there is a row, another version, or an orphan fact.
    Missed,
    /// Another policy version is active.
    PolicyMoved,
    /// No slot of the run is left for it, or it is no longer alone under its subject; or others of the
    /// same batch have come first.
    Guarded,
}

/// Rows as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The store's time of the read.
    pub now: Timestamp,
    /// One row, or none, for each key asked for.
    pub rows: Vec<Option<Stored>>,
}

/// A key to look up: its namespace guards against finding another tenant's row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// The namespace that asks.
    pub namespace: String,
    /// The id of the row.
    pub id: Uuid,
}

/// Another way to name an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// The key that was sent downstream with a single attempt, in its UUID form.
    DownstreamKey(Uuid),
    /// The downstream's own id.
    DownstreamRef(String),
    /// The model's id of the tool call that began it.
    ToolCallId(String),
}

/// An object of the downstream that an intent was settled by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownstreamObject {
    /// The tool of the intent.
    pub tool: ToolKey,
    /// The downstream's id of the object.
    pub downstream_ref: String,
    /// The row of the intent.
    pub row: Uuid,
}

/// A report for a key that was never begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanFact {
    /// The namespace of the report.
    pub namespace: String,
    /// The key that it names.
    pub key: Key,
    /// The id that a row of that key would have.
    pub id: Uuid,
    /// What was reported.
    pub event: Event,
}

/// That a Begin has met a row since the last time this was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// The row.
    pub id: Uuid,
    /// How often it was answered with the first result.
    pub replays: u64,
}

/// Which intents to list; an absent condition holds for all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// The tenant.
    pub namespace: String,
    /// The tool; empty for all.
    pub tool: String,
    /// The run; empty for all.
    pub run_id: String,
    /// The states; empty for all.
    pub states: Vec<State>,
    /// Whether a person is needed.
    pub needs_attention: Option<bool>,
    /// Whether facts contradict each other.
    pub conflict: Option<bool>,
}

/// Where a page of a list begins: after the row with this time and id, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// When the last row of the page before was created.
    pub created_at: Timestamp,
    /// Its id.
    pub id: Uuid,
}

/// A version of the policy, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPolicy {
    /// The version.
    pub version: u32,
    /// The file's text.
    pub text: String,
}

/// The policy that all replicas decide by, and older ones that rows may refer to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredPolicies {
    /// The active version; 0 before any file was offered.
    pub active: u32,
    /// Every kept version with its text, the active one included, newest first.
    pub kept: Vec<StoredPolicy>,
}

/// What a look at the store's own settings shows; see `intent-ledger doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// The kind of store and its version.
    pub product: String,
    /// Each setting that matters, with its value and whether it is safe.
    pub settings: Vec<Setting>,
    /// The store's time.
    pub now: Timestamp,
    /// The oldest intent in STARTED or UNKNOWN.
    pub oldest_unsettled: Option<(Key, Timestamp)>,
}

/// One setting of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What is wrong with it, if something is.
    pub problem: Option<String>,
}

/// Why the store did not do what it was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Nothing was written, and the store cannot be reached or is busy.
    #[error("reach the store")]
    Unavailable(#[source] BoxError),
    /// The commit was sent and no answer came: the write may have happened.
    #[error("learn whether the commit happened")]
    Indeterminate(#[source] BoxError),
    /// The store refused one of the rows; nothing was written.
    #[error("write to the store")]
    Rejected(#[source] BoxError),
    /// Somebody else's open transaction holds one of the rows; nothing was written.
    #[error("wait for a row that somebody else's transaction holds")]
    Locked(#[source] BoxError),
    /// A row cannot be understood.
    #[error("understand a stored row: {0}")]
    Corrupt(String),
}

/// A cause that this layer does not look into.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The table of intents, in words of the domain.
#[async_trait]
pub trait Store: Agenda + Guarded + History + Retention + Send + Sync + 'static {
    /// The store's time; answering it is a sign of life.
    async fn now(&self) -> Result<Timestamp, StoreError>;

    /// After it returns, every write that is `Done` is durable, together with its events, and no
    /// other has left a trace. No two writes of one call may be for the same row. Rows that are
    /// locked by somebody else's transaction are waited for no longer than `lock_wait`.
    async fn write(
        &self,
        writes: &[Write],
        lock_wait: Duration,
    ) -> Result<Vec<Written>, StoreError>;

    /// The rows of these keys; another namespace's row counts as absent.
    async fn find(&self, keys: &[RowKey]) -> Result<Found, StoreError>;

    /// The newest row that carries this reference.
    async fn find_by_reference(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<Stored>, StoreError>;

    /// For each object, the key of another intent of the same tool that carries its id.
    async fn others_with_references(
        &self,
        objects: &[DownstreamObject],
    ) -> Result<Vec<Option<Key>>, StoreError>;

    /// The versions of these rows, and the store's time: what a waiter polls, and what tells that a
    /// row is still as it was read.
    async fn versions(&self, ids: &[Uuid])
    -> Result<(Timestamp, Vec<Option<Version>>), StoreError>;

    /// A page of rows, newest first.
    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError>;

    /// The facts kept beside a row, oldest first.
    async fn events(&self, id: Uuid) -> Result<Vec<Event>, StoreError>;

    /// After it returns, each fact is kept, or was already, or found its namespace's bound
    /// (`false`).
    async fn keep_orphans(&self, facts: &[OrphanFact]) -> Result<Vec<bool>, StoreError>;

    /// The facts kept for a key that has no row.
    async fn orphans(&self, key: &RowKey) -> Result<Vec<Event>, StoreError>;

    /// Adds to the counters of these rows; versions stay. Returns those that were not told, since somebody's
    /// transaction holds them.
    async fn touch(&self, touches: &[Touch]) -> Result<Vec<Touch>, StoreError>;

    /// The version of the active policy.
    async fn active_policy(&self) -> Result<u32, StoreError>;

    /// The active policy and the ones that rows may refer to.
    async fn policies(&self) -> Result<StoredPolicies, StoreError>;

    /// Makes `policy` the active one if `expected` still is, once no write that was decided under
    /// another is in flight; `false` if it is not.
    async fn activate_policy(
        &self,
        expected: u32,
        policy: &StoredPolicy,
    ) -> Result<bool, StoreError>;

    /// The namespaces and tools that have rows in STARTED or UNKNOWN.
    async fn unsettled_tools(&self) -> Result<Vec<(String, String)>, StoreError>;

    /// Settings, time and the oldest unsettled intent.
    async fn diagnose(&self) -> Result<Diagnosis, StoreError>;

    /// How many writers can work beside each other.
    fn writers(&self) -> usize;

    /// Whether an application can settle an intent within a transaction of its own.
    fn is_shared(&self) -> bool;
}

/// How many orphan facts a namespace may leave behind; a bound on what a broken client can store.
pub const ORPHANS_PER_NAMESPACE_MAX: usize = 10_000;

/// How long a connection may take to be made before the store is [`StoreError::Unavailable`].
pub const CONNECTION_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a batch waits for a row that somebody else's transaction holds. A rival's commit is a
/// matter of milliseconds; what takes longer is for the one row to wait for, not for its batch.
pub const LOCK_WAIT: Duration = Duration::from_millis(250);
