use std::fs;

use super::*;
use crate::finding::{Finding, Severity};
use crate::host::gpu::{Fabric, Gpu, Gpus};
use crate::host::nic::{Nic, Port};
use crate::host::sample::Machine;

fn names(findings: &[Finding]) -> Vec<(&str, Severity)> {
    findings.iter().map(|finding| (finding.rule.as_str(), finding.severity)).collect()
}

fn gpus(count: usize, name: &str) -> Gpus {
    let gpu = Gpu { name: name.to_owned(), ..Gpu::default() };
    Gpus { devices: vec![gpu; count], ..Gpus::default() }
}

fn nic(state: &str) -> Nic {
    Nic {
        name: "mlx5_0".to_owned(),
        driver: Some("mlx5_core".to_owned()),
        ports: vec![Port { number: 1, state: state.to_owned(), ..Port::default() }],
        ..Nic::default()
    }
}

/// A card without a cable needs neither device files nor locked memory.
#[test]
fn only_devices_with_a_link_need_files_and_locked_memory() {
    let machine = Machine::new().with_memlock("65536").with_file("dev/shm/other", "");
    let with = |state| {
        let findings = judge_system(&read_system(machine.root(), None), &Gpus::default(), &[nic(state)]);
        findings
            .into_iter()
            .filter(|finding| finding.severity == Severity::Broken)
            .map(|finding| finding.rule)
            .collect::<Vec<_>>()
    };
    assert_eq!(with("ACTIVE"), ["no-uverbs", "memlock"]);
    assert_eq!(with("DOWN"), [] as [&str; 0]);
}

/// Few GPUs need few files.
#[test]
fn open_files_are_judged_by_the_gpus() {
    let with = |files, count, nics: &[Nic]| {
        let mut system = System::default();
        system.limits.known = true;
        system.limits.open_files = Some(files);
        let findings = judge_system(&system, &gpus(count, "H100"), nics);
        findings.iter().find(|finding| finding.rule == "open-files").map(|finding| finding.severity)
    };
    let nics = [nic("ACTIVE")];
    assert_eq!(with(20000, 1, &nics), None);
    assert_eq!(with(20000, 8, &[]), None);
    assert_eq!(with(20000, 8, &nics), Some(Severity::Advice));
    assert_eq!(with(32768, 8, &nics), None);
    assert_eq!(with(4095, 1, &[]), Some(Severity::Advice));
    assert_eq!(with(1000, 1, &[]), Some(Severity::Degraded));
}

#[test]
fn the_smallest_limit_of_all_control_groups_holds() {
    let machine = Machine::new()
        .with_file("proc/self/cgroup", "0::/system.slice/job\n")
        .with_file("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
        .with_file("sys/fs/cgroup/system.slice/memory.max", "8589934592\n")
        .with_file("sys/fs/cgroup/system.slice/job/memory.max", "max\n")
        .with_file("sys/fs/cgroup/system.slice/job/cpu.max", "400000 100000\n")
        .with_file("sys/fs/cgroup/system.slice/pids.max", "1000\n")
        .with_file("sys/fs/cgroup/system.slice/pids.current", "900\n")
        .with_file("sys/fs/cgroup/system.slice/job/pids.max", "500\n")
        .with_file("sys/fs/cgroup/system.slice/job/pids.current", "3\n")
        .with_file("dev/shm/other", "");
    let system = read_system(machine.root(), None);
    let expected = ControlGroup {
        memory: Some(8 << 30),
        processors: Some(4.0),
        processes: Some(1000),
        running: Some(900),
    };
    assert_eq!(system.group, expected);
    let findings = judge_system(&system, &gpus(8, "H100"), &[]);
    let expected = ["pids-limit", "processor-quota", "memory-limit"].map(|name| (name, Severity::Degraded));
    assert_eq!(names(&findings)[..3], expected);
    assert!(findings[0].diagnosis.contains("100 more"), "{}", findings[0].diagnosis);
}

#[test]
fn the_first_version_of_control_groups_is_read_as_well() {
    let machine = Machine::new()
        .with_file("proc/self/cgroup", "7:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n3:pids:/docker/ab\n")
        .with_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        .with_file("sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes", "4294967296\n")
        .with_file("sys/fs/cgroup/cpu/docker/ab/cpu.cfs_quota_us", "150000\n")
        .with_file("sys/fs/cgroup/cpu/docker/ab/cpu.cfs_period_us", "100000\n")
        .with_file("sys/fs/cgroup/pids/docker/ab/pids.max", "max\n");
    let group = read_system(machine.root(), None).group;
    assert_eq!((group.memory, group.processors, group.processes), (Some(4 << 30), Some(1.5), None));
}

#[test]
fn files_that_no_process_maps_are_stale() {
    let machine = Machine::new()
        .with_file("dev/shm/nccl-used", "x")
        .with_file("dev/shm/nccl-open", "x")
        .with_file("dev/shm/nccl-old", "x")
        .with_file("dev/shm/other", "x")
        .with_file("proc/77/maps", "7f00-7f01 rw-s 00000000 00:1f 5 /dev/shm/nccl-used\n")
        .with_link("proc/78/fd/3", "/dev/shm/nccl-open");
    let shm = read_system(machine.root(), None).shm;
    assert_eq!(shm.stale.as_ref().unwrap().names, ["nccl-old"]);
    assert_eq!(shm.files, 2);
    let findings = judge_system(&System { shm, ..System::default() }, &Gpus::default(), &[]);
    assert_eq!(names(&findings), [("shm-stale", Severity::Advice)]);
}

#[test]
fn little_shared_memory_breaks_jobs_of_several_gpus() {
    let with = |free, count| {
        let mut system = System::default();
        (system.shm.size, system.shm.free) = (Some(64 << 20), Some(free));
        judge_system(&system, &gpus(count, "H100"), &[]).first().map(|finding| finding.severity)
    };
    assert_eq!(with(64 << 20, 8), Some(Severity::Degraded));
    assert_eq!(with(1 << 20, 8), Some(Severity::Broken));
    assert_eq!(with(64 << 20, 1), None);
    assert_eq!(with(1 << 20, 0), Some(Severity::Advice));
}

/// A bridge with redirection by access control is a fault on bare metal. In a virtual machine no advice is
/// given.
#[test]
fn access_control_is_judged_on_bare_metal_only() {
    let machine = |flags: &str| {
        let folder = "sys/devices/pci0000:15/0000:15:01.0";
        let machine = Machine::new()
            .with_file("proc/cpuinfo", &format!("processor: 0\nflags\t\t: fpu {flags}\n"))
            .with_file(&format!("{folder}/0000:17:00.0/vendor"), "0x10de\n")
            .with_file(&format!("{folder}/0000:17:00.0/class"), "0x030200\n")
            .with_link("sys/bus/pci/devices/0000:15:01.0", "../../../devices/pci0000:15/0000:15:01.0")
            .with_link(
                "sys/bus/pci/devices/0000:17:00.0",
                "../../../devices/pci0000:15/0000:15:01.0/0000:17:00.0",
            )
            .with_file("sys/kernel/iommu_groups/0/type", "DMA-FQ\n")
            .with_file("dev/shm/other", "");
        let mut space = vec![0_u8; 4096];
        space[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        space[0x106] = 0x1d;
        fs::write(machine.root().join(folder).join("config"), space).unwrap();
        machine
    };
    let bare = read_system(machine("sse").root(), None);
    assert_eq!(
        bare.bridges,
        [Bridge { bus_id: "0000:15:01.0".to_owned(), control: Some(0x1d), readable: true }]
    );
    let found = judge_system(&bare, &gpus(1, "H100"), &[]);
    assert_eq!(names(&found), [("acs-on", Severity::Degraded), ("iommu-translates", Severity::Advice)]);
    let guest = read_system(machine("hypervisor").root(), None);
    assert_eq!(names(&judge_system(&guest, &gpus(1, "H100"), &[])), []);
}

#[test]
fn network_devices_reach_gpu_memory_by_peermem_or_dma_buf() {
    let nic = nic("ACTIVE");
    let with = |version: &str, kernel: &str, peermem: bool| {
        let mut machine = Machine::new()
            .with_file("proc/driver/nvidia/version", version)
            .with_file("proc/sys/kernel/osrelease", kernel)
            .with_file("dev/infiniband/uverbs0", "")
            .with_file("dev/shm/other", "");
        if peermem {
            machine = machine.with_file("sys/module/nvidia_peermem/refcnt", "0");
        }
        let system = read_system(machine.root(), None);
        assert_eq!(system.driver.version.as_deref(), Some("580.95.05"));
        judge_system(&system, &gpus(1, "H100"), std::slice::from_ref(&nic))
            .iter()
            .any(|finding| finding.rule == "no-gpudirect")
    };
    let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n";
    let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\n";
    assert!(!with(open, "6.8.0-1015-aws", false));
    assert!(with(open, "5.4.0-100", false));
    assert!(with(closed, "6.8.0", false));
    assert!(!with(closed, "6.8.0", true));
}

#[test]
fn grace_blackwell_needs_its_override_and_channels_of_imex() {
    let machine = Machine::new()
        .with_file(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05\n",
        )
        .with_file("proc/driver/nvidia/params", "GrdmaPciTopoCheckOverride: 0\nNvLinkDisable: 0\n")
        .with_file("proc/sys/kernel/osrelease", "6.8.0-nvidia-64k")
        .with_file("dev/infiniband/uverbs0", "")
        .with_file("dev/shm/other", "");
    let mut gpus = gpus(1, "NVIDIA GB200");
    let cluster = Some("0f1e".to_owned());
    gpus.devices[0].fabric = Some(Fabric { state: 3, cluster, clique: 1, ..Fabric::default() });
    let nic = nic("ACTIVE");
    let found = judge_system(&read_system(machine.root(), None), &gpus, std::slice::from_ref(&nic));
    let expected = ["grdma-topology-check", "no-imex-channel", "no-imex-daemon"];
    assert_eq!(names(&found), expected.map(|name| (name, Severity::Degraded)));
    let machine = machine
        .with_file("dev/nvidia-caps-imex-channels/channel0", "")
        .with_file("proc/55/comm", "nvidia-imex\n")
        .with_file("proc/driver/nvidia/params", "GrdmaPciTopoCheckOverride: 1\n");
    assert_eq!(names(&judge_system(&read_system(machine.root(), None), &gpus, &[nic])), []);
}

#[test]
fn lists_of_processors_are_counted() {
    assert_eq!(
        ["0-3,8", "0", "0-0", "5-2", "", "x", "0-18446744073709551615"].map(count_in_list),
        [Some(5), Some(1), Some(1), None, None, None, None]
    );
}
