//! The table that an application would write itself, driven by pgbench: two transactions an effect.

use std::{
    fs,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tempfile::TempDir;

use crate::{
    cluster,
    database::Cluster,
    measure::{Costs, Measured, Timing},
};

/// The table; `benches/handrolled.sql` writes to it, and the bare batches too.
pub(crate) const TABLE: &str = "CREATE TABLE handrolled_effect (
    key text PRIMARY KEY,
    state text NOT NULL,
    result jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    settled_at timestamptz)";

/// Rows of the table.
pub(crate) const ROWS: &str = "SELECT count(*) FROM handrolled_effect";

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/handrolled.sql");

/// Longer than any line; pgbench is told to stop.
const SECONDS_MAX: &str = "3600";

/// Measures the table with `clients` connections.
pub(crate) fn run(cluster: &Cluster, clients: usize, timing: Timing) -> Measured {
    let database = cluster.database("handrolled");
    database.run(TABLE);
    database.settle();
    let work = TempDir::new().expect("a temporary directory");
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(clients);
    let report = fs::File::create(work.path().join("report")).expect("a file");
    let mut pgbench = Command::new(cluster::program("pgbench"))
        .args(["--no-vacuum", "--protocol=prepared", "--log", "--log-prefix=effects"])
        .args(["--time", SECONDS_MAX, "--file", SCRIPT])
        .args(["--client", &clients.to_string(), "--jobs", &threads.to_string(), &database.url])
        .current_dir(work.path())
        .stdin(Stdio::null())
        .stdout(report.try_clone().expect("a file handle can be cloned"))
        .stderr(report)
        .spawn()
        .expect("pgbench can be run");
    wait_for_clients(cluster, clients);

    let costs = Costs { cluster: Some(cluster), servers: Vec::new(), load: pgbench.id() };
    let window = costs.measure(timing, None);
    // As its own timer would: every client ends its effect, and the log is written to the end.
    cluster::signal("ALRM", &[pgbench.id()]);
    let status = pgbench.wait().expect("it is our child");
    let said = || fs::read_to_string(work.path().join("report")).unwrap_or_default();
    assert!(status.success(), "pgbench failed:\n{}", said());

    let logged: Vec<Logged> = fs::read_dir(work.path())
        .expect("our directory")
        .map(|entry| entry.expect("our directory").path())
        .filter(|path| !path.ends_with("report"))
        .flat_map(|path| read_log(&fs::read_to_string(path).expect("pgbench's log")))
        .collect();
    let rows = database.count(ROWS);
    assert_eq!(rows, logged.len() as u64, "a row for each effect; pgbench said:\n{}", said());
    let micros: Vec<u32> = logged
        .iter()
        .filter(|effect| window.between.contains(&effect.ended_at))
        .map(|effect| effect.micros)
        .collect();
    let mut measured = window.measured(micros.len() as u64, micros);
    measured.disk_bytes = Some(database.bytes_per(rows));
    measured
}

/// Returns once every client has sent something.
fn wait_for_clients(cluster: &Cluster, clients: usize) {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = 'handrolled' AND query LIKE '%handrolled_effect%'
                 AND pid <> pg_backend_pid()";
    for _ in 0..3_000 {
        if cluster.ask::<i64>(sql) >= clients as i64 {
            return;
        }
        sleep(Duration::from_millis(20));
    }
    panic!("pgbench's clients did not connect within a minute");
}

/// One effect in pgbench's log.
struct Logged {
    ended_at: SystemTime,
    micros: u32,
}

/// A line is client, number, microseconds, script, and when it ended: seconds and microseconds.
fn read_log(text: &str) -> Vec<Logged> {
    text.lines()
        .map(|line| {
            let numbers: Vec<u64> =
                line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let ended = Duration::from_secs(numbers[4]) + Duration::from_micros(numbers[5]);
            Logged {
                ended_at: UNIX_EPOCH + ended,
                micros: u32::try_from(numbers[2]).unwrap_or(u32::MAX),
            }
        })
        .collect()
}
