//! The logs of all processes at rank 0 when the measurement fails.
//!
//! The world is of no use then: its operations fail once a rank has failed. So every process has a connection of its own
//! to rank 0, with a thread that sends the log when rank 0 asks for it, whatever the ranks of the process are doing. The
//! first process of each host also keeps the others' logs open, so that the log of a dead process is not lost.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use collectives::world;
use engine::nccl_choice::{CapturedLog, LogPlace};
use engine::supervision::{Stop, start_thread};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::lock;
use super::receiver::{ASK, REPORTED, Received, Receiver};
use super::wire::{Ending, Frame, PackedLog, Token};
use crate::command::doctor::gather;

/// Largest part of a process's log that is sent.
const LOG_BYTES: u64 = 12 << 20;

/// Largest sum of all logs of a measurement that failed: they are read within a few seconds.
const TOTAL_BYTES: u64 = 512 << 20;

/// Time limit of a connection to one address of rank 0: above the second after which a lost request is repeated.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Time limit of the connections to all addresses of rank 0, which a firewall may drop.
const CONNECT_TIME_OF_ALL: Duration = Duration::from_secs(4);

/// A process of the job, as it introduces itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Member {
    host: String,
    host_id: String,
    place: Option<LogPlace>,
    /// The addresses of rank 0's listener, and the token.
    rendezvous: Option<(Vec<SocketAddr>, Token)>,
}

/// One process's part of the exchange.
pub(super) struct Exchange {
    held: Arc<HeldLogs>,
    /// Host names by process.
    pub(super) hosts: Vec<String>,
    role: Role,
}

enum Role {
    /// With the number of processes that are connected.
    First(Receiver, usize),
    /// `None` without a connection to rank 0, or on rank 0 when it cannot listen.
    Other(Option<Sender>),
}

/// The logs that this process can read.
struct HeldLogs {
    process: usize,
    own: CapturedLog,
    /// Those of the other processes of this host, at its first process.
    neighbours: Vec<(usize, CapturedLog)>,
    /// Largest part of a log.
    limit: u64,
}

impl Exchange {
    /// Connects the processes. Without a connection the log of a process does not arrive, which the report says.
    /// Collective.
    pub(super) fn start(world: &world::Handle, own: CapturedLog) -> Result<Self, Stop> {
        let is_first = world.rank() == 0;
        let is_local = world.local_size() == world.size();
        let addresses = if is_local { Vec::new() } else { world::addresses() };
        let receiver = is_first.then(|| Receiver::start(addresses).ok()).flatten();
        let rendezvous = receiver.as_ref().map(|receiver| (receiver.addresses.clone(), receiver.token));
        let world::Host { name: host, id: host_id } = world::host();
        let member = Member { host, host_id, place: own.place().ok(), rendezvous };
        let members = gather(&**world, &member)?;
        let limit = LOG_BYTES.min(TOTAL_BYTES / members.len() as u64);
        let neighbours = neighbours(&members, world.rank());
        let held = Arc::new(HeldLogs { process: world.rank(), own, neighbours, limit });
        let sender = match (&members[0].rendezvous, is_first) {
            (Some((addresses, token)), false) => Sender::start(addresses, *token, &held).ok(),
            _ => None,
        };
        let connected =
            gather(&**world, &sender.is_some())?.into_iter().filter(|&connected| connected).count();
        let role = match receiver {
            Some(receiver) => Role::First(receiver, connected),
            None => Role::Other(sender),
        };
        Ok(Self { held, hosts: members.into_iter().map(|member| member.host).collect(), role })
    }

    /// The log of this process.
    pub(super) fn own_log(&self) -> PackedLog {
        pack(self.held.process, &self.held.own, LOG_BYTES)
    }

    /// The text of the log of this process.
    pub(super) fn own_text(&self) -> Vec<u8> {
        self.held.own.read(LOG_BYTES).unwrap_or_default().0
    }

    /// Tells rank 0 that this process ends.
    pub(super) fn tell(&self, ending: Ending) {
        if let Role::Other(Some(sender)) = &self.role {
            sender.send(Frame::Ended(ending));
        }
    }

    /// Waits until rank 0 has written its report. Returns false without one within `limit`.
    pub(super) fn wait_for_report(&self, limit: Duration) -> bool {
        match &self.role {
            Role::Other(Some(sender)) => sender.wait_for_report(limit),
            Role::First(..) | Role::Other(None) => false,
        }
    }

    /// The first ending that another process has told; on rank 0 only.
    pub(super) fn ending(&self) -> Option<Ending> {
        let Role::First(receiver, _) = &self.role else { return None };
        receiver.ending()
    }

    /// Asks all connected processes for their logs, and waits for them up to `limit`; on rank 0 only.
    pub(super) fn collect(&self, limit: Duration) -> Received {
        let mut received = match &self.role {
            Role::First(receiver, connected) => receiver.collect(*connected, limit),
            Role::Other(_) => Received::default(),
        };
        received.logs.extend(self.held.pack());
        received.logs = merge(received.logs);
        received
    }

    /// Tells the others that the report is written; on rank 0 only.
    pub(super) fn release(&self) {
        if let Role::First(receiver, _) = &self.role {
            receiver.say(REPORTED);
        }
    }
}

impl HeldLogs {
    fn pack(&self) -> Vec<PackedLog> {
        let neighbours = self.neighbours.iter().map(|(process, log)| pack(*process, log, self.limit));
        std::iter::once(pack(self.process, &self.own, self.limit)).chain(neighbours).collect()
    }
}

/// One log for each process: of two copies the longer one, since a process may have gone on writing.
pub(super) fn merge(mut logs: Vec<PackedLog>) -> Vec<PackedLog> {
    logs.sort_by_key(|log| (log.process, std::cmp::Reverse(log.gzip.len())));
    logs.dedup_by_key(|log| log.process);
    logs
}

/// The log of a process; an empty one where it cannot be read.
fn pack(process: usize, log: &CapturedLog, limit: u64) -> PackedLog {
    let (text, is_whole) = log.read(limit).unwrap_or_default();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Memory takes everything.
    let packed = encoder.write_all(&text).and_then(|()| encoder.finish());
    PackedLog { process, is_whole, gzip: packed.unwrap_or_default() }
}

/// Opens the logs of the other processes of this host, for its first process. Those in other namespaces cannot be opened.
fn neighbours(members: &[Member], own: usize) -> Vec<(usize, CapturedLog)> {
    let host_id = &members[own].host_id;
    let of_host = |process: &usize| members[*process].host_id == *host_id;
    let mut of_host = (0..members.len()).filter(of_host);
    if of_host.next() != Some(own) {
        return Vec::new();
    }
    of_host
        .filter_map(|process| Some((process, CapturedLog::open(members[process].place.as_ref()?).ok()?)))
        .collect()
}

/// The part of a process other than the first.
struct Sender {
    stream: Arc<Mutex<TcpStream>>,
    answer: Arc<Answer>,
}

/// Rank 0's answer: true once the report is written, false when the connection has ended without.
#[derive(Default)]
struct Answer {
    reported: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Sender {
    /// Connects to rank 0, and starts the thread that answers it.
    fn start(addresses: &[SocketAddr], token: Token, held: &Arc<HeldLogs>) -> io::Result<Self> {
        let refused = || io::Error::other("rank 0 cannot be reached");
        let deadline = Instant::now() + CONNECT_TIME_OF_ALL;
        let connect = |address: &SocketAddr| {
            let left = deadline.saturating_duration_since(Instant::now());
            // A limit of zero is refused.
            TcpStream::connect_timeout(address, left.min(CONNECT_TIME)).ok()
        };
        let stream = addresses.iter().find_map(connect).ok_or_else(refused)?;
        let mut reading = stream.try_clone()?;
        // Rank 0 may be stopped.
        stream.set_write_timeout(Some(CONNECT_TIME))?;
        let sender = Self { stream: Arc::new(Mutex::new(stream)), answer: Arc::default() };
        sender.send(Frame::Hello(token, held.process));
        let (writing, answer, held) =
            (Arc::clone(&sender.stream), Arc::clone(&sender.answer), Arc::clone(held));
        start_thread("logs", move || {
            let mut byte = [0];
            let reported = loop {
                match reading.read(&mut byte) {
                    Ok(1) if byte[0] == ASK => {
                        send(&writing, held.pack().into_iter().map(Frame::Log).chain([Frame::End]));
                    }
                    Ok(1) => break true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    _ => break false,
                }
            };
            *lock(&answer.reported) = Some(reported);
            answer.changed.notify_all();
        })?;
        Ok(sender)
    }

    fn send(&self, frame: Frame) {
        send(&self.stream, [frame]);
    }

    fn wait_for_report(&self, limit: Duration) -> bool {
        let waiting =
            self.answer
                .changed
                .wait_timeout_while(lock(&self.answer.reported), limit, |reported| reported.is_none());
        waiting.unwrap_or_else(PoisonError::into_inner).0.unwrap_or(false)
    }
}

/// Sends frames, and nothing more after an error, which shows at rank 0, where a log does not arrive.
fn send(stream: &Mutex<TcpStream>, frames: impl IntoIterator<Item = Frame>) {
    if write_frames(stream, frames).is_err() {
        let _ = lock(stream).shutdown(Shutdown::Write);
    }
}

/// Writes frames up to the first that is not written as a whole: bytes after its beginning would be read as its rest.
fn write_frames(stream: &Mutex<impl io::Write>, frames: impl IntoIterator<Item = Frame>) -> io::Result<()> {
    frames.into_iter().try_for_each(|frame| lock(stream).write_all(&frame.encode()))
}

#[cfg(test)]
mod tests {
    use super::super::wire::Decoder;
    use super::*;

    fn log(process: usize, length: usize) -> PackedLog {
        PackedLog { process, is_whole: true, gzip: vec![0; length] }
    }

    /// A connection that takes nothing for a while, after so many bytes.
    struct Stalling {
        room: usize,
        taken: Vec<u8>,
    }

    impl io::Write for Stalling {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                self.room = usize::MAX;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(self.room);
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_log_is_made_of_two_when_the_connection_stalls() {
        let stream = Mutex::new(Stalling { room: 50, taken: Vec::new() });
        let frames = [Frame::Log(log(1, 20)), Frame::Log(log(2, 100)), Frame::Log(log(3, 100)), Frame::End];
        write_frames(&stream, frames).unwrap_err();
        let mut decoder = Decoder::default();
        decoder.push(&stream.into_inner().unwrap().taken);
        assert_eq!(decoder.next(), Ok(Some(Frame::Log(log(1, 20)))));
        assert_eq!(decoder.next(), Ok(None));
    }

    #[test]
    fn the_longest_copy_of_each_log_is_kept() {
        let merged = merge(vec![log(2, 5), log(0, 1), log(2, 9), log(1, 3)]);
        assert_eq!(merged, [log(0, 1), log(1, 3), log(2, 9)]);
    }
}
