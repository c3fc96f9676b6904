//! A server that live callers use, another one that prunes, and rows whose time is over.

use std::{
    fmt,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use intent_ledger::{
    clock::monotonic,
    ids,
    proto::v1::{BeginRequest, Identity, intent_ledger_service_client::IntentLedgerServiceClient},
};
use tokio_postgres::{Client, NoTls};
use tonic::transport::{Channel, Endpoint};

use crate::cluster::PgCluster;

/// Enough for a big table to be filled without a checkpoint in the middle of a figure; and autovacuum that does not
/// let the benchmark wait.
const SETTINGS: &str = "max_connections = 100\nmax_wal_size = '8GB'\nshared_buffers = '512MB'\n\
                        autovacuum_naptime = '1s'\n";

/// What rows there are to let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Settled longer ago than their retention.
    Settled,
    /// Pruned longer ago than their tombstone's time.
    Tombstones,
}

/// A number of bytes, for people.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes(i64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// A server process; it ends with its owner.
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub(crate) struct World {
    pub(crate) agent: IntentLedgerServiceClient<Channel>,
    _server: Server,
    pg: PgCluster,
}

/// A Begin of a new intent.
pub(crate) fn begin(tool: &str) -> BeginRequest {
    BeginRequest {
        identity: Some(Identity {
            tool: tool.to_owned(),
            idempotency_key: ids::random().to_string(),
            ..Identity::default()
        }),
        attempt_id: ids::random().to_string(),
        ..BeginRequest::default()
    }
}

fn serve(binary: &Path, store: &str, prune_interval: &str) -> (Server, String) {
    let mut server = Command::new(binary)
        .args(["serve", "--store", store, "--log", "error", "--prune-interval", prune_interval])
        .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut ready = String::new();
    let output = server.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut ready).expect("the ready line");
    let address = ready.split_whitespace().find_map(|word| word.strip_prefix("grpc="));
    let url = format!("http://{}", address.expect("the ready line names the address"));
    (Server(server), url)
}

impl World {
    pub(crate) async fn start(binary: &Path) -> Self {
        let pg = tokio::task::block_in_place(|| PgCluster::start_with(SETTINGS, &[]));
        let migrate = Command::new(binary)
            .args(["migrate", "--store", &pg.url()])
            .stdout(Stdio::null())
            .status();
        assert!(migrate.expect("the binary runs").success());
        let (server, url) = serve(binary, &pg.url(), "0s");
        let channel = Endpoint::from_shared(url).expect("an address").connect_lazy();
        Self { agent: IntentLedgerServiceClient::new(channel), _server: server, pg }
    }

    /// A server that prunes and does nothing else.
    pub(crate) fn start_pruner(&self, binary: &Path) -> Server {
        serve(binary, &self.pg.url(), "100ms").0
    }

    async fn database(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.pg.url(), NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    /// Rows whose time is over, in the order of their ids as in that of their time, and filed to be looked at.
    pub(crate) async fn fill(&self, kind: Rows, rows: u64, result_bytes: u32) {
        let (days, version, of_result) = match kind {
            Rows::Settled => (
                31,
                2,
                format!(
                    "decode(repeat('ab', {result_bytes}), 'hex'), NULL, NULL::int8, false, NULL"
                ),
            ),
            Rows::Tombstones => (
                440,
                30_000_000,
                format!("NULL, key, {result_bytes}::int8, true, now() - interval '405 days'"),
            ),
        };
        let hash = "sha256(convert_to(random()::text || n, 'UTF8'))";
        let fill = format!(
            "WITH made AS (
                 SELECT n, now() - interval '{days} days' + n * interval '1 microsecond' AS at
                 FROM generate_series(1, {rows}) n),
             keyed AS (SELECT at, {hash} AS key FROM made),
             filed AS (
                 SELECT at, key, substr(sha256(convert_to('[\"intent-ledger/1/downstream\",\"' ||
                     encode(key, 'hex') || '\"]', 'UTF8')), 1, 16) AS id
                 FROM keyed),
             inserted AS (
                 INSERT INTO intents (id, created_at, policy_version, hash_version, key_basis, key, fingerprint,
                     argument_digests, namespace, tool, run_id, step_id, attempt_id, granted_at, lease_expires_at,
                     attempt, granted_on, needs_attention, version, state, fate, provenance, settled_at,
                     result, result_sha256, result_size, pruned, pruned_at)
                 SELECT encode(set_byte(set_byte(id, 6, (get_byte(id, 6) & 15) | 128), 8,
                         (get_byte(id, 8) & 63) | 128), 'hex')::uuid,
                     at, 0, 1, 1, key, key, '\\x0000000000000000', 'default', 'old', 'r', 's',
                     gen_random_uuid(), at, at + interval '1 minute', 1, 1, false, {version}, 5, 2, 1, at,
                     {of_result}
                 FROM filed
                 RETURNING id, created_at)
             INSERT INTO retention_batches (due_at, id, intents)
             SELECT max(created_at), gen_random_uuid(), array_agg(id)
             FROM (SELECT id, created_at, (row_number() OVER (ORDER BY created_at) - 1) / 256 AS part
                   FROM inserted) numbered
             GROUP BY part"
        );
        let client = self.database().await;
        client.batch_execute(&fill).await.expect("the rows are made");
        client.batch_execute("CHECKPOINT").await.expect("a checkpoint");
    }

    /// Whether anything is left to look at; what somebody is at counts.
    pub(crate) async fn is_due(&self) -> bool {
        let due = "SELECT EXISTS (SELECT FROM retention_batches WHERE due_at < now() + interval '2 minutes')";
        self.database().await.query_one(due, &[]).await.expect("an answer").get(0)
    }

    /// The table with its indexes and what is stored beside it.
    pub(crate) async fn size(&self) -> Bytes {
        let size = "SELECT pg_total_relation_size('intents')";
        Bytes(self.database().await.query_one(size, &[]).await.expect("a size").get(0))
    }

    /// What of the table holds rows that are there.
    pub(crate) async fn live_bytes(&self) -> Bytes {
        let client = self.database().await;
        let live = "SELECT coalesce(sum(pg_column_size(i.*)), 0)::int8 FROM intents i";
        Bytes(client.query_one(live, &[]).await.expect("a size").get(0))
    }

    /// Returns once autovacuum has been through the table since now.
    pub(crate) async fn until_vacuumed(&self, patience: Duration) {
        let client = self.database().await;
        let count = async || -> i64 {
            let count =
                "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'intents'";
            client.query_one(count, &[]).await.expect("a count").get(0)
        };
        let (before, began) = (count().await, monotonic());
        // One that is under way may have passed the rows that went last.
        let wanted = "SELECT n_dead_tup > 0.2 * n_live_tup FROM pg_stat_user_tables WHERE relname = 'intents'";
        loop {
            let dirty: bool = client.query_one(wanted, &[]).await.expect("an answer").get(0);
            if count().await > before || !dirty {
                return;
            }
            assert!(monotonic().duration_since(began) < patience, "autovacuum does not come");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
