//! `resolve`: a person settles what nobody else can.

use clap::{ArgGroup, Args};

use super::{
    answer::Settled,
    client::{CallError, ClientFlags},
    deciding::look,
    input::{self, UsageError},
};
use crate::proto::v1;

const EXAMPLE: &str = "\
Look first: ask the downstream, for instance by the downstream key, whether the effect happened.
Without --etag the intent is looked up, shown, and resolved only if nothing has changed since. Give
the etag of an earlier `lookup --json` to resolve only what you saw then.

Examples:
  $ intent-ledger resolve \"$KEY\" --executed --result '{\"message_id\":\"m-17\"}' \\
        --reason 'the mail is in the sent log' --actor ann
  $ intent-ledger resolve \"$KEY\" --not-executed --reason 'the provider knows no such message'
  $ intent-ledger resolve \"$KEY\" --acknowledge --reason 'both mails were meant'

Where --actor is not given, it is $USER.";

/// Flags of `resolve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
#[command(group(ArgGroup::new("resolution").required(true)
    .args(["executed", "not_executed", "acknowledge"])))]
pub(super) struct ResolveFlags {
    /// The key of the intent
    key: String,

    /// The effect happened
    #[arg(long)]
    executed: bool,

    /// The effect did not happen: the next begin may execute
    #[arg(long)]
    not_executed: bool,

    /// Seen, nothing to settle: needs no more attention
    #[arg(long)]
    acknowledge: bool,

    /// What the effect returned; @FILE reads a file, - standard input
    #[arg(long, value_name = "TEXT|@FILE|-", requires = "executed")]
    result: Option<String>,

    /// The media type of the result
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "",
        hide_default_value = true,
        requires = "result"
    )]
    content_type: String,

    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Your name, for the record
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true)]
    actor: Option<String>,

    /// The version that you looked at [default: the present one]
    #[arg(long, value_name = "ETAG")]
    etag: Option<String>,

    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(flags: &ResolveFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let mut request = request(flags)?;
    client.run(async |server| {
        if request.etag.is_empty() {
            request.etag = look(client, &flags.key, "resolving", server).await?;
        }
        let answer = server.operations.resolve_intent(client.request(request)).await;
        let intent = answer.map_err(CallError::from)?.into_inner().intent;
        client.print(&Settled { intent, lease: None, warnings: None })
    })
}

fn request(flags: &ResolveFlags) -> Result<v1::ResolveIntentRequest, UsageError> {
    let resolution = if flags.executed {
        v1::Resolution::Executed
    } else if flags.not_executed {
        v1::Resolution::NotExecuted
    } else {
        v1::Resolution::Acknowledged
    };
    let actor = flags.actor.clone().filter(|actor| !actor.is_empty());
    Ok(v1::ResolveIntentRequest {
        namespace: flags.client.namespace.clone(),
        key: flags.key.clone(),
        etag: flags.etag.clone().unwrap_or_default(),
        resolution: resolution.into(),
        result: flags.result.as_deref().map(|text| input::bytes("--result", text)).transpose()?,
        result_content_type: flags.content_type.clone(),
        reason: flags.reason.clone(),
        actor: actor
            .ok_or_else(|| UsageError("--actor: your name is not in $USER; give it".to_owned()))?,
    })
}
