//! A store that refuses, loses answers, or waits, as a test tells it to; otherwise the real one.

use std::{
    collections::BTreeMap,
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use intent_ledger::{
    domain::{attempt::Fate, event::Event, identity::Key, time::Timestamp},
    proto::v1::{Intent, LookupRequest},
    store::{
        Cursor, Diagnosis, DownstreamObject, Filter, Found, OrphanFact, Reference, RowKey, Store,
        StoreError, Stored, StoredPolicies, StoredPolicy, Touch, Version, Write, Written,
        agenda::{Agenda, Entry, Release, ToolKey},
        guards::{Guarded, LookAlike},
        history::{History, KeepFrom, KeptRepeats, OpenNow, Repeated, RunCount, ToolCount},
        retention::{Filed, Kept, NextLook, Retention, Tombstone},
    },
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::task::TaskTracker;
use tonic::Status;
use uuid::Uuid;

use super::{
    calls::{self, Agent},
    seeded::Luck,
};

/// What goes wrong with one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing, for a write between others.
    Nothing,
    /// The store says that it wrote nothing, and it did not.
    Refused,
    /// It is written, and the answer is lost.
    ReplyLost,
    /// It is not written, and nobody can tell.
    RequestLost,
    /// As far as anybody can tell it is lost; it is written later, if it still can be.
    RequestLate,
    /// The store finds fault with one of several rows, and writes none.
    Rejected,
    /// Somebody has locked one of the rows; none is written.
    Locked,
}

/// A row that was truly written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) id: Uuid,
    pub(crate) version: Version,
    /// The attempt that was the current one with this write, and its fate.
    pub(crate) attempt: Uuid,
    pub(crate) fate: Fate,
    /// Whether the writer has been told.
    pub(crate) told: bool,
}

/// A real store with faults to come.
pub(crate) struct FaultyStore {
    inner: Arc<dyn Store>,
    writers: usize,
    luck: Option<Mutex<Luck>>,
    truths: Arc<Mutex<Vec<Truth>>>,
    late: TaskTracker,
    batches: Mutex<Vec<usize>>,
    faults: Mutex<VecDeque<Fault>>,
    history_faults: Mutex<VecDeque<Fault>>,
    down: AtomicBool,
    held: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
    finds: watch::Sender<usize>,
    reading: AtomicUsize,
    answered: AtomicUsize,
    dies_in: Mutex<Option<usize>>,
}

impl FaultyStore {
    pub(crate) fn over(inner: Arc<dyn Store>) -> Arc<Self> {
        // One writer, so that a held write holds up everything behind it.
        Self::new(inner, 1, None)
    }

    /// A store whose faults come by chance.
    pub(crate) fn with_luck(inner: Arc<dyn Store>, writers: usize, luck: Luck) -> Arc<Self> {
        Self::new(inner, writers, Some(Mutex::new(luck)))
    }

    fn new(inner: Arc<dyn Store>, writers: usize, luck: Option<Mutex<Luck>>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            writers,
            luck,
            truths: Arc::default(),
            late: TaskTracker::new(),
            batches: Mutex::default(),
            faults: Mutex::default(),
            history_faults: Mutex::default(),
            down: AtomicBool::new(false),
            held: watch::channel(false).0,
            waiting: watch::channel(0).0,
            finds: watch::channel(0).0,
            reading: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            dies_in: Mutex::default(),
        })
    }

    /// The next writes meet these faults, one each.
    pub(crate) fn next_writes(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// The next times that repeats are written meet these faults, one each.
    pub(crate) fn next_repeats(&self, faults: &[Fault]) {
        self.history_faults.lock().unwrap().extend(faults);
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

    /// How many keys have been looked up.
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

    /// Whether some call reads a row.
    pub(crate) fn is_read(&self) -> bool {
        self.reading.load(Ordering::SeqCst) > 0
    }

    /// Retention dies at this half of a step: before the first step is done (0), after it (1), before the second (2) …
    pub(crate) fn fails_at_step(&self, half: Option<usize>) {
        *self.dies_in.lock().unwrap() = half;
    }

    async fn step<T>(
        &self,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.up()?;
        let half = {
            let mut dies_in = self.dies_in.lock().unwrap();
            let half = *dies_in;
            *dies_in = half.and_then(|halves| halves.checked_sub(2));
            half
        };
        if half == Some(0) {
            return Err(StoreError::Unavailable("refused by the test".into()));
        }
        let done = step.await;
        if half == Some(1) {
            Err(StoreError::Indeterminate("lost by the test".into()))
        } else {
            done
        }
    }

    /// How many writes have been answered, whatever the answer.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// How many rows each write has had.
    pub(crate) fn batches(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }

    /// What was truly written, whatever anybody was told.
    pub(crate) fn truths(&self) -> Vec<Truth> {
        self.truths.lock().unwrap().clone()
    }

    /// Has no more bad luck; returns once late writes have happened.
    pub(crate) async fn turn_good(&self) {
        if let Some(luck) = &self.luck {
            luck.lock().unwrap().turn_good();
        }
        self.late.close();
        self.late.wait().await;
    }

    async fn read<T>(&self, read: impl Future<Output = T>) -> T {
        self.reading.fetch_add(1, Ordering::SeqCst);
        let read = read.await;
        self.reading.fetch_sub(1, Ordering::SeqCst);
        read
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
        self.batches.lock().unwrap().push(writes.len());
        let told_to = self.faults.lock().unwrap().pop_front();
        let (pause, by_chance) =
            self.luck.as_ref().map_or((None, None), |luck| luck.lock().unwrap().of_a_write());
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let lost = Err(StoreError::Indeterminate("lost by the test".into()));
        let answer = match told_to.or(by_chance) {
            Some(Fault::Rejected) if writes.len() > 1 => {
                Err(StoreError::Rejected("rejected by the test".into()))
            }
            None | Some(Fault::Nothing | Fault::Rejected) => {
                let written = self.inner.write(writes, lock_wait).await;
                note(&self.truths, writes, &written, true);
                written
            }
            Some(Fault::Locked) => Err(StoreError::Locked("locked by the test".into())),
            Some(Fault::Refused) => Err(StoreError::Unavailable("refused by the test".into())),
            Some(Fault::RequestLost) => lost,
            Some(Fault::RequestLate) => {
                let (inner, truths) = (Arc::clone(&self.inner), Arc::clone(&self.truths));
                let writes = writes.to_vec();
                self.late.spawn(async move {
                    tokio::time::sleep(pause.unwrap_or_default()).await;
                    let written = inner.write(&writes, lock_wait).await;
                    note(&truths, &writes, &written, false);
                });
                lost
            }
            Some(Fault::ReplyLost) => {
                let written = self.inner.write(writes, lock_wait).await;
                note(&self.truths, writes, &written, false);
                written.and(lost)
            }
        };
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        self.answered.fetch_add(1, Ordering::SeqCst);
        answer
    }

    async fn find(&self, keys: &[RowKey]) -> Result<Found, StoreError> {
        self.up()?;
        if self.luck.as_ref().is_some_and(|luck| luck.lock().unwrap().of_a_read()) {
            return Err(StoreError::Unavailable("refused by the test".into()));
        }
        let found = self.read(self.inner.find(keys)).await;
        self.finds.send_modify(|finds| *finds += keys.len());
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

    async fn others_with_references(
        &self,
        objects: &[DownstreamObject],
    ) -> Result<Vec<Option<Key>>, StoreError> {
        self.up()?;
        self.inner.others_with_references(objects).await
    }

    async fn versions(
        &self,
        ids: &[Uuid],
    ) -> Result<(Timestamp, Vec<Option<Version>>), StoreError> {
        self.up()?;
        self.read(self.inner.versions(ids)).await
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

    async fn touch(&self, touches: &[Touch]) -> Result<Vec<Touch>, StoreError> {
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

    fn writers(&self) -> usize {
        self.writers
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
}

#[async_trait]
impl Agenda for FaultyStore {
    async fn gather(&self, ends_max: usize, kept_for: Duration) -> Result<usize, StoreError> {
        self.up()?;
        self.inner.gather(ends_max, kept_for).await
    }

    async fn due_tools(&self, namespace: Option<&str>) -> Result<Vec<ToolKey>, StoreError> {
        self.up()?;
        self.inner.due_tools(namespace).await
    }

    async fn due(
        &self,
        tool: &ToolKey,
        rows_max: usize,
    ) -> Result<(Timestamp, Vec<Entry>), StoreError> {
        self.up()?;
        self.inner.due(tool, rows_max).await
    }

    async fn due_proposals(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.up()?;
        self.inner.due_proposals(namespace, tool, rows_max).await
    }

    async fn entry(&self, id: Uuid) -> Result<(Timestamp, Option<Entry>), StoreError> {
        self.up()?;
        self.inner.entry(id).await
    }

    async fn claim(
        &self,
        entries: &[Entry],
        span: Duration,
    ) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.up()?;
        self.inner.claim(entries, span).await
    }

    async fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        self.up()?;
        self.inner.waiting_for_people(namespace, tool).await
    }

    async fn release(&self, releases: &[Release]) -> Result<(), StoreError> {
        self.up()?;
        self.inner.release(releases).await
    }
}

#[async_trait]
impl Retention for FaultyStore {
    async fn claim_filed(
        &self,
        entries_max: usize,
        span: Duration,
    ) -> Result<(Timestamp, Vec<Filed>), StoreError> {
        self.step(self.inner.claim_filed(entries_max, span)).await
    }

    async fn kept(&self, ids: &[Uuid]) -> Result<Vec<Option<Kept>>, StoreError> {
        self.step(self.inner.kept(ids)).await
    }

    async fn prune(&self, tombstones: &[Tombstone], policy: u32) -> Result<Vec<bool>, StoreError> {
        self.step(self.inner.prune(tombstones, policy)).await
    }

    async fn purge(&self, rows: &[(Uuid, Version)], policy: u32) -> Result<Vec<bool>, StoreError> {
        self.step(self.inner.purge(rows, policy)).await
    }

    async fn file(&self, claimed: &[Filed], looks: &[NextLook]) -> Result<(), StoreError> {
        self.step(self.inner.file(claimed, looks)).await
    }
}

#[async_trait]
impl Guarded for FaultyStore {
    async fn slots_held(&self, run: Uuid) -> Result<u64, StoreError> {
        self.up()?;
        self.inner.slots_held(run).await
    }

    async fn look_alikes(
        &self,
        subject: Uuid,
        since: Timestamp,
    ) -> Result<Vec<LookAlike>, StoreError> {
        self.up()?;
        self.inner.look_alikes(subject, since).await
    }

    async fn forget_look_alikes(&self, rows_max: usize) -> Result<usize, StoreError> {
        self.up()?;
        self.inner.forget_look_alikes(rows_max).await
    }
}

#[async_trait]
impl History for FaultyStore {
    async fn remember(&self, repeats: &[Repeated]) -> Result<(), StoreError> {
        self.up()?;
        let fault = self.history_faults.lock().unwrap().pop_front();
        let lost = Err(StoreError::Indeterminate("lost by the test".into()));
        match fault {
            None | Some(Fault::Nothing) => self.inner.remember(repeats).await,
            Some(Fault::ReplyLost) => self.inner.remember(repeats).await.and(lost),
            Some(Fault::RequestLost | Fault::RequestLate) => lost,
            Some(Fault::Refused) => Err(StoreError::Unavailable("refused by the test".into())),
            Some(Fault::Locked) => Err(StoreError::Locked("locked by the test".into())),
            Some(Fault::Rejected) => Err(StoreError::Rejected("rejected by the test".into())),
        }
    }

    async fn repeats(
        &self,
        id: Uuid,
        after: u32,
        records_max: usize,
    ) -> Result<KeptRepeats, StoreError> {
        self.up()?;
        self.inner.repeats(id, after, records_max).await
    }

    async fn count(&self, tools: &[ToolCount], runs: &[RunCount]) -> Result<(), StoreError> {
        self.up()?;
        self.inner.count(tools, runs).await
    }

    async fn counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
    ) -> Result<Vec<ToolCount>, StoreError> {
        self.up()?;
        self.inner.counts(namespace, tool, since).await
    }

    async fn run_counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
        rows_max: usize,
    ) -> Result<Vec<RunCount>, StoreError> {
        self.up()?;
        self.inner.run_counts(namespace, tool, since, rows_max).await
    }

    async fn roll_counts(&self, keep_from: KeepFrom) -> Result<(), StoreError> {
        self.up()?;
        self.inner.roll_counts(keep_from).await
    }

    async fn open_now(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        ends_max: usize,
    ) -> Result<OpenNow, StoreError> {
        self.up()?;
        self.inner.open_now(namespace, tool, ends_max).await
    }
}

/// Remembers the rows that were written.
fn note(
    truths: &Mutex<Vec<Truth>>,
    writes: &[Write],
    written: &Result<Vec<Written>, StoreError>,
    told: bool,
) {
    let Ok(written) = written else { return };
    let done = writes.iter().zip(written).filter(|(_, it)| matches!(it, Written::Done { .. }));
    truths.lock().unwrap().extend(done.filter_map(|(write, _)| {
        let current = write.intent.current()?;
        Some(Truth {
            id: write.row_id(),
            version: write.version_after(),
            attempt: current.id,
            fate: current.fate,
            told,
        })
    }));
}
