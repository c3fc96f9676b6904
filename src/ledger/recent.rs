//! Rows that this server has just written, so that they need not be read again.
//!
//! An entry is a reading like any other: what is decided on it is written by compare-and-set, or
//! after the store has said that the row still has this version.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lru::LruCache;
use uuid::Uuid;

use crate::{clock::monotonic, store::Stored};

/// How many rows are remembered: what one busy orchestrator has in flight, a few MiB.
const ROWS_MAX: NonZeroUsize = NonZeroUsize::new(2048).expect("not zero");

/// How long a row is remembered. A key may be purged and begun anew, and its versions start again then; of
/// a row that was seen so lately nothing can have been purged since ([`TOMBSTONE_LEAST`]).
///
/// [`TOMBSTONE_LEAST`]: crate::domain::retention::TOMBSTONE_LEAST
const REMEMBERED_FOR: Duration = Duration::from_secs(10 * 60);

/// Rows with larger results or arguments are read from the store each time.
const BODY_BYTES_MAX: usize = 4096;

/// Rows by their ids.
pub(super) struct Recent(Mutex<LruCache<Uuid, (Instant, Arc<Stored>)>>);

impl Default for Recent {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(ROWS_MAX)))
    }
}

impl Recent {
    /// Remembers a row as it was just written or read.
    pub(super) fn put(&self, id: Uuid, stored: Arc<Stored>) {
        let large = stored.intent.body_bytes() > BODY_BYTES_MAX;
        let mut rows = self.0.lock().expect("no panic holds this lock");
        if large {
            rows.pop(&id);
        } else {
            rows.put(id, (monotonic(), stored));
        }
    }

    /// A row as it was last seen.
    pub(super) fn get(&self, id: Uuid) -> Option<Arc<Stored>> {
        let mut rows = self.0.lock().expect("no panic holds this lock");
        let (seen_at, stored) = rows.get(&id)?;
        let lately = monotonic().duration_since(*seen_at) < REMEMBERED_FOR;
        lately.then(|| Arc::clone(stored))
    }
}
