use std::fs;
use std::os::unix::fs::symlink;

use super::super::examine_topology;
use super::super::matrix::topology_matrix;
use super::*;
use crate::host::gpu::Problem;

/// Files of a machine in a folder.
struct SysfsMachine(tempfile::TempDir);

impl SysfsMachine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn link(self, path: &str, target: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.0.path().join(target), path).unwrap();
        self
    }

    fn node(self, id: u32, cpus: &str) -> Self {
        self.file(&format!("sys/devices/system/node/node{id}/cpulist"), &format!("{cpus}\n"))
    }

    /// Adds a PCI device below a host bridge. The chain ends with the device.
    fn pci(self, chain: &str, numa: i32, files: &[(&str, &str)]) -> Self {
        let folder = format!("sys/devices/{chain}");
        let bus_id = chain.rsplit('/').next().unwrap().to_owned();
        let mut machine = self
            .file(&format!("{folder}/numa_node"), &format!("{numa}\n"))
            .file(&format!("{folder}/local_cpulist"), if numa == 1 { "16-31\n" } else { "0-15\n" })
            .link(&format!("sys/bus/pci/devices/{bus_id}"), &folder);
        for (name, text) in files {
            machine = machine.file(&format!("{folder}/{name}"), text);
        }
        machine
    }

    fn gpu(self, chain: &str, numa: i32) -> Self {
        let files = [("vendor", "0x10de\n"), ("device", "0x2330\n"), ("class", "0x030200\n")];
        self.pci(chain, numa, &files).speeds(chain, "32.0 GT/s PCIe", "16")
    }

    fn speeds(self, chain: &str, rate: &str, width: &str) -> Self {
        let mut machine = self;
        for (name, text) in [
            ("current_link_speed", rate),
            ("max_link_speed", rate),
            ("current_link_width", width),
            ("max_link_width", width),
        ] {
            machine = machine.file(&format!("sys/devices/{chain}/{name}"), text);
        }
        machine
    }

    fn nic(self, chain: &str, numa: i32, name: &str) -> Self {
        let folder = format!("sys/devices/{chain}");
        self.pci(chain, numa, &[("vendor", "0x15b3\n"), ("class", "0x020700\n")])
            .speeds(chain, "32.0 GT/s PCIe", "16")
            .file(&format!("{folder}/net/ib{name}/mtu"), "4092\n")
            .file(&format!("{folder}/infiniband/{name}/ports/1/state"), "4: ACTIVE\n")
            .file(&format!("{folder}/infiniband/{name}/ports/1/rate"), "400 Gb/sec (4X NDR)\n")
            .file(&format!("{folder}/infiniband/{name}/ports/1/link_layer"), "InfiniBand\n")
            .link(&format!("{folder}/infiniband/{name}/device"), &folder)
            .link(&format!("sys/class/infiniband/{name}"), &format!("{folder}/infiniband/{name}"))
    }

    fn read(&self, driver: &Gpus) -> Topology {
        read_topology(self.0.path(), driver)
    }
}

/// Creates a machine of two sockets. GPU and NIC share a switch. A second GPU is behind its own switch there.
/// Another one is at another host bridge. The last GPU and NIC are on the other socket.
fn two_sockets() -> SysfsMachine {
    let switch = "pci0000:17/0000:17:01.0/0000:18:00.0";
    SysfsMachine::new()
        .node(0, "0-15")
        .node(1, "16-31")
        .gpu(&format!("{switch}/0000:19:00.0/0000:1b:00.0"), 0)
        .nic(&format!("{switch}/0000:19:01.0/0000:1c:00.0"), 0, "mlx5_0")
        .gpu(&format!("{switch}/0000:19:02.0/0000:1d:00.0/0000:1e:00.0/0000:1f:00.0"), 0)
        .nic("pci0000:17/0000:17:02.0/0000:20:00.0", 0, "mlx5_10")
        .gpu("pci0000:3a/0000:3a:01.0/0000:3b:00.0", 0)
        .nic("pci0000:97/0000:97:01.0/0000:98:00.0", 1, "mlx5_2")
        .gpu("pci0000:a7/0000:a7:01.0/0000:9a:00.0", 1)
}

fn driver_gpu(index: u32, bus_id: &str, active: u32, remote: Option<&str>) -> gpu::Gpu {
    let link = |number| gpu::Link {
        number,
        active: number < active,
        remote: remote.map(str::to_owned),
        ..gpu::Link::default()
    };
    gpu::Gpu {
        index,
        pci: Some(bus_id.to_owned()),
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        device: Some(0x2330),
        links: (0..18).map(link).collect(),
        ..gpu::Gpu::default()
    }
}

fn without_nvml() -> Gpus {
    Gpus { problem: Some(Problem::NoLibrary(String::new())), ..Gpus::default() }
}

fn letters(topology: &Topology) -> Vec<String> {
    let row = |row: &Vec<crate::examination::Cell>| {
        row.iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>().join(" ")
    };
    topology_matrix(topology).cells.iter().map(row).collect()
}

#[test]
fn two_sockets_with_switches_have_all_classes_of_paths() {
    let topology = two_sockets().read(&without_nvml());
    let bus_ids: Vec<&str> = topology.gpus.iter().map(|gpu| gpu.bus_id.as_str()).collect();
    // 0000:1b comes before 0000:1f and 0000:3b, and 0000:9a last.
    assert_eq!(bus_ids, ["0000:1b:00.0", "0000:1f:00.0", "0000:3b:00.0", "0000:9a:00.0"]);
    let nics: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(nics, ["mlx5_0", "mlx5_2", "mlx5_10"]);
    assert_eq!(
        letters(&topology),
        [
            "X PXB NODE SYS PIX SYS PHB",
            "PXB X NODE SYS PXB SYS PHB",
            "NODE NODE X SYS NODE SYS NODE",
            "SYS SYS SYS X SYS NODE SYS",
            "PIX PXB NODE SYS X SYS PHB",
            "SYS SYS SYS NODE SYS X SYS",
            "PHB PHB NODE SYS PHB SYS X",
        ]
    );
    assert!(
        topology.unseen[0].contains("NVML (libnvidia-ml.so.1) is not installed"),
        "{:?}",
        topology.unseen
    );
    let nic = &topology.nics[0];
    assert_eq!(
        (nic.gbps, nic.state.as_deref(), nic.interface.as_deref()),
        (Some(400.0), Some("ACTIVE"), Some("ibmlx5_0"))
    );
    assert_eq!(topology.gpus[0].pcie.short_text(), "Gen5 x16");
    assert_eq!(topology.gpus[3].place.cpus.as_deref(), Some("16-31"));
    assert_eq!(topology.gpus[0].place.pcie_switches(), ["0000:18:00.0"]);
    assert_eq!(topology.gpus[1].place.pcie_switches(), ["0000:18:00.0", "0000:1d:00.0"]);
}

#[test]
fn the_driver_tells_numbers_links_and_hidden_gpus() {
    let devices = vec![
        driver_gpu(0, "0000:9a:00.0", 18, None),
        driver_gpu(1, "0000:1b:00.0", 17, Some("0000:05:00.0")),
    ];
    let machine = two_sockets().pci(
        "pci0000:00/0000:00:01.0/0000:05:00.0",
        0,
        &[("vendor", "0x10de"), ("class", "0x068000")],
    );
    let lost = vec![gpu::LostGpu { index: 2, error: "lost".to_owned() }];
    let topology = machine.read(&Gpus { devices, lost, ..Gpus::default() });
    assert_eq!(topology.gpus[0].label, "GPU0");
    assert_eq!(topology.gpus[0].place.numa, Some(1));
    assert_eq!(topology_matrix(&topology).cells[0][1].text, "NV17");
    assert_eq!(topology.gpus[1].inactive_nvlinks, 1);
    assert!(topology.unseen.contains(&"the driver does not answer about GPU2: lost".to_owned()));
    let hidden = "1 of 4 NVIDIA GPUs on the PCI bus are not given to this process";
    assert!(topology.unseen.iter().any(|unseen| unseen.starts_with(hidden)), "{:?}", topology.unseen);
    let examination = examine_topology(Some(&topology), None);
    let rules: Vec<&str> = examination.findings.iter().map(|finding| finding.rule.as_str()).collect();
    assert!(rules.contains(&"nvlink-count-differs"), "{rules:?}");
}

/// Two of them would be taken for one GPU.
#[test]
fn gpus_without_a_bus_id_are_left_out_and_told() {
    let without = |index| gpu::Gpu { pci: None, ..driver_gpu(index, "", 0, None) };
    let devices = vec![driver_gpu(0, "0000:9a:00.0", 0, None), without(1), without(2)];
    let topology = two_sockets().read(&Gpus { devices, ..Gpus::default() });
    let labels: Vec<&str> = topology.gpus.iter().map(|gpu| gpu.label.as_str()).collect();
    assert_eq!(labels, ["GPU0"]);
    for label in ["GPU1", "GPU2"] {
        let told = format!("{label} is skipped: the driver does not report its place on the PCI bus");
        assert!(topology.unseen.contains(&told), "{:?}", topology.unseen);
    }
}

#[test]
fn direct_links_count_between_their_gpus_only() {
    let devices = vec![
        driver_gpu(0, "0000:1b:00.0", 4, Some("0000:1f:00.0")),
        driver_gpu(1, "0000:1f:00.0", 4, Some("0000:1b:00.0")),
        driver_gpu(2, "0000:3b:00.0", 0, None),
    ];
    let topology = two_sockets().read(&Gpus { devices, ..Gpus::default() });
    assert_eq!(letters(&topology)[0], "X NV4 NODE PIX SYS PHB");
    assert_eq!(letters(&topology)[2], "NODE NODE X NODE SYS NODE");
}

/// A virtual machine with one GPU and one interface of the hypervisor, as it was seen.
#[test]
fn a_virtual_machine_without_switches_says_so() {
    let topology = SysfsMachine::new()
        .node(0, "0-15")
        .file(
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu hypervisor avx\n",
        )
        .file(
            "proc/driver/nvidia/gpus/0000:00:06.0/information",
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 41\n",
        )
        .gpu("pci0000:00/0000:00:06.0", -1)
        .pci("pci0000:00/0000:00:03.0", -1, &[("vendor", "0x1af4"), ("class", "0x020000")])
        .file("sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/speed", "-1\n")
        .file("sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/operstate", "up\n")
        .link(
            "sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/device",
            "sys/devices/pci0000:00/0000:00:03.0/virtio2",
        )
        .link("sys/class/net/eth0", "sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0")
        .file("sys/devices/virtual/net/lo/operstate", "unknown\n")
        .link("sys/class/net/lo", "sys/devices/virtual/net/lo")
        .read(&without_nvml());
    assert_eq!(letters(&topology), ["X PHB", "PHB X"]);
    assert_eq!(topology.gpus[0].name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    let nic = &topology.nics[0];
    assert_eq!((nic.name.as_str(), nic.bus_id.as_deref(), nic.rdma), ("eth0", Some("0000:00:03.0"), false));
    assert_eq!((nic.gbps, nic.state.as_deref()), (None, Some("UP")));
    assert_eq!(topology.nics.len(), 1);
    assert!(topology.is_virtual);
    let flat =
        "PCIe switches cannot be seen: the virtual machine shows all devices directly at the host bridge";
    assert!(topology.unseen.iter().any(|unseen| unseen.starts_with(flat)), "{:?}", topology.unseen);
    let examination = examine_topology(Some(&topology), None);
    assert!(examination.findings.is_empty(), "{:?}", examination.findings);
}

#[test]
fn links_are_limited_by_the_port_above() {
    let root = "pci0000:17/0000:17:01.0";
    let machine = SysfsMachine::new()
        .node(0, "0-15")
        .nic(&format!("{root}/0000:18:00.0"), 0, "mlx5_0")
        // The card can do x16, the slot x4, as in a DGX Spark.
        .file(&format!("sys/devices/{root}/max_link_width"), "4\n")
        .file(&format!("sys/devices/{root}/0000:18:00.0/current_link_width"), "4\n")
        .nic("pci0000:20/0000:20:01.0/0000:21:00.0", 0, "mlx5_1")
        .file("sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0/current_link_width", "8\n")
        .nic("pci0000:30/0000:30:01.0/0000:31:00.0", 0, "mlx5_2")
        .speeds("pci0000:30/0000:30:01.0/0000:31:00.0", "Unknown", "0");
    let topology = machine.read(&Gpus::default());
    let links: Vec<(Option<u32>, Option<u32>)> =
        topology.nics.iter().map(|nic| (nic.pcie.width, nic.pcie.max_width)).collect();
    assert_eq!(links, [(Some(4), Some(4)), (Some(8), Some(16)), (None, None)]);
    assert_eq!(topology.unseen, ["the PCIe link of 1 NIC cannot be seen (the first is mlx5_2)"]);
    let findings = examine_topology(Some(&topology), None).findings;
    let widths: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.rule == "pcie-width")
        .map(|finding| finding.diagnosis.as_str())
        .collect();
    assert_eq!(widths, ["NIC1 (mlx5_1) is on fewer PCIe lanes than card and slot support."]);
}

#[test]
fn an_empty_machine_has_nothing() {
    let topology = SysfsMachine::new().read(&without_nvml());
    assert!(topology.gpus.is_empty() && topology.nics.is_empty() && topology.numa_nodes.is_empty());
    assert_eq!(topology.unseen, ["PCIe cannot be seen: /sys/bus/pci/devices is empty"]);
}

#[test]
fn names_of_the_pci_tree_are_told_apart() {
    for (name, device, bridge) in [
        ("0000:1b:00.0", true, false),
        ("10000:e1:00.0", true, false),
        ("pci0000:17", false, true),
        ("pci000f:00", false, true),
        ("0000:1b:00", false, false),
        ("virtio2", false, false),
        ("pci", false, false),
        ("0000:1b:00.0.1", false, false),
        ("", false, false),
    ] {
        assert_eq!((pci::is_bus_id(name), is_host_bridge(name)), (device, bridge), "{name}");
    }
}

#[test]
fn links_that_the_driver_refuses_to_tell_are_not_taken_for_none() {
    let refused = Some("a timeout".to_owned());
    let devices = vec![
        gpu::Gpu { links_refused: refused, ..driver_gpu(0, "0000:1b:00.0", 2, None) },
        driver_gpu(1, "0000:1f:00.0", 0, None),
    ];
    let topology = two_sockets().read(&Gpus { devices, ..Gpus::default() });
    assert_eq!(topology.gpus.iter().map(TopologyGpu::nvlink_count).collect::<Vec<_>>(), [None, Some(0)]);
}
