//! The store of the simulation: rows and agenda in memory, with the promises of the real ones.
//!
//! Nothing goes wrong here; that is the business of the connections to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use intent_ledger::{
    domain::{
        event::Event,
        identity::{Key, downstream_uuid},
        intent::{Intent, RunSlot, State},
        retention::Term,
        time::Timestamp,
    },
    store::{
        Cursor, DownstreamObject, Expected, Filter, Found, ORPHANS_PER_NAMESPACE_MAX, OrphanFact,
        Reference, RowKey, Stored, StoredPolicies, StoredPolicy, Touch, Version, Write, Written,
        agenda::{Entry, Release, ToolKey, WAITING_MAX},
        guards::{LookAlike, run_of},
        retention::{Filed, Kept, NextLook, Tombstone},
    },
};
use uuid::Uuid;

use super::{
    calendar::Calendar,
    guards::Taken,
    mutation::Mutation,
    oracle::{Oracle, action_of},
};

/// Rows, facts, policies, and what is due.
pub(crate) struct Table {
    calendar: Arc<Calendar>,
    oracle: Option<Arc<Oracle>>,
    mutation: Option<Mutation>,
    last: Timestamp,
    rows: BTreeMap<Uuid, Stored>,
    events: BTreeMap<Uuid, Vec<Event>>,
    orphans: BTreeMap<(Uuid, String), Vec<Event>>,
    policies: StoredPolicies,
    entries: BTreeMap<Uuid, Entry>,
    /// Those of them that are proposals.
    proposals: BTreeSet<Uuid>,
    /// Grants that are looked through once the first of their leases is over.
    batches: BTreeMap<(Timestamp, u64), Vec<Uuid>>,
    /// When rows are looked at for their retention.
    filed: BTreeMap<(Timestamp, Uuid), Vec<Uuid>>,
    pruned_at: BTreeMap<Uuid, Timestamp>,
    writes: u64,
    taken: Taken,
}

impl Table {
    pub(crate) fn new(
        calendar: Arc<Calendar>,
        oracle: Option<Arc<Oracle>>,
        mutation: Option<Mutation>,
    ) -> Self {
        Self {
            calendar,
            oracle,
            mutation,
            last: Timestamp::default(),
            rows: BTreeMap::new(),
            events: BTreeMap::new(),
            orphans: BTreeMap::new(),
            policies: StoredPolicies::default(),
            entries: BTreeMap::new(),
            proposals: BTreeSet::new(),
            batches: BTreeMap::new(),
            filed: BTreeMap::new(),
            pruned_at: BTreeMap::new(),
            writes: 0,
            taken: Taken::default(),
        }
    }

    /// The time; no two readings are the same, as on a real clock.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.last = self.calendar.now().max(self.last + Duration::from_micros(1));
        self.last
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Stored> {
        self.rows.values()
    }

    /// The keys of what is unsettled.
    pub(crate) fn open(&self) -> impl Iterator<Item = String> {
        let open = self.rows.values().filter(|row| row.intent.state.is_unsettled());
        open.map(|row| row.intent.key.to_string())
    }

    /// When the reconciler has something to do next.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let batch = self.batches.first_key_value().map(|((at, _), _)| *at);
        let entry = self.entries.values().map(|entry| entry.due_at).min();
        batch.into_iter().chain(entry).min()
    }

    /// When somebody will look at this row, if anybody will.
    pub(crate) fn look_at(&self, id: Uuid) -> Option<Timestamp> {
        let entry = self.entries.get(&id).map(|entry| entry.due_at);
        let batch = self.batches.iter().find(|(_, ids)| ids.contains(&id)).map(|((at, _), _)| *at);
        entry.or(batch)
    }

    pub(crate) fn write(&mut self, writes: &[Write]) -> Vec<Written> {
        let at = self.now();
        let mut granted: Option<Timestamp> = None;
        let mut batch = Vec::new();
        let written = writes.iter().map(|write| {
            let mut write = write.clone();
            let written = self.write_row(&mut write, at);
            if write.is_new() && matches!(written, Written::Done { .. }) {
                batch.push(write.row_id());
                if let Some(end) = write.first_lease_end() {
                    granted = Some(granted.map_or(end, |due| due.min(end)));
                }
            }
            written
        });
        let written = written.collect();
        if !batch.is_empty() {
            self.writes += 1;
            self.batches.insert((granted.unwrap_or(at), self.writes), batch);
        }
        written
    }

    fn write_row(&mut self, write: &mut Write, at: Timestamp) -> Written {
        if write.policy().is_some_and(|version| version != self.policies.active) {
            return Written::PolicyMoved;
        }
        if self.taken.refuse(write) {
            return Written::Guarded;
        }
        write.stamp(at);
        let id = write.row_id();
        let old = self.rows.get(&id);
        let holds = match write.expected() {
            Expected::Absent { orphans_seen } => {
                let namespace = write.intent.namespace.clone();
                old.is_none() && (orphans_seen || !self.orphans.contains_key(&(id, namespace)))
            }
            Expected::Version(version) => old.is_some_and(|old| {
                old.version == version || self.mutation == Some(Mutation::SkipsCompareAndSet)
            }),
        };
        if !holds {
            return Written::Missed;
        }
        self.writes += 1;
        if self.mutation == Some(Mutation::LosesWrites) && self.writes.is_multiple_of(40) {
            return Written::Done { at };
        }
        if let Some(oracle) = &self.oracle {
            oracle.row_changes(old.map(|old| &old.intent), &write.intent, at);
        }
        let version = old.map_or(1, |old| old.version + 1);
        // Counters are written behind, and are not a write's to change.
        let counted = old.map(|old| (old.intent.replay_count, old.intent.last_seen_at));
        let mut intent = (*write.intent).clone();
        (intent.replay_count, intent.last_seen_at) = counted.unwrap_or_default();
        self.rows.insert(id, Stored { intent, version });
        self.taken.keep(write, at, self.mutation);
        let (intent, held) = (&write.intent, self.taken.holds(run_of(&write.intent), id));
        if let Some(oracle) = &self.oracle
            && held != (intent.slot == RunSlot::Held)
        {
            let action = action_of(intent);
            oracle.violated(action, format!("{:?}, and a slot is held: {held}", intent.slot));
        }
        if let Some(due_at) = write.look_at() {
            self.put(write, due_at);
        }
        for event in write.stamped_events(at) {
            keep(self.events.entry(id).or_default(), event);
        }
        Written::Done { at }
    }

    /// Puts an intent on the agenda, or moves it there.
    fn put(&mut self, write: &Write, due_at: Timestamp) {
        if self.mutation == Some(Mutation::LosesAgenda) && self.writes.is_multiple_of(10) {
            self.entries.remove(&write.row_id());
            return;
        }
        let version = self.entries.get(&write.row_id()).map_or(1, |entry| entry.version + 1);
        if matches!(write.intent.state, State::AwaitingApproval | State::Approved) {
            self.proposals.insert(write.row_id());
        } else {
            self.proposals.remove(&write.row_id());
        }
        self.insert_entry(write.row_id(), &write.intent.clone(), due_at, version);
    }

    fn insert_entry(&mut self, id: Uuid, intent: &Intent, due_at: Timestamp, version: Version) {
        let entry = Entry {
            id,
            namespace: intent.namespace.clone(),
            tool: intent.tool.clone(),
            due_at,
            probes: 0,
            asked_at: None,
            claimed_until: None,
            version,
        };
        self.entries.insert(id, entry);
    }

    pub(crate) fn find(&mut self, keys: &[RowKey]) -> Found {
        let row = |key: &RowKey| {
            self.rows.get(&key.id).filter(|row| row.intent.namespace == key.namespace).cloned()
        };
        let rows = keys.iter().map(row).collect();
        Found { now: self.now(), rows }
    }

    pub(crate) fn find_by_reference(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Option<Stored> {
        let carries = |intent: &Intent| match reference {
            Reference::DownstreamKey(key) => intent.current().map_or_else(
                || intent.id() == *key,
                |attempt| downstream_uuid(intent.downstream_digest(attempt)) == *key,
            ),
            Reference::DownstreamRef(text) => intent.downstream_ref.as_ref() == Some(text),
            Reference::ToolCallId(text) => intent.tool_call_id == *text,
        };
        let rows = self.rows.values().filter(|row| row.intent.namespace == namespace);
        rows.filter(|row| carries(&row.intent)).max_by_key(|row| row.intent.created_at).cloned()
    }

    pub(crate) fn other_with_reference(&self, object: &DownstreamObject) -> Option<Key> {
        let DownstreamObject { tool, downstream_ref, row } = object;
        let carries = |intent: &&Intent| {
            intent.downstream_ref.as_ref() == Some(downstream_ref)
                && (&intent.namespace, &intent.tool) == (&tool.namespace, &tool.tool)
                && intent.id() != *row
        };
        self.rows.values().map(|row| &row.intent).find(carries).map(|intent| intent.key)
    }

    pub(crate) fn versions(&mut self, ids: &[Uuid]) -> (Timestamp, Vec<Option<Version>>) {
        let versions = ids.iter().map(|id| self.rows.get(id).map(|row| row.version)).collect();
        (self.now(), versions)
    }

    pub(crate) fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        rows_max: usize,
    ) -> Vec<Stored> {
        let place = |row: &Stored| (row.intent.created_at, row.intent.id());
        let wanted = |row: &&Stored| {
            let intent = &row.intent;
            intent.namespace == filter.namespace
                && (filter.tool.is_empty() || intent.tool == filter.tool)
                && (filter.run_id.is_empty() || intent.run_id == filter.run_id)
                && (filter.states.is_empty() || filter.states.contains(&intent.state))
                && filter.needs_attention.is_none_or(|it| it == intent.needs_attention)
                && filter.conflict.is_none_or(|it| it == intent.conflict)
                && after.is_none_or(|after| place(row) < (after.created_at, after.id))
        };
        let mut rows: Vec<&Stored> = self.rows.values().filter(wanted).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(place(row)));
        rows.into_iter().take(rows_max).cloned().collect()
    }

    pub(crate) fn events(&self, id: Uuid) -> Vec<Event> {
        self.events.get(&id).cloned().unwrap_or_default()
    }

    pub(crate) fn keep_orphans(&mut self, facts: &[OrphanFact]) -> Vec<bool> {
        let keep_one = |fact: &OrphanFact| {
            let of_namespace = self.orphans.iter().filter(|((_, it), _)| *it == fact.namespace);
            let room = of_namespace.map(|(_, facts)| facts.len()).sum::<usize>()
                < ORPHANS_PER_NAMESPACE_MAX;
            let kept = self.orphans.entry((fact.id, fact.namespace.clone())).or_default();
            if !room && !kept.contains(&fact.event) {
                return false;
            }
            keep(kept, fact.event.clone());
            true
        };
        facts.iter().map(keep_one).collect()
    }

    pub(crate) fn orphans(&self, key: &RowKey) -> Vec<Event> {
        self.orphans.get(&(key.id, key.namespace.clone())).cloned().unwrap_or_default()
    }

    pub(crate) fn touch(&mut self, touches: &[Touch]) {
        let at = self.now();
        for touch in touches {
            if let Some(row) = self.rows.get_mut(&touch.id) {
                row.intent.replay_count += touch.replays;
                row.intent.last_seen_at = Some(at);
            }
        }
    }

    pub(crate) fn policies(&self) -> &StoredPolicies {
        &self.policies
    }

    pub(crate) fn activate_policy(&mut self, expected: u32, policy: &StoredPolicy) -> bool {
        if self.policies.active != expected {
            return false;
        }
        self.policies.active = policy.version;
        self.policies.kept.insert(0, policy.clone());
        true
    }

    pub(crate) fn unsettled_tools(&self) -> Vec<(String, String)> {
        let unsettled = self.rows.values().filter(|row| row.intent.state.is_unsettled());
        let tools = unsettled.map(|row| (row.intent.namespace.clone(), row.intent.tool.clone()));
        tools.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    pub(crate) fn gather(&mut self, batches_max: usize, kept_for: Duration) -> usize {
        let now = self.now();
        let due = self.batches.range(..=(now, u64::MAX)).take(batches_max);
        let due: Vec<(Timestamp, u64)> = due.map(|(batch, _)| *batch).collect();
        for batch in &due {
            let ids = self.batches.remove(batch).unwrap_or_default();
            self.file_ids(batch.0 + kept_for, ids.clone());
            for id in ids {
                let Some(row) = self.rows.get(&id) else { continue };
                let intent = row.intent.clone();
                let open = matches!(intent.state, State::Started | State::Unknown)
                    && !intent.needs_attention
                    && !self.entries.contains_key(&id);
                if let Some(end) = intent.current().map(|it| it.lease_expires_at).filter(|_| open) {
                    self.insert_entry(id, &intent, end, 1);
                }
            }
        }
        due.len()
    }

    pub(crate) fn due_tools(&mut self, namespace: Option<&str>) -> Vec<ToolKey> {
        let now = self.now();
        let due = self.entries.values().filter(|entry| {
            entry.due_at <= now
                && !self.proposals.contains(&entry.id)
                && namespace.is_none_or(|it| it == entry.namespace)
        });
        let tools =
            due.map(|it| ToolKey { namespace: it.namespace.clone(), tool: it.tool.clone() });
        tools.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    pub(crate) fn due(&mut self, tool: &ToolKey, rows_max: usize) -> (Timestamp, Vec<Entry>) {
        let now = self.now();
        let due = self.entries.values().filter(|entry| {
            entry.due_at <= now
                && !self.proposals.contains(&entry.id)
                && (&entry.namespace, &entry.tool) == (&tool.namespace, &tool.tool)
        });
        let mut due: Vec<Entry> = due.cloned().collect();
        due.sort_by_key(|entry| (entry.due_at, entry.id));
        due.truncate(rows_max);
        (now, due)
    }

    pub(crate) fn due_proposals(
        &mut self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Vec<Entry> {
        let now = self.now();
        let due = self.proposals.iter().filter_map(|id| self.entries.get(id)).filter(|entry| {
            entry.due_at <= now
                && namespace.is_none_or(|it| it == entry.namespace)
                && tool.is_none_or(|it| it == entry.tool)
        });
        let mut due: Vec<Entry> = due.cloned().collect();
        due.sort_by_key(|entry| (entry.due_at, entry.id));
        due.truncate(rows_max);
        due
    }

    pub(crate) fn entry(&mut self, id: Uuid) -> (Timestamp, Option<Entry>) {
        (self.now(), self.entries.get(&id).cloned())
    }

    pub(crate) fn claim(&mut self, entries: &[Entry], span: Duration) -> Vec<Option<Timestamp>> {
        let until = self.now() + span;
        let mut claim = |entry: &Entry| {
            let known = self.entries.get(&entry.id).map_or(0, |known| known.version);
            let free = known == entry.version;
            if free {
                let version = known + 1;
                let claimed_until = Some(until);
                let mine = Entry { due_at: until, claimed_until, version, ..entry.clone() };
                self.entries.insert(entry.id, mine);
            }
            free.then_some(until)
        };
        entries.iter().map(&mut claim).collect()
    }

    pub(crate) fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> BTreeMap<String, u64> {
        let waiting = self.rows.values().filter(|row| {
            let intent = &row.intent;
            intent.needs_attention
                && namespace.is_none_or(|it| it == intent.namespace)
                && tool.is_none_or(|it| it == intent.tool)
        });
        let most = usize::try_from(WAITING_MAX).unwrap_or(usize::MAX);
        let mut counts = BTreeMap::new();
        for row in waiting.take(most) {
            *counts.entry(row.intent.namespace.clone()).or_default() += 1;
        }
        counts
    }

    pub(crate) fn slots_held(&self, run: Uuid) -> u64 {
        self.taken.slots_held(run)
    }

    pub(crate) fn look_alikes(&self, subject: Uuid, since: Timestamp) -> Vec<LookAlike> {
        let rows = self.taken.under(subject, since).into_iter();
        rows.filter_map(|id| self.rows.get(&id))
            .map(|Stored { intent, .. }| LookAlike {
                key: intent.key,
                state: intent.state,
                run_id: intent.run_id.clone(),
                created_at: intent.created_at,
            })
            .collect()
    }

    pub(crate) fn forget_look_alikes(&mut self, rows_max: usize) -> usize {
        let now = self.now();
        self.taken.forget(now, rows_max)
    }

    pub(crate) fn release(&mut self, releases: &[Release]) {
        for release in releases {
            let mine = |entry: &Entry| {
                entry.version == release.version
                    && entry.claimed_until == Some(release.claimed_until)
            };
            if !self.entries.get(&release.id).is_some_and(mine) {
                continue;
            }
            match (release.next, self.entries.get_mut(&release.id)) {
                (Some(next), Some(entry)) => {
                    (entry.due_at, entry.probes) = (next.due_at, next.probes);
                    (entry.asked_at, entry.claimed_until) = (next.asked_at, None);
                    entry.version += 1;
                }
                _ => {
                    self.entries.remove(&release.id);
                }
            }
        }
    }
}

impl Table {
    fn file_ids(&mut self, due_at: Timestamp, ids: Vec<Uuid>) {
        self.writes += 1;
        if !ids.is_empty() {
            self.filed.insert((due_at, Uuid::from_u128(self.writes.into())), ids);
        }
    }

    pub(crate) fn claim_filed(
        &mut self,
        entries_max: usize,
        span: Duration,
    ) -> (Timestamp, Vec<Filed>) {
        let now = self.now();
        let due = self.filed.range(..=(now, Uuid::max())).take(entries_max);
        let due: Vec<(Timestamp, Uuid)> = due.map(|(entry, _)| *entry).collect();
        let claim = |entry: (Timestamp, Uuid)| {
            let (due_at, id) = (now + span, entry.1);
            let rows = self.filed.remove(&entry).unwrap_or_default();
            self.filed.insert((due_at, id), rows.clone());
            Filed { id, due_at, rows }
        };
        (now, due.into_iter().map(claim).collect())
    }

    pub(crate) fn kept(&self, ids: &[Uuid]) -> Vec<Option<Kept>> {
        let kept = |row: &Stored| {
            let Stored { intent, version } = row;
            let bytes = intent.result.as_ref().and_then(|result| result.bytes.as_ref());
            Kept {
                namespace: intent.namespace.clone(),
                tool: intent.tool.clone(),
                version: *version,
                term: Term {
                    state: intent.state,
                    settled_at: intent.settled_at,
                    pruned_at: self.pruned_at.get(&intent.id()).filter(|_| intent.pruned).copied(),
                    needs_attention: intent.needs_attention,
                },
                result_bytes: bytes.map_or(0, |bytes| bytes.len() as u64),
            }
        };
        ids.iter().map(|id| self.rows.get(id).map(kept)).collect()
    }

    pub(crate) fn prune(&mut self, tombstones: &[Tombstone], policy: u32) -> Vec<bool> {
        let now = self.now();
        let holds = self.policies.active == policy;
        let mut prune = |left: &Tombstone| {
            let id = left.intent.id();
            let row = self.rows.get_mut(&id).filter(|row| holds && row.version == left.expected);
            let Some(row) = row.filter(|row| row.intent.settled_at.is_some()) else { return false };
            *row = Stored { intent: left.intent.clone(), version: left.version };
            self.pruned_at.insert(id, now);
            self.events.remove(&id);
            true
        };
        tombstones.iter().map(&mut prune).collect()
    }

    pub(crate) fn purge(&mut self, rows: &[(Uuid, Version)], policy: u32) -> Vec<bool> {
        let holds = self.policies.active == policy;
        let mut purge = |(id, version): &(Uuid, Version)| {
            let row = self.rows.get(id).filter(|row| holds && row.version == *version);
            let Some(row) = row.filter(|row| row.intent.pruned) else { return false };
            self.orphans.remove(&(*id, row.intent.namespace.clone()));
            self.rows.remove(id);
            self.events.remove(id);
            self.entries.remove(id);
            true
        };
        rows.iter().map(&mut purge).collect()
    }

    pub(crate) fn file(&mut self, claimed: &[Filed], looks: &[NextLook]) {
        let taken = claimed.iter().filter(|it| self.filed.remove(&(it.due_at, it.id)).is_some());
        let taken: Vec<Uuid> = taken.map(|entry| entry.id).collect();
        for look in looks {
            let rows = look.rows.iter().filter(|(_, entry)| taken.contains(entry));
            let ids = rows.map(|(row, _)| *row).collect();
            self.file_ids(look.due_at, ids);
        }
    }
}

/// Keeps a fact once.
fn keep(facts: &mut Vec<Event>, fact: Event) {
    let known = facts.iter().any(|it| Event { at: fact.at, ..it.clone() } == fact);
    if !known {
        facts.push(fact);
    }
}
