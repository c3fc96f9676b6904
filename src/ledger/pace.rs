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

    /// Waits for a turn to take a step that should last `span`, behind all that were asked for before;
    /// where nobody has called lately, not at all.
    pub(super) async fn step(&self, span: Duration) {
        if !self.is_called() {
            return;
        }
        let now = monotonic();
        let from = self.with(|kept| {
            let from = kept.until.map_or(now, |until| until.max(now));
            kept.until = Some(from + span);
            from
        });
        tokio::time::sleep(from.duration_since(now)).await;
    }

    fn with<T>(&self, job: impl FnOnce(&mut Kept) -> T) -> T {
        job(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn steps_follow_each_other_only_while_somebody_calls() {
        let pace = Pace::default();
        let began = monotonic();
        pace.step(Duration::from_millis(100)).await;
        pace.step(Duration::from_millis(100)).await;
        let idle = monotonic().duration_since(began);
        assert!(idle < Duration::from_millis(50), "nobody calls, and it took {idle:?}");

        pace.called();
        let began = monotonic();
        pace.step(Duration::from_millis(100)).await;
        pace.step(Duration::from_millis(100)).await;
        pace.step(Duration::from_millis(100)).await;
        let called = monotonic().duration_since(began);
        assert!(called >= Duration::from_millis(200), "{called:?}");
    }
}
