//! GetStats: what happened in a window of time, and what is open now.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Ledger, LedgerError, Violation,
    history::{HOURS_KEPT, MINUTES_KEPT},
    shape,
};
use crate::{
    domain::{
        repeat::{Answered, LayerCounts},
        time::Timestamp,
    },
    store::history::{Counted, OpenNow, RunCount, ToolCount},
};

/// The window of a request that names none.
const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// How many runs are told.
const RUNS_MAX: usize = 100;

/// How many tools are told by name, those with the most Begins: an answer has to stay within what a stock
/// client takes.
const TOOLS_MAX: usize = 1000;

/// The tool that stands for all beyond those.
const OTHER: &str = "(other)";

/// How many batches of fresh grants are searched for what is open, from each end; some 250,000 intents in
/// all, more than are under way at once on one Postgres.
const ENDS_MAX: usize = 500;

const MINUTE: Duration = Duration::from_secs(60);

const HOUR: Duration = Duration::from_secs(60 * 60);

/// A GetStats, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatsRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// The tool; empty for all.
    pub tool: String,
    /// How far back from now; 24 hours if absent.
    pub window: Option<Duration>,
}

/// What happened, and what is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsAnswer {
    /// Where the window begins.
    pub start: Timestamp,
    /// Each tool that was begun in it, by name.
    pub tools: Vec<ToolStats>,
    /// Runs that executed one tool more than once, the most first.
    pub runs: Vec<RunCount>,
    /// What is open now.
    pub open: OpenNow,
}

/// What happened with one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolStats {
    /// The tool.
    pub tool: String,
    /// How often each answer was given.
    pub answered: BTreeMap<Answered, u64>,
    /// How many repeats there were.
    pub layers: LayerCounts,
    /// How many intents were begun.
    pub intents: u64,
}

impl ToolStats {
    /// How many Begins there were.
    pub fn begins(&self) -> u64 {
        self.answered.values().sum()
    }

    /// How many of them were given the right to execute.
    pub fn executions(&self) -> u64 {
        let executed = self.answered.iter().filter(|(answered, _)| answered.executes());
        executed.map(|(_, count)| count).sum()
    }

    /// Begins per intent: the first and its repeats. Begins that leave no intent, such as those of a tool
    /// that only reads, repeat nothing.
    pub fn amplification(&self) -> f64 {
        if self.intents == 0 {
            return 0.0;
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let (intents, repeats) = (self.intents as f64, self.layers.total() as f64);
        (intents + repeats) / intents
    }

    fn add(&mut self, counted: Counted, count: u64) {
        match counted {
            Counted::Answered(answered) => *self.answered.entry(answered).or_default() += count,
            Counted::Repeated(layer) => self.layers.add(layer, count),
            Counted::Begun => self.intents += count,
        }
    }
}

impl Ledger {
    /// Counts over a window. What this server has answered is all in it; what others answered within the
    /// last second may be missing.
    pub async fn stats(&self, request: StatsRequest) -> Result<StatsAnswer, LedgerError> {
        let namespace = shape::namespace(&request.namespace)?;
        shape::name("tool", &request.tool)?;
        let tool = Some(request.tool.as_str()).filter(|tool| !tool.is_empty());
        let window = request.window.unwrap_or(WINDOW);
        if window.is_zero() {
            let words = "must be over zero; leave it out for 24 hours";
            return Err(Violation::new("window", "DURATION_INVALID", words).into());
        }
        self.write_notes().await;

        let open = self.open_now(Some(namespace), tool).await?;
        let start = start_of(window, open.now);
        let counts = self.store.counts(namespace, tool, start).await?;
        let runs = self.store.run_counts(namespace, tool, start, RUNS_MAX).await?;
        Ok(StatsAnswer { start, tools: by_tool(counts), runs, open })
    }

    /// What is open now, of a tenant and tool or of all. One looks at a time: the questions of many people must
    /// not become a load on the store.
    pub async fn open_now(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<OpenNow, LedgerError> {
        let _alone = self.open_alone.lock().await;
        Ok(self.store.open_now(namespace, tool, ENDS_MAX).await?)
    }
}

/// Where the counters of a window begin: with a whole minute, or a whole hour where minutes are no longer
/// kept.
fn start_of(window: Duration, now: Timestamp) -> Timestamp {
    let span = if window < MINUTES_KEPT { MINUTE } else { HOUR };
    let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let start = (now - window.min(HOURS_KEPT)).micros();
    Timestamp::from_micros(start - start.rem_euclid(span))
}

fn by_tool(counts: Vec<ToolCount>) -> Vec<ToolStats> {
    let mut tools: BTreeMap<String, ToolStats> = BTreeMap::new();
    for ToolCount { tool, counted, count, .. } in counts {
        tools.entry(tool).or_default().add(counted, count);
    }
    let mut tools: Vec<ToolStats> =
        tools.into_iter().map(|(tool, stats)| ToolStats { tool, ..stats }).collect();
    if tools.len() > TOOLS_MAX {
        tools.sort_by_key(|stats| std::cmp::Reverse(stats.begins()));
        let mut other = ToolStats { tool: OTHER.to_owned(), ..ToolStats::default() };
        for stats in tools.drain(TOOLS_MAX..) {
            other.layers.add_all(&stats.layers);
            other.intents += stats.intents;
            for (answered, count) in stats.answered {
                *other.answered.entry(answered).or_default() += count;
            }
        }
        tools.push(other);
        tools.sort_by(|one, other| one.tool.cmp(&other.tool));
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::attempt::Layer;

    #[test]
    fn a_window_begins_with_the_span_that_its_counters_are_kept_by() {
        let now = Timestamp::from_micros(1_796_030_150_000_000); // 09:15:50
        let rows = [
            (Duration::from_secs(1), 1_796_030_100),
            (Duration::from_secs(3600), 1_796_026_500),
            // By the hour, from 09:00 the day before.
            (Duration::from_secs(86_400), 1_796_029_200 - 86_400),
            (Duration::from_secs(400 * 86_400), 1_796_029_200 - 90 * 86_400),
        ];
        for (window, start) in rows {
            assert_eq!(start_of(window, now).micros(), start * 1_000_000, "{window:?}");
        }
    }

    #[test]
    fn amplification_is_begins_per_intent() {
        let mut stats = ToolStats::default();
        assert_eq!(stats.amplification(), 0.0);
        stats.add(Counted::Begun, 2);
        stats.add(Counted::Answered(Answered::New), 2);
        assert_eq!(stats.amplification(), 1.0);
        stats.add(Counted::Answered(Answered::Completed), 3);
        stats.add(Counted::Repeated(Layer::Model), 3);
        stats.add(Counted::Answered(Answered::NotRecorded), 5);
        assert_eq!(stats.amplification(), 2.5);
        assert_eq!((stats.begins(), stats.executions()), (10, 7));
    }

    #[test]
    fn tools_beyond_the_bound_are_told_together_and_nothing_is_lost() {
        let counts = (0..=TOOLS_MAX as u64 + 4).map(|n| ToolCount {
            namespace: "n".to_owned(),
            tool: format!("tool-{n:05}"),
            counted: Counted::Answered(Answered::New),
            count: n + 1,
        });
        let counts: Vec<ToolCount> = counts.collect();
        let total: u64 = counts.iter().map(|count| count.count).sum();
        let tools = by_tool(counts);
        assert_eq!(tools.len(), TOOLS_MAX + 1);
        assert_eq!(tools.iter().map(ToolStats::begins).sum::<u64>(), total);
        let other = tools.iter().find(|stats| stats.tool == OTHER).unwrap();
        assert_eq!(other.begins(), 1 + 2 + 3 + 4 + 5);
    }
}
