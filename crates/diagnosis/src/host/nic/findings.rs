//! Conclusions about network devices.

use std::fmt::Display;

use super::super::compare::majority;
use super::super::counters::{self, Counter};
use super::{Nic, Port};
use crate::examination::{Body, Section};
use crate::finding::{Finding, Severity};
use crate::knowledge::texts::compose_finding;
use crate::words::{counted, join_list, or_dash, plural};

/// Smallest speed in Gbit/s for checks of the MTU. The value is our own judgement.
const FAST: f64 = 100.0;
/// Ethernet MTU required by an RDMA MTU of 4096 for its headers.
const ROCE_MTU: u32 = 4200;
/// Gbit/s of PCIe per Gbit/s of the port, with the headers of PCIe. The value is our own judgement.
const PCIE_PER_PORT: f64 = 1.1;

/// Meaning of a growing counter.
pub(super) struct Meaning {
    severity: Severity,
    text: &'static str,
    remedy: &'static str,
}

const CABLE: &str =
    "clean or replace the cable or transceiver, then the switch port: mlxlink -d DEVICE -c -e";
const LOSS: &str = "look for full or pausing switch ports on the way: ethtool -S INTERFACE | grep -E \
                    'pause|discard|ecn|cnp'";
const EFA: &str =
    "look at the peers' health; the instance's security group must allow all traffic to and from itself";

/// Relevant counters, by the end of their name, and the meaning of their growth.
const COUNTERS: [(&str, Meaning); 22] = [
    ("symbol_error", Meaning::bad("bits are received wrong", CABLE)),
    ("link_error_recovery", Meaning::bad("the link trains again", CABLE)),
    ("link_downed", Meaning::bad("the link goes down", CABLE)),
    ("port_rcv_errors", Meaning::bad("packets arrive damaged", CABLE)),
    ("port_rcv_remote_physical_errors", Meaning::bad("another link on the way damages packets", CABLE)),
    ("local_link_integrity_errors", Meaning::bad("the link damages packets", CABLE)),
    ("excessive_buffer_overrun_errors", Meaning::bad("the receive buffer overflows", CABLE)),
    ("port_xmit_discards", Meaning::bad("packets are dropped before they are sent", LOSS)),
    ("packet_seq_err", Meaning::bad("packets are lost", LOSS)),
    ("implied_nak_seq_err", Meaning::bad("packets are lost", LOSS)),
    ("local_ack_timeout_err", Meaning::bad("acknowledgements do not arrive in time", LOSS)),
    ("roce_adp_retrans_to", Meaning::bad("packets are sent again after a timeout", LOSS)),
    (
        "rnr_nak_retry_err",
        Meaning::note(
            "receivers are not ready in time",
            "look at the receiving process: it is late or short of processors",
        ),
    ),
    // Adaptive routing reorders packets without loss.
    ("out_of_sequence", Meaning::note("packets arrive out of order, by loss or by adaptive routing", LOSS)),
    ("rx_icrc_encapsulated", Meaning::bad("RoCE packets arrive damaged", CABLE)),
    ("rdma_read_wr_err", Meaning::bad("reads of remote memory fail", EFA)),
    ("rdma_write_wr_err", Meaning::bad("writes to remote memory fail", EFA)),
    ("send_wr_err", Meaning::bad("sends fail", EFA)),
    ("unresponsive_remote_events", Meaning::bad("peers do not answer", EFA)),
    ("impaired_remote_conn_events", Meaning::bad("connections to peers are impaired", EFA)),
    ("retrans_timeout_events", Meaning::note("packets are sent again after a timeout", EFA)),
    ("rx_drops", Meaning::note("packets are dropped on arrival", EFA)),
];

impl Meaning {
    const fn bad(text: &'static str, remedy: &'static str) -> Self {
        Self { severity: Severity::Degraded, text, remedy }
    }

    const fn note(text: &'static str, remedy: &'static str) -> Self {
        Self { severity: Severity::Advice, text, remedy }
    }
}

/// Returns the meaning of a relevant counter.
pub(super) fn meaning_of_counter(name: &str) -> Option<&'static Meaning> {
    COUNTERS.iter().find(|(known, _)| *known == name).map(|(_, meaning)| meaning)
}

/// Returns the number of EFA devices, as AWS lists them (source of the finding), for an instance type with
/// all of its network cards in use.
pub(crate) fn expected_efa(product: &str) -> Option<usize> {
    let (family, size) = product.split_once('.')?;
    match (family, size) {
        ("p4d" | "p4de", "24xlarge") => Some(4),
        ("p5" | "p5e", "48xlarge") => Some(32),
        ("p5en", "48xlarge") => Some(16),
        ("p6-b200", "48xlarge") => Some(8),
        _ => None,
    }
}

/// Returns findings about the devices. `product` is the machine's name, and `needed` is true if jobs need a
/// network.
pub(crate) fn judge_nics(
    nics: &[Nic],
    counters: &[Counter],
    product: Option<&str>,
    needed: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(efa_count(nics, product));
    findings.extend(none_up(nics, needed));
    if nics.iter().any(Nic::is_up) {
        findings.extend(
            nics.iter()
                .flat_map(|nic| nic.ports.iter().filter_map(|port| find_inactive_port(nics, nic, port))),
        );
    }
    findings.extend(find_rate_differences(nics));
    findings.extend(nics.iter().filter_map(find_narrow_pcie));
    findings.extend(find_small_mtu(nics));
    findings.extend(without_address(nics));
    findings.extend(find_growing_counters(counters));
    findings
}

fn efa_count(nics: &[Nic], product: Option<&str>) -> Option<Finding> {
    let product = product?;
    let expected = expected_efa(product)?;
    let there = nics.iter().filter(|nic| nic.is_efa()).count();
    let id = if there == 0 { "efa-missing" } else { "efa-fewer-than-instance-type" };
    let values: [(&str, &dyn Display); 4] = [
        ("devices", &counted(there, "EFA device")),
        ("is", &plural(there, "is", "are")),
        ("product", &product),
        ("expected", &expected),
    ];
    (there < expected).then(|| compose_finding(id, &values))
}

/// Returns a finding if no device is up. On a single host that may be intended, unless something is
/// connected.
fn none_up(nics: &[Nic], needed: bool) -> Option<Finding> {
    if nics.is_empty() || nics.iter().any(Nic::is_up) {
        return None;
    }
    let initialized = nics.iter().flat_map(|nic| &nic.ports).any(|port| port.state == "INIT");
    let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
    let wanted = needed || initialized || nics.iter().any(Nic::is_efa);
    let severity = if wanted { Severity::Broken } else { Severity::Advice };
    let id = if initialized { "no-nic-up/init" } else { "no-nic-up" };
    Some(compose_finding(id, &[("names", &join_list(&names))]).with_severity(severity))
}

/// Returns a finding about a port without traffic beside working ones. An unused second port of a board is
/// not a fault.
fn find_inactive_port(nics: &[Nic], nic: &Nic, port: &Port) -> Option<Finding> {
    if port.is_active() || port.state.is_empty() {
        return None;
    }
    let name = format!("{} port {}", nic.name, port.number);
    if port.state == "INIT" {
        return Some(compose_finding("port-not-configured", &[("name", &name)]));
    }
    let alike: Vec<&Nic> = nics
        .iter()
        .filter(|other| other.kind() == nic.kind() && other.board == nic.board && other.driver == nic.driver)
        .collect();
    let up = alike.iter().filter(|other| other.is_up()).count();
    let severity = if nic.is_efa() || up * 2 > alike.len() { Severity::Degraded } else { Severity::Advice };
    let physical = if port.physical.is_empty() { String::new() } else { format!(" ({})", port.physical) };
    let id = match port.physical.as_str() {
        "Disabled" => "port-down/disabled",
        "Polling" => "port-down/polling",
        _ => "port-down",
    };
    Some(
        compose_finding(
            id,
            &[
                ("name", &name),
                ("state", &port.state),
                ("physical", &physical),
                ("up", &up),
                ("alike", &counted(alike.len(), &format!("{} device", nic.kind()))),
                ("verb", &plural(up, "is", "are")),
            ],
        )
        .with_severity(severity),
    )
}

/// Returns findings about active devices slower than others of the same kind and board.
fn find_rate_differences(nics: &[Nic]) -> Vec<Finding> {
    let active: Vec<(&Nic, &Port)> = nics
        .iter()
        .flat_map(|nic| nic.ports.iter().map(move |port| (nic, port)))
        .filter(|(_, port)| port.is_active() && port.gigabits_per_s().is_some())
        .collect();
    let mut findings = Vec::new();
    for (nic, port) in &active {
        let alike = active.iter().filter(|(other, _)| other.kind() == nic.kind() && other.board == nic.board);
        let rates: Vec<&str> = alike.map(|(_, port)| port.rate.as_str()).collect();
        let Some(usual) = majority(&rates) else { continue };
        let slower =
            Port { rate: usual.to_owned(), ..Port::default() }.gigabits_per_s() > port.gigabits_per_s();
        if slower {
            findings.push(compose_finding(
                "port-slower-than-others",
                &[("name", &nic.name), ("number", &port.number), ("rate", &port.rate), ("usual", &usual)],
            ));
        }
    }
    findings
}

/// Returns a finding about a device with a PCIe connection narrower than possible, and insufficient for its
/// port.
fn find_narrow_pcie(nic: &Nic) -> Option<Finding> {
    let (width, most) = (nic.pcie.width?, nic.pcie.max_width?);
    let gigabits = nic.pcie.gbytes_per_s()? * 8.0;
    let rate = nic.rate()?;
    (width < most && gigabits < rate * PCIE_PER_PORT).then(|| {
        compose_finding(
            "nic-pcie-narrow",
            &[
                ("name", &nic.name),
                ("width", &width),
                ("most", &most),
                ("gigabits", &format!("{gigabits:.0}")),
                ("rate", &format!("{rate:.0}")),
                ("pci", &or_dash(nic.pci.as_ref())),
            ],
        )
    })
}

/// Returns a finding about fast RoCE devices with the MTU of common Ethernet.
fn find_small_mtu(nics: &[Nic]) -> Option<Finding> {
    let small: Vec<String> = nics
        .iter()
        .filter(|nic| nic.kind() == "RoCE" && nic.rate().is_some_and(|rate| rate >= FAST))
        .flat_map(|nic| {
            let small =
                nic.interfaces.iter().filter(|interface| interface.mtu.is_some_and(|mtu| mtu < ROCE_MTU));
            small.map(move |interface| {
                format!("{} ({}: {})", nic.name, interface.name, or_dash(interface.mtu))
            })
        })
        .collect();
    (!small.is_empty()).then(|| compose_finding("roce-small-mtu", &[("small", &join_list(&small))]))
}

fn without_address(nics: &[Nic]) -> Option<Finding> {
    let names: Vec<&str> = nics
        .iter()
        .filter(|nic| nic.kind() == "RoCE")
        .filter(|nic| nic.ports.iter().any(|port| port.is_active() && port.ipv4_addresses().is_empty()))
        .map(|nic| nic.name.as_str())
        .collect();
    (!names.is_empty()).then(|| compose_finding("roce-without-ipv4", &[("names", &join_list(&names))]))
}

/// Returns a finding about active RoCE ports without an address at the entry of `NCCL_IB_GID_INDEX`, or with
/// one of RoCE v1.
pub(crate) fn fixed_gid(nics: &[Nic], environment: &[(String, String)]) -> Option<Finding> {
    let (_, value) = environment.iter().find(|(name, _)| name == "NCCL_IB_GID_INDEX")?;
    let index: u32 = value.trim().parse().ok()?;
    let (mut empty, mut first) = (Vec::new(), Vec::new());
    for nic in nics.iter().filter(|nic| nic.kind() == "RoCE") {
        // Without any address, `roce-without-ipv4` reports it.
        for port in nic.ports.iter().filter(|port| port.is_active() && !port.gids.is_empty()) {
            match port.gids.iter().find(|gid| gid.index == index) {
                None => empty.push(format!("{} port {}", nic.name, port.number)),
                Some(gid) if gid.kind == "IB/RoCE v1" => {
                    first.push(format!("{} port {}", nic.name, port.number));
                }
                Some(_) => {}
            }
        }
    }
    let (id, ports) = match (&empty[..], &first[..]) {
        ([], []) => return None,
        ([], ports) => ("roce-gid-index/first", ports),
        (ports, _) => ("roce-gid-index", ports),
    };
    Some(compose_finding(id, &[("index", &index), ("ports", &join_list(ports))]))
}

/// Returns findings about counters with growth between the two readings, grouped by counter.
fn find_growing_counters(counters: &[Counter]) -> Vec<Finding> {
    let grown = |name: &str| -> Vec<&Counter> {
        counters.iter().filter(|counter| counter.name == name && counter.has_grown()).collect()
    };
    COUNTERS
        .iter()
        .map(|(name, meaning)| (name, meaning, grown(name)))
        .filter(|(.., grown)| !grown.is_empty())
        .map(|(name, meaning, grown)| {
            let devices: Vec<String> = grown
                .iter()
                .map(|counter| format!("{} +{}", counter.device, or_dash(counter.growth)))
                .collect();
            compose_finding(
                "nic-counter-grows",
                &[
                    ("name", &name),
                    ("text", &meaning.text),
                    ("devices", &join_list(&devices)),
                    ("remedy", &meaning.remedy),
                ],
            )
            .with_severity(meaning.severity)
        })
        .collect()
}

/// Returns sentences about active ports and counters without growth.
pub(crate) fn prove_nics(nics: &[Nic], counters: &[Counter]) -> Vec<String> {
    let mut groups: Vec<(&str, &str, usize)> = Vec::new();
    for nic in nics {
        for port in nic.ports.iter().filter(|port| port.is_active()) {
            match groups.iter_mut().find(|(kind, rate, _)| *kind == nic.kind() && *rate == port.rate) {
                Some((.., count)) => *count += 1,
                None => groups.push((nic.kind(), &port.rate, 1)),
            }
        }
    }
    let mut proof: Vec<String> = groups
        .iter()
        .map(|(kind, rate, count)| format!("{} active at {rate}", counted(*count, &format!("{kind} port"))))
        .collect();
    let watched: Vec<&Counter> = counters.iter().filter(|counter| counter.growth.is_some()).collect();
    if !proof.is_empty() && !watched.is_empty() && !watched.iter().any(|counter| counter.has_grown()) {
        proof
            .push(format!("{} of the network devices did not grow", counted(watched.len(), "error counter")));
    }
    proof
}

/// Returns the table of devices.
pub(crate) fn nic_sections(nics: &[Nic], counters: &[Counter]) -> Vec<Section> {
    if nics.is_empty() {
        return Vec::new();
    }
    let columns = [
        "device",
        "kind",
        "port",
        "state",
        "physical",
        "rate",
        "interface",
        "MTU",
        "IPv4",
        "PCI",
        "NUMA",
        "firmware",
    ];
    let rows = nics.iter().flat_map(|nic| nic.ports.iter().map(move |port| port_row(nic, port)));
    let mut sections = vec![Section {
        title: "Network devices".to_owned(),
        body: Body::Table { columns: columns.map(str::to_owned).to_vec(), rows: rows.collect() },
    }];
    sections.extend(counters::counter_table("Error counters of network devices", "device", counters));
    sections
}

fn port_row(nic: &Nic, port: &Port) -> Vec<String> {
    let interfaces: Vec<&str> = nic.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let mtu: Vec<String> = nic.interfaces.iter().map(|interface| or_dash(interface.mtu)).collect();
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    vec![
        nic.name.clone(),
        nic.kind().to_owned(),
        port.number.to_string(),
        port.state.clone(),
        or_none(port.physical.clone()),
        or_none(port.rate.clone()),
        or_none(interfaces.join(" ")),
        or_none(mtu.join(" ")),
        or_none(port.ipv4_addresses().join(" ")),
        or_dash(nic.pci.as_ref()),
        or_dash(nic.numa),
        or_dash(nic.firmware.as_ref()),
    ]
}
