//! The other ranks' side of the rendezvous.

use super::Connected;
use super::address::{Resolve, format_address, group_by_key};
use crate::world::tcp::wire::{Frame, FrameDecoder, HANDSHAKE_TIMEOUT, JobMember, MAX_TEXT};
use crate::world::{Error, Options, RendezvousConfig};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a reply if rank 0 may listen on another port instead.
const PORT_SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Additional waiting time of the other ranks, for rank 0's report of the missing ranks.
const RESULT_GRACE: Duration = Duration::from_secs(5);

/// Failure of an attempt to join.
#[derive(Debug, PartialEq)]
pub(crate) enum JoinError {
    /// Rank 0 may listen there later.
    Retry(String),
    Fatal(Error),
}

/// Latest failure by address.
#[derive(Default)]
pub(crate) struct Attempts(Vec<(String, String)>);

impl Attempts {
    pub(crate) fn record_failure(&mut self, address: String, reason: String) {
        match self.0.iter_mut().find(|(known, _)| *known == address) {
            Some((_, last)) => *last = reason,
            None => self.0.push((address, reason)),
        }
    }

    /// Lists the failures, grouped by reason.
    pub(crate) fn failure_summary(&self) -> String {
        let groups = group_by_key(self.0.iter().map(|(address, reason)| (reason, address.as_str())));
        let texts = groups.iter().map(|(reason, addresses)| format!("{}: {reason}", addresses.join(", ")));
        texts.collect::<Vec<_>>().join("; ")
    }
}

/// Tries the configured addresses until rank 0 accepts this rank.
pub(crate) fn join_rendezvous(
    config: &RendezvousConfig,
    member: JobMember,
    options: &Options,
    deadline: Instant,
    resolve: Resolve<'_>,
) -> Result<Connected, Error> {
    let timeout = options.timeout;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let hello = Frame::Hello(number(config.rank), number(config.size), config.key.clone(), member);
    let hello = hello.encode_first();
    let mut attempts = Attempts::default();
    let mut pause = Duration::from_millis(20);
    loop {
        for &port in &config.ports {
            for host in &config.hosts {
                let name = format_address(host, port);
                let addresses = match resolve(host, port) {
                    Ok(addresses) => addresses,
                    Err(error) => {
                        attempts.record_failure(name, format!("its name cannot be resolved: {error}"));
                        continue;
                    }
                };
                for address in addresses {
                    match try_join(config, &hello, address, &name, timeout, deadline) {
                        Ok(connected) => return Ok(connected),
                        Err(JoinError::Fatal(error)) => return Err(error),
                        Err(JoinError::Retry(reason)) => attempts.record_failure(name.clone(), reason),
                    }
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TimedOut(format!(
                "rank {} did not find rank 0 within {} s; tried {}; is rank 0 running, and can this host \
                 reach it?",
                config.rank,
                timeout.as_secs_f64(),
                attempts.failure_summary()
            )));
        }
        if let Some(tell) = options.on_wait {
            tell(&attempts.failure_summary());
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

fn try_join(
    config: &RendezvousConfig,
    hello: &[u8],
    address: SocketAddr,
    name: &str,
    timeout: Duration,
    deadline: Instant,
) -> Result<Connected, JoinError> {
    let retry = |error: io::Error| JoinError::Retry(error.to_string());
    let limit = deadline
        .saturating_duration_since(Instant::now())
        .clamp(Duration::from_millis(100), HANDSHAKE_TIMEOUT);
    let mut stream = TcpStream::connect_timeout(&address, limit).map_err(retry)?;
    // TCP simultaneous open: a connection to an unused local port can connect to itself, and then occupies
    // the port.
    if stream.local_addr().ok() == Some(address) {
        return Err(JoinError::Retry("no server listens there".to_owned()));
    }
    stream.set_nodelay(true).map_err(retry)?;
    stream.set_write_timeout(Some(limit)).map_err(retry)?;
    stream.write_all(hello).map_err(retry)?;

    let mut handshake = Handshake::new(config, name);
    let mut until =
        Instant::now() + if config.ports.len() > 1 { limit.min(PORT_SEARCH_TIMEOUT) } else { limit };
    loop {
        let accepted = handshake.accepted;
        let bytes = read_some(&mut stream, until).map_err(|error| handshake.failed_error(&error))?;
        if bytes.is_empty() {
            return Err(handshake.ended_error());
        }
        if let Some(members) = handshake.receive_bytes(&bytes)? {
            let mut connections: Vec<_> = (0..config.size).map(|_| None).collect();
            connections[0] = Some((stream, handshake.decoder));
            return Ok(Connected { members, connections, address: name.to_owned() });
        }
        if handshake.accepted != accepted {
            until = Instant::now() + timeout + RESULT_GRACE;
        }
    }
}

/// State of a rank after its hello. The peer is untrusted: it may be any server at rank 0's address.
pub(crate) struct Handshake<'a> {
    config: &'a RendezvousConfig,
    name: &'a str,
    /// True once rank 0 has accepted this rank.
    pub(crate) accepted: bool,
    pub(crate) decoder: FrameDecoder,
}

impl<'a> Handshake<'a> {
    pub(crate) fn new(config: &'a RendezvousConfig, name: &'a str) -> Self {
        Self { config, name, accepted: false, decoder: FrameDecoder::new() }
    }

    /// Handles received bytes. Returns the list of ranks once it is complete.
    pub(crate) fn receive_bytes(&mut self, bytes: &[u8]) -> Result<Option<Vec<JobMember>>, JoinError> {
        self.decoder.push_bytes(bytes);
        if self.accepted {
            return self.next_members();
        }
        let retry = |reason| Err(JoinError::Retry(reason));
        match self.decoder.next_within(2 + MAX_TEXT) {
            Ok(None) => Ok(None),
            Ok(Some(Frame::Accepted)) => {
                self.accepted = true;
                self.next_members()
            }
            Ok(Some(Frame::OtherJob)) => retry("rank 0 of another job listens there".to_owned()),
            Ok(Some(Frame::Rejected(reason))) => Err(JoinError::Fatal(Error::Rendezvous(format!(
                "rank 0 at {} refused this rank: {reason}",
                self.name
            )))),
            Ok(Some(_)) => retry("the server there is not rank 0: another frame than a reply".to_owned()),
            Err(malformed) => retry(format!("the server there is not rank 0: {}", malformed.0)),
        }
    }

    fn next_members(&mut self) -> Result<Option<Vec<JobMember>>, JoinError> {
        match self.decoder.next_within(Frame::max_members_len(self.config.size)) {
            Ok(None) => Ok(None),
            Ok(Some(Frame::Members(members))) if members.len() == self.config.size => Ok(Some(members)),
            Ok(Some(Frame::RendezvousFailed(reason))) => Err(JoinError::Fatal(Error::TimedOut(reason))),
            Ok(Some(_)) => {
                Err(self.fatal_error("rank 0 sent another frame than the list of ranks".to_owned()))
            }
            Err(malformed) => Err(self.fatal_error(format!("rank 0 sent {}", malformed.0))),
        }
    }

    fn fatal_error(&self, what: String) -> JoinError {
        JoinError::Fatal(Error::Rendezvous(format!("the rendezvous at {} failed: {what}", self.name)))
    }

    pub(crate) fn ended_error(&self) -> JoinError {
        if self.accepted {
            return self.fatal_error("rank 0 ended while other ranks were missing".to_owned());
        }
        JoinError::Retry("the server there closed the connection without a reply".to_owned())
    }

    fn failed_error(&self, error: &io::Error) -> JoinError {
        if self.accepted {
            self.fatal_error(format!("rank 0 is silent: {error}"))
        } else {
            JoinError::Retry(error.to_string())
        }
    }
}

/// Reads at least one byte, waiting until `until`; none at end of file.
pub(crate) fn read_some(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no reply in time"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes) {
            Ok(count) => {
                bytes.truncate(count);
                return Ok(bytes);
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
