//! Exchange of logs: rank 0 gets the logs of all processes, even after a failure of the measurement.
//!
//! Collective operations of the world fail after a rank's failure, but messages still arrive. So every
//! process has a thread that sends the log at rank 0's request, independent of the state of its ranks. The
//! first process of each host also keeps the logs of its neighbours open, so the log of a dead process is not
//! lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collectives::world::{self, World};
use engine::nccl_choice::{CapturedLog, LogPlace};
use engine::supervision::{Stop, start_thread};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::lock_mutex;
use super::message::{DoctorMessage, Ending, PackedLog};
use crate::command::doctor::gather_values;

/// Size limit of a process's log, in bytes. The rest is not sent.
const LOG_BYTES: u64 = 12 << 20;

/// Size limit of all logs together after a failed measurement, in bytes. They are read within a few seconds.
const TOTAL_BYTES: u64 = 512 << 20;

/// Polling interval of a process that waits for messages.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// Polling interval of the answering thread while ranks measure.
const IDLE_POLL: Duration = Duration::from_millis(20);

/// Description of a process of the job, sent by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct JobMember {
    host: String,
    host_id: String,
    place: Option<LogPlace>,
}

/// One process's part of the exchange.
pub(super) struct LogExchange {
    held: HeldLogs,
    /// Host names by process.
    pub(super) hosts: Vec<String>,
    world: Weak<dyn World>,
    received: Mutex<Received>,
    /// True once rank 0 has asked for the logs; on rank 0 only.
    is_asked: AtomicBool,
    /// True once rank 0 has written its report.
    is_reported: AtomicBool,
}

/// The logs readable by this process.
struct HeldLogs {
    process: usize,
    own: CapturedLog,
    /// Logs of the other processes of this host, at its first process.
    neighbours: Vec<(usize, CapturedLog)>,
    /// Size limit of a log, in bytes.
    limit: u64,
}

/// The logs and endings received by rank 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// The logs by process. Of two copies the longer one is kept, since a process may have written more.
    pub(super) logs: BTreeMap<usize, PackedLog>,
    /// The first ending of each process that ended before the measurement was complete.
    pub(super) endings: BTreeMap<usize, Ending>,
    /// The processes that have sent all their logs.
    complete: BTreeSet<usize>,
}

impl Received {
    fn add_message(&mut self, process: usize, message: DoctorMessage) {
        match message {
            DoctorMessage::Ended(ending) => _ = self.endings.entry(process).or_insert(ending),
            DoctorMessage::Log(log) => self.add_log(log),
            DoctorMessage::End => _ = self.complete.insert(process),
            DoctorMessage::Ask | DoctorMessage::Reported => {}
        }
    }

    pub(super) fn add_log(&mut self, log: PackedLog) {
        let known = self.logs.get(&log.process);
        if known.is_none_or(|known| known.gzip.len() < log.gzip.len()) {
            self.logs.insert(log.process, log);
        }
    }
}

/// The answering thread of a process other than the first. It ends when this value is dropped.
pub(super) struct Answering {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _unused = thread.join();
        }
    }
}

impl LogExchange {
    /// Gathers the place of each process's log. Collective.
    pub(super) fn gather_members(world: &world::Handle, own: CapturedLog) -> Result<Arc<Self>, Stop> {
        let world::Host { name: host, id: host_id } = world::host();
        let member = JobMember { host, host_id, place: own.place().ok() };
        let members = gather_values(&**world, &member)?;
        let limit = LOG_BYTES.min(TOTAL_BYTES / members.len() as u64);
        let neighbours = open_neighbour_logs(&members, world.rank());
        Ok(Arc::new(Self {
            held: HeldLogs { process: world.rank(), own, neighbours, limit },
            hosts: members.into_iter().map(|member| member.host).collect(),
            world: Arc::downgrade(world),
            received: Mutex::default(),
            is_asked: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
        }))
    }

    /// Starts the answering thread, except on rank 0. The thread must end before the world is left.
    pub(super) fn start_answering(self: &Arc<Self>) -> io::Result<Answering> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut thread = None;
        if self.held.process != 0 {
            let (exchange, is_over) = (Arc::clone(self), Arc::clone(&is_over));
            let answer = move || {
                while !is_over.load(Ordering::SeqCst) {
                    let Some(world) = exchange.world.upgrade() else { return };
                    exchange.answer_messages(&*world);
                    drop(world);
                    thread::sleep(IDLE_POLL);
                }
            };
            thread = Some(start_thread("logs", answer)?);
        }
        Ok(Answering { is_over, thread })
    }

    fn answer_messages(&self, world: &dyn World) {
        let messages: Vec<_> = world
            .take_posted()
            .iter()
            .filter_map(|(_, message)| DoctorMessage::decode_message(message))
            .collect();
        // First, since the logs take time.
        if messages.contains(&DoctorMessage::Reported) {
            self.is_reported.store(true, Ordering::SeqCst);
        }
        if messages.contains(&DoctorMessage::Ask) {
            for log in self.held.pack_all() {
                world.post(DoctorMessage::Log(log).encode_message());
            }
            world.post(DoctorMessage::End.encode_message());
        }
    }

    /// Returns the log of this process.
    pub(super) fn own_log(&self) -> PackedLog {
        pack_log(self.held.process, &self.held.own, LOG_BYTES)
    }

    /// Returns the text of the log of this process.
    pub(super) fn own_text(&self) -> Vec<u8> {
        self.held.own.read_lines(LOG_BYTES).unwrap_or_default().0
    }

    /// Reports the end of this process to rank 0.
    pub(super) fn tell_end(&self, ending: Ending) {
        if let Some(world) = self.world.upgrade() {
            world.post(DoctorMessage::Ended(ending).encode_message());
        }
    }

    /// Waits for rank 0's report. Returns false after `limit`, or once rank 0 has gone.
    pub(super) fn wait_for_report(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let is_reported = || self.is_reported.load(Ordering::SeqCst);
        while !is_reported() && Instant::now() < deadline {
            let Some(world) = self.world.upgrade() else { break };
            let is_connected = world.is_connected_to(0);
            // The answering thread may be packing logs.
            self.answer_messages(&*world);
            if !is_connected {
                break;
            }
            thread::sleep(POLL);
        }
        is_reported()
    }

    /// Returns the first reported ending of another process, with its number; on rank 0 only.
    pub(super) fn first_ending(&self) -> Option<(usize, Ending)> {
        self.receive_messages(&*self.world.upgrade()?);
        let received = lock_mutex(&self.received);
        received.endings.iter().next().map(|(process, ending)| (*process, ending.clone()))
    }

    /// Takes all messages received so far.
    fn receive_messages(&self, world: &dyn World) {
        let mut received = lock_mutex(&self.received);
        for (process, message) in world.take_posted() {
            if let Some(message) = DoctorMessage::decode_message(&message) {
                received.add_message(process, message);
            }
        }
    }

    /// Requests the logs of all processes, and waits for them up to `limit`. On other ranks, returns only
    /// their own and their neighbours' logs.
    pub(super) fn collect_logs(&self, limit: Duration) -> Received {
        let deadline = Instant::now() + limit;
        let world = self.world.upgrade().filter(|_| self.held.process == 0);
        if let Some(world) = world {
            if !self.is_asked.swap(true, Ordering::SeqCst) {
                world.post(DoctorMessage::Ask.encode_message());
            }
            let is_missing = |process: &usize| {
                !lock_mutex(&self.received).complete.contains(process) && world.is_connected_to(*process)
            };
            while (1..self.hosts.len()).any(|process| is_missing(&process)) && Instant::now() < deadline {
                self.receive_messages(&*world);
                thread::sleep(POLL);
            }
            // Messages sent by a process before its connection was closed.
            self.receive_messages(&*world);
        }
        // A copy, since another thread collects them again when a process dies meanwhile.
        let mut received = lock_mutex(&self.received).clone();
        self.held.pack_all().into_iter().for_each(|log| received.add_log(log));
        received
    }

    /// Announces the complete report to the other processes; on rank 0 only.
    pub(super) fn announce_report(&self) {
        if let Some(world) = self.world.upgrade() {
            world.post(DoctorMessage::Reported.encode_message());
        }
    }
}

impl HeldLogs {
    fn pack_all(&self) -> Vec<PackedLog> {
        let neighbours = self.neighbours.iter().map(|(process, log)| pack_log(*process, log, self.limit));
        std::iter::once(pack_log(self.process, &self.own, self.limit)).chain(neighbours).collect()
    }
}

/// Returns the log of a process, or an empty one if it cannot be read.
fn pack_log(process: usize, log: &CapturedLog, limit: u64) -> PackedLog {
    let (text, is_whole) = log.read_lines(limit).unwrap_or_default();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to a Vec cannot fail.
    let packed = encoder.write_all(&text).and_then(|()| encoder.finish());
    PackedLog { process, is_whole, gzip: packed.unwrap_or_default() }
}

/// Opens the logs of the other processes of this host, for its first process. Logs in other namespaces cannot
/// be opened.
fn open_neighbour_logs(members: &[JobMember], own: usize) -> Vec<(usize, CapturedLog)> {
    let host_id = &members[own].host_id;
    let of_host = |process: &usize| members[*process].host_id == *host_id;
    let mut of_host = (0..members.len()).filter(of_host);
    if of_host.next() != Some(own) {
        return Vec::new();
    }
    of_host
        .filter_map(|process| {
            Some((process, CapturedLog::open_place(members[process].place.as_ref()?).ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::MetadataExt as _;

    use collectives::world::{Options, RendezvousConfig};
    use serde_json::json;

    use super::*;

    fn log(process: usize, length: usize) -> PackedLog {
        PackedLog { process, is_whole: true, gzip: vec![7; length] }
    }

    /// Returns the empty log of this process.
    fn captured_log() -> CapturedLog {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (known, path) = (file.as_file().metadata().unwrap(), file.path().display().to_string());
        let place = json!({"path": path, "device": known.dev(), "inode": known.ino()});
        CapturedLog::open_place(&serde_json::from_value(place).unwrap()).unwrap()
    }

    #[test]
    fn the_longest_copy_of_each_log_is_kept() {
        let mut received = Received::default();
        for log in [log(2, 5), log(0, 1), log(2, 9), log(1, 3), log(2, 7)] {
            received.add_log(log);
        }
        assert_eq!(received.logs.into_values().collect::<Vec<_>>(), [log(0, 1), log(1, 3), log(2, 9)]);
    }

    /// One process of four answers, one has left, and one never looks for messages.
    #[test]
    fn logs_are_collected_from_those_that_answer() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let join = |rank: usize| {
            let config = RendezvousConfig::new(rank, 4, &free).unwrap();
            world::tcp(config, &Options::default()).unwrap()
        };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for rank in 1..4 {
                let (join, is_over) = (&join, &is_over);
                scope.spawn(move || {
                    let world = join(rank);
                    world.barrier().unwrap();
                    if rank == 2 {
                        return;
                    }
                    if rank == 1 {
                        let ending = Ending::Failed("lost".to_owned());
                        world.post(DoctorMessage::Ended(ending.clone()).encode_message());
                        world.post(DoctorMessage::Ended(ending).encode_message());
                    }
                    while !is_over.load(Ordering::SeqCst) {
                        if rank == 1 && !world.take_posted().is_empty() {
                            world.post(DoctorMessage::Log(log(1, 9)).encode_message());
                            world.post(DoctorMessage::End.encode_message());
                        }
                        thread::sleep(POLL);
                    }
                });
            }
            let world = join(0);
            world.barrier().unwrap();
            let exchange = LogExchange {
                held: HeldLogs { process: 0, own: captured_log(), neighbours: Vec::new(), limit: LOG_BYTES },
                hosts: vec!["here".to_owned(); 4],
                world: Arc::downgrade(&world),
                received: Mutex::default(),
                is_asked: AtomicBool::new(false),
                is_reported: AtomicBool::new(false),
            };
            // The answering processes have answered within the limit; the third never does.
            let mut received = exchange.collect_logs(Duration::from_millis(500));
            while !received.complete.contains(&1) {
                received = exchange.collect_logs(Duration::from_millis(500));
            }
            assert_eq!(received.logs.keys().copied().collect::<Vec<_>>(), [0, 1]);
            assert_eq!(received.logs[&1], log(1, 9));
            assert_eq!(received.endings, BTreeMap::from([(1, Ending::Failed("lost".to_owned()))]));
            assert_eq!(received.complete, BTreeSet::from([1]));
            assert_eq!(exchange.collect_logs(Duration::ZERO), received, "collected again");
            is_over.store(true, Ordering::SeqCst);
        });
    }
}
