//! The state machine's moves, and results that are cut.

use super::*;

const TRANSITIONS: [Transition; 7] = [
    Transition::Propose,
    Transition::Approve,
    Transition::Deny,
    Transition::Grant,
    Transition::Executed,
    Transition::NotExecuted,
    Transition::LoseTrack,
];

#[test]
fn completed_is_left_by_nothing() {
    for transition in TRANSITIONS {
        let after = State::Completed.after(transition);
        assert!(after.is_err() || after == Ok(State::Completed), "{transition:?}");
    }
}

#[test]
fn unknown_is_left_by_evidence_or_a_further_grant_only() {
    for transition in TRANSITIONS {
        let left = State::Unknown.after(transition).is_ok_and(|state| state != State::Unknown);
        let evidence = matches!(
            transition,
            Transition::Executed | Transition::NotExecuted | Transition::Grant
        );
        assert_eq!(left, evidence, "{transition:?}");
    }
}

#[test]
fn execution_is_granted_from_four_states_only() {
    let from: Vec<State> =
        State::ALL.into_iter().filter(|state| state.after(Transition::Grant).is_ok()).collect();
    assert_eq!(from, [State::Approved, State::Started, State::Unknown, State::Failed]);
}

#[test]
fn a_refused_move_names_state_and_event() {
    let error = State::Completed.after(Transition::Grant).unwrap_err();
    assert_eq!(error.to_string(), "apply Grant to an intent in state COMPLETED");
}

#[test]
fn a_cut_result_keeps_the_hash_of_the_whole() {
    let whole = vec![7_u8; 1000];
    let result = ResultBody::reported(Some(whole.clone()), String::new(), None, 10);
    assert_eq!(result.bytes.as_deref(), Some(&whole[..10]));
    assert_eq!(result.sha256, <[u8; 32]>::from(Sha256::digest(&whole)));
    assert!(result.truncated);
    assert_eq!(result.size, 1000);
}

#[test]
fn an_empty_result_is_not_an_absent_one() {
    let empty = ResultBody::reported(Some(vec![]), String::new(), None, 10);
    let absent = ResultBody::reported(None, String::new(), None, 10);
    assert!(!empty.is_same(&absent));
    assert!(!empty.truncated);
}
