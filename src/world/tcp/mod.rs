//! A world over TCP: every rank is connected to rank 0, and rank 0 forwards messages.

mod connection;
mod end;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub(crate) mod poll;
mod rendezvous;
mod service;
mod state;
pub(crate) mod wire;

use super::call::Contribution;
use super::limits::MAX_MESSAGE;
use super::sync::core_count;
use super::{
    Called, Error, ExitHook, Handle, OnFailure, Options, Position, Reason, Rejoin, RendezvousConfig, Wait,
    World, YEAR, process_exit, single,
};
use crate::lock::lock;
use connection::FrameConnection;
use rendezvous::Connected;
use service::MAX_NOTE_DATA;
use state::{Failure, TcpState};
use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use wire::{Frame, JobMember, MAX_FRAME};

pub(crate) use rendezvous::{listen_on_port, read_some};

/// Joins a world over TCP.
///
/// All ranks connect to rank 0, and a thread of each rank watches the connections. A rank is dead if its
/// process ends without leaving the job, or if it is silent for longer than [`Options::dead_after`]: the
/// operations of all others return [`Error::RankFailed`] with its rank and host, and [`Options::on_failure`]
/// applies. Rank 0 stops listening once all ranks are connected.
///
/// When rank 0 leaves, it stays connected to the remaining ranks for up to a minute, and forwards their
/// failures. If all ranks leave together, it does not wait.
///
/// # Errors
/// If ranks are missing at [`Options::timeout`]: the error names them at rank 0, and the attempted addresses
/// elsewhere.
pub fn tcp(config: RendezvousConfig, options: &Options) -> Result<Handle, Error> {
    let config = config.check_config()?;
    if config.size == 1 {
        return Ok(single());
    }
    Ok(Arc::new(join_world(&config, options, None)?))
}

/// Joins a world. Rank 0 may pass a listener.
pub(crate) fn join_world(
    config: &RendezvousConfig,
    options: &Options,
    listener: Option<TcpListener>,
) -> Result<Tcp, Error> {
    let options = options.bounded();
    let Connected { members, connections, address } = rendezvous::connect_ranks(config, &options, listener)?;
    let failed = |error: io::Error| {
        Error::Rendezvous(format!("rank {} cannot serve its connections: {error}", config.rank))
    };
    let (local_rank, local_size) = local_position(&members, config.rank);
    let (wake, woken) = UnixStream::pair().map_err(failed)?;
    wake.set_nonblocking(true).map_err(failed)?;
    woken.set_nonblocking(true).map_err(failed)?;
    let mut streams = Vec::with_capacity(connections.len());
    let mut decoders = Vec::with_capacity(connections.len());
    for connection in connections {
        let (stream, decoder) = connection.unzip();
        let stream = stream.map(FrameConnection::new).transpose().map_err(failed)?;
        streams.push(stream);
        decoders.push(decoder.unwrap_or_default());
    }
    let state = Arc::new(TcpState::new(config.rank, members, streams, options, wake));
    if config.rank == 0 {
        state.broadcast_frame(&Frame::Members(state.members.clone()));
    }
    let service = thread::Builder::new()
        .name("world".to_owned())
        .spawn({
            let state = Arc::clone(&state);
            move || service::run_service(&state, &woken, decoders)
        })
        .map_err(failed)?;
    let position = Position { rank: config.rank, size: config.size, local_rank, local_size };
    let spin = local_size <= core_count();
    let description = format!("TCP rendezvous at {address}");
    Ok(Tcp { state, position, spin, description, service: Some(service) })
}

/// Returns local rank and local size of a rank: from its launcher, or counted by host if the launcher gives
/// none or two ranks of a host have the same, as with two launchers on one host.
fn local_position(members: &[JobMember], rank: usize) -> (usize, usize) {
    let neighbours: Vec<usize> =
        (0..members.len()).filter(|&other| members[other].host.id == members[rank].host.id).collect();
    let claimed: BTreeSet<_> =
        neighbours.iter().filter_map(|&other| members[other].local.map(|(number, _)| number)).collect();
    let distinct = claimed.len() == neighbours.len();
    match members[rank].local {
        Some((number, size)) if distinct && size as usize >= neighbours.len() => {
            (number as usize, size as usize)
        }
        _ => (neighbours.iter().position(|&other| other == rank).unwrap_or(0), neighbours.len()),
    }
}

pub(crate) struct Tcp {
    pub(crate) state: Arc<TcpState>,
    position: Position,
    /// True if this host has a core for each of its ranks.
    spin: bool,
    description: String,
    service: Option<JoinHandle<()>>,
}

impl World for Tcp {
    fn position(&self) -> Position {
        self.position
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.state.run_collective(Contribution::Barrier, self.spin).map(drop)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if mine.len() > MAX_MESSAGE {
            return Err(Error::Mismatch(format!(
                "a message of {} bytes is too long for an all_gather over TCP: the limit is {MAX_MESSAGE} \
                 bytes",
                mine.len()
            )));
        }
        let messages = self.state.run_collective(Contribution::Message(mine.to_vec()), self.spin)?;
        messages.ok_or_else(|| Error::Mismatch("rank 0 took an all_gather for a barrier".to_owned()))
    }

    fn check(&self) -> Result<(), Error> {
        self.state.failure.get().map_or(Ok(()), |failure| Err(failure.error.clone()))
    }

    fn fail(&self, reason: Reason) {
        self.state.fail_own(failure_code(), None, reason);
    }

    fn set_limit(&self, limit: Option<Duration>) {
        *lock(&self.state.limit) = limit.map(|limit| limit.min(YEAR));
        self.state.wake_service();
    }

    fn note_with(&self, text: &str, data: &[u8]) -> bool {
        let data = if data.len() <= MAX_NOTE_DATA { data } else { &[] };
        if self.state.rank == 0 {
            self.state.set_note(0, text.to_owned(), data.to_vec());
        } else {
            self.state.broadcast_frame(&Frame::Note(text.to_owned(), data.to_vec()));
        }
        true
    }

    fn notes(&self) -> Vec<(String, Duration)> {
        self.state.other_notes().into_iter().map(|(note, age)| (note.text, age)).collect()
    }

    fn note_data(&self) -> Vec<(Vec<u8>, Duration)> {
        self.state.other_notes().into_iter().map(|(note, age)| (note.data, age)).collect()
    }

    fn post(&self, message: Vec<u8>) -> bool {
        let fits = message.len() <= MAX_FRAME;
        if fits {
            self.state.broadcast_frame(&Frame::Posted(message));
        }
        fits
    }

    fn take_posted(&self) -> Vec<(usize, Vec<u8>)> {
        mem::take(&mut *lock(&self.state.posted))
    }

    fn is_connected_to(&self, process: usize) -> bool {
        self.state
            .connections
            .get(process)
            .is_some_and(|connection| connection.as_ref().is_some_and(FrameConnection::is_open))
    }

    fn hold_silence(&self, holds: bool) {
        self.state.holds_silence.store(holds, Ordering::SeqCst);
    }

    fn begin_end(&self) -> Result<(), (Error, i32)> {
        self.state.begin_end()
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        if self.state.rank == 0 {
            self.state.record_calls(rank, topic, calls.to_vec());
        } else {
            let number = u32::try_from(rank).unwrap_or(u32::MAX);
            self.state.broadcast_frame(&Frame::Called(number, topic, calls.to_vec()));
            lock(&self.state.last_calls).insert(rank, (topic, calls.to_vec()));
            self.state.compare_own_calls();
        }
    }

    fn time_out(&self, wait: &Wait) -> bool {
        if self.state.rank == 0 {
            self.state.begin_time_out(0, wait.clone());
        } else {
            self.state.broadcast_frame(&Frame::TimedOut(wait.clone()));
        }
        true
    }

    fn wants_calls(&self) -> bool {
        self.state.wants_calls.load(Ordering::SeqCst)
    }

    fn before_exit(&self, hook: ExitHook) {
        let replaced = lock(&self.state.exit_hook).replace(hook);
        // Without the lock: a hook owns data of the program, and their drop may set another hook.
        drop(replaced);
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.end_job(code, None, message)
    }

    fn name_ranks(&self, per_process: usize) -> bool {
        self.state.numbering.set_count(per_process);
        true
    }

    fn rejoin(&self) -> Result<Rejoin, Error> {
        if self.state.options.on_failure == OnFailure::Exit {
            return Err(Error::Launcher(
                "with `Options::on_failure = OnFailure::Exit`, this process ends a second after another \
                 rank has failed, so that it cannot continue without that rank: use `OnFailure::Report`"
                    .to_owned(),
            ));
        }
        let connections = self.state.connections.iter().flatten();
        let mut addresses = connections
            .filter_map(|connection| Some(connection.stream.local_addr().ok()?.ip().to_canonical()));
        let first = addresses.next();
        // Ranks of rank 0's host can be connected over the loopback interface, ranks of other hosts are not.
        let address = addresses
            .find(|address| !address.is_loopback())
            .filter(|_| first.is_some_and(|first| first.is_loopback()));
        Ok(Rejoin { options: self.state.options.clone(), address: address.or(first) })
    }

    fn fail_as(&self, rank: usize, reason: Reason) {
        self.state.fail_own(failure_code(), Some(rank), reason);
    }

    fn abort_as(&self, rank: usize, code: i32, message: &str) -> ! {
        self.end_job(code, Some(rank), message)
    }
}

impl Tcp {
    fn end_job(&self, code: i32, rank: Option<usize>, message: &str) -> ! {
        self.state.announce_end(code, rank, message);
        process_exit::exit_now(code)
    }
}

/// Returns the exit code of processes that exit because the rank of this thread has failed.
fn failure_code() -> i32 {
    if thread::panicking() { process_exit::PANICKED } else { 1 }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        if thread::panicking() {
            process_exit::suppress_report();
            let reason = Reason::Died("it panicked".to_owned());
            let error = self.state.rank_failed(self.state.rank, reason.clone());
            // Ignored if there is an earlier failure; the others are informed in either case.
            let _ = self.state.failure.set(Failure { error, code: process_exit::PANICKED, own: true });
            self.state.flush_abort(process_exit::PANICKED, None, reason);
        }
        self.state.closing.store(true, Ordering::SeqCst);
        self.state.wake_service();
        if let Some(service) = self.service.take() {
            // If it has panicked, there is nothing left to close.
            let _ = service.join();
        }
    }
}

#[cfg(test)]
mod tests;
