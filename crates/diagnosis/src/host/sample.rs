//! Hosts for tests, as folders below a root.

#![allow(clippy::unwrap_used, clippy::new_without_default, missing_docs, reason = "for tests")]

use std::fs;
use std::os::unix::fs::symlink;

use super::Facts;
use super::gpu::{self, Ecc, Fabric, Gpu, Gpus, Pcie, Rows};
use super::rdma::Host;

/// A machine in a folder.
pub struct Machine(tempfile::TempDir);

impl Machine {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn with_file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Adds a device with one port, as the kernel shows it.
    pub fn with_device(self, name: &str, driver: &str, state: &str, layer: &str) -> Self {
        let folder = format!("sys/class/infiniband/{name}");
        self.with_file(&format!("{folder}/ports/1/state"), state)
            .with_file(&format!("{folder}/ports/1/rate"), "100 Gb/sec (4X EDR)\n")
            .with_file(&format!("{folder}/ports/1/link_layer"), layer)
            .with_link(
                &format!("{folder}/device/driver"),
                &format!("../../../../../bus/pci/drivers/{driver}"),
            )
    }

    /// Sets the limit of locked memory, as `/proc` shows it.
    pub fn with_memlock(self, soft: &str) -> Self {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max file size             unlimited            unlimited            bytes     \n\
             Max locked memory         {soft:<20} unlimited            bytes     \n"
        );
        self.with_file("proc/self/limits", &text)
    }

    /// Adds a device on the PCI bus, with its driver.
    pub fn with_pci_device(self, place: &str, device: &str, driver: Option<&str>) -> Self {
        let folder = format!("sys/bus/pci/devices/{place}");
        let machine = self
            .with_file(&format!("{folder}/vendor"), "0x1d0f\n")
            .with_file(&format!("{folder}/device"), device);
        match driver {
            None => machine,
            Some(driver) => {
                machine.with_link(&format!("{folder}/driver"), &format!("../../drivers/{driver}"))
            }
        }
    }

    pub fn with_link(self, path: &str, target: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// Adds a network device of ConnectX with one Ethernet port, its PCI function and interface.
    pub fn with_roce(
        self,
        name: &str,
        place: &str,
        interface: &str,
        mtu: u32,
        address: Option<&str>,
    ) -> Self {
        let folder = format!("sys/bus/pci/devices/{place}");
        let port = format!("sys/class/infiniband/{name}/ports/1");
        let state = if address.is_some() { "4: ACTIVE\n" } else { "1: DOWN\n" };
        let physical = if address.is_some() { "5: LinkUp\n" } else { "3: Disabled\n" };
        let machine = self
            .with_file(&format!("{folder}/vendor"), "0x15b3\n")
            .with_file(&format!("{folder}/class"), "0x020000\n")
            .with_file(&format!("{folder}/net/{interface}/mtu"), "unused")
            .with_file(&format!("sys/class/net/{interface}/mtu"), &format!("{mtu}\n"))
            .with_link(&format!("{folder}/driver"), "../../drivers/mlx5_core")
            .with_link(
                &format!("sys/class/infiniband/{name}/device"),
                &format!("../../../bus/pci/devices/{place}"),
            )
            .with_file(&format!("{port}/state"), state)
            .with_file(&format!("{port}/phys_state"), physical)
            .with_file(&format!("{port}/rate"), "200 Gb/sec (4X HDR)\n")
            .with_file(&format!("{port}/link_layer"), "Ethernet\n")
            .with_file(&format!("{port}/hw_counters/packet_seq_err"), "3\n")
            .with_file(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n")
            .with_file(&format!("{port}/gid_attrs/types/0"), "RoCE v2\n")
            .with_file(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        match address {
            Some(address) if !address.is_empty() => machine
                .with_file(&format!("{port}/gids/2"), &format!("0000:0000:0000:0000:0000:ffff:{address}\n"))
                .with_file(&format!("{port}/gid_attrs/types/2"), "RoCE v2\n"),
            _ => machine,
        }
    }

    pub fn root(&self) -> &std::path::Path {
        self.0.path()
    }

    pub fn read_host(&self) -> Host {
        Host::read_host(self.0.path(), None)
    }
}

/// Creates a host with two EFA devices, one of them down.
pub fn efa_host() -> Machine {
    efa_devices()
        .with_file("dev/infiniband/uverbs0", "")
        .with_file("dev/infiniband/uverbs1", "")
        .with_file("dev/infiniband/issm0", "")
        .with_memlock("unlimited")
}

/// Creates the same host, seen from a container without device files.
pub fn efa_container() -> Machine {
    efa_devices().with_memlock("65536").with_file(".dockerenv", "")
}

/// Creates a host with two EFA devices, and the modules for them.
pub fn efa_devices() -> Machine {
    Machine::new()
        .with_device("rdmap10s6", "efa", "1: DOWN\n", "Unspecified\n")
        .with_device("rdmap0s6", "efa", "4: ACTIVE\n", "Unspecified\n")
        .with_file("sys/module/efa/refcnt", "0")
        .with_file("sys/module/ib_uverbs/refcnt", "0")
        .with_pci_device("0000:00:06.0", "0xefa1\n", Some("efa"))
        .with_pci_device("0000:00:05.0", "0xec20\n", Some("ena"))
}

/// Creates a host with InfiniBand.
pub fn infiniband_host() -> Machine {
    Machine::new()
        .with_device("mlx5_10", "mlx5_core", "4: ACTIVE", "InfiniBand")
        .with_device("mlx5_2", "mlx5_core", "4: ACTIVE", "InfiniBand")
        .with_file("sys/module/mlx5_ib/refcnt", "0")
        .with_file("dev/infiniband/uverbs0", "")
        .with_file("dev/infiniband/rdma_cm", "")
        .with_memlock("65536")
}

/// Returns a healthy host with eight GPUs, as NVML would show it, without files.
pub fn eight_gpus() -> Facts {
    let gpu = |index: u32| Gpu {
        index,
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        pci: Some(format!("0000:{index:02x}:00.0")),
        pcie: Pcie { generation: Some(5), max_generation: Some(5), width: Some(16), max_width: Some(16) },
        ecc: Ecc {
            enabled: Some(true),
            pending: Some(true),
            uncorrected: Some(0),
            lifetime_uncorrected: Some(0),
        },
        rows: Some(Rows::default()),
        clock: Some(1980),
        recovery: Some(0),
        persistence: Some(true),
        links: (0..18)
            .map(|number| gpu::Link {
                number,
                active: true,
                version: Some(7),
                speed: Some(26562),
                ..gpu::Link::default()
            })
            .collect(),
        fabric: Some(Fabric { state: 3, ..Fabric::default() }),
        ..Gpu::default()
    };
    let peer = gpu::Peer {
        read: gpu::Access::Supported,
        write: gpu::Access::Supported,
        nvlink: gpu::Access::Supported,
    };
    let row =
        |from: usize| (0..8).map(|to| if to == from { gpu::Peer::default() } else { peer.clone() }).collect();
    let mut facts = Facts {
        gpus: Gpus {
            driver: Some("580.95.05".to_owned()),
            devices: (0..8).map(gpu).collect(),
            peers: (0..8).map(row).collect(),
            ..Gpus::default()
        },
        ..Facts::default()
    };
    facts.system.name = "vm".to_owned();
    facts.system.shm.size = Some(64 << 30);
    facts.system.shm.free = Some(64 << 30);
    facts.system.limits.known = true;
    facts
}
