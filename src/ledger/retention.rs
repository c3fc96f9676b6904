//! Retention: prunes results whose time is over, and purges tombstones whose time is over too.
//!
//! A pass takes what is due out of the calendar, some hundred rows at a time, reads them by their keys, lets the domain
//! decide, and files them anew by when something can be due next. Everything is written by compare-and-set, and a row is
//! in the calendar until it is gone: whoever dies in the middle leaves rows that are merely looked at again.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Ledger, LedgerError, error::chain};
use crate::{
    clock::monotonic,
    domain::{
        retention::{Retention, Term, file_together, retention},
        time::Timestamp,
    },
    store::{
        RowKey, StoreError, Stored, Version,
        retention::{FILED_TOGETHER_MAX, Filed, Kept, NextLook, Tombstone},
    },
    telemetry::metrics,
};

/// Entries of the calendar that are looked through together: enough for small ones to be merged, and some ten
/// milliseconds of work.
const ENTRIES_MAX: usize = 4;

/// How long claimed entries are left to their claimer.
const CLAIM: Duration = Duration::from_secs(60);

/// How soon a row is looked at again that somebody else was at.
const AGAIN: Duration = Duration::from_secs(60);

/// How soon a row is looked at again that nobody can understand: a person has to mend it first.
const POISON_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes of results that are read together to be pruned.
const RESULT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Rows that are pruned or purged together: some milliseconds of work, which is what a call may have to wait behind.
const TOGETHER_MAX: usize = 32;

/// How many times as long as it works a pass rests: live traffic feels little of it, and thousands of rows a second
/// are more than a ledger takes in for long.
const RESTS: u32 = 3;

/// The shortest rest, and the longest: a claim must not lapse because the store is slow.
const REST_LEAST: Duration = Duration::from_millis(5);
const REST_MOST: Duration = Duration::from_millis(500);

/// Nothing is filed further ahead, so that no sum of spans leaves the calendar of any store.
pub(super) const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// What a pass has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forgotten {
    /// Rows that were looked at.
    pub looked_at: usize,
    /// Results that were pruned.
    pub pruned: usize,
    /// Tombstones that were purged.
    pub purged: usize,
}

impl Ledger {
    /// Prunes and purges every `interval` for as long as the server runs.
    pub async fn keep_pruning(self: Arc<Self>, interval: Duration, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
            match self.prune(&stopping).await {
                Ok(done) if done.pruned + done.purged > 0 => {
                    let Forgotten { looked_at, pruned, purged } = done;
                    tracing::info!(pruned, purged, looked_at, "results pruned, tombstones purged");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a pass of retention was cut short"),
            }
        }
    }

    /// One pass: prunes and purges what is due now.
    ///
    /// It takes small steps and rests longer than it works, so that it takes no more than a quarter of one connection
    /// from live traffic.
    pub async fn prune(&self, stopping: &CancellationToken) -> Result<Forgotten, LedgerError> {
        while !stopping.is_cancelled() && self.gather().await? {}
        let mut all = Forgotten::default();
        while !stopping.is_cancelled() {
            let Some(done) = self.prune_once(Leisure(stopping)).await? else { break };
            all.looked_at += done.looked_at;
            all.pruned += done.pruned;
            all.purged += done.purged;
        }
        Ok(all)
    }

    /// Looks through a few entries of the calendar; nothing if none is due.
    async fn prune_once(&self, leisure: Leisure<'_>) -> Result<Option<Forgotten>, LedgerError> {
        let (now, claimed) = leisure.step(self.store.claim_filed(ENTRIES_MAX, CLAIM)).await?;
        if claimed.is_empty() {
            return Ok(None);
        }
        let mut looks: Vec<(Timestamp, (Uuid, Uuid))> = Vec::new();
        let mut done = Forgotten::default();
        for entry in &claimed {
            let next = self.look_through(entry, now, &mut done, leisure).await?;
            let far = |at: Timestamp| at.min(now + FAR);
            looks.extend(next.into_iter().map(|(row, at)| (far(at), (row, entry.id))));
        }
        let together = file_together(looks, FILED_TOGETHER_MAX, now);
        let looks: Vec<NextLook> =
            together.into_iter().map(|(due_at, rows)| NextLook { due_at, rows }).collect();
        // Last: until then the entries stand, and whoever claims them next finds the rows as they are.
        leisure.step(self.store.file(&claimed, &looks)).await?;
        Ok(Some(done))
    }

    /// Prunes and purges what is due of an entry; says when to look at its rows next.
    async fn look_through(
        &self,
        entry: &Filed,
        now: Timestamp,
        done: &mut Forgotten,
        leisure: Leisure<'_>,
    ) -> Result<Vec<(Uuid, Timestamp)>, LedgerError> {
        let kept = leisure.step(self.store.kept(&entry.rows)).await?;
        let policies = self.policies.current();
        let policy_of = |kept: &Kept| policies.active().tool(&kept.namespace, &kept.tool);
        let mut next = Vec::new();
        let (mut prune, mut purge) = (Vec::new(), Vec::new());
        for (id, kept) in entry.rows.iter().zip(kept) {
            // It was purged, and whoever did that died before it was filed.
            let Some(kept) = kept else { continue };
            done.looked_at += 1;
            match retention(&kept.term, policy_of(&kept), now) {
                Retention::Keep(until) => next.push((*id, until)),
                Retention::Prune => prune.push((*id, kept)),
                Retention::Purge => purge.push((*id, kept.version)),
            }
        }
        let version = policies.active().version();
        let pruned = self.prune_rows(&prune, version, now, leisure).await?;
        let mut purged = Vec::with_capacity(purge.len());
        for part in purge.chunks(TOGETHER_MAX) {
            let gone = leisure.step(self.purge_together(part, version)).await;
            purged.extend(gone?);
        }
        let mut missed = false;
        for (id, kept) in prune {
            let is_pruned = pruned.rows.contains(&id);
            let term = Term { pruned_at: Some(now), ..kept.term };
            let then = match retention(&term, policy_of(&kept), now) {
                Retention::Keep(until) if is_pruned => until,
                _ if pruned.poisonous.contains(&id) => now + POISON_WAIT,
                Retention::Keep(_) | Retention::Prune | Retention::Purge => now + AGAIN,
            };
            next.push((id, then));
            done.pruned += usize::from(is_pruned);
            missed |= !is_pruned;
        }
        for ((id, _), is_purged) in purge.into_iter().zip(purged) {
            if !is_purged {
                next.push((id, now + AGAIN));
            }
            done.purged += usize::from(is_purged);
            missed |= !is_purged;
        }
        if missed {
            // It may be that another policy decides by now.
            self.policies.reload(&self.store).await?;
        }
        Ok(next)
    }

    /// Leaves tombstones of rows.
    async fn prune_rows(
        &self,
        rows: &[(Uuid, Kept)],
        policy: u32,
        now: Timestamp,
        leisure: Leisure<'_>,
    ) -> Result<Pruned, LedgerError> {
        let mut pruned = Pruned::default();
        for part in rows.chunks(TOGETHER_MAX).flat_map(by_bytes) {
            match leisure.step(self.prune_together(part, policy, now)).await {
                Err(error) if is_of_a_row(&error) => {}
                done => {
                    pruned.rows.extend(done?);
                    continue;
                }
            }
            // One row is poisonous: each for itself, so that only that one stays.
            for row in part {
                match self.prune_together(std::slice::from_ref(row), policy, now).await {
                    Err(error) if is_of_a_row(&error) => {
                        let error = chain(&error);
                        tracing::error!(id = %row.0, error, "a row cannot be pruned");
                        pruned.poisonous.insert(row.0);
                    }
                    done => pruned.rows.extend(done?),
                }
            }
        }
        Ok(pruned)
    }

    /// Leaves tombstones of rows that are read together; says of which.
    async fn prune_together(
        &self,
        rows: &[(Uuid, Kept)],
        policy: u32,
        now: Timestamp,
    ) -> Result<Vec<Uuid>, StoreError> {
        let key = |(id, kept): &(Uuid, Kept)| RowKey { namespace: kept.namespace.clone(), id: *id };
        let keys: Vec<RowKey> = rows.iter().map(key).collect();
        let found = self.store.find(&keys).await?.rows;
        // A row that has changed since is for another look: its term may be another one.
        let unchanged = found
            .into_iter()
            .zip(rows)
            .filter_map(|(row, (_, kept))| row.filter(|row| row.version == kept.version));
        let tombstones: Vec<Tombstone> =
            unchanged.map(|row: Stored| Tombstone::of(&row, now)).collect();
        if tombstones.is_empty() {
            return Ok(Vec::new());
        }
        let left = self.store.prune(&tombstones, policy).await;
        let left = lost_to_others(left, tombstones.len())?;
        let done = tombstones.iter().zip(left).filter(|(_, left)| *left);
        let done: Vec<Uuid> = done.map(|(tombstone, _)| tombstone.intent.id()).collect();
        metrics::forgotten(done.len(), 0);
        Ok(done)
    }

    /// Forgets tombstones; says which of them.
    async fn purge_together(
        &self,
        rows: &[(Uuid, Version)],
        policy: u32,
    ) -> Result<Vec<bool>, StoreError> {
        let gone = lost_to_others(self.store.purge(rows, policy).await, rows.len())?;
        metrics::forgotten(0, gone.iter().filter(|gone| **gone).count());
        Ok(gone)
    }
}

/// What became of rows that were to be pruned.
#[derive(Debug, Default)]
struct Pruned {
    /// Those that are tombstones now.
    rows: HashSet<Uuid>,
    /// Those that nobody can understand, or write.
    poisonous: HashSet<Uuid>,
}

/// Takes steps with rests between them, until the server stops: it is not kept waiting by a rest.
#[derive(Clone, Copy)]
struct Leisure<'a>(&'a CancellationToken);

impl Leisure<'_> {
    /// Does a step, and rests.
    async fn step<T>(self, step: impl Future<Output = T>) -> T {
        let began = monotonic();
        let done = step.await;
        let rest = monotonic().duration_since(began) * RESTS;
        let rest = tokio::time::sleep(rest.clamp(REST_LEAST, REST_MOST));
        self.0.run_until_cancelled(rest).await;
        done
    }
}

/// Whether the store finds fault with one of the rows.
fn is_of_a_row(error: &StoreError) -> bool {
    matches!(error, StoreError::Corrupt(_) | StoreError::Rejected(_))
}

/// Rows in parts whose results are read together.
fn by_bytes(rows: &[(Uuid, Kept)]) -> impl Iterator<Item = &[(Uuid, Kept)]> {
    let mut bytes = 0;
    rows.chunk_by(move |(_, kept), (_, next)| {
        bytes += kept.result_bytes;
        let together = bytes + next.result_bytes <= RESULT_BYTES_MAX;
        if !together {
            bytes = 0;
        }
        together
    })
}

/// Somebody else's transaction holds one of the rows: all of them are for another look, soon.
fn lost_to_others(
    answer: Result<Vec<bool>, StoreError>,
    rows: usize,
) -> Result<Vec<bool>, StoreError> {
    match answer {
        Err(StoreError::Locked(_)) => Ok(vec![false; rows]),
        other => other,
    }
}
