use super::*;
use crate::domain::{
    attempt::Fate, canonical_json::Pointer, decision::Decision, event::Provenance, fixtures::*,
    review::Resolution, tool::ApprovalRule,
};

/// The row's term, as a store reads it.
fn term(story: &Story, pruned_at: Option<Timestamp>) -> Term {
    let row = story.row();
    Term {
        state: row.state,
        settled_at: row.settled_at,
        pruned_at: pruned_at.filter(|_| row.pruned),
        needs_attention: row.needs_attention,
    }
}

fn decided(story: &Story, pruned_at: Option<Timestamp>) -> Retention {
    retention(&term(story, pruned_at), &story.policy, story.now())
}

/// A story whose row has become a tombstone now.
fn pruned(mut story: Story) -> Story {
    story.row = Some(tombstone(story.row()));
    story
}

#[test]
fn what_is_settled_is_pruned_after_its_retention_and_purged_after_its_tombstone() {
    // Case 38: begun at 0 h, completed at 23 h.
    let policy = ToolPolicy { retention: 24 * HOUR, tombstone: 400 * DAY, ..plain() };
    let story = Story::under(policy).begin(1).wait(23 * HOUR).completed(1, "r");
    assert_eq!(decided(&story, None), Retention::Keep(START + 47 * HOUR));
    let story = story.wait(23 * HOUR);
    assert_eq!(decided(&story, None), Retention::Keep(START + 47 * HOUR));
    let story = story.wait(HOUR);
    assert_eq!(decided(&story, None), Retention::Prune);
    // The pruner was late: the tombstone's time counts from when there was one.
    let story = pruned(story.wait(HOUR));
    let at = Some(story.now());
    assert_eq!(decided(&story, at), Retention::Keep(story.now() + 400 * DAY));
    assert_eq!(
        decided(&story.clone().wait(399 * DAY), at),
        Retention::Keep(story.now() + 400 * DAY)
    );
    assert_eq!(decided(&story.wait(400 * DAY), at), Retention::Purge);
}

#[test]
fn what_is_not_settled_is_kept_however_old() {
    let stories = [
        ("started", Story::under(plain()).begin(1)),
        ("unknown", Story::under(plain()).begin(1).lost(1)),
        ("awaiting approval", Story::gated().begin(1)),
        ("approved", Story::gated().begin(1).approved()),
        ("retried", Story::under(plain()).begin(1).failed(1).begin(2)),
        // A tombstone that was begun again is none any more.
        ("a tombstone retried", pruned(Story::under(plain()).begin(1).failed(1)).begin(2)),
    ];
    for (name, story) in stories {
        assert!(!story.row().pruned, "{name}");
        let story = story.wait(4000 * DAY);
        let pruned_at = Some(START);
        assert_eq!(decided(&story, pruned_at), Retention::Keep(story.now() + 30 * DAY), "{name}");
    }
}

#[test]
fn failures_and_denials_are_pruned_too() {
    let stories = [
        ("failed", Story::under(plain()).begin(1).failed(1)),
        ("denied", Story::gated().begin(1).denied()),
        ("expired", Story::gated().begin(1).wait(72 * HOUR).expired()),
    ];
    for (name, story) in stories {
        let story = story.wait(30 * DAY);
        assert_eq!(decided(&story, None), Retention::Prune, "{name}");
        // Begun again and settled, it is due long before its tombstone would be.
        let story = pruned(story);
        let at = Some(story.now());
        let day_400 = story.now() + 400 * DAY;
        assert_eq!(decided(&story, at), Retention::Keep(story.now() + 30 * DAY), "{name}");
        let story = story.wait(390 * DAY);
        assert_eq!(decided(&story, at), Retention::Keep(day_400), "{name}");
        assert_eq!(decided(&story.wait(10 * DAY), at), Retention::Purge, "{name}");
    }
}

#[test]
fn what_a_person_has_not_seen_yet_is_kept() {
    let story = Story::under(plain()).begin(1).failed(1).completed(1, "r").wait(60 * DAY);
    assert!(story.row().conflict && story.row().needs_attention);
    assert_eq!(decided(&story, None), Retention::Keep(story.now() + DAY));
    let story = story.resolved(&Resolution::Acknowledged);
    assert_eq!(decided(&story, None), Retention::Prune);
}

/// A late success contradicts the tombstone: its facts are for a person, and must not go unseen.
#[test]
fn a_tombstone_that_a_person_has_not_seen_is_not_purged() {
    let story = Story::under(plain()).begin(1).failed(1).begin(2).completed(2, "r").wait(30 * DAY);
    let mut story = pruned(story);
    let at = Some(story.now());
    story.row.as_mut().unwrap().needs_attention = true;
    let story = story.wait(400 * DAY);
    assert_eq!(decided(&story, at), Retention::Keep(story.now() + DAY));
    let story = story.resolved(&Resolution::Acknowledged);
    assert_eq!(decided(&story, at), Retention::Purge);
}

/// What was approved is forgotten with the arguments: whoever retries it asks a person again.
#[test]
fn a_failed_tombstone_forgets_its_approval() {
    let mut story = Story::gated();
    story.policy.approval = Some(ApprovalRule { expires: HOUR, valid_for: 90 * DAY });
    let story = story.begin(1).approved().begin(1).failed(1);
    assert_eq!(words(&story.ask(&call(2))), "EXECUTE RETRY");
    let story = pruned(story.wait(30 * DAY));
    assert_eq!(words(&story.ask(&call(2))), "AWAIT_APPROVAL, new");
}

#[test]
fn a_tombstone_outlives_whatever_a_server_remembers() {
    let policy = ToolPolicy { tombstone: Duration::ZERO, ..plain() };
    let story = pruned(Story::under(policy).begin(1).completed(1, "r").wait(30 * DAY));
    let at = Some(story.now());
    assert_eq!(decided(&story, at), Retention::Keep(story.now() + TOMBSTONE_LEAST));
    assert_eq!(decided(&story.wait(TOMBSTONE_LEAST), at), Retention::Purge);
}

#[test]
fn a_tombstone_says_nothing_but_answers_as_before() {
    let begun = || {
        let mut begin = call(1);
        begin.labels.insert("customer".to_owned(), "ann".to_owned());
        begin.free_text = vec![Pointer::parse("/memo").expect("a pointer")];
        let mut story = Story::under(plain());
        story.begin_as(&begin);
        story
    };
    let story = pruned(begun().completed(1, "the secret"));
    let row = story.row();
    assert!(!format!("{row:?}").contains("ann"), "{row:?}");
    let result = row.result.as_ref().expect("that there was one");
    assert_eq!(
        (result.bytes.as_ref(), result.sha256, result.size),
        (None, body("the secret").sha256, 10)
    );
    assert_eq!((row.free_text.len(), row.attempts.len()), (1, 1));
    assert_eq!(row.current().map(|attempt| attempt.fate), Some(Fate::Executed));
    assert_eq!(row.settlement.as_ref().map(|it| it.provenance), Some(Provenance::Caller));
    assert_eq!(words(&story.ask(&call(2))), "REPLAY RESULT_PRUNED");
    // Its own caller says the same again.
    let mut late = story.clone();
    assert_eq!(late.report_complete(1, body("the secret"), None), Ok(()));
    assert!(late.report_complete(1, body("another"), None).is_err());

    let mut story = begun();
    let failure = |message: &str| crate::domain::attempt::Failure {
        not_executed: true,
        code: "http_422".to_owned(),
        message: message.to_owned(),
    };
    story.report_failure(1, failure("no such card: 4111"), None).expect("it is taken");
    let story = pruned(story);
    let attempt = story.row().current().expect("an attempt");
    assert_eq!(attempt.failure, Some(failure("")));
    assert_eq!(words(&story.ask(&call(2))), "EXECUTE RETRY");
    assert_eq!(words(&story.ask(&call(1))), "HOLD SUPERSEDED", "a granted id is never good again");
}

/// What a Begin is answered rests on nothing that a tombstone lacks, but for the result itself.
#[test]
fn every_settled_row_answers_the_same_as_a_tombstone() {
    let failed_twice = Story::under(plain()).begin(1).failed(1).begin(2).failed(2);
    let stories = [
        ("failed", Story::under(plain()).begin(1).failed(1)),
        ("failed twice", failed_twice.clone()),
        ("failed for good", failed_twice.begin(3).failed(3)),
        ("never granted", Story::under(plain()).begin(1).never_granted(1)),
        ("denied", Story::gated().begin(1).denied()),
        ("expired", Story::gated().begin(1).wait(72 * HOUR).expired()),
        ("reopened", {
            let story = Story::under(ToolPolicy { max_attempts: 1, ..plain() });
            story.begin(1).failed(1).resolved(&Resolution::NotExecuted)
        }),
    ];
    for (name, story) in stories {
        for attempt in [1, 2, 9] {
            let tombstone = pruned(story.clone());
            let (before, after) = (story.ask(&call(attempt)), tombstone.ask(&call(attempt)));
            assert_eq!(words(&after), words(&before), "{name}");
            if let Decision::Execute { write: Some(written), .. } = &after {
                assert!(!written.intent.pruned, "{name}");
            }
        }
    }
}

#[test]
fn what_happens_to_a_tombstone_is_kept_from_then_on() {
    let story = pruned(Story::under(plain()).begin(1).failed(1)).completed(1, "it did");
    assert!(!story.row().pruned && story.row().conflict);
    assert_eq!(words(&story.ask(&call(2))), "REPLAY COMPLETED");
    let story = pruned(Story::under(plain()).begin(1).failed(1)).begin(2).completed(2, "r");
    assert_eq!(words(&story.ask(&call(3))), "REPLAY COMPLETED");
}

/// The arguments that a person was shown are gone: nobody may approve what nobody can see.
#[test]
fn a_denied_tombstone_is_reopened_by_a_new_proposal_only() {
    let story = pruned(Story::gated().begin(1).denied());
    let story = story.resolved(&Resolution::NotExecuted);
    assert_eq!(story.state(), State::Denied);
    let story = story.begin(2);
    assert_eq!(story.state(), State::AwaitingApproval);
    let approval = story.row().approval.as_ref().expect("a proposal");
    assert_eq!(approval.arguments_json, ARGUMENTS);
}

#[test]
fn looks_are_filed_together_where_little_lies_between() {
    let at = |span: Duration| START + span;
    let looks = vec![
        (at(10 * DAY), 4),
        (at(DAY), 1),
        (at(DAY + MINUTE), 2),
        (at(DAY + HOUR), 3),
        (at(10 * DAY + HOUR), 5),
        (at(10 * DAY + HOUR + SECOND), 6),
    ];
    let filed = file_together(looks.clone(), 10, START);
    assert_eq!(
        filed,
        [
            (at(DAY + MINUTE), vec![1, 2]),
            (at(DAY + HOUR), vec![3]),
            (at(10 * DAY + HOUR), vec![4, 5]),
            (at(10 * DAY + HOUR + SECOND), vec![6]),
        ]
    );
    assert_eq!(file_together(looks, 1, START).len(), 6);
    assert_eq!(file_together(Vec::<(Timestamp, u8)>::new(), 1, START), []);
}
