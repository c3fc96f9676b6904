//! The servers that are measured, each a process of its own.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A server process, killed on drop.
pub(crate) struct Server {
    child: Child,
    /// Where it serves gRPC, as `host:port`.
    pub(crate) address: String,
}

/// The server under test: its binary, and flags for it.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The executable.
    pub(crate) binary: std::path::PathBuf,
    /// What `serve` is told beside its store and its addresses.
    pub(crate) flags: Vec<String>,
}

impl Program {
    /// Brings the schema of a store up to date.
    pub(crate) fn migrate(&self, store: &str) {
        let migrated = Command::new(&self.binary)
            .args(["migrate", "--store", store])
            .stdout(Stdio::null())
            .status()
            .expect("the binary runs");
        assert!(migrated.success(), "the store could not be migrated");
    }

    /// A server over a migrated store.
    pub(crate) fn serve(&self, store: &str) -> Server {
        let mut command = Command::new(&self.binary);
        command
            .args(["serve", "--store", store, "--log", "error"])
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(&self.flags);
        Server::start(command)
    }
}

impl Server {
    /// The echo, which is this executable with other arguments.
    pub(crate) fn echo(threads: Option<usize>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("we run"));
        command.arg("--echo-server");
        command.args(threads.map(|threads| format!("--echo-threads={threads}")));
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut ready).expect("a line");
        let address = ready.split_whitespace().find_map(|word| word.strip_prefix("grpc="));
        let address = address.expect("the ready line names the address").to_owned();
        Self { child, address }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The memory that it has resident, and the most it ever had, in MiB.
    pub(crate) fn resident_mib(&self) -> (f64, f64) {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(Path::new(&path)).expect("a running process");
        let field = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
        };
        (field("VmRSS:"), field("VmHWM:"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
