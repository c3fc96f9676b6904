//! Effects per second: Begin and Complete, both durable, beside a hand-rolled table.
//!
//! `cargo bench --bench effects -- --help` says how to run it. One run has all lines in it, one
//! after the other and round after round, because the machine is shared: ratios within a run say
//! something, absolute figures of two runs do not. Each line has a database, or a file, and a
//! server process of its own, made new.
//!
//! - [`lines`] and [`run`]: what is measured, and with what.
//! - [`table`], [`batched`], [`echo`]: what an application would do instead, and the two ceilings.
//! - [`unary`], [`session`]: the loads, which speak gRPC by hand ([`wire`], [`ids`]).
//! - [`measure`], [`database`], [`server`]: intervals, processor time, log bytes, memory.
//! - [`results`], [`bars`], [`report`]: medians, ratios, and what is printed.

#[path = "../../tests/support/cluster.rs"]
#[expect(dead_code, reason = "the tests also kill and restart it")]
mod cluster;

mod bars;
mod batched;
mod database;
mod echo;
mod ids;
mod lines;
mod measure;
mod options;
mod report;
mod results;
mod run;
mod server;
mod session;
mod table;
mod unary;
mod wire;

use clap::Parser;

use crate::{database::Cluster, options::Options, results::Results, run::Bench};

fn main() {
    let options = Options::parse();
    if options.echo_server {
        return echo::serve();
    }
    let lines: Vec<_> = lines::all().into_iter().filter(|line| options.wants(&line.name)).collect();
    if options.list {
        lines.iter().for_each(|line| println!("{}", line.name));
        return;
    }
    let bench = Bench {
        cluster: Cluster::start(None),
        program: options.program(),
        timing: options.timing(),
    };
    let mut results = Results::new(lines);
    for round in 1..=options.rounds() {
        for line in results.lines() {
            let measured = bench.run(&line);
            eprintln!(
                "round {round}  {:<22} {:>8.0}/s  p50 {:>7.2} ms  others {:>3.0} %",
                line.name,
                measured.per_second,
                measured.p50_ms,
                measured.foreign * 100.0
            );
            results.add(&line, measured);
        }
    }
    let bars = bars::all(&results);
    report::print_lines(&results);
    report::print_bars(&bars);
}
