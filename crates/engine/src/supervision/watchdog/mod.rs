//! The watchdog: a thread of each process that ends the job when a rank takes too long.
//!
//! A rank announces each step that it begins ([`RankProgress::begin_step`]). All ranks go through the same
//! steps in the same order, so the number of its step tells which rank is behind. Every process sends the
//! status of its ranks to rank 0's process once a second ([`World::note`](world::World::note)). When a step
//! has taken longer than the limit, rank 0's process names the ranks that are stuck in it and those that wait
//! in a later step, saves the results, and ends the job with exit code 4, as nccl-tests does. In a world
//! without notes, or when rank 0's process does not act, each process does so for its own ranks.

mod status;
mod time_limit;
mod worker;

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use collectives::world;

use super::{Salvage, TIMED_OUT};
use record::RunOutcome;
pub use status::number_ranges;
use status::{RankStatus, WatchedName, explain_lateness};
pub use time_limit::TimeLimit;
use worker::{Worker, WorkerOwner};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which a process sends the status of its ranks to rank 0's process.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// Time that rank 0's process waits for the others' notes once a rank is late.
const COLLECT: Duration = Duration::from_millis(2500);
/// Time that the other processes wait for rank 0's process, which may have to save results, to end the job.
const ALONE: Duration = Duration::from_secs(10);
/// Number before the first step of a rank. Steps of a process, which come before those of its ranks, count
/// from 1.
const BEFORE_RANKS: u64 = 1000;

/// The watchdog of this process. Dropping it ends its thread.
#[derive(Debug)]
pub struct Watchdog {
    worker: Option<Worker>,
    ranks: WatchedRanks,
    process: Option<RankProgress>,
}

type WatchedRanks = Arc<Mutex<Vec<Arc<WatchedRank>>>>;

/// Reports the steps of one rank, or of a process that has no ranks yet. Dropping it means that the rank has
/// ended.
///
/// A report takes an uncontended lock and reads the clock: too much for a timed loop.
#[derive(Debug)]
pub struct RankProgress {
    rank: Arc<WatchedRank>,
    all: WatchedRanks,
}

#[derive(Debug)]
struct WatchedRank {
    name: WatchedName,
    current: Mutex<CurrentStep>,
}

#[derive(Clone, Debug)]
struct CurrentStep {
    number: u64,
    name: Cow<'static, str>,
    since: Instant,
    limited: bool,
    /// `GPU 3`.
    device: String,
}

impl Watchdog {
    /// Starts the watchdog of this process, which calls `salvage` before it ends the job. Without a `limit`
    /// no thread runs. Drop it before the last handle of `process`.
    pub fn start(process: &world::Handle, limit: Option<Duration>, salvage: &Salvage) -> io::Result<Self> {
        let mut watchdog = Self { worker: None, ranks: Arc::default(), process: None };
        watchdog.process = Some(watchdog.add_rank(WatchedName::Process(process.rank()), 0));
        if let Some(limit) = limit {
            let watcher = Watcher {
                process: process.clone(),
                host: world::host().name,
                limit,
                salvage: salvage.clone(),
                ranks: Arc::clone(&watchdog.ranks),
            };
            watchdog.worker = Some(Worker::start("watch", move |owner| watcher.watch_steps(owner))?);
        }
        Ok(watchdog)
    }

    /// Begins a step of the process itself. Without effect once it has ranks.
    pub fn begin_step(&self, name: impl Into<Cow<'static, str>>) {
        if let Some(process) = &self.process {
            process.begin_step(name);
        }
    }

    /// Watches these ranks of the job instead of the process. Each rank's thread takes its own progress, and
    /// drops it when the rank has ended.
    pub fn watch_ranks(&mut self, ranks: impl IntoIterator<Item = usize>) -> Vec<RankProgress> {
        let progress =
            ranks.into_iter().map(|rank| self.add_rank(WatchedName::Rank(rank), BEFORE_RANKS)).collect();
        self.process = None;
        progress
    }

    fn add_rank(&self, name: WatchedName, number: u64) -> RankProgress {
        let step = CurrentStep {
            number,
            name: Cow::Borrowed("starting"),
            since: Instant::now(),
            limited: true,
            device: String::new(),
        };
        let rank = Arc::new(WatchedRank { name, current: Mutex::new(step) });
        lock_mutex(&self.ranks).push(Arc::clone(&rank));
        RankProgress { rank, all: Arc::clone(&self.ranks) }
    }
}

impl RankProgress {
    /// Begins a step that must end within the limit: `allreduce float sum, 1048576 bytes, in place`. All
    /// ranks begin the same steps in the same order.
    pub fn begin_step(&self, name: impl Into<Cow<'static, str>>) {
        self.record_step(name.into(), true);
    }

    /// Begins a step without a time limit, such as writing a report. Ranks that wait for it can still be
    /// late; the message then names this step.
    pub fn begin_unlimited_step(&self, name: impl Into<Cow<'static, str>>) {
        self.record_step(name.into(), false);
    }

    /// Sets the rank's device for messages: `GPU 3`.
    pub fn set_device(&self, device: impl Into<String>) {
        lock_mutex(&self.rank.current).device = device.into();
    }

    fn record_step(&self, name: Cow<'static, str>, limited: bool) {
        tracing::debug!("{}: {name}", self.rank.name);
        let mut step = lock_mutex(&self.rank.current);
        step.number += 1;
        (step.name, step.limited, step.since) = (name, limited, Instant::now());
    }
}

impl Drop for RankProgress {
    fn drop(&mut self) {
        // The last step of a thread that panics stays known.
        if !thread::panicking() {
            lock_mutex(&self.all).retain(|rank| !Arc::ptr_eq(rank, &self.rank));
        }
    }
}

struct Watcher {
    process: world::Handle,
    host: String,
    limit: Duration,
    salvage: Salvage,
    ranks: WatchedRanks,
}

impl Watcher {
    fn watch_steps(self, owner: &WorkerOwner) {
        let several = self.process.size() > 1;
        let mut is_heard = false;
        let mut next_note = Instant::now();
        // With the steps of the own ranks at that time.
        let mut late_since: Option<(Instant, Vec<u64>)> = None;
        loop {
            let mut ranks = self.own_ranks();
            let steps: Vec<u64> = ranks.iter().map(|rank| rank.number).collect();
            let now = Instant::now();
            let sends_note = several && now >= next_note;
            if sends_note {
                let lines: String = ranks.iter().map(RankStatus::note_line).collect();
                let data = serde_json::to_vec(&ranks).unwrap_or_default();
                is_heard = self.process.note_with(&lines, &data);
                next_note = now + NOTE_INTERVAL;
            }
            let leads = is_heard && self.process.rank() == 0;
            // The notes of a large job take time to read.
            let collects = leads && (sends_note || late_since.is_some());
            if collects {
                ranks.extend(self.other_ranks());
            }
            let is_late = ranks.iter().any(|rank| rank.is_late(self.limit));
            if collects || (leads && is_late) {
                // The silence of a rank can run out while this process waits for notes. The limit passed
                // first.
                self.process.hold_silence(is_late);
            }
            let patience = match (is_heard, leads) {
                (false, _) => Duration::ZERO,
                (true, true) => COLLECT,
                (true, false) => ALONE,
            };
            late_since = match late_since {
                _ if !is_late => None,
                Some((since, before)) if before == steps => {
                    if now - since >= patience {
                        self.end_late_job(&ranks);
                    }
                    Some((since, before))
                }
                _ if patience.is_zero() => self.end_late_job(&ranks),
                // If own ranks have gone on since, so has the job, and older notes of others say otherwise.
                _ => Some((now, steps)),
            };
            if owner.dropped_within(POLL_INTERVAL) {
                // The last note must not look like a step that goes on.
                if is_heard {
                    self.process.note("");
                }
                self.process.hold_silence(false);
                return;
            }
        }
    }

    fn own_ranks(&self) -> Vec<RankStatus> {
        let ranks = lock_mutex(&self.ranks).clone();
        let status = |rank: &Arc<WatchedRank>| {
            let step = lock_mutex(&rank.current).clone();
            let device = if step.device.is_empty() { String::new() } else { format!(" ({})", step.device) };
            RankStatus {
                name: rank.name,
                location: format!("{}{device}", self.host),
                number: step.number,
                step: step.name.replace('\n', " "),
                age: step.limited.then(|| step.since.elapsed()),
                heard: Duration::ZERO,
            }
        };
        ranks.iter().map(status).collect()
    }

    /// The ranks of the other processes, as these have described them last.
    fn other_ranks(&self) -> Vec<RankStatus> {
        let notes = self.process.note_data();
        let ranks = |(data, heard): (Vec<u8>, Duration)| {
            // The last note of a process has none.
            let ranks: Vec<RankStatus> = serde_json::from_slice(&data).unwrap_or_default();
            ranks.into_iter().map(move |rank| RankStatus { heard, ..rank.into_printable() })
        };
        notes.into_iter().flat_map(ranks).collect()
    }

    fn end_late_job(&self, ranks: &[RankStatus]) -> ! {
        let message = explain_lateness(ranks, self.limit);
        let outcome = RunOutcome::Failed { message: message.clone() };
        self.salvage.end_job(&*self.process, outcome, TIMED_OUT, &message)
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_watched_until_they_end() {
        let process = world::single();
        let mut watchdog = Watchdog::start(&process, None, &Salvage::default()).unwrap();
        let watcher = Watcher {
            process,
            host: "here".to_owned(),
            limit: Duration::from_secs(1),
            salvage: Salvage::default(),
            ranks: Arc::clone(&watchdog.ranks),
        };
        let known = || {
            watcher
                .own_ranks()
                .into_iter()
                .map(|rank| (rank.name, rank.location, rank.number, rank.step, rank.age.is_some()))
                .collect::<Vec<_>>()
        };
        let status = |name: WatchedName, location: &str, number, step: &str, limited| {
            (name, location.to_owned(), number, step.to_owned(), limited)
        };
        watchdog.begin_step("loading");
        assert_eq!(known(), [status(WatchedName::Process(0), "here", 1, "loading", true)]);
        let mut ranks = watchdog.watch_ranks(4..6);
        watchdog.begin_step("nothing any more");
        ranks[0].set_device("GPU 0");
        ranks[0].begin_step("filling");
        ranks[1].begin_unlimited_step("writing\na report");
        assert_eq!(
            known(),
            [
                status(WatchedName::Rank(4), "here (GPU 0)", 1001, "filling", true),
                status(WatchedName::Rank(5), "here", 1001, "writing a report", false)
            ]
        );
        drop(ranks.remove(0));
        assert_eq!(known().len(), 1);
        drop(ranks);
        assert_eq!(known(), []);
    }
}
