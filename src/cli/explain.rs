//! `explain`: who repeated a call, what differed, and what became of it?

use clap::Args;
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    answer::Answer,
    client::{CallError, ClientFlags, Server},
    json::Json,
    output::Paint,
    timeline,
};
use crate::proto::v1::{self, lookup_request::By};

const EXAMPLE: &str = "\
Tells in the order of time who asked for the effect, what each asker changed, which layer repeated the
call, what it was answered, and what was out of the ordinary; and in the end where the intent stands
now. An ordinary failure of an earlier attempt leaves no line: the newest one's words are kept.

The layers:
  TRANSPORT      an HTTP or gRPC client sent the same attempt again
  ORCHESTRATOR   the same tool call was run again
  MODEL          the model asked again, under a new tool call id
  RESUMED_RUN    another process took the run up
  UNKNOWN_LAYER  the call tells nothing to go by

Repeats are written within a second of their answer, and 100 of them are kept for a key; further ones
are counted.

Examples:
  $ intent-ledger explain \"$KEY\"
  $ intent-ledger explain \"$KEY\" --json | jq '.layer_counts'";

/// Flags of `explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ExplainFlags {
    /// The key of the intent
    key: String,

    #[command(flatten)]
    client: ClientFlags,
}

/// An intent, and everybody who began it.
pub(super) struct Explained {
    pub(super) intent: v1::Intent,
    /// All pages in one.
    pub(super) attempts: v1::ListAttemptsResponse,
}

pub(super) fn run(flags: &ExplainFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    client.run(async |server| {
        let request = v1::LookupRequest {
            namespace: client.namespace.clone(),
            by: Some(By::Key(flags.key.clone())),
            view: v1::IntentView::Full.into(),
            ..v1::LookupRequest::default()
        };
        let answer = server.ledger.lookup(client.request(request)).await;
        let intent = answer.map_err(CallError::from)?.into_inner().intent.unwrap_or_default();
        let attempts = all_attempts(client, server, &flags.key).await?;
        client.print(&Explained { intent, attempts })
    })
}

async fn all_attempts(
    client: &ClientFlags,
    server: &mut Server,
    key: &str,
) -> Result<v1::ListAttemptsResponse, CallError> {
    let mut request = v1::ListAttemptsRequest {
        namespace: client.namespace.clone(),
        key: key.to_owned(),
        page_size: 0,
        page_token: String::new(),
    };
    let mut all = Vec::new();
    loop {
        let page = server.operations.list_attempts(client.request(request.clone())).await;
        let mut page = page.map_err(CallError::from)?.into_inner();
        all.append(&mut page.attempts);
        request.page_token = std::mem::take(&mut page.next_page_token);
        if request.page_token.is_empty() {
            return Ok(v1::ListAttemptsResponse { attempts: all, ..page });
        }
    }
}

impl Answer for Explained {
    fn text(&self, paint: Paint) -> String {
        timeline::text(self, paint)
    }
}

impl Serialize for Explained {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let attempts = &self.attempts;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("intent", &Json(&self.intent))?;
        map.serialize_entry("attempts", &attempts.attempts.iter().map(Json).collect::<Vec<_>>())?;
        map.serialize_entry("total_count", &attempts.total_count)?;
        map.serialize_entry("not_kept_count", &attempts.not_kept_count)?;
        map.serialize_entry(
            "layer_counts",
            &attempts.layer_counts.iter().map(Json).collect::<Vec<_>>(),
        )?;
        map.serialize_entry("stands", &timeline::stands(self))?;
        map.end()
    }
}
