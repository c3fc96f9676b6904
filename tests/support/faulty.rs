//! A store that refuses, loses answers, or waits, as a test tells it to; otherwise the real one.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use intent_ledger::{
    domain::{event::Event, time::Timestamp},
    proto::v1::{Intent, LookupRequest},
    store::{
        Cursor, Diagnosis, Filter, Found, OrphanFact, Reference, RowKey, Store, StoreError, Stored,
        StoredPolicies, StoredPolicy, Touch, Version, Write, Written,
    },
};
use tokio::{sync::watch, task::JoinHandle};
use tonic::Status;
use uuid::Uuid;

use super::calls::{self, Agent};

/// What goes wrong with one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The store says that it wrote nothing, and it did not.
    Refused,
    /// It is written, and the answer is lost.
    ReplyLost,
    /// It is not written, and nobody can tell.
    RequestLost,
}

/// A real store with faults to come.
pub(crate) struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Mutex<VecDeque<Fault>>,
    down: AtomicBool,
    held: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
    finds: watch::Sender<usize>,
}

impl FaultyStore {
    pub(crate) fn over(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::default(),
            down: AtomicBool::new(false),
            held: watch::channel(false).0,
            waiting: watch::channel(0).0,
            finds: watch::channel(0).0,
        })
    }

    /// The next writes meet these faults, one each.
    pub(crate) fn next_writes(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// Whether nothing is answered at all.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Keeps writes from happening until [`Self::release`].
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }

    /// Returns once so many writes have arrived and are held.
    pub(crate) async fn held_writes(&self, count: usize) {
        self.waiting.subscribe().wait_for(|waiting| *waiting >= count).await.unwrap();
    }

    /// How many reads by key have been answered.
    pub(crate) fn finds(&self) -> watch::Receiver<usize> {
        self.finds.subscribe()
    }

    /// Starts a Lookup that waits for this intent, and returns once it cannot miss a change: it has
    /// read the row, and then read it again with its watch on.
    pub(crate) async fn waiting_lookup(
        &self,
        agent: &Agent,
        key: &str,
    ) -> JoinHandle<Result<Intent, Status>> {
        let mut finds = self.finds();
        let before = *finds.borrow_and_update();
        let request = LookupRequest { wait: Some(calls::span(300)), ..calls::by_key(key) };
        let agent = agent.clone();
        let waiting = tokio::spawn(async move { calls::lookup(&agent, request).await });
        finds.wait_for(|finds| *finds >= before + 2).await.unwrap();
        waiting
    }

    fn up(&self) -> Result<(), StoreError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("the test has switched the store off".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.up()?;
        self.inner.now().await
    }

    async fn write(
        &self,
        writes: &[Write],
        lock_wait: Duration,
    ) -> Result<Vec<Written>, StoreError> {
        self.up()?;
        self.waiting.send_modify(|waiting| *waiting += 1);
        self.held.subscribe().wait_for(|held| !held).await.unwrap();
        self.waiting.send_modify(|waiting| *waiting -= 1);
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            None => self.inner.write(writes, lock_wait).await,
            Some(Fault::Refused) => Err(StoreError::Unavailable("refused by the test".into())),
            Some(Fault::RequestLost) => Err(StoreError::Indeterminate("lost by the test".into())),
            Some(Fault::ReplyLost) => {
                self.inner.write(writes, lock_wait).await?;
                Err(StoreError::Indeterminate("lost by the test".into()))
            }
        }
    }

    async fn find(&self, keys: &[RowKey]) -> Result<Found, StoreError> {
        self.up()?;
        let found = self.inner.find(keys).await;
        self.finds.send_modify(|finds| *finds += 1);
        found
    }

    async fn find_by_reference(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<Stored>, StoreError> {
        self.up()?;
        self.inner.find_by_reference(namespace, reference).await
    }

    async fn versions(
        &self,
        ids: &[Uuid],
    ) -> Result<(Timestamp, Vec<Option<Version>>), StoreError> {
        self.up()?;
        self.inner.versions(ids).await
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        self.up()?;
        self.inner.list(filter, after, rows_max).await
    }

    async fn events(&self, id: Uuid) -> Result<Vec<Event>, StoreError> {
        self.up()?;
        self.inner.events(id).await
    }

    async fn keep_orphans(&self, facts: &[OrphanFact]) -> Result<Vec<bool>, StoreError> {
        self.up()?;
        self.inner.keep_orphans(facts).await
    }

    async fn orphans(&self, key: &RowKey) -> Result<Vec<Event>, StoreError> {
        self.up()?;
        self.inner.orphans(key).await
    }

    async fn touch(&self, touches: &[Touch]) -> Result<(), StoreError> {
        self.up()?;
        self.inner.touch(touches).await
    }

    async fn active_policy(&self) -> Result<u32, StoreError> {
        self.up()?;
        self.inner.active_policy().await
    }

    async fn policies(&self) -> Result<StoredPolicies, StoreError> {
        self.up()?;
        self.inner.policies().await
    }

    async fn activate_policy(
        &self,
        expected: u32,
        policy: &StoredPolicy,
    ) -> Result<bool, StoreError> {
        self.up()?;
        self.inner.activate_policy(expected, policy).await
    }

    async fn unsettled_tools(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.up()?;
        self.inner.unsettled_tools().await
    }

    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        self.up()?;
        self.inner.diagnose().await
    }

    /// One, so that a held write holds up everything behind it.
    fn writers(&self) -> usize {
        1
    }
}
