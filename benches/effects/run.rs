//! Measures one line, with servers and a store of its own.

use std::{cell::OnceCell, path::Path, sync::Arc};

use tempfile::TempDir;

use crate::{
    batched,
    database::{Cluster, Database},
    disk::SlowDisk,
    lines::{Line, Road, Target},
    measure::{Costs, Load, Measured, Timing},
    one_key,
    options::Options,
    server::{Program, Server},
    session,
    source::{Source, Storm},
    table, unary,
};

/// Rows that the ledger has, each of them completed.
const INTENTS: &str = "SELECT count(*) FROM intents WHERE state = 5";

/// Servers of a storm on one key.
const ONE_KEY_SERVERS: usize = 3;

/// Servers of a storm of repeats.
const DUPLICATES_SERVERS: usize = 2;

/// What lines are measured with; a cluster is started when the first line needs it.
pub(crate) struct Bench {
    program: Program,
    timing: Timing,
    by_socket: bool,
    echo_threads: Option<usize>,
    cluster: OnceCell<Cluster>,
    slow: OnceCell<(Cluster, SlowDisk)>,
}

impl Bench {
    /// Measures as the options say.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            program: options.program(),
            timing: options.timing(),
            by_socket: options.unix_socket,
            echo_threads: options.echo_threads,
            cluster: OnceCell::new(),
            slow: OnceCell::new(),
        }
    }

    /// Measures a line; with it what there is to say of its counts.
    pub(crate) fn run(&self, line: &Line) -> (Measured, Option<String>) {
        let (in_flight, timing) = (line.in_flight, self.timing);
        let cluster = || self.cluster(line.slow_disk);
        let measured = match line.target {
            Target::Table => table::run(cluster(), in_flight, timing),
            Target::Batched(connections) => batched::run(cluster(), connections, in_flight, timing),
            Target::Echo(road) => self.echo(road, in_flight),
            Target::Embedded(road) => self.embedded(road, in_flight),
            Target::Postgres(road, servers) => {
                let setup = Setup::new(&self.program, cluster(), servers);
                setup.measure(setup.load(road, in_flight, &Source::Fresh), timing)
            }
            Target::Replay => {
                let setup = Setup::new(&self.program, cluster(), 1);
                let mut load = Load::new();
                unary::replays(&mut load, &setup.servers[0].address, in_flight);
                setup.measure(load, timing)
            }
            Target::Duplicates(road) => {
                let storm = Arc::new(Storm::default());
                let setup = Setup::new(&self.program, cluster(), DUPLICATES_SERVERS);
                let load = setup.load(road, in_flight, &Source::Storm(Arc::clone(&storm)));
                let measured = setup.measure(load, timing);
                return (measured, Some(storm.verify()));
            }
            Target::OneKey => {
                let setup = Setup::new(&self.program, cluster(), ONE_KEY_SERVERS);
                let (measured, told) = setup.one_key(in_flight);
                return (measured, Some(told));
            }
        };
        (measured, None)
    }

    fn cluster(&self, slow_disk: bool) -> &Cluster {
        if !slow_disk {
            return self.cluster.get_or_init(|| Cluster::start(&[], self.by_socket));
        }
        let (cluster, _) = self.slow.get_or_init(|| {
            let disk = SlowDisk::build();
            let cluster = Cluster::start(&[("LD_PRELOAD", &disk.shim())], self.by_socket);
            (cluster, disk)
        });
        cluster
    }

    fn echo(&self, road: Road, in_flight: usize) -> Measured {
        let server = Server::echo(self.echo_threads);
        let mut load = Load::new();
        add(&mut load, road, &server, in_flight, &Source::Fresh);
        let (window, tally) = load.measure(&costs(None, [&server]), self.timing);
        window.measured(tally.micros.len() as u64, tally.micros)
    }

    fn embedded(&self, road: Road, in_flight: usize) -> Measured {
        let directory = TempDir::new().expect("a temporary directory");
        let file = directory.path().join("ledger.db");
        let store = format!("sqlite:{}", file.display());
        self.program.migrate(&store);
        let bytes_when_empty = file_bytes(&file);
        let server = self.program.serve(&store);
        let rest_mib = Some(server.resident_mib().0);
        let mut load = Load::new();
        add(&mut load, road, &server, in_flight, &Source::Fresh);
        let (window, tally) = load.measure(&costs(None, [&server]), self.timing);
        let mut measured = window.measured(tally.micros.len() as u64, tally.micros);
        measured.rss_mib = Some(server.resident_mib().1);
        drop(server);
        let bytes = file_bytes(&file).saturating_sub(bytes_when_empty);
        measured.disk_bytes = Some(bytes as f64 / tally.keys as f64);
        Measured { rest_mib, ..measured }
    }
}

/// New servers over a new database.
struct Setup<'a> {
    cluster: &'a Cluster,
    // Before the database: it can go once its servers have gone.
    servers: Vec<Server>,
    database: Database<'a>,
    rest_mib: f64,
}

impl<'a> Setup<'a> {
    fn new(program: &Program, cluster: &'a Cluster, servers: usize) -> Self {
        let database = cluster.database("ledger");
        program.migrate(&database.url);
        let servers: Vec<_> = (0..servers).map(|_| program.serve(&database.url)).collect();
        database.settle();
        let rest_mib = servers[0].resident_mib().0;
        Self { cluster, servers, database, rest_mib }
    }

    /// A load that is spread over the servers.
    fn load(&self, road: Road, in_flight: usize, source: &Source) -> Load {
        let mut load = Load::new();
        for server in &self.servers {
            add(&mut load, road, server, in_flight / self.servers.len(), source);
        }
        load
    }

    fn measure(&self, load: Load, timing: Timing) -> Measured {
        let (window, tally) = load.measure(&costs(Some(self.cluster), &self.servers), timing);
        self.check_rows(tally.keys);
        let mut measured = window.measured(tally.micros.len() as u64, tally.micros);
        measured.disk_bytes = Some(self.database.bytes_per(tally.keys));
        let peak = self.servers.iter().map(|server| server.resident_mib().1).reduce(f64::max);
        Measured { rss_mib: peak, rest_mib: Some(self.rest_mib), ..measured }
    }

    fn one_key(&self, callers: usize) -> (Measured, String) {
        let addresses: Vec<&str> = self.servers.iter().map(|it| it.address.as_str()).collect();
        let costs = costs(Some(self.cluster), &self.servers);
        let (window, (tally, told)) = costs.around(|| one_key::run(&addresses, callers));
        self.check_rows(tally.keys);
        (Measured { foreign: window.foreign(), ..Measured::at_once(tally.micros) }, told)
    }

    fn check_rows(&self, keys: u64) {
        assert_eq!(self.database.count(INTENTS), keys, "a completed row for each key begun");
    }
}

fn costs<'a, 'b>(
    cluster: Option<&'a Cluster>,
    servers: impl IntoIterator<Item = &'b Server>,
) -> Costs<'a> {
    let servers = servers.into_iter().map(Server::pid).collect();
    Costs { cluster, servers, load: std::process::id() }
}

/// The size of an SQLite file once its log is written into it.
fn file_bytes(file: &Path) -> u64 {
    let connection = rusqlite::Connection::open(file).expect("a database");
    let log = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()));
    log.expect("a log that nobody else reads");
    std::fs::metadata(file).expect("a file").len()
}

fn add(load: &mut Load, road: Road, server: &Server, in_flight: usize, source: &Source) {
    match road {
        Road::Unary => unary::effects(load, &server.address, in_flight, source),
        Road::Session => session::effects(load, &server.address, in_flight, source),
    }
}
