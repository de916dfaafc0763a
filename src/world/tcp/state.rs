//! State shared by a rank and its service thread.

use super::connection::FrameConnection;
use super::wire::{Frame, JobMember, MAX_FRAME};
use crate::lock::lock;
use crate::world::call::{
    CallLog, Contribution, LateRank, Numbering, Timeout, combine_contributions, late_error, pack_messages,
    unpack_messages,
};
use crate::world::limits::REPORT_TIME;
use crate::world::sync::SpinPark;
use crate::world::{Called, Error, ExitHook, Options, Reason, Wait};
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Approximate maximum size of the calls forwarded by a leaving rank 0 to each rank, in bytes.
const MAX_FORWARDED_BYTES: usize = 64 << 10;

pub(crate) struct TcpState {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) members: Vec<JobMember>,
    /// Connections by rank: rank 0 has one to every other rank, the others have one to rank 0.
    pub(crate) connections: Vec<Option<FrameConnection>>,
    pub(crate) options: Options,
    calling: Mutex<()>,
    call: Mutex<CallState>,
    has_result: AtomicBool,
    /// True once no result can arrive any more.
    stopped: AtomicBool,
    /// First reason for `stopped`: a failure, or the departure of rank 0.
    stop_reason: OnceLock<Error>,
    pub(crate) failure: OnceLock<Failure>,
    /// Held while the first failure is sent and recorded, or the end of this process begins.
    pub(super) stopping: Mutex<()>,
    /// True once this process ends for a reason of its own.
    pub(super) ending: AtomicBool,
    /// True while silence of another process is not a failure.
    pub(super) holds_silence: AtomicBool,
    /// True once the failure is queued for the ranks informed by this one.
    pub(crate) failure_sent: AtomicBool,
    pub(crate) closing: AtomicBool,
    /// Time limit of a collective call, from its first rank to its last.
    pub(crate) limit: Mutex<Option<Duration>>,
    /// Notes by rank; at rank 0 only.
    pub(crate) notes: Mutex<Vec<Note>>,
    /// Messages of other processes not yet taken by [`World::take_posted`](crate::world::World::take_posted).
    pub(crate) posted: Mutex<Vec<(usize, Vec<u8>)>>,
    /// Calls reported by ranks; at the other ranks, the calls forwarded by a leaving rank 0.
    call_log: Mutex<CallLog>,
    /// True once waiting ranks are to report their calls.
    pub(crate) wants_calls: AtomicBool,
    /// End of the job because a rank has waited for too long: the time, the process of the rank, and its
    /// wait; at rank 0 only.
    timed_out: Mutex<Option<(Instant, usize, Wait)>>,
    /// Latest calls of each rank of this process, with their topic; not at rank 0.
    pub(crate) last_calls: Mutex<HashMap<usize, (u64, Vec<Called>)>>,
    pub(crate) exit_hook: Mutex<Option<ExitHook>>,
    pub(crate) numbering: Numbering,
    waiters: SpinPark,
    wake: UnixStream,
}

/// The job's failure.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Exit code of processes that exit because of it.
    pub(crate) code: i32,
    /// True if this rank has reported it of itself and lives on ([`World::fail`](crate::world::World::fail)).
    pub(crate) own: bool,
}

/// The latest note of a process.
#[derive(Clone, Default)]
pub(crate) struct Note {
    pub(crate) text: String,
    /// Data for the program.
    pub(crate) data: Vec<u8>,
    /// `None` before the first one.
    pub(crate) came: Option<Instant>,
}

/// The current or next collective call.
#[derive(Default)]
struct CallState {
    number: u64,
    /// Contributions by rank; at rank 0 only.
    contributions: Vec<Option<Contribution>>,
    count: usize,
    started: Option<Instant>,
    departed: Vec<bool>,
    result: Option<CallResult>,
}

/// Messages of an all_gather; `None` for a barrier.
type CallResult = Option<Vec<Vec<u8>>>;

impl TcpState {
    pub(crate) fn new(
        rank: usize,
        members: Vec<JobMember>,
        connections: Vec<Option<FrameConnection>>,
        options: Options,
        wake: UnixStream,
    ) -> Self {
        let size = members.len();
        let at_root = if rank == 0 { size } else { 0 };
        let contributions = vec![None; at_root];
        let call = CallState { contributions, departed: vec![false; size], ..CallState::default() };
        Self {
            rank,
            size,
            members,
            connections,
            options,
            calling: Mutex::new(()),
            call: Mutex::new(call),
            has_result: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            stop_reason: OnceLock::new(),
            failure: OnceLock::new(),
            stopping: Mutex::new(()),
            ending: AtomicBool::new(false),
            holds_silence: AtomicBool::new(false),
            failure_sent: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            limit: Mutex::default(),
            notes: Mutex::new(vec![Note::default(); at_root]),
            posted: Mutex::default(),
            call_log: Mutex::default(),
            wants_calls: AtomicBool::new(false),
            timed_out: Mutex::default(),
            last_calls: Mutex::default(),
            exit_hook: Mutex::default(),
            numbering: Numbering::default(),
            waiters: SpinPark::default(),
            wake,
        }
    }

    /// Returns the number of the current or next collective call, and takes the result of the last one.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn take_result(&self) -> (u64, Option<CallResult>) {
        let mut call = lock(&self.call);
        (call.number, call.result.take())
    }

    /// Fails all operations of this rank, and at rank 0 the operations of all others, unless this process
    /// ends for a reason of its own. Only the first failure counts.
    pub(crate) fn fail_all(&self, error: Error, code: i32) {
        let failure = Failure { error: error.clone(), code, own: false };
        self.stop_unless_ending(failure, &Frame::Failed(code, error));
    }

    /// Fails all operations of this rank because of a failure sent by rank 0 to all.
    pub(crate) fn follow_failure(&self, error: Error, code: i32) {
        let failure = Failure { error: error.clone(), code, own: false };
        self.stop_operations(lock(&self.stopping), failure, &Frame::Failed(code, error));
    }

    /// Like [`TcpState::fail_all`], for a failure of this process or its rank `rank`. Informs rank 0.
    pub(crate) fn fail_own(&self, code: i32, rank: Option<usize>, reason: Reason) {
        let error = self.own_failure(rank, reason.clone());
        let frame = self.own_frame(code, rank, reason);
        self.stop_unless_ending(Failure { error, code, own: true }, &frame);
    }

    pub(super) fn own_frame(&self, code: i32, rank: Option<usize>, reason: Reason) -> Frame {
        if self.rank == 0 {
            Frame::Failed(code, self.own_failure(rank, reason))
        } else {
            Frame::Abort(code, rank.and_then(|rank| u32::try_from(rank).ok()), reason)
        }
    }

    /// Error for a failure of this process or its rank `rank`.
    fn own_failure(&self, rank: Option<usize>, reason: Reason) -> Error {
        self.numbering.failed_error(self.rank, rank, self.host_name(self.rank), reason)
    }

    /// Records a failure that `process` has reported of itself or its rank `rank`.
    pub(crate) fn record_abort(&self, process: usize, code: i32, rank: Option<u32>, reason: Reason) {
        let rank = rank.map(|rank| rank as usize);
        self.fail_all(self.numbering.failed_error(process, rank, self.host_name(process), reason), code);
    }

    fn stop_unless_ending(&self, failure: Failure, frame: &Frame) {
        let stopping = lock(&self.stopping);
        if !self.ending.load(Ordering::SeqCst) {
            self.stop_operations(stopping, failure, frame);
        }
    }

    fn stop_operations(&self, stopping: MutexGuard<'_, ()>, failure: Failure, frame: &Frame) {
        if self.failure.get().is_some() {
            return;
        }
        self.stop_reason.get_or_init(|| failure.error.clone());
        // Sent before `failure` is set: a thread that sees it may end the process, and the others would
        // report the process as dead.
        if self.rank == 0 || failure.own {
            self.broadcast_frame(frame);
        }
        let _ = self.failure.set(failure);
        drop(stopping);
        self.failure_sent.store(true, Ordering::SeqCst);
        self.stopped.store(true, Ordering::SeqCst);
        self.waiters.notify_waiters();
        self.wake_service();
    }

    pub(crate) fn rank_failed(&self, rank: usize, reason: Reason) -> Error {
        self.numbering.failed_error(rank, None, self.host_name(rank), reason)
    }

    pub(super) fn host_name(&self, rank: usize) -> &str {
        self.members.get(rank).map_or("unknown", |member| &member.host.name)
    }

    fn departed_error(&self, rank: usize) -> Error {
        self.numbering.failed_error(rank, None, self.host_name(rank), Reason::left_early())
    }

    pub(crate) fn wake_service(&self) {
        // If the pipe is full, a wakeup is pending.
        let _ = (&self.wake).write(&[0]);
    }

    pub(crate) fn broadcast_frame(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = frame.encode().into();
        let mut queued = false;
        for connection in self.connections.iter().flatten() {
            queued |= !connection.send_frame(&bytes);
        }
        if queued {
            self.wake_service();
        }
    }

    /// Adds the contribution of a rank to a collective call; at rank 0 only.
    pub(crate) fn add_contribution(&self, rank: usize, number: u64, contribution: Contribution) {
        let mut call = lock(&self.call);
        if number != call.number || call.contributions.get(rank).is_none_or(Option::is_some) {
            let expected = call.number;
            drop(call);
            let reason = format!("is at collective call {number} of its own while rank 0 is at {expected}");
            return self.fail_all(self.rank_failed(rank, Reason::Other(reason)), 1);
        }
        call.contributions[rank] = Some(contribution);
        call.count += 1;
        if call.count == self.size {
            return self.complete_call(call);
        }
        let first = call.started.is_none();
        call.started.get_or_insert_with(Instant::now);
        let departed = self.departed_rank(&call);
        drop(call);
        if let Some(rank) = departed {
            self.fail_all(self.departed_error(rank), 1);
        } else if first && lock(&self.limit).is_some() {
            // Its next deadline has changed.
            self.wake_service();
        }
    }

    fn complete_call(&self, mut call: MutexGuard<'_, CallState>) {
        call.count = 0;
        call.started = None;
        let contributions = call.contributions.iter_mut().filter_map(Option::take).collect();
        let messages = match combine_contributions(contributions, 0) {
            Ok(messages) => messages,
            Err(error) => return self.fail_all(error, 1),
        };
        let number = call.number;
        call.number += 1;
        let frame = match &messages {
            None => Frame::Released(number),
            Some(messages) => {
                let packed = pack_messages(messages.iter().map(Vec::as_slice));
                if packed.len() > MAX_FRAME - 8 {
                    let total = packed.len();
                    let error = format!("an all_gather of {total} bytes is more than {MAX_FRAME} can hold");
                    return self.fail_all(Error::Mismatch(error), 1);
                }
                Frame::Gathered(number, packed)
            }
        };
        self.broadcast_frame(&frame);
        self.publish_result(call, messages);
    }

    /// Deadline for the arrival of all ranks at the current call; at rank 0 only.
    pub(crate) fn call_deadline(&self) -> Option<Instant> {
        let limit = (*lock(&self.limit))?;
        let started = lock(&self.call).started?;
        (!self.stopped.load(Ordering::SeqCst)).then_some(started + limit)
    }

    pub(crate) fn check_call_deadline(&self, now: Instant) {
        if self.call_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let Some(limit) = *lock(&self.limit) else { return };
        let call = lock(&self.call);
        let name = call.contributions.iter().flatten().next().map_or("barrier", Contribution::call_name);
        let notes = lock(&self.notes);
        let late: Vec<LateRank> = (0..self.size)
            .filter(|&process| call.count > 0 && call.contributions[process].is_none())
            .map(|process| {
                let (rank, ranks) = self.numbering.name_rank(process, None);
                LateRank {
                    rank,
                    ranks,
                    host: self.host_name(process).to_owned(),
                    note: notes[process].text.clone(),
                }
            })
            .collect();
        drop((notes, call));
        if let Some(error) = late_error(name, limit, &late) {
            self.fail_all(error, 1);
        }
    }

    /// Keeps a message of the program. Returns `false` if too many bytes wait to be taken.
    pub(crate) fn keep_posted(&self, process: usize, message: Vec<u8>) -> bool {
        let mut posted = lock(&self.posted);
        let kept: usize = posted.iter().map(|(_, message)| message.len()).sum();
        let has_room = kept + message.len() <= MAX_FRAME;
        if has_room {
            posted.push((process, message));
        }
        has_room
    }

    pub(crate) fn set_note(&self, rank: usize, text: String, data: Vec<u8>) {
        if let Some(note) = lock(&self.notes).get_mut(rank) {
            *note = Note { text, data, came: Some(Instant::now()) };
        }
    }

    /// Notes of the other processes, each with its age.
    pub(crate) fn other_notes(&self) -> Vec<(Note, Duration)> {
        let notes = lock(&self.notes);
        notes.iter().skip(1).filter_map(|note| Some((note.clone(), note.came?.elapsed()))).collect()
    }

    /// Reports to the others that this rank leaves. Rank 0 stops comparing calls, so it forwards the latest
    /// ones.
    pub(crate) fn send_goodbye(&self) {
        if self.rank == 0 {
            for (rank, topic, calls) in lock(&self.call_log).newest_calls(MAX_FORWARDED_BYTES) {
                self.broadcast_frame(&Frame::Called(u32::try_from(rank).unwrap_or(u32::MAX), topic, calls));
            }
        }
        self.broadcast_frame(&Frame::Goodbye);
    }

    /// Compares the latest calls of this process with the calls forwarded by rank 0.
    pub(crate) fn compare_own_calls(&self) {
        for (&rank, (topic, calls)) in lock(&self.last_calls).iter() {
            if lock(&self.call_log).has_topic(*topic) {
                self.record_calls(rank, *topic, calls.clone());
            }
        }
    }

    /// Records calls of a rank, and fails the job if they differ from another rank's calls.
    pub(crate) fn record_calls(&self, rank: usize, topic: u64, calls: Vec<Called>) {
        let difference = lock(&self.call_log).record_calls(rank, topic, calls);
        if let Some(mismatch) = difference {
            self.fail_all(Error::CallMismatch(mismatch), 1);
        }
    }

    /// Makes all waiting ranks report their calls, to end the job soon because of a wait of `process`; at
    /// rank 0 only. Later waits change nothing.
    pub(crate) fn begin_time_out(&self, process: usize, wait: Wait) {
        let mut timed_out = lock(&self.timed_out);
        if timed_out.is_some() {
            return;
        }
        *timed_out = Some((Instant::now() + REPORT_TIME, process, wait));
        drop(timed_out);
        self.wants_calls.store(true, Ordering::SeqCst);
        self.broadcast_frame(&Frame::WantCalls);
        self.wake_service();
    }

    pub(crate) fn time_out_deadline(&self) -> Option<Instant> {
        let end = lock(&self.timed_out).as_ref().map(|&(end, ..)| end);
        end.filter(|_| !self.stopped.load(Ordering::SeqCst))
    }

    /// Ends the job at the deadline, with the names of the ranks that have not reported the call.
    pub(crate) fn end_time_out(&self, now: Instant) {
        if self.time_out_deadline().is_none_or(|end| now < end) {
            return;
        }
        let Some((_, process, wait)) = lock(&self.timed_out).clone() else { return };
        let late = lock(&self.call_log).late_ranks(&wait);
        let member = |rank| self.members.get(rank / self.numbering.rank_count());
        let late = late.into_iter().filter_map(|rank| Some((rank, member(rank)?.host.name.clone())));
        let rank = u32::try_from(wait.rank).ok();
        self.record_abort(process, 1, rank, Reason::TimedOut(Timeout::new(wait, late)));
    }

    /// Returns a departed rank that others wait for. Nobody waits once rank 0 itself leaves.
    fn departed_rank(&self, call: &CallState) -> Option<usize> {
        (call.count > 0 && !self.closing.load(Ordering::SeqCst))
            .then(|| (0..self.size).find(|&rank| call.departed[rank] && call.contributions[rank].is_none()))?
    }

    fn publish_result(&self, mut call: MutexGuard<'_, CallState>, result: CallResult) {
        call.result = Some(result);
        drop(call);
        self.has_result.store(true, Ordering::SeqCst);
        self.waiters.notify_waiters();
    }

    /// Receives the result of a collective call from rank 0; at the other ranks only.
    pub(crate) fn receive_result(&self, number: u64, packed: Option<&[u8]>) {
        let messages = match packed.map(unpack_messages) {
            None => None,
            Some(Some(messages)) if messages.len() == self.size => Some(messages),
            Some(_) => {
                let reason = Reason::Other("sent an all_gather that is not well formed".to_owned());
                return self.fail_all(self.rank_failed(0, reason), 1);
            }
        };
        let mut call = lock(&self.call);
        if number != call.number {
            let expected = call.number;
            drop(call);
            let reason = format!("ended collective call {number} while this rank is at {expected}");
            return self.fail_all(self.rank_failed(0, Reason::Other(reason)), 1);
        }
        call.number += 1;
        self.publish_result(call, messages);
    }

    /// Marks a rank as departed without a failure.
    pub(crate) fn mark_departed(&self, rank: usize) {
        let mut call = lock(&self.call);
        call.departed[rank] = true;
        let departed = if self.rank == 0 { self.departed_rank(&call) } else { None };
        drop(call);
        if let Some(rank) = departed {
            self.fail_all(self.departed_error(rank), 1);
        }
        if self.rank != 0 {
            // No result arrives without rank 0. Not a failure until this rank calls a collective.
            self.stop_reason.get_or_init(|| self.departed_error(0));
            self.stopped.store(true, Ordering::SeqCst);
            self.waiters.notify_waiters();
        }
    }

    pub(crate) fn run_collective(&self, contribution: Contribution, spin: bool) -> Result<CallResult, Error> {
        let _calling = lock(&self.calling);
        if self.stopped.load(Ordering::SeqCst) {
            return Err(self.stop_reason());
        }
        self.has_result.store(false, Ordering::SeqCst);
        let number = lock(&self.call).number;
        if self.rank == 0 {
            self.add_contribution(0, number, contribution);
        } else {
            self.broadcast_frame(&match contribution {
                Contribution::Barrier => Frame::Barrier(number),
                Contribution::Message(message) => Frame::Message(number, message),
            });
        }
        let ended = || self.has_result.load(Ordering::SeqCst) || self.stopped.load(Ordering::SeqCst);
        self.waiters.wait_until(spin, None, ended);
        let result = lock(&self.call).result.take();
        result.ok_or_else(|| self.stop_reason())
    }

    fn stop_reason(&self) -> Error {
        self.stop_reason.get().cloned().unwrap_or_else(|| self.departed_error(0))
    }
}
