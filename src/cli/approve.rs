//! `approve`: a person says yes to a proposal.

use clap::Args;

use super::{
    client::CallError,
    deciding::{self, DecisionFlags},
};
use crate::proto::v1;

const EXAMPLE: &str = "\
What awaits a person is listed by `list --state AWAITING_APPROVAL`. On a terminal the proposal is shown, its
arguments as they will be executed, and decided on only after a y, and only if nothing has changed since.
Elsewhere give --etag, as an earlier `lookup --full --json` showed it, or --latest for whatever is there.
A yes is good for one execution and for as long as the tool's policy says. Who proposed it cannot approve it.

Examples:
  $ intent-ledger list --state AWAITING_APPROVAL
  $ intent-ledger approve \"$KEY\" --reason 'the order was damaged'
  $ intent-ledger approve \"$KEY\" --etag 5e1f3c07a9b2d4c8 --reason 'ticket 17' --actor ada --json";

/// Flags of `approve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ApproveFlags {
    #[command(flatten)]
    decision: DecisionFlags,
}

pub(super) fn run(flags: &ApproveFlags) -> anyhow::Result<u8> {
    let decision = &flags.decision;
    deciding::run(decision, "approve", async |server, it| {
        let (namespace, key, etag) = (it.namespace, it.key, it.etag);
        let request =
            v1::ApproveIntentRequest { namespace, key, etag, reason: it.reason, actor: it.actor };
        let answer = server.operations.approve_intent(decision.client.request(request)).await;
        Ok(answer.map_err(CallError::from)?.into_inner().intent)
    })
}
