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

/// How many runs and tools with several executions are remembered, in a MiB or two.
const RUNS_MAX: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");

/// Where first executions are remembered: in so many sets of a few each, which is one line of the
/// processor's cache and no list to keep in order. Most runs have no second one.
const FIRST_SETS: usize = 4096;
const FIRSTS_IN_SET: usize = 4;

/// How many are written at once, those with the most executions first: people are shown a hundred of all,
/// and a fleet whose every run sends two mails must not cost a row for each.
const WRITTEN_MAX: usize = 64;

/// Executions by run and tool.
pub(super) struct Runs {
    hasher: RandomState,
    known: Mutex<Known>,
}

struct Known {
    firsts: Firsts,
    runs: LruCache<u64, Run>,
    unwritten: HashSet<u64>,
}

/// Runs with one execution, by their hashes; 0 is nobody. A set forgets its oldest.
struct Firsts(Box<[[u64; FIRSTS_IN_SET]]>);

impl Firsts {
    fn set(&mut self, hash: u64) -> &mut [u64; FIRSTS_IN_SET] {
        let sets = self.0.len() as u64;
        &mut self.0[(hash % sets) as usize]
    }

    /// Takes it out, if it is there.
    fn take(&mut self, hash: u64) -> bool {
        let known = self.set(hash).iter_mut().find(|known| **known == hash);
        known.map(|known| *known = 0).is_some()
    }

    fn put(&mut self, hash: u64) {
        let set = self.set(hash);
        set.rotate_right(1);
        set[0] = hash;
    }
}

struct Run {
    count: u64,
    unwritten: u64,
    /// Whose it is.
    names: RunCount,
}

impl Default for Runs {
    fn default() -> Self {
        let known = Known {
            firsts: Firsts(vec![[0; FIRSTS_IN_SET]; FIRST_SETS].into()),
            runs: LruCache::new(RUNS_MAX),
            unwritten: HashSet::new(),
        };
        Self { hasher: RandomState::new(), known: Mutex::new(known) }
    }
}

impl Runs {
    /// What a run is known by; never 0.
    fn hash(&self, namespace: &str, tool: &str, run_id: &str) -> u64 {
        self.hasher.hash_one((namespace, tool, run_id)).max(1)
    }

    /// An intent was executed for the first time; whether its run had executed the tool before.
    pub(super) fn executed(&self, call: &BeginCall) -> bool {
        if call.run_id.is_empty() {
            return false;
        }
        let hash = self.hash(&call.namespace, &call.tool, &call.run_id);
        let mut known = self.known.lock().expect("no panic holds this lock");
        let Known { firsts, runs, unwritten } = &mut *known;
        if let Some(run) = runs.get_mut(&hash) {
            run.count += 1;
            run.unwritten += 1;
            unwritten.insert(hash);
            return true;
        }
        if !firsts.take(hash) {
            firsts.put(hash);
            return false;
        }
        let names = RunCount {
            namespace: call.namespace.clone(),
            tool: call.tool.clone(),
            run_id: call.run_id.clone(),
            count: 0,
        };
        let run = Run { count: 2, unwritten: 2, names };
        if let Some((forgotten, run)) = runs.push(hash, run)
            && unwritten.remove(&forgotten)
        {
            metrics::dropped("runs", usize::try_from(run.unwritten).unwrap_or(usize::MAX));
        }
        unwritten.insert(hash);
        true
    }

    /// What is to be written next.
    pub(super) fn take(&self) -> Vec<RunCount> {
        let mut known = self.known.lock().expect("no panic holds this lock");
        let Known { runs, unwritten, .. } = &mut *known;
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
            Some(RunCount { count, ..run.names.clone() })
        });
        taken.collect()
    }

    /// Gives back what was certainly not written.
    pub(super) fn put_back(&self, counts: Vec<RunCount>) {
        let mut known = self.known.lock().expect("no panic holds this lock");
        let Known { runs, unwritten, .. } = &mut *known;
        for RunCount { namespace, tool, run_id, count } in counts {
            let hash = self.hash(&namespace, &tool, &run_id);
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
    fn a_first_execution_is_remembered_while_thousands_of_others_come() {
        let runs = Runs::default();
        let others =
            |of: &str| (0..2000).filter(|n| runs.executed(&of_run(&format!("{of}{n}")))).count();
        assert_eq!(others("a"), 0);
        assert_eq!(others("b"), 0);
        // Of 4,000 in 4,096 sets of four few are pushed out.
        assert!(others("a") >= 1900);
        for crowd in 0..50 {
            others(&format!("c{crowd}-"));
        }
        assert!(others("b") <= 100, "the memory is bounded");
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
