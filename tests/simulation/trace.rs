//! What happened in a run, line by line: shown where it fails, compared where it is replayed.

use std::{collections::BTreeMap, sync::Mutex};

use intent_ledger::domain::time::Timestamp;

use super::calendar::EPOCH;

/// How many lines are shown of what happened last.
const LAST_LINES: usize = 25;

/// How many lines are shown of what concerns one action.
const ACTION_LINES: usize = 80;

/// The lines of one run.
#[derive(Default)]
pub(crate) struct Trace {
    lines: Mutex<Vec<Line>>,
    tally: Mutex<BTreeMap<String, u64>>,
}

struct Line {
    at: i64,
    action: Option<usize>,
    words: String,
}

impl Trace {
    pub(crate) fn note(
        &self,
        at: Timestamp,
        action: Option<usize>,
        words: impl FnOnce() -> String,
    ) {
        let words = words();
        self.lines.lock().unwrap().push(Line { at: at.micros(), action, words });
    }

    /// What there is to read about a failure that concerns these actions.
    pub(crate) fn story(&self, action: Option<usize>) -> String {
        let lines = self.lines.lock().unwrap();
        let show = |line: &Line| {
            let since = line.at - EPOCH.micros();
            let (hours, seconds) = (since / 3_600_000_000, since as f64 / 1e6 % 3600.0);
            let of = line.action.map_or_else(String::new, |action| format!(" [{action}]"));
            format!("  {hours:4} h {seconds:10.4} s{of} {}\n", line.words)
        };
        let mut story = String::new();
        if let Some(action) = action {
            let of_action: Vec<&Line> =
                lines.iter().filter(|line| line.action == Some(action)).collect();
            let skipped = of_action.len().saturating_sub(ACTION_LINES);
            story += &format!("action {action}, after {skipped} lines:\n");
            story.extend(of_action[skipped..].iter().map(|line| show(line)));
        }
        story += "what happened last:\n";
        story.extend(lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(show));
        story
    }

    /// Counts something, so that it can be told how often it came up.
    pub(crate) fn count(&self, what: impl Into<String>) {
        *self.tally.lock().unwrap().entry(what.into()).or_default() += 1;
    }

    pub(crate) fn tally(&self) -> BTreeMap<String, u64> {
        self.tally.lock().unwrap().clone()
    }

    /// Every line, to compare.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().map(|line| format!("{} {:?} {}", line.at, line.action, line.words)).collect()
    }
}
