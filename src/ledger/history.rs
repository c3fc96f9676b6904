//! What is remembered of Begins for people: who repeated a call, and how often what was decided. Kept in
//! memory, written behind.
//!
//! A crash may lose the last second of it, never a report. Memory is bounded; what does not fit, or what
//! the store may or may not have written, is dropped and counted as dropped.

mod calls;
mod repeats;
mod runs;
mod tallies;

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{calls::Calls, repeats::Repeats, runs::Runs, tallies::Tallies};
use crate::{
    domain::{
        attempt::Provenance,
        decision::BeginCall,
        fingerprint::Fingerprint,
        repeat::{Answered, Repeat, TraceId, layer_of},
        time::Timestamp,
    },
    store::{Store, StoreError, Stored, history::KeepFrom},
    telemetry::metrics,
};

/// How long anything may stay unwritten.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// How often the age of the oldest open intent is measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(30);

/// How many measurements lie between two times that old minutes become hours: ten minutes.
const ROLL_EVERY: u32 = 20;

/// How long counters are kept by the minute: in a window of hours a minute matters, in one of a day it does
/// not. A tool leaves some five rows a minute, so that what GetStats adds up of a hundred tools stays below
/// a hundred thousand small rows.
pub(super) const MINUTES_KEPT: Duration = Duration::from_secs(3 * 60 * 60);

/// How long they are kept by the hour: a quarter, to compare a month with the one before.
pub(super) const HOURS_KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// How long a run is remembered after its last execution. Runs are many, and people look at those of late.
pub(super) const RUNS_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How many batches of fresh grants are searched for the oldest open intent, from each end. What has been open
/// for longer than a lease is on the agenda, wherever something gathers it there; of what is not, the first
/// to end tell, and where all of those are settled already, the last. Each costs at most 256 rows by their
/// ids.
const ENDS_MEASURED: usize = 32;

/// A Begin that met a row, on its way to an answer.
pub(super) struct Met {
    /// The row as it was before the answer.
    pub(super) row: Arc<Stored>,
    /// The store's time.
    pub(super) now: Timestamp,
    /// What is answered.
    pub(super) answered: Answered,
    /// Whether its free text differs from that of the first.
    pub(super) free_text_changed: bool,
    /// Where its binding arguments differ.
    pub(super) changed: Vec<String>,
}

/// What a Begin says of where it comes from, beside its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Origin {
    /// Whether the caller named the attempt itself.
    pub(super) named_attempt: bool,
    /// The trace that it is part of.
    pub(super) trace_id: Option<TraceId>,
}

/// What is not yet written.
#[derive(Default)]
pub(super) struct Notes {
    repeats: Repeats,
    tallies: Tallies,
    runs: Runs,
    calls: Calls,
    /// Held while something is written, so that who reads after a flush has all of it.
    flushing: Mutex<()>,
}

impl Notes {
    /// A Begin has been answered. `begun` tells that it made the row, `first_grant` that the intent has
    /// never been executed before.
    pub(super) fn answered(
        &self,
        call: &BeginCall,
        listed: bool,
        answered: Answered,
        (begun, first_grant): (bool, bool),
    ) {
        let again = first_grant && self.runs.executed(call);
        self.tallies.add(call, listed, answered, |counts| {
            counts.begun += u64::from(begun);
            counts.executed_again += u64::from(again);
        });
    }

    /// A Begin has made a row that was granted to nobody, so that only memory knows its attempt.
    pub(super) fn asked_in_vain(&self, id: Uuid, attempt: Uuid) {
        self.repeats.asked_before(id, attempt);
    }

    /// A Begin that met a row has been answered.
    pub(super) fn repeated(&self, call: &BeginCall, listed: bool, origin: Origin, met: &Met) {
        let &Met { ref row, now, answered, free_text_changed, ref changed } = met;
        let row = &row.intent;
        let named = origin.named_attempt.then_some(call.attempt_id);
        let asked = Provenance {
            attempt_id: named,
            caller: &call.caller,
            run_id: &call.run_id,
            step_id: &call.step_id,
            tool_call_id: &call.tool_call_id,
        };
        let resent = named.is_some_and(|id| self.repeats.asked_before(row.id(), id));
        let layer = layer_of(row, &asked, resent);
        self.repeats.seen(row.id(), layer, answered, || Repeat {
            at: now,
            caller: call.caller.clone(),
            // One that was minted here matters where it was granted.
            attempt_id: named.or_else(|| answered.executes().then_some(call.attempt_id)),
            tool_call_id: call.tool_call_id.clone(),
            run_id: call.run_id.clone(),
            step_id: call.step_id.clone(),
            free_text_changed,
            changed: changed.clone(),
            trace_id: origin.trace_id,
            answered,
            layer,
        });
        let first_grant = answered.executes() && row.attempts.is_empty();
        let again = first_grant && self.runs.executed(call);
        self.tallies.add(call, listed, answered, |counts| {
            counts.layers.add(layer, 1);
            counts.executed_again += u64::from(again);
        });
    }

    /// Whether the same tool call with the same arguments was begun under another key before.
    pub(super) fn has_another_key(
        &self,
        call: &BeginCall,
        fingerprint: &Fingerprint,
        id: Uuid,
    ) -> bool {
        self.calls.had_another(call, fingerprint, id)
    }

    /// Writes for as long as the server runs.
    pub(super) async fn run(self: Arc<Self>, store: Arc<dyn Store>, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(FLUSH_INTERVAL)).await.is_some() {
            self.flush(&*store, false).await;
        }
    }

    /// Writes what is in memory. After it returns, what was answered before is in the store, unless the
    /// store cannot be reached.
    pub(super) async fn write_all(&self, store: &dyn Store) {
        self.flush(store, true).await;
    }

    async fn flush(&self, store: &dyn Store, all: bool) {
        let _alone = self.flushing.lock().await;
        self.repeats.flush(store).await;
        tallies::flush(&self.tallies, &self.runs, store, all).await;
    }
}

/// Measures what is open, and keeps the counters small: apart from the flushes, which must not wait for it.
pub(super) async fn keep_house(store: Arc<dyn Store>, stopping: CancellationToken) {
    let keep = async {
        for round in (0..ROLL_EVERY).cycle() {
            measure(&*store).await;
            if round == 0
                && let Err(error) = roll(&*store).await
            {
                tracing::debug!(%error, "old counters were not rolled up");
            }
            tokio::time::sleep(MEASURE_INTERVAL).await;
        }
    };
    // Nothing of it has to be finished.
    stopping.run_until_cancelled(keep).await;
}

async fn measure(store: &dyn Store) {
    match store.open_now(None, None, ENDS_MEASURED).await {
        Ok(open) => {
            let age = open.oldest.map_or(Duration::ZERO, |(_, begun_at)| open.now.since(begun_at));
            metrics::oldest_unsettled(age);
        }
        Err(error) => tracing::debug!(%error, "the oldest open intent was not measured"),
    }
}

async fn roll(store: &dyn Store) -> Result<(), StoreError> {
    let now = store.now().await?;
    let keep_from =
        KeepFrom { minutes: now - MINUTES_KEPT, hours: now - HOURS_KEPT, runs: now - RUNS_KEPT };
    store.roll_counts(keep_from).await
}

/// Whether what was to be written certainly was not, so that it may be written again. Anything else is
/// given up: a count that may stand twice is worse than one that is missing and known to be.
fn may_try_again(error: &StoreError) -> bool {
    match error {
        StoreError::Unavailable(_) | StoreError::Locked(_) => true,
        StoreError::Indeterminate(_) | StoreError::Rejected(_) | StoreError::Corrupt(_) => false,
    }
}
