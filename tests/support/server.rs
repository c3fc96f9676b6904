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
    store::{self, Store, StoreOptions},
};
use tempfile::TempDir;
use tonic::transport::Channel;

use super::cluster;

/// Which store a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// A migrated store of its own, whose address any number of servers can open.
#[derive(Clone)]
pub(crate) struct TestStore {
    pub(crate) address: String,
    _dir: Arc<TempDir>,
}

impl TestStore {
    pub(crate) async fn new(kind: Kind) -> Self {
        let dir = Arc::new(TempDir::new().unwrap());
        let address = match kind {
            Kind::Sqlite => format!("sqlite:{}", dir.path().join("ledger.db").display()),
            Kind::Postgres => tokio::task::spawn_blocking(cluster::fresh_database).await.unwrap(),
        };
        store::migrate(&StoreOptions::new(&address)).await.unwrap();
        Self { address, _dir: dir }
    }

    /// The same store by another road: a proxy's, say.
    pub(crate) fn through(&self, address: String) -> Self {
        Self { address, _dir: Arc::clone(&self._dir) }
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        store::open(&StoreOptions::new(&self.address)).await.unwrap()
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
            tokio_postgres::connect(&self.address, tokio_postgres::NoTls).await.unwrap();
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

    /// Makes every row older by `span`, as if the clock had moved on.
    pub(crate) async fn age(&self, span: Duration) {
        let times = ["created_at", "granted_at", "lease_expires_at", "settled_at", "last_seen_at"];
        let micros = span.as_micros();
        let assignments: Vec<String> = times
            .iter()
            .map(|column| {
                if self.address.starts_with("sqlite:") {
                    format!("{column} = {column} - {micros}")
                } else {
                    format!("{column} = {column} - interval '{} milliseconds'", span.as_millis())
                }
            })
            .collect();
        self.sql(&format!("UPDATE intents SET {}", assignments.join(", "))).await;
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
        let policy = policy.map(|text| {
            let path =
                store._dir.path().join(format!("policy-{}.toml", intent_ledger::ids::random()));
            std::fs::write(&path, text).unwrap();
            path
        });
        let config = config(&store.address, policy.clone());
        let running = app::start_with(&config, store.open().await, options).await.unwrap();
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
        ..ServeFlags::default()
    };
    config::load(flags).unwrap()
}
