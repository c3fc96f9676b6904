//! One measured interval: what was done in it, and what it cost whom.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{JoinHandle, sleep},
    time::{Duration, Instant, SystemTime},
};

use serde::Serialize;

use crate::{
    database::Cluster,
    processes::{family_micros, machine_micros, process_micros},
};

/// A part of the machine that others may take before a line counts as disturbed. Postgres's own
/// flushes come to a tenth: it is threads of the kernel that write.
pub(crate) const FOREIGN_MAX: f64 = 0.20;

/// In which all callers connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(60);

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
    pub(crate) load_micros: Option<f64>,
    /// The most memory that a server had resident since it started.
    pub(crate) rss_mib: Option<f64>,
    /// What it had before the first call.
    pub(crate) rest_mib: Option<f64>,
    /// The part of the machine that processes took which are not ours, from 0 to 1.
    pub(crate) foreign: f64,
}

impl Measured {
    /// What callers who all began at once waited for their answer.
    pub(crate) fn at_once(mut micros: Vec<u32>) -> Self {
        micros.sort_unstable();
        let last = micros.last().copied().expect("some callers");
        Self {
            per_second: micros.len() as f64 / (f64::from(last) / 1e6),
            p50_ms: percentile(&micros, 0.50),
            p99_ms: percentile(&micros, 0.99),
            ..Self::default()
        }
    }
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

    /// Lets every caller end what it is about.
    pub(crate) fn stop(&self) {
        self.set(STOPPING);
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
        self.wait_until_connected();
        let window = costs.measure(timing, Some(&self.phase));
        (window, self.stop())
    }

    /// Waits until all callers are connected.
    pub(crate) fn wait_until_connected(&self) {
        for _ in &self.threads {
            let said = self.connected.1.recv_timeout(CONNECT_TIME_MAX);
            said.expect("every thread says that it is connected");
        }
    }

    /// Lets every caller end its effect; what they have done.
    pub(crate) fn stop(self) -> Tally {
        self.phase.stop();
        let mut tally = Tally::default();
        for thread in self.threads {
            tally.add(thread.join().expect("a load that does not panic"));
        }
        tally
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

/// Counters at one moment; processor time in microseconds.
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
        pause(timing.warm_up);
        let before = self.read();
        if let Some(phase) = phase {
            phase.set(MEASURING);
        }
        let (began, began_at) = (now(), wall_clock());
        pause(timing.length);
        let (took, ended_at) = (now().duration_since(began), wall_clock());
        if let Some(phase) = phase {
            phase.set(STOPPING);
        }
        let after = self.read();
        Window { took, between: began_at..ended_at, before, after }
    }

    /// Measures the interval that `work` takes.
    pub(crate) fn around<T>(&self, work: impl FnOnce() -> T) -> (Window, T) {
        let before = self.read();
        let (began, began_at) = (now(), wall_clock());
        let done = work();
        let (took, ended_at) = (now().duration_since(began), wall_clock());
        (Window { took, between: began_at..ended_at, before, after: self.read() }, done)
    }

    fn read(&self) -> Counters {
        Counters {
            wal: self.cluster.map(Cluster::wal_bytes),
            postgres: self.cluster.map(|cluster| family_micros(cluster.postmaster())),
            servers: self.servers.iter().map(|&pid| process_micros(pid)).sum(),
            load: process_micros(self.load),
            machine: machine_micros(),
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
        // Where others take nearly all of the machine nothing may end; that took longer than this.
        if micros.is_empty() {
            micros.push(u32::try_from(self.took.as_micros()).unwrap_or(u32::MAX));
        }
        micros.sort_unstable();
        let (before, after) = (&self.before, &self.after);
        let per_effect = |micros: u64| micros as f64 / effects.max(1) as f64;
        let postgres = after.postgres.zip(before.postgres).map(|(after, before)| after - before);
        let wal = after.wal.zip(before.wal).map(|(after, before)| after - before);
        let servers = after.servers - before.servers;
        let load = after.load - before.load;
        Measured {
            per_second: effects as f64 / self.took.as_secs_f64(),
            p50_ms: percentile(&micros, 0.50),
            p99_ms: percentile(&micros, 0.99),
            wal_bytes: wal.map(per_effect),
            disk_bytes: None,
            postgres_micros: postgres.map(per_effect),
            server_micros: (after.servers > 0).then(|| per_effect(servers)),
            load_micros: Some(per_effect(load)),
            rss_mib: None,
            rest_mib: None,
            foreign: self.foreign(),
        }
    }

    /// The part of the machine that others took.
    pub(crate) fn foreign(&self) -> f64 {
        let spent = |it: &Counters| it.postgres.unwrap_or(0) + it.servers + it.load;
        let ours = spent(&self.after) - spent(&self.before);
        let others = (self.after.machine - self.before.machine).saturating_sub(ours);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        others as f64 / (self.took.as_micros() as f64 * cores as f64)
    }
}

/// In milliseconds, by nearest rank.
fn percentile(sorted_micros: &[u32], part: f64) -> f64 {
    let rank = (sorted_micros.len() as f64 * part).ceil() as usize;
    f64::from(sorted_micros[rank.max(1) - 1]) / 1000.0
}

/// Set by a signal that is to end the benchmark.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes SIGINT and SIGTERM end the benchmark at its next [`pause`], so that servers and clusters
/// end with it.
pub(crate) fn heed_signals() {
    use tokio::signal::unix::{SignalKind, signal};
    std::thread::spawn(|| {
        runtime().block_on(async {
            let mut terminate = signal(SignalKind::terminate()).expect("signals can be heeded");
            let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be heeded");
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            eprintln!("interrupted: servers and clusters are being stopped");
            // From here on calls fail, which is nobody's news.
            std::panic::set_hook(Box::new(|_| {}));
            INTERRUPTED.store(true, Ordering::Relaxed);
        });
    });
}

/// Sleeps, unless a signal asks for an end.
///
/// # Panics
/// In that case.
pub(crate) fn pause(length: Duration) {
    let until = now() + length;
    loop {
        assert!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
        let left = until.saturating_duration_since(now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(Duration::from_millis(100)));
    }
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
