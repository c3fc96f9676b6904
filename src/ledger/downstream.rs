//! Whom the ledger asks what became of a call.

use async_trait::async_trait;

use crate::{
    domain::verdict::Answer,
    policy::status::{Question, StatusEndpoint},
};

/// Asks the downstreams; behind it are networks, circuits and secrets.
#[async_trait]
pub trait Downstream: Send + Sync + 'static {
    /// What the endpoint answers, within its time-out. `None` where it was not asked, because it has
    /// not answered for a while.
    async fn ask(
        &self,
        endpoint: &StatusEndpoint,
        question: &Question,
        result_bytes_max: u64,
    ) -> Option<Answer>;

    /// How many questions the endpoint would be sent now, beside each other.
    fn room(&self, endpoint: &StatusEndpoint) -> usize;
}
