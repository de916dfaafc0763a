//! The record of a run, the source of all reports and files.
//!
//! A [`Run`] is one start of `nccl-bench` over all its ranks. It serialises to the native JSON format, whose
//! version is [`SCHEMA_VERSION`]; docs/results.md describes it. A reader of version *n* reads every file of
//! version *n*: fields are only added, with a default. A number that is not finite is `null` there, and NaN
//! when it was read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::links::HostLinks;
use crate::number;
use crate::settings::Settings;
use crate::statistics::Statistics;

/// The version of the native format. It increases when an older reader would misread a file.
pub const SCHEMA_VERSION: u32 = 1;

/// One start of `nccl-bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// Program with its version and git revision: `nccl-bench 0.1.0 (1a2b3c4d5e6f)`.
    pub program: String,
    /// The command line.
    pub command: Vec<String>,
    /// Start, in UTC: `2026-11-22T08:30:00.123Z`.
    pub started_at: String,
    /// End, in UTC; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Outcome.
    pub outcome: RunOutcome,
    /// Libraries, machine and environment.
    pub provenance: Provenance,
    /// Settings, after defaults.
    pub settings: Settings,
    /// All ranks, in order.
    pub ranks: Vec<Rank>,
    /// Times of the start, in order; empty until the ranks have connected, and for pairs of ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_phases: Vec<StartPhase>,
    /// Measurements, in order.
    pub measurements: Vec<Measurement>,
    /// Changes and omissions, for readers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Measurements that the file has not, for want of space on the disk; absent when it has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// A phase of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Opening the devices.
    Device,
    /// Connecting the ranks.
    Connection,
}

/// The time of a phase of the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartPhase {
    /// The phase.
    pub phase: Phase,
    /// Median of the ranks, in seconds.
    #[serde(deserialize_with = "number::or_nan")]
    pub median_s: f64,
    /// Time of the slowest rank, in seconds.
    #[serde(deserialize_with = "number::or_nan")]
    pub longest_s: f64,
    /// The slowest rank, by its number among the ranks of the run.
    pub slowest_rank: usize,
}

/// Measurements that were taken and are not in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Number of measurements.
    pub measurements: usize,
    /// Number of these with wrong data, on either side.
    pub wrong_measurements: usize,
}

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunOutcome {
    /// It has not ended yet, or was killed before its outcome was written.
    Running,
    /// Everything was measured. The measurements contain the result of the verification.
    Complete,
    /// A signal ended it: `SIGINT`.
    Interrupted {
        /// The signal's name.
        signal: String,
    },
    /// Something failed.
    Failed {
        /// Message, with rank and host.
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
    /// Path of the library on rank 0.
    pub library_path: String,
    /// Newest CUDA version that the driver supports: `13.0`. Absent without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_driver: Option<String>,
    /// The baseline (`--vs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versus: Option<BackendLibrary>,
    /// Transport, if it is known: `shm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Launcher, number of processes, and their meeting: `Open MPI's mpirun, 16 processes, Open MPI 4.1.4`,
    /// or `one process`.
    pub world: String,
    /// System of rank 0's host: `Linux 6.8.0 x86_64`.
    pub system: String,
    /// Links of the devices of rank 0's host; absent without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<HostLinks>,
    /// Variables of rank 0's process that affect the measurement: those of NCCL, CUDA, libfabric, UCX and
    /// MPI.
    pub environment: BTreeMap<String, String>,
}

/// A backend and the library that carries its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendLibrary {
    /// Name of the backend: `mpi`.
    pub backend: String,
    /// The library's version, of MPI with its name: `Open MPI 4.1.4`.
    pub library_version: String,
    /// Path of the library on rank 0.
    pub library_path: String,
}

/// One rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Number among the ranks of the run.
    pub rank: usize,
    /// Number among all ranks of the job, of which only some were measured; absent where both numbers are the
    /// same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_rank: Option<usize>,
    /// Number of its group (`NCCL_TESTS_SPLIT`); 0 without groups.
    pub group: usize,
    /// Process id.
    pub pid: u32,
    /// Name of its host.
    pub host: String,
    /// The CUDA ordinal of its GPU; absent without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<usize>,
    /// PCI address of the GPU: `0000:18:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Name of the device: `NVIDIA H200`, `host memory`.
    pub device_name: String,
    /// The processors that its thread may use: `0-3, 8`; absent when they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<String>,
    /// The NUMA nodes of these processors: `0`; absent when they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<String>,
    /// The libfabric domains of its endpoints, each once; empty for collectives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// The addresses of its endpoints; empty for collectives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// The measurement of one size and placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The collective, by its name on the command line: `allreduce`; or the test of a pair of ranks: `bw`.
    pub collective: String,
    /// The group that was measured ([`Rank::group`]); absent when there is one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// The two ranks that were measured, first the one whose clock counts; absent for collectives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<[usize; 2]>,
    /// Number of the sweep's run (`-N`), from 0 on.
    #[serde(default)]
    pub cycle: usize,
    /// The type, by NCCL's name: `float`.
    pub data_type: String,
    /// The operator: `sum`; absent where nothing is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The root; absent when the collective has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<usize>,
    /// Placement of the input.
    pub placement: Placement,
    /// Size: bytes of the larger buffer of a rank.
    pub bytes: u64,
    /// Count parameter of the library's function.
    pub count: u64,
    /// Microseconds per operation, as the table has it: the mean of each rank, or the median of its rounds,
    /// reduced over the ranks according to `average`.
    #[serde(deserialize_with = "number::or_nan")]
    pub time_us: f64,
    /// The first rank's time to enqueue an operation (`-C`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time_us: Option<f64>,
    /// Size over time, in GB/s (1e9 bytes per second).
    #[serde(deserialize_with = "number::or_nan")]
    pub algbw_gbps: f64,
    /// Minimum bandwidth of each rank's link, in GB/s.
    #[serde(deserialize_with = "number::or_nan")]
    pub busbw_gbps: f64,
    /// Wrong elements on all ranks; absent when nothing was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
    /// Timed operations behind `time_us`.
    pub operations: usize,
    /// Microseconds per operation of each round, reduced over the ranks according to `average`; empty for a
    /// single round.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "number::each_or_nan")]
    pub rounds_us: Vec<f64>,
    /// With `until_stable`: false when the budget ended before the requested precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable: Option<bool>,
    /// The baseline's result (`--vs`); absent without a baseline, and when the baseline does not support
    /// this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versus: Option<Versus>,
    /// Statistics of single operations, each with the slowest rank's time; absent when operations were not
    /// timed one by one. Without `-I` they are from a second pass, so that timing each operation does not
    /// change `time_us`, which therefore can lie outside of their range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
    /// The times behind `statistics`, including excluded ones (`-I`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_iteration: Option<PerIteration>,
    /// Each rank's own times, in order.
    #[serde(default)]
    pub per_rank: Vec<RankTimes>,
    /// NCCL's choice, or that of the fabric backend; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Ranks with wrong elements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<RankMismatch>,
    /// Time of the measurement, in UTC.
    pub measured_at: String,
}

/// The baseline's result, for as many operations in as many rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// See [`Measurement::time_us`].
    #[serde(deserialize_with = "number::or_nan")]
    pub time_us: f64,
    /// See [`Measurement::algbw_gbps`].
    #[serde(deserialize_with = "number::or_nan")]
    pub algbw_gbps: f64,
    /// See [`Measurement::busbw_gbps`].
    #[serde(deserialize_with = "number::or_nan")]
    pub busbw_gbps: f64,
    /// See [`Measurement::rounds_us`].
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "number::each_or_nan")]
    pub rounds_us: Vec<f64>,
    /// See [`Measurement::wrong`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
    /// See [`Measurement::mismatches`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<RankMismatch>,
    /// The measurement's `time_us` divided by this one; below 1 it is faster than the baseline.
    #[serde(deserialize_with = "number::or_nan")]
    pub ratio: f64,
    /// The ratio of the shortest rounds.
    #[serde(deserialize_with = "number::or_nan")]
    pub best_ratio: f64,
}

/// Placement of a rank's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In the send buffer.
    #[default]
    OutOfPlace,
    /// In the receive buffer, where the result goes.
    InPlace,
}

/// The times of all iterations of a measurement, in microseconds per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerIteration {
    /// Number of first iterations that the statistics exclude (`-K`).
    pub skipped: usize,
    /// The longest time of all ranks, of each iteration.
    #[serde(deserialize_with = "number::each_or_nan")]
    pub times_us: Vec<f64>,
    /// The longest times of each process's ranks; empty for a single process.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "number::lists_or_nan")]
    pub processes_us: Vec<Vec<f64>>,
}

/// One rank's times of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Mean of all operations, in microseconds.
    #[serde(deserialize_with = "number::or_nan")]
    pub time_us: f64,
    /// Statistics of its single operations; absent when they were not timed one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
}

/// Algorithm, protocol and channels of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Algorithm {
    /// `ring`, `tree`, `nvls`, ...; `p2p`: sends and receives. Over libfabric, `hierarchical+ring`: with a
    /// ring between hosts.
    pub algorithm: String,
    /// `ll`, `ll128`, `simple`; absent when there is none, or it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Number of channels, for `p2p` those of each send or receive; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
}

/// One rank's wrong elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMismatch {
    /// The rank.
    pub rank: usize,
    /// Number of wrong elements.
    pub wrong: u64,
    /// The first wrong element: `element 3: expected 1.5 (0x3fc00000), found NaN (0x7fc00000)`.
    pub first: String,
}

impl Placement {
    /// Name in reports: `out-of-place`, `in-place`.
    pub const fn placement_name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out-of-place",
            Self::InPlace => "in-place",
        }
    }

    /// Name with blanks. Parsers take the last line with `out-of-place` for the head of the table.
    pub const fn placement_words(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out of place",
            Self::InPlace => "in place",
        }
    }
}

impl Measurement {
    /// Number of ranks with wrong data, in both backends together.
    pub fn failed_checks(&self) -> u64 {
        let theirs = self.versus.as_ref().map_or(0, |versus| versus.mismatches.len());
        (self.mismatches.len() + theirs) as u64
    }

    /// Returns true when a backend's ranks with wrong elements are listed, but its wrong elements are not
    /// counted.
    pub(crate) fn has_uncounted_mismatch(&self) -> bool {
        let uncounted =
            |wrong: Option<u64>, found: &[RankMismatch]| wrong.unwrap_or(0) == 0 && !found.is_empty();
        uncounted(self.wrong, &self.mismatches)
            || self.versus.as_ref().is_some_and(|theirs| uncounted(theirs.wrong, &theirs.mismatches))
    }

    /// Returns true when any data is wrong, in either backend.
    pub fn is_wrong(&self) -> bool {
        let theirs = self.versus.as_ref().and_then(|versus| versus.wrong);
        [self.wrong, theirs].into_iter().flatten().any(|wrong| wrong > 0)
    }
}

impl Run {
    /// The devices in the order of ranks: `8 x NVIDIA H200, 4 x NVIDIA H100`.
    pub fn devices_text(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for rank in &self.ranks {
            match counts.iter_mut().find(|(name, _)| *name == rank.device_name) {
                Some((_, count)) => *count += 1,
                None => counts.push((&rank.device_name, 1)),
            }
        }
        counts.iter().map(|(name, count)| format!("{count} x {name}")).collect::<Vec<_>>().join(", ")
    }

    /// The test of pairs of ranks in one line: `bw over tcp, window 64`; `None` for collectives.
    pub fn describe_pairs(&self) -> Option<String> {
        let provider = self.provenance.transport.as_deref().unwrap_or_default();
        self.settings.pairs.as_ref().map(|pairs| pairs.describe_test(provider))
    }

    /// Number of pairs of rank and measurement with wrong data; `None` when nothing was verified.
    pub fn failed_checks(&self) -> Option<u64> {
        let verified = self.measurements.iter().any(|measurement| measurement.wrong.is_some());
        verified.then(|| self.measurements.iter().map(Measurement::failed_checks).sum())
    }

    /// The mean of all bus bandwidths, in GB/s; `None` when nothing was measured.
    pub fn mean_busbw_gbps(&self) -> Option<f64> {
        let count = self.measurements.len();
        (count > 0).then(|| self.measurements.iter().map(|each| each.busbw_gbps).sum::<f64>() / count as f64)
    }
}
