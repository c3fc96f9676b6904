//! The real binary as a child process of the test, to be signalled and killed.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use intent_ledger::proto::v1::intent_ledger_service_client::IntentLedgerServiceClient;
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use super::{calls::Agent, cluster::signal};

/// How long a server may take to start or to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// `intent-ledger serve` on free ports. Killed on drop.
pub(crate) struct ServerProcess {
    child: Option<Child>,
    arguments: Vec<String>,
    home: TempDir,
    /// The URL of gRPC; another one after a [`restart`](Self::restart).
    pub(crate) grpc: String,
    /// The URL of HTTP.
    pub(crate) http: String,
}

impl ServerProcess {
    /// Starts a server on the store at `address` and returns once it says that it is ready.
    pub(crate) async fn start(address: &str, policy: Option<&str>, flags: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let mut arguments: Vec<String> =
            ["serve", "--store", address, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
                .map(str::to_owned)
                .to_vec();
        if let Some(text) = policy {
            let path = home.path().join("policy.toml");
            std::fs::write(&path, text).unwrap();
            arguments.extend(["--policy".to_owned(), path.display().to_string()]);
        }
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let mut server =
            Self { child: None, arguments, home, grpc: String::new(), http: String::new() };
        server.launch().await;
        server
    }

    async fn launch(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("log"))
            .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_intent-ledger"))
            .args(&self.arguments)
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary can be started");
        let stdout = child.stdout.take().expect("standard output is piped");
        self.child = Some(child);
        let ready = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = timeout(PATIENCE, ready).await.expect("a line in time").unwrap().unwrap();
        let addresses = line
            .strip_prefix("ready grpc=")
            .and_then(|rest| rest.trim_end().split_once(" http="))
            .unwrap_or_else(|| panic!("the first line is {line:?}; the log:\n{}", self.log()));
        self.grpc = format!("http://{}", addresses.0);
        self.http = format!("http://{}", addresses.1);
    }

    /// What the server has logged, over all its lives.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Writes another policy where the server reads it.
    pub(crate) fn write_policy(&self, text: &str) {
        // Renamed into place, so that nobody reads half of it.
        let path = self.home.path().join("policy.toml");
        let draft = path.with_extension("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, path).unwrap();
    }

    /// A client with a connection of its own.
    pub(crate) async fn client(&self) -> Agent {
        IntentLedgerServiceClient::new(self.channel().await)
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(self.grpc.clone()).unwrap().connect().await.unwrap()
    }

    fn child(&self) -> &Child {
        self.child.as_ref().expect("the server runs")
    }

    /// Kills it as the kernel would: no handler runs, nothing is flushed.
    pub(crate) fn kill9(&mut self) {
        let mut child = self.child.take().expect("the server runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn send(&self, name: &str) {
        signal(name, &[self.child().id()]);
    }

    /// Waits for it to end by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the server runs");
        let (status, child) =
            timeout(PATIENCE, tokio::task::spawn_blocking(move || (child.wait().unwrap(), child)))
                .await
                .expect("the server ends in time")
                .unwrap();
        drop(child);
        status
    }

    /// Asks it to stop, and expects that it does so in good order.
    pub(crate) async fn terminate(&mut self) {
        self.send("TERM");
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{status}; the log:\n{}", self.log());
    }

    /// Starts it again after its end: the same store and flags, other ports.
    pub(crate) async fn restart(&mut self) {
        assert!(self.child.is_none(), "the server has ended");
        self.launch().await;
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("the log of {}:\n{}", self.grpc, self.log());
        }
    }
}
