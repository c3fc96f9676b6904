//! Rows that this server has just granted, so that their settlement need not read them again.
//!
//! An entry is a reading like any other: what is decided on it is written by compare-and-set, and a
//! row that has moved since is read from the store. It is taken out when it is used.

use std::{num::NonZeroUsize, sync::Mutex};

use lru::LruCache;
use uuid::Uuid;

use crate::store::Stored;

/// How many rows are remembered: what one busy orchestrator has in flight, a few MiB.
const ROWS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// Rows by their ids.
pub(super) struct Recent(Mutex<LruCache<Uuid, Stored>>);

impl Default for Recent {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(ROWS_MAX)))
    }
}

impl Recent {
    /// Remembers a row as it was just written.
    pub(super) fn put(&self, id: Uuid, stored: Stored) {
        self.0.lock().expect("no panic holds this lock").put(id, stored);
    }

    /// Takes a row out.
    pub(super) fn take(&self, id: Uuid) -> Option<Stored> {
        self.0.lock().expect("no panic holds this lock").pop(&id)
    }
}
