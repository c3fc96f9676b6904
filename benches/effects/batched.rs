//! The ceiling of Postgres: the hand-rolled table written in batches by a client that does nothing
//! else. Two statements and two commits a batch, prepared, rows sorted by key.

use std::sync::Arc;

use futures::future::join_all;
use tokio_postgres::NoTls;

use crate::{
    database::Cluster,
    ids::{Ids, RESULT},
    measure::{Connected, Costs, Load, Measured, Phase, Tally, Timing, now},
    table::{ROWS, TABLE},
};

/// The plans that the server asks for too: a plan made while the table is empty would scan it.
const PLANNER: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; \
                       SET enable_mergejoin = off; SET jit = off; \
                       SET plan_cache_mode = force_generic_plan";

const INSERT: &str = "INSERT INTO handrolled_effect (key, state)
    SELECT key, 'started' FROM unnest($1::text[]) AS new(key)
    ON CONFLICT (key) DO NOTHING";

const UPDATE: &str = "UPDATE handrolled_effect SET state = 'done', result = done.result::jsonb,
        settled_at = now()
    FROM unnest($1::text[], $2::text[]) AS done(key, result)
    WHERE handrolled_effect.key = done.key";

/// Measures batches of `rows` on each of `connections`.
pub(crate) fn run(cluster: &Cluster, connections: usize, rows: usize, timing: Timing) -> Measured {
    let database = cluster.database("batched");
    database.run(TABLE);
    database.settle();
    let mut load = Load::new();
    let url = database.url.clone();
    load.spawn(move |phase, connected| all(url, connections, rows, phase, connected));
    let costs = Costs { cluster: Some(cluster), servers: Vec::new(), load: std::process::id() };
    let (window, tally) = load.measure(&costs, timing);
    assert_eq!(database.count(ROWS), tally.keys, "a row for each effect");
    let effects = (tally.micros.len() * rows) as u64;
    let mut measured = window.measured(effects, tally.micros);
    measured.disk_bytes = Some(database.bytes_per(tally.keys));
    measured
}

async fn all(
    url: String,
    connections: usize,
    rows: usize,
    phase: Arc<Phase>,
    connected: Connected,
) -> Tally {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("Postgres");
        tokio::spawn(connection);
        client.batch_execute(PLANNER).await.expect("settings that Postgres has");
        clients.push(client);
    }
    connected.say();
    let writers =
        clients.into_iter().map(|client| tokio::spawn(writer(client, rows, Arc::clone(&phase))));
    let mut all = Tally::default();
    for tally in join_all(writers).await {
        all.add(tally.expect("a writer that does not panic"));
    }
    all
}

async fn writer(client: tokio_postgres::Client, rows: usize, phase: Arc<Phase>) -> Tally {
    let insert = client.prepare(INSERT).await.expect("a statement");
    let update = client.prepare(UPDATE).await.expect("a statement");
    let results = vec![std::str::from_utf8(RESULT).expect("text"); rows];
    let (mut ids, mut tally) = (Ids::new(), Tally::default());
    while !phase.stopping() {
        let mut keys: Vec<String> = (0..rows).map(|_| ids.table_key()).collect();
        keys.sort_unstable();
        let began = now();
        let inserted = client.execute(&insert, &[&keys]).await.expect("an insert");
        let updated = client.execute(&update, &[&keys, &results]).await.expect("an update");
        assert_eq!((inserted, updated), (rows as u64, rows as u64));
        tally.keys += rows as u64;
        if phase.measuring() {
            tally.count(began, now());
        }
    }
    tally
}
