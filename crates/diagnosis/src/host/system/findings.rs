//! Conclusions about the system.

mod gpu_paths;

use gpu_paths::{find_acs_redirection, gpu_direct, multi_node_nvlink};

use super::super::gpu::Gpus;
use super::super::nic::Nic;
use super::System;
use crate::finding::{Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::words::{counted, join_list, size_text};

// A job below these limits is likely to fail. Limits without a source are our own judgement.

/// Locked memory in bytes. RDMA needs more than this for the buffers of a few ranks.
const LITTLE_LOCKED: u64 = 1 << 30;
/// Free bytes of `/dev/shm` for one pair of processes. Docker's default of 64 MiB is enough.
const LEAST_SHARED: u64 = 32 << 20;
/// Free bytes of `/dev/shm` for several GPUs: `--shm-size=1g` of NVIDIA's guide.
const ENOUGH_SHARED: u64 = 1 << 30;
/// Open files of a job on few GPUs.
const FEW_FILES: u64 = 4096;
/// Open files of a job of hundreds of ranks.
const MANY_FILES: u64 = 32768;
/// Open files of a process that uses any network device: the usual default.
const LEAST_FILES: u64 = 1024;
/// Processes and threads of a user, per GPU.
const USER_PROCESSES: u64 = 1024;
/// Processes and threads per GPU still possible in a control group.
const GROUP_PROCESSES: u64 = 512;
/// Processors per GPU: one for the rank, one for NCCL's network thread.
const PROCESSORS: usize = 2;
/// Bytes of host memory per GPU.
const MEMORY: u64 = 4 << 30;

/// Returns findings about the system, if relevant to its GPUs and network devices.
pub(crate) fn judge_system(system: &System, gpus: &Gpus, nics: &[Nic]) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Jobs do not use a device without a link.
    if nics.iter().any(Nic::is_up) {
        findings.extend(verbs_files(system));
        findings.extend(locked_memory(system));
        findings.extend(huge_pages(system, nics));
    }
    findings.extend(shared_memory(system, gpus.devices.len()));
    findings.extend(find_stale_files(system));
    findings.extend(judge_limits(system, gpus.devices.len(), nics.iter().any(Nic::is_up)));
    findings.extend(judge_control_group(system, gpus.devices.len()));
    findings.extend(judge_settings(system, gpus));
    if gpus.has_gpus() {
        findings.extend(find_acs_redirection(system));
        findings.extend(gpu_direct(system, gpus, nics));
        findings.extend(multi_node_nvlink(system, gpus));
    }
    findings
}

/// Returns the sentence that proves usable host memory, or else the sentence about its unknown facts. Returns
/// `None` if a known value is below its limit: [`judge_host_memory`] reports this.
pub(crate) fn prove_host_memory(system: &System) -> Result<Option<String>, String> {
    let unknown = |what: &str| format!("host memory: {what}");
    let available =
        system.available.ok_or_else(|| unknown("/proc/meminfo does not show the available memory"))?;
    let free = system.shm.free.ok_or_else(|| unknown("there is no /dev/shm, or its size cannot be read"))?;
    if !system.limits.known {
        return Err(unknown("the limits of this process cannot be read (/proc/self/limits)"));
    }
    Ok((free >= LEAST_SHARED).then(|| {
        format!("host memory: {} available, {} free in /dev/shm", size_text(available), size_text(free))
    }))
}

/// Returns the finding about insufficient `/dev/shm` for ranks over host memory.
pub(crate) fn judge_host_memory(system: &System) -> Option<Finding> {
    let free = system.shm.free.filter(|free| *free < LEAST_SHARED)?;
    let size = system.shm.size.map_or_else(String::new, |size| format!(" of {}", size_text(size)));
    Some(compose_finding(
        &name_case_of_host(system, "host-memory-shm-small"),
        &[("free", &size_text(free)), ("size", &size), ("least", &size_text(LEAST_SHARED))],
    ))
}

/// Returns the name of the finding with the remedy of a container, of a pod or of a host.
fn name_case_of_host(system: &System, id: &str) -> String {
    match system.container.as_deref() {
        Some("Kubernetes") => format!("{id}/kubernetes"),
        Some(_) => format!("{id}/container"),
        None => id.to_owned(),
    }
}

fn verbs_files(system: &System) -> Option<Finding> {
    if !system.verbs_files {
        return Some(compose_finding(&name_case_of_host(system, "no-uverbs"), &[]));
    }
    (!system.refused_files.is_empty()).then(|| {
        compose_finding(
            &name_case_of_host(system, "uverbs-refused"),
            &[("refused_files", &join_list(&system.refused_files))],
        )
    })
}

fn locked_memory(system: &System) -> Option<Finding> {
    let bytes = system.limits.locked_memory.filter(|_| system.limits.known && !system.may_lock_any())?;
    let severity = if bytes < LITTLE_LOCKED { Severity::Broken } else { Severity::Advice };
    Some(
        compose_finding(&name_case_of_host(system, "memlock"), &[("bytes", &size_text(bytes))])
            .with_severity(severity),
    )
}

fn huge_pages(system: &System, nics: &[Nic]) -> Option<Finding> {
    let efa = nics.iter().filter(|nic| nic.is_efa()).count();
    let (total, free, size) = system.huge_pages?;
    (efa > 0 && total > 0 && free == 0)
        .then(|| compose_finding("huge-pages-used-up", &[("total", &total), ("size", &size_text(size))]))
}

fn shared_memory(system: &System, gpus: usize) -> Option<Finding> {
    let (Some(size), Some(free)) = (system.shm.size, system.shm.free) else {
        let severity = if gpus > 0 { Severity::Degraded } else { Severity::Advice };
        return Some(compose_finding(&name_case_of_host(system, "no-shm"), &[]).with_severity(severity));
    };
    let severity = match free {
        _ if gpus == 0 && free < LEAST_SHARED => Severity::Advice,
        _ if gpus > 0 && free < LEAST_SHARED => Severity::Broken,
        _ if free < ENOUGH_SHARED && gpus > 1 => Severity::Degraded,
        _ => return None,
    };
    Some(
        compose_finding(
            &name_case_of_host(system, "shm-small"),
            &[("free", &size_text(free)), ("size", &size_text(size))],
        )
        .with_severity(severity),
    )
}

fn find_stale_files(system: &System) -> Option<Finding> {
    let stale = system.shm.stale.as_ref().filter(|stale| !stale.names.is_empty())?;
    let fills = system.shm.size.is_some_and(|size| stale.bytes > size / 2);
    let severity = if fills { Severity::Degraded } else { Severity::Advice };
    let where_to = if system.container.is_some() { " visible in this container" } else { "" };
    Some(
        compose_finding(
            "shm-stale",
            &[
                ("stale", &counted(stale.names.len(), "file of NCCL")),
                ("bytes", &size_text(stale.bytes)),
                ("where_to", &where_to),
                ("names", &join_list(&stale.names)),
            ],
        )
        .with_severity(severity),
    )
}

fn judge_limits(system: &System, gpus: usize, has_network: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let limits = &system.limits;
    if !limits.known {
        return findings;
    }
    let needed = if gpus >= 4 && has_network { MANY_FILES } else { FEW_FILES };
    if let Some(files) = limits.open_files.filter(|files| *files < needed) {
        let severity = if files < LEAST_FILES { Severity::Degraded } else { Severity::Advice };
        findings.push(
            compose_finding(&name_case_of_host(system, "open-files"), &[("files", &files)])
                .with_severity(severity),
        );
    }
    if let Some(processes) =
        limits.processes.filter(|processes| *processes < USER_PROCESSES * gpus.max(1) as u64)
    {
        findings.push(compose_finding("process-limit", &[("processes", &processes)]));
    }
    if limits.unlimited_stack {
        findings.push(compose_finding("stack-unlimited", &[]));
    }
    findings
}

fn judge_control_group(system: &System, gpus: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let group = &system.group;
    let left = group.processes.map(|most| most.saturating_sub(group.running.unwrap_or(0)));
    if let Some(left) = left.filter(|left| *left < GROUP_PROCESSES * gpus.max(1) as u64) {
        findings.push(compose_finding(&name_case_of_host(system, "pids-limit"), &[("left", &left)]));
    }
    if let Some(processors) = group.processors.filter(|processors| *processors < (PROCESSORS * gpus) as f64) {
        findings.push(compose_finding(
            &name_case_of_host(system, "processor-quota"),
            &[("processors", &format!("{processors:.1}")), ("gpus", &counted(gpus, "GPU"))],
        ));
    }
    if let Some(bytes) = group.memory.filter(|bytes| gpus > 0 && *bytes < gpus as u64 * MEMORY) {
        findings.push(compose_finding(
            &name_case_of_host(system, "memory-limit"),
            &[("bytes", &size_text(bytes)), ("gpus", &counted(gpus, "GPU"))],
        ));
    }
    if let (Some(allowed), Some(all)) = (system.allowed_processors, system.processors)
        && allowed < all
        && allowed < PROCESSORS * gpus
    {
        findings.push(compose_finding("few-processors", &[("allowed", &allowed), ("all", &all)]));
    }
    findings
}

fn judge_settings(system: &System, gpus: &Gpus) -> Vec<Finding> {
    let mut findings = Vec::new();
    if system.services.remove_ipc == Some(true) && system.services.systemd {
        findings.push(compose_finding("remove-ipc", &[]));
    }
    if gpus.has_gpus() && system.may_lack_numa() {
        findings.push(compose_finding(&name_case_of_host(system, "numa-in-container"), &[]));
    }
    if system.driver.nvlink_off && gpus.devices.len() > 1 {
        findings.push(compose_finding("nvlink-disabled", &[]));
    }
    findings
}

/// Returns sentences about invisible facts of the system.
pub(crate) fn list_unseen(system: &System, gpus: &Gpus) -> Vec<String> {
    let mut unseen = Vec::new();
    if system.shm.stale.is_none() && system.shm.files > 0 {
        unseen.push(format!(
            "whether {} in /dev/shm are in use: other users' processes are visible to root only",
            counted(system.shm.files, "file of NCCL")
        ));
    }
    if gpus.has_gpus() && !system.bridges.is_empty() && system.bridges.iter().any(|bridge| !bridge.readable) {
        unseen.push("PCI access control (ACS) of bridges: root can read it".to_owned());
    }
    if !system.limits.known {
        unseen.push("limits of this process: no /proc/self/limits".to_owned());
    }
    if let Some(container) = &system.container {
        unseen.push(format!("services and processes of the host: this is a container ({container})"));
    }
    unseen
}
