//! ListAttempts: who began an intent, and how often.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Ledger, LedgerError, Violation, shape};
use crate::{
    domain::{
        identity::Key,
        intent::Intent,
        repeat::{Answered, LayerCounts, Repeat, first_begin},
        time::Timestamp,
    },
    store::history::KeptRepeats,
};

/// Attempts on a page that asks for no size.
const PAGE_SIZE: usize = 50;

/// Attempts on a page at most.
const PAGE_SIZE_MAX: usize = 100;

/// A ListAttempts, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptsRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// The key of the intent.
    pub key: String,
    /// How many; zero for the default.
    pub page_size: i32,
    /// Where the page begins; empty for the first one.
    pub page_token: String,
}

/// A page, and the counters over all pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptsAnswer {
    /// The store's time of the reading.
    pub now: Timestamp,
    /// The Begin that made the row, on the first page.
    pub first: Option<FirstBegin>,
    /// Those after it, the oldest first.
    pub repeats: Vec<Repeat>,
    /// How many of them there have been.
    pub layers: LayerCounts,
    /// How many of them are counted only.
    pub not_kept: u64,
    /// The token of the next page; empty on the last one.
    pub next_page_token: String,
}

/// The Begin that made a row, as the row tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstBegin {
    /// When the row was written.
    pub at: Timestamp,
    /// The calling process, where it is known.
    pub caller: String,
    /// The attempt that it was granted; `None` where it was granted none.
    pub attempt_id: Option<Uuid>,
    /// The model's id of the tool call.
    pub tool_call_id: String,
    /// The run.
    pub run_id: String,
    /// The step.
    pub step_id: String,
    /// What it was answered.
    pub answered: Answered,
}

impl FirstBegin {
    fn of(row: &Intent) -> Self {
        let (first, answered) = first_begin(row);
        Self {
            at: row.created_at,
            caller: first.caller.to_owned(),
            attempt_id: first.attempt_id,
            tool_call_id: first.tool_call_id.to_owned(),
            run_id: first.run_id.to_owned(),
            step_id: first.step_id.to_owned(),
            answered,
        }
    }
}

impl Ledger {
    /// Lists the Begins of an intent. Those that this server has answered are all there; what others
    /// answered within the last second may be missing.
    pub async fn attempts(&self, request: AttemptsRequest) -> Result<AttemptsAnswer, LedgerError> {
        let namespace = shape::namespace(&request.namespace)?;
        let key = shape::key("key", &request.key)?;
        let page_size = shape::page_size(request.page_size, PAGE_SIZE, PAGE_SIZE_MAX)?;
        let after = read_token(&request.page_token, namespace, &key)?;
        let (now, found) = self.find(namespace, &key).await?;
        let row = found.ok_or(LedgerError::NotFound { report_kept: None })?.intent;
        self.write_notes().await;

        let first = after.is_none().then(|| FirstBegin::of(&row));
        let room = page_size - usize::from(first.is_some());
        let KeptRepeats { layers, kept, mut records } =
            self.store.repeats(row.id(), after.unwrap_or(0), room + 1).await?;
        let more = records.len() > room;
        records.truncate(room);
        let last = records.last().map(|(number, _)| *number).or(after).unwrap_or(0);
        Ok(AttemptsAnswer {
            now,
            first,
            repeats: records.into_iter().map(|(_, repeat)| repeat).collect(),
            layers,
            not_kept: layers.total().saturating_sub(kept),
            next_page_token: if more { write_token(last, namespace, &key) } else { String::new() },
        })
    }
}

/// A token is good for the intent that it was made with only.
fn write_token(last: u32, namespace: &str, key: &Key) -> String {
    let mut token = last.to_be_bytes().to_vec();
    token.extend_from_slice(&digest(namespace, key));
    const_hex::encode(token)
}

/// The number of the last repeat on the page before.
fn read_token(token: &str, namespace: &str, key: &Key) -> Result<Option<u32>, Violation> {
    if token.is_empty() {
        return Ok(None);
    }
    let invalid = || {
        let words = "is not a next_page_token of this intent";
        Violation::new("page_token", "PAGE_TOKEN_INVALID", words)
    };
    let mut bytes = [0; 12];
    const_hex::decode_to_slice(token, &mut bytes).map_err(|_| invalid())?;
    let (last, own) = bytes.split_first_chunk().ok_or_else(invalid)?;
    if own != digest(namespace, key) {
        return Err(invalid());
    }
    Ok(Some(u32::from_be_bytes(*last)))
}

fn digest(namespace: &str, key: &Key) -> [u8; 8] {
    let mut short = [0; 8];
    short.copy_from_slice(&Sha256::digest(format!("attempts {namespace} {key}"))[..8]);
    short
}
