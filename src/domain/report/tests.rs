//! The contract's list "Settling" and its table of settle errors, a row a line.

use super::*;
use crate::domain::fixtures::*;
use crate::domain::review::Resolution;
use crate::domain::verdict::Answer;

/// What an attempt reports.
#[derive(Debug, Clone, Copy)]
enum Report {
    /// A success with this result.
    Complete(&'static str),
    /// A success with neither result nor reference.
    Bare,
    /// A success with nothing but a reference.
    Referred(&'static str),
    /// A definite failure with this code.
    Failed(&'static str),
    /// An outcome that the caller does not know.
    Lost,
}
use Report::{Bare, Complete as Done, Failed, Lost, Referred};

fn send(story: &mut Story, attempt: u128, report: Report) -> Result<(), Refusal> {
    match report {
        Done(text) => story.report_complete(attempt, body(text), None),
        Bare => story.report_complete(attempt, no_body(), None),
        Referred(reference) => story.report_complete(attempt, no_body(), Some(reference)),
        Failed(code) => story.report_fail(attempt, true, code),
        Lost => story.report_fail(attempt, false, "http_504"),
    }
}

fn begun(policy: ToolPolicy) -> Story {
    Story::under(policy).begin(1)
}

/// Attempt 2 was granted beside attempt 1, which may have had its effect.
fn beside() -> Story {
    begun(deduplicating()).wait(MINUTE).begin(2)
}

/// Attempt 2 was granted because attempt 1 was known not to have had its effect.
fn after_failure() -> Story {
    begun(plain()).failed(1).begin(2)
}

fn proposed() -> Story {
    Story::gated().begin(1)
}

fn absent_downstream() -> Story {
    begun(asking())
        .wait(MINUTE + VISIBILITY)
        .hear(&Answer::Absent)
        .wait(MINUTE)
        .hear(&Answer::Absent)
}

fn found_downstream() -> Story {
    let found = Answer::Executed { result: body("found"), downstream_ref: None };
    begun(asking()).wait(MINUTE).hear(&found)
}

type Told = fn() -> Story;
type Answered = Result<(), Refusal>;

const CONFLICT: bool = true;

/// A report by an attempt after the story; answer, state, conflict and what is kept for people.
type Line = (&'static str, Told, u128, Report, Answered, State, bool, &'static [EventKind]);

use EventKind as E;
use Refusal as R;
use State as S;

#[rustfmt::skip]
const LINES: &[Line] = &[
    // The ordinary road.
    ("complete", || begun(plain()), 1, Done("r"), Ok(()), S::Completed, false, &[]),
    ("complete, lease over", || begun(plain()).wait(400 * DAY), 1, Done("r"), Ok(()), S::Completed, false, &[]),
    ("complete without anything, in time", || begun(plain()), 1, Bare, Ok(()), S::Completed, false, &[]),
    ("failure", || begun(plain()), 1, Failed("http_422"), Ok(()), S::Failed, false, &[]),
    ("unknown", || begun(plain()), 1, Lost, Ok(()), S::Unknown, false, &[]),
    ("never granted", || begun(plain()), 1, Failed(NEVER_GRANTED), Ok(()), S::Failed, false, &[]),
    // UNKNOWN needs evidence.
    ("unknown, bare success", || begun(plain()).lost(1), 1, Bare, Err(R::EvidenceRequired), S::Unknown, false, &[E::Unproven]),
    ("unknown, success with a reference", || begun(plain()).lost(1), 1, Referred("ch_1"), Ok(()), S::Completed, false, &[E::LeftUnknown]),
    ("unknown, success with a result", || begun(plain()).lost(1), 1, Done("r"), Ok(()), S::Completed, false, &[E::LeftUnknown]),
    ("unknown, then a definite failure", || begun(plain()).lost(1), 1, Failed("http_422"), Ok(()), S::Failed, false, &[E::LeftUnknown]),
    // The same report again.
    ("complete again", || begun(plain()).completed(1, "r"), 1, Done("r"), Ok(()), S::Completed, false, &[]),
    ("failure again", || begun(plain()).failed(1), 1, Failed("http_422"), Ok(()), S::Failed, false, &[]),
    ("unknown again", || begun(plain()).lost(1), 1, Lost, Ok(()), S::Unknown, false, &[]),
    ("failure again, superseded since", after_failure, 1, Failed("http_422"), Ok(()), S::Started, false, &[]),
    ("unknown again, superseded since", || begun(deduplicating()).lost(1).begin(2), 1, Lost, Ok(()), S::Started, false, &[]),
    ("unknown again, completed since", || begun(deduplicating()).lost(1).begin(2).completed(2, "r"), 1, Lost, Ok(()), S::Completed, false, &[]),
    ("another result", || begun(plain()).completed(1, "r"), 1, Done("s"), Err(R::AlreadySettled), S::Completed, false, &[E::LateComplete]),
    ("an empty result for an absent one", || { let mut story = begun(plain()); send(&mut story, 1, Bare).unwrap(); story }, 1, Done(""), Err(R::AlreadySettled), S::Completed, false, &[E::LateComplete]),
    // A superseded attempt succeeds.
    ("superseded on de-duplication, completes", beside, 1, Done("r"), Ok(()), S::Completed, false, &[E::LateComplete]),
    ("superseded after a failure, completes", after_failure, 1, Done("r"), Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    ("both succeed alike", || beside().completed(2, "r"), 1, Done("r"), Ok(()), S::Completed, false, &[E::LateComplete]),
    ("both succeed alike, the other way round", || beside().completed(1, "r"), 2, Done("r"), Ok(()), S::Completed, false, &[E::LateComplete]),
    ("both succeed differently", || beside().completed(2, "r"), 1, Done("s"), Err(R::AlreadySettled), S::Completed, false, &[E::LateComplete]),
    ("both succeed, one after the other's failure", || after_failure().completed(2, "r"), 1, Done("r"), Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    ("the newer succeeds after the conflict", || after_failure().completed(1, "r"), 2, Done("s"), Err(R::AlreadySettled), S::Completed, CONFLICT, &[E::Contradiction]),
    ("success after failure, where the reconciler found the newer one", || { let mut story = after_failure(); story.policy = asking(); story.wait(MINUTE).hear(&Answer::Executed { result: body("r"), downstream_ref: None }) }, 1, Done("r"), Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    // A superseded attempt fails.
    ("superseded on de-duplication, fails", beside, 1, Failed("http_422"), Err(R::AttemptSuperseded), S::Started, false, &[E::LateFail]),
    ("superseded on de-duplication, lost", beside, 1, Lost, Err(R::AttemptSuperseded), S::Started, false, &[E::LateFail]),
    ("superseded after a failure, fails otherwise", after_failure, 1, Failed("http_500"), Err(R::AttemptSuperseded), S::Started, false, &[E::LateFail]),
    ("superseded after a failure, lost", after_failure, 1, Lost, Err(R::AttemptSuperseded), S::Started, true, &[E::LateFail]),
    // Failed only when every attempt is known not to have executed.
    ("the newer fails, the older is open", beside, 2, Failed("http_422"), Ok(()), S::Unknown, false, &[]),
    ("the newer never began, the older is open", beside, 2, Failed(NEVER_GRANTED), Ok(()), S::Unknown, false, &[]),
    ("the older fails, the newer has failed", || beside().failed(2), 1, Failed("http_422"), Err(R::AttemptSuperseded), S::Failed, false, &[E::LeftUnknown]),
    ("the older is lost, the newer has failed", || beside().failed(2), 1, Lost, Err(R::AttemptSuperseded), S::Unknown, false, &[E::LateFail]),
    // After COMPLETED.
    ("failure after success", || begun(plain()).completed(1, "r"), 1, Failed("http_422"), Err(R::AlreadySettled), S::Completed, false, &[E::LateFail]),
    ("unknown after success", || begun(plain()).completed(1, "r"), 1, Lost, Err(R::AlreadySettled), S::Completed, false, &[E::LateFail]),
    ("failure after another's success", || beside().completed(2, "r"), 1, Failed("http_422"), Err(R::AlreadySettled), S::Completed, false, &[E::LateFail]),
    ("success after the reconciler's", found_downstream, 1, Done("r"), Ok(()), S::Completed, false, &[E::LateComplete]),
    ("success after a person's", || begun(plain()).lost(1).resolved(&Resolution::Executed(no_body())), 1, Done("r"), Ok(()), S::Completed, false, &[E::LateComplete]),
    ("failure after the reconciler's success", found_downstream, 1, Failed("http_422"), Err(R::AlreadySettled), S::Completed, false, &[E::LateFail]),
    // After FAILED.
    ("success after failure", || begun(plain()).failed(1), 1, Done("r"), Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    ("bare success after failure", || begun(plain()).failed(1), 1, Bare, Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    ("success after the reconciler's absence", absent_downstream, 1, Done("r"), Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    ("success after never granted", || begun(plain()).never_granted(1), 1, Done("r"), Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    ("success of a failed attempt while it is proposed anew", || proposed().approved().begin(1).failed(1).wait(HOUR).begin(2), 1, Done("r"), Ok(()), S::Completed, CONFLICT, &[E::Contradiction]),
    ("failure in other words", || begun(plain()).failed(1), 1, Failed("http_500"), Ok(()), S::Failed, false, &[E::LateFail]),
    ("unknown after failure", || begun(plain()).failed(1), 1, Lost, Err(R::AlreadySettled), S::Failed, true, &[E::LateFail]),
    ("failure after the reconciler's absence", absent_downstream, 1, Failed("http_422"), Ok(()), S::Failed, false, &[E::LateFail]),
    // Without a grant.
    ("complete before approval", proposed, 1, Done("r"), Err(R::NotStarted), S::Unknown, false, &[E::NotStarted]),
    ("failure before approval", proposed, 1, Failed("http_422"), Err(R::NotStarted), S::Unknown, false, &[E::NotStarted]),
    ("never granted, before approval", proposed, 1, Failed(NEVER_GRANTED), Err(R::NotGranted), S::AwaitingApproval, false, &[E::NotGranted]),
    ("complete of a denied intent", || proposed().denied(), 1, Done("r"), Err(R::NotStarted), S::Unknown, false, &[E::NotStarted]),
    ("complete of an expired intent", || proposed().wait(72 * HOUR).expired(), 1, Done("r"), Err(R::NotStarted), S::Unknown, false, &[E::NotStarted]),
    ("stranger, approved", || proposed().approved(), 9, Done("r"), Err(R::NotGranted), S::Approved, true, &[E::NotGranted]),
    ("stranger, started", || begun(plain()), 9, Done("r"), Err(R::NotGranted), S::Started, false, &[E::NotGranted]),
    ("stranger, unknown", || begun(plain()).lost(1), 9, Lost, Err(R::NotGranted), S::Unknown, false, &[E::NotGranted]),
    ("stranger, failed", || begun(plain()).failed(1), 9, Done("r"), Err(R::NotGranted), S::Failed, true, &[E::NotGranted]),
    ("stranger, completed", || begun(plain()).completed(1, "r"), 9, Done("r"), Err(R::NotGranted), S::Completed, false, &[E::NotGranted]),
    // Inside a transaction.
    ("same transaction, complete", || begun(transactional()), 1, Done("r"), Err(R::UseTransaction), S::Started, false, &[E::Unproven]),
    ("same transaction, fail", || begun(transactional()), 1, Failed("http_422"), Ok(()), S::Failed, false, &[]),
];

#[test]
fn a_report_is_settled_as_the_contract_says() {
    for (found, story, attempt, report, answer, state, conflict, kinds) in LINES {
        let mut story = story();
        let attention_before = story.row.as_ref().is_some_and(|row| row.needs_attention);
        assert_eq!(send(&mut story, *attempt, *report), *answer, "{found}");
        let row = story.row();
        assert_eq!((row.state, row.conflict), (*state, *conflict), "{found}");
        assert_eq!(story.kinds(), *kinds, "{found}");
        assert!(!row.conflict || row.needs_attention || attention_before, "{found}");
    }
}

#[test]
fn the_same_report_again_gets_the_same_answer() {
    for (found, story, attempt, report, answer, ..) in LINES {
        let mut story = story();
        let _ = send(&mut story, *attempt, *report);
        let state = story.state();
        let again = send(&mut story, *attempt, *report);
        // What was told to a stranger before approval was that; after it, that it is a stranger.
        let expected = if *answer == Err(R::NotStarted) { Err(R::NotGranted) } else { *answer };
        assert_eq!((again, story.state()), (expected, state), "{found}");
    }
}

#[test]
fn the_first_result_stays_byte_for_byte() {
    for (found, story, attempt, report, ..) in LINES {
        let mut story = story();
        let Some(first) = story.row().result.clone() else { continue };
        let _ = send(&mut story, *attempt, *report);
        assert_eq!(story.row().result.as_ref(), Some(&first), "{found}");
    }
}

#[test]
fn what_was_acted_on_without_approval_is_no_longer_approvable() {
    for mut story in [proposed(), proposed().denied()] {
        assert_eq!(send(&mut story, 1, Done("r")), Err(R::NotStarted));
        assert!(story.row().needs_attention);
        assert_eq!((story.row().settlement.clone(), story.row().settled_at), (None, None));
        let reviewer = story.reviewer();
        assert_eq!(story.decide(true, &reviewer), Err(R::AlreadyDecided));
        assert_eq!(story.state(), State::Unknown);
    }
}

#[test]
fn unknown_needs_a_person_at_once_where_nobody_else_can_tell() {
    let lines =
        [(plain(), true), (asking(), false), (deduplicating(), false), (transactional(), false)];
    for (policy, needs_attention) in lines {
        assert_eq!(begun(policy).lost(1).row().needs_attention, needs_attention);
    }
}

#[test]
fn a_mixed_history_is_not_taken_for_a_fenced_one() {
    let mut story = begun(deduplicating()).wait(MINUTE);
    story.policy.downstream.same_transaction = true;
    story = story.begin(2).wait(WINDOW).lost(2);
    assert!(story.row().needs_attention);
    assert_eq!(words(&story.ask(&call(3))), "HOLD NEEDS_ATTENTION");
}

#[test]
fn a_settlement_names_the_caller_and_the_time() {
    let story = begun(plain()).wait(SECOND).completed(1, "r");
    let settlement = story.row().settlement.clone().unwrap();
    assert_eq!((settlement.provenance, settlement.by.as_str()), (Provenance::Caller, "worker-1"));
    assert_eq!(story.row().settled_at, Some(START + SECOND));
}

#[test]
fn the_same_result_is_recognised_after_it_was_pruned() {
    let mut story = beside().completed(2, "r");
    let row = story.row.as_mut().unwrap();
    row.pruned = true;
    row.result.as_mut().unwrap().bytes = None;
    assert_eq!(send(&mut story, 1, Done("r")), Ok(()));
    assert_eq!(send(&mut story, 1, Done("s")), Err(R::AlreadySettled));
}

#[test]
fn no_reference_is_lost_with_the_report_that_brings_another() {
    type Bring = fn(&mut Story) -> Answered;
    let brought: [(&str, Bring); 4] = [
        ("complete", |story| story.report_complete(1, body("r"), Some("b"))),
        ("fail", |story| {
            let failure =
                Failure { not_executed: true, code: String::new(), message: String::new() };
            story.report_failure(1, failure, Some("b"))
        }),
        ("lost", |story| {
            let failure =
                Failure { not_executed: false, code: String::new(), message: String::new() };
            story.report_failure(1, failure, Some("b"))
        }),
        ("extend", |story| story.report_extend(1, MINUTE, Some("b")).0),
    ];
    for (name, bring) in brought {
        let mut story = begun(plain());
        story.report_extend(1, MINUTE, Some("a")).0.unwrap();
        bring(&mut story).unwrap();
        let kept = story.events.iter().filter_map(|event| event.downstream_ref.as_deref());
        let mut known: Vec<&str> = kept.chain(story.row().downstream_ref.as_deref()).collect();
        known.sort_unstable();
        assert_eq!(known, ["a", "b"], "{name}");
    }
}

#[test]
fn a_repeat_in_other_words_is_a_fact_to_keep() {
    let mut story = begun(plain());
    let failure = |message: &str| Failure {
        not_executed: true,
        code: "http_422".to_owned(),
        message: message.to_owned(),
    };
    for (message, reference, events) in
        [("no", None, 0), ("no", None, 0), ("not at all", None, 1), ("no", Some("id"), 1)]
    {
        assert_eq!(story.report_failure(1, failure(message), reference), Ok(()));
        assert_eq!(story.events.len(), events, "{message}");
    }
    assert_eq!(story.row().downstream_ref.as_deref(), Some("id"));
}

#[test]
fn a_heartbeat_moves_the_lease_as_far_as_the_policy_lets_it() {
    let lines = [
        // (story, asked, lease end from now, clamped)
        (begun(plain()), MINUTE * 5, MINUTE * 5, false),
        (begun(plain()).wait(SECOND), SECOND, 59 * SECOND, false),
        (begun(plain()), 2 * HOUR, HOUR, true),
        (
            begun(deduplicating()).failed(1).wait(WINDOW - 10 * MINUTE).begin(2),
            HOUR,
            10 * MINUTE,
            true,
        ),
        // A window that was over at the grant limits nothing.
        (begun(deduplicating()).failed(1).wait(WINDOW).begin(2), HOUR, HOUR, false),
        // What was granted inside a window ends inside it, though the policy has dropped it since.
        (
            Story {
                policy: plain(),
                ..begun(deduplicating()).lost(1).wait(WINDOW - 5 * MINUTE).begin(2)
            },
            HOUR,
            5 * MINUTE,
            true,
        ),
    ];
    for (index, (mut story, lease, end, clamped)) in lines.into_iter().enumerate() {
        let attempt = story.row().attempts.len() as u128;
        assert_eq!(story.report_extend(attempt, lease, None), (Ok(()), clamped), "line {index}");
        let current = story.row().current().unwrap();
        assert_eq!(current.lease_expires_at.since(story.now()), end, "line {index}");
    }
}

#[test]
fn a_heartbeat_without_the_lease_is_told_why_and_its_reference_is_kept() {
    let lines: [(Told, LostLease); 6] = [
        (|| begun(plain()).wait(MINUTE), LostLease::Expired),
        (beside, LostLease::Superseded),
        (after_failure, LostLease::Superseded),
        (|| begun(plain()).failed(1), LostLease::Settled),
        (|| begun(plain()).lost(1), LostLease::Settled),
        (|| begun(plain()).completed(1, "r"), LostLease::Settled),
    ];
    for (story, lost) in lines {
        let mut story = story();
        let state = story.state();
        let (answer, clamped) = story.report_extend(1, MINUTE, Some("id"));
        assert_eq!((answer, clamped), (Err(R::LeaseLost(lost)), false));
        assert_eq!(story.row().downstream_ref.as_deref(), Some("id"));
        assert_eq!((story.state(), story.kinds()), (state, vec![E::LeaseLost]));
    }
    let mut story = begun(plain());
    assert_eq!(story.report_extend(9, MINUTE, None).0, Err(R::NotGranted));
    assert_eq!(story.kinds(), [E::NotGranted]);
}

#[test]
fn a_cut_result_completes_all_the_same() {
    let mut story = begun(plain());
    let cut = ResultBody::reported(Some(vec![0; 5000]), String::new(), None, 10);
    assert_eq!(story.report_complete(1, cut.clone(), None), Ok(()));
    assert_eq!((story.state(), story.row().result.clone()), (State::Completed, Some(cut)));
}
