//! `doctor`: is a store fit to keep promises, and how is it?

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{
    input::UsageError,
    output::{self, Lines, Paint, failed_to, span},
};
use crate::{
    clock::{Clock, SystemClock},
    domain::time::Timestamp,
    store::{self, Diagnosis, OpenError, Setting, StoreOptions},
};

const EXAMPLE: &str = "\
Looks and changes nothing. A problem is marked PROBLEM and makes the exit status 1.

Example:
  $ intent-ledger doctor --store postgres://ledger@db.internal/ledger";

/// Past this the times that people are shown mislead; leases only know the store's clock.
const CLOCK_DIFFERENCE_SECONDS_MAX: f64 = 60.0;

/// The usual port of PgBouncer.
const POOLER_PORT: &str = ":6432";

/// Flags of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct DoctorFlags {
    /// The store: postgres://… or sqlite:PATH
    #[arg(long, env = "INTENT_LEDGER_STORE", value_name = "URL", hide_env_values = true)]
    store: String,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Default, Serialize)]
struct Report {
    ok: bool,
    product: Option<String>,
    schema: Option<&'static str>,
    settings: Vec<Checked>,
    /// How far the store's clock is ahead of this host's.
    clock_difference_seconds: Option<f64>,
    oldest_unsettled: Option<Oldest>,
    pooler: Option<&'static str>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Checked {
    name: String,
    value: String,
    problem: Option<String>,
}

#[derive(Serialize)]
struct Oldest {
    key: String,
    create_time: String,
    age: String,
}

pub(super) fn run(flags: &DoctorFlags) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(examine(&flags.store))?;
    let text = if flags.json { output::line(&report)? } else { text(&report) };
    output::write(&text)?;
    Ok(u8::from(!report.ok))
}

async fn examine(address: &str) -> anyhow::Result<Report> {
    let options = StoreOptions {
        allow_unsafe_durability: true, // to be able to say what is unsafe
        connections_max: 1,
        ..StoreOptions::new(address)
    };
    let mut report = Report { pooler: pooler(address), ..Report::default() };
    match store::open_as_is(&options).await {
        Ok(store) => {
            report.schema = Some("up to date");
            let before = SystemClock.now();
            match store.diagnose().await {
                Ok(diagnosis) => report.take(diagnosis, before, SystemClock.now()),
                Err(error) => report.problems.push(failed_to(error)),
            }
        }
        Err(error @ OpenError::Address(_)) => return Err(UsageError(failed_to(error)).into()),
        Err(error) => report.problems.push(failed_to(error)),
    }
    report.ok = report.problems.is_empty();
    Ok(report)
}

/// A URL that looks like a pooler's: one hint, as the store itself cannot tell.
fn pooler(address: &str) -> Option<&'static str> {
    let lower = address.to_ascii_lowercase();
    let looks =
        lower.contains(POOLER_PORT) || lower.contains("bouncer") || lower.contains("pooler");
    looks.then_some(
        "the address looks like a pooler's; where it is in transaction mode, serve with \
         --behind-pooler",
    )
}

impl Report {
    fn take(&mut self, diagnosis: Diagnosis, before: Timestamp, after: Timestamp) {
        let Diagnosis { product, settings, now, oldest_unsettled } = diagnosis;
        let settings = settings.into_iter();
        self.settings = settings
            .map(|Setting { name, value, problem }| Checked { name, value, problem })
            .collect();
        self.problems.extend(self.settings.iter().filter_map(|it| it.problem.clone()));
        self.oldest_unsettled = oldest_unsettled.map(|(key, at)| Oldest {
            key: key.to_string(),
            create_time: at.to_string(),
            age: span(now.since(at)),
        });
        let difference = difference_seconds(now, before, after);
        if difference.abs() > CLOCK_DIFFERENCE_SECONDS_MAX {
            let problem =
                format!("the clocks of the store and of this host differ by {difference}s");
            self.problems.push(problem);
        }
        self.clock_difference_seconds = Some(difference);
        self.product = Some(product);
    }
}

/// How far a clock that was read between two readings of ours is ahead; what lies between counts
/// as equal.
fn difference_seconds(now: Timestamp, before: Timestamp, after: Timestamp) -> f64 {
    match (now.since(after), before.since(now)) {
        (Duration::ZERO, Duration::ZERO) => 0.0,
        (ahead, Duration::ZERO) => ahead.as_secs_f64(),
        (_, behind) => -behind.as_secs_f64(),
    }
}

fn text(report: &Report) -> String {
    let mut lines = Lines::default();
    lines.add("product", report.product.as_deref().unwrap_or_default());
    lines.add("schema", report.schema.unwrap_or_default());
    for Checked { name, value, problem } in &report.settings {
        let value = if value.is_empty() { "(none)" } else { value };
        let safe = if problem.is_none() { "" } else { "  (see below)" };
        lines.add(name, format!("{value}{safe}"));
    }
    if let Some(difference) = report.clock_difference_seconds {
        let words = match difference {
            0.0 => "as this host's".to_owned(),
            ahead if ahead > 0.0 => format!("{ahead:.3}s ahead of this host's"),
            behind => format!("{:.3}s behind this host's", -behind),
        };
        lines.add("clock", words);
        let oldest = report.oldest_unsettled.as_ref();
        let oldest =
            oldest.map(|it| format!("{}, begun {}, {} ago", it.key, it.create_time, it.age));
        lines.add("oldest unsettled", oldest.unwrap_or_else(|| "none".to_owned()));
    }
    lines.add("pooler", report.pooler.unwrap_or_default());
    for problem in &report.problems {
        lines.add_word("problem", format!("PROBLEM: {problem}"));
    }
    if report.ok {
        lines.add_word("problems", "ok: none");
    }
    lines.render(Paint::stdout())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_off_by_what_the_time_of_asking_does_not_explain() {
        let at = Timestamp::from_micros;
        for (now, expected) in [(5, 0.0), (10, 0.0), (1_000_020, 1.0), (-999_995, -1.0)] {
            let difference = difference_seconds(at(now), at(5), at(20));
            assert!((difference - expected).abs() < 1e-9, "{now} {difference}");
        }
    }

    #[test]
    fn only_addresses_of_poolers_get_the_hint() {
        assert!(pooler("postgres://a@db:6432/x").is_some());
        assert!(pooler("postgres://a@pgbouncer.internal/x").is_some());
        assert!(pooler("postgres://a@db:5432/x").is_none());
    }
}
