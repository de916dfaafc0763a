//! What a run found, as all reports show it and the files keep it.
//!
//! A [`Run`] is one start of `nccl-bench` over all its ranks. It serialises to the native JSON format, whose version is
//! [`SCHEMA_VERSION`]; docs/results.md describes it. A reader of version *n* reads every file of version *n*: fields are
//! only added, with a default. A number that is not finite is `null` there, and NaN when it was read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::number;
use crate::statistics::Statistics;

/// The version of the native format. It rises when a reader of the one before would misread a file.
pub const SCHEMA_VERSION: u32 = 1;

/// One start of `nccl-bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// `nccl-bench` with its version and git revision: `nccl-bench 0.1.0 (1a2b3c4d5e6f)`.
    pub program: String,
    /// The command line.
    pub command: Vec<String>,
    /// When it began, in UTC: `2026-11-22T08:30:00.123Z`.
    pub started_at: String,
    /// When it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// What it ran on.
    pub provenance: Provenance,
    /// What it was asked for.
    pub settings: Settings,
    /// All ranks, in order.
    pub ranks: Vec<Rank>,
    /// What was measured, in order.
    pub measurements: Vec<Measurement>,
    /// What had to be changed or left out, for readers.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Outcome {
    /// It has not ended yet, or was killed before it could say how.
    Running,
    /// Everything was measured; whether all was right, the measurements say.
    Complete,
    /// A signal ended it: `SIGINT`.
    Interrupted {
        /// The signal's name.
        signal: String,
    },
    /// Something failed.
    Failed {
        /// What, with rank and host.
        message: String,
    },
}

/// Libraries, machine and environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// `nccl`, `fabric` or `mpi`.
    pub backend: String,
    /// Version of the library that carries the data: `2.28.9`; of MPI with its name: `Open MPI 4.1.4`.
    pub library_version: String,
    /// The file that it was loaded from, on rank 0.
    pub library_path: String,
    /// The newest CUDA version of the driver: `13.0`. Absent without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_driver: Option<String>,
    /// What was measured in turn with it (`--vs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versus: Option<BackendLibrary>,
    /// What the data goes through, where that is known: `shm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// How the processes found each other: `mpirun (Open MPI), 16 processes`.
    pub world: String,
    /// `Linux 6.8.0 x86_64` of rank 0's host.
    pub system: String,
    /// Variables that change what is measured, of rank 0's process: those of NCCL, CUDA, libfabric, UCX and MPI.
    pub environment: BTreeMap<String, String>,
}

/// A backend and the library that carries its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendLibrary {
    /// `mpi`.
    pub backend: String,
    /// The library's version, of MPI with its name: `Open MPI 4.1.4`.
    pub library_version: String,
    /// The file that it was loaded from, on rank 0.
    pub library_path: String,
}

/// What was asked for, after defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Host threads per process (`-t`).
    pub threads: usize,
    /// GPUs per thread (`-g`).
    pub gpus: usize,
    /// Smallest size in bytes (`-b`).
    pub min_bytes: u64,
    /// Largest size in bytes (`-e`), before what memory allows.
    pub max_bytes: u64,
    /// Multiplies the size (`-f`); absent when `step_bytes` is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_factor: Option<u64>,
    /// Is added to the size (`-i`); absent when `step_factor` multiplies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_bytes: Option<u64>,
    /// Timed iterations (`-n`).
    pub iterations: usize,
    /// Operations per iteration, in one group (`-m`).
    pub aggregated: usize,
    /// Warm-up operations per size (`-w`).
    pub warm_up: usize,
    /// Runs of the whole sweep (`-N`); 0: until it is ended.
    pub cycles: usize,
    /// Verifications per size and placement (`-c`).
    pub checks: usize,
    /// Rounds of the check on the stream per size and placement, eager, and as many or a few more in a CUDA graph
    /// (`--check-on-stream`); absent without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_checks: Option<usize>,
    /// How the ranks' times become one (`-a`).
    pub average: Average,
    /// When the host waits (`-z`).
    pub blocking: Blocking,
    /// Launches of a CUDA graph of all iterations (`-G`); 0: no graph.
    pub graph_launches: usize,
    /// How NCCL knows the buffers (`-R`).
    pub registration: Registration,
    /// Elements by which the buffers are shifted (`-u`).
    pub unaligned: usize,
    /// Whether each iteration was timed on its own by CUDA events (`-I`).
    pub per_iteration: bool,
    /// Samples left out of the statistics (`-K`).
    pub per_iteration_skip: usize,
    /// Whether threads initialise NCCL by themselves (`-p`).
    pub parallel_init: bool,
    /// Whether the time of the host is reported, too (`-C`).
    pub cpu_time: bool,
    /// Whether rows have a time stamp (`-S`).
    pub time_stamps: bool,
    /// NCCL's `CTAPolicy` (`-x`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cta_policy: Option<u32>,
    /// Whether everything ran on the legacy default stream (`-y`).
    pub default_stream: bool,
    /// Rounds of the timed iterations, of which the median counts; absent for one, and with `until_stable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// Iterations went on until the median was known this well, as a share: 0.01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_stable: Option<f64>,
    /// Seconds that one size could take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_seconds: Option<f64>,
}

/// How the ranks' times become one (`-a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// The first rank's.
    Rank0,
    /// Their mean.
    Mean,
    /// The shortest.
    Min,
    /// The longest.
    Max,
}

/// When the host waits for the GPU (`-z`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blocking {
    /// After all iterations.
    No,
    /// After each operation, for all ranks.
    WaitAndBarrier,
    /// After each operation, for its own rank.
    Wait,
    /// After each iteration, for all ranks; the time is without that of the barrier.
    Outer,
}

/// How NCCL knows the buffers (`-R`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Registration {
    /// It does not.
    None,
    /// Each rank registers its own (`ncclCommRegister`).
    Local,
    /// All ranks register them together (`ncclCommWindowRegister`).
    Symmetric,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Its number among all ranks.
    pub rank: usize,
    /// The number of its group (`NCCL_TESTS_SPLIT`); 0 without groups.
    pub group: usize,
    /// Its process.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// The CUDA ordinal of its GPU; absent without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<usize>,
    /// Where the GPU is on the PCI bus: `0000:18:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// What it is: `NVIDIA H200`, `host memory`.
    pub device_name: String,
}

/// One placement of one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The collective, by its name on the command line: `allreduce`.
    pub collective: String,
    /// Which run of the sweep (`-N`), from 0 on.
    #[serde(default)]
    pub cycle: usize,
    /// The type, by NCCL's name: `float`.
    pub data_type: String,
    /// The operator: `sum`; absent where nothing is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The root; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<usize>,
    /// Where the input was.
    pub placement: Placement,
    /// The size: bytes of the larger buffer of a rank.
    pub bytes: u64,
    /// The count that the library's function takes.
    pub count: u64,
    /// Microseconds per operation: the ranks' means, of several rounds their median, made one as `average` says. What the
    /// table shows.
    #[serde(deserialize_with = "number::or_nan")]
    pub time_us: f64,
    /// The first rank's time to enqueue an operation (`-C`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time_us: Option<f64>,
    /// Size over time, in GB/s (1e9 bytes per second).
    #[serde(deserialize_with = "number::or_nan")]
    pub algbw_gbps: f64,
    /// What each rank's link carries at least, in GB/s.
    #[serde(deserialize_with = "number::or_nan")]
    pub busbw_gbps: f64,
    /// Wrong elements on all ranks; absent when nothing was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
    /// Timed operations behind `time_us`.
    pub operations: usize,
    /// Microseconds per operation of each round, the ranks' made one as `average` says; empty for a single round.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "number::each_or_nan")]
    pub rounds_us: Vec<f64>,
    /// With `until_stable`: false when the budget ended before the median was known that well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable: Option<bool>,
    /// What was measured in turn with it (`--vs`); absent without, and where the other side cannot do the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versus: Option<Versus>,
    /// Statistics of single operations, each with the slowest rank's time; absent when operations were not
    /// timed one by one. Without `-I` they are from a second pass, so that timing each operation does not
    /// change `time_us`, which therefore can lie outside of their range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
    /// The times behind `statistics`, with those that it leaves out (`-I`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_iteration: Option<PerIteration>,
    /// Each rank's own times, in order.
    #[serde(default)]
    pub per_rank: Vec<RankTimes>,
    /// What NCCL chose, or the table of the fabric backend; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Ranks with wrong elements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<Mismatch>,
    /// When it was measured, in UTC.
    pub measured_at: String,
}

/// What the other side of `--vs` took for the same, as many operations in as many rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// As of the measurement.
    #[serde(deserialize_with = "number::or_nan")]
    pub time_us: f64,
    /// As of the measurement.
    #[serde(deserialize_with = "number::or_nan")]
    pub algbw_gbps: f64,
    /// As of the measurement.
    #[serde(deserialize_with = "number::or_nan")]
    pub busbw_gbps: f64,
    /// As of the measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "number::each_or_nan")]
    pub rounds_us: Vec<f64>,
    /// As of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
    /// As of the measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<Mismatch>,
    /// The measurement's `time_us` over this one's: below 1 it is faster than the other side.
    #[serde(deserialize_with = "number::or_nan")]
    pub ratio: f64,
    /// The same of the shortest rounds.
    #[serde(deserialize_with = "number::or_nan")]
    pub best_ratio: f64,
}

/// Where the input of a rank lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In the send buffer.
    OutOfPlace,
    /// In the receive buffer, where the result goes.
    InPlace,
}

/// The times of all iterations of a measurement, in microseconds per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerIteration {
    /// How many of the first are not in the statistics (`-K`).
    pub skipped: usize,
    /// Of each iteration the longest time of all ranks.
    #[serde(deserialize_with = "number::each_or_nan")]
    pub times_us: Vec<f64>,
    /// The same of each process's ranks; empty for a single process.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "number::lists_or_nan")]
    pub processes_us: Vec<Vec<f64>>,
}

/// One rank's times of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Microseconds per operation: the mean over all of them.
    #[serde(deserialize_with = "number::or_nan")]
    pub time_us: f64,
    /// Of its operations' own times; absent when they were not timed one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
}

/// How NCCL or the fabric backend carries an operation out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Algorithm {
    /// `ring`, `tree`, `nvls`, ...; `p2p`: sends and receives. Over libfabric, `hierarchical+ring`: with a ring between
    /// hosts.
    pub algorithm: String,
    /// `ll`, `ll128`, `simple`; absent where there is none, or it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// How many channels, of `p2p` those of each send or receive; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
}

/// One rank's wrong elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The rank.
    pub rank: usize,
    /// How many elements are wrong.
    pub wrong: u64,
    /// The first of them: `element 3: expected 1.5 (0x3fc00000), found NaN (0x7fc00000)`.
    pub first: String,
}

impl Measurement {
    /// How many ranks have wrong data, on both sides together.
    #[must_use]
    pub fn failed_checks(&self) -> u64 {
        let theirs = self.versus.as_ref().map_or(0, |versus| versus.mismatches.len());
        (self.mismatches.len() + theirs) as u64
    }

    /// Whether any data is wrong, on either side.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        let theirs = self.versus.as_ref().and_then(|versus| versus.wrong);
        [self.wrong, theirs].into_iter().flatten().any(|wrong| wrong > 0)
    }
}

impl Run {
    /// How many pairs of rank and measurement have wrong data; `None` when nothing was verified.
    #[must_use]
    pub fn failed_checks(&self) -> Option<u64> {
        let verified = self.measurements.iter().any(|measurement| measurement.wrong.is_some());
        verified.then(|| self.measurements.iter().map(Measurement::failed_checks).sum())
    }

    /// The mean of all bus bandwidths, in GB/s; `None` when nothing was measured.
    #[must_use]
    pub fn mean_busbw_gbps(&self) -> Option<f64> {
        let count = self.measurements.len();
        (count > 0).then(|| self.measurements.iter().map(|each| each.busbw_gbps).sum::<f64>() / count as f64)
    }
}
