//! Reads what stands before a tool's calls: `approval` and `look_alike`.

use std::sync::Arc;

use super::{identity, unknown};
use crate::{
    domain::look_alike::LookAlikeAction,
    policy::{
        reader::{Item, Reader, Zero},
        section::{ApprovalSection, Field, LookAlikeSection, Sited},
        status::Expression,
    },
};

/// The highest limit: the slots that a run holds are counted with each grant.
pub(super) const LIMIT_MAX: u32 = 10_000;

const APPROVAL_KEYS: [&str; 3] = ["expires", "valid_for", "when"];
const LOOK_ALIKE_KEYS: [&str; 3] = ["action", "subject", "window"];

const ACTIONS: [(&str, LookAlikeAction); 3] = [
    ("warn", LookAlikeAction::Warn),
    ("await_approval", LookAlikeAction::AwaitApproval),
    ("refuse", LookAlikeAction::Refuse),
];

/// `{ when = "args.amount > 100", expires = "72h", valid_for = "1h" }`.
pub(super) fn approval<'a>(
    reader: &mut Reader<'a>,
    item: &Item<'a>,
    section: &mut ApprovalSection,
) {
    let Some(entries) = reader.table(item) else {
        section.is_there = Field::Broken;
        return;
    };
    section.is_there = Field::Set(reader.sited_key(item, ()));
    for item in entries {
        match item.name {
            "when" => section.when = when(reader, &item),
            "expires" => section.expires = reader.duration(&item, Zero::Refused),
            "valid_for" => section.valid_for = reader.duration(&item, Zero::Refused),
            _ => unknown(reader, &item, &APPROVAL_KEYS),
        }
    }
}

fn when<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Field<Arc<Expression>> {
    let field = reader.string(item, "an expression such as \"args.amount > 100\"");
    let Field::Set(Sited { value: source, .. }) = field else {
        return Field::Broken;
    };
    match Expression::compile_for_call(source) {
        Ok(expression) => Field::Set(reader.sited(item, Arc::new(expression))),
        Err(problems) => {
            for problem in problems {
                reader.wrong::<()>(item, problem);
            }
            Field::Broken
        }
    }
}

/// `{ subject = ["/to"], window = "10m", action = "warn" }`.
pub(super) fn look_alike<'a>(
    reader: &mut Reader<'a>,
    item: &Item<'a>,
    section: &mut LookAlikeSection,
) {
    let Some(entries) = reader.table(item) else {
        section.is_there = Field::Broken;
        return;
    };
    section.is_there = Field::Set(reader.sited_key(item, ()));
    for item in entries {
        match item.name {
            "subject" => {
                section.subject = identity(reader, &item);
                if matches!(&section.subject, Field::Set(places) if places.value.is_empty()) {
                    section.subject = reader.wrong(&item, "must name a place, such as \"/to\"");
                }
            }
            "window" => section.window = reader.duration(&item, Zero::Refused),
            "action" => section.action = reader.word(&item, &ACTIONS),
            _ => unknown(reader, &item, &LOOK_ALIKE_KEYS),
        }
    }
}
