//! Commands of the real binary as processes that are killed and started again.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use intent_ledger::clock::monotonic;

use crate::cluster::{poll, signal};

const BINARY: &str = env!("CARGO_BIN_EXE_intent-ledger");

/// How long a service may take to start, with Postgres in recovery and a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two starts of a service that cannot start yet, as a supervisor has it.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// A service that says `ready` when it is. Killed on drop.
pub(crate) struct Service {
    name: String,
    arguments: Vec<String>,
    log: PathBuf,
    running: Option<(Child, BufReader<ChildStdout>)>,
    pub(crate) kills: u32,
}

impl Service {
    /// Starts it and returns once it is ready. Its log goes to a file in `home`.
    pub(crate) fn start(home: &Path, name: &str, arguments: Vec<String>) -> Self {
        let log = home.join(format!("{name}.log"));
        let mut service = Self { name: name.to_owned(), arguments, log, running: None, kills: 0 };
        service.restart();
        service
    }

    /// Starts it again after its end, as often as it takes: a server does not start without its store.
    pub(crate) fn restart(&mut self) {
        let began = monotonic();
        while !self.try_start() {
            let waited = monotonic().duration_since(began);
            assert!(waited < PATIENCE, "{} does not start:\n{}", self.name, self.log());
            sleep(RESTART_PAUSE);
        }
    }

    fn try_start(&mut self) -> bool {
        let mut child = Command::new(BINARY)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(appended(&self.log))
            .spawn()
            .expect("the binary can be started");
        let mut stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut line = String::new();
        let ready = stdout.read_line(&mut line).is_ok() && line.starts_with("ready ");
        if ready {
            self.running = Some((child, stdout));
        } else {
            child.kill().ok();
            child.wait().expect("it is our child");
        }
        ready
    }

    /// Kills it as the kernel would.
    pub(crate) fn kill9(&mut self) {
        let (mut child, _) = self.running.take().expect("it runs");
        let ended = child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "{} ended by itself: {ended:?}\n{}", self.name, self.log());
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
        self.kills += 1;
    }

    /// Asks it to stop; what is wrong with how it did.
    pub(crate) fn stop(&mut self) -> Option<String> {
        let (mut child, _) = self.running.take().expect("it runs");
        signal("TERM", &[child.id()]);
        let mut status = None;
        poll("a service ends", || {
            status = child.try_wait().expect("it is our child");
            status.is_some()
        });
        let status = status.expect("it has ended");
        (!status.success()).then(|| format!("{} ended with {status}", self.name))
    }

    /// What it has logged, over all its lives.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What no kill of its neighbours explains.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.log();
        let bad = log.lines().filter(|line| line.contains(" ERROR ") || line.contains("panicked"));
        bad.map(|line| format!("{}: {line}", self.name)).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// `intent-ledger reconcile`, as cron starts it.
pub(crate) fn start_reconcile(home: &Path, server: &str) -> Child {
    Command::new(BINARY)
        .args(["reconcile", "--server", server])
        .stdin(Stdio::null())
        .stdout(appended(&home.join("reconcile.log")))
        .stderr(appended(&home.join("reconcile.log")))
        .spawn()
        .expect("the binary can be started")
}

/// A file to which a process adds what it says.
pub(crate) fn appended(path: &Path) -> File {
    File::options().create(true).append(true).open(path).expect("the log can be opened")
}
