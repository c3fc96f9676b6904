//! `complete`: the effect happened.

use clap::Args;

use super::{
    answer::Settled,
    client::{CallError, ClientFlags},
    input,
};
use crate::proto::v1;

const EXAMPLE: &str = "\
The first result is final: every later begin of the same intent is answered with it, byte for
byte. Saying the same again is safe; another result is refused (ALREADY_SETTLED, exit status 1).

Example:
  $ intent-ledger complete \"$KEY\" --attempt \"$ATTEMPT\" --result '{\"message_id\":\"m-17\"}' \\
        --content-type application/json --downstream-ref m-17";

/// Flags of `complete`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct CompleteFlags {
    /// The key of the intent
    key: String,

    /// The attempt that had the effect, as begin named it
    #[arg(long, value_name = "ID")]
    attempt: String,

    /// What the effect returned; @FILE reads a file, - standard input
    #[arg(long, value_name = "TEXT|@FILE|-")]
    result: Option<String>,

    /// The media type of the result
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    content_type: String,

    /// What the downstream calls the effect, such as a message id
    #[arg(long, value_name = "REF", default_value = "", hide_default_value = true)]
    downstream_ref: String,

    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(flags: &CompleteFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let request = v1::CompleteRequest {
        namespace: client.namespace.clone(),
        key: flags.key.clone(),
        attempt_id: flags.attempt.clone(),
        result: flags.result.as_deref().map(|text| input::bytes("--result", text)).transpose()?,
        result_content_type: flags.content_type.clone(),
        downstream_ref: flags.downstream_ref.clone(),
        ..v1::CompleteRequest::default()
    };
    client.run(async |server| {
        let answer = server.ledger.complete(client.request(request)).await;
        let answer = answer.map_err(CallError::from)?.into_inner();
        client.print(&Settled {
            intent: answer.intent,
            lease: None,
            warnings: Some(answer.warnings),
        })
    })
}
