//! Repeats that are not yet written, and when a Begin last met a row.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::Mutex,
    time::{Duration, Instant},
};

use lru::LruCache;
use uuid::Uuid;

use super::may_try_again;
use crate::{
    clock::monotonic,
    domain::{
        attempt::Layer,
        repeat::{Answered, LayerCounts, REPEATS_KEPT_MAX, Repeat},
    },
    store::{Store, Touch, history::Repeated},
    telemetry::metrics,
};

/// How many rows may have something unwritten; what is over is dropped, not waited for.
const ROWS_MAX: usize = 65_536;

/// How many records of one row are kept.
const KEPT_MAX: usize = REPEATS_KEPT_MAX as usize;

/// How many records may wait to be written, a few MiB; further repeats are counted only.
const RECORDS_MAX: usize = 8192;

/// How many rows are remembered of which records were taken lately, and for how long. A row of which this
/// server has taken as many as are kept needs no more: they would be made, sent and thrown away. After that
/// time a key may have been purged and begun anew.
const TAKEN_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");
const TAKEN_FOR: Duration = Duration::from_secs(10 * 60);

/// How many rows one statement counts up.
const BATCH_ROWS_MAX: usize = 1000;

/// How many records one statement writes, or those of one row.
const BATCH_RECORDS_MAX: usize = 1000;

/// How many attempts that were asked for in vain are remembered, to tell when one is asked for again.
const ASKED_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");

/// Repeats that are not yet written.
pub(super) struct Repeats {
    pending: Mutex<Pending>,
    taken: Mutex<LruCache<Uuid, Taken>>,
    asked: Mutex<LruCache<(Uuid, Uuid), ()>>,
}

/// How many records of a row were taken, and since when.
struct Taken {
    records: usize,
    since: Instant,
}

#[derive(Default)]
struct Pending {
    rows: HashMap<Uuid, Row>,
    records: usize,
}

/// What has become of one row.
#[derive(Default)]
struct Row {
    /// How often it was replayed; `None` where no call of its own has met it, so that it stays as it is.
    replays: Option<u64>,
    layers: LayerCounts,
    records: Vec<Repeat>,
}

impl Default for Repeats {
    fn default() -> Self {
        Self {
            pending: Mutex::default(),
            taken: Mutex::new(LruCache::new(TAKEN_MAX)),
            asked: Mutex::new(LruCache::new(ASKED_MAX)),
        }
    }
}

impl Repeats {
    /// Whether this attempt has met the row before, as far as this server remembers.
    pub(super) fn asked_before(&self, id: Uuid, attempt: Uuid) -> bool {
        let mut asked = self.asked.lock().expect("no panic holds this lock");
        asked.put((id, attempt), ()).is_some()
    }

    /// A Begin has met a row that was there; `record` makes what is kept of it, if it is.
    pub(super) fn seen(
        &self,
        id: Uuid,
        layer: Layer,
        answered: Answered,
        record: impl FnOnce() -> Repeat,
    ) {
        let mut pending = self.pending.lock().expect("no panic holds this lock");
        let records = pending.records;
        let Some(row) = pending.row(id) else { return metrics::dropped("repeats", 1) };
        row.layers.add(layer, 1);
        // Another call under this key leaves no trace on the row itself.
        if answered != Answered::ParametersChanged {
            let replayed = matches!(answered, Answered::Completed | Answered::ResultPruned);
            *row.replays.get_or_insert_default() += u64::from(replayed);
        }
        let mut taken = self.taken.lock().expect("no panic holds this lock");
        let now = monotonic();
        let of_row = taken.get_or_insert_mut(id, || Taken { records: 0, since: now });
        if now.duration_since(of_row.since) > TAKEN_FOR {
            *of_row = Taken { records: 0, since: now };
        }
        if of_row.records >= KEPT_MAX {
            // It is counted, and could not be among those that are kept.
        } else if records >= RECORDS_MAX {
            metrics::dropped("records", 1);
        } else {
            of_row.records += 1;
            row.records.push(record());
            pending.records += 1;
        }
    }

    /// Writes what is unwritten.
    pub(super) async fn flush(&self, store: &dyn Store) {
        let Pending { rows, .. } =
            std::mem::take(&mut *self.pending.lock().expect("no panic holds this lock"));
        let touches: Vec<Touch> = rows
            .iter()
            .filter_map(|(id, row)| row.replays.map(|replays| Touch { id: *id, replays }))
            .collect();
        for batch in touches.chunks(BATCH_ROWS_MAX) {
            let held = match store.touch(batch).await {
                Ok(held) => held,
                Err(error) => {
                    tracing::debug!(%error, rows = batch.len(), "rows were not told that they were met");
                    if !may_try_again(&error) {
                        metrics::dropped("touches", batch.len());
                        continue;
                    }
                    batch.to_vec()
                }
            };
            let mut pending = self.pending.lock().expect("no panic holds this lock");
            held.into_iter().for_each(|touch| pending.touch_again(touch));
        }
        for batch in batches(rows) {
            let Err(error) = store.remember(&batch).await else { continue };
            tracing::debug!(%error, rows = batch.len(), "repeats were not written");
            if may_try_again(&error) {
                let mut pending = self.pending.lock().expect("no panic holds this lock");
                batch.into_iter().for_each(|repeated| pending.put_back(repeated));
            } else {
                let repeats: u64 = batch.iter().map(|row| row.layers.total()).sum();
                metrics::dropped("repeats", usize::try_from(repeats).unwrap_or(usize::MAX));
                // Their places may be free still.
                let mut taken = self.taken.lock().expect("no panic holds this lock");
                for row in &batch {
                    taken.pop(&row.id);
                }
            }
        }
    }
}

impl Pending {
    /// The row, if there is room for it.
    fn row(&mut self, id: Uuid) -> Option<&mut Row> {
        let room = self.rows.len() < ROWS_MAX || self.rows.contains_key(&id);
        room.then(|| self.rows.entry(id).or_default())
    }

    /// Remembers to tell a row once more that it was met.
    fn touch_again(&mut self, Touch { id, replays }: Touch) {
        match self.row(id) {
            Some(row) => *row.replays.get_or_insert_default() += replays,
            None => metrics::dropped("touches", 1),
        }
    }

    /// Adds what could not be written to what came since.
    fn put_back(&mut self, Repeated { id, layers, mut records }: Repeated) {
        let records_before = self.records;
        let Some(row) = self.row(id) else {
            let repeats = usize::try_from(layers.total()).unwrap_or(usize::MAX);
            return metrics::dropped("repeats", repeats);
        };
        row.layers.add_all(&layers);
        let others = records_before - row.records.len();
        records.append(&mut row.records);
        let room = RECORDS_MAX.saturating_sub(others).min(KEPT_MAX);
        if records.len() > room {
            metrics::dropped("records", records.len() - room);
            records.truncate(room);
        }
        row.records = records;
        self.records = others + self.rows[&id].records.len();
    }
}

/// In pieces that one statement takes.
fn batches(rows: HashMap<Uuid, Row>) -> Vec<Vec<Repeated>> {
    let mut batches = Vec::new();
    let mut batch: Vec<Repeated> = Vec::new();
    let mut in_batch = 0;
    for (id, Row { layers, records, .. }) in rows {
        if layers.total() == 0 {
            continue; // it is to be told only that it was met
        }
        if batch.len() >= BATCH_ROWS_MAX || in_batch + records.len() > BATCH_RECORDS_MAX {
            batches.push(std::mem::take(&mut batch));
            in_batch = 0;
        }
        in_batch += records.len();
        batch.push(Repeated { id, layers, records });
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Timestamp;

    fn repeat(number: i64) -> Repeat {
        Repeat {
            at: Timestamp::from_micros(number),
            caller: String::new(),
            attempt_id: None,
            tool_call_id: String::new(),
            run_id: String::new(),
            step_id: String::new(),
            free_text_changed: false,
            changed: Vec::new(),
            trace_id: None,
            answered: Answered::Completed,
            layer: Layer::Model,
        }
    }

    fn see(repeats: &Repeats, id: Uuid, number: i64) {
        repeats.seen(id, Layer::Model, Answered::Completed, || repeat(number));
    }

    /// Whether or not the first hundred are written yet.
    #[test]
    fn a_row_whose_records_are_all_kept_is_counted_only() {
        let repeats = Repeats::default();
        let id = Uuid::from_u128(1);
        (0..60).for_each(|n| see(&repeats, id, n));
        let written = std::mem::take(&mut *repeats.pending.lock().unwrap());
        (60..260).for_each(|n| see(&repeats, id, n));
        see(&repeats, Uuid::from_u128(2), 0);
        let pending = repeats.pending.lock().unwrap();
        assert_eq!((written.records, pending.records), (60, 41));
        assert_eq!(pending.rows[&id].layers.of(Layer::Model), 200);
        assert_eq!(pending.rows[&id].replays, Some(200));
    }

    fn row(records: impl Iterator<Item = i64>) -> Row {
        let records: Vec<Repeat> = records.map(repeat).collect();
        let mut layers = LayerCounts::default();
        layers.add(Layer::Model, records.len() as u64);
        Row { replays: None, layers, records }
    }

    #[test]
    fn every_row_is_in_one_batch_and_no_batch_is_too_large() {
        let rows: HashMap<Uuid, Row> = (0..2500_u32)
            .map(|n| (Uuid::from_u128(n.into()), row(0..1 + i64::from(n % 90))))
            .collect();
        let total: usize = rows.values().map(|row| row.records.len()).sum();
        let batches = batches(rows);
        let sizes =
            batches.iter().map(|batch| batch.iter().map(|it| it.records.len()).sum::<usize>());
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 2500);
        assert_eq!(sizes.clone().sum::<usize>(), total);
        assert!(sizes.max().unwrap() <= BATCH_RECORDS_MAX);
        assert!(batches.iter().all(|batch| batch.len() <= BATCH_ROWS_MAX));
    }

    #[test]
    fn memory_is_bounded_in_rows_and_in_records() {
        let repeats = Repeats::default();
        for n in 0..ROWS_MAX as u128 + 10 {
            see(&repeats, Uuid::from_u128(n), 0);
        }
        let pending = repeats.pending.lock().unwrap();
        assert_eq!((pending.rows.len(), pending.records), (ROWS_MAX, RECORDS_MAX));
        let counted: u64 = pending.rows.values().map(|row| row.layers.total()).sum();
        assert_eq!(counted, ROWS_MAX as u64);
    }

    /// What failed to be written comes before what came since, and no more of it than can be kept.
    #[test]
    fn what_is_put_back_comes_first() {
        let repeats = Repeats::default();
        let id = Uuid::from_u128(1);
        (200..300).for_each(|n| see(&repeats, id, n));
        let mut pending = repeats.pending.lock().unwrap();
        let Row { layers, records, .. } = row(0..60);
        pending.put_back(Repeated { id, layers, records });
        let kept = &pending.rows[&id];
        assert_eq!(kept.layers.of(Layer::Model), 160);
        let at: Vec<i64> = kept.records.iter().map(|it| it.at.micros()).collect();
        assert_eq!(at, (0..60).chain(200..240).collect::<Vec<_>>());
        assert_eq!(pending.records, KEPT_MAX);
    }

    #[test]
    fn what_is_put_back_stays_within_the_bound_of_rows() {
        let repeats = Repeats::default();
        for n in 0..ROWS_MAX as u128 {
            see(&repeats, Uuid::from_u128(n), 0);
        }
        let mut pending = repeats.pending.lock().unwrap();
        let Row { layers, records, .. } = row(0..1);
        let stranger = Uuid::from_u128(u128::MAX);
        pending.put_back(Repeated { id: stranger, layers, records });
        pending.touch_again(Touch { id: stranger, replays: 1 });
        assert_eq!((pending.rows.len(), pending.records), (ROWS_MAX, RECORDS_MAX));
        assert!(!pending.rows.contains_key(&stranger));
        // A row that is there takes both.
        let known = Uuid::from_u128(7);
        pending.touch_again(Touch { id: known, replays: 2 });
        assert_eq!(pending.rows[&known].replays, Some(3));
    }

    #[test]
    fn a_row_that_is_only_to_be_told_again_leaves_no_repeat() {
        let repeats = Repeats::default();
        let id = Uuid::from_u128(1);
        let mut pending = repeats.pending.lock().unwrap();
        pending.touch_again(Touch { id, replays: 4 });
        assert_eq!(pending.rows[&id].replays, Some(4));
        assert_eq!(batches(std::mem::take(&mut pending.rows)), Vec::<Vec<Repeated>>::new());
    }
}
