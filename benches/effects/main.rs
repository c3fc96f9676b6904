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
//! - [`source`], [`one_key`]: storms of repeats, whose every count must be exact.
//! - [`measure`], [`processes`], [`database`], [`disk`], [`server`]: intervals, processor time, log
//!   bytes, a slow disk, memory.
//! - [`results`], [`bars`], [`report`], [`json`]: medians, ratios, and what is told.
//! - [`soak`]: instead of all that, the same load for minutes.

#[path = "../../tests/support/cluster.rs"]
#[expect(dead_code, reason = "the tests also kill and restart it")]
mod cluster;

mod bars;
mod batched;
mod database;
mod disk;
mod echo;
mod ids;
mod json;
mod lines;
mod measure;
mod one_key;
mod options;
mod processes;
mod report;
mod results;
mod run;
mod server;
mod session;
mod soak;
mod source;
mod table;
mod unary;
mod wire;

use std::time::Duration;

use clap::{CommandFactory, Parser, error::ErrorKind};

use crate::{
    lines::Line,
    measure::{FOREIGN_MAX, Measured},
    options::Options,
    results::Results,
    run::Bench,
};

fn main() {
    let options = Options::parse();
    if options.echo_server {
        return echo::serve(options.echo_threads);
    }
    measure::heed_signals();
    if let Some(seconds) = options.soak {
        return soak::run(&options.program(), Duration::from_secs(seconds));
    }
    let lines = match options.lines() {
        Ok(lines) => lines,
        Err(word) => {
            let problem = format!("--only: no line is called '{word}'; --list prints the names");
            Options::command().error(ErrorKind::InvalidValue, problem).exit()
        }
    };
    if options.list {
        lines.iter().for_each(|line| println!("{}", line.name));
        return;
    }
    let bench = Bench::new(&options);
    let mut results = Results::new(lines);
    for round in 1..=options.rounds() {
        for line in results.lines() {
            let measured = run_calmly(&bench, &line, round, options.retries(), &mut results);
            results.add(&line, measured);
        }
    }
    let bars = bars::all(&results);
    report::print_lines(&results, &options);
    report::print_bars(&bars);
    if let Some(path) = &options.json {
        json::write(path, &options, &results, &bars);
    }
}

/// Measures a line, and again while others take much of the machine; the calmest of these counts.
fn run_calmly(
    bench: &Bench,
    line: &Line,
    round: usize,
    retries: usize,
    results: &mut Results,
) -> Measured {
    let mut tries = Vec::new();
    loop {
        let (measured, counts) = bench.run(line);
        report::print_progress(round, line, &measured, counts.as_deref());
        results.count(line, counts);
        let calm = measured.foreign <= FOREIGN_MAX;
        tries.push(measured);
        if calm || tries.len() > retries {
            break;
        }
    }
    let calmest = tries.into_iter().min_by(|one, other| one.foreign.total_cmp(&other.foreign));
    calmest.expect("a line is run once at least")
}
