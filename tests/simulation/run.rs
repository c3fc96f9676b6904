//! One run: everything is drawn from its seed, lives through its faults, and is judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use intent_ledger::{
    domain::{intent::Intent, time::Timestamp},
    ids::Luck,
};
use uuid::Uuid;

use super::{
    calendar::Calendar,
    caller::Caller,
    connection::Weather,
    mutation::Mutation,
    oracle::{Oracle, Violation, action_of},
    person,
    provider::Providers,
    server::{self, Running},
    table::Table,
    tool::Tool,
    trace::Trace,
};
use crate::dice::Dice;

/// The tenant of every call.
pub(crate) const NAMESPACE: &str = "acme";

const HOUR: Duration = Duration::from_secs(3600);

/// How long after the faults everything must be settled: the longest window, and weeks of patience.
const CALM: Duration = Duration::from_secs(60 * 24 * 3600);

/// The longest wait between two questions, with its jitter, and a claim that nobody gave back.
const WAIT_MAX: Duration = Duration::from_secs(10 * 60);

/// Everything that one run is made of.
pub(crate) struct World {
    pub(crate) mutation: Option<Mutation>,
    pub(crate) calendar: Arc<Calendar>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) providers: Arc<Providers>,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) table: Arc<Mutex<Table>>,
    pub(crate) weather: Arc<Mutex<Weather>>,
    pub(crate) luck: Luck,
    /// From when on nothing fails any more.
    pub(crate) calm_from: Timestamp,
    network_percent: u64,
    servers: Mutex<Vec<Option<Arc<Running>>>>,
    /// Rows that a person has acknowledged and keeps in mind.
    taken_over: Mutex<BTreeSet<Uuid>>,
    callers_left: Arc<AtomicUsize>,
    second_policy_from: Timestamp,
}

/// What a run has shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) runs: u64,
    pub(crate) hours: u64,
    pub(crate) actions: u64,
    pub(crate) grants: u64,
    pub(crate) questions: u64,
    /// How often what came up.
    pub(crate) tally: BTreeMap<String, u64>,
}

impl Figures {
    pub(crate) fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.hours += other.hours;
        self.actions += other.actions;
        self.grants += other.grants;
        self.questions += other.questions;
        for (what, count) in &other.tally {
            *self.tally.entry(what.clone()).or_default() += count;
        }
    }
}

/// Why a run has failed, with what there is to read about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) words: String,
    pub(crate) story: String,
}

impl World {
    pub(crate) fn note(&self, words: impl FnOnce() -> String) {
        self.trace.note(self.calendar.now(), None, words);
    }

    pub(crate) fn note_of(&self, action: usize, words: impl FnOnce() -> String) {
        self.trace.note(self.calendar.now(), Some(action), words);
    }

    pub(crate) fn any_server(&self, dice: &mut Dice) -> Option<Arc<Running>> {
        let up: Vec<_> = self.servers.lock().unwrap().iter().flatten().cloned().collect();
        (!up.is_empty()).then(|| dice.one_of(&up))
    }

    pub(crate) fn set_server(&self, slot: usize, server: Option<Arc<Running>>) {
        self.servers.lock().unwrap()[slot] = server;
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calendar.now() >= self.calm_from
    }

    /// How many of a hundred messages something happens to.
    pub(crate) fn network_percent(&self) -> u64 {
        if self.is_calm() { 0 } else { self.network_percent }
    }

    /// The version of the policy file that servers start with.
    pub(crate) fn policy_version(&self) -> u32 {
        if self.calendar.now() < self.second_policy_from { 1 } else { 2 }
    }

    pub(crate) fn taken_over(&self, id: Uuid) {
        self.taken_over.lock().unwrap().insert(id);
    }

    /// Whether there is nothing left to do for anybody.
    pub(crate) fn is_over(&self) -> bool {
        let settled = |intent: &Intent| !intent.state.is_unsettled() && !intent.needs_attention;
        let over = self.is_calm()
            && self.callers_left.load(SeqCst) == 0
            && self.table.lock().unwrap().rows().all(|row| settled(&row.intent));
        over || self.calendar.now() >= self.calm_from + CALM
    }

    fn new(seed: u64, mutation: Option<Mutation>, dice: &mut Dice) -> Arc<Self> {
        let calendar = Calendar::new();
        let trace = Arc::new(Trace::default());
        let calm_from = calendar.now() + HOUR * (60 + dice.below(200) as u32);
        let tools: Vec<Tool> =
            (0..1 + dice.below(3) as usize).map(|index| Tool::draw(index, dice)).collect();
        let actions: Vec<usize> =
            (0..4 + dice.below(14)).map(|_| dice.below(tools.len() as u64) as usize).collect();
        let providers = Providers::new(&calendar, &trace, mutation, &tools, calm_from, dice);
        let oracle = Oracle::new(&tools, &actions, &calendar, &providers, &trace);
        let table = Table::new(Arc::clone(&calendar), Some(Arc::clone(&oracle)), mutation);
        let weather = Weather::new(Dice::new(seed, 1), dice.one_of(&[0, 2, 10, 30]));
        let luck = Mutex::new(Dice::new(seed, 2));
        let luck = Luck::of(move || luck.lock().unwrap().below(1000) as f64 / 1000.0);
        let second = HOUR * dice.below(400) as u32;
        Arc::new(Self {
            mutation,
            second_policy_from: calendar.now() + second,
            trace,
            tools,
            providers,
            oracle,
            table: Arc::new(Mutex::new(table)),
            weather: Arc::new(Mutex::new(weather)),
            luck,
            calm_from,
            network_percent: dice.one_of(&[0, 5, 20, 40]),
            servers: Mutex::new(vec![None; dice.one_of(&[1, 2, 2])]),
            taken_over: Mutex::default(),
            callers_left: Arc::default(),
            calendar,
        })
    }

    /// Brings everybody to life.
    fn people(self: &Arc<Self>, seed: u64, dice: &mut Dice) {
        for (action, _) in self.actions() {
            let hours = self.calm_from.since(self.calendar.now()).as_secs() / 3600;
            let first = self.calendar.now() + Duration::from_secs(dice.below(hours * 3000));
            for number in 0..1 + dice.below(4) {
                let after = dice.one_of(&[10, 3600, 20 * 3600]);
                let at = first + Duration::from_secs(number * dice.below(after));
                self.caller(seed, action, number, false, at);
            }
            if dice.percent(80) {
                let at = self.calm_from + Duration::from_secs(dice.below(3600));
                self.caller(seed, action, 9, true, at);
            }
        }
        let slots = self.servers.lock().unwrap().len();
        for slot in 0..slots {
            let dice = Dice::new(seed, 10 + slot as u64);
            self.calendar.spawn(server::keep(Arc::clone(self), slot, dice));
        }
        self.calendar.spawn(person::live(Arc::clone(self), Dice::new(seed, 4)));
        self.calendar.spawn(weather(Arc::clone(self), Dice::new(seed, 5)));
    }

    fn actions(&self) -> impl Iterator<Item = (usize, &Tool)> {
        (0..self.oracle.actions()).map(|action| (action, self.oracle.tool(action)))
    }

    fn caller(
        self: &Arc<Self>,
        seed: u64,
        action: usize,
        number: u64,
        insists: bool,
        at: Timestamp,
    ) {
        self.callers_left.fetch_add(1, SeqCst);
        let caller = Caller {
            world: Arc::clone(self),
            dice: Dice::new(seed, 1000 + 10 * action as u64 + number),
            name: format!("caller-{number}"),
            action,
            insists,
        };
        let left = Arc::clone(&self.callers_left);
        self.calendar.spawn(async move {
            caller.live(at).await;
            left.fetch_sub(1, SeqCst);
        });
    }

    /// Lets time pass until nobody has anything left to do, or something does not hold.
    async fn play(self: &Arc<Self>, seed: u64) {
        let mut dice = Dice::new(seed, 6);
        let sweeping = Arc::new(AtomicUsize::new(0));
        let mut lag = Duration::ZERO;
        let mut swept_at = self.calendar.now();
        loop {
            for panic in self.calendar.take_panics() {
                self.oracle.violated(None, format!("panicked: {panic}"));
            }
            if self.oracle.first_violation().is_some() || self.is_over() {
                return;
            }
            let up: Vec<_> = self.servers.lock().unwrap().iter().flatten().cloned().collect();
            let due = self.table.lock().unwrap().next_due();
            let due = due.filter(|_| sweeping.load(SeqCst) < up.len());
            let sweep_at = due.map(|due| (due + lag).max(swept_at + Duration::from_secs(5)));
            let Some(next) = self.calendar.next().into_iter().chain(sweep_at).min() else {
                self.calendar.change().await;
                continue;
            };
            if next > self.calendar.now() {
                if self.calendar.is_quiet() {
                    self.check_quiet();
                }
                self.calendar.pass(next).await;
            }
            let now = self.calendar.now();
            if sweep_at.is_some_and(|at| at <= now) {
                self.sweep(&mut dice, &up, &sweeping);
                swept_at = now;
                let longest = dice.one_of(&[1, 5, 5, 120, 1800]);
                lag = Duration::from_millis(dice.below(longest * 1000));
            }
            self.calendar.wake();
        }
    }

    fn sweep(self: &Arc<Self>, dice: &mut Dice, up: &[Arc<Running>], sweeping: &Arc<AtomicUsize>) {
        let server = dice.one_of(up);
        let tool = dice.percent(10).then(|| dice.one_of(&self.tools).name);
        let limit = if dice.percent(10) { 1 } else { usize::MAX };
        let sweeping = Arc::clone(sweeping);
        sweeping.fetch_add(1, SeqCst);
        let keys: Vec<_> = self.table.lock().unwrap().open().collect();
        let asked = (dice.percent(10) && !keys.is_empty()).then(|| dice.one_of(&keys));
        self.calendar.spawn(async move {
            if let Some(key) = asked {
                server.look(&key).await;
            }
            server.sweep(tool, limit).await;
            sweeping.fetch_sub(1, SeqCst);
        });
    }

    /// What must hold whenever nobody is at work.
    fn check_quiet(&self) {
        self.oracle.check_effects();
        let now = self.calendar.now();
        let table = self.table.lock().unwrap();
        let open = table.rows().filter(|row| row.intent.state.is_unsettled());
        for row in open.filter(|row| !row.intent.needs_attention) {
            let intent = &row.intent;
            let action = action_of(intent);
            let lease_end = intent.current().map(|it| it.lease_expires_at);
            let window = self.oracle.tool(action).window;
            let until =
                intent.sharing_key().next().zip(window).map(|(it, span)| it.granted_at + span);
            let latest = [Some(now), lease_end, until].into_iter().flatten().max();
            match table.look_at(intent.id()) {
                Some(at) if at <= latest.unwrap_or(now) + WAIT_MAX => {}
                Some(at) => self.oracle.violated(action, format!("is not looked at before {at}")),
                None if self.taken_over.lock().unwrap().contains(&intent.id()) => {}
                None => self.oracle.violated(action, "unsettled, and nobody will ever look"),
            }
        }
    }

    /// What must hold in the end.
    fn check_end(&self) {
        self.oracle.check_effects();
        let table = self.table.lock().unwrap();
        let row = |action| table.rows().map(|row| &row.intent).find(|it| action_of(it) == action);
        self.oracle.check_facts(row);
        for action in 0..self.oracle.actions() {
            self.oracle.check_end(action, row(action));
        }
    }

    fn figures(&self) -> Figures {
        let hours = self.calendar.now().since(super::calendar::EPOCH).as_secs() / 3600;
        Figures {
            runs: 1,
            hours,
            actions: self.oracle.actions() as u64,
            grants: self.oracle.grants(),
            questions: self.providers.questions(),
            tally: self.trace.tally(),
        }
    }
}

/// The store is down now and then, for seconds or hours; then never again.
async fn weather(world: Arc<World>, mut dice: Dice) {
    while !world.is_calm() {
        let fair = Duration::from_secs(dice.below(60 * 3600));
        let until = (world.calendar.now() + fair).min(world.calm_from);
        world.calendar.sleep_until(until).await;
        let longest = dice.one_of(&[10, 600, 4 * 3600]);
        let storm = Duration::from_secs(dice.below(longest));
        let until = (world.calendar.now() + storm).min(world.calm_from);
        world.note(|| format!("the store is down for {storm:?}"));
        world.weather.lock().unwrap().storm(until);
        world.calendar.sleep_until(until).await;
    }
    world.weather.lock().unwrap().turn_fair();
}

/// Plays the run of a seed; with the trace of what happened.
pub(crate) fn traced(
    seed: u64,
    mutation: Option<Mutation>,
) -> (Result<Figures, Box<Failure>>, Arc<Trace>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs nothing here");
    runtime.block_on(async {
        let mut dice = Dice::new(seed, 0);
        let world = World::new(seed, mutation, &mut dice);
        world.people(seed, &mut dice);
        world.play(seed).await;
        if world.oracle.first_violation().is_none() {
            world.check_end();
        }
        let outcome = match world.oracle.first_violation() {
            None => Ok(world.figures()),
            Some(Violation { action, words }) => {
                let kinds: Vec<_> = world.tools.iter().map(Tool::kind).collect();
                let story = format!("tools: {kinds:?}\n{}", world.trace.story(action));
                Err(Box::new(Failure { words, story }))
            }
        };
        (outcome, Arc::clone(&world.trace))
    })
}

/// Plays the run of a seed.
pub(crate) fn run(seed: u64, mutation: Option<Mutation>) -> Result<Figures, Box<Failure>> {
    traced(seed, mutation).0
}
