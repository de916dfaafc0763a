//! The state of a job, reported by RAS: communicators, their ranks, and the silent processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Serialize, Serializer};

/// Form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// JSON, of NCCL 2.28.7 and later.
    Json,
    /// Text, of NCCL 2.24 and later. It lists only ranks that differ from others.
    Text,
}

/// An answer of RAS.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Version of NCCL.
    pub nccl_version: String,
    /// Version of the CUDA runtime, `12090` for 12.9.
    pub cuda_runtime: Option<i64>,
    /// Newest CUDA version supported by the driver.
    pub cuda_driver: Option<i64>,
    /// Time of the answer by the host's clock.
    pub timestamp: Option<String>,
    /// Form of the answer.
    pub format: Format,
    /// True after the addition of a comma missing in NCCL 2.28.7 to 2.28.9.
    pub repaired: bool,
    /// Communicators, ascending by identity. A text answer names only communicators with errors or
    /// differences.
    pub communicators: Vec<JobCommunicator>,
    /// Kinds of communicators, only in a text answer.
    pub kinds: Vec<Kind>,
    /// Processes without an answer, only in a text answer.
    pub silent: Processes,
    /// Processes given up by RAS, only in a text answer.
    pub dead: Processes,
    /// Time of RAS for the collection of the answer.
    pub collection_s: Option<f64>,
    /// Timeouts between the processes while the answer was collected.
    pub timeouts: u64,
}

/// Communicators with the same number of ranks and state, a row of a text answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// Number of communicators.
    pub communicators: u32,
    /// Ranks of each.
    pub size: u32,
    /// State of the ranks.
    pub state: State,
    /// Sorts of errors and differences, empty for none.
    pub errors: Vec<String>,
}

/// Processes. A text answer may name only some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processes {
    /// Number of processes.
    pub count: u32,
    /// The named processes.
    pub named: Vec<JobProcess>,
}

/// A process of the job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct JobProcess {
    /// Address of its host.
    pub host: String,
    /// Number of the process on its host.
    pub pid: i64,
    /// Its GPUs in the words of the answer: `0,1`, `0 (NVML 3)`.
    pub gpus: String,
}

/// Identity of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Hash of the communicator, printed by `NCCL_DEBUG=INFO` as `commId`.
    pub hash: u64,
    /// Hash of its first rank's host and process. It distinguishes communicators of equal hash.
    pub secondary: String,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobCommunicator {
    /// Its identity.
    #[serde(rename = "hash")]
    pub identity: Identity,
    /// Number of its ranks.
    pub size: u32,
    /// Known ranks, ascending.
    pub ranks: Vec<Rank>,
    /// Ranks without data, ascending.
    pub missing: Vec<MissingRank>,
    /// Number of ranks without data. A text answer may not name all of them.
    pub missing_count: u32,
    /// Operations with counts differing between ranks not named in the text answer.
    pub unnamed_differences: Vec<String>,
    /// Different states, if a text answer names no ranks: `8 ranks have status INIT`.
    pub unnamed_states: Vec<String>,
}

/// Place of a rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RankPlace {
    /// Address of the host.
    pub host: String,
    /// Number of the process, or -1 if RAS does not know it.
    pub pid: i64,
    /// Number of the GPU in the process.
    pub cuda_dev: i64,
    /// Number of the GPU on the host.
    pub nvml_dev: i64,
}

/// A rank with data in RAS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Number in the communicator.
    pub rank: u32,
    /// Its place, if known.
    #[serde(flatten)]
    pub place: Option<RankPlace>,
    /// State, if known.
    pub state: Option<State>,
    /// Error of the initialization.
    pub init_error: Option<String>,
    /// Error since then.
    pub async_error: Option<String>,
    /// Number of launched operations per collective. A text answer has only counts differing between ranks.
    pub counts: BTreeMap<String, u64>,
}

/// A rank without data in RAS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingRank {
    /// Number in the communicator.
    pub rank: u32,
    /// Its place, if known.
    #[serde(flatten)]
    pub place: Option<RankPlace>,
    /// Reason of the absence.
    pub absence: Absence,
}

/// Reason why RAS has no data of a rank, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// The process could not be reached for 60 s, and RAS has given it up.
    Dead,
    /// The process did not answer.
    Unresponsive,
    /// The process answers, and has no such communicator: not yet, or no longer.
    NotAMember,
}

/// State of a rank in a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Another state, or an unknown one.
    Unknown,
    /// Initialization is not finished.
    Init,
    /// Ready for operations.
    Running,
    /// `ncclCommFinalize` or `ncclCommDestroy` was called.
    Finalize,
    /// `ncclCommAbort` was called.
    Abort,
}

impl Status {
    /// Returns the number of communicators.
    pub fn communicator_count(&self) -> u64 {
        match self.format {
            Format::Json => self.communicators.len() as u64,
            Format::Text => self.kinds.iter().map(|kind| u64::from(kind.communicators)).sum(),
        }
    }

    /// Returns the places of all named ranks, including absent ones.
    pub fn places_of_ranks(&self) -> BTreeSet<&RankPlace> {
        let present =
            self.communicators.iter().flat_map(|each| &each.ranks).filter_map(|rank| rank.place.as_ref());
        let absent =
            self.communicators.iter().flat_map(|each| &each.missing).filter_map(|rank| rank.place.as_ref());
        present.chain(absent).filter(|place| place.pid >= 0).collect()
    }

    /// Returns the numbers of all named processes.
    pub fn process_ids(&self) -> BTreeSet<i64> {
        let listed = self.silent.named.iter().chain(&self.dead.named).map(|process| process.pid);
        self.places_of_ranks().into_iter().map(|place| place.pid).chain(listed).collect()
    }

    /// Returns the communicator of this identity.
    pub fn find_communicator(&self, identity: &Identity) -> Option<&JobCommunicator> {
        let index = self.communicators.binary_search_by_key(&identity, |each| &each.identity).ok()?;
        self.communicators.get(index)
    }
}

impl JobCommunicator {
    /// Creates a communicator without ranks.
    pub fn new(identity: Identity, size: u32) -> Self {
        Self {
            identity,
            size,
            ranks: Vec::new(),
            missing: Vec::new(),
            missing_count: 0,
            unnamed_differences: Vec::new(),
            unnamed_states: Vec::new(),
        }
    }

    /// Returns the rank of this number.
    pub fn rank(&self, number: u32) -> Option<&Rank> {
        let index = self.ranks.binary_search_by_key(&number, |each| each.rank).ok()?;
        self.ranks.get(index)
    }
}

impl Rank {
    /// Creates a rank with only its number.
    pub fn new(rank: u32) -> Self {
        Self { rank, place: None, state: None, init_error: None, async_error: None, counts: BTreeMap::new() }
    }

    /// Returns the number of launched operations of all collectives.
    pub fn launched_operations(&self) -> u64 {
        self.counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

impl State {
    /// Returns the state with this name in a text answer.
    pub fn of_name(name: &str) -> Self {
        match name {
            "INIT" => Self::Init,
            "RUNNING" => Self::Running,
            "FINALIZE" => Self::Finalize,
            "ABORT" => Self::Abort,
            _ => Self::Unknown,
        }
    }
}

/// Returns the name of an `ncclResult_t`, or `None` for success and for an operation in progress.
pub fn error_name(code: i64) -> Option<String> {
    let name = match code {
        0 | 7 => return None,
        1 => "Unhandled CUDA error",
        2 => "System error",
        3 => "Internal error",
        4 => "Invalid argument",
        5 => "Invalid usage",
        6 => REMOTE_ERROR,
        8 => "Timeout",
        other => return Some(format!("Error {other}")),
    };
    Some(name.to_owned())
}

/// Name of the error about a failure of another process.
pub const REMOTE_ERROR: &str = "Remote process error";

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&format!("{:#x}", self.hash))
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for RankPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "GPU {}", self.cuda_dev)?;
        if self.cuda_dev != self.nvml_dev {
            write!(formatter, " (NVML {})", self.nvml_dev)?;
        }
        match self.pid {
            0.. => write!(formatter, ", process {} on {}", self.pid, self.host),
            _ => write!(formatter, ", process not known"),
        }
    }
}

impl fmt::Display for JobProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {} on {} (GPU {})", self.pid, self.host, self.gpus)
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Unknown => "unknown",
            Self::Init => "init",
            Self::Running => "running",
            Self::Finalize => "finalize",
            Self::Abort => "abort",
        })
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Dead => "dead",
            Self::Unresponsive => "does not answer",
            Self::NotAMember => "not in this communicator",
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Json => "JSON",
            Self::Text => "text",
        })
    }
}
