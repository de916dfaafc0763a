//! From facts of a host to findings.

use serde_json::json;

use super::facts::Facts;
use super::gpu;
use super::libraries::LibraryKind;
use super::purpose::Purpose;
use super::{compare, kernel, libraries, nic, spark, system};
use crate::examination::{Examination, Section};
use crate::finding::Finding;
use crate::knowledge::rules::Rules;
use crate::knowledge::texts::compose_finding;
use crate::words::{counted, join_list};

/// Devices required on each host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// GPUs.
    pub gpus: Option<usize>,
    /// Active RDMA devices.
    pub nics: Option<usize>,
}

/// Examines hosts: each one, and, if there are several, all compared.
pub fn examine_hosts(hosts: &[Facts], expected: Expected, rules: &Rules) -> Examination {
    examine_for_purpose(hosts, expected, rules, Purpose::Devices)
}

/// Examines hosts for a job between buffers in host memory: the checks of GPUs do not apply, and absent GPUs
/// cause no doubt.
pub fn examine_for_host_memory(hosts: &[Facts], rules: &Rules) -> Examination {
    let judged: Vec<Facts> = hosts.iter().map(without_gpus).collect();
    let mut examination = examine_for_purpose(&judged, Expected::default(), rules, Purpose::HostMemory);
    examination
        .not_applicable
        .push("GPUs, NVLinks and NCCL: only host memory and the network are used".to_owned());
    examination.facts = json!({ "hosts": hosts });
    examination
}

/// Returns the facts without GPUs, their driver and NCCL: devices, libraries and messages of the kernel.
fn without_gpus(facts: &Facts) -> Facts {
    let mut facts = Facts { gpus: gpu::Gpus::default(), ..facts.clone() };
    facts.libraries.retain(|library| matches!(library.kind, LibraryKind::Libfabric | LibraryKind::Verbs));
    facts.messages.kinds.retain(|message| !kernel::is_about_gpus(message));
    facts
}

fn examine_for_purpose(hosts: &[Facts], expected: Expected, rules: &Rules, purpose: Purpose) -> Examination {
    let mut examination = Examination::new("host");
    let several = hosts.len() > 1;
    let mut blind = Vec::new();
    let mut known_faults: Vec<Section> = Vec::new();
    for facts in hosts {
        let name = several.then(|| facts.system.name.clone());
        let parts = HostParts::examine_host(facts, expected, several, rules, purpose);
        let named = |text: String| match &name {
            Some(name) => format!("{name}: {text}"),
            None => text,
        };
        if !is_seen(facts, purpose) {
            blind.push(facts.system.name.clone());
        }
        examination.proof.extend(parts.proof.into_iter().map(named));
        examination.unseen.extend(parts.unseen.into_iter().map(named));
        for mut finding in parts.findings {
            if let Some(name) = &name {
                finding.hosts.push(name.clone());
                for evidence in &mut finding.evidence {
                    evidence.host = Some(name.clone());
                }
            }
            add_finding(&mut examination.findings, finding);
        }
        examination.sections.extend(
            parts.sections.into_iter().map(|section| Section { title: named(section.title), ..section }),
        );
        known_faults.extend(parts.known_faults.filter(|table| !known_faults.contains(table)));
    }
    examination.sections.extend(known_faults);
    if several {
        let compared = compare::compare_hosts(hosts, purpose);
        examination.findings.extend(compared.findings);
        examination.sections.insert(0, compared.section);
        if !examination.proof.is_empty() {
            if blind.is_empty() {
                examination.proof.extend(compared.equal);
            } else {
                examination.findings.push(nothing_seen(blind, purpose));
            }
        }
    }
    examination.facts = json!({ "hosts": hosts });
    examination.sort_findings();
    examination
}

/// Returns true if the facts needed for this purpose are visible.
fn is_seen(facts: &Facts, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Devices => sees_devices(facts),
        Purpose::HostMemory => system::prove_host_memory(&facts.system).is_ok(),
    }
}

/// Returns true if a device can be proven to work.
fn sees_devices(facts: &Facts) -> bool {
    !facts.gpus.devices.is_empty() || facts.nics.iter().any(nic::Nic::is_up)
}

/// Returns the finding about hosts of unknown health, beside hosts proven to work.
fn nothing_seen(hosts: Vec<String>, purpose: Purpose) -> Finding {
    if purpose == Purpose::HostMemory {
        let mut finding = compose_finding("host-memory-unknown", &[("hosts", &join_list(&hosts))]);
        finding.hosts = hosts;
        return finding;
    }
    let mut finding = compose_finding("host-without-devices", &[("hosts", &join_list(&hosts))]);
    finding.hosts = hosts;
    finding
}

/// Adds a finding, or its host to an equal one of another host.
fn add_finding(findings: &mut Vec<Finding>, finding: Finding) {
    let same = |other: &&mut Finding| {
        !finding.hosts.is_empty()
            && other.rule == finding.rule
            && other.severity == finding.severity
            && other.diagnosis == finding.diagnosis
            && other.hosts != finding.hosts
    };
    match findings.iter_mut().find(same) {
        Some(other) => {
            other.hosts.extend(finding.hosts);
            other.occurrences += finding.occurrences;
        }
        None => findings.push(finding),
    }
}

/// The parts of one host's examination.
#[derive(Default)]
struct HostParts {
    proof: Vec<String>,
    unseen: Vec<String>,
    findings: Vec<Finding>,
    sections: Vec<Section>,
    /// The table of known faults, common to all hosts.
    known_faults: Option<Section>,
}

impl HostParts {
    fn examine_host(
        facts: &Facts,
        expected: Expected,
        several: bool,
        rules: &Rules,
        purpose: Purpose,
    ) -> Self {
        let Facts { system, gpus, nics, counters, libraries, messages, .. } = facts;
        let mut parts = Self { unseen: list_unseen(facts, purpose), ..Self::default() };
        parts.findings.extend(fewer_than_expected(facts, expected));
        parts.findings.extend(gpu::judge_gpus(gpus, system.container.is_some()));
        let is_spark = spark::is_spark(facts);
        let needed = several || expected.nics.is_some_and(|wanted| wanted > 0);
        parts.findings.extend(nic::fixed_gid(nics, &facts.environment));
        let of_nics = nic::judge_nics(nics, counters, system.product.as_deref(), needed);
        // A Spark has its own judgement of these.
        let own = ["roce-small-mtu", "roce-without-ipv4", "nic-pcie-narrow"];
        parts
            .findings
            .extend(of_nics.into_iter().filter(|finding| !is_spark || !own.contains(&finding.rule.as_str())));
        parts.findings.extend(system::judge_system(system, gpus, nics));
        parts.findings.extend(libraries::judge_libraries(libraries, system, gpus, nics));
        parts.findings.extend(spark::judge_spark(facts));
        parts.findings.extend(kernel::judge_messages(messages, system.uptime, rules));
        if purpose == Purpose::HostMemory {
            // The purpose has its own finding about it.
            parts.findings.retain(|finding| finding.rule != "shm-small");
            parts.findings.extend(system::judge_host_memory(system));
            match system::prove_host_memory(system) {
                Ok(proof) => parts.proof.extend(proof),
                Err(unknown) => parts.unseen.insert(0, unknown),
            }
        }
        let gpus_proven = gpu::prove_gpus(gpus);
        // Working devices prove nothing about invisible GPUs or memory.
        let is_proven = match purpose {
            Purpose::Devices => !gpus_proven.is_empty() || !gpus.has_gpus(),
            Purpose::HostMemory => !parts.proof.is_empty(),
        };
        if is_proven {
            parts.proof.extend(gpus_proven);
            parts.proof.extend(nic::prove_nics(nics, counters));
        }
        parts.sections.push(system::system_section(system));
        parts.sections.extend(gpu::gpu_sections(gpus));
        parts.sections.extend(nic::nic_sections(nics, counters));
        parts.sections.extend(libraries::library_sections(libraries));
        parts.known_faults = libraries::known_faults(libraries, nics);
        parts.sections.extend(kernel::message_sections(messages));
        parts
    }
}

fn fewer_than_expected(facts: &Facts, expected: Expected) -> Vec<Finding> {
    let mut findings = Vec::new();
    let gpus = facts.gpus.devices.len();
    if let Some(wanted) = expected.gpus.filter(|wanted| gpus < *wanted) {
        findings.push(compose_finding(
            "fewer-gpus-than-expected",
            &[("gpus", &counted(gpus, "GPU")), ("wanted", &wanted)],
        ));
    }
    let nics = facts.nics.iter().filter(|nic| nic.is_up()).count();
    if let Some(wanted) = expected.nics.filter(|wanted| nics < *wanted) {
        findings.push(compose_finding(
            "fewer-nics-than-expected",
            &[("nics", &counted(nics, "RDMA device")), ("wanted", &wanted)],
        ));
    }
    findings
}

/// Returns sentences about all invisible facts.
fn list_unseen(facts: &Facts, purpose: Purpose) -> Vec<String> {
    let mut unseen = Vec::new();
    let gpus = &facts.gpus;
    match &gpus.problem {
        Some(problem) => unseen.push(format!("GPUs: {problem}")),
        None if gpus.devices.is_empty() && purpose == Purpose::Devices => {
            unseen.push("GPUs: there is none, or none is visible here".to_owned())
        }
        None => {}
    }
    unseen.extend(gpus.devices.iter().filter_map(|gpu| {
        Some(format!(
            "NVLinks of GPU {} ({} were readable): {}",
            gpu.index,
            gpu.links.len(),
            gpu.links_refused.as_ref()?
        ))
    }));
    if !facts.nics.is_empty() && !facts.nics.iter().any(nic::Nic::is_up) {
        unseen.push("the network: no RDMA device is up".to_owned());
    }
    if purpose == Purpose::Devices && !sees_devices(facts) {
        unseen.push("health of this host: no GPU and no active RDMA device is seen".to_owned());
    }
    if facts.nics.is_empty() {
        unseen.push("RDMA devices: there is none in /sys/class/infiniband".to_owned());
    }
    match &facts.messages.place {
        None => unseen.push("messages of the kernel: root can read them (/dev/kmsg)".to_owned()),
        Some(place) if !facts.messages.complete => {
            unseen.push(format!("messages of the kernel before those in {place}"));
        }
        Some(_) => {}
    }
    let read_once = |counters: &[super::counters::Counter]| {
        !counters.is_empty() && counters.iter().all(|counter| counter.growth.is_none())
    };
    if read_once(&facts.counters) || read_once(&gpus.counters) {
        unseen.push("growth of error counters: they were read once (--interval)".to_owned());
    }
    unseen.extend(system::list_unseen(&facts.system, gpus));
    unseen
}
