//! The host's clock, behind a name. The only caller of `now()`.
//!
//! Intents are timed by the store's clock. A store without a server of its own has the host's.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::domain::time::Timestamp;

/// Something that tells the time.
pub trait Clock {
    /// The wall-clock time.
    fn now(&self) -> Timestamp;
}

/// The host's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

/// The moment by which a caller wants its answer; `None` where it waits for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// `budget` from now on.
    pub fn after(budget: Option<Duration>) -> Self {
        Self(budget.and_then(|budget| monotonic().checked_add(budget)))
    }

    /// Whether the caller has given up.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|deadline| monotonic() >= deadline)
    }

    /// What is left, but no more than `longest`.
    pub fn left(self, longest: Duration) -> Duration {
        self.0.map_or(longest, |deadline| {
            deadline.saturating_duration_since(monotonic()).min(longest)
        })
    }
}

/// A reading of the monotonic clock: the runtime's, which timers follow and a test can pause.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn monotonic() -> Instant {
    tokio::time::Instant::now().into_std()
}
