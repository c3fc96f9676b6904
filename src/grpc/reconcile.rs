//! Reconcile: one answer an intent as it is looked at, the totals last.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    convert,
    service::{Answers, refuse},
};
use crate::{
    clock::Deadline,
    ledger::{Ledger, LedgerError, Looked},
    proto::v1,
    reconciler::{Reconciler, SweepRequest, Totals},
};

/// Answers that may wait for the receiver; past that the pass waits too.
const ANSWERS_MAX: usize = 64;

/// Passes that may be under way; each holds connections to the store and to downstreams.
pub(super) const PASSES_MAX: usize = 16;

/// Intents that a pass looks at where the request does not say.
const LIMIT: usize = 1000;

/// The most intents that one pass looks at.
const LIMIT_MAX: usize = 10_000;

/// Looks at one intent, or at all that are due.
pub(super) fn run(
    ledger: Arc<Ledger>,
    reconciler: Arc<Reconciler>,
    passes: &Arc<Semaphore>,
    request: v1::ReconcileRequest,
    deadline: Deadline,
) -> Result<Answers<v1::ReconcileResponse>, LedgerError> {
    let (answers, stream) = mpsc::channel(ANSWERS_MAX);
    let room = Arc::clone(passes).try_acquire_owned().map_err(|_| LedgerError::QueueFull)?;
    Ledger::check_names(&request.namespace, &request.tool)?;
    let asked = convert::sweep_request(&request, LIMIT, LIMIT_MAX)?;
    // A task of its own: who goes away ends the pass between two rows, not inside one.
    tokio::spawn(async move {
        let last = async {
            let (totals, left) = if request.key.is_empty() {
                let (namespace, tool) = (asked.namespace.as_deref(), asked.tool.as_deref());
                let totals = sweep(&reconciler, &asked, &answers).await?;
                let waiting = ledger.waiting_for_people(namespace, tool).await?;
                let unsettled = ledger.open_now(namespace, tool).await?.unsettled;
                (totals, Left { waiting, unsettled })
            } else {
                look(&ledger, &request, deadline, &answers).await?
            };
            Ok::<_, LedgerError>(convert::reconcile_totals(totals, left.waiting, left.unsettled))
        };
        answers.send(last.await.map_err(refuse)).await.ok();
        drop(room);
    });
    Ok(Box::pin(ReceiverStream::new(stream)))
}

/// What a pass leaves to others.
struct Left {
    /// How many only a person can move on, by tenant.
    waiting: BTreeMap<String, u64>,
    /// How many are unsettled.
    unsettled: u64,
}

type Told = mpsc::Sender<Result<v1::ReconcileResponse, Status>>;

async fn sweep(
    reconciler: &Reconciler,
    request: &SweepRequest,
    answers: &Told,
) -> Result<Totals, LedgerError> {
    let (tell, mut told) = mpsc::channel::<Looked>(ANSWERS_MAX);
    let pass = reconciler.sweep(request, tell);
    let forward = async {
        while let Some(looked) = told.recv().await {
            if answers.send(Ok(convert::looked(&looked))).await.is_err() {
                told.close();
            }
        }
    };
    let (totals, ()) = tokio::join!(pass, forward);
    totals
}

async fn look(
    ledger: &Ledger,
    request: &v1::ReconcileRequest,
    deadline: Deadline,
    answers: &Told,
) -> Result<(Totals, Left), LedgerError> {
    let v1::ReconcileRequest { namespace, tool, key, dry_run, .. } = request;
    let looked = ledger.look_at_key(namespace, tool, key, *dry_run, deadline).await?;
    let mut totals = Totals::default();
    totals.count(&looked);
    let waits = looked.needs_attention.then(|| (looked.namespace.clone(), 1));
    answers.send(Ok(convert::looked(&looked))).await.ok();
    let unsettled = u64::from(looked.state_after.is_unsettled());
    Ok((totals, Left { waiting: waits.into_iter().collect(), unsettled }))
}
