//! The contract's table "Begin, decided", a row a line.

use super::{row::plain_event, *};
use crate::domain::event::EventKind;
use crate::domain::fixtures::*;
use crate::domain::review::Resolution;
use crate::domain::tool::ApprovalRule;
use crate::domain::verdict::Answer;

type Told = fn() -> Story;

/// A Begin by `attempt` after the story, with the answer in the contract's words.
type Line = (&'static str, Told, u128, &'static str);

fn begun(policy: ToolPolicy) -> Story {
    Story::under(policy).begin(1)
}

fn proposed() -> Story {
    Story::gated().begin(1)
}

fn retry_in_flight() -> Story {
    begun(plain()).failed(1).begin(2)
}

/// A gated intent that failed and was proposed anew, and then was acted on without a grant.
fn acted_on_without_a_grant(policy: ToolPolicy) -> Story {
    let approval = gated().approval;
    let mut story = proposed().approved();
    story.policy = ToolPolicy { approval, ..policy };
    story.begin(1).failed(1).wait(2 * HOUR).begin(2).lost(9)
}

const LINES: &[Line] = &[
    ("nothing", || Story::under(plain()), 1, "EXECUTE NEW"),
    ("nothing, gated", Story::gated, 1, "AWAIT_APPROVAL, new"),
    // Proposals.
    ("awaiting", proposed, 2, "AWAIT_APPROVAL"),
    ("awaiting, the proposer again", proposed, 1, "AWAIT_APPROVAL"),
    ("awaiting, expired unswept", || proposed().wait(72 * HOUR), 2, "AWAIT_APPROVAL, new"),
    ("approved", || proposed().approved(), 1, "EXECUTE APPROVED"),
    ("approved, another caller", || proposed().approved(), 2, "EXECUTE APPROVED"),
    ("approved, spent", || proposed().approved().begin(2), 3, "HOLD IN_FLIGHT"),
    ("approved, validity over", || proposed().approved().wait(HOUR), 2, "AWAIT_APPROVAL, new"),
    (
        "retry of an approved intent, validity running",
        || proposed().approved().begin(1).failed(1),
        2,
        "EXECUTE RETRY",
    ),
    (
        "retry of an approved intent, validity over",
        || proposed().approved().begin(1).failed(1).wait(HOUR),
        2,
        "AWAIT_APPROVAL, new",
    ),
    (
        "approved anew, an id of the first round",
        || proposed().approved().begin(1).failed(1).wait(HOUR).begin(2).approved(),
        1,
        "HOLD SUPERSEDED",
    ),
    ("denied", || proposed().denied(), 2, "REFUSE DENIED"),
    ("denied, long ago", || proposed().denied().wait(400 * DAY), 2, "REFUSE DENIED"),
    ("expired", || proposed().wait(72 * HOUR).expired(), 2, "AWAIT_APPROVAL, new"),
    (
        "denied, reopened by a person",
        || proposed().denied().resolved(&Resolution::NotExecuted),
        2,
        "AWAIT_APPROVAL",
    ),
    // The same attempt id.
    ("started, resent", || begun(plain()).wait(9 * SECOND), 1, "EXECUTE RESENT"),
    ("started, resend window over", || begun(plain()).wait(10 * SECOND), 1, "HOLD SUPERSEDED"),
    ("started, resent after the lease", || begun(plain()).wait(HOUR), 1, "HOLD SUPERSEDED"),
    ("unknown, same id", || begun(plain()).lost(1), 1, "HOLD SUPERSEDED"),
    (
        "unknown under de-duplication, same id",
        || begun(deduplicating()).lost(1),
        1,
        "HOLD SUPERSEDED",
    ),
    ("failed, same id", || begun(plain()).failed(1), 1, "HOLD SUPERSEDED"),
    ("superseded, same id", || retry_in_flight(), 1, "HOLD SUPERSEDED"),
    ("completed, same id", || begun(plain()).completed(1, "r"), 1, "REPLAY COMPLETED"),
    // Another attempt id while nobody has settled.
    ("lease running", || begun(plain()).wait(59 * SECOND), 2, "HOLD IN_FLIGHT"),
    ("lease running, de-duplicated", || begun(deduplicating()), 2, "HOLD IN_FLIGHT"),
    ("lease running, same transaction", || begun(transactional()), 2, "HOLD IN_FLIGHT"),
    ("lease over", || begun(plain()).wait(MINUTE), 2, "HOLD NEEDS_ATTENTION"),
    ("lease over for 400 days", || begun(plain()).wait(400 * DAY), 2, "HOLD NEEDS_ATTENTION"),
    ("lease over, askable", || begun(asking()).wait(MINUTE), 2, "HOLD OUTCOME_UNKNOWN"),
    (
        "lease over, askable, 400 days",
        || begun(asking()).wait(400 * DAY),
        2,
        "HOLD OUTCOME_UNKNOWN",
    ),
    (
        "lease over, window open",
        || begun(deduplicating()).wait(MINUTE),
        2,
        "EXECUTE DOWNSTREAM_DEDUPES",
    ),
    (
        "lease over, window outlasts the new lease",
        || begun(deduplicating()).wait(WINDOW - 61 * SECOND),
        2,
        "EXECUTE DOWNSTREAM_DEDUPES",
    ),
    (
        "lease over, window ends with the new lease",
        || begun(deduplicating()).wait(WINDOW - MINUTE),
        2,
        "HOLD NEEDS_ATTENTION",
    ),
    ("lease over, same transaction", || begun(transactional()).wait(MINUTE), 2, "EXECUTE FENCED"),
    ("unknown", || begun(plain()).lost(1), 2, "HOLD NEEDS_ATTENTION"),
    ("unknown for 400 days", || begun(plain()).lost(1).wait(400 * DAY), 2, "HOLD NEEDS_ATTENTION"),
    ("unknown, askable", || begun(asking()).lost(1), 2, "HOLD OUTCOME_UNKNOWN"),
    (
        "unknown, askable, given up",
        || {
            let running = begun(asking()).lost(1).hear(&Answer::Running);
            running.wait(GIVE_UP_AFTER).hear(&Answer::Running)
        },
        2,
        "HOLD NEEDS_ATTENTION",
    ),
    ("unknown, window open", || begun(deduplicating()).lost(1), 2, "EXECUTE DOWNSTREAM_DEDUPES"),
    (
        "unknown, window over",
        || begun(deduplicating()).lost(1).wait(WINDOW),
        2,
        "HOLD NEEDS_ATTENTION",
    ),
    (
        "unknown, window counted from the first grant",
        || begun(deduplicating()).lost(1).wait(23 * HOUR).begin(2).lost(2).wait(HOUR),
        3,
        "HOLD NEEDS_ATTENTION",
    ),
    ("unknown, same transaction", || begun(transactional()).lost(1), 2, "EXECUTE FENCED"),
    (
        "unknown, window promised to the attempt but dropped since",
        || {
            let mut story = begun(deduplicating()).lost(1);
            story.policy = plain();
            story
        },
        2,
        "HOLD NEEDS_ATTENTION",
    ),
    (
        "unknown, window promised since, but not to the attempt",
        || {
            let mut story = begun(plain()).lost(1);
            story.policy = deduplicating();
            story
        },
        2,
        "HOLD NEEDS_ATTENTION",
    ),
    (
        "unknown, transaction promised since, but not to the attempt",
        || {
            let mut story = begun(plain()).lost(1);
            story.policy = transactional();
            story
        },
        2,
        "HOLD NEEDS_ATTENTION",
    ),
    (
        "a later failure beside an attempt of unknown fate",
        || begun(deduplicating()).lost(1).begin(2).failed(2).wait(WINDOW),
        3,
        "HOLD NEEDS_ATTENTION",
    ),
    (
        "acted on without a grant, de-duplicated",
        || acted_on_without_a_grant(deduplicating()),
        3,
        "HOLD NEEDS_ATTENTION",
    ),
    (
        "acted on without a grant, same transaction",
        || acted_on_without_a_grant(transactional()),
        3,
        "HOLD NEEDS_ATTENTION",
    ),
    // Settled.
    ("completed", || begun(plain()).completed(1, "r"), 2, "REPLAY COMPLETED"),
    (
        "completed, pruned",
        || {
            let mut story = begun(plain()).completed(1, "r");
            let row = story.row.as_mut().expect("it has begun");
            row.pruned = true;
            row.result.as_mut().expect("it has a result").bytes = None;
            story
        },
        2,
        "REPLAY RESULT_PRUNED",
    ),
    ("failed", || begun(plain()).failed(1), 2, "EXECUTE RETRY"),
    ("failed twice", || begun(plain()).failed(1).begin(2).failed(2), 3, "EXECUTE RETRY"),
    (
        "failed max_attempts times",
        || begun(plain()).failed(1).begin(2).failed(2).begin(3).failed(3),
        4,
        "REFUSE FAILED_FINAL",
    ),
    (
        "failed max_attempts times, one of them never began",
        || begun(plain()).failed(1).begin(2).never_granted(2).begin(3).failed(3),
        4,
        "EXECUTE RETRY",
    ),
    (
        "failed by the reconciler, then found never to have begun",
        || {
            let mut story = begun(asking()).wait(MINUTE + VISIBILITY).hear(&Answer::Absent);
            story.policy.max_attempts = 1;
            story.wait(MINUTE).hear(&Answer::Absent).never_granted(1)
        },
        2,
        "EXECUTE RETRY",
    ),
    (
        "failed and final by policy",
        || begun(ToolPolicy { retry_failed: false, ..plain() }).failed(1),
        2,
        "REFUSE FAILED_FINAL",
    ),
    (
        "never began, though failures are final",
        || begun(ToolPolicy { retry_failed: false, ..plain() }).never_granted(1),
        2,
        "EXECUTE RETRY",
    ),
    (
        "final, reopened by a person",
        || {
            let policy = ToolPolicy { max_attempts: 1, retry_failed: false, ..plain() };
            begun(policy).failed(1).resolved(&Resolution::NotExecuted)
        },
        2,
        "EXECUTE RETRY",
    ),
    (
        "final, reopened, failed again",
        || {
            let policy = ToolPolicy { max_attempts: 1, retry_failed: false, ..plain() };
            begun(policy).failed(1).resolved(&Resolution::NotExecuted).begin(2).failed(2)
        },
        3,
        "REFUSE FAILED_FINAL",
    ),
    (
        "unknown, a person says that nothing happened",
        || begun(plain()).lost(1).wait(MINUTE).resolved(&Resolution::NotExecuted),
        2,
        "EXECUTE RETRY",
    ),
    (
        "unknown, a person says that it happened",
        || begun(plain()).lost(1).resolved(&Resolution::Executed(body("r"))),
        2,
        "REPLAY COMPLETED",
    ),
    (
        "unknown, acknowledged only",
        || begun(plain()).lost(1).resolved(&Resolution::Acknowledged),
        2,
        "HOLD NEEDS_ATTENTION",
    ),
];

#[test]
fn a_begin_is_answered_as_the_table_says() {
    for (found, story, attempt, answer) in LINES {
        assert_eq!(words(&story().ask(&call(*attempt))), *answer, "{found}, attempt {attempt}");
    }
}

#[test]
fn other_binding_arguments_are_told_before_all_else_and_touch_no_row() {
    let other = candidate(r#"{"amount":1201,"order":"o-17"}"#, KeyBasis::BusinessIds);
    for (found, story, attempt, _) in LINES {
        let mut story = story();
        story.policy.halted = true;
        let Some(row) = story.row.as_ref() else { continue };
        let decision =
            decide(Some(row), &call(*attempt), &other, &story.policy, &story.facts).unwrap();
        let Decision::ParametersChanged { pointers } = decision else {
            panic!("{found}: {decision:?}")
        };
        assert_eq!(pointers, [Pointer::member("amount")], "{found}");
    }
}

#[test]
fn a_gate_stands_before_every_execute_but_a_resent_one() {
    type Close = fn(&mut Story);
    let gates: [(Close, &str); 3] = [
        (|story| story.policy.halted = true, "REFUSE TOOL_HALTED"),
        (
            |story| (story.policy.limit_per_run, story.facts.slot_free) = (Some(1), false),
            "REFUSE RUN_LIMIT",
        ),
        (
            |story| (story.policy.listed, story.policy.refuse_unlisted) = (false, true),
            "REFUSE TOOL_NOT_LISTED",
        ),
    ];
    for (found, story, attempt, answer) in LINES {
        for (close, refusal) in gates {
            let mut story = story();
            close(&mut story);
            let new = story.row.is_none() && refusal == "REFUSE TOOL_NOT_LISTED";
            let grants = answer.starts_with("EXECUTE") && *answer != "EXECUTE RESENT";
            let expected = if grants || new { refusal } else { answer };
            assert_eq!(words(&story.ask(&call(*attempt))), expected, "{found}");
        }
    }
}

#[test]
fn a_class_that_records_nothing_executes_each_time_unless_halted() {
    for class in [Class::ReadOnly, Class::Idempotent] {
        let mut story = Story::under(ToolPolicy { class, ..plain() });
        for _ in 0..3 {
            assert_eq!(words(&story.begin_as(&call(1))), "EXECUTE NOT_RECORDED");
            assert_eq!(story.row, None);
        }
        story.policy.halted = true;
        assert_eq!(words(&story.ask(&call(1))), "REFUSE TOOL_HALTED");
    }
}

#[test]
fn a_row_decides_though_the_class_has_changed_since() {
    for (found, story, attempt, answer) in LINES {
        let mut story = story();
        if story.row.is_some() {
            story.policy.class = Class::ReadOnly;
            assert_eq!(words(&story.ask(&call(*attempt))), *answer, "{found}");
        }
    }
}

#[test]
fn a_new_row_meets_orphans_then_look_alikes_then_approval_then_the_gates() {
    let orphan = plain_event(State::Unknown, START);
    use LookAlikeAction::{AwaitApproval, Refuse, Warn};
    let line = |orphans: &[Event], action, approval_required, halted, slot_free| {
        let policy = ToolPolicy { halted, limit_per_run: Some(1), ..gated() };
        let mut story = Story::under(looking_alike(policy, action));
        story.facts = Facts {
            orphans: orphans.to_vec(),
            similar: vec![Key::from_bytes([8; 32])],
            approval_required,
            slot_free,
            ..Facts::at(START)
        };
        story
    };
    let lines = [
        (line(&[orphan], Refuse, true, true, false), "HOLD NEEDS_ATTENTION"),
        (line(&[], Refuse, true, true, false), "REFUSE LOOK_ALIKE_LIMIT"),
        (line(&[], AwaitApproval, false, true, false), "AWAIT_APPROVAL, new"),
        (line(&[], Warn, true, true, false), "AWAIT_APPROVAL, new"),
        (line(&[], Warn, false, true, false), "REFUSE TOOL_HALTED"),
        (line(&[], Warn, false, false, false), "REFUSE RUN_LIMIT"),
        (line(&[], Warn, false, false, true), "EXECUTE NEW"),
    ];
    for (story, answer) in &lines {
        assert_eq!(words(&story.ask(&call(1))), *answer, "{:?}", story.facts);
        // Where nothing looks the same, no action follows.
        let mut alone = story.clone();
        alone.facts.similar.clear();
        let alone = words(&alone.ask(&call(1)));
        assert!(!alone.contains("LOOK_ALIKE"), "{alone}");
    }
}

#[test]
fn a_proposal_names_what_it_looks_like() {
    let other = Key::from_bytes([8; 32]);
    let mut story = Story::under(looking_alike(plain(), LookAlikeAction::AwaitApproval));
    story.facts.similar = vec![other];
    let story = story.begin(1);
    assert_eq!(story.events[0].note, format!("looks like {other}"));
    let approval = story.row().approval.as_ref().unwrap();
    let terms = ApprovalRule::default();
    assert_eq!(approval.expires_at, START + terms.expires);
    assert_eq!(approval.valid_for, terms.valid_for);
    // Whoever asked first waits for nobody: only a new row is compared.
    assert_eq!(words(&story.approved().ask(&call(2))), "EXECUTE APPROVED");
}

#[test]
fn a_limit_needs_a_run_to_count_for() {
    let mut story = Story::under(ToolPolicy { limit_per_run: Some(1), ..plain() });
    let nowhere = BeginCall { run_id: String::new(), ..call(1) };
    assert_eq!(words(&story.ask(&nowhere)), "RUN_REQUIRED");
    // A row of before the limit is still served.
    story.policy.limit_per_run = None;
    story.begin_as(&nowhere);
    let mut story = story.failed(1);
    story.policy.limit_per_run = Some(1);
    story.facts.slot_free = false;
    let again = BeginCall { run_id: String::new(), ..call(2) };
    assert_eq!(words(&story.begin_as(&again)), "EXECUTE RETRY");
    assert_eq!(story.row().slot, RunSlot::None);
}

#[test]
fn a_slot_is_held_until_the_intent_has_failed_and_taken_again_by_a_retry() {
    let limited = ToolPolicy { limit_per_run: Some(1), ..deduplicating() };
    let slot = |story: &Story| story.row().slot;
    let begun = begun(limited.clone());
    assert_eq!(slot(&begun), RunSlot::Held);
    assert_eq!(slot(&begun.clone().completed(1, "a")), RunSlot::Held);
    // Of unknown outcome: a further grant takes no second slot, even if none is left.
    let mut lost = begun.clone().lost(1);
    assert_eq!(slot(&lost), RunSlot::Held);
    lost.facts.slot_free = false;
    assert_eq!(words(&lost.begin_as(&call(2))), "EXECUTE DOWNSTREAM_DEDUPES");
    let mut failed = begun.failed(1);
    assert_eq!(slot(&failed), RunSlot::GivenBack);
    failed.facts.slot_free = false;
    assert_eq!(words(&failed.ask(&call(2))), "REFUSE RUN_LIMIT");
    failed.facts.slot_free = true;
    assert_eq!(slot(&failed.clone().begin(2)), RunSlot::Held);
    // It happened after all, so it counts, whether or not there is room.
    assert_eq!(slot(&failed.completed(1, "a")), RunSlot::Held);
    // A proposal holds none, nor does an approval.
    let mut story = Story::under(ToolPolicy { approval: gated().approval, ..limited });
    story.facts.approval_required = true;
    let story = story.begin(1);
    assert_eq!(slot(&story), RunSlot::None);
    let mut story = story.approved();
    assert_eq!(slot(&story), RunSlot::None);
    story.facts.slot_free = false;
    assert_eq!(words(&story.begin_as(&call(2))), "REFUSE RUN_LIMIT");
    assert_eq!(story.state(), State::Approved, "the approval is unspent");
    story.facts.slot_free = true;
    assert_eq!(slot(&story.begin(2)), RunSlot::Held);
}

#[test]
fn a_key_of_step_and_arguments_is_too_weak_for_a_tool_that_may_need_approval() {
    let weak = candidate(ARGUMENTS, KeyBasis::StepArguments);
    let mut alike = Story::under(looking_alike(plain(), LookAlikeAction::AwaitApproval));
    alike.facts.similar = vec![Key::from_bytes([8; 32])];
    for story in [Story::gated(), Story::under(gated()), alike] {
        let decision = decide(None, &call(1), &weak, &story.policy, &story.facts).unwrap();
        assert_eq!(words(&decision), "WEAK_KEY");
    }
    let decision = decide(None, &call(1), &weak, &plain(), &Facts::at(START)).unwrap();
    assert_eq!(words(&decision), "EXECUTE NEW");
}

#[test]
fn orphan_facts_become_a_row_that_only_a_person_moves() {
    let mut story = Story::under(deduplicating());
    story.facts.orphans = vec![plain_event(State::Unknown, START)];
    story = story.begin(1);
    story.facts.orphans.clear();
    assert_eq!((story.state(), story.row().needs_attention), (State::Unknown, true));
    for _ in 0..5 {
        story = story.wait(DAY).hear(&Answer::Absent);
        assert_eq!(words(&story.ask(&call(2))), "HOLD NEEDS_ATTENTION");
    }
    let story = story.resolved(&Resolution::NotExecuted);
    assert_eq!(words(&story.ask(&call(2))), "EXECUTE RETRY");
}

#[test]
fn only_the_same_caller_is_resent_its_execute_and_only_before_a_heartbeat() {
    let story = begun(plain());
    let mut foreign = call(1);
    foreign.caller = "worker-2".to_owned();
    assert_eq!(words(&story.ask(&foreign)), "HOLD SUPERSEDED");

    let mut extended = story;
    extended.report_extend(1, MINUTE, None).0.unwrap();
    assert_eq!(words(&extended.ask(&call(1))), "HOLD SUPERSEDED");
}

#[test]
fn in_flight_says_how_long_the_lease_still_runs() {
    let Decision::Hold { retry_after, .. } = begun(plain()).wait(20 * SECOND).ask(&call(2)) else {
        panic!("it is held");
    };
    assert_eq!(retry_after, Some(40 * SECOND));
}

#[test]
fn what_a_probe_found_at_this_begin_is_named_as_the_reason() {
    let mut story = begun(asking()).wait(MINUTE + VISIBILITY).hear(&Answer::Absent);
    story = story.wait(MINUTE).hear(&Answer::Absent);
    story.facts.probed = true;
    assert_eq!(words(&story.ask(&call(2))), "EXECUTE NOT_EXECUTED");
}

#[test]
fn a_lease_is_clamped_to_its_maximum_and_to_the_window() {
    let asked = |lease| BeginCall { lease: Some(lease), ..call(2) };
    let lines = [
        (Story::under(plain()), asked(HOUR), HOUR, false),
        (Story::under(plain()), asked(2 * HOUR), HOUR, true),
        (begun(deduplicating()).failed(1).wait(WINDOW - SECOND), asked(MINUTE), SECOND, true),
        // A window that is over limits nothing: a retry does not rest on it.
        (begun(deduplicating()).failed(1).wait(WINDOW), asked(MINUTE), MINUTE, false),
    ];
    for (mut story, call, given, clamped) in lines {
        let Decision::Execute { lease_clamped, .. } = story.begin_as(&call) else {
            panic!("it is granted")
        };
        let attempt = story.row().current().unwrap();
        assert_eq!((attempt.lease_expires_at.since(story.now()), lease_clamped), (given, clamped));
    }
}

#[test]
fn a_fenced_attempt_can_no_longer_have_its_effect() {
    let story = begun(transactional()).wait(MINUTE).begin(2);
    let fates: Vec<Fate> = story.row().attempts.iter().map(|attempt| attempt.fate).collect();
    assert_eq!(fates, [Fate::Fenced, Fate::Open]);
    assert_eq!(story.kinds(), [EventKind::Superseded]);
    assert_eq!(story.failed(2).state(), State::Failed);
}

#[test]
fn all_attempts_share_a_downstream_key_until_a_policy_asks_for_another_after_a_failure() {
    let renewing = |mut policy: ToolPolicy| {
        policy.downstream.new_key_after_failed = true;
        policy
    };
    let key = |story: &Story| story.row().downstream_key();

    let first = begun(renewing(deduplicating()));
    assert_eq!(key(&first), key(&first.clone().lost(1).begin(2)), "to be de-duplicated");
    assert_ne!(key(&first), key(&first.clone().failed(1).begin(2)), "a retry");

    let first = Story { policy: renewing(gated()), ..proposed() }.approved().begin(1);
    let second = first.clone().failed(1).wait(HOUR).begin(2).approved().begin(2);
    assert_ne!(key(&first), key(&second), "a retry that was approved anew");
}

#[test]
fn a_new_proposal_forgets_who_settled_the_old_one() {
    let story = proposed().wait(72 * HOUR).expired();
    assert!(story.row().settled_at.is_some());
    let story = story.begin(2);
    assert_eq!((story.row().settlement.clone(), story.row().settled_at), (None, None));
    assert_eq!(story.kinds(), [EventKind::Proposed]);
}

/// What was reported before it was ever begun has passed no gate: it does when it is retried.
#[test]
fn what_was_never_begun_passes_the_gates_at_its_retry() {
    let mut story = Story::under(gated());
    story.facts.orphans = vec![plain_event(State::Unknown, START)];
    let mut story = story.begin(1).wait(DAY);
    story.facts.orphans.clear();
    let mut story = story.resolved(&Resolution::NotExecuted);
    assert_eq!(story.state(), State::Failed);
    assert_eq!(words(&story.ask(&call(2))), "EXECUTE RETRY", "its arguments need nobody");
    story.facts.approval_required = true;
    assert_eq!(words(&story.ask(&call(2))), "AWAIT_APPROVAL, new");
}

/// A success that was reported without a grant may be the one that was approved.
#[test]
fn what_was_approved_and_contradicted_waits_for_a_person() {
    let mut story = Story::gated().begin(1).approved();
    story.row.as_mut().unwrap().conflict = true;
    story.row.as_mut().unwrap().needs_attention = true;
    assert_eq!(words(&story.ask(&call(1))), "HOLD NEEDS_ATTENTION");
    let story = story.resolved(&Resolution::Acknowledged);
    assert_eq!(words(&story.ask(&call(1))), "EXECUTE APPROVED");
}
