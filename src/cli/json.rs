//! Messages of the contract as JSON: their own field names, in their own order, all of them
//! always there. What is absent is `null`, enums are short words, times are RFC 3339, spans are
//! like `60s`, and a result that is not UTF-8 is `result_base64`.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::answer::{Begun, Page, Settled};
use crate::proto::v1;

/// Something of the contract, to be written as JSON.
pub(super) struct Json<'a, T>(pub(super) &'a T);

/// An enum's value as its short word; `None` if it is not given, its number if it is unknown.
fn word<E: TryFrom<i32>>(code: i32, prefix: &str, name: fn(&E) -> &'static str) -> Option<String> {
    let word = E::try_from(code).map(|value| {
        let name = name(&value);
        name.strip_prefix(prefix).unwrap_or(name).to_owned()
    });
    (code != 0).then(|| word.unwrap_or_else(|_| code.to_string()))
}

pub(super) fn decision(code: i32) -> Option<String> {
    word(code, "DECISION_", v1::Decision::as_str_name)
}

pub(super) fn reason(code: i32) -> Option<String> {
    word(code, "REASON_", v1::Reason::as_str_name)
}

pub(super) fn state(code: i32) -> Option<String> {
    word(code, "INTENT_STATE_", v1::IntentState::as_str_name)
}

pub(super) fn key_basis(code: i32) -> Option<String> {
    word(code, "KEY_BASIS_", v1::KeyBasis::as_str_name)
}

pub(super) fn provenance(code: i32) -> Option<String> {
    word(code, "PROVENANCE_", v1::Provenance::as_str_name)
}

pub(super) fn failure_kind(code: i32) -> Option<String> {
    word(code, "FAILURE_KIND_", v1::FailureKind::as_str_name)
}

pub(super) fn verdict(code: i32) -> Option<String> {
    word(code, "VERDICT_", v1::Verdict::as_str_name)
}

pub(super) fn event_kind(code: i32) -> Option<String> {
    word(code, "EVENT_KIND_", v1::EventKind::as_str_name)
}

pub(super) fn layer(code: i32) -> Option<String> {
    word(code, "LAYER_", v1::Layer::as_str_name)
}

pub(super) fn time(time: Option<&prost_types::Timestamp>) -> Option<String> {
    time.map(ToString::to_string)
}

pub(super) fn span(span: Option<&prost_types::Duration>) -> Option<String> {
    span.map(ToString::to_string)
}

impl Serialize for Json<'_, v1::Intent> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("namespace", &it.namespace)?;
        map.serialize_entry("key", &it.key)?;
        map.serialize_entry("key_basis", &key_basis(it.key_basis))?;
        map.serialize_entry("tool", &it.tool)?;
        map.serialize_entry("run_id", &it.run_id)?;
        map.serialize_entry("step_id", &it.step_id)?;
        map.serialize_entry("state", &state(it.state))?;
        map.serialize_entry("etag", &it.etag)?;
        map.serialize_entry("attempt", &it.attempt)?;
        map.serialize_entry("attempt_id", &it.attempt_id)?;
        map.serialize_entry("create_time", &time(it.create_time.as_ref()))?;
        map.serialize_entry("start_time", &time(it.start_time.as_ref()))?;
        map.serialize_entry("lease_expire_time", &time(it.lease_expire_time.as_ref()))?;
        map.serialize_entry("settle_time", &time(it.settle_time.as_ref()))?;
        map.serialize_entry("expire_time", &time(it.expire_time.as_ref()))?;
        match it.result.as_deref().map(|bytes| (bytes, str::from_utf8(bytes))) {
            Some((bytes, Err(_))) => {
                map.serialize_entry("result_base64", &STANDARD.encode(bytes))?;
            }
            Some((_, Ok(text))) => map.serialize_entry("result", text)?,
            None => map.serialize_entry("result", &None::<&str>)?,
        }
        map.serialize_entry("result_content_type", &it.result_content_type)?;
        map.serialize_entry("result_truncated", &it.result_truncated)?;
        map.serialize_entry("result_sha256", &it.result_sha256)?;
        map.serialize_entry("failure", &it.failure.as_ref().map(Json))?;
        map.serialize_entry("provenance", &provenance(it.provenance))?;
        map.serialize_entry("settled_by", &it.settled_by)?;
        map.serialize_entry("settle_note", &it.settle_note)?;
        map.serialize_entry("downstream_key", &it.downstream_key)?;
        map.serialize_entry("downstream_ref", &it.downstream_ref)?;
        map.serialize_entry("needs_attention", &it.needs_attention)?;
        map.serialize_entry("conflict", &it.conflict)?;
        map.serialize_entry("replay_count", &it.replay_count)?;
        map.serialize_entry("last_seen_time", &time(it.last_seen_time.as_ref()))?;
        map.serialize_entry("labels", &it.labels)?;
        map.serialize_entry("events", &it.events.iter().map(Json).collect::<Vec<_>>())?;
        map.serialize_entry("arguments_json", &it.arguments_json)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::Failure> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", &failure_kind(self.0.kind))?;
        map.serialize_entry("code", &self.0.code)?;
        map.serialize_entry("message", &self.0.message)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::Event> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time", &time(it.time.as_ref()))?;
        map.serialize_entry("kind", &event_kind(it.kind))?;
        map.serialize_entry("provenance", &provenance(it.provenance))?;
        map.serialize_entry("actor", &it.actor)?;
        map.serialize_entry("attempt_id", &it.attempt_id)?;
        map.serialize_entry("state_before", &state(it.state_before))?;
        map.serialize_entry("state_after", &state(it.state_after))?;
        map.serialize_entry("note", &it.note)?;
        map.serialize_entry("downstream_ref", &it.downstream_ref)?;
        map.serialize_entry("result_sha256", &it.result_sha256)?;
        map.serialize_entry("code", &it.code)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::SimilarIntent> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("key", &it.key)?;
        map.serialize_entry("state", &state(it.state))?;
        map.serialize_entry("run_id", &it.run_id)?;
        map.serialize_entry("create_time", &time(it.create_time.as_ref()))?;
        map.serialize_entry("subject_pointers", &it.subject_pointers)?;
        map.end()
    }
}

impl Serialize for Begun {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = &self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("decision", &decision(it.decision))?;
        map.serialize_entry("reason", &reason(it.reason))?;
        map.serialize_entry("intent", &it.intent.as_ref().map(Json))?;
        map.serialize_entry("attempt_id", &it.attempt_id)?;
        map.serialize_entry("lease", &span(it.lease.as_ref()))?;
        map.serialize_entry("downstream_key", &it.downstream_key)?;
        map.serialize_entry("retry_after", &span(it.retry_after.as_ref()))?;
        map.serialize_entry("approved_arguments_json", &it.approved_arguments_json)?;
        map.serialize_entry("model_message", &it.model_message)?;
        map.serialize_entry("warnings", &it.warnings)?;
        map.serialize_entry("similar", &it.similar.iter().map(Json).collect::<Vec<_>>())?;
        map.end()
    }
}

impl Serialize for Settled {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("intent", &self.intent.as_ref().map(Json))?;
        if self.lease.is_some() {
            map.serialize_entry("lease", &span(self.lease.as_ref()))?;
        }
        if let Some(warnings) = &self.warnings {
            map.serialize_entry("warnings", warnings)?;
        }
        map.end()
    }
}

impl Serialize for Page {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("intents", &self.0.intents.iter().map(Json).collect::<Vec<_>>())?;
        map.serialize_entry("next_page_token", &self.0.next_page_token)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::Attempt> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time", &time(it.time.as_ref()))?;
        map.serialize_entry("caller", &it.caller)?;
        map.serialize_entry("attempt_id", &it.attempt_id)?;
        map.serialize_entry("tool_call_id", &it.tool_call_id)?;
        map.serialize_entry("run_id", &it.run_id)?;
        map.serialize_entry("step_id", &it.step_id)?;
        map.serialize_entry("decision", &decision(it.decision))?;
        map.serialize_entry("reason", &reason(it.reason))?;
        map.serialize_entry("layer", &layer(it.layer))?;
        map.serialize_entry("free_text_changed", &it.free_text_changed)?;
        map.serialize_entry("changed_pointers", &it.changed_pointers)?;
        map.serialize_entry("trace_id", &it.trace_id)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::LayerCount> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("layer", &layer(self.0.layer))?;
        map.serialize_entry("count", &self.0.count)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::ToolStats> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("tool", &it.tool)?;
        map.serialize_entry("decisions", &it.decisions.iter().map(Json).collect::<Vec<_>>())?;
        map.serialize_entry("repeats", &it.repeats.iter().map(Json).collect::<Vec<_>>())?;
        map.serialize_entry("begin_count", &it.begin_count)?;
        map.serialize_entry("intent_count", &it.intent_count)?;
        map.serialize_entry("execution_count", &it.execution_count)?;
        map.serialize_entry("retry_amplification", &it.retry_amplification)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::DecisionCount> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("decision", &decision(self.0.decision))?;
        map.serialize_entry("reason", &reason(self.0.reason))?;
        map.serialize_entry("count", &self.0.count)?;
        map.end()
    }
}

impl Serialize for Json<'_, v1::RunExecutions> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("run_id", &self.0.run_id)?;
        map.serialize_entry("tool", &self.0.tool)?;
        map.serialize_entry("execution_count", &self.0.execution_count)?;
        map.end()
    }
}
