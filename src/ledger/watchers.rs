//! Lookups that wait for a row to change.
//!
//! A change made by this server wakes its waiters at once. Changes made by other replicas are found
//! by one query at a time for all the rows that are waited for: NOTIFY would serialise the commits
//! of the whole database, and it does not pass a pooler.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::{Store, Version};

/// How long a change made by another replica may stay unseen.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How many rows one poll asks for.
const POLL_ROWS_MAX: usize = 1000;

/// Who waits for which row.
#[derive(Default)]
pub(super) struct Watchers {
    rows: Mutex<HashMap<Uuid, watch::Sender<Version>>>,
    released: CancellationToken,
}

/// A wait for one row.
pub(super) struct Waiter {
    versions: watch::Receiver<Version>,
    released: CancellationToken,
}

impl Watchers {
    /// Starts to watch a row; do so before reading it, and no change is missed.
    pub(super) fn watch(&self, id: Uuid) -> Waiter {
        let mut rows = self.rows.lock().expect("no panic holds this lock");
        let versions = rows.entry(id).or_insert_with(|| watch::channel(0).0).subscribe();
        Waiter { versions, released: self.released.clone() }
    }

    /// Says that a row has reached a version.
    pub(super) fn wake(&self, id: Uuid, version: Version) {
        let rows = self.rows.lock().expect("no panic holds this lock");
        if let Some(row) = rows.get(&id) {
            row.send_if_modified(|known| {
                let newer = version > *known;
                *known = version.max(*known);
                newer
            });
        }
    }

    /// Ends every wait, now and from now on.
    pub(super) fn release(&self) {
        self.released.cancel();
    }

    /// Polls for as long as the server runs.
    pub(super) async fn run(self: Arc<Self>, store: Arc<dyn Store>, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
            self.run_once(&*store).await;
        }
    }

    /// Forgets rows that nobody waits for and asks once for the others.
    async fn run_once(&self, store: &dyn Store) {
        let ids: Vec<Uuid> = {
            let mut rows = self.rows.lock().expect("no panic holds this lock");
            rows.retain(|_, row| row.receiver_count() > 0);
            rows.keys().copied().collect()
        };
        for ids in ids.chunks(POLL_ROWS_MAX) {
            match store.versions(ids).await {
                Ok((_, versions)) => {
                    for (id, version) in ids.iter().zip(versions) {
                        self.wake(*id, version.unwrap_or(0));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "waiters could not be polled");
                    return;
                }
            }
        }
    }
}

impl Waiter {
    /// Returns once the row is newer than `version`, the time is over, or the server stops.
    ///
    /// Says whether there is something to read.
    pub(super) async fn newer_than(&mut self, version: Version, longest: Duration) -> bool {
        let changed = self.versions.wait_for(|known| *known > version);
        tokio::select! {
            changed = changed => changed.is_ok(),
            () = tokio::time::sleep(longest) => false,
            () = self.released.cancelled() => false,
        }
    }
}
