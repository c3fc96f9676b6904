//! The real server in this process, over a store of its own.

use std::{path::PathBuf, sync::Arc, time::Duration};

use intent_ledger::{
    app::{self, Running},
    config::{self, ServeConfig, ServeFlags},
    ledger::LedgerOptions,
    proto::v1::{
        intent_ledger_service_client::IntentLedgerServiceClient,
        intent_operations_service_client::IntentOperationsServiceClient,
    },
    store::{self, Statements, Store, StoreOptions},
};
use tempfile::TempDir;
use tonic::transport::Channel;

use super::{cluster, faulty::FaultyStore, load::wait_until, pooler};

/// Which store a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    /// The same Postgres behind PgBouncer in transaction mode.
    Pooled,
    /// A Postgres of another major version.
    AnotherMajor,
}

/// A migrated store of its own, whose address any number of servers can open.
#[derive(Clone)]
pub(crate) struct TestStore {
    pub(crate) address: String,
    /// The road of the test's own statements: no proxy or pooler is on it.
    direct: String,
    statements: Statements,
    _dir: Arc<TempDir>,
}

impl TestStore {
    pub(crate) async fn new(kind: Kind) -> Self {
        let dir = Arc::new(TempDir::new().unwrap());
        let path = dir.path().join("ledger.db");
        // To start a server blocks.
        let made = tokio::task::spawn_blocking(move || match kind {
            Kind::Sqlite => {
                let file = format!("sqlite:{}", path.display());
                (file.clone(), file)
            }
            Kind::Postgres => {
                let url = cluster::fresh_database();
                (url.clone(), url)
            }
            Kind::Pooled => {
                let direct = cluster::fresh_database();
                (pooler::through_the_pooler(&direct), direct)
            }
            Kind::AnotherMajor => {
                let url = cluster::fresh_database_of_another_major();
                (url.clone(), url)
            }
        });
        let (address, direct) = made.await.unwrap();
        let statements = if kind == Kind::Pooled { Statements::Unnamed } else { Statements::Named };
        let store = Self { address, direct, statements, _dir: dir };
        store::migrate(&store.options()).await.unwrap();
        store
    }

    /// What a server process must be told of the road to this store.
    pub(crate) fn flags(&self) -> &'static [&'static str] {
        match self.statements {
            Statements::Named => &[],
            Statements::Unnamed => &["--behind-pooler"],
        }
    }

    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions { statements: self.statements, ..StoreOptions::new(&self.address) }
    }

    /// The same store by another road: a proxy's, say.
    pub(crate) fn through(&self, address: String) -> Self {
        Self { address, ..self.clone() }
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        store::open(&self.options()).await.unwrap()
    }

    /// Runs one statement in the store's own SQL, beside the ledger's back.
    pub(crate) async fn sql(&self, statement: &str) -> u64 {
        if let Some(path) = self.address.strip_prefix("sqlite:") {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.busy_timeout(Duration::from_secs(10)).unwrap();
            connection.execute(statement, []).unwrap() as u64
        } else {
            let client = self.postgres().await;
            client.execute(statement, &[]).await.unwrap()
        }
    }

    /// A plain session on the Postgres behind the ledger.
    pub(crate) async fn postgres(&self) -> tokio_postgres::Client {
        let (client, connection) =
            tokio_postgres::connect(&self.direct, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// How many intents there are.
    pub(crate) async fn count_intents(&self) -> i64 {
        if let Some(path) = self.address.strip_prefix("sqlite:") {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.query_row("SELECT count(*) FROM intents", [], |row| row.get(0)).unwrap()
        } else {
            let client = self.postgres().await;
            client.query_one("SELECT count(*) FROM intents", &[]).await.unwrap().get(0)
        }
    }

    /// How often this Postgres had to end a transaction of this database to break a deadlock. A session counts for
    /// certain once it has ended, so no store may be open any more.
    pub(crate) async fn deadlocks(&self) -> i64 {
        let client = self.postgres().await;
        let others = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND backend_type = 'client backend'
                        AND pid <> pg_backend_pid()";
        wait_until("the other sessions have ended", async || {
            client.query_one(others, &[]).await.unwrap().get::<_, i64>(0) == 0
        })
        .await;
        let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        client.query_one(deadlocks, &[]).await.unwrap().get(0)
    }

    /// Everything that is stored of the intents, every column of every row, as text.
    pub(crate) async fn rows(&self) -> Vec<String> {
        if let Some(path) = self.address.strip_prefix("sqlite:") {
            let connection = rusqlite::Connection::open(path).unwrap();
            let mut statement = connection.prepare("SELECT * FROM intents ORDER BY id").unwrap();
            let columns = statement.column_count();
            let row = |row: &rusqlite::Row<'_>| {
                (0..columns)
                    .map(|index| Ok(format!("{:?}", row.get_ref(index)?)))
                    .collect::<rusqlite::Result<Vec<_>>>()
            };
            let rows = statement.query_map([], row).unwrap();
            rows.map(|row| row.unwrap().join(" ")).collect()
        } else {
            let client = self.postgres().await;
            let every_column = "SELECT row_to_json(i)::text FROM intents i ORDER BY id";
            let rows = client.query(every_column, &[]).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }

    /// The id and the `details` of the rows that have any.
    async fn details(&self) -> Vec<(uuid::Uuid, String)> {
        let with_details = "SELECT id, details FROM intents WHERE details IS NOT NULL";
        if let Some(path) = self.address.strip_prefix("sqlite:") {
            let connection = rusqlite::Connection::open(path).unwrap();
            let mut statement = connection.prepare(with_details).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        } else {
            let rows = self.postgres().await.query(with_details, &[]).await.unwrap();
            rows.iter().map(|row| (row.get(0), row.get(1))).collect()
        }
    }

    /// Makes every row older by `span`, as if the clock had moved on.
    pub(crate) async fn age(&self, span: Duration) {
        for (id, text) in self.details().await {
            // Earlier attempts of an intent are kept as one document.
            let mut details: serde_json::Value = serde_json::from_str(&text).unwrap();
            let past = details.get_mut("past_attempts").and_then(|past| past.as_array_mut());
            for attempt in past.into_iter().flatten() {
                for time in ["granted_at", "lease_expires_at"] {
                    let micros = attempt[time].as_i64().unwrap();
                    attempt[time] = (micros - i64::try_from(span.as_micros()).unwrap()).into();
                }
            }
            for time in ["last_absence_at", "asked_since", "heard_at"] {
                let probing = details.get_mut("probing").and_then(|probing| probing.get_mut(time));
                if let Some(at) = probing.filter(|at| at.is_i64()) {
                    let micros = at.as_i64().unwrap();
                    *at = (micros - i64::try_from(span.as_micros()).unwrap()).into();
                }
            }
            if let Some(approval) = details.get_mut("approval").filter(|it| it.is_object()) {
                let micros = i64::try_from(span.as_micros()).unwrap();
                for time in ["proposed_at", "expires_at"] {
                    approval[time] = (approval[time].as_i64().unwrap() - micros).into();
                }
                if let Some(yes) = approval["verdict"].get_mut("Approved") {
                    let until = yes["valid_until"].as_i64().unwrap();
                    yes["valid_until"] = (until - micros).into();
                }
            }
            let id = match self.address.starts_with("sqlite:") {
                true => format!("x'{}'", id.simple()),
                false => format!("'{id}'"),
            };
            let text = details.to_string().replace('\'', "''");
            self.sql(&format!("UPDATE intents SET details = '{text}' WHERE id = {id}")).await;
        }
        let earlier = |column: &&str| {
            if self.address.starts_with("sqlite:") {
                format!("{column} = {column} - {}", span.as_micros())
            } else {
                format!("{column} = {column} - interval '{} milliseconds'", span.as_millis())
            }
        };
        let all = |columns: &[&str]| columns.iter().map(earlier).collect::<Vec<_>>().join(", ");
        let times = [
            "created_at",
            "granted_at",
            "lease_expires_at",
            "settled_at",
            "pruned_at",
            "last_seen_at",
        ];
        // Another version: a reading that a server still holds is of before.
        self.sql(&format!("UPDATE intents SET version = version + 1, {}", all(&times))).await;
        self.sql(&format!("UPDATE granted_batches SET {}", all(&["due_at"]))).await;
        self.sql(&format!("UPDATE retention_batches SET {}", all(&["due_at"]))).await;
        let times = ["created_at", "expires_at"];
        self.sql(&format!("UPDATE look_alikes SET {}", all(&times))).await;
        let times = ["due_at", "asked_at", "claimed_until"];
        self.sql(&format!("UPDATE open_intents SET version = version + 1, {}", all(&times))).await;
    }
}

/// A server of the real kind, on free loopback ports.
pub(crate) struct TestServer {
    pub(crate) running: Option<Running>,
    pub(crate) store: TestStore,
    pub(crate) agent: IntentLedgerServiceClient<Channel>,
    pub(crate) operator: IntentOperationsServiceClient<Channel>,
    pub(crate) url: String,
    pub(crate) http: String,
    policy: Option<PathBuf>,
}

impl TestServer {
    /// A server without a policy.
    pub(crate) async fn start(kind: Kind) -> Self {
        Self::on(TestStore::new(kind).await, None).await
    }

    /// A server with a policy.
    pub(crate) async fn with_policy(kind: Kind, policy: &str) -> Self {
        Self::on(TestStore::new(kind).await, Some(policy)).await
    }

    /// One more server on a store; replicas share it.
    pub(crate) async fn on(store: TestStore, policy: Option<&str>) -> Self {
        Self::with_options(store, policy, LedgerOptions::default()).await
    }

    pub(crate) async fn with_options(
        store: TestStore,
        policy: Option<&str>,
        options: LedgerOptions,
    ) -> Self {
        let opened = store.open().await;
        Self::over(store, opened, policy, options, |_| {}).await
    }

    /// A server over a store that was opened already, perhaps with faults around it.
    pub(crate) async fn over(
        store: TestStore,
        opened: Arc<dyn Store>,
        policy: Option<&str>,
        options: LedgerOptions,
        adjust: impl FnOnce(&mut ServeConfig),
    ) -> Self {
        let policy = policy.map(|text| {
            let path =
                store._dir.path().join(format!("policy-{}.toml", intent_ledger::ids::random()));
            std::fs::write(&path, text).unwrap();
            path
        });
        let mut config = config(&store.address, policy.clone());
        adjust(&mut config);
        let running = app::start_with(&config, opened, options).await.unwrap();
        let url = format!("http://{}", running.grpc);
        let http = format!("http://{}", running.http);
        let channel = Channel::from_shared(url.clone()).unwrap().connect().await.unwrap();
        Self {
            agent: IntentLedgerServiceClient::new(channel.clone())
                .max_decoding_message_size(usize::MAX),
            operator: IntentOperationsServiceClient::new(channel),
            running: Some(running),
            store,
            url,
            http,
            policy,
        }
    }

    /// A connection with a client's ordinary limits.
    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(self.url.clone()).unwrap().connect().await.unwrap()
    }

    /// A server whose store can be told to fail.
    pub(crate) async fn faulty(kind: Kind, policy: Option<&str>) -> (Self, Arc<FaultyStore>) {
        let store = TestStore::new(kind).await;
        let faulty = FaultyStore::over(store.open().await);
        let opened: Arc<dyn Store> = Arc::clone(&faulty) as _;
        let server = Self::over(store, opened, policy, LedgerOptions::default(), |_| {}).await;
        (server, faulty)
    }

    /// Writes another policy where the server reads it, and has it read.
    pub(crate) async fn offer(&self, policy: &str) {
        let path = self.policy.as_ref().expect("the server was started with a policy");
        std::fs::write(path, policy).unwrap();
        self.running.as_ref().unwrap().reload_policy().await;
    }

    pub(crate) async fn stop(mut self) -> TestStore {
        self.running.take().unwrap().stop().await;
        self.store.clone()
    }
}

/// A configuration for a test: free ports, a short grace period.
pub(crate) fn config(store: &str, policy: Option<PathBuf>) -> ServeConfig {
    let flags = ServeFlags {
        store: Some(store.to_owned()),
        listen: Some("127.0.0.1:0".parse().unwrap()),
        http: Some("127.0.0.1:0".parse().unwrap()),
        policy,
        shutdown_grace: Some(Duration::from_secs(2)),
        // A test that wants passes asks for them.
        reconcile_interval: Some(Duration::ZERO),
        prune_interval: Some(Duration::ZERO),
        ..ServeFlags::default()
    };
    config::load(flags).unwrap()
}
