//! Callers that begin and complete effects for as long as they are let, and remember what they
//! were told.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use intent_ledger::proto::v1::{
    BeginRequest, BeginResponse, CompleteRequest, Decision, IntentState,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::calls::{Agent, by_key, charge, completion, key_of};

/// Pause of a caller after an error; a server that is down refuses at once.
const PAUSE: Duration = Duration::from_millis(20);

/// A policy for tests in which the same attempt asks again after an outage: a caller may be slow.
pub(crate) const PATIENT_POLICY: &str = r#"
version = 1
[defaults]
scope = "namespace"
lease = "10m"
resend_window = "10m"
[tools.charge]
identity = ["/order"]
free_text = ["/memo"]
"#;

/// One intended effect, and what its callers were told.
#[derive(Debug)]
pub(crate) struct Effect {
    pub(crate) key: String,
    /// The attempts that were answered EXECUTE.
    pub(crate) granted: BTreeSet<String>,
    /// The result whose Complete was acknowledged.
    pub(crate) completed: Vec<u8>,
}

/// Callers under way.
pub(crate) struct Load {
    agent: Arc<Mutex<Agent>>,
    done: Arc<AtomicUsize>,
    errors: Arc<AtomicUsize>,
    stopping: CancellationToken,
    callers: JoinSet<Vec<Effect>>,
}

impl Load {
    /// Starts `callers`, each with one effect after the other. Every Begin has a rival.
    pub(crate) fn start(agent: Agent, callers: usize) -> Self {
        let mut load = Self {
            agent: Arc::new(Mutex::new(agent)),
            done: Arc::default(),
            errors: Arc::default(),
            stopping: CancellationToken::new(),
            callers: JoinSet::new(),
        };
        for number in 0..callers {
            let caller =
                Caller { agent: Arc::clone(&load.agent), errors: Arc::clone(&load.errors) };
            let done = Arc::clone(&load.done);
            let stopping = load.stopping.clone();
            load.callers.spawn(async move {
                let mut effects = Vec::new();
                while !stopping.is_cancelled() {
                    let order = format!("c{number}-{}", effects.len());
                    effects.push(caller.effect(&order).await);
                    done.fetch_add(1, SeqCst);
                }
                effects
            });
        }
        load
    }

    /// Sends the callers to another server from now on.
    pub(crate) fn move_to(&self, agent: Agent) {
        *self.agent.lock().unwrap() = agent;
    }

    /// Returns once `more` further effects are done.
    pub(crate) async fn progress(&self, more: usize) {
        let goal = self.done.load(SeqCst) + more;
        wait_until("the callers get on", async || self.done.load(SeqCst) >= goal).await;
    }

    /// Returns once at least one further call has met an error.
    pub(crate) async fn error(&self) {
        let seen = self.errors.load(SeqCst);
        wait_until("a caller meets an error", async || self.errors.load(SeqCst) > seen).await;
    }

    /// Lets each caller finish its effect; returns all of them.
    pub(crate) async fn finish(self) -> Vec<Effect> {
        self.stopping.cancel();
        self.callers.join_all().await.into_iter().flatten().collect()
    }
}

/// Looks again and again whether something has come true.
pub(crate) async fn wait_until(what: &str, mut come_true: impl AsyncFnMut() -> bool) {
    for _ in 0..6000 {
        if come_true().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited a minute in vain: {what}");
}

struct Caller {
    agent: Arc<Mutex<Agent>>,
    errors: Arc<AtomicUsize>,
}

impl Caller {
    async fn effect(&self, order: &str) -> Effect {
        let (one, two) = (charge(order, 1200, "one"), charge(order, 1200, "two"));
        let (one, two) = tokio::join!(self.begin(one), self.begin(two));
        let key = key_of(&one);
        assert_eq!(key, key_of(&two));
        let mut effect = Effect { key, granted: BTreeSet::new(), completed: Vec::new() };
        for answer in [one, two] {
            if answer.decision() == Decision::Execute {
                effect.granted.insert(answer.attempt_id.clone());
                effect.completed = format!(r#"{{"order":"{order}"}}"#).into_bytes();
                self.complete(completion(&answer, &effect.completed)).await;
            }
        }
        effect
    }

    async fn begin(&self, request: BeginRequest) -> BeginResponse {
        loop {
            let mut agent = self.agent.lock().unwrap().clone();
            match agent.begin(request.clone()).await {
                Ok(answer) => return answer.into_inner(),
                Err(error) => self.met(&error).await,
            }
        }
    }

    async fn complete(&self, request: CompleteRequest) {
        loop {
            let mut agent = self.agent.lock().unwrap().clone();
            match agent.complete(request.clone()).await {
                Ok(_) => return,
                Err(error) => self.met(&error).await,
            }
        }
    }

    /// A business answer or a fault of the ledger would be an error of another code.
    async fn met(&self, error: &Status) {
        // What the server itself has answered has no source; the client's transport names one when
        // the server dies, or says goodbye before a call has left.
        let outage = error.code() == Code::Unavailable || error.source().is_some();
        assert!(outage, "{error:?}");
        self.errors.fetch_add(1, SeqCst);
        tokio::time::sleep(PAUSE).await;
    }
}

/// What the callers of several loads were told of the same keys.
pub(crate) fn merge(loads: impl IntoIterator<Item = Vec<Effect>>) -> Vec<Effect> {
    let mut merged: BTreeMap<String, Effect> = BTreeMap::new();
    for effect in loads.into_iter().flatten() {
        match merged.get_mut(&effect.key) {
            None => {
                merged.insert(effect.key.clone(), effect);
            }
            Some(known) => {
                known.granted.extend(effect.granted);
                if known.completed.is_empty() {
                    known.completed = effect.completed;
                }
            }
        }
    }
    merged.into_values().collect()
}

/// Whatever was acknowledged is there, and nobody was let twice.
pub(crate) async fn verify(agent: &Agent, effects: &[Effect]) {
    for effect in effects {
        assert_eq!(effect.granted.len(), 1, "one attempt executes: {effect:?}");
        let found = agent.clone().lookup(by_key(&effect.key)).await.expect("it was acknowledged");
        let intent = found.into_inner().intent.unwrap();
        assert_eq!(intent.state(), IntentState::Completed, "{effect:?}");
        assert_eq!(intent.result.as_ref(), Some(&effect.completed), "{effect:?}");
        assert_eq!(intent.attempt, 1, "{effect:?}");
    }
}
