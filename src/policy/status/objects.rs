//! Which objects of an answer are ours, and what an effect then has become.

use super::{Object, Question, Standing};
use crate::domain::{intent::ResultBody, verdict::Answer};

/// The longest reference that is kept, in bytes; the same as for one that a caller reports.
const REFERENCE_BYTES_MAX: usize = 1024;
/// The longest media type that is kept, in bytes; likewise.
const CONTENT_TYPE_BYTES_MAX: usize = 255;

/// The objects that carry our key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ours {
    /// None does.
    None,
    /// One does, with its reference, if it has one.
    One(Option<String>),
    /// More than one does; the references that they have.
    Several(Vec<String>),
}

impl Ours {
    /// From the references of the objects that carry our key. One that is listed twice, as pages of
    /// a list sometimes do, is one; of two without a reference nobody can say that.
    pub(super) fn of(references: impl IntoIterator<Item = Option<String>>) -> Self {
        let mut named: Vec<String> = Vec::new();
        let mut nameless = 0;
        for reference in references {
            match reference {
                Some(reference) if named.contains(&reference) => {}
                Some(reference) => named.push(reference),
                None => nameless += 1,
            }
        }
        match named.len() + nameless {
            0 => Self::None,
            1 => Self::One(named.pop()),
            _ => Self::Several(named),
        }
    }

    /// What the downstream says with them, where it says that it happened.
    pub(super) fn executed(self, result: ResultBody) -> Answer {
        match self {
            Self::None => Answer::unmapped("executed, without an object that shows it"),
            Self::One(downstream_ref) => Answer::Executed { result, downstream_ref },
            Self::Several(downstream_refs) => Answer::Several { result, downstream_refs },
        }
    }
}

/// A reference as it may be kept; `None` where it is empty, too long, or has control characters.
pub(super) fn reference(text: String) -> Option<String> {
    let fits = text.len() <= REFERENCE_BYTES_MAX && !text.chars().any(char::is_control);
    (fits && !text.is_empty()).then_some(text)
}

/// A media type as it may be kept; empty where it is none.
pub(super) fn content_type(text: &str) -> String {
    let text = text.trim();
    let fits = text.len() <= CONTENT_TYPE_BYTES_MAX && !text.chars().any(char::is_control);
    if fits { text.to_owned() } else { String::new() }
}

/// What an answer of the effect status service says.
///
/// The service names the key of every object, so one of another key means that the answer is not
/// about our question; so does an object of an effect that is said not to be there.
pub fn judge_objects(
    standing: Standing,
    objects: Vec<Object>,
    question: &Question,
    result_bytes_max: u64,
) -> Answer {
    if objects.iter().any(|object| object.downstream_key != question.downstream_key) {
        return Answer::unmapped("an object of another key");
    }
    match standing {
        Standing::Unspecified => Answer::unmapped("no known state"),
        Standing::Running => Answer::Running,
        Standing::NotExecuted if objects.is_empty() => Answer::Absent,
        Standing::NotExecuted => Answer::unmapped("not executed, with an object all the same"),
        Standing::Executed => {
            let references = objects.iter().map(|object| object.downstream_ref.clone());
            if references.clone().any(|text| !text.is_empty() && reference(text).is_none()) {
                return Answer::unmapped("a reference that cannot be kept");
            }
            let ours = Ours::of(references.map(reference));
            let Some(first) = objects.into_iter().next() else {
                return ours.executed(ResultBody::reported(None, String::new(), None, 0));
            };
            let content_type = content_type(&first.content_type);
            let result =
                ResultBody::reported(Some(first.result), content_type, None, result_bytes_max);
            ours.executed(result)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn question() -> Question {
        Question {
            downstream_key: "k".to_owned(),
            downstream_ref: None,
            key: "00".to_owned(),
            business: BTreeMap::new(),
            tool: "mail".to_owned(),
            namespace: "default".to_owned(),
        }
    }

    fn object(key: &str, reference: &str, result: &str) -> Object {
        Object {
            downstream_key: key.to_owned(),
            downstream_ref: reference.to_owned(),
            result: result.as_bytes().to_vec(),
            content_type: "text/plain".to_owned(),
        }
    }

    fn result(text: &str) -> ResultBody {
        let bytes = Some(text.as_bytes().to_vec());
        ResultBody::reported(bytes, "text/plain".to_owned(), None, 4)
    }

    #[test]
    fn an_answer_of_the_service_is_read_as_its_proto_says() {
        let executed = |text, reference: Option<&str>| Answer::Executed {
            result: result(text),
            downstream_ref: reference.map(str::to_owned),
        };
        let several = |text, references: &[&str]| Answer::Several {
            result: result(text),
            downstream_refs: references.iter().map(|text| (*text).to_owned()).collect(),
        };
        let long = "x".repeat(1025);
        type Row<'a> = (Standing, &'a [(&'a str, &'a str, &'a str)], Answer);
        let table: &[Row<'_>] = &[
            (Standing::Unspecified, &[], Answer::unmapped("no known state")),
            (Standing::Unspecified, &[("k", "1", "a")], Answer::unmapped("no known state")),
            (Standing::Running, &[], Answer::Running),
            (Standing::Running, &[("k", "1", "")], Answer::Running),
            (Standing::Running, &[("o", "1", "")], Answer::unmapped("an object of another key")),
            (Standing::NotExecuted, &[], Answer::Absent),
            (
                Standing::NotExecuted,
                &[("k", "1", "a")],
                Answer::unmapped("not executed, with an object all the same"),
            ),
            (Standing::NotExecuted, &[("", "", "")], Answer::unmapped("an object of another key")),
            (
                Standing::Executed,
                &[],
                Answer::unmapped("executed, without an object that shows it"),
            ),
            (Standing::Executed, &[("k", "1", "a")], executed("a", Some("1"))),
            (Standing::Executed, &[("k", "", "longer")], executed("longer", None)),
            (Standing::Executed, &[("", "1", "a")], Answer::unmapped("an object of another key")),
            (Standing::Executed, &[("K", "1", "a")], Answer::unmapped("an object of another key")),
            (
                Standing::Executed,
                &[("k", "1", "a"), ("o", "2", "b")],
                Answer::unmapped("an object of another key"),
            ),
            (Standing::Executed, &[("k", "1", "a"), ("k", "2", "b")], several("a", &["1", "2"])),
            (Standing::Executed, &[("k", "1", "a"), ("k", "1", "a")], executed("a", Some("1"))),
            (Standing::Executed, &[("k", "", "a"), ("k", "", "a")], several("a", &[])),
            (Standing::Executed, &[("k", "1", "a"), ("k", "", "a")], several("a", &["1"])),
            (
                Standing::Executed,
                &[("k", &long, "a")],
                Answer::unmapped("a reference that cannot be kept"),
            ),
            (
                Standing::Executed,
                &[("k", "a\nb", "a")],
                Answer::unmapped("a reference that cannot be kept"),
            ),
        ];
        for (standing, objects, expected) in table {
            let given = objects.iter().map(|(key, id, text)| object(key, id, text)).collect();
            let answer = judge_objects(*standing, given, &question(), 4);
            assert_eq!(answer, *expected, "{standing:?} {objects:?}");
        }
    }
}
