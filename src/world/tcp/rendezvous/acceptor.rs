//! Rank 0's side of the rendezvous.

use super::Connected;
use super::address::{format_address, format_ranges, group_by_key, resolve_host};
use crate::world::limits::MAX_NAME;
use crate::world::tcp::poll::Poll;
use crate::world::tcp::wire::{Frame, FrameDecoder, HANDSHAKE_TIMEOUT, JobMember, MAX_HELLO};
use crate::world::{Error, RendezvousConfig};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of connections with an incomplete handshake. The oldest is evicted if there are more.
pub(crate) const MAX_PENDING: usize = 256;
/// Maximum number of connections accepted between polls. Less than [`MAX_PENDING`]: every connection is
/// polled before it can be evicted.
pub(crate) const MAX_ACCEPTS: usize = 64;
/// Number of descriptors reserved for other uses: files, GPUs, a network.
const OTHER_DESCRIPTORS: usize = 512;

pub(crate) struct PendingConnection<S> {
    pub(crate) stream: S,
    pub(crate) decoder: FrameDecoder,
    since: Instant,
    polled: bool,
}

/// State of rank 0 during the rendezvous, over any non-blocking stream.
pub(crate) struct Acceptor<'a, S> {
    config: &'a RendezvousConfig,
    pub(crate) pending: VecDeque<PendingConnection<S>>,
    pub(crate) joined: Vec<Option<(S, JobMember)>>,
    /// Hosts of ranks that joined and disconnected.
    disconnected: Vec<Option<String>>,
    /// Names a rank started for another number of ranks.
    size_conflict: Option<String>,
    pub(crate) rejected: usize,
    pub(crate) last_rejection: String,
}

/// Listens on the first available port of the configuration.
///
/// # Errors
/// If no port is available.
pub(crate) fn listen_on_port(config: &RendezvousConfig) -> Result<TcpListener, Error> {
    let loopback = |name: &str| match name.parse::<IpAddr>() {
        Ok(address) => address.is_loopback().then_some(address),
        Err(_) => name.eq_ignore_ascii_case("localhost").then_some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    // A name may resolve to a loopback address on its own host only, so other names listen on all addresses.
    let addresses = match config.hosts.first().and_then(|host| loopback(host)) {
        Some(address) => vec![address],
        None => vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
    };
    let mut last = None;
    for &port in &config.ports {
        for &address in &addresses {
            match TcpListener::bind(SocketAddr::new(address, port)) {
                Ok(listener) => {
                    listener.set_nonblocking(true).map_err(|error| {
                        Error::Rendezvous(format!("rank 0 cannot listen on port {port}: {error}"))
                    })?;
                    return Ok(listener);
                }
                // IPv4 may be available without IPv6, but a port is in use for both.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    last = Some(error);
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
    }
    let ports: Vec<usize> = config.ports.iter().map(|&port| usize::from(port)).collect();
    let error = last.map_or_else(|| "no port was given".to_owned(), |error| error.to_string());
    Err(Error::Rendezvous(format!(
        "rank 0 cannot listen on port {}: {error}; another job or program may be using it: choose another \
         with MASTER_PORT or NCCL_BENCH_ADDR",
        format_ranges(&ports)
    )))
}

/// Raises this process's descriptor limit, as far as its hard limit allows, to hold a connection to each of
/// `size` ranks.
fn raise_descriptor_limit(size: usize) {
    let needed = (size + MAX_PENDING + OTHER_DESCRIPTORS) as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for writes.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if known && limit.rlim_cur < needed && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = needed.min(limit.rlim_max);
        // SAFETY: the limit is valid for reads. If it cannot be raised, accepting a connection reports an
        // error.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Returns the text for names of rank 0 possibly out of reach of other ranks: they cannot be resolved here,
/// or belong to another host. Empty if one of the names belongs to this host.
fn name_problems(config: &RendezvousConfig, port: u16) -> String {
    let is_own = |address: &SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
    let problem = |name: &String| match resolve_host(name, port) {
        Err(error) => Some(format!("; rank 0's name {name} cannot be resolved here: {error}")),
        Ok(addresses) if addresses.iter().any(is_own) => None,
        Ok(_) => Some(format!(
            "; the other ranks look for rank 0 at {name}, but this is not an address of this host"
        )),
    };
    let problems: Option<Vec<String>> = config.hosts.iter().map(problem).collect();
    problems.unwrap_or_default().concat()
}

pub(crate) fn accept_ranks(
    config: &RendezvousConfig,
    listener: &TcpListener,
    member: JobMember,
    timeout: Duration,
    deadline: Instant,
) -> Result<Connected, Error> {
    raise_descriptor_limit(config.size);
    let port = listener.local_addr().map_or(0, |address| address.port());
    let address = format_address(config.hosts.first().map_or("", String::as_str), port);
    let mut acceptor = Acceptor::<TcpStream>::new(config);
    while acceptor.missing_ranks().next().is_some() {
        let now = Instant::now();
        if now >= deadline {
            let message = acceptor.timeout_message(&address, timeout) + &name_problems(config, port);
            acceptor.tell_joined(&message);
            return Err(Error::TimedOut(message));
        }
        acceptor.serve_connections(listener, deadline - now).map_err(|error| {
            Error::Rendezvous(format!("rank 0 cannot wait for connections at {address}: {error}"))
        })?;
        if let Some(conflict) = acceptor.size_conflict.take() {
            let message = format!(
                "the rendezvous at {address} failed: {conflict}; start all processes with the same number \
                 of ranks, and use different ports for jobs at the same time"
            );
            acceptor.tell_joined(&message);
            return Err(Error::Rendezvous(message));
        }
    }
    let mut members = vec![member];
    let mut connections = vec![None];
    for (stream, member) in acceptor.joined.into_iter().flatten() {
        members.push(member);
        connections.push(Some((stream, FrameDecoder::default())));
    }
    Ok(Connected { members, connections, address })
}

impl Acceptor<'_, TcpStream> {
    pub(crate) fn serve_connections(&mut self, listener: &TcpListener, timeout: Duration) -> io::Result<()> {
        let now = Instant::now();
        let oldest =
            self.pending.front().map(|pending| HANDSHAKE_TIMEOUT.saturating_sub(now - pending.since));
        let mut poll = Poll::default();
        let new = poll.add_connection(listener, false);
        let pending: Vec<usize> =
            self.pending.iter().map(|pending| poll.add_connection(&pending.stream, false)).collect();
        let joined: Vec<(usize, usize)> = self
            .joined
            .iter()
            .enumerate()
            .filter_map(|(rank, joined)| Some((rank, poll.add_connection(&joined.as_ref()?.0, false))))
            .collect();
        poll.wait_for_ready(oldest.map_or(timeout, |oldest| oldest.min(timeout)))?;
        let new = poll.is_readable(new);
        let pending: Vec<bool> = pending.into_iter().map(|index| poll.is_readable(index)).collect();
        let joined: Vec<usize> =
            joined.into_iter().filter(|&(_, index)| poll.is_readable(index)).map(|(rank, _)| rank).collect();
        drop(poll);
        self.handle_readable(&joined, &pending, Instant::now());
        if new {
            self.accept_connections(listener);
        }
        Ok(())
    }

    /// Accepts up to [`MAX_ACCEPTS`] connections: they may arrive as fast as they are accepted.
    fn accept_connections(&mut self, listener: &TcpListener) {
        for _ in 0..MAX_ACCEPTS {
            match listener.accept() {
                Ok((stream, _)) => {
                    let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
                    if ready.is_ok() {
                        self.add_pending(stream, Instant::now());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer has closed this connection; there may be others.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Most likely no descriptors are left; an idle connection may hold one.
                    self.evict_oldest(&format!(
                        "no connection can be accepted ({error}; ulimit -n may help)"
                    ));
                    thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }
}

impl<'a, S: Read + Write> Acceptor<'a, S> {
    pub(crate) fn new(config: &'a RendezvousConfig) -> Self {
        Self {
            config,
            pending: VecDeque::new(),
            joined: (0..config.size).map(|_| None).collect(),
            disconnected: vec![None; config.size],
            size_conflict: None,
            rejected: 0,
            last_rejection: String::new(),
        }
    }

    /// Sends the reason for the failed rendezvous to the joined ranks. A rank that cannot be informed sees
    /// its connection close.
    fn tell_joined(&mut self, message: &str) {
        for (stream, _) in self.joined.iter_mut().flatten() {
            let _ = stream.write_all(&Frame::RendezvousFailed(message.to_owned()).encode());
        }
    }

    pub(crate) fn missing_ranks(&self) -> impl Iterator<Item = usize> {
        self.joined.iter().enumerate().skip(1).filter(|(_, joined)| joined.is_none()).map(|(rank, _)| rank)
    }

    /// Handles readable connections: the connections of the ranks in `joined`, and the pending ones marked
    /// `true` in `pending`.
    pub(crate) fn handle_readable(&mut self, joined: &[usize], pending: &[bool], now: Instant) {
        // A joined rank sends nothing until the rendezvous is complete, so its connection has closed.
        for &rank in joined {
            self.disconnect_rank(rank);
        }
        for (mut connection, &ready) in std::mem::take(&mut self.pending).into_iter().zip(pending) {
            connection.polled = true;
            if ready {
                self.read_hello(connection, now);
            } else if now - connection.since >= HANDSHAKE_TIMEOUT {
                self.reject_connection(&mut connection.stream, None, "it sent nothing in time".to_owned());
            } else {
                self.pending.push_back(connection);
            }
        }
    }

    fn disconnect_rank(&mut self, rank: usize) {
        if let Some((_, member)) = self.joined[rank].take() {
            self.disconnected[rank] = Some(member.host.name);
        }
    }

    pub(crate) fn add_pending(&mut self, stream: S, now: Instant) {
        self.pending.push_back(PendingConnection {
            stream,
            decoder: FrameDecoder::new(),
            since: now,
            polled: false,
        });
        if self.pending.len() > MAX_PENDING {
            self.evict_oldest("too many connections were pending");
        }
    }

    /// Evicts the oldest pending connection, unless it has not been polled, since its hello may have arrived.
    pub(crate) fn evict_oldest(&mut self, reason: &str) {
        self.rejected += 1;
        reason.clone_into(&mut self.last_rejection);
        if self.pending.front().is_some_and(|oldest| oldest.polled) {
            self.pending.pop_front();
        }
    }

    fn reject_connection(&mut self, stream: &mut S, reply: Option<Frame>, reason: String) {
        if let Some(reply) = reply {
            // The peer may have closed the connection.
            let _ = stream.write_all(&reply.encode_first());
        }
        self.rejected += 1;
        self.last_rejection = reason;
    }

    /// Reads from a pending connection, and handles its hello once it is complete.
    fn read_hello(&mut self, mut connection: PendingConnection<S>, now: Instant) {
        let mut buffer = [0; 2048];
        let read = match connection.stream.read(&mut buffer) {
            Ok(0) => Err("it closed the connection before its hello".to_owned()),
            Err(error) if is_waiting(&error) => Ok(0),
            read => read.map_err(|error| error.to_string()),
        };
        let frame = read.and_then(|count| {
            connection.decoder.push_bytes(&buffer[..count]);
            connection.decoder.next_within(MAX_HELLO).map_err(|malformed| malformed.0)
        });
        let more = connection.decoder.buffered_len();
        let reason = match frame {
            Ok(None) if now - connection.since < HANDSHAKE_TIMEOUT => {
                return self.pending.push_back(connection);
            }
            Ok(None) => "its hello took too long".to_owned(),
            Ok(Some(_)) if more > 0 => format!("{more} bytes too many"),
            // The key of another job is printed.
            Ok(Some(Frame::Hello(_, _, key, _))) if key.len() > MAX_NAME || key.contains('\n') => {
                "a key that is not a name".to_owned()
            }
            Ok(Some(Frame::Hello(rank, size, key, member))) => {
                return self.handle_hello(connection.stream, (rank as usize, size as usize), &key, member);
            }
            Ok(Some(_)) => "another frame than a hello".to_owned(),
            Err(reason) => reason,
        };
        self.reject_connection(&mut connection.stream, None, reason);
    }

    fn handle_hello(&mut self, mut stream: S, (rank, size): (usize, usize), key: &str, member: JobMember) {
        if key != self.config.key {
            let reason = format!("it belongs to another job (`{key}`, this one is `{}`)", self.config.key);
            return self.reject_connection(&mut stream, Some(Frame::OtherJob), reason);
        }
        // A rank without a reply in time has closed its connection and connected again. Both events may be
        // pending, and the closed connection must not cause a rejection.
        if let Some(Some((joined, _))) = self.joined.get_mut(rank)
            && has_ended(joined)
        {
            self.disconnect_rank(rank);
        }
        let host = &member.host.name;
        let reason = if size != self.config.size {
            let conflict = format!(
                "rank {rank} on {host} was started as one of {size} ranks but rank 0 as one of {}",
                self.config.size
            );
            // A missing rank has come. Others belong to some other job.
            if self.joined.get(rank).is_some_and(Option::is_none) && rank > 0 {
                self.size_conflict = Some(conflict.clone());
            }
            conflict
        } else if rank == 0 || rank >= size {
            format!("two processes were started as rank {rank} of {size}, this one on {host}")
        } else if let Some((_, first)) = &self.joined[rank] {
            format!("rank {rank} of {size} was started twice, on {} and on {host}", first.host.name)
        } else if has_ended(&mut stream) || stream.write_all(&Frame::Accepted.encode_first()).is_err() {
            self.disconnected[rank] = Some(member.host.name);
            return self.reject_connection(
                &mut stream,
                None,
                "it closed the connection after its hello".to_owned(),
            );
        } else {
            self.joined[rank] = Some((stream, member));
            return;
        };
        self.reject_connection(&mut stream, Some(Frame::Rejected(reason.clone())), reason);
    }

    pub(crate) fn timeout_message(&self, address: &str, timeout: Duration) -> String {
        let missing: Vec<usize> = self.missing_ranks().collect();
        let mut text = format!(
            "the rendezvous at {address} failed: after {} s, {} of {} ranks {} missing: rank {}",
            timeout.as_secs_f64(),
            missing.len(),
            self.config.size,
            if missing.len() == 1 { "is" } else { "are" },
            format_ranges(&missing),
        );
        for (rank, host) in missing.iter().filter_map(|&rank| Some((rank, self.disconnected[rank].as_ref()?)))
        {
            text += &format!(" (rank {rank} came from {host} and ended)");
        }
        let joined = self.joined.iter().enumerate();
        let hosts =
            group_by_key(joined.filter_map(|(rank, joined)| Some((&joined.as_ref()?.1.host.name, rank))));
        for (index, (host, ranks)) in hosts.iter().enumerate() {
            text += if index == 0 { "; present: " } else { ", " };
            text += &format!("rank {} on {host}", format_ranges(ranks));
        }
        if self.rejected > 0 {
            text += &format!(
                "; {} other connection{} rejected, the last because {}",
                self.rejected,
                if self.rejected == 1 { " was" } else { "s were" },
                self.last_rejection
            );
        }
        text
    }
}

/// True if a stream has ended or received data although it must be silent. Does not block.
fn has_ended(stream: &mut impl Read) -> bool {
    !stream.read(&mut [0]).is_err_and(|error| is_waiting(&error))
}

/// True for the error of a non-blocking stream without data.
fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
