//! Facts about hosts, and conclusions: [`Facts::read`] reads the facts of this host, and [`examine_hosts`]
//! judges them.

mod compare;
pub mod counters;
mod examine;
mod facts;
pub(crate) mod files;
pub mod gpu;
pub mod kernel;
pub mod libraries;
pub mod limits;
pub mod nic;
pub mod pci;
mod purpose;
pub mod rdma;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
mod spark;
pub mod system;
#[cfg(test)]
mod tests;

use std::{fs, io};

pub use examine::{Expected, examine_for_host_memory, examine_hosts};
pub use facts::{Facts, Source};

/// Returns the kernel's estimate of the bytes available without swapping (`MemAvailable` of `/proc/meminfo`).
///
/// # Errors
/// An error if the file cannot be read, or has no such line.
pub fn available_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")
        .map_err(|error| io::Error::new(error.kind(), format!("reading /proc/meminfo: {error}")))?;
    let kibibytes = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))?;
    Ok(kibibytes * 1024)
}
