//! A world whose ranks talk over TCP, all through rank 0.

mod connection;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod poll;
mod rendezvous;
mod service;
mod state;
pub(crate) mod wire;

use super::call::Contribution;
use super::sync::{cores, lock};
use super::{Called, Error, Handle, LastAct, Options, Place, World, YEAR, process_exit, single};
use connection::Connection;
use rendezvous::Met;
use state::{Failure, Shared};
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use wire::{Frame, MAX_MESSAGE, Member};

#[cfg(feature = "mpi")]
pub(crate) use rendezvous::listen;

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
pub(crate) fn join(place: &Place, options: &Options, listener: Option<TcpListener>) -> Result<Tcp, Error> {
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
    let spin = local_size <= cores();
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

/// One rank's end of the star.
pub(crate) struct Tcp {
    pub(crate) shared: Arc<Shared>,
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
        process_exit::claim();
        self.shared.explain(rank, message);
        self.shared.last_words(code, rank, &format!("aborted with exit code {code}: {message}"));
        process_exit::exit(code)
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
            process_exit::explained();
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
mod tests;
