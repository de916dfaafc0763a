//! Service of a process: reports the process's part in shrinking jobs to other processes. A thread answers
//! one question per connection, as long as the process lives: a refused connection proves the end of the
//! process.

use crate::lock::lock;
use crate::world::tcp::poll::Poll;
use crate::world::tcp::wire::{Frame, FrameDecoder, HANDSHAKE_TIMEOUT, MAX_HELLO};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of connections. The oldest is closed if there are more.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of connections accepted between polls.
const MAX_ACCEPTS: usize = 64;
/// Sleep of an idle service. Only connections wake it.
const IDLE: Duration = Duration::from_secs(3600);

/// The next world of some processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// True once all members have met. This is final.
    pub(super) formed: bool,
    /// Port of the first member, for the rendezvous.
    pub(super) port: u16,
    pub(super) key: String,
    /// The continuing processes, ascending, by their numbers in the job before.
    pub(super) members: Vec<u32>,
}

/// A process's part in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProcessState {
    /// It has not called.
    Idle,
    /// It has called and waits for a decision.
    Calling,
    /// It continues in another world, or waits there for the members.
    Decided(Decision),
    /// It will not call any more.
    Left,
}

struct JobEntry {
    process: u32,
    state: ProcessState,
    /// Number of processes that continue without this one.
    gone_on: Option<u32>,
}

/// The jobs of this process, by their keys.
pub(super) struct Service {
    pub(super) port: u16,
    jobs: Mutex<HashMap<String, JobEntry>>,
}

/// The services of this process: for jobs of this host alone, out of reach for strangers on other hosts, and
/// for other jobs.
static SERVICES: Mutex<[Option<Arc<Service>>; 2]> = Mutex::new([None, None]);

impl Service {
    /// Returns the service of this process. The first call starts it.
    ///
    /// # Errors
    /// If it cannot listen or start a thread.
    pub(super) fn of_process(this_host_only: bool) -> io::Result<Arc<Self>> {
        let mut services = lock(&SERVICES);
        let service = &mut services[usize::from(this_host_only)];
        if let Some(service) = service {
            return Ok(Arc::clone(service));
        }
        let any = |address: IpAddr| TcpListener::bind(SocketAddr::new(address, 0));
        let listener = if this_host_only {
            any(Ipv4Addr::LOCALHOST.into())?
        } else {
            any(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| any(Ipv4Addr::UNSPECIFIED.into()))?
        };
        listener.set_nonblocking(true)?;
        let started = Arc::new(Self::new(listener.local_addr()?.port()));
        let answers = Arc::clone(&started);
        thread::Builder::new().name("recovery".to_owned()).spawn(move || run_service(&answers, &listener))?;
        *service = Some(Arc::clone(&started));
        Ok(started)
    }

    pub(super) fn new(port: u16) -> Self {
        Self { port, jobs: Mutex::default() }
    }

    /// Sets the part of this process, number `process`, in a job.
    pub(super) fn set_state(&self, key: &str, process: usize, state: ProcessState) {
        let process = u32::try_from(process).unwrap_or(u32::MAX);
        let mut jobs = lock(&self.jobs);
        match jobs.get_mut(key) {
            Some(entry) => entry.state = state,
            None => {
                jobs.insert(key.to_owned(), JobEntry { process, state, gone_on: None });
            }
        }
    }

    /// Number of processes that continue without this one, if it has been informed.
    pub(super) fn gone_on(&self, key: &str) -> Option<u32> {
        lock(&self.jobs).get(key)?.gone_on
    }

    /// Sets the part in a job to [`ProcessState::Left`], unless it has continued in another world.
    pub(super) fn leave_job(&self, key: &str) {
        if let Some(entry) = lock(&self.jobs).get_mut(key)
            && !matches!(&entry.state, ProcessState::Decided(decision) if decision.formed)
        {
            entry.state = ProcessState::Left;
        }
    }

    /// The answer to a question or news; `None` if it is neither.
    fn answer_question(&self, question: Frame) -> Option<Frame> {
        let (process, key, news) = match question {
            Frame::AskShrink(process, key) => (process, key, None),
            Frame::GoneOn(process, key, members) => (process, key, Some(members)),
            _ => return None,
        };
        let mut jobs = lock(&self.jobs);
        let Some(entry) = jobs.get_mut(&key).filter(|entry| entry.process == process) else {
            return Some(Frame::NotKnown);
        };
        entry.gone_on = entry.gone_on.or(news);
        Some(match &entry.state {
            ProcessState::Decided(decision) if decision.formed => decision.to_frame(),
            _ if entry.gone_on.is_some() => Frame::HasLeft,
            ProcessState::Idle => Frame::NotCalling,
            ProcessState::Calling => Frame::Calling,
            ProcessState::Left => Frame::HasLeft,
            ProcessState::Decided(decision) => decision.to_frame(),
        })
    }
}

impl Decision {
    fn to_frame(&self) -> Frame {
        Frame::Decided(u32::from(self.formed), self.port, self.key.clone(), self.members.clone())
    }
}

/// A connection of an asking process, or of a stranger.
struct Conversation<S> {
    stream: S,
    decoder: FrameDecoder,
    reply: Vec<u8>,
    sent: usize,
    since: Instant,
}

impl<S: Read + Write> Conversation<S> {
    fn new(stream: S, now: Instant) -> Self {
        Self { stream, decoder: FrameDecoder::new(), reply: Vec::new(), sent: 0, since: now }
    }

    /// Reads and writes as far as possible without waiting. Returns `false` once the conversation is over.
    fn advance_reply(&mut self, service: &Service) -> bool {
        if self.reply.is_empty() {
            let mut buffer = [0; MAX_HELLO];
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => count,
                Err(error) => return is_waiting(&error),
            };
            self.decoder.push_bytes(&buffer[..count]);
            match self.decoder.next_within(MAX_HELLO) {
                Ok(None) => return true,
                Ok(Some(question)) => match service.answer_question(question) {
                    Some(answer) => self.reply = answer.encode_first(),
                    None => return false,
                },
                Err(_) => return false,
            }
        }
        while self.sent < self.reply.len() {
            match self.stream.write(&self.reply[self.sent..]) {
                Ok(0) => return false,
                Ok(count) => self.sent += count,
                Err(error) => return is_waiting(&error),
            }
        }
        false
    }
}

/// True for the error of a non-blocking stream that is not ready.
fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn run_service(service: &Service, listener: &TcpListener) {
    let mut conversations: VecDeque<Conversation<TcpStream>> = VecDeque::new();
    loop {
        let oldest = conversations.front();
        let timeout = oldest.map_or(IDLE, |oldest| HANDSHAKE_TIMEOUT.saturating_sub(oldest.since.elapsed()));
        let mut poll = Poll::default();
        let new = poll.add_connection(listener, false);
        let entries: Vec<usize> =
            conversations.iter().map(|one| poll.add_connection(&one.stream, !one.reply.is_empty())).collect();
        if poll.wait_for_ready(timeout).is_err() {
            // For lack of memory.
            thread::sleep(Duration::from_millis(100));
            continue;
        }
        let new = poll.is_readable(new);
        let ready: Vec<bool> =
            entries.into_iter().map(|entry| poll.is_readable(entry) || poll.is_writable(entry)).collect();
        drop(poll);
        conversations = std::mem::take(&mut conversations)
            .into_iter()
            .zip(ready)
            .filter_map(|(mut one, ready)| {
                let goes_on = !ready || one.advance_reply(service);
                (goes_on && one.since.elapsed() < HANDSHAKE_TIMEOUT).then_some(one)
            })
            .collect();
        if new {
            accept_connections(listener, &mut conversations);
        }
    }
}

fn accept_connections(listener: &TcpListener, conversations: &mut VecDeque<Conversation<TcpStream>>) {
    for _ in 0..MAX_ACCEPTS {
        match listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_ok() {
                    conversations.push_back(Conversation::new(stream, Instant::now()));
                }
                if conversations.len() > MAX_CONNECTIONS {
                    conversations.pop_front();
                }
            }
            Err(error) if is_waiting(&error) => return,
            // The peer has closed this connection; there may be others.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => {
                // Most likely no descriptors are left; an idle connection may hold one.
                conversations.pop_front();
                thread::sleep(Duration::from_millis(10));
                return;
            }
        }
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
