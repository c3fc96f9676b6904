//! The downstreams: what truly happened, what of it can be seen, and how they answer a question.
//!
//! They keep what the policy says of them: an effect is visible by the end of its lease and the
//! visibility window, and a repeat inside the deduplication window is the first call. Everything
//! else goes wrong.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use intent_ledger::{
    domain::{time::Timestamp, verdict::Answer},
    ledger::{Downstream, NotAsked},
    policy::status::{Face, HttpAnswer, Question, StatusEndpoint},
};
use tokio_util::sync::CancellationToken;

use super::{calendar::Calendar, mutation::Mutation, tool::Tool, trace::Trace};
use crate::dice::Dice;

/// A call that reached a downstream, or is about to.
#[derive(Debug, Clone)]
struct Call {
    action: usize,
    key: String,
    lands_at: Timestamp,
    visible_at: Timestamp,
}

/// Something that happened in the world.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    pub(crate) id: String,
    action: usize,
    key: String,
    landed_at: Timestamp,
    visible_at: Timestamp,
}

impl Effect {
    /// What the downstream returns for it.
    pub(crate) fn result(&self) -> String {
        let Self { id, key, .. } = self;
        format!("{{\"state\":\"done\",\"id\":\"{id}\",\"idempotency_key\":\"{key}\"}}")
    }
}

/// One downstream.
struct Provider {
    tool: Tool,
    /// On their way, by the time they land.
    calls: BTreeMap<(Timestamp, u64), Call>,
    effects: Vec<Effect>,
    /// When its status endpoint does not answer.
    outages: Vec<(Timestamp, Timestamp)>,
}

impl Provider {
    /// Lets everything land that has by `now`.
    fn land(&mut self, now: Timestamp) {
        while let Some(next) = self.calls.first_entry().filter(|next| next.key().0 <= now) {
            let Call { action, key, lands_at, visible_at } = next.remove();
            let window = self.tool.window.unwrap_or_default();
            let known = self
                .effects
                .iter()
                .any(|effect| effect.key == key && lands_at < effect.landed_at + window);
            if !known {
                let id = format!("e-{}-{}", self.tool.name, self.effects.len() + 1);
                self.effects.push(Effect { id, action, key, landed_at: lands_at, visible_at });
            }
        }
    }
}

/// All downstreams.
pub(crate) struct Providers {
    calendar: Arc<Calendar>,
    trace: Arc<Trace>,
    mutation: Option<Mutation>,
    providers: Mutex<Vec<Provider>>,
    calls: Mutex<u64>,
    dice: Mutex<Dice>,
    questions: Mutex<u64>,
}

impl Providers {
    pub(crate) fn new(
        calendar: &Arc<Calendar>,
        trace: &Arc<Trace>,
        mutation: Option<Mutation>,
        tools: &[Tool],
        until: Timestamp,
        dice: &mut Dice,
    ) -> Arc<Self> {
        let mut providers = Vec::new();
        for tool in tools {
            let mut outages = Vec::new();
            let mut at = calendar.now() + Duration::from_secs(dice.below(40 * 3600));
            while at < until && dice.percent(80) {
                let longest = dice.one_of(&[120, 3600, 12 * 3600]);
                let end = (at + Duration::from_secs(dice.below(longest))).min(until);
                outages.push((at, end));
                at = end + Duration::from_secs(dice.below(60 * 3600));
            }
            let tool = tool.clone();
            providers.push(Provider { tool, calls: BTreeMap::new(), effects: Vec::new(), outages });
        }
        Arc::new(Self {
            calendar: Arc::clone(calendar),
            trace: Arc::clone(trace),
            mutation,
            providers: Mutex::new(providers),
            calls: Mutex::default(),
            dice: Mutex::new(Dice::new(dice.below(u64::MAX), 7)),
            questions: Mutex::default(),
        })
    }

    fn with<T>(&self, tool: usize, job: impl FnOnce(&mut Provider) -> T) -> T {
        let now = self.calendar.now();
        let provider = &mut self.providers.lock().unwrap()[tool];
        provider.land(now);
        job(provider)
    }

    /// Sends a call that lands at `lands_at` and is seen from `visible_at` on.
    pub(crate) fn send(
        &self,
        tool: usize,
        action: usize,
        key: &str,
        lands_at: Timestamp,
        visible_at: Timestamp,
    ) {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            *calls
        };
        let key = key.to_owned();
        let call = Call { action, key, lands_at, visible_at };
        self.with(tool, |provider| provider.calls.insert((lands_at, number), call));
    }

    /// What a call under this key has led to: the answer that its caller gets.
    pub(crate) fn answer(&self, tool: usize, key: &str) -> Option<Effect> {
        self.with(tool, |it| it.effects.iter().rev().find(|effect| effect.key == key).cloned())
    }

    /// What an action has led to so far, seen or not.
    pub(crate) fn effects(&self, tool: usize, action: usize) -> usize {
        self.with(tool, |it| it.effects.iter().filter(|effect| effect.action == action).count())
    }

    /// What of an action is still on its way.
    pub(crate) fn under_way(&self, tool: usize, action: usize) -> usize {
        self.with(tool, |it| it.calls.values().filter(|call| call.action == action).count())
    }

    /// What a person sees who looks for an action.
    pub(crate) fn visible(&self, tool: usize, action: usize) -> Option<Effect> {
        let now = self.calendar.now();
        let seen = |effect: &&Effect| effect.action == action && effect.visible_at <= now;
        self.with(tool, |it| it.effects.iter().find(seen).cloned())
    }

    pub(crate) fn questions(&self) -> u64 {
        *self.questions.lock().unwrap()
    }

    fn index(&self, tool: &str) -> usize {
        let providers = self.providers.lock().unwrap();
        providers.iter().position(|it| it.tool.name == tool).expect("a tool of this run")
    }

    fn is_out(&self, tool: usize) -> bool {
        let now = self.calendar.now();
        self.with(tool, |it| it.outages.iter().any(|(from, to)| *from <= now && now < *to))
    }

    fn luck<T>(&self, draw: impl FnOnce(&mut Dice) -> T) -> T {
        draw(&mut self.dice.lock().unwrap())
    }

    /// One question: the answer is about the moment at which it arrives, however long it takes back.
    async fn ask(
        &self,
        endpoint: &StatusEndpoint,
        question: &Question,
        bytes_max: u64,
    ) -> Result<Answer, NotAsked> {
        *self.questions.lock().unwrap() += 1;
        let tool = self.index(&question.tool);
        if self.is_out(tool) {
            return self.outage(endpoint).await;
        }
        let Face::Http(face) = &endpoint.face else { panic!("the policies here ask over HTTP") };
        face.url(question).expect("the URL asks by our key");
        let (status, media, body) = self.status(tool, &question.downstream_key);
        let slow = self.luck(|dice| match dice.below(20) {
            0 => Some(dice.below(2500)),
            1..=4 => Some(dice.below(100)),
            _ => None,
        });
        if let Some(slow) = slow {
            let slow = Duration::from_millis(slow);
            tokio::time::sleep(slow.min(endpoint.timeout)).await;
            if slow > endpoint.timeout {
                return Ok(self.unanswered("no answer in time"));
            }
        }
        let headers = [("content-type".to_owned(), media.to_owned())];
        let answer = HttpAnswer { status, headers: &headers, body: body.as_bytes(), cut: false };
        Ok(match face.judge(&answer, question, bytes_max) {
            Answer::Unreachable { note } => self.unanswered(&note),
            answer => answer,
        })
    }

    fn unanswered(&self, note: &str) -> Answer {
        if self.mutation == Some(Mutation::CountsOutages) {
            return Answer::Absent;
        }
        Answer::unreachable(note)
    }

    async fn outage(&self, endpoint: &StatusEndpoint) -> Result<Answer, NotAsked> {
        match self.luck(|dice| dice.below(10)) {
            // Its circuit is open.
            0 => Err(NotAsked::LeftAlone),
            1 => {
                tokio::time::sleep(endpoint.timeout).await;
                Ok(self.unanswered("no answer in time"))
            }
            _ => Ok(self.unanswered("connection refused")),
        }
    }

    /// What the status endpoint says of a key now.
    fn status(&self, tool: usize, key: &str) -> (u16, &'static str, String) {
        const JSON: &str = "application/json";
        let now = self.calendar.now();
        if self.luck(|dice| dice.percent(4)) {
            return self.luck(|dice| {
                dice.one_of(&[
                    (503, JSON, "{}".to_owned()),
                    (429, JSON, String::new()),
                    (401, JSON, "{}".to_owned()),
                    (404, "text/html", "<html>no such page</html>".to_owned()),
                    (302, "text/html", String::new()),
                    (200, JSON, String::new()),
                    (200, JSON, "{\"state\":\"compliance_hold\"}".to_owned()),
                    (404, JSON, "{\"error\":\"no_such_tenant\"}".to_owned()),
                    (200, JSON, another_keys_object()),
                ])
            });
        }
        let (seen, landed) = self.with(tool, |it| {
            let ours = || it.effects.iter().filter(|effect| effect.key == key);
            let seen = ours().filter(|effect| effect.visible_at <= now).map(Effect::result);
            (seen.collect::<Vec<_>>(), ours().count())
        });
        match &seen[..] {
            [] if landed > 0 && self.luck(|dice| dice.percent(30)) => {
                let queued =
                    format!("{{\"state\":\"queued\",\"idempotency_key\":\"{key}\",\"id\":\"q\"}}");
                (200, JSON, queued)
            }
            [] => (404, JSON, "{\"error\":\"not_found\"}".to_owned()),
            [first, ..] => (200, JSON, first.clone()),
        }
    }

    pub(crate) fn note(&self, action: Option<usize>, words: impl FnOnce() -> String) {
        self.trace.note(self.calendar.now(), action, words);
    }
}

fn another_keys_object() -> String {
    "{\"state\":\"done\",\"id\":\"x-1\",\"idempotency_key\":\"another\"}".to_owned()
}

/// The downstreams as one server reaches them.
pub(crate) struct Reach {
    pub(crate) providers: Arc<Providers>,
    /// Whether the server has crashed: nothing comes back to it.
    pub(crate) crashed: CancellationToken,
}

#[async_trait]
impl Downstream for Reach {
    async fn ask(
        &self,
        endpoint: &StatusEndpoint,
        question: &Question,
        result_bytes_max: u64,
    ) -> Result<Answer, NotAsked> {
        let answer = self.providers.ask(endpoint, question, result_bytes_max).await;
        if self.crashed.is_cancelled() {
            std::future::pending::<()>().await;
        }
        let tool = &question.tool;
        let name = answer.as_ref().map_or("NotAsked".to_owned(), |it| format!("{it:?}"));
        let name = name.split([' ', '{']).next().unwrap_or_default();
        self.providers.trace.count(format!("downstream: {name}"));
        self.providers
            .note(None, || format!("asked {tool} about {}: {answer:?}", &question.key[..8]));
        answer
    }

    fn room(&self, endpoint: &StatusEndpoint) -> usize {
        let tool = endpoint.origin.trim_start_matches("http://");
        let tool = self.providers.index(tool.split(".internal").next().unwrap_or_default());
        let closed = self.providers.is_out(tool) && self.providers.luck(|dice| dice.percent(10));
        if closed { 0 } else { 32 }
    }
}
