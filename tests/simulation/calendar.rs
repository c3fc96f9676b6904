//! Simulated time: who waits for which moment, and leaps over the time in which nobody does anything.
//!
//! Everything runs on one thread and on the runtime's paused clock. Short waits, such as a packet's,
//! are the runtime's own timers; the long ones, of minutes and days, stand here. While somebody is
//! awake the clock moves from timer to timer; once nobody is, it leaps to the next entry, and the
//! servers' background tasks sleep through the leap like a machine that was suspended.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::FutureExt;
use intent_ledger::{clock::monotonic, domain::time::Timestamp};
use tokio::sync::{Notify, oneshot};

/// When every simulation begins; any time will do.
pub(crate) const EPOCH: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// Who waits for when.
pub(crate) struct Calendar {
    began: Instant,
    pages: Mutex<Pages>,
    changed: Notify,
}

#[derive(Default)]
struct Pages {
    waiting: BTreeMap<(Timestamp, u64), oneshot::Sender<()>>,
    entries: u64,
    awake: usize,
    panics: Vec<String>,
}

impl Calendar {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { began: monotonic(), pages: Mutex::default(), changed: Notify::new() })
    }

    pub(crate) fn now(&self) -> Timestamp {
        EPOCH + monotonic().duration_since(self.began)
    }

    /// Starts somebody. A panic is remembered and ends only him.
    pub(crate) fn spawn(self: &Arc<Self>, life: impl Future<Output = ()> + Send + 'static) {
        self.pages.lock().unwrap().awake += 1;
        let calendar = Arc::clone(self);
        tokio::spawn(async move {
            let lived = AssertUnwindSafe(life).catch_unwind().await;
            let mut pages = calendar.pages.lock().unwrap();
            pages.awake -= 1;
            if let Err(panic) = lived {
                let words = panic.downcast_ref::<String>().cloned();
                let words = words.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).into()));
                pages.panics.push(words.unwrap_or_default());
            }
            drop(pages);
            calendar.changed.notify_one();
        });
    }

    /// Waits for a moment. Only for what [`Self::spawn`] started, and never to be given up: who waits
    /// here is counted as asleep.
    pub(crate) async fn sleep_until(&self, at: Timestamp) {
        let wake = {
            let mut pages = self.pages.lock().unwrap();
            let (wake, woken) = oneshot::channel();
            pages.entries += 1;
            let entry = (at, pages.entries);
            pages.waiting.insert(entry, wake);
            pages.awake -= 1;
            woken
        };
        self.changed.notify_one();
        wake.await.ok();
    }

    pub(crate) async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    /// The next moment that somebody waits for.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.pages.lock().unwrap().waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Whether nobody is awake.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pages.lock().unwrap().awake == 0
    }

    /// Lets time pass until `at`, or until something changes before it.
    pub(crate) async fn pass(&self, at: Timestamp) {
        let left = at.since(self.now());
        if self.is_quiet() {
            tokio::time::advance(left).await;
        } else {
            tokio::time::timeout(left, self.changed.notified()).await.ok();
        }
    }

    /// Returns once something has changed.
    pub(crate) async fn change(&self) {
        self.changed.notified().await;
    }

    /// Wakes the first one whose time has come.
    pub(crate) fn wake(&self) {
        let now = self.now();
        let mut pages = self.pages.lock().unwrap();
        let due = pages.waiting.first_entry().filter(|first| first.key().0 <= now);
        if let Some(due) = due {
            let wake = due.remove();
            pages.awake += 1;
            wake.send(()).ok();
        }
    }

    /// What anybody has panicked with.
    pub(crate) fn take_panics(&self) -> Vec<String> {
        std::mem::take(&mut self.pages.lock().unwrap().panics)
    }
}
