//! Processes, the writers in them, and their threads.

use std::collections::{BTreeSet, HashMap};

use semver::Version;

use super::digest::{Position, Writer};
use super::line::Source;
use super::message::{self, Fact};
use super::text;

/// Largest number of writers.
const WRITERS: usize = 16_384;
/// Largest number of threads that are remembered at a time.
const THREADS: usize = 65_536;
/// Largest number of communicators that a writer's lines are compared with.
const MEMBERSHIPS: usize = 64;
/// Largest number of devices of a process.
const DEVICES: usize = 256;

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    /// Index of the communicator.
    pub(super) communicator: usize,
    /// Rank there.
    pub(super) rank: u32,
}

/// A thread: the writer that it is part of, and the communicator that it works for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    /// Index of the writer.
    pub(super) writer: usize,
    /// The communicator that it was last initialising or connecting.
    pub(super) current: Option<Membership>,
}

/// Facts that NCCL writes once for a process.
#[derive(Debug, Default)]
struct Process {
    nccl: Option<Version>,
    build: Option<String>,
    driver: Option<u32>,
    plugin: Option<Version>,
    libfabric: Option<Version>,
    network: Option<String>,
    bootstrap: Option<String>,
    devices: BTreeSet<String>,
}

/// All writers.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// Indices in `all` and `threads` by the text that names the writer.
    keys: HashMap<Box<[u8]>, usize>,
    threads: Vec<Thread>,
    /// Text and thread of the previous line.
    last: (Vec<u8>, usize),
    /// Indices of processes by host and number.
    processes_by_name: HashMap<(Box<[u8]>, u64), usize>,
    processes: Vec<Process>,
    /// Indices of writers by process and device.
    by_device: HashMap<(usize, Option<u32>), usize>,
    all: Vec<State>,
    /// Lines of writers above the limit.
    pub(super) lost: u64,
    /// Times that the threads were forgotten.
    pub(super) forgotten: u64,
}

#[derive(Debug)]
struct State {
    writer: Writer,
    process: usize,
    /// Communicators, the last one at the end.
    memberships: Vec<Membership>,
}

impl Writers {
    /// The length of the text before a known host name that the line's host name ends with.
    pub(super) fn glued(&self, source: &Source<'_>) -> Option<usize> {
        (0..source.host.len()).find(|start| {
            // The key borrows the host name, which a map with an owned one cannot look up: few lines come here.
            self.processes_by_name.contains_key(&(source.host[*start..].into(), source.pid))
        })
    }

    /// The index of the thread that wrote the line; `None` above the limit.
    pub(super) fn thread(&mut self, source: &Source<'_>, position: Position) -> Option<usize> {
        let index = if self.last.0 == source.key && !self.threads.is_empty() {
            self.last.1
        } else {
            let index = match self.keys.get(source.key) {
                Some(index) => *index,
                None => self.add(source, position)?,
            };
            self.last.0.clear();
            self.last.0.extend_from_slice(source.key);
            self.last.1 = index;
            index
        };
        self.all[self.threads[index].writer].writer.last = position;
        Some(index)
    }

    fn add(&mut self, source: &Source<'_>, position: Position) -> Option<usize> {
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
                    self.processes.push(Process::default());
                    self.processes_by_name.insert(name, self.processes.len() - 1);
                    self.processes.len() - 1
                });
                self.all.push(State {
                    writer: Writer {
                        host: text::shortened(source.host),
                        pid: source.pid,
                        device: source.device,
                        first: position,
                        last: position,
                        ..Writer::default()
                    },
                    process,
                    memberships: Vec::new(),
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
        self.threads.push(Thread { writer, current: None });
        self.keys.insert(source.key.into(), self.threads.len() - 1);
        Some(self.threads.len() - 1)
    }

    /// A thread.
    pub(super) fn of(&self, thread: usize) -> Thread {
        self.threads[thread]
    }

    /// Index of the process of a thread.
    pub(super) fn process(&self, thread: usize) -> usize {
        self.all[self.threads[thread].writer].process
    }

    /// The version of NCCL that the process of a writer loaded.
    pub(super) fn nccl(&self, writer: usize) -> Option<&Version> {
        self.processes[self.all[writer].process].nccl.as_ref()
    }

    /// The host of a writer.
    pub(super) fn host(&self, writer: usize) -> &str {
        self.all.get(writer).map_or("", |state| state.writer.host.as_str())
    }

    /// The communicator that a line of this thread is about, if nothing in the line says otherwise.
    pub(super) fn current(&self, thread: usize) -> Option<Membership> {
        let Thread { writer, current } = self.threads[thread];
        current.or_else(|| self.all[writer].memberships.last().copied())
    }

    /// The communicators of the thread's writer, the last one first.
    pub(super) fn memberships(&self, thread: usize) -> impl Iterator<Item = Membership> {
        self.all[self.threads[thread].writer].memberships.iter().rev().copied()
    }

    /// Notes that a thread works for a communicator.
    pub(super) fn assign(&mut self, thread: usize, membership: Membership) {
        self.threads[thread].current = Some(membership);
        let memberships = &mut self.all[self.threads[thread].writer].memberships;
        if !memberships.contains(&membership) {
            if memberships.len() == MEMBERSHIPS {
                memberships.remove(0);
            }
            memberships.push(membership);
        }
    }

    /// Notes a fact about the process of a thread.
    pub(super) fn learn(&mut self, thread: usize, fact: Fact<'_>) {
        let process = self.process(thread);
        let process = &mut self.processes[process];
        match fact {
            Fact::Nccl(text) => {
                if let Some((version, rest)) = message::version(text) {
                    process.nccl = Some(version);
                    process.build = (!rest.is_empty()).then(|| text::shortened(rest));
                }
            }
            Fact::Commit(commit) => {
                let commit = text::shortened(commit);
                process.build = Some(match process.build.take() {
                    Some(build) if build.ends_with(&commit) => build,
                    Some(build) => text::shortened(format!("{build} {commit}").as_bytes()),
                    None => commit,
                });
            }
            Fact::Driver(version) => process.driver = Some(version),
            Fact::Plugin(text) => process.plugin = message::version(text).map(|(version, _)| version),
            Fact::Libfabric(text) => process.libfabric = message::version(text).map(|(version, _)| version),
            Fact::Network(name) => process.network = Some(text::shortened(name)),
            Fact::Bootstrap(name) => process.bootstrap = Some(text::shortened(name)),
            Fact::Devices(list) => {
                for device in message::devices(list) {
                    if process.devices.len() < DEVICES {
                        process.devices.insert(text::shortened(device));
                    }
                }
            }
        }
    }

    /// The writers with the facts of their processes. `ranks` is the size of a communicator.
    pub(super) fn finish(self, ranks: impl Fn(usize) -> u32) -> Vec<Writer> {
        let Self { processes, all, .. } = self;
        let mut of_process: HashMap<usize, Option<u32>> = HashMap::new();
        let mut finished = Vec::with_capacity(all.len());
        for State { mut writer, process, memberships } in all {
            // The largest communicator, of several the first one.
            let largest = memberships.iter().rev().max_by_key(|membership| ranks(membership.communicator));
            writer.rank = largest.map(|membership| membership.rank);
            if writer.rank.is_some() {
                let rank = of_process.entry(process).or_insert(writer.rank);
                *rank = (*rank == writer.rank).then_some(writer.rank).flatten();
            }
            let facts = &processes[process];
            writer.nccl = facts.nccl.clone();
            writer.nccl_build = facts.build.clone();
            writer.driver = facts.driver;
            writer.plugin = facts.plugin.clone();
            writer.libfabric = facts.libfabric.clone();
            writer.network = facts.network.clone();
            writer.bootstrap = facts.bootstrap.clone();
            writer.devices = facts.devices.clone();
            finished.push((writer, process));
        }
        // A process of one rank also writes lines before it selects its device, and from threads without one.
        finished
            .into_iter()
            .map(|(mut writer, process)| {
                writer.rank = writer.rank.or_else(|| of_process.get(&process).copied().flatten());
                writer
            })
            .collect()
    }
}
