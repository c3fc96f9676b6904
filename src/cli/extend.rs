//! `extend`: the attempt is still at work.

use std::time::Duration;

use clap::Args;

use super::{
    answer::Settled,
    client::{CallError, ClientFlags},
    input,
};
use crate::proto::v1;

const EXAMPLE: &str = "\
Example:
  $ intent-ledger extend \"$KEY\" --attempt \"$ATTEMPT\" --lease 5m --downstream-ref job-123";

/// Flags of `extend`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ExtendFlags {
    /// The key of the intent
    key: String,

    /// The attempt that holds the lease, as begin named it
    #[arg(long, value_name = "ID")]
    attempt: String,

    /// How long the lease should last from now, such as 60s [default: the tool's]
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,

    /// What the downstream answered so far, such as the id of an accepted job
    #[arg(long, value_name = "REF", default_value = "", hide_default_value = true)]
    downstream_ref: String,

    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(flags: &ExtendFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let request = v1::ExtendRequest {
        namespace: client.namespace.clone(),
        key: flags.key.clone(),
        attempt_id: flags.attempt.clone(),
        lease: flags.lease.map(input::span).transpose()?,
        downstream_ref: flags.downstream_ref.clone(),
    };
    client.run(async |server| {
        let answer = server.ledger.extend(client.request(request)).await;
        let answer = answer.map_err(CallError::from)?.into_inner();
        client.print(&Settled {
            intent: answer.intent,
            lease: answer.lease,
            warnings: Some(answer.warnings),
        })
    })
}
