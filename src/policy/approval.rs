//! Whether a call needs a person: the expression `approval.when` of a tool.
//!
//! It sees `args`, the arguments by their exact values, `tool`, `run_id`, and `labels`. The gate fails
//! closed: where the expression cannot be evaluated on a call (a member that is not there, a number that
//! neither an integer of 64 bits nor a double holds, a comparison of a number with a text), or is neither
//! true nor false, a person is asked.

use std::{collections::BTreeMap, sync::Arc};

use cel::common::{types::CelBool, value::Val};

use super::status::{Expression, context, read, string};

/// A call, as the expression sees it.
#[derive(Debug, Clone, Copy)]
pub struct ApprovalCall<'a> {
    /// The arguments, as JSON text; empty means `{}`.
    pub arguments_json: &'a str,
    /// The tool.
    pub tool: &'a str,
    /// The run; may be empty.
    pub run_id: &'a str,
    /// The caller's labels.
    pub labels: &'a BTreeMap<String, String>,
}

/// Whether a person must decide on a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// The tool has no such gate.
    NoGate,
    /// The expression is false.
    No,
    /// The expression is true, or the tool has none and always asks.
    Yes,
    /// The expression says nothing of this call, and why; so a person is asked.
    Unclear(String),
}

impl Need {
    /// Whether a person is asked.
    pub fn is_there(&self) -> bool {
        match self {
            Self::NoGate | Self::No => false,
            Self::Yes | Self::Unclear(_) => true,
        }
    }
}

/// Whether a call needs a person, by the tool's expression.
pub(super) fn need(when: Option<&Arc<Expression>>, call: &ApprovalCall<'_>) -> Need {
    let Some(when) = when else { return Need::Yes };
    let arguments = if call.arguments_json.is_empty() { "{}" } else { call.arguments_json };
    let labels = serde_json::to_string(call.labels).ok().and_then(|labels| read(&labels));
    let (Some(args), Some(labels)) = (read(arguments), labels) else {
        return Need::Unclear("the arguments are no JSON".to_owned());
    };
    let context = context([
        ("args", args),
        ("tool", Box::new(string(call.tool.to_owned())) as Box<dyn Val>),
        ("run_id", Box::new(string(call.run_id.to_owned()))),
        ("labels", labels),
    ]);
    match when.evaluate(&context) {
        Ok(value) => match value.downcast_ref::<CelBool>().map(|it| *it.inner()) {
            Some(true) => Need::Yes,
            Some(false) => Need::No,
            None => Need::Unclear("it is neither true nor false".to_owned()),
        },
        Err(problem) => Need::Unclear(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(when: &str, arguments_json: &str) -> Need {
        let when = Expression::compile_for_call(when).expect("the test's expressions are right");
        let labels = BTreeMap::from([("team".to_owned(), "care".to_owned())]);
        let call = ApprovalCall { arguments_json, tool: "refund", run_id: "r1", labels: &labels };
        need(Some(&Arc::new(when)), &call)
    }

    #[test]
    fn the_expression_decides_on_exact_numbers() {
        let when = "args.amount > 100";
        let rows = [
            ("100", false),
            ("100.0", false),
            ("1e2", false),
            ("101", true),
            ("100.01", true),
            ("1e3", true),
            ("9007199254740993", true),
            ("18446744073709551615", true),
            ("-5", false),
        ];
        for (amount, expected) in rows {
            let expected = if expected { Need::Yes } else { Need::No };
            assert_eq!(asked(when, &format!("{{\"amount\":{amount}}}")), expected, "{amount}");
        }
        assert_eq!(asked("args.n == 9007199254740993", r#"{"n":9007199254740992}"#), Need::No);
    }

    #[test]
    fn what_it_cannot_judge_is_for_a_person() {
        let when = "args.amount > 100";
        for arguments in [
            "",
            "{}",
            r#"{"amount":null}"#,
            r#"{"amount":"101"}"#,
            r#"{"amount":[101]}"#,
            // Neither 64 bits nor a double hold these.
            r#"{"amount":18446744073709551616}"#,
            r#"{"amount":100.00000000000000000001}"#,
            r#"{"amount":1e400}"#,
        ] {
            let need = asked(when, arguments);
            assert!(matches!(need, Need::Unclear(_)) && need.is_there(), "{arguments}: {need:?}");
        }
        let overflow = asked("args.amount * 2 > 100", r#"{"amount":9223372036854775807}"#);
        assert!(matches!(overflow, Need::Unclear(_)), "{overflow:?}");
        assert!(matches!(asked("args.amount", r#"{"amount":1}"#), Need::Unclear(_)));
        assert_eq!(asked("has(args.amount) && args.amount > 100", "{}"), Need::No);
    }

    #[test]
    fn tool_run_and_labels_are_seen() {
        for (when, expected) in [
            ("tool == 'refund' && run_id == 'r1'", Need::Yes),
            ("labels.team == 'care'", Need::Yes),
            ("'team' in labels && !('vip' in labels)", Need::Yes),
            ("args.to.endsWith('@x.org')", Need::No),
        ] {
            assert_eq!(asked(when, r#"{"to":"ann@y.org"}"#), expected, "{when}");
        }
        assert!(matches!(asked("labels.vip == 'yes'", "{}"), Need::Unclear(_)));
    }

    #[test]
    fn without_an_expression_every_call_needs_a_person() {
        let labels = BTreeMap::new();
        let call = ApprovalCall { arguments_json: "{}", tool: "a", run_id: "", labels: &labels };
        assert_eq!(need(None, &call), Need::Yes);
    }

    #[test]
    fn what_an_answer_has_a_call_has_not() {
        for unknown in ["status == 200", "body.state == 'sent'", "headers.a == 'b'"] {
            let problems = Expression::compile_for_call(unknown).expect_err("no such variable");
            assert!(problems[0].contains("known: args, tool, run_id, labels"), "{problems:?}");
        }
        assert!(Expression::compile("args.amount > 1").is_err());
    }
}
