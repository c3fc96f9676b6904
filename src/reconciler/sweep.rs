//! One pass over what is due: a lane for each endpoint, all at once, the tools of a lane in turn.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use tokio::sync::mpsc;

use super::{Reconciler, endpoints::QUESTIONS_MAX};
use crate::{
    domain::intent::State,
    ledger::{LedgerError, Looked, Scope, Verdict},
    store::agenda::ToolKey,
};

/// How long a pass waits for whoever listens: longer, and it would keep others from passing.
const LISTEN_MAX: Duration = Duration::from_secs(60);

/// Proposals that are looked at at once.
const PROPOSALS_MAX: usize = 64;

/// The most that a dry run shows of one tool.
const DRY_RUN_ROWS_MAX: usize = 10_000;

/// Which open intents a pass looks at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SweepRequest {
    /// Only this tenant's.
    pub namespace: Option<String>,
    /// Only this tool's.
    pub tool: Option<String>,
    /// At most so many.
    pub limit: usize,
    /// Ask and tell, but change nothing.
    pub dry_run: bool,
}

/// What a pass did in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Intents looked at.
    pub looked_at: u64,
    /// Those that became COMPLETED.
    pub completed: u64,
    /// Those that became FAILED.
    pub failed: u64,
    /// Those that became UNKNOWN.
    pub unknown: u64,
    /// Those whose proposal ran out.
    pub expired: u64,
    /// Those whose state stayed.
    pub unchanged: u64,
    /// Those that only a person can move on.
    pub needs_attention: u64,
    /// Those whose downstream did not answer.
    pub unreachable: u64,
    /// Looks that came to no end; they are made again.
    pub failed_looks: u64,
    /// Whether the limit ended the pass while more may have been due.
    pub limit_reached: bool,
}

impl Totals {
    /// Counts one more.
    pub fn count(&mut self, looked: &Looked) {
        self.looked_at += 1;
        let moved = looked.state_before != looked.state_after;
        match looked.state_after {
            _ if !moved => self.unchanged += 1,
            State::Completed => self.completed += 1,
            State::Failed => self.failed += 1,
            State::Unknown => self.unknown += 1,
            State::Denied => self.expired += 1,
            State::AwaitingApproval | State::Approved | State::Started => {}
        }
        self.needs_attention += u64::from(looked.needs_attention);
        self.unreachable += u64::from(looked.verdict == Verdict::Unreachable);
    }

    fn add(&mut self, other: &Self) {
        self.looked_at += other.looked_at;
        self.completed += other.completed;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.expired += other.expired;
        self.unchanged += other.unchanged;
        self.needs_attention += other.needs_attention;
        self.unreachable += other.unreachable;
        self.failed_looks += other.failed_looks;
    }
}

/// For people: what there was any of.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} looked at", self.looked_at)?;
        for (count, word) in [
            (self.completed, "completed"),
            (self.failed, "failed"),
            (self.unknown, "unknown"),
            (self.expired, "expired"),
            (self.unchanged, "unchanged"),
            (self.needs_attention, "waiting for a person"),
            (self.unreachable, "unreachable"),
            (self.failed_looks, "to be looked at again after an error"),
        ] {
            if count > 0 {
                write!(f, ", {count} {word}")?;
            }
        }
        Ok(())
    }
}

/// The tools that are asked about at one endpoint.
pub(super) struct Lane {
    /// Empty for tools that have none.
    origin: String,
    tools: VecDeque<ToolKey>,
    scope: Scope,
}

impl Lane {
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }
}

/// How many intents a pass, or its lane, may still look at.
pub(super) struct Budget {
    left: AtomicUsize,
    reached: AtomicBool,
}

impl Budget {
    pub(super) fn new(rows: usize) -> Self {
        Self { left: AtomicUsize::new(rows), reached: AtomicBool::new(false) }
    }

    /// Takes up to `rows`.
    fn take(&self, rows: usize) -> usize {
        let taken = |left: usize| Some(left.saturating_sub(rows));
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken);
        left.map_or(0, |left| left.min(rows))
    }

    fn give_back(&self, rows: usize) {
        self.left.fetch_add(rows, Ordering::SeqCst);
    }

    fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    /// Whether somebody wanted more.
    fn was_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst)
    }
}

/// What each of so many lanes may look at: as much as any other, the first ones one more where it does not
/// come out even.
fn shares(rows: usize, lanes: usize) -> impl Iterator<Item = usize> {
    let (each, over) = (rows / lanes.max(1), rows % lanes.max(1));
    (0..lanes).map(move |lane| each + usize::from(lane < over))
}

impl Reconciler {
    /// Makes one pass and tells of each intent as it is looked at. It ends early once nobody listens.
    ///
    /// # Errors
    ///
    /// The store did not answer; what was told until then stands.
    pub async fn sweep(
        &self,
        request: &SweepRequest,
        tell: mpsc::Sender<Looked>,
    ) -> Result<Totals, LedgerError> {
        // Also in a dry run: no intent changes by it, and what is due would not be seen otherwise.
        while !self.stopping.is_cancelled() && self.ledger.gather().await? {}
        self.ledger.forget_look_alikes().await?;
        let budget = Budget::new(request.limit);
        let mut all = self.expire_proposals(request, &budget, Some(&tell)).await?;
        all.limit_reached = budget.was_reached();
        let mut left = budget.left();
        let mut lanes = self.lanes(request).await?;
        // Each lane has its share, so that no endpoint's backlog keeps the others from their turn; what is
        // left over goes to those that want more.
        while !lanes.is_empty() {
            let shares = shares(left, lanes.len());
            let swept = lanes.into_iter().zip(shares).map(async |(mut lane, share)| {
                let (budget, mut totals) = (Budget::new(share), Totals::default());
                while self.run_round(&mut lane, &budget, Some(&tell), &mut totals).await? {}
                Ok::<_, LedgerError>((lane, budget, totals))
            });
            // One lane's error ends none of the others.
            let swept: Vec<_> = join_all(swept).await.into_iter().collect::<Result<_, _>>()?;
            left = swept.iter().map(|(_, budget, _)| budget.left()).sum();
            swept.iter().for_each(|(.., totals)| all.add(totals));
            let short = swept.into_iter().filter(|(_, budget, _)| budget.was_reached());
            lanes = short.map(|(lane, ..)| lane).collect();
            // A dry run would find the same once more.
            if left == 0 || request.dry_run {
                break;
            }
        }
        if self.stopping.is_cancelled() {
            return Err(LedgerError::Stopping); // the totals would look like those of a whole pass
        }
        all.limit_reached |= !lanes.is_empty();
        Ok(all)
    }

    /// Lets proposals run out that nobody has decided on. They wait behind no downstream: nobody is asked
    /// about them.
    pub(super) async fn expire_proposals(
        &self,
        request: &SweepRequest,
        budget: &Budget,
        tell: Option<&mpsc::Sender<Looked>>,
    ) -> Result<Totals, LedgerError> {
        let mut totals = Totals::default();
        let (namespace, tool) = (request.namespace.as_deref(), request.tool.as_deref());
        let scope = Scope { due_by: None, dry_run: request.dry_run };
        let rows = if request.dry_run { DRY_RUN_ROWS_MAX } else { PROPOSALS_MAX };
        while !self.stopping.is_cancelled() {
            let mut entries = self.ledger.due_proposals(namespace, tool, rows).await?;
            let found = entries.len();
            entries.truncate(budget.take(found));
            if entries.len() < found {
                budget.reached.store(true, Ordering::SeqCst);
            }
            let wanted = entries.len();
            let swept = self.ledger.look_at_entries(entries, &scope).await?;
            budget.give_back(wanted - swept.looked.len());
            totals.failed_looks += u64::try_from(swept.failed).unwrap_or(u64::MAX);
            for looked in swept.looked {
                totals.count(&looked);
                if let Some(tell) = tell
                    && tell.send_timeout(looked, LISTEN_MAX).await.is_err()
                {
                    return Ok(totals);
                }
            }
            if found < rows || wanted < found || request.dry_run {
                break;
            }
        }
        Ok(totals)
    }

    /// Looks once at what is due of each of the lane's tools, and leaves those that may have more; whether
    /// there are any. Ends early where the budget is used up, nobody listens or the server stops.
    pub(super) async fn run_round(
        &self,
        lane: &mut Lane,
        budget: &Budget,
        tell: Option<&mpsc::Sender<Looked>>,
        totals: &mut Totals,
    ) -> Result<bool, LedgerError> {
        for _ in 0..lane.tools.len() {
            let Some(tool) = lane.tools.pop_front().filter(|_| !self.stopping.is_cancelled())
            else {
                return Ok(false);
            };
            let endpoint = self.ledger.status_endpoint(&tool);
            let room = endpoint.map_or(QUESTIONS_MAX, |endpoint| self.endpoints.room(&endpoint));
            if room == 0 {
                continue; // its circuit is open, and its rows stay as they are
            }
            // A dry run claims nothing, so that a second look would find the same.
            let rows = if lane.scope.dry_run { DRY_RUN_ROWS_MAX } else { room };
            let mut entries = self.ledger.due(&tool, &lane.scope, rows).await?;
            let found = entries.len();
            entries.truncate(budget.take(found));
            let wanted = entries.len();
            let whole = wanted == found;
            if !whole || (lane.scope.dry_run && found == rows) {
                budget.reached.store(true, Ordering::SeqCst);
            }
            for batch in entries.chunks(room) {
                let swept = self.ledger.look_at_entries(batch.to_vec(), &lane.scope).await?;
                budget.give_back(batch.len() - swept.looked.len());
                totals.failed_looks += u64::try_from(swept.failed).unwrap_or(u64::MAX);
                for looked in swept.looked {
                    totals.count(&looked);
                    if let Some(tell) = tell
                        && tell.send_timeout(looked, LISTEN_MAX).await.is_err()
                    {
                        return Ok(false);
                    }
                }
            }
            if found == rows && whole && !lane.scope.dry_run {
                lane.tools.push_back(tool);
            } else if !whole {
                lane.tools.push_back(tool);
                return Ok(false);
            }
        }
        Ok(!lane.tools.is_empty())
    }

    /// The lanes of a pass.
    pub(super) async fn lanes(&self, request: &SweepRequest) -> Result<Vec<Lane>, LedgerError> {
        let scope = Scope { due_by: Some(self.ledger.now().await?), dry_run: request.dry_run };
        let tools = self.ledger.due_tools(request.namespace.as_deref()).await?;
        let wanted = |key: &ToolKey| request.tool.as_ref().is_none_or(|tool| key.tool == *tool);
        let mut lanes: BTreeMap<String, VecDeque<ToolKey>> = BTreeMap::new();
        for tool in tools.into_iter().filter(wanted) {
            let endpoint = self.ledger.status_endpoint(&tool);
            let origin = endpoint.map_or_else(String::new, |endpoint| endpoint.origin.clone());
            lanes.entry(origin).or_default().push_back(tool);
        }
        let lane = |(origin, mut tools): (String, VecDeque<ToolKey>)| {
            // Another tool first each time: the only question that a half-open circuit lets through must
            // not always be that of a tool whose secret has run out.
            let first = (self.ledger.luck() * tools.len() as f64) as usize;
            tools.rotate_left(first.min(tools.len().saturating_sub(1)));
            Lane { origin, tools, scope }
        };
        let mut lanes: Vec<Lane> = lanes.into_iter().map(lane).collect();
        // So it is with the endpoints where a pass may not look at one intent of each.
        let first = (self.ledger.luck() * lanes.len() as f64) as usize;
        let first = first.min(lanes.len().saturating_sub(1));
        lanes.rotate_left(first);
        Ok(lanes)
    }
}
