//! `fail`: the effect did not happen, or nobody knows.

use clap::Args;

use super::{
    answer::Settled,
    client::{CallError, ClientFlags},
};
use crate::proto::v1;

const EXAMPLE: &str = "\
Without --not-executed the outcome is unknown, which is what a time-out or a 5xx means: the intent
becomes UNKNOWN, and nothing is repeated before somebody finds out. Only with --not-executed may
another attempt be granted.

Examples:
  $ intent-ledger fail \"$KEY\" --attempt \"$ATTEMPT\" --code timeout
  $ intent-ledger fail \"$KEY\" --attempt \"$ATTEMPT\" --not-executed --code http_422 \\
        --message 'address refused'";

/// Flags of `fail`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct FailFlags {
    /// The key of the intent
    key: String,

    /// The attempt that failed, as begin named it
    #[arg(long, value_name = "ID")]
    attempt: String,

    /// The effect certainly did not happen
    #[arg(long)]
    not_executed: bool,

    /// A short word for programs, such as http_422
    #[arg(long, value_name = "CODE", default_value = "", hide_default_value = true)]
    code: String,

    /// A text for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    message: String,

    /// What the downstream calls the effect, where it answered something
    #[arg(long, value_name = "REF", default_value = "", hide_default_value = true)]
    downstream_ref: String,

    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(flags: &FailFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let kind = if flags.not_executed {
        v1::FailureKind::NotExecuted
    } else {
        v1::FailureKind::OutcomeUnknown
    };
    let request = v1::FailRequest {
        namespace: client.namespace.clone(),
        key: flags.key.clone(),
        attempt_id: flags.attempt.clone(),
        kind: kind.into(),
        code: flags.code.clone(),
        message: flags.message.clone(),
        downstream_ref: flags.downstream_ref.clone(),
    };
    client.run(async |server| {
        let answer = server.ledger.fail(client.request(request)).await;
        let answer = answer.map_err(CallError::from)?.into_inner();
        client.print(&Settled {
            intent: answer.intent,
            lease: None,
            warnings: Some(answer.warnings),
        })
    })
}
