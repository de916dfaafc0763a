//! The logs of all processes at rank 0 when the measurement fails.
//!
//! The world is of no use then: its operations fail once a rank has failed. So every process has a connection of its own
//! to rank 0, with a thread that sends the log when rank 0 asks for it, whatever the ranks of the process are doing. The
//! first process of each host also keeps the others' logs open, so that the log of a dead process is not lost.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use collectives::world;
use engine::nccl_choice::{CapturedLog, LogPlace};
use engine::supervision::Stop;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::lock;
use super::wire::{Decoder, Frame, PackedLog, Token};
use crate::command::doctor::gather;

/// Largest part of a process's log that is sent.
const LOG_BYTES: u64 = 12 << 20;

/// Largest sum of all logs of a measurement that failed: they are read within a few seconds.
const TOTAL_BYTES: u64 = 512 << 20;

/// Time limit of a connection to one address of rank 0: above the second after which a lost request is repeated.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Time limit of the connections to all addresses of rank 0, which a firewall may drop.
const CONNECT_TIME_OF_ALL: Duration = Duration::from_secs(4);

/// Time in which a connection has to say the token.
const TOKEN_TIME: Duration = Duration::from_secs(10);

/// Most addresses of rank 0 that are tried.
const MOST_ADDRESSES: usize = 8;

/// Interval at which rank 0 looks for messages.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// Bytes read from a connection before the others have their turn.
const TURN_BYTES: usize = 1 << 20;

/// Bytes read at once.
const PART_BYTES: usize = 1 << 16;

/// Rank 0's question for the logs.
const ASK: u8 = b'?';

/// Rank 0's message that its report is written.
const REPORTED: u8 = b'!';

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

/// The logs and failures that rank 0 has received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// The logs, in the order of the processes, one each.
    pub logs: Vec<PackedLog>,
    /// The messages of the processes that failed.
    pub failures: Vec<(usize, String)>,
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

    /// Tells rank 0 that this process has failed.
    pub(super) fn tell(&self, message: &str) {
        if let Role::Other(Some(sender)) = &self.role {
            sender.send(&Frame::Failed(message.to_owned()));
        }
    }

    /// Waits until rank 0 has written its report. Returns false without one within `limit`.
    pub(super) fn wait_for_report(&self, limit: Duration) -> bool {
        match &self.role {
            Role::Other(Some(sender)) => sender.wait_for_report(limit),
            Role::First(..) | Role::Other(None) => false,
        }
    }

    /// The first failure that another process has told; on rank 0 only.
    pub(super) fn failure(&self) -> Option<(usize, String)> {
        let Role::First(receiver, _) = &self.role else { return None };
        receiver.receive();
        lock(&receiver.peers).iter().find_map(Peer::told)
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
fn merge(mut logs: Vec<PackedLog>) -> Vec<PackedLog> {
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
        sender.send(&Frame::Hello(token, held.process));
        let (writing, answer, held) =
            (Arc::clone(&sender.stream), Arc::clone(&sender.answer), Arc::clone(held));
        thread::Builder::new().name("logs".to_owned()).spawn(move || {
            let mut byte = [0];
            let reported = loop {
                match reading.read(&mut byte) {
                    Ok(1) if byte[0] == ASK => send_logs(&writing, &held),
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

    /// Sends a frame. An error shows at rank 0, where the log does not arrive.
    fn send(&self, frame: &Frame) {
        let _ = lock(&self.stream).write_all(&frame.encode());
    }

    fn wait_for_report(&self, limit: Duration) -> bool {
        let waiting =
            self.answer
                .changed
                .wait_timeout_while(lock(&self.answer.reported), limit, |reported| reported.is_none());
        waiting.unwrap_or_else(PoisonError::into_inner).0.unwrap_or(false)
    }
}

fn send_logs(stream: &Mutex<TcpStream>, held: &HeldLogs) {
    for log in held.pack() {
        let _ = lock(stream).write_all(&Frame::Log(log).encode());
    }
    let _ = lock(stream).write_all(&Frame::End.encode());
}

/// The part of rank 0. Threads accept the connections as soon as they come, since the system keeps only 128.
struct Receiver {
    /// The addresses at which it listens.
    addresses: Vec<SocketAddr>,
    token: Token,
    peers: Arc<Mutex<Vec<Peer>>>,
}

/// A connection of another process.
struct Peer {
    stream: TcpStream,
    accepted: Instant,
    decoder: Decoder,
    /// Its number, once it has said it with the token.
    process: Option<usize>,
    logs: Vec<PackedLog>,
    failure: Option<String>,
    is_asked: bool,
    /// True once it has sent its logs, or cannot send any more.
    has_ended: bool,
}

impl Receiver {
    /// Listens at these addresses of this host; only within the host when there is none.
    fn start(mut addresses: Vec<IpAddr>) -> io::Result<Self> {
        addresses.truncate(MOST_ADDRESSES);
        let mut token = Token::default();
        File::open("/dev/urandom")?.read_exact(&mut token)?;
        let mut receiver = Self { addresses: Vec::new(), token, peers: Arc::default() };
        if addresses.is_empty() {
            let port = receiver.listen(Ipv4Addr::LOCALHOST.into())?;
            receiver.addresses = vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)];
            return Ok(receiver);
        }
        // One for each family: `net.ipv6.bindv6only` keeps IPv4 from a listener of IPv6, and a host may have only one.
        let ports = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(|any: IpAddr| {
            addresses
                .iter()
                .any(|each| each.is_ipv4() == any.is_ipv4())
                .then(|| receiver.listen(any).ok())
                .flatten()
        });
        let reachable =
            |address: IpAddr| Some(SocketAddr::new(address, ports[usize::from(address.is_ipv6())]?));
        receiver.addresses = addresses.into_iter().filter_map(reachable).collect();
        Ok(receiver)
    }

    /// Listens, starts the thread that accepts, and returns the port.
    fn listen(&self, address: IpAddr) -> io::Result<u16> {
        let listener = TcpListener::bind((address, 0))?;
        let port = listener.local_addr()?.port();
        let peers = Arc::downgrade(&self.peers);
        thread::Builder::new().name("connections".to_owned()).spawn(move || {
            loop {
                let accepted = listener.accept();
                let Some(peers) = peers.upgrade() else { return };
                match accepted {
                    Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                        lock(&peers).push(Peer::new(stream));
                    }
                    Ok(_) => {}
                    // Too many open files, for example.
                    Err(_) => thread::sleep(POLL),
                }
            }
        })?;
        Ok(port)
    }

    /// Reads what has arrived. Does not wait.
    fn receive(&self) {
        let mut part = vec![0; PART_BYTES];
        let mut peers = lock(&self.peers);
        for peer in peers.iter_mut() {
            peer.receive(&self.token, &mut part);
        }
        let now = Instant::now();
        peers.retain(|peer| !peer.is_stranger(now));
    }

    /// Asks for the logs, and waits up to `limit` until `connected` processes have sent theirs.
    fn collect(&self, connected: usize, limit: Duration) -> Received {
        let deadline = Instant::now() + limit;
        loop {
            self.receive();
            let mut peers = lock(&self.peers);
            for peer in peers.iter_mut().filter(|peer| peer.process.is_some() && !peer.is_asked) {
                peer.is_asked = true;
                peer.say(ASK);
            }
            let ended = peers.iter().filter(|peer| peer.process.is_some() && peer.has_ended).count();
            if ended >= connected || Instant::now() >= deadline {
                let mut failures: Vec<_> = peers.iter().filter_map(Peer::told).collect();
                failures.sort_unstable();
                let logs = peers.iter_mut().flat_map(|peer| std::mem::take(&mut peer.logs)).collect();
                return Received { logs, failures };
            }
            drop(peers);
            thread::sleep(POLL);
        }
    }

    fn say(&self, byte: u8) {
        for peer in lock(&self.peers).iter_mut() {
            peer.say(byte);
        }
    }
}

impl Peer {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            accepted: Instant::now(),
            decoder: Decoder::default(),
            process: None,
            logs: Vec::new(),
            failure: None,
            is_asked: false,
            has_ended: false,
        }
    }

    /// The failure that it has told.
    fn told(&self) -> Option<(usize, String)> {
        Some((self.process?, self.failure.clone()?))
    }

    /// Sends a byte. One that the connection does not take is not waited for.
    fn say(&mut self, byte: u8) {
        let _ = self.stream.write_all(&[byte]);
    }

    /// True for a connection that has not said the token, and will not.
    fn is_stranger(&self, now: Instant) -> bool {
        let is_late = now.saturating_duration_since(self.accepted) >= TOKEN_TIME;
        self.process.is_none() && (self.has_ended || is_late)
    }

    /// Reads what has arrived, through the memory `part`.
    fn receive(&mut self, token: &Token, part: &mut [u8]) {
        let mut left = TURN_BYTES;
        while left > 0 && !self.has_ended {
            match self.stream.read(part) {
                Ok(0) => self.has_ended = true,
                Ok(count) => {
                    self.decoder.push(&part[..count]);
                    left = left.saturating_sub(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.has_ended = true,
            }
        }
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => self.accept(frame, token),
                Ok(None) => break,
                Err(_) => {
                    self.has_ended = true;
                    break;
                }
            }
        }
    }

    fn accept(&mut self, frame: Frame, token: &Token) {
        match (frame, self.process) {
            (Frame::Hello(said, process), None) if said == *token => self.process = Some(process),
            (Frame::Failed(message), Some(_)) => self.failure = Some(message),
            (Frame::Log(log), Some(_)) => self.logs.push(log),
            // No process sends anything else.
            _ => self.has_ended = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(process: usize, length: usize) -> PackedLog {
        PackedLog { process, is_whole: true, gzip: vec![0; length] }
    }

    /// Connects to a receiver, and says a token.
    fn connect(receiver: &Receiver, token: Token, process: usize) -> TcpStream {
        let mut stream = TcpStream::connect(receiver.addresses[0]).unwrap();
        stream.write_all(&Frame::Hello(token, process).encode()).unwrap();
        stream
    }

    #[test]
    fn the_longest_copy_of_each_log_is_kept() {
        let merged = merge(vec![log(2, 5), log(0, 1), log(2, 9), log(1, 3)]);
        assert_eq!(merged, [log(0, 1), log(1, 3), log(2, 9)]);
    }

    #[test]
    fn logs_arrive_of_the_living_and_the_dead_and_the_stopped_hold_nobody_up() {
        let receiver = Receiver::start(Vec::new()).unwrap();
        let token = receiver.token;
        let mut failing = connect(&receiver, token, 1);
        failing.write_all(&Frame::Failed("it broke".to_owned()).encode()).unwrap();
        failing
            .write_all(
                &[Frame::Log(log(1, 3)), Frame::Log(log(4, 2)), Frame::End]
                    .map(|frame| frame.encode())
                    .concat(),
            )
            .unwrap();
        // A log of which only the beginning was sent.
        let mut dying = connect(&receiver, token, 2);
        dying.write_all(&Frame::Log(log(2, 100)).encode()[..50]).unwrap();
        drop(dying);
        let _stopped = connect(&receiver, token, 3);
        let mut stranger = connect(&receiver, [0; 16], 4);
        stranger.write_all(&Frame::Log(log(4, 1)).encode()).unwrap();
        let received = receiver.collect(4, Duration::from_millis(500));
        assert_eq!(received.failures, [(1, "it broke".to_owned())]);
        assert_eq!(received.logs, [log(1, 3), log(4, 2)]);
        receiver.say(REPORTED);
        let mut answer = [0; 2];
        failing.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [ASK, REPORTED]);
    }

    /// The system keeps 128 connections that are not accepted, and then none.
    #[test]
    fn more_processes_connect_at_once_than_the_system_keeps_and_nobody_waits_for_one_without_a_connection() {
        const PROCESSES: usize = 200;
        let receiver = Receiver::start(Vec::new()).unwrap();
        let mut streams: Vec<_> =
            (1..=PROCESSES).map(|process| connect(&receiver, receiver.token, process)).collect();
        for (process, stream) in (1..).zip(&mut streams) {
            let frames = [Frame::Log(log(process, 3)), Frame::End].map(|frame| frame.encode());
            stream.write_all(&frames.concat()).unwrap();
        }
        let begin = Instant::now();
        let received = receiver.collect(PROCESSES, Duration::from_secs(600));
        assert_eq!(merge(received.logs), (1..=PROCESSES).map(|process| log(process, 3)).collect::<Vec<_>>());
        assert!(begin.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn both_families_of_addresses_are_listened_at() {
        let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        // A machine may have no IPv6.
        let usable: Vec<_> =
            local.into_iter().filter(|&address| TcpListener::bind((address, 0)).is_ok()).collect();
        let receiver = Receiver::start(usable.clone()).unwrap();
        let listening: Vec<_> = receiver.addresses.iter().map(SocketAddr::ip).collect();
        assert_eq!(listening, usable);
        for address in &receiver.addresses {
            TcpStream::connect(address).unwrap();
        }
    }

    #[test]
    fn a_connection_that_does_not_say_the_token_is_closed() {
        let receiver = Receiver::start(Vec::new()).unwrap();
        let _known = connect(&receiver, receiver.token, 1);
        let _silent = TcpStream::connect(receiver.addresses[0]).unwrap();
        let known = |peers: &[Peer]| peers.iter().filter(|peer| peer.process == Some(1)).count();
        while lock(&receiver.peers).len() < 2 || known(&lock(&receiver.peers)) < 1 {
            receiver.receive();
        }
        let strangers = |now: Instant| {
            lock(&receiver.peers)
                .iter()
                .filter(|peer| peer.is_stranger(now))
                .map(|peer| peer.process)
                .collect::<Vec<_>>()
        };
        assert_eq!(strangers(Instant::now() + TOKEN_TIME), [None]);
    }
}
