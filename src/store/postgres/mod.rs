//! Intents in Postgres, shared by any number of replicas.

mod agenda;
mod connect;
mod fault;
mod guards;
mod history;
mod parameters;
mod retention;
mod schema;
mod settings;
mod sql;
mod write;

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, UNIX_EPOCH},
};

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use self::{
    connect::{Busy, Parameter, keep, pool, release, run, within},
    fault::{after_send, is_conflict, nothing_written},
    parameters::{RecordTypes, micros, time},
    sql::{Shape, WriteFunction},
};
use super::{
    Cursor, Diagnosis, DownstreamObject, Filter, Found, LOCK_WAIT, ORPHANS_PER_NAMESPACE_MAX,
    OpenError, OrphanFact, Reference, RowKey, Statements, Store, StoreError, StoreOptions, Stored,
    StoredPolicies, StoredPolicy, Touch, Version, Write, Written,
    codes::state_to_code,
    columns::{Columns, EventColumns, signed, unsigned},
};
use crate::domain::{event::Event, identity::Key, intent::State, time::Timestamp};

pub use schema::migrate;

/// Rows that are counted up together: what waits for one that somebody's transaction holds, holds the
/// others meanwhile.
const TOUCHED_TOGETHER_MAX: usize = 64;

/// How often a batch that a deadlock threw out is tried again before its callers are told.
const DEADLOCK_RETRIES_MAX: usize = 5;

/// How long the answer to a read by key may take. A store that is silent is one that cannot be
/// reached, and its caller should hear so within seconds.
const READ_WAIT_MAX: Duration = Duration::from_secs(3);

/// The table of intents in Postgres.
pub struct PostgresStore {
    pool: Pool,
    statements: Statements,
    /// By `Shape::index`.
    write_statements: Vec<String>,
    /// Likewise.
    write_functions: Vec<WriteFunction>,
    /// Until it turns out that sessions cannot.
    makes_functions: AtomicBool,
    find_statement: String,
    types: RecordTypes,
}

impl PostgresStore {
    /// Connects, and refuses a schema or settings that would break a promise.
    pub async fn open(options: &StoreOptions) -> Result<Self, OpenError> {
        let pool = pool(options)?;
        let client = pool.get().await.map_err(|error| StoreError::Unavailable(error.into()))?;
        schema::check(&client).await?;
        let types = RecordTypes::read(&client).await?;
        let unsafe_settings: Vec<String> = settings::read(&client)
            .await
            .map_err(nothing_written)?
            .into_iter()
            .filter_map(|setting| setting.problem)
            .collect();
        if !unsafe_settings.is_empty() {
            let problems = unsafe_settings.join("; ");
            if !options.allow_unsafe_durability {
                return Err(OpenError::Unsafe(problems));
            }
            tracing::warn!(problems, "the store can lose what it acknowledged");
        }
        drop(client);
        Ok(Self {
            pool,
            statements: options.statements,
            write_statements: Shape::all().map(sql::write).collect(),
            write_functions: Shape::all().map(sql::write_function).collect(),
            makes_functions: AtomicBool::new(true),
            find_statement: sql::find(),
            types,
        })
    }

    async fn client(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(|error| StoreError::Unavailable(error.into()))
    }

    async fn query(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let client = Busy::new(self.client().await?);
        let answer = run(&client, self.statements, statement, parameters);
        let answer = within(READ_WAIT_MAX, answer).await;
        let (client, answer) = keep(client.done(), answer).map_err(StoreError::Unavailable)?;
        answer.map_err(|error| {
            release(client, &error);
            nothing_written(error)
        })
    }

    /// For statements that look at many rows and may take their time.
    async fn query_all(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let client = Busy::new(self.client().await?);
        let answer = run(&client, self.statements, statement, parameters).await;
        let client = client.done();
        answer.map_err(|error| {
            release(client, &error);
            nothing_written(error)
        })
    }

    async fn rows(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Stored>, StoreError> {
        self.query(statement, parameters).await?.iter().map(stored).collect()
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        let rows = self.query("SELECT clock_timestamp()", &[]).await?;
        Ok(rows.first().map_or(Timestamp::default(), |row| micros(row.get(0))))
    }

    async fn write(
        &self,
        writes: &[Write],
        lock_wait: Duration,
    ) -> Result<Vec<Written>, StoreError> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        // In the order of their ids, so that two replicas never wait for each other.
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_unstable_by_key(|index| writes[*index].row_id());
        let sorted: Vec<&Write> = order.iter().map(|index| &writes[*index]).collect();

        let mut retries = 0;
        let written = loop {
            match self.try_write(&sorted, lock_wait).await {
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
        let rows = self
            .query(
                &self.find_statement,
                &[(&ids, Type::UUID_ARRAY), (&namespaces, Type::TEXT_ARRAY)],
            )
            .await?;
        let now = rows.first().map_or(Timestamp::default(), |row| micros(row.get(row.len() - 1)));
        let rows = rows
            .iter()
            .map(|row| {
                let id: Option<Uuid> = row.get(0);
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
            Reference::DownstreamKey(key) => {
                let condition = format!("namespace = $1 AND downstream_key = $2 {newest}");
                self.rows(&sql::select(&condition), &[(&namespace, Type::TEXT), (key, Type::UUID)])
                    .await?
            }
            Reference::DownstreamRef(text) => {
                let condition = format!("namespace = $1 AND downstream_ref = $2 {newest}");
                self.rows(&sql::select(&condition), &[(&namespace, Type::TEXT), (text, Type::TEXT)])
                    .await?
            }
            Reference::ToolCallId(text) => {
                let condition = format!("namespace = $1 AND tool_call_id = $2 {newest}");
                self.rows(&sql::select(&condition), &[(&namespace, Type::TEXT), (text, Type::TEXT)])
                    .await?
            }
        };
        Ok(rows.into_iter().next())
    }

    async fn others_with_references(
        &self,
        objects: &[DownstreamObject],
    ) -> Result<Vec<Option<Key>>, StoreError> {
        let references: Vec<&str> = objects.iter().map(|it| it.downstream_ref.as_str()).collect();
        let namespaces: Vec<&str> = objects.iter().map(|it| it.tool.namespace.as_str()).collect();
        let tools: Vec<&str> = objects.iter().map(|it| it.tool.tool.as_str()).collect();
        let ids: Vec<Uuid> = objects.iter().map(|it| it.row).collect();
        let rows = self
            .query(
                sql::OTHERS_WITH_REFERENCES,
                &[
                    (&references, Type::TEXT_ARRAY),
                    (&namespaces, Type::TEXT_ARRAY),
                    (&tools, Type::TEXT_ARRAY),
                    (&ids, Type::UUID_ARRAY),
                ],
            )
            .await?;
        let key = |row: &Row| {
            let key = row.get::<_, Option<&[u8]>>(0).map(<[u8; 32]>::try_from).transpose();
            key.map(|key| key.map(Key::from_bytes))
        };
        rows.iter()
            .map(key)
            .collect::<Result<_, _>>()
            .map_err(|_| StoreError::Corrupt("key: is not 32 bytes long".to_owned()))
    }

    async fn versions(
        &self,
        ids: &[Uuid],
    ) -> Result<(Timestamp, Vec<Option<Version>>), StoreError> {
        let rows = self
            .query(
                "SELECT i.version, clock_timestamp()
                 FROM unnest($1::uuid[]) WITH ORDINALITY AS k(id, ordinal)
                 LEFT JOIN intents i USING (id) ORDER BY k.ordinal",
                &[(&ids, Type::UUID_ARRAY)],
            )
            .await?;
        let now = rows.first().map_or(Timestamp::default(), |row| micros(row.get(1)));
        let versions = rows.iter().map(|row| row.get::<_, Option<i32>>(0).map(unsigned));
        Ok((now, versions.collect()))
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
        let rows = self
            .query_all(
                &sql::select(&condition),
                &[
                    (&filter.namespace, Type::TEXT),
                    (&filter.tool, Type::TEXT),
                    (&filter.run_id, Type::TEXT),
                    (&states, Type::INT2_ARRAY),
                    (&after.map(|cursor| time(cursor.created_at)), Type::TIMESTAMPTZ),
                    (&after.map(|cursor| cursor.id), Type::UUID),
                    (&i64::try_from(rows_max).unwrap_or(i64::MAX), Type::INT8),
                ],
            )
            .await?;
        rows.iter().map(stored).collect()
    }

    async fn events(&self, id: Uuid) -> Result<Vec<Event>, StoreError> {
        let rows = self
            .query("SELECT at, fact FROM events WHERE id = $1 ORDER BY at", &[(&id, Type::UUID)])
            .await?;
        rows.iter().map(event).collect()
    }

    async fn keep_orphans(&self, facts: &[OrphanFact]) -> Result<Vec<bool>, StoreError> {
        let bound = i64::try_from(ORPHANS_PER_NAMESPACE_MAX).unwrap_or(i64::MAX);
        let mut client = self.client().await?;
        let transaction = client.transaction().await.map_err(nothing_written)?;
        // A Begin's snapshot may be older than the fact. Exclusively, as for an activation: writes
        // in flight have committed before it, so that the reporter sees them, and later ones see it.
        transaction.batch_execute(&sql::lock_alone()).await.map_err(nothing_written)?;
        let mut kept = Vec::with_capacity(facts.len());
        for fact in facts {
            let columns = EventColumns::of(&fact.event, 0);
            let rows = transaction
                .query_typed(
                    sql::KEEP_ORPHAN,
                    &[
                        (&fact.id, Type::UUID),
                        (&fact.namespace, Type::TEXT),
                        (&columns.digest, Type::BYTEA),
                        (&columns.fact, Type::TEXT),
                        (&bound, Type::INT8),
                    ],
                )
                .await
                .map_err(nothing_written)?;
            kept.push(rows.first().is_some_and(|row| row.get(0)));
        }
        transaction.commit().await.map_err(after_send)?;
        Ok(kept)
    }

    async fn orphans(&self, key: &RowKey) -> Result<Vec<Event>, StoreError> {
        let rows = self
            .query(
                "SELECT at, fact FROM orphan_facts WHERE id = $1 AND namespace = $2 ORDER BY at",
                &[(&key.id, Type::UUID), (&key.namespace, Type::TEXT)],
            )
            .await?;
        rows.iter().map(event).collect()
    }

    async fn touch(&self, touches: &[Touch]) -> Result<Vec<Touch>, StoreError> {
        let mut sorted = touches.to_vec();
        sorted.sort_by_key(|touch| touch.id);
        let mut held = Vec::new();
        let mut parts: Vec<&[Touch]> = sorted.chunks(TOUCHED_TOGETHER_MAX).collect();
        while let Some(part) = parts.pop() {
            let ids: Vec<Uuid> = part.iter().map(|touch| touch.id).collect();
            let replays: Vec<i64> =
                part.iter().map(|touch| i64::try_from(touch.replays).unwrap_or(i64::MAX)).collect();
            let parameters: [Parameter<'_>; 2] =
                [(&ids, Type::UUID_ARRAY), (&replays, Type::INT8_ARRAY)];
            // A session of our own has its bound on lock waits; one that a pooler lends has to be told.
            let touched = match self.statements {
                Statements::Named => self.query(sql::TOUCH, &parameters).await,
                Statements::Unnamed => {
                    self.write_one(sql::TOUCH, &parameters, &[], LOCK_WAIT).await
                }
            };
            match touched {
                // Somebody's transaction holds one of the rows: the others go without it.
                Err(StoreError::Locked(_)) if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(StoreError::Locked(_)) => held.extend_from_slice(part),
                touched => drop(touched?),
            }
        }
        Ok(held)
    }

    async fn active_policy(&self) -> Result<u32, StoreError> {
        let rows = self.query("SELECT version FROM active_policy", &[]).await?;
        Ok(rows.first().map_or(0, |row| unsigned(row.get(0))))
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
        let (expected, version) = (signed(expected), signed(policy.version));
        // Waits for the writes in flight, and holds up new ones until the switch is durable.
        transaction.batch_execute(&sql::lock_alone()).await.map_err(nothing_written)?;
        let moved = transaction
            .query_typed(
                "UPDATE active_policy SET version = $2 WHERE version = $1 RETURNING version",
                &[(&expected, Type::INT4), (&version, Type::INT4)],
            )
            .await
            .map_err(nothing_written)?
            .len();
        if moved == 1 {
            // Rows that were begun before any file was offered refer to version 0.
            transaction
                .query_typed(
                    "INSERT INTO policies (version, text, activated_at)
                     SELECT 0, '', now() WHERE $1 = 0 AND EXISTS (SELECT FROM intents)
                     ON CONFLICT DO NOTHING",
                    &[(&expected, Type::INT4)],
                )
                .await
                .map_err(nothing_written)?;
            transaction
                .query_typed(
                    "INSERT INTO policies (version, text, activated_at) VALUES ($1, $2, now())
                     ON CONFLICT (version) DO NOTHING",
                    &[(&version, Type::INT4), (&policy.text, Type::TEXT)],
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
                &[(&states.as_slice(), Type::INT2_ARRAY)],
            )
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        let states = [state_to_code(State::Started), state_to_code(State::Unknown)];
        let product = self.query("SELECT current_setting('server_version')", &[]).await?;
        let product: String = product.first().map_or_else(String::new, |row| row.get(0));
        let oldest = self
            .query_all(
                "SELECT key, created_at FROM intents WHERE state = ANY($1)
                 ORDER BY created_at LIMIT 1",
                &[(&states.as_slice(), Type::INT2_ARRAY)],
            )
            .await?;
        let oldest_unsettled = oldest.first().and_then(|row| {
            let key: Vec<u8> = row.get(0);
            Some((Key::from_bytes(key.try_into().ok()?), micros(row.get(1))))
        });
        // One after the other: whoever looks a store over has a single connection.
        let settings = {
            let client = self.client().await?;
            settings::read(&client).await.map_err(nothing_written)?
        };
        let now = self.now().await?;
        let product = format!("PostgreSQL {product}");
        Ok(Diagnosis { product, settings, now, oldest_unsettled })
    }

    fn writers(&self) -> usize {
        self.pool.status().max_size
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn stored(row: &Row) -> Result<Stored, StoreError> {
    parameters::read(row)
        .map_err(|error| StoreError::Corrupt(error.to_string()))
        .and_then(Columns::into_stored)
}

fn event(row: &Row) -> Result<Event, StoreError> {
    EventColumns::into_event(micros(row.get(0)).micros(), row.get(1))
}

/// The epoch of every store.
pub(super) const EPOCH: std::time::SystemTime = UNIX_EPOCH;
