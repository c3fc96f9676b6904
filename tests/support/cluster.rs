//! Postgres for tests: a database of one's own on the cluster that `./test.sh` started, or a whole cluster of one's own
//! to kill.
//!
//! Everything here blocks; an async test calls it through `tokio::task::spawn_blocking` where that would hurt.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

/// Ports for clusters: below the range the kernel hands out for port 0, so that no other test is given a cluster's port
/// while the cluster is down between [`PgCluster::kill9`] and [`PgCluster::restart`].
const PORTS: std::ops::Range<u32> = 20_000..32_000;

/// How often we look whether a cluster has started or died, and for how long: a minute, for a busy two-core machine that
/// replays a log.
const POLL_EVERY: Duration = Duration::from_millis(20);
const POLLS_MAX: u32 = 3_000;

/// A throw-away Postgres cluster that belongs to one test, so that the test may kill it. Durable as in production:
/// `fsync` and `synchronous_commit` are on. Stopped and removed on drop.
#[derive(Debug)]
pub(crate) struct PgCluster {
    home: TempDir,
    programs: Programs,
    /// What the server is started with, beside our own environment.
    environment: Vec<(String, PathBuf)>,
    port: u32,
    postmaster: Option<Child>,
}

impl PgCluster {
    /// Makes a new cluster and returns once it takes connections.
    pub(crate) fn start() -> Self {
        Self::start_with("", &[])
    }

    /// The same, with settings that win over ours, one a line, and with variables for the server.
    pub(crate) fn start_with(settings: &str, environment: &[(&str, &Path)]) -> Self {
        Self::start_of(Programs::find(), settings, environment)
    }

    fn start_of(programs: Programs, settings: &str, environment: &[(&str, &Path)]) -> Self {
        let environment = environment
            .iter()
            .map(|(name, path)| ((*name).to_owned(), path.to_path_buf()))
            .collect();
        let home = home_for(programs.run_as, "pg-");
        let data = home.path().join("data");
        programs.run(
            "initdb",
            home.path(),
            &["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"],
            &data,
        );
        // Dynamic shared memory as files of the data directory: in /dev/shm it would survive `kill9` for good.
        let own = format!(
            "\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nmax_connections = 200\n\
             fsync = on\nsynchronous_commit = on\ncluster_name = 'intent-ledger-private'\n\
             dynamic_shared_memory_type = mmap\n",
            home.path().display(),
        );
        let conf = data.join("postgresql.conf");
        let default = fs::read_to_string(&conf).expect("initdb wrote postgresql.conf");
        fs::write(&conf, default + &own + settings).expect("postgresql.conf can be written");

        let mut cluster = Self { home, programs, environment, port: 0, postmaster: None };
        for _ in 0..8 {
            cluster.port = free_port();
            match cluster.launch() {
                Ok(()) => return cluster,
                // Somebody was quicker between our look at the port and Postgres's bind.
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("a private Postgres cluster did not start:\n{log}"),
            }
        }
        panic!("no free port for a private Postgres cluster in {PORTS:?}");
    }

    /// Its database `postgres`, as a superuser, over loopback. The same after a [`restart`](Self::restart).
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Kills the postmaster and every process of the cluster with SIGKILL, as the kernel's OOM killer or a power cut
    /// would: nobody writes a checkpoint, says goodbye to a client or gives shared memory back. Returns when all are gone.
    pub(crate) fn kill9(&mut self) {
        let mut postmaster = self.postmaster.take().expect("the cluster runs");
        // A stopped postmaster forks nothing more and cannot begin a recovery of its own, so the list below is complete
        // and all of them go down together.
        signal("STOP", &[postmaster.id()]);
        let mut processes = children_of(postmaster.id());
        processes.push(postmaster.id());
        signal("KILL", &processes);
        postmaster.wait().expect("the postmaster is our child");
        // Each backend is its own session, and now an orphan: it is for init to reap, so a zombie counts as gone.
        poll("the killed backends are gone", || {
            processes.iter().all(|&pid| state_and_parent(pid).is_none_or(|(state, _)| state == 'Z'))
        });
    }

    /// Starts the cluster again on the same data and the same port; returns once recovery is over and it takes connections.
    pub(crate) fn restart(&mut self) {
        assert!(self.postmaster.is_none(), "the cluster was killed before it is restarted");
        if let Err(log) = self.launch() {
            panic!("the cluster did not come back on port {}:\n{log}", self.port);
        }
    }

    /// Starts the postmaster as our own child (not by `pg_ctl`), so that we can reap it: to a restart, a zombie would look
    /// like a running postmaster. An error is what Postgres had to say.
    fn launch(&mut self) -> Result<(), String> {
        let log_path = self.home.path().join("log");
        let log = fs::File::create(&log_path).expect("the log can be created");
        let mut postmaster = self
            .programs
            .command("postgres", self.home.path())
            .arg("-D")
            .arg(self.home.path().join("data"))
            .args(["-p", &self.port.to_string()])
            .envs(self.environment.iter().map(|(name, path)| (name, path)))
            .stdout(log.try_clone().expect("a file handle can be cloned"))
            .stderr(log)
            .spawn()
            .expect("postgres can be started");
        let mut died = false;
        poll("the cluster takes connections", || {
            died = postmaster.try_wait().expect("the postmaster is our child").is_some();
            died || self.is_ready()
        });
        if died {
            return Err(fs::read_to_string(log_path).unwrap_or_default());
        }
        self.postmaster = Some(postmaster);
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let port = self.port.to_string();
        self.programs
            .command("pg_isready", self.home.path())
            .args(["-q", "-h", "127.0.0.1", "-p", &port])
            .status()
            .expect("pg_isready can be run")
            .success()
    }
}

impl Drop for PgCluster {
    fn drop(&mut self) {
        if let Some(mut postmaster) = self.postmaster.take() {
            // An immediate shutdown: nobody needs the data any more, but shared memory is given back.
            signal("QUIT", &[postmaster.id()]);
            let _ = postmaster.wait();
        } else if let Some(segment) = self.abandoned_segment() {
            // Killed and never restarted: the small segment that guards the data directory would outlive us all.
            let _ = Command::new("ipcrm").args(["-m", &segment]).stderr(Stdio::null()).status();
        }
    }
}

impl PgCluster {
    /// The System V segment noted in `postmaster.pid`, whose seventh line is its key and its id.
    fn abandoned_segment(&self) -> Option<String> {
        let pid_file = fs::read_to_string(self.home.path().join("data/postmaster.pid")).ok()?;
        Some(pid_file.lines().nth(6)?.split_whitespace().nth(1)?.to_owned())
    }
}

/// Where a program of Postgres is.
pub(crate) fn program(name: &str) -> PathBuf {
    Programs::find().bin.join(name)
}

/// Creates an empty database with a name of its own on the cluster that `./test.sh` started, and returns its URL. It goes
/// when that cluster goes.
///
/// # Panics
/// Where the tests were not started by `./test.sh`, saying so.
pub(crate) fn fresh_database() -> String {
    fresh_database_on(&told("INTENT_LEDGER_TEST_POSTGRES"))
}

/// A new, empty database on the Postgres of another major version. Its cluster is started by the first test of a
/// process that asks, shared by the others, and ends with the process.
pub(crate) fn fresh_database_of_another_major() -> String {
    static SERVER: OnceLock<String> = OnceLock::new();
    fresh_database_on(SERVER.get_or_init(|| {
        let cluster = PgCluster::start_of(Programs::of_another_major(), "", &[]);
        let postmaster = cluster.postmaster.as_ref().expect("the cluster runs");
        ends_with_us(postmaster.id(), cluster.home.path());
        let url = cluster.url();
        std::mem::forget(cluster);
        url
    }))
}

/// A shell that waits for the end of this process, which is the end of its standard input: nobody else holds the other
/// end of that pipe. A test binary ends without dropping what is static, and may be killed besides.
const KEEPER: &str = r#"
trap '' INT TERM HUP
home="$1" process="$2"
cat >/dev/null
kill -s QUIT "$process"
tries=0
while kill -0 "$process" 2>/dev/null && [ "$tries" -lt 200 ]; do
  sleep 0.05
  tries=$((tries + 1))
done
rm -rf "$home"
"#;

/// For a daemon that all tests of this process share: once this process has ended, the daemon is sent a SIGQUIT and its
/// directory is removed.
pub(crate) fn ends_with_us(daemon: u32, home: &Path) {
    let keeper = Command::new("sh")
        .args(["-c", KEEPER, "keeper"])
        .arg(home)
        .arg(daemon.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh can be started");
    // Our end of the pipe stays open until the kernel closes it.
    std::mem::forget(keeper);
}

/// What `./test.sh` tells the tests in a variable.
pub(crate) fn told(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run ./test.sh (or ./test.sh NAME_OF_A_TEST), which finds or starts what the \
             tests need"
        )
    })
}

fn fresh_database_on(server: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (base, _) = server.rsplit_once('/').expect("the URL ends in a database name");
    let psql = program("psql");
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        let output = Command::new(&psql)
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c"])
            .arg(format!("CREATE DATABASE {name}"))
            .arg(server)
            .output()
            .expect("psql can be run");
        let complaint = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return format!("{base}/{name}");
        }
        // A process of an earlier run may have had our id, where somebody keeps a cluster for many runs.
        assert!(complaint.contains("already exists"), "failed to create {name}: {complaint}");
    }
}

/// Postgres's programs, and whom to run the server as.
#[derive(Debug)]
struct Programs {
    bin: PathBuf,
    /// User and group id; `None` is ourselves. Postgres refuses to run as root.
    run_as: Option<(u32, u32)>,
}

impl Programs {
    /// Where `./test.sh` says they are, else the newest under `/usr/lib/postgresql`.
    fn find() -> Self {
        let bin = match std::env::var_os("INTENT_LEDGER_TEST_PGBIN") {
            Some(bin) => PathBuf::from(bin),
            None => newest_installed().expect(
                "PostgreSQL is installed under /usr/lib/postgresql: ./test.sh installs it where it is missing",
            ),
        };
        Self { bin, run_as: daemon_user() }
    }

    /// Those of another major version than [`find`](Self::find)'s.
    fn of_another_major() -> Self {
        Self { bin: told("INTENT_LEDGER_TEST_PGBIN_OTHER").into(), run_as: daemon_user() }
    }

    /// A program to run as the server's user, in a directory which that user may enter.
    fn command(&self, program: &str, directory: &Path) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(directory).stdin(Stdio::null());
        if let Some((uid, gid)) = self.run_as {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn run(&self, program: &str, directory: &Path, args: &[&str], path: &Path) {
        let output = self
            .command(program, directory)
            .args(args)
            .arg(path)
            .output()
            .unwrap_or_else(|error| panic!("{program} can be run: {error}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} failed: {complaint}");
    }
}

/// Whom to run daemons as that refuse to run as root: user and group id; `None` is ourselves.
pub(crate) fn daemon_user() -> Option<(u32, u32)> {
    let user = match std::env::var("INTENT_LEDGER_TEST_PGUSER") {
        Ok(user) => user,
        Err(_) if id(&["-u"]) == 0 => "postgres".to_owned(),
        Err(_) => String::new(),
    };
    (!user.is_empty()).then(|| (id(&["-u", &user]), id(&["-g", &user])))
}

/// A directory for a daemon of that user.
pub(crate) fn home_for(run_as: Option<(u32, u32)>, prefix: &str) -> TempDir {
    let home = tempfile::Builder::new()
        .prefix(prefix)
        .tempdir()
        .expect("a temporary directory can be made");
    if let Some((uid, gid)) = run_as {
        chown(home.path(), Some(uid), Some(gid)).expect("root may give a directory away");
    }
    home
}

fn newest_installed() -> Option<PathBuf> {
    let majors = fs::read_dir("/usr/lib/postgresql").ok()?;
    majors
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .map(|major| (major, PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists())
        .max()
        .map(|(_, bin)| bin)
}

/// What `id` answers: the standard library does not know who we are.
fn id(args: &[&str]) -> u32 {
    let output = Command::new("id").args(args).output().expect("id can be run");
    let complaint = String::from_utf8_lossy(&output.stderr);
    let answer = String::from_utf8_lossy(&output.stdout);
    answer.trim().parse().unwrap_or_else(|_| panic!("id {args:?} is a number: {complaint}"))
}

/// A port nobody listens on, another one at each call, spread by process id so that test binaries do not queue up.
pub(crate) fn free_port() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let span = PORTS.end - PORTS.start;
    (0..span)
        .map(|_| NEXT.fetch_add(1, Ordering::Relaxed))
        .map(|number| PORTS.start + std::process::id().wrapping_mul(97).wrapping_add(number) % span)
        .find(|port| TcpListener::bind(format!("127.0.0.1:{port}")).is_ok())
        .expect("some port is free")
}

/// Sends a signal by the shell's own `kill`, which is there even where procps is not.
pub(crate) fn signal(name: &str, processes: &[u32]) {
    let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
    // One that has just ended by itself is no reason to fail.
    let _ = Command::new("sh")
        .arg("-c")
        .arg(format!("kill -{name} {}", processes.join(" ")))
        .stderr(Stdio::null())
        .status();
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc is there");
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| state_and_parent(pid).is_some_and(|(_, ppid)| ppid == parent))
        .collect()
}

/// State letter and parent of a process, from `/proc/PID/stat`; `None` when there is no such process.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name comes before, in brackets, and may hold anything: begin behind its end.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

pub(crate) fn poll(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..POLLS_MAX {
        if done() {
            return;
        }
        sleep(POLL_EVERY);
    }
    panic!("waited a minute in vain: {what}");
}

mod tests {
    use super::*;

    fn sql(url: &str, statement: &str) -> Result<String, String> {
        let output = Command::new(program("psql"))
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", statement, url])
            .output()
            .expect("psql can be run");
        let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    #[test]
    fn a_killed_cluster_comes_back_with_what_it_acknowledged() {
        let mut cluster = PgCluster::start();
        let url = cluster.url();
        assert_eq!(sql(&url, "SHOW fsync").as_deref(), Ok("on"));
        assert_eq!(sql(&url, "SHOW synchronous_commit").as_deref(), Ok("on"));
        sql(&url, "CREATE TABLE kept (n int)").unwrap();
        for round in 1..=2 {
            sql(&url, &format!("INSERT INTO kept VALUES ({round})")).unwrap();
            // A backend in the middle of its work goes down with the rest, and what it had not committed with it.
            let mut busy = Command::new(program("psql"))
                .args(["-X", "-q", "-c", "BEGIN; INSERT INTO kept VALUES (0); SELECT pg_sleep(60)"])
                .arg(&url)
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            poll("the backend sleeps", || {
                let count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
                sql(&url, count).as_deref() == Ok("1")
            });

            cluster.kill9();
            assert!(!busy.wait().unwrap().success());
            assert!(sql(&url, "SELECT 1").is_err());

            cluster.restart();
            assert_eq!(cluster.url(), url);
            let kept = sql(&url, "SELECT count(*), min(n), max(n) FROM kept");
            assert_eq!(kept, Ok(format!("{round}|1|{round}")));
        }
        let log = fs::read_to_string(cluster.home.path().join("log")).unwrap();
        assert!(log.contains("database system was not properly shut down"), "{log}");
    }

    #[test]
    fn a_dropped_cluster_leaves_nothing_behind() {
        let (mut killed, stopped) = (PgCluster::start(), PgCluster::start());
        assert_ne!(killed.url(), stopped.url());
        let homes = [killed.home.path().to_owned(), stopped.home.path().to_owned()];
        let segments = [killed.abandoned_segment().unwrap(), stopped.abandoned_segment().unwrap()];
        let postmaster = stopped.postmaster.as_ref().unwrap().id();
        let backends = children_of(postmaster);
        assert!(backends.len() > 3, "{backends:?}");
        killed.kill9();
        drop((killed, stopped));
        assert!(!homes.iter().any(|home| home.exists()));
        assert!(backends.iter().all(|&pid| state_and_parent(pid).is_none_or(|(s, _)| s == 'Z')));
        let left = fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let ids: Vec<_> = left.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert!(!segments.iter().any(|segment| ids.contains(&segment.as_str())), "{left}");
    }

    #[test]
    fn each_fresh_database_is_a_new_one() {
        let (one, other) = (fresh_database(), fresh_database());
        assert_ne!(one, other);
        sql(&one, "CREATE TABLE only_here (n int)").unwrap();
        assert!(sql(&other, "SELECT * FROM only_here").unwrap_err().contains("does not exist"));
    }
}
