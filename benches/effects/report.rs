//! What is printed: the table of lines and the table of bars.

use crate::{
    bars::Bar,
    lines::Line,
    measure::{FOREIGN_MAX, Measured},
    options::Options,
    results::Results,
};

/// Prints what a line was in one round.
pub(crate) fn print_progress(round: usize, line: &Line, measured: &Measured, counts: Option<&str>) {
    eprintln!(
        "round {round}  {:<22} {:>8.0}/s  p50 {:>7.2} ms  others {:>3.0} %  {}",
        line.name,
        measured.per_second,
        measured.p50_ms,
        measured.foreign * 100.0,
        counts.unwrap_or_default()
    );
}

/// Prints every line.
pub(crate) fn print_lines(results: &Results, options: &Options) {
    let timing = options.timing();
    println!(
        "Medians of {} round(s), {} s a line after {} s of warming up. Everybody reaches Postgres \
         {}.\n",
        options.rounds(),
        timing.length.as_secs_f64(),
        timing.warm_up.as_secs_f64(),
        if options.unix_socket { "through its Unix socket" } else { "over TCP on loopback" }
    );
    println!(
        "| what | in flight | effects/s | p50 ms | p99 ms | of the table's best | of the table | WAL B \
         | disk B | Postgres µs | server µs | load µs | RSS MiB |"
    );
    println!("| --- {}|", "| ---: ".repeat(12));
    for (line, measured) in results.medians() {
        print_line(line, &measured, results);
    }
    println!(
        "\nThe table's best is its best over all clients; `of the table` is at the same number in \
         flight. Bytes and\nmicroseconds of processor time are per effect, which is a Begin and a \
         Complete; RSS is the most a fresh server took."
    );
    if let Some(rest) = results.get("session-1").and_then(|it| it.rest_mib) {
        println!("A server at rest has {rest:.0} MiB resident over Postgres.");
    }
    for counts in results.counts() {
        println!("{counts}.");
    }
    let disturbed = results.disturbed(FOREIGN_MAX);
    if !disturbed.is_empty() {
        println!(
            "Others took more than {:.0} % of the machine during: {}.",
            FOREIGN_MAX * 100.0,
            disturbed.join(", ")
        );
    }
}

fn print_line(line: &Line, measured: &Measured, results: &Results) {
    let of = |other: Option<f64>| times(other.map(|other| measured.per_second / other));
    println!(
        "| {} | {} | {:.0} | {:.2} | {:.2} | {} | {} | {} | {} | {} | {} | {} | {} |",
        line.what,
        line.in_flight,
        measured.per_second,
        measured.p50_ms,
        measured.p99_ms,
        of(results.table_best()),
        of(results.get(&format!("table-{}", line.in_flight)).map(|table| table.per_second)),
        whole(measured.wal_bytes),
        whole(measured.disk_bytes),
        whole(measured.postgres_micros),
        whole(measured.server_micros),
        whole(measured.load_micros),
        whole(measured.rss_mib),
    );
}

/// Prints what was reached of what.
pub(crate) fn print_bars(bars: &[Bar]) {
    println!("\n| bar | value | wanted | |\n| --- | ---: | ---: | --- |");
    for bar in bars {
        let verdict = match bar.met() {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "not run",
        };
        let value = bar.value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        println!("| {} | {value} | {} | {verdict} |", bar.name, bar.wanted);
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} x"))
}

fn whole(number: Option<f64>) -> String {
    number.map_or_else(String::new, |number| format!("{number:.0}"))
}
