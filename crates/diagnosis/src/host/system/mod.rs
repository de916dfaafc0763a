//! The system of a host: machine, kernel, limits, memory, PCI bridges, driver modules, services.

mod facts;
mod findings;
mod pci;
mod services;
mod shm;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub(super) use facts::system_section;
pub(super) use findings::{judge_host_memory, judge_system, list_unseen, prove_host_memory};
pub use pci::{Bridge, Iommu};
pub use services::{Driver, Services};
pub use shm::{SharedMemory, Stale};

use super::files::{names_in_folder, read_text, value_of_field};
use super::limits::{ControlGroup, Limits};
use super::rdma::Host;

/// The system of a host, as this process sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct System {
    /// Host name.
    pub name: String,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// The kernel's command line.
    pub command_line: Option<String>,
    /// Seconds since the start of the kernel.
    pub uptime: Option<f64>,
    /// Manufacturer of the machine: `Amazon EC2`, `QEMU`.
    pub vendor: Option<String>,
    /// Model: `p5.48xlarge`.
    pub product: Option<String>,
    /// True in a virtual machine, or `None` if the processor does not report it.
    pub virtual_machine: Option<bool>,
    /// Container of this process.
    pub container: Option<String>,
    /// True for user 0.
    pub root: bool,
    /// Capabilities as bits. Some of them lift limits.
    pub capabilities: u64,
    /// True if a filter of system calls is set.
    pub filtered: bool,
    /// Processors of the host.
    pub processors: Option<usize>,
    /// Processors available to this process.
    pub allowed_processors: Option<usize>,
    /// NUMA nodes with memory or processors.
    pub numa_nodes: usize,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Memory available without swapping, in bytes.
    pub available: Option<u64>,
    /// Huge pages: number, free ones, bytes of each.
    pub huge_pages: Option<(u64, u64, u64)>,
    /// Limits of this process.
    pub limits: Limits,
    /// Limits of its control group.
    pub group: ControlGroup,
    /// `/dev/shm`.
    pub shm: SharedMemory,
    /// True if a device file of RDMA such as `uverbs0` exists.
    pub verbs_files: bool,
    /// Device files of RDMA that cannot be opened, with the error.
    pub refused_files: Vec<String>,
    /// IOMMU.
    pub iommu: Iommu,
    /// PCI bridges above GPUs and network devices.
    pub bridges: Vec<Bridge>,
    /// NVIDIA's kernel driver.
    pub driver: Driver,
    /// Services and settings.
    pub services: Services,
}

/// Number of the capability to lock any amount of memory.
const IPC_LOCK: u64 = 14;
/// Number of the capability to choose NUMA nodes in containers.
const SYS_NICE: u64 = 23;

impl System {
    /// Returns true for a process exempt from the limit of locked memory.
    pub fn may_lock_any(&self) -> bool {
        self.capabilities >> IPC_LOCK & 1 == 1
    }

    /// Returns true if a container's filter may refuse calls about NUMA.
    pub fn may_lack_numa(&self) -> bool {
        self.container.is_some() && self.filtered && self.capabilities >> SYS_NICE & 1 == 0
    }
}

/// Reads the system below `root`. `service` is the value of [`super::rdma::SERVICE`].
pub(super) fn read_system(root: &Path, service: Option<&OsStr>) -> System {
    let read = |file: &str| read_text(&root.join(file)).filter(|text| !text.is_empty());
    let rdma = Host::read_host(root, service);
    let status = read("proc/self/status").unwrap_or_default();
    let memory = read("proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        Some(value_of_field(&memory, name)?.strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
    };
    let count = |name: &str| value_of_field(&memory, name)?.parse().ok();
    let dmi = |file: &str| read(&format!("sys/devices/virtual/dmi/id/{file}"));
    let processors = read("sys/devices/system/cpu/online").as_deref().and_then(count_in_list);
    // Machines with a device tree have no DMI.
    let model = || read("proc/device-tree/model").map(|text| text.trim_end_matches('\0').to_owned());
    let nodes = names_in_folder(&root.join("sys/devices/system/node"));
    System {
        name: read("proc/sys/kernel/hostname").unwrap_or_default(),
        kernel: read("proc/sys/kernel/osrelease"),
        command_line: read("proc/cmdline"),
        uptime: read("proc/uptime").and_then(|text| text.split_whitespace().next()?.parse().ok()),
        vendor: dmi("sys_vendor"),
        product: dmi("product_name").or_else(model),
        virtual_machine: virtual_machine(root),
        container: rdma.container.map(str::to_owned),
        root: value_of_field(&status, "Uid").and_then(|ids| ids.split_whitespace().nth(1)) == Some("0"),
        capabilities: value_of_field(&status, "CapEff")
            .and_then(|bits| u64::from_str_radix(bits, 16).ok())
            .unwrap_or(0),
        filtered: value_of_field(&status, "Seccomp") == Some("2"),
        processors,
        allowed_processors: value_of_field(&status, "Cpus_allowed_list").and_then(count_in_list),
        numa_nodes: nodes.iter().filter(|name| name.strip_prefix("node").is_some_and(is_number)).count(),
        memory: bytes("MemTotal"),
        available: bytes("MemAvailable"),
        huge_pages: count("HugePages_Total")
            .and_then(|total| Some((total, count("HugePages_Free")?, bytes("Hugepagesize")?))),
        limits: rdma.limits.clone(),
        group: ControlGroup::read(root),
        shm: SharedMemory::read(root),
        verbs_files: rdma.has_uverbs(),
        refused_files: rdma.refused.iter().map(|file| format!("{} ({})", file.name, file.error)).collect(),
        iommu: Iommu::read(root),
        bridges: pci::read_bridges(root),
        driver: Driver::read(root),
        services: Services::read(root),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
}

/// Returns the number of entries of a list such as `0-3,8`.
fn count_in_list(text: &str) -> Option<usize> {
    let mut count = 0_usize;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Returns true for QEMU, or if the processor has the flag of a hypervisor. Returns `None` without flags:
/// only processors of x86 have them.
pub(crate) fn virtual_machine(root: &Path) -> Option<bool> {
    let vendor = read_text(&root.join("sys/devices/virtual/dmi/id/sys_vendor")).unwrap_or_default();
    if vendor == "QEMU" {
        return Some(true);
    }
    let processors = read_text(&root.join("proc/cpuinfo"))?;
    let flags = processors.lines().find(|line| line.starts_with("flags"))?;
    Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// Returns true for a loaded kernel module.
fn has_module(root: &Path, name: &str) -> bool {
    root.join("sys/module").join(name).exists()
}
