//! Several ranks per process, one per thread.

use super::call::{
    CallLog, Contribution, LateRank, Timeout, combine_contributions, late_error, pack_messages,
    unpack_messages,
};
use super::limits::{MAX_RANKS, REPORT_TIME};
use super::sync::{SpinPark, core_count};
use super::{Called, Error, Handle, Position, Reason, Wait, World, YEAR, host};
use crate::lock::lock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Splits every process of a world into `per_process` ranks: thread `t` of process `p` is rank
/// `p * per_process + t`. Returns a handle per thread, in order. Move each one to its thread: when a handle
/// is dropped, its rank leaves.
///
/// A collective call of all processes, with the same `per_process`.
///
/// If a thread panics, fails ([`World::fail`]) or drops its handle, [`World::barrier`] and
/// [`World::all_gather`] of the others return an error with its rank; they do not wait for it.
///
/// # Errors
/// If `per_process` is 0 or differs between processes, or another process has failed.
pub fn threads(process: Handle, per_process: usize) -> Result<Vec<Handle>, Error> {
    let renumbers = process.name_ranks(per_process);
    let all = process.all_gather(&(per_process as u64).to_le_bytes())?;
    for (rank, theirs) in all.iter().enumerate() {
        let theirs = theirs.as_slice().try_into().map(u64::from_le_bytes).unwrap_or(0);
        if theirs != per_process as u64 {
            return Err(Error::Mismatch(format!(
                "process {} has {per_process} ranks but process {rank} has {theirs}; every process needs the \
                 same number of threads or GPUs",
                process.rank()
            )));
        }
    }
    if per_process == 0 {
        return Err(Error::Mismatch("a process needs at least one rank; 0 were asked for".to_owned()));
    }
    if per_process.saturating_mul(process.size()) > MAX_RANKS {
        return Err(Error::Mismatch(format!(
            "{per_process} ranks for each of {} processes were asked for; a job has at most {MAX_RANKS}",
            process.size()
        )));
    }
    let team = Arc::new(Team {
        spin: per_process.saturating_mul(process.local_size()) <= core_count(),
        process,
        renumbers,
        per_process,
        call: Mutex::new(LocalCall {
            contributions: (0..per_process).map(|_| None).collect(),
            ..LocalCall::default()
        }),
        limit: Mutex::default(),
        call_log: Mutex::default(),
        wants_calls: AtomicBool::new(false),
        completed: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
        waiters: SpinPark::default(),
    });
    Ok((0..per_process)
        .map(|thread| Arc::new(ThreadRank { team: Arc::clone(&team), thread }) as Handle)
        .collect())
}

/// Reason for the failure of a rank after a panic of its thread.
const PANIC: &str = "its thread panicked";

/// State shared by the ranks of a process.
struct Team {
    process: Handle,
    /// True if errors of `process` name ranks of the job already.
    renumbers: bool,
    per_process: usize,
    /// True if this host has a core for each of its ranks.
    spin: bool,
    call: Mutex<LocalCall>,
    /// Time limit of a call, from its first rank to its last.
    limit: Mutex<Option<Duration>>,
    call_log: Mutex<CallLog>,
    /// True once a rank has waited for too long.
    wants_calls: AtomicBool,
    completed: AtomicUsize,
    /// True once a thread has left or failed: no further call can complete.
    broken: AtomicBool,
    waiters: SpinPark,
}

/// Current call of the threads of a process.
#[derive(Default)]
struct LocalCall {
    contributions: Vec<Option<Contribution>>,
    arrived: usize,
    /// True while the last thread calls the other processes.
    complete: bool,
    /// Result of the previous call. All threads read it before it is overwritten, since the next call cannot
    /// complete without them.
    result: Option<Result<Arc<Vec<Vec<u8>>>, Error>>,
    /// First thread that has left; a thread with a failure takes precedence.
    departed: Option<(usize, Departure)>,
}

enum Departure {
    Left,
    Panicked,
    /// [`World::fail`], for the given reason. Its thread lives on.
    Failed(Reason),
    /// It was late, or its calls differ from another rank's calls.
    Error(Error),
}

struct ThreadRank {
    team: Arc<Team>,
    thread: usize,
}

impl Team {
    fn job_rank(&self, thread: usize) -> usize {
        self.process.rank() * self.per_process + thread
    }

    /// Returns the error for the thread that has left, if any.
    fn departed_error(&self, call: &LocalCall) -> Option<Error> {
        let (thread, departure) = call.departed.as_ref()?;
        let reason = match departure {
            Departure::Left => Reason::left_early(),
            Departure::Panicked => Reason::Died(PANIC.to_owned()),
            Departure::Failed(reason) => reason.clone(),
            Departure::Error(error) => return Some(error.clone()),
        };
        Some(Error::RankFailed { rank: self.job_rank(*thread), host: host().name, reason })
    }

    fn depart_thread(&self, thread: usize, departure: Departure) {
        let mut call = lock(&self.call);
        let replaces = match &call.departed {
            None => true,
            Some((_, earlier)) => matches!(earlier, Departure::Left) && !matches!(departure, Departure::Left),
        };
        if replaces {
            call.departed = Some((thread, departure));
        }
        drop(call);
        self.broken.store(true, Ordering::SeqCst);
        self.waiters.notify_waiters();
    }

    /// Runs a collective call. The last thread to arrive calls the other processes for all.
    fn run_collective(&self, thread: usize, contribution: Contribution) -> Result<Arc<Vec<Vec<u8>>>, Error> {
        let mut call = lock(&self.call);
        if let Some(error) = self.departed_error(&call) {
            return Err(error);
        }
        let number = self.completed.load(Ordering::SeqCst);
        // While the last thread calls the other processes, all contributions have been taken.
        if call.complete || call.contributions[thread].is_some() {
            return Err(self.two_calls_error(thread));
        }
        call.contributions[thread] = Some(contribution);
        call.arrived += 1;
        if call.arrived == self.per_process {
            let contributions = call.contributions.iter_mut().filter_map(Option::take).collect();
            call.arrived = 0;
            call.complete = true;
            drop(call);
            let result = self.call_processes(contributions);
            let mut call = lock(&self.call);
            call.result = Some(result.clone());
            call.complete = false;
            // Under the lock, as threads read both: otherwise, of two threads misusing one rank, one could
            // get the result of the next call.
            self.completed.store(number.wrapping_add(1), Ordering::SeqCst);
            drop(call);
            self.waiters.notify_waiters();
            return result;
        }
        drop(call);
        let ended = || self.completed.load(Ordering::SeqCst) != number;
        let over = || ended() || self.broken.load(Ordering::SeqCst);
        let limit = *lock(&self.limit);
        if !self.waiters.wait_until(self.spin, limit.map(|limit| Instant::now() + limit), over) {
            self.fail_if_late(number, limit.unwrap_or_default());
            // Unless threads of this process were late, the world of processes limits the call.
            self.waiters.wait_until(false, None, over);
        }
        let mut call = lock(&self.call);
        if ended() {
            // The result is from a later call, made by another thread of this rank meanwhile.
            if self.completed.load(Ordering::SeqCst) != number.wrapping_add(1) {
                return Err(self.two_calls_error(thread));
            }
            return call.result.clone().unwrap_or_else(|| {
                Err(Error::Mismatch("a call of threads has ended without a result".to_owned()))
            });
        }
        // The call cannot complete without the thread that has left.
        call.contributions[thread] = None;
        call.arrived = call.arrived.saturating_sub(1);
        Err(self
            .departed_error(&call)
            .unwrap_or_else(|| Error::Mismatch("a thread of this process has left the job".to_owned())))
    }

    fn two_calls_error(&self, thread: usize) -> Error {
        Error::Mismatch(format!(
            "rank {} is in two collective calls at once; one thread at a time may call",
            self.job_rank(thread)
        ))
    }

    /// Fails a call that threads of this process have not reached within `limit`.
    fn fail_if_late(&self, number: usize, limit: Duration) {
        let call = lock(&self.call);
        if call.complete
            || self.completed.load(Ordering::SeqCst) != number
            || self.departed_error(&call).is_some()
        {
            return;
        }
        let name = call.contributions.iter().flatten().next().map_or("barrier", Contribution::call_name);
        let threads = || (0..self.per_process).filter(|&thread| call.contributions[thread].is_none());
        let host = host().name;
        let late: Vec<_> = threads()
            .map(|thread| LateRank { rank: self.job_rank(thread), host: host.clone(), ..LateRank::default() })
            .collect();
        let (Some(first), Some(error)) = (threads().next(), late_error(name, limit, &late)) else { return };
        drop(call);
        self.depart_thread(first, Departure::Error(error.clone()));
        self.process.fail(Reason::from(&error));
    }

    fn call_processes(&self, contributions: Vec<Contribution>) -> Result<Arc<Vec<Vec<u8>>>, Error> {
        let Some(messages) = combine_contributions(contributions, self.job_rank(0))? else {
            return self
                .process
                .barrier()
                .map(|()| Arc::default())
                .map_err(|error| self.renumber_error(error));
        };
        if self.process.size() == 1 {
            return Ok(Arc::new(messages));
        }
        let all = self
            .process
            .all_gather(&pack_messages(messages.iter().map(Vec::as_slice)))
            .map_err(|error| self.renumber_error(error))?;
        let mut unpacked = Vec::with_capacity(all.len() * self.per_process);
        for (process, bytes) in all.iter().enumerate() {
            let theirs = unpack_messages(bytes)
                .filter(|theirs| theirs.len() == self.per_process)
                .ok_or_else(|| {
                    Error::Mismatch(format!(
                        "process {process} did not gather its {} ranks' messages",
                        self.per_process
                    ))
                })?;
            unpacked.extend(theirs);
        }
        Ok(Arc::new(unpacked))
    }

    /// Converts an error of the world of processes to ranks of this world.
    fn renumber_error(&self, error: Error) -> Error {
        match error {
            Error::RankFailed { rank, host, reason } if self.per_process > 1 && !self.renumbers => {
                let first = rank * self.per_process;
                let last = first + self.per_process - 1;
                let reason = reason.with_suffix(&format!(" (the process of ranks {first} to {last})"));
                Error::RankFailed { rank: first, host, reason }
            }
            other => other,
        }
    }
}

impl World for ThreadRank {
    fn position(&self) -> Position {
        let (process, threads) = (self.team.process.position(), self.team.per_process);
        Position {
            rank: process.rank * threads + self.thread,
            size: process.size * threads,
            local_rank: process.local_rank.saturating_mul(threads).saturating_add(self.thread),
            local_size: process.local_size.saturating_mul(threads),
        }
    }

    fn describe(&self) -> String {
        match self.team.per_process {
            1 => self.team.process.describe(),
            threads => format!("{}, {threads} ranks per process", self.team.process.describe()),
        }
    }

    fn barrier(&self) -> Result<(), Error> {
        self.team.run_collective(self.thread, Contribution::Barrier).map(drop)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let all = self.team.run_collective(self.thread, Contribution::Message(mine.to_vec()))?;
        Ok(Arc::unwrap_or_clone(all))
    }

    /// Notes and hooks apply to the whole process.
    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.team.process)
    }

    fn check(&self) -> Result<(), Error> {
        if self.team.broken.load(Ordering::SeqCst) {
            let call = lock(&self.team.call);
            if let Some((_, Departure::Panicked | Departure::Failed(_) | Departure::Error(_))) = call.departed
            {
                return self.team.departed_error(&call).map_or(Ok(()), Err);
            }
        }
        self.team.process.check().map_err(|error| self.team.renumber_error(error))
    }

    fn fail(&self, reason: Reason) {
        self.team.depart_thread(self.thread, Departure::Failed(reason.clone()));
        self.team.process.fail_as(self.rank(), reason);
    }

    fn set_limit(&self, limit: Option<Duration>) {
        *lock(&self.team.limit) = limit.map(|limit| limit.min(YEAR));
        self.team.process.set_limit(limit);
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        // Calls after a failure differ because of it.
        if self.check().is_err() {
            return;
        }
        let different = lock(&self.team.call_log).record_calls(rank, topic, calls.to_vec());
        if let Some(mismatch) = different {
            self.team.process.fail(Reason::Mismatch(mismatch.clone()));
            self.team.depart_thread(self.thread, Departure::Error(Error::CallMismatch(mismatch)));
        } else {
            self.team.process.compare(rank, topic, calls);
        }
    }

    fn time_out(&self, wait: &Wait) -> bool {
        let team = &self.team;
        if team.process.size() > 1 {
            return team.process.time_out(wait);
        }
        team.wants_calls.store(true, Ordering::SeqCst);
        let by = Instant::now() + REPORT_TIME;
        while self.check().is_ok() && Instant::now() < by {
            thread::sleep(Duration::from_millis(1));
        }
        let (host, late) = (host().name, lock(&team.call_log).late_ranks(wait));
        let late = late.into_iter().map(|rank| (rank, host.clone()));
        self.fail(Reason::TimedOut(Timeout::new(wait.clone(), late)));
        true
    }

    fn wants_calls(&self) -> bool {
        self.team.wants_calls.load(Ordering::SeqCst) || self.team.process.wants_calls()
    }

    /// Names the first failed rank of this process.
    fn abort(&self, code: i32, message: &str) -> ! {
        if self.team.per_process == 1 {
            self.team.process.abort(code, message)
        }
        let first = match &lock(&self.team.call).departed {
            Some((thread, Departure::Panicked)) => Some((*thread, PANIC.to_owned())),
            Some((thread, Departure::Failed(reason))) => Some((*thread, reason.to_string())),
            _ => None,
        };
        match first.filter(|(thread, _)| *thread != self.thread) {
            Some((thread, reason)) => self.team.process.abort_as(self.team.job_rank(thread), code, &reason),
            None => self.team.process.abort_as(self.rank(), code, message),
        }
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        if thread::panicking() {
            self.team.depart_thread(self.thread, Departure::Panicked);
            self.team.process.fail_as(self.rank(), PANIC.into());
        } else {
            self.team.depart_thread(self.thread, Departure::Left);
        }
    }
}
