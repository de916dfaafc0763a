//! The watchdog (`-T`): a thread of each process that knows what its ranks are doing, and ends the job when one of them
//! takes too long.
//!
//! Ranks say what they begin ([`Watched::phase`]); all go through the same phases in the same order, so that a phase's
//! number tells who is behind. Every process tells rank 0's about its ranks once a second ([`World::note`](world::World::note)). When a
//! phase has taken longer than the limit, rank 0's process says which ranks are stuck in it and which wait for them in a
//! later one, saves what was measured, and ends the job with exit code 4, as nccl-tests has it. Where nobody hears notes,
//! or rank 0 does nothing, each process does so for its own ranks.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collectives::world;

use super::Salvage;
use super::TIMED_OUT;
use record::Outcome;

/// How often it is looked at the clock.
const TICK: Duration = Duration::from_millis(100);
/// How often a process tells rank 0 what its ranks do.
const TELL: Duration = Duration::from_secs(1);
/// How long rank 0's process waits for what the others tell, once somebody is late.
const COLLECT: Duration = Duration::from_millis(2500);
/// How long the others wait for rank 0's process to end the job, which may have to save first.
const ALONE: Duration = Duration::from_secs(10);
/// Ranks' phases are numbered from here on; those of their process, which come before, from 1.
const FIRST_OF_RANKS: u64 = 1000;
/// How many ranks a message names with their place.
const MOST_NAMED: usize = 8;

/// When a process that waits says so.
const SILENT: Duration = Duration::from_secs(20);

/// A limit on what a process does before it has a world to watch. Dropping it says that this is over.
#[derive(Debug)]
pub struct Limited {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Limited {
    /// `what` begins: `starting MPI`. If it takes longer than `limit`, this process says so and ends with exit code 4,
    /// whereupon its launcher ends the others. The first two ranks say before that what they wait for.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(limit: Duration, what: &'static str) -> io::Result<Self> {
        let (over, ended) = mpsc::channel::<()>();
        let watch = move || {
            let rank = world::Started::detect().rank;
            let who = rank.map_or_else(|| "this process".to_owned(), |rank| format!("rank {rank}"));
            let host = world::host().name;
            let patience = limit.min(SILENT);
            if ended.recv_timeout(patience) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            if patience < limit && rank.is_none_or(|rank| rank < 2) {
                eprintln!(
                    "nccl-bench: {who} on {host} is still {what}, for {} s now; it waits for all processes of the launcher \
                     to do the same, and gives up after {} s (-T, NCCL_BENCH_TIMEOUT)",
                    patience.as_secs(),
                    limit.as_secs()
                );
            }
            if ended.recv_timeout(limit - patience) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            eprintln!("nccl-bench: {who} on {host} did not finish {what} within {} s", limit.as_secs_f64());
            // SAFETY: ends the process; handlers of libraries, one of which hangs, are not run.
            unsafe { libc::_exit(i32::from(TIMED_OUT)) }
        };
        let thread = thread::Builder::new().name("limit".to_owned()).spawn(watch)?;
        Ok(Self { over: Some(over), thread: Some(thread) })
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there is no limit any more.
            let _ = thread.join();
        }
    }
}

/// The watchdog of this process. Dropping it ends its thread.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    process: Option<Watched>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    slots: Mutex<Vec<Arc<Slot>>>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

/// Where one rank, or a process before it has ranks, says what it is doing. Dropping it says that it has ended.
///
/// Taking the next phase is a lock that nobody else wants and a look at the clock: cheap, but not for a timed loop.
#[derive(Debug, Default)]
pub struct Watched {
    slot: Arc<Slot>,
    shared: Option<Arc<Shared>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// `rank 3`, `process 1`.
    who: String,
    now: Mutex<Option<Now>>,
}

/// What a rank is doing.
#[derive(Clone, Debug)]
struct Now {
    step: u64,
    what: Cow<'static, str>,
    since: Instant,
    limited: bool,
    /// `GPU 3`.
    place: String,
}

impl Watch {
    /// Starts to watch this process. Without a `limit` nothing is ever late, and no thread runs. Drop it before the
    /// last handle of `process`. `salvage` saves what there is before the job ends.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(process: &world::Handle, limit: Option<Duration>, salvage: &Salvage) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { slots: Mutex::default(), stopped: Mutex::default(), stop: Condvar::new() });
        let mut watch = Self { shared, process: None, thread: None };
        watch.process = Some(watch.add(format!("process {}", process.rank()), 0));
        if let Some(limit) = limit {
            let dog = Dog {
                process: process.clone(),
                host: world::host().name,
                limit,
                salvage: salvage.clone(),
                shared: Arc::clone(&watch.shared),
            };
            watch.thread = Some(thread::Builder::new().name("watch".to_owned()).spawn(move || dog.run())?);
        }
        Ok(watch)
    }

    /// This process is in a phase of its own, as long as it has no ranks.
    pub fn phase(&self, what: impl Into<Cow<'static, str>>) {
        if let Some(process) = &self.process {
            process.phase(what);
        }
    }

    /// From now on this process consists of ranks, these of the job. Each takes its own to its thread and drops it when
    /// it has ended.
    pub fn ranks(&mut self, ranks: impl IntoIterator<Item = usize>) -> Vec<Watched> {
        let watched =
            ranks.into_iter().map(|rank| self.add(format!("rank {rank}"), FIRST_OF_RANKS)).collect();
        self.process = None;
        watched
    }

    fn add(&self, who: String, step: u64) -> Watched {
        let now = Now {
            step,
            what: Cow::Borrowed("starting"),
            since: Instant::now(),
            limited: true,
            place: String::new(),
        };
        let slot = Arc::new(Slot { who, now: Mutex::new(Some(now)) });
        lock(&self.shared.slots).push(Arc::clone(&slot));
        Watched { slot, shared: Some(Arc::clone(&self.shared)) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *lock(&self.shared.stopped) = true;
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, nothing is watched any more.
            let _ = thread.join();
        }
    }
}

impl Watched {
    /// This rank begins something that must end within the limit: `allreduce float sum, 1048576 bytes, in place`. All
    /// ranks call this in the same places.
    pub fn phase(&self, what: impl Into<Cow<'static, str>>) {
        self.next(what.into(), true);
    }

    /// As [`Watched::phase`], of something that may take as long as it likes, such as writing a report. While others
    /// wait for it, they are late, and this is named.
    pub fn unlimited(&self, what: impl Into<Cow<'static, str>>) {
        self.next(what.into(), false);
    }

    /// Where this rank's buffers are, for messages: `GPU 3`.
    pub fn place(&self, place: impl Into<String>) {
        if let Some(now) = &mut *lock(&self.slot.now) {
            now.place = place.into();
        }
    }

    fn next(&self, what: Cow<'static, str>, limited: bool) {
        if let Some(now) = &mut *lock(&self.slot.now) {
            tracing::debug!("{}: {what}", self.slot.who);
            now.step += 1;
            (now.what, now.limited, now.since) = (what, limited, Instant::now());
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A thread that panics has not ended well: what it was doing stays known.
        if let Some(shared) = &self.shared
            && !thread::panicking()
        {
            lock(&shared.slots).retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        }
    }
}

/// What is known of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    /// `rank 3`.
    who: String,
    /// `node1 (GPU 3)`.
    place: String,
    step: u64,
    what: String,
    /// For how long, when it is limited.
    age: Option<Duration>,
}

impl Report {
    /// A line for [`World::note`](world::World::note), which is shown as it is when a barrier of the world itself is late.
    fn line(&self) -> String {
        let age = self.age.map_or_else(|| "-".to_owned(), |age| format!("{} ms", age.as_millis()));
        format!("{} on {} | step {} | {age} | {}\n", self.who, self.place, self.step, self.what)
    }

    /// `None` of a line that is none, such as one that was cut.
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(4, " | ");
        let (who, place) = parts.next()?.split_once(" on ")?;
        let step = parts.next()?.strip_prefix("step ")?.parse().ok()?;
        let age = match parts.next()? {
            "-" => None,
            age => Some(Duration::from_millis(age.strip_suffix(" ms")?.parse().ok()?)),
        };
        Some(Self { who: who.to_owned(), place: place.to_owned(), step, what: parts.next()?.to_owned(), age })
    }

    fn is_late(&self, limit: Duration) -> bool {
        self.age.is_some_and(|age| age > limit)
    }
}

impl Shared {
    /// Waits until the watch is dropped, or as long as this; whether it is.
    fn stopped_within(&self, time: Duration) -> bool {
        let stopped = lock(&self.stopped);
        let waited = self.stop.wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What the watchdog's thread knows.
struct Dog {
    process: world::Handle,
    host: String,
    limit: Duration,
    salvage: Salvage,
    shared: Arc<Shared>,
}

impl Dog {
    fn run(self) {
        let several = self.process.size() > 1;
        let mut heard = false;
        let mut next_telling = Instant::now();
        let mut late_since: Option<Instant> = None;
        loop {
            let mut reports = self.own();
            let now = Instant::now();
            let own_late = reports.iter().any(|report| report.is_late(self.limit));
            if several && now >= next_telling {
                let lines: String = reports.iter().map(Report::line).collect();
                heard = self.process.note(&lines);
                next_telling = now + TELL;
            }
            let collects = heard && self.process.rank() == 0;
            if collects {
                let notes = self.process.notes();
                reports.extend(notes.iter().skip(1).flat_map(|note| note.lines()).filter_map(Report::parse));
            }
            let late = own_late || reports.iter().any(|report| report.is_late(self.limit));
            let patience = match (heard, collects) {
                (false, _) => Duration::ZERO,
                (true, true) => COLLECT,
                (true, false) => ALONE,
            };
            match late_since {
                _ if !late => late_since = None,
                None if patience > Duration::ZERO => late_since = Some(now),
                Some(since) if now - since < patience => {}
                _ => self.end(&reports),
            }
            if self.shared.stopped_within(TICK) {
                // What it told last must not look as if it was still in it.
                if heard {
                    self.process.note("");
                }
                return;
            }
        }
    }

    /// What this process' ranks do.
    fn own(&self) -> Vec<Report> {
        let slots = lock(&self.shared.slots).clone();
        let report = |slot: &Arc<Slot>| {
            let now = lock(&slot.now).clone()?;
            let place = if now.place.is_empty() { String::new() } else { format!(" ({})", now.place) };
            Some(Report {
                who: slot.who.clone(),
                place: format!("{}{place}", self.host),
                step: now.step,
                what: now.what.replace('\n', " "),
                age: now.limited.then(|| now.since.elapsed()),
            })
        };
        slots.iter().filter_map(report).collect()
    }

    fn end(&self, reports: &[Report]) -> ! {
        let message = explain(reports, self.limit);
        self.salvage.save(Outcome::Failed { message: message.clone() });
        self.process.abort(i32::from(TIMED_OUT), &format!("nccl-bench: {message}"))
    }
}

/// Who is stuck, and who waits for them. Ranks that are furthest behind are stuck; the others are in a later phase and
/// cannot go on without them.
fn explain(reports: &[Report], limit: Duration) -> String {
    let mut reports: Vec<&Report> = reports.iter().collect();
    reports.sort_by_key(|report| report.step);
    let mut groups = reports.chunk_by(|one, other| one.step == other.step);
    let limit = limit.as_secs_f64();
    let Some(stuck) = groups.next() else { return format!("nothing was done within {limit} s") };
    let waiting: Vec<&[&Report]> = groups.collect();
    let what = &stuck[0].what;
    let mut text = match (stuck, waiting.is_empty()) {
        ([one], _) => format!("{} on {} did not finish {what} within {limit} s", one.who, one.place),
        (several, true) => {
            format!("no rank has finished {what} within {limit} s: {}", named(several))
        }
        (several, false) => format!("these did not finish {what} within {limit} s: {}", named(several)),
    };
    for group in waiting {
        let verb = if group.len() == 1 { "waits" } else { "wait" };
        let _ = write!(text, "; {} {verb} in {}", counted(group), group[0].what);
    }
    text
}

/// With their places: `rank 1 on a (GPU 1), rank 2 on a (GPU 2), and 14 more`.
fn named(group: &[&Report]) -> String {
    let mut names: Vec<String> =
        group.iter().take(MOST_NAMED).map(|report| format!("{} on {}", report.who, report.place)).collect();
    if group.len() > MOST_NAMED {
        names.push(format!("and {} more", group.len() - MOST_NAMED));
    }
    names.join(", ")
}

/// By number: `rank 0-2, 5`.
fn counted(group: &[&Report]) -> String {
    let mut numbers: Vec<(&str, usize)> = group
        .iter()
        .filter_map(|report| {
            let (kind, number) = report.who.split_once(' ')?;
            Some((kind, number.parse().ok()?))
        })
        .collect();
    numbers.sort_unstable();
    let mut parts: Vec<String> = Vec::new();
    for run in numbers.chunk_by(|one, other| one.0 == other.0 && one.1 + 1 == other.1) {
        let ((kind, first), (_, last)) = (run[0], run[run.len() - 1]);
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        // The kind once for all that follow.
        let same = parts.iter().any(|part| part.starts_with(kind));
        parts.push(if same { range } else { format!("{kind} {range}") });
    }
    parts.join(", ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: usize, step: u64, what: &str) -> Report {
        Report {
            who: format!("rank {rank}"),
            place: format!("node{} (GPU {})", rank / 4, rank % 4),
            step,
            what: what.to_owned(),
            age: Some(Duration::from_millis(30_250)),
        }
    }

    fn explained(reports: &[Report]) -> String {
        explain(reports, Duration::from_secs(30))
    }

    #[test]
    fn the_rank_that_is_behind_is_told_from_those_that_wait() {
        let mut reports: Vec<Report> = (0..8).map(|rank| report(rank, 18, "allreduce")).collect();
        reports[3] = report(3, 17, "initialising NCCL");
        assert_eq!(
            explained(&reports),
            "rank 3 on node0 (GPU 3) did not finish initialising NCCL within 30 s; rank 0-2, 4-7 wait in allreduce"
        );
        reports[5] = report(5, 19, "a barrier");
        assert!(
            explained(&reports).ends_with("; rank 0-2, 4, 6-7 wait in allreduce; rank 5 waits in a barrier")
        );
        reports[6] = report(6, 17, "initialising NCCL");
        assert!(explained(&reports).starts_with(
            "these did not finish initialising NCCL within 30 s: rank 3 on node0 (GPU 3), rank 6 on node1 (GPU 2); \
             rank 0-2, 4, 7 wait"
        ));
    }

    #[test]
    fn ranks_that_are_stuck_together_are_all_named() {
        let reports: Vec<Report> = (0..2).map(|rank| report(rank, 18, "allreduce")).collect();
        assert_eq!(
            explained(&reports),
            "no rank has finished allreduce within 30 s: rank 0 on node0 (GPU 0), rank 1 on node0 (GPU 1)"
        );
        let reports: Vec<Report> = (0..20).map(|rank| report(rank, 18, "allreduce")).collect();
        assert!(explained(&reports).ends_with("rank 7 on node1 (GPU 3), and 12 more"));
        assert_eq!(explained(&[]), "nothing was done within 30 s");
    }

    #[test]
    fn processes_that_have_no_ranks_yet_are_behind_ranks() {
        let mut reports = vec![report(0, FIRST_OF_RANKS + 1, "a barrier")];
        reports.push(Report { who: "process 1".to_owned(), ..report(4, 1, "loading") });
        assert!(explained(&reports).starts_with("process 1 on node1 (GPU 0) did not finish loading"));
        reports[1].step = FIRST_OF_RANKS + 2;
        assert!(explained(&reports).ends_with("; process 1 waits in loading"));
    }

    #[test]
    fn what_is_told_is_understood() {
        let told = report(3, 17, "allreduce float sum, 8 bytes | in place on GPU");
        assert_eq!(Report::parse(told.line().trim_end()), Some(told.clone()));
        let unlimited = Report { age: None, ..told };
        assert_eq!(Report::parse(unlimited.line().trim_end()), Some(unlimited.clone()));
        assert!(!unlimited.is_late(Duration::ZERO));
        for cut in ["", "rank 3", "rank 3 on a", "rank 3 on a | step 1", "rank 3 on a | step x | - | b"] {
            assert_eq!(Report::parse(cut), None, "{cut}");
        }
    }

    #[test]
    fn ranks_are_watched_until_they_end() {
        let process = world::single();
        let mut watch = Watch::start(&process, None, &Salvage::default()).unwrap();
        let dog = Dog {
            process,
            host: "here".to_owned(),
            limit: Duration::from_secs(1),
            salvage: Salvage::default(),
            shared: Arc::clone(&watch.shared),
        };
        let known = || {
            dog.own()
                .into_iter()
                .map(|report| (report.who, report.place, report.step, report.what, report.age.is_some()))
                .collect::<Vec<_>>()
        };
        let told = |who: &str, place: &str, step, what: &str, limited| {
            (who.to_owned(), place.to_owned(), step, what.to_owned(), limited)
        };
        watch.phase("loading");
        assert_eq!(known(), [told("process 0", "here", 1, "loading", true)]);
        let mut ranks = watch.ranks(4..6);
        watch.phase("nothing any more");
        ranks[0].place("GPU 0");
        ranks[0].phase("filling");
        ranks[1].unlimited("writing\na report");
        assert_eq!(
            known(),
            [
                told("rank 4", "here (GPU 0)", 1001, "filling", true),
                told("rank 5", "here", 1001, "writing a report", false)
            ]
        );
        drop(ranks.remove(0));
        assert_eq!(known().len(), 1);
        drop(ranks);
        assert_eq!(known(), []);
    }
}
