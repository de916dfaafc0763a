//! Whole hosts, made up below roots or as facts.

mod memory;

use std::path::Path;

use super::counters::Counter;
use super::gpu::{Fabric, Gpu, LostGpu, Problem, Rows};
use super::libraries::{Library, LibraryKind};
use super::pci::OnPci;
use super::sample::{Machine, efa_container, efa_host, eight_gpus, infiniband_host};
use super::*;
use crate::examination::{Body, Examination, Health};
use crate::finding::{Action, Severity};
use crate::knowledge::rules::Rules;

fn facts(root: &Path) -> Facts {
    Facts::read(&Source::files_below(root), &Rules::default())
}

fn examined(hosts: &[Facts]) -> Examination {
    examine_hosts(hosts, Expected::default(), &Rules::default())
}

fn rules(examination: &Examination) -> Vec<(&str, Severity)> {
    examination.findings.iter().map(|finding| (finding.rule.as_str(), finding.severity)).collect()
}

#[test]
fn an_empty_machine_cannot_be_told_and_says_why() {
    let machine = Machine::new();
    let examination = examined(&[facts(machine.root())]);
    assert_eq!(examination.health(), Health::CannotTell, "{:?}", examination.findings);
    assert!(examination.proof.is_empty());
    for part in [
        "GPUs: there is none",
        "RDMA devices: there is none",
        "messages of the kernel",
        "limits of this process",
    ] {
        assert!(
            examination.unseen.iter().any(|text| text.contains(part)),
            "{part}: {:?}",
            examination.unseen
        );
    }
    let expected = Expected { gpus: Some(8), nics: Some(1) };
    let examination = examine_hosts(&[facts(machine.root())], expected, &Rules::default());
    assert_eq!(examination.health(), Health::Broken);
    assert_eq!(examination.findings[0].diagnosis, "0 GPUs of 8 expected are usable");
    assert_eq!(examination.findings[1].diagnosis, "0 RDMA devices of 1 expected are up");
}

#[test]
fn eight_gpus_without_faults_are_healthy_with_proof() {
    let examination = examined(&[eight_gpus()]);
    assert_eq!(examination.health(), Health::Healthy, "{:?}", examination.findings);
    assert_eq!(
        examination.proof,
        ["8 NVIDIA H100 80GB HBM3: no uncorrected ECC errors, no throttling, no recovery asked for, \
          peer-to-peer access between all 56 pairs, 144 of 144 NVLinks up"]
    );
}

#[test]
fn links_that_nvml_refuses_to_tell_are_unseen() {
    let mut facts = eight_gpus();
    facts.gpus.devices[3].links_refused = Some("a timeout".to_owned());
    let unseen = examined(&[facts]).unseen;
    assert!(unseen.contains(&"NVLinks of GPU 3 (18 were readable): a timeout".to_owned()), "{unseen:?}");
}

/// Each fault alone, in the facts of a healthy host.
#[test]
fn faults_of_gpus_are_found() {
    type GpuFault = (&'static str, Severity, Action, fn(&mut Facts));
    let faults: [GpuFault; 16] = [
        ("row-remap-failed", Severity::Broken, Action::Isolate, |facts| {
            gpu(facts).rows = Some(Rows { failed: true, ..Rows::default() })
        }),
        ("row-remap-pending", Severity::Degraded, Action::Reset, |facts| {
            gpu(facts).rows = Some(Rows { pending: true, ..Rows::default() })
        }),
        ("ecc-uncorrected", Severity::Degraded, Action::Reset, |facts| gpu(facts).ecc.uncorrected = Some(2)),
        ("ecc-off", Severity::Degraded, Action::None, |facts| {
            (gpu(facts).ecc.enabled, gpu(facts).ecc.pending) = (Some(false), Some(false));
        }),
        ("gpu-throttled", Severity::Degraded, Action::Watch, |facts| {
            gpu(facts).slowed = vec!["power brake".to_owned()]
        }),
        ("gpu-recovery-action", Severity::Broken, Action::Reboot, |facts| gpu(facts).recovery = Some(2)),
        ("gpu-recovery-action", Severity::Degraded, Action::Reset, |facts| gpu(facts).recovery = Some(4)),
        ("gpu-pcie-narrow", Severity::Degraded, Action::Reboot, |facts| gpu(facts).pcie.width = Some(8)),
        ("nvlink-down", Severity::Degraded, Action::Reboot, |facts| gpu(facts).links[7].active = false),
        ("nvlink-slow", Severity::Degraded, Action::Reboot, |facts| gpu(facts).links[7].speed = Some(13281)),
        ("nvlink-errors-grow", Severity::Degraded, Action::Watch, |facts| {
            let counter = Counter::new("GPU 3 NVLink 7", "replays", 1);
            facts.gpus.counters.push(Counter { growth: Some(5), ..counter });
        }),
        ("fabric-not-ready", Severity::Broken, Action::None, |facts| {
            gpu(facts).fabric = Some(Fabric { state: 2, ..Fabric::default() })
        }),
        ("fabric-unhealthy", Severity::Degraded, Action::Isolate, |facts| {
            gpu(facts).fabric = Some(Fabric { state: 3, health: Some(0b10_01), ..Fabric::default() });
        }),
        ("mig-on", Severity::Degraded, Action::None, |facts| gpu(facts).mig = Some(true)),
        ("compute-prohibited", Severity::Broken, Action::None, |facts| {
            gpu(facts).compute_mode = Some("prohibited".to_owned())
        }),
        ("gpu-lost", Severity::Broken, Action::Reboot, |facts| {
            facts.gpus.lost.push(LostGpu { index: 8, error: "GPU is lost".to_owned() });
        }),
    ];
    for (rule, severity, action, change) in faults {
        let mut facts = eight_gpus();
        change(&mut facts);
        let examination = examined(&[facts]);
        assert_eq!(rules(&examination), [(rule, severity)], "{:?}", examination.findings);
        assert_eq!(examination.findings[0].action, action, "{rule}");
        assert!(examination.findings[0].remedy.is_some(), "{rule}");
    }
}

fn gpu(facts: &mut Facts) -> &mut Gpu {
    &mut facts.gpus.devices[3]
}

/// Links down on all GPUs may be by design, and are only advice. An idle GPU slows its PCIe connection.
#[test]
fn properties_of_machines_are_no_faults() {
    let mut facts = eight_gpus();
    for gpu in &mut facts.gpus.devices {
        gpu.links[17].active = false;
        gpu.pcie.generation = Some(1);
        gpu.performance_state = Some(8);
        gpu.slowed = vec!["idle".to_owned(), "application clocks".to_owned(), "power cap".to_owned()];
        gpu.ecc.lifetime_uncorrected = Some(9);
    }
    let examination = examined(std::slice::from_ref(&facts));
    assert_eq!(rules(&examination), [("nvlink-down-alike", Severity::Advice)]);
    assert_eq!(examination.findings[0].diagnosis, "136 of 144 NVLinks are up, the same number on all GPUs");
    // Without a fabric, the links of a bridge are the plugged ones.
    facts.gpus.devices.iter_mut().for_each(|gpu| gpu.fabric = None);
    assert_eq!(rules(&examined(&[facts])), []);
}

#[test]
fn a_gpu_that_the_bus_has_and_nvml_has_not_is_missing_but_not_in_a_container() {
    let mut facts = eight_gpus();
    facts.gpus.on_pci = (0..9)
        .map(|index| OnPci { bus_id: format!("0000:{index:02x}:00.0"), driver: Some("nvidia".to_owned()) })
        .collect();
    assert_eq!(rules(&examined(std::slice::from_ref(&facts))), [("gpu-missing", Severity::Broken)]);
    facts.system.container = Some("Docker".to_owned());
    let examination = examined(&[facts]);
    assert_eq!(rules(&examination), [("container-has-fewer-gpus", Severity::Advice)]);
}

#[test]
fn network_devices_prove_nothing_about_gpus_that_cannot_be_seen() {
    let machine = infiniband_host()
        .with_file("sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n")
        .with_file("sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n");
    let mut facts = facts(machine.root());
    facts.gpus.problem = Some(Problem::NoLibrary("not found".to_owned()));
    facts.system.limits.locked_memory = None;
    let examination = examined(&[facts]);
    assert_eq!(examination.proof, [] as [&str; 0]);
    assert_ne!(examination.health(), Health::Healthy);
    assert!(examination.unseen.iter().any(|text| text.contains("NVML")), "{:?}", examination.unseen);
}

/// A card without a cable is not a fault of a single host, and is useless for jobs of several hosts.
#[test]
fn a_card_without_a_link_is_a_fault_only_where_a_network_is_needed() {
    let machine =
        Machine::new().with_roce("mlx5_0", "0000:17:00.0", "eth0", 1500, None).with_memlock("65536");
    let host = |name: &str| {
        let mut facts = eight_gpus();
        facts.system.name = name.to_owned();
        facts.nics = nic::read_nics(machine.root());
        facts
    };
    let severity = |hosts: &[Facts], nics| {
        let examination = examine_hosts(hosts, Expected { gpus: None, nics }, &Rules::default());
        examination.findings.iter().find(|finding| finding.rule == "no-nic-up").map(|found| found.severity)
    };
    let single = examined(&[host("vm")]);
    assert_eq!(rules(&single), [("no-nic-up", Severity::Advice)]);
    assert_eq!(single.health(), Health::Healthy);
    assert!(single.unseen.contains(&"the network: no RDMA device is up".to_owned()), "{:?}", single.unseen);
    assert_eq!(severity(&[host("vm")], Some(1)), Some(Severity::Broken));
    assert_eq!(severity(&[host("node1"), host("node2")], None), Some(Severity::Broken));
    let mut efa = host("vm");
    efa.nics[0].driver = Some("efa".to_owned());
    assert_eq!(severity(&[efa], None), Some(Severity::Broken));
}

#[test]
fn an_efa_host_has_as_many_devices_as_its_instance_type() {
    let dmi = |machine: Machine| {
        machine
            .with_file("sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2\n")
            .with_file("sys/devices/virtual/dmi/id/product_name", "p5.48xlarge\n")
            .with_file("dev/shm/other", "")
    };
    let examination = examined(&[facts(dmi(efa_host()).root())]);
    let few =
        examination.findings.iter().find(|finding| finding.rule == "efa-fewer-than-instance-type").unwrap();
    assert_eq!(few.diagnosis, "2 EFA devices are visible, but p5.48xlarge has 32");
    let down = examination.findings.iter().find(|finding| finding.rule == "port-down").unwrap();
    assert_eq!(
        (down.severity, down.diagnosis.as_str()),
        (Severity::Degraded, "rdmap10s6 port 1 is DOWN; 1 of 2 EFA devices like it is up")
    );
    let mut one = facts(dmi(efa_host()).root());
    one.nics.retain(nic::Nic::is_up);
    let examination = examined(&[one]);
    let few =
        examination.findings.iter().find(|finding| finding.rule == "efa-fewer-than-instance-type").unwrap();
    assert_eq!(few.diagnosis, "1 EFA device is visible, but p5.48xlarge has 32");
    let container = examined(&[facts(dmi(efa_container()).root())]);
    assert_eq!(container.health(), Health::Broken);
    let broken: Vec<&str> = container
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Broken)
        .map(|finding| finding.rule.as_str())
        .collect();
    assert_eq!(broken, ["no-uverbs", "memlock"]);
    let remedy = container.findings[0].remedy.as_deref().unwrap();
    assert!(remedy.contains("--device=/dev/infiniband"), "{remedy}");
}

#[test]
fn a_spark_needs_both_halves_of_its_port_with_address_and_mtu() {
    let spark = |second: Option<&str>, mtu| {
        Machine::new()
            .with_file("sys/devices/virtual/dmi/id/product_name", "NVIDIA_DGX_Spark\n")
            .with_file("proc/meminfo", "MemTotal: 125000000 kB\nMemAvailable: 104857600 kB\n")
            .with_file("dev/infiniband/uverbs0", "")
            .with_file("dev/shm/other", "")
            .with_roce("rocep1s0f1", "0000:01:00.1", "enp1s0f1np1", mtu, Some("c000:0201"))
            .with_roce("roceP2p1s0f1", "0002:01:00.1", "enP2p1s0f1np1", mtu, second)
            .with_memlock("unlimited")
    };
    let good = examined(&[facts(spark(Some("c000:0202"), 9000).root())]);
    assert_eq!(rules(&good), [("spark-shared-memory", Severity::Advice)]);
    assert!(
        good.findings[0].diagnosis.contains("100 GiB") && good.findings[0].diagnosis.contains("up to 25 GiB")
    );
    let half = examined(&[facts(spark(None, 1500).root())]);
    let names: Vec<&str> = rules(&half)
        .into_iter()
        .filter(|(_, severity)| *severity == Severity::Degraded)
        .map(|(rule, _)| rule)
        .collect();
    assert_eq!(names, ["spark-half-port", "spark-small-mtu"]);
    let mut left_out = facts(spark(Some("c000:0202"), 9000).root());
    left_out.environment = vec![("NCCL_IB_HCA".to_owned(), "rocep1s0f1".to_owned())];
    let examination = examined(&[left_out]);
    assert_eq!(rules(&examination)[0], ("spark-hca-left-out", Severity::Degraded));
    let without = examined(&[facts(spark(Some(""), 9000).root())]);
    assert_eq!(rules(&without)[0], ("spark-without-address", Severity::Degraded));
}

#[test]
fn the_odd_host_is_named_with_the_value_of_the_others() {
    let host = |name: &str| {
        let mut facts = eight_gpus();
        facts.system.name = name.to_owned();
        facts.libraries.push(library("2.28.9", "aa"));
        facts
    };
    let mut hosts = ["node1", "node2", "node3"].map(host);
    let equal = examined(&hosts);
    assert_eq!(equal.health(), Health::Healthy, "{:?}", equal.findings);
    assert!(
        equal.proof.iter().any(|text| text.starts_with("3 hosts are equal in GPUs, NVIDIA driver")),
        "{:?}",
        equal.proof
    );
    hosts[1].gpus.driver = Some("570.1".to_owned());
    hosts[2].libraries[0].build_id = Some("bb".to_owned());
    let examination = examined(&hosts);
    let found: Vec<(&str, &[String])> = examination
        .findings
        .iter()
        .filter(|finding| finding.rule == "hosts-differ")
        .map(|finding| (finding.diagnosis.as_str(), finding.hosts.as_slice()))
        .collect();
    assert_eq!(
        found,
        [
            ("NVIDIA driver: 2 of 3 hosts have 580.95.05; not node2 (570.1)", &["node2".to_owned()][..]),
            (
                "NCCL: 2 of 3 hosts have 2.28.9+cuda13.0, build aa; not node3 (2.28.9+cuda13.0, build bb)",
                &["node3".to_owned()][..]
            ),
        ]
    );
    let two = examined(&hosts[..2]);
    assert_eq!(
        two.findings[0].diagnosis,
        "NVIDIA driver: no value is shared by most hosts: node1 (580.95.05) and node2 (570.1)"
    );
}

/// Equal hosts may be equally bad.
#[test]
fn a_comparison_alone_proves_nothing() {
    let host = |name: &str| {
        let mut facts = Facts::default();
        facts.system.name = name.to_owned();
        facts.system.shm.size = Some(64 << 30);
        facts.system.shm.free = Some(64 << 30);
        facts.system.limits.known = true;
        facts.system.driver.version = Some("580.95.05".to_owned());
        facts.libraries.push(library("2.28.9", "aa"));
        facts
    };
    let examination = examined(&[host("node1"), host("node2")]);
    assert_eq!(examination.health(), Health::CannotTell, "{:?}", examination.findings);
    assert_eq!(examination.proof, [] as [&str; 0]);
    let unseen = "node2: health of this host: no GPU and no active RDMA device is seen";
    assert!(examination.unseen.iter().any(|text| text == unseen), "{:?}", examination.unseen);
    let Body::Table { rows, .. } = &examination.sections[0].body else { panic!("no table") };
    let value = |name: &str| rows.iter().find(|row| row[0] == name).map(|row| row[2].as_str());
    assert_eq!([value("NVLinks up"), value("ECC")], [Some("-"); 2]);
    let mut good = eight_gpus();
    good.system.name = "node1".to_owned();
    let examination = examined(&[good, host("node2")]);
    let blind = examination.findings.iter().find(|finding| finding.rule == "host-without-devices").unwrap();
    assert_eq!((blind.severity, &blind.hosts[..]), (Severity::Unknown, &["node2".to_owned()][..]));
    assert!(!examination.proof.iter().any(|text| text.contains("are equal")), "{:?}", examination.proof);
}

/// A finding of several hosts is one finding.
#[test]
fn equal_findings_of_hosts_are_one() {
    let mut hosts = [eight_gpus(), eight_gpus()];
    for (host, name) in hosts.iter_mut().zip(["node1", "node2"]) {
        host.system.name = name.to_owned();
        host.system.shm.free = Some(40 << 20);
    }
    let examination = examined(&hosts);
    assert_eq!(rules(&examination), [("shm-small", Severity::Degraded)]);
    assert_eq!(examination.findings[0].hosts, ["node1", "node2"]);
}

fn library(version: &str, build: &str) -> Library {
    Library {
        kind: LibraryKind::Nccl,
        name: "libnccl.so.2".to_owned(),
        path: format!("/opt/{build}/libnccl.so.2"),
        file: format!("/opt/{build}/libnccl.so.{version}"),
        found: "LD_LIBRARY_PATH".to_owned(),
        first: build == "aa",
        version: Some(version.to_owned()),
        suffix: Some("+cuda13.0".to_owned()),
        build_id: Some(build.to_owned()),
        size: 1 << 28,
        interfaces: Vec::new(),
        problem: None,
    }
}

#[test]
fn two_builds_of_one_version_are_told_apart() {
    let mut facts = eight_gpus();
    facts.libraries = vec![library("2.28.9", "aa"), library("2.28.9", "bb"), library("2.30.7", "cc")];
    let examination = examined(&[facts]);
    assert_eq!(
        rules(&examination),
        [
            ("two-builds-of-one-version", Severity::Advice),
            ("several-nccl-versions", Severity::Advice),
            ("known-faults", Severity::Advice),
        ]
    );
    assert_eq!(examination.findings[0].evidence[1].text, "2.28.9+cuda13.0, build bb, 256 MiB");
    assert_eq!(examination.health(), Health::Healthy);
}

#[test]
fn known_faults_and_conflicts_of_the_loaded_libraries_are_told() {
    let other = |kind, name: &str, version: &str, first| Library {
        kind,
        name: name.to_owned(),
        path: format!("/opt/{name}"),
        suffix: None,
        first,
        ..library(version, "dd")
    };
    let mut facts = eight_gpus();
    facts.nics = nic::read_nics(efa_host().root());
    facts.nics.retain(nic::Nic::is_up);
    // The loader takes the second.
    facts.libraries = vec![
        library("2.30.7", "cc"),
        library("2.28.9", "aa"),
        other(LibraryKind::NetPlugin, "libnccl-net.so", "1.13.0", true),
        other(LibraryKind::Libfabric, "libfabric.so.1", "1.20.0", true),
    ];
    let conflict = |facts: &Facts| {
        let examination = examined(std::slice::from_ref(facts));
        let found = examination
            .findings
            .iter()
            .find(|finding| finding.rule == "plugin-needs-libfabric-1-22")
            .unwrap();
        (found.severity, found.evidence.iter().map(|seen| seen.place.clone()).collect::<Vec<_>>())
    };
    let paths = ["/opt/libnccl-net.so", "/opt/libfabric.so.1"].map(str::to_owned).to_vec();
    assert_eq!(conflict(&facts), (Severity::Broken, paths));
    let examination = examined(std::slice::from_ref(&facts));
    let known: Vec<_> =
        examination.findings.iter().filter(|finding| finding.rule == "known-faults").collect();
    assert_eq!((known.len(), known[0].severity), (1, Severity::Advice));
    assert!(known[0].diagnosis.contains("NCCL 2.28.9"), "{}", known[0].diagnosis);
    assert_eq!(known[0].evidence[0].place, "/opt/aa/libnccl.so.2");
    let section = examination.sections.iter().find(|section| section.title == "Known faults").unwrap();
    let Body::Table { rows, .. } = &section.body else { panic!("no table") };
    assert!(rows.iter().any(|row| row[1].contains("symmetric windows")), "{rows:?}");
    assert!(rows.iter().all(|row| !row[0].contains("2.30.7")), "{rows:?}");
    // Hosts with the same libraries share the table.
    let mut second = facts.clone();
    second.system.name = "node2".to_owned();
    let several = examined(&[facts.clone(), second]);
    assert_eq!(several.sections.iter().filter(|section| section.title.contains("Known faults")).count(), 1);
    facts.libraries[3].first = false;
    assert_eq!(conflict(&facts).0, Severity::Advice);
    facts.libraries[3].first = true;
    facts.nics.clear();
    assert_eq!(conflict(&facts).0, Severity::Advice);
}

#[test]
fn facts_travel_among_hosts_as_json() {
    let machine = efa_host().with_file("dev/kmsg", "3,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 999, pid=1\n");
    let mut facts = facts(machine.root());
    facts.gpus = eight_gpus().gpus;
    facts.gpus.problem = Some(Problem::Stuck("no answer".to_owned()));
    facts.libraries.push(library("2.28.9", "aa"));
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts);
}

/// On any machine, reading neither fails nor proves anything absent.
#[test]
fn this_machine_is_read() {
    let source = Source::this_host(std::time::Duration::ZERO);
    let facts = Facts::read(&source, &Rules::default());
    assert_eq!(facts.system.name, fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim());
    assert!(facts.system.memory.unwrap() >= facts.system.available.unwrap());
    assert!(facts.system.limits.known && facts.system.processors.unwrap() >= 1);
    let examination = examined(&[facts]);
    assert!(!examination.unseen.is_empty() || !examination.proof.is_empty());
}
