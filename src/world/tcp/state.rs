//! State that a rank shares with its service thread.

use super::connection::Connection;
use super::wire::{Frame, MAX_FRAME, Member};
use crate::world::call::{Contribution, Late, Ledger, Numbering, agree, overdue, pack, unpack};
use crate::world::sync::{Gate, lock};
use crate::world::{Called, Error, LastAct, OnFailure, Options, process_exit};
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long a rank that ends the job tries to tell the others.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of calls, about, that rank 0 passes on to each rank when it leaves.
const MOST_PASSED_ON: usize = 64 << 10;
/// Limit of the time that an aborting thread waits for the service, which ends the process when another
/// process has failed first. Longer than the service takes.
const SERVICE_ENDS: Duration = Duration::from_secs(15);

/// What the rank's thread and its service share.
pub(crate) struct Shared {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) members: Vec<Member>,
    /// By rank: of rank 0 to all others, of the others to rank 0.
    pub(crate) connections: Vec<Option<Connection>>,
    pub(crate) options: Options,
    /// Held by the thread that is in a collective call.
    pub(crate) call: Mutex<()>,
    state: Mutex<State>,
    /// Whether `state` has a reply for the thread that waits.
    pub(crate) replied: AtomicBool,
    /// Whether no reply can come any more.
    pub(crate) stopped: AtomicBool,
    /// The first reason for that: a failure, or that rank 0 has left.
    pub(crate) why_stopped: OnceLock<Error>,
    pub(crate) failure: OnceLock<Failure>,
    /// Held while the first failure is sent and recorded, so that only one is.
    stopping: Mutex<()>,
    /// True once the failure is queued for the ranks that hear of it from this one.
    pub(crate) told: AtomicBool,
    pub(crate) closing: AtomicBool,
    /// How long ranks may keep others waiting.
    pub(crate) limit: Mutex<Option<Duration>>,
    /// What each rank has noted; at rank 0 only.
    pub(crate) notes: Mutex<Vec<String>>,
    /// Calls that ranks have said; at the other ranks those that rank 0 has passed on when it left.
    pub(crate) ledger: Mutex<Ledger>,
    /// The calls that each rank of this process said last, with their topic; not at rank 0.
    pub(crate) said_last: Mutex<HashMap<usize, (u64, Vec<Called>)>>,
    pub(crate) last_act: Mutex<Option<LastAct>>,
    /// The ranks of each process.
    pub(crate) numbering: Numbering,
    pub(crate) gate: Gate,
    wake: UnixStream,
}

/// Why the job has failed, and the exit code of processes that end with it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) code: i32,
    /// Whether this rank has said so itself, and lives on ([`World::fail`]).
    pub(crate) own: bool,
}

struct State {
    /// Of the collective call that comes next or is under way.
    number: u64,
    /// What each rank has brought to it; at rank 0 only.
    arrived: Vec<Option<Contribution>>,
    count: usize,
    /// When the first rank came to it.
    since: Option<Instant>,
    /// Which ranks have left the job.
    left: Vec<bool>,
    reply: Option<Option<Vec<Vec<u8>>>>,
}

impl Shared {
    pub(crate) fn new(
        rank: usize,
        members: Vec<Member>,
        connections: Vec<Option<Connection>>,
        options: Options,
        wake: UnixStream,
    ) -> Self {
        let size = members.len();
        let at_root = if rank == 0 { size } else { 0 };
        let state = State {
            number: 0,
            arrived: vec![None; at_root],
            count: 0,
            since: None,
            left: vec![false; size],
            reply: None,
        };
        Self {
            rank,
            size,
            connections,
            options,
            call: Mutex::new(()),
            state: Mutex::new(state),
            replied: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            why_stopped: OnceLock::new(),
            failure: OnceLock::new(),
            stopping: Mutex::new(()),
            told: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            limit: Mutex::default(),
            notes: Mutex::new(vec![String::new(); at_root]),
            ledger: Mutex::default(),
            said_last: Mutex::default(),
            last_act: Mutex::default(),
            numbering: Numbering::default(),
            gate: Gate::default(),
            wake,
            members,
        }
    }

    /// The number of this rank's collective call that comes next or is under way, and the answer to it, once.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn take_reply(&self) -> (u64, Option<Option<Vec<Vec<u8>>>>) {
        let mut state = lock(&self.state);
        (state.number, state.reply.take())
    }

    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Makes every operation of this rank fail, and, at rank 0, tells all others. Only the first failure counts.
    pub(crate) fn fail(&self, error: Error, code: i32) {
        let failure = Failure { error: error.clone(), code, own: false };
        self.stop(failure, &Frame::Failed(code, error));
    }

    /// Like [`Shared::fail`], for a failure of this process or of its rank `rank`. Tells rank 0.
    pub(crate) fn fail_here(&self, code: i32, rank: Option<usize>, reason: String) {
        let error = self.own_failure(rank, &reason);
        let frame = self.own_frame(code, rank, reason);
        self.stop(Failure { error, code, own: true }, &frame);
    }

    /// The frame that tells others that this process, or its rank `rank`, has failed.
    fn own_frame(&self, code: i32, rank: Option<usize>, reason: String) -> Frame {
        if self.rank == 0 {
            Frame::Failed(code, self.own_failure(rank, &reason))
        } else {
            Frame::Abort(code, rank.and_then(|rank| u32::try_from(rank).ok()), reason)
        }
    }

    /// The error of this process, or of its rank `rank`.
    fn own_failure(&self, rank: Option<usize>, reason: &str) -> Error {
        self.numbering.failed(self.rank, rank, self.host(self.rank), reason)
    }

    /// Records the failure that another process has reported of itself, or of its rank `rank`.
    pub(crate) fn aborted(&self, process: usize, code: i32, rank: Option<u32>, reason: String) {
        let rank = rank.map(|rank| rank as usize);
        self.fail(self.numbering.failed(process, rank, self.host(process), &reason), code);
    }

    fn stop(&self, failure: Failure, frame: &Frame) {
        let stopping = lock(&self.stopping);
        if self.failure.get().is_some() {
            return;
        }
        self.why_stopped.get_or_init(|| failure.error.clone());
        // Sent before `failure` is set: a thread that sees it may end the process, which the others would take for dead.
        if self.rank == 0 || failure.own {
            self.broadcast(frame);
        }
        let _ = self.failure.set(failure);
        drop(stopping);
        self.told.store(true, Ordering::SeqCst);
        self.stopped.store(true, Ordering::SeqCst);
        self.gate.notify();
        self.wake_service();
    }

    pub(crate) fn rank_failed(&self, rank: usize, reason: impl Into<String>) -> Error {
        self.numbering.failed(rank, None, self.host(rank), &reason.into())
    }

    /// Message of this process when it ends because another one has failed.
    pub(crate) fn ends_with(&self, error: &Error) -> String {
        format!("{error}; {} with it", self.numbering.ends(self.rank))
    }

    /// Ends this process if another one is known to have failed, since its own failure follows from that one.
    pub(crate) fn end_by_cause(&self) {
        let Some(failure) = self.failure().filter(|failure| !failure.own) else { return };
        if self.options.on_failure == OnFailure::Exit {
            thread::sleep(SERVICE_ENDS);
        }
        process_exit::claim();
        process_exit::explain(&self.ends_with(&failure.error));
        process_exit::exit(failure.code);
    }

    /// Prints why this process ends the job.
    pub(crate) fn explain(&self, rank: Option<usize>, message: &str) {
        let line = match self.failure() {
            // The failure of one of its ranks says more.
            Some(failure) if rank.is_none() && self.numbering.count() > 1 => failure.error.to_string(),
            _ => {
                let (rank, ranks) = self.numbering.name(self.rank, rank);
                format!("rank {rank} on host {}: {message}{ranks}", self.host(self.rank))
            }
        };
        process_exit::explain(&line);
    }

    pub(crate) fn host(&self, rank: usize) -> &str {
        self.members.get(rank).map_or("unknown", |member| &member.host.name)
    }

    fn left(&self, rank: usize) -> Error {
        self.rank_failed(rank, "has left the job: it will not come to this barrier or all_gather")
    }

    /// Makes the service look at what has changed.
    pub(crate) fn wake_service(&self) {
        // A full pipe has woken it already.
        let _ = (&self.wake).write(&[0]);
    }

    /// Sends to every rank that this one is connected to.
    pub(crate) fn broadcast(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = frame.encode().into();
        let mut stuck = false;
        for connection in self.connections.iter().flatten() {
            stuck |= !connection.send(&bytes);
        }
        if stuck {
            self.wake_service();
        }
    }

    /// A rank has brought its part of a collective call; at rank 0 only.
    pub(crate) fn arrive(&self, rank: usize, number: u64, contribution: Contribution) {
        let mut state = lock(&self.state);
        if number != state.number || state.arrived.get(rank).is_none_or(Option::is_some) {
            let expected = state.number;
            drop(state);
            let reason = format!("is at collective call {number} of its own while rank 0 is at {expected}");
            return self.fail(self.rank_failed(rank, reason), 1);
        }
        state.arrived[rank] = Some(contribution);
        state.count += 1;
        if state.count < self.size {
            let first = state.since.is_none();
            state.since.get_or_insert_with(Instant::now);
            let absent = self.absent(&state);
            drop(state);
            if let Some(left) = absent {
                self.fail(self.left(left), 1);
            } else if first && lock(&self.limit).is_some() {
                // It sleeps until something is due, and this is new.
                self.wake_service();
            }
            return;
        }
        state.count = 0;
        state.since = None;
        let contributions = state.arrived.iter_mut().filter_map(Option::take).collect();
        let messages = match agree(contributions, 0) {
            Ok(messages) => messages,
            Err(error) => return self.fail(error, 1),
        };
        state.number += 1;
        let frame = match &messages {
            None => Frame::Released(number),
            Some(messages) => {
                let packed = pack(messages.iter().map(Vec::as_slice));
                if packed.len() > MAX_FRAME - 8 {
                    let total = packed.len();
                    return self.fail(
                        Error::Mismatch(format!(
                            "an all_gather of {total} bytes is more than {MAX_FRAME} can hold"
                        )),
                        1,
                    );
                }
                Frame::Gathered(number, packed)
            }
        };
        self.broadcast(&frame);
        self.reply(state, messages);
    }

    /// When the ranks are late that others wait for; at rank 0 only.
    pub(crate) fn due(&self) -> Option<Instant> {
        let limit = (*lock(&self.limit))?;
        let since = lock(&self.state).since?;
        (!self.stopped.load(Ordering::SeqCst)).then_some(since + limit)
    }

    /// Fails when ranks are late.
    pub(crate) fn expect(&self, now: Instant) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        let Some(limit) = *lock(&self.limit) else { return };
        let state = lock(&self.state);
        let call = state.arrived.iter().flatten().next().map_or("barrier", Contribution::name);
        let notes = lock(&self.notes);
        let late: Vec<Late> = (0..self.size)
            .filter(|&process| state.count > 0 && state.arrived[process].is_none())
            .map(|process| {
                let (rank, ranks) = self.numbering.name(process, None);
                Late { rank, ranks, host: self.host(process).to_owned(), note: notes[process].clone() }
            })
            .collect();
        drop((notes, state));
        if let Some(error) = overdue(call, limit, &late) {
            self.fail(error, 1);
        }
    }

    /// A rank has noted what it does; at rank 0 only.
    pub(crate) fn noted(&self, rank: usize, text: String) {
        if let Some(note) = lock(&self.notes).get_mut(rank) {
            *note = text;
        }
    }

    /// Tells the others that this rank leaves. Rank 0 does not compare calls any more, so it passes on what it knows.
    pub(crate) fn take_leave(&self) {
        if self.rank == 0 {
            for (rank, topic, calls) in lock(&self.ledger).newest(MOST_PASSED_ON) {
                self.broadcast(&Frame::Called(u32::try_from(rank).unwrap_or(u32::MAX), topic, calls));
            }
        }
        self.broadcast(&Frame::Goodbye);
    }

    /// Rank 0, which leaves, has passed on what a rank called.
    pub(crate) fn passed_on(&self, rank: usize, topic: u64, calls: Vec<Called>) {
        self.called(rank, topic, calls);
        self.compare_own();
    }

    /// Compares what this process's ranks said last with what rank 0 has passed on.
    pub(crate) fn compare_own(&self) {
        for (&rank, (topic, calls)) in lock(&self.said_last).iter() {
            if lock(&self.ledger).knows(*topic) {
                self.called(rank, *topic, calls.clone());
            }
        }
    }

    /// A rank has called this.
    pub(crate) fn called(&self, rank: usize, topic: u64, calls: Vec<Called>) {
        let different = lock(&self.ledger).note(rank, topic, calls);
        if let Some(error) = different {
            self.fail(error, 1);
        }
    }

    /// A rank that has left and that others wait for. When rank 0 itself has left, they do not wait any more.
    fn absent(&self, state: &State) -> Option<usize> {
        (state.count > 0 && !self.closing.load(Ordering::SeqCst))
            .then(|| (0..self.size).find(|&rank| state.left[rank] && state.arrived[rank].is_none()))?
    }

    fn reply(&self, mut state: std::sync::MutexGuard<'_, State>, reply: Option<Vec<Vec<u8>>>) {
        state.reply = Some(reply);
        drop(state);
        self.replied.store(true, Ordering::SeqCst);
        self.gate.notify();
    }

    /// Rank 0 says that a collective call is complete; at the others only.
    pub(crate) fn complete(&self, number: u64, packed: Option<&[u8]>) {
        let messages = match packed.map(unpack) {
            None => None,
            Some(Some(messages)) if messages.len() == self.size => Some(messages),
            Some(_) => {
                return self.fail(self.rank_failed(0, "sent an all_gather that is not well formed"), 1);
            }
        };
        let mut state = lock(&self.state);
        if number != state.number {
            let expected = state.number;
            drop(state);
            let reason = format!("ended collective call {number} while this rank is at {expected}");
            return self.fail(self.rank_failed(0, reason), 1);
        }
        state.number += 1;
        self.reply(state, messages);
    }

    /// A rank has left in good order.
    pub(crate) fn leave(&self, rank: usize) {
        let mut state = lock(&self.state);
        state.left[rank] = true;
        let absent = if self.rank == 0 { self.absent(&state) } else { None };
        drop(state);
        if let Some(rank) = absent {
            self.fail(self.left(rank), 1);
        }
        if self.rank != 0 {
            // Nothing comes without rank 0; this rank may go on alone until it asks for something.
            self.why_stopped.get_or_init(|| self.left(0));
            self.stopped.store(true, Ordering::SeqCst);
            self.gate.notify();
        }
    }

    /// Takes part in a collective call.
    pub(crate) fn call(&self, contribution: Contribution, spin: bool) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let _turn = lock(&self.call);
        if self.stopped.load(Ordering::SeqCst) {
            return Err(self.why_stopped());
        }
        self.replied.store(false, Ordering::SeqCst);
        let number = lock(&self.state).number;
        if self.rank == 0 {
            self.arrive(0, number, contribution);
        } else {
            self.broadcast(&match contribution {
                Contribution::Barrier => Frame::Barrier(number),
                Contribution::Message(message) => Frame::Message(number, message),
            });
        }
        self.gate.wait(spin, || self.replied.load(Ordering::SeqCst) || self.stopped.load(Ordering::SeqCst));
        let reply = lock(&self.state).reply.take();
        reply.ok_or_else(|| self.why_stopped())
    }

    fn why_stopped(&self) -> Error {
        self.why_stopped.get().cloned().unwrap_or_else(|| self.left(0))
    }

    /// Tells all others that this rank ends the job, for as long as it takes them to hear it, at most a second.
    pub(crate) fn last_words(&self, code: i32, rank: Option<usize>, reason: &str) {
        self.broadcast(&self.own_frame(code, rank, reason.to_owned()));
        let deadline = Instant::now() + LAST_WORDS;
        while self.connections.iter().flatten().any(|connection| !connection.flush())
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
