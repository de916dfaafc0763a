//! The thread of a TCP world that serves its connections: it reads what other ranks say, sends what did not fit at
//! once, keeps the heartbeat, and notices ranks that have died.

use super::connection::{Connection, MOST_AT_ONCE};
use super::poll::Poll;
use super::state::Shared;
use super::wire::{Frame, Frames};
use crate::world::call::Contribution;
use crate::world::sync::lock;
use crate::world::{Error, OnFailure, process_exit};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a process has to end by itself after a failure, before it is ended ([`OnFailure::Exit`]).
const GRACE: Duration = Duration::from_secs(1);
/// Limit for a world that is dropped: others may not take what was sent to them, or not take leave.
const FAREWELL: Duration = Duration::from_secs(3);
/// Limit for rank 0 that leaves a job without a failure, while other ranks stay: it passes on what they say of failures,
/// and without it a rank would wait for ever for one that has failed.
const STAY: Duration = Duration::from_secs(60);
/// How long a process that ends with another rank may take for [`super::World::before_exit`].
const LAST_ACT: Duration = Duration::from_secs(10);
/// How often it is looked whether that is done.
const LAST_ACT_POLL: Duration = Duration::from_millis(20);
/// When this thread runs so much later than it should, the machine or the process stood still, and silence says
/// nothing about the others.
const LATE: Duration = Duration::from_secs(2);
/// What only the service knows about a connection.
pub(crate) struct Line<'a> {
    rank: usize,
    connection: &'a Connection,
    pub(crate) frames: Frames,
    heard: Instant,
    /// Whether the other side has left in good order.
    left: bool,
}

impl<'a> Line<'a> {
    pub(crate) fn new(rank: usize, connection: &'a Connection, frames: Frames, now: Instant) -> Self {
        Self { rank, connection, frames, heard: now, left: false }
    }
}

/// Serves the connections of a world until it is closed.
pub(crate) fn run(shared: &Shared, woken: &UnixStream, frames: Vec<Frames>) {
    let start = Instant::now();
    let mut lines: Vec<Line<'_>> = shared
        .connections
        .iter()
        .zip(frames)
        .enumerate()
        .filter_map(|(rank, (connection, frames))| Some(Line::new(rank, connection.as_ref()?, frames, start)))
        .collect();
    // What came right behind the rendezvous.
    for line in &mut lines {
        take_frames(shared, line);
    }
    let mut buffer = vec![0; 64 << 10];
    let mut next_heartbeat = start;
    let mut exit_at = None;
    let mut last_act = None;
    let mut closed_by = None;
    let mut farewell = Vec::new();
    let mut failed = false;
    loop {
        let now = Instant::now();
        if let Some(failure) = shared.failure()
            && shared.options.on_failure == OnFailure::Exit
            && !failure.own
            && exit_at.is_none()
            && closed_by.is_none()
        {
            process_exit::explain(&shared.ends_with(&failure.error));
            last_act = start_last_act(shared, &failure.error).map(|done| (done, now + LAST_ACT));
            exit_at = Some(now + GRACE);
        }
        if closed_by.is_none() && shared.closing.load(Ordering::SeqCst) {
            closed_by = Some(now + if shared.rank == 0 { STAY } else { FAREWELL });
            shared.take_leave();
        }
        if let Some(by) = &mut closed_by {
            let left: Vec<(usize, usize)> = lines
                .iter()
                .filter(|line| line.connection.is_open())
                .map(|line| line.connection.backlog())
                .collect();
            // Whoever still takes its share of a long all_gather gets all of it.
            if left != farewell {
                *by = (*by).max(now + FAREWELL);
                farewell = left;
            }
            if shared.failure().is_some() && !failed {
                failed = true;
                *by = now + FAREWELL;
            }
            if farewell.is_empty() || now >= *by {
                for line in &lines {
                    line.connection.flush();
                    line.connection.close();
                }
                return;
            }
        }
        if let (Some(at), Some(failure)) = (&mut exit_at, shared.failure())
            && now >= *at
        {
            match &last_act {
                Some((done, by)) if now < *by && !done.load(Ordering::SeqCst) => *at = now + LAST_ACT_POLL,
                _ => {
                    process_exit::claim();
                    process_exit::exit(failure.code);
                }
            }
        }
        if shared.rank == 0 {
            shared.expect(now);
        }
        if now >= next_heartbeat {
            let beat: Arc<[u8]> = Frame::Heartbeat.encode().into();
            for line in lines.iter().filter(|line| line.connection.is_open() && line.connection.idle()) {
                line.connection.send(&beat);
            }
            next_heartbeat = now + shared.options.heartbeat;
        }

        let due = if shared.rank == 0 { shared.due() } else { None };
        let until = [exit_at, closed_by, due].into_iter().flatten().fold(next_heartbeat, Instant::min);
        let mut poll = Poll::default();
        let wake = poll.add(woken, false);
        let waiting: Vec<Option<usize>> = lines
            .iter()
            .map(|line| {
                let connection = line.connection;
                connection.is_open().then(|| poll.add(&connection.stream, !connection.idle()))
            })
            .collect();
        if let Err(error) = poll.wait(until.saturating_duration_since(now)) {
            let reason = format!("cannot wait for its connections any more: {error}");
            shared.fail(shared.rank_failed(shared.rank, reason), 1);
            std::thread::sleep(Duration::from_millis(100));
        }
        if poll.readable(wake) {
            let mut woken = woken;
            while woken.read(&mut buffer).is_ok_and(|count| count > 0) {}
        }
        let polled = Instant::now();
        let late = polled > until + LATE;
        for (line, number) in lines.iter_mut().zip(waiting) {
            let Some(number) = number else { continue };
            if poll.writable(number) {
                line.connection.flush();
            }
            if poll.readable(number) {
                read(shared, line, &mut buffer);
            }
            part(shared, line);
            if late {
                line.heard = polled;
            }
            let Some(dead_after) = shared.options.dead_after else { continue };
            // What came while others were served is read next time: only what had not come by now is missing.
            if line.connection.is_open() && polled.saturating_duration_since(line.heard) > dead_after {
                let reason = format!("died: nothing was heard from it for {} s", dead_after.as_secs_f64());
                shared.fail(shared.rank_failed(line.rank, reason), 1);
                line.connection.flush();
                line.connection.close();
            }
        }
    }
}

/// Reads what has come from a rank.
fn read(shared: &Shared, line: &mut Line<'_>, buffer: &mut [u8]) {
    let mut total = 0;
    while total < MOST_AT_ONCE && line.connection.is_open() {
        let reason = match (&line.connection.stream).read(buffer) {
            Ok(0) => "died: its connection closed".to_owned(),
            Ok(count) => {
                total += count;
                line.heard = Instant::now();
                line.frames.push(&buffer[..count]);
                take_frames(shared, line);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => format!("died: its connection failed ({error})"),
        };
        line.connection.close();
        // Rank 0's answer to a farewell is the end of the connection.
        let answered = shared.rank != 0 && shared.closing.load(Ordering::SeqCst);
        if !line.left && !answered {
            shared.fail(shared.rank_failed(line.rank, reason), 1);
        }
    }
}

/// Does what the frames of a rank ask for.
pub(crate) fn take_frames(shared: &Shared, line: &mut Line<'_>) {
    while line.connection.is_open() {
        let reason = match line.frames.next() {
            Ok(None) => return,
            Ok(Some(frame)) => match act(shared, line, frame) {
                None => continue,
                Some(unexpected) => unexpected,
            },
            Err(malformed) => malformed.0,
        };
        line.connection.close();
        shared.fail(shared.rank_failed(line.rank, format!("sent {reason}")), 1);
    }
}

/// Closes the connection to a rank that has left, when neither side has anything to say any more. With rank 0 the
/// other ranks stay connected until the job has failed or they leave, too: it passes on what they say of failures.
fn part(shared: &Shared, line: &Line<'_>) {
    let over = shared.rank == 0 || shared.told.load(Ordering::SeqCst);
    if line.left && over && line.connection.is_open() && line.connection.flush() {
        line.connection.close();
    }
}

/// Starts what this process wants to do before it ends, and says when it is done.
fn start_last_act(shared: &Shared, error: &Error) -> Option<Arc<AtomicBool>> {
    let act = lock(&shared.last_act).take()?;
    let done = Arc::new(AtomicBool::new(false));
    let thread = std::thread::Builder::new().name("last act".to_owned()).spawn({
        let (done, error) = (Arc::clone(&done), error.clone());
        move || {
            // Also when it panics: nothing is waited for then.
            let _done = Done(done);
            act(&error);
        }
    });
    thread.is_ok().then_some(done)
}

/// Says at its end that something is done.
struct Done(Arc<AtomicBool>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Does what a frame asks for, or says what is wrong with it.
fn act(shared: &Shared, line: &mut Line<'_>, frame: Frame) -> Option<String> {
    let at_root = shared.rank == 0;
    match frame {
        Frame::Heartbeat => {}
        Frame::Goodbye => {
            line.left = true;
            shared.leave(line.rank);
            part(shared, line);
        }
        Frame::Note(text) if at_root => shared.noted(line.rank, text),
        Frame::Called(rank, topic, calls) if at_root => shared.called(rank as usize, topic, calls),
        Frame::Called(rank, topic, calls) => shared.passed_on(rank as usize, topic, calls),
        Frame::Barrier(number) if at_root => shared.arrive(line.rank, number, Contribution::Barrier),
        Frame::Message(number, message) if at_root => {
            shared.arrive(line.rank, number, Contribution::Message(message));
        }
        Frame::Abort(code, rank, reason) if at_root => shared.aborted(line.rank, code, rank, reason),
        Frame::Released(number) if !at_root => shared.complete(number, None),
        Frame::Gathered(number, messages) if !at_root => shared.complete(number, Some(&messages)),
        Frame::Failed(code, error) if !at_root => shared.fail(error, code),
        _ => return Some("a frame that it may not send".to_owned()),
    }
    None
}
