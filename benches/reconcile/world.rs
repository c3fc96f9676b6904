//! A server process over a database of its own, and downstreams that it asks.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use futures::future::join_all;
use intent_ledger::{
    clock::monotonic,
    downstream::{self, Faults, Options, Outage, OutageMode, Running},
    ids,
    proto::v1::{
        BeginRequest, Identity, ReconcileRequest, ReconcileTotals,
        intent_ledger_service_client::IntentLedgerServiceClient,
    },
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};
use tonic::transport::{Channel, Endpoint};

use crate::cluster::PgCluster;

/// Enough for a big table to be filled without a checkpoint in the middle of a figure.
const SETTINGS: &str = "max_connections = 100\nmax_wal_size = '8GB'\nshared_buffers = '512MB'\n";

/// The lease of what is left open: the shortest that a slow machine surely keeps.
const LEASE: Duration = Duration::from_secs(2);

/// Begins that are under way at once while intents are opened.
const OPENERS: usize = 64;

pub(crate) struct World {
    server: Child,
    pub(crate) agent: IntentLedgerServiceClient<Channel>,
    downstreams: Vec<Running>,
    pg: PgCluster,
    _policy: TempDir,
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

impl World {
    pub(crate) async fn start(binary: &Path, endpoints: usize, interval: Duration) -> Self {
        let pg = tokio::task::block_in_place(|| PgCluster::start_with(SETTINGS, &[]));
        // The downstream says of every key that it is done: what is measured is the asking.
        let lies = downstream::Fault::list("status_lies_done").expect("a fault").remove(0);
        let rate = downstream::FaultRate::new(lies, 1.0).expect("a rate");
        let options = || Options { faults: Faults::none().with_rate(rate), ..Options::default() };
        let started = (0..endpoints).map(|_| downstream::start(options()));
        let downstreams: Vec<Running> =
            join_all(started).await.into_iter().map(|it| it.expect("a downstream")).collect();
        let folder = TempDir::new().expect("a folder");
        let policy = folder.path().join("policy.toml");
        std::fs::write(&policy, text(&downstreams)).expect("the policy is written");
        let run = |arguments: &[&str]| {
            let status = Command::new(binary).args(arguments).stdout(Stdio::null()).status();
            assert!(status.expect("the binary runs").success(), "{arguments:?}");
        };
        run(&["migrate", "--store", &pg.url()]);
        let mut server = Command::new(binary)
            .args(["serve", "--store", &pg.url(), "--log", "error"])
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(["--reconcile-interval", &format!("{}ms", interval.as_millis())])
            .arg("--policy")
            .arg(&policy)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut ready = String::new();
        let output = server.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut ready).expect("the ready line");
        let address = ready.split_whitespace().find_map(|word| word.strip_prefix("grpc="));
        let url = format!("http://{}", address.expect("the ready line names the address"));
        let channel = Endpoint::from_shared(url).expect("an address").connect_lazy();
        let agent = IntentLedgerServiceClient::new(channel);
        Self { server, agent, downstreams, pg, _policy: folder }
    }

    pub(crate) async fn database(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.pg.url(), NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    /// Begins so many intents, in turn of every tool, and leaves them open.
    pub(crate) async fn open(&self, rows: usize) -> usize {
        let tools = self.downstreams.len();
        let openers = (0..OPENERS).map(|opener| {
            let mut agent = self.agent.clone();
            tokio::spawn(async move {
                for row in (opener..rows).step_by(OPENERS) {
                    agent.begin(begin(&format!("tool-{}", row % tools))).await.expect("an answer");
                }
            })
        });
        for opener in openers.collect::<Vec<_>>() {
            opener.await.expect("all are opened");
        }
        rows
    }

    pub(crate) async fn until_stale(&self) {
        tokio::time::sleep(LEASE).await;
    }

    async fn pass(agent: &IntentLedgerServiceClient<Channel>) -> ReconcileTotals {
        let request = ReconcileRequest { limit: 10_000, ..ReconcileRequest::default() };
        let mut stream = agent.clone().reconcile(request).await.expect("a stream").into_inner();
        while let Some(told) = stream.message().await.expect("an answer") {
            if let Some(totals) = told.totals {
                return totals;
            }
        }
        panic!("a pass ends with its totals");
    }

    /// Passes until nothing is due; how long that took, and how many were settled.
    pub(crate) async fn passes(&self) -> (Duration, i64) {
        let began = monotonic();
        let mut settled = 0;
        loop {
            let totals = Self::pass(&self.agent).await;
            settled += totals.completed_count;
            if totals.looked_at_count == 0 {
                return (monotonic().duration_since(began), settled);
            }
        }
    }

    pub(crate) fn pass_in_background(&self) -> JoinHandle<()> {
        let agent = self.agent.clone();
        tokio::spawn(async move { while Self::pass(&agent).await.looked_at_count > 0 {} })
    }

    /// One endpoint never answers, another takes no connections.
    pub(crate) async fn break_two(&self) {
        for (downstream, mode) in
            self.downstreams.iter().zip([OutageMode::Hang, OutageMode::Refuse])
        {
            downstream.set_outage(Outage { mode, span: None }).await;
        }
    }

    /// How long until so many are settled, and until half of them were.
    pub(crate) async fn until_settled(&self, wanted: usize) -> (Duration, Duration) {
        let client = self.database().await;
        let began = monotonic();
        let mut half = None;
        loop {
            let count = "SELECT count(*) FROM intents WHERE state = 5";
            let settled: i64 = client.query_one(count, &[]).await.expect("a count").get(0);
            let settled = usize::try_from(settled).unwrap_or(0);
            let took = monotonic().duration_since(began);
            if settled * 2 >= wanted {
                half.get_or_insert(took);
            }
            if settled >= wanted {
                return (took, half.unwrap_or(took));
            }
            assert!(took < Duration::from_secs(300), "{settled} of {wanted} after {took:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn settled_at_the_broken(&self) -> i64 {
        let count = "SELECT count(*) FROM intents WHERE state = 5 AND tool IN ('tool-0', 'tool-1')";
        self.database().await.query_one(count, &[]).await.expect("a count").get(0)
    }

    /// Fills the table with settled rows, as they would be there after months.
    pub(crate) async fn fill(&self, rows: u64) {
        let client = self.database().await;
        let hash = "sha256(convert_to(n::text, 'UTF8'))";
        let fill = format!(
            "INSERT INTO intents (id, created_at, policy_version, hash_version, key_basis, key, fingerprint,
                 argument_digests, namespace, tool, run_id, step_id, attempt_id, granted_at, lease_expires_at,
                 attempt, granted_on, needs_attention, version, state, fate, provenance, settled_at, result)
             SELECT gen_random_uuid(), at, 1, 1, 1, {hash}, {hash}, '', 'default', 'tool-0', 'r', 's',
                 gen_random_uuid(), at, at + interval '1 minute', 1, 1, false, 2, 5, 2, 1, at, '1'
             FROM (SELECT n, now() - interval '90 days' + n * interval '1 millisecond' AS at
                   FROM generate_series(1, {rows}) n) made"
        );
        client.batch_execute(&fill).await.expect("the rows are made");
        client.batch_execute("VACUUM ANALYZE intents").await.expect("statistics");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

/// A tool for each downstream.
fn text(downstreams: &[Running]) -> String {
    let lease = LEASE.as_secs();
    let mut text = "version = 1\n".to_owned();
    for (n, downstream) in downstreams.iter().enumerate() {
        text += &format!(
            "[tools.tool-{n}]\nlease = \"{lease}s\"\n[tools.tool-{n}.downstream.status]\n\
             http = {{ url = \"http://{}/v1/effects/by-key/{{downstream_key}}\", timeout = \"1s\" }}\n\
             completed_when = \"status == 200 && body.state == 'done'\"\n\
             key_at = \"body.idempotency_key\"\nref_at = \"'ref-' + body.idempotency_key\"\n",
            downstream.http
        );
    }
    text
}
