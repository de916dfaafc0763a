//! Writers of lines, with their failed calls and attempts to connect.

use std::collections::BTreeSet;

use semver::Version;
use serde::Serialize;

use super::Position;
use crate::log::source::{NO_PID, is_blanked_host};

/// A writer of lines: one GPU of one process, `host:pid [device]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Writer {
    /// Host name as the log has it, also a blanked one.
    pub host: String,
    /// Process, or a number from 2^63 if the log has none.
    #[serde(skip_serializing_if = "is_no_pid")]
    pub pid: u64,
    /// CUDA device, or `None` if the line has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// Rank in the writer's largest communicator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Version of NCCL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl: Option<Version>,
    /// The rest of the version line: `+cuda13.0`, with the build if NCCL writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl_build: Option<String>,
    /// CUDA version of the driver, as 13000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<u32>,
    /// Version of aws-ofi-nccl.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<Version>,
    /// Version of libfabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libfabric: Option<Version>,
    /// True if aws-ofi-nccl looks for EFA: on the platform AWS, or with the provider `efa` alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub efa: bool,
    /// The line `Using network`: `Socket`, `IB`, `AWS Libfabric`, `Libfabric`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Interfaces and devices of the network, as NCCL lists them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub devices: BTreeSet<String>,
    /// The interface of the bootstrap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<String>,
    /// Traced result codes of the first failures, at most [`FAILURES`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<CallFailure>,
    /// True after a traced error of an operation or of a group of operations.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub operation_failed: bool,
    /// Repeated attempts to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<Retries>,
    /// Position of the first line of this writer.
    pub first: Position,
    /// Position of the last line of this writer.
    pub last: Position,
    /// The message of its last line.
    #[serde(skip)]
    pub last_text: String,
    /// Position of its last line about its network, a communicator or a connection.
    #[serde(skip)]
    pub progress: Option<Position>,
}

impl Writer {
    /// Returns true unless the host name is blanked or missing.
    pub fn names_host(&self) -> bool {
        !is_blanked_host(&self.host)
    }

    /// Returns true unless the number of the process is blanked or missing.
    pub fn has_pid(&self) -> bool {
        self.pid < NO_PID
    }

    /// Returns true if several writers may have been taken for this one.
    pub fn is_blanked(&self) -> bool {
        !self.names_host() || !self.has_pid()
    }
}

/// Largest number of failures per writer.
pub const FAILURES: usize = 4;

/// A result code, traced through NCCL's functions (`misc/socket.cc:635 -> 6`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallFailure {
    /// File and line of NCCL's source in the first trace, closest to the cause.
    pub place: String,
    /// File and line of the first trace whose part of NCCL is not shared. Empty without one.
    #[serde(skip)]
    pub caller: String,
    /// File and line in the last trace.
    pub outermost: String,
    /// The result code.
    pub code: u32,
    /// Its name: `ncclRemoteError`.
    pub name: String,
    /// The first line.
    pub first: Position,
    /// The last line.
    pub last: Position,
    /// True if the process was starting a communicator, or had started none. If the start completes, NCCL
    /// continued despite the failure.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_of_start: bool,
    /// True if, by the rules, NCCL also writes each of its lines at the end of a communicator.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_of_end: bool,
}

/// Repeated attempts of a writer to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// Number of lines. Versions before 2.24 write one of 1000.
    pub count: u64,
    /// Largest number of an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Number of attempts until NCCL gives up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Address of the last peer, if the version writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// `Connection refused`.
    pub reason: String,
    /// The first line.
    pub first: Position,
    /// The last line.
    pub last: Position,
}

fn is_no_pid(pid: &u64) -> bool {
    *pid >= NO_PID
}
