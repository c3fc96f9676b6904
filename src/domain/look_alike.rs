//! Other intents that look the same: another key, and yet the same subject a moment ago.
//!
//! A send that a person clicks together has no key to pass, and two of them are two intents. The
//! ledger lists them and may ask a person; it never makes one out of two.

use std::time::Duration;

use uuid::Uuid;

use super::{
    canonical_json::{Json, Pointer},
    identity::{Call, HASH_VERSION, HashInput, IdentityPointer, downstream_uuid, normalized},
    time::Timestamp,
};

/// What a look-alike in its window leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookAlikeAction {
    /// The caller is told.
    Warn,
    /// A person must decide.
    AwaitApproval,
    /// The call is refused.
    Refuse,
}

/// When two intents of a tool look the same, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAlikeRule {
    /// The places in the arguments that must agree.
    pub subject: Vec<IdentityPointer>,
    /// For how long after the one began the other is a look-alike.
    pub window: Duration,
    /// What follows.
    pub action: LookAlikeAction,
}

impl LookAlikeRule {
    /// What a call is about, as a number that says nothing of it; `None` where none of the places has
    /// a value, so that there is nothing to compare.
    ///
    /// A place without a value agrees with one that has none either. Unlike in an identity, a list or
    /// an object is a value: a mail may have several recipients.
    pub fn subject_of(&self, call: &Call<'_>) -> Option<Uuid> {
        let mut input =
            HashInput::new(HASH_VERSION, "/look-alike").text(call.namespace).text(call.tool);
        let mut some = false;
        for place in &self.subject {
            let value = match call.arguments.pointer(&place.pointer) {
                None | Some(Json::Null) => Json::Null,
                Some(value @ (Json::Array(_) | Json::Object(_))) => value.clone(),
                Some(Json::Bool(value)) => Json::String(value.to_string()),
                Some(Json::Number(number)) => Json::String(number.to_string()),
                Some(Json::String(text)) => Json::String(normalized(place, text)),
            };
            some |= value != Json::Null;
            input = input.text(&place.pointer.to_string()).json(&value);
        }
        some.then(|| downstream_uuid(input.digest()))
    }

    /// Where a look-alike agrees, for people.
    pub fn pointers(&self) -> Vec<Pointer> {
        self.subject.iter().map(|place| place.pointer.clone()).collect()
    }

    /// From when on another intent counts, seen from `now`.
    pub fn since(&self, now: Timestamp) -> Timestamp {
        now - self.window
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::domain::identity::Normalize;

    fn rule(pointers: &[&str]) -> LookAlikeRule {
        let place = |text: &&str| IdentityPointer {
            pointer: Pointer::parse(text).expect("the test's pointers are right"),
            normalize: vec![Normalize::Trim, Normalize::Lowercase],
        };
        LookAlikeRule {
            subject: pointers.iter().map(place).collect(),
            window: Duration::from_secs(600),
            action: LookAlikeAction::Warn,
        }
    }

    fn subject(rule: &LookAlikeRule, tool: &str, arguments: &str) -> Option<Uuid> {
        let arguments = Json::parse(arguments).expect("the test's arguments are JSON");
        rule.subject_of(&Call {
            namespace: "n",
            tool,
            run_id: "r",
            step_id: "",
            idempotency_key: "",
            business_ids: &BTreeMap::new(),
            arguments: &arguments,
        })
    }

    #[test]
    fn a_subject_is_what_the_places_have() {
        let to = rule(&["/to"]);
        let ann = subject(&to, "mail", r#"{"to":"ann@x.org","body":"a"}"#);
        assert!(ann.is_some());
        for same in [r#"{"to":" Ann@X.org ","body":"b"}"#, r#"{"to":"ann@x.org","cc":1}"#] {
            assert_eq!(subject(&to, "mail", same), ann, "{same}");
        }
        for other in [r#"{"to":"bob@x.org"}"#, r#"{"to":["ann@x.org"]}"#] {
            assert_ne!(subject(&to, "mail", other), ann, "{other}");
        }
        assert_ne!(subject(&to, "post", r#"{"to":"ann@x.org"}"#), ann, "another tool");
        assert_eq!(
            subject(&to, "mail", r#"{"to":8812}"#),
            subject(&to, "mail", r#"{"to":"8812"}"#)
        );
    }

    #[test]
    fn a_place_without_a_value_agrees_with_none_and_alone_says_nothing() {
        let both = rule(&["/to", "/cc"]);
        let bare = subject(&both, "mail", r#"{"to":"ann"}"#);
        assert!(bare.is_some());
        assert_eq!(subject(&both, "mail", r#"{"to":"ann","cc":null}"#), bare);
        assert_ne!(subject(&both, "mail", r#"{"to":"ann","cc":"bob"}"#), bare);
        assert_ne!(subject(&both, "mail", r#"{"cc":"ann"}"#), bare, "another place");
        for nothing in ["{}", r#"{"to":null}"#] {
            assert_eq!(subject(&both, "mail", nothing), None, "{nothing}");
        }
    }
}
