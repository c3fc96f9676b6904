//! Chance that can be repeated: what a test draws comes from a seed, and a failure names it.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;

pub(crate) use super::dice::Dice;
use super::faulty::Fault;

/// The variable that replays one seed.
const SEED: &str = "INTENT_LEDGER_TEST_SEED";

/// What a store's calls meet.
#[derive(Debug)]
pub(crate) struct Luck {
    dice: Dice,
    /// How many of a hundred writes something happens to.
    percent: u64,
}

impl Luck {
    pub(crate) fn new(dice: Dice, percent: u64) -> Self {
        Self { dice, percent }
    }

    /// No fault from now on.
    pub(crate) fn turn_good(&mut self) {
        self.percent = 0;
    }

    /// How long the next write is under way before and after it happens, and its fault.
    pub(super) fn of_a_write(&mut self) -> (Option<Duration>, Option<Fault>) {
        let pause = self.dice.percent(self.percent).then(|| self.dice.moment());
        let fault = self.dice.percent(self.percent).then(|| {
            self.dice.one_of(&[
                Fault::Refused,
                Fault::Rejected,
                Fault::Locked,
                Fault::Locked,
                Fault::RequestLost,
                Fault::RequestLate,
                Fault::ReplyLost,
                Fault::ReplyLost,
            ])
        });
        (pause, fault)
    }

    /// Whether the next read fails.
    pub(super) fn of_a_read(&mut self) -> bool {
        self.dice.percent(self.percent / 4)
    }
}

/// Runs each of the seeds, or only the one that is asked for; a failure names its seed.
pub(crate) async fn each_seed(seeds: std::ops::Range<u64>, run: impl AsyncFn(u64)) {
    let asked = std::env::var(SEED).ok();
    let asked = asked.map(|text| text.parse().expect("INTENT_LEDGER_TEST_SEED is a number"));
    let seeds = asked.map_or(seeds, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let outcome = AssertUnwindSafe(run(seed)).catch_unwind().await;
        if let Err(panic) = outcome {
            eprintln!("failed with seed {seed}; {SEED}={seed} repeats it");
            std::panic::resume_unwind(panic);
        }
    }
}
