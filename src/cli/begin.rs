//! `begin`: may the effect of a call happen now, or what has become of it?

use std::time::Duration;

use clap::Args;

use super::{
    answer::Begun,
    client::{CallError, ClientFlags},
    identity::IdentityFlags,
    input::{self, UsageError},
};
use crate::{ids, proto::v1};

const EXAMPLE: &str = "\
Example:
  $ intent-ledger begin open_ticket --run run-1 --business-id order=8812 \\
        --args '{\"to\":\"ada@example.com\",\"subject\":\"Refund\"}' --free-text /subject
  decision:        EXECUTE
  …

What to do with the decision:
  EXECUTE         carry out the effect within the lease, sending the downstream key along; then
                  `intent-ledger complete KEY --attempt ID`, or `fail`
  REPLAY          it happened already: take the result as this call's own
  HOLD            not now: another attempt may have done it; ask again later, or `lookup --wait`
  AWAIT_APPROVAL  a person must decide first
  REFUSE          never, by this call

Every decision is an answer, so the exit status is 0; 1 means that the ledger said no (such as
PARAMETERS_CHANGED) or said nothing: then nothing may be executed. A script branches on it so:
  answer=$(intent-ledger begin … --json) || exit 1
  case $(jq -r .decision <<<\"$answer\") in EXECUTE) … ;; REPLAY) … ;; *) … ;; esac";

/// Flags of `begin`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct BeginFlags {
    /// The tool whose effect is meant, such as send_email
    tool: String,

    /// The arguments of the call, a JSON object; @FILE reads a file, - standard input
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "", hide_default_value = true)]
    args: String,

    #[command(flatten)]
    identity: IdentityFlags,

    /// A UUID for this attempt; repeat it where the answer was lost [default: a fresh one]
    #[arg(long, value_name = "UUID", default_value = "", hide_default_value = true)]
    attempt_id: String,

    /// How long the right to execute is wanted, such as 60s [default: the tool's]
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,

    /// The instance that calls, such as host and process
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    caller: String,

    /// The model's name for the tool call
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    tool_call_id: String,

    /// A JSON Pointer to an argument that may be reworded, for a tool without a policy
    #[arg(long, value_name = "POINTER")]
    free_text: Vec<String>,

    /// A label to find it by; as often as needed
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::pair)]
    label: Vec<(String, String)>,

    #[command(flatten)]
    client: ClientFlags,
}

/// A new attempt is named otherwise than one that is reported on.
const FLAGS: &[(&str, &str)] = &[("attempt_id", "--attempt-id")];

pub(super) fn run(flags: &BeginFlags) -> anyhow::Result<u8> {
    let request = request(flags)?;
    let attempt_id = request.attempt_id.clone();
    let client = &flags.client;
    client.run(async |server| {
        let answer = server.ledger.begin(client.request(request)).await;
        let answer = answer.map_err(|status| match CallError::from(status).naming(FLAGS) {
            // It may have been granted: the same attempt finds the truth, another one waits.
            error if error.is_in_doubt() => error.with("repeatWithAttemptId", &attempt_id),
            error => error,
        })?;
        client.print(&Begun(answer.into_inner()))
    })
}

fn request(flags: &BeginFlags) -> Result<v1::BeginRequest, UsageError> {
    // Minted here and not by the server, so that a lost answer can be found again.
    let attempt_id = if flags.attempt_id.is_empty() {
        ids::random().to_string()
    } else {
        flags.attempt_id.clone()
    };
    Ok(v1::BeginRequest {
        namespace: flags.client.namespace.clone(),
        identity: Some(flags.identity.of(&flags.tool)?),
        arguments_json: input::text("--args", &flags.args)?,
        attempt_id,
        lease: flags.lease.map(input::span).transpose()?,
        tool_call_id: flags.tool_call_id.clone(),
        caller: flags.caller.clone(),
        free_text: flags.free_text.clone(),
        labels: input::map("--label", &flags.label)?,
    })
}
