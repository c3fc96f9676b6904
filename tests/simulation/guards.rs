//! What writes take beside their rows, in memory.

use std::collections::{BTreeMap, BTreeSet};

use intent_ledger::{
    domain::time::Timestamp,
    store::{
        Write,
        guards::{Guards, SlotMove},
    },
};
use uuid::Uuid;

use super::mutation::Mutation;

/// Slots of runs, and what came under which subject.
#[derive(Default)]
pub(crate) struct Taken {
    slots: BTreeSet<(Uuid, Uuid)>,
    /// Subject, time and intent, with the time from which it counts no more.
    subjects: BTreeMap<(Uuid, Timestamp, Uuid), Timestamp>,
}

impl Taken {
    pub(crate) fn holds(&self, run: Uuid, intent: Uuid) -> bool {
        self.slots.contains(&(run, intent))
    }

    pub(crate) fn slots_held(&self, run: Uuid) -> u64 {
        self.slots.iter().filter(|(of, _)| *of == run).count() as u64
    }

    /// The intents that came under a subject after `since`, newest first.
    pub(crate) fn under(&self, subject: Uuid, since: Timestamp) -> Vec<Uuid> {
        let found = self.subjects.keys().rev().filter(|(of, at, _)| *of == subject && *at > since);
        found.map(|(_, _, intent)| *intent).collect()
    }

    pub(crate) fn forget(&mut self, now: Timestamp, rows_max: usize) -> usize {
        let before = self.subjects.len();
        let mut left = rows_max;
        self.subjects.retain(|_, expires_at| {
            let gone = *expires_at <= now && left > 0;
            left -= usize::from(gone);
            !gone
        });
        before - self.subjects.len()
    }

    /// Whether a write finds no room.
    pub(crate) fn refuse(&self, write: &Write) -> bool {
        let Some(Guards { slot, subject }) = write.guards() else { return false };
        if let Some(SlotMove::Take { run, limit: Some(limit) }) = slot
            && self.slots_held(*run) >= u64::from(*limit)
        {
            return true;
        }
        subject.is_some_and(|subject| {
            let others = |since| self.under(subject.id, since);
            subject.alone_since.is_some_and(|it| others(it).iter().any(|id| *id != write.row_id()))
        })
    }

    /// A write has happened.
    pub(crate) fn keep(&mut self, write: &Write, at: Timestamp, mutation: Option<Mutation>) {
        let Some(Guards { slot, subject }) = write.guards() else { return };
        match slot {
            Some(SlotMove::Take { run, .. }) => {
                self.slots.insert((*run, write.row_id()));
            }
            Some(SlotMove::GiveBack { .. }) if mutation == Some(Mutation::KeepsSlots) => {}
            Some(SlotMove::GiveBack { run }) => {
                self.slots.remove(&(*run, write.row_id()));
            }
            None => {}
        }
        if let Some(subject) = subject {
            self.subjects.insert((subject.id, at, write.row_id()), at + subject.window);
        }
    }
}
