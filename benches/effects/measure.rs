//! One measured interval: what was done in it, and what it cost whom.

use std::{
    fs,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{JoinHandle, sleep},
    time::{Duration, Instant, SystemTime},
};

use serde::Serialize;

use crate::database::Cluster;

/// What `/proc` counts processor time in; Linux has told user space 100 a second for decades.
const TICKS_PER_SECOND: f64 = 100.0;

/// One line of the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// Effects, or calls where a line is about calls.
    pub(crate) per_second: f64,
    /// Of an effect, Begin and Complete together.
    pub(crate) p50_ms: f64,
    /// The same.
    pub(crate) p99_ms: f64,
    /// Write-ahead log of Postgres, per effect.
    pub(crate) wal_bytes: Option<f64>,
    /// Tables and indexes, per effect.
    pub(crate) disk_bytes: Option<f64>,
    /// Processor time of all of Postgres's processes, per effect.
    pub(crate) postgres_micros: Option<f64>,
    /// Of the servers, per effect.
    pub(crate) server_micros: Option<f64>,
    /// Of what makes the calls, per effect.
    pub(crate) load_micros: f64,
    /// The most memory that a server had resident since it started.
    pub(crate) rss_mib: Option<f64>,
    /// The part of the machine that processes took which are not ours, from 0 to 1.
    pub(crate) foreign: f64,
}

/// Where a load stands, which is warming up at first; the measuring thread moves it on.
#[derive(Debug, Default)]
pub(crate) struct Phase(AtomicU8);

const MEASURING: u8 = 1;
const STOPPING: u8 = 2;

impl Phase {
    /// Whether an effect that ends now counts.
    pub(crate) fn measuring(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MEASURING
    }

    /// Whether no further effect is to be begun.
    pub(crate) fn stopping(&self) -> bool {
        self.0.load(Ordering::Relaxed) == STOPPING
    }

    fn set(&self, phase: u8) {
        self.0.store(phase, Ordering::Relaxed);
    }
}

/// What one thread of a load has done.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Of each effect, or batch of effects, that ended in the interval.
    pub(crate) micros: Vec<u32>,
    /// Keys begun, before, in and after the interval.
    pub(crate) keys: u64,
}

impl Tally {
    /// Counts an effect that took from `began` to `ended`.
    pub(crate) fn count(&mut self, began: Instant, ended: Instant) {
        let micros = ended.duration_since(began).as_micros();
        self.micros.push(u32::try_from(micros).unwrap_or(u32::MAX));
    }

    /// Adds what another thread has done.
    pub(crate) fn add(&mut self, other: Self) {
        self.micros.extend(other.micros);
        self.keys += other.keys;
    }
}

/// A load that is under way, on threads of its own.
pub(crate) struct Load {
    phase: Arc<Phase>,
    threads: Vec<JoinHandle<Tally>>,
    connected: (Sender<()>, Receiver<()>),
}

impl Load {
    /// One without threads yet.
    pub(crate) fn new() -> Self {
        Self { phase: Arc::default(), threads: Vec::new(), connected: channel() }
    }

    /// Runs `work` on a thread with a runtime of its own: tasks change cheapest on one thread. The
    /// work says by what it is given that its callers are connected.
    pub(crate) fn spawn<F>(
        &mut self,
        work: impl FnOnce(Arc<Phase>, Connected) -> F + Send + 'static,
    ) where
        F: Future<Output = Tally>,
    {
        let phase = Arc::clone(&self.phase);
        let connected = Connected(self.connected.0.clone());
        self.threads.push(std::thread::spawn(move || runtime().block_on(work(phase, connected))));
    }

    /// Waits until all callers are connected, lets them warm up, and measures.
    pub(crate) fn measure(self, costs: &Costs<'_>, timing: Timing) -> (Window, Tally) {
        drop(self.connected.0);
        for _ in &self.threads {
            self.connected.1.recv().expect("every thread says that it is connected");
        }
        let window = costs.measure(timing, Some(&self.phase));
        let mut tally = Tally::default();
        for thread in self.threads {
            tally.add(thread.join().expect("a load that does not panic"));
        }
        (window, tally)
    }
}

/// By which a thread of a load says once that its callers are connected.
pub(crate) struct Connected(Sender<()>);

impl Connected {
    /// Says it.
    pub(crate) fn say(self) {
        self.0.send(()).expect("somebody who waits for it");
    }
}

/// A runtime of one thread.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Before the interval.
    pub(crate) warm_up: Duration,
    /// The interval.
    pub(crate) length: Duration,
}

/// Whose costs are counted.
pub(crate) struct Costs<'a> {
    /// The Postgres that is written to, if one is.
    pub(crate) cluster: Option<&'a Cluster>,
    /// Process ids.
    pub(crate) servers: Vec<u32>,
    /// The process id of what makes the calls.
    pub(crate) load: u32,
}

/// Counters at one moment; processor time in ticks.
struct Counters {
    wal: Option<u64>,
    postgres: Option<u64>,
    servers: u64,
    load: u64,
    machine: u64,
}

impl Costs<'_> {
    /// Lets the load warm up, then measures an interval, which `phase` tells the load of.
    pub(crate) fn measure(&self, timing: Timing, phase: Option<&Phase>) -> Window {
        sleep(timing.warm_up);
        let before = self.read();
        if let Some(phase) = phase {
            phase.set(MEASURING);
        }
        let (began, began_at) = (now(), wall_clock());
        sleep(timing.length);
        let (took, ended_at) = (now().duration_since(began), wall_clock());
        if let Some(phase) = phase {
            phase.set(STOPPING);
        }
        let after = self.read();
        Window { took, between: began_at..ended_at, before, after }
    }

    fn read(&self) -> Counters {
        Counters {
            wal: self.cluster.map(Cluster::wal_bytes),
            postgres: self.cluster.map(|cluster| family_ticks(cluster.postmaster())),
            servers: self.servers.iter().map(|&pid| process(pid).map_or(0, |it| it.own)).sum(),
            load: process(self.load).map_or(0, |it| it.own),
            machine: machine_ticks(),
        }
    }
}

/// An interval, and the counters at both its ends.
pub(crate) struct Window {
    /// How long it was.
    pub(crate) took: Duration,
    /// When it was, by the wall clock.
    pub(crate) between: Range<SystemTime>,
    before: Counters,
    after: Counters,
}

impl Window {
    /// The line of `effects` that ended in this interval, with how long each, or each batch, took.
    pub(crate) fn measured(&self, effects: u64, mut micros: Vec<u32>) -> Measured {
        assert!(effects > 0 && !micros.is_empty(), "nothing was done in the interval");
        micros.sort_unstable();
        let (before, after) = (&self.before, &self.after);
        let per_effect = |ticks: u64| ticks as f64 / TICKS_PER_SECOND * 1e6 / effects as f64;
        let postgres = after.postgres.zip(before.postgres).map(|(after, before)| after - before);
        let wal = after.wal.zip(before.wal).map(|(after, before)| after - before);
        let servers = after.servers - before.servers;
        let load = after.load - before.load;
        let ours = postgres.unwrap_or(0) + servers + load;
        let foreign = (after.machine - before.machine).saturating_sub(ours);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let whole = self.took.as_secs_f64() * TICKS_PER_SECOND * cores as f64;
        Measured {
            per_second: effects as f64 / self.took.as_secs_f64(),
            p50_ms: percentile(&micros, 0.50),
            p99_ms: percentile(&micros, 0.99),
            wal_bytes: wal.map(|bytes| bytes as f64 / effects as f64),
            disk_bytes: None,
            postgres_micros: postgres.map(per_effect),
            server_micros: (!self.servers_are_none()).then(|| per_effect(servers)),
            load_micros: per_effect(load),
            rss_mib: None,
            foreign: foreign as f64 / whole,
        }
    }

    fn servers_are_none(&self) -> bool {
        self.after.servers == 0
    }
}

/// In milliseconds, by nearest rank.
fn percentile(sorted_micros: &[u32], part: f64) -> f64 {
    let rank = (sorted_micros.len() as f64 * part).ceil() as usize;
    f64::from(sorted_micros[rank.max(1) - 1]) / 1000.0
}

/// What `/proc/PID/stat` tells of a process.
struct Process {
    parent: u32,
    /// Its processor time.
    own: u64,
    /// That of its children that have ended and that it has waited for.
    children: u64,
}

fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name comes before, in brackets, and may hold anything: begin behind its end.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        own: ticks(11)? + ticks(12)?,
        children: ticks(13)? + ticks(14)?,
    })
}

/// The process id of the parent.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    process(pid).map(|process| process.parent)
}

/// The processor time of a process, of its children that are there, and of those that have ended.
fn family_ticks(parent: u32) -> u64 {
    let head = process(parent).expect("the postmaster runs");
    let children: u64 = fs::read_dir("/proc")
        .expect("/proc is there")
        .filter_map(|entry| process(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter(|process| process.parent == parent)
        .map(|process| process.own)
        .sum();
    head.own + head.children + children
}

/// What the machine's processors have done but for idling and waiting for disks: the first line of
/// `/proc/stat` has user, nice, system, idle, iowait, irq, softirq, steal.
fn machine_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc is there");
    let fields = stat.lines().next().expect("a line").split_whitespace().skip(1).take(8);
    fields
        .enumerate()
        .filter(|(at, _)| !matches!(at, 3 | 4))
        .map(|(_, ticks)| ticks.parse::<u64>().expect("a number"))
        .sum()
}

/// The time, to measure with.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "pgbench's log is in wall-clock time")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
