//! What a write takes beside its row: a slot of its run, and a place among what looks the same.
//!
//! Both are taken in the transaction of the write, so that no crash and no lost answer parts them from
//! the row. Whoever wants one of the last slots of a run holds that run's lock while he looks and
//! writes: of any number on any number of servers exactly as many get one as there are. Ordinary writes
//! carry no guard, and nothing is looked up or locked for them.

use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::StoreError;
use crate::domain::{
    identity::Key,
    intent::{Intent, RunSlot, State},
    time::Timestamp,
};

/// How many look-alikes are read: a caller and a person need to see that there are some.
pub const LOOK_ALIKES_MAX: usize = 20;

/// What a write takes beside its row, or gives back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guards {
    /// What becomes of the intent's slot.
    pub slot: Option<SlotMove>,
    /// What a new row is about.
    pub subject: Option<Subject>,
}

/// What becomes of the slot that an intent has of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotMove {
    /// It takes one; with a limit only while fewer than so many are held.
    Take {
        /// The run, as [`run_of`] numbers it.
        run: Uuid,
        /// How many may be held; `None` for an effect that has happened, room or not.
        limit: Option<u32>,
    },
    /// It gives its own back.
    GiveBack {
        /// The run, as [`run_of`] numbers it.
        run: Uuid,
    },
}

/// Under which subject a new row is remembered, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// The subject's number.
    pub id: Uuid,
    /// How long the row counts as a look-alike.
    pub window: Duration,
    /// The write happens only if no other intent has come under the subject since then.
    pub alone_since: Option<Timestamp>,
}

impl Guards {
    /// What follows for the slot from a change of the intent.
    pub(super) fn of(before: RunSlot, after: &Intent) -> Option<Self> {
        let slot = match (before, after.slot) {
            (RunSlot::Held, RunSlot::Held) => return None,
            (_, RunSlot::Held) => SlotMove::Take { run: run_of(after), limit: None },
            (RunSlot::Held, _) => SlotMove::GiveBack { run: run_of(after) },
            _ => return None,
        };
        Some(Self { slot: Some(slot), subject: None })
    }

    /// The run and the limit, where a slot may be refused.
    pub(super) fn limited(&self) -> Option<(Uuid, u32)> {
        match self.slot {
            Some(SlotMove::Take { run, limit: Some(limit) }) => Some((run, limit)),
            _ => None,
        }
    }

    /// The subject and since when it must have been alone, where it may be refused.
    pub(super) fn alone(&self) -> Option<(Uuid, Timestamp)> {
        let subject = self.subject.as_ref()?;
        Some((subject.id, subject.alone_since?))
    }
}

/// The run that an intent counts for: that which began it, with its tool and tenant.
pub fn run_of(intent: &Intent) -> Uuid {
    let mut hash = Sha256::new();
    for part in [&intent.namespace, &intent.tool, &intent.run_id] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Another intent under the same subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAlike {
    /// Its key.
    pub key: Key,
    /// Where it stands.
    pub state: State,
    /// The run that began it.
    pub run_id: String,
    /// When it was begun.
    pub created_at: Timestamp,
}

/// What the guards of writes are decided on, and kept in.
#[async_trait]
pub trait Guarded {
    /// How many slots of a run are held.
    async fn slots_held(&self, run: Uuid) -> Result<u64, StoreError>;

    /// The intents that came under a subject after `since`, newest first, at most
    /// [`LOOK_ALIKES_MAX`].
    async fn look_alikes(
        &self,
        subject: Uuid,
        since: Timestamp,
    ) -> Result<Vec<LookAlike>, StoreError>;

    /// Forgets what came under any subject and counts no more, at most `rows_max` of it. Says how
    /// much that was.
    async fn forget_look_alikes(&self, rows_max: usize) -> Result<usize, StoreError>;
}
