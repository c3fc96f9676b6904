//! ListIntents: pages of intents, newest first.

use std::time::Duration;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Ledger, LedgerError, Violation, shape};
use crate::{
    domain::{event::Event, intent::Intent, time::Timestamp},
    store::{Cursor, Filter, Stored},
};

/// Intents on a page that asks for no size.
const PAGE_SIZE: usize = 50;

/// Intents on a page at most.
const PAGE_SIZE_MAX: usize = 1000;

/// Bytes on a page with results: a stock client takes 4 MiB.
const PAGE_BYTES_MAX: usize = 3 * 1024 * 1024;

/// What a row without its result may take on a page.
const ROW_BYTES: usize = 4 * 1024;

/// A ListIntents, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Which intents.
    pub filter: Filter,
    /// How many; zero for the default.
    pub page_size: i32,
    /// Where the page begins; empty for the first one.
    pub page_token: String,
    /// Whether results and arguments are wanted too; a page is then also bounded by their size.
    pub with_results: bool,
}

/// A page.
#[derive(Debug, Clone)]
pub struct ListAnswer {
    /// The intents.
    pub intents: Vec<Intent>,
    /// The token of the next page; empty on the last one.
    pub next_page_token: String,
}

impl Ledger {
    /// Lists the intents of a namespace.
    pub async fn list(&self, request: ListRequest) -> Result<ListAnswer, LedgerError> {
        let mut filter = request.filter;
        filter.namespace = shape::namespace(&filter.namespace)?.to_owned();
        shape::name("tool", &filter.tool)?;
        shape::name("run_id", &filter.run_id)?;
        let page_size = shape::page_size(request.page_size, PAGE_SIZE, PAGE_SIZE_MAX)?;
        let after = read_token(&request.page_token, &filter)?;
        let mut rows = self.store.list(&filter, after, page_size + 1).await?;
        let fitting = if request.with_results { fitting(&rows) } else { rows.len() };
        let more = rows.len() > page_size.min(fitting);
        rows.truncate(page_size.min(fitting));
        let last = rows
            .last()
            .map(|stored| Cursor { created_at: stored.intent.created_at, id: stored.intent.id() });
        Ok(ListAnswer {
            intents: rows.into_iter().map(|stored| stored.intent).collect(),
            next_page_token: last
                .filter(|_| more)
                .map_or_else(String::new, |cursor| write_token(cursor, &filter)),
        })
    }
}

impl Ledger {
    /// The facts kept beside an intent, oldest first.
    pub async fn events(&self, intent: &Intent) -> Result<Vec<Event>, LedgerError> {
        Ok(self.store.events(intent.id()).await?)
    }
}

/// How many rows fit a page by the size of their results and arguments; at least one.
fn fitting(rows: &[Stored]) -> usize {
    let mut bytes = 0;
    rows.iter()
        .take_while(|stored| {
            let first = bytes == 0;
            bytes += stored.intent.body_bytes() + ROW_BYTES;
            first || bytes <= PAGE_BYTES_MAX
        })
        .count()
}

/// Past every row: a thousand years.
const FAR: Duration = Duration::from_secs(1000 * 366 * 24 * 60 * 60);

/// A token is good for the filter that it was made with only.
fn write_token(cursor: Cursor, filter: &Filter) -> String {
    let mut token = cursor.created_at.micros().to_be_bytes().to_vec();
    token.extend_from_slice(cursor.id.as_bytes());
    token.extend_from_slice(&filter_digest(filter));
    const_hex::encode(token)
}

fn read_token(token: &str, filter: &Filter) -> Result<Option<Cursor>, Violation> {
    if token.is_empty() {
        return Ok(None);
    }
    let invalid = || {
        Violation::new(
            "page_token",
            "PAGE_TOKEN_INVALID",
            "is not a next_page_token of a list with this filter",
        )
    };
    let mut bytes = [0; 32];
    const_hex::decode_to_slice(token, &mut bytes).map_err(|_| invalid())?;
    let (created_at, rest) = bytes.split_first_chunk().ok_or_else(invalid)?;
    let (id, digest) = rest.split_first_chunk().ok_or_else(invalid)?;
    if digest != filter_digest(filter) {
        return Err(invalid());
    }
    let created_at = Timestamp::from_micros(i64::from_be_bytes(*created_at));
    // What no clock of ours can have said is no token of ours, and no time to every store.
    if !(Timestamp::default()..Timestamp::default() + FAR).contains(&created_at) {
        return Err(invalid());
    }
    Ok(Some(Cursor { created_at, id: Uuid::from_bytes(*id) }))
}

fn filter_digest(filter: &Filter) -> [u8; 8] {
    let mut short = [0; 8];
    short.copy_from_slice(&Sha256::digest(format!("{filter:?}"))[..8]);
    short
}
