//! Service thread of a TCP world: receives frames, flushes queued ones, sends heartbeats and detects dead
//! ranks.

use super::connection::{FrameConnection, MAX_BYTES_PER_TURN};
use super::poll::Poll;
use super::state::TcpState;
use super::wire::{Frame, FrameDecoder};
use crate::lock::lock;
use crate::world::call::Contribution;
use crate::world::{OnFailure, Reason, process_exit};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between a failure and the exit of this process ([`OnFailure::Exit`]).
const EXIT_GRACE: Duration = Duration::from_secs(1);
/// Time limit for closing a world while peers do not receive queued frames or do not leave.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for rank 0 to stay after it has left a job without a failure: it still forwards the failures of
/// the remaining ranks. Otherwise they would wait for a failed rank forever.
const LINGER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the hook of [`World::before_exit`](crate::world::World::before_exit).
const EXIT_HOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest data of a note, in bytes.
pub(super) const MAX_NOTE_DATA: usize = 4 << 20;
const EXIT_HOOK_POLL: Duration = Duration::from_millis(20);
/// Delay of a poll, beyond a heartbeat's time after the poll before, as a sign of a suspended machine or
/// process. The silence of peers then does not prove their death.
const STALL_THRESHOLD: Duration = Duration::from_secs(2);

pub(crate) struct ServedPeer<'a> {
    rank: usize,
    connection: &'a FrameConnection,
    pub(crate) decoder: FrameDecoder,
    last_received: Instant,
    /// True once the peer has left without a failure.
    departed: bool,
}

impl<'a> ServedPeer<'a> {
    pub(crate) fn new(
        rank: usize,
        connection: &'a FrameConnection,
        decoder: FrameDecoder,
        now: Instant,
    ) -> Self {
        Self { rank, connection, decoder, last_received: now, departed: false }
    }
}

struct Service<'a> {
    state: &'a TcpState,
    peers: Vec<ServedPeer<'a>>,
    buffer: Vec<u8>,
    next_heartbeat: Instant,
    exit: Option<Exit>,
    closing: Option<Closing>,
    /// Return of the last poll.
    polled: Instant,
    /// Duration of a stop of this process before the last poll, if any.
    stalled: Option<Duration>,
}

/// An exit of this process because of another rank's failure.
struct Exit {
    at: Instant,
    code: i32,
    /// The running hook, and its deadline.
    hook: Option<(JoinHandle<()>, Instant)>,
}

struct Closing {
    deadline: Instant,
    /// [`FrameConnection::queue_backlog`] of the open connections.
    backlog: Vec<(usize, usize)>,
    failed: bool,
}

pub(crate) fn run_service(state: &TcpState, woken: &UnixStream, decoders: Vec<FrameDecoder>) {
    let mut service = Service::new(state, decoders);
    loop {
        let now = Instant::now();
        service.start_exit(now);
        if service.is_closed(now) {
            return;
        }
        service.exit_if_due(now);
        if state.rank == 0 {
            state.check_call_deadline(now);
        }
        service.send_heartbeat(now);
        service.poll_connections(woken, now);
        if state.rank == 0 {
            // After up to 1 MiB from each rank was read: a delay of this thread alone makes no rank late.
            state.end_time_out(now);
        }
    }
}

impl<'a> Service<'a> {
    fn new(state: &'a TcpState, decoders: Vec<FrameDecoder>) -> Self {
        let start = Instant::now();
        let mut peers: Vec<ServedPeer<'_>> = state
            .connections
            .iter()
            .zip(decoders)
            .enumerate()
            .filter_map(|(rank, (connection, decoder))| {
                Some(ServedPeer::new(rank, connection.as_ref()?, decoder, start))
            })
            .collect();
        // Frames from the end of the rendezvous.
        for peer in &mut peers {
            handle_frames(state, peer);
        }
        let buffer = vec![0; 64 << 10];
        Self {
            state,
            peers,
            buffer,
            next_heartbeat: start,
            exit: None,
            closing: None,
            polled: start,
            stalled: None,
        }
    }

    /// Schedules the exit of this process if another rank has failed.
    fn start_exit(&mut self, now: Instant) {
        let exits = self.state.options.on_failure == OnFailure::Exit;
        if !exits || self.exit.is_some() || self.closing.is_some() {
            return;
        }
        let Some(failure) = self.state.failure.get().filter(|failure| !failure.own) else { return };
        process_exit::report_once(&self.state.exit_message(&failure.error));
        let hook = lock(&self.state.exit_hook).take();
        let hook = hook.and_then(|hook| {
            let (error, code) = (failure.error.clone(), failure.code);
            thread::Builder::new().name("exit hook".to_owned()).spawn(move || hook(&error, code)).ok()
        });
        let hook = hook.map(|hook| (hook, now + EXIT_HOOK_TIMEOUT));
        self.exit = Some(Exit { at: now + EXIT_GRACE, code: failure.code, hook });
    }

    fn exit_if_due(&mut self, now: Instant) {
        let Some(exit) = self.exit.as_mut().filter(|exit| now >= exit.at) else { return };
        match &exit.hook {
            Some((hook, deadline)) if now < *deadline && !hook.is_finished() => {
                exit.at = now + EXIT_HOOK_POLL;
            }
            _ => {
                process_exit::claim_end();
                process_exit::exit_now(exit.code);
            }
        }
    }

    /// Advances closing, if it has begun. Returns `true` once all connections are closed.
    fn is_closed(&mut self, now: Instant) -> bool {
        let state = self.state;
        if self.closing.is_none() && state.closing.load(Ordering::SeqCst) {
            let timeout = if state.rank == 0 { LINGER_TIMEOUT } else { CLOSE_TIMEOUT };
            self.closing = Some(Closing { deadline: now + timeout, backlog: Vec::new(), failed: false });
            state.send_goodbye();
        }
        let Some(closing) = &mut self.closing else { return false };
        let open = self.peers.iter().filter(|peer| peer.connection.is_open());
        let backlog: Vec<(usize, usize)> = open.map(|peer| peer.connection.queue_backlog()).collect();
        // A peer still receiving a long all_gather gets all of it.
        if backlog != closing.backlog {
            closing.deadline = closing.deadline.max(now + CLOSE_TIMEOUT);
            closing.backlog = backlog;
        }
        if state.failure.get().is_some() && !closing.failed {
            closing.failed = true;
            closing.deadline = now + CLOSE_TIMEOUT;
        }
        let closed = closing.backlog.is_empty() || now >= closing.deadline;
        if closed {
            for peer in &self.peers {
                peer.connection.flush_queue();
                peer.connection.close_stream();
            }
        }
        closed
    }

    fn send_heartbeat(&mut self, now: Instant) {
        if now < self.next_heartbeat {
            return;
        }
        let heartbeat: Arc<[u8]> = Frame::Heartbeat.encode().into();
        for connection in self.peers.iter().map(|peer| peer.connection) {
            if connection.is_open() && connection.is_idle() {
                connection.send_frame(&heartbeat);
            }
        }
        self.next_heartbeat = now + self.state.options.heartbeat;
    }

    /// Waits for the connections or the next deadline, and serves the connections.
    fn poll_connections(&mut self, woken: &UnixStream, now: Instant) {
        let state = self.state;
        let exit = self.exit.as_ref().map(|exit| exit.at);
        let close = self.closing.as_ref().map(|closing| closing.deadline);
        let call = if state.rank == 0 { state.call_deadline() } else { None };
        let late = state.time_out_deadline();
        let until = [exit, close, call, late].into_iter().flatten().fold(self.next_heartbeat, Instant::min);
        let mut poll = Poll::default();
        let wake = poll.add_connection(woken, false);
        let entries: Vec<Option<usize>> = self
            .peers
            .iter()
            .map(|peer| {
                let connection = peer.connection;
                connection.is_open().then(|| poll.add_connection(&connection.stream, !connection.is_idle()))
            })
            .collect();
        if let Err(error) = poll.wait_for_ready(until.saturating_duration_since(now)) {
            let reason = format!("cannot wait for its connections any more: {error}");
            state.fail_all(state.rank_failed(state.rank, Reason::Other(reason)), 1);
            thread::sleep(Duration::from_millis(100));
        }
        if poll.is_readable(wake) {
            let mut woken = woken;
            while woken.read(&mut self.buffer).is_ok_and(|count| count > 0) {}
        }
        let polled = Instant::now();
        // A stop at any place of the loop counts, also before the deadline of this poll was computed.
        let turn = polled.saturating_duration_since(self.polled);
        self.polled = polled;
        let stalled_now = (turn > state.options.heartbeat + STALL_THRESHOLD).then_some(turn);
        // A poll interrupted by a stop may return the events before the stop; the next one returns the rest.
        let stalled = stalled_now.or(self.stalled);
        self.stalled = stalled_now;
        for (peer, entry) in self.peers.iter_mut().zip(entries) {
            let Some(entry) = entry else { continue };
            if poll.is_writable(entry) {
                peer.connection.flush_queue();
            }
            if poll.is_readable(entry) {
                read_frames(state, peer, &mut self.buffer, stalled);
            }
            close_if_departed(state, peer);
            if stalled.is_some() {
                peer.last_received = polled;
            }
            check_silence(state, peer, polled);
        }
    }
}

/// Fails a peer after a silence longer than [`Options::dead_after`](crate::world::Options::dead_after) before
/// the poll. Later data is read after the next poll.
fn check_silence(state: &TcpState, peer: &ServedPeer<'_>, polled: Instant) {
    let Some(dead_after) = state.options.dead_after.filter(|_| !state.ignores_silence()) else { return };
    if peer.connection.is_open() && polled.saturating_duration_since(peer.last_received) > dead_after {
        let reason = Reason::Died(format!("nothing was heard from it for {} s", dead_after.as_secs_f64()));
        state.fail_all(state.rank_failed(peer.rank, reason), 1);
        peer.connection.flush_queue();
        peer.connection.close_stream();
    }
}

/// Reads the arrived data of a peer. `stalled` is the duration of a stop of this process before.
fn read_frames(state: &TcpState, peer: &mut ServedPeer<'_>, buffer: &mut [u8], stalled: Option<Duration>) {
    let mut total = 0;
    while total < MAX_BYTES_PER_TURN && peer.connection.is_open() {
        let reason = match (&peer.connection.stream).read(buffer) {
            Ok(0) => Reason::Died("its connection closed".to_owned()),
            Ok(count) => {
                total += count;
                peer.last_received = Instant::now();
                peer.decoder.push_bytes(&buffer[..count]);
                handle_frames(state, peer);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => Reason::Died(format!("its connection failed ({error})")),
        };
        peer.connection.close_stream();
        // Rank 0 answers a goodbye by closing the connection.
        let answered = state.rank != 0 && state.closing.load(Ordering::SeqCst);
        if !peer.departed && !answered {
            // Then the peer has taken this process for dead: its last heartbeat was before the stop.
            let was_given_up = |stalled: &Duration| {
                let silence = *stalled + state.options.heartbeat;
                state.options.dead_after.is_some_and(|dead_after| silence > dead_after)
            };
            let error = match stalled.filter(was_given_up) {
                Some(stalled) => {
                    let reason = format!(
                        "was stopped for {} s: rank {} has ended meanwhile",
                        stalled.as_secs(),
                        peer.rank
                    );
                    state.rank_failed(state.rank, Reason::Other(reason))
                }
                None => state.rank_failed(peer.rank, reason),
            };
            state.fail_all(error, 1);
        }
    }
}

pub(crate) fn handle_frames(state: &TcpState, peer: &mut ServedPeer<'_>) {
    while peer.connection.is_open() {
        let reason = match peer.decoder.next_frame() {
            Ok(None) => return,
            Ok(Some(frame)) => {
                if handle_frame(state, peer, frame) {
                    continue;
                }
                "a frame that it may not send".to_owned()
            }
            Err(malformed) => malformed.0,
        };
        peer.connection.close_stream();
        state.fail_all(state.rank_failed(peer.rank, Reason::Other(format!("sent {reason}"))), 1);
    }
}

/// Handles a frame. Returns `false` if the peer may not send it.
fn handle_frame(state: &TcpState, peer: &mut ServedPeer<'_>, frame: Frame) -> bool {
    let at_root = state.rank == 0;
    match frame {
        Frame::Heartbeat => {}
        Frame::Goodbye => {
            peer.departed = true;
            state.mark_departed(peer.rank);
            close_if_departed(state, peer);
        }
        Frame::Posted(message) => return state.keep_posted(peer.rank, message),
        Frame::Note(text, data) if at_root && data.len() <= MAX_NOTE_DATA => {
            state.set_note(peer.rank, text, data)
        }
        Frame::Called(rank, topic, calls) => {
            state.record_calls(rank as usize, topic, calls);
            // Rank 0 forwards calls when it leaves.
            if !at_root {
                state.compare_own_calls();
            }
        }
        Frame::Barrier(number) if at_root => state.add_contribution(peer.rank, number, Contribution::Barrier),
        Frame::Message(number, message) if at_root => {
            state.add_contribution(peer.rank, number, Contribution::Message(message));
        }
        Frame::Abort(code, rank, reason) if at_root => state.record_abort(peer.rank, code, rank, reason),
        Frame::TimedOut(wait) if at_root => state.begin_time_out(peer.rank, wait),
        Frame::WantCalls if !at_root => state.wants_calls.store(true, Ordering::SeqCst),
        Frame::Released(number) if !at_root => state.receive_result(number, None),
        Frame::Gathered(number, messages) if !at_root => state.receive_result(number, Some(&messages)),
        Frame::Failed(code, error) if !at_root => state.follow_failure(error, code),
        _ => return false,
    }
    true
}

/// Closes the connection to a departed peer once it is no longer needed. The other ranks stay connected to
/// rank 0, for the failures it forwards, until the job has failed or they also leave.
fn close_if_departed(state: &TcpState, peer: &ServedPeer<'_>) {
    let unneeded = state.rank == 0 || state.failure_sent.load(Ordering::SeqCst);
    if peer.departed && unneeded && peer.connection.is_open() && peer.connection.flush_queue() {
        peer.connection.close_stream();
    }
}
