//! Callers first: what the background does, it does slowly while anybody calls.
//!
//! A pass that works as fast as it can takes a core from callers, and whoever calls meanwhile waits behind
//! what it is at. So for as long as anybody has called lately it goes in small steps, and rests between them.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::clock::monotonic;

/// How long after a call others are expected.
const EXPECTED: Duration = Duration::from_secs(1);

/// While somebody calls, so many rows are taken at a step, in all lanes one step after the other, and so long
/// is reserved for each row: over a hundred a second, and a call never waits behind a crowd of answers.
const ROWS_BESIDE_CALLERS: usize = 2;
const SPAN_OF_ROW: Duration = Duration::from_millis(8);

/// Counts calls, and keeps the background apart.
#[derive(Debug, Default)]
pub(super) struct Pace {
    calls: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// How many calls there were at the last look, and when a look last found more.
    calls: u64,
    called_at: Option<Instant>,
    /// Until when the steps that were taken last.
    until: Option<Instant>,
}

impl Pace {
    /// Somebody calls.
    pub(super) fn called(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// How many of so many rows are for the next step: all of them, or a few after a wait for their turn,
    /// behind all that were asked for before, where somebody has called lately.
    pub(super) async fn step(&self, rows: usize) -> usize {
        if !self.is_called() {
            return rows;
        }
        let rows = rows.min(ROWS_BESIDE_CALLERS);
        let now = monotonic();
        let from = self.with(|kept| {
            let from = kept.until.map_or(now, |until| until.max(now));
            kept.until = Some(from + SPAN_OF_ROW * rows as u32);
            from
        });
        tokio::time::sleep(from.duration_since(now)).await;
        rows
    }

    /// Whether somebody has called lately.
    pub(super) fn is_called(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        self.with(|kept| {
            if kept.calls != calls {
                kept.calls = calls;
                kept.called_at = Some(monotonic());
            }
            let lately = |at: Instant| monotonic().duration_since(at) < EXPECTED;
            kept.called_at.is_some_and(lately)
        })
    }

    fn with<T>(&self, job: impl FnOnce(&mut Kept) -> T) -> T {
        job(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn steps_are_small_and_follow_each_other_only_while_somebody_calls() {
        let pace = Pace::default();
        let steps = async |rows: [usize; 3]| {
            let began = monotonic();
            let mut taken = Vec::new();
            for rows in rows {
                taken.push(pace.step(rows).await);
            }
            (taken, monotonic().duration_since(began))
        };
        let (taken, idle) = steps([100, 100, 1]).await;
        assert_eq!(taken, [100, 100, 1]);
        assert!(idle < Duration::from_millis(1), "nobody calls, and it took {idle:?}");

        pace.called();
        let (taken, called) = steps([100, 100, 1]).await;
        assert_eq!(taken, [ROWS_BESIDE_CALLERS, ROWS_BESIDE_CALLERS, 1]);
        // The third waits for the spans of the first two.
        assert!(called >= SPAN_OF_ROW * 2 * ROWS_BESIDE_CALLERS as u32, "{called:?}");

        tokio::time::sleep(EXPECTED * 2).await;
        assert_eq!(pace.step(100).await, 100, "nobody has called for a while");
    }
}
