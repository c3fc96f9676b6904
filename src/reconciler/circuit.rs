//! A circuit breaker: an endpoint that does not answer is left alone for a while.

use std::time::{Duration, Instant};

/// Failures in a row that open the circuit.
pub(super) const FAILURES_MAX: u32 = 10;

/// How long an open circuit stays open before one question is let through.
pub(super) const HALF_OPEN_AFTER: Duration = Duration::from_secs(5);

/// Whether an endpoint is asked.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Circuit {
    failures: u32,
    /// When it opened, or when the latest trial went out.
    opened_at: Option<Instant>,
}

/// What an answer, or its absence, did to a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is as it was.
    Same,
    /// It has opened.
    Opened,
    /// It has closed.
    Closed,
}

impl Circuit {
    /// Whether a question may go out at `now`. Of an open circuit that is one question each time
    /// [`HALF_OPEN_AFTER`] is over, however many there are: a trial that never comes back only
    /// delays the next one.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        match self.opened_at {
            None => true,
            Some(at) if now.duration_since(at) >= HALF_OPEN_AFTER => {
                self.opened_at = Some(now);
                true
            }
            Some(_) => false,
        }
    }

    /// How many questions would be admitted at `now`, of `most`.
    pub(super) fn room(&self, now: Instant, most: usize) -> usize {
        match self.opened_at {
            None => most,
            Some(at) => usize::from(now.duration_since(at) >= HALF_OPEN_AFTER),
        }
    }

    /// Hears that a question was answered, or was not.
    pub(super) fn record(&mut self, answered: bool, now: Instant) -> Turn {
        if answered {
            let was_open = self.opened_at.is_some();
            *self = Self::default();
            return if was_open { Turn::Closed } else { Turn::Same };
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_MAX && self.opened_at.is_none() {
            self.opened_at = Some(now);
            return Turn::Opened;
        }
        Turn::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    fn failing(times: u32, now: Instant) -> (Circuit, Turn) {
        let mut circuit = Circuit::default();
        let mut turn = Turn::Same;
        for _ in 0..times {
            turn = circuit.record(false, now);
        }
        (circuit, turn)
    }

    #[test]
    fn ten_failures_in_a_row_open_it_and_nine_do_not() {
        let now = monotonic();
        let (mut nine, turn) = failing(9, now);
        assert_eq!((turn, nine.admit(now), nine.room(now, 32)), (Turn::Same, true, 32));
        let (mut ten, turn) = failing(10, now);
        assert_eq!((turn, ten.admit(now), ten.room(now, 32)), (Turn::Opened, false, 0));
    }

    #[test]
    fn an_answer_between_starts_the_count_again() {
        let now = monotonic();
        let (mut circuit, _) = failing(9, now);
        assert_eq!(circuit.record(true, now), Turn::Same);
        for _ in 0..9 {
            assert_eq!(circuit.record(false, now), Turn::Same);
        }
        assert_eq!(circuit.record(false, now), Turn::Opened);
    }

    #[test]
    fn half_open_lets_one_question_through_each_time() {
        let now = monotonic();
        let (mut circuit, _) = failing(10, now);
        let early = now + HALF_OPEN_AFTER - Duration::from_millis(1);
        assert!(!circuit.admit(early));
        let later = now + HALF_OPEN_AFTER;
        assert_eq!(circuit.room(later, 32), 1);
        assert!(circuit.admit(later));
        assert!(!circuit.admit(later), "one trial is enough");
        // It fails: the next one comes after the same wait, and nobody is told again.
        assert_eq!(circuit.record(false, later), Turn::Same);
        assert!(!circuit.admit(later + HALF_OPEN_AFTER - Duration::from_millis(1)));
        let again = later + HALF_OPEN_AFTER;
        assert!(circuit.admit(again));
        assert_eq!(circuit.record(true, again), Turn::Closed);
        assert_eq!(circuit.room(again, 32), 32);
    }

    #[test]
    fn a_late_failure_does_not_open_it_anew() {
        let now = monotonic();
        let (mut circuit, _) = failing(10, now);
        for _ in 0..20 {
            assert_eq!(circuit.record(false, now + Duration::from_secs(4)), Turn::Same);
        }
        assert!(circuit.admit(now + HALF_OPEN_AFTER));
    }
}
