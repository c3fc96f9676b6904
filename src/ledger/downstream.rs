//! Whom the ledger asks what became of a call.

use async_trait::async_trait;

use crate::{
    domain::verdict::Answer,
    policy::status::{Question, StatusEndpoint},
};

/// Why a question was not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAsked {
    /// The endpoint has not answered for a while, and is left alone.
    LeftAlone,
    /// Other questions took its turns for as long as the answer might take.
    Busy,
}

/// Asks the downstreams; behind it are networks, circuits and secrets.
#[async_trait]
pub trait Downstream: Send + Sync + 'static {
    /// What the endpoint answers, within its time-out.
    ///
    /// # Errors
    ///
    /// It was not asked now.
    async fn ask(
        &self,
        endpoint: &StatusEndpoint,
        question: &Question,
        result_bytes_max: u64,
    ) -> Result<Answer, NotAsked>;

    /// How many questions the endpoint would be sent now, beside each other.
    fn room(&self, endpoint: &StatusEndpoint) -> usize;
}
