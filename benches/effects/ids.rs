//! Many distinct ids at little cost, and the requests that carry them.

use std::fmt::Write as _;

use bytes::Bytes;
use intent_ledger::proto::v1::{BeginRequest, CompleteRequest, Identity};

use crate::wire::{Seen, Template};

/// The tool of every call; no policy lists it.
pub(crate) const TOOL: &str = "charge";

/// What every effect returns.
pub(crate) const RESULT: &[u8] = br#"{"id": "ch_1", "status": "succeeded"}"#;

/// Bytes of an id's text.
pub(crate) const ID_BYTES: usize = 36;

/// A UUID as text.
pub(crate) type Id = [u8; ID_BYTES];

/// Ids from a seed of the kernel's: splitmix64 (Steele, Lea, Flood 2014).
pub(crate) struct Ids(u64);

impl Ids {
    /// A sequence like no other.
    pub(crate) fn new() -> Self {
        Self(intent_ledger::ids::random().as_u64_pair().0)
    }

    /// The next number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next id.
    pub(crate) fn id(&mut self) -> Id {
        let id = uuid::Uuid::from_u64_pair(self.number(), self.number());
        let mut text = [0; ID_BYTES];
        id.hyphenated().encode_lower(&mut text);
        text
    }

    /// The next key of the hand-rolled table: as many digits as pgbench's script makes.
    pub(crate) fn table_key(&mut self) -> String {
        let mut key = String::with_capacity(32);
        write!(key, "{:016x}{:016x}", self.number(), self.number()).expect("a string grows");
        key
    }
}

const ANY_ID: &str = "00000000-0000-0000-0000-000000000000";
const ANY_ATTEMPT: &str = "11111111-1111-1111-1111-111111111111";
const ANY_KEY: &str = "2222222222222222222222222222222222222222222222222222222222222222";

/// The requests of one caller.
pub(crate) struct Requests {
    begin: Template,
    complete: Template,
}

impl Requests {
    /// Prepares them.
    pub(crate) fn new() -> Self {
        let begin = BeginRequest {
            identity: Some(Identity {
                tool: TOOL.into(),
                run_id: "run-1".into(),
                idempotency_key: ANY_ID.into(),
                ..Identity::default()
            }),
            arguments_json: r#"{"order":"o-17","amount":1200,"memo":"invoice 17"}"#.into(),
            attempt_id: ANY_ATTEMPT.into(),
            caller: "bench".into(),
            ..BeginRequest::default()
        };
        let complete = CompleteRequest {
            key: ANY_KEY.into(),
            attempt_id: ANY_ATTEMPT.into(),
            result: Some(RESULT.to_vec()),
            result_content_type: "application/json".into(),
            ..CompleteRequest::default()
        };
        Self {
            begin: Template::new(&begin, &[ANY_ID, ANY_ATTEMPT]),
            complete: Template::new(&complete, &[ANY_KEY, ANY_ATTEMPT]),
        }
    }

    /// A Begin as an item of a session.
    pub(crate) fn begin(&mut self, idempotency_key: &Id, attempt: &Id) -> &[u8] {
        self.begin.fill(&[idempotency_key, attempt])
    }

    /// A Begin as a unary call.
    pub(crate) fn begin_call(&mut self, idempotency_key: &Id, attempt: &Id) -> Bytes {
        self.begin.call(&[idempotency_key, attempt])
    }

    /// A Complete as an item of a session.
    pub(crate) fn complete(&mut self, granted: &Seen, attempt: &Id) -> &[u8] {
        self.complete.fill(&[&granted.key, attempt])
    }

    /// A Complete as a unary call.
    pub(crate) fn complete_call(&mut self, granted: &Seen, attempt: &Id) -> Bytes {
        self.complete.call(&[&granted.key, attempt])
    }
}
