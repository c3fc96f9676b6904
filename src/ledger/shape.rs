//! The shape of a request: which texts are names, how long they may be, what is an id.

use std::{collections::BTreeMap, time::Duration};

use uuid::Uuid;

use super::{DEFAULT_NAMESPACE, Violation};
use crate::domain::{
    canonical_json::{Json, Pointer},
    identity::Key,
    intent::ResultBody,
};

/// The longest name of a namespace, tool, run, step, caller or tool call, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The longest downstream reference, in bytes.
const REFERENCE_BYTES_MAX: usize = 1024;

/// The longest words of a person or of a failing caller, in bytes.
pub(super) const WORDS_BYTES_MAX: usize = 4096;

/// How many pointers to free text a caller may declare: they are kept with the row.
const FREE_TEXT_MAX: usize = 64;

/// How many labels an intent may carry.
const LABELS_MAX: usize = 32;

/// The longest value of a label, in bytes.
const LABEL_VALUE_BYTES_MAX: usize = 1024;

/// The longest lease that can be asked for; the policy's `lease_max` is usually far below.
const LEASE_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A name that may be absent.
pub(super) fn name(field: &str, text: &str) -> Result<(), Violation> {
    if text.len() > NAME_BYTES_MAX {
        let words = format!("is {} bytes long, more than {NAME_BYTES_MAX}", text.len());
        return Err(Violation::new(field, "NAME_INVALID", words));
    }
    if text.chars().any(char::is_control) {
        return Err(Violation::new(field, "NAME_INVALID", "has a control character in it"));
    }
    Ok(())
}

pub(super) fn tool(text: &str) -> Result<(), Violation> {
    if text.is_empty() {
        return Err(Violation::new("identity.tool", "TOOL_REQUIRED", "must be given"));
    }
    name("identity.tool", text)
}

/// The namespace of a request; the default one where none is named.
pub(super) fn namespace(text: &str) -> Result<&str, Violation> {
    name("namespace", text)?;
    Ok(if text.is_empty() { DEFAULT_NAMESPACE } else { text })
}

pub(super) fn key(field: &str, text: &str) -> Result<Key, Violation> {
    text.parse().map_err(|_| {
        Violation::new(field, "KEY_INVALID", "must be 64 lower-case hexadecimal digits")
    })
}

/// How many to list: `default` where none is asked for, and never more than `most`.
pub(super) fn page_size(asked: i32, default: usize, most: usize) -> Result<usize, Violation> {
    match usize::try_from(asked) {
        Ok(0) => Ok(default),
        Ok(size) => Ok(size.min(most)),
        Err(_) => Err(Violation::new("page_size", "PAGE_SIZE_INVALID", "must not be negative")),
    }
}

/// An attempt's id; `None` where it is absent.
pub(super) fn attempt_id(text: &str) -> Result<Option<Uuid>, Violation> {
    if text.is_empty() {
        return Ok(None);
    }
    match Uuid::try_parse(text) {
        Ok(id) if !id.is_nil() => Ok(Some(id)),
        _ => Err(Violation::new(
            "attempt_id",
            "ATTEMPT_ID_INVALID",
            "must be a UUID, and not the nil one",
        )),
    }
}

pub(super) fn settling_attempt_id(text: &str) -> Result<Uuid, Violation> {
    attempt_id(text)?.ok_or_else(|| {
        Violation::new(
            "attempt_id",
            "ATTEMPT_ID_REQUIRED",
            "must be the attempt_id that came with EXECUTE",
        )
    })
}

pub(super) fn lease(lease: Option<Duration>) -> Result<(), Violation> {
    match lease {
        Some(Duration::ZERO) => Err(Violation::new(
            "lease",
            "DURATION_INVALID",
            "must be over zero; leave it out for the tool's default",
        )),
        Some(lease) if lease > LEASE_MAX => {
            Err(Violation::new("lease", "DURATION_INVALID", "must be at most 366 days"))
        }
        _ => Ok(()),
    }
}

pub(super) fn labels(labels: &BTreeMap<String, String>) -> Result<(), Violation> {
    let invalid = |words: String| Violation::new("labels", "LABELS_INVALID", words);
    if labels.len() > LABELS_MAX {
        return Err(invalid(format!("{} are given, more than {LABELS_MAX}", labels.len())));
    }
    for (label, value) in labels {
        if label.is_empty() || label.len() > NAME_BYTES_MAX || label.chars().any(char::is_control) {
            return Err(invalid(format!(
                "a name must have 1 to {NAME_BYTES_MAX} bytes and no control characters"
            )));
        }
        if value.len() > LABEL_VALUE_BYTES_MAX || value.chars().any(char::is_control) {
            return Err(invalid(format!(
                "a value must have at most {LABEL_VALUE_BYTES_MAX} bytes and no control characters"
            )));
        }
    }
    Ok(())
}

/// The downstream's reference; `None` where it is absent.
pub(super) fn downstream_ref(text: String) -> Result<Option<String>, Violation> {
    if text.is_empty() {
        return Ok(None);
    }
    if text.len() > REFERENCE_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(Violation::new(
            "downstream_ref",
            "TEXT_TOO_LONG",
            format!("must have at most {REFERENCE_BYTES_MAX} bytes and no control characters"),
        ));
    }
    Ok(Some(text))
}

/// Words that must be given, and must not be endless.
pub(super) fn words(
    field: &str,
    missing: &'static str,
    text: &str,
    bytes_max: usize,
) -> Result<(), Violation> {
    if text.trim().is_empty() {
        return Err(Violation::new(field, missing, "must be given"));
    }
    if text.len() > bytes_max {
        let words = format!("is {} bytes long, more than {bytes_max}", text.len());
        return Err(Violation::new(field, "TEXT_TOO_LONG", words));
    }
    Ok(())
}

/// The arguments as an object; empty text is the empty object.
pub(super) fn arguments(text: &str) -> Result<Json, Violation> {
    let text = if text.is_empty() { "{}" } else { text };
    match Json::parse(text) {
        Ok(object @ Json::Object(_)) => Ok(object),
        Ok(_) => {
            Err(Violation::new("arguments_json", "ARGUMENTS_NOT_OBJECT", "must be a JSON object"))
        }
        Err(error) => Err(Violation::new("arguments_json", error.reason(), error.to_string())),
    }
}

pub(super) fn free_text(pointers: &[String]) -> Result<Vec<Pointer>, Violation> {
    if pointers.len() > FREE_TEXT_MAX {
        let words = format!("{} are given, more than {FREE_TEXT_MAX}", pointers.len());
        return Err(Violation::new("free_text", "FREE_TEXT_INVALID", words));
    }
    if let Some(long) = pointers.iter().position(|text| text.len() > REFERENCE_BYTES_MAX) {
        let words = format!("must have at most {REFERENCE_BYTES_MAX} bytes");
        return Err(Violation::new(format!("free_text[{long}]"), "FREE_TEXT_INVALID", words));
    }
    pointers
        .iter()
        .enumerate()
        .map(|(index, text)| {
            Pointer::parse(text).map_err(|error| {
                let field = format!("free_text[{index}]");
                Violation::new(field, "FREE_TEXT_INVALID", error.to_string())
            })
        })
        .collect()
}

/// A result as it was reported, with the digest of the whole where the caller had to cut it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedResult {
    /// The bytes; `None` where no result was reported.
    pub bytes: Option<Vec<u8>>,
    /// The media type.
    pub content_type: String,
    /// SHA-256 of the whole, in hexadecimal; empty where the bytes are the whole.
    pub sha256: String,
    /// The size of the whole; zero where the bytes are the whole.
    pub size: i64,
}

impl ReportedResult {
    /// Checks the result and cuts it to `bytes_max`.
    pub(super) fn check(&self) -> Result<CheckedResult, Violation> {
        name("result_content_type", &self.content_type)?;
        let invalid =
            |field: &str, words: &str| Violation::new(field, "RESULT_DIGEST_INVALID", words);
        if self.sha256.is_empty() && self.size == 0 {
            return Ok(CheckedResult { result: self.clone(), whole: None });
        }
        let given = self.bytes.as_ref().map_or(0, Vec::len) as u64;
        let size =
            u64::try_from(self.size).map_err(|_| invalid("result_size", "must not be negative"))?;
        if size < given {
            return Err(invalid("result_size", "is less than the size of the result itself"));
        }
        let mut sha256 = [0; 32];
        let lower = !self.sha256.bytes().any(|byte| byte.is_ascii_uppercase());
        if !lower || const_hex::decode_to_slice(&self.sha256, &mut sha256).is_err() {
            return Err(invalid("result_sha256", "must be 64 lower-case hexadecimal digits"));
        }
        let whole = ResultBody::reported(self.bytes.clone(), String::new(), None, u64::MAX);
        if size == given && whole.sha256 != sha256 {
            return Err(invalid("result_sha256", "is not the SHA-256 of the result"));
        }
        Ok(CheckedResult { result: self.clone(), whole: Some((sha256, size)) })
    }
}

/// A result whose shape is right.
pub(super) struct CheckedResult {
    result: ReportedResult,
    whole: Option<([u8; 32], u64)>,
}

impl CheckedResult {
    /// The result, cut to `bytes_max`.
    pub(super) fn body(&self, bytes_max: u64) -> ResultBody {
        let ReportedResult { bytes, content_type, .. } = self.result.clone();
        ResultBody::reported(bytes, content_type, self.whole, bytes_max)
    }
}
