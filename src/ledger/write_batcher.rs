//! Many callers, one statement, one answer each.
//!
//! A writer takes whatever is queued the moment it is free: no timer, so a lone caller waits for
//! nobody, and a crowd shares its commits. The writers outlive every request, so that neither a
//! time-out nor a lost client reaches a running COMMIT.
//!
//! Of several writes to one row only the first is written. The others are its repeats: they are
//! told what the row is now, and decide again. A row that somebody else's transaction holds leaves
//! its batch and is waited for alone.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{LedgerError, LedgerOptions, Reading, watchers::Watchers};
use crate::{
    clock::Deadline,
    store::{LOCK_WAIT, Store, StoreError, Stored, Write, Written},
};

/// Rows in one statement: past this a batch gains little and its last caller waits longer.
pub(super) const BATCH_ROWS_MAX: usize = 256;

/// Writes that may wait: some hundred milliseconds of work. Past that a caller is better told at
/// once than after its own deadline.
pub(super) const QUEUE_MAX: usize = 8192;

/// How many writers there are, where the store can use them. Two fill each other's waits for the
/// disk; more only shrink the batches.
pub(super) const WRITERS: usize = 2;

/// How long each row of a batch is tried for, once one of them has turned out to be locked.
const SHORT_LOCK_WAIT: Duration = Duration::from_millis(10);

/// One try of a locked row: shorter than a batch waits for the policy lock.
const LOCKED_ROW_TRY: Duration = Duration::from_millis(100);

/// How long a locked row is waited for on its own.
const LONG_LOCK_WAIT: Duration = Duration::from_secs(5);

/// How many locked rows are waited for at once: each keeps a connection busy.
const ALONE_MAX: usize = 4;

/// What became of a write.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// It is durable; this is the row since.
    Done(Reading),
    /// Another write came first; where it was this server's, this is the row since.
    Missed(Option<Reading>),
    /// Another policy version is active.
    PolicyMoved,
    /// What it would have taken beside its row was taken by others.
    Guarded,
}

type Answer = Result<Outcome, LedgerError>;

struct Job {
    write: Write,
    caller: Caller,
}

/// Who waits for an answer, and until when.
struct Caller {
    deadline: Deadline,
    answer: oneshot::Sender<Answer>,
}

impl Caller {
    /// A caller that has gone away is told nothing.
    fn tell(self, answer: Answer) {
        self.answer.send(answer).ok();
    }
}

/// The queue in front of the writers.
pub(super) struct WriteBatcher {
    queue: Arc<Queue>,
}

impl WriteBatcher {
    pub(super) fn start(
        store: &Arc<dyn Store>,
        watchers: &Arc<Watchers>,
        options: &LedgerOptions,
        tasks: &TaskTracker,
    ) -> Self {
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
            some: Notify::new(),
            many: Notify::new(),
            closed: CancellationToken::new(),
            queue_max: options.queue_max,
            rows_max: options.batch_rows_max,
        });
        let writer = Arc::new(Writer {
            store: Arc::clone(store),
            watchers: Arc::clone(watchers),
            held: Mutex::default(),
            alone: Semaphore::new(ALONE_MAX),
            tasks: tasks.clone(),
        });
        tasks.spawn(Arc::clone(&writer).run(Arc::clone(&queue)));
        for _ in 1..options.writers.min(store.writers()) {
            tasks.spawn(Arc::clone(&writer).help(Arc::clone(&queue)));
        }
        Self { queue }
    }

    /// Writes one row; answers once it is durable, or is known not to be.
    pub(super) async fn write(&self, write: Write, deadline: Deadline) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.queue.push(Job { write, caller: Caller { deadline, answer } })?;
        answered.await.unwrap_or(Err(LedgerError::Stopping))
    }

    /// Takes nothing more; the writers end once the queue is empty.
    pub(super) fn close(&self) {
        self.queue.closed.cancel();
    }
}

struct Queue {
    waiting: Mutex<VecDeque<Job>>,
    /// Something waits.
    some: Notify,
    /// A whole batch waits.
    many: Notify,
    closed: CancellationToken,
    queue_max: usize,
    rows_max: usize,
}

impl Queue {
    fn push(&self, job: Job) -> Result<(), LedgerError> {
        let mut waiting = self.waiting.lock().expect("no panic holds this lock");
        // Under the lock, so that a writer's last look at a closed queue finds the last job.
        if self.closed.is_cancelled() {
            return Err(LedgerError::Stopping);
        }
        if waiting.len() >= self.queue_max {
            return Err(LedgerError::QueueFull);
        }
        waiting.push_back(job);
        let many = waiting.len() >= self.rows_max;
        drop(waiting);
        self.some.notify_one();
        if many {
            self.many.notify_one();
        }
        Ok(())
    }

    /// The next batch, or nothing where fewer than `least` wait.
    fn take(&self, least: usize) -> Vec<Job> {
        let mut waiting = self.waiting.lock().expect("no panic holds this lock");
        if waiting.len() < least {
            return Vec::new();
        }
        let count = waiting.len().min(self.rows_max);
        waiting.drain(..count).collect()
    }
}

struct Writer {
    store: Arc<dyn Store>,
    watchers: Arc<Watchers>,
    /// Rows that are waited for alone, and what has come for them since.
    held: Mutex<HashMap<Uuid, Vec<Job>>>,
    alone: Semaphore,
    tasks: TaskTracker,
}

impl Writer {
    /// Writes what waits.
    async fn run(self: Arc<Self>, queue: Arc<Queue>) {
        loop {
            // Read before the look: what was pushed before the queue was closed is then found.
            let closed = queue.closed.is_cancelled();
            let batch = queue.take(1);
            if !batch.is_empty() {
                self.write(batch).await;
            } else if closed {
                return;
            } else {
                tokio::select! {
                    () = queue.some.notified() => {}
                    () = queue.closed.cancelled() => {}
                }
            }
        }
    }

    /// Helps out while the queue holds whole batches: two halves cost more than one whole.
    async fn help(self: Arc<Self>, queue: Arc<Queue>) {
        while !queue.closed.is_cancelled() {
            let batch = queue.take(queue.rows_max);
            if batch.is_empty() {
                tokio::select! {
                    () = queue.many.notified() => {}
                    () = queue.closed.cancelled() => {}
                }
            } else {
                self.write(batch).await;
            }
        }
    }

    async fn write(self: &Arc<Self>, jobs: Vec<Job>) {
        if jobs.iter().all(|job| job.write.guards().is_none()) {
            return self.write_batch(jobs).await;
        }
        // What waits for a run or a subject must not hold up what waits for nobody.
        let (guarded, plain): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| job.write.guards().is_some());
        self.write_batch(plain).await;
        self.write_batch(guarded).await;
    }

    async fn write_batch(self: &Arc<Self>, jobs: Vec<Job>) {
        let Batch { writes, callers, mut repeats } = self.batch_of(jobs);
        if writes.is_empty() {
            return;
        }
        match self.store.write(&writes, LOCK_WAIT).await {
            Err(StoreError::Rejected(_)) if writes.len() > 1 => {
                // One row is poisonous: each for itself, so that only that one fails.
                self.write_singly(writes, callers, repeats, LOCK_WAIT).await;
            }
            Err(StoreError::Locked(_)) => {
                self.write_singly(writes, callers, repeats, SHORT_LOCK_WAIT).await;
            }
            Ok(written) => {
                for ((write, caller), written) in writes.into_iter().zip(callers).zip(written) {
                    let repeats = repeats.remove(&write.row_id()).unwrap_or_default();
                    self.answer(Job { write, caller }, repeats, written);
                }
            }
            Err(error) => {
                let repeats = repeats.into_values().flatten().map(|repeat| repeat.caller);
                refuse(error, writes.len(), callers.into_iter().chain(repeats));
            }
        }
    }

    /// What of these jobs goes into one statement: whose deadline has not passed, whose row is not
    /// locked, and of several for one row the first.
    fn batch_of(&self, jobs: Vec<Job>) -> Batch {
        let mut held = self.held.lock().expect("no panic holds this lock");
        let mut batch = Batch::default();
        let mut seen: HashMap<Uuid, Vec<Job>> = HashMap::with_capacity(jobs.len());
        for job in jobs {
            let id = job.write.row_id();
            if job.caller.deadline.has_passed() {
                job.caller.tell(Err(LedgerError::DeadlinePassed));
            } else if let Some(waiting) = held.get_mut(&id) {
                waiting.push(job);
            } else {
                match seen.entry(id) {
                    Entry::Occupied(mut repeats) => repeats.get_mut().push(job),
                    Entry::Vacant(first) => {
                        first.insert(Vec::new());
                        batch.writes.push(job.write);
                        batch.callers.push(job.caller);
                    }
                }
            }
        }
        seen.retain(|_, repeats| !repeats.is_empty());
        batch.repeats = seen;
        batch
    }

    /// Each row by itself; one that is locked is waited for elsewhere.
    async fn write_singly(
        self: &Arc<Self>,
        writes: Vec<Write>,
        callers: Vec<Caller>,
        mut repeats: HashMap<Uuid, Vec<Job>>,
        lock_wait: Duration,
    ) {
        for (write, caller) in writes.into_iter().zip(callers) {
            let job = Job { write, caller };
            let repeats = repeats.remove(&job.write.row_id()).unwrap_or_default();
            match self.store.write(std::slice::from_ref(&job.write), lock_wait).await {
                Err(StoreError::Locked(_)) => {
                    let mut held = self.held.lock().expect("no panic holds this lock");
                    match held.entry(job.write.row_id()) {
                        // Another batch was under way with it and found that out first: behind that.
                        Entry::Occupied(mut waiting) => {
                            waiting.get_mut().push(job);
                            waiting.get_mut().extend(repeats);
                        }
                        Entry::Vacant(waiting) => {
                            waiting.insert(repeats);
                            self.tasks.spawn(Arc::clone(self).write_alone(job));
                        }
                    }
                }
                written => self.answer_one(job, repeats, written),
            }
        }
    }

    /// Waits for a locked row, beside the batches, for one caller after the other.
    async fn write_alone(self: Arc<Self>, mut job: Job) {
        loop {
            let id = job.write.row_id();
            let written = self.wait_for_row(&job).await;
            let hurried =
                written.as_ref().is_none_or(|it| matches!(it, Err(StoreError::Locked(_))))
                    && job.caller.deadline.has_passed();
            let (next, repeats) = {
                let mut held = self.held.lock().expect("no panic holds this lock");
                match held.get_mut(&id).filter(|waiting| hurried && !waiting.is_empty()) {
                    // Whoever came next may have more time.
                    Some(waiting) => (Some(waiting.remove(0)), Vec::new()),
                    None => (None, held.remove(&id).unwrap_or_default()),
                }
            };
            match written {
                Some(Ok(written)) => {
                    self.answer_one(job, Vec::new(), Ok(written));
                    // They came after the transaction had begun: its time is too early for them.
                    for repeat in repeats {
                        repeat.caller.tell(Ok(Outcome::Missed(None)));
                    }
                }
                Some(error) => self.answer_one(job, repeats, error),
                None => job.caller.tell(Err(LedgerError::DeadlinePassed)),
            }
            match next {
                Some(next) => job = next,
                None => return,
            }
        }
    }

    /// Tries a locked row again and again; `None` if the deadline passed before the first try.
    ///
    /// Each try is short: it holds the shared policy lock, and whoever wants that alone would hold up
    /// every batch behind it.
    async fn wait_for_row(&self, job: &Job) -> Option<Result<Vec<Written>, StoreError>> {
        let until = Deadline::after(Some(LONG_LOCK_WAIT));
        let mut last = None;
        while !job.caller.deadline.has_passed() {
            let _room = self.alone.acquire().await.expect("never closed");
            let write = std::slice::from_ref(&job.write);
            let written = self.store.write(write, LOCKED_ROW_TRY).await;
            let locked = matches!(written, Err(StoreError::Locked(_)));
            last = Some(written);
            if !locked || until.has_passed() {
                break;
            }
        }
        last
    }

    fn answer_one(&self, job: Job, repeats: Vec<Job>, written: Result<Vec<Written>, StoreError>) {
        match written {
            Ok(written) => {
                let written = written.into_iter().next().unwrap_or(Written::Missed);
                self.answer(job, repeats, written);
            }
            Err(error) => {
                let repeats = repeats.into_iter().map(|repeat| repeat.caller);
                refuse(error, 1, std::iter::once(job.caller).chain(repeats));
            }
        }
    }

    fn answer(&self, job: Job, repeats: Vec<Job>, written: Written) {
        let Job { mut write, caller } = job;
        let (own, of_repeats) = match written {
            Written::Done { at } => {
                let version = write.version_after();
                self.watchers.wake(write.row_id(), version);
                write.stamp(at);
                let stored = Arc::new(Stored { intent: *write.intent, version });
                let row = Reading { now: at, stored };
                (Outcome::Done(row.clone()), Outcome::Missed(Some(row)))
            }
            Written::Missed => (Outcome::Missed(None), Outcome::Missed(None)),
            Written::PolicyMoved => (Outcome::PolicyMoved, Outcome::Missed(None)),
            Written::Guarded => (Outcome::Guarded, Outcome::Missed(None)),
        };
        caller.tell(Ok(own));
        for repeat in repeats {
            repeat.caller.tell(Ok(of_repeats.clone()));
        }
    }
}

/// Writes to different rows, with whom to answer, and their repeats.
#[derive(Default)]
struct Batch {
    writes: Vec<Write>,
    callers: Vec<Caller>,
    repeats: HashMap<Uuid, Vec<Job>>,
}

/// Tells everybody that nothing was written, or that nobody knows.
fn refuse(error: StoreError, rows: usize, callers: impl Iterator<Item = Caller>) {
    tracing::warn!(error = %super::error::chain(&error), rows, "a batch was not written");
    let error = LedgerError::from(error);
    for caller in callers {
        caller.tell(Err(error.clone()));
    }
}
