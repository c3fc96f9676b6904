//! The truth: what has happened and what is under way, by key and by id.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    time::Duration,
};

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    fault::Fault,
    sent_log::{SentEffect, SentLog},
};
use crate::domain::time::Timestamp;

/// What a call asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Order {
    pub(super) key: Option<String>,
    pub(super) action: Option<String>,
    /// The body, where it is JSON.
    pub(super) request: Option<Box<RawValue>>,
}

/// An effect as callers and askers are shown it. Who asks later gets the same words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct EffectView {
    pub(super) id: String,
    pub(super) state: &'static str,
    pub(super) idempotency_key: Option<String>,
    pub(super) action: Option<String>,
}

impl EffectView {
    pub(super) fn is_done(&self) -> bool {
        self.state == DONE
    }

    /// What the call was answered, or would have been: the result of a replay.
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings make JSON")
    }
}

/// The state of an effect that happened.
pub(super) const DONE: &str = "done";

/// The state of an effect that is under way.
pub(super) const QUEUED: &str = "queued";

/// All objects and keys.
#[derive(Debug, Default)]
pub(super) struct Book {
    objects: BTreeMap<u64, Object>,
    /// What happened, in that order.
    sent: Vec<u64>,
    keys: HashMap<String, KeyRecord>,
    requests: u64,
    log: Option<SentLog>,
}

#[derive(Debug)]
struct Object {
    order: Order,
    accepted_at: Timestamp,
    /// `None` while it is under way.
    sent_at: Option<Timestamp>,
    visible_at: Option<Timestamp>,
}

#[derive(Debug, Default)]
struct KeyRecord {
    objects: Vec<u64>,
    calls: u64,
    questions: u64,
    /// What earlier calls asked the status to do.
    status_faults: Vec<Fault>,
}

impl Book {
    /// A book that starts with what a log says and writes on in it.
    pub(super) fn open(log: SentLog, before: Vec<SentEffect>) -> io::Result<Self> {
        let mut book = Self { log: Some(log), ..Self::default() };
        for effect in before {
            let Some(number) = number(&effect.id).filter(|it| !book.objects.contains_key(it))
            else {
                let message = format!("{:?} is no id, or one that comes twice", effect.id);
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            };
            let SentEffect { idempotency_key: key, action, sent_at, visible_at, request, .. } =
                effect;
            let order = Order { key, action, request };
            book.insert(
                number,
                Object { order, accepted_at: sent_at, sent_at: Some(sent_at), visible_at },
            );
            book.sent.push(number);
        }
        Ok(book)
    }

    /// Counts a request for an effect, whatever becomes of it.
    pub(super) fn count_request(&mut self) {
        self.requests += 1;
    }

    /// Requests for effects that came.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Counts a call of a key; says how many came before.
    pub(super) fn count_call(&mut self, key: &str, status_faults: &[Fault]) -> u64 {
        let record = self.key(key);
        for fault in status_faults {
            record.status_faults.retain(|earlier| earlier.kind() != fault.kind());
            record.status_faults.push(*fault);
        }
        record.calls += 1;
        record.calls - 1
    }

    /// Counts a question about a key; says how many came before, and what calls have asked for.
    pub(super) fn count_question(&mut self, key: &str) -> (u64, Vec<Fault>) {
        let record = self.key(key);
        record.questions += 1;
        (record.questions - 1, record.status_faults.clone())
    }

    /// Status questions about a key that came.
    pub(super) fn questions(&self, key: &str) -> u64 {
        self.keys.get(key).map_or(0, |record| record.questions)
    }

    /// Forgets what calls have asked the status to do.
    pub(super) fn forget_status_faults(&mut self) {
        for record in self.keys.values_mut() {
            record.status_faults.clear();
        }
    }

    /// The first object of a key that was accepted within the window.
    pub(super) fn earlier(
        &self,
        key: &str,
        window: Duration,
        now: Timestamp,
    ) -> Option<EffectView> {
        let numbers = &self.keys.get(key)?.objects;
        let known = numbers.iter().map(|number| (*number, &self.objects[number]));
        let mut recent = known.filter(|(_, object)| now.since(object.accepted_at) < window);
        recent.next().map(|(number, object)| view(number, object))
    }

    /// Has the effect, once or more; shows the first object.
    ///
    /// # Errors
    ///
    /// The log cannot be written; then nothing has happened.
    pub(super) fn have_effect(
        &mut self,
        order: &Order,
        copies: u64,
        visible_at: Option<Timestamp>,
        now: Timestamp,
    ) -> io::Result<EffectView> {
        let first = self.next();
        let made: Vec<(u64, Object)> = (first..first + copies)
            .map(|number| {
                let order = order.clone();
                (number, Object { order, accepted_at: now, sent_at: Some(now), visible_at })
            })
            .collect();
        write(&mut self.log, made.iter().map(|(number, object)| (*number, object)))?;
        let shown = view(first, &made[0].1);
        for (number, object) in made {
            self.insert(number, object);
            self.sent.push(number);
        }
        Ok(shown)
    }

    /// Accepts an effect that happens later.
    pub(super) fn accept(
        &mut self,
        order: &Order,
        visible_at: Option<Timestamp>,
        now: Timestamp,
    ) -> (u64, EffectView) {
        let number = self.next();
        let object = Object { order: order.clone(), accepted_at: now, sent_at: None, visible_at };
        let shown = view(number, &object);
        self.insert(number, object);
        (number, shown)
    }

    /// Has an effect that was accepted.
    ///
    /// # Errors
    ///
    /// The log cannot be written; then it stays under way.
    pub(super) fn finish(&mut self, number: u64, now: Timestamp) -> io::Result<EffectView> {
        let object = self.objects.get_mut(&number).expect("it was accepted, and none is forgotten");
        object.sent_at = Some(now);
        if let Err(error) = write(&mut self.log, [(number, &*object)]) {
            object.sent_at = None;
            return Err(error);
        }
        self.sent.push(number);
        Ok(view(number, object))
    }

    /// The objects of a key that its status shows.
    pub(super) fn of_key(&self, key: &str, now: Timestamp) -> Vec<EffectView> {
        let numbers = self.keys.get(key).map_or(&[][..], |record| &record.objects);
        numbers.iter().filter_map(|number| self.seen(*number, now)).collect()
    }

    /// The object of an id, if its status shows it.
    pub(super) fn of_id(&self, id: &str, now: Timestamp) -> Option<EffectView> {
        number(id).and_then(|number| self.seen(number, now))
    }

    /// The key of an object, whether or not its status shows it.
    pub(super) fn key_of_id(&self, id: &str) -> Option<&str> {
        self.objects.get(&number(id)?)?.order.key.as_deref()
    }

    /// What happened, in that order.
    pub(super) fn sent(&self) -> Vec<SentEffect> {
        self.sent.iter().filter_map(|number| sent(*number, &self.objects[number])).collect()
    }

    /// How much happened.
    pub(super) fn sent_count(&self) -> usize {
        self.sent.len()
    }

    fn seen(&self, number: u64, now: Timestamp) -> Option<EffectView> {
        let object = self.objects.get(&number)?;
        let visible = object.visible_at.is_none_or(|visible_at| now >= visible_at);
        visible.then(|| view(number, object))
    }

    fn next(&self) -> u64 {
        self.objects.last_key_value().map_or(1, |(last, _)| last + 1)
    }

    fn insert(&mut self, number: u64, object: Object) {
        if let Some(key) = &object.order.key {
            self.key(&key.clone()).objects.push(number);
        }
        self.objects.insert(number, object);
    }

    fn key(&mut self, key: &str) -> &mut KeyRecord {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), KeyRecord::default());
        }
        self.keys.get_mut(key).expect("it was there or is there now")
    }
}

/// Logs what is about to have happened.
fn write<'a>(
    log: &mut Option<SentLog>,
    objects: impl IntoIterator<Item = (u64, &'a Object)>,
) -> io::Result<()> {
    let Some(log) = log else { return Ok(()) };
    let lines: Vec<SentEffect> =
        objects.into_iter().filter_map(|(number, object)| sent(number, object)).collect();
    log.append(&lines)
}

fn id(number: u64) -> String {
    format!("eff-{number}")
}

fn number(id: &str) -> Option<u64> {
    // Only as we write it: `eff-07` is nobody.
    id.strip_prefix("eff-")?.parse().ok().filter(|number| self::id(*number) == id)
}

fn view(number: u64, object: &Object) -> EffectView {
    EffectView {
        id: id(number),
        state: if object.sent_at.is_some() { DONE } else { QUEUED },
        idempotency_key: object.order.key.clone(),
        action: object.order.action.clone(),
    }
}

fn sent(number: u64, object: &Object) -> Option<SentEffect> {
    Some(SentEffect {
        id: id(number),
        idempotency_key: object.order.key.clone(),
        action: object.order.action.clone(),
        sent_at: object.sent_at?,
        visible_at: object.visible_at,
        request: object.order.request.clone(),
    })
}
