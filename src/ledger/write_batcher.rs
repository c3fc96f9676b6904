//! Many callers, one statement, one answer each.
//!
//! A writer takes whatever is queued the moment it is free: no timer, so a lone caller waits for
//! nobody, and a crowd shares its commits. The writers outlive every request, so that neither a
//! time-out nor a lost client reaches a running COMMIT.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{LedgerError, LedgerOptions, watchers::Watchers};
use crate::{
    clock::Deadline,
    store::{Store, StoreError, Write, Written},
};

/// Rows in one statement: past this a batch gains little and its last caller waits longer.
pub(super) const BATCH_ROWS_MAX: usize = 256;

/// Writes that may wait: some hundred milliseconds of work. Past that a caller is better told at
/// once than after its own deadline.
pub(super) const QUEUE_MAX: usize = 8192;

struct Job {
    write: Write,
    deadline: Deadline,
    answer: oneshot::Sender<Result<Written, LedgerError>>,
}

/// The queue in front of the writers.
pub(super) struct WriteBatcher {
    queue: Mutex<Option<mpsc::Sender<Job>>>,
}

impl WriteBatcher {
    pub(super) fn start(
        store: &Arc<dyn Store>,
        watchers: &Arc<Watchers>,
        options: &LedgerOptions,
        tasks: &TaskTracker,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(options.queue_max);
        let receiver = Arc::new(AsyncMutex::new(receiver));
        for _ in 0..store.writers() {
            let writer = Writer {
                store: Arc::clone(store),
                watchers: Arc::clone(watchers),
                rows_max: options.batch_rows_max,
            };
            tasks.spawn(writer.run(Arc::clone(&receiver)));
        }
        Self { queue: Mutex::new(Some(sender)) }
    }

    /// Writes one row; answers once it is durable, or is known not to be.
    pub(super) async fn write(
        &self,
        write: Write,
        deadline: Deadline,
    ) -> Result<Written, LedgerError> {
        let (answer, answered) = oneshot::channel();
        let queue = self.queue.lock().expect("no panic holds this lock").clone();
        let queue = queue.ok_or(LedgerError::Stopping)?;
        queue.try_send(Job { write, deadline, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => LedgerError::QueueFull,
            mpsc::error::TrySendError::Closed(_) => LedgerError::Stopping,
        })?;
        drop(queue);
        answered.await.unwrap_or(Err(LedgerError::Stopping))
    }

    /// Takes nothing more; the writers end once the queue is empty.
    pub(super) fn close(&self) {
        self.queue.lock().expect("no panic holds this lock").take();
    }
}

struct Writer {
    store: Arc<dyn Store>,
    watchers: Arc<Watchers>,
    rows_max: usize,
}

impl Writer {
    async fn run(self, receiver: Arc<AsyncMutex<mpsc::Receiver<Job>>>) {
        let mut jobs = Vec::with_capacity(self.rows_max);
        loop {
            let received = receiver.lock().await.recv_many(&mut jobs, self.rows_max).await;
            if received == 0 {
                return;
            }
            let mut waiting = std::mem::take(&mut jobs);
            while !waiting.is_empty() {
                let (batch, repeats) = one_per_row(waiting);
                self.write(batch).await;
                waiting = repeats;
            }
        }
    }

    async fn write(&self, batch: Vec<Job>) {
        let (late, batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|job| job.deadline.has_passed());
        for job in late {
            job.answer.send(Err(LedgerError::DeadlinePassed)).ok();
        }
        if batch.is_empty() {
            return;
        }
        let (writes, answers): (Vec<Write>, Vec<_>) =
            batch.into_iter().map(|job| (job.write, job.answer)).unzip();
        match self.store.write(&writes).await {
            Err(StoreError::Rejected(_)) if writes.len() > 1 => {
                // One row is poisonous: each for itself, so that only that one fails.
                for (write, answer) in writes.into_iter().zip(answers) {
                    let written = self.store.write(std::slice::from_ref(&write)).await;
                    self.answer(&[write], vec![answer], written);
                }
            }
            written => self.answer(&writes, answers, written),
        }
    }

    fn answer(
        &self,
        writes: &[Write],
        answers: Vec<oneshot::Sender<Result<Written, LedgerError>>>,
        written: Result<Vec<Written>, StoreError>,
    ) {
        match written {
            Ok(written) => {
                for ((write, answer), written) in writes.iter().zip(answers).zip(written) {
                    if matches!(written, Written::Done { .. }) {
                        self.watchers.wake(write.row_id(), write.version_after());
                    }
                    answer.send(Ok(written)).ok();
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = %super::error::chain(&error),
                    rows = writes.len(),
                    "a batch was not written",
                );
                let error = LedgerError::from(error);
                for answer in answers {
                    answer.send(Err(error.clone())).ok();
                }
            }
        }
    }
}

/// The first job of every row, and the rest, both in the order of arrival.
fn one_per_row(jobs: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    let mut seen: HashSet<Uuid> = HashSet::with_capacity(jobs.len());
    jobs.into_iter().partition(|job| seen.insert(job.write.row_id()))
}
