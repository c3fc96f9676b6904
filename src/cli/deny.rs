//! `deny`: a person says no to a proposal.

use clap::Args;

use super::{
    client::CallError,
    deciding::{self, DecisionFlags},
};
use crate::proto::v1;

const EXAMPLE: &str = "\
The caller is refused from then on, however often it asks. `resolve --not-executed` puts a denied intent
before a person again. What is shown, and when --etag or --latest is needed: see `approve --help`.

Examples:
  $ intent-ledger deny \"$KEY\" --reason 'refunded by hand yesterday'
  $ intent-ledger deny \"$KEY\" --latest --reason 'the run went astray' --actor ada";

/// Flags of `deny`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct DenyFlags {
    #[command(flatten)]
    decision: DecisionFlags,
}

pub(super) fn run(flags: &DenyFlags) -> anyhow::Result<u8> {
    let decision = &flags.decision;
    deciding::run(decision, "deny", async |server, it| {
        let (namespace, key, etag) = (it.namespace, it.key, it.etag);
        let request =
            v1::DenyIntentRequest { namespace, key, etag, reason: it.reason, actor: it.actor };
        let answer = server.operations.deny_intent(decision.client.request(request)).await;
        Ok(answer.map_err(CallError::from)?.into_inner().intent)
    })
}
