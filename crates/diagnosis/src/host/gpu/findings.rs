//! Conclusions about GPUs.

mod access;
mod facts;

use super::super::compare::majority;
use super::{Gpu, Gpus, Problem};
use crate::finding::{Action, Finding, Severity};
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
    let broken = |rule: &str, text: String| Finding::new(rule, Severity::Broken, text);
    Some(match gpus.problem.as_ref()? {
        Problem::Mismatch(error) => {
            broken("driver-library-mismatch", format!("NVML does not start: {error}"))
                .with_cause("the driver's libraries were updated, and the kernel still runs the old module")
                .with_remedy(
                    "reboot, or unload and load the module: rmmod nvidia_uvm nvidia && modprobe nvidia",
                )
                .with_action(Action::Reboot)
        }
        Problem::Stuck(error) => broken("nvml-stuck", format!("NVML does not answer: {error}"))
            .with_cause("a GPU or the driver hangs")
            .with_remedy("look for Xid in dmesg; reboot the node")
            .with_action(Action::Reboot),
        Problem::Failed(error) => broken("nvml-failed", format!("NVML fails: {error}"))
            .with_remedy("nvidia-smi; dmesg | grep -E 'NVRM|Xid'"),
        Problem::NoDriver(error) if gpus.has_gpus() && !in_container => {
            broken("no-driver", format!("the host has NVIDIA GPUs on its PCI bus, but no driver: {error}"))
                .with_remedy("modprobe nvidia; dmesg | grep NVRM shows why it does not load")
        }
        _ => return None,
    })
}

fn find_lost_gpus(gpus: &Gpus) -> Option<Finding> {
    let names: Vec<String> =
        gpus.lost.iter().map(|lost| format!("GPU {} ({})", lost.index, lost.error)).collect();
    (!names.is_empty()).then(|| {
        Finding::new("gpu-lost", Severity::Broken, format!("NVML cannot open {}", join_list(&names)))
            .with_cause("the GPU fell off the bus, or needs a reset")
            .with_remedy("dmesg | grep Xid; reboot the node; isolate it if it happens again")
            .with_action(Action::Reboot)
    })
}

fn fewer_than_on_bus(gpus: &Gpus, in_container: bool) -> Option<Finding> {
    let served = gpus.on_pci.iter().filter(|gpu| gpu.driver.as_deref() == Some("nvidia")).count();
    let seen = gpus.devices.len() + gpus.lost.len();
    if gpus.problem.is_some() || seen >= served {
        return None;
    }
    let text = format!("NVML shows {}, but the driver serves {served} on the PCI bus", counted(seen, "GPU"));
    Some(if in_container {
        Finding::new("container-has-fewer-gpus", Severity::Advice, text)
            .with_cause("this container was given a part of the host's GPUs")
    } else {
        Finding::new("gpu-missing", Severity::Broken, text)
            .with_cause("GPUs could not be started, or their device files are missing")
            .with_remedy("dmesg | grep -E 'NVRM|Xid'; ls -l /dev/nvidia*; reboot the node")
            .with_action(Action::Reboot)
    })
}

fn find_needed_recovery(gpu: &Gpu) -> Option<Finding> {
    let (severity, text, action) = match gpu.recovery? {
        0 => return None,
        1 => (Severity::Broken, "a reset of the GPU", Action::Reset),
        2 => (Severity::Broken, "a reboot of the node", Action::Reboot),
        3 => (
            Severity::Broken,
            "to end all peer-to-peer work and to reset the GPUs of the node",
            Action::Reset,
        ),
        4 => (Severity::Degraded, "to end all work and to reset the GPU", Action::Reset),
        _ => (Severity::Unknown, "an action that this program does not know", Action::Watch),
    };
    let remedy = match action {
        Action::Reboot => "drain the node and reboot it".to_owned(),
        _ => format!("drain the node, then nvidia-smi --gpu-reset -i {}", gpu.index),
    };
    Some(
        Finding::new("gpu-recovery-action", severity, format!("NVML asks for {text}: {}", describe_gpu(gpu)))
            .with_cause("the driver recorded a fault of this GPU; dmesg | grep Xid names it")
            .with_remedy(remedy)
            .with_action(action),
    )
}

/// Returns findings about a GPU's memory: errors, replaced rows and pages.
fn find_memory_errors(gpu: &Gpu) -> Vec<Finding> {
    let mut findings = Vec::new();
    let reset = format!("drain the node, then nvidia-smi --gpu-reset -i {}", gpu.index);
    let rows = gpu.rows.clone().unwrap_or_default();
    if rows.failed {
        findings.push(
            Finding::new(
                "row-remap-failed",
                Severity::Broken,
                format!("a row of memory could not be replaced: {}", describe_gpu(gpu)),
            )
            .with_cause("the memory has no spare rows left where one is needed")
            .with_remedy(
                "take the node out of service, and have the GPU replaced (nvidia-smi -q -d ROW_REMAPPER)",
            )
            .with_action(Action::Isolate)
            .with_source("https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"),
        );
    }
    if rows.pending || gpu.pages.pending == Some(true) {
        findings.push(
            Finding::new(
                "row-remap-pending",
                Severity::Degraded,
                format!("memory waits for a reset to be replaced: {}", describe_gpu(gpu)),
            )
            .with_cause("an uncorrected error was found; the row or page is replaced at the next reset")
            .with_remedy(reset.clone())
            .with_action(Action::Reset),
        );
    }
    if let Some(errors) = gpu.ecc.uncorrected.filter(|errors| *errors > 0) {
        findings.push(
            Finding::new(
                "ecc-uncorrected",
                Severity::Degraded,
                format!("{} since the driver was loaded: {}", counted_errors(errors), describe_gpu(gpu)),
            )
            .with_cause("memory or caches of the GPU lose data")
            .with_remedy(format!("{reset}; isolate the node if errors come back"))
            .with_action(Action::Reset),
        );
    }
    if let (Some(now), Some(pending)) = (gpu.ecc.enabled, gpu.ecc.pending)
        && now != pending
    {
        let text = format!(
            "a change of ECC to {} waits for a reset: {}",
            if pending { "on" } else { "off" },
            describe_gpu(gpu)
        );
        findings.push(Finding::new("ecc-change-pending", Severity::Advice, text).with_remedy(reset));
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
    gpus.devices.iter().any(|gpu| gpu.name != first.name).then(|| {
        Finding::new(
            "gpu-models-differ",
            Severity::Advice,
            format!("the host has different GPUs: {}", gpus.describe_models()),
        )
        .with_cause("a collective runs at the speed of the slowest one")
        .with_remedy("choose equal ones: CUDA_VISIBLE_DEVICES")
    })
}

/// Returns a finding about GPUs with error correction off, while it is on for other GPUs of the host.
fn ecc_off(gpus: &Gpus) -> Option<Finding> {
    let off: Vec<String> =
        gpus.devices.iter().filter(|gpu| gpu.ecc.enabled == Some(false)).map(describe_gpu).collect();
    let on = gpus.devices.iter().any(|gpu| gpu.ecc.enabled == Some(true));
    (!off.is_empty() && on).then(|| {
        Finding::new(
            "ecc-off",
            Severity::Degraded,
            format!("ECC is off, but on for the other GPUs: {}", join_list(&off)),
        )
        .with_remedy("nvidia-smi -e 1 -i INDEX, then reset the GPU")
    })
}

fn find_slowed_gpus(gpus: &Gpus) -> Vec<Finding> {
    let faults = FAULTS.iter().filter_map(|reason| {
        let slow: Vec<String> = gpus
            .devices
            .iter()
            .filter(|gpu| gpu.slowed.iter().any(|found| found == reason))
            .map(|gpu| format!("{}, {} C", describe_gpu(gpu), or_dash(gpu.temperature)))
            .collect();
        (!slow.is_empty()).then(|| {
            Finding::new(
                "gpu-throttled",
                Severity::Degraded,
                format!("clocks are lowered ({reason}): {}", join_list(&slow)),
            )
            .with_cause("the GPU is too hot, or its power supply asks for less load")
            .with_remedy("see fans, air flow, power supplies: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER")
            .with_action(Action::Watch)
        })
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
        findings.push(
            Finding::new(
                "power-limit-lowered",
                Severity::Advice,
                format!("the power limit is below the default: {}", join_list(&limited)),
            )
            .with_remedy("nvidia-smi -pl WATTS, if this is not intended"),
        );
    }
    findings
}

fn find_narrow_pcie(gpu: &Gpu) -> Option<Finding> {
    let pcie = &gpu.pcie;
    let lanes = pcie.width.zip(pcie.max_width).filter(|(now, most)| now < most);
    // Idle GPUs lower the generation to save power.
    let busy = gpu.performance_state == Some(0) && !gpu.slowed.iter().any(|reason| reason == "idle");
    let generations = pcie.generation.zip(pcie.max_generation).filter(|(now, most)| now < most && busy);
    let text = match (lanes, generations) {
        (Some((now, most)), _) => format!("{} has {now} of {most} PCIe lanes", describe_gpu(gpu)),
        (None, Some((now, most))) => format!("{} runs PCIe generation {now} of {most}", describe_gpu(gpu)),
        (None, None) => return None,
    };
    Some(
        Finding::new("gpu-pcie-narrow", Severity::Degraded, text)
            .with_cause("the connection was trained to less than GPU and slot can do")
            .with_remedy("reseat the GPU or its riser; dmesg | grep -i pcie; reboot the node")
            .with_action(Action::Reboot),
    )
}

/// Returns findings about modes harmful to a job.
fn find_harmful_modes(gpus: &Gpus) -> Vec<Finding> {
    let those = |wanted: &dyn Fn(&Gpu) -> bool| -> Vec<String> {
        gpus.devices.iter().filter(|gpu| wanted(gpu)).map(describe_gpu).collect()
    };
    let mut findings = Vec::new();
    let mig = those(&|gpu| gpu.mig == Some(true));
    if !mig.is_empty() {
        findings.push(
            Finding::new("mig-on", Severity::Degraded, format!("MIG is on: {}", join_list(&mig)))
                .with_cause("instances of a GPU have no peer-to-peer access, over NVLink or PCIe")
                .with_remedy("nvidia-smi -mig 0 -i INDEX, then reset the GPU, if jobs need whole GPUs"),
        );
    }
    let prohibited = those(&|gpu| gpu.compute_mode.as_deref() == Some("prohibited"));
    if !prohibited.is_empty() {
        findings.push(
            Finding::new(
                "compute-prohibited",
                Severity::Broken,
                format!("the compute mode forbids all work: {}", join_list(&prohibited)),
            )
            .with_remedy("nvidia-smi -c DEFAULT -i INDEX"),
        );
    }
    let exclusive = those(&|gpu| gpu.compute_mode.as_deref() == Some("exclusive process"));
    if !exclusive.is_empty() {
        findings.push(
            Finding::new(
                "compute-exclusive",
                Severity::Advice,
                format!("one process per GPU is allowed: {}", join_list(&exclusive)),
            )
            .with_remedy("nvidia-smi -c DEFAULT -i INDEX, if several processes share a GPU"),
        );
    }
    let states: Vec<&Option<bool>> = gpus.devices.iter().map(|gpu| &gpu.persistence).collect();
    if majority(&states) == Some(&Some(false)) {
        findings.push(
            Finding::new(
                "persistence-off",
                Severity::Advice,
                "persistence mode is off: the driver loads at the start of each job",
            )
            .with_remedy("systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"),
        );
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
    (!used.is_empty()).then(|| {
        Finding::new(
            "gpu-in-use",
            Severity::Advice,
            format!("other processes use the GPUs: {}", join_list(&used)),
        )
        .with_cause(
            "a job runs, or processes of an ended job remain. They take memory and time from the next job",
        )
        .with_remedy("end what should not run: kill PID")
    })
}
