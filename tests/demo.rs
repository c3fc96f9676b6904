//! The demo as a test: the real binary, and the effects that it counted.

use std::process::{Command, Output};

use serde_json::Value;

fn demo(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_intent-ledger"))
        .arg("demo")
        .args(arguments)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    // Off a terminal there is no progress line, and the embedded server keeps quiet.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    output
}

#[test]
fn each_intended_mail_is_sent_exactly_once_with_the_ledger_and_18_times_without() {
    let told: Value = serde_json::from_slice(&demo(&["--json"]).stdout).unwrap();

    assert_eq!(told["exactly_once"], true);
    let actions = told["actions"].as_array().unwrap();
    let templates: Vec<&Value> = actions.iter().map(|action| &action["template"]).collect();
    assert_eq!(templates, ["refund_approved", "refund_paid"]);
    for action in actions {
        assert_eq!(action["intended"], 1, "{action}");
        assert_eq!(action["sent_with"], 1, "{action}");
    }
    assert_eq!(actions[0]["sent_without"], 18);
    assert_eq!(told["last_word_without"], "Sorry, I could not send the e-mail.");
    assert_eq!(told["last_word_with"], "The e-mail has been sent (mail-1).");

    // Every layer repeated, and each was told what there was to know.
    let answers: Vec<String> = told["ledger_answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| {
            let word = |name: &str| answer[name].as_str().unwrap().to_owned();
            format!("{}: {}", word("asked_by"), word("decision"))
        })
        .collect();
    assert_eq!(
        answers,
        [
            "first call: EXECUTE",
            "HTTP client: EXECUTE",
            "orchestrator: HOLD",
            "model: HOLD",
            "orchestrator: HOLD",
            "resumed run: REPLAY",
            "first call: EXECUTE",
        ]
    );
    assert_eq!(told["ledger_answers"][0]["reason"], "NEW");
    assert_eq!(told["ledger_answers"][1]["reason"], "RESENT");
}

#[test]
fn the_story_is_plain_text_in_80_columns_off_a_terminal() {
    let story = String::from_utf8(demo(&[]).stdout).unwrap();
    for line in story.lines() {
        assert!(line.chars().count() <= 80 && !line.contains('\x1b'), "{line}");
    }
    for words in ["1. Without the ledger", "2. With the ledger", "REPLAY COMPLETED"] {
        assert!(story.contains(words), "{words} is not in\n{story}");
    }
}

#[test]
fn a_killed_agent_s_mail_is_settled_by_the_reconciler_and_sent_exactly_once() {
    let told: Value = serde_json::from_slice(&demo(&["--crash", "--json"]).stdout).unwrap();

    assert_eq!(told["exactly_once"], true);
    let of = |action: &Value| {
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let answers = action["ledger_answers"].as_array().unwrap().iter();
        let answers: Vec<String> = answers
            .map(|it| [&it["asked_by"], &it["decision"], &it["reason"]].map(word).join(" "))
            .collect();
        let ends = [&action["killed"], &action["reconciled_as"], &action["settled_by"]].map(word);
        (ends.join(" "), action["sent"].as_u64().unwrap(), answers)
    };
    let actions = told["actions"].as_array().unwrap();
    let held = ["agent-1 EXECUTE NEW", "agent-2 HOLD IN_FLIGHT"];
    let with_last = |last: &str| [held[0], held[1], last].map(str::to_owned).to_vec();
    assert_eq!(
        actions.iter().map(of).collect::<Vec<_>>(),
        [
            (
                "after_send COMPLETED RECONCILER".to_owned(),
                1,
                with_last("agent-3 REPLAY COMPLETED")
            ),
            ("before_send FAILED CALLER".to_owned(), 1, with_last("agent-3 EXECUTE RETRY")),
        ]
    );
    assert_eq!(actions[0]["questions"], 1);
    // One before an absence counts, and the two that do.
    assert!(actions[1]["questions"].as_u64().unwrap() >= 2, "{}", actions[1]);
}

#[test]
fn the_story_of_the_crash_fits_on_a_page() {
    let story = String::from_utf8(demo(&["--crash"]).stdout).unwrap();
    assert!(story.lines().count() < 40, "{story}");
    for line in story.lines() {
        assert!(line.chars().count() <= 80 && !line.contains('\x1b'), "{line}");
    }
    for words in ["1. Killed after the send", "2. Killed before the send", "REPLAY COMPLETED eff-1"]
    {
        assert!(story.contains(words), "{words} is not in\n{story}");
    }
}
