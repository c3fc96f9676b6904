//! What pruning costs live callers, and whether it gives the space back.
//!
//! `cargo bench --bench retention -- --help` says how to run it. Postgres, the servers and the load share one machine.

#[path = "../../tests/support/cluster.rs"]
#[expect(dead_code, reason = "the tests also kill and restart it")]
mod cluster;

#[path = "../reconcile/latencies.rs"]
mod latencies;
#[path = "../reconcile/load.rs"]
mod load;
mod world;

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use intent_ledger::clock::monotonic;

use self::{
    latencies::Latencies,
    world::{Rows, World},
};

/// The longest that all rows may take, before something is wrong.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Results pruned and tombstones purged beside live traffic: latencies, and the size of the table.
#[derive(Debug, Parser)]
#[command(name = "retention")]
struct Options {
    /// The server to measure; built by `cargo bench` otherwise
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_intent-ledger"),
          hide_default_value = true)]
    binary: PathBuf,

    /// Rows whose time is over
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    rows: u64,

    /// Bytes of each result
    #[arg(long, value_name = "N", default_value_t = 400)]
    result_bytes: u32,

    /// A tenth of the rows
    #[arg(long)]
    quick: bool,

    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    let rows = if options.quick { options.rows / 10 } else { options.rows };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for kind in [Rows::Settled, Rows::Tombstones] {
            measure(&options, kind, rows).await;
        }
    });
}

/// Lets go of so many rows beside live traffic.
async fn measure(options: &Options, kind: Rows, rows: u64) {
    let name = match kind {
        Rows::Settled => "prune",
        Rows::Tombstones => "purge",
    };
    let world = World::start(&options.binary).await;
    world.fill(kind, rows, options.result_bytes).await;
    let before = world.size().await;
    // The first seconds of a server are those of its caches.
    load::begins(&world, Duration::from_secs(3)).await;
    let mut without = Latencies::default();
    without.add(load::begins(&world, Duration::from_secs(15)).await);

    let pruner = world.start_pruner(&options.binary);
    let began = monotonic();
    let mut with = Latencies::default();
    while world.is_due().await {
        with.add(load::begins(&world, Duration::from_secs(2)).await);
        assert!(monotonic().duration_since(began) < PATIENCE, "it has no end");
    }
    let took = monotonic().duration_since(began).as_secs_f64();
    drop(pruner);
    println!(
        "{name}: p99 of a Begin {:.2} ms beside it, {:.2} ms without: {:.2} x (wanted: 1.5 x); p50 {:.2} and {:.2} ms",
        with.p99(),
        without.p99(),
        with.p99() / without.p99(),
        with.p50(),
        without.p50()
    );
    println!("{name}: {rows} rows in {took:.0} s, by one server: {:.0}/s", rows as f64 / took);
    let after = world.size().await;
    world.until_vacuumed(PATIENCE).await;
    let vacuumed = world.size().await;
    let live = world.live_bytes().await;
    world.fill(kind, rows, options.result_bytes).await;
    let refilled = world.size().await;
    println!(
        "{name}: table of {before} before, {after} after, {vacuumed} after autovacuum with {live} of it in use, \
         {refilled} once it is filled again"
    );
}
