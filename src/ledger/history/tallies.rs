//! How often what happened with each tool, since it was last written.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use super::{may_try_again, runs::Runs};
use crate::{
    domain::{
        decision::BeginCall,
        repeat::{Answered, LayerCounts},
    },
    store::{
        Store,
        history::{Counted, RunCount, ToolCount},
    },
    telemetry::metrics,
};

/// The tool that is counted where there are too many names: callers make those of unlisted tools up.
const OTHER: &str = "(other)";

/// How many tools of tenants are counted by their names, in an hour.
const TOOLS_MAX: usize = 4096;

/// How many of them may be tools that no policy lists.
const UNLISTED_MAX: usize = 1024;

/// After so many flushes the names are forgotten, so that others get their turn: every hour.
const FORGET_EVERY: u32 = 7200;

/// How many counters one statement adds to.
const BATCH_COUNTS_MAX: usize = 1000;

/// Counters of tools.
#[derive(Default)]
pub(super) struct Tallies {
    known: Mutex<Known>,
    /// Taken, and certainly not written.
    put_back: Mutex<BTreeMap<(String, String, Counted), u64>>,
}

#[derive(Default)]
struct Known {
    /// By namespace and tool; an entry stays when its counts are taken.
    namespaces: HashMap<String, HashMap<String, Counts>>,
    tools: usize,
    flushes: u32,
}

/// The counts of one tool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    listed: bool,
    answered: [u64; Answered::ALL.len()],
    /// Repeats.
    pub(super) layers: LayerCounts,
    /// Rows that were made.
    pub(super) begun: u64,
    /// Intents that were executed in a run which had executed the tool before.
    pub(super) executed_again: u64,
}

impl Tallies {
    /// A Begin was answered; `more` counts what else is to be said of it.
    pub(super) fn add(
        &self,
        call: &BeginCall,
        listed: bool,
        answered: Answered,
        more: impl FnOnce(&mut Counts),
    ) {
        let mut known = self.known.lock().expect("no panic holds this lock");
        let Some(counts) = known.counts(&call.namespace, &call.tool, listed) else {
            return metrics::dropped("counts", 1);
        };
        counts.listed = listed;
        counts.answered[answered as usize] += 1;
        more(counts);
    }

    fn take(&self) -> Vec<(String, String, Counts)> {
        let mut known = self.known.lock().expect("no panic holds this lock");
        let mut taken = Vec::new();
        for (namespace, tools) in &mut known.namespaces {
            for (tool, counts) in tools {
                if counts.answered.iter().any(|count| *count > 0) {
                    taken.push((namespace.clone(), tool.clone(), std::mem::take(counts)));
                }
            }
        }
        known.flushes += 1;
        if known.flushes >= FORGET_EVERY {
            *known = Known::default();
        }
        taken
    }
}

impl Known {
    /// The counts of a tool, or of all for whose names there is no room.
    fn counts(&mut self, namespace: &str, tool: &str, listed: bool) -> Option<&mut Counts> {
        let is_known = |tool: &str| {
            self.namespaces.get(namespace).is_some_and(|tools| tools.contains_key(tool))
        };
        let room = if listed { TOOLS_MAX } else { UNLISTED_MAX };
        let tool = if is_known(tool) || self.tools < room { tool } else { OTHER };
        if !is_known(tool) {
            if self.tools >= TOOLS_MAX {
                return None;
            }
            self.tools += 1;
            let tools = self.namespaces.entry(namespace.to_owned()).or_default();
            tools.insert(tool.to_owned(), Counts::default());
        }
        self.namespaces.get_mut(namespace)?.get_mut(tool)
    }
}

impl Counts {
    /// What is to be written of them.
    fn written(&self) -> impl Iterator<Item = (Counted, u64)> + '_ {
        let answered = Answered::ALL.into_iter().zip(self.answered);
        answered
            .map(|(answered, count)| (Counted::Answered(answered), count))
            .chain(self.layers.iter().map(|(layer, count)| (Counted::Repeated(layer), count)))
            .chain([(Counted::Begun, self.begun)])
            .filter(|(_, count)| *count > 0)
    }

    /// Tells the metrics. Names that callers make up are one label.
    fn measure(&self, tool: &str) {
        let tool = if self.listed { tool } else { metrics::UNLISTED };
        for (layer, count) in self.layers.iter().filter(|(_, count)| *count > 0) {
            metrics::repeats(tool, layer.as_str(), count);
        }
        let answered = Answered::ALL.into_iter().zip(self.answered);
        let executed = answered.filter(|(answered, _)| answered.executes());
        metrics::executions(tool, executed.map(|(_, count)| count).sum(), self.executed_again);
    }
}

/// Writes what is unwritten of tools, and of runs those with the most executions, or `all`.
pub(super) async fn flush(tallies: &Tallies, runs: &Runs, store: &dyn Store, all: bool) {
    let mut counts =
        std::mem::take(&mut *tallies.put_back.lock().expect("no panic holds this lock"));
    for (namespace, tool, taken) in tallies.take() {
        taken.measure(&tool);
        for (counted, count) in taken.written() {
            *counts.entry((namespace.clone(), tool.clone(), counted)).or_default() += count;
        }
    }
    let counts: Vec<ToolCount> = counts
        .into_iter()
        .map(|((namespace, tool, counted), count)| ToolCount { namespace, tool, counted, count })
        .collect();
    let mut run_counts = runs.take();
    if counts.is_empty() && !run_counts.is_empty() {
        write(tallies, runs, store, &[], std::mem::take(&mut run_counts)).await;
    }
    for batch in counts.chunks(BATCH_COUNTS_MAX) {
        write(tallies, runs, store, batch, std::mem::take(&mut run_counts)).await;
    }
    let mut rest = if all { runs.take() } else { Vec::new() };
    while !rest.is_empty() && write(tallies, runs, store, &[], rest).await {
        rest = runs.take();
    }
}

/// Whether it was written.
async fn write(
    tallies: &Tallies,
    runs: &Runs,
    store: &dyn Store,
    counts: &[ToolCount],
    run_counts: Vec<RunCount>,
) -> bool {
    let Err(error) = store.count(counts, &run_counts).await else { return true };
    tracing::debug!(%error, counts = counts.len(), runs = run_counts.len(), "nothing was counted");
    if may_try_again(&error) {
        let mut put_back = tallies.put_back.lock().expect("no panic holds this lock");
        for ToolCount { namespace, tool, counted, count } in counts.iter().cloned() {
            *put_back.entry((namespace, tool, counted)).or_default() += count;
        }
        runs.put_back(run_counts);
    } else {
        metrics::dropped("counts", counts.len());
        metrics::dropped("runs", run_counts.len());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::call;

    fn of(tool: &str) -> BeginCall {
        BeginCall { tool: tool.to_owned(), ..call(1) }
    }

    #[test]
    fn names_that_callers_make_up_are_counted_together_once_there_are_too_many() {
        let tallies = Tallies::default();
        for n in 0..2 * UNLISTED_MAX {
            tallies.add(&of(&format!("made-up-{n}")), false, Answered::New, |_| {});
        }
        // The policy's own tools still have their names.
        tallies.add(&of("charge"), true, Answered::New, |counts| counts.begun += 1);
        let taken = tallies.take();
        let count = |name: &str| {
            let found = taken.iter().find(|(_, tool, _)| tool == name);
            found.map_or(0, |(.., counts)| counts.answered[Answered::New as usize])
        };
        assert_eq!(taken.len(), UNLISTED_MAX + 2);
        assert_eq!(count(OTHER), UNLISTED_MAX as u64);
        assert_eq!(count("charge"), 1);
        assert!(tallies.take().is_empty(), "each is taken once");
    }
}
