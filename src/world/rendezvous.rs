//! How ranks find each other over TCP: rank 0 listens, all others connect to it.
//!
//! Rank 0 serves all connections from one thread without ever waiting for one of them. Whoever connects has five
//! seconds to say the greeting of this job; anything else is turned away and counted. Other ranks retry until the
//! deadline, whatever they find at the address, and also when its name is not known yet, as that of a pod that starts
//! later.

use super::host::host;
use super::poll::Poll;
use super::wire::{Answer, Frame, Frames, Greeting, Member};
use super::{Error, Options, Place};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// How long a connection may take to say its greeting, and rank 0 to answer it.
pub(super) const GREETING: Duration = Duration::from_secs(5);
/// How long an answer may take while rank 0 may as well listen on another port.
const SEARCHING: Duration = Duration::from_secs(2);
/// How many connections may be about to say their greeting; the oldest goes when there is one more.
pub(super) const MOST_PENDING: usize = 256;
/// How many connections are taken in before those that are there are listened to: fewer than may be pending, so that
/// each is listened to before others take its place.
pub(super) const MOST_AT_ONCE: usize = 64;
/// Descriptors for everything else that a process does: files, GPUs, a network.
const OTHER_DESCRIPTORS: usize = 512;
/// How much longer than rank 0 the others wait, so that they hear from it which ranks are missing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ranks of a job that have found each other.
pub(super) struct Met {
    pub(super) members: Vec<Member>,
    /// By rank: of rank 0 to all others, of the others to rank 0. With what has been read too far.
    pub(super) connections: Vec<Option<(TcpStream, Frames)>>,
    /// Where they met.
    pub(super) address: String,
}

/// Finds all ranks of a job. Rank 0 may be listening already.
///
/// # Errors
/// When the deadline has come; the error names the missing ranks, or what was tried.
pub(super) fn meet(place: &Place, options: &Options, listener: Option<TcpListener>) -> Result<Met, Error> {
    let local =
        place.local.and_then(|(rank, size)| Some((u32::try_from(rank).ok()?, u32::try_from(size).ok()?)));
    let member = Member { host: host(), local };
    let deadline = Instant::now() + options.timeout;
    if place.rank == 0 {
        let listener = listener.map_or_else(|| listen(place), Ok)?;
        receive(place, &listener, member, options.timeout, deadline)
    } else {
        join(place, member, options, deadline, &resolve)
    }
}

/// The addresses of a name, or of an address, with a port.
type Resolve<'a> = &'a dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// As the system does.
fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// Numbers in ascending order as people write them: `1-3, 7`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let parts = parts.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// `host:port`, with brackets around an IPv6 address.
fn written(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

// Rank 0.

/// A connection that has not said its greeting yet.
pub(super) struct Pending<S> {
    pub(super) stream: S,
    pub(super) bytes: Vec<u8>,
    since: Instant,
    /// Whether it has been listened to.
    polled: bool,
}

/// What rank 0 knows while it waits. The connections are any that never wait, so that it can be tested without any.
pub(super) struct Reception<'a, S> {
    place: &'a Place,
    pub(super) pending: VecDeque<Pending<S>>,
    pub(super) joined: Vec<Option<(S, Member)>>,
    /// Hosts of ranks that came and went again.
    gone: Vec<Option<String>>,
    pub(super) refused: usize,
    pub(super) last_refusal: String,
}

/// Listens where rank 0 of this job should, on the first of its ports that is free.
///
/// # Errors
/// When none is.
pub(super) fn listen(place: &Place) -> Result<TcpListener, Error> {
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

fn receive(
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
    fn serve(&mut self, listener: &TcpListener, left: Duration) -> io::Result<()> {
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
    pub(super) fn new(place: &'a Place) -> Self {
        Self {
            place,
            pending: VecDeque::new(),
            joined: (0..place.size).map(|_| None).collect(),
            gone: vec![None; place.size],
            refused: 0,
            last_refusal: String::new(),
        }
    }

    pub(super) fn missing(&self) -> impl Iterator<Item = usize> {
        self.joined.iter().enumerate().skip(1).filter(|(_, joined)| joined.is_none()).map(|(rank, _)| rank)
    }

    /// Deals with what has come: from the ranks of `joined`, and from the connections that are `pending`, in order.
    pub(super) fn attend(&mut self, joined: &[usize], pending: &[bool], now: Instant) {
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
    pub(super) fn take_in(&mut self, stream: S, now: Instant) {
        self.pending.push_back(Pending { stream, bytes: Vec::new(), since: now, polled: false });
        if self.pending.len() > MOST_PENDING {
            self.evict("too many connections came at once");
        }
    }

    /// Ends the oldest connection, unless it has not been listened to: what it says may have come with it.
    fn evict(&mut self, reason: &str) {
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

    pub(super) fn given_up(&self, address: &str, timeout: Duration) -> String {
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

// All other ranks.

/// Why an attempt to join did not succeed.
#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    /// Rank 0 may come later.
    Retry(String),
    Final(Error),
}

/// What failed last at each address.
#[derive(Default)]
struct Attempts(Vec<(String, String)>);

impl Attempts {
    fn note(&mut self, address: String, reason: String) {
        match self.0.iter_mut().find(|(known, _)| *known == address) {
            Some((_, last)) => *last = reason,
            None => self.0.push((address, reason)),
        }
    }

    /// The addresses that failed alike, together.
    fn summary(&self) -> String {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for (address, reason) in &self.0 {
            match groups.iter_mut().find(|(known, _)| known == reason) {
                Some((_, addresses)) => addresses.push(address),
                None => groups.push((reason, vec![address])),
            }
        }
        let texts = groups.iter().map(|(reason, addresses)| format!("{}: {reason}", addresses.join(", ")));
        texts.collect::<Vec<_>>().join("; ")
    }
}

fn join(
    place: &Place,
    member: Member,
    options: &Options,
    deadline: Instant,
    resolve: Resolve<'_>,
) -> Result<Met, Error> {
    let timeout = options.timeout;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let greeting =
        Greeting { rank: number(place.rank), size: number(place.size), key: place.key.clone(), member }
            .encode();
    let mut attempts = Attempts::default();
    let mut pause = Duration::from_millis(20);
    loop {
        for &port in &place.ports {
            for host in &place.hosts {
                let name = written(host, port);
                let addresses = match resolve(host, port) {
                    Ok(addresses) => addresses,
                    Err(error) => {
                        attempts.note(name, format!("its name cannot be resolved: {error}"));
                        continue;
                    }
                };
                for address in addresses {
                    match attempt(place, &greeting, address, &name, timeout, deadline) {
                        Ok(met) => return Ok(met),
                        Err(Failure::Final(error)) => return Err(error),
                        Err(Failure::Retry(reason)) => attempts.note(name.clone(), reason),
                    }
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TimedOut(format!(
                "rank {} did not find rank 0 within {} s; tried {}; is rank 0 running, and can this host reach it?",
                place.rank,
                timeout.as_secs_f64(),
                attempts.summary()
            )));
        }
        if let Some(tell) = options.on_wait {
            tell(&attempts.summary());
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

fn attempt(
    place: &Place,
    greeting: &[u8],
    address: SocketAddr,
    name: &str,
    timeout: Duration,
    deadline: Instant,
) -> Result<Met, Failure> {
    let retry = |error: io::Error| Failure::Retry(error.to_string());
    let patience =
        deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(100), GREETING);
    let mut stream = TcpStream::connect_timeout(&address, patience).map_err(retry)?;
    // Connecting to a port of this host that nobody listens on can meet itself, and would then hold the port.
    if stream.local_addr().ok() == Some(address) {
        return Err(Failure::Retry("nobody listens".to_owned()));
    }
    stream.set_nodelay(true).map_err(retry)?;
    stream.set_write_timeout(Some(patience)).map_err(retry)?;
    stream.write_all(greeting).map_err(retry)?;

    let mut joining = Joining::new(place, name);
    let mut until = Instant::now() + if place.ports.len() > 1 { patience.min(SEARCHING) } else { patience };
    loop {
        let mut bytes = Vec::new();
        let seated = joining.seated;
        match read_some(&mut stream, &mut bytes, until) {
            Ok(true) => {}
            Ok(false) => return Err(joining.ended()),
            Err(error) => return Err(joining.failed(&error)),
        }
        if let Some(members) = joining.hear(&bytes)? {
            let mut connections: Vec<_> = (0..place.size).map(|_| None).collect();
            connections[0] = Some((stream, joining.frames));
            return Ok(Met { members, connections, address: name.to_owned() });
        }
        if joining.seated != seated {
            until = Instant::now() + timeout + PATIENCE;
        }
    }
}

/// What a rank knows while it waits for what listens at rank 0's address, which may be anything.
pub(super) struct Joining<'a> {
    place: &'a Place,
    name: &'a str,
    /// What has come of an answer.
    bytes: Vec<u8>,
    /// Whether rank 0 has accepted this rank.
    pub(super) seated: bool,
    pub(super) frames: Frames,
}

impl<'a> Joining<'a> {
    pub(super) fn new(place: &'a Place, name: &'a str) -> Self {
        Self { place, name, bytes: Vec::new(), seated: false, frames: Frames::default() }
    }

    /// Takes what has come: all ranks, once they are there.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Result<Option<Vec<Member>>, Failure> {
        if self.seated {
            self.frames.push(bytes);
            return self.wait();
        }
        self.bytes.extend_from_slice(bytes);
        let (answer, used) = match Answer::decode(&self.bytes) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(None),
            Err(malformed) => {
                return Err(Failure::Retry(format!("what listens there is not rank 0: {}", malformed.0)));
            }
        };
        match answer {
            Answer::Accepted => {}
            Answer::Stranger => {
                return Err(Failure::Retry("rank 0 of another job listens there".to_owned()));
            }
            Answer::Refused(reason) => {
                return Err(Failure::Final(Error::Rendezvous(format!(
                    "rank 0 at {} refused this rank: {reason}",
                    self.name
                ))));
            }
        }
        self.seated = true;
        self.frames.push(&self.bytes[used..]);
        self.bytes = Vec::new();
        self.wait()
    }

    fn wait(&mut self) -> Result<Option<Vec<Member>>, Failure> {
        match self.frames.next_within(Frame::longest_of_members(self.place.size)) {
            Ok(None) => Ok(None),
            Ok(Some(Frame::Members(members))) if members.len() == self.place.size => Ok(Some(members)),
            Ok(Some(Frame::GivenUp(reason))) => Err(Failure::Final(Error::TimedOut(reason))),
            Ok(Some(_)) => Err(self.fatal("rank 0 sent something else than the list of ranks".to_owned())),
            Err(malformed) => Err(self.fatal(format!("rank 0 sent {}", malformed.0))),
        }
    }

    fn fatal(&self, what: String) -> Failure {
        Failure::Final(Error::Rendezvous(format!("the rendezvous at {} failed: {what}", self.name)))
    }

    /// The connection has ended.
    pub(super) fn ended(&self) -> Failure {
        if self.seated {
            return self.fatal("rank 0 ended while other ranks were missing".to_owned());
        }
        Failure::Retry("what listens there ended the connection without an answer".to_owned())
    }

    /// Nothing came in time, or the connection failed.
    fn failed(&self, error: &io::Error) -> Failure {
        if self.seated {
            self.fatal(format!("rank 0 is silent: {error}"))
        } else {
            Failure::Retry(error.to_string())
        }
    }
}

/// Reads what has come, or waits for something to come; `false` at the end of the connection.
fn read_some(stream: &mut TcpStream, bytes: &mut Vec<u8>, until: Instant) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                bytes.extend_from_slice(&buffer[..count]);
                return Ok(true);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fuzz::{End, Wire};
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Mutex;

    use super::super::OnWait;

    #[test]
    fn ranges_are_written_as_people_do() {
        assert_eq!(ranges(&[1]), "1");
        assert_eq!(ranges(&[1, 2]), "1, 2");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8, 9]), "0-2, 5, 7-9");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn addresses_that_failed_alike_are_told_together() {
        let mut attempts = Attempts::default();
        attempts.note("a:1".to_owned(), "refused".to_owned());
        attempts.note("a:2".to_owned(), "silent".to_owned());
        attempts.note("a:3".to_owned(), "refused".to_owned());
        assert_eq!(attempts.summary(), "a:1, a:3: refused; a:2: silent");
        attempts.note("a:2".to_owned(), "refused".to_owned());
        assert_eq!(attempts.summary(), "a:1, a:2, a:3: refused");
    }

    /// Two ranks of which rank 0 listens, with an address that only the resolver of a test knows.
    fn pair() -> (Place, Place, TcpListener, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let place = |rank| Place::new(rank, 2, &format!("bench-0.bench:{port}")).unwrap();
        (place(0), place(1), listener, port)
    }

    fn member() -> Member {
        Member { host: host(), local: None }
    }

    /// A connection in memory over which rank 1 of 2 has said its greeting.
    fn greeted() -> Rc<RefCell<Wire>> {
        let greeting = Greeting { rank: 1, size: 2, key: String::new(), member: member() };
        let wire = Rc::<RefCell<Wire>>::default();
        wire.borrow_mut().incoming.extend(greeting.encode());
        wire
    }

    #[test]
    fn a_rank_that_gave_up_and_came_again_is_seated_with_its_last_connection() {
        let (zero, ..) = pair();
        let now = Instant::now();
        let mut reception = Reception::new(&zero);
        let ended = || {
            let wire = greeted();
            wire.borrow_mut().ended = true;
            End(wire)
        };
        // There is none behind it yet: the job must not start with it.
        reception.take_in(ended(), now);
        reception.attend(&[], &[true], now);
        assert_eq!(reception.missing().collect::<Vec<_>>(), [1]);
        assert_eq!(reception.last_refusal, "it ended after its greeting");
        let text = reception.given_up("here", Duration::from_secs(1));
        assert!(text.contains(&format!("(rank 1 came from {} and ended)", host().name)), "{text}");
        let last = greeted();
        reception.take_in(ended(), now);
        reception.take_in(End(Rc::clone(&last)), now);
        reception.attend(&[], &[true; 2], now);
        let (seated, _) = reception.joined[1].as_ref().unwrap();
        assert!(Rc::ptr_eq(&seated.0, &last));
        assert_eq!(last.borrow().answered, Answer::Accepted.encode());
    }

    #[test]
    fn connections_that_come_without_end_keep_nobody_from_being_heard() {
        let (zero, _, listener, port) = pair();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut first = connect();
        let _others: Vec<TcpStream> = (0..MOST_AT_ONCE + 10).map(|_| connect()).collect();
        let mut reception = Reception::new(&zero);
        let turn = Duration::from_secs(60);
        reception.serve(&listener, turn).unwrap();
        assert_eq!(reception.pending.len(), MOST_AT_ONCE, "more were waiting");
        first.write_all(&Vec::from(std::mem::take(&mut greeted().borrow_mut().incoming))).unwrap();
        while reception.joined[1].is_none() {
            reception.serve(&listener, turn).unwrap();
        }
        assert_eq!(reception.refused, 0);
    }

    #[test]
    fn only_who_was_listened_to_makes_room() {
        let (zero, ..) = pair();
        let now = Instant::now();
        let mut reception = Reception::new(&zero);
        let honest = greeted();
        reception.take_in(End(Rc::clone(&honest)), now);
        reception.evict("no connection can be accepted");
        assert_eq!(
            (reception.pending.len(), reception.last_refusal.as_str()),
            (1, "no connection can be accepted")
        );
        reception.take_in(End(Rc::default()), now);
        reception.attend(&[], &[true, false], now);
        assert_eq!(honest.borrow().answered, Answer::Accepted.encode());
        reception.evict("no connection can be accepted");
        assert!(reception.pending.is_empty());
    }

    #[test]
    fn a_seat_is_taken_while_its_rank_lives() {
        let (zero, ..) = pair();
        let now = Instant::now();
        let mut reception = Reception::new(&zero);
        let mut come = || {
            let wire = greeted();
            reception.take_in(End(Rc::clone(&wire)), now);
            // Rank 0 has not heard yet that the one with the seat has ended.
            reception.attend(&[], &[true], now);
            let answer = Answer::decode(&wire.borrow().answered).unwrap().unwrap().0;
            let seated = reception.joined[1].as_ref().is_some_and(|(end, _)| Rc::ptr_eq(&end.0, &wire));
            (wire, answer, seated)
        };
        let (first, answer, seated) = come();
        assert_eq!((answer, seated), (Answer::Accepted, true));
        let (_, answer, seated) = come();
        let twice = format!("rank 1 of 2 was started twice, on {0} and on {0}", host().name);
        assert_eq!((answer, seated), (Answer::Refused(twice), false));
        first.borrow_mut().ended = true;
        let (_, answer, seated) = come();
        assert_eq!((answer, seated), (Answer::Accepted, true));
    }

    #[test]
    fn a_name_that_is_not_known_yet_is_asked_for_again() {
        let (zero, one, listener, port) = pair();
        let patience = Duration::from_secs(60);
        let options = Options { timeout: patience, ..Options::default() };
        let asked = Cell::new(0);
        let late = |name: &str, asked_port| {
            assert_eq!((name, asked_port), ("bench-0.bench", port));
            asked.set(asked.get() + 1);
            if asked.get() <= 3 {
                return Err(io::Error::other("Name or service not known"));
            }
            Ok(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)])
        };
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let met = meet(&zero, &options, Some(listener))?;
                // What a world does first, and what the other rank waits for.
                for (stream, _) in met.connections.iter().flatten() {
                    let mut stream: &TcpStream = stream;
                    stream.write_all(&Frame::Members(met.members.clone()).encode()).unwrap();
                }
                Ok::<_, Error>(met)
            });
            let options = Options { timeout: patience, ..Options::default() };
            let met = join(&one, member(), &options, Instant::now() + patience, &late).unwrap();
            assert_eq!(met.members.len(), 2);
            assert_eq!(met.address, format!("bench-0.bench:{port}"));
            assert_eq!(first.join().unwrap().unwrap().members.len(), 2);
        });
        assert_eq!(asked.get(), 4);
    }

    #[test]
    fn a_name_that_nobody_knows_is_told() {
        static TOLD: Mutex<String> = Mutex::new(String::new());
        let (_, one, _listener, port) = pair();
        let limit = Duration::from_millis(100);
        let never = |_: &str, _| Err(io::Error::other("Name or service not known"));
        let tell: OnWait = |why| why.clone_into(&mut TOLD.lock().unwrap());
        let options = Options { timeout: limit, on_wait: Some(tell), ..Options::default() };
        let met = join(&one, member(), &options, Instant::now() + limit, &never);
        let Err(error) = met else { panic!("there is nobody to meet") };
        let tried =
            format!("tried bench-0.bench:{port}: its name cannot be resolved: Name or service not known");
        assert!(error.to_string().contains(&tried), "{error}");
        assert_eq!(format!("tried {}", TOLD.lock().unwrap()), tried, "also while it waits");
        assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
    }
}
