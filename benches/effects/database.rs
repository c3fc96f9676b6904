//! The benchmark's own Postgres: a database for each line, and what it has written.

use std::{cell::Cell, path::Path};

use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::{cluster::PgCluster, measure::runtime, processes::parent_of};

/// The same for every line: connections for 256 clients of pgbench beside some of ours, and room
/// for the log of a whole line, so that no checkpoint falls into one line and not into another.
const SETTINGS: &str = "max_connections = 400\nmax_wal_size = '8GB'\ncheckpoint_timeout = '1h'\n";

/// A cluster that belongs to the benchmark, reached in the same way by everybody: over TCP on
/// loopback, or through its socket. `fsync` and `synchronous_commit` are on.
pub(crate) struct Cluster {
    client: Client,
    runtime: Runtime,
    postmaster: u32,
    socket: Option<String>,
    pg: PgCluster,
}

/// A database of one line, gone with it.
pub(crate) struct Database<'a> {
    cluster: &'a Cluster,
    name: &'static str,
    bytes_when_empty: Cell<u64>,
    /// Where it is.
    pub(crate) url: String,
}

impl Cluster {
    /// Starts a cluster, which finds these variables set; `by_socket` says how it is reached.
    pub(crate) fn start(environment: &[(&str, &Path)], by_socket: bool) -> Self {
        let pg = PgCluster::start_with(SETTINGS, environment);
        let runtime = runtime();
        let client = connect(&runtime, &pg.url());
        let backend: i32 = ask(&runtime, &client, "SELECT pg_backend_pid()");
        let postmaster = u32::try_from(backend).ok().and_then(parent_of).expect("a backend");
        let socket = by_socket.then(|| {
            let directory = "SELECT current_setting('unix_socket_directories')";
            let directory: String = ask(&runtime, &client, directory);
            let port: String = ask(&runtime, &client, "SELECT current_setting('port')");
            format!("?host={directory}&port={port}&user=postgres")
        });
        Self { client, runtime, postmaster, socket, pg }
    }

    /// The process whose children do all the work.
    pub(crate) fn postmaster(&self) -> u32 {
        self.postmaster
    }

    /// How far the write-ahead log has come.
    pub(crate) fn wal_bytes(&self) -> u64 {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
        self.ask::<i64>(sql).try_into().expect("a position")
    }

    /// The one value that `sql` selects.
    pub(crate) fn ask<T: for<'b> tokio_postgres::types::FromSql<'b>>(&self, sql: &str) -> T {
        ask(&self.runtime, &self.client, sql)
    }

    /// A new and empty database.
    pub(crate) fn database(&self, name: &'static str) -> Database<'_> {
        let url = match &self.socket {
            Some(socket) => format!("postgres:///{name}{socket}"),
            None => {
                let own = self.pg.url();
                format!("{}/{name}", own.strip_suffix("/postgres").expect("its own database"))
            }
        };
        self.run(&format!("CREATE DATABASE {name}"));
        Database { cluster: self, name, bytes_when_empty: Cell::new(0), url }
    }

    fn run(&self, sql: &str) {
        self.runtime.block_on(self.client.batch_execute(sql)).expect("Postgres does it");
    }
}

impl Database<'_> {
    /// Runs statements in it.
    pub(crate) fn run(&self, sql: &str) {
        let client = connect(&self.cluster.runtime, &self.url);
        self.cluster.runtime.block_on(client.batch_execute(sql)).expect("Postgres does it");
    }

    /// Begins a line: what setting up has left to write is written before.
    pub(crate) fn settle(&self) {
        self.bytes_when_empty.set(self.bytes());
        self.cluster.run("CHECKPOINT");
    }

    /// The one number that `sql` selects.
    pub(crate) fn count(&self, sql: &str) -> u64 {
        let client = connect(&self.cluster.runtime, &self.url);
        let count: i64 = ask(&self.cluster.runtime, &client, sql);
        u64::try_from(count).expect("a count")
    }

    /// Bytes of all tables with their indexes that each of `rows` has cost, beyond what they had
    /// when empty and without the pages that a crowd of writers has added and not filled.
    pub(crate) fn bytes_per(&self, rows: u64) -> f64 {
        self.run("VACUUM");
        self.bytes().saturating_sub(self.bytes_when_empty.get()) as f64 / rows as f64
    }

    fn bytes(&self) -> u64 {
        self.count(
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
             WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace",
        )
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // After a failure the whole cluster goes, and may have gone.
        if !std::thread::panicking() {
            self.cluster.run(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
        }
    }
}

fn connect(runtime: &Runtime, url: &str) -> Client {
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    })
}

fn ask<T: for<'b> tokio_postgres::types::FromSql<'b>>(
    runtime: &Runtime,
    client: &Client,
    sql: &str,
) -> T {
    let row = runtime.block_on(client.query_one(sql, &[])).expect("Postgres answers");
    row.get(0)
}
