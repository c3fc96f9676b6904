//! Chance that can be repeated: what a test draws comes from a seed, and a failure names it.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use uuid::Uuid;

use super::faulty::Fault;

/// The variable that replays one seed.
const SEED: &str = "INTENT_LEDGER_TEST_SEED";

/// Numbers that look random (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The same numbers for the same seed; another `purpose`, other numbers.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut dice = Self(seed ^ purpose.wrapping_mul(0xd1b5_4a32_d192_ed03));
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Whether something of this chance has come true.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    pub(crate) fn id(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next() | 1)
    }

    /// A moment too short to wait for: it only changes what comes first.
    pub(crate) fn moment(&mut self) -> Duration {
        Duration::from_micros(self.below(1500))
    }
}

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
