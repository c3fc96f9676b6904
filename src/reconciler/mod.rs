//! Asks downstreams what became of calls that nobody settled: the loop, one sweep, one question.
//!
//! What is due, and what an answer means, is decided below; here are networks, circuits and time.

mod circuit;
mod endpoints;
mod grpc;
mod http;
mod resolver;
mod sweep;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::sweep::{Budget, Lane};
pub use self::{
    endpoints::Endpoints,
    sweep::{SweepRequest, Totals},
};
use crate::ledger::{Downstream, Ledger, LedgerError};

/// How often what has become due is gathered before it is looked at.
const GATHERINGS_MAX: usize = 512;

/// Proposals that run out at one look at what is due.
const EXPIRED_MAX: usize = 1000;

/// Looks after open intents.
pub struct Reconciler {
    ledger: Arc<Ledger>,
    endpoints: Arc<dyn Downstream>,
    /// The endpoints whose lanes are under way in the background.
    busy: Mutex<HashSet<String>>,
    stopping: CancellationToken,
}

impl Reconciler {
    /// A reconciler over `ledger` that asks `endpoints`, until `stopping`.
    pub fn new(
        ledger: Arc<Ledger>,
        endpoints: Arc<dyn Downstream>,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self { ledger, endpoints, busy: Mutex::default(), stopping })
    }

    /// Looks every `interval` for what is due, for as long as the server runs. A lane that is still at
    /// work, because its endpoint is slow, holds up none of the others.
    pub async fn run(self: Arc<Self>, interval: Duration) {
        let mut lanes = JoinSet::new();
        while self.stopping.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
            while let Some(ended) = lanes.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "a lane of the reconciler broke down");
                }
            }
            if let Err(error) = self.run_once(&mut lanes).await {
                tracing::warn!(%error, "what is due could not be read");
            }
        }
        // Each ends after the rows that it is at.
        lanes.join_all().await;
    }

    /// Starts a lane for each endpoint that has something due and none under way.
    async fn run_once(self: &Arc<Self>, lanes: &mut JoinSet<()>) -> Result<(), LedgerError> {
        for _ in 0..GATHERINGS_MAX {
            match self.ledger.gather().await {
                Ok(true) if !self.stopping.is_cancelled() => {}
                Ok(_) => break,
                Err(error) => {
                    // What is on the agenda already is looked at all the same.
                    tracing::warn!(%error, "grants whose lease is over could not be gathered");
                    break;
                }
            }
        }
        let request = SweepRequest { limit: usize::MAX, ..SweepRequest::default() };
        // Before the lanes, and bounded, so that neither holds up the other for long.
        match self.expire_proposals(&request, &Budget::new(EXPIRED_MAX), None).await {
            Ok(totals) if totals.looked_at > 0 => {
                tracing::info!(%totals, "proposals ran out undecided");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "proposals could not be looked at"),
        }
        if let Err(error) = self.ledger.forget_look_alikes().await {
            tracing::warn!(%error, "look-alikes of old could not be forgotten");
        }
        for lane in self.lanes(&request).await? {
            let origin = lane.origin().to_owned();
            if !self.with_busy(|busy| busy.insert(origin.clone())) {
                continue;
            }
            let reconciler = Arc::clone(self);
            let busy = Busy { reconciler: Arc::clone(self), origin: origin.clone() };
            lanes.spawn(async move {
                let _busy = busy;
                let mut totals = Totals::default();
                let swept = reconciler.run_lane(lane, &mut totals).await;
                if totals.looked_at > 0 {
                    tracing::info!(origin, %totals, "open intents looked at");
                }
                if let Err(error) = swept {
                    tracing::warn!(%error, origin, "a sweep was cut short");
                }
            });
        }
        Ok(())
    }

    /// Looks at what is due at one endpoint until nothing is. A tool whose intents fall due meanwhile
    /// joins in the next round: it need not wait for the others' backlog.
    async fn run_lane(&self, mut lane: Lane, totals: &mut Totals) -> Result<(), LedgerError> {
        let budget = Budget::new(usize::MAX);
        while self.run_round(&mut lane, &budget, None, totals).await? {
            let request = SweepRequest { limit: usize::MAX, ..SweepRequest::default() };
            let lanes = self.lanes(&request).await?;
            let Some(next) = lanes.into_iter().find(|it| it.origin() == lane.origin()) else {
                break;
            };
            lane = next;
        }
        Ok(())
    }

    fn with_busy<T>(&self, job: impl FnOnce(&mut HashSet<String>) -> T) -> T {
        job(&mut self.busy.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Marks an endpoint's lane as under way, until it ends, however it ends.
struct Busy {
    reconciler: Arc<Reconciler>,
    origin: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.reconciler.with_busy(|busy| busy.remove(&self.origin));
    }
}
