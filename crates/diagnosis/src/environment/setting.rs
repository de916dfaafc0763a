//! Variables with their places.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::names;
use crate::finding::Evidence;

/// Beginnings of the names of collected variables.
const PREFIXES: [&str; 9] =
    ["NCCL_", "FI_", "OFI_", "RDMAV_", "IBV_", "TORCH_NCCL_", "TORCH_FR_", "NVSHMEM_", "DOCA_GPUNETIO_"];

/// Other variables of interest for communication.
const NAMES: [&str; 12] = [
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "OMPI_MCA_btl_tcp_if_include",
    "TORCH_DISTRIBUTED_DEBUG",
    "UCX_NET_DEVICES",
    "UCX_TLS",
];

/// Endings of the names of secret variables: `NCCL_PSK`, `NCCL_BENCH_KEY`. Their values are never kept.
const SECRETS: [&str; 5] = ["_PSK", "_KEY", "_TOKEN", "_SECRET", "_PASSWORD"];

/// Text in place of a secret value.
const HIDDEN: &str = "(set, not shown)";

/// A variable with its value and place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name of the variable.
    pub name: String,
    /// Value, hidden for secrets.
    pub value: String,
    /// Place of the assignment.
    pub place: Location,
}

/// The place of a variable's assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// `environment`, `environment of process 7`, or a file.
    pub name: String,
    /// Line in the file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}

impl Setting {
    /// Returns the variable as evidence.
    pub(super) fn cite_setting(&self) -> Evidence {
        let text = format!("{}={}", self.name, self.value);
        Evidence { line: self.place.line, ..Evidence::at_place(&self.place.name, text) }
    }

    /// Creates a variable. The value of a secret is hidden.
    pub fn new(name: impl Into<String>, value: impl Into<String>, place: Location) -> Self {
        let name = name.into();
        let is_secret = SECRETS.iter().any(|ending| name.ends_with(ending));
        let value = if is_secret { HIDDEN.to_owned() } else { value.into() };
        Self { name, value, place }
    }
}

impl Location {
    /// Creates a place without line.
    pub fn without_line(name: impl Into<String>) -> Self {
        Self { name: name.into(), line: None }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

/// Returns true for the collected variables, also with a misspelt name. All other variables may contain
/// secrets, and are not read.
pub fn is_collected(name: &str) -> bool {
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && !name.is_empty();
    let upper = name.to_ascii_uppercase();
    let is_known = || PREFIXES.iter().any(|prefix| upper.starts_with(prefix)) || NAMES.contains(&name);
    is_name && (is_known() || names::find_misspelt(name).is_some())
}
