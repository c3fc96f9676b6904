//! The same load for minutes: does the server's memory stay flat?

use std::time::Duration;

use crate::{
    database::Cluster,
    measure::{Load, now, pause},
    server::Program,
    session,
    source::Source,
    unary,
};

const SESSION_IN_FLIGHT: usize = 1024;
const UNARY_CALLERS: usize = 64;

/// How often the memory is looked at.
const INTERVAL: Duration = Duration::from_secs(10);

/// By how much the last quarter may exceed the second.
const GROWTH_MAX: f64 = 1.10;

/// What is done is pruned, so that the disk lasts; nothing else reads it.
const PRUNE: &str =
    "DELETE FROM intents WHERE state = 5 AND settled_at < now() - interval '5 seconds'";

/// Loads a server for `length` and prints its resident memory.
///
/// # Panics
/// If the memory grows.
pub(crate) fn run(program: &Program, length: Duration) {
    let cluster = Cluster::start(&[], false);
    let database = cluster.database("soak");
    program.migrate(&database.url);
    let server = program.serve(&database.url);
    let mut load = Load::new();
    session::effects(&mut load, &server.address, SESSION_IN_FLIGHT, &Source::Fresh);
    unary::effects(&mut load, &server.address, UNARY_CALLERS, &Source::Fresh);
    load.wait_until_connected();

    println!("session {SESSION_IN_FLIGHT} + unary {UNARY_CALLERS}, {} s", length.as_secs());
    let began = now();
    let mut samples = Vec::new();
    let mut pruned = 0;
    while now().duration_since(began) < length {
        pause(INTERVAL.min(length / 8));
        let resident = server.resident_mib().0;
        samples.push(resident);
        pruned += database
            .count(&format!("WITH pruned AS ({PRUNE} RETURNING 1) SELECT count(*) FROM pruned"));
        database.run("VACUUM intents");
        let elapsed = now().duration_since(began).as_secs();
        println!("{elapsed:>5} s  {resident:>6.1} MiB resident  {pruned:>10} effects done");
    }
    let tally = load.stop();
    println!("{} effects in all", tally.keys);

    let quarter = |number: usize| {
        let part = &samples[samples.len() * number / 4..samples.len() * (number + 1) / 4];
        part.iter().sum::<f64>() / part.len() as f64
    };
    let (second, last) = (quarter(1), quarter(3));
    println!("second quarter {second:.1} MiB, last quarter {last:.1} MiB");
    assert!(last <= second * GROWTH_MAX, "the server's memory grows");
}
