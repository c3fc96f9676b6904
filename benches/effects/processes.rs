//! Processor time, as `/proc` tells it.

use std::fs;

/// What `/proc` mostly counts processor time in; Linux has told user space 100 a second for decades.
const MICROS_PER_TICK: u64 = 10_000;

/// What `/proc/PID/stat` tells of a process.
struct Process {
    parent: u32,
    /// The processor time of all its threads.
    own_micros: u64,
    /// That of its children that have ended and that it has waited for.
    children_micros: u64,
}

fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name comes before, in brackets, and may hold anything: begin behind its end.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let micros = |at: usize| Some(fields.get(at)?.parse::<u64>().ok()? * MICROS_PER_TICK);
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        own_micros: micros(11)? + micros(12)?,
        children_micros: micros(13)? + micros(14)?,
    })
}

/// The process id of the parent.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    process(pid).map(|process| process.parent)
}

/// The processor time of all threads of a process.
pub(crate) fn process_micros(pid: u32) -> u64 {
    process(pid).map_or(0, |process| process.own_micros)
}

/// The processor time of a process with one thread. Ticks would not do for hundreds of processes
/// that each do little.
fn thread_micros(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    nanos.map_or_else(|| process_micros(pid), |nanos| nanos / 1000)
}

/// The processor time of a process, of its children that are there, and of those that have ended.
pub(crate) fn family_micros(parent: u32) -> u64 {
    let head = process(parent).expect("the postmaster runs");
    let children: u64 = fs::read_dir("/proc")
        .expect("/proc is there")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| parent_of(pid) == Some(parent))
        .map(thread_micros)
        .sum();
    head.own_micros + head.children_micros + children
}

/// What the machine's processors have done but for idling and waiting for disks: the first line of
/// `/proc/stat` has user, nice, system, idle, iowait, irq, softirq, steal.
pub(crate) fn machine_micros() -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc is there");
    let fields = stat.lines().next().expect("a line").split_whitespace().skip(1).take(8);
    let busy = fields.enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    busy.map(|(_, ticks)| ticks.parse::<u64>().expect("a number") * MICROS_PER_TICK).sum()
}
