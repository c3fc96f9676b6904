//! What must hold, whatever fails: asked at every write, whenever nobody is at work, and in the end.
//!
//! - A row becomes COMPLETED only once its effect is in the world, and then keeps its first result.
//! - A row becomes FAILED only if no effect of it is in the world or on its way there.
//! - A further attempt is granted only to a FAILED row, or inside the downstream's true window.
//! - What a caller was told stays true.
//! - What may have had its effect counts for the limit of its run, and what certainly had none does not.
//! - An unsettled row is on the agenda, or waits for a person.

use std::sync::{Arc, Mutex};

use intent_ledger::domain::{
    attempt::{Attempt, Fate, GrantedOn},
    intent::{Intent, RunSlot, State},
    time::Timestamp,
};
use uuid::Uuid;

use super::{calendar::Calendar, provider::Providers, tool::Tool, trace::Trace};

/// The label by which a row names the action that it is about.
pub(crate) const ACTION: &str = "action";

/// Something that somebody was told.
#[derive(Debug, Clone)]
pub(crate) enum Fact {
    /// EXECUTE.
    Granted { attempt: Uuid },
    /// A Complete was taken, or a Begin replayed: the result since.
    Completed { result: Option<Vec<u8>> },
    /// A Fail was taken.
    Failed { attempt: Uuid, not_executed: bool },
}

/// Something that does not hold.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) action: Option<usize>,
    pub(crate) words: String,
}

/// Knows the truth, and compares.
pub(crate) struct Oracle {
    tools: Vec<Tool>,
    /// Which tool each action is done with.
    actions: Vec<usize>,
    calendar: Arc<Calendar>,
    providers: Arc<Providers>,
    trace: Arc<Trace>,
    facts: Mutex<Vec<(usize, Fact)>>,
    violations: Mutex<Vec<Violation>>,
    grants: Mutex<u64>,
}

/// The action that a row is about.
pub(crate) fn action_of(intent: &Intent) -> usize {
    intent.labels[ACTION].parse().expect("every Begin here carries a number")
}

impl Oracle {
    pub(crate) fn new(
        tools: &[Tool],
        actions: &[usize],
        calendar: &Arc<Calendar>,
        providers: &Arc<Providers>,
        trace: &Arc<Trace>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tools: tools.to_vec(),
            actions: actions.to_vec(),
            calendar: Arc::clone(calendar),
            providers: Arc::clone(providers),
            trace: Arc::clone(trace),
            facts: Mutex::default(),
            violations: Mutex::default(),
            grants: Mutex::default(),
        })
    }

    /// How many actions there are.
    pub(crate) fn actions(&self) -> usize {
        self.actions.len()
    }

    pub(crate) fn tool_of(&self, action: usize) -> usize {
        self.actions[action]
    }

    pub(crate) fn tool(&self, action: usize) -> &Tool {
        &self.tools[self.actions[action]]
    }

    pub(crate) fn grants(&self) -> u64 {
        *self.grants.lock().unwrap()
    }

    /// Something is not as it must be.
    pub(crate) fn violated(&self, action: impl Into<Option<usize>>, words: impl Into<String>) {
        let (action, words) = (action.into(), words.into());
        self.trace.note(self.calendar.now(), action, || format!("VIOLATION: {words}"));
        self.violations.lock().unwrap().push(Violation { action, words });
    }

    pub(crate) fn first_violation(&self) -> Option<Violation> {
        self.violations.lock().unwrap().first().cloned()
    }

    pub(crate) fn told(&self, action: usize, fact: Fact) {
        self.trace.note(self.calendar.now(), Some(action), || format!("told {fact:?}"));
        self.facts.lock().unwrap().push((action, fact));
    }

    /// A row is written.
    pub(crate) fn row_changes(&self, old: Option<&Intent>, new: &Intent, at: Timestamp) {
        let action = action_of(new);
        let attempts = new.attempts.len();
        self.trace.note(self.calendar.now(), Some(action), || {
            let (fates, attention): (Vec<_>, _) =
                (new.attempts.iter().map(|it| it.fate).collect(), new.needs_attention);
            let absences = new.probing.absences;
            format!(
                "row {} -> {} {fates:?} attention={attention} absences={absences}",
                old.map_or("-", |old| old.state.as_str()),
                new.state.as_str()
            )
        });
        if let Some(old) = old {
            self.check_final(action, old, new);
        }
        let was = old.map(|old| old.state);
        let tool = self.tool_of(action);
        if new.state == State::Completed && was != Some(State::Completed) {
            let effects = self.providers.effects(tool, action);
            if effects == 0 {
                self.violated(action, "COMPLETED without an effect");
            }
        }
        if new.state == State::Failed && was != Some(State::Failed) {
            let happened = self.providers.effects(tool, action);
            let under_way = self.providers.under_way(tool, action);
            if happened + under_way > 0 {
                let words = format!("FAILED with {happened} effects, and {under_way} under way");
                self.violated(action, words);
            }
        }
        let counts = self.tools[tool].limited && attempts > 0 && new.state != State::Failed;
        if counts != (new.slot == RunSlot::Held) {
            self.violated(action, format!("{} with its slot {:?}", new.state, new.slot));
        }
        if old.map_or(0, |old| old.attempts.len()) < attempts {
            *self.grants.lock().unwrap() += 1;
            self.check_grant(action, old, new, at);
        }
    }

    fn check_final(&self, action: usize, old: &Intent, new: &Intent) {
        if old.state == State::Completed
            && (new.state != State::Completed || new.result != old.result)
        {
            self.violated(action, format!("COMPLETED has changed: {old:?} to {new:?}"));
        }
        let known = |attempt: &Attempt| new.attempt(attempt.id).is_some();
        if !old.attempts.iter().all(known) {
            self.violated(action, "an attempt has gone");
        }
    }

    /// Whether there was more than age to grant on.
    fn check_grant(&self, action: usize, old: Option<&Intent>, new: &Intent, at: Timestamp) {
        let Some(old) = old else { return };
        let Some(granted) = new.current() else { return };
        let running = old.attempts.iter().any(|it| it.fate == Fate::Open && it.lease_runs(at));
        if running {
            self.violated(action, "granted while another attempt holds the lease");
        }
        let evidence = match old.state {
            State::Failed => true,
            State::Started | State::Unknown => {
                let first = new.sharing_key().next().map(|first| first.granted_at);
                let until = first.zip(self.tool(action).window).map(|(first, it)| first + it);
                granted.granted_on == GrantedOn::DownstreamDedupes
                    && until.is_some_and(|until| granted.lease_expires_at <= until)
            }
            _ => false,
        };
        if !evidence {
            self.violated(action, format!("granted on no evidence, in {}", old.state));
        }
    }

    /// What was told is still true of the rows, of which `row` is that of an action.
    pub(crate) fn check_facts<'a>(&self, row: impl Fn(usize) -> Option<&'a Intent>) {
        let facts = self.facts.lock().unwrap().clone();
        for (action, fact) in facts {
            let Some(row) = row(action) else {
                self.violated(action, format!("{fact:?} has no row"));
                continue;
            };
            let holds = match &fact {
                Fact::Granted { attempt } => row.attempt(*attempt).is_some(),
                Fact::Completed { result } => {
                    let stored = row.result.as_ref().and_then(|result| result.bytes.as_ref());
                    row.state == State::Completed && stored == result.as_ref()
                }
                Fact::Failed { attempt, not_executed: true } => {
                    row.attempt(*attempt).is_some_and(|it| it.fate.is_harmless())
                }
                Fact::Failed { attempt, not_executed: false } => {
                    row.attempt(*attempt).is_some_and(|it| !it.reports.is_empty())
                }
            };
            if !holds {
                self.violated(action, format!("{fact:?} is lost: {row:?}"));
            }
        }
    }

    /// How many effects there may be: one at most, anywhere and at any time.
    pub(crate) fn check_effects(&self) {
        for (action, tool) in self.actions.iter().enumerate() {
            let effects = self.providers.effects(*tool, action);
            if effects > 1 {
                let kind = self.tool(action).kind();
                self.violated(action, format!("{effects} effects of one action ({kind})"));
            }
        }
    }

    /// In the end everything is settled, and as it truly is.
    pub(crate) fn check_end(&self, action: usize, row: Option<&Intent>) {
        let effects = self.providers.effects(self.tool_of(action), action);
        let state = row.map_or("no row", |row| row.state.as_str());
        let conflict = if row.is_some_and(|row| row.conflict) { ", conflict" } else { "" };
        self.trace.count(format!("end: {}, {state}{conflict}", self.tool(action).kind()));
        let expected = match row.map(|row| row.state) {
            None | Some(State::Failed) => 0,
            Some(State::Completed) => 1,
            Some(other) => return self.violated(action, format!("never settled: {other}")),
        };
        if effects != expected {
            self.violated(action, format!("{effects} effects, and {state}"));
        }
        if row.is_some_and(|row| row.needs_attention) {
            self.violated(action, "still waits for a person");
        }
    }
}
