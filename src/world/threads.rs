//! Each process of a world as several ranks, one per thread.

use super::call::{Contribution, Late, Ledger, agree, overdue, pack, unpack};
use super::sync::{Gate, cores, lock};
use super::{Called, Error, Handle, LastAct, World, YEAR, host};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Makes `per_process` ranks of every process: thread `t` of process `p` is rank `p * per_process + t`. The
/// handles come in the order of the threads; give each thread its own and keep none, since dropping a handle
/// tells the other threads that this rank is gone.
///
/// Every process calls this at the same time with the same number.
///
/// A thread that panics, fails ([`World::fail`]) or drops its handle makes the others' [`World::barrier`] and
/// [`World::all_gather`] return an error that names it; they never wait for a thread that cannot come.
///
/// # Errors
/// When `per_process` is 0, when processes disagree about it, or when another process has failed.
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
    let team = Arc::new(Team {
        spin: per_process * process.local_size() <= cores(),
        process,
        renumbers,
        per_process,
        meeting: Mutex::new(Meeting {
            contributions: (0..per_process).map(|_| None).collect(),
            arrived: 0,
            complete: false,
            outcome: None,
            left: None,
        }),
        limit: Mutex::default(),
        ledger: Mutex::default(),
        round: AtomicUsize::new(0),
        doomed: AtomicBool::new(false),
        gate: Gate::default(),
    });
    Ok((0..per_process)
        .map(|thread| Arc::new(Member { team: Arc::clone(&team), thread }) as Handle)
        .collect())
}

/// Reason of the failure of a rank whose thread panicked.
const PANIC: &str = "its thread panicked";

/// What all ranks of a process share.
struct Team {
    process: Handle,
    /// True when errors of `process` already name ranks of the job.
    renumbers: bool,
    per_process: usize,
    /// Whether there is a core for each rank of this host.
    spin: bool,
    meeting: Mutex<Meeting>,
    /// How long ranks may keep others waiting.
    limit: Mutex<Option<Duration>>,
    /// What ranks have called.
    ledger: Mutex<Ledger>,
    /// How many meetings have ended.
    round: AtomicUsize,
    /// Whether a thread has left or failed, so that no meeting can ever be complete again.
    doomed: AtomicBool,
    gate: Gate,
}

/// What the threads of a process bring together for one barrier or gathering.
struct Meeting {
    contributions: Vec<Option<Contribution>>,
    arrived: usize,
    /// Whether all have come and one of them meets the other processes.
    complete: bool,
    /// Of the meeting that ended last. Nobody can overwrite it before all have read it: the next meeting is not
    /// complete without them.
    outcome: Option<Result<Arc<Vec<Vec<u8>>>, Error>>,
    /// The thread that left first, and how; one that panicked or failed goes before one that went.
    left: Option<(usize, End)>,
}

/// How a rank has left.
enum End {
    Left,
    Panicked,
    /// It lives on, but for the others it has left.
    Failed(String),
    /// It did not come in time, or called something else than others.
    Wrong(Error),
}

struct Member {
    team: Arc<Team>,
    thread: usize,
}

impl Team {
    fn rank(&self, thread: usize) -> usize {
        self.process.rank() * self.per_process + thread
    }

    /// The thread that has left, if there is one.
    fn missing(&self, meeting: &Meeting) -> Option<Error> {
        let (thread, end) = meeting.left.as_ref()?;
        let reason = match end {
            End::Left => "has left the job: it will not come to this barrier or all_gather".to_owned(),
            End::Panicked => format!("died: {PANIC}"),
            End::Failed(reason) => format!("failed: {reason}"),
            End::Wrong(error) => return Some(error.clone()),
        };
        Some(Error::RankFailed { rank: self.rank(*thread), host: host().name, reason })
    }

    fn leave(&self, thread: usize, end: End) {
        let mut meeting = lock(&self.meeting);
        match (&meeting.left, &end) {
            (None, _) | (Some((_, End::Left)), End::Panicked | End::Failed(_) | End::Wrong(_)) => {
                meeting.left = Some((thread, end));
            }
            _ => {}
        }
        drop(meeting);
        self.doomed.store(true, Ordering::SeqCst);
        self.gate.notify();
    }

    /// Waits until every thread has brought something; the last one meets the other processes for all.
    fn meet(&self, thread: usize, contribution: Contribution) -> Result<Arc<Vec<Vec<u8>>>, Error> {
        let mut meeting = lock(&self.meeting);
        if let Some(error) = self.missing(&meeting) {
            return Err(error);
        }
        let round = self.round.load(Ordering::SeqCst);
        if meeting.contributions[thread].replace(contribution).is_some() {
            return Err(Error::Mismatch(format!(
                "rank {} is in two collective calls at once; one thread at a time may call",
                self.rank(thread)
            )));
        }
        meeting.arrived += 1;
        if meeting.arrived == self.per_process {
            let contributions = meeting.contributions.iter_mut().filter_map(Option::take).collect();
            meeting.arrived = 0;
            meeting.complete = true;
            drop(meeting);
            let outcome = self.meet_processes(contributions);
            let mut meeting = lock(&self.meeting);
            meeting.outcome = Some(outcome.clone());
            meeting.complete = false;
            drop(meeting);
            self.round.store(round.wrapping_add(1), Ordering::SeqCst);
            self.gate.notify();
            return outcome;
        }
        drop(meeting);
        let ended = || self.round.load(Ordering::SeqCst) != round;
        let over = || ended() || self.doomed.load(Ordering::SeqCst);
        let limit = *lock(&self.limit);
        if !self.gate.wait_until(self.spin, limit.map(|limit| Instant::now() + limit), over) {
            self.expect(round, limit.unwrap_or_default());
            // Either some are late, and this ends at once, or it is for the process' world to limit this.
            self.gate.wait(false, over);
        }
        let mut meeting = lock(&self.meeting);
        if ended() {
            return meeting.outcome.clone().unwrap_or_else(|| {
                Err(Error::Mismatch("a meeting of threads has ended without an outcome".to_owned()))
            });
        }
        // Whoever has left was not in this meeting, so it cannot be complete.
        meeting.contributions[thread] = None;
        meeting.arrived = meeting.arrived.saturating_sub(1);
        Err(self
            .missing(&meeting)
            .unwrap_or_else(|| Error::Mismatch("a thread of this process has left the job".to_owned())))
    }

    /// Gives up a meeting that has taken longer than `limit`, when some of this process' threads have not come to it.
    fn expect(&self, round: usize, limit: Duration) {
        let meeting = lock(&self.meeting);
        if meeting.complete || self.round.load(Ordering::SeqCst) != round || self.missing(&meeting).is_some()
        {
            return;
        }
        let call = meeting.contributions.iter().flatten().next().map_or("barrier", Contribution::name);
        let threads = || (0..self.per_process).filter(|&thread| meeting.contributions[thread].is_none());
        let host = host().name;
        let late: Vec<_> = threads()
            .map(|thread| Late {
                rank: self.rank(thread),
                ranks: String::new(),
                host: host.clone(),
                note: String::new(),
            })
            .collect();
        let (Some(first), Some(error)) = (threads().next(), overdue(call, limit, &late)) else { return };
        drop(meeting);
        self.leave(first, End::Wrong(error.clone()));
        self.process.fail(&error.to_string());
    }

    fn meet_processes(&self, contributions: Vec<Contribution>) -> Result<Arc<Vec<Vec<u8>>>, Error> {
        let Some(messages) = agree(contributions, self.rank(0))? else {
            return self.process.barrier().map(|()| Arc::default()).map_err(|error| self.renumbered(error));
        };
        if self.process.size() == 1 {
            return Ok(Arc::new(messages));
        }
        let all = self
            .process
            .all_gather(&pack(messages.iter().map(Vec::as_slice)))
            .map_err(|error| self.renumbered(error))?;
        let mut unpacked = Vec::with_capacity(all.len() * self.per_process);
        for (process, bytes) in all.iter().enumerate() {
            let theirs =
                unpack(bytes).filter(|theirs| theirs.len() == self.per_process).ok_or_else(|| {
                    Error::Mismatch(format!(
                        "process {process} gathered something else than its {} ranks' messages",
                        self.per_process
                    ))
                })?;
            unpacked.extend(theirs);
        }
        Ok(Arc::new(unpacked))
    }

    /// An error of the world of processes, in the ranks of this one.
    fn renumbered(&self, error: Error) -> Error {
        match error {
            Error::RankFailed { rank, host, reason } if self.per_process > 1 && !self.renumbers => {
                let first = rank * self.per_process;
                let last = first + self.per_process - 1;
                let reason = format!("{reason} (the process of ranks {first} to {last})");
                Error::RankFailed { rank: first, host, reason }
            }
            other => other,
        }
    }
}

impl Member {
    /// Tells the other processes that this rank has failed.
    fn fail_process(&self, reason: &str) {
        if self.team.per_process == 1 {
            self.team.process.fail(reason);
        } else {
            self.team.process.fail_as(self.rank(), reason);
        }
    }
}

impl World for Member {
    fn rank(&self) -> usize {
        self.team.rank(self.thread)
    }

    fn size(&self) -> usize {
        self.team.process.size() * self.team.per_process
    }

    fn local_rank(&self) -> usize {
        self.team.process.local_rank() * self.team.per_process + self.thread
    }

    fn local_size(&self) -> usize {
        self.team.process.local_size() * self.team.per_process
    }

    fn describe(&self) -> String {
        match self.team.per_process {
            1 => self.team.process.describe(),
            threads => format!("{}, {threads} ranks per process", self.team.process.describe()),
        }
    }

    fn barrier(&self) -> Result<(), Error> {
        self.team.meet(self.thread, Contribution::Barrier).map(drop)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let all = self.team.meet(self.thread, Contribution::Message(mine.to_vec()))?;
        Ok(Arc::unwrap_or_clone(all))
    }

    fn check(&self) -> Result<(), Error> {
        if self.team.doomed.load(Ordering::SeqCst) {
            let meeting = lock(&self.team.meeting);
            if let Some((_, End::Panicked | End::Failed(_) | End::Wrong(_))) = meeting.left {
                return self.team.missing(&meeting).map_or(Ok(()), Err);
            }
        }
        self.team.process.check().map_err(|error| self.team.renumbered(error))
    }

    fn fail(&self, reason: &str) {
        self.team.leave(self.thread, End::Failed(reason.to_owned()));
        self.fail_process(reason);
    }

    fn set_limit(&self, limit: Option<Duration>) {
        *lock(&self.team.limit) = limit.map(|limit| limit.min(YEAR));
        self.team.process.set_limit(limit);
    }

    /// Of the whole process, whichever of its ranks calls it.
    fn note(&self, text: &str) -> bool {
        self.team.process.note(text)
    }

    fn notes(&self) -> Vec<String> {
        self.team.process.notes()
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        let different = lock(&self.team.ledger).note(rank, topic, calls.to_vec());
        if let Some(error) = different {
            self.team.process.fail(&error.to_string());
            self.team.leave(self.thread, End::Wrong(error));
        } else {
            self.team.process.compare(rank, topic, calls);
        }
    }

    /// Of the whole process, whichever of its ranks calls it.
    fn before_exit(&self, act: LastAct) {
        self.team.process.before_exit(act);
    }

    /// Aborts in the name of the rank of this process that failed first.
    fn abort(&self, code: i32, message: &str) -> ! {
        if self.team.per_process == 1 {
            self.team.process.abort(code, message)
        }
        let first = match &lock(&self.team.meeting).left {
            Some((thread, End::Panicked)) => Some((*thread, PANIC.to_owned())),
            Some((thread, End::Failed(reason))) => Some((*thread, format!("failed: {reason}"))),
            _ => None,
        };
        match first.filter(|(thread, _)| *thread != self.thread) {
            Some((thread, reason)) => self.team.process.abort_as(self.team.rank(thread), code, &reason),
            None => self.team.process.abort_as(self.rank(), code, message),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if thread::panicking() {
            self.team.leave(self.thread, End::Panicked);
            // Ranks of other processes may be waiting for it.
            self.fail_process(PANIC);
        } else {
            self.team.leave(self.thread, End::Left);
        }
    }
}
