//! When an intent that is still open is looked at again.

use std::time::Duration;

use super::{attempt::Attempt, intent::Intent, time::Timestamp, tool::StatusRule};

/// The first wait between two questions about one intent; each further one is twice as long.
pub const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The longest wait between two questions.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);

/// The share of a wait that chance adds, so that rows which became due together drift apart.
const JITTER: f64 = 0.25;

/// How long to wait after the `probes`th question; `luck` is drawn from 0 to 1.
pub fn back_off(probes: u32, luck: f64) -> Duration {
    let doubled =
        FIRST_WAIT.saturating_mul(1_u32.checked_shl(probes.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(LONGEST_WAIT).mul_f64(1.0 + JITTER * luck.clamp(0.0, 1.0))
}

/// When the intent is looked at after the `probes`th question, asked at `now`.
///
/// After an absence that is the moment from which a further one would count, if that comes sooner:
/// waiting longer would only keep the next caller waiting.
pub fn next_look(
    intent: &Intent,
    rule: StatusRule,
    probes: u32,
    luck: f64,
    now: Timestamp,
) -> Timestamp {
    let ordinary = now + back_off(probes, luck);
    let counts_from = absence_counts_from(intent, rule);
    match counts_from {
        Some(from) if now < from => ordinary.min(from),
        _ => ordinary,
    }
}

/// How long an absence proves nothing: what was promised at a grant may be more than today's policy
/// asks for.
pub(super) fn visibility(intent: &Intent, rule: StatusRule) -> Duration {
    let open = intent.attempts.iter().filter(|attempt| !attempt.fate.is_harmless());
    open.map(|attempt| attempt.promise.visibility).max().unwrap_or_default().max(rule.visibility)
}

/// From when an absence counts, at `least` so long after the lease; `None` where every attempt is harmless.
pub(super) fn visible_from(intent: &Intent, least: Duration) -> Option<Timestamp> {
    let from = |attempt: &Attempt| {
        // What was promised at the grant may be more than today's policy asks for.
        attempt.visible_from().max(attempt.lease_expires_at + least)
    };
    intent.attempts.iter().filter(|attempt| !attempt.fate.is_harmless()).map(from).max()
}

fn absence_counts_from(intent: &Intent, rule: StatusRule) -> Option<Timestamp> {
    let spaced = intent.probing.last_absence_at.map(|last| last + visibility(intent, rule) / 2);
    visible_from(intent, rule.visibility).max(spaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{fixtures::*, verdict::Answer};

    #[test]
    fn waits_double_from_a_second_to_five_minutes() {
        let waits: Vec<u64> = (1..=11).map(|probes| back_off(probes, 0.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(back_off(0, 0.0), FIRST_WAIT);
        assert_eq!(back_off(u32::MAX, 0.0), LONGEST_WAIT);
    }

    #[test]
    fn chance_adds_up_to_a_quarter() {
        assert_eq!(back_off(3, 0.5), Duration::from_millis(4500));
        for luck in [1.0, 7.0, f64::INFINITY] {
            assert_eq!(back_off(3, luck), Duration::from_secs(5));
        }
        assert_eq!(back_off(3, -1.0), Duration::from_secs(4));
    }

    #[test]
    fn the_next_look_is_no_later_than_when_an_absence_would_count() {
        let rule = STATUS;
        let story = Story::under(asking()).begin(1).wait(MINUTE);
        // Visible in a while: the ordinary wait while it is shorter, then exactly that moment.
        let visible = story.now() + VISIBILITY;
        assert_eq!(next_look(story.row(), rule, 1, 0.0, story.now()), story.now() + SECOND);
        assert_eq!(next_look(story.row(), rule, 30, 0.0, story.now()), visible);
        // The first absence counted: the next one counts half the span later.
        let story = story.wait(VISIBILITY).hear(&Answer::Absent);
        let spaced = story.now() + VISIBILITY / 2;
        assert_eq!(next_look(story.row(), rule, 30, 0.0, story.now()), spaced);
        // Past that only the ordinary wait is left.
        let late = spaced + SECOND;
        assert_eq!(next_look(story.row(), rule, 30, 0.0, late), late + LONGEST_WAIT);
    }
}
