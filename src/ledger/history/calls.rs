//! Which key a tool call was begun under, to tell when it comes back under another one.

use std::{
    hash::{BuildHasher, RandomState},
    num::NonZeroUsize,
    sync::Mutex,
};

use lru::LruCache;
use uuid::Uuid;

use crate::domain::{decision::BeginCall, fingerprint::Fingerprint};

/// How many calls are remembered: those of some minutes, for a call that is tried again comes back soon.
const CALLS_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");

/// Rows by a hash of the call.
pub(super) struct Calls {
    hasher: RandomState,
    rows: Mutex<LruCache<u64, Uuid>>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { hasher: RandomState::new(), rows: Mutex::new(LruCache::new(CALLS_MAX)) }
    }
}

impl Calls {
    /// Whether this server remembers the call under another key than that of the row `id`, which it
    /// remembers from now on.
    ///
    /// The same arguments too: a tool call that has an effect for each of several things is no repeat.
    pub(super) fn had_another(&self, call: &BeginCall, print: &Fingerprint, id: Uuid) -> bool {
        if call.tool_call_id.is_empty() {
            return false;
        }
        let BeginCall { namespace, tool, run_id, step_id, tool_call_id, .. } = call;
        let names = (namespace, tool, run_id, step_id, tool_call_id, print.as_bytes());
        let hash = self.hasher.hash_one(names);
        let before = self.rows.lock().expect("no panic holds this lock").put(hash, id);
        before.is_some_and(|before| before != id)
    }
}
