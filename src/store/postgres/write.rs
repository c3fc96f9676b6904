//! Batches of writes: one statement in a transaction of its own, however it is sent.

use std::{collections::HashSet, sync::atomic::Ordering, time::Duration};

use deadpool_postgres::Object;
use tokio_postgres::{
    Row, Statement,
    error::SqlState,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::{
    PostgresStore, READ_WAIT_MAX,
    connect::{Parameter, keep, release, within},
    fault::{after_send, nothing_written},
    guards,
    parameters::{Batch, micros},
    sql::{self, Shape, WriteFunction},
    unsigned,
};
use crate::store::{LOCK_WAIT, Statements, StoreError, Write, Written};

/// How long the answer to a batch may take. Past that the connection is given up: whether it was
/// committed is then in doubt, which is the truth, and the writer is free for others. Closing our
/// end cancels nothing: Postgres finishes a commit whose client has gone.
pub(super) const WRITE_WAIT_MAX: Duration = Duration::from_secs(10);

/// What Postgres says of a function that is not there; it makes a session's own schema with the first one.
const NOT_MADE_YET: [SqlState; 2] = [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME];

/// What it says to a role that may make none, or where their language is not there.
const NO_FUNCTIONS: [SqlState; 2] = [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::UNDEFINED_OBJECT];

impl PostgresStore {
    /// One statement in a transaction of its own, under the shared policy lock and locks of others.
    pub(super) async fn write_one(
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
                        client.query_typed(&guards::lock(), &[locks]).await.map(|_| ())
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

    /// The same of a batch, as one call of a function of the session; `None` if it may make none.
    async fn write_at_once(
        &self,
        shape: Shape,
        parameters: &[Parameter<'_>],
        locks: &[i32],
    ) -> Result<Option<Vec<Row>>, StoreError> {
        let mut parameters = parameters.to_vec();
        if shape.guards {
            parameters.push((&locks, Type::INT4_ARRAY));
        }
        let (values, types): (Vec<_>, Vec<_>) = parameters.into_iter().unzip();
        let function = &self.write_functions[shape.index()];
        let client = self.client().await?;
        let prepared = within(READ_WAIT_MAX, prepared(&client, function, &types)).await;
        let (client, prepared) = keep(client, prepared).map_err(StoreError::Unavailable)?;
        let call = match prepared {
            Ok(call) => call,
            Err(error) => {
                release(client, &error);
                if !error.code().is_some_and(|code| NO_FUNCTIONS.contains(code)) {
                    return Err(nothing_written(error));
                }
                self.makes_functions.store(false, Ordering::Relaxed);
                tracing::warn!(
                    %error,
                    "no functions can be made in this session (it needs TEMPORARY on the database and USAGE on \
                     plpgsql); batches take the slower road of four messages each"
                );
                return Ok(None);
            }
        };
        let answer = within(WRITE_WAIT_MAX, client.query(&call, &values)).await;
        answered(client, answer).map(Some)
    }

    /// Writes a batch by the quickest road that its session has.
    async fn write_batch(
        &self,
        shape: Shape,
        parameters: &[Parameter<'_>],
        locks: &[i32],
        lock_wait: Duration,
    ) -> Result<Vec<Row>, StoreError> {
        // The session's own bound on lock waits needs no words.
        let at_once = self.statements == Statements::Named && lock_wait == LOCK_WAIT;
        if at_once
            && self.makes_functions.load(Ordering::Relaxed)
            && let Some(rows) = self.write_at_once(shape, parameters, locks).await?
        {
            return Ok(rows);
        }
        self.write_one(&self.write_statements[shape.index()], parameters, locks, lock_wait).await
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
        let locks = guards::locks(writes);
        let rows = self.write_batch(batch.shape(), &parameters, &locks, lock_wait).await?;
        // A function without an answer gives a row of nulls.
        let active = rows.first().and_then(|row| row.get::<_, Option<i32>>(1).map(|it| (row, it)));
        let (row, active) =
            active.ok_or_else(|| StoreError::Corrupt("active_policy: has no row".to_owned()))?;
        let at = micros(row.get(0));
        let active = unsigned(active);
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

/// The call of a function, which is made if the session does not have it yet.
async fn prepared(
    client: &Object,
    function: &WriteFunction,
    types: &[Type],
) -> Result<Statement, tokio_postgres::Error> {
    match client.prepare_typed_cached(&function.call, types).await {
        Err(error) if error.code().is_some_and(|code| NOT_MADE_YET.contains(code)) => {
            client.batch_execute(&function.create).await?;
            client.prepare_typed_cached(&function.call, types).await
        }
        prepared => prepared,
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
