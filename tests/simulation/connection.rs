//! A server's connection to the store: what is lost on the way, what comes late, and crashes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use intent_ledger::{
    domain::{event::Event, identity::Key, time::Timestamp},
    store::{
        Cursor, Diagnosis, DownstreamObject, Filter, Found, OrphanFact, Reference, RowKey, Store,
        StoreError, Stored, StoredPolicies, StoredPolicy, Touch, Version, Write, Written,
        agenda::{Agenda, Entry, Release, ToolKey},
        guards::{Guarded, LookAlike},
        history::{History, KeepFrom, KeptRepeats, OpenNow, Repeated, RunCount, ToolCount},
        retention::{Filed, Kept, NextLook, Retention, Tombstone},
    },
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{calendar::Calendar, table::Table, trace::Trace};
use crate::dice::Dice;

/// What can go wrong between a server and its store.
#[derive(Debug)]
pub(crate) struct Weather {
    dice: Dice,
    /// How many of a hundred writes something happens to.
    percent: u64,
    /// Until when nothing is answered at all.
    down_until: Timestamp,
}

impl Weather {
    pub(crate) fn new(dice: Dice, percent: u64) -> Self {
        Self { dice, percent, down_until: Timestamp::default() }
    }

    /// No fault from now on.
    pub(crate) fn turn_fair(&mut self) {
        self.percent = 0;
        self.down_until = Timestamp::default();
    }

    pub(crate) fn storm(&mut self, until: Timestamp) {
        self.down_until = until;
    }

    fn moment(&mut self) -> Option<Duration> {
        (self.percent > 0 && self.dice.percent(10)).then(|| self.dice.moment())
    }

    fn of_a_write(&mut self) -> Fault {
        if !self.dice.percent(self.percent) {
            return Fault::Nothing;
        }
        let late = Duration::from_millis(self.dice.one_of(&[1, 100, 10_000, 300_000]));
        self.dice.one_of(&[
            Fault::Refused,
            Fault::Rejected,
            Fault::Locked,
            Fault::RequestLost,
            Fault::RequestLate(late),
            Fault::ReplyLost,
            Fault::ReplyLost,
        ])
    }
}

/// What happens to one call that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The store says that it did nothing, and it did not.
    Refused,
    /// The store finds fault with one of several rows, and writes none.
    Rejected,
    /// Somebody has locked one of the rows; none is written.
    Locked,
    /// Nothing is done, and nobody can tell.
    RequestLost,
    /// It is done later, as far as it still can be, and nobody is told.
    RequestLate(Duration),
    /// It is done, and nobody is told.
    ReplyLost,
}

/// A connection from one server, for as long as that lives.
pub(crate) struct Connection {
    calendar: Arc<Calendar>,
    table: Arc<Mutex<Table>>,
    weather: Arc<Mutex<Weather>>,
    trace: Arc<Trace>,
    crashed: CancellationToken,
    writers: usize,
}

impl Connection {
    pub(crate) fn new(
        calendar: &Arc<Calendar>,
        table: &Arc<Mutex<Table>>,
        weather: &Arc<Mutex<Weather>>,
        trace: &Arc<Trace>,
        crashed: CancellationToken,
        writers: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            calendar: Arc::clone(calendar),
            table: Arc::clone(table),
            weather: Arc::clone(weather),
            trace: Arc::clone(trace),
            crashed,
            writers,
        })
    }

    /// A while on the way. What has crashed meanwhile goes no further.
    async fn travel(&self) {
        let moment = self.weather.lock().unwrap().moment();
        if let Some(moment) = moment {
            tokio::time::sleep(moment).await;
        }
        if self.crashed.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    fn is_up(&self) -> Result<(), StoreError> {
        let down_until = self.weather.lock().unwrap().down_until;
        if self.calendar.now() < down_until {
            return Err(StoreError::Unavailable("the store is down".into()));
        }
        Ok(())
    }

    async fn read<T>(&self, job: impl FnOnce(&mut Table) -> T) -> Result<T, StoreError> {
        self.travel().await;
        self.is_up()?;
        let lost = {
            let mut weather = self.weather.lock().unwrap();
            let percent = weather.percent / 4;
            weather.dice.percent(percent)
        };
        if lost {
            return Err(StoreError::Unavailable("lost on the way".into()));
        }
        let found = job(&mut self.table.lock().unwrap());
        self.travel().await;
        Ok(found)
    }

    async fn change<T: Send + 'static>(
        &self,
        rows: usize,
        job: impl FnOnce(&mut Table) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.travel().await;
        self.is_up()?;
        let fault = self.weather.lock().unwrap().of_a_write();
        if fault != Fault::Nothing {
            let name = format!("{fault:?}");
            self.trace.count(format!("store: {}", name.split('(').next().unwrap_or_default()));
        }
        let in_doubt = || StoreError::Indeterminate("lost on the way".into());
        let answer = match fault {
            Fault::Refused => Err(StoreError::Unavailable("refused".into())),
            Fault::Rejected if rows > 1 => Err(StoreError::Rejected("rejected".into())),
            Fault::Locked => Err(StoreError::Locked("locked".into())),
            Fault::RequestLost => Err(in_doubt()),
            Fault::RequestLate(late) => {
                let (calendar, table) = (Arc::clone(&self.calendar), Arc::clone(&self.table));
                self.calendar.spawn(async move {
                    calendar.sleep(late).await;
                    job(&mut table.lock().unwrap());
                });
                Err(in_doubt())
            }
            Fault::ReplyLost => {
                job(&mut self.table.lock().unwrap());
                Err(in_doubt())
            }
            Fault::Nothing | Fault::Rejected => Ok(job(&mut self.table.lock().unwrap())),
        };
        self.travel().await;
        answer
    }
}

#[async_trait]
impl Store for Connection {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.read(Table::now).await
    }

    async fn write(&self, writes: &[Write], _: Duration) -> Result<Vec<Written>, StoreError> {
        let writes = writes.to_vec();
        self.change(writes.len(), move |table| table.write(&writes)).await
    }

    async fn find(&self, keys: &[RowKey]) -> Result<Found, StoreError> {
        self.read(|table| table.find(keys)).await
    }

    async fn find_by_reference(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<Stored>, StoreError> {
        self.read(|table| table.find_by_reference(namespace, reference)).await
    }

    async fn others_with_references(
        &self,
        objects: &[DownstreamObject],
    ) -> Result<Vec<Option<Key>>, StoreError> {
        self.read(|table| objects.iter().map(|it| table.other_with_reference(it)).collect()).await
    }

    async fn versions(
        &self,
        ids: &[Uuid],
    ) -> Result<(Timestamp, Vec<Option<Version>>), StoreError> {
        self.read(|table| table.versions(ids)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        self.read(|table| table.list(filter, after, rows_max)).await
    }

    async fn events(&self, id: Uuid) -> Result<Vec<Event>, StoreError> {
        self.read(|table| table.events(id)).await
    }

    async fn keep_orphans(&self, facts: &[OrphanFact]) -> Result<Vec<bool>, StoreError> {
        let facts = facts.to_vec();
        self.change(1, move |table| table.keep_orphans(&facts)).await
    }

    async fn orphans(&self, key: &RowKey) -> Result<Vec<Event>, StoreError> {
        self.read(|table| table.orphans(key)).await
    }

    async fn touch(&self, touches: &[Touch]) -> Result<Vec<Touch>, StoreError> {
        let touches = touches.to_vec();
        self.change(1, move |table| table.touch(&touches)).await?;
        Ok(Vec::new())
    }

    async fn active_policy(&self) -> Result<u32, StoreError> {
        self.read(|table| table.policies().active).await
    }

    async fn policies(&self) -> Result<StoredPolicies, StoreError> {
        self.read(|table| table.policies().clone()).await
    }

    async fn activate_policy(
        &self,
        expected: u32,
        policy: &StoredPolicy,
    ) -> Result<bool, StoreError> {
        let policy = policy.clone();
        self.change(1, move |table| table.activate_policy(expected, &policy)).await
    }

    async fn unsettled_tools(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.read(|table| table.unsettled_tools()).await
    }

    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        let now = self.now().await?;
        let product = "the simulation".to_owned();
        Ok(Diagnosis { product, settings: Vec::new(), now, oldest_unsettled: None })
    }

    fn writers(&self) -> usize {
        self.writers
    }

    fn is_shared(&self) -> bool {
        false
    }
}

#[async_trait]
impl Agenda for Connection {
    async fn gather(&self, ends_max: usize, kept_for: Duration) -> Result<usize, StoreError> {
        self.change(1, move |table| table.gather(ends_max, kept_for)).await
    }

    async fn due_tools(&self, namespace: Option<&str>) -> Result<Vec<ToolKey>, StoreError> {
        self.read(|table| table.due_tools(namespace)).await
    }

    async fn due(
        &self,
        tool: &ToolKey,
        rows_max: usize,
    ) -> Result<(Timestamp, Vec<Entry>), StoreError> {
        self.read(|table| table.due(tool, rows_max)).await
    }

    async fn due_proposals(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.read(|table| table.due_proposals(namespace, tool, rows_max)).await
    }

    async fn entry(&self, id: Uuid) -> Result<(Timestamp, Option<Entry>), StoreError> {
        self.read(|table| table.entry(id)).await
    }

    async fn claim(
        &self,
        entries: &[Entry],
        span: Duration,
    ) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let entries = entries.to_vec();
        self.change(1, move |table| table.claim(&entries, span)).await
    }

    async fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        self.read(|table| table.waiting_for_people(namespace, tool)).await
    }

    async fn release(&self, releases: &[Release]) -> Result<(), StoreError> {
        let releases = releases.to_vec();
        self.change(1, move |table| table.release(&releases)).await
    }
}

#[async_trait]
impl Retention for Connection {
    async fn claim_filed(
        &self,
        entries_max: usize,
        span: Duration,
    ) -> Result<(Timestamp, Vec<Filed>), StoreError> {
        self.change(1, move |table| table.claim_filed(entries_max, span)).await
    }

    async fn kept(&self, ids: &[Uuid]) -> Result<Vec<Option<Kept>>, StoreError> {
        self.read(|table| table.kept(ids)).await
    }

    async fn prune(&self, tombstones: &[Tombstone], policy: u32) -> Result<Vec<bool>, StoreError> {
        let tombstones = tombstones.to_vec();
        self.change(tombstones.len(), move |table| table.prune(&tombstones, policy)).await
    }

    async fn purge(&self, rows: &[(Uuid, Version)], policy: u32) -> Result<Vec<bool>, StoreError> {
        let rows = rows.to_vec();
        self.change(rows.len(), move |table| table.purge(&rows, policy)).await
    }

    async fn file(&self, claimed: &[Filed], looks: &[NextLook]) -> Result<(), StoreError> {
        let (claimed, looks) = (claimed.to_vec(), looks.to_vec());
        self.change(1, move |table| table.file(&claimed, &looks)).await
    }
}

#[async_trait]
impl Guarded for Connection {
    async fn slots_held(&self, run: Uuid) -> Result<u64, StoreError> {
        self.read(|table| table.slots_held(run)).await
    }

    async fn look_alikes(
        &self,
        subject: Uuid,
        since: Timestamp,
    ) -> Result<Vec<LookAlike>, StoreError> {
        self.read(|table| table.look_alikes(subject, since)).await
    }

    async fn forget_look_alikes(&self, rows_max: usize) -> Result<usize, StoreError> {
        self.change(1, move |table| table.forget_look_alikes(rows_max)).await
    }
}

/// What is counted for people is no part of what is played: nothing is decided by it.
#[async_trait]
impl History for Connection {
    async fn remember(&self, _: &[Repeated]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn repeats(&self, _: Uuid, _: u32, _: usize) -> Result<KeptRepeats, StoreError> {
        Ok(KeptRepeats::default())
    }

    async fn count(&self, _: &[ToolCount], _: &[RunCount]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn counts(
        &self,
        _: &str,
        _: Option<&str>,
        _: Timestamp,
    ) -> Result<Vec<ToolCount>, StoreError> {
        Ok(Vec::new())
    }

    async fn run_counts(
        &self,
        _: &str,
        _: Option<&str>,
        _: Timestamp,
        _: usize,
    ) -> Result<Vec<RunCount>, StoreError> {
        Ok(Vec::new())
    }

    async fn roll_counts(&self, _: KeepFrom) -> Result<(), StoreError> {
        Ok(())
    }

    async fn open_now(
        &self,
        _: Option<&str>,
        _: Option<&str>,
        _: usize,
    ) -> Result<OpenNow, StoreError> {
        Ok(OpenNow::default())
    }
}
