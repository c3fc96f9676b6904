//! Nobody to ask: for tests of what does not depend on a downstream.

use std::sync::Arc;

use async_trait::async_trait;
use intent_ledger::{
    domain::verdict::Answer,
    ledger::{Downstream, NotAsked},
    policy::status::{Question, StatusEndpoint},
};

/// A downstream that is never asked.
pub(crate) struct Nobody;

impl Nobody {
    pub(crate) fn to_ask() -> Arc<dyn Downstream> {
        Arc::new(Self)
    }
}

#[async_trait]
impl Downstream for Nobody {
    async fn ask(&self, _: &StatusEndpoint, _: &Question, _: u64) -> Result<Answer, NotAsked> {
        panic!("this test's policy names no endpoint")
    }

    fn room(&self, _: &StatusEndpoint) -> usize {
        0
    }
}
