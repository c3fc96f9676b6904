//! `lookup`: what has become of one intent?

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::{
    answer::Settled,
    client::{CallError, ClientFlags},
    identity::IdentityFlags,
    input::{self, UsageError},
};
use crate::proto::v1::{self, lookup_request::By};

const EXAMPLE: &str = "\
Names the intent by its key, by a reference, or by what begin was given (--tool and what follows).
No such intent means that it was never begun: exit status 1, INTENT_NOT_FOUND.

Examples:
  $ intent-ledger lookup \"$KEY\" --full
  $ intent-ledger lookup --tool send_email --run run-1 --business-id order=8812 --wait 30s";

/// Flags of `lookup`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
#[command(group(ArgGroup::new("by").required(true)
    .args(["key", "downstream_key", "downstream_ref", "tool_call_id", "tool"])))]
pub(super) struct LookupFlags {
    /// The key of the intent
    key: Option<String>,

    /// The key that was sent downstream
    #[arg(long, value_name = "KEY")]
    downstream_key: Option<String>,

    /// What the downstream calls the effect
    #[arg(long, value_name = "REF")]
    downstream_ref: Option<String>,

    /// The model's name for the tool call that began it
    #[arg(long, value_name = "ID")]
    tool_call_id: Option<String>,

    /// The tool that was begun
    #[arg(long, value_name = "TOOL")]
    tool: Option<String>,

    /// The arguments of the call, a JSON object; @FILE reads a file, - standard input
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "", hide_default_value = true)]
    args: String,

    #[command(flatten)]
    identity: IdentityFlags,

    /// Show its history too
    #[arg(long)]
    full: bool,

    /// Wait this long for its state to change, such as 30s; --timeout begins to count after it
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(flags: &LookupFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let request = request(flags)?;
    let wait = flags.wait.unwrap_or_default();
    client.run(async |server| {
        let answer = server.ledger.lookup(client.waiting_request(request, wait)).await;
        let intent = answer.map_err(CallError::from)?.into_inner().intent;
        client.print(&Settled { intent, lease: None, warnings: None })
    })
}

fn request(flags: &LookupFlags) -> Result<v1::LookupRequest, UsageError> {
    if flags.tool.is_none() && !(flags.identity.is_empty() && flags.args.is_empty()) {
        let words = "--run, --step, --business-id, --key and --args go with --tool only";
        return Err(UsageError(words.to_owned()));
    }
    let by = [
        flags.key.clone().map(By::Key),
        flags.downstream_key.clone().map(By::DownstreamKey),
        flags.downstream_ref.clone().map(By::DownstreamRef),
        flags.tool_call_id.clone().map(By::ToolCallId),
        flags.tool.as_ref().map(|tool| flags.identity.of(tool).map(By::Identity)).transpose()?,
    ];
    let view = if flags.full { v1::IntentView::Full } else { v1::IntentView::Basic };
    Ok(v1::LookupRequest {
        namespace: flags.client.namespace.clone(),
        by: by.into_iter().flatten().next(),
        arguments_json: input::text("--args", &flags.args)?,
        view: view.into(),
        wait: flags.wait.map(input::span).transpose()?,
    })
}
