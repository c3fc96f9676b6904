//! What names a call, as `begin`, `lookup` and `policy explain` are told it.

use clap::Args;

use super::input::{self, UsageError};
use crate::proto::v1;

/// What makes a call the same as another.
#[derive(Debug, Clone, Args)]
pub(super) struct IdentityFlags {
    /// The run of the agent
    #[arg(long, value_name = "RUN", default_value = "", hide_default_value = true)]
    pub(super) run: String,

    /// The step of the run
    #[arg(long, value_name = "STEP", default_value = "", hide_default_value = true)]
    pub(super) step: String,

    /// What the action is about, such as order=8812; as often as needed
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::pair)]
    pub(super) business_id: Vec<(String, String)>,

    /// An idempotency key that the caller already has
    #[arg(
        long = "key",
        visible_alias = "idempotency-key",
        value_name = "IDEMPOTENCY_KEY",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "business_id"
    )]
    pub(super) idempotency_key: String,
}

impl IdentityFlags {
    /// Whether nothing is given.
    pub(super) fn is_empty(&self) -> bool {
        let Self { run, step, business_id, idempotency_key } = self;
        run.is_empty() && step.is_empty() && business_id.is_empty() && idempotency_key.is_empty()
    }

    /// The identity of a call of `tool`.
    pub(super) fn of(&self, tool: &str) -> Result<v1::Identity, UsageError> {
        Ok(v1::Identity {
            tool: tool.to_owned(),
            run_id: self.run.clone(),
            step_id: self.step.clone(),
            business_ids: input::map("--business-id", &self.business_id)?,
            idempotency_key: self.idempotency_key.clone(),
        })
    }
}
