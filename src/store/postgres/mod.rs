//! Intents in Postgres, shared by any number of replicas.

mod parameters;
mod schema;
mod sql;

use std::{
    future::Future,
    time::{Duration, UNIX_EPOCH},
};

use async_trait::async_trait;
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tokio_postgres::{NoTls, Row, error::SqlState, types::ToSql};
use uuid::Uuid;

use self::parameters::{micros, time};
use super::{
    BoxError, CONNECTION_WAIT_MAX, Cursor, Diagnosis, Filter, Found, ORPHANS_PER_NAMESPACE_MAX,
    OpenError, OrphanFact, Reference, RowKey, Setting, Store, StoreError, StoreOptions, Stored,
    StoredPolicies, StoredPolicy, Touch, Version, Write, Written,
    columns::{Columns, EventColumns, signed, state_to_code, unsigned},
};
use crate::domain::{event::Event, identity::Key, intent::State, time::Timestamp};

pub use schema::migrate;

/// Two writers fill each other's commit waits; more only shrink the batches.
const WRITERS: usize = 2;

/// How often a batch that a deadlock threw out is tried again before its callers are told.
const DEADLOCK_RETRIES_MAX: usize = 5;

/// How long the answer to a read by key may take. A store that is silent is one that cannot be
/// reached, and its caller should hear so within seconds.
const READ_WAIT_MAX: Duration = Duration::from_secs(3);

/// How long the answer to a batch may take. Past that the connection is given up: whether it was
/// committed is then in doubt, which is the truth, and the writer is free for others. Closing our
/// end cancels nothing: Postgres finishes a commit whose client has gone.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(10);

/// The table of intents in Postgres.
pub struct PostgresStore {
    pool: Pool,
    write_begin: String,
    write_statement: String,
}

type Parameters<'a> = [&'a (dyn ToSql + Sync)];

impl PostgresStore {
    /// Connects, and refuses a schema or settings that would break a promise.
    pub async fn open(options: &StoreOptions) -> Result<Self, OpenError> {
        let pool = pool(&options.address, options.connections_max)?;
        let store = Self { pool, write_begin: sql::begin(), write_statement: sql::write() };
        let client = store.client().await?;
        schema::check(&client).await?;
        let unsafe_settings: Vec<String> =
            settings(&client).await?.into_iter().filter_map(|setting| setting.problem).collect();
        if !unsafe_settings.is_empty() {
            let problems = unsafe_settings.join("; ");
            if !options.allow_unsafe_durability {
                return Err(OpenError::Unsafe(problems));
            }
            tracing::warn!(problems, "the store can lose what it acknowledged");
        }
        drop(client);
        Ok(store)
    }

    async fn client(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(|error| StoreError::Unavailable(error.into()))
    }

    async fn query(
        &self,
        statement: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let client = self.client().await?;
        let answer = async {
            let prepared = client.prepare_cached(statement).await?;
            client.query(&prepared, parameters).await
        };
        let answer = within(READ_WAIT_MAX, answer).await;
        let (client, answer) = keep(client, answer).map_err(StoreError::Unavailable)?;
        answer.map_err(|error| {
            release(client, &error);
            nothing_written(error)
        })
    }

    /// For statements that look at many rows and may take their time.
    async fn query_all(
        &self,
        statement: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let client = self.client().await?;
        client.query(statement, parameters).await.map_err(nothing_written)
    }

    async fn rows(
        &self,
        statement: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Stored>, StoreError> {
        self.query(statement, parameters).await?.iter().map(stored).collect()
    }

    async fn try_write(&self, writes: &[&Write]) -> Result<Vec<Written>, StoreError> {
        let client = self.client().await?;
        let prepared = within(READ_WAIT_MAX, client.prepare_cached(&self.write_statement)).await;
        let (client, prepared) = keep(client, prepared).map_err(StoreError::Unavailable)?;
        let statement = match prepared {
            Ok(statement) => statement,
            Err(error) => {
                release(client, &error);
                return Err(nothing_written(error));
            }
        };
        let batch = parameters::Batch::of(writes);
        let parameters = batch.as_parameters();
        // Sent one after the other without waiting: one round trip for the whole transaction.
        let answers = async {
            tokio::join!(
                client.batch_execute(&self.write_begin),
                client.query_one(&statement, &parameters),
                client.batch_execute("COMMIT"),
            )
        };
        let answers = within(WRITE_WAIT_MAX, answers).await;
        let (client, (begun, written, committed)) =
            keep(client, answers).map_err(StoreError::Indeterminate)?;
        let answer = begun.and(written).and_then(|row| committed.map(|()| row));
        let row = answer.map_err(|error| {
            release(client, &error);
            after_send(error)
        })?;
        let at = micros(row.get(0));
        let active = unsigned(row.get(1));
        let done: Vec<Uuid> = row.get(2);
        Ok(writes
            .iter()
            .map(|write| {
                if done.contains(&write.row_id()) {
                    Written::Done { at }
                } else if write.policy.is_some_and(|version| version != active) {
                    Written::PolicyMoved
                } else {
                    Written::Missed
                }
            })
            .collect())
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        let rows = self.query("SELECT clock_timestamp()", &[]).await?;
        Ok(rows.first().map_or(Timestamp::default(), |row| micros(row.get(0))))
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Written>, StoreError> {
        // In the order of their ids, so that two replicas never wait for each other.
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_by_key(|index| writes[*index].row_id());
        let sorted: Vec<&Write> = order.iter().map(|index| &writes[*index]).collect();

        let mut retries = 0;
        let written = loop {
            match self.try_write(&sorted).await {
                Err(StoreError::Unavailable(error))
                    if is_conflict(&error) && retries < DEADLOCK_RETRIES_MAX =>
                {
                    retries += 1;
                }
                other => break other?,
            }
        };
        let mut answers = vec![Written::Missed; writes.len()];
        for (index, answer) in order.into_iter().zip(written) {
            answers[index] = answer;
        }
        Ok(answers)
    }

    async fn find(&self, keys: &[RowKey]) -> Result<Found, StoreError> {
        let ids: Vec<Uuid> = keys.iter().map(|key| key.id).collect();
        let namespaces: Vec<&str> = keys.iter().map(|key| key.namespace.as_str()).collect();
        let statement = format!(
            "SELECT clock_timestamp() AS now, k.ordinal, i.*
             FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS k(id, namespace, ordinal)
             LEFT JOIN ({}) i ON i.id = k.id AND i.namespace = k.namespace
             ORDER BY k.ordinal",
            sql::select("true")
        );
        let rows = self.query(&statement, &[&ids, &namespaces]).await?;
        let now = rows.first().map_or(Timestamp::default(), |row| micros(row.get("now")));
        let rows = rows
            .iter()
            .map(|row| {
                let id: Option<Uuid> = row.get("id");
                id.map(|_| stored(row)).transpose()
            })
            .collect::<Result<_, _>>()?;
        Ok(Found { now, rows })
    }

    async fn find_by_reference(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<Stored>, StoreError> {
        let newest = "ORDER BY created_at DESC, id DESC LIMIT 1";
        let rows = match reference {
            Reference::DownstreamKey(digest) => {
                let condition = format!("namespace = $1 AND downstream_key = $2 {newest}");
                self.rows(&sql::select(&condition), &[&namespace, digest]).await?
            }
            Reference::DownstreamRef(text) => {
                let condition = format!("namespace = $1 AND downstream_ref = $2 {newest}");
                self.rows(&sql::select(&condition), &[&namespace, text]).await?
            }
            Reference::ToolCallId(text) => {
                let condition = format!("namespace = $1 AND tool_call_id = $2 {newest}");
                self.rows(&sql::select(&condition), &[&namespace, text]).await?
            }
        };
        Ok(rows.into_iter().next())
    }

    async fn versions(&self, ids: &[Uuid]) -> Result<Vec<Option<Version>>, StoreError> {
        let rows = self
            .query(
                "SELECT i.version FROM unnest($1::uuid[]) WITH ORDINALITY AS k(id, ordinal)
                 LEFT JOIN intents i USING (id) ORDER BY k.ordinal",
                &[&ids],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get::<_, Option<i32>>(0).map(unsigned)).collect())
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let states: Vec<i16> = filter.states.iter().map(|state| state_to_code(*state)).collect();
        let mut conditions = vec![
            "namespace = $1",
            "($2 = '' OR tool = $2)",
            "($3 = '' OR run_id = $3)",
            "(cardinality($4::int2[]) = 0 OR state = ANY($4))",
            "($5::timestamptz IS NULL OR (created_at, id) < ($5, $6::uuid))",
        ];
        // Written out rather than as parameters, so that the partial index is of use.
        match filter.needs_attention {
            Some(true) => conditions.push("needs_attention"),
            Some(false) => conditions.push("NOT needs_attention"),
            None => {}
        }
        match filter.conflict {
            Some(true) => conditions.push("conflict"),
            Some(false) => conditions.push("NOT conflict"),
            None => {}
        }
        let condition =
            format!("{} ORDER BY created_at DESC, id DESC LIMIT $7", conditions.join(" AND "));
        self.rows(
            &sql::select(&condition),
            &[
                &filter.namespace,
                &filter.tool,
                &filter.run_id,
                &states,
                &after.map(|cursor| time(cursor.created_at)),
                &after.map(|cursor| cursor.id),
                &i64::try_from(rows_max).unwrap_or(i64::MAX),
            ],
        )
        .await
    }

    async fn events(&self, id: Uuid) -> Result<Vec<Event>, StoreError> {
        let rows =
            self.query("SELECT at, fact FROM events WHERE id = $1 ORDER BY at", &[&id]).await?;
        rows.iter().map(event).collect()
    }

    async fn keep_orphans(&self, facts: &[OrphanFact]) -> Result<Vec<bool>, StoreError> {
        let mut kept = Vec::with_capacity(facts.len());
        let bound = i64::try_from(ORPHANS_PER_NAMESPACE_MAX).unwrap_or(i64::MAX);
        for fact in facts {
            let columns = EventColumns::of(&fact.event);
            let rows = self
                .query(
                    "WITH known AS (
                         SELECT FROM orphan_facts WHERE id = $1 AND namespace = $2 AND digest = $3),
                     kept AS (
                         INSERT INTO orphan_facts (id, namespace, digest, at, fact)
                         SELECT $1, $2, $3, now(), $4
                         WHERE (SELECT count(*) FROM (
                             SELECT FROM orphan_facts WHERE namespace = $2 LIMIT $5) bounded) < $5
                         ON CONFLICT (id, namespace, digest) DO NOTHING
                         RETURNING 1)
                     SELECT EXISTS (SELECT FROM known) OR EXISTS (SELECT FROM kept)",
                    &[&fact.id, &fact.namespace, &columns.digest, &columns.fact, &bound],
                )
                .await?;
            kept.push(rows.first().is_some_and(|row| row.get(0)));
        }
        Ok(kept)
    }

    async fn orphans(&self, key: &RowKey) -> Result<Vec<Event>, StoreError> {
        let rows = self
            .query(
                "SELECT at, fact FROM orphan_facts WHERE id = $1 AND namespace = $2 ORDER BY at",
                &[&key.id, &key.namespace],
            )
            .await?;
        rows.iter().map(event).collect()
    }

    async fn touch(&self, touches: &[Touch]) -> Result<(), StoreError> {
        let mut sorted = touches.to_vec();
        sorted.sort_by_key(|touch| touch.id);
        let ids: Vec<Uuid> = sorted.iter().map(|touch| touch.id).collect();
        let repeats: Vec<i64> =
            sorted.iter().map(|touch| i64::try_from(touch.repeats).unwrap_or(i64::MAX)).collect();
        self.query(
            "UPDATE intents i SET replay_count = replay_count + t.repeats, last_seen_at = now()
             FROM unnest($1::uuid[], $2::int8[]) AS t(id, repeats) WHERE i.id = t.id",
            &[&ids, &repeats],
        )
        .await?;
        Ok(())
    }

    async fn policies(&self) -> Result<StoredPolicies, StoreError> {
        let rows = self
            .query(
                "SELECT a.version, p.version, p.text FROM active_policy a
                 LEFT JOIN policies p ON true ORDER BY p.version DESC",
                &[],
            )
            .await?;
        let active = rows.first().map_or(0, |row| unsigned(row.get(0)));
        let kept = rows
            .iter()
            .filter_map(|row| {
                let version: Option<i32> = row.get(1);
                version.map(|version| StoredPolicy { version: unsigned(version), text: row.get(2) })
            })
            .collect();
        Ok(StoredPolicies { active, kept })
    }

    async fn activate_policy(
        &self,
        expected: u32,
        policy: &StoredPolicy,
    ) -> Result<bool, StoreError> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await.map_err(nothing_written)?;
        // Waits for the writes in flight, and holds up new ones until the switch is durable.
        transaction
            .execute("SELECT pg_advisory_xact_lock($1)", &[&sql::POLICY_LOCK])
            .await
            .map_err(nothing_written)?;
        // Rows that were begun before any file was offered refer to version 0.
        transaction
            .execute(
                "INSERT INTO policies (version, text, activated_at)
                 SELECT 0, '', now() WHERE $1 = 0 AND EXISTS (SELECT FROM intents)
                 ON CONFLICT DO NOTHING",
                &[&signed(expected)],
            )
            .await
            .map_err(nothing_written)?;
        let moved = transaction
            .execute(
                "UPDATE active_policy SET version = $2 WHERE version = $1",
                &[&signed(expected), &signed(policy.version)],
            )
            .await
            .map_err(nothing_written)?;
        if moved == 1 {
            transaction
                .execute(
                    "INSERT INTO policies (version, text, activated_at) VALUES ($1, $2, now())
                     ON CONFLICT (version) DO NOTHING",
                    &[&signed(policy.version), &policy.text],
                )
                .await
                .map_err(nothing_written)?;
        }
        transaction.commit().await.map_err(after_send)?;
        Ok(moved == 1)
    }

    async fn unsettled_tools(&self) -> Result<Vec<(String, String)>, StoreError> {
        let states = [state_to_code(State::Started), state_to_code(State::Unknown)];
        let rows = self
            .query_all(
                "SELECT DISTINCT namespace, tool FROM intents WHERE state = ANY($1)",
                &[&states.as_slice()],
            )
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        let client = self.client().await?;
        let states = [state_to_code(State::Started), state_to_code(State::Unknown)];
        let product: String = client
            .query_one("SELECT current_setting('server_version')", &[])
            .await
            .map_err(nothing_written)?
            .get(0);
        let oldest = client
            .query_opt(
                "SELECT key, created_at FROM intents WHERE state = ANY($1)
                 ORDER BY created_at LIMIT 1",
                &[&states.as_slice()],
            )
            .await
            .map_err(nothing_written)?
            .and_then(|row| {
                let key: Vec<u8> = row.get(0);
                let key = Key::from_bytes(key.try_into().ok()?);
                Some((key, micros(row.get(1))))
            });
        let settings = settings(&client).await?;
        drop(client);
        Ok(Diagnosis {
            product: format!("PostgreSQL {product}"),
            settings,
            now: self.now().await?,
            oldest_unsettled: oldest,
        })
    }

    fn writers(&self) -> usize {
        WRITERS
    }
}

/// A pool whose connections are tested for life before they are lent.
fn pool(address: &str, connections_max: usize) -> Result<Pool, OpenError> {
    let mut config: tokio_postgres::Config = address
        .parse()
        .map_err(|_| OpenError::Address("postgres://… (it does not parse)".to_owned()))?;
    if config.get_application_name().is_none() {
        config.application_name("intent-ledger");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECTION_WAIT_MAX);
    }
    config.tcp_user_timeout(Duration::from_secs(10));
    let manager = Manager::from_config(
        config,
        NoTls,
        ManagerConfig { recycling_method: RecyclingMethod::Fast },
    );
    Pool::builder(manager)
        .max_size(connections_max)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(CONNECTION_WAIT_MAX))
        .create_timeout(Some(CONNECTION_WAIT_MAX))
        .recycle_timeout(Some(CONNECTION_WAIT_MAX))
        .build()
        .map_err(|error| OpenError::Store(StoreError::Unavailable(error.into())))
}

/// The settings that decide whether an acknowledged commit survives.
async fn settings(client: &Object) -> Result<Vec<Setting>, StoreError> {
    let rows = client
        .query(
            "SELECT name, setting FROM pg_settings WHERE name IN
             ('synchronous_commit', 'fsync', 'full_page_writes', 'synchronous_standby_names',
              'default_transaction_isolation', 'default_transaction_read_only')
             ORDER BY name",
            &[],
        )
        .await
        .map_err(nothing_written)?;
    let values: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let standbys =
        values.iter().any(|(name, value)| name == "synchronous_standby_names" && !value.is_empty());
    Ok(values
        .into_iter()
        .map(|(name, value)| Setting { problem: problem(&name, &value, standbys), name, value })
        .collect())
}

fn problem(name: &str, value: &str, standbys: bool) -> Option<String> {
    let lost = match (name, value) {
        ("fsync" | "full_page_writes", "off") => "a crash of the machine can lose commits",
        ("synchronous_commit", "off") => "a crash loses acknowledged commits",
        ("synchronous_commit", "local" | "remote_write") if standbys => {
            "a failover to the standby loses acknowledged commits"
        }
        ("default_transaction_isolation", "repeatable read" | "serializable") => {
            "writes that meet each other fail instead of waiting"
        }
        ("default_transaction_read_only", "on") => "nothing can be written",
        _ => return None,
    };
    Some(format!("{name} is {value}: {lost}"))
}

fn stored(row: &Row) -> Result<Stored, StoreError> {
    parameters::read(row)
        .map_err(|error| StoreError::Corrupt(error.to_string()))
        .and_then(Columns::into_stored)
}

fn event(row: &Row) -> Result<Event, StoreError> {
    EventColumns::into_event(micros(row.get(0)).micros(), row.get(1))
}

/// What comes of `answer`; `None` if it does not come in time.
async fn within<T>(longest: Duration, answer: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(longest, answer).await.ok()
}

/// Keeps a connection whose answer has come. Another one is closed rather than lent again: its
/// next borrower would wait for the same answer.
fn keep<T>(client: Object, answer: Option<T>) -> Result<(Object, T), BoxError> {
    match answer {
        Some(answer) => Ok((client, answer)),
        None => {
            drop(Object::take(client));
            Err("the server took the statement and did not answer".into())
        }
    }
}

/// Lends a connection again after an error, unless its session may have ended: the driver needs a
/// moment to notice that, and the next borrower would be the one to find out.
fn release(client: Object, error: &tokio_postgres::Error) {
    if error.code().map(fault).is_none_or(|fault| fault == Fault::Unknown) {
        drop(Object::take(client));
    }
}

/// An error of a statement that writes nothing, or nothing before its commit.
fn nothing_written(error: tokio_postgres::Error) -> StoreError {
    match error.code().map(fault) {
        Some(Fault::Row) => StoreError::Rejected(error.into()),
        Some(Fault::Busy | Fault::Unknown) | None => StoreError::Unavailable(error.into()),
    }
}

/// An error after the commit was sent: only an answer of the server proves that nothing happened.
fn after_send(error: tokio_postgres::Error) -> StoreError {
    match error.code().map(fault) {
        Some(Fault::Row) => StoreError::Rejected(error.into()),
        Some(Fault::Busy) => StoreError::Unavailable(error.into()),
        Some(Fault::Unknown) | None => StoreError::Indeterminate(error.into()),
    }
}

/// What an error code says of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It was rolled back, and would be again: something is wrong with a row or a statement.
    Row,
    /// It was rolled back; the same may succeed later.
    Busy,
    /// The session ended, perhaps after the commit was durable. Codes that we do not know count
    /// as this: a pooler may say it of a server that it has lost.
    Unknown,
}

fn fault(code: &SqlState) -> Fault {
    match code.code() {
        "40003" => Fault::Unknown,
        // Read-only: a standby that is not promoted yet. Cancelled: a time-out, or a person.
        "25006" | "55P03" | "57014" => Fault::Busy,
        code => match &code[..2] {
            "40" | "53" => Fault::Busy,
            "0A" | "20" | "21" | "22" | "23" | "25" | "26" | "34" | "3D" | "3F" | "42" | "44"
            | "54" | "55" | "P0" => Fault::Row,
            _ => Fault::Unknown,
        },
    }
}

fn is_conflict(error: &BoxError) -> bool {
    error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code).is_some_and(
        |code| {
            *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE
        },
    )
}

/// The epoch of every store.
pub(super) const EPOCH: std::time::SystemTime = UNIX_EPOCH;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_codes_prove_that_nothing_was_written() {
        let rows = [
            ("23505", Fault::Row),
            ("22021", Fault::Row),
            ("42P01", Fault::Row),
            ("25P02", Fault::Row),
            ("40P01", Fault::Busy),
            ("40001", Fault::Busy),
            ("53100", Fault::Busy),
            ("25006", Fault::Busy),
            ("55P03", Fault::Busy),
            ("57014", Fault::Busy),
            ("57P01", Fault::Unknown),
            ("57P03", Fault::Unknown),
            ("08006", Fault::Unknown),
            ("08007", Fault::Unknown),
            ("40003", Fault::Unknown),
            ("58000", Fault::Unknown),
            ("XX000", Fault::Unknown),
        ];
        for (code, expected) in rows {
            assert_eq!(fault(&SqlState::from_code(code)), expected, "{code}");
        }
    }
}
