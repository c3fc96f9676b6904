//! Any store, with its writes measured. No behaviour of its own.

use std::{collections::BTreeMap, error::Error, sync::Arc, time::Duration};

use async_trait::async_trait;
use tracing::Instrument;
use uuid::Uuid;

use super::{
    Cursor, Diagnosis, DownstreamObject, Filter, Found, OrphanFact, Reference, RowKey, Store,
    StoreError, Stored, StoredPolicies, StoredPolicy, Touch, Version, Write, Written,
    agenda::{Agenda, Entry, Release, ToolKey},
    guards::{Guarded, LookAlike},
    history::{History, KeepFrom, KeptRepeats, OpenNow, Repeated, RunCount, ToolCount},
    retention::{Filed, Kept, NextLook, Retention, Tombstone},
};
use crate::{
    clock::monotonic,
    domain::{event::Event, identity::Key, time::Timestamp},
    telemetry::metrics,
};

/// A store whose writes are measured.
pub struct Observed(pub Arc<dyn Store>);

#[async_trait]
impl Store for Observed {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.0.now().await
    }

    async fn write(
        &self,
        writes: &[Write],
        lock_wait: Duration,
    ) -> Result<Vec<Written>, StoreError> {
        let span = tracing::debug_span!("store.intent.write", rows = writes.len());
        let began = monotonic();
        let written = self.0.write(writes, lock_wait).instrument(span).await;
        metrics::batch(writes.len(), monotonic().duration_since(began));
        written
    }

    async fn find(&self, keys: &[RowKey]) -> Result<Found, StoreError> {
        let span = tracing::debug_span!("store.intent.find", keys = keys.len());
        let found = self.0.find(keys).instrument(span).await;
        if let Err(error) = &found {
            // The caller is told only that the store cannot be reached, not which wait ran out.
            tracing::warn!(error = error as &dyn Error, keys = keys.len(), "rows were not read");
        }
        found
    }

    async fn find_by_reference(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<Stored>, StoreError> {
        self.0.find_by_reference(namespace, reference).await
    }

    async fn others_with_references(
        &self,
        objects: &[DownstreamObject],
    ) -> Result<Vec<Option<Key>>, StoreError> {
        self.0.others_with_references(objects).await
    }

    async fn versions(
        &self,
        ids: &[Uuid],
    ) -> Result<(Timestamp, Vec<Option<Version>>), StoreError> {
        self.0.versions(ids).await
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        self.0.list(filter, after, rows_max).await
    }

    async fn events(&self, id: Uuid) -> Result<Vec<Event>, StoreError> {
        self.0.events(id).await
    }

    async fn keep_orphans(&self, facts: &[OrphanFact]) -> Result<Vec<bool>, StoreError> {
        self.0.keep_orphans(facts).await
    }

    async fn orphans(&self, key: &RowKey) -> Result<Vec<Event>, StoreError> {
        self.0.orphans(key).await
    }

    async fn touch(&self, touches: &[Touch]) -> Result<Vec<Touch>, StoreError> {
        self.0.touch(touches).await
    }

    async fn active_policy(&self) -> Result<u32, StoreError> {
        self.0.active_policy().await
    }

    async fn policies(&self) -> Result<StoredPolicies, StoreError> {
        self.0.policies().await
    }

    async fn activate_policy(
        &self,
        expected: u32,
        policy: &StoredPolicy,
    ) -> Result<bool, StoreError> {
        self.0.activate_policy(expected, policy).await
    }

    async fn unsettled_tools(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.0.unsettled_tools().await
    }

    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        self.0.diagnose().await
    }

    fn writers(&self) -> usize {
        self.0.writers()
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }
}

#[async_trait]
impl Agenda for Observed {
    async fn gather(&self, ends_max: usize, kept_for: Duration) -> Result<usize, StoreError> {
        self.0.gather(ends_max, kept_for).await
    }

    async fn due_tools(&self, namespace: Option<&str>) -> Result<Vec<ToolKey>, StoreError> {
        self.0.due_tools(namespace).await
    }

    async fn due(
        &self,
        tool: &ToolKey,
        rows_max: usize,
    ) -> Result<(Timestamp, Vec<Entry>), StoreError> {
        self.0.due(tool, rows_max).await
    }

    async fn due_proposals(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.0.due_proposals(namespace, tool, rows_max).await
    }

    async fn entry(&self, id: Uuid) -> Result<(Timestamp, Option<Entry>), StoreError> {
        self.0.entry(id).await
    }

    async fn claim(
        &self,
        entries: &[Entry],
        span: Duration,
    ) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.0.claim(entries, span).await
    }

    async fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        self.0.waiting_for_people(namespace, tool).await
    }

    async fn release(&self, releases: &[Release]) -> Result<(), StoreError> {
        self.0.release(releases).await
    }
}

#[async_trait]
impl Retention for Observed {
    async fn claim_filed(
        &self,
        entries_max: usize,
        span: Duration,
    ) -> Result<(Timestamp, Vec<Filed>), StoreError> {
        self.0.claim_filed(entries_max, span).await
    }

    async fn kept(&self, ids: &[Uuid]) -> Result<Vec<Option<Kept>>, StoreError> {
        self.0.kept(ids).await
    }

    async fn prune(&self, tombstones: &[Tombstone], policy: u32) -> Result<Vec<bool>, StoreError> {
        self.0.prune(tombstones, policy).await
    }

    async fn purge(&self, rows: &[(Uuid, Version)], policy: u32) -> Result<Vec<bool>, StoreError> {
        self.0.purge(rows, policy).await
    }

    async fn file(&self, claimed: &[Filed], looks: &[NextLook]) -> Result<(), StoreError> {
        self.0.file(claimed, looks).await
    }
}

#[async_trait]
impl Guarded for Observed {
    async fn slots_held(&self, run: Uuid) -> Result<u64, StoreError> {
        self.0.slots_held(run).await
    }

    async fn look_alikes(
        &self,
        subject: Uuid,
        since: Timestamp,
    ) -> Result<Vec<LookAlike>, StoreError> {
        self.0.look_alikes(subject, since).await
    }

    async fn forget_look_alikes(&self, rows_max: usize) -> Result<usize, StoreError> {
        self.0.forget_look_alikes(rows_max).await
    }
}

#[async_trait]
impl History for Observed {
    async fn remember(&self, repeats: &[Repeated]) -> Result<(), StoreError> {
        self.0.remember(repeats).await
    }

    async fn repeats(
        &self,
        id: Uuid,
        after: u32,
        records_max: usize,
    ) -> Result<KeptRepeats, StoreError> {
        self.0.repeats(id, after, records_max).await
    }

    async fn count(&self, tools: &[ToolCount], runs: &[RunCount]) -> Result<(), StoreError> {
        self.0.count(tools, runs).await
    }

    async fn counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
    ) -> Result<Vec<ToolCount>, StoreError> {
        self.0.counts(namespace, tool, since).await
    }

    async fn run_counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
        rows_max: usize,
    ) -> Result<Vec<RunCount>, StoreError> {
        self.0.run_counts(namespace, tool, since, rows_max).await
    }

    async fn roll_counts(&self, keep_from: KeepFrom) -> Result<(), StoreError> {
        self.0.roll_counts(keep_from).await
    }

    async fn open_now(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        ends_max: usize,
    ) -> Result<OpenNow, StoreError> {
        self.0.open_now(namespace, tool, ends_max).await
    }
}
