//! Facts about the host of this process.

pub mod rdma;
#[cfg(any(test, feature = "sample"))]
pub mod sample;

use std::{fs, io};

/// Bytes that the kernel says can be allocated without swapping (`MemAvailable` of `/proc/meminfo`).
///
/// # Errors
/// When the file cannot be read, or has no such line.
pub fn available_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")
        .map_err(|error| io::Error::new(error.kind(), format!("reading /proc/meminfo: {error}")))?;
    let kibibytes = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))?;
    Ok(kibibytes * 1024)
}
