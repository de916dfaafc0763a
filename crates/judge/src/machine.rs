//! The machine of a run, as far as the record tells it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use record::{GpuLinks, HostLinks, Measurement, Run};
use serde::Serialize;

use crate::gpu::{GpuKind, find_gpu_kind};

/// GB/s of a PCIe 6.0 link with 16 lanes in one direction. Faster links to the host are NVLink-C2C.
pub(crate) const FASTEST_PCIE_GBPS: f64 = 126.0;
/// Sums of the rates of NICs, relative to those of an expectation, that count as equal: rates are rounded,
/// and a host may have some NICs for storage.
const SAME_NICS: std::ops::Range<f64> = 0.99..1.34;

/// The NICs of a host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Nics {
    /// Number.
    pub count: u32,
    /// Rate of each in Gbit/s.
    pub gbits: f64,
}

/// A text that does not describe NICs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' does not describe NICs: write the number and the rate of each in Gbit/s, as in 8x400")]
pub struct InvalidNics(String);

impl FromStr for Nics {
    type Err = InvalidNics;

    fn from_str(text: &str) -> Result<Self, InvalidNics> {
        let parsed = text.trim().split_once(['x', 'X']).and_then(|(count, rate)| {
            let count = count.trim().parse::<u32>().ok().filter(|count| (1..=1024).contains(count))?;
            let rate = rate.trim().trim_end_matches(['G', 'g']);
            let gbits = rate.parse::<f64>().ok().filter(|rate| (0.1..=100_000.0).contains(rate))?;
            Some(Self { count, gbits })
        });
        parsed.ok_or_else(|| InvalidNics(text.to_owned()))
    }
}

impl fmt::Display for Nics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}x{}", self.count, self.gbits)
    }
}

impl Nics {
    /// Returns GB/s of all NICs together in one direction.
    pub fn total_gbps(self) -> f64 {
        f64::from(self.count) * self.gbits / 8.0
    }

    /// Returns true when the sum of `found` counts as equal to the sum of these.
    pub fn match_sum(self, found: Self) -> bool {
        SAME_NICS.contains(&(found.total_gbps() / self.total_gbps()))
    }
}

/// Facts that the user tells because the record does not have them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Told {
    /// NICs of each host.
    pub nics: Option<Nics>,
    /// NVLink SHARP is in use, or is not.
    pub nvls: Option<bool>,
}

/// A version of NCCL: major, minor, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub [u32; 3]);

impl NcclVersion {
    /// Parses `2.28.9`, `2.28`, and versions with a suffix as `2.27.3+cuda12.9`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split(['.', '+', '-']).map(|number| number.parse().ok());
        let [major, minor] = [numbers.next()??, numbers.next()??];
        Some(Self([major, minor, numbers.next().flatten().unwrap_or(0)]))
    }
}

impl Serialize for NcclVersion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(formatter, "{major}.{minor}.{patch}")
    }
}

/// The machine of a run. Facts that the record does not have are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Number of ranks, at least 1; `None` when the record does not tell it.
    pub ranks: Option<usize>,
    /// Number of hosts.
    pub hosts: Option<usize>,
    /// Ranks of each host, when all hosts have the same number.
    pub ranks_per_host: Option<usize>,
    /// Name of the GPUs when all have the same one.
    pub gpu_name: Option<String>,
    /// Kind of the GPUs, when all are of the same known kind.
    pub gpu: Option<&'static GpuKind>,
    /// Several ranks share a GPU.
    pub shares_gpus: bool,
    /// NVLink SHARP is in use, or is not.
    pub nvls: Option<bool>,
    /// The network reduces (CollNet, SHARP), or does not.
    pub collnet: Option<bool>,
    /// NICs of each host.
    pub nics: Option<Nics>,
    /// GB/s of the NVLinks of a GPU in one direction: of the active ones where the record has their number.
    pub nvlink_gbps: Option<f64>,
    /// GB/s of the link of a GPU to its host in one direction, as the record has it, or as GPUs of the kind
    /// have it.
    pub host_gbps: Option<f64>,
    /// Version of NCCL.
    pub nccl: Option<NcclVersion>,
}

impl Machine {
    /// Returns the machine of a run.
    pub fn from_run(run: &Run, told: Told) -> Self {
        let names: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.device_name.as_str()).collect();
        let name = match names.iter().next() {
            Some(&name) if names.len() == 1 && !name.is_empty() => Some(name.to_owned()),
            _ => None,
        };
        let is_nccl = is_of_nccl(run);
        let gpu = name.as_deref().filter(|_| is_nccl).and_then(find_gpu_kind);
        let places = count_places(run);
        Self {
            ranks: places.ranks,
            hosts: places.hosts,
            ranks_per_host: places.ranks_per_host,
            gpu_name: name,
            gpu,
            shares_gpus: shares_gpus(run),
            nvls: told.nvls.or_else(|| detect_nvls(run, gpu)),
            collnet: detect_collnet(run),
            nics: told.nics.or_else(|| count_nics(run.provenance.links.as_ref()?)),
            nvlink_gbps: gpu.and_then(|kind| scale_nvlink_gbps(kind, run)),
            host_gbps: gpu.map(|kind| find_host_gbps(kind, run)),
            nccl: NcclVersion::parse(&run.provenance.library_version).filter(|_| is_nccl),
        }
    }

    /// Returns true when all ranks are on one host.
    pub fn is_one_host(&self) -> bool {
        self.hosts == Some(1)
    }
}

/// Returns true for a run over NCCL, or over RCCL, which has its functions.
pub(crate) fn is_of_nccl(run: &Run) -> bool {
    ["nccl", "rccl"].contains(&run.provenance.backend.as_str())
}

/// Numbers of ranks and hosts.
#[derive(Default)]
struct Places {
    ranks: Option<usize>,
    hosts: Option<usize>,
    ranks_per_host: Option<usize>,
}

/// Counts ranks and hosts. The JSON of nccl-tests lists only the first GPU of each process.
fn count_places(run: &Run) -> Places {
    let mut by_host: BTreeMap<&str, usize> = BTreeMap::new();
    for rank in &run.ranks {
        *by_host.entry(rank.host.as_str()).or_default() += 1;
    }
    if by_host.is_empty() {
        return Places::default();
    }
    let per_process = run.settings.threads.max(1) * run.settings.gpus.max(1);
    let lists_processes = by_host.values().any(|count| !count.is_multiple_of(per_process));
    let factor = if lists_processes { per_process } else { 1 };
    let counts: BTreeSet<usize> = by_host.values().copied().collect();
    Places {
        ranks: Some(run.ranks.len() * factor),
        hosts: Some(by_host.len()),
        ranks_per_host: counts.first().filter(|_| counts.len() == 1).map(|count| count * factor),
    }
}

fn shares_gpus(run: &Run) -> bool {
    let places: Vec<(&str, &str)> =
        run.ranks.iter().filter_map(|rank| Some((rank.host.as_str(), rank.pci.as_deref()?))).collect();
    let distinct: BTreeSet<&(&str, &str)> = places.iter().collect();
    distinct.len() < places.len()
}

/// Returns the NICs that NCCL uses: those for RDMA that are up, or network interfaces where there are none.
fn count_nics(links: &HostLinks) -> Option<Nics> {
    let up = |rdma: bool| links.nics.iter().filter(move |nic| nic.rdma == rdma && nic.up != Some(false));
    let used = if up(true).next().is_some() { up(true) } else { up(false) };
    let rates = used.map(|nic| nic.gbits.filter(|rate| rate.is_finite() && *rate > 0.0));
    // An unknown rate makes the sum unknown.
    let rates = rates.collect::<Option<Vec<f64>>>()?;
    let count = u32::try_from(rates.len()).ok().filter(|&count| count > 0)?;
    Some(Nics { count, gbits: rates.iter().sum::<f64>() / f64::from(count) })
}

/// Returns the recorded links of the GPUs that measured on rank 0's host.
fn list_measured_gpus(run: &Run) -> impl Iterator<Item = &GpuLinks> {
    let host = run.ranks.first().map(|rank| rank.host.as_str());
    let own = run.ranks.iter().filter(move |rank| Some(rank.host.as_str()) == host);
    let addresses: Vec<&str> = own.filter_map(|rank| rank.pci.as_deref()).collect();
    let gpus = run.provenance.links.iter().flat_map(|links| &links.gpus);
    gpus.filter(move |gpu| addresses.iter().any(|address| gpu.pci.starts_with(address)))
}

/// Returns the number of active NVLinks of the GPU with the fewest, and the usual number, where they are
/// known.
pub(crate) fn count_nvlinks(run: &Run, machine: &Machine) -> Option<[u32; 2]> {
    let usual = machine.gpu?.nvlinks?;
    Some([list_measured_gpus(run).filter_map(|gpu| gpu.nvlinks).min()?, usual])
}

/// Returns the bandwidth of the NVLinks of the GPU with the fewest active ones.
fn scale_nvlink_gbps(kind: &GpuKind, run: &Run) -> Option<f64> {
    let whole = kind.nvlink_gbps?;
    let fewest = list_measured_gpus(run).filter_map(|gpu| gpu.nvlinks).min();
    let share = match (fewest, kind.nvlinks) {
        (Some(fewest), Some(usual)) => f64::from(fewest.min(usual)) / f64::from(usual),
        _ => 1.0,
    };
    Some(whole * share).filter(|rate| *rate > 0.0)
}

/// Returns the bandwidth of the slowest link to the host. The record has PCIe links only.
fn find_host_gbps(kind: &GpuKind, run: &Run) -> f64 {
    let rates = list_measured_gpus(run).filter_map(|gpu| gpu.pcie_gbps).filter(|rate| rate.is_finite());
    let slowest = rates.filter(|rate| *rate > 0.0).min_by(f64::total_cmp);
    slowest.filter(|_| kind.host_gbps <= FASTEST_PCIE_GBPS).unwrap_or(kind.host_gbps)
}

/// Finds out if NVLink SHARP was in use: by NCCL's choices, by its variables, or because the GPUs lack it.
fn detect_nvls(run: &Run, gpu: Option<&GpuKind>) -> Option<bool> {
    if gpu.is_some_and(|kind| !kind.nvls) {
        return Some(false);
    }
    let is_large = |measurement: &&Measurement| measurement.bytes >= 64 << 20;
    let choices = run.measurements.iter().filter(is_large).filter(|each| each.collective == "allreduce");
    let mut choices = choices.filter_map(|measurement| measurement.algorithm.as_ref()).peekable();
    if choices.peek().is_some() {
        return Some(choices.any(|choice| choice.algorithm.to_ascii_lowercase().starts_with("nvls")));
    }
    let variables = &run.provenance.environment;
    let is_off = |name: &str| variables.get(name).is_some_and(|value| value.trim() == "0");
    let is_forced = variables.get("NCCL_ALGO").is_some_and(|value| {
        let value = value.to_ascii_lowercase();
        !value.contains("nvls") && !value.contains('^')
    });
    (is_off("NCCL_NVLS_ENABLE") || is_forced).then_some(false)
}

/// Finds out if the network could reduce. NCCL does not use it unless a variable asks for it, and the
/// variables are only in records of this program.
fn detect_collnet(run: &Run) -> Option<bool> {
    let variables = &run.provenance.environment;
    match variables.get("NCCL_COLLNET_ENABLE") {
        Some(value) => Some(value.trim() != "0"),
        None if variables.is_empty() => None,
        None => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use record::sample;

    use super::*;

    #[test]
    fn nics_are_a_number_and_a_rate() {
        assert_eq!("8x400".parse(), Ok(Nics { count: 8, gbits: 400.0 }));
        assert_eq!("32x100G".parse::<Nics>().unwrap().total_gbps(), 400.0);
        for text in ["", "8", "x400", "8x", "0x400", "8x-1", "8xNaN", "8xinf", "-1x400"] {
            assert!(text.parse::<Nics>().is_err(), "{text}");
        }
    }

    #[test]
    fn links_follow_from_the_record() {
        let mut run = sample::full_run();
        for rank in &mut run.ranks {
            rank.device_name = "NVIDIA H200".to_owned();
            rank.pci = Some("0000:18:00".to_owned());
        }
        let machine = |run: &Run| Machine::from_run(run, Told::default());
        let whole = machine(&run);
        assert_eq!((whole.nvlink_gbps, whole.host_gbps), (Some(450.0), Some(63.0)));
        assert_eq!(whole.nics, Some(Nics { count: 1, gbits: 400.0 }));
        let links = run.provenance.links.as_mut().unwrap();
        links.gpus.push(record::GpuLinks {
            nvlinks: Some(9),
            pcie_gbps: Some(31.5),
            ..links.gpus[0].clone()
        });
        links.nics.push(record::NicLink { rdma: false, gbits: Some(100.0), ..links.nics[0].clone() });
        links.nics.push(record::NicLink { up: Some(false), ..links.nics[0].clone() });
        let part = machine(&run);
        assert_eq!((part.nvlink_gbps, part.host_gbps), (Some(225.0), Some(31.5)));
        assert_eq!(part.nics, Some(Nics { count: 1, gbits: 400.0 }));
        run.provenance.links.as_mut().unwrap().nics[0].gbits = None;
        assert_eq!(machine(&run).nics, None);
        let links = run.provenance.links.as_mut().unwrap();
        links.gpus.truncate(1);
        // A GPU that does not measure.
        links.gpus.push(record::GpuLinks {
            pci: "0000:99:00.0".to_owned(),
            nvlinks: Some(0),
            pcie_gbps: Some(4.0),
        });
        assert_eq!((machine(&run).nvlink_gbps, machine(&run).host_gbps), (Some(450.0), Some(63.0)));
        run.provenance.links.as_mut().unwrap().gpus[0].nvlinks = Some(0);
        assert_eq!(machine(&run).nvlink_gbps, None);
        // NVLink-C2C is no PCIe link.
        for rank in &mut run.ranks {
            rank.device_name = "NVIDIA GB200".to_owned();
        }
        assert_eq!(machine(&run).host_gbps, Some(225.0));
    }

    #[test]
    fn processes_with_several_gpus_are_counted_with_all_of_them() {
        let mut run = sample::full_run();
        (run.settings.threads, run.settings.gpus) = (1, 8);
        run.ranks[1].host = "node-2".to_owned();
        let json = Machine::from_run(&run, Told::default());
        assert_eq!((json.ranks, json.hosts, json.ranks_per_host), (Some(16), Some(2), Some(8)));
        let rank = run.ranks[0].clone();
        run.ranks = vec![rank; 8];
        let text = Machine::from_run(&run, Told::default());
        assert_eq!((text.ranks, text.ranks_per_host), (Some(8), Some(8)));
    }

    #[test]
    fn nics_with_the_same_sum_are_equal() {
        let sum = |own: &str, found: &str| own.parse::<Nics>().unwrap().match_sum(found.parse().unwrap());
        assert!(sum("8x400", "32x100") && sum("8x400", "10x400") && !sum("8x400", "4x400"));
        assert!(!sum("8x400", "16x400"));
    }

    #[test]
    fn nvls_follows_from_choices_variables_and_gpus() {
        let mut run = sample::full_run();
        for rank in &mut run.ranks {
            rank.device_name = "NVIDIA H200".to_owned();
        }
        run.provenance.environment.clear();
        let nvls = |run: &Run| Machine::from_run(run, Told::default()).nvls;
        assert_eq!(nvls(&run), None);
        run.provenance.environment.insert("NCCL_ALGO".to_owned(), "^tree".to_owned());
        assert_eq!(nvls(&run), None);
        run.provenance.environment.insert("NCCL_NVLS_ENABLE".to_owned(), "0".to_owned());
        assert_eq!(nvls(&run), Some(false));
        run.measurements[0].bytes = 1 << 30;
        run.measurements[0].algorithm =
            Some(record::Algorithm { algorithm: "nvls".to_owned(), protocol: None, channels: None });
        assert_eq!(nvls(&run), Some(true));
        for rank in &mut run.ranks {
            rank.device_name = "NVIDIA A100-SXM4-80GB".to_owned();
        }
        assert_eq!(nvls(&run), Some(false));
        assert_eq!(Machine::from_run(&run, Told { nvls: Some(true), nics: None }).nvls, Some(true));
    }
}
