//! Comparison of the hosts of a job: the odd host, with the value of the majority.

use std::fmt::Display;

use super::facts::Facts;
use super::libraries::LibraryKind;
use super::purpose::Purpose;
use crate::examination::{Body, Section};
use crate::finding::{Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::words::{counted, join_list, or_dash, size_text};

/// Result of a comparison.
pub(super) struct Compared {
    pub(super) findings: Vec<Finding>,
    pub(super) section: Section,
    /// Sentence about equal properties. Hosts may be equal and all bad: it proves nothing alone.
    pub(super) equal: Option<String>,
}

/// A property of hosts, for comparison.
struct HostProperty {
    /// Its name in the table.
    name: &'static str,
    /// Effect of a difference.
    severity: Severity,
    /// Its value on a host.
    value: fn(&Facts) -> String,
    /// The remedy of a difference.
    remedy: &'static str,
}

const INSTALL: &str = "install the same version on all hosts";
const IMAGE: &str = "use one image, and one LD_LIBRARY_PATH, on all hosts";

/// Properties of hosts with GPUs in use.
const GPU_PROPERTIES: [HostProperty; 7] = [
    HostProperty {
        name: "GPUs",
        severity: Severity::Degraded,
        value: |facts| facts.gpus.describe_models(),
        remedy: "nvidia-smi -L on the odd hosts; dmesg | grep Xid",
    },
    HostProperty {
        name: "NVIDIA driver",
        severity: Severity::Degraded,
        value: driver_version,
        remedy: INSTALL,
    },
    HostProperty {
        name: "NVLinks up",
        severity: Severity::Degraded,
        value: working_links,
        remedy: "nvidia-smi nvlink -s; reset the GPUs, or reboot the host",
    },
    HostProperty {
        name: "ECC",
        severity: Severity::Degraded,
        value: ecc_state,
        remedy: "nvidia-smi -e 1, then reset the GPUs",
    },
    HostProperty {
        name: "NCCL",
        severity: Severity::Degraded,
        value: |facts| library_identity(facts, LibraryKind::Nccl),
        remedy: IMAGE,
    },
    HostProperty {
        name: "network plugin",
        severity: Severity::Degraded,
        value: |facts| library_identity(facts, LibraryKind::NetPlugin),
        remedy: IMAGE,
    },
    HostProperty {
        name: "NVLink cluster",
        severity: Severity::Advice,
        value: gpu_cluster,
        remedy: "hosts of different clusters reach each other by the network, not by NVLink",
    },
];

/// Properties of all hosts.
const HOST_PROPERTIES: [HostProperty; 11] = [
    HostProperty {
        name: "RDMA devices up",
        severity: Severity::Degraded,
        value: devices_up,
        remedy: "rdma link; ibstat on the odd hosts",
    },
    HostProperty {
        name: "RDMA firmware",
        severity: Severity::Advice,
        value: firmware_versions,
        remedy: "update the firmware of the odd hosts: mlxfwmanager",
    },
    HostProperty {
        name: "machine",
        severity: Severity::Advice,
        value: |facts| or_dash(facts.system.product.as_ref()),
        remedy: "give the job hosts of one type",
    },
    HostProperty {
        name: "kernel",
        severity: Severity::Advice,
        value: |facts| or_dash(facts.system.kernel.as_ref()),
        remedy: INSTALL,
    },
    HostProperty {
        name: "processors",
        severity: Severity::Advice,
        value: |facts| or_dash(facts.system.processors),
        remedy: "give the job hosts of one type",
    },
    HostProperty {
        name: "memory",
        severity: Severity::Advice,
        value: |facts| {
            or_dash(facts.system.memory.map(|bytes| format!("{} GiB", bytes.div_ceil(8 << 30) * 8)))
        },
        remedy: "look for a failed memory module: dmidecode -t memory; dmesg",
    },
    HostProperty {
        name: "libfabric",
        severity: Severity::Degraded,
        value: |facts| library_identity(facts, LibraryKind::Libfabric),
        remedy: IMAGE,
    },
    HostProperty {
        name: "locked memory",
        severity: Severity::Degraded,
        value: |facts| limit_text(facts, facts.system.limits.locked_memory, size_text),
        remedy: "set the same limits on all hosts: /etc/security/limits.conf",
    },
    HostProperty {
        name: "open files",
        severity: Severity::Advice,
        value: |facts| limit_text(facts, facts.system.limits.open_files, |files| files.to_string()),
        remedy: "set the same limits on all hosts: /etc/security/limits.conf",
    },
    HostProperty {
        name: "/dev/shm",
        severity: Severity::Advice,
        value: |facts| or_dash(facts.system.shm.size.map(size_text)),
        remedy: "mount -o remount,size=... /dev/shm on the odd hosts",
    },
    HostProperty {
        name: "IOMMU",
        severity: Severity::Advice,
        value: |facts| {
            if facts.system.iommu.translates_addresses() { "translates" } else { "off or passes through" }
                .to_owned()
        },
        remedy: "set the same in BIOS and kernel command line",
    },
];

fn driver_version(facts: &Facts) -> String {
    or_dash(facts.gpus.driver.as_ref().or(facts.system.driver.version.as_ref()))
}

fn working_links(facts: &Facts) -> String {
    if facts.gpus.devices.is_empty() { "-".to_owned() } else { facts.gpus.count_links().0.to_string() }
}

fn ecc_state(facts: &Facts) -> String {
    if facts.gpus.devices.is_empty() {
        return "-".to_owned();
    }
    let on = facts.gpus.devices.iter().filter(|gpu| gpu.ecc.enabled == Some(true)).count();
    if on == facts.gpus.devices.len() { "on".to_owned() } else { format!("on for {}", counted(on, "GPU")) }
}

/// Returns `8 InfiniBand 400 Gb/sec (4X NDR)`.
fn devices_up(facts: &Facts) -> String {
    let mut groups: Vec<(String, usize)> = Vec::new();
    let ports = facts.nics.iter().flat_map(|nic| nic.ports.iter().map(move |port| (nic, port)));
    for (nic, port) in ports.filter(|(_, port)| port.is_active()) {
        let name = format!("{} {}", nic.kind(), port.rate);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => groups.push((name, 1)),
        }
    }
    groups.sort();
    let groups: Vec<String> = groups.iter().map(|(name, count)| format!("{count} {name}")).collect();
    if groups.is_empty() { "none".to_owned() } else { groups.join(", ") }
}

fn firmware_versions(facts: &Facts) -> String {
    let mut all: Vec<&str> = facts.nics.iter().filter_map(|nic| nic.firmware.as_deref()).collect();
    all.sort_unstable();
    all.dedup();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// Returns the library of the loader, or else the first one found.
fn library_identity(facts: &Facts, kind: LibraryKind) -> String {
    let mut all = facts.libraries.iter().filter(|library| library.kind == kind && library.problem.is_none());
    let first = all.clone().find(|library| library.first).or_else(|| all.next());
    first.map_or_else(|| "none".to_owned(), super::libraries::Library::version_and_build)
}

fn limit_text(facts: &Facts, limit: Option<u64>, text: fn(u64) -> String) -> String {
    match limit {
        _ if !facts.system.limits.known => "-".to_owned(),
        None => "unlimited".to_owned(),
        Some(limit) => text(limit),
    }
}

fn gpu_cluster(facts: &Facts) -> String {
    let fabric = facts.gpus.devices.iter().find_map(|gpu| gpu.fabric.as_ref());
    match fabric.and_then(|fabric| Some((fabric.cluster.as_ref()?, fabric.clique))) {
        Some((cluster, clique)) => format!("{cluster} clique {clique}"),
        None => "none".to_owned(),
    }
}

/// Compares hosts in the properties relevant to this purpose.
pub(super) fn compare_hosts(hosts: &[Facts], purpose: Purpose) -> Compared {
    let of_gpus = if purpose == Purpose::Devices { &GPU_PROPERTIES[..] } else { &[] };
    let mut findings = Vec::new();
    let mut rows = Vec::new();
    let mut equal = Vec::new();
    for property in of_gpus.iter().chain(&HOST_PROPERTIES) {
        let values: Vec<String> = hosts.iter().map(property.value).collect();
        let known = values.iter().any(|value| !matches!(value.as_str(), "-" | "none" | "no GPU"));
        match find_difference(property, hosts, &values) {
            Some(finding) => findings.push(finding),
            None if known && property.severity == Severity::Degraded => equal.push(property.name),
            None => {}
        }
        rows.push(comparison_row(property.name, &values));
    }
    let equal = (!equal.is_empty())
        .then(|| format!("{} are equal in {}", counted(hosts.len(), "host"), equal.join(", ")));
    let columns = ["property", "hosts", "value", "others"].map(str::to_owned).to_vec();
    let section = Section { title: "Comparison of hosts".to_owned(), body: Body::Table { columns, rows } };
    Compared { findings, section, equal }
}

/// Returns `driver | 3 of 4 | 580.1 | 570.2`.
fn comparison_row(name: &str, values: &[String]) -> Vec<String> {
    let all: Vec<&str> = values.iter().map(String::as_str).collect();
    let usual = majority(&all);
    let mut others: Vec<&str> = all.iter().copied().filter(|value| Some(*value) != usual).collect();
    let with = all.len() - others.len();
    others.sort_unstable();
    others.dedup();
    vec![
        name.to_owned(),
        format!("{with} of {}", all.len()),
        usual.unwrap_or("no majority").to_owned(),
        others.join("; "),
    ]
}

fn find_difference(property: &HostProperty, hosts: &[Facts], values: &[String]) -> Option<Finding> {
    let all: Vec<&str> = values.iter().map(String::as_str).collect();
    if all.windows(2).all(|pair| pair[0] == pair[1]) {
        return None;
    }
    let usual = majority(&all);
    let odd: Vec<(&str, &str)> = hosts
        .iter()
        .zip(&all)
        .filter(|(_, value)| Some(**value) != usual)
        .map(|(facts, value)| (facts.system.name.as_str(), *value))
        .collect();
    let named: Vec<String> = odd.iter().map(|(name, value)| format!("{name} ({value})")).collect();
    let id = if usual.is_some() { "hosts-differ" } else { "hosts-differ/no-majority" };
    let values: [(&str, &dyn Display); 6] = [
        ("property", &property.name),
        ("count", &(all.len() - odd.len())),
        ("all", &all.len()),
        ("usual", &usual.unwrap_or_default()),
        ("odd", &join_list(&named)),
        ("remedy", &property.remedy),
    ];
    let mut finding = compose_finding(id, &values).with_severity(property.severity);
    finding.hosts = odd.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (name, value) in odd.iter().take(8) {
        finding = finding.with_evidence(property.name, *value);
        if let Some(last) = finding.evidence.last_mut() {
            last.host = Some((*name).to_owned());
        }
    }
    Some(finding)
}

/// Returns the most frequent value, if more than half of the hosts have it.
pub(super) fn majority<'a, T: PartialEq + ?Sized>(values: &[&'a T]) -> Option<&'a T> {
    let count = |value: &T| values.iter().filter(|other| **other == value).count();
    let most = values.iter().copied().max_by_key(|value| count(value))?;
    (count(most) * 2 > values.len()).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_is_more_than_half() {
        assert_eq!(majority(&["a", "b", "a"]), Some("a"));
        assert_eq!(majority(&["a", "b"]), None);
        assert_eq!(majority::<str>(&[]), None);
    }
}
