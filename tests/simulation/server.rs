//! The servers: started, stopped in good order, and crashed.

use std::{sync::Arc, time::Duration};

use intent_ledger::{
    clock::Deadline,
    ledger::{Ledger, LedgerError, LedgerOptions, OfferError},
    reconciler::{Reconciler, SweepRequest},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    connection::Connection,
    provider::Reach,
    run::{NAMESPACE, World},
    tool::policy,
};
use crate::dice::Dice;

/// How long a stop may take before the server is killed.
const GRACE: Duration = Duration::from_secs(60);

/// How long a sweep may take.
const SWEEP_MAX: Duration = Duration::from_secs(300);

/// A server under way.
pub(crate) struct Running {
    pub(crate) ledger: Arc<Ledger>,
    reconciler: Arc<Reconciler>,
    /// Nothing that it does reaches anybody any more.
    pub(crate) crashed: CancellationToken,
}

impl Running {
    async fn start(world: &Arc<World>, dice: &mut Dice) -> Result<Self, LedgerError> {
        let crashed = CancellationToken::new();
        let connection = Connection::new(
            &world.calendar,
            &world.table,
            &world.weather,
            &world.trace,
            crashed.clone(),
            dice.one_of(&[1, 2]),
        );
        let reach = Reach { providers: Arc::clone(&world.providers), crashed: crashed.clone() };
        let reach = Arc::new(reach);
        let options = LedgerOptions {
            batch_rows_max: dice.one_of(&[1, 3, 256]),
            luck: world.luck.clone(),
            ..LedgerOptions::default()
        };
        let ledger = Ledger::start(connection, Arc::clone(&reach) as _, &options).await?;
        let reconciler = Reconciler::new(Arc::clone(&ledger), reach, crashed.clone());
        Ok(Self { ledger, reconciler, crashed })
    }

    /// One pass of its reconciler; as far as it comes.
    pub(crate) async fn sweep(&self, tool: Option<String>, limit: usize) {
        let request = SweepRequest { tool, limit, ..SweepRequest::default() };
        // Room for everybody, so that nobody has to listen.
        let (tell, _told) = mpsc::channel(10_000);
        tokio::select! {
            biased;
            () = self.crashed.cancelled() => {}
            _ = tokio::time::timeout(SWEEP_MAX, self.reconciler.sweep(&request, tell)) => {}
        }
    }

    /// Somebody asks about one intent at once, whether or not it is due.
    pub(crate) async fn look(&self, key: &str) {
        let deadline = Deadline::default();
        tokio::select! {
            biased;
            () = self.crashed.cancelled() => {}
            _ = tokio::time::timeout(SWEEP_MAX, self.ledger.look_at_key(NAMESPACE, "", key, false, deadline)) => {}
        }
    }
}

/// The life of the server in a slot: up and down, until the faults end; then up for good.
pub(crate) async fn keep(world: Arc<World>, slot: usize, mut dice: Dice) {
    loop {
        let server = start(&world, slot, &mut dice).await;
        if world.calendar.now() >= world.calm_from {
            return;
        }
        let up = Duration::from_secs(60 + dice.below(80 * 3600));
        let until = (world.calendar.now() + up).min(world.calm_from);
        world.calendar.sleep_until(until).await;
        world.set_server(slot, None);
        if dice.percent(60) {
            world.note(|| format!("server {slot} crashes"));
            world.trace.count("server: crashes");
            server.crashed.cancel();
        } else {
            world.note(|| format!("server {slot} stops"));
            world.trace.count("server: stops");
            tokio::time::timeout(GRACE, server.ledger.stop()).await.ok();
            server.crashed.cancel();
        }
        let longest = dice.one_of(&[5, 60, 3600, 6 * 3600]);
        let down = Duration::from_secs(dice.below(longest));
        let until = (world.calendar.now() + down).min(world.calm_from);
        world.calendar.sleep_until(until).await;
    }
}

/// Starts a server, however often that has to be tried.
async fn start(world: &Arc<World>, slot: usize, dice: &mut Dice) -> Arc<Running> {
    loop {
        if let Ok(server) = Running::start(world, dice).await {
            let server = Arc::new(server);
            let text = policy(&world.tools, world.policy_version(), world.mutation);
            match server.ledger.offer_policy(&text).await {
                Ok(_) | Err(OfferError::Replaced { .. }) => {
                    world.note(|| format!("server {slot} is up"));
                    world.set_server(slot, Some(Arc::clone(&server)));
                    return server;
                }
                Err(OfferError::Store(_)) => {}
                Err(other) => world.oracle.violated(None, format!("policy refused: {other}")),
            }
            // One that could not offer its policy does not listen.
            server.crashed.cancel();
        }
        world.calendar.sleep(Duration::from_secs(10)).await;
    }
}
