//! The hands that kill, one a thread; and the one that deals out the actions.

use std::{
    path::Path,
    process::Child,
    sync::{Condvar, Mutex},
    time::Duration,
};

use intent_ledger::clock::monotonic;

use crate::{
    callers::Callers, cluster::PgCluster, dice::Dice, process::Service, process::start_reconcile,
};

/// One in a hundred, how many of the actions two callers have at once.
const SHARED_PERCENT: u64 = 20;

/// One in a hundred, how many of the reconciling jobs are killed.
const JOBS_KILLED_PERCENT: u64 = 40;

/// When such a job is killed at the latest: most are done soon after.
const JOB_KILLED_MILLIS: u64 = 60;

/// A job that hangs is ended by its cron.
const JOB_MAX: Duration = Duration::from_secs(20);

/// When the chaos is over.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.rung.lock().expect("nobody panics with the bell") = true;
        self.rings.notify_all();
    }

    /// Lets time pass; whether it passed to the end.
    fn pass(&self, span: Duration) -> bool {
        let rung = self.rung.lock().expect("nobody panics with the bell");
        let waited = self.rings.wait_timeout_while(rung, span, |rung| !*rung);
        waited.expect("nobody panics with the bell").1.timed_out()
    }

    /// Lets some time between two bounds pass, in milliseconds.
    fn pass_some(&self, dice: &mut Dice, from: u64, to: u64) -> bool {
        self.pass(Duration::from_millis(from + dice.below(to - from)))
    }
}

/// Deals the actions out over most of the time, so that the last ones meet chaos as well.
pub(crate) fn deal(
    bell: &Bell,
    mut dice: Dice,
    callers: &Callers,
    actions: &[String],
    over: Duration,
) {
    let began = monotonic();
    let one = |dice: &mut Dice| dice.below(callers.count() as u64) as usize;
    for (n, action) in actions.iter().enumerate() {
        let due = over.mul_f64(0.9 * n as f64 / actions.len() as f64);
        // After the bell the rest comes at once.
        bell.pass(due.saturating_sub(monotonic().duration_since(began)));
        let first = one(&mut dice);
        callers.give(first, action);
        let second = one(&mut dice);
        if second != first && dice.percent(SHARED_PERCENT) {
            callers.give(second, action);
        }
    }
}

/// Kills callers, any of them; how often.
pub(crate) fn kill_callers(bell: &Bell, mut dice: Dice, callers: &Callers) -> u32 {
    let mut kills = 0;
    while bell.pass_some(&mut dice, 200, 1200) {
        callers.kill9(dice.below(callers.count() as u64) as usize);
        kills += 1;
    }
    kills
}

/// Kills services, one at a time; each is started again before the next goes.
pub(crate) fn kill_services(
    bell: &Bell,
    mut dice: Dice,
    services: &mut [Service],
    (from, to): (u64, u64),
) {
    while bell.pass_some(&mut dice, from, to) {
        let service = &mut services[dice.below(services.len() as u64) as usize];
        service.kill9();
        bell.pass_some(&mut dice, 0, 500);
        service.restart();
    }
}

/// Kills Postgres, all of its processes; how often.
pub(crate) fn kill_postgres(bell: &Bell, mut dice: Dice, cluster: &mut PgCluster) -> u32 {
    let mut kills = 0;
    while bell.pass_some(&mut dice, 3000, 9000) {
        cluster.kill9();
        kills += 1;
        bell.pass_some(&mut dice, 0, 800);
        cluster.restart();
    }
    kills
}

/// What became of the reconciling jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) done: u32,
    pub(crate) kills: u32,
    pub(crate) odd: Vec<String>,
}

/// Starts reconciling jobs as cron would, and kills some.
pub(crate) fn run_jobs(bell: &Bell, mut dice: Dice, home: &Path, servers: &[String]) -> Jobs {
    let mut jobs = Jobs::default();
    while bell.pass_some(&mut dice, 300, 1500) {
        let mut job = start_reconcile(home, &dice.one_of(servers));
        let killed = dice.percent(JOBS_KILLED_PERCENT);
        let patience =
            if killed { Duration::from_millis(dice.below(JOB_KILLED_MILLIS)) } else { JOB_MAX };
        match ended(&mut job, patience) {
            // One says that something needs a person, or that there was no server.
            Some(Some(0 | 1)) => jobs.done += 1,
            None if killed => jobs.kills += 1,
            other => jobs.odd.push(format!("a reconciling job came to {other:?}")),
        }
    }
    jobs
}

/// The exit code of a process that ends in time; it is killed after that.
fn ended(child: &mut Child, patience: Duration) -> Option<Option<i32>> {
    let began = monotonic();
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return Some(status.code());
        }
        if monotonic().duration_since(began) >= patience {
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
