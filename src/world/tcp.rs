//! A world whose ranks talk over TCP, all through rank 0.

use super::gate::{self, Gate, lock};
use super::ledger::Ledger;
use super::meeting::{Contribution, Late, agree, overdue};
use super::numbering::Numbering;
use super::rendezvous::{self, Met};
use super::service::{self, Connection};
use super::wire::{Frame, MAX_FRAME, MAX_MESSAGE, Member, pack, unpack};
use super::{Called, Error, Handle, LastAct, OnFailure, Options, Place, World, YEAR, ending, single};
use std::collections::HashMap;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a rank that ends the job tries to tell the others.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of calls, about, that rank 0 passes on to each rank when it leaves.
const MOST_PASSED_ON: usize = 64 << 10;
/// Limit of the time that an aborting thread waits for the service, which ends the process when another
/// process has failed first. Longer than the service takes.
const SERVICE_ENDS: Duration = Duration::from_secs(15);

/// Meets the other ranks of a job over TCP.
///
/// All ranks connect to rank 0, and every rank has a thread that watches its connection: a rank whose process ends
/// without leaving the job, or that is silent for longer than [`Options::dead_after`], is dead, and every other
/// rank's operations return [`Error::RankFailed`] with its number and host; see [`Options::on_failure`] for what
/// else can happen. Once all ranks are there, nothing listens any more.
///
/// Rank 0 passes on what ranks say. When it leaves, it stays connected for up to three seconds to those that have not
/// left, so that a rank that fails at that moment is heard; a job whose ranks leave together does not wait.
///
/// # Errors
/// When not all ranks have come before [`Options::timeout`]; the error names the missing ones, or what was tried.
pub fn tcp(place: Place, options: &Options) -> Result<Handle, Error> {
    let place = place.checked()?;
    if place.size == 1 {
        return Ok(single());
    }
    Ok(Arc::new(join(&place, options, None)?))
}

/// Meets the ranks of a job; rank 0 may be listening already.
pub(super) fn join(place: &Place, options: &Options, listener: Option<TcpListener>) -> Result<Tcp, Error> {
    let options = options.bounded();
    let Met { members, connections, address } = rendezvous::meet(place, &options, listener)?;
    let failed = |error: io::Error| {
        Error::Rendezvous(format!("rank {} cannot serve its connections: {error}", place.rank))
    };
    let (local_rank, local_size) = local_position(&members, place.rank);
    let (wake, woken) = UnixStream::pair().map_err(failed)?;
    wake.set_nonblocking(true).map_err(failed)?;
    woken.set_nonblocking(true).map_err(failed)?;
    let mut streams = Vec::with_capacity(connections.len());
    let mut frames = Vec::with_capacity(connections.len());
    for connection in connections {
        let (stream, left) = connection.unzip();
        let stream = stream.map(Connection::new).transpose().map_err(failed)?;
        streams.push(stream);
        frames.push(left.unwrap_or_default());
    }
    let shared = Arc::new(Shared::new(place.rank, members, streams, options, wake));
    if place.rank == 0 {
        shared.broadcast(&Frame::Members(shared.members.clone()));
    }
    let service = thread::Builder::new()
        .name("world".to_owned())
        .spawn({
            let shared = Arc::clone(&shared);
            move || service::run(&shared, &woken, frames)
        })
        .map_err(failed)?;
    let spin = local_size <= gate::cores();
    let description = format!("TCP rendezvous at {address}");
    Ok(Tcp { shared, local_rank, local_size, spin, description, service: Some(service) })
}

/// A rank's number among those of its host, and how many these are: as its launcher said, or counted by rank when
/// it said nothing or two ranks of the host claim one number, as those of two launchers on one host do.
fn local_position(members: &[Member], rank: usize) -> (usize, usize) {
    let neighbours: Vec<usize> =
        (0..members.len()).filter(|&other| members[other].host.id == members[rank].host.id).collect();
    let claimed = |rank: usize| members[rank].local.map(|(number, _)| number);
    let distinct = neighbours.iter().all(|&one| {
        claimed(one).is_some()
            && neighbours.iter().all(|&other| one == other || claimed(one) != claimed(other))
    });
    match members[rank].local {
        Some((number, size)) if distinct && size as usize >= neighbours.len() => {
            (number as usize, size as usize)
        }
        _ => (neighbours.iter().position(|&other| other == rank).unwrap_or(0), neighbours.len()),
    }
}

/// What the rank's thread and its service share.
pub(super) struct Shared {
    pub(super) rank: usize,
    size: usize,
    pub(super) members: Vec<Member>,
    /// By rank: of rank 0 to all others, of the others to rank 0.
    pub(super) connections: Vec<Option<Connection>>,
    pub(super) options: Options,
    /// Held by the thread that is in a collective call.
    call: Mutex<()>,
    state: Mutex<State>,
    /// Whether `state` has a reply for the thread that waits.
    replied: AtomicBool,
    /// Whether no reply can come any more.
    stopped: AtomicBool,
    /// The first reason for that: a failure, or that rank 0 has left.
    why_stopped: OnceLock<Error>,
    failure: OnceLock<Failure>,
    /// Held while the first failure is sent and recorded, so that only one is.
    stopping: Mutex<()>,
    /// True once the failure is queued for the ranks that hear of it from this one.
    pub(super) told: AtomicBool,
    pub(super) closing: AtomicBool,
    /// How long ranks may keep others waiting.
    limit: Mutex<Option<Duration>>,
    /// What each rank has noted; at rank 0 only.
    notes: Mutex<Vec<String>>,
    /// Calls that ranks have said; at the other ranks those that rank 0 has passed on when it left.
    ledger: Mutex<Ledger>,
    /// The calls that each rank of this process said last, with their topic; not at rank 0.
    said_last: Mutex<HashMap<usize, (u64, Vec<Called>)>>,
    pub(super) last_act: Mutex<Option<LastAct>>,
    /// The ranks of each process.
    numbering: Numbering,
    gate: Gate,
    wake: UnixStream,
}

/// Why the job has failed, and the exit code of processes that end with it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) code: i32,
    /// Whether this rank has said so itself, and lives on ([`World::fail`]).
    pub(super) own: bool,
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
    pub(super) fn new(
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
    pub(super) fn take_reply(&self) -> (u64, Option<Option<Vec<Vec<u8>>>>) {
        let mut state = lock(&self.state);
        (state.number, state.reply.take())
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Makes every operation of this rank fail, and, at rank 0, tells all others. Only the first failure counts.
    pub(super) fn fail(&self, error: Error, code: i32) {
        let failure = Failure { error: error.clone(), code, own: false };
        self.stop(failure, &Frame::Failed(code, error));
    }

    /// Like [`Shared::fail`], for a failure of this process or of its rank `rank`. Tells rank 0.
    fn fail_here(&self, code: i32, rank: Option<usize>, reason: String) {
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
    pub(super) fn aborted(&self, process: usize, code: i32, rank: Option<u32>, reason: String) {
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

    pub(super) fn rank_failed(&self, rank: usize, reason: impl Into<String>) -> Error {
        self.numbering.failed(rank, None, self.host(rank), &reason.into())
    }

    /// Message of this process when it ends because another one has failed.
    pub(super) fn ends_with(&self, error: &Error) -> String {
        format!("{error}; {} with it", self.numbering.ends(self.rank))
    }

    /// Ends this process if another one is known to have failed, since its own failure follows from that one.
    pub(super) fn end_by_cause(&self) {
        let Some(failure) = self.failure().filter(|failure| !failure.own) else { return };
        if self.options.on_failure == OnFailure::Exit {
            thread::sleep(SERVICE_ENDS);
        }
        ending::claim();
        ending::explain(&self.ends_with(&failure.error));
        ending::exit(failure.code);
    }

    /// Prints why this process ends the job.
    pub(super) fn explain(&self, rank: Option<usize>, message: &str) {
        let line = match self.failure() {
            // The failure of one of its ranks says more.
            Some(failure) if rank.is_none() && self.numbering.count() > 1 => failure.error.to_string(),
            _ => {
                let (rank, ranks) = self.numbering.name(self.rank, rank);
                format!("rank {rank} on host {}: {message}{ranks}", self.host(self.rank))
            }
        };
        ending::explain(&line);
    }

    fn host(&self, rank: usize) -> &str {
        self.members.get(rank).map_or("unknown", |member| &member.host.name)
    }

    fn left(&self, rank: usize) -> Error {
        self.rank_failed(rank, "has left the job: it will not come to this barrier or all_gather")
    }

    /// Makes the service look at what has changed.
    fn wake_service(&self) {
        // A full pipe has woken it already.
        let _ = (&self.wake).write(&[0]);
    }

    /// Sends to every rank that this one is connected to.
    pub(super) fn broadcast(&self, frame: &Frame) {
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
    pub(super) fn arrive(&self, rank: usize, number: u64, contribution: Contribution) {
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
    pub(super) fn due(&self) -> Option<Instant> {
        let limit = (*lock(&self.limit))?;
        let since = lock(&self.state).since?;
        (!self.stopped.load(Ordering::SeqCst)).then_some(since + limit)
    }

    /// Fails when ranks are late.
    pub(super) fn expect(&self, now: Instant) {
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
    pub(super) fn noted(&self, rank: usize, text: String) {
        if let Some(note) = lock(&self.notes).get_mut(rank) {
            *note = text;
        }
    }

    /// Tells the others that this rank leaves. Rank 0 does not compare calls any more, so it passes on what it knows.
    pub(super) fn take_leave(&self) {
        if self.rank == 0 {
            for (rank, topic, calls) in lock(&self.ledger).newest(MOST_PASSED_ON) {
                self.broadcast(&Frame::Called(u32::try_from(rank).unwrap_or(u32::MAX), topic, calls));
            }
        }
        self.broadcast(&Frame::Goodbye);
    }

    /// Rank 0, which leaves, has passed on what a rank called.
    pub(super) fn passed_on(&self, rank: usize, topic: u64, calls: Vec<Called>) {
        self.called(rank, topic, calls);
        self.compare_own();
    }

    /// Compares what this process's ranks said last with what rank 0 has passed on.
    fn compare_own(&self) {
        for (&rank, (topic, calls)) in lock(&self.said_last).iter() {
            if lock(&self.ledger).knows(*topic) {
                self.called(rank, *topic, calls.clone());
            }
        }
    }

    /// A rank has called this.
    pub(super) fn called(&self, rank: usize, topic: u64, calls: Vec<Called>) {
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
    pub(super) fn complete(&self, number: u64, packed: Option<&[u8]>) {
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
    pub(super) fn leave(&self, rank: usize) {
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
    fn call(&self, contribution: Contribution, spin: bool) -> Result<Option<Vec<Vec<u8>>>, Error> {
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
    pub(super) fn last_words(&self, code: i32, rank: Option<usize>, reason: &str) {
        self.broadcast(&self.own_frame(code, rank, reason.to_owned()));
        let deadline = Instant::now() + LAST_WORDS;
        while self.connections.iter().flatten().any(|connection| !connection.flush())
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// One rank's end of the star.
pub(super) struct Tcp {
    pub(super) shared: Arc<Shared>,
    local_rank: usize,
    local_size: usize,
    /// Whether there is a core for each rank of this host.
    spin: bool,
    description: String,
    service: Option<JoinHandle<()>>,
}

impl World for Tcp {
    fn rank(&self) -> usize {
        self.shared.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }

    fn local_size(&self) -> usize {
        self.local_size
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.shared.call(Contribution::Barrier, self.spin).map(drop)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if mine.len() > MAX_MESSAGE {
            return Err(Error::Mismatch(format!(
                "a message of {} bytes is too long for an all_gather over TCP, which takes {MAX_MESSAGE}",
                mine.len()
            )));
        }
        let messages = self.shared.call(Contribution::Message(mine.to_vec()), self.spin)?;
        messages.ok_or_else(|| Error::Mismatch("rank 0 took an all_gather for a barrier".to_owned()))
    }

    fn check(&self) -> Result<(), Error> {
        self.shared.failure.get().map_or(Ok(()), |failure| Err(failure.error.clone()))
    }

    fn fail(&self, reason: &str) {
        self.shared.fail_here(failure_code(), None, format!("failed: {reason}"));
    }

    fn set_limit(&self, limit: Option<Duration>) {
        *lock(&self.shared.limit) = limit.map(|limit| limit.min(YEAR));
        self.shared.wake_service();
    }

    fn note(&self, text: &str) -> bool {
        if self.shared.rank == 0 {
            self.shared.noted(0, text.to_owned());
        } else {
            self.shared.broadcast(&Frame::Note(text.to_owned()));
        }
        true
    }

    fn notes(&self) -> Vec<String> {
        lock(&self.shared.notes).clone()
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        if self.shared.rank == 0 {
            self.shared.called(rank, topic, calls.to_vec());
        } else {
            let number = u32::try_from(rank).unwrap_or(u32::MAX);
            self.shared.broadcast(&Frame::Called(number, topic, calls.to_vec()));
            lock(&self.shared.said_last).insert(rank, (topic, calls.to_vec()));
            self.shared.compare_own();
        }
    }

    fn before_exit(&self, act: LastAct) {
        *lock(&self.shared.last_act) = Some(act);
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.end(code, None, message)
    }

    fn name_ranks(&self, per_process: usize) -> bool {
        self.shared.numbering.set(per_process);
        true
    }

    fn fail_as(&self, rank: usize, reason: &str) {
        self.shared.fail_here(failure_code(), Some(rank), format!("failed: {reason}"));
    }

    fn abort_as(&self, rank: usize, code: i32, message: &str) -> ! {
        self.end(code, Some(rank), message)
    }
}

impl Tcp {
    fn end(&self, code: i32, rank: Option<usize>, message: &str) -> ! {
        self.shared.end_by_cause();
        ending::claim();
        self.shared.explain(rank, message);
        self.shared.last_words(code, rank, &format!("aborted with exit code {code}: {message}"));
        ending::exit(code)
    }
}

/// The exit code of a Rust program that has panicked.
const PANICKED: i32 = 101;

/// Exit code of processes that end because the rank of this thread has failed.
fn failure_code() -> i32 {
    if thread::panicking() { PANICKED } else { 1 }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        if thread::panicking() {
            ending::explained();
            let reason = "died: it panicked";
            let error = self.shared.rank_failed(self.shared.rank, reason);
            // Only the first failure counts; the others hear of this one all the same.
            let _ = self.shared.failure.set(Failure { error, code: PANICKED, own: true });
            self.shared.last_words(PANICKED, None, reason);
        }
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.wake_service();
        if let Some(service) = self.service.take() {
            // It does not panic; if it did, there is nothing left to close.
            let _ = service.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Host;
    use super::*;

    fn positions(members: &[(&str, Option<(u32, u32)>)]) -> Vec<(usize, usize)> {
        let members: Vec<Member> = members
            .iter()
            .map(|&(host, local)| Member { host: Host { name: host.to_owned(), id: host.to_owned() }, local })
            .collect();
        (0..members.len()).map(|rank| local_position(&members, rank)).collect()
    }

    /// A rank that begins to wait after rank 0 has left compares with what rank 0 called last.
    #[test]
    fn calls_are_compared_with_those_of_a_rank_0_that_has_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let place = |rank| Place::new(rank, 2, &address).unwrap();
        let other = thread::spawn({
            let place = place(1);
            move || join(&place, &Options::default(), None).unwrap()
        });
        let zero = join(&place(0), &Options::default(), Some(listener)).unwrap();
        let other = other.join().unwrap();
        let call = |number, what: &str| Called { place: 0, number, what: what.to_owned() };
        zero.compare(0, 7, &[call(2, "nothing more, and left"), call(1, "barrier")]);
        // Returns when the connection is closed.
        drop(zero);
        other.compare(1, 7, &[call(1, "barrier"), call(2, "barrier")]);
        let waited = Instant::now();
        while other.check().is_ok() {
            assert!(waited.elapsed() < Duration::from_secs(60), "no difference was found");
            thread::sleep(Duration::from_millis(1));
        }
        let error = other.check().unwrap_err().to_string();
        assert!(
            error.starts_with("rank 0 called nothing more, and left while rank 1 called barrier"),
            "{error}"
        );
    }

    /// A process that ends as soon as it sees a failure has told the others of it.
    #[test]
    fn a_failure_is_on_its_way_before_it_is_seen() {
        use std::io::Read;
        for _ in 0..200 {
            let (own, mut other) = UnixStream::pair().unwrap();
            other.set_nonblocking(true).unwrap();
            let connection = Connection::new(std::os::fd::OwnedFd::from(own).into()).unwrap();
            let (wake, _woken) = UnixStream::pair().unwrap();
            let host = Host { name: "a".to_owned(), id: "a".to_owned() };
            let members = vec![Member { host, local: None }; 2];
            let shared = Shared::new(0, members, vec![None, Some(connection)], Options::default(), wake);
            thread::scope(|scope| {
                scope.spawn(|| shared.fail(shared.rank_failed(1, "called nothing more, and left"), 1));
                while shared.failure().is_none() {
                    std::hint::spin_loop();
                }
                let mut frame = [0; 1024];
                assert!(other.read(&mut frame).is_ok_and(|length| length > 0), "the failure was seen first");
            });
        }
    }

    #[test]
    fn ranks_are_counted_by_host() {
        let counted = positions(&[("a", None), ("b", None), ("a", None), ("a", None)]);
        assert_eq!(counted, [(0, 3), (0, 1), (1, 3), (2, 3)]);
    }

    #[test]
    fn what_the_launcher_says_counts_where_it_is_consistent() {
        assert_eq!(positions(&[("a", Some((1, 2))), ("a", Some((0, 2)))]), [(1, 2), (0, 2)]);
        // One host, two containers with names of their own.
        assert_eq!(positions(&[("a", Some((0, 2))), ("b", Some((1, 2)))]), [(0, 2), (1, 2)]);
        // Two launchers on one host.
        assert_eq!(positions(&[("a", Some((0, 1))), ("a", Some((0, 1)))]), [(0, 2), (1, 2)]);
        assert_eq!(positions(&[("a", Some((0, 2))), ("a", None)]), [(0, 2), (1, 2)]);
    }
}
