//! Processes, the writers in them, and their threads.

mod merge;

use std::collections::BTreeSet;

use foldhash::HashMap;
use semver::Version;

use self::merge::{keep_failures, take_over};
use super::digest::{CallFailure, Position, Retries, Writer};
use super::message::{self, Event, ProcessFact};
use super::source::LineSource;
use super::tasks::Tasks;
use super::text;
use super::trace::{self, Retry, Trace};
use crate::knowledge::parts::find_part;

/// Largest number of writers.
const WRITERS: usize = 8192;
/// Largest number of threads remembered at a time.
const THREADS: usize = 32_768;
/// Largest number of communicators remembered per writer.
const MEMBERSHIPS: usize = 64;
/// Number of communicators compared with a line.
const CANDIDATES: usize = 16;
/// Largest number of devices of all processes.
const DEVICES: usize = 65_536;

/// Files of NCCL's source that start operations. The end of a communicator passes through init.cc only.
const OPERATIONS: [&[u8]; 2] = [b"enqueue.cc:", b"group.cc:"];

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    /// Index of the communicator.
    pub(super) communicator: usize,
    /// Rank there.
    pub(super) rank: u32,
}

/// A thread: its writer, and the communicator of its work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    /// Index of the writer.
    pub(super) writer: usize,
    /// Communicator of its last initialisation or connection.
    pub(super) current: Option<Membership>,
    /// Number of its lines, except lines about rings, trees and channels.
    lines: u64,
}

/// Place of a line among the lines of its thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadLine {
    /// Unique number of the thread.
    pub(super) thread: u64,
    /// Number of the thread's lines so far.
    pub(super) number: u64,
    /// Position in the log.
    pub(super) position: Position,
}

/// Facts logged once per process.
#[derive(Debug, Default)]
struct ProcessFacts {
    nccl: Option<Version>,
    build: Option<String>,
    driver: Option<u32>,
    plugin: Option<Version>,
    libfabric: Option<Version>,
    efa: bool,
    network: Option<String>,
    bootstrap: Option<String>,
    devices: BTreeSet<String>,
    /// Writers of the process with a rank.
    owner: Option<Owner>,
    /// Addresses of communicators with an incomplete start.
    starting: BTreeSet<u64>,
    /// True once a communicator started.
    has_started: bool,
}

/// Writers of a process with a rank.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// The index of the only one.
    One(usize),
    /// More than one.
    Several,
}

/// All writers.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// Indices in `all` and `threads` by the writer's text.
    keys: HashMap<Box<[u8]>, usize>,
    threads: Vec<Thread>,
    /// Indices of processes by host and number.
    processes_by_name: HashMap<(Box<[u8]>, u64), usize>,
    processes: Vec<ProcessFacts>,
    /// Indices of writers by process and device.
    by_device: HashMap<(usize, Option<u32>), usize>,
    all: Vec<WriterState>,
    /// Tasks in the labels of the lines.
    pub(super) tasks: Tasks,
    devices: usize,
    /// Devices above the limit.
    pub(super) lost_devices: u64,
    /// Lines of writers above the limit.
    pub(super) lost: u64,
    /// Number of resets of the threads.
    pub(super) forgotten: u64,
}

#[derive(Debug)]
struct WriterState {
    writer: Writer,
    process: usize,
    /// Communicators, the last one at the end.
    memberships: Vec<Membership>,
    /// The beginning of the message of the last line.
    last: Vec<u8>,
}

impl Writers {
    /// Returns the length of the text before a known host name at the end of the line's host name.
    pub(super) fn glued_length(&self, source: &LineSource<'_>) -> Option<usize> {
        if self.keys.contains_key(source.key) {
            return Some(0);
        }
        (0..source.host.len()).find(|start| {
            // The key borrows the host name, and a map with owned names cannot look it up. Few lines come
            // here.
            self.processes_by_name.contains_key(&(source.host[*start..].into(), source.pid))
        })
    }

    /// Returns the index of the line's thread, or `None` above the limit. `before` are the labels in front of
    /// the line.
    pub(super) fn thread_index(
        &mut self,
        source: &LineSource<'_>,
        position: Position,
        message: &[u8],
        before: &[u8],
    ) -> Option<usize> {
        let whole;
        let key = if source.is_blanked {
            whole = [source.host, b"\0", &source.pid.to_le_bytes(), source.key].concat();
            &whole
        } else {
            source.key
        };
        let index = match self.keys.get(key) {
            Some(index) => *index,
            None => self.add_writer(source, position, key, before)?,
        };
        self.note_line(index, position, message);
        Some(index)
    }

    /// Notes the position and the message of a line of the thread.
    pub(super) fn note_line(&mut self, thread: usize, position: Position, message: &[u8]) {
        let thread = &mut self.threads[thread];
        let is_bulk = [&b"Channel "[..], b"Ring ", b"Tree "].iter().any(|word| message.starts_with(word));
        thread.lines += u64::from(!is_bulk);
        let WriterState { writer, last, .. } = &mut self.all[thread.writer];
        writer.last = position;
        last.clear();
        // One byte more marks the text as cut.
        last.extend_from_slice(&message[..message.len().min(text::TEXT + 1)]);
    }

    /// Notes a line about the network, a communicator or a connection of the thread.
    pub(super) fn note_progress(&mut self, thread: usize, position: Position) {
        self.all[self.threads[thread].writer].writer.progress = Some(position);
    }

    fn add_writer(
        &mut self,
        source: &LineSource<'_>,
        position: Position,
        key: &[u8],
        before: &[u8],
    ) -> Option<usize> {
        let name = (Box::from(source.host), source.pid);
        let process = self.processes_by_name.get(&name).copied();
        let writer = process.and_then(|process| self.by_device.get(&(process, source.device)).copied());
        let writer = match writer {
            Some(writer) => writer,
            None if self.all.len() == WRITERS => {
                self.lost += 1;
                return None;
            }
            None => {
                let process = process.unwrap_or_else(|| {
                    self.processes.push(ProcessFacts::default());
                    self.processes_by_name.insert(name, self.processes.len() - 1);
                    self.processes.len() - 1
                });
                self.all.push(WriterState {
                    writer: Writer {
                        host: text::shorten_message(source.host),
                        pid: source.pid,
                        device: source.device,
                        first: position,
                        last: position,
                        ..Writer::default()
                    },
                    process,
                    memberships: Vec::new(),
                    last: Vec::new(),
                });
                self.by_device.insert((process, source.device), self.all.len() - 1);
                self.all.len() - 1
            }
        };
        if self.threads.len() == THREADS {
            self.keys.clear();
            self.threads.clear();
            self.forgotten += 1;
        }
        self.threads.push(Thread { writer, current: None, lines: 0 });
        self.keys.insert(key.into(), self.threads.len() - 1);
        self.tasks.note_label(before, writer, self.all[writer].process);
        Some(self.threads.len() - 1)
    }

    /// Returns the only communicator of the writer of a thread, by the thread's unique number.
    pub(super) fn only_membership(&self, number: u64) -> Option<Membership> {
        let index = usize::try_from(number.checked_sub(self.number_of_thread(0))?).ok()?;
        match self.all[self.threads.get(index)?.writer].memberships[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns a thread.
    pub(super) fn thread_at(&self, thread: usize) -> Thread {
        self.threads[thread]
    }

    /// Returns the unique number of a thread. Indices are used again after a reset of the threads.
    pub(super) fn number_of_thread(&self, thread: usize) -> u64 {
        self.forgotten * THREADS as u64 + thread as u64
    }

    /// Returns the last line of a thread, at this position.
    pub(super) fn last_line(&self, thread: usize, position: Position) -> ThreadLine {
        let number = self.threads[thread].lines;
        ThreadLine { thread: self.number_of_thread(thread), number, position }
    }

    /// Returns the index of the process of a thread.
    pub(super) fn process_of(&self, thread: usize) -> usize {
        self.all[self.threads[thread].writer].process
    }

    /// Returns the versions of NCCL and of the plugin loaded by the writer's process.
    pub(super) fn loaded_versions(&self, writer: usize) -> (Option<&Version>, Option<&Version>) {
        let process = &self.processes[self.all[writer].process];
        (process.nccl.as_ref(), process.plugin.as_ref())
    }

    /// Returns the host of a writer.
    pub(super) fn host_of(&self, writer: usize) -> &str {
        self.all.get(writer).map_or("", |state| state.writer.host.as_str())
    }

    /// Returns the communicator of this thread's line, if the line itself names no other one.
    pub(super) fn current_communicator(&self, thread: usize) -> Option<Membership> {
        let Thread { writer, current, .. } = self.threads[thread];
        current.or_else(|| self.all[writer].memberships.last().copied())
    }

    /// Returns true if [`current_communicator`](Self::current_communicator) is not a guess: the thread has
    /// worked on it, or its writer on no other.
    pub(super) fn is_current_known(&self, thread: usize) -> bool {
        let Thread { writer, current, .. } = self.threads[thread];
        current.is_some() || self.all[writer].memberships.len() == 1
    }

    /// Returns the last communicators of the thread's writer, the last one first.
    pub(super) fn last_memberships(&self, thread: usize) -> impl Iterator<Item = Membership> {
        self.all[self.threads[thread].writer].memberships.iter().rev().take(CANDIDATES).copied()
    }

    /// Returns the writer of a device of the thread's process: a thread can initialise the ranks of several
    /// devices.
    pub(super) fn of_device(&mut self, thread: usize, device: Option<u32>, position: Position) -> usize {
        let own = self.threads[thread].writer;
        let WriterState { writer, process, .. } = &self.all[own];
        if device.is_none() || writer.device.is_none() || device == writer.device {
            return own;
        }
        let process = *process;
        if let Some(writer) = self.by_device.get(&(process, device)) {
            return *writer;
        }
        if self.all.len() == WRITERS {
            self.lost += 1;
            return own;
        }
        let (host, pid) = (writer.host.clone(), writer.pid);
        let writer = Writer { host, pid, device, first: position, last: position, ..Writer::default() };
        self.all.push(WriterState { writer, process, memberships: Vec::new(), last: Vec::new() });
        self.by_device.insert((process, device), self.all.len() - 1);
        self.all.len() - 1
    }

    /// Notes the beginning or end of a communicator's start in a process.
    pub(super) fn note_start_or_end(&mut self, process: usize, address: u64, event: Event) {
        let process = &mut self.processes[process];
        match event {
            Event::Start if process.starting.len() < MEMBERSHIPS => {
                process.starting.insert(address);
            }
            Event::Complete | Event::Aborted | Event::Destroyed => {
                process.starting.remove(&address);
            }
            Event::Start | Event::Shape => return,
        }
        process.has_started = true;
    }

    /// Notes a result code traced by a thread. `is_of_end` is true for a line that NCCL also writes at the
    /// end of a communicator.
    pub(super) fn note_trace(
        &mut self,
        thread: usize,
        trace: Trace<'_>,
        is_of_end: bool,
        position: Position,
    ) {
        let ProcessFacts { starting, has_started, .. } = &self.processes[self.process_of(thread)];
        let is_of_start = !has_started || !starting.is_empty();
        let writer = &mut self.all[self.threads[thread].writer].writer;
        writer.operation_failed |= OPERATIONS.iter().any(|file| trace.place.starts_with(file));
        let failures = &mut writer.failures;
        let place = || text::name(trace.place);
        let caller = || {
            let place = place();
            if find_part(&place).is_some_and(|part| !part.shared) { place } else { String::new() }
        };
        let is_same = |last: &CallFailure| last.code == trace.code && last.is_of_start == is_of_start;
        if let Some(last) = failures.last_mut().filter(|last| is_same(last)) {
            (last.outermost, last.last) = (place(), position);
            if last.caller.is_empty() {
                last.caller = caller();
            }
            last.is_of_end &= is_of_end;
        } else {
            failures.push(CallFailure {
                place: place(),
                caller: caller(),
                outermost: place(),
                code: trace.code,
                name: trace::name(trace.code).to_owned(),
                first: position,
                last: position,
                is_of_start,
                is_of_end,
            });
            keep_failures(failures);
        }
    }

    /// Notes a thread's repeated attempt to connect.
    pub(super) fn note_retry(&mut self, thread: usize, retry: Retry<'_>, position: Position) {
        let retries = self.all[self.threads[thread].writer]
            .writer
            .retries
            .get_or_insert_with(|| Retries { first: position, ..Retries::default() });
        retries.count += 1;
        retries.attempt = retries.attempt.max(retry.attempt.map(|(attempt, _)| attempt));
        retries.attempts = retry.attempt.map(|(_, all)| all).or(retries.attempts);
        retries.peer = retry.peer.map(text::name).or(retries.peer.take());
        retries.reason = text::name(retry.reason);
        retries.last = position;
    }

    /// Notes that a thread works for a communicator of which the writer is a member.
    pub(super) fn assign_communicator(&mut self, thread: usize, writer: usize, membership: Membership) {
        self.threads[thread].current = Some(membership);
        let memberships = &mut self.all[writer].memberships;
        if !memberships.contains(&membership) {
            if memberships.len() == MEMBERSHIPS {
                memberships.remove(0);
            }
            memberships.push(membership);
        }
    }

    /// Notes a fact about the process of a thread.
    pub(super) fn learn_fact(&mut self, thread: usize, fact: ProcessFact<'_>) {
        let process = self.process_of(thread);
        let process = &mut self.processes[process];
        match fact {
            ProcessFact::Nccl(text) => {
                if let Some((version, rest)) = message::parse_version(text) {
                    process.nccl = Some(version);
                    process.build = (!rest.is_empty()).then(|| text::name(rest));
                }
            }
            ProcessFact::Commit(commit) => {
                let commit = text::name(commit);
                process.build = Some(match process.build.take() {
                    Some(build) if build.ends_with(&commit) => build,
                    Some(build) => text::name(format!("{build} {commit}").as_bytes()),
                    None => commit,
                });
            }
            ProcessFact::Driver(version) => process.driver = Some(version),
            ProcessFact::Plugin(text) => {
                process.plugin = message::parse_version(text).map(|(version, _)| version)
            }
            ProcessFact::Libfabric(text) => {
                process.libfabric = message::parse_version(text).map(|(version, _)| version)
            }
            ProcessFact::Efa => process.efa = true,
            ProcessFact::Network(name) => process.network = Some(text::name(name)),
            ProcessFact::Bootstrap(name) => process.bootstrap = Some(text::name(name)),
            ProcessFact::Devices(list) => {
                for device in message::parse_devices(list) {
                    if self.devices == DEVICES {
                        self.lost_devices += 1;
                    } else if process.devices.insert(text::name(device)) {
                        self.devices += 1;
                    }
                }
            }
        }
    }

    /// Returns the writers with the facts of their processes, and the index there of each writer. `ranks`
    /// returns the size of a communicator.
    ///
    /// A process of one rank also writes before it selects its device, and from threads without one: these
    /// lines count as its rank's.
    pub(super) fn into_writers(self, ranks: impl Fn(usize) -> u32) -> (Vec<Writer>, Vec<usize>) {
        let Self { mut processes, mut all, .. } = self;
        for (index, WriterState { writer, process, memberships, last, .. }) in all.iter_mut().enumerate() {
            writer.last_text = text::shorten_message(last.trim_ascii());
            // The largest communicator, of several the first one.
            let largest = memberships.iter().rev().max_by_key(|membership| ranks(membership.communicator));
            writer.rank = largest.map(|membership| membership.rank);
            if writer.rank.is_some() {
                let process = &mut processes[*process];
                process.owner = Some(match process.owner {
                    None => Owner::One(index),
                    Some(_) => Owner::Several,
                });
            }
        }
        let owner = |index: usize, state: &WriterState| match processes[state.process].owner {
            Some(Owner::One(owner)) if state.writer.rank.is_none() => owner,
            _ => index,
        };
        let owners: Vec<usize> = all.iter().enumerate().map(|(index, state)| owner(index, state)).collect();
        for (index, owner) in owners.iter().enumerate() {
            if index != *owner {
                let other = std::mem::take(&mut all[index].writer);
                take_over(&mut all[*owner].writer, other);
            }
        }
        let mut places = vec![0; owners.len()];
        let mut finished = Vec::new();
        for (index, WriterState { mut writer, process, .. }) in all.into_iter().enumerate() {
            if owners[index] == index {
                processes[process].copy_facts(&mut writer);
                places[index] = finished.len();
                finished.push(writer);
            }
        }
        let places = owners.into_iter().map(|owner| places[owner]).collect();
        (finished, places)
    }
}

impl ProcessFacts {
    /// Copies the facts.
    fn copy_facts(&self, writer: &mut Writer) {
        writer.nccl = self.nccl.clone();
        writer.nccl_build = self.build.clone();
        writer.driver = self.driver;
        writer.plugin = self.plugin.clone();
        writer.libfabric = self.libfabric.clone();
        writer.efa = self.efa;
        writer.network = self.network.clone();
        writer.bootstrap = self.bootstrap.clone();
        writer.devices = self.devices.clone();
    }
}
