//! Many readers, one statement.
//!
//! As with writes, a reader takes whatever is asked for the moment it is free. A read may be lost
//! without harm, so that nothing here outlives the callers but the tasks themselves.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::LedgerError;
use crate::{
    domain::time::Timestamp,
    store::{Found, RowKey, Store, StoreError, Version},
};

/// Questions that one statement asks at most.
const BATCH_MAX: usize = 256;

/// Questions that may wait: as many as there can be calls that do not wait for a change.
const QUEUE_MAX: usize = 16_384;

/// Statements under way at once: while one is being answered, the next is filled.
const READERS: usize = 2;

/// The queues in front of the readers.
pub(super) struct ReadBatcher {
    rows: Queue<Vec<RowKey>, Found>,
    versions: Queue<Uuid, (Timestamp, Option<Version>)>,
}

impl ReadBatcher {
    pub(super) fn start(store: &Arc<dyn Store>, tasks: &TaskTracker) -> Self {
        Self {
            rows: Queue::start(store, tasks, |store, asked| {
                Box::pin(async move {
                    let keys: Vec<RowKey> = asked.iter().flatten().cloned().collect();
                    let Found { now, rows } = store.find(&keys).await?;
                    let mut rows = rows.into_iter();
                    let of = |keys: &Vec<RowKey>| Found {
                        now,
                        rows: rows.by_ref().take(keys.len()).collect(),
                    };
                    Ok(asked.iter().map(of).collect())
                })
            }),
            versions: Queue::start(store, tasks, |store, ids| {
                Box::pin(async move {
                    let (now, versions) = store.versions(&ids).await?;
                    Ok(versions.into_iter().map(|version| (now, version)).collect())
                })
            }),
        }
    }

    /// The rows of these keys.
    pub(super) async fn find(&self, keys: Vec<RowKey>) -> Result<Found, LedgerError> {
        self.rows.ask(keys).await
    }

    /// The version of this row, and the store's time.
    pub(super) async fn version(
        &self,
        id: Uuid,
    ) -> Result<(Timestamp, Option<Version>), LedgerError> {
        self.versions.ask(id).await
    }

    /// Takes nothing more.
    pub(super) fn close(&self) {
        self.rows.close();
        self.versions.close();
    }
}

struct Asked<Q, A> {
    question: Q,
    answer: oneshot::Sender<Result<A, Arc<StoreError>>>,
}

/// Asks the store many questions in one statement, answered in their order.
type Read<Q, A> = fn(Arc<dyn Store>, Vec<Q>) -> BoxFuture<'static, Result<Vec<A>, StoreError>>;

struct Queue<Q, A> {
    sender: std::sync::Mutex<Option<mpsc::Sender<Asked<Q, A>>>>,
}

impl<Q: Send + 'static, A: Send + 'static> Queue<Q, A> {
    fn start(store: &Arc<dyn Store>, tasks: &TaskTracker, read: Read<Q, A>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..READERS {
            tasks.spawn(serve(Arc::clone(store), Arc::clone(&receiver), read));
        }
        Self { sender: std::sync::Mutex::new(Some(sender)) }
    }

    async fn ask(&self, question: Q) -> Result<A, LedgerError> {
        let (answer, answered) = oneshot::channel();
        let sender = self.sender.lock().expect("no panic holds this lock").clone();
        let sender = sender.ok_or(LedgerError::Stopping)?;
        sender.try_send(Asked { question, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => LedgerError::QueueFull,
            mpsc::error::TrySendError::Closed(_) => LedgerError::Stopping,
        })?;
        drop(sender);
        Ok(answered.await.map_err(|_| LedgerError::Stopping)??)
    }

    fn close(&self) {
        self.sender.lock().expect("no panic holds this lock").take();
    }
}

async fn serve<Q, A>(
    store: Arc<dyn Store>,
    receiver: Arc<Mutex<mpsc::Receiver<Asked<Q, A>>>>,
    read: Read<Q, A>,
) {
    let mut asked = Vec::new();
    while receiver.lock().await.recv_many(&mut asked, BATCH_MAX).await > 0 {
        // Who has gone away asks no more.
        let asked = asked.drain(..).filter(|it| !it.answer.is_closed());
        let (questions, answers): (Vec<Q>, Vec<_>) =
            asked.map(|it| (it.question, it.answer)).unzip();
        if questions.is_empty() {
            continue;
        }
        match read(Arc::clone(&store), questions).await {
            Ok(found) => {
                for (answer, found) in answers.into_iter().zip(found) {
                    answer.send(Ok(found)).ok();
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for answer in answers {
                    answer.send(Err(Arc::clone(&error))).ok();
                }
            }
        }
    }
}
