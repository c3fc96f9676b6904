//! The contract's table of what the downstream says, a row a line.

use super::*;
use crate::domain::fixtures::*;
use crate::domain::{intent::Intent, review::Resolution, tool::ToolPolicy};

fn found(reference: Option<&str>) -> Answer {
    Answer::Executed { result: body("found"), downstream_ref: reference.map(str::to_owned) }
}

fn several(references: &[&str]) -> Answer {
    let downstream_refs = references.iter().map(|&reference| reference.to_owned()).collect();
    Answer::Several { result: body("found"), downstream_refs }
}

fn unmapped() -> Answer {
    Answer::Unmapped { note: "compliance_hold".to_owned() }
}

/// The lease is over; an absence does not count yet.
fn lapsed() -> Story {
    Story::under(asking()).begin(1).wait(MINUTE)
}

/// An absence counts from now on.
fn visible() -> Story {
    lapsed().wait(VISIBILITY)
}

#[test]
fn what_is_unsettled_is_due_once_its_lease_is_over() {
    let begun = || Story::under(asking()).begin(1);
    let lines = [
        (begun().wait(59 * SECOND), false),
        (begun().wait(60 * SECOND), true),
        (begun().lost(1), true),
        (begun().failed(1), false),
        (begun().completed(1, "r"), false),
        (Story::gated().begin(1), false),
    ];
    for (story, due) in lines {
        assert_eq!(is_due(story.row(), story.now()), due, "{}", story.state());
    }
}

#[test]
fn an_effect_that_is_found_settles_the_intent() {
    for story in [lapsed(), lapsed().lost(1), visible().hear(&Answer::Absent)] {
        let story = story.hear(&found(Some("ch_1")));
        let row = story.row();
        assert_eq!(
            (row.state, row.conflict, row.needs_attention),
            (State::Completed, false, false)
        );
        assert_eq!(row.result, Some(body("found")));
        assert_eq!(row.downstream_ref.as_deref(), Some("ch_1"));
        assert_eq!(row.settlement.as_ref().unwrap().provenance, Provenance::Reconciler);
        assert_eq!(story.kinds(), [EventKind::Reconciled]);
    }
}

#[test]
fn two_objects_for_one_key_are_a_conflict_with_both_references_kept() {
    let story = lapsed().hear(&several(&["ch_1", "ch_2"]));
    let row = story.row();
    assert_eq!((row.state, row.conflict, row.needs_attention), (State::Completed, true, true));
    let kept: Vec<_> = story.events.iter().filter_map(|e| e.downstream_ref.as_deref()).collect();
    assert_eq!(kept, ["ch_1", "ch_2"]);
    // Also where the answer names none of them.
    let row = lapsed().hear(&several(&[])).row.unwrap();
    assert_eq!((row.state, row.conflict, row.needs_attention), (State::Completed, true, true));
}

#[test]
fn a_reference_on_record_is_kept_when_another_is_found() {
    let mut story = Story::under(asking()).begin(1);
    story.report_extend(1, MINUTE, Some("job")).0.unwrap();
    let story = story.wait(MINUTE).hear(&found(Some("ch_1")));
    assert_eq!(story.row().downstream_ref.as_deref(), Some("ch_1"));
    assert!(story.events.iter().any(|event| event.downstream_ref.as_deref() == Some("job")));
}

#[test]
fn an_absence_counts_past_visibility_as_often_as_confirmed_and_spaced() {
    // (waits before each absence, whether they settle it)
    let spaced = VISIBILITY / 2;
    let lines: [(&[Duration], bool); 6] = [
        (&[Duration::ZERO], false),
        (&[Duration::ZERO, spaced], true),
        (&[Duration::ZERO, spaced - SECOND], false),
        (&[Duration::ZERO, spaced - SECOND, SECOND], true),
        (&[Duration::ZERO, 400 * DAY], true),
        (&[400 * DAY], false),
    ];
    for (waits, settled) in lines {
        let mut story = visible();
        for wait in waits {
            story = story.wait(*wait).hear(&Answer::Absent);
        }
        let expected = if settled { State::Failed } else { State::Started };
        assert_eq!(story.state(), expected, "{waits:?}");
    }
    // Before visibility not even the hundredth.
    let mut early = lapsed();
    for _ in 0..100 {
        early = early.wait(SECOND).hear(&Answer::Absent);
        assert_eq!(early.state(), State::Started);
        assert_eq!(early.row().probing, Probing::default());
    }
}

#[test]
fn an_absence_counts_from_when_the_question_went_out() {
    let mut story = lapsed().lost(1);
    let asked = Asked::of(story.row(), story.now());
    for _ in 0..5 {
        story = story.wait(DAY);
        story.apply_answer(asked, &Answer::Absent);
        assert_eq!((story.state(), story.row().probing.absences), (State::Unknown, 0));
    }
    // Nor does one question count twice.
    let asked = Asked::of(story.row(), story.now());
    for _ in 0..5 {
        story = story.wait(DAY);
        story.apply_answer(asked, &Answer::Absent);
        assert_eq!((story.state(), story.row().probing.absences), (State::Unknown, 1));
    }
}

#[test]
fn a_proven_absence_settles_every_attempt_begun_before() {
    let mut policy = deduplicating();
    policy.downstream.status = Some(STATUS);
    let story = Story::under(policy).begin(1).lost(1).begin(2).lost(2).wait(MINUTE + VISIBILITY);
    let story = story.hear(&Answer::Absent).wait(HOUR).hear(&Answer::Absent);
    let row = story.row();
    assert_eq!((row.state, row.is_harmless(), row.needs_attention), (State::Failed, true, false));
    assert_eq!(row.settlement.as_ref().unwrap().provenance, Provenance::Reconciler);
    assert_eq!(words(&story.ask(&call(3))), "EXECUTE RETRY");
}

#[test]
fn a_later_policy_may_only_lengthen_the_visibility() {
    let longer = StatusRule { visibility: HOUR, ..STATUS };
    let shorter = StatusRule { visibility: SECOND, ..STATUS };
    for (rule, absences_after) in [(longer, MINUTE + HOUR), (shorter, MINUTE + VISIBILITY)] {
        let mut story = Story::under(asking()).begin(1).wait(absences_after - SECOND);
        story.policy.downstream.status = Some(rule);
        let story = story.hear(&Answer::Absent);
        assert_eq!(story.row().probing.absences, 0);
        assert_eq!(story.wait(SECOND).hear(&Answer::Absent).row().probing.absences, 1);
    }
}

#[test]
fn an_absence_proves_nothing_once_the_downstream_gave_a_reference() {
    let mut story = Story::under(asking()).begin(1);
    story.report_extend(1, MINUTE, Some("ch_1")).0.unwrap();
    for _ in 0..5 {
        story = story.wait(DAY).hear(&Answer::Absent);
        assert_eq!((story.state(), story.row().needs_attention), (State::Unknown, true));
    }
}

#[test]
fn any_other_answer_starts_the_confirmations_again() {
    type Between = fn(Story) -> Story;
    let taken = |story: Story| {
        let other = Key::from_bytes([7; 32]);
        let story = story.hear(&Answer::Taken { downstream_ref: "ch_1".to_owned(), other });
        story.resolved(&Resolution::Acknowledged)
    };
    let lines: [(&str, Between, bool); 5] = [
        ("taken, and acknowledged", taken, false),
        ("running", |story| story.hear(&Answer::Running), false),
        ("unmapped", |story| story.hear(&unmapped()), false),
        ("nothing", |story| story, true),
        ("unreachable", |story| story.hear(&Answer::unreachable("refused")), true),
    ];
    for (name, between, settled) in lines {
        let story = between(visible().hear(&Answer::Absent).wait(HOUR)).hear(&Answer::Absent);
        assert_eq!(story.state() == State::Failed, settled, "{name}");
    }
}

/// A question whose answer came late says nothing against what was heard after it went out.
#[test]
fn an_answer_that_was_overtaken_does_not_count() {
    for newer in [Answer::Running, unmapped()] {
        let mut story = visible().hear(&Answer::Absent).wait(HOUR);
        let overtaken = Asked::of(story.row(), story.now());
        // Twice, so that the newer answer is no news to the row.
        story = story.wait(SECOND).hear(&newer).wait(SECOND).hear(&newer);
        story.apply_answer(overtaken, &Answer::Absent);
        assert_eq!((story.state(), story.row().probing.absences), (State::Started, 0));
        // A success is evidence, however late.
        story.apply_answer(overtaken, &found(Some("ch_1")));
        assert_eq!(story.state(), State::Completed);
    }
}

#[test]
fn absences_before_a_longer_visibility_count_no_longer() {
    let mut story = visible().hear(&Answer::Absent);
    assert_eq!(story.row().probing.absences, 1);
    story.policy.downstream.status = Some(StatusRule { visibility: HOUR, ..STATUS });
    let story = story.wait(HOUR).hear(&Answer::Absent);
    assert_eq!((story.state(), story.row().probing.absences), (State::Started, 1));
    assert_eq!(story.wait(HOUR).hear(&Answer::Absent).state(), State::Failed);
}

/// An outage is nobody's fault: it brings nobody closer to giving up.
#[test]
fn time_without_answers_does_not_count_towards_giving_up() {
    // The outage ends with an answer of either kind.
    for first in [Answer::Running, Answer::Absent] {
        let mut story = lapsed().hear(&Answer::Running).wait(2 * GIVE_UP_AFTER);
        let asked = Asked::of(story.row(), story.now()).after_silence(true);
        story.apply_answer(asked, &first);
        assert_eq!((story.state(), story.row().needs_attention), (State::Started, false));
        let story = story.wait(GIVE_UP_AFTER - SECOND).hear(&Answer::Running);
        assert!(!story.row().needs_attention, "{first:?}");
        assert!(story.wait(SECOND).hear(&Answer::Running).row().needs_attention);
    }
}

#[test]
fn a_grant_starts_the_confirmations_again() {
    let mut policy = deduplicating();
    policy.downstream.status = Some(STATUS);
    let story = Story::under(policy).begin(1).wait(MINUTE + VISIBILITY).hear(&Answer::Absent);
    assert_eq!(story.row().probing.absences, 1);
    assert_eq!(story.begin(2).row().probing, Probing::default());
}

#[test]
fn no_verdict_for_long_enough_needs_a_person() {
    for answer in [Answer::Running, unmapped()] {
        let story = lapsed().hear(&answer).wait(GIVE_UP_AFTER - SECOND).hear(&answer);
        assert!(!story.row().needs_attention && story.events.is_empty());
        let story = story.wait(SECOND).hear(&answer);
        assert_eq!((story.state(), story.row().needs_attention), (State::Unknown, true));
        assert_eq!(story.kinds(), [EventKind::Probed]);
    }
}

#[test]
fn an_endpoint_that_does_not_answer_changes_and_counts_nothing() {
    let mut story = lapsed();
    let before: Intent = story.row().clone();
    for _ in 0..100 {
        story = story.wait(DAY).hear(&Answer::unreachable("refused"));
        assert_eq!((story.row(), story.events.len()), (&before, 0));
    }
}

#[test]
fn a_verdict_does_not_apply_to_what_has_changed_since_the_question() {
    type Meanwhile = fn(Story) -> Story;
    let mut policy = deduplicating();
    policy.downstream.status = Some(STATUS);
    let lapsed = || Story::under(policy.clone()).begin(1).wait(MINUTE);
    let meanwhile: [Meanwhile; 4] = [
        |story| story.completed(1, "r"),
        |story| story.failed(1),
        |story| story.lost(1),
        |story| story.begin(2),
    ];
    for change in meanwhile {
        for answer in [found(None), Answer::Absent, Answer::Running, several(&["a", "b"])] {
            let asked = Asked::of(lapsed().row(), lapsed().now());
            let mut story = change(lapsed()).wait(HOUR);
            let before = story.row().clone();
            story.apply_answer(asked, &answer);
            assert_eq!(story.row(), &before, "{answer:?}");
        }
    }
}

#[test]
fn a_look_says_what_to_do_a_row_a_line() {
    let begun = |policy: ToolPolicy| Story::under(policy).begin(1);
    let ended = |policy: ToolPolicy| begun(policy).wait(MINUTE);
    let end = begun(asking()).row().current().unwrap().lease_expires_at;
    let mut fenced = plain();
    fenced.downstream.same_transaction = true;
    let open_until = begun(deduplicating()).row().dedup_until(&deduplicating()).unwrap();
    let late = || ended(deduplicating()).wait(WINDOW - HOUR);
    let an_hour_later = ended(deduplicating()).now() + HOUR;
    let lines = [
        ("the lease runs", begun(asking()), Look::Later(end)),
        ("the lease is over", ended(asking()), Look::Ask),
        ("nobody knows", begun(asking()).lost(1), Look::Ask),
        ("settled", begun(asking()).completed(1, "r"), Look::Done),
        ("failed", begun(asking()).failed(1), Look::Done),
        // Nobody can be asked: the next Begin is the way out while the window is open.
        ("deduplicates", ended(deduplicating()), Look::Later(an_hour_later)),
        ("deduplicates still", late(), Look::Later(open_until - MINUTE)),
        ("fenced", ended(fenced.clone()), Look::Later(ended(fenced).now() + LONGEST_WAIT)),
    ];
    for (name, mut story, expected) in lines {
        let before = story.row().clone();
        assert_eq!(story.look(), expected, "{name}");
        assert_eq!((story.row(), story.events.len()), (&before, 0), "{name}");
    }
}

#[test]
fn without_a_way_to_ask_a_person_is_told_once() {
    for (policy, wait) in [(plain(), MINUTE), (deduplicating(), WINDOW)] {
        let mut story = Story::under(policy).begin(1).wait(wait);
        assert!(matches!(story.look(), Look::Person(_)));
        assert_eq!((story.state(), story.row().needs_attention), (State::Unknown, true));
        assert_eq!(story.kinds(), [EventKind::Probed]);
        assert_eq!(story.look(), Look::Done);
        // Who has seen it is not told again.
        let mut story = story.resolved(&Resolution::Acknowledged);
        let later = story.now() + LONGEST_WAIT;
        assert_eq!(story.look(), Look::Later(later));
        assert_eq!((story.state(), story.row().needs_attention), (State::Unknown, false));
    }
}

#[test]
fn giving_up_is_told_once_and_an_answer_still_counts() {
    let story = lapsed().hear(&unmapped()).wait(GIVE_UP_AFTER).hear(&unmapped());
    assert!(story.row().needs_attention);
    let story = story.resolved(&Resolution::Acknowledged).wait(DAY).hear(&unmapped());
    assert_eq!((story.row().needs_attention, story.events.len()), (false, 0));
    let story = story.hear(&found(Some("ch_1")));
    assert_eq!((story.state(), story.row().needs_attention), (State::Completed, false));
}

#[test]
fn one_object_does_not_settle_two_keys() {
    let other = Key::from_bytes([7; 32]);
    let taken = Answer::Taken { downstream_ref: "ch_1".to_owned(), other };
    let story = lapsed().hear(&taken);
    assert_eq!((story.state(), story.row().needs_attention), (State::Unknown, true));
    assert_eq!(story.kinds(), [EventKind::Probed]);
    assert!(story.events[0].note.contains("ch_1") && story.events[0].note.contains("0707"));

    let settled = lapsed().hear(&found(Some("ch_1")));
    let outcome = shares_object(settled.row(), &other, settled.now());
    assert_eq!((outcome.intent.state, outcome.intent.conflict), (State::Completed, true));
    assert!(outcome.intent.needs_attention);
    assert_eq!(outcome.events[0].kind, EventKind::Contradiction);
    let again = shares_object(&outcome.intent, &other, settled.now());
    assert_eq!(again.events, []);
}

#[test]
fn an_early_absence_after_a_reference_is_asked_about_again() {
    let mut story = Story::under(asking()).begin(1);
    story.report_extend(1, MINUTE, Some("ch_1")).0.unwrap();
    let story = story.wait(MINUTE).hear(&Answer::Absent);
    assert_eq!((story.state(), story.row().needs_attention), (State::Started, false));
    let story = story.hear(&found(Some("ch_1")));
    assert_eq!((story.state(), story.row().needs_attention), (State::Completed, false));
}

#[test]
fn absences_are_spaced_by_what_was_promised_at_the_grant() {
    let mut story = visible().hear(&Answer::Absent);
    // A later policy is content with less; the promise stands.
    story.policy.downstream.status = Some(StatusRule { visibility: SECOND, ..STATUS });
    let story = story.wait(VISIBILITY / 2 - SECOND).hear(&Answer::Absent);
    assert_eq!((story.state(), story.row().probing.absences), (State::Started, 1));
    assert_eq!(story.wait(SECOND).hear(&Answer::Absent).state(), State::Failed);
}

#[test]
fn absences_are_spaced_from_answer_to_question() {
    let mut story = visible();
    let asked = Asked::of(story.row(), story.now());
    story = story.wait(VISIBILITY / 2);
    story.apply_answer(asked, &Answer::Absent);
    assert_eq!(story.row().probing.absences, 1);
    // The next question goes out at once, long after the first one did.
    let story = story.hear(&Answer::Absent);
    assert_eq!((story.state(), story.row().probing.absences), (State::Started, 1));
    assert_eq!(story.wait(VISIBILITY / 2).hear(&Answer::Absent).state(), State::Failed);
}

#[test]
fn another_reason_is_told_although_the_first_was_acknowledged() {
    let story = lapsed().hear(&unmapped()).wait(GIVE_UP_AFTER).hear(&unmapped());
    let story = story.resolved(&Resolution::Acknowledged);
    let taken =
        Answer::Taken { downstream_ref: "ch_1".to_owned(), other: Key::from_bytes([7; 32]) };
    let story = story.hear(&taken);
    assert!(story.row().needs_attention);
    assert_eq!(story.kinds(), [EventKind::Probed]);
}

/// Facts that contradict each other flag a row, and yet a further attempt of it can be asked about.
#[test]
fn a_further_attempt_of_a_contradicted_intent_is_looked_at() {
    let story = Story::under(asking()).begin(1).failed(1);
    let mut story = story.begin(2);
    story.row.as_mut().unwrap().conflict = true;
    story.row.as_mut().unwrap().needs_attention = true;
    let end = story.row().current().unwrap().lease_expires_at;
    assert_eq!(story.row().first_look_at(), Some(end));
    let mut story = story.wait(MINUTE);
    assert_eq!(story.look(), Look::Ask);
}
