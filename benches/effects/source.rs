//! Which keys a load begins: fresh ones, or among them some that it has begun before.

use std::sync::{Arc, Mutex};

use intent_ledger::proto::v1::Decision;

use crate::{
    ids::{Id, Ids, RESULT},
    wire::Begun,
};

/// One in so many Begins of a storm repeats a key.
const REPEAT_ONE_IN: u64 = 10;

/// How far back a repeat reaches: the last of them are under way, the first are done.
const REPEATS_REACH: usize = 1024;

/// Where the keys of a load come from.
#[derive(Clone)]
pub(crate) enum Source {
    /// Each is new.
    Fresh,
    /// One in ten is a repeat, with an attempt of its own; all loads of the storm share the keys.
    Storm(Arc<Storm>),
}

/// A key to begin.
pub(crate) struct Next {
    /// What identifies the call.
    pub(crate) key: Id,
    /// Where the storm keeps it.
    pub(crate) number: usize,
    /// Whether nobody has begun it.
    pub(crate) fresh: bool,
}

impl Source {
    /// The next key.
    pub(crate) fn next(&self, ids: &mut Ids) -> Next {
        match self {
            Self::Fresh => Next { key: ids.id(), number: 0, fresh: true },
            Self::Storm(storm) => storm.next(ids),
        }
    }

    /// Whether what was answered to the key of this number is leave to execute.
    ///
    /// # Panics
    /// If it is what no such Begin may be answered.
    pub(crate) fn may_execute(&self, number: usize, answer: &Begun) -> bool {
        match self {
            Self::Fresh => {
                assert_eq!(answer.decision, Decision::Execute as i32, "{answer:?}");
                true
            }
            Self::Storm(storm) => storm.may_execute(number, answer),
        }
    }
}

/// The keys of a storm and what was answered to them.
#[derive(Default)]
pub(crate) struct Storm(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// Each key with how often it was answered EXECUTE.
    keys: Vec<(Id, u32)>,
    begins: u64,
    replays: u64,
    holds: u64,
}

impl Storm {
    fn next(&self, ids: &mut Ids) -> Next {
        let mut counts = self.0.lock().expect("no caller panics");
        counts.begins += 1;
        let known = counts.keys.len();
        if known > 0 && ids.number().is_multiple_of(REPEAT_ONE_IN) {
            let back = ids.number() as usize % known.min(REPEATS_REACH);
            let number = known - 1 - back;
            return Next { key: counts.keys[number].0, number, fresh: false };
        }
        let key = ids.id();
        counts.keys.push((key, 0));
        Next { key, number: known, fresh: true }
    }

    fn may_execute(&self, number: usize, answer: &Begun) -> bool {
        let mut counts = self.0.lock().expect("no caller panics");
        match Decision::try_from(answer.decision) {
            Ok(Decision::Execute) => {
                counts.keys[number].1 += 1;
                return true;
            }
            Ok(Decision::Replay) => {
                let result = answer.intent.as_ref().and_then(|it| it.result.as_deref());
                assert_eq!(result, Some(RESULT), "a repeat gets the first result");
                counts.replays += 1;
            }
            Ok(Decision::Hold) => counts.holds += 1,
            _ => panic!("no call of the storm may be answered {answer:?}"),
        }
        false
    }

    /// Every Begin was answered, every key was executed once, and every repeat was told so; what is
    /// to be said of it.
    ///
    /// # Panics
    /// If a count is another one.
    pub(crate) fn verify(&self) -> String {
        let counts = self.0.lock().expect("no caller panics");
        let keys = counts.keys.len() as u64;
        let wrong = counts.keys.iter().filter(|(_, executed)| *executed != 1).count();
        assert_eq!(wrong, 0, "keys of {keys} were not answered EXECUTE exactly once");
        let repeats = counts.begins - keys;
        assert_eq!(counts.replays + counts.holds, repeats, "a repeat is answered REPLAY or HOLD");
        format!(
            "{keys} keys, one EXECUTE each; {repeats} repeats: {} REPLAY, {} HOLD",
            counts.replays, counts.holds
        )
    }
}
