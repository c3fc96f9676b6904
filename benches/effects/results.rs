//! All that was measured, and medians of it.

use crate::{lines::Line, measure::Measured};

/// What each line was in each round.
#[derive(Debug, Default)]
pub(crate) struct Results {
    lines: Vec<(Line, Vec<Measured>)>,
    counts: Vec<String>,
}

impl Results {
    /// Nothing yet.
    pub(crate) fn new(lines: Vec<Line>) -> Self {
        let lines = lines.into_iter().map(|line| (line, Vec::new())).collect();
        Self { lines, counts: Vec::new() }
    }

    /// The lines, in their order.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lines.iter().map(|(line, _)| line.clone()).collect()
    }

    /// Adds what a line was in a round.
    pub(crate) fn add(&mut self, line: &Line, measured: Measured) {
        let row = self.lines.iter_mut().find(|(known, _)| known == line);
        row.expect("one of our lines").1.push(measured);
    }

    /// Adds what was counted in a storm.
    pub(crate) fn count(&mut self, line: &Line, counts: Option<String>) {
        self.counts.extend(counts.map(|counts| format!("{}: {counts}", line.what)));
    }

    /// What was counted in storms.
    pub(crate) fn counts(&self) -> &[String] {
        &self.counts
    }

    /// Each line with the median of each of its figures.
    pub(crate) fn medians(&self) -> impl Iterator<Item = (&Line, Measured)> {
        self.lines
            .iter()
            .filter(|(_, rounds)| !rounds.is_empty())
            .map(|(line, it)| (line, median(it)))
    }

    /// The medians of one line, if it was measured.
    pub(crate) fn get(&self, name: &str) -> Option<Measured> {
        self.medians().find(|(line, _)| line.name == name).map(|(_, measured)| measured)
    }

    /// The most effects a second among lines whose name begins with `prefix`.
    pub(crate) fn best(&self, prefix: &str) -> Option<f64> {
        let named = self.medians().filter(|(line, _)| line.name.starts_with(prefix));
        named.map(|(_, measured)| measured.per_second).reduce(f64::max)
    }

    /// The most that the hand-rolled table did, over all numbers of clients.
    pub(crate) fn table_best(&self) -> Option<f64> {
        self.best("table-")
    }

    /// Names of the lines during which others took more than `part` of the machine.
    pub(crate) fn disturbed(&self, part: f64) -> Vec<&str> {
        let over = self.medians().filter(|(_, measured)| measured.foreign > part);
        over.map(|(line, _)| line.name.as_str()).collect()
    }
}

fn median(rounds: &[Measured]) -> Measured {
    let of = |figure: fn(&Measured) -> f64| middle(rounds.iter().map(figure).collect());
    let of_some = |figure: fn(&Measured) -> Option<f64>| {
        let figures: Vec<f64> = rounds.iter().filter_map(figure).collect();
        (!figures.is_empty()).then(|| middle(figures))
    };
    Measured {
        per_second: of(|it| it.per_second),
        p50_ms: of(|it| it.p50_ms),
        p99_ms: of(|it| it.p99_ms),
        wal_bytes: of_some(|it| it.wal_bytes),
        disk_bytes: of_some(|it| it.disk_bytes),
        postgres_micros: of_some(|it| it.postgres_micros),
        server_micros: of_some(|it| it.server_micros),
        load_micros: of_some(|it| it.load_micros),
        rss_mib: of_some(|it| it.rss_mib),
        rest_mib: of_some(|it| it.rest_mib),
        foreign: of(|it| it.foreign),
    }
}

/// The middle one, or the mean of the two in the middle.
fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let half = figures.len() / 2;
    if figures.len() % 2 == 1 {
        figures[half]
    } else {
        f64::midpoint(figures[half - 1], figures[half])
    }
}
