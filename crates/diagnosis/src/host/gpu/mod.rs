//! The GPUs of a host: facts, their reading through NVML, and conclusions.

mod findings;
pub(crate) mod nvml;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(super) use findings::{gpu_sections, judge_gpus, prove_gpus};

use super::counters::Counter;
use super::pci::OnPci;

/// The GPUs of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// Driver: `580.159.04`.
    pub driver: Option<String>,
    /// Newest CUDA version supported by the driver: `13.0`.
    pub cuda: Option<String>,
    /// The GPUs, by NVML's number.
    pub devices: Vec<Gpu>,
    /// GPUs counted by NVML that it cannot open, with its error.
    pub lost: Vec<LostGpu>,
    /// State of peer access from each GPU (row) to each other one.
    pub peers: Vec<Vec<Peer>>,
    /// Reason for missing facts.
    pub problem: Option<Problem>,
    /// Error counters of the NVLinks.
    pub counters: Vec<Counter>,
    /// NVIDIA GPUs on the PCI bus.
    pub on_pci: Vec<OnPci>,
    /// NVSwitches on the PCI bus.
    pub switches: usize,
}

/// Reason for missing facts of NVML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "text")]
pub enum Problem {
    /// `libnvidia-ml.so.1` is not here.
    NoLibrary(String),
    /// The library is here, and finds no driver.
    NoDriver(String),
    /// The library and the driver have different versions.
    Mismatch(String),
    /// NVML does not answer.
    Stuck(String),
    /// Another error of NVML.
    Failed(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary(_) => formatter.write_str("NVML (libnvidia-ml.so.1) is not installed here"),
            Self::NoDriver(error) => write!(formatter, "no NVIDIA driver runs here ({error})"),
            Self::Mismatch(error) | Self::Stuck(error) | Self::Failed(error) => formatter.write_str(error),
        }
    }
}

/// A GPU that NVML cannot open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostGpu {
    /// NVML's number.
    pub index: u32,
    /// NVML's error.
    pub error: String,
}

/// A GPU. Facts unknown to NVML are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's number.
    pub index: u32,
    /// `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// `GPU-ac64...`.
    pub uuid: Option<String>,
    /// `0000:00:06.0`.
    pub pci: Option<String>,
    /// PCI device number: equal for equal products.
    pub device: Option<u32>,
    /// Memory in bytes, or `None` for a GPU that shares the host's memory.
    pub memory: Option<u64>,
    /// Connection to the host.
    pub pcie: Pcie,
    /// Error correction.
    pub ecc: Ecc,
    /// Replaced rows of memory.
    pub rows: Option<Rows>,
    /// Retired pages of memory.
    pub pages: Pages,
    /// Reasons for a lowered clock.
    pub slowed: Vec<String>,
    /// Performance state, 0 for the highest.
    pub performance_state: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Power draw in milliwatts.
    pub power: Option<u32>,
    /// Limit of the power draw in milliwatts.
    pub power_limit: Option<u32>,
    /// Default limit of the power draw in milliwatts.
    pub default_power_limit: Option<u32>,
    /// Clock of the multiprocessors in MHz.
    pub clock: Option<u32>,
    /// Highest clock of the multiprocessors in MHz.
    pub max_clock: Option<u32>,
    /// True if the driver stays loaded without users.
    pub persistence: Option<bool>,
    /// True if the GPU is divided into instances.
    pub mig: Option<bool>,
    /// NVML's advice: 0 none, 1 reset the GPU, 2 reboot the node, 3 drain peer traffic, 4 drain and reset.
    pub recovery: Option<u32>,
    /// `default`, `exclusive process`, `prohibited`.
    pub compute_mode: Option<String>,
    /// NVLinks of the GPU.
    pub links: Vec<Link>,
    /// NVML's error, if it did not report all NVLinks.
    pub links_refused: Option<String>,
    /// Active links of NVLink-C2C to the CPU.
    pub c2c_links: Option<u32>,
    /// Membership in a fabric of NVSwitches.
    pub fabric: Option<Fabric>,
    /// Processes that hold memory of the GPU.
    pub processes: Vec<GpuProcess>,
}

/// Generation and width of a PCIe connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pcie {
    /// Generation in use.
    pub generation: Option<u32>,
    /// Highest generation of GPU and slot.
    pub max_generation: Option<u32>,
    /// Lanes in use.
    pub width: Option<u32>,
    /// Lanes of GPU and slot.
    pub max_width: Option<u32>,
}

/// Error correction of a GPU's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// True if it is on.
    pub enabled: Option<bool>,
    /// True if it is on after the next reset.
    pub pending: Option<bool>,
    /// Uncorrected errors since the driver was loaded.
    pub uncorrected: Option<u64>,
    /// Uncorrected errors in the life of the GPU.
    pub lifetime_uncorrected: Option<u64>,
}

/// Rows of memory replaced by spare ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Rows replaced because of corrected errors.
    pub corrected: u32,
    /// Rows replaced because of uncorrected errors.
    pub uncorrected: u32,
    /// True if a row is replaced at the next reset.
    pub pending: bool,
    /// True if a row could not be replaced.
    pub failed: bool,
}

/// Retired pages of memory, on GPUs before Ampere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Number of pages.
    pub retired: Option<usize>,
    /// True if pages are taken out of use at the next reset.
    pub pending: Option<bool>,
}

/// An NVLink of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Number, from 0.
    pub number: u32,
    /// True if the link works.
    pub active: bool,
    /// Version of NVLink, as NVML numbers it.
    pub version: Option<u32>,
    /// Speed in Mbit/s.
    pub speed: Option<u64>,
    /// False for a link that cannot carry accesses between GPUs.
    pub peer_access: Option<bool>,
    /// Bus ID of the other end, if it is visible.
    pub remote: Option<String>,
}

/// Membership in a fabric of NVSwitches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// Registration: 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// NVML's error code of the registration, 0 for success.
    pub status: u32,
    /// Identity of the cluster in hexadecimal digits, or `None` on a fabric within one host.
    pub cluster: Option<String>,
    /// Group of GPUs in the cluster with access to each other.
    pub clique: u32,
    /// Health as NVML's bits.
    pub health: Option<u32>,
}

/// A process that holds memory of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process ID.
    pub pid: u32,
    /// Its program.
    pub name: Option<String>,
    /// Bytes.
    pub memory: Option<u64>,
}

/// Access from a GPU to another one: NVML's words for reading, writing, and over NVLink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Reading.
    pub read: Access,
    /// Writing.
    pub write: Access,
    /// Over NVLink.
    pub nvlink: Access,
}

/// NVML's answer about access to another GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It works.
    Supported,
    /// The chipset does not do it.
    NoChipset,
    /// One of the GPUs does not do it.
    NoGpu,
    /// The GPUs are too far apart.
    NoTopology,
    /// A setting of the driver forbids it.
    Disabled,
    /// It is not supported.
    No,
    /// NVML does not know, or the GPU is the same.
    #[default]
    Unknown,
}

impl Gpus {
    /// Returns the number of working NVLinks, and the number of all NVLinks.
    pub fn count_links(&self) -> (usize, usize) {
        let all = self.devices.iter().flat_map(|gpu| &gpu.links);
        (all.clone().filter(|link| link.active).count(), all.count())
    }

    /// Returns true if the host has GPUs, seen by NVML or on the PCI bus.
    pub fn has_gpus(&self) -> bool {
        !self.devices.is_empty() || !self.lost.is_empty() || !self.on_pci.is_empty()
    }

    /// Returns the models with the number of each: `8 NVIDIA H100 80GB HBM3`.
    pub fn describe_models(&self) -> String {
        let mut models: Vec<(&str, usize)> = Vec::new();
        for gpu in &self.devices {
            match models.iter_mut().find(|(name, _)| *name == gpu.name) {
                Some((_, count)) => *count += 1,
                None => models.push((&gpu.name, 1)),
            }
        }
        let models: Vec<String> = models.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if models.is_empty() { "no GPU".to_owned() } else { models.join(", ") }
    }
}

impl Gpu {
    /// Returns the number of working NVLinks.
    pub fn active_links(&self) -> usize {
        self.links.iter().filter(|link| link.active).count()
    }

    /// Returns true for GPUs with the memory of a desktop: GB10, DGX Spark.
    pub fn is_spark(&self) -> bool {
        self.name.contains("GB10")
    }

    /// Returns true for GPUs of Grace-Blackwell trays.
    pub fn is_grace_blackwell(&self) -> bool {
        self.name.contains("GB200") || self.name.contains("GB300")
    }
}

impl Access {
    /// Returns NVML's abbreviation, as nvidia-smi prints it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Supported => "OK",
            Self::NoChipset => "CNS",
            Self::NoGpu => "GNS",
            Self::NoTopology => "TNS",
            Self::Disabled => "DR",
            Self::No => "NS",
            Self::Unknown => "U",
        }
    }
}
