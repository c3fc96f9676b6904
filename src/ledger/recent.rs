//! Rows that this server has just written, so that they need not be read again.
//!
//! An entry is a reading like any other: what is decided on it is written by compare-and-set, or
//! after the store has said that the row still has this version.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use lru::LruCache;
use uuid::Uuid;

use crate::store::Stored;

/// How many rows are remembered: what one busy orchestrator has in flight, a few MiB.
const ROWS_MAX: NonZeroUsize = NonZeroUsize::new(2048).expect("not zero");

/// Rows with larger results or arguments are read from the store each time.
const BODY_BYTES_MAX: usize = 4096;

/// Rows by their ids.
pub(super) struct Recent(Mutex<LruCache<Uuid, Arc<Stored>>>);

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
            rows.put(id, stored);
        }
    }

    /// A row as it was last seen.
    pub(super) fn get(&self, id: Uuid) -> Option<Arc<Stored>> {
        self.0.lock().expect("no panic holds this lock").get(&id).map(Arc::clone)
    }
}
