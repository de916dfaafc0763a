//! The part of rank 0 in the exchange of logs: it accepts connections, asks for the logs and reads them.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use engine::supervision::start_thread;

use super::lock;
use super::wire::{Decoder, Ending, Frame, PackedLog, Token};

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
pub(super) const ASK: u8 = b'?';

/// Rank 0's message that its report is written.
pub(super) const REPORTED: u8 = b'!';

/// The logs and endings that rank 0 has received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// The logs, in the order of the processes, one each.
    pub logs: Vec<PackedLog>,
    /// The processes that have ended before the measurement was complete.
    pub endings: Vec<(usize, Ending)>,
}

/// The part of rank 0. Threads accept the connections as soon as they come, since the system keeps only 128.
pub(super) struct Receiver {
    /// The addresses at which it listens.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) token: Token,
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
    ending: Option<Ending>,
    is_asked: bool,
    /// True once it has sent its logs, or cannot send any more.
    has_ended: bool,
}

impl Receiver {
    /// Listens at these addresses of this host; only within the host when there is none.
    pub(super) fn start(mut addresses: Vec<IpAddr>) -> io::Result<Self> {
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
        start_thread("connections", move || {
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

    /// The first ending that has been told.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.receive();
        lock(&self.peers).iter().find_map(Peer::told).map(|(_, ending)| ending)
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
    pub(super) fn collect(&self, connected: usize, limit: Duration) -> Received {
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
                let mut endings: Vec<_> = peers.iter().filter_map(Peer::told).collect();
                endings.sort_unstable();
                // Kept, since another thread collects them again when a process dies meanwhile.
                let logs = peers.iter().flat_map(|peer| peer.logs.iter().cloned()).collect();
                return Received { logs, endings };
            }
            drop(peers);
            thread::sleep(POLL);
        }
    }

    /// Sends a byte to all processes.
    pub(super) fn say(&self, byte: u8) {
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
            ending: None,
            is_asked: false,
            has_ended: false,
        }
    }

    /// The ending that it has told.
    fn told(&self) -> Option<(usize, Ending)> {
        Some((self.process?, self.ending.clone()?))
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
            (Frame::Ended(ending), Some(_)) => self.ending = Some(ending),
            (Frame::Log(log), Some(_)) => self.logs.push(log),
            // No process sends anything else.
            _ => self.has_ended = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::merge;
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
    fn logs_arrive_of_the_living_and_the_dead_and_the_stopped_hold_nobody_up() {
        let receiver = Receiver::start(Vec::new()).unwrap();
        let token = receiver.token;
        let mut failing = connect(&receiver, token, 1);
        let broke = Ending::Failed("it broke".to_owned());
        failing.write_all(&Frame::Ended(broke.clone()).encode()).unwrap();
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
        assert_eq!(received.endings, [(1, broke.clone())]);
        assert_eq!(receiver.ending(), Some(broke));
        assert_eq!(received.logs, [log(1, 3), log(4, 2)]);
        // Another thread may report a failure that came during this.
        assert_eq!(receiver.collect(2, Duration::ZERO), received);
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
