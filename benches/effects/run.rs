//! Measures one line, with a server and a store of its own.

use tempfile::TempDir;

use crate::{
    batched,
    database::Cluster,
    lines::{Line, Road, Target},
    measure::{Costs, Load, Measured, Timing},
    server::{Program, Server},
    session, table, unary,
};

/// Rows that the ledger has, each of them completed.
const INTENTS: &str = "SELECT count(*) FROM intents WHERE state = 5";

/// What lines are measured with.
pub(crate) struct Bench {
    /// The Postgres of most lines.
    pub(crate) cluster: Cluster,
    /// The server under test.
    pub(crate) program: Program,
    /// How long a line takes.
    pub(crate) timing: Timing,
}

impl Bench {
    /// Measures a line.
    pub(crate) fn run(&self, line: &Line) -> Measured {
        let Self { cluster, timing, .. } = self;
        match line.target {
            Target::Table => table::run(cluster, line.in_flight, *timing),
            Target::Batched(connections) => {
                batched::run(cluster, connections, line.in_flight, *timing)
            }
            Target::Echo(road) => self.echo(road, line.in_flight),
            Target::Postgres(road) => {
                self.postgres(cluster, |server| load(road, &[server], line.in_flight))
            }
            Target::Replay => {
                self.postgres(cluster, |server| unary::replays(&server.address, line.in_flight))
            }
            Target::Embedded(road) => self.embedded(road, line.in_flight),
        }
    }

    fn echo(&self, road: Road, in_flight: usize) -> Measured {
        let server = Server::echo();
        let costs = costs(None, &[&server]);
        let (window, tally) = load(road, &[&server], in_flight).measure(&costs, self.timing);
        window.measured(tally.micros.len() as u64, tally.micros)
    }

    fn postgres(&self, cluster: &Cluster, load: impl FnOnce(&Server) -> Load) -> Measured {
        let database = cluster.database("ledger");
        self.program.migrate(&database.url);
        let server = self.program.serve(&database.url);
        database.settle();
        let costs = costs(Some(cluster), &[&server]);
        let (window, tally) = load(&server).measure(&costs, self.timing);
        assert_eq!(database.count(INTENTS), tally.keys, "a completed row for each key");
        let mut measured = window.measured(tally.micros.len() as u64, tally.micros);
        measured.disk_bytes = Some(table::bytes_per_row(&database, tally.keys));
        measured.rss_mib = Some(server.resident_mib().1);
        measured
    }

    fn embedded(&self, road: Road, in_flight: usize) -> Measured {
        let directory = TempDir::new().expect("a temporary directory");
        let store = format!("sqlite:{}", directory.path().join("ledger.db").display());
        self.program.migrate(&store);
        let server = self.program.serve(&store);
        let costs = costs(None, &[&server]);
        let (window, tally) = load(road, &[&server], in_flight).measure(&costs, self.timing);
        let files = std::fs::read_dir(directory.path()).expect("our directory");
        let sizes =
            files.map(|file| file.and_then(|file| file.metadata()).map_or(0, |it| it.len()));
        let mut measured = window.measured(tally.micros.len() as u64, tally.micros);
        measured.disk_bytes = Some(sizes.sum::<u64>() as f64 / tally.keys as f64);
        measured.rss_mib = Some(server.resident_mib().1);
        measured
    }
}

fn costs<'a>(cluster: Option<&'a Cluster>, servers: &[&Server]) -> Costs<'a> {
    let servers = servers.iter().map(|server| server.pid()).collect();
    Costs { cluster, servers, load: std::process::id() }
}

/// A load of effects: all unary calls go to the first server, each server gets a session.
fn load(road: Road, servers: &[&Server], in_flight: usize) -> Load {
    match road {
        Road::Unary => unary::effects(&servers[0].address, in_flight),
        Road::Session => {
            let addresses: Vec<&str> = servers.iter().map(|it| it.address.as_str()).collect();
            session::effects(&addresses, in_flight)
        }
    }
}
