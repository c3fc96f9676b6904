//! How fast open intents are settled, and what that costs everybody else.
//!
//! `cargo bench --bench reconcile -- --help` says how to run it. Postgres, the simulated downstreams, the server under
//! test and the load share one machine.

#[path = "../../tests/support/cluster.rs"]
#[expect(dead_code, reason = "the tests also kill and restart it")]
mod cluster;

mod latencies;
mod load;
mod plans;
mod world;

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use self::{latencies::Latencies, world::World};

/// Open intents, many endpoints, a big table: four figures in one run.
#[derive(Debug, Parser)]
#[command(name = "reconcile")]
struct Options {
    /// The server to measure; built by `cargo bench` otherwise
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_intent-ledger"),
          hide_default_value = true)]
    binary: PathBuf,

    /// Open intents at one endpoint, for the probes a second
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    rows: usize,

    /// Settled rows that a pass must not look at
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    settled: u64,

    /// A tenth of everything
    #[arg(long)]
    quick: bool,

    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    let part = if options.quick { 10 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        probes(&options, options.rows / part).await;
        crowd(&options, 50, 200 / part).await;
        live(&options, options.rows / part).await;
        big_table(&options, options.settled / part as u64).await;
    });
}

/// Probe throughput of one pass against one endpoint.
async fn probes(options: &Options, rows: usize) {
    let world = World::start(&options.binary, 1, Duration::ZERO).await;
    world.open(rows).await;
    world.until_stale().await;
    let (took, settled) = world.passes().await;
    println!(
        "probes: {settled} of {rows} intents settled by one server in {:.2} s: {:.0}/s (wanted: 1000/s)",
        took.as_secs_f64(),
        settled as f64 / took.as_secs_f64()
    );
}

/// One endpoint hangs and one is down: when are the others done?
async fn crowd(options: &Options, endpoints: usize, rows: usize) {
    let world = World::start(&options.binary, endpoints, Duration::from_secs(1)).await;
    world.break_two().await;
    let opened = world.open(rows * endpoints).await;
    let healthy = opened - 2 * rows;
    world.until_stale().await;
    let (took, order) = world.until_settled(healthy).await;
    println!(
        "crowd: {opened} open intents at {endpoints} endpoints, one hanging, one down: the {healthy} at the other {} \
         settled {:.1} s after the last lease ended (wanted: 60 s); half of them after {:.1} s",
        endpoints - 2,
        took.as_secs_f64(),
        order.as_secs_f64()
    );
    println!(
        "crowd: the two that do not answer have settled {}",
        world.settled_at_the_broken().await
    );
}

/// What live callers feel of a pass.
async fn live(options: &Options, rows: usize) {
    let mut with = Latencies::default();
    let mut without = Latencies::default();
    for _ in 0..3 {
        let world = World::start(&options.binary, 1, Duration::ZERO).await;
        world.open(rows).await;
        world.until_stale().await;
        without.add(load::begins(&world, Duration::from_secs(3)).await);
        let pass = world.pass_in_background();
        with.add(load::begins(&world, Duration::from_secs(3)).await);
        pass.abort();
        // Once more without: a ledger that fills, or a machine that slows down, is not the pass's doing.
        without.add(load::begins(&world, Duration::from_secs(3)).await);
    }
    println!(
        "live: p99 of a Begin {:.2} ms beside a running pass, {:.2} ms without: {:.2} x (wanted: 1.3 x); p50 {:.2} and {:.2} ms",
        with.p99(),
        without.p99(),
        with.p99() / without.p99(),
        with.p50(),
        without.p50()
    );
}

/// A pass over a table that is nearly all settled.
async fn big_table(options: &Options, settled: u64) {
    let world = World::start(&options.binary, 1, Duration::ZERO).await;
    world.fill(settled).await;
    let due = world.open(1000).await;
    world.until_stale().await;
    let (took, found) = world.passes().await;
    println!(
        "big table: {found} of {due} due intents settled beside {settled} settled rows in {:.2} s",
        took.as_secs_f64()
    );
    world.open(1000).await;
    world.until_stale().await;
    plans::show(&world).await;
}
