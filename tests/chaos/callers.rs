//! The callers, as whoever starts them sees them: which actions each still has, and what they tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    caller::{ORDERS, Orders, Told},
    process::appended,
};

/// What the callers have told so far.
#[derive(Debug, Default)]
pub(crate) struct Minutes {
    /// What each caller has not seen the end of.
    open: Vec<BTreeSet<String>>,
    /// The results of each action, as they were replayed.
    pub(crate) replayed: BTreeMap<String, BTreeSet<String>>,
    /// How often each was answered by the ledger.
    pub(crate) answers: BTreeMap<String, u64>,
    /// What came of calls downstream.
    pub(crate) met: BTreeMap<String, u64>,
    pub(crate) odd: Vec<String>,
}

/// The minutes, and a bell for who waits for a change.
#[derive(Default)]
struct Desk {
    minutes: Mutex<Minutes>,
    changed: Condvar,
}

impl Desk {
    fn minutes(&self) -> MutexGuard<'_, Minutes> {
        self.minutes.lock().expect("nobody panics over the minutes")
    }

    fn write(&self, caller: usize, told: Told) {
        let mut minutes = self.minutes();
        match told {
            Told::Answer(words) => *minutes.answers.entry(words).or_default() += 1,
            Told::Met(words) => *minutes.met.entry(words).or_default() += 1,
            Told::Replay { action, result } => {
                minutes.open[caller].remove(&action);
                minutes.replayed.entry(action).or_default().insert(result);
            }
            Told::Odd(words) => minutes.odd.push(words),
        }
        self.changed.notify_all();
    }
}

/// All callers.
pub(crate) struct Callers {
    desk: Arc<Desk>,
    callers: Vec<Mutex<Caller>>,
}

/// One of them.
struct Caller {
    number: usize,
    orders: Orders,
    log: PathBuf,
    running: Option<Running>,
}

struct Running {
    child: Child,
    stdin: ChildStdin,
    reader: JoinHandle<()>,
}

impl Callers {
    /// Starts `count` callers, which have nothing to do yet.
    pub(crate) fn start(home: &Path, count: usize, orders: &Orders) -> Self {
        let desk = Arc::new(Desk::default());
        desk.minutes().open = vec![BTreeSet::new(); count];
        let callers = (0..count).map(|number| {
            let name = format!("caller-{number}");
            let log = home.join(format!("{name}.log"));
            let orders = Orders { name, ..orders.clone() };
            let mut caller = Caller { number, orders, log, running: None };
            caller.launch(&desk);
            Mutex::new(caller)
        });
        Self { callers: callers.collect(), desk }
    }

    pub(crate) fn count(&self) -> usize {
        self.callers.len()
    }

    /// Gives a caller an action, to keep until it has happened.
    pub(crate) fn give(&self, number: usize, action: &str) {
        let mut caller = self.caller(number);
        self.desk.minutes().open[number].insert(action.to_owned());
        caller.say(action);
    }

    /// Kills one, and starts it again with what it had left.
    pub(crate) fn kill9(&self, number: usize) {
        let mut caller = self.caller(number);
        let Running { mut child, stdin, reader } = caller.running.take().expect("it runs");
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
        drop(stdin);
        // What it said before its death counts.
        reader.join().expect("it reads to the end");
        caller.orders.life += 1;
        caller.launch(&self.desk);
        let left = self.desk.minutes().open[number].clone();
        for action in left {
            caller.say(&action);
        }
    }

    /// Waits until no caller has anything left; what is left after `patience`.
    pub(crate) fn finish(&self, patience: Duration) -> BTreeSet<String> {
        let is_open = |minutes: &mut Minutes| minutes.open.iter().any(|open| !open.is_empty());
        let minutes = self.desk.minutes();
        let (minutes, _) = self
            .desk
            .changed
            .wait_timeout_while(minutes, patience, is_open)
            .expect("nobody panics over the minutes");
        minutes.open.iter().flatten().cloned().collect()
    }

    /// Ends them where they are; all that they told.
    pub(crate) fn abandon(self) -> Minutes {
        std::mem::take(&mut *self.desk.minutes())
    }

    /// Lets them go; all that they told.
    pub(crate) fn dismiss(self) -> Minutes {
        for caller in &self.callers {
            let mut caller = caller.lock().expect("nobody panics with a caller");
            let Running { mut child, stdin, reader } = caller.running.take().expect("it runs");
            drop(stdin);
            let status = child.wait().expect("it is our child");
            reader.join().expect("it reads to the end");
            if !status.success() {
                let words = format!("{} ended with {status}", caller.orders.name);
                self.desk.minutes().odd.push(words);
            }
        }
        std::mem::take(&mut *self.desk.minutes())
    }

    fn caller(&self, number: usize) -> MutexGuard<'_, Caller> {
        self.callers[number].lock().expect("nobody panics with a caller")
    }
}

impl Caller {
    fn launch(&mut self, desk: &Arc<Desk>) {
        let orders = serde_json::to_string(&self.orders).expect("strings and numbers make JSON");
        let mut child = Command::new(env::current_exe().expect("this program has a path"))
            .env(ORDERS, orders)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(appended(&self.log))
            .spawn()
            .expect("this program can be started once more");
        let stdin = child.stdin.take().expect("standard input is piped");
        let stdout = child.stdout.take().expect("standard output is piped");
        let (desk, number) = (Arc::clone(desk), self.number);
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let told = serde_json::from_str(&line);
                let told = told.unwrap_or_else(|error| Told::Odd(format!("{line:?}: {error}")));
                desk.write(number, told);
            }
        });
        self.running = Some(Running { child, stdin, reader });
    }

    /// One that has ended by itself is found out at the end, by its exit status.
    fn say(&mut self, action: &str) {
        let running = self.running.as_mut().expect("it runs");
        running.stdin.write_all(format!("{action}\n").as_bytes()).ok();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.child.kill().ok();
            running.child.wait().ok();
        }
    }
}
