//! When a Begin last met a row, and how often it was a replay; kept in memory, written behind.
//!
//! Counters are for people: a crash may lose the last second of them, never a report.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::{Store, Touch};

/// How long a count may stay unwritten.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// How many rows may have an unwritten count; what is over is dropped, not waited for.
const ROWS_MAX: usize = 65_536;

/// How many rows one statement counts up.
const BATCH_ROWS_MAX: usize = 1000;

/// Counts that are not yet written.
#[derive(Default)]
pub(super) struct Repeats {
    counts: Mutex<HashMap<Uuid, u64>>,
}

impl Repeats {
    /// A Begin has met a row that was there; counts it if it was answered with the first result.
    pub(super) fn seen(&self, id: Uuid, replayed: bool) {
        let mut counts = self.counts.lock().expect("no panic holds this lock");
        if counts.len() < ROWS_MAX || counts.contains_key(&id) {
            *counts.entry(id).or_default() += u64::from(replayed);
        }
    }

    /// Writes the counts for as long as the server runs, and once more when it stops.
    pub(super) async fn run(self: Arc<Self>, store: Arc<dyn Store>, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(FLUSH_INTERVAL)).await.is_some() {
            self.run_once(&*store).await;
        }
        self.run_once(&*store).await;
    }

    async fn run_once(&self, store: &dyn Store) {
        let counts = std::mem::take(&mut *self.counts.lock().expect("no panic holds this lock"));
        let touches: Vec<Touch> =
            counts.into_iter().map(|(id, replays)| Touch { id, replays }).collect();
        for batch in touches.chunks(BATCH_ROWS_MAX) {
            if let Err(error) = store.touch(batch).await {
                tracing::debug!(%error, rows = batch.len(), "repeats were not counted");
            }
        }
    }
}
