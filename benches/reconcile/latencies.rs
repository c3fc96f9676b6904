//! Latencies, sorted when they are asked for.

use std::time::Duration;

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    /// More of them.
    pub(crate) fn add(&mut self, more: Vec<Duration>) {
        self.0.extend(more);
        self.0.sort_unstable();
    }

    /// Half are faster; milliseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.at(0.50)
    }

    /// All but one in a hundred are faster; milliseconds.
    pub(crate) fn p99(&self) -> f64 {
        self.at(0.99)
    }

    fn at(&self, part: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * part) as usize;
        self.0.get(index).map_or(0.0, |span| span.as_secs_f64() * 1000.0)
    }
}
