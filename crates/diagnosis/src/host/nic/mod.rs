//! RDMA network devices of a host: facts and conclusions.

mod findings;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub(super) use findings::{fixed_gid, judge_nics, nic_sections, prove_nics};

use super::counters::Counter;
use super::files::{driver_of_device, names_in_folder, read_number, read_text};
use super::pci::{self, PcieLink};

/// Largest number of entries read from a port's table of addresses.
const MOST_GIDS: usize = 256;

/// A network device for RDMA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// `mlx5_0`, `rdmap16s27`.
    pub name: String,
    /// Kernel driver.
    pub driver: Option<String>,
    /// Firmware.
    pub firmware: Option<String>,
    /// The manufacturer's name of the board.
    pub board: Option<String>,
    /// Place on the PCI bus.
    pub pci: Option<String>,
    /// NUMA node, or `None` if the firmware names none.
    pub numa: Option<u32>,
    /// PCIe link. The slot may have fewer lanes than the device.
    pub pcie: PcieLink,
    /// Network interfaces of the same function.
    pub interfaces: Vec<Interface>,
    /// Ports.
    pub ports: Vec<Port>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// `eth0`.
    pub name: String,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// `up`, `down`.
    pub state: Option<String>,
    /// Speed in Mbit/s.
    pub speed: Option<u64>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Number, from 1.
    pub number: u32,
    /// `ACTIVE`, `INIT`, `DOWN`.
    pub state: String,
    /// `LinkUp`, `Polling`, `Disabled`.
    pub physical: String,
    /// In the kernel's words: `400 Gb/sec (4X NDR)`.
    pub rate: String,
    /// `InfiniBand`, `Ethernet`, `Unspecified`.
    pub link_layer: String,
    /// Nonzero addresses.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Number in the table.
    pub index: u32,
    /// `fe80:0000:...`.
    pub address: String,
    /// `IB/RoCE v1`, `RoCE v2`.
    pub kind: String,
}

impl Nic {
    /// Returns true for a device of the driver efa, or, without a known driver, of its name.
    pub fn is_efa(&self) -> bool {
        match &self.driver {
            Some(driver) => driver == "efa",
            None => self.name.starts_with("efa_"),
        }
    }

    /// Returns `EFA`, `InfiniBand`, `RoCE`, or `RDMA` for another device.
    pub fn kind(&self) -> &'static str {
        let layer = self.ports.first().map(|port| port.link_layer.as_str());
        match layer {
            _ if self.is_efa() => "EFA",
            Some("InfiniBand") => "InfiniBand",
            Some("Ethernet") => "RoCE",
            _ => "RDMA",
        }
    }

    /// Returns true if a port is active.
    pub fn is_up(&self) -> bool {
        self.ports.iter().any(Port::is_active)
    }

    /// Returns the driver and ports, equal for devices of one kind: `driver efa, ACTIVE, 100 Gb/sec (4X
    /// EDR)`.
    pub fn description(&self) -> String {
        let driver =
            self.driver.as_ref().map_or_else(|| "no driver".to_owned(), |name| format!("driver {name}"));
        let mut parts = vec![driver];
        parts.extend(self.ports.iter().map(|Port { state, rate, link_layer, .. }| {
            // EFA has no link layer known to the kernel.
            let layer = Some(link_layer.as_str()).filter(|layer| !["", "Unspecified"].contains(layer));
            let known: Vec<&str> =
                layer.into_iter().chain([state.as_str(), rate]).filter(|part| !part.is_empty()).collect();
            known.join(" ")
        }));
        parts.retain(|part| !part.is_empty());
        parts.join(", ")
    }

    /// Returns the speed of the fastest active port in Gbit/s.
    pub fn rate(&self) -> Option<f64> {
        self.ports.iter().filter(|port| port.is_active()).filter_map(Port::gigabits_per_s).reduce(f64::max)
    }
}

impl Port {
    /// Returns true if data can pass.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Returns the speed in Gbit/s.
    pub fn gigabits_per_s(&self) -> Option<f64> {
        self.rate.split_whitespace().next()?.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
    }

    /// Returns the IPv4 addresses of RoCE version 2.
    pub fn ipv4_addresses(&self) -> Vec<String> {
        self.gids.iter().filter(|gid| gid.kind == "RoCE v2").filter_map(Gid::ipv4_address).collect()
    }
}

impl Gid {
    /// Returns the IPv4 address mapped into this one.
    pub fn ipv4_address(&self) -> Option<String> {
        let address: std::net::Ipv6Addr = self.address.parse().ok()?;
        address.to_ipv4_mapped().map(|address| address.to_string())
    }
}

/// Reads the devices below `root`.
pub(crate) fn read_nics(root: &Path) -> Vec<Nic> {
    let class = root.join("sys/class/infiniband");
    names_in_folder(&class).into_iter().map(|name| read_nic(root, &class.join(&name), name)).collect()
}

fn read_nic(root: &Path, folder: &Path, name: String) -> Nic {
    let device = folder.join("device");
    let ports = folder.join("ports");
    let mut ports: Vec<Port> = names_in_folder(&ports)
        .into_iter()
        .filter_map(|number| Some(read_port(&ports.join(&number), number.parse().ok()?)))
        .collect();
    ports.sort_by_key(|port| port.number);
    let interfaces = names_in_folder(&device.join("net"));
    Nic {
        driver: driver_of_device(&device),
        firmware: read_text(&folder.join("fw_ver")),
        board: read_text(&folder.join("board_id")).filter(|text| !text.is_empty()),
        pci: pci::bus_id(&device),
        // The kernel writes -1 for none.
        numa: read_number(&device.join("numa_node")),
        pcie: PcieLink::read(&device),
        interfaces: interfaces.into_iter().map(|name| read_interface(root, name)).collect(),
        ports,
        name,
    }
}

fn read_port(folder: &Path, number: u32) -> Port {
    let read = |file: &str| read_text(&folder.join(file)).unwrap_or_default();
    // `4: ACTIVE`
    let word = |file: &str| {
        let text = read(file);
        text.split_once(": ").map_or(text.as_str(), |(_, word)| word).to_owned()
    };
    Port {
        number,
        state: word("state"),
        physical: word("phys_state"),
        rate: read("rate"),
        link_layer: read("link_layer"),
        gids: read_gids(folder),
    }
}

fn read_gids(port: &Path) -> Vec<Gid> {
    let table = port.join("gids");
    let entries = names_in_folder(&table).into_iter().take(MOST_GIDS).filter_map(|index| {
        let address = read_text(&table.join(&index))?;
        let used = address.bytes().any(|digit| !matches!(digit, b'0' | b':'));
        used.then(|| Gid {
            index: index.parse().unwrap_or_default(),
            address,
            kind: read_text(&port.join("gid_attrs/types").join(&index)).unwrap_or_default(),
        })
    });
    // The prefix of InfiniBand and RoCE without an identifier: no address.
    entries.filter(|gid| gid.address != "fe80:0000:0000:0000:0000:0000:0000:0000").collect()
}

/// Reads an interface of the network.
pub(crate) fn read_interface(root: &Path, name: String) -> Interface {
    let folder = root.join("sys/class/net").join(&name);
    Interface {
        mtu: read_number(&folder.join("mtu")),
        state: read_text(&folder.join("operstate")),
        // -1 if it is unknown.
        speed: read_number(&folder.join("speed")),
        name,
    }
}

/// Reads the counters of errors and of retransmissions.
pub(super) fn read_all_counters(root: &Path) -> Vec<Counter> {
    let class = root.join("sys/class/infiniband");
    let mut all = Vec::new();
    for name in names_in_folder(&class) {
        let folder = class.join(&name);
        read_counters(&folder.join("hw_counters"), &name, &mut all);
        for port in names_in_folder(&folder.join("ports")) {
            for group in ["counters", "hw_counters"] {
                let folder = folder.join("ports").join(&port).join(group);
                read_counters(&folder, &format!("{name} port {port}"), &mut all);
            }
        }
    }
    all
}

fn read_counters(folder: &Path, device: &str, all: &mut Vec<Counter>) {
    for name in names_in_folder(folder) {
        if findings::meaning_of_counter(&name).is_some()
            && let Some(value) = read_number(&folder.join(&name))
        {
            all.push(Counter::new(device, name, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::counters::complete_counters;
    use crate::host::sample::Machine;

    fn roce(mtu: u32) -> Machine {
        Machine::new().with_roce("mlx5_0", "0000:19:00.0", "eth1", mtu, Some("c000:0201")).with_roce(
            "mlx5_1",
            "0000:3b:00.0",
            "eth2",
            mtu,
            Some("c000:0202"),
        )
    }

    #[test]
    fn a_device_is_read_with_its_interface_addresses_and_place() {
        let nic = &read_nics(roce(9000).root())[0];
        assert_eq!((nic.kind(), nic.pci.as_deref(), nic.rate()), ("RoCE", Some("0000:19:00.0"), Some(200.0)));
        assert_eq!((nic.interfaces[0].name.as_str(), nic.interfaces[0].mtu), ("eth1", Some(9000)));
        assert_eq!(nic.ports[0].physical, "LinkUp");
        assert_eq!(nic.ports[0].ipv4_addresses(), ["192.0.2.1"]);
        assert_eq!(nic.ports[0].gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn growth_of_counters_a_small_mtu_and_a_slow_port_are_found() {
        let machine = roce(1500)
            .with_roce("mlx5_2", "0000:5d:00.0", "eth3", 1500, Some("c000:0203"))
            .with_file("sys/class/infiniband/mlx5_2/ports/1/rate", "100 Gb/sec (4X EDR)\n");
        let mut first = read_all_counters(machine.root());
        let machine =
            machine.with_file("sys/class/infiniband/mlx5_1/ports/1/hw_counters/packet_seq_err", "10\n");
        complete_counters(&mut first, &read_all_counters(machine.root()));
        let findings = judge_nics(&read_nics(machine.root()), &first, None, false);
        let told: Vec<(&str, Severity, &str)> = findings
            .iter()
            .map(|finding| (finding.rule.as_str(), finding.severity, finding.diagnosis.as_str()))
            .collect();
        let degraded = Severity::Degraded;
        assert_eq!(
            told[0].2,
            "mlx5_2 port 1 runs at 100 Gb/sec (4X EDR), other ports of its kind at 200 Gb/sec (4X HDR)"
        );
        assert_eq!((told[1].0, told[1].1), ("roce-small-mtu", degraded));
        assert_eq!(
            told[2],
            ("nic-counter-grows", degraded, "packet_seq_err grows: packets are lost: mlx5_1 port 1 +7")
        );
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn a_fixed_entry_of_the_gid_table_must_have_an_address_of_roce_v2() {
        let machine = roce(9000)
            .with_file(
                "sys/class/infiniband/mlx5_1/ports/1/gids/3",
                "fe80:0000:0000:0000:0000:0000:0000:0007\n",
            )
            .with_file("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/3", "IB/RoCE v1\n");
        let nics = read_nics(machine.root());
        let told = |index: &str| {
            let environment = [("NCCL_IB_GID_INDEX".to_owned(), index.to_owned())];
            fixed_gid(&nics, &environment).map(|finding| (finding.severity, finding.diagnosis))
        };
        assert_eq!(["2", "-1", "none"].map(told), [None, None, None]);
        let empty =
            "NCCL_IB_GID_INDEX=1 selects an entry without an address on mlx5_0 port 1 and mlx5_1 port 1";
        assert_eq!(told("1"), Some((Severity::Broken, empty.to_owned())));
        assert_eq!(told("3").map(|(severity, _)| severity), Some(Severity::Broken));
        let version_1 = "NCCL_IB_GID_INDEX=3 selects RoCE v1 (not routed) on mlx5_1 port 1";
        let environment = [("NCCL_IB_GID_INDEX".to_owned(), "3".to_owned())];
        assert_eq!(fixed_gid(&nics[1..], &environment).unwrap().diagnosis, version_1);
        assert_eq!(fixed_gid(&nics, &[]), None);
    }

    /// Totals since the start of the driver are facts: the cable may have been pulled on purpose.
    #[test]
    fn counters_that_do_not_grow_are_no_fault() {
        let machine = roce(9000);
        let mut first = read_all_counters(machine.root());
        complete_counters(&mut first, &read_all_counters(machine.root()));
        assert_eq!(judge_nics(&read_nics(machine.root()), &first, None, false), []);
        assert_eq!(
            prove_nics(&read_nics(machine.root()), &first),
            [
                "2 RoCE ports active at 200 Gb/sec (4X HDR)",
                "2 error counters of the network devices did not grow"
            ]
        );
    }
}
