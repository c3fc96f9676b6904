//! What the contract says of Approve, Deny and Resolve, a row a line.

use super::*;
use crate::domain::attempt::GrantedOn;
use crate::domain::fixtures::*;
use crate::domain::tool::ToolPolicy;
use crate::domain::verdict::Answer;

fn begun(policy: ToolPolicy) -> Story {
    Story::under(policy).begin(1)
}

fn proposed() -> Story {
    Story::gated().begin(1)
}

const YES: bool = true;
const NO: bool = false;

type Told = fn() -> Story;
type Answered = Result<(), Refusal>;

use Refusal as R;
use State as S;

#[rustfmt::skip]
const DECISIONS: &[(&str, Told, bool, Answered, State)] = &[
    ("pending", proposed, YES, Ok(()), S::Approved),
    ("pending", proposed, NO, Ok(()), S::Denied),
    ("approved", || proposed().approved(), YES, Ok(()), S::Approved),
    ("approved", || proposed().approved(), NO, Err(R::AlreadyDecided), S::Approved),
    ("lapsed", || proposed().approved().wait(HOUR), YES, Err(R::AlreadyDecided), S::Approved),
    ("lapsed, swept", || proposed().approved().wait(HOUR).expired(), YES, Err(R::AlreadyDecided), S::Denied),
    ("denied", || proposed().denied(), NO, Ok(()), S::Denied),
    ("denied", || proposed().denied(), YES, Err(R::AlreadyDecided), S::Denied),
    ("expired", || proposed().wait(72 * HOUR).expired(), YES, Err(R::AlreadyDecided), S::Denied),
    ("expired unswept", || proposed().wait(72 * HOUR), YES, Err(R::AlreadyDecided), S::Denied),
    ("spent", || proposed().approved().begin(1), YES, Ok(()), S::Started),
    ("spent", || proposed().approved().begin(1), NO, Err(R::AlreadyDecided), S::Started),
    ("never gated", || begun(plain()), YES, Err(R::NotProposed), S::Started),
];

#[test]
fn a_proposal_is_decided_once() {
    for (found, story, yes, answer, state) in DECISIONS {
        let mut story = story();
        let reviewer = story.reviewer();
        assert_eq!(story.decide(*yes, &reviewer), *answer, "{found}");
        assert_eq!(story.state(), *state, "{found}");
    }
}

#[test]
fn a_stale_etag_decides_nothing() {
    let stale = |story: &Story| Reviewer { etag: "0".to_owned(), ..story.reviewer() };
    for yes in [YES, NO] {
        let mut story = proposed();
        let reviewer = stale(&story);
        assert_eq!(story.decide(yes, &reviewer), Err(R::EtagMismatch));
        assert_eq!(story.state(), State::AwaitingApproval);
    }
    let executed = Resolution::Executed(body("r"));
    for resolution in [executed, Resolution::NotExecuted, Resolution::Acknowledged] {
        let mut story = begun(plain()).lost(1).wait(HOUR);
        let reviewer = stale(&story);
        assert_eq!(story.resolve_as(&resolution, &reviewer), Err(R::EtagMismatch));
        assert_eq!(story.state(), State::Unknown);
    }
}

#[test]
fn the_same_decision_again_is_taken_with_the_etag_it_was_made_with() {
    for yes in [YES, NO] {
        let mut story = proposed();
        let reviewer = story.reviewer();
        story.decide(yes, &reviewer).unwrap();
        assert_eq!(story.decide(yes, &reviewer), Ok(()));
        assert_eq!(story.decide(!yes, &reviewer), Err(R::AlreadyDecided));
    }
    let stories: [(Told, Resolution); 4] = [
        (|| begun(plain()).lost(1).wait(HOUR), Resolution::Executed(body("r"))),
        (|| begun(plain()).lost(1).wait(HOUR), Resolution::NotExecuted),
        (|| begun(plain()).lost(1).wait(HOUR), Resolution::Acknowledged),
        (|| proposed().denied(), Resolution::NotExecuted),
    ];
    for (story, resolution) in stories {
        let mut story = story();
        let reviewer = story.reviewer();
        assert_eq!(story.resolve_as(&resolution, &reviewer), Ok(()), "{resolution:?}");
        let after = story.row().clone();
        assert_eq!(story.resolve_as(&resolution, &reviewer), Ok(()), "{resolution:?}");
        assert_eq!((story.row(), story.events.len()), (&after, 0), "{resolution:?}");
    }
}

#[test]
fn a_yes_is_good_from_the_decision_for_as_long_as_the_policy_says() {
    let story = proposed().wait(71 * HOUR).approved();
    assert!(story.row().approval.as_ref().unwrap().is_valid(story.now() + HOUR - SECOND));
    assert!(!story.row().approval.as_ref().unwrap().is_valid(story.now() + HOUR));
}

#[test]
fn only_a_proposal_whose_time_is_over_expires() {
    let lines: [(Told, State); 5] = [
        (|| proposed().wait(72 * HOUR - SECOND), S::AwaitingApproval),
        (|| proposed().wait(72 * HOUR), S::Denied),
        (|| proposed().wait(HOUR).approved().wait(HOUR - SECOND), S::Approved),
        (|| proposed().approved().wait(400 * DAY), S::Denied),
        (|| begun(plain()).wait(400 * DAY), S::Started),
    ];
    for (story, state) in lines {
        assert_eq!(story().expired().state(), state);
    }
    let story = proposed().wait(72 * HOUR).expired();
    assert_eq!(story.row().settlement.as_ref().unwrap().provenance, Provenance::Policy);
    assert_eq!(story.kinds(), [EventKind::ApprovalExpired]);
}

fn executed() -> Resolution {
    Resolution::Executed(body("r"))
}

fn unknown_past_visibility() -> Story {
    begun(asking()).lost(1).wait(MINUTE + VISIBILITY)
}

type Line = (&'static str, Told, fn() -> Resolution, Answered, State);

#[rustfmt::skip]
const RESOLUTIONS: &[Line] = &[
    ("awaiting", proposed, executed, Err(R::NotStarted), S::AwaitingApproval),
    ("approved", || proposed().approved(), executed, Err(R::NotStarted), S::Approved),
    ("denied", || proposed().denied(), executed, Err(R::NotStarted), S::Denied),
    ("lease running", || begun(plain()), executed, Ok(()), S::Completed),
    ("unknown", || begun(plain()).lost(1), executed, Ok(()), S::Completed),
    ("failed", || begun(plain()).failed(1), executed, Ok(()), S::Completed),
    ("completed alike", || begun(plain()).completed(1, "r"), executed, Ok(()), S::Completed),
    ("completed, nothing new", || begun(plain()).completed(1, "r"), || Resolution::Executed(no_body()), Ok(()), S::Completed),
    ("completed otherwise", || begun(plain()).completed(1, "s"), executed, Err(R::AlreadySettled), S::Completed),
    ("awaiting", proposed, || Resolution::NotExecuted, Ok(()), S::AwaitingApproval),
    ("approved", || proposed().approved(), || Resolution::NotExecuted, Err(R::NotStarted), S::Approved),
    ("denied", || proposed().denied(), || Resolution::NotExecuted, Ok(()), S::AwaitingApproval),
    ("lease running", || begun(plain()).wait(59 * SECOND), || Resolution::NotExecuted, Err(R::LeaseRunning { until: LEASE_END }), S::Started),
    ("lease over", || begun(plain()).wait(MINUTE), || Resolution::NotExecuted, Ok(()), S::Failed),
    ("lease over, not yet visible", || begun(asking()).wait(MINUTE), || Resolution::NotExecuted, Err(R::LeaseRunning { until: VISIBLE_FROM }), S::Started),
    ("unknown, lease running", || begun(plain()).lost(1), || Resolution::NotExecuted, Err(R::LeaseRunning { until: LEASE_END }), S::Unknown),
    ("unknown", unknown_past_visibility, || Resolution::NotExecuted, Ok(()), S::Failed),
    ("failed", || begun(plain()).failed(1), || Resolution::NotExecuted, Ok(()), S::Failed),
    ("completed", || begun(plain()).completed(1, "r"), || Resolution::NotExecuted, Err(R::AlreadySettled), S::Completed),
    ("unknown", unknown_past_visibility, || Resolution::Acknowledged, Ok(()), S::Unknown),
    ("completed", || begun(plain()).completed(1, "r"), || Resolution::Acknowledged, Ok(()), S::Completed),
];

const LEASE_END: Timestamp = Timestamp::from_micros(START.micros() + 60_000_000);
const VISIBLE_FROM: Timestamp = Timestamp::from_micros(START.micros() + 180_000_000);

#[test]
fn a_person_settles_what_nobody_else_can() {
    for (found, story, resolution, answer, state) in RESOLUTIONS {
        let mut story = story();
        let reviewer = story.reviewer();
        assert_eq!(story.resolve_as(&resolution(), &reviewer), *answer, "{found}");
        assert_eq!(story.state(), *state, "{found}");
        assert!(answer.is_err() || !story.row().needs_attention, "{found}");
    }
}

/// What binds the reconciler binds people: a policy that was tightened since counts.
#[test]
fn nobody_says_not_executed_while_an_effect_may_still_come_to_light() {
    let mut story = unknown_past_visibility();
    story.policy.downstream.status = Some(StatusRule { visibility: HOUR, ..STATUS });
    let reviewer = story.reviewer();
    let until = LEASE_END + HOUR;
    let refused = story.resolve_as(&Resolution::NotExecuted, &reviewer);
    assert_eq!(refused, Err(R::LeaseRunning { until }));
    let mut story = story.wait(HOUR - VISIBILITY);
    assert_eq!(story.resolve_as(&Resolution::NotExecuted, &reviewer), Ok(()));
    // A policy that was loosened does not.
    let mut story = begun(asking()).lost(1).wait(MINUTE);
    story.policy.downstream.status = None;
    let reviewer = story.reviewer();
    let refused = story.resolve_as(&Resolution::NotExecuted, &reviewer);
    assert_eq!(refused, Err(R::LeaseRunning { until: VISIBLE_FROM }));
}

#[test]
fn a_resolution_says_who_and_why() {
    let story = unknown_past_visibility().resolved(&Resolution::NotExecuted);
    let settlement = story.row().settlement.as_ref().unwrap();
    assert_eq!(settlement.provenance, Provenance::Operator);
    assert_eq!((settlement.by.as_str(), settlement.note.as_str()), ("ann", "looked into it"));
    assert_eq!(story.kinds(), [EventKind::Resolved]);
}

#[test]
fn a_persons_word_settles_every_attempt() {
    let mut story = begun(deduplicating()).lost(1).begin(2).lost(2).wait(HOUR);
    story = story.resolved(&Resolution::NotExecuted);
    assert!(story.row().is_harmless());
    let story = story.begin(3);
    assert_eq!(story.row().current().unwrap().granted_on, GrantedOn::Retry);
}

#[test]
fn what_a_person_finds_executed_after_a_failure_is_a_conflict_that_was_seen() {
    let row = begun(plain()).failed(1).resolved(&executed()).row.unwrap();
    assert_eq!((row.conflict, row.needs_attention), (true, false));
}

#[test]
fn a_denial_that_is_reopened_waits_as_long_as_the_first_proposal_did() {
    let story = proposed().denied().wait(400 * DAY).resolved(&Resolution::NotExecuted);
    let approval = story.row().approval.as_ref().unwrap();
    assert_eq!(approval.expires_at, story.now() + 72 * HOUR);
    assert_eq!((story.row().settlement.clone(), story.row().settled_at), (None, None));
    assert_eq!(story.approved().state(), State::Approved);
}

#[test]
fn an_etag_changes_with_what_a_person_decides_on_and_not_with_counters() {
    let story = begun(deduplicating()).lost(1);
    let etag = story.row().etag();
    let mut counted = story.row().clone();
    counted.replay_count += 7;
    counted.last_seen_at = Some(START);
    assert_eq!(counted.etag(), etag);

    let next: [fn(Story) -> Story; 4] = [
        |story| story.begin(2),
        |story| story.completed(1, "r"),
        |story| story.failed(1),
        |story| story.hear(&Answer::Executed { result: body("r"), downstream_ref: None }),
    ];
    for change in next {
        assert_ne!(change(story.clone()).row().etag(), etag);
    }
    let proposed = proposed();
    assert_ne!(proposed.clone().approved().row().etag(), proposed.row().etag());
}

#[test]
fn a_yes_that_nobody_uses_runs_out() {
    let story = proposed().approved().wait(HOUR - SECOND).expired();
    assert_eq!(story.state(), State::Approved);
    let story = story.wait(SECOND).expired();
    assert_eq!((story.state(), story.row().first_look_at()), (State::Denied, None));
    assert_eq!(words(&story.ask(&call(2))), "AWAIT_APPROVAL, new");
}
