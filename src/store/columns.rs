//! An intent as primitive columns, the same for every store, and what every statement says of them.
//!
//! What every ordinary effect needs has a column of its own. The rest is one JSON document,
//! `details`, that is absent for most rows.

use std::{borrow::Cow, collections::BTreeMap, fmt::Display};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{
    StoreError, Stored, Version,
    codes::{
        basis_from_code, basis_to_code, fate_from_code, fate_to_code, granted_on_from_code,
        granted_on_to_code, provenance_from_code, provenance_to_code, state_from_code,
        state_to_code,
    },
};
use crate::domain::{
    approval::Approval,
    attempt::{Attempt, Failure, Promise, ReportDigest},
    canonical_json::Pointer,
    event::{Event, Provenance},
    fingerprint::{ArgumentDigests, Fingerprint},
    identity::{Key, downstream_digest, downstream_uuid},
    intent::{Intent, Probing, RecipeVersion, ResultBody, RunSlot, Settlement},
    time::Timestamp,
};

/// The columns of a row: borrowed from the intent to be written, or owned as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns<'a> {
    pub(super) id: Uuid,
    pub(super) version: Version,
    pub(super) key: [u8; 32],
    pub(super) key_basis: i16,
    pub(super) policy_version: i32,
    pub(super) hash_version: i16,
    pub(super) fingerprint: [u8; 32],
    pub(super) argument_digests: Cow<'a, [u8]>,
    pub(super) namespace: Cow<'a, str>,
    pub(super) tool: Cow<'a, str>,
    pub(super) run_id: Cow<'a, str>,
    pub(super) step_id: Cow<'a, str>,
    pub(super) tool_call_id: Option<Cow<'a, str>>,
    pub(super) created_at: i64,
    pub(super) state: i16,
    pub(super) attempt: i32,
    pub(super) attempt_id: Option<Uuid>,
    pub(super) caller: Option<Cow<'a, str>>,
    pub(super) granted_on: Option<i16>,
    pub(super) granted_at: Option<i64>,
    pub(super) lease_expires_at: Option<i64>,
    pub(super) extended: bool,
    pub(super) fate: Option<i16>,
    pub(super) reports: Option<Vec<u8>>,
    pub(super) result: Option<Cow<'a, [u8]>>,
    pub(super) result_content_type: Option<Cow<'a, str>>,
    pub(super) result_sha256: Option<[u8; 32]>,
    pub(super) result_size: Option<i64>,
    pub(super) result_truncated: bool,
    pub(super) pruned: bool,
    pub(super) provenance: Option<i16>,
    pub(super) settled_at: Option<i64>,
    pub(super) downstream_ref: Option<Cow<'a, str>>,
    pub(super) downstream_key: Option<Uuid>,
    pub(super) needs_attention: bool,
    pub(super) conflict: bool,
    pub(super) details: Option<String>,
    pub(super) replay_count: i64,
    pub(super) last_seen_at: Option<i64>,
}

/// A value of a column, in the types that both databases have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Int2(i16),
    Int4(i32),
    Int8(i64),
    /// Microseconds since the Unix epoch.
    Time(i64),
    Uuid(Uuid),
    Bytes(&'a [u8]),
    Text(&'a str),
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Int2,
    Int4,
    Int8,
    Time,
    Uuid,
    Bytes,
    Text,
}

/// When a column is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// With the row, once.
    Identity,
    /// With the row, and by changes out of the ordinary.
    Attempt,
    /// By every settlement, and by changes out of the ordinary.
    Settlement,
    /// By changes out of the ordinary only.
    Extra,
}

/// One column of `intents`.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) part: Part,
    pub(super) of: for<'a> fn(&'a Columns<'_>) -> Value<'a>,
}

impl Column {
    /// Whether an ordinary settlement leaves it alone.
    fn survives_settlement(&self) -> bool {
        self.part != Part::Settlement && self.name != "version"
    }
}

/// Whether an ordinary settlement makes the one row out of the other.
pub(super) fn differ_by_settlement(old: &Intent, new: &Intent) -> bool {
    let (old, new) = (Columns::of(old, 0), Columns::of(new, 0));
    COLUMNS
        .iter()
        .filter(|column| column.survives_settlement())
        .all(|column| (column.of)(&old) == (column.of)(&new))
}

fn text<'a>(text: &'a Option<Cow<'_, str>>) -> Value<'a> {
    text.as_deref().map_or(Value::Null, Value::Text)
}

fn bytes(bytes: Option<&[u8]>) -> Value<'_> {
    bytes.map_or(Value::Null, Value::Bytes)
}

fn int2(number: Option<i16>) -> Value<'static> {
    number.map_or(Value::Null, Value::Int2)
}

fn time(micros: Option<i64>) -> Value<'static> {
    micros.map_or(Value::Null, Value::Time)
}

macro_rules! columns {
    ($($part:ident $name:ident: $kind:ident = $of:expr;)+) => {
        /// Every column that a write brings, in the order in which rows are read.
        pub(super) const COLUMNS: &[Column] = &[$(Column {
            name: stringify!($name),
            kind: Kind::$kind,
            part: Part::$part,
            of: $of,
        }),+];
    };
}

columns! {
    Identity id: Uuid = |row| Value::Uuid(row.id);
    Attempt version: Int4 = |row| Value::Int4(signed(row.version));
    Identity key: Bytes = |row| Value::Bytes(&row.key);
    Identity key_basis: Int2 = |row| Value::Int2(row.key_basis);
    Identity policy_version: Int4 = |row| Value::Int4(row.policy_version);
    Identity hash_version: Int2 = |row| Value::Int2(row.hash_version);
    Identity fingerprint: Bytes = |row| Value::Bytes(&row.fingerprint);
    Identity argument_digests: Bytes = |row| Value::Bytes(&row.argument_digests);
    Identity namespace: Text = |row| Value::Text(&row.namespace);
    Identity tool: Text = |row| Value::Text(&row.tool);
    Identity run_id: Text = |row| Value::Text(&row.run_id);
    Identity step_id: Text = |row| Value::Text(&row.step_id);
    Identity tool_call_id: Text = |row| text(&row.tool_call_id);
    Identity created_at: Time = |row| Value::Time(row.created_at);
    Settlement state: Int2 = |row| Value::Int2(row.state);
    Attempt attempt: Int4 = |row| Value::Int4(row.attempt);
    Attempt attempt_id: Uuid = |row| row.attempt_id.map_or(Value::Null, Value::Uuid);
    Attempt caller: Text = |row| text(&row.caller);
    Attempt granted_on: Int2 = |row| int2(row.granted_on);
    Attempt granted_at: Time = |row| time(row.granted_at);
    Attempt lease_expires_at: Time = |row| time(row.lease_expires_at);
    Extra extended: Bool = |row| Value::Bool(row.extended);
    Settlement fate: Int2 = |row| int2(row.fate);
    Settlement reports: Bytes = |row| bytes(row.reports.as_deref());
    Settlement result: Bytes = |row| bytes(row.result.as_deref());
    Settlement result_content_type: Text = |row| text(&row.result_content_type);
    Settlement result_sha256: Bytes = |row| bytes(row.result_sha256.as_ref().map(|it| &it[..]));
    Settlement result_size: Int8 = |row| row.result_size.map_or(Value::Null, Value::Int8);
    Extra result_truncated: Bool = |row| Value::Bool(row.result_truncated);
    Extra pruned: Bool = |row| Value::Bool(row.pruned);
    Settlement provenance: Int2 = |row| int2(row.provenance);
    Settlement settled_at: Time = |row| time(row.settled_at);
    Settlement downstream_ref: Text = |row| text(&row.downstream_ref);
    Extra downstream_key: Uuid = |row| row.downstream_key.map_or(Value::Null, Value::Uuid);
    Attempt needs_attention: Bool = |row| Value::Bool(row.needs_attention);
    Extra conflict: Bool = |row| Value::Bool(row.conflict);
    Attempt details: Text = |row| row.details.as_deref().map_or(Value::Null, Value::Text);
}

/// The counters of a row, which are read after [`COLUMNS`] and written behind.
pub(super) const COUNTERS: [&str; 2] = ["replay_count", "last_seen_at"];

/// The names of all columns, in the order in which rows are read.
pub(super) fn names() -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).chain(COUNTERS).collect();
    names.join(", ")
}

/// A row of either database, whose columns are taken one after the other.
pub(super) trait Line<'a> {
    /// What is wrong with a column.
    type Error;

    fn bool(&mut self) -> Result<bool, Self::Error>;
    fn int2(&mut self) -> Result<Option<i16>, Self::Error>;
    fn int4(&mut self) -> Result<i32, Self::Error>;
    fn int8(&mut self) -> Result<Option<i64>, Self::Error>;
    /// Microseconds since the Unix epoch.
    fn time(&mut self) -> Result<Option<i64>, Self::Error>;
    fn uuid(&mut self) -> Result<Option<Uuid>, Self::Error>;
    fn hash(&mut self) -> Result<Option<[u8; 32]>, Self::Error>;
    fn bytes(&mut self) -> Result<Option<Cow<'a, [u8]>>, Self::Error>;
    fn text(&mut self) -> Result<Option<Cow<'a, str>>, Self::Error>;
}

impl<'a> Columns<'a> {
    /// Takes the columns in the order of [`names`]. What the schema lets nobody leave out is there.
    pub(super) fn read<L: Line<'a>>(line: &mut L) -> Result<Self, L::Error> {
        Ok(Self {
            id: line.uuid()?.unwrap_or_default(),
            version: unsigned(line.int4()?),
            key: line.hash()?.unwrap_or_default(),
            key_basis: line.int2()?.unwrap_or_default(),
            policy_version: line.int4()?,
            hash_version: line.int2()?.unwrap_or_default(),
            fingerprint: line.hash()?.unwrap_or_default(),
            argument_digests: line.bytes()?.unwrap_or_default(),
            namespace: line.text()?.unwrap_or_default(),
            tool: line.text()?.unwrap_or_default(),
            run_id: line.text()?.unwrap_or_default(),
            step_id: line.text()?.unwrap_or_default(),
            tool_call_id: line.text()?,
            created_at: line.time()?.unwrap_or_default(),
            state: line.int2()?.unwrap_or_default(),
            attempt: line.int4()?,
            attempt_id: line.uuid()?,
            caller: line.text()?,
            granted_on: line.int2()?,
            granted_at: line.time()?,
            lease_expires_at: line.time()?,
            extended: line.bool()?,
            fate: line.int2()?,
            reports: line.bytes()?.map(Cow::into_owned),
            result: line.bytes()?,
            result_content_type: line.text()?,
            result_sha256: line.hash()?,
            result_size: line.int8()?,
            result_truncated: line.bool()?,
            pruned: line.bool()?,
            provenance: line.int2()?,
            settled_at: line.time()?,
            downstream_ref: line.text()?,
            downstream_key: line.uuid()?,
            needs_attention: line.bool()?,
            conflict: line.bool()?,
            details: line.text()?.map(Cow::into_owned),
            replay_count: line.int8()?.unwrap_or_default(),
            last_seen_at: line.time()?,
        })
    }
}

/// What ordinary effects do without.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    kept: BTreeMap<String, String>,
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
    #[serde(skip_serializing_if = "is_default")]
    slot: RunSlot,
    /// Absent where the settler is the current attempt's caller and gave no reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<(String, String)>,
}

impl Details {
    /// The document of an intent; most have none, and what they have is not copied to find out.
    fn of(intent: &Intent) -> Option<String> {
        let (current, past) = match intent.attempts.split_last() {
            Some((current, past)) => (Some(current), past),
            None => (None, [].as_slice()),
        };
        let failure = current.and_then(|attempt| attempt.failure.as_ref());
        let promise = current.map_or_else(Promise::default, |attempt| attempt.promise);
        let caller = current.map_or("", |attempt| attempt.caller.as_str());
        let settled = intent
            .settlement
            .as_ref()
            .filter(|settled| settled.by != caller || !settled.note.is_empty());
        let ordinary = intent.labels.is_empty()
            && intent.kept.is_empty()
            && intent.free_text.is_empty()
            && past.is_empty()
            && failure.is_none()
            && is_default(&promise)
            && intent.attempts_forgiven == 0
            && intent.approval.is_none()
            && is_default(&intent.probing)
            && is_default(&intent.slot)
            && settled.is_none();
        if ordinary {
            return None;
        }
        let details = Self {
            labels: intent.labels.clone(),
            kept: intent.kept.clone(),
            free_text: intent.free_text.iter().map(ToString::to_string).collect(),
            past_attempts: past.to_vec(),
            failure: failure.cloned(),
            promise,
            attempts_forgiven: intent.attempts_forgiven,
            approval: intent.approval.clone(),
            probing: intent.probing.clone(),
            slot: intent.slot,
            settled: settled.map(|settled| (settled.by.clone(), settled.note.clone())),
        };
        Some(serde_json::to_string(&details).expect("details are plain data"))
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl<'a> Columns<'a> {
    pub(super) fn of(intent: &'a Intent, version: Version) -> Self {
        let current = intent.current();
        let named = |name: &'a str| Some(Cow::Borrowed(name)).filter(|name| !name.is_empty());
        let result = intent.result.as_ref();
        // What the bytes tell is not stored beside them.
        let digested = result.filter(|result| result.bytes.is_none() || result.truncated);
        Self {
            id: intent.id(),
            version,
            key: *intent.key.as_bytes(),
            key_basis: basis_to_code(intent.key_basis),
            policy_version: signed(intent.recipe.policy),
            hash_version: i16::try_from(intent.recipe.hash).unwrap_or(i16::MAX),
            fingerprint: *intent.fingerprint.as_bytes(),
            argument_digests: Cow::Borrowed(intent.digests.as_bytes()),
            namespace: Cow::Borrowed(&intent.namespace),
            tool: Cow::Borrowed(&intent.tool),
            run_id: Cow::Borrowed(&intent.run_id),
            step_id: Cow::Borrowed(&intent.step_id),
            tool_call_id: named(&intent.tool_call_id),
            created_at: intent.created_at.micros(),
            state: state_to_code(intent.state),
            attempt: current.map_or(0, |attempt| signed(attempt.number)),
            attempt_id: current.map(|attempt| attempt.id),
            caller: current.and_then(|attempt| named(&attempt.caller)),
            granted_on: current.map(|attempt| granted_on_to_code(attempt.granted_on)),
            granted_at: current.map(|attempt| attempt.granted_at.micros()),
            lease_expires_at: current.map(|attempt| attempt.lease_expires_at.micros()),
            extended: current.is_some_and(|attempt| attempt.extended),
            fate: current.map(|attempt| fate_to_code(attempt.fate)),
            reports: current
                .map(|attempt| attempt.reports.concat())
                .filter(|reports| !reports.is_empty()),
            result: result.and_then(|result| result.bytes.as_deref()).map(Cow::Borrowed),
            result_content_type: result.and_then(|result| named(&result.content_type)),
            result_sha256: digested.map(|result| result.sha256),
            result_size: digested.map(|it| i64::try_from(it.size).unwrap_or(i64::MAX)),
            result_truncated: result.is_some_and(|result| result.truncated),
            pruned: intent.pruned,
            provenance: intent
                .settlement
                .as_ref()
                .map(|settled| provenance_to_code(settled.provenance)),
            settled_at: intent.settled_at.map(Timestamp::micros),
            downstream_ref: intent.downstream_ref.as_deref().map(Cow::Borrowed),
            downstream_key: current
                .filter(|attempt| attempt.promise.key_attempt.is_some())
                .map(|attempt| intent.downstream_digest(attempt))
                // The UUID form, which both forms of the key tell.
                .map(downstream_uuid),
            needs_attention: intent.needs_attention,
            conflict: intent.conflict,
            details: Details::of(intent),
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
        let owned = |text: Option<Cow<'_, str>>| text.map_or_else(String::new, Cow::into_owned);
        let caller = owned(self.caller);
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
        let result = match (self.result.map(Cow::into_owned), self.result_sha256, self.result_size)
        {
            (Some(bytes), None, None) => Some(ResultBody::reported(
                Some(bytes),
                owned(self.result_content_type),
                None,
                u64::MAX,
            )),
            (bytes, Some(sha256), Some(size)) => Some(ResultBody {
                bytes,
                content_type: owned(self.result_content_type),
                sha256,
                size: u64::try_from(size).unwrap_or(0),
                truncated: self.result_truncated,
            }),
            (None, None, None) => None,
            _ => return Err(corrupt("result_sha256", "and result_size go together")),
        };
        let settlement = match self.provenance {
            Some(code) => {
                let (by, note) = details.settled.unwrap_or((caller, String::new()));
                Some(Settlement { provenance: provenance_from_code(code)?, by, note })
            }
            None => None,
        };
        let intent = Intent {
            namespace: self.namespace.into_owned(),
            downstream: downstream_digest(
                &Key::from_bytes(self.key),
                None,
                unsigned(i32::from(self.hash_version)),
            ),
            key: Key::from_bytes(self.key),
            key_basis: basis_from_code(self.key_basis)?,
            recipe: RecipeVersion {
                policy: unsigned(self.policy_version),
                hash: unsigned(i32::from(self.hash_version)),
            },
            fingerprint: Fingerprint::from_bytes(self.fingerprint),
            digests: ArgumentDigests::from_bytes(self.argument_digests.into_owned())
                .map_err(|error| corrupt("argument_digests", error))?,
            tool: self.tool.into_owned(),
            run_id: self.run_id.into_owned(),
            step_id: self.step_id.into_owned(),
            tool_call_id: owned(self.tool_call_id),
            labels: details.labels,
            kept: details.kept,
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
            slot: details.slot,
            result,
            pruned: self.pruned,
            settlement,
            settled_at: self.settled_at.map(Timestamp::from_micros),
            downstream_ref: self.downstream_ref.map(Cow::into_owned),
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

pub(super) fn corrupt(column: &str, error: impl Display) -> StoreError {
    StoreError::Corrupt(format!("{column}: {error}"))
}

fn present<T>(column: &str, value: Option<T>) -> Result<T, StoreError> {
    value.ok_or_else(|| corrupt(column, "is null beside an attempt"))
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
