//! Intents in one SQLite file, for a ledger that needs no server.
//!
//! Durable: WAL with `synchronous = FULL`, so that a commit is on disk before it is acknowledged.
//! One thread owns the connection; SQLite has one writer anyway, and a thread of its own keeps the
//! fsync away from the runtime.

mod agenda;
mod connect;
mod guards;
mod history;
mod retention;
mod rows;
mod schema;
mod settings;
mod sql;

use std::{sync::Mutex, thread, time::Duration};

use async_trait::async_trait;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, TransactionBehavior, named_params, params,
};
use tokio::sync::oneshot;
use uuid::Uuid;

use self::connect::{connect, file, settle};
use super::{
    Cursor, Diagnosis, DownstreamObject, Expected, Filter, Found, ORPHANS_PER_NAMESPACE_MAX,
    OpenError, OrphanFact, Reference, RowKey, Store, StoreError, Stored, StoredPolicies,
    StoredPolicy, Touch, Version, Write, Written,
    codes::{state_from_code, state_to_code},
    columns::{Columns, EventColumns, signed, unsigned},
};
use crate::{
    clock::{Clock, SystemClock},
    domain::{event::Event, identity::Key, intent::State, time::Timestamp},
};

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The table of intents in one file.
pub struct SqliteStore {
    jobs: std::sync::mpsc::Sender<Job>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl SqliteStore {
    /// Opens the file, makes it if it is absent, and migrates it.
    pub fn open(path: &str) -> Result<Self, OpenError> {
        let mut connection = connect(path)?;
        let (from, to) = schema::migrate(&mut connection)?;
        if from < to {
            tracing::info!(from, to, "the store's schema was migrated");
        }
        Self::over(connection)
    }

    /// Opens a file that is there and has this program's schema; makes and migrates nothing.
    pub fn open_as_is(path: &str) -> Result<Self, OpenError> {
        let connection = file(path, OpenFlags::empty())?;
        // Before any setting: the file may be somebody else's.
        schema::check(&connection)?;
        Self::over(settle(connection)?)
    }

    fn over(mut connection: Connection) -> Result<Self, OpenError> {
        let (jobs, queue) = std::sync::mpsc::channel::<Job>();
        let thread = thread::Builder::new()
            .name("sqlite".to_owned())
            .spawn(move || {
                for job in queue {
                    job(&mut connection);
                }
            })
            .map_err(|error| OpenError::Store(StoreError::Unavailable(error.into())))?;
        Ok(Self { jobs, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `job` on the connection's thread, to its end even if the caller goes away.
    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            answer.send(job(connection)).ok();
        });
        let gone = || StoreError::Unavailable("the store's thread has ended".into());
        self.jobs.send(job).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // Closing the queue ends the thread after its last job; the file is then closed cleanly.
        let (closed, _) = std::sync::mpsc::channel();
        self.jobs = closed;
        if let Some(thread) = self.thread.get_mut().ok().and_then(Option::take) {
            thread.join().ok();
        }
    }
}

/// Brings the file's schema up; says from which version to which.
pub fn migrate(path: &str) -> Result<(u32, u32), OpenError> {
    schema::migrate(&mut connect(path)?)
}

fn clock() -> Timestamp {
    SystemClock.now()
}

#[async_trait]
impl Store for SqliteStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.run(|connection| {
            connection.query_row("SELECT 1", [], |_| Ok(())).map_err(nothing_written)?;
            Ok(clock())
        })
        .await
    }

    async fn write(
        &self,
        writes: &[Write],
        _lock_wait: Duration,
    ) -> Result<Vec<Written>, StoreError> {
        let mut writes = writes.to_vec();
        self.run(move |connection| {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(nothing_written)?;
            let active = active_version(&transaction).map_err(nothing_written)?;
            let at = clock();
            let written = writes
                .iter_mut()
                .map(|write| write_row(&transaction, write, active, at))
                .collect::<Result<Vec<_>, _>>()
                .map_err(nothing_written)?;
            let done = writes.iter().zip(&written);
            let done = done.filter(|(_, written)| matches!(written, Written::Done { .. }));
            agenda::remember_grants(&transaction, done.map(|(write, _)| write), at)
                .map_err(nothing_written)?;
            commit(transaction)?;
            Ok(written)
        })
        .await
    }

    async fn find(&self, keys: &[RowKey]) -> Result<Found, StoreError> {
        let keys = keys.to_vec();
        self.run(move |connection| {
            let rows = keys
                .iter()
                .map(|key| {
                    let found = query(
                        connection,
                        &sql::select("id = ?1 AND namespace = ?2"),
                        params![key.id, key.namespace],
                    )?;
                    Ok(found.into_iter().next())
                })
                .collect::<Result<Vec<_>, StoreError>>()?;
            Ok(Found { now: clock(), rows })
        })
        .await
    }

    async fn find_by_reference(
        &self,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<Stored>, StoreError> {
        let namespace = namespace.to_owned();
        let reference = reference.clone();
        self.run(move |connection| {
            let newest = "ORDER BY created_at DESC, id DESC LIMIT 1";
            let find = |column: &str, value: &dyn rusqlite::ToSql| {
                let condition = format!("namespace = ?1 AND {column} = ?2 {newest}");
                query(connection, &sql::select(&condition), params![namespace, value])
            };
            let found = match &reference {
                Reference::DownstreamKey(key) => find("downstream_key", key)?,
                Reference::DownstreamRef(text) => find("downstream_ref", text)?,
                Reference::ToolCallId(text) => find("tool_call_id", text)?,
            };
            Ok(found.into_iter().next())
        })
        .await
    }

    async fn others_with_references(
        &self,
        objects: &[DownstreamObject],
    ) -> Result<Vec<Option<Key>>, StoreError> {
        let objects = objects.to_vec();
        self.run(move |connection| {
            let mut statement = connection
                .prepare_cached(
                    // A row has one reference; further ones stand in its events.
                    "SELECT key FROM intents
                     WHERE downstream_ref = ?1 AND namespace = ?2 AND tool = ?3 AND id <> ?4
                     UNION ALL
                     SELECT key FROM events JOIN intents USING (id)
                     WHERE fact ->> '$.downstream_ref' = ?1
                         AND namespace = ?2 AND tool = ?3 AND id <> ?4
                     LIMIT 1",
                )
                .map_err(nothing_written)?;
            let mut other = |DownstreamObject { tool, downstream_ref, row }: &DownstreamObject| {
                let parameters = params![downstream_ref, tool.namespace, tool.tool, row];
                statement
                    .query_row(parameters, |row| row.get(0).map(Key::from_bytes))
                    .optional()
                    .map_err(nothing_written)
            };
            objects.iter().map(&mut other).collect()
        })
        .await
    }

    async fn versions(
        &self,
        ids: &[Uuid],
    ) -> Result<(Timestamp, Vec<Option<Version>>), StoreError> {
        let ids = ids.to_vec();
        self.run(move |connection| {
            let mut statement = connection
                .prepare_cached("SELECT version FROM intents WHERE id = ?1")
                .map_err(nothing_written)?;
            let versions = ids
                .iter()
                .map(|id| {
                    let mut rows = statement.query([id])?;
                    rows.next()?.map(|row| row.get(0)).transpose()
                })
                .collect::<rusqlite::Result<Vec<_>>>()
                .map_err(nothing_written)?;
            Ok((clock(), versions))
        })
        .await
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        rows_max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let filter = filter.clone();
        self.run(move |connection| {
            let states: Vec<String> =
                filter.states.iter().map(|state| state_to_code(*state).to_string()).collect();
            let mut conditions = vec![
                "namespace = :namespace".to_owned(),
                "(:tool = '' OR tool = :tool)".to_owned(),
                "(:run_id = '' OR run_id = :run_id)".to_owned(),
                "(:created_at IS NULL OR (created_at, id) < (:created_at, :id))".to_owned(),
            ];
            if !states.is_empty() {
                conditions.push(format!("state IN ({})", states.join(", ")));
            }
            if let Some(wanted) = filter.needs_attention {
                conditions.push(format!("needs_attention = {}", i32::from(wanted)));
            }
            if let Some(wanted) = filter.conflict {
                conditions.push(format!("conflict = {}", i32::from(wanted)));
            }
            let condition = format!(
                "{} ORDER BY created_at DESC, id DESC LIMIT :rows_max",
                conditions.join(" AND ")
            );
            query(
                connection,
                &sql::select(&condition),
                named_params! {
                    ":namespace": filter.namespace,
                    ":tool": filter.tool,
                    ":run_id": filter.run_id,
                    ":created_at": after.map(|cursor| cursor.created_at.micros()),
                    ":id": after.map(|cursor| cursor.id),
                    ":rows_max": i64::try_from(rows_max).unwrap_or(i64::MAX),
                },
            )
        })
        .await
    }

    async fn events(&self, id: Uuid) -> Result<Vec<Event>, StoreError> {
        self.run(move |connection| {
            facts(connection, "SELECT at, fact FROM events WHERE id = ?1 ORDER BY at", params![id])
        })
        .await
    }

    async fn keep_orphans(&self, orphans: &[OrphanFact]) -> Result<Vec<bool>, StoreError> {
        let orphans = orphans.to_vec();
        self.run(move |connection| {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(nothing_written)?;
            let kept = orphans
                .iter()
                .map(|orphan| keep_orphan(&transaction, orphan))
                .collect::<rusqlite::Result<Vec<_>>>()
                .map_err(nothing_written)?;
            commit(transaction)?;
            Ok(kept)
        })
        .await
    }

    async fn orphans(&self, key: &RowKey) -> Result<Vec<Event>, StoreError> {
        let key = key.clone();
        self.run(move |connection| {
            facts(
                connection,
                "SELECT at, fact FROM orphan_facts WHERE id = ?1 AND namespace = ?2 ORDER BY at",
                params![key.id, key.namespace],
            )
        })
        .await
    }

    async fn touch(&self, touches: &[Touch]) -> Result<Vec<Touch>, StoreError> {
        let touches = touches.to_vec();
        self.run(move |connection| {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(nothing_written)?;
            let at = clock().micros();
            for touch in &touches {
                transaction
                    .prepare_cached(
                        "UPDATE intents SET replay_count = replay_count + ?2, last_seen_at = ?3
                         WHERE id = ?1",
                    )
                    .and_then(|mut statement| {
                        let replays = i64::try_from(touch.replays).unwrap_or(i64::MAX);
                        statement.execute(params![touch.id, replays, at])
                    })
                    .map_err(nothing_written)?;
            }
            commit(transaction)?;
            // One process writes, one write at a time.
            Ok(Vec::new())
        })
        .await
    }

    async fn active_policy(&self) -> Result<u32, StoreError> {
        self.run(|connection| active_version(connection).map_err(nothing_written)).await
    }

    async fn policies(&self) -> Result<StoredPolicies, StoreError> {
        self.run(|connection| {
            let active = active_version(connection).map_err(nothing_written)?;
            let mut statement = connection
                .prepare_cached("SELECT version, text FROM policies ORDER BY version DESC")
                .map_err(nothing_written)?;
            let kept = statement
                .query_map([], |row| Ok(StoredPolicy { version: row.get(0)?, text: row.get(1)? }))
                .and_then(Iterator::collect)
                .map_err(nothing_written)?;
            Ok(StoredPolicies { active, kept })
        })
        .await
    }

    async fn activate_policy(
        &self,
        expected: u32,
        policy: &StoredPolicy,
    ) -> Result<bool, StoreError> {
        let policy = policy.clone();
        self.run(move |connection| {
            // The one writer's lock is what waits for writes in flight.
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(nothing_written)?;
            let at = clock().micros();
            let moved = (|| {
                let moved = transaction.execute(
                    "UPDATE active_policy SET version = ?2 WHERE version = ?1",
                    params![signed(expected), signed(policy.version)],
                )?;
                if moved == 1 {
                    // Rows that were begun before any file was offered refer to version 0.
                    transaction.execute(
                        "INSERT INTO policies (version, text, activated_at)
                         SELECT 0, '', ?2 WHERE ?1 = 0 AND EXISTS (SELECT 1 FROM intents)
                         ON CONFLICT DO NOTHING",
                        params![signed(expected), at],
                    )?;
                    transaction.execute(
                        "INSERT INTO policies (version, text, activated_at) VALUES (?1, ?2, ?3)
                         ON CONFLICT DO NOTHING",
                        params![signed(policy.version), policy.text, at],
                    )?;
                }
                Ok(moved)
            })()
            .map_err(nothing_written)?;
            commit(transaction)?;
            Ok(moved == 1)
        })
        .await
    }

    async fn unsettled_tools(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.run(|connection| {
            let mut statement = connection
                .prepare_cached(
                    "SELECT DISTINCT namespace, tool FROM intents WHERE state IN (?1, ?2)",
                )
                .map_err(nothing_written)?;
            statement
                .query_map(
                    params![state_to_code(State::Started), state_to_code(State::Unknown)],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .and_then(Iterator::collect)
                .map_err(nothing_written)
        })
        .await
    }

    async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        self.run(|connection| {
            let settings = settings::read(connection).map_err(nothing_written)?;
            let oldest = connection
                .prepare_cached(
                    "SELECT key, created_at FROM intents WHERE state IN (?1, ?2)
                     ORDER BY created_at LIMIT 1",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map(
                            params![state_to_code(State::Started), state_to_code(State::Unknown)],
                            |row| Ok((row.get::<_, [u8; 32]>(0)?, row.get::<_, i64>(1)?)),
                        )?
                        .next()
                        .transpose()
                })
                .map_err(nothing_written)?;
            Ok(Diagnosis {
                product: format!("SQLite {}", rusqlite::version()),
                settings,
                now: clock(),
                oldest_unsettled: oldest
                    .map(|(key, at)| (Key::from_bytes(key), Timestamp::from_micros(at))),
            })
        })
        .await
    }

    fn writers(&self) -> usize {
        1
    }

    fn is_shared(&self) -> bool {
        false
    }
}

fn write_row(
    connection: &Connection,
    write: &mut Write,
    active: u32,
    at: Timestamp,
) -> rusqlite::Result<Written> {
    if write.policy.is_some_and(|version| version != active) {
        return Ok(Written::PolicyMoved);
    }
    if guards::refuse(connection, write)? {
        return Ok(Written::Guarded);
    }
    write.stamp(at);
    let row = Columns::of(&write.intent, write.version_after());
    let changed = match write.expected {
        Expected::Absent { orphans_seen } => {
            let orphaned = !orphans_seen
                && connection
                    .prepare_cached("SELECT 1 FROM orphan_facts WHERE id = ?1 AND namespace = ?2")?
                    .exists(params![row.id, row.namespace])?;
            if orphaned { 0 } else { rows::insert(connection, &row)? }
        }
        Expected::Version(version) => rows::replace(connection, &row, version)?,
    };
    if changed == 0 {
        return Ok(Written::Missed);
    }
    if let Some(due_at) = write.look_at {
        agenda::put(connection, write, due_at)?;
    }
    guards::keep(connection, write, at)?;
    for event in write.stamped_events(at) {
        let columns = EventColumns::of(&event, row.version);
        connection
            .prepare_cached(
                "INSERT INTO events (id, digest, at, fact) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO NOTHING",
            )?
            .execute(params![row.id, columns.digest, columns.at, columns.fact])?;
    }
    Ok(Written::Done { at })
}

fn keep_orphan(connection: &Connection, orphan: &OrphanFact) -> rusqlite::Result<bool> {
    let columns = EventColumns::of(&orphan.event, 0);
    let known = connection
        .prepare_cached(
            "SELECT 1 FROM orphan_facts WHERE id = ?1 AND namespace = ?2 AND digest = ?3",
        )?
        .exists(params![orphan.id, orphan.namespace, columns.digest])?;
    if known {
        return Ok(true);
    }
    let kept: i64 = connection
        .prepare_cached("SELECT count(*) FROM orphan_facts WHERE namespace = ?1")?
        .query_row([&orphan.namespace], |row| row.get(0))?;
    if kept >= i64::try_from(ORPHANS_PER_NAMESPACE_MAX).unwrap_or(i64::MAX) {
        return Ok(false);
    }
    connection
        .prepare_cached(
            "INSERT INTO orphan_facts (id, namespace, digest, at, fact)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            orphan.id,
            orphan.namespace,
            columns.digest,
            clock().micros(),
            columns.fact
        ])?;
    Ok(true)
}

fn active_version(connection: &Connection) -> rusqlite::Result<u32> {
    connection
        .prepare_cached("SELECT version FROM active_policy")?
        .query_row([], |row| row.get::<_, i32>(0).map(unsigned))
}

fn query(
    connection: &Connection,
    statement: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<Stored>, StoreError> {
    let columns = connection
        .prepare_cached(statement)
        .and_then(|mut statement| {
            statement.query_map(parameters, rows::read)?.collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(nothing_written)?;
    columns.into_iter().map(Columns::into_stored).collect()
}

fn facts(
    connection: &Connection,
    statement: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<Event>, StoreError> {
    let found = connection
        .prepare_cached(statement)
        .and_then(|mut statement| {
            statement
                .query_map(parameters, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(nothing_written)?;
    found.into_iter().map(|(at, fact)| EventColumns::into_event(at, &fact)).collect()
}

/// SQLite answers a commit itself: only a failing disk leaves it in doubt.
fn commit(transaction: rusqlite::Transaction<'_>) -> Result<(), StoreError> {
    transaction.commit().map_err(|error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            StoreError::Unavailable(error.into())
        }
        _ => StoreError::Indeterminate(error.into()),
    })
}

fn nothing_written(error: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(Code::ConstraintViolation | Code::TooBig | Code::TypeMismatch) => {
            StoreError::Rejected(error.into())
        }
        _ => StoreError::Unavailable(error.into()),
    }
}
