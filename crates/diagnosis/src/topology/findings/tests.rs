use super::super::model::{NumaNode, NvLink, PcieLink};
use super::*;

/// Returns a machine of two sockets with NVSwitch and a NIC for each GPU.
fn machine() -> Topology {
    let place = |index: u32| Locality {
        numa: Some(index / 4),
        host_bridge: Some(format!("pci0000:{index}0")),
        ports: vec![format!("root{index}"), format!("up{index}"), format!("down{index}")],
        ..Locality::default()
    };
    let link = PcieLink { gts: Some(32.0), width: Some(16), max_gts: Some(32.0), max_width: Some(16) };
    let gpu = |index: u32| TopologyGpu {
        label: format!("GPU{index}"),
        index,
        bus_id: format!("0000:{index}1:00.0"),
        name: Some("NVIDIA H100".to_owned()),
        device: Some(0x2330),
        place: place(index),
        pcie: link,
        nvlinks: Some(vec![NvLink { to: NvLinkEnd::Switch, count: 18 }]),
        ..TopologyGpu::default()
    };
    let nic = |index: u32| TopologyNic {
        label: format!("NIC{index}"),
        name: format!("mlx5_{index}"),
        bus_id: Some(format!("0000:{index}2:00.0")),
        dev: Some(index),
        place: place(index),
        pcie: link,
        gbps: Some(400.0),
        state: Some("ACTIVE".to_owned()),
        rdma: true,
        ..TopologyNic::default()
    };
    let node = |id| NumaNode { id: Some(id), cpus: Some("0-1".to_owned()), ..NumaNode::default() };
    Topology {
        numa_nodes: vec![node(0), node(1)],
        gpus: (0..8).map(gpu).collect(),
        nics: (0..8).map(nic).collect(),
        ..Topology::default()
    }
}

fn rules(topology: &Topology) -> Vec<(String, Severity)> {
    find_problems(topology).into_iter().map(|finding| (finding.rule, finding.severity)).collect()
}

fn found(rule: &str, severity: Severity) -> Vec<(String, Severity)> {
    vec![(rule.to_owned(), severity)]
}

#[test]
fn a_good_machine_has_no_findings() {
    assert_eq!(rules(&machine()), []);
}

#[test]
fn a_lost_lane_is_found() {
    let mut topology = machine();
    topology.gpus[3].nvlinks = Some(vec![NvLink { to: NvLinkEnd::Switch, count: 17 }]);
    assert_eq!(rules(&topology), found("nvlink-count-differs", Severity::Degraded));
    let finding = &find_problems(&topology)[0];
    assert_eq!(finding.diagnosis, "GPU3 has fewer NVLinks than the 18 of the other GPUs of this product.");
    assert_eq!(finding.evidence[0].text, "GPU3 0000:31:00.0: 17 active NVLinks");
    assert!(finding.remedy.as_ref().unwrap().contains("nvidia-smi nvlink --status -i 3"));
}

#[test]
fn a_gpu_without_nvlink_among_others_is_found() {
    let mut topology = machine();
    topology.gpus[5].nvlinks = Some(Vec::new());
    assert_eq!(rules(&topology), found("gpu-without-nvlink", Severity::Degraded));
    // Nothing is known of an unresponsive GPU.
    topology.gpus[5].nvlinks = None;
    assert_eq!(rules(&topology), []);
    // Another product is not compared.
    topology.gpus[5].nvlinks = Some(Vec::new());
    topology.gpus[5].device = Some(0x1fb0);
    assert_eq!(rules(&topology), []);
}

#[test]
fn bridges_between_some_cards_are_no_fault() {
    let mut topology = machine();
    for gpu in &mut topology.gpus {
        gpu.nvlinks = Some(Vec::new());
    }
    for (a, b) in [(0, 1), (1, 0)] {
        let to = NvLinkEnd::Gpu(topology.gpus[b].bus_id.clone());
        topology.gpus[a].nvlinks = Some(vec![NvLink { to, count: 12 }]);
    }
    assert_eq!(rules(&topology), found("gpu-without-nvlink", Severity::Advice));
}

#[test]
fn links_that_one_end_alone_has_are_found() {
    let mut topology = machine();
    topology.gpus.truncate(2);
    let mut connect = |links: [u32; 2]| {
        for (gpu, count) in links.into_iter().enumerate() {
            let to = NvLinkEnd::Gpu(topology.gpus[1 - gpu].bus_id.clone());
            topology.gpus[gpu].nvlinks = Some(vec![NvLink { to, count }]);
        }
        find_problems(&topology).into_iter().find(|finding| finding.rule == "nvlink-one-sided")
    };
    assert!(connect([12, 12]).is_none());
    let finding = connect([12, 11]).unwrap();
    assert_eq!(finding.severity, Severity::Degraded);
    assert_eq!(finding.diagnosis, "GPU0 has 12 NVLinks to GPU1, and GPU1 has 11 to GPU0.");
    assert_eq!(finding.evidence[0].text, "GPU0 0000:01:00.0: 12 NVLinks to GPU1, 11 from it");
    assert_eq!(connect([0, 1]).unwrap().diagnosis, "GPU0 has 0 NVLinks to GPU1, and GPU1 has 1 to GPU0.");
    // Nothing is known of an unresponsive GPU.
    topology.gpus[1].nvlinks = None;
    assert!(find_problems(&topology).iter().all(|finding| finding.rule != "nvlink-one-sided"));
}

#[test]
fn a_gpu_whose_nic_is_down_is_found() {
    let mut topology = machine();
    topology.nics[2].state = Some("DOWN".to_owned());
    assert_eq!(rules(&topology), found("gpu-without-near-nic", Severity::Degraded));
    let finding = &find_problems(&topology)[0];
    assert!(finding.diagnosis.starts_with("GPU2 has no NIC within PIX or PXB, and 7 GPUs"), "{finding:?}");
    assert_eq!(finding.evidence[0].text, "GPU2 0000:21:00.0: nearest NIC: NODE");
}

/// A machine with one NIC for all GPUs is built so.
#[test]
fn one_nic_for_all_gpus_is_no_fault() {
    let mut topology = machine();
    topology.nics.truncate(1);
    assert_eq!(rules(&topology), []);
}

/// A server of two sockets with one NIC, near to the GPUs of its switch.
#[test]
fn one_nic_near_half_of_the_gpus_is_advice() {
    let mut topology = machine();
    topology.gpus.drain(2..6);
    for (gpu, label) in topology.gpus.iter_mut().zip(["GPU0", "GPU1", "GPU2", "GPU3"]) {
        gpu.label = label.to_owned();
    }
    topology.nics.truncate(1);
    topology.gpus[1].place = topology.nics[0].place.clone();
    assert_eq!(rules(&topology), found("gpu-without-near-nic", Severity::Advice));
    assert_eq!(find_problems(&topology)[0].diagnosis, "GPU2 and GPU3 have no NIC within PXB.");
    // A NIC near to three of four GPUs may still be the only one.
    topology.gpus[2].place = topology.nics[0].place.clone();
    assert_eq!(rules(&topology), found("gpu-without-near-nic", Severity::Advice));
    // An inactive NIC is a fault.
    topology.nics.push(TopologyNic {
        name: "mlx5_1".to_owned(),
        place: topology.gpus[3].place.clone(),
        state: Some("DOWN".to_owned()),
        rdma: true,
        ..TopologyNic::default()
    });
    assert_eq!(rules(&topology), found("gpu-without-near-nic", Severity::Degraded));
}

#[test]
fn nics_on_the_wrong_socket_are_found() {
    let mut topology = machine();
    topology.gpus.truncate(4);
    topology.nics.drain(..4);
    assert_eq!(rules(&topology), found("nics-across-sockets", Severity::Degraded));
    let mut topology = machine();
    topology.gpus.truncate(4);
    topology.nics.truncate(5);
    assert_eq!(rules(&topology), found("nic-far-from-gpus", Severity::Advice));
}

#[test]
fn pcie_below_its_possibilities_is_found() {
    let mut topology = machine();
    topology.gpus[1].pcie.width = Some(8);
    assert_eq!(rules(&topology), found("pcie-width", Severity::Degraded));
    let mut topology = machine();
    topology.nics[1].pcie.gts = Some(16.0);
    assert_eq!(rules(&topology), found("pcie-rate", Severity::Degraded));
    // An idle GPU saves power.
    let mut topology = machine();
    topology.gpus[1].pcie.gts = Some(2.5);
    assert_eq!(rules(&topology), found("pcie-rate-idle", Severity::Advice));
}

#[test]
fn missing_numa_nodes_matter_where_there_are_several() {
    let mut topology = machine();
    topology.gpus[0].place.numa = None;
    assert_eq!(rules(&topology), found("numa-missing", Severity::Degraded));
    topology.numa_nodes.pop();
    assert_eq!(rules(&topology), []);
}
