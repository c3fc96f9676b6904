//! The policy that this server decides by, kept level with the store.

use std::{
    sync::{Arc, RwLock},
    time::Duration,
};

use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::LedgerError;
use crate::{
    policy::{Policy, PolicyError, PolicySet, lowered},
    store::{Store, StoreError, StoredPolicies, StoredPolicy},
};

/// How long a server may not notice that another one has activated a newer policy. A write decided
/// under the old one is caught in any case.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// How often an activation is tried again because another server's came first.
const ROUNDS_MAX: usize = 10;

/// Why an offered policy did not become the active one.
#[derive(Debug, Error)]
pub enum OfferError {
    /// The text is no policy.
    #[error("{0}")]
    Mistakes(#[from] PolicyError),
    /// The version is taken by another text, or a newer one is active.
    #[error(
        "version {offered} was offered while version {active} is active; raise `version` with every change"
    )]
    NotHigher {
        /// The version of the file.
        offered: u32,
        /// The active version.
        active: u32,
    },
    /// A newer policy is active, and this one was active before it.
    #[error("version {active} is active, version {offered} was replaced by it")]
    Replaced {
        /// The version of the file.
        offered: u32,
        /// The active version.
        active: u32,
    },
    /// It would stop caring for rows that are unsettled.
    #[error("{}", .0.join("; "))]
    Lowers(Vec<String>),
    /// It promises what only a store that applications share can keep.
    #[error(
        "{}: downstream.same_transaction = true needs a ledger in the application's own Postgres; \
         this store is an embedded one", .0.join(", ")
    )]
    NotShared(Vec<String>),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The active policy and the older ones that rows may refer to.
pub(super) struct Policies {
    current: RwLock<Arc<PolicySet>>,
    hash_version: u32,
}

impl Policies {
    pub(super) async fn load(
        store: &Arc<dyn Store>,
        hash_version: u32,
    ) -> Result<Self, LedgerError> {
        let set = read(&store.policies().await?, hash_version)?;
        tracing::info!(version = set.active().version(), "the store's policy applies");
        Ok(Self { current: RwLock::new(Arc::new(set)), hash_version })
    }

    pub(super) fn current(&self) -> Arc<PolicySet> {
        Arc::clone(&self.current.read().expect("no panic holds this lock"))
    }

    /// Reads the store's policies again, if another one is active.
    pub(super) async fn reload(&self, store: &Arc<dyn Store>) -> Result<(), LedgerError> {
        if store.active_policy().await? == self.current().active().version() {
            return Ok(());
        }
        let stored = store.policies().await?;
        let set = read(&stored, self.hash_version)?;
        tracing::info!(version = set.active().version(), "policy loaded");
        *self.current.write().expect("no panic holds this lock") = Arc::new(set);
        Ok(())
    }

    /// Whether this server decided by `used` while another policy was active; the active one is
    /// then the current one.
    ///
    /// A write proves that by itself. What is answered without one has to ask: a refusal, or
    /// "there is no such intent".
    pub(super) async fn was_behind(
        &self,
        store: &Arc<dyn Store>,
        used: &PolicySet,
    ) -> Result<bool, LedgerError> {
        self.reload(store).await?;
        Ok(self.current().active().version() != used.active().version())
    }

    /// Keeps level with the store for as long as the server runs.
    pub(super) async fn run(self: Arc<Self>, store: Arc<dyn Store>, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(REFRESH_INTERVAL)).await.is_some() {
            if let Err(error) = self.reload(&store).await {
                tracing::debug!(%error, "the policy could not be read");
            }
        }
    }

    /// Makes a file's text the active policy, if it is newer and safe to switch to.
    pub(super) async fn offer(
        &self,
        store: &Arc<dyn Store>,
        text: &str,
    ) -> Result<u32, OfferError> {
        let offered = Policy::from_text(text)?;
        for warning in offered.warnings() {
            tracing::warn!(%warning, "the policy file will surprise");
        }
        let within_transactions = offered.in_transactions();
        if !within_transactions.is_empty() && !store.is_shared() {
            return Err(OfferError::NotShared(within_transactions));
        }
        for _ in 0..ROUNDS_MAX {
            let stored = store.policies().await?;
            let version = offered.version();
            if version <= stored.active {
                let known = stored.kept.iter().find(|kept| kept.version == version);
                let same = known.is_some_and(|kept| kept.text == text);
                if same {
                    // Another replica was quicker: this one has yet to decide by it.
                    self.reload(store).await.ok();
                }
                return match (same, version == stored.active) {
                    (true, true) => Ok(version),
                    (true, false) => {
                        Err(OfferError::Replaced { offered: version, active: stored.active })
                    }
                    (false, _) => {
                        Err(OfferError::NotHigher { offered: version, active: stored.active })
                    }
                };
            }
            let active = active_of(&stored).map_err(|error| match error {
                LedgerError::Internal(text) => OfferError::Store(StoreError::Corrupt(text)),
                other => OfferError::Store(StoreError::Corrupt(other.to_string())),
            })?;
            let reasons = lowered(&active, &offered, &store.unsettled_tools().await?);
            if !reasons.is_empty() {
                return Err(OfferError::Lowers(reasons));
            }
            let policy = StoredPolicy { version, text: text.to_owned() };
            if store.activate_policy(stored.active, &policy).await? {
                self.reload(store).await.ok();
                return Ok(version);
            }
        }
        let active = store.policies().await?.active;
        Err(OfferError::NotHigher { offered: offered.version(), active })
    }
}

fn active_of(stored: &StoredPolicies) -> Result<Policy, LedgerError> {
    if stored.active == 0 {
        return Ok(Policy::builtin());
    }
    let kept = stored.kept.iter().find(|kept| kept.version == stored.active);
    let kept = kept.ok_or_else(|| {
        LedgerError::Internal(format!("the text of policy version {} is not kept", stored.active))
    })?;
    parse(kept)
}

fn parse(kept: &StoredPolicy) -> Result<Policy, LedgerError> {
    if kept.version == 0 {
        return Ok(Policy::builtin());
    }
    Policy::from_text(&kept.text).map_err(|error| {
        LedgerError::Internal(format!("policy version {} does not parse: {error}", kept.version))
    })
}

fn read(stored: &StoredPolicies, hash_version: u32) -> Result<PolicySet, LedgerError> {
    let older = stored
        .kept
        .iter()
        .filter(|kept| kept.version != stored.active)
        .map(|kept| parse(kept).map(Arc::new))
        .collect::<Result<_, _>>()?;
    Ok(PolicySet::with_hash_version(Arc::new(active_of(stored)?), older, hash_version))
}
