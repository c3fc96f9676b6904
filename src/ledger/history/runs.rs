//! How many intents of one tool were executed in one run.
//!
//! A run's first execution is remembered here only; from the second on the run is written, with the first
//! added. So ordinary runs cost no row, and this is what it misses: executions of a run that were spread
//! over servers with one on each, or whose first one this server has forgotten.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    num::NonZeroUsize,
    sync::Mutex,
};

use lru::LruCache;

use crate::{domain::decision::BeginCall, store::history::RunCount, telemetry::metrics};

/// How many runs and tools are remembered, in a MiB or two.
const RUNS_MAX: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");

/// How many are written at once, those with the most executions first: people are shown a hundred of all,
/// and a fleet whose every run sends two mails must not cost a row for each.
const WRITTEN_MAX: usize = 64;

/// Executions by run and tool.
pub(super) struct Runs {
    hasher: RandomState,
    known: Mutex<Known>,
}

struct Known {
    runs: LruCache<u64, Run>,
    unwritten: HashSet<u64>,
}

#[derive(Default)]
struct Run {
    count: u64,
    unwritten: u64,
    /// Whose it is, once it has something to write.
    names: Option<Box<RunCount>>,
}

impl Default for Runs {
    fn default() -> Self {
        let known = Known { runs: LruCache::new(RUNS_MAX), unwritten: HashSet::new() };
        Self { hasher: RandomState::new(), known: Mutex::new(known) }
    }
}

impl Runs {
    /// An intent was executed for the first time; whether its run had executed the tool before.
    pub(super) fn executed(&self, call: &BeginCall) -> bool {
        if call.run_id.is_empty() {
            return false;
        }
        let hash = self.hasher.hash_one((&call.namespace, &call.tool, &call.run_id));
        let mut known = self.known.lock().expect("no panic holds this lock");
        let Known { runs, unwritten } = &mut *known;
        let Some(run) = runs.get_mut(&hash) else {
            let first = Run { count: 1, unwritten: 1, names: None };
            if let Some((forgotten, run)) = runs.push(hash, first)
                && unwritten.remove(&forgotten)
            {
                metrics::dropped("runs", usize::try_from(run.unwritten).unwrap_or(usize::MAX));
            }
            return false;
        };
        run.count += 1;
        run.unwritten += 1;
        run.names.get_or_insert_with(|| {
            Box::new(RunCount {
                namespace: call.namespace.clone(),
                tool: call.tool.clone(),
                run_id: call.run_id.clone(),
                count: 0,
            })
        });
        unwritten.insert(hash);
        true
    }

    /// What is to be written next.
    pub(super) fn take(&self) -> Vec<RunCount> {
        let mut known = self.known.lock().expect("no panic holds this lock");
        let Known { runs, unwritten } = &mut *known;
        let mut waiting: Vec<(u64, u64)> = unwritten
            .iter()
            .filter_map(|hash| runs.peek(hash).map(|run| (run.count, *hash)))
            .collect();
        if waiting.len() > WRITTEN_MAX {
            waiting.select_nth_unstable_by(WRITTEN_MAX, |one, other| other.cmp(one));
            waiting.truncate(WRITTEN_MAX);
        }
        let taken = waiting.into_iter().filter_map(|(_, hash)| {
            unwritten.remove(&hash);
            let run = runs.peek_mut(&hash)?;
            let count = std::mem::take(&mut run.unwritten);
            Some(RunCount { count, ..RunCount::clone(run.names.as_deref()?) })
        });
        taken.collect()
    }

    /// Gives back what was certainly not written.
    pub(super) fn put_back(&self, counts: Vec<RunCount>) {
        let mut known = self.known.lock().expect("no panic holds this lock");
        let Known { runs, unwritten } = &mut *known;
        for RunCount { namespace, tool, run_id, count } in counts {
            let hash = self.hasher.hash_one((&namespace, &tool, &run_id));
            match runs.peek_mut(&hash) {
                Some(run) => {
                    run.unwritten += count;
                    unwritten.insert(hash);
                }
                None => metrics::dropped("runs", usize::try_from(count).unwrap_or(usize::MAX)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::call;

    fn of_run(run: &str) -> BeginCall {
        BeginCall { run_id: run.to_owned(), ..call(1) }
    }

    fn counts(mut taken: Vec<RunCount>) -> Vec<(String, u64)> {
        taken.sort_by(|one, other| one.run_id.cmp(&other.run_id));
        taken.into_iter().map(|run| (run.run_id, run.count)).collect()
    }

    #[test]
    fn a_run_is_written_from_its_second_execution_on_with_the_first_added() {
        let runs = Runs::default();
        assert!(!runs.executed(&of_run("r1")));
        assert!(!runs.executed(&of_run("r2")));
        assert!(!runs.executed(&of_run("")) && !runs.executed(&of_run("")));
        assert_eq!(runs.take(), []);
        assert!(runs.executed(&of_run("r1")));
        assert_eq!(counts(runs.take()), [("r1".to_owned(), 2)]);
        assert_eq!(runs.take(), []);
        assert!(runs.executed(&of_run("r1")));
        let taken = runs.take();
        assert_eq!(counts(taken.clone()), [("r1".to_owned(), 1)]);
        runs.put_back(taken);
        assert!(runs.executed(&of_run("r1")));
        assert_eq!(counts(runs.take()), [("r1".to_owned(), 2)]);
    }

    #[test]
    fn those_with_the_most_executions_are_written_first_and_the_others_later() {
        let runs = Runs::default();
        for run in 0..200 {
            let times = if run % 10 == 0 { 5 } else { 2 };
            (0..times).for_each(|_| {
                runs.executed(&of_run(&format!("r{run}")));
            });
        }
        let first = runs.take();
        assert_eq!(first.len(), WRITTEN_MAX);
        assert_eq!(first.iter().filter(|run| run.count == 5).count(), 20);
        let rest: usize =
            std::iter::repeat_with(|| runs.take().len()).take_while(|it| *it > 0).sum();
        assert_eq!(rest, 200 - WRITTEN_MAX);
    }
}
