//! Conclusions about the system.

mod gpu_paths;

use gpu_paths::{find_acs_redirection, gpu_direct, multi_node_nvlink};

use super::super::gpu::Gpus;
use super::super::nic::Nic;
use super::System;
use crate::finding::{Finding, Severity};
use crate::words::{counted, join_list, size_text};

/// NVIDIA's advice on limits, settings of containers, ACS and GPUDirect.
const TROUBLESHOOTING: &str =
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html";

// A job below these limits is likely to fail. Limits without a source are our own judgement.

/// Locked memory in bytes. RDMA needs more than this for the buffers of a few ranks.
const LITTLE_LOCKED: u64 = 1 << 30;
/// Free bytes of `/dev/shm` for one pair of processes. Docker's default of 64 MiB is enough.
const LEAST_SHARED: u64 = 32 << 20;
/// Free bytes of `/dev/shm` for several GPUs: `--shm-size=1g` of [`TROUBLESHOOTING`].
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
    let text = format!(
        "/dev/shm has {} free{size}; ranks of one host need {}",
        size_text(free),
        size_text(LEAST_SHARED)
    );
    Some(
        Finding::new("host-memory-shm-small", Severity::Degraded, text)
            .with_cause("ranks of one host exchange data there, and fail or use the network if it is full")
            .with_remedy(enlarge_shared(system)),
    )
}

/// Returns the remedy of a small `/dev/shm`.
fn enlarge_shared(system: &System) -> String {
    choose_remedy(
        system,
        "start the container with --shm-size=8g, or --ipc=host",
        "mount an emptyDir with medium: Memory at /dev/shm",
        "mount -o remount,size=50% /dev/shm; remove what fills it: ls -l /dev/shm",
    )
}

fn choose_remedy(system: &System, docker: &str, kubernetes: &str, host: &str) -> String {
    match system.container.as_deref() {
        Some("Kubernetes") => kubernetes,
        Some(_) => docker,
        None => host,
    }
    .to_owned()
}

fn verbs_files(system: &System) -> Option<Finding> {
    let remedy = choose_remedy(
        system,
        "start the container with --device=/dev/infiniband",
        "request the device in the pod's limits: vpc.amazonaws.com/efa, or the RDMA device plugin's resource",
        "modprobe ib_uverbs; udevadm trigger",
    );
    if !system.verbs_files {
        return Some(
            Finding::new(
                "no-uverbs",
                Severity::Broken,
                "RDMA devices are visible, but there is no /dev/infiniband/uverbs*",
            )
            .with_cause("programs reach RDMA devices through these files")
            .with_remedy(remedy),
        );
    }
    (!system.refused_files.is_empty()).then(|| {
        Finding::new(
            "uverbs-refused",
            Severity::Broken,
            format!("/dev/infiniband files cannot be opened: {}", join_list(&system.refused_files)),
        )
        .with_remedy(format!("{remedy}; ls -l /dev/infiniband"))
    })
}

fn locked_memory(system: &System) -> Option<Finding> {
    let bytes = system.limits.locked_memory.filter(|_| system.limits.known && !system.may_lock_any())?;
    let severity = if bytes < LITTLE_LOCKED { Severity::Broken } else { Severity::Advice };
    Some(
        Finding::new(
            "memlock",
            severity,
            format!("this process may lock {} of memory (ulimit -l)", size_text(bytes)),
        )
        .with_cause("RDMA locks the memory that it registers; NCCL fails with: Cannot allocate memory")
        .with_remedy(choose_remedy(
            system,
            "start the container with --ulimit memlock=-1:-1",
            "LimitMEMLOCK=infinity for the container runtime on the node, or the capability IPC_LOCK for the \
             pod",
            "memlock unlimited in /etc/security/limits.conf; LimitMEMLOCK=infinity for slurmd and other \
             services",
        ))
        .with_source(TROUBLESHOOTING),
    )
}

fn huge_pages(system: &System, nics: &[Nic]) -> Option<Finding> {
    let efa = nics.iter().filter(|nic| nic.is_efa()).count();
    let (total, free, size) = system.huge_pages?;
    (efa > 0 && total > 0 && free == 0).then(|| {
        Finding::new(
            "huge-pages-used-up",
            Severity::Advice,
            format!("all {total} huge pages of {} are in use", size_text(size)),
        )
        .with_cause(
            "libfabric's EFA provider takes its buffers from huge pages, and falls back to common ones",
        )
        .with_remedy("sysctl vm.nr_hugepages=5128, or FI_EFA_USE_HUGE_PAGE=0")
        .with_source("vm.nr_hugepages of AWS's EFA installer; libfabric fi_efa(7), FI_EFA_USE_HUGE_PAGE")
    })
}

fn shared_memory(system: &System, gpus: usize) -> Option<Finding> {
    let remedy = enlarge_shared(system);
    let (Some(size), Some(free)) = (system.shm.size, system.shm.free) else {
        return Some(
            Finding::new(
                "no-shm",
                if gpus > 0 { Severity::Degraded } else { Severity::Advice },
                "there is no /dev/shm",
            )
            .with_cause("processes of one host exchange data there")
            .with_remedy(remedy),
        );
    };
    let severity = match free {
        _ if gpus == 0 && free < LEAST_SHARED => Severity::Advice,
        _ if gpus > 0 && free < LEAST_SHARED => Severity::Broken,
        _ if free < ENOUGH_SHARED && gpus > 1 => Severity::Degraded,
        _ => return None,
    };
    Some(
        Finding::new(
            "shm-small",
            severity,
            format!("/dev/shm has {} free of {}", size_text(free), size_text(size)),
        )
        .with_cause(
            "NCCL's processes of one host exchange data there, and fail with: No space left on device",
        )
        .with_remedy(remedy)
        .with_source(TROUBLESHOOTING),
    )
}

fn find_stale_files(system: &System) -> Option<Finding> {
    let stale = system.shm.stale.as_ref().filter(|stale| !stale.names.is_empty())?;
    let fills = system.shm.size.is_some_and(|size| stale.bytes > size / 2);
    let severity = if fills { Severity::Degraded } else { Severity::Advice };
    let where_to = if system.container.is_some() { " visible in this container" } else { "" };
    Some(
        Finding::new(
            "shm-stale",
            severity,
            format!(
                "{} in /dev/shm ({}) that no process{where_to} uses: {}",
                counted(stale.names.len(), "file of NCCL"),
                size_text(stale.bytes),
                join_list(&stale.names)
            ),
        )
        .with_cause("a job was killed before it removed them")
        .with_remedy("when no job runs here: rm /dev/shm/nccl-*"),
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
            Finding::new("open-files", severity, format!("this process may open {files} files (ulimit -n)"))
                .with_cause(
                    "a rank opens files for each peer and device: 144 ranks with 16 contexts of the network \
                     each need more than 32768; with a lower limit they fail with: Too many open files",
                )
                .with_remedy(choose_remedy(
                    system,
                    "start the container with --ulimit nofile=1048576:1048576",
                    "LimitNOFILE=1048576 for the container runtime on the node",
                    "ulimit -n 1048576, or nofile in /etc/security/limits.conf",
                )),
        );
    }
    if let Some(processes) =
        limits.processes.filter(|processes| *processes < USER_PROCESSES * gpus.max(1) as u64)
    {
        findings.push(
            Finding::new(
                "process-limit",
                Severity::Advice,
                format!("this user may have {processes} processes and threads (ulimit -u)"),
            )
            .with_cause("NCCL and the framework start many threads per GPU")
            .with_remedy("nproc unlimited in /etc/security/limits.conf"),
        );
    }
    if limits.unlimited_stack {
        findings.push(
            Finding::new("stack-unlimited", Severity::Advice, "the stack is unlimited (ulimit -s unlimited)")
                .with_cause("before NCCL 2.28 its threads then get a stack of 2 MiB, and may crash")
                .with_remedy("ulimit -s 8192, or NCCL 2.28 and later")
                .with_source(TROUBLESHOOTING),
        );
    }
    findings
}

fn judge_control_group(system: &System, gpus: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let group = &system.group;
    let remedy = |what: &str| {
        choose_remedy(
            system,
            &format!("start the container with a larger {what}"),
            &format!("raise the {what} in the pod's limits"),
            &format!("raise the {what} of the service or job (systemctl show, scontrol show job)"),
        )
    };
    let left = group.processes.map(|most| most.saturating_sub(group.running.unwrap_or(0)));
    if let Some(left) = left.filter(|left| *left < GROUP_PROCESSES * gpus.max(1) as u64) {
        findings.push(
            Finding::new(
                "pids-limit",
                Severity::Degraded,
                format!("the control group has room for {left} more processes and threads"),
            )
            .with_cause(
                "NCCL and the framework start many threads per GPU, and fail with: Resource temporarily \
                 unavailable",
            )
            .with_remedy(remedy("number of processes (--pids-limit)")),
        );
    }
    if let Some(processors) = group.processors.filter(|processors| *processors < (PROCESSORS * gpus) as f64) {
        findings.push(
            Finding::new(
                "processor-quota",
                Severity::Degraded,
                format!(
                    "the control group has a quota of {processors:.1} processors for {}",
                    counted(gpus, "GPU")
                ),
            )
            .with_cause("each rank needs a processor for itself and one for NCCL's network thread")
            .with_remedy(remedy("quota of processors (--cpus)")),
        );
    }
    if let Some(bytes) = group.memory.filter(|bytes| gpus > 0 && *bytes < gpus as u64 * MEMORY) {
        findings.push(
            Finding::new(
                "memory-limit",
                Severity::Degraded,
                format!("the control group may use {} for {}", size_text(bytes), counted(gpus, "GPU")),
            )
            .with_cause("CUDA and NCCL take some GiB of host memory per GPU; files in /dev/shm also count")
            .with_remedy(remedy("memory (--memory)")),
        );
    }
    if let (Some(allowed), Some(all)) = (system.allowed_processors, system.processors)
        && allowed < all
        && allowed < PROCESSORS * gpus
    {
        findings.push(
            Finding::new(
                "few-processors",
                Severity::Advice,
                format!("this process may use {allowed} of {all} processors"),
            )
            .with_cause("a launcher binds each rank, or the container or job has only these processors")
            .with_remedy("mpirun --bind-to none, or more processors per task (srun --cpus-per-task)"),
        );
    }
    findings
}

fn judge_settings(system: &System, gpus: &Gpus) -> Vec<Finding> {
    let mut findings = Vec::new();
    if system.services.remove_ipc == Some(true) && system.services.systemd {
        findings.push(
            Finding::new(
                "remove-ipc",
                Severity::Advice,
                "systemd removes a user's files in /dev/shm when the user's last session ends \
                 (RemoveIPC=yes)",
            )
            .with_cause("a job of this user that still runs loses its shared memory")
            .with_remedy("RemoveIPC=no in /etc/systemd/logind.conf; systemctl restart systemd-logind"),
        );
    }
    if gpus.has_gpus() && system.may_lack_numa() {
        findings.push(
            Finding::new(
                "numa-in-container",
                Severity::Advice,
                "this container may not choose NUMA nodes (no capability SYS_NICE)",
            )
            .with_cause(
                "NCCL 2.24 and later allocate host memory by NUMA node (cuMem). Without the capability they \
                 fall back or fail",
            )
            .with_remedy(choose_remedy(
                system,
                "start the container with --cap-add SYS_NICE, or set NCCL_CUMEM_HOST_ENABLE=0",
                "add the capability SYS_NICE to the pod, or set NCCL_CUMEM_HOST_ENABLE=0",
                "set NCCL_CUMEM_HOST_ENABLE=0",
            )),
        );
    }
    if system.driver.nvlink_off && gpus.devices.len() > 1 {
        findings.push(
            Finding::new(
                "nvlink-disabled",
                Severity::Degraded,
                "a parameter of the driver switches NVLink off (NvLinkDisable: 1)",
            )
            .with_remedy("look for NVreg_NvLinkDisable in /etc/modprobe.d, and load the module without it"),
        );
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
