//! Batches of writes: one statement in a transaction of its own, however it is sent.

use std::{collections::HashSet, time::Duration};

use deadpool_postgres::Object;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::{
    PostgresStore, READ_WAIT_MAX,
    connect::{Parameter, Transaction, keep, release, within},
    fault::{after_send, nothing_written},
    guards,
    parameters::{Batch, micros},
    sql, unsigned,
};
use crate::store::{LOCK_WAIT, Statements, StoreError, Write, Written};

/// How long the answer to a batch may take. Past that the connection is given up: whether it was
/// committed is then in doubt, which is the truth, and the writer is free for others. Closing our
/// end cancels nothing: Postgres finishes a commit whose client has gone.
pub(super) const WRITE_WAIT_MAX: Duration = Duration::from_secs(10);

impl PostgresStore {
    async fn write_prepared(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        locks: &[i32],
    ) -> Result<Vec<Row>, StoreError> {
        let client = self.client().await?;
        let prepared = Transaction::prepare(&client, statement, parameters, !locks.is_empty());
        let prepared = within(READ_WAIT_MAX, prepared).await;
        let (client, prepared) = keep(client, prepared).map_err(StoreError::Unavailable)?;
        let transaction = match prepared {
            Ok(transaction) => transaction,
            Err(error) => {
                release(client, &error);
                return Err(nothing_written(error));
            }
        };
        let answer = within(WRITE_WAIT_MAX, transaction.run(&client, parameters, locks)).await;
        answered(client, answer)
    }

    pub(super) async fn write_unprepared(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        locks: &[i32],
        lock_wait: Duration,
    ) -> Result<Vec<Row>, StoreError> {
        let client = self.client().await?;
        let begin = sql::begin(lock_wait);
        // Sent one after the other without waiting: one round trip for the whole transaction.
        let answers = async {
            let guarded = async {
                match locks {
                    [] => Ok(()),
                    locks => {
                        let locks: Parameter<'_> = (&locks, Type::INT4_ARRAY);
                        client.query_typed(guards::LOCK, &[locks]).await.map(|_| ())
                    }
                }
            };
            let (begun, guarded, written, committed) = tokio::join!(
                biased; // they are sent in this order
                client.batch_execute(&begin),
                guarded,
                client.query_typed(statement, parameters),
                client.batch_execute(sql::COMMIT),
            );
            begun.and(guarded).and(written).and_then(|rows| committed.map(|()| rows))
        };
        let answer = within(WRITE_WAIT_MAX + lock_wait, answers).await;
        answered(client, answer)
    }

    /// One statement in a transaction of its own, under the shared policy lock.
    pub(super) async fn write_one(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        locks: &[i32],
        lock_wait: Duration,
    ) -> Result<Vec<Row>, StoreError> {
        // The session's own bound on lock waits needs no words.
        if self.statements == Statements::Named && lock_wait == LOCK_WAIT {
            self.write_prepared(statement, parameters, locks).await
        } else {
            self.write_unprepared(statement, parameters, locks, lock_wait).await
        }
    }

    pub(super) async fn try_write(
        &self,
        writes: &[&Write],
        lock_wait: Duration,
    ) -> Result<Vec<Written>, StoreError> {
        let batch = Batch::of(writes);
        let parameters = batch.parameters(&self.types);
        let parameters: Vec<Parameter<'_>> = parameters
            .iter()
            .map(|(records, of)| (records as &(dyn ToSql + Sync), of.clone()))
            .collect();
        let statement = &self.write_statements[batch.shape().index()];
        let locks = guards::locks(writes);
        let rows = self.write_one(statement, &parameters, &locks, lock_wait).await?;
        let row = rows
            .first()
            .ok_or_else(|| StoreError::Corrupt("active_policy: has no row".to_owned()))?;
        let at = micros(row.get(0));
        let active = unsigned(row.get(1));
        let done: HashSet<Uuid> = row.get::<_, Vec<Uuid>>(2).into_iter().collect();
        let blocked: HashSet<Uuid> = match batch.shape().guards {
            true => row.get::<_, Vec<Uuid>>(3).into_iter().collect(),
            false => HashSet::new(),
        };
        Ok(writes
            .iter()
            .map(|write| {
                if done.contains(&write.row_id()) {
                    Written::Done { at }
                } else if write.policy.is_some_and(|version| version != active) {
                    Written::PolicyMoved
                } else if blocked.contains(&write.row_id()) {
                    Written::Guarded
                } else {
                    Written::Missed
                }
            })
            .collect())
    }
}

/// The rows of a transaction whose commit was sent.
pub(super) fn answered(
    client: Object,
    answer: Option<Result<Vec<Row>, tokio_postgres::Error>>,
) -> Result<Vec<Row>, StoreError> {
    let (client, answer) = keep(client, answer).map_err(StoreError::Indeterminate)?;
    answer.map_err(|error| {
        release(client, &error);
        after_send(error)
    })
}
