//! One look at some intents: claim, read, ask, write the verdicts, give back.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::join_all;

use crate::{
    clock::{Deadline, monotonic},
    domain::{
        identity::Key,
        intent::{Intent, State},
        report::Outcome,
        schedule::{back_off, next_look},
        time::Timestamp,
        tool::{StatusRule, ToolPolicy},
        verdict::{Answer, Asked, Look, is_due, look, reconcile, shares_object, still_matters},
    },
    ledger::{Ledger, LedgerError, NotAsked, Reading, error::chain},
    policy::{
        PolicySet,
        status::{Question, StatusEndpoint},
    },
    store::{
        DownstreamObject, RowKey, Stored,
        agenda::{Entry, Next, Release, ToolKey},
    },
};

/// How long a claim outlasts the question: the time to write the verdict, and some.
const CLAIM_MARGIN: Duration = Duration::from_secs(10);

/// When an intent is looked at again whose endpoint is not asked for a while.
const CIRCUIT_WAIT: Duration = Duration::from_secs(5);

/// How many of the objects that carry one key are told by their ids.
const REFERENCES_TOLD: usize = 10;

/// What a pass looks at, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scope {
    /// Only what was due by then, so that a pass ends.
    pub due_by: Option<Timestamp>,
    /// Ask and tell, but change nothing.
    pub dry_run: bool,
}

/// What a look at one intent led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It happened.
    Completed,
    /// It did not happen, and that is proved.
    NotExecuted,
    /// The downstream does not know of it, which proves nothing yet.
    Absent,
    /// It is still at work.
    Running,
    /// It happened, and more than one object carries the key.
    Duplicated,
    /// The answer fits no rule, or is about something else.
    Unmapped,
    /// There was no answer.
    Unreachable,
    /// The policy names no way to ask.
    NoEndpoint,
    /// It was not asked.
    NotAsked,
    /// The intent had moved on before the answer came.
    Outdated,
    /// It was not asked: nobody had decided on the proposal in time.
    Expired,
}

/// One intent that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// The tenant.
    pub namespace: String,
    /// The key.
    pub key: Key,
    /// The tool.
    pub tool: String,
    /// What the downstream said.
    pub verdict: Verdict,
    /// The state before.
    pub state_before: State,
    /// The state after; in a dry run, the state it would have.
    pub state_after: State,
    /// How often the downstream was asked about it since its last grant or heartbeat.
    pub probes: u32,
    /// Whether only a person can move it on now.
    pub needs_attention: bool,
    /// What else there is to say, for people.
    pub note: String,
}

impl Looked {
    fn new(
        before: &Intent,
        after: &Intent,
        verdict: Verdict,
        probes: u32,
        note: impl Into<String>,
    ) -> Self {
        Self {
            namespace: before.namespace.clone(),
            key: before.key,
            tool: before.tool.clone(),
            verdict,
            state_before: before.state,
            state_after: after.state,
            probes,
            needs_attention: after.needs_attention,
            note: note.into(),
        }
    }

    pub(super) fn not_asked(intent: &Intent, note: &str) -> Self {
        Self::new(intent, intent, Verdict::NotAsked, 0, note)
    }
}

/// What looking at some entries came to.
#[derive(Default)]
pub(super) struct Looks {
    /// Whether any of them was ours to look at.
    pub(super) claimed: bool,
    /// What is worth telling.
    pub(super) looked: Vec<Looked>,
    /// Why some looks came to no end; they are made again later.
    pub(super) failed: Vec<LedgerError>,
}

/// An intent whose downstream is to be asked.
struct Open {
    entry: Entry,
    reading: Reading,
    policy: Arc<ToolPolicy>,
    policy_version: u32,
    rule: StatusRule,
    endpoint: Arc<StatusEndpoint>,
}

/// What a look at one intent leaves to do and to tell.
struct Settled {
    looked: Option<Looked>,
    /// When to look again.
    next: Option<Next>,
    /// The intent, if the answer has completed it.
    completed: Option<Box<Intent>>,
}

impl Ledger {
    /// Looks at what these entries are about. `insist` asks also where only a person is expected to
    /// help.
    pub(super) async fn look_at(
        &self,
        entries: Vec<Entry>,
        dry_run: bool,
        insist: bool,
    ) -> Result<Looks, LedgerError> {
        let entries = if dry_run { entries } else { self.claim(entries).await? };
        if entries.is_empty() {
            return Ok(Looks::default());
        }
        let (now, rows) = self.rows_of(&entries).await?;
        // From the store's time on, however long that has been on its way.
        let began = monotonic();
        let glances = entries.iter().zip(rows).map(async |(entry, row)| match row {
            Ok(row) => self.first_glance(entry, now, row, dry_run, insist).await,
            Err(error) => Err(error),
        });
        let glances = join_all(glances).await;
        let mut settled: Vec<(Entry, Settled)> = Vec::new();
        let mut open = Vec::new();
        let mut failed = Vec::new();
        for (entry, glance) in entries.into_iter().zip(glances) {
            match glance {
                Ok(Glance::Ask(asking)) => open.push(asking.into_open(entry)),
                Ok(Glance::Settled(left)) => settled.push((entry, left)),
                Err(error) => {
                    settled.push((entry.clone(), self.failed(&entry, now, &error)));
                    failed.push(error);
                }
            }
        }
        let answers = join_all(open.iter().map(|it| self.ask(it))).await;
        let answers = self.refuse_taken(&open, answers).await?;
        let later = now + monotonic().duration_since(began);
        let verdicts = open.iter().zip(answers).map(async |(open, answer)| {
            self.apply(open, answer, now, later, dry_run).await.map_err(|error| (open, error))
        });
        let mut verdict = |applied: Result<Settled, (&Open, LedgerError)>| match applied {
            Ok(settled) => settled,
            Err((open, error)) => {
                let again = self.failed(&open.entry, later, &error);
                failed.push(error);
                again
            }
        };
        let verdicts: Vec<Settled> =
            join_all(verdicts).await.into_iter().map(&mut verdict).collect();
        settled.extend(open.into_iter().map(|it| it.entry).zip(verdicts));

        if !dry_run {
            // Before the entries are given back: whoever dies in between leaves them to the next one.
            self.flag_shared(settled.iter_mut().map(|(_, left)| left)).await?;
            let release = |(entry, left): &(Entry, Settled)| {
                let (id, version, next) = (entry.id, entry.version, left.next);
                Some(Release { id, version, claimed_until: entry.claimed_until?, next })
            };
            let releases: Vec<Release> = settled.iter().filter_map(release).collect();
            // What is not given back is due again once the claim is over.
            self.store.release(&releases).await?;
        }
        let looked = settled.into_iter().filter_map(|(_, left)| left.looked).collect();
        Ok(Looks { claimed: true, looked, failed })
    }

    async fn claim(&self, entries: Vec<Entry>) -> Result<Vec<Entry>, LedgerError> {
        let Some(first) = entries.first() else { return Ok(entries) };
        let policies = self.policies.current();
        let endpoint = policies.active().status(&first.namespace, &first.tool);
        // A question may wait as long for its turn as for its answer.
        let span = endpoint.map_or(Duration::ZERO, |it| it.timeout * 2) + CLAIM_MARGIN;
        let claimed = self.store.claim(&entries, span).await?;
        let entries = entries.into_iter().zip(claimed);
        let mine = entries.filter_map(|(entry, until)| {
            let claimed_until = Some(until?);
            Some(Entry { version: entry.version + 1, claimed_until, ..entry })
        });
        Ok(mine.collect())
    }

    /// The rows of these entries, as of one moment or nearly so. A row that cannot be read does not take
    /// the others with it.
    async fn rows_of(
        &self,
        entries: &[Entry],
    ) -> Result<(Timestamp, Vec<Result<Option<Stored>, LedgerError>>), LedgerError> {
        let key = |entry: &Entry| RowKey { namespace: entry.namespace.clone(), id: entry.id };
        match self.reader.find(entries.iter().map(key).collect()).await {
            Ok(found) => return Ok((found.now, found.rows.into_iter().map(Ok).collect())),
            Err(LedgerError::Internal(_)) if entries.len() > 1 => {}
            Err(error) => return Err(error),
        }
        let now = self.now().await?;
        // Past the batcher of reads, which would put them together again.
        let alone = entries.iter().map(async |entry| {
            Ok(self.store.find(&[key(entry)]).await?.rows.into_iter().next().flatten())
        });
        Ok((now, join_all(alone).await))
    }

    /// What the row itself says, before anybody is asked.
    async fn first_glance(
        &self,
        entry: &Entry,
        now: Timestamp,
        row: Option<Stored>,
        dry_run: bool,
        insist: bool,
    ) -> Result<Glance, LedgerError> {
        // Pruned away since: there is nothing to look at.
        let Some(stored) = row else { return Ok(Glance::silent(None)) };
        let reading = Reading { now, stored: Arc::new(stored) };
        let intent = &reading.stored.intent;
        let policies = self.policies.current();
        let policy = Arc::clone(policies.active().tool(&intent.namespace, &intent.tool));
        let endpoint = policies.active().status(&intent.namespace, &intent.tool);
        let askable = policy.downstream.status.zip(endpoint.map(Arc::clone));
        let policy_version = policies.active().version();
        let ask = |askable: Option<(StatusRule, Arc<StatusEndpoint>)>, reading, policy| {
            let Some((rule, endpoint)) = askable else { return Glance::silent(None) };
            Glance::Ask(Asking { reading, policy, policy_version, rule, endpoint })
        };
        let asked_by_a_person = insist && intent.state.is_unsettled() && intent.needs_attention;
        match look(intent, &policy, now)? {
            Look::Ask => Ok(ask(askable, reading, policy)),
            Look::Done if asked_by_a_person && is_due(intent, now) => {
                Ok(ask(askable, reading, policy))
            }
            Look::Done => {
                // Its asker may have died before it saw that the object has settled another one too.
                let completed = intent.was_found().then(|| Box::new(intent.clone()));
                Ok(Glance::Settled(Settled { looked: None, next: None, completed }))
            }
            Look::Later(at) => Ok(Glance::silent(Some(Next {
                due_at: at,
                probes: entry.probes,
                asked_at: entry.asked_at,
            }))),
            ref led_to @ (Look::Person(ref outcome) | Look::Expired(ref outcome)) => {
                let after = if dry_run {
                    Arc::new(Stored { intent: outcome.intent.clone(), ..(*reading.stored).clone() })
                } else {
                    self.write_look(&reading, &policies, &policy).await?
                };
                let (verdict, note) = match led_to {
                    Look::Expired(_) => (Verdict::Expired, "nobody decided in time"),
                    _ => {
                        let note = "the policy names no way to ask, and nobody else can tell";
                        (Verdict::NoEndpoint, note)
                    }
                };
                let looked = Looked::new(intent, &after.intent, verdict, entry.probes, note);
                let left = Settled { looked: Some(looked), next: None, completed: None };
                Ok(Glance::Settled(left))
            }
        }
    }

    /// Writes what a look by itself leads to.
    async fn write_look(
        &self,
        reading: &Reading,
        policies: &PolicySet,
        policy: &ToolPolicy,
    ) -> Result<Arc<Stored>, LedgerError> {
        let decide = |intent: &Intent, now: Timestamp| {
            let outcome = match look(intent, policy, now)? {
                Look::Person(outcome) | Look::Expired(outcome) => *outcome,
                Look::Ask | Look::Later(_) | Look::Done => Outcome::unchanged(intent, Ok(())),
            };
            Ok((outcome, ()))
        };
        let intent = &reading.stored.intent;
        let recent = Some(reading.clone());
        let (namespace, key) = (&intent.namespace, &intent.key);
        let version = Some(policies.active().version());
        let changed = self.change(namespace, key, Deadline::default(), recent, version, decide);
        Ok(changed.await?.stored)
    }

    async fn ask(&self, open: &Open) -> Result<Answer, NotAsked> {
        let intent = &open.reading.stored.intent;
        let question = Question {
            downstream_key: intent.downstream_key(),
            downstream_ref: intent.downstream_ref.clone(),
            key: intent.key.to_string(),
            business: intent.kept.clone(),
            tool: intent.tool.clone(),
            namespace: intent.namespace.clone(),
        };
        self.downstream.ask(&open.endpoint, &question, open.policy.max_result_bytes).await
    }

    /// One id of the downstream never settles two keys: the second is for a person to look into, also where
    /// it is one of several.
    async fn refuse_taken(
        &self,
        open: &[Open],
        mut answers: Vec<Result<Answer, NotAsked>>,
    ) -> Result<Vec<Result<Answer, NotAsked>>, LedgerError> {
        let mut named = Vec::new();
        let mut objects = Vec::new();
        for (place, (open, answer)) in open.iter().zip(&answers).enumerate() {
            let references = match answer {
                Ok(Answer::Executed { downstream_ref, .. }) => downstream_ref.as_slice(),
                Ok(Answer::Several { downstream_refs, .. }) => downstream_refs,
                _ => &[],
            };
            let intent = &open.reading.stored.intent;
            for reference in references {
                objects.push(object_of(intent, reference));
                named.push((place, intent.key));
            }
        }
        if objects.is_empty() {
            return Ok(answers);
        }
        let elsewhere = self.store.others_with_references(&objects).await?;
        let mut named_here: HashMap<(ToolKey, String), Key> = HashMap::new();
        for (((place, key), object), elsewhere) in named.into_iter().zip(objects).zip(elsewhere) {
            let object = (object.tool, object.downstream_ref);
            let here = named_here.get(&object).copied().filter(|other| *other != key);
            match elsewhere.or(here) {
                Some(other) => {
                    answers[place] = Ok(Answer::Taken { downstream_ref: object.1, other });
                }
                None => {
                    named_here.insert(object, key);
                }
            }
        }
        Ok(answers)
    }

    /// Writes what follows from an answer, unless somebody has come between.
    async fn apply(
        &self,
        open: &Open,
        answer: Result<Answer, NotAsked>,
        asked_at: Timestamp,
        now: Timestamp,
        dry_run: bool,
    ) -> Result<Settled, LedgerError> {
        let before = &open.reading.stored.intent;
        let answer = match answer {
            Ok(answer) => answer,
            Err(reason) => return Ok(self.not_asked(open, reason, now)),
        };
        let silence = open.entry.asked_at > before.probing.heard_at;
        let asked = Asked::of(before, asked_at).after_silence(silence);
        let give_up_after = open.policy.give_up_after;
        let decide = |intent: &Intent, now: Timestamp| {
            let outcome = reconcile(intent, asked, &answer, open.rule, give_up_after, now)?;
            Ok((outcome, still_matters(intent, asked, now)))
        };
        let (after, mattered) = if dry_run {
            let (outcome, mattered) = decide(before, now)?;
            (outcome.intent, mattered)
        } else if matches!(answer, Answer::Unreachable { .. }) {
            (before.clone(), true)
        } else {
            let reading = Some(Reading { now, ..open.reading.clone() });
            let (namespace, key) = (&before.namespace, &before.key);
            let changed = self
                .change(
                    namespace,
                    key,
                    Deadline::default(),
                    reading,
                    Some(open.policy_version),
                    decide,
                )
                .await?;
            (changed.stored.intent.clone(), changed.more)
        };
        let probes = open.entry.probes + 1;
        // Somebody's newer word has put it on the agenda already, if it belongs there.
        let open_still = after.first_look_at().is_some() && after.state.is_unsettled();
        let next = open_still.then(|| Next {
            due_at: next_look(&after, open.rule, probes, self.luck.draw(), now),
            probes,
            asked_at: Some(asked_at),
        });
        let verdict = if mattered { verdict(&answer, &after) } else { Verdict::Outdated };
        let looked = Looked::new(before, &after, verdict, probes, note(&answer));
        let completed = (verdict == Verdict::Completed).then(|| Box::new(after));
        Ok(Settled { looked: Some(looked), next, completed })
    }

    /// An intent that was not asked about is looked at again soon. For it that is a question without an
    /// answer: the span does not count against it.
    fn not_asked(&self, open: &Open, reason: NotAsked, now: Timestamp) -> Settled {
        let next = Next {
            due_at: now + CIRCUIT_WAIT.mul_f64(0.5 + self.luck.draw()),
            probes: open.entry.probes,
            asked_at: Some(now),
        };
        let (verdict, note) = match reason {
            NotAsked::LeftAlone => {
                (Verdict::Unreachable, "the endpoint has not answered for a while")
            }
            NotAsked::Busy => (Verdict::NotAsked, "other questions took the endpoint's turns"),
        };
        let intent = &open.reading.stored.intent;
        let looked = Looked::new(intent, intent, verdict, next.probes, note);
        Settled { looked: Some(looked), next: Some(next), completed: None }
    }

    /// Two intents that are settled by one object at the same moment do not see each other before:
    /// whoever finds that out shows both to a person.
    async fn flag_shared(
        &self,
        settled: impl Iterator<Item = &mut Settled>,
    ) -> Result<(), LedgerError> {
        let mut completed = Vec::new();
        let mut objects = Vec::new();
        for it in settled {
            let Some(intent) = it.completed.as_deref() else { continue };
            let Some(reference) = &intent.downstream_ref else { continue };
            objects.push(object_of(intent, reference));
            completed.push((intent, &mut it.looked));
        }
        if completed.is_empty() {
            return Ok(());
        }
        let others = self.store.others_with_references(&objects).await?;
        for ((intent, looked), other) in completed.into_iter().zip(others) {
            let Some(other) = other else { continue };
            if let Some(looked) = looked {
                looked.needs_attention = true;
                looked.note += &format!(", which is {other}'s too");
            }
            for (key, shares_with) in [(intent.key, other), (other, intent.key)] {
                let decide = |intent: &Intent, now: Timestamp| {
                    Ok((shares_object(intent, &shares_with, now), ()))
                };
                let changed =
                    self.change(&intent.namespace, &key, Deadline::default(), None, None, decide);
                match changed.await {
                    // Purged since, with nothing left to show.
                    Ok(_) | Err(LedgerError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// A look that did not come to an end is made again; the row is as it was, or as others made it.
    fn failed(&self, entry: &Entry, now: Timestamp, error: &LedgerError) -> Settled {
        tracing::warn!(
            error = chain(error),
            id = %entry.id,
            tool = entry.tool,
            "an open intent could not be looked at"
        );
        let next = Next {
            due_at: now + back_off(entry.probes + 1, self.luck.draw()),
            probes: entry.probes + 1,
            asked_at: entry.asked_at,
        };
        Settled { looked: None, next: Some(next), completed: None }
    }
}

/// What the row itself leads to.
enum Glance {
    Ask(Asking),
    Settled(Settled),
}

impl Glance {
    fn silent(next: Option<Next>) -> Self {
        Self::Settled(Settled { looked: None, next, completed: None })
    }
}

struct Asking {
    reading: Reading,
    policy: Arc<ToolPolicy>,
    policy_version: u32,
    rule: StatusRule,
    endpoint: Arc<StatusEndpoint>,
}

impl Asking {
    fn into_open(self, entry: Entry) -> Open {
        let Self { reading, policy, policy_version, rule, endpoint } = self;
        Open { entry, reading, policy, policy_version, rule, endpoint }
    }
}

fn tool_of(intent: &Intent) -> ToolKey {
    ToolKey { namespace: intent.namespace.clone(), tool: intent.tool.clone() }
}

fn object_of(intent: &Intent, downstream_ref: &str) -> DownstreamObject {
    DownstreamObject {
        tool: tool_of(intent),
        downstream_ref: downstream_ref.to_owned(),
        row: intent.id(),
    }
}

fn verdict(answer: &Answer, after: &Intent) -> Verdict {
    match answer {
        Answer::Executed { .. } => Verdict::Completed,
        Answer::Several { .. } | Answer::Taken { .. } => Verdict::Duplicated,
        Answer::Absent if after.state == State::Failed => Verdict::NotExecuted,
        Answer::Absent => Verdict::Absent,
        Answer::Running => Verdict::Running,
        Answer::Unmapped { .. } => Verdict::Unmapped,
        Answer::Unreachable { .. } => Verdict::Unreachable,
    }
}

fn note(answer: &Answer) -> String {
    match answer {
        Answer::Executed { downstream_ref: Some(reference), .. } => format!("found {reference}"),
        Answer::Several { downstream_refs, .. } => {
            let told = downstream_refs.iter().take(REFERENCES_TOLD).map(String::as_str);
            let more = downstream_refs.len().saturating_sub(REFERENCES_TOLD);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("found {}{more}", told.collect::<Vec<_>>().join(", "))
        }
        Answer::Taken { downstream_ref, other } => {
            format!("found {downstream_ref}, which is {other}'s")
        }
        Answer::Unmapped { note } | Answer::Unreachable { note } => note.clone(),
        Answer::Executed { .. } | Answer::Absent | Answer::Running => String::new(),
    }
}
