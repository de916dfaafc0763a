//! Hosts examined for jobs between buffers in host memory.

use super::*;
use crate::host::kernel::KernelMessage;

/// Returns a host with known memory, limits and `/dev/shm`.
fn memory_host() -> Facts {
    let mut facts = Facts::default();
    facts.system.name = "a".to_owned();
    facts.system.available = Some(20 << 30);
    facts.system.limits.known = true;
    (facts.system.shm.size, facts.system.shm.free) = (Some(8 << 30), Some(4 << 30));
    facts
}

#[test]
fn a_host_without_gpus_is_healthy_for_host_memory_alone() {
    let mut lost = memory_host();
    lost.gpus.problem = Some(Problem::NoLibrary("NVML is not installed".to_owned()));
    lost.gpus.lost.push(LostGpu { index: 0, error: "GPU is lost".to_owned() });
    for facts in [memory_host(), lost] {
        assert_ne!(examined(std::slice::from_ref(&facts)).health(), Health::Healthy);
        let examination = examine_for_host_memory(std::slice::from_ref(&facts), &Rules::default());
        assert_eq!(examination.health(), Health::Healthy, "{:?}", examination.findings);
        assert_eq!(examination.proof, ["host memory: 20 GiB available, 4 GiB free in /dev/shm"]);
        let about_gpus = |text: &String| text.contains("GPU");
        assert!(!examination.unseen.iter().any(about_gpus), "{:?}", examination.unseen);
        assert_eq!(examination.not_applicable.iter().filter(|text| about_gpus(text)).count(), 1);
    }
}

/// Returns a message of the kernel, with its rule.
fn kernel_message(rule: Option<&str>, text: &str) -> KernelMessage {
    KernelMessage {
        rule: rule.map(str::to_owned),
        text: text.to_owned(),
        count: 1,
        ..KernelMessage::default()
    }
}

#[test]
fn faults_of_gpus_and_nccl_do_not_matter_to_host_memory() {
    let mut facts = memory_host();
    let driver = Library {
        kind: LibraryKind::Driver,
        name: "libcuda.so.1".to_owned(),
        file: "/opt/libcuda.so.570.1".to_owned(),
        ..library("570.1.0", "aa")
    };
    facts.system.driver.version = Some("580.1".to_owned());
    facts.libraries = vec![driver, library("2.28.9", "aa"), library("2.30.7", "bb")];
    facts.messages.place = Some("/dev/kmsg".to_owned());
    facts.messages.kinds = vec![
        kernel_message(
            Some("xid-off-the-bus"),
            "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        ),
        kernel_message(None, "NVRM: Xid (PCI:0000:3b:00): 99999, news"),
        kernel_message(None, "nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 99999, news"),
        kernel_message(Some("nvidia-version-mismatch"), "NVRM: API mismatch: the client has the version 580"),
    ];
    let examined = |facts: &Facts| examine_for_host_memory(std::slice::from_ref(facts), &Rules::built_in());
    let found = examined(&facts);
    assert_eq!((rules(&found), found.health()), (Vec::new(), Health::Healthy), "{:?}", found.findings);
    // Messages about memory, the network or libfabric still matter.
    let text = "Memory failure: 0x1234: recovery action for dirty page: Failed";
    facts.messages.kinds.push(kernel_message(Some("host-memory-uncorrected"), text));
    let libfabric = |build: &str| Library {
        kind: LibraryKind::Libfabric,
        name: "libfabric.so.1".to_owned(),
        ..library("2.1.0", build)
    };
    facts.libraries.extend([libfabric("aa"), libfabric("bb")]);
    let found = examined(&facts);
    let names: Vec<&str> = rules(&found).into_iter().map(|(rule, _)| rule).collect();
    assert_eq!(names, ["host-memory-uncorrected", "two-builds-of-one-version"]);
    assert_eq!(found.health(), Health::Degraded);
}

#[test]
fn host_memory_that_is_not_known_is_not_healthy() {
    let changes: [fn(&mut Facts); 3] = [
        |facts| facts.system.available = None,
        |facts| facts.system.limits.known = false,
        |facts| facts.system.shm.free = None,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut facts = memory_host();
        change(&mut facts);
        let alone = examine_for_host_memory(std::slice::from_ref(&facts), &Rules::default());
        assert_eq!(alone.health(), Health::CannotTell, "{index}: {alone:?}");
        facts.system.name = "b".to_owned();
        let both = examine_for_host_memory(&[memory_host(), facts], &Rules::default());
        assert_ne!(both.health(), Health::Healthy, "{index}: {both:?}");
        let unknown = both.findings.iter().find(|finding| finding.rule == "host-memory-unknown").unwrap();
        assert_eq!(unknown.hosts, ["b"], "{index}");
    }
}

#[test]
fn a_known_and_small_shared_memory_is_degraded_and_not_unknown() {
    let examined = |hosts: &[Facts]| examine_for_host_memory(hosts, &Rules::default());
    let mut facts = memory_host();
    for (free, is_small) in [(0, true), (1 << 20, true), ((32 << 20) - 1, true), (32 << 20, false)] {
        facts.system.shm.free = Some(free);
        let found = examined(std::slice::from_ref(&facts));
        let (expected, health) = match is_small {
            true => (vec![("host-memory-shm-small", Severity::Degraded)], Health::Degraded),
            false => (Vec::new(), Health::Healthy),
        };
        assert_eq!((rules(&found), found.health()), (expected, health), "{free}: {:?}", found.findings);
        assert!(!found.unseen.iter().any(|text| text.contains("host memory")), "{:?}", found.unseen);
    }
    facts.system.shm.free = Some(1 << 20);
    let found = examined(std::slice::from_ref(&facts));
    let says = "/dev/shm has 1 MiB free of 8 GiB; ranks of one host need 32 MiB";
    assert_eq!(found.findings[0].diagnosis, says);
    // One of two hosts: it is named, and not called unknown.
    facts.system.name = "b".to_owned();
    let both = examined(&[memory_host(), facts]);
    assert_eq!(rules(&both), [("host-memory-shm-small", Severity::Degraded)]);
    assert_eq!((both.health(), &both.findings[0].hosts[..]), (Health::Degraded, &["b".to_owned()][..]));
}
