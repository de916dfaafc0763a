//! Rank 0's side of the rendezvous.

use super::Met;
use super::address::{ranges, resolve, written};
use crate::world::tcp::poll::Poll;
use crate::world::tcp::wire::{Answer, Frame, Frames, GREETING, Greeting, Member};
use crate::world::{Error, Place};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// How many connections may be about to say their greeting; the oldest goes when there is one more.
pub(crate) const MOST_PENDING: usize = 256;
/// How many connections are taken in before those that are there are listened to: fewer than may be pending, so that
/// each is listened to before others take its place.
pub(crate) const MOST_AT_ONCE: usize = 64;
/// Descriptors for everything else that a process does: files, GPUs, a network.
const OTHER_DESCRIPTORS: usize = 512;
/// A connection that has not said its greeting yet.
pub(crate) struct Pending<S> {
    pub(crate) stream: S,
    pub(crate) bytes: Vec<u8>,
    since: Instant,
    /// Whether it has been listened to.
    polled: bool,
}

/// What rank 0 knows while it waits. The connections are any that never wait, so that it can be tested without any.
pub(crate) struct Reception<'a, S> {
    place: &'a Place,
    pub(crate) pending: VecDeque<Pending<S>>,
    pub(crate) joined: Vec<Option<(S, Member)>>,
    /// Hosts of ranks that came and went again.
    gone: Vec<Option<String>>,
    pub(crate) refused: usize,
    pub(crate) last_refusal: String,
}

/// Listens where rank 0 of this job should, on the first of its ports that is free.
///
/// # Errors
/// When none is.
pub(crate) fn listen(place: &Place) -> Result<TcpListener, Error> {
    let loopback = |name: &str| match name.parse::<IpAddr>() {
        Ok(address) => address.is_loopback().then_some(address),
        Err(_) => name.eq_ignore_ascii_case("localhost").then_some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    // A name may resolve to a loopback address on its own host only, so anything else listens everywhere.
    let addresses = match place.hosts.first().and_then(|host| loopback(host)) {
        Some(address) => vec![address],
        None => vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
    };
    let mut last = None;
    for &port in &place.ports {
        for &address in &addresses {
            match TcpListener::bind(SocketAddr::new(address, port)) {
                Ok(listener) => {
                    listener.set_nonblocking(true).map_err(|error| {
                        Error::Rendezvous(format!("rank 0 cannot listen on port {port}: {error}"))
                    })?;
                    return Ok(listener);
                }
                // Without IPv6 there is still IPv4; a port in use is in use for both.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    last = Some(error);
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
    }
    let ports: Vec<usize> = place.ports.iter().map(|&port| usize::from(port)).collect();
    let error = last.map_or_else(|| "no port was given".to_owned(), |error| error.to_string());
    Err(Error::Rendezvous(format!(
        "rank 0 cannot listen on port {}: {error}; another job or program may be using it: choose another with \
         MASTER_PORT or NCCL_BENCH_ADDR",
        ranges(&ports)
    )))
}

/// Lets this process have a connection to each of `size` ranks, and some more, where its hard limit allows it.
fn allow_descriptors(size: usize) {
    let needed = (size + MOST_PENDING + OTHER_DESCRIPTORS) as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for writes.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if known && limit.rlim_cur < needed && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = needed.min(limit.rlim_max);
        // SAFETY: the limit is valid for reads. When it cannot be raised, accepting a connection will say so.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Reasons for which the others may look for rank 0 in vain: names that are not known here either, or are another host's.
/// None where one of the names is this host's.
fn name_problems(place: &Place, port: u16) -> String {
    let is_own = |address: &SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
    let problem = |name: &String| match resolve(name, port) {
        Err(error) => Some(format!("; rank 0's name {name} cannot be resolved here: {error}")),
        Ok(addresses) if addresses.iter().any(is_own) => None,
        Ok(_) => Some(format!("; the others look for rank 0 at {name}, which is no address of this host")),
    };
    let problems: Option<Vec<String>> = place.hosts.iter().map(problem).collect();
    problems.unwrap_or_default().concat()
}

pub(crate) fn receive(
    place: &Place,
    listener: &TcpListener,
    member: Member,
    timeout: Duration,
    deadline: Instant,
) -> Result<Met, Error> {
    allow_descriptors(place.size);
    let port = listener.local_addr().map_or(0, |address| address.port());
    let address = written(place.hosts.first().map_or("", String::as_str), port);
    let mut reception = Reception::<TcpStream>::new(place);
    while reception.missing().next().is_some() {
        let now = Instant::now();
        if now >= deadline {
            let message = reception.given_up(&address, timeout) + &name_problems(place, port);
            for (stream, _) in reception.joined.iter_mut().flatten() {
                // Who cannot be told notices that the connection ends.
                let _ = stream.write_all(&Frame::GivenUp(message.clone()).encode());
            }
            return Err(Error::TimedOut(message));
        }
        reception.serve(listener, deadline - now).map_err(|error| {
            Error::Rendezvous(format!("rank 0 cannot wait for connections at {address}: {error}"))
        })?;
    }
    let mut members = vec![member];
    let mut connections = vec![None];
    for (stream, member) in reception.joined.into_iter().flatten() {
        members.push(member);
        connections.push(Some((stream, Frames::default())));
    }
    Ok(Met { members, connections, address })
}

impl Reception<'_, TcpStream> {
    /// Waits until something happens and deals with it.
    pub(crate) fn serve(&mut self, listener: &TcpListener, left: Duration) -> io::Result<()> {
        let now = Instant::now();
        let oldest = self.pending.front().map(|pending| GREETING.saturating_sub(now - pending.since));
        let mut poll = Poll::default();
        let new = poll.add(listener, false);
        let pending: Vec<usize> =
            self.pending.iter().map(|pending| poll.add(&pending.stream, false)).collect();
        let joined: Vec<(usize, usize)> = self
            .joined
            .iter()
            .enumerate()
            .filter_map(|(rank, joined)| Some((rank, poll.add(&joined.as_ref()?.0, false))))
            .collect();
        poll.wait(oldest.map_or(left, |oldest| oldest.min(left)))?;
        let new = poll.readable(new);
        let pending: Vec<bool> = pending.into_iter().map(|number| poll.readable(number)).collect();
        let joined: Vec<usize> =
            joined.into_iter().filter(|&(_, number)| poll.readable(number)).map(|(rank, _)| rank).collect();
        drop(poll);
        self.attend(&joined, &pending, Instant::now());
        if new {
            self.admit(listener);
        }
        Ok(())
    }

    /// Takes in who has come; the next turn takes the rest, since connections may come as fast as they are accepted.
    fn admit(&mut self, listener: &TcpListener) {
        for _ in 0..MOST_AT_ONCE {
            match listener.accept() {
                Ok((stream, _)) => {
                    let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
                    if ready.is_ok() {
                        self.take_in(stream, Instant::now());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The connection that was to be accepted has ended: there may be others.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Most likely there are no descriptors left; a silent connection may hold one.
                    self.evict(&format!("no connection can be accepted ({error}; ulimit -n may help)"));
                    thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }
}

impl<'a, S: Read + Write> Reception<'a, S> {
    pub(crate) fn new(place: &'a Place) -> Self {
        Self {
            place,
            pending: VecDeque::new(),
            joined: (0..place.size).map(|_| None).collect(),
            gone: vec![None; place.size],
            refused: 0,
            last_refusal: String::new(),
        }
    }

    pub(crate) fn missing(&self) -> impl Iterator<Item = usize> {
        self.joined.iter().enumerate().skip(1).filter(|(_, joined)| joined.is_none()).map(|(rank, _)| rank)
    }

    /// Deals with what has come: from the ranks of `joined`, and from the connections that are `pending`, in order.
    pub(crate) fn attend(&mut self, joined: &[usize], pending: &[bool], now: Instant) {
        // A rank that has joined says nothing until it is told to go on: this is its end.
        for &rank in joined {
            self.vacate(rank);
        }
        for (mut connection, &ready) in std::mem::take(&mut self.pending).into_iter().zip(pending) {
            connection.polled = true;
            if ready {
                self.hear(connection, now);
            } else if now - connection.since >= GREETING {
                self.turn_away(&mut connection.stream, None, "it said nothing in time".to_owned());
            } else {
                self.pending.push_back(connection);
            }
        }
    }

    /// Takes its seat from a rank that has ended.
    fn vacate(&mut self, rank: usize) {
        if let Some((_, member)) = self.joined[rank].take() {
            self.gone[rank] = Some(member.host.name);
        }
    }

    /// A connection that is to say its greeting.
    pub(crate) fn take_in(&mut self, stream: S, now: Instant) {
        self.pending.push_back(Pending { stream, bytes: Vec::new(), since: now, polled: false });
        if self.pending.len() > MOST_PENDING {
            self.evict("too many connections came at once");
        }
    }

    /// Ends the oldest connection, unless it has not been listened to: what it says may have come with it.
    pub(crate) fn evict(&mut self, reason: &str) {
        self.refused += 1;
        reason.clone_into(&mut self.last_refusal);
        if self.pending.front().is_some_and(|oldest| oldest.polled) {
            self.pending.pop_front();
        }
    }

    fn turn_away(&mut self, stream: &mut S, answer: Option<Answer>, reason: String) {
        if let Some(answer) = answer {
            // The other side may have gone already.
            let _ = stream.write_all(&answer.encode());
        }
        self.refused += 1;
        self.last_refusal = reason;
    }

    /// Reads what a connection says, and lets it join once its greeting is complete and right.
    fn hear(&mut self, mut connection: Pending<S>, now: Instant) {
        let mut buffer = [0; 2048];
        match connection.stream.read(&mut buffer) {
            Ok(0) => {
                return self.turn_away(
                    &mut connection.stream,
                    None,
                    "it ended before its greeting".to_owned(),
                );
            }
            Ok(count) => connection.bytes.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return self.turn_away(&mut connection.stream, None, error.to_string()),
        }
        match Greeting::decode(&connection.bytes) {
            Ok(None) if now - connection.since < GREETING => self.pending.push_back(connection),
            Ok(None) => self.turn_away(&mut connection.stream, None, "its greeting took too long".to_owned()),
            Ok(Some(greeting)) => self.greet(connection.stream, greeting),
            Err(malformed) => self.turn_away(&mut connection.stream, None, malformed.0),
        }
    }

    fn greet(&mut self, mut stream: S, greeting: Greeting) {
        let Greeting { rank, size, key, member } = greeting;
        if key != self.place.key {
            let reason = format!("it belongs to another job (`{key}`, this one is `{}`)", self.place.key);
            return self.turn_away(&mut stream, Some(Answer::Stranger), reason);
        }
        let (rank, size) = (rank as usize, size as usize);
        // A rank to which this process did not answer in time has given up its connection, and come again: the end of
        // one and the greeting of the other may be here at once. Nobody is refused for one that has ended.
        if let Some(Some((seated, _))) = self.joined.get_mut(rank)
            && is_over(seated)
        {
            self.vacate(rank);
        }
        let host = &member.host.name;
        let reason = if size != self.place.size {
            format!(
                "rank {rank} on {host} was started as one of {size} ranks but rank 0 as one of {}",
                self.place.size
            )
        } else if rank == 0 || rank >= size {
            format!("two processes were started as rank {rank} of {size}, this one on {host}")
        } else if let Some((_, first)) = &self.joined[rank] {
            format!("rank {rank} of {size} was started twice, on {} and on {host}", first.host.name)
        } else if is_over(&mut stream) || stream.write_all(&Answer::Accepted.encode()).is_err() {
            self.gone[rank] = Some(member.host.name);
            return self.turn_away(&mut stream, None, "it ended after its greeting".to_owned());
        } else {
            self.joined[rank] = Some((stream, member));
            return;
        };
        self.turn_away(&mut stream, Some(Answer::Refused(reason.clone())), reason);
    }

    pub(crate) fn given_up(&self, address: &str, timeout: Duration) -> String {
        let missing: Vec<usize> = self.missing().collect();
        let mut text = format!(
            "the rendezvous at {address} failed: after {} s, {} of {} ranks {} missing: rank {}",
            timeout.as_secs_f64(),
            missing.len(),
            self.place.size,
            if missing.len() == 1 { "is" } else { "are" },
            ranges(&missing),
        );
        for (rank, host) in missing.iter().filter_map(|&rank| Some((rank, self.gone[rank].as_ref()?))) {
            text += &format!(" (rank {rank} came from {host} and ended)");
        }
        let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
        for (rank, joined) in self.joined.iter().enumerate() {
            let Some((_, member)) = joined else { continue };
            let name = member.host.name.as_str();
            match hosts.iter_mut().find(|(host, _)| *host == name) {
                Some((_, ranks)) => ranks.push(rank),
                None => hosts.push((name, vec![rank])),
            }
        }
        for (index, (host, ranks)) in hosts.iter().enumerate() {
            text += if index == 0 { "; present: " } else { ", " };
            text += &format!("rank {} on {host}", ranges(ranks));
        }
        if self.refused > 0 {
            text += &format!(
                "; {} other connection{} turned away, the last because {}",
                self.refused,
                if self.refused == 1 { " was" } else { "s were" },
                self.last_refusal
            );
        }
        text
    }
}

/// Whether a connection over which nothing is to come has ended, or something came. Does not wait.
fn is_over(stream: &mut impl Read) -> bool {
    let waits =
        |error: io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    !stream.read(&mut [0]).is_err_and(waits)
}
