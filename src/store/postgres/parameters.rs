//! A batch of rows as arrays of columns, and a row back from its columns.

use std::time::{Duration, SystemTime};

use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::{
    EPOCH,
    connect::Parameter,
    sql::{CHANGE_GUARDS, COLUMNS, NEW_GUARDS, array},
};
use crate::{
    domain::time::Timestamp,
    store::{
        Expected, Write,
        columns::{Columns, EventColumns, signed, unsigned},
    },
};

/// A time as the driver takes it.
pub(super) fn time(at: Timestamp) -> SystemTime {
    let span = Duration::from_micros(at.micros().unsigned_abs());
    if at.micros() < 0 { EPOCH - span } else { EPOCH + span }
}

/// A time as the driver gives it.
pub(super) fn micros(at: SystemTime) -> Timestamp {
    let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(match at.duration_since(EPOCH) {
        Ok(after) => micros(after),
        Err(before) => -micros(before.duration()),
    })
}

/// The arrays of the write statement: new rows, changed rows, and the facts of both.
#[derive(Default)]
pub(super) struct Batch {
    new: Arrays,
    changed: Arrays,
    event_id: Vec<Uuid>,
    event_digest: Vec<Vec<u8>>,
    event_fact: Vec<String>,
}

/// One array for each column and guard.
#[derive(Default)]
struct Arrays {
    id: Vec<Uuid>,
    version: Vec<i32>,
    key: Vec<Vec<u8>>,
    key_basis: Vec<i16>,
    policy_version: Vec<i32>,
    hash_version: Vec<i16>,
    fingerprint: Vec<Vec<u8>>,
    argument_digests: Vec<Vec<u8>>,
    namespace: Vec<String>,
    tool: Vec<String>,
    run_id: Vec<String>,
    step_id: Vec<String>,
    tool_call_id: Vec<Option<String>>,
    created_at: Vec<SystemTime>,
    state: Vec<i16>,
    attempt: Vec<i32>,
    attempt_id: Vec<Option<Uuid>>,
    caller: Vec<Option<String>>,
    granted_on: Vec<Option<i16>>,
    granted_at: Vec<Option<SystemTime>>,
    lease_expires_at: Vec<Option<SystemTime>>,
    extended: Vec<bool>,
    fate: Vec<Option<i16>>,
    reports: Vec<Option<Vec<u8>>>,
    result: Vec<Option<Vec<u8>>>,
    result_content_type: Vec<Option<String>>,
    result_sha256: Vec<Option<Vec<u8>>>,
    result_size: Vec<Option<i64>>,
    result_truncated: Vec<bool>,
    pruned: Vec<bool>,
    provenance: Vec<Option<i16>>,
    settled_at: Vec<Option<SystemTime>>,
    downstream_ref: Vec<Option<String>>,
    downstream_key: Vec<Option<Vec<u8>>>,
    needs_attention: Vec<bool>,
    conflict: Vec<bool>,
    details: Vec<Option<String>>,
    expected: Vec<Option<i32>>,
    orphans_seen: Vec<bool>,
    policy: Vec<Option<i32>>,
    decided_at: Vec<SystemTime>,
    created: Vec<bool>,
    granted: Vec<bool>,
    leased: Vec<bool>,
    settled: Vec<bool>,
}

impl Batch {
    pub(super) fn of(writes: &[&Write]) -> Self {
        let mut batch = Self::default();
        for write in writes {
            batch.push(write);
        }
        batch
    }

    fn push(&mut self, write: &Write) {
        let row = Columns::of(&write.intent, write.version_after());
        for event in &write.events {
            let columns = EventColumns::of(event, row.version);
            self.event_id.push(row.id);
            self.event_digest.push(columns.digest);
            self.event_fact.push(columns.fact);
        }
        match write.expected {
            Expected::Absent { .. } => self.new.push(row, write),
            Expected::Version(_) => self.changed.push(row, write),
        }
    }

    /// In the order of `sql::write`.
    pub(super) fn as_parameters(&self) -> Vec<Parameter<'_>> {
        let new = COLUMNS.iter().filter(|column| column.inserted);
        let new = new.map(|column| (column.name, column.array()));
        let new = new.chain(NEW_GUARDS.map(|(name, sql_type)| (name, array(sql_type))));
        let changed = COLUMNS.iter().filter(|column| column.replaced);
        let changed = changed.map(|column| (column.name, column.array()));
        let changed = changed.chain(CHANGE_GUARDS.map(|(name, sql_type)| (name, array(sql_type))));
        let events: [Parameter<'_>; 3] = [
            (&self.event_id, Type::UUID_ARRAY),
            (&self.event_digest, Type::BYTEA_ARRAY),
            (&self.event_fact, Type::TEXT_ARRAY),
        ];
        new.map(|(name, of)| (self.new.column(name), of))
            .chain(changed.map(|(name, of)| (self.changed.column(name), of)))
            .chain(events)
            .collect()
    }
}

impl Arrays {
    fn push(&mut self, row: Columns, write: &Write) {
        let at = |micros| time(Timestamp::from_micros(micros));
        self.id.push(row.id);
        self.version.push(signed(row.version));
        self.key.push(row.key);
        self.key_basis.push(row.key_basis);
        self.policy_version.push(row.policy_version);
        self.hash_version.push(row.hash_version);
        self.fingerprint.push(row.fingerprint);
        self.argument_digests.push(row.argument_digests);
        self.namespace.push(row.namespace);
        self.tool.push(row.tool);
        self.run_id.push(row.run_id);
        self.step_id.push(row.step_id);
        self.tool_call_id.push(row.tool_call_id);
        self.created_at.push(at(row.created_at));
        self.state.push(row.state);
        self.attempt.push(row.attempt);
        self.attempt_id.push(row.attempt_id);
        self.caller.push(row.caller);
        self.granted_on.push(row.granted_on);
        self.granted_at.push(row.granted_at.map(at));
        self.lease_expires_at.push(row.lease_expires_at.map(at));
        self.extended.push(row.extended);
        self.fate.push(row.fate);
        self.reports.push(row.reports);
        self.result.push(row.result);
        self.result_content_type.push(row.result_content_type);
        self.result_sha256.push(row.result_sha256);
        self.result_size.push(row.result_size);
        self.result_truncated.push(row.result_truncated);
        self.pruned.push(row.pruned);
        self.provenance.push(row.provenance);
        self.settled_at.push(row.settled_at.map(at));
        self.downstream_ref.push(row.downstream_ref);
        self.downstream_key.push(row.downstream_key);
        self.needs_attention.push(row.needs_attention);
        self.conflict.push(row.conflict);
        self.details.push(row.details);
        let (expected, orphans_seen) = match write.expected {
            Expected::Absent { orphans_seen } => (None, orphans_seen),
            Expected::Version(version) => (Some(signed(version)), false),
        };
        self.expected.push(expected);
        self.orphans_seen.push(orphans_seen);
        self.policy.push(write.policy.map(signed));
        self.decided_at.push(time(write.decided_at));
        self.created.push(write.stamps.created);
        self.granted.push(write.stamps.granted);
        self.leased.push(write.stamps.leased);
        self.settled.push(write.stamps.settled);
    }

    fn column(&self, name: &str) -> &(dyn ToSql + Sync) {
        match name {
            "id" => &self.id,
            "version" => &self.version,
            "key" => &self.key,
            "key_basis" => &self.key_basis,
            "policy_version" => &self.policy_version,
            "hash_version" => &self.hash_version,
            "fingerprint" => &self.fingerprint,
            "argument_digests" => &self.argument_digests,
            "namespace" => &self.namespace,
            "tool" => &self.tool,
            "run_id" => &self.run_id,
            "step_id" => &self.step_id,
            "tool_call_id" => &self.tool_call_id,
            "created_at" => &self.created_at,
            "state" => &self.state,
            "attempt" => &self.attempt,
            "attempt_id" => &self.attempt_id,
            "caller" => &self.caller,
            "granted_on" => &self.granted_on,
            "granted_at" => &self.granted_at,
            "lease_expires_at" => &self.lease_expires_at,
            "extended" => &self.extended,
            "fate" => &self.fate,
            "reports" => &self.reports,
            "result" => &self.result,
            "result_content_type" => &self.result_content_type,
            "result_sha256" => &self.result_sha256,
            "result_size" => &self.result_size,
            "result_truncated" => &self.result_truncated,
            "pruned" => &self.pruned,
            "provenance" => &self.provenance,
            "settled_at" => &self.settled_at,
            "downstream_ref" => &self.downstream_ref,
            "downstream_key" => &self.downstream_key,
            "needs_attention" => &self.needs_attention,
            "conflict" => &self.conflict,
            "details" => &self.details,
            "expected" => &self.expected,
            "orphans_seen" => &self.orphans_seen,
            "policy" => &self.policy,
            "decided_at" => &self.decided_at,
            "created" => &self.created,
            "granted" => &self.granted,
            "leased" => &self.leased,
            "settled" => &self.settled,
            unknown => unreachable!("no column is called {unknown}"),
        }
    }
}

/// The columns of a row that `sql::select` read.
pub(super) fn read(row: &Row) -> Result<Columns, tokio_postgres::Error> {
    let at = |time| micros(time).micros();
    Ok(Columns {
        id: row.try_get("id")?,
        version: unsigned(row.try_get("version")?),
        key: row.try_get("key")?,
        key_basis: row.try_get("key_basis")?,
        policy_version: row.try_get("policy_version")?,
        hash_version: row.try_get("hash_version")?,
        fingerprint: row.try_get("fingerprint")?,
        argument_digests: row.try_get("argument_digests")?,
        namespace: row.try_get("namespace")?,
        tool: row.try_get("tool")?,
        run_id: row.try_get("run_id")?,
        step_id: row.try_get("step_id")?,
        tool_call_id: row.try_get("tool_call_id")?,
        created_at: at(row.try_get("created_at")?),
        state: row.try_get("state")?,
        attempt: row.try_get("attempt")?,
        attempt_id: row.try_get("attempt_id")?,
        caller: row.try_get("caller")?,
        granted_on: row.try_get("granted_on")?,
        granted_at: row.try_get::<_, Option<SystemTime>>("granted_at")?.map(at),
        lease_expires_at: row.try_get::<_, Option<SystemTime>>("lease_expires_at")?.map(at),
        extended: row.try_get("extended")?,
        fate: row.try_get("fate")?,
        reports: row.try_get("reports")?,
        result: row.try_get("result")?,
        result_content_type: row.try_get("result_content_type")?,
        result_sha256: row.try_get("result_sha256")?,
        result_size: row.try_get("result_size")?,
        result_truncated: row.try_get("result_truncated")?,
        pruned: row.try_get("pruned")?,
        provenance: row.try_get("provenance")?,
        settled_at: row.try_get::<_, Option<SystemTime>>("settled_at")?.map(at),
        downstream_ref: row.try_get("downstream_ref")?,
        downstream_key: row.try_get("downstream_key")?,
        needs_attention: row.try_get("needs_attention")?,
        conflict: row.try_get("conflict")?,
        details: row.try_get("details")?,
        replay_count: row.try_get("replay_count")?,
        last_seen_at: row.try_get::<_, Option<SystemTime>>("last_seen_at")?.map(at),
    })
}
