//! What is printed: the table of lines and the table of bars.

use crate::{bars::Bar, lines::Line, measure::Measured, results::Results};

/// A part of the machine that others may take before a line is said to be disturbed.
const FOREIGN_MAX: f64 = 0.10;

/// Prints every line.
pub(crate) fn print_lines(results: &Results) {
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
        "| {} | {} | {:.0} | {:.2} | {:.2} | {} | {} | {} | {} | {} | {} | {:.0} | {} |",
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
        measured.load_micros,
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
