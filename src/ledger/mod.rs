//! The operations of the ledger, one file each: read the row, let the domain decide, write, answer.
//!
//! Nothing is answered that has not been written first. A write that meets somebody else's is
//! decided again on what is there now.

mod begin;
mod error;
mod extend;
mod list;
mod lookup;
mod model_message;
mod policies;
mod recent;
mod repeats;
mod review;
mod settle;
mod shape;
mod watchers;
mod write_batcher;

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use self::{
    policies::Policies, recent::Recent, repeats::Repeats, watchers::Watchers,
    write_batcher::WriteBatcher,
};
use crate::{
    clock::Deadline,
    domain::{
        identity::{HASH_VERSION, Key},
        intent::Intent,
        report::Outcome,
        time::Timestamp,
        tool::ToolPolicy,
    },
    store::{RowKey, Store, Stored, Write, Written, row_id},
};

pub use self::{
    begin::{BeginAnswer, BeginRequest, IdentityRequest},
    error::{LedgerError, Violation},
    extend::{ExtendAnswer, ExtendRequest},
    list::{ListAnswer, ListRequest},
    lookup::{LookupAnswer, LookupRequest, Target},
    model_message::model_message,
    policies::OfferError,
    review::{ResolutionRequest, ResolveRequest},
    settle::{CompleteRequest, FailRequest, SettleAnswer},
    shape::ReportedResult,
};

/// The namespace of requests that name none, where there are no credentials.
pub const DEFAULT_NAMESPACE: &str = "default";

/// How often a decision is made again because somebody else's write came first. Each round means
/// that another caller got its answer, so this is a bound against bugs, not against load.
const ROUNDS_MAX: usize = 100;

/// How a ledger is set up.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// The version of the recipe that new rows are hashed under.
    pub hash_version: u32,
    /// How many writes may wait before further ones are turned away.
    pub queue_max: usize,
    /// How many rows one statement writes at most.
    pub batch_rows_max: usize,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            hash_version: HASH_VERSION,
            queue_max: write_batcher::QUEUE_MAX,
            batch_rows_max: write_batcher::BATCH_ROWS_MAX,
        }
    }
}

/// Store, policy and the tasks between them.
pub struct Ledger {
    store: Arc<dyn Store>,
    writer: WriteBatcher,
    policies: Arc<Policies>,
    watchers: Arc<Watchers>,
    repeats: Arc<Repeats>,
    recent: Recent,
    tasks: TaskTracker,
    stopping: tokio_util::sync::CancellationToken,
}

impl Ledger {
    /// A ledger over `store`, with its background tasks running.
    pub async fn start(
        store: Arc<dyn Store>,
        options: &LedgerOptions,
    ) -> Result<Self, LedgerError> {
        let tasks = TaskTracker::new();
        let stopping = tokio_util::sync::CancellationToken::new();
        let watchers = Arc::new(Watchers::default());
        let policies = Arc::new(Policies::load(&store, options.hash_version).await?);
        let repeats = Arc::new(Repeats::default());
        let writer = WriteBatcher::start(&store, &watchers, options, &tasks);
        tasks.spawn(Arc::clone(&watchers).run(Arc::clone(&store), stopping.clone()));
        tasks.spawn(Arc::clone(&policies).run(Arc::clone(&store), stopping.clone()));
        tasks.spawn(Arc::clone(&repeats).run(Arc::clone(&store), stopping.clone()));
        let recent = Recent::default();
        Ok(Self { store, writer, policies, watchers, repeats, recent, tasks, stopping })
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
        self.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn policy(&self, intent: &Intent) -> Arc<ToolPolicy> {
        Arc::clone(self.policies.current().active().tool(&intent.namespace, &intent.tool))
    }

    /// When the intent's result, or its proposal, runs out.
    pub fn expires_at(&self, intent: &Intent) -> Option<Timestamp> {
        use crate::domain::intent::State;
        match intent.state {
            State::AwaitingApproval => intent.approval.as_ref().map(|asked| asked.expires_at),
            State::Completed | State::Failed | State::Denied => {
                intent.settled_at.map(|at| at + self.policy(intent).retention)
            }
            State::Approved | State::Started | State::Unknown => None,
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
        let found = self.store.find(&keys).await?;
        let row = found.rows.into_iter().flatten().find(|stored| stored.intent.key == *key);
        Ok((found.now, row))
    }

    /// A row that this server has just granted, without asking the store.
    fn recent(&self, namespace: &str, key: &Key) -> Option<Stored> {
        let stored = self.recent.take(row_id(key, self.policies.current().hash_version()))?;
        let same = stored.intent.key == *key && stored.intent.namespace == namespace;
        same.then_some(stored)
    }

    /// Writes the outcome of a report or of a person's decision; `None` if the row has moved.
    async fn write_outcome(
        &self,
        read: &Stored,
        outcome: &Outcome,
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<Option<Intent>, LedgerError> {
        if outcome.intent == read.intent && outcome.events.is_empty() {
            return Ok(Some(outcome.intent.clone()));
        }
        let write = Write::replace(read, outcome.intent.clone(), outcome.events.clone(), now, None);
        match self.writer.write(write.clone(), deadline).await? {
            Written::Done { at } => Ok(Some(write.stamped(at))),
            Written::Missed | Written::PolicyMoved => Ok(None),
        }
    }
}
