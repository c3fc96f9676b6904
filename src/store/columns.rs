//! An intent as primitive columns, the same for every store.
//!
//! What every ordinary effect needs has a column of its own. The rest is one JSON document,
//! `details`, that is absent for most rows.

use std::{collections::BTreeMap, fmt::Display};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{StoreError, Stored, Version, row_id};
use crate::domain::{
    approval::Approval,
    attempt::{Attempt, Failure, Fate, GrantedOn, Promise, ReportDigest},
    canonical_json::Pointer,
    event::{Event, Provenance},
    fingerprint::{ArgumentDigests, Fingerprint},
    identity::{Key, KeyBasis, downstream_uuid},
    intent::{Intent, Probing, RecipeVersion, ResultBody, Settlement, State},
    time::Timestamp,
};

/// The columns of a row, in the types that both databases have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) id: Uuid,
    pub(super) version: Version,
    pub(super) key: Vec<u8>,
    pub(super) key_basis: i16,
    pub(super) policy_version: i32,
    pub(super) hash_version: i16,
    pub(super) fingerprint: Vec<u8>,
    pub(super) argument_digests: Vec<u8>,
    pub(super) namespace: String,
    pub(super) tool: String,
    pub(super) run_id: String,
    pub(super) step_id: String,
    pub(super) tool_call_id: Option<String>,
    pub(super) created_at: i64,
    pub(super) state: i16,
    pub(super) attempt: i32,
    pub(super) attempt_id: Option<Uuid>,
    pub(super) caller: Option<String>,
    pub(super) granted_on: Option<i16>,
    pub(super) granted_at: Option<i64>,
    pub(super) lease_expires_at: Option<i64>,
    pub(super) extended: bool,
    pub(super) fate: Option<i16>,
    pub(super) reports: Option<Vec<u8>>,
    pub(super) result: Option<Vec<u8>>,
    pub(super) result_content_type: Option<String>,
    pub(super) result_sha256: Option<Vec<u8>>,
    pub(super) result_size: Option<i64>,
    pub(super) result_truncated: bool,
    pub(super) pruned: bool,
    pub(super) provenance: Option<i16>,
    pub(super) settled_at: Option<i64>,
    pub(super) downstream_ref: Option<String>,
    pub(super) downstream_key: Option<Vec<u8>>,
    pub(super) needs_attention: bool,
    pub(super) conflict: bool,
    pub(super) details: Option<String>,
    pub(super) replay_count: i64,
    pub(super) last_seen_at: Option<i64>,
}

/// What ordinary effects do without.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    free_text: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    past_attempts: Vec<Attempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    #[serde(skip_serializing_if = "is_default")]
    promise: Promise,
    #[serde(skip_serializing_if = "is_default")]
    attempts_forgiven: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<Approval>,
    #[serde(skip_serializing_if = "is_default")]
    probing: Probing,
    /// Absent where the settler is the current attempt's caller and gave no reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<(String, String)>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Columns {
    pub(super) fn of(intent: &Intent, version: Version) -> Self {
        let (current, past) = match intent.attempts.split_last() {
            Some((current, past)) => (Some(current), past),
            None => (None, [].as_slice()),
        };
        let caller = current.map_or("", |attempt| attempt.caller.as_str());
        let details = Details {
            labels: intent.labels.clone(),
            free_text: intent.free_text.iter().map(ToString::to_string).collect(),
            past_attempts: past.to_vec(),
            failure: current.and_then(|attempt| attempt.failure.clone()),
            promise: current.map_or_else(Promise::default, |attempt| attempt.promise),
            attempts_forgiven: intent.attempts_forgiven,
            approval: intent.approval.clone(),
            probing: intent.probing.clone(),
            settled: intent
                .settlement
                .as_ref()
                .filter(|settled| settled.by != caller || !settled.note.is_empty())
                .map(|settled| (settled.by.clone(), settled.note.clone())),
        };
        let result = intent.result.as_ref();
        Self {
            id: row_id(&intent.key, intent.recipe.hash),
            version,
            key: intent.key.as_bytes().to_vec(),
            key_basis: basis_to_code(intent.key_basis),
            policy_version: signed(intent.recipe.policy),
            hash_version: i16::try_from(intent.recipe.hash).unwrap_or(i16::MAX),
            fingerprint: intent.fingerprint.as_bytes().to_vec(),
            argument_digests: intent.digests.encode(),
            namespace: intent.namespace.clone(),
            tool: intent.tool.clone(),
            run_id: intent.run_id.clone(),
            step_id: intent.step_id.clone(),
            tool_call_id: Some(intent.tool_call_id.clone()).filter(|id| !id.is_empty()),
            created_at: intent.created_at.micros(),
            state: state_to_code(intent.state),
            attempt: current.map_or(0, |attempt| signed(attempt.number)),
            attempt_id: current.map(|attempt| attempt.id),
            caller: current.map(|attempt| attempt.caller.clone()).filter(|name| !name.is_empty()),
            granted_on: current.map(|attempt| granted_on_to_code(attempt.granted_on)),
            granted_at: current.map(|attempt| attempt.granted_at.micros()),
            lease_expires_at: current.map(|attempt| attempt.lease_expires_at.micros()),
            extended: current.is_some_and(|attempt| attempt.extended),
            fate: current.map(|attempt| fate_to_code(attempt.fate)),
            reports: current
                .map(|attempt| attempt.reports.concat())
                .filter(|reports| !reports.is_empty()),
            result: result.and_then(|result| result.bytes.clone()),
            result_content_type: result
                .map(|result| result.content_type.clone())
                .filter(|media_type| !media_type.is_empty()),
            result_sha256: result.map(|result| result.sha256.to_vec()),
            result_size: result.map(|result| i64::try_from(result.size).unwrap_or(i64::MAX)),
            result_truncated: result.is_some_and(|result| result.truncated),
            pruned: intent.pruned,
            provenance: intent
                .settlement
                .as_ref()
                .map(|settled| provenance_to_code(settled.provenance)),
            settled_at: intent.settled_at.map(Timestamp::micros),
            downstream_ref: intent.downstream_ref.clone(),
            downstream_key: current
                .filter(|attempt| attempt.promise.key_attempt.is_some())
                .map(|attempt| attempt.downstream_digest(&intent.key, intent.recipe.hash))
                // The UUID form, which both forms of the key tell.
                .map(|digest| downstream_uuid(digest).as_bytes().to_vec()),
            needs_attention: intent.needs_attention,
            conflict: intent.conflict,
            details: (details != Details::default())
                .then(|| serde_json::to_string(&details).expect("details are plain data")),
            replay_count: i64::try_from(intent.replay_count).unwrap_or(i64::MAX),
            last_seen_at: intent.last_seen_at.map(Timestamp::micros),
        }
    }

    pub(super) fn into_stored(self) -> Result<Stored, StoreError> {
        let details: Details = match &self.details {
            Some(text) => serde_json::from_str(text).map_err(|error| corrupt("details", error))?,
            None => Details::default(),
        };
        let mut attempts = details.past_attempts;
        let caller = self.caller.clone().unwrap_or_default();
        if let Some(id) = self.attempt_id {
            attempts.push(Attempt {
                id,
                number: unsigned(self.attempt),
                caller: caller.clone(),
                granted_on: granted_on_from_code(present("granted_on", self.granted_on)?)?,
                granted_at: Timestamp::from_micros(present("granted_at", self.granted_at)?),
                lease_expires_at: Timestamp::from_micros(present(
                    "lease_expires_at",
                    self.lease_expires_at,
                )?),
                extended: self.extended,
                fate: fate_from_code(present("fate", self.fate)?)?,
                reports: reports_from(&self.reports.unwrap_or_default())?,
                failure: details.failure,
                promise: details.promise,
            });
        }
        let result = match (self.result_sha256, self.result_size) {
            (Some(sha256), Some(size)) => Some(ResultBody {
                bytes: self.result,
                content_type: self.result_content_type.unwrap_or_default(),
                sha256: fixed("result_sha256", &sha256)?,
                size: u64::try_from(size).unwrap_or(0),
                truncated: self.result_truncated,
            }),
            _ => None,
        };
        let settlement = match self.provenance {
            Some(code) => {
                let (by, note) = details.settled.unwrap_or((caller, String::new()));
                Some(Settlement { provenance: provenance_from_code(code)?, by, note })
            }
            None => None,
        };
        let intent = Intent {
            namespace: self.namespace,
            key: Key::from_bytes(fixed("key", &self.key)?),
            key_basis: basis_from_code(self.key_basis)?,
            recipe: RecipeVersion {
                policy: unsigned(self.policy_version),
                hash: unsigned(i32::from(self.hash_version)),
            },
            fingerprint: Fingerprint::from_bytes(fixed("fingerprint", &self.fingerprint)?),
            digests: ArgumentDigests::decode(&self.argument_digests)
                .map_err(|error| corrupt("argument_digests", error))?,
            tool: self.tool,
            run_id: self.run_id,
            step_id: self.step_id,
            tool_call_id: self.tool_call_id.unwrap_or_default(),
            labels: details.labels,
            free_text: details
                .free_text
                .iter()
                .map(|text| Pointer::parse(text).map_err(|error| corrupt("free_text", error)))
                .collect::<Result<_, _>>()?,
            created_at: Timestamp::from_micros(self.created_at),
            state: state_from_code(self.state)?,
            attempts,
            attempts_forgiven: details.attempts_forgiven,
            approval: details.approval,
            result,
            pruned: self.pruned,
            settlement,
            settled_at: self.settled_at.map(Timestamp::from_micros),
            downstream_ref: self.downstream_ref,
            needs_attention: self.needs_attention,
            conflict: self.conflict,
            probing: details.probing,
            replay_count: u64::try_from(self.replay_count).unwrap_or(0),
            last_seen_at: self.last_seen_at.map(Timestamp::from_micros),
        };
        Ok(Stored { intent, version: self.version })
    }
}

/// The columns of a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventColumns {
    /// Tells one fact of an intent from another, so that a plain repeat is kept once.
    pub(super) digest: Vec<u8>,
    pub(super) at: i64,
    pub(super) fact: String,
}

impl EventColumns {
    /// `version` is that of the row which the fact was written with. A caller's report that moved
    /// nothing may be a plain repeat; a move, or a person's decision, is a fact each time.
    pub(super) fn of(event: &Event, version: Version) -> Self {
        let timeless = Event { at: Timestamp::default(), ..event.clone() };
        let fact = serde_json::to_string(&timeless).expect("an event is plain data");
        let may_repeat =
            event.provenance == Provenance::Caller && event.state_before == event.state_after;
        let hash = Sha256::new_with_prefix(&fact)
            .chain_update(if may_repeat { 0 } else { version }.to_be_bytes());
        Self { digest: hash.finalize()[..16].to_vec(), at: event.at.micros(), fact }
    }

    pub(super) fn into_event(at: i64, fact: &str) -> Result<Event, StoreError> {
        let event: Event = serde_json::from_str(fact).map_err(|error| corrupt("fact", error))?;
        Ok(Event { at: Timestamp::from_micros(at), ..event })
    }
}

fn corrupt(column: &str, error: impl Display) -> StoreError {
    StoreError::Corrupt(format!("{column}: {error}"))
}

fn present<T>(column: &str, value: Option<T>) -> Result<T, StoreError> {
    value.ok_or_else(|| corrupt(column, "is null beside an attempt"))
}

fn fixed<const N: usize>(column: &str, bytes: &[u8]) -> Result<[u8; N], StoreError> {
    bytes.try_into().map_err(|_| corrupt(column, format!("is not {N} bytes long")))
}

fn reports_from(bytes: &[u8]) -> Result<Vec<ReportDigest>, StoreError> {
    let (digests, rest) = bytes.as_chunks();
    if rest.is_empty() { Ok(digests.to_vec()) } else { Err(corrupt("reports", "is cut")) }
}

pub(super) fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(super) fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// The two directions of a code that is written to disk, from one table.
macro_rules! codes {
    ($type:ty, $to:ident, $from:ident, $($variant:ident = $code:literal),+ $(,)?) => {
        pub(super) fn $to(value: $type) -> i16 {
            match value { $(<$type>::$variant => $code),+ }
        }

        pub(super) fn $from(code: i16) -> Result<$type, StoreError> {
            match code {
                $($code => Ok(<$type>::$variant),)+
                other => Err(corrupt(stringify!($type), format!("has no code {other}"))),
            }
        }
    };
}

codes!(
    State,
    state_to_code,
    state_from_code,
    AwaitingApproval = 1,
    Approved = 2,
    Started = 3,
    Unknown = 4,
    Completed = 5,
    Failed = 6,
    Denied = 7,
);
codes!(
    KeyBasis,
    basis_to_code,
    basis_from_code,
    IdempotencyKey = 1,
    BusinessIds = 2,
    Policy = 3,
    StepArguments = 4,
);
codes!(
    GrantedOn,
    granted_on_to_code,
    granted_on_from_code,
    New = 1,
    Approved = 2,
    Retry = 3,
    NotExecuted = 4,
    DownstreamDedupes = 5,
    Fenced = 6,
);
codes!(
    Fate,
    fate_to_code,
    fate_from_code,
    Open = 1,
    Executed = 2,
    NotExecuted = 3,
    NeverBegan = 4,
    Unknown = 5,
    Fenced = 6,
);
codes!(
    Provenance,
    provenance_to_code,
    provenance_from_code,
    Caller = 1,
    Reconciler = 2,
    Operator = 3,
    Policy = 4,
);
