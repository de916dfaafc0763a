//! GPUs, NVLink, PCIe, NUMA nodes and NICs of a host, and the paths between them.
//!
//! A [`Topology`] comes from this machine ([`machine`]) or from NCCL's topology file ([`dump`]). [`graph`]
//! reads the rings and trees chosen by NCCL. [`examine_topology`] turns them into facts and findings.

pub mod dump;
mod examine;
mod findings;
pub mod graph;
pub mod machine;
pub mod matrix;
pub mod model;
pub mod path;
#[cfg(test)]
mod samples;
mod xml;

use std::path::Path;

use crate::host::gpu::nvml::NvmlReading;
pub use dump::{TopologyDump, read_dump};
pub use examine::examine_topology;
pub use model::Topology;
pub use xml::Unreadable;

/// Reads the topology of this machine from the kernel and the driver.
pub fn of_this_machine() -> Topology {
    machine::read_topology(Path::new("/"), &NvmlReading::start_reading().first_reading())
}
