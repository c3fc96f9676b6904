//! The operations of the ledger, one file each: read the row, let the domain decide, write, answer.
//!
//! Nothing is answered that has not been written first. A write that meets somebody else's is
//! decided again on what is there now.

mod attempts;
mod begin;
mod downstream;
mod error;
mod extend;
mod history;
mod list;
mod lookup;
mod model_message;
mod pace;
mod policies;
mod read_batcher;
mod recent;
mod reconcile;
mod retention;
mod review;
mod settle;
mod shape;
mod stats;
mod watchers;
mod write_batcher;

use std::sync::{Arc, Weak};

use tokio_util::task::TaskTracker;

use self::{
    history::Notes, pace::Pace, policies::Policies, read_batcher::ReadBatcher, recent::Recent,
    reconcile::LooksFirst, watchers::Watchers, write_batcher::WriteBatcher,
};
use crate::{
    clock::Deadline,
    domain::{
        identity::{HASH_VERSION, Key},
        intent::Intent,
        report::{Outcome, Refusal},
        time::Timestamp,
        tool::ToolPolicy,
    },
    ids::Luck,
    store::{RowKey, Store, Stored, Write, row_id},
};

pub use self::{
    attempts::{AttemptsAnswer, AttemptsRequest, FirstBegin},
    begin::{BeginAnswer, BeginRequest, IdentityRequest, Similar},
    downstream::{Downstream, NotAsked},
    error::{LedgerError, Violation},
    extend::{ExtendAnswer, ExtendRequest},
    list::{ListAnswer, ListRequest},
    lookup::{LookupAnswer, LookupRequest, Target},
    model_message::model_message,
    policies::OfferError,
    reconcile::{Looked, Scope, Swept, Verdict},
    retention::Forgotten,
    review::{DecisionRequest, ResolutionRequest, ResolveRequest},
    settle::{CompleteRequest, FailRequest, SettleAnswer},
    shape::ReportedResult,
    stats::{StatsAnswer, StatsRequest, ToolStats},
};

/// The namespace of requests that name none, where there are no credentials.
pub const DEFAULT_NAMESPACE: &str = "default";

/// How often a decision is made again because somebody else's write came first. Each round means
/// that another caller got its answer: more than this many reports at once on one row is a bug.
const ROUNDS_MAX: usize = 10_000;

/// How many expressions over long arguments are evaluated at once: whoever sends many waits for his own.
const LONG_CONDITIONS_MAX: usize = 2;

/// How a ledger is set up.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// The version of the recipe that new rows are hashed under.
    pub hash_version: u32,
    /// How many writes may wait before further ones are turned away.
    pub queue_max: usize,
    /// How many rows one statement writes at most.
    pub batch_rows_max: usize,
    /// How many writers there are, where the store can use them.
    pub writers: usize,
    /// What keeps the reconciler's waits apart.
    pub luck: Luck,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            hash_version: HASH_VERSION,
            queue_max: write_batcher::QUEUE_MAX,
            batch_rows_max: write_batcher::BATCH_ROWS_MAX,
            writers: write_batcher::WRITERS,
            luck: Luck::default(),
        }
    }
}

/// A row as it was at some moment.
#[derive(Debug, Clone)]
struct Reading {
    /// The store's time of it.
    now: Timestamp,
    stored: Arc<Stored>,
}

/// What a decision about a row led to.
struct Changed<T> {
    /// The row afterwards.
    stored: Arc<Stored>,
    /// What else was decided.
    more: T,
}

/// Store, policy and the tasks between them.
pub struct Ledger {
    /// For tasks that outlive the call which starts them.
    this: Weak<Self>,
    store: Arc<dyn Store>,
    downstream: Arc<dyn Downstream>,
    writer: WriteBatcher,
    reader: ReadBatcher,
    policies: Arc<Policies>,
    watchers: Arc<Watchers>,
    notes: Arc<Notes>,
    pace: Pace,
    recent: Recent,
    looks_first: LooksFirst,
    /// Held by the one that looks for what is open.
    open_alone: tokio::sync::Mutex<()>,
    /// Turns of expressions over long arguments, which have threads of their own.
    long_conditions: Arc<tokio::sync::Semaphore>,
    luck: Luck,
    tasks: TaskTracker,
    stopping: tokio_util::sync::CancellationToken,
}

impl Ledger {
    /// A ledger over `store` that asks `downstream` about open outcomes, with its background tasks
    /// running.
    pub async fn start(
        store: Arc<dyn Store>,
        downstream: Arc<dyn Downstream>,
        options: &LedgerOptions,
    ) -> Result<Arc<Self>, LedgerError> {
        let tasks = TaskTracker::new();
        let stopping = tokio_util::sync::CancellationToken::new();
        let watchers = Arc::new(Watchers::default());
        let policies = Arc::new(Policies::load(&store, options.hash_version).await?);
        let notes = Arc::new(Notes::default());
        let writer = WriteBatcher::start(&store, &watchers, options, &tasks);
        let reader = ReadBatcher::start(&store, &tasks);
        tasks.spawn(Arc::clone(&watchers).run(Arc::clone(&store), stopping.clone()));
        tasks.spawn(Arc::clone(&policies).run(Arc::clone(&store), stopping.clone()));
        tasks.spawn(Arc::clone(&notes).run(Arc::clone(&store), stopping.clone()));
        tasks.spawn(history::keep_house(Arc::clone(&store), stopping.clone()));
        Ok(Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            store,
            downstream,
            writer,
            reader,
            policies,
            watchers,
            notes,
            pace: Pace::default(),
            recent: Recent::default(),
            looks_first: LooksFirst::default(),
            open_alone: tokio::sync::Mutex::default(),
            long_conditions: Arc::new(tokio::sync::Semaphore::new(LONG_CONDITIONS_MAX)),
            luck: options.luck.clone(),
            tasks,
            stopping,
        }))
    }

    /// Offers a policy file's text to all replicas; says which version is active afterwards.
    pub async fn offer_policy(&self, text: &str) -> Result<u32, OfferError> {
        self.policies.offer(&self.store, text).await
    }

    /// Whether the store answers.
    pub async fn is_ready(&self) -> bool {
        self.store.now().await.is_ok()
    }

    /// Lets waiting Lookups answer with what is there, so that a stop does not wait for them.
    pub fn release_waiters(&self) {
        self.watchers.release();
    }

    /// Takes no new work, writes what is queued, and ends the tasks.
    pub async fn stop(&self) {
        self.watchers.release();
        self.writer.close();
        self.reader.close();
        self.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        // Now that the last call is answered.
        self.notes.write_all(&*self.store).await;
    }

    /// Writes what this server remembers for people, so that it can be read. In a task of its own: a reader
    /// that goes away must not take it along.
    async fn write_notes(&self) {
        let (notes, store) = (Arc::clone(&self.notes), Arc::clone(&self.store));
        self.tasks.spawn(async move { notes.write_all(&*store).await }).await.ok();
    }

    fn policy(&self, intent: &Intent) -> Arc<ToolPolicy> {
        Arc::clone(self.policies.current().active().tool(&intent.namespace, &intent.tool))
    }

    /// When the intent's result, its proposal, or a person's yes to it runs out.
    pub fn expires_at(&self, intent: &Intent) -> Option<Timestamp> {
        use crate::domain::intent::State;
        match intent.state {
            State::AwaitingApproval => intent.approval.as_ref().map(|asked| asked.expires_at),
            State::Approved => intent.approval.as_ref()?.valid_until(),
            State::Completed | State::Failed | State::Denied => {
                intent.settled_at.map(|at| at + self.policy(intent).retention)
            }
            State::Started | State::Unknown => None,
        }
    }

    /// The row of a public key, whichever hash version it was made under.
    async fn find(
        &self,
        namespace: &str,
        key: &Key,
    ) -> Result<(Timestamp, Option<Stored>), LedgerError> {
        let hash_versions = (1..=self.policies.current().hash_version()).rev();
        let keys: Vec<RowKey> = hash_versions
            .map(|hash| RowKey { namespace: namespace.to_owned(), id: row_id(key, hash) })
            .collect();
        let found = self.reader.find(keys).await?;
        let row = found.rows.into_iter().flatten().find(|stored| stored.intent.key == *key);
        Ok((found.now, row))
    }

    /// A row that this server has just written, without asking the store; its time is that of its
    /// last grant.
    fn recent(&self, namespace: &str, key: &Key) -> Option<Reading> {
        let stored = self.recent.get(row_id(key, self.policies.current().hash_version()))?;
        let intent = &stored.intent;
        let same = intent.key == *key && intent.namespace == namespace;
        let now = intent.current().map_or(intent.created_at, |attempt| attempt.granted_at);
        same.then_some(Reading { now, stored })
    }

    /// Lets `decide` decide on a row and writes what follows, until no rival comes between; on the
    /// recent reading first, if there is one. What rests on a version of the policy is written only
    /// while that is the active one.
    async fn change<T>(
        &self,
        namespace: &str,
        key: &Key,
        deadline: Deadline,
        recent: Option<Reading>,
        policy: Option<u32>,
        decide: impl Fn(&Intent, Timestamp) -> Result<(Outcome, T), LedgerError>,
    ) -> Result<Changed<T>, LedgerError> {
        let mut at_hand = None;
        if let Some(reading) = recent {
            let decided = decided(reading, policy, &decide)?;
            // No other writing would show that the row has moved, or that the store is gone.
            if decided.write.is_some() {
                match self.write_decided(decided, deadline).await? {
                    Ok(changed) => return Ok(changed),
                    Err(seen) => at_hand = seen,
                }
            }
        }
        // Boxed, so that the ordinary report does not carry the room that the others need.
        Box::pin(self.change_in_rounds(namespace, key, deadline, at_hand, policy, &decide)).await
    }

    async fn change_in_rounds<T>(
        &self,
        namespace: &str,
        key: &Key,
        deadline: Deadline,
        mut at_hand: Option<Reading>,
        policy: Option<u32>,
        decide: &impl Fn(&Intent, Timestamp) -> Result<(Outcome, T), LedgerError>,
    ) -> Result<Changed<T>, LedgerError> {
        for _ in 0..ROUNDS_MAX {
            if deadline.has_passed() {
                return Err(LedgerError::DeadlinePassed);
            }
            let reading = match at_hand.take() {
                Some(reading) => reading,
                None => match self.find(namespace, key).await? {
                    (now, Some(stored)) => Reading { now, stored: Arc::new(stored) },
                    (_, None) => return Err(LedgerError::NotFound { report_kept: None }),
                },
            };
            match self.write_decided(decided(reading, policy, decide)?, deadline).await? {
                Ok(changed) => return Ok(changed),
                Err(seen) => at_hand = seen,
            }
        }
        Err(LedgerError::Internal("a change met somebody else's write too often".to_owned()))
    }

    /// Writes what was decided, if anything is to be written; where a rival's write came first, the
    /// row since, if it is known.
    async fn write_decided<T>(
        &self,
        decided: Decided<T>,
        deadline: Deadline,
    ) -> Result<Result<Changed<T>, Option<Reading>>, LedgerError> {
        let Decided { reading: Reading { now, mut stored }, write, answer, more } = decided;
        if let Some(write) = write {
            let id = write.row_id();
            match self.writer.write(write, deadline).await? {
                write_batcher::Outcome::Done(reading) => stored = reading.stored,
                write_batcher::Outcome::Missed(seen) => return Ok(Err(seen)),
                // Nothing that is changed here is refused for want of room; if it were, it is tried again.
                write_batcher::Outcome::Guarded => return Ok(Err(None)),
                write_batcher::Outcome::PolicyMoved => {
                    self.policies.reload(&self.store).await?;
                    return Err(LedgerError::PolicyMoved);
                }
            }
            self.recent.put(id, Arc::clone(&stored));
        }
        match answer {
            Ok(()) => Ok(Ok(Changed { stored, more })),
            Err(refusal) => {
                let intent = Box::new(stored.intent.clone());
                Err(LedgerError::Refused { refusal, intent, now })
            }
        }
    }
}

/// What was decided about a row.
struct Decided<T> {
    reading: Reading,
    write: Option<Write>,
    answer: Result<(), Refusal>,
    more: T,
}

fn decided<T>(
    reading: Reading,
    policy: Option<u32>,
    decide: &impl Fn(&Intent, Timestamp) -> Result<(Outcome, T), LedgerError>,
) -> Result<Decided<T>, LedgerError> {
    let (outcome, more) = decide(&reading.stored.intent, reading.now)?;
    let Outcome { intent, events, answer } = outcome;
    let idle = events.is_empty() && intent == reading.stored.intent;
    let write = (!idle).then(|| Write::replace(&reading.stored, intent, events, policy));
    Ok(Decided { reading, write, answer, more })
}
