//! The command as a process, killed and stopped.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::json;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{HttpClient, PATIENCE, SHORT, done};
use crate::support::cluster::signal;

/// `intent-ledger downstream` on free ports. Killed on drop.
struct Process {
    child: Child,
    http: HttpClient,
}

impl Process {
    /// Starts one in a directory, with what it says on standard error in the file `said`.
    async fn start(home: &Path, flags: &[&str]) -> Self {
        let said = File::options().create(true).append(true).open(home.join("said")).unwrap();
        let mut child = command(home, flags).stdout(Stdio::piped()).stderr(said).spawn().unwrap();
        let stdout = child.stdout.take().expect("it is piped");
        let ready = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = timeout(PATIENCE, ready).await.expect("a line in time").unwrap().unwrap();
        let addresses =
            line.strip_prefix("ready http=").and_then(|it| it.trim_end().split_once(" grpc="));
        let (http, grpc) = addresses.unwrap_or_else(|| panic!("not ready: {line:?}"));
        assert!(grpc.starts_with("127.0.0.1:"), "{line:?}");
        Self { child, http: HttpClient::new(format!("http://{http}"), PATIENCE) }
    }

    /// Sends a signal; the exit status.
    async fn end(mut self, name: &str) -> Option<i32> {
        signal(name, &[self.child.id()]);
        let ended = tokio::task::spawn_blocking(move || self.child.wait().unwrap().code());
        timeout(PATIENCE, ended).await.expect("it ends in time").unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn command(home: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_intent-ledger"));
    command
        .args(["downstream", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
        .args(flags)
        .current_dir(home)
        .stdin(Stdio::null());
    command
}

fn said(home: &Path) -> String {
    std::fs::read_to_string(home.join("said")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_truth_of_a_killed_process_survives_in_its_log() {
    let home = TempDir::new().unwrap();
    let flags = ["--log", "sent.jsonl", "--deduplicates", "1h"];
    let process = Process::start(home.path(), &flags).await;
    let impatient = process.http.waiting(SHORT);
    assert!(impatient.post("k1", "effect_then_timeout").await.unwrap_err().is_timeout());
    process.http.post("k2", "twice, late_visibility=1h").await.unwrap();
    process.http.post("k3", "late_effect=1h").await.unwrap();
    assert_eq!(process.end("KILL").await, None);
    let log = std::fs::read_to_string(home.path().join("sent.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 3, "{log}");
    assert!(log.starts_with(r#"{"id":"eff-1","idempotency_key":"k1","action":"mail","sent_at":"#));

    // Another one goes on where it was killed.
    let process = Process::start(home.path(), &flags).await;
    let http = &process.http;
    assert_eq!(http.status("k1", "").await.unwrap(), (200, done("eff-1", "k1")));
    assert_eq!(http.post("k1", "").await.unwrap(), (200, done("eff-1", "k1")));
    assert_eq!(http.status("k2", "").await.unwrap().0, 404, "still invisible");
    assert_eq!(http.status("k3", "").await.unwrap().0, 404, "it never happened");
    assert_eq!(http.post("k4", "").await.unwrap(), (200, done("eff-4", "k4")));
    let by_key = json!({"k1": 1, "k2": 2, "k4": 1});
    assert_eq!(http.get("/v1/effects").await.1["by_key"], by_key);
    assert_eq!(process.end("TERM").await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_names_its_seed_and_its_effects_only_if_it_is_asked_to() {
    let home = TempDir::new().unwrap();
    let quiet = Process::start(home.path(), &["--seed", "7", "--fault", "refused=0.5"]).await;
    let mut met = Vec::new();
    for number in 0..20 {
        met.push(quiet.http.post(&format!("k{number}"), "").await.unwrap().0);
    }
    assert_eq!(quiet.end("INT").await, Some(0));
    assert_eq!(said(home.path()), "seed 7: --seed 7 repeats these chances\n");
    assert!(met.contains(&200) && met.contains(&422), "{met:?}");

    let flags = ["--seed", "7", "--fault", "refused=0.5", "--verbose"];
    let verbose = Process::start(home.path(), &flags).await;
    for (number, met) in met.iter().enumerate() {
        assert_eq!(verbose.http.post(&format!("k{number}"), "").await.unwrap().0, *met);
    }
    assert_eq!(verbose.end("TERM").await, Some(0));
    let said = said(home.path());
    let lines = said.lines().filter(|line| line.contains("effect") && line.contains("eff-"));
    assert_eq!(lines.count(), met.iter().filter(|status| **status == 200).count(), "{said}");
}

#[test]
fn what_keeps_it_from_starting_is_said() {
    let home = TempDir::new().unwrap();
    let run = |flags: &[&str]| {
        let output = command(home.path(), flags).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = run(&["--fault", "slwo=1"]);
    assert_eq!((status, said.contains("there is no fault \"slwo\"")), (Some(64), true), "{said}");
    std::fs::write(home.path().join("no.log"), "nonsense\n").unwrap();
    let (status, said) = run(&["--log", "no.log"]);
    let expected = "intent-ledger: failed to start: open the sent log no.log: line 1: ";
    assert_eq!((status, said.starts_with(expected)), (Some(1), true), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_intent-ledger"));
    let output = command.args(["downstream", "--http", &address]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!("intent-ledger: failed to start: listen on {address}: Address already");
    assert_eq!((output.status.code(), said.starts_with(&expected)), (Some(1), true), "{said}");
}
