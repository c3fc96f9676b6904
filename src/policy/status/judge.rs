//! What an answer over HTTP says of an effect, by the rules of the policy.

use std::{collections::BTreeMap, sync::Arc};

use cel::{
    Context,
    common::{
        types::{CelBool, CelInt, CelList, CelMap, CelMapKey, CelNull},
        value::Val,
    },
};

use super::{
    HttpAnswer, Question, excerpt,
    expression::{self, Expression},
    objects::{Ours, content_type, reference},
    value,
};
use crate::domain::{intent::ResultBody, verdict::Answer};

const OTHER_KEY: &str = "an object of another key";
const NO_KEY: &str = "no key in the answer";

/// How the answers of one endpoint are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policy) struct Rules {
    /// It happened.
    pub(in crate::policy) completed_when: Arc<Expression>,
    /// It is not there.
    pub(in crate::policy) not_executed_when: Option<Arc<Expression>>,
    /// It is under way.
    pub(in crate::policy) running_when: Option<Arc<Expression>>,
    /// What a replay returns; the whole body where nothing is said.
    pub(in crate::policy) result: Option<Arc<Expression>>,
    /// Our key, or those of all objects.
    pub(in crate::policy) key_at: Option<Arc<Expression>>,
    /// The downstream's id, or those of all objects.
    pub(in crate::policy) ref_at: Option<Arc<Expression>>,
}

/// What a rule says of an answer that it claims.
#[derive(Debug, Clone, Copy)]
enum Claim {
    Completed,
    NotExecuted,
    Running,
}

/// The keys that an answer names.
enum Keys {
    /// The policy does not say where; the question was asked by our key.
    Unsaid,
    /// It says so, and there is none.
    Missing,
    /// One, and whether it is ours.
    One(bool),
    /// Of each object, whether it is ours.
    Each(Vec<bool>),
}

/// The references that an answer names.
enum References {
    One(Option<String>),
    Each(Vec<Option<String>>),
}

/// Whether an HTTP status says that the endpoint could not, or would not, say anything of the effect.
pub fn says_nothing(status: u16) -> bool {
    matches!(status, 500..|401| 407 | 408 | 429)
}

/// What an answer says before any rule is asked.
fn unasked(answer: &HttpAnswer<'_>) -> Option<Answer> {
    let HttpAnswer { status, cut, .. } = *answer;
    match status {
        _ if says_nothing(status) => {
            Some(Answer::unreachable(format!("http {status}: {}", answer.excerpt())))
        }
        300..=399 => Some(Answer::unmapped(format!("http {status}: a redirect"))),
        _ if answer.is_page() => Some(Answer::unmapped(format!(
            "http {status}: a page for people: {}",
            answer.excerpt()
        ))),
        _ if cut => Some(Answer::unmapped(format!("http {status}: an answer that is too long"))),
        _ => None,
    }
}

impl HttpAnswer<'_> {
    /// A header's value; where it stands more than once, as one list.
    fn header(&self, name: &str) -> String {
        let values = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        values.map(|(_, value)| value.trim()).collect::<Vec<_>>().join(", ")
    }

    /// Whether it is meant for people: a gateway's page has every status, and proves nothing.
    fn is_page(&self) -> bool {
        let declared = self.header("content-type").to_ascii_lowercase();
        let essences =
            declared.split(',').map(|it| it.split(';').next().unwrap_or_default().trim());
        let is = |ends: fn(&str) -> bool| essences.clone().any(ends);
        if is(|it| it.starts_with("text/html") || it.starts_with("application/xhtml")) {
            return true;
        }
        // Whatever it declares: no JSON begins so.
        let text = self.body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(self.body);
        let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
        first == Some(&b'<')
    }

    /// The beginning of the body, for people.
    fn excerpt(&self) -> String {
        let beginning = &self.body[..self.body.len().min(1024)];
        match excerpt(&String::from_utf8_lossy(beginning)) {
            empty if empty.is_empty() => "no body".to_owned(),
            shown => shown,
        }
    }

    fn context(&self) -> Context<'static, 'static> {
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        for (name, _) in self.headers {
            let name = name.to_ascii_lowercase();
            let value = self.header(&name);
            headers.insert(name, value);
        }
        let headers = headers.into_iter().map(|(name, value)| {
            (CelMapKey::from(name), Box::new(value::string(value)) as Box<dyn Val>)
        });
        let body: Box<dyn Val> = if self.body.is_empty() {
            Box::new(CelNull)
        } else {
            let text = String::from_utf8_lossy(self.body);
            let json = text.strip_prefix('\u{feff}').unwrap_or(&text);
            value::read(json).unwrap_or_else(|| Box::new(value::string(text.into_owned())))
        };
        expression::context([
            ("status", Box::new(CelInt::from(i64::from(self.status)))),
            (
                "headers",
                Box::new(CelMap::from(headers.collect::<std::collections::HashMap<_, _>>())),
            ),
            ("body", body),
        ])
    }
}

/// Answers that show of what kind an expression's values are.
const SHOWN: [(u16, &[u8]); 2] = [(200, b"{}"), (404, b"{}")];

/// Why an expression cannot say of answers whether it claims them, as far as some of them show.
pub(in crate::policy) fn not_a_rule(rule: &Expression) -> Option<String> {
    SHOWN.into_iter().find_map(|(status, body)| {
        let context = HttpAnswer { status, headers: &[], body, cut: false }.context();
        // What fails for want of a field may be true of another answer.
        let value = rule.evaluate(&context).ok()?;
        let kind = value.get_type().name().to_owned();
        let is_bool = value.downcast_ref::<CelBool>().is_some();
        (!is_bool).then(|| {
            format!("is of type {kind} for an answer of {status}, and must be true or false")
        })
    })
}

impl Rules {
    /// What an answer says; see the table in [`status`](super).
    pub(super) fn judge(
        &self,
        answer: &HttpAnswer<'_>,
        question: &Question,
        result_bytes_max: u64,
    ) -> Answer {
        if let Some(said) = unasked(answer) {
            return said;
        }
        let context = answer.context();
        match self.claim(answer, &context) {
            Err(unmapped) => unmapped,
            Ok(claim) => self
                .claimed(claim, answer, &context, question, result_bytes_max)
                .unwrap_or_else(|note| Answer::unmapped(format!("http {}: {note}", answer.status))),
        }
    }

    /// The one rule that claims the answer.
    fn claim(&self, answer: &HttpAnswer<'_>, context: &Context<'_, '_>) -> Result<Claim, Answer> {
        let status = answer.status;
        let rules = [
            ("completed_when", Some(&self.completed_when), Claim::Completed),
            ("not_executed_when", self.not_executed_when.as_ref(), Claim::NotExecuted),
            ("running_when", self.running_when.as_ref(), Claim::Running),
        ];
        let mut claimed: Option<(&str, Claim)> = None;
        let mut failed = None;
        for (name, rule, claim) in rules {
            let Some(rule) = rule else { continue };
            let value = match rule.evaluate(context) {
                Ok(value) => value,
                Err(error) => {
                    failed.get_or_insert_with(|| format!(" ({name}: {error})"));
                    continue;
                }
            };
            match value.downcast_ref::<CelBool>().map(|value| *value.inner()) {
                None => {
                    let kind = value.get_type().name().to_owned();
                    let note = format!("http {status}: {name} is a {kind}, neither true nor false");
                    return Err(Answer::unmapped(note));
                }
                Some(false) => {}
                Some(true) => match claimed {
                    Some((other, _)) => {
                        let note = format!("http {status}: claimed by {other} and by {name}");
                        return Err(Answer::unmapped(note));
                    }
                    None => claimed = Some((name, claim)),
                },
            }
        }
        claimed.map(|(_, claim)| claim).ok_or_else(|| {
            let (failed, shown) = (failed.unwrap_or_default(), answer.excerpt());
            Answer::unmapped(format!("http {status}: claimed by no rule{failed}: {shown}"))
        })
    }

    fn claimed(
        &self,
        claim: Claim,
        answer: &HttpAnswer<'_>,
        context: &Context<'_, '_>,
        question: &Question,
        result_bytes_max: u64,
    ) -> Result<Answer, String> {
        let keys = self.keys(context, question);
        match (claim, keys) {
            // Where nothing is found, nothing need carry a key.
            (Claim::NotExecuted, Keys::Unsaid | Keys::Missing) => Ok(Answer::Absent),
            (Claim::Completed | Claim::Running, Keys::Missing) => Err(NO_KEY.to_owned()),
            (Claim::NotExecuted, keys) if keys.has_ours() => Ok(Answer::Absent),
            // Two that are under way are told once one of them is done.
            (Claim::Running, keys) if keys.has_ours() => Ok(Answer::Running),
            (Claim::Completed, keys) if keys.has_ours() => {
                let ours = self.ours(keys, context)?;
                Ok(ours.executed(self.result(answer, context, result_bytes_max)?))
            }
            _ => Err(OTHER_KEY.to_owned()),
        }
    }

    fn keys(&self, context: &Context<'_, '_>, question: &Question) -> Keys {
        let Some(key_at) = &self.key_at else { return Keys::Unsaid };
        let Ok(found) = key_at.evaluate(context) else { return Keys::Missing };
        let is_ours =
            |key: &dyn Val| value::id(key).is_some_and(|key| key == question.downstream_key);
        if found.downcast_ref::<CelNull>().is_some() {
            return Keys::Missing;
        }
        match found.downcast_ref::<CelList>() {
            Some(list) if list.is_empty() => Keys::Missing,
            Some(list) => Keys::Each(list.iter().map(|key| is_ours(key.as_ref())).collect()),
            None => Keys::One(is_ours(&*found)),
        }
    }

    /// The objects of our key, with their references.
    fn ours(&self, keys: Keys, context: &Context<'_, '_>) -> Result<Ours, String> {
        let body = context.get_variable("body");
        let list = body.as_ref().and_then(|body| body.downcast_ref::<CelList>());
        let keys = match (keys, list) {
            // Each element is an object, and the question was asked by our key.
            (Keys::Unsaid, Some(list)) => Keys::Each(vec![true; list.len()]),
            (keys, _) => keys,
        };
        let references = match &self.ref_at {
            Some(ref_at) => said_references(ref_at, context)?,
            None => usual_references(&keys, body.as_deref()),
        };
        let of_ours: Vec<Option<String>> = match (keys, references) {
            (Keys::Each(ours), References::Each(references)) if ours.len() == references.len() => {
                let pairs = ours.into_iter().zip(references);
                pairs.filter(|(ours, _)| *ours).map(|(_, reference)| reference).collect()
            }
            (Keys::Each(ours), References::One(reference)) if ours.len() == 1 => vec![reference],
            (Keys::Each(_), _) => return Err("as many references as keys are needed".to_owned()),
            (_, References::One(reference)) => vec![reference],
            (_, References::Each(references)) => references,
        };
        if self.ref_at.is_some() && (of_ours.is_empty() || of_ours.contains(&None)) {
            return Err("no reference in the answer".to_owned());
        }
        Ok(Ours::of(of_ours))
    }

    fn result(
        &self,
        answer: &HttpAnswer<'_>,
        context: &Context<'_, '_>,
        bytes_max: u64,
    ) -> Result<ResultBody, String> {
        let reported =
            |bytes, content_type| ResultBody::reported(Some(bytes), content_type, None, bytes_max);
        let result = match &self.result {
            Some(result) if result.source().trim() != "body" => result,
            _ if answer.body.is_empty() => return Err("no body to replay".to_owned()),
            _ => {
                let declared = content_type(&answer.header("content-type"));
                return Ok(reported(answer.body.to_vec(), declared));
            }
        };
        let value = result.evaluate(context).map_err(|error| format!("result: {error}"))?;
        let text = value::write(&*value).ok_or("result: JSON has no such value")?;
        Ok(reported(text.into_bytes(), "application/json".to_owned()))
    }
}

impl Keys {
    /// Whether any object is ours.
    fn has_ours(&self) -> bool {
        match self {
            Self::Unsaid => true,
            Self::Missing => false,
            Self::One(ours) => *ours,
            Self::Each(ours) => ours.contains(&true),
        }
    }
}

/// The references where the policy says they are.
fn said_references(
    ref_at: &Arc<Expression>,
    context: &Context<'_, '_>,
) -> Result<References, String> {
    let found = ref_at.evaluate(context).map_err(|error| format!("ref_at: {error}"))?;
    Ok(match found.downcast_ref::<CelList>() {
        Some(list) => References::Each(list.iter().map(|it| id(it.as_ref())).collect()),
        None => References::One(id(&*found)),
    })
}

/// The references where they usually are: the `id` of the body, or of each element of one that is a
/// list.
fn usual_references(keys: &Keys, body: Option<&dyn Val>) -> References {
    let of = |value: &dyn Val| {
        let object = value.downcast_ref::<CelMap>()?;
        id(object.get(&CelMapKey::from("id"))?.as_ref())
    };
    match keys {
        Keys::Each(ours) => {
            let list = body.and_then(|body| body.downcast_ref::<CelList>());
            let ids = list.map(|list| list.iter().map(|it| of(it.as_ref())).collect::<Vec<_>>());
            let nameless = || vec![None; ours.len()];
            References::Each(ids.filter(|ids| ids.len() == ours.len()).unwrap_or_else(nameless))
        }
        _ => References::One(body.and_then(of)),
    }
}

fn id(value: &dyn Val) -> Option<String> {
    reference(value::id(value)?)
}

#[cfg(test)]
mod tests;
