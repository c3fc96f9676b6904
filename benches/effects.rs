//! Effects per second: Begin and Complete, both durable, beside a hand-rolled table.
//!
//! `cargo bench --bench effects` starts a throw-away Postgres cluster and real servers, and prints
//! one table: for each number of callers the hand-rolled table by pgbench, our unary calls over
//! Postgres, and over the embedded store, one after the other in the same run. Read the ratios: the
//! machine is shared. `-- --seconds N` sets the length of one measurement.

#[path = "../tests/support/cluster.rs"]
#[expect(dead_code, reason = "the tests also kill and restart it")]
mod cluster;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use intent_ledger::proto::v1::{
    BeginRequest, BeginResponse, CompleteRequest, Decision, Identity, SessionRequest,
    intent_ledger_service_client::IntentLedgerServiceClient, session_request, session_response,
};
use tonic::transport::Channel;

const CALLERS: [usize; 3] = [1, 16, 64];

fn main() {
    let seconds = seconds();
    let cluster = cluster::PgCluster::start();
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let postgres = Server::start(&cluster.url());
    let sqlite = Server::start(&format!("sqlite:{}", dir.path().join("ledger.db").display()));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");

    println!(
        "server at rest: {} KiB resident over Postgres, {} KiB over SQLite\n",
        postgres.resident_kib(),
        sqlite.resident_kib()
    );
    println!("callers | what               | effects/s | p50 ms | p99 ms | of the table");
    println!("--------|--------------------|-----------|--------|--------|-------------");
    for callers in CALLERS {
        let table = hand_rolled(&cluster.url(), callers, seconds);
        print_row(callers, "hand-rolled table", &table, &table);
        for (store, server) in [("Postgres", &postgres), ("embedded", &sqlite)] {
            let measured = runtime.block_on(unary(&server.url, callers, seconds));
            print_row(callers, &format!("unary, {store}"), &measured, &table);
            let measured = runtime.block_on(session(&server.url, callers, seconds));
            print_row(callers, &format!("session, {store}"), &measured, &table);
        }
    }
}

/// One line of the table.
struct Measured {
    effects_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

fn print_row(callers: usize, what: &str, measured: &Measured, table: &Measured) {
    println!(
        "{callers:7} | {what:18} | {:9.0} | {:6.2} | {:6.2} | {:.2} x",
        measured.effects_per_second,
        measured.p50_ms,
        measured.p99_ms,
        measured.effects_per_second / table.effects_per_second,
    );
}

fn seconds() -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--seconds");
    arguments.nth(1).map_or(5, |text| text.parse().expect("--seconds takes a number"))
}

/// A real server of its own process, ended with it.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(store: &str) -> Self {
        let binary = env!("CARGO_BIN_EXE_intent-ledger");
        let migrated = Command::new(binary)
            .args(["migrate", "--store", store])
            .stdout(Stdio::null())
            .status()
            .expect("the binary runs");
        assert!(migrated.success(), "the store could not be migrated");
        let mut child = Command::new(binary)
            .args(["serve", "--store", store, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(["--log", "error"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut ready).expect("a line");
        let address = ready
            .split_whitespace()
            .find_map(|word| word.strip_prefix("grpc="))
            .expect("the ready line names the address");
        Self { url: format!("http://{address}"), child }
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("a running process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Callers on four connections, each one effect after the other.
async fn unary(url: &str, callers: usize, seconds: u64) -> Measured {
    let mut channels = Vec::new();
    for _ in 0..callers.min(4) {
        channels.push(
            Channel::from_shared(url.to_owned()).expect("a URL").connect().await.expect("a server"),
        );
    }
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let client = IntentLedgerServiceClient::new(channels[caller % channels.len()].clone());
            tokio::spawn(one_caller(client, Arc::clone(&stop)))
        })
        .collect();
    let began = now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    stop.store(true, Ordering::Relaxed);
    let mut latencies = Histogram::<u64>::new(3).expect("three digits");
    for task in tasks {
        latencies.add(task.await.expect("a caller that does not panic")).expect("same bounds");
    }
    let took = now().duration_since(began).as_secs_f64();
    Measured {
        effects_per_second: latencies.len() as f64 / took,
        p50_ms: latencies.value_at_quantile(0.5) as f64 / 1000.0,
        p99_ms: latencies.value_at_quantile(0.99) as f64 / 1000.0,
    }
}

async fn one_caller(
    mut client: IntentLedgerServiceClient<Channel>,
    stop: Arc<AtomicBool>,
) -> Histogram<u64> {
    let mut latencies = Histogram::new(3).expect("three digits");
    while !stop.load(Ordering::Relaxed) {
        let began = now();
        let granted = client.begin(begin()).await.expect("a Begin is answered").into_inner();
        client.complete(complete(granted)).await.expect("a Complete is answered");
        let micros = u64::try_from(now().duration_since(began).as_micros()).unwrap_or(u64::MAX);
        latencies.record(micros).expect("auto-sized");
    }
    latencies
}

/// A Begin of a fresh intent.
fn begin() -> BeginRequest {
    let key = intent_ledger::ids::random().to_string();
    BeginRequest {
        identity: Some(Identity {
            tool: "charge".into(),
            run_id: "run-1".into(),
            idempotency_key: key.clone(),
            ..Identity::default()
        }),
        arguments_json: r#"{"order":"o-17","amount":1200,"memo":"invoice 17"}"#.into(),
        attempt_id: key,
        caller: "bench".into(),
        ..BeginRequest::default()
    }
}

/// The Complete of what was granted.
fn complete(granted: BeginResponse) -> CompleteRequest {
    assert_eq!(granted.decision(), Decision::Execute);
    CompleteRequest {
        key: granted.intent.expect("a recorded intent").key,
        attempt_id: granted.attempt_id,
        result: Some(br#"{"id":"ch_1","status":"succeeded"}"#.to_vec()),
        result_content_type: "application/json".into(),
        ..CompleteRequest::default()
    }
}

/// One stream that always has `in_flight` effects under way.
async fn session(url: &str, in_flight: usize, seconds: u64) -> Measured {
    let channel =
        Channel::from_shared(url.to_owned()).expect("a URL").connect().await.expect("a server");
    let (requests, stream) = tokio::sync::mpsc::channel(in_flight * 2);
    let mut began = vec![now(); in_flight];
    for sequence in 0..in_flight {
        let item = Some(session_request::Item::Begin(begin()));
        let request = SessionRequest { sequence: sequence as u64, item };
        requests.send(request).await.expect("an open stream");
    }
    let mut answers = IntentLedgerServiceClient::new(channel)
        .session(tokio_stream::wrappers::ReceiverStream::new(stream))
        .await
        .expect("a session")
        .into_inner();
    let mut latencies = Histogram::<u64>::new(3).expect("three digits");
    let measured = now();
    while now().duration_since(measured) < Duration::from_secs(seconds) {
        let answer = answers.message().await.expect("an open stream").expect("an answer");
        let slot = usize::try_from(answer.sequence).expect("one of ours");
        let item = match answer.item {
            Some(session_response::Item::Begin(granted)) => {
                session_request::Item::Complete(complete(granted))
            }
            Some(session_response::Item::Complete(_)) => {
                let took = now().duration_since(began[slot]).as_micros();
                latencies.record(u64::try_from(took).unwrap_or(u64::MAX)).expect("auto-sized");
                began[slot] = now();
                session_request::Item::Begin(begin())
            }
            other => panic!("unexpected answer {other:?}"),
        };
        let request = SessionRequest { sequence: answer.sequence, item: Some(item) };
        requests.send(request).await.expect("an open stream");
    }
    let took = now().duration_since(measured).as_secs_f64();
    Measured {
        effects_per_second: latencies.len() as f64 / took,
        p50_ms: latencies.value_at_quantile(0.5) as f64 / 1000.0,
        p99_ms: latencies.value_at_quantile(0.99) as f64 / 1000.0,
    }
}

/// The table that an application would write itself, driven by pgbench.
fn hand_rolled(url: &str, clients: usize, seconds: u64) -> Measured {
    let output = Command::new("bash")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/handrolled.sh"))
        .args([url, &clients.to_string(), &seconds.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "benches/handrolled.sh failed");
    let text = String::from_utf8(output.stdout).expect("text");
    let number = |name: &str| -> f64 {
        text.split_whitespace()
            .find_map(|word| word.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name} is missing in {text:?}"))
            .parse()
            .expect("a number")
    };
    Measured {
        effects_per_second: number("effects_per_s="),
        p50_ms: number("p50_ms="),
        p99_ms: number("p99_ms="),
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
fn now() -> Instant {
    Instant::now()
}
