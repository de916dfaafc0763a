//! Conclusions about GPUs.

mod access;
mod facts;

use super::super::compare::majority;
use super::{Gpu, Gpus, Problem};
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::words::{counted, join_list, or_dash, size_text};

pub(crate) use facts::{gpu_sections, prove_gpus};

/// Reasons of NVML for a low clock, due to faults of power or cooling.
const FAULTS: [&str; 4] =
    ["hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake"];

/// Returns findings about the GPUs. In a container the host may have more of them.
pub(crate) fn judge_gpus(gpus: &Gpus, in_container: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(find_nvml_problem(gpus, in_container));
    findings.extend(find_lost_gpus(gpus));
    findings.extend(fewer_than_on_bus(gpus, in_container));
    findings.extend(gpus.devices.iter().filter_map(find_needed_recovery));
    findings.extend(gpus.devices.iter().flat_map(find_memory_errors));
    findings.extend(find_model_differences(gpus));
    findings.extend(ecc_off(gpus));
    findings.extend(find_slowed_gpus(gpus));
    findings.extend(gpus.devices.iter().filter_map(find_narrow_pcie));
    findings.extend(find_harmful_modes(gpus));
    findings.extend(access::judge_access(gpus));
    findings.extend(find_running_processes(gpus));
    findings
}

/// Returns `GPU 3 (0000:5d:00.0)`.
fn describe_gpu(gpu: &Gpu) -> String {
    match &gpu.pci {
        Some(place) => format!("GPU {} ({place})", gpu.index),
        None => format!("GPU {}", gpu.index),
    }
}

fn find_nvml_problem(gpus: &Gpus, in_container: bool) -> Option<Finding> {
    let (id, error) = match gpus.problem.as_ref()? {
        Problem::Mismatch(error) => ("driver-library-mismatch", error),
        Problem::Stuck(error) => ("nvml-stuck", error),
        Problem::Failed(error) => ("nvml-failed", error),
        Problem::NoDriver(error) if gpus.has_gpus() && !in_container => ("no-driver", error),
        _ => return None,
    };
    Some(compose_finding(id, &[("error", error)]))
}

fn find_lost_gpus(gpus: &Gpus) -> Option<Finding> {
    let names: Vec<String> =
        gpus.lost.iter().map(|lost| format!("GPU {} ({})", lost.index, lost.error)).collect();
    (!names.is_empty()).then(|| compose_finding("gpu-lost", &[("names", &join_list(&names))]))
}

fn fewer_than_on_bus(gpus: &Gpus, in_container: bool) -> Option<Finding> {
    let served = gpus.on_pci.iter().filter(|gpu| gpu.driver.as_deref() == Some("nvidia")).count();
    let seen = gpus.devices.len() + gpus.lost.len();
    if gpus.problem.is_some() || seen >= served {
        return None;
    }
    let id = if in_container { "container-has-fewer-gpus" } else { "gpu-missing" };
    Some(compose_finding(id, &[("seen", &counted(seen, "GPU")), ("served", &served)]))
}

fn find_needed_recovery(gpu: &Gpu) -> Option<Finding> {
    let id = match gpu.recovery? {
        0 => return None,
        1 => "gpu-recovery-action",
        2 => "gpu-recovery-action/reboot",
        3 => "gpu-recovery-action/all",
        4 => "gpu-recovery-action/drain",
        _ => "gpu-recovery-action/unknown",
    };
    Some(compose_finding(id, &[("gpu", &describe_gpu(gpu)), ("index", &gpu.index)]))
}

/// Returns findings about a GPU's memory: errors, replaced rows and pages.
fn find_memory_errors(gpu: &Gpu) -> Vec<Finding> {
    let mut findings = Vec::new();
    let rows = gpu.rows.clone().unwrap_or_default();
    if rows.failed {
        findings.push(compose_finding("row-remap-failed", &[("gpu", &describe_gpu(gpu))]));
    }
    if rows.pending || gpu.pages.pending == Some(true) {
        findings.push(compose_finding(
            "row-remap-pending",
            &[("gpu", &describe_gpu(gpu)), ("index", &gpu.index)],
        ));
    }
    if let Some(errors) = gpu.ecc.uncorrected.filter(|errors| *errors > 0) {
        findings.push(compose_finding(
            "ecc-uncorrected",
            &[("errors", &counted_errors(errors)), ("gpu", &describe_gpu(gpu)), ("index", &gpu.index)],
        ));
    }
    if let (Some(now), Some(pending)) = (gpu.ecc.enabled, gpu.ecc.pending)
        && now != pending
    {
        findings.push(compose_finding(
            "ecc-change-pending",
            &[
                ("state", &if pending { "on" } else { "off" }),
                ("gpu", &describe_gpu(gpu)),
                ("index", &gpu.index),
            ],
        ));
    }
    findings
}

fn counted_errors(errors: u64) -> String {
    if errors == 1 {
        "1 uncorrected ECC error".to_owned()
    } else {
        format!("{errors} uncorrected ECC errors")
    }
}

/// Returns a finding about different models in one host.
fn find_model_differences(gpus: &Gpus) -> Option<Finding> {
    let first = gpus.devices.first()?;
    gpus.devices
        .iter()
        .any(|gpu| gpu.name != first.name)
        .then(|| compose_finding("gpu-models-differ", &[("gpus", &gpus.describe_models())]))
}

/// Returns a finding about GPUs with error correction off, while it is on for other GPUs of the host.
fn ecc_off(gpus: &Gpus) -> Option<Finding> {
    let off: Vec<String> =
        gpus.devices.iter().filter(|gpu| gpu.ecc.enabled == Some(false)).map(describe_gpu).collect();
    let on = gpus.devices.iter().any(|gpu| gpu.ecc.enabled == Some(true));
    (!off.is_empty() && on).then(|| compose_finding("ecc-off", &[("off", &join_list(&off))]))
}

fn find_slowed_gpus(gpus: &Gpus) -> Vec<Finding> {
    let faults = FAULTS.iter().filter_map(|reason| {
        let slow: Vec<String> = gpus
            .devices
            .iter()
            .filter(|gpu| gpu.slowed.iter().any(|found| found == reason))
            .map(|gpu| format!("{}, {} C", describe_gpu(gpu), or_dash(gpu.temperature)))
            .collect();
        (!slow.is_empty())
            .then(|| compose_finding("gpu-throttled", &[("reason", &reason), ("slow", &join_list(&slow))]))
    });
    let mut findings: Vec<Finding> = faults.collect();
    let limited: Vec<String> = gpus
        .devices
        .iter()
        .filter(|gpu| gpu.power_limit.zip(gpu.default_power_limit).is_some_and(|(now, usual)| now < usual))
        .map(|gpu| {
            let watts = |milliwatts: Option<u32>| or_dash(milliwatts.map(|limit| limit / 1000));
            format!(
                "{}: {} W of {} W",
                describe_gpu(gpu),
                watts(gpu.power_limit),
                watts(gpu.default_power_limit)
            )
        })
        .collect();
    if !limited.is_empty() {
        findings.push(compose_finding("power-limit-lowered", &[("limited", &join_list(&limited))]));
    }
    findings
}

fn find_narrow_pcie(gpu: &Gpu) -> Option<Finding> {
    let pcie = &gpu.pcie;
    let lanes = pcie.width.zip(pcie.max_width).filter(|(now, most)| now < most);
    // Idle GPUs lower the generation to save power.
    let busy = gpu.performance_state == Some(0) && !gpu.slowed.iter().any(|reason| reason == "idle");
    let generations = pcie.generation.zip(pcie.max_generation).filter(|(now, most)| now < most && busy);
    let (id, (now, most)) = match (lanes, generations) {
        (Some(lanes), _) => ("gpu-pcie-narrow", lanes),
        (None, Some(generations)) => ("gpu-pcie-narrow/generation", generations),
        (None, None) => return None,
    };
    Some(compose_finding(id, &[("gpu", &describe_gpu(gpu)), ("now", &now), ("most", &most)]))
}

/// Returns findings about modes harmful to a job.
fn find_harmful_modes(gpus: &Gpus) -> Vec<Finding> {
    let those = |wanted: &dyn Fn(&Gpu) -> bool| -> Vec<String> {
        gpus.devices.iter().filter(|gpu| wanted(gpu)).map(describe_gpu).collect()
    };
    let mut findings = Vec::new();
    let mig = those(&|gpu| gpu.mig == Some(true));
    if !mig.is_empty() {
        findings.push(compose_finding("mig-on", &[("mig", &join_list(&mig))]));
    }
    let prohibited = those(&|gpu| gpu.compute_mode.as_deref() == Some("prohibited"));
    if !prohibited.is_empty() {
        findings.push(compose_finding("compute-prohibited", &[("prohibited", &join_list(&prohibited))]));
    }
    let exclusive = those(&|gpu| gpu.compute_mode.as_deref() == Some("exclusive process"));
    if !exclusive.is_empty() {
        findings.push(compose_finding("compute-exclusive", &[("exclusive", &join_list(&exclusive))]));
    }
    let states: Vec<&Option<bool>> = gpus.devices.iter().map(|gpu| &gpu.persistence).collect();
    if majority(&states) == Some(&Some(false)) {
        findings.push(compose_finding("persistence-off", &[]));
    }
    findings
}

fn find_running_processes(gpus: &Gpus) -> Option<Finding> {
    let used: Vec<String> = gpus
        .devices
        .iter()
        .flat_map(|gpu| gpu.processes.iter().map(move |process| (gpu, process)))
        .map(|(gpu, process)| {
            let memory = process.memory.map_or_else(String::new, |bytes| format!(", {}", size_text(bytes)));
            format!("GPU {}: {} {}{memory}", gpu.index, process.pid, or_dash(process.name.as_ref()))
        })
        .collect();
    (!used.is_empty()).then(|| compose_finding("gpu-in-use", &[("used", &join_list(&used))]))
}
