//! The digest of a log: all facts for the conclusions, in memory independent of the log's length.

mod writer;

use std::collections::{BTreeMap, BTreeSet};

use semver::Version;
use serde::Serialize;

pub use self::writer::{CallFailure, FAILURES, Retries, Writer};
use super::roll::Roll;

/// The content of one or more logs of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Digest {
    /// Input files.
    pub inputs: Vec<Input>,
    /// Writers of lines, in the order of their first lines.
    pub writers: Vec<Writer>,
    /// Communicators, in the order of their first lines.
    pub communicators: Vec<Communicator>,
    /// Variables of the environment in the log.
    pub variables: Vec<VariableSeen>,
    /// Messages known to a rule, in the order of their first occurrence.
    pub hits: Vec<Hit>,
    /// Warnings unknown to all rules, one for each text apart from its numbers.
    pub unknown: Vec<Unknown>,
    /// Lines of NCCL's own diagnostics (`NCCL DIAG`, from 2.31).
    pub diagnostics: Vec<DiagnosticLine>,
    /// Reports of PyTorch's watchdog.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watchdog: Vec<WatchdogReport>,
    /// Tracebacks of Python with their exceptions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tracebacks: Vec<Traceback>,
    /// True if the log has lines of a program, besides NCCL's.
    pub has_program_lines: bool,
    /// Versions of NCCL on lines without a writer, as with `NCCL_DEBUG=VERSION` and `WARN`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub versions: BTreeSet<Version>,
    /// Sentences about facts dropped to bound the memory: empty unless a log is extreme.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// Paths between the GPUs of a node, from the lines of the topology.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub paths: BTreeSet<GpuPath>,
    /// The processes of the ranks in the head of nccl-tests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub head: BTreeMap<u32, RankProcess>,
    /// Hosts of nccl-tests processes that each run alone, as the only rank.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub lone_tests: BTreeSet<String>,
    /// The tables of nccl-tests.
    #[serde(skip)]
    pub tables: TestTables,
    /// The last bar of progress of a program, if it is not full.
    #[serde(skip)]
    pub open_bar: Option<Example>,
    /// Number of lines left out by Ray as repetitions of others, by its own count.
    pub repeated: u64,
}

/// The tables of nccl-tests in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TestTables {
    /// Number of heads.
    pub heads: u64,
    /// Number of rows.
    pub rows: u64,
    /// Largest size in a row, in bytes.
    pub size: u64,
    /// Largest bus bandwidth (busbw), in GB/s.
    pub bandwidth: f64,
    /// The deepest drop to a size with much less bandwidth than the size before it: both sizes.
    pub drop: Option<[(u64, f64); 2]>,
}

/// The process of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankProcess {
    /// Host name.
    pub host: String,
    /// Process.
    pub pid: u64,
}

/// The path from a GPU to another one of the same node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct GpuPath {
    /// Host.
    pub host: String,
    /// PCI bus id of the first GPU.
    pub from: String,
    /// PCI bus id of the second GPU.
    pub to: String,
    /// NCCL's name of the path: `NVL`, `PIX`, `PHB`, `SYS`.
    pub kind: String,
}

/// A file, or standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Input {
    /// Path, or `standard input`.
    pub name: String,
    /// Bytes after decompression.
    pub bytes: u64,
    /// Lines.
    pub lines: u64,
    /// Lines of NCCL.
    pub nccl_lines: u64,
    /// Reason for an incomplete read: a cut compressed file, an error of the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A line of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// Index of the input.
    pub input: usize,
    /// Line, from 1.
    pub line: u64,
}

/// A communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Communicator {
    /// NCCL's commId. For a split communicator, the parent's with number and color of the split:
    /// `0xbc42/1.0`. `without commId` if the version does not write it. Empty for connections of a
    /// communicator without an initialisation in the log.
    pub id: String,
    /// Creating function: `ncclCommInitRankConfig`, `ncclCommSplit`.
    pub made_by: String,
    /// Number of ranks.
    pub ranks: u32,
    /// True if no line has the number of ranks: it is the smallest one for the connections.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_size_guessed: bool,
    /// Ranks claimed by several writers: the connections of several communicators.
    #[serde(skip)]
    pub shared_ranks: BTreeSet<u32>,
    /// Number of nodes, as NCCL counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Members in the log, by rank.
    pub members: BTreeMap<u32, Member>,
    /// Connections between ranks, by sender and receiver.
    #[serde(serialize_with = "serialize_pairs")]
    pub connections: BTreeMap<(u32, u32), Connection>,
    /// `coll channels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// `nvls channels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvls_channels: Option<u32>,
    /// The orders of the rings, without duplicates.
    pub rings: BTreeSet<Vec<u32>>,
    /// True once `Trees` were logged.
    pub trees: bool,
    /// Position of its first line.
    pub first: Position,
    /// Position of the last line about the beginning or end of its life.
    pub last: Position,
    /// Algorithms and protocols of the operations logged, with their number: `RING LL`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub choices: BTreeMap<String, u64>,
}

/// One rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Member {
    /// Index in [`Digest::writers`].
    pub writer: usize,
    /// PCI bus id of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// NVML's number of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml: Option<u32>,
    /// Multi-node NVLink, as NCCL reports it for this rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mnnvl: Option<bool>,
    /// Number of ranks in this rank's lines, if it differs from the communicator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_size: Option<u32>,
    /// `Init START` was logged.
    pub started: bool,
    /// `Init COMPLETE` was logged.
    pub complete: bool,
    /// `Connected all rings` or `trees` was logged.
    pub connected: bool,
    /// True for a connection after `Init COMPLETE`, in versions with connections at the first collective.
    #[serde(skip)]
    pub connected_late: bool,
    /// It logged the algorithm of an operation.
    #[serde(skip)]
    pub operated: bool,
    /// Thread of `Init START`, and its number of lines at that time.
    #[serde(skip)]
    pub(super) start: Option<(u64, u64)>,
    /// Number of lines of its thread from `Init START` to `Init COMPLETE`, except lines about rings, trees
    /// and channels.
    #[serde(skip)]
    pub start_lines: Option<u64>,
    /// The rank itself logged a connection, as sender or receiver.
    #[serde(skip)]
    pub logs_connections: bool,
    /// `Destroy COMPLETE` was logged.
    pub destroyed: bool,
    /// `Abort COMPLETE` was logged.
    pub aborted: bool,
    /// Seconds of `Init timings` by phase: `total`, `bootstrap`, ...
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub timings: BTreeMap<String, f64>,
    /// Seconds of `Bootstrap timings` by phase: `total`, `recv`, ...
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub bootstrap: BTreeMap<String, f64>,
}

impl Communicator {
    /// Returns true for a member with a completed start: it logged the completion, or an event possible only
    /// after it.
    pub fn has_completed(&self, member: &Member) -> bool {
        let connects_late = || self.members.values().any(|member| member.connected_late);
        member.complete || member.destroyed || member.operated || member.connected && connects_late()
    }
}

/// The channels from one rank to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// Transports with their numbers of channels. Channels of collectives and of send and receive with the
    /// same number count once.
    #[serde(serialize_with = "serialize_transports")]
    pub transports: BTreeMap<Transport, u32>,
}

/// The way of data between two ranks, in the words after `via`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Between GPUs: NVLink or PCIe.
    P2p {
        /// `direct pointer`, `CUMEM`, `IPC`, `indirect`.
        how: String,
        /// `/read`: the receiver reads. NCCL chooses this over NVLink only, unless NCCL_P2P_READ_ENABLE is
        /// set.
        read: bool,
    },
    /// NVLink between nodes.
    Mnnvl,
    /// The host's shared memory.
    Shm,
    /// A network.
    Net {
        /// `Socket`, `IB`, `Libfabric`.
        name: String,
        /// Index of the device.
        device: Option<u32>,
        /// GPUDirect RDMA.
        gdr: bool,
    },
    /// Another word.
    Other(String),
}

/// A variable set according to the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VariableSeen {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// True if a plugin set it (`Adding X to environment`).
    pub by_plugin: bool,
    /// Indices of the writers of its lines.
    pub writers: BTreeSet<usize>,
    /// Position of the first line.
    pub first: Position,
}

/// Messages known to one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Name of the rule.
    pub rule: String,
    /// The first messages, at most [`EXAMPLES`].
    pub examples: Vec<Example>,
    /// The last message, if there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Example>,
    /// Number of messages.
    pub count: u64,
    /// Indices of the writers.
    pub writers: BTreeSet<usize>,
    /// Ranks that the messages list.
    #[serde(skip)]
    pub roll: Roll,
}

/// Largest number of examples per rule or unknown warning.
pub const EXAMPLES: usize = 4;

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Example {
    /// Position in the log.
    pub position: Position,
    /// Index of the writer, or `None` for a line of another program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<usize>,
    /// The message, shortened.
    pub text: String,
    /// The file of NCCL's source, and the line in it: `bootstrap.cc:77`. Empty for messages without.
    #[serde(skip)]
    pub place: String,
    /// The time as the line has it: `2025-12-28 16:04:25`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Rank in the prefix of a launcher (`[rank3]:`, `[1,3]<stderr>:`, `3: `).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Number of the thread, and its number of lines so far.
    #[serde(skip)]
    pub thread: Option<(u64, u64)>,
    /// True if the rank is the number of a task.
    #[serde(skip)]
    pub(super) is_task: bool,
    /// True for a task in the form `[3] `.
    #[serde(skip)]
    pub(super) is_bare_task: bool,
}

/// A warning unknown to all rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// True for lines of level ERROR.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// The first messages, at most [`EXAMPLES`].
    pub examples: Vec<Example>,
    /// The last message, if there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Example>,
    /// Number of messages with the same text, apart from numbers.
    pub count: u64,
    /// Indices of the writers.
    pub writers: BTreeSet<usize>,
}

/// A line of NCCL's own diagnostics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiagnosticLine {
    /// `OK` or `INFO`. Empty for a heading.
    pub status: String,
    /// The text after it.
    pub text: String,
    /// The first place.
    pub position: Position,
}

/// A report of PyTorch's watchdog about a rank of a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct WatchdogReport {
    /// Rank in the job if a launcher's prefix names it, else in the group.
    pub rank: u32,
    /// Process group: `0(default_pg)`, or `None` if the line does not name it.
    pub group: Option<String>,
    /// Number of the unfinished collective.
    pub sequence: Option<u64>,
    /// Its operation: `ALLREDUCE`.
    pub operation: Option<String>,
    /// Its numbers of elements, of the input and of the output.
    pub elements: Option<(u64, u64)>,
    /// Number of the rank's last call of a collective.
    pub enqueued: Option<u64>,
    /// Number of a collective that other ranks called, and this rank did not.
    pub missed: Option<u64>,
    /// The line.
    pub position: Position,
    /// Its text, shortened.
    pub text: String,
}

/// A traceback of Python, and its exception.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traceback {
    /// Its first line.
    pub head: Position,
    /// The line of its exception.
    pub exception: Position,
    /// The exception, shortened, without the labels before it.
    pub text: String,
    /// The rule that knows the exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// True if no later line of its process shows that it went on.
    pub is_end: bool,
}

/// Serializes pairs as a list, since JSON has no tuples as keys.
fn serialize_pairs<S: serde::Serializer>(
    connections: &BTreeMap<(u32, u32), Connection>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct ConnectionEntry<'a> {
        from: u32,
        to: u32,
        #[serde(flatten)]
        connection: &'a Connection,
    }
    serializer.collect_seq(connections.iter().map(|(&(from, to), connection)| ConnectionEntry {
        from,
        to,
        connection,
    }))
}

/// Serializes transports as a list, since JSON has no structures as keys.
fn serialize_transports<S: serde::Serializer>(
    transports: &BTreeMap<Transport, u32>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Used<'a> {
        transport: &'a Transport,
        channels: u32,
    }
    serializer.collect_seq(transports.iter().map(|(transport, &channels)| Used { transport, channels }))
}
