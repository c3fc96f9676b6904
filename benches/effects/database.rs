//! The benchmark's own Postgres: a database for each line, and what it has written.

use std::path::Path;

use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::{
    cluster::PgCluster,
    measure::{parent_of, runtime},
};

/// The same for every line: connections for 256 clients of pgbench beside two of ours, and room for
/// the log of a whole line, so that no checkpoint falls into one line and not into another.
const SETTINGS: &str = "max_connections = 400\nmax_wal_size = '16GB'\ncheckpoint_timeout = '1h'\n";

/// A cluster that belongs to the benchmark, reached over TCP on loopback by everybody. `fsync` and
/// `synchronous_commit` are on.
pub(crate) struct Cluster {
    client: Client,
    runtime: Runtime,
    postmaster: u32,
    url: String,
    _pg: PgCluster,
}

/// A database of one line, gone with it.
pub(crate) struct Database<'a> {
    cluster: &'a Cluster,
    name: &'static str,
    /// Where it is.
    pub(crate) url: String,
}

impl Cluster {
    /// Starts a cluster, under a shim that is preloaded if one is given.
    pub(crate) fn start(shim: Option<&Path>) -> Self {
        let environment: Vec<_> = shim.iter().map(|shim| ("LD_PRELOAD", *shim)).collect();
        let pg = PgCluster::start_with(SETTINGS, &environment);
        let (runtime, url) = (runtime(), pg.url());
        let client = connect(&runtime, &url);
        let backend: i32 = ask(&runtime, &client, "SELECT pg_backend_pid()");
        let postmaster = u32::try_from(backend).ok().and_then(parent_of).expect("a backend");
        Self { client, runtime, postmaster, url, _pg: pg }
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
        let url = format!("{}/{name}", self.url.strip_suffix("/postgres").expect("its database"));
        self.run(&format!("CREATE DATABASE {name}"));
        Database { cluster: self, name, url }
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
        self.cluster.run("CHECKPOINT");
    }

    /// The one number that `sql` selects.
    pub(crate) fn count(&self, sql: &str) -> u64 {
        let client = connect(&self.cluster.runtime, &self.url);
        let count: i64 = ask(&self.cluster.runtime, &client, sql);
        u64::try_from(count).expect("a count")
    }

    /// Bytes of all tables with their indexes.
    pub(crate) fn bytes(&self) -> u64 {
        self.count(
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
             WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace",
        )
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        self.cluster.run(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
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
