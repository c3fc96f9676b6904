//! Reconcile: asks the downstream about intents that nobody settled, and settles what it decides.
//!
//! An intent is claimed on the agenda, read, asked about outside any transaction, and its verdict
//! is written by compare-and-set like every other change: whoever settled it meanwhile wins.

mod look;
mod look_first;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use uuid::Uuid;

use self::look::Looks;
pub use self::look::{Looked, Scope, Verdict};
use super::{Ledger, LedgerError, retention::FAR, shape};
use crate::{
    clock::Deadline,
    domain::{identity::Key, time::Timestamp},
    policy::status::StatusEndpoint,
    store::agenda::{Entry, ToolKey},
};

pub(super) use self::look_first::LooksFirst;

/// What a look at what is due has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// What was worth telling; settled intents and those that others are at are not.
    pub looked: Vec<Looked>,
    /// How many looks came to no end, because of the store or of a change of the policy.
    pub failed: usize,
}

/// Batches of grants that one statement looks through; and while somebody calls, with a rest before each, so
/// that a call waits behind some milliseconds of it. That is two thousand batches a second, more than are
/// made in one.
const GATHER_BATCHES_MAX: usize = 64;
const GATHER_BESIDE_CALLERS: usize = 16;
const GATHER_REST: Duration = Duration::from_millis(8);

/// Look-alikes that one statement forgets, so that none holds up a write for long.
const FORGET_ROWS_MAX: usize = 1000;

/// How many such statements a pass sends: what is left waits for the next one.
const FORGETTINGS_MAX: usize = 8;

impl Ledger {
    /// Puts on the agenda what is still unsettled of grants whose lease is over, and in the calendar of
    /// retention when the first of all of them can be pruned; some batches of them. Whether there may be
    /// more.
    pub async fn gather(&self) -> Result<bool, LedgerError> {
        let kept_for = self.policies.current().active().retention_least().min(FAR);
        let batches = if self.pace.is_called() {
            tokio::time::sleep(GATHER_REST).await;
            GATHER_BESIDE_CALLERS
        } else {
            GATHER_BATCHES_MAX
        };
        Ok(self.store.gather(batches, kept_for).await? == batches)
    }

    /// Forgets what came under any subject and is no look-alike any more, some thousands at most.
    pub async fn forget_look_alikes(&self) -> Result<(), LedgerError> {
        for _ in 0..FORGETTINGS_MAX {
            if self.store.forget_look_alikes(FORGET_ROWS_MAX).await? < FORGET_ROWS_MAX {
                break;
            }
        }
        Ok(())
    }

    /// The tools that have something due, of one namespace or of all.
    pub async fn due_tools(&self, namespace: Option<&str>) -> Result<Vec<ToolKey>, LedgerError> {
        Ok(self.store.due_tools(namespace).await?)
    }

    /// What is due of a tool, at most `rows_max` entries.
    pub async fn due(
        &self,
        tool: &ToolKey,
        scope: &Scope,
        rows_max: usize,
    ) -> Result<Vec<Entry>, LedgerError> {
        let (_, mut entries) = self.store.due(tool, rows_max).await?;
        entries.retain(|entry| scope.due_by.is_none_or(|by| entry.due_at <= by));
        Ok(entries)
    }

    /// The proposals whose time is over, of one namespace and tool or of all; at most `rows_max` entries.
    pub async fn due_proposals(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Result<Vec<Entry>, LedgerError> {
        Ok(self.store.due_proposals(namespace, tool, rows_max).await?)
    }

    /// Looks at what these entries of one tool, or proposals of any, are about, as far as nobody else is at them.
    pub async fn look_at_entries(
        &self,
        entries: Vec<Entry>,
        scope: &Scope,
    ) -> Result<Swept, LedgerError> {
        let mut swept = Swept { looked: Vec::new(), failed: 0 };
        let mut entries = entries.into_iter();
        while entries.len() > 0 {
            let rows = self.pace.step(entries.len()).await;
            let step: Vec<Entry> = entries.by_ref().take(rows).collect();
            let Looks { looked, failed, .. } = self.look_at(step, scope.dry_run, false).await?;
            swept.looked.extend(looked);
            swept.failed += failed.len();
        }
        Ok(swept)
    }

    /// How the downstream of a tool is asked, if the active policy says so.
    pub fn status_endpoint(&self, tool: &ToolKey) -> Option<Arc<StatusEndpoint>> {
        self.policies.current().active().status(&tool.namespace, &tool.tool).map(Arc::clone)
    }

    /// How many intents only a person can move on in each namespace, of one namespace and tool or of
    /// all; counted up to some thousands.
    pub async fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, LedgerError> {
        Ok(self.store.waiting_for_people(namespace, tool).await?)
    }

    /// A number from 0 to 1, from where this ledger's luck comes from.
    pub fn luck(&self) -> f64 {
        self.luck.draw()
    }

    /// The store's time.
    pub async fn now(&self) -> Result<Timestamp, LedgerError> {
        Ok(self.store.now().await?)
    }

    /// Refuses names that no intent can have.
    pub fn check_names(namespace: &str, tool: &str) -> Result<(), LedgerError> {
        shape::name("namespace", namespace)?;
        shape::name("tool", tool)?;
        Ok(())
    }

    /// Looks at one intent at once, whether or not it is due; where a tool is named, only if it is that
    /// tool's.
    pub async fn look_at_key(
        &self,
        namespace: &str,
        tool: &str,
        key: &str,
        dry_run: bool,
        deadline: Deadline,
    ) -> Result<Looked, LedgerError> {
        let namespace = shape::namespace(namespace)?;
        let key = shape::key("key", key)?;
        let (_, found) = self.find(namespace, &key).await?;
        let stored = found
            .filter(|stored| tool.is_empty() || stored.intent.tool == tool)
            .ok_or(LedgerError::NotFound { report_kept: None })?;
        let (_, entry) = self.entry_of(stored.intent.id(), namespace, &stored.intent.tool).await?;
        let mut waiting = Some(entry);
        while let Some(entry) = waiting {
            let Some(entry) = self.unclaimed(entry, deadline).await? else { break };
            let looks = self.look_at(vec![entry.clone()], dry_run, true).await?;
            if looks.claimed {
                if let Some(error) = looks.failed.into_iter().next() {
                    return Err(error);
                }
                if let Some(looked) = looks.looked.into_iter().next() {
                    return Ok(looked);
                }
                let note = "it is settled, its lease runs, or nobody can be asked";
                return self.not_looked_at(namespace, &key, note).await;
            }
            // Somebody was quicker.
            waiting = (!deadline.has_passed()).then_some(entry);
        }
        self.not_looked_at(namespace, &key, "somebody else is asking").await
    }

    /// An intent as it stands, which was not asked about.
    async fn not_looked_at(
        &self,
        namespace: &str,
        key: &Key,
        note: &str,
    ) -> Result<Looked, LedgerError> {
        let (_, found) = self.find(namespace, key).await?;
        let stored = found.ok_or(LedgerError::NotFound { report_kept: None })?;
        Ok(Looked::not_asked(&stored.intent, note))
    }

    /// An intent's entry on the agenda, or one that is yet to be put there.
    async fn entry_of(
        &self,
        id: Uuid,
        namespace: &str,
        tool: &str,
    ) -> Result<(Timestamp, Entry), LedgerError> {
        let (now, entry) = self.store.entry(id).await?;
        let entry = entry.unwrap_or_else(|| Entry {
            id,
            namespace: namespace.to_owned(),
            tool: tool.to_owned(),
            due_at: now,
            probes: 0,
            asked_at: None,
            claimed_until: None,
            version: 0,
        });
        Ok((now, entry))
    }
}
