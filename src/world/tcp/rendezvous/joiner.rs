//! The other ranks' side of the rendezvous.

use super::Met;
use super::address::{Resolve, written};
use crate::world::tcp::wire::{Answer, Frame, Frames, GREETING, Greeting, Member};
use crate::world::{Error, Options, Place};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long an answer may take while rank 0 may as well listen on another port.
const SEARCHING: Duration = Duration::from_secs(2);
/// How much longer than rank 0 the others wait, so that they hear from it which ranks are missing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why an attempt to join did not succeed.
#[derive(Debug, PartialEq)]
pub(crate) enum Failure {
    /// Rank 0 may come later.
    Retry(String),
    Final(Error),
}

/// What failed last at each address.
#[derive(Default)]
pub(crate) struct Attempts(Vec<(String, String)>);

impl Attempts {
    pub(crate) fn note(&mut self, address: String, reason: String) {
        match self.0.iter_mut().find(|(known, _)| *known == address) {
            Some((_, last)) => *last = reason,
            None => self.0.push((address, reason)),
        }
    }

    /// The addresses that failed alike, together.
    pub(crate) fn summary(&self) -> String {
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

pub(crate) fn join(
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
pub(crate) struct Joining<'a> {
    place: &'a Place,
    name: &'a str,
    /// What has come of an answer.
    bytes: Vec<u8>,
    /// Whether rank 0 has accepted this rank.
    pub(crate) seated: bool,
    pub(crate) frames: Frames,
}

impl<'a> Joining<'a> {
    pub(crate) fn new(place: &'a Place, name: &'a str) -> Self {
        Self { place, name, bytes: Vec::new(), seated: false, frames: Frames::default() }
    }

    /// Takes what has come: all ranks, once they are there.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Result<Option<Vec<Member>>, Failure> {
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
    pub(crate) fn ended(&self) -> Failure {
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
