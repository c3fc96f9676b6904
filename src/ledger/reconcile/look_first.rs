//! Looking before a retry: a Begin that meets an open outcome asks the downstream first.

use std::{
    collections::{HashMap, hash_map},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    clock::{Deadline, monotonic},
    domain::{intent::Intent, schedule::FIRST_WAIT},
    ledger::{Ledger, LedgerError},
    store::agenda::Entry,
};

/// How often a question that another server asks is looked after.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a Begin without a deadline waits for a question.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What of a caller's deadline is kept for the answer.
const LAST_WORD: Duration = Duration::from_millis(500);

/// The questions that Begins of this server wait for, one an intent, each with what ends the wait: it
/// lets them go in the order in which they came. Each stays here for a while after its answer.
#[derive(Default)]
pub(in crate::ledger) struct LooksFirst {
    under_way: Mutex<HashMap<Uuid, CancellationToken>>,
}

/// Takes a question off the list, however its task ends.
struct Forgotten {
    ledger: Arc<Ledger>,
    id: Uuid,
}

impl Drop for Forgotten {
    fn drop(&mut self) {
        let looks = &self.ledger.looks_first.under_way;
        looks.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl Ledger {
    /// Asks the downstream what became of an intent, or waits for whoever is asking already. What
    /// came of it stands in the row.
    pub(in crate::ledger) async fn look_first(&self, intent: &Intent, deadline: Deadline) {
        let done = self.start_look(intent);
        // With time left for an answer: the caller is better told to hold than nothing.
        let left = deadline.left(WAIT_MAX);
        let left = left - (left / 4).min(LAST_WORD);
        // A question waits as long for its turn as for its answer. Whoever asks for longer is dead.
        let policies = self.policies.current();
        let endpoint = policies.active().status(&intent.namespace, &intent.tool);
        let left = endpoint.map_or(left, |endpoint| left.min(endpoint.timeout * 2));
        // The look goes on without us; its verdict is there for the next one.
        tokio::time::timeout(left, done.cancelled()).await.ok();
    }

    fn start_look(&self, intent: &Intent) -> CancellationToken {
        let id = intent.id();
        let mut under_way =
            self.looks_first.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let vacant = match under_way.entry(id) {
            hash_map::Entry::Occupied(known) => return known.get().clone(),
            hash_map::Entry::Vacant(vacant) => vacant,
        };
        let done = CancellationToken::new();
        // However the look ends, nobody waits for it any longer.
        let tell = done.clone().drop_guard();
        let Some(ledger) = self.this.upgrade() else { return done };
        vacant.insert(done.clone());
        let (namespace, tool) = (intent.namespace.clone(), intent.tool.clone());
        // A task of its own, so that no caller who goes away leaves a question without an end.
        self.tasks.spawn(async move {
            let _forgotten = Forgotten { ledger: Arc::clone(&ledger), id };
            let look = ledger.look_once(id, &namespace, &tool);
            // A stop leaves the claim behind; it is over soon, and then others look.
            if let Some(Err(error)) = ledger.stopping.run_until_cancelled(look).await {
                tracing::warn!(%error, tool, "the downstream could not be asked before a retry");
            }
            drop(tell);
            // A crowd of retries is no reason to ask more often than the reconciler would.
            let spacing = tokio::time::sleep(FIRST_WAIT);
            ledger.stopping.run_until_cancelled(spacing).await;
        });
        done
    }

    async fn look_once(&self, id: Uuid, namespace: &str, tool: &str) -> Result<(), LedgerError> {
        let deadline = Deadline::after(Some(WAIT_MAX));
        let (now, mut entry) = self.entry_of(id, namespace, tool).await?;
        if entry.asked_at.is_some_and(|asked| now.since(asked) < FIRST_WAIT) {
            return Ok(());
        }
        let asked_at = entry.asked_at;
        while !deadline.has_passed() {
            // Another server may be asking: its verdict is as good as ours. But it may have died.
            let Some(free) = self.unclaimed(entry, deadline).await? else { break };
            if free.asked_at != asked_at {
                break;
            }
            if self.look_at(vec![free.clone()], false, true).await?.claimed {
                break;
            }
            entry = free;
        }
        Ok(())
    }

    /// The entry once nobody has claimed it; `None` where that did not happen in time.
    pub(super) async fn unclaimed(
        &self,
        mut entry: Entry,
        deadline: Deadline,
    ) -> Result<Option<Entry>, LedgerError> {
        let began = monotonic();
        loop {
            let (now, fresh) = self.store.entry(entry.id).await?;
            entry = match fresh {
                Some(fresh) => fresh,
                None if entry.version == 0 => return Ok(Some(entry)),
                // It has been settled meanwhile.
                None => return Ok(Some(Entry { version: 0, claimed_until: None, ..entry })),
            };
            if !entry.is_claimed(now) {
                return Ok(Some(entry));
            }
            if deadline.has_passed() || monotonic().duration_since(began) > WAIT_MAX {
                return Ok(None);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
