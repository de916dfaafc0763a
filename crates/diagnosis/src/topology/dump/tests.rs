use super::super::samples::*;
use super::super::{examine_topology, matrix};
use super::*;
use crate::examination::Body;

fn topology(text: &str) -> Topology {
    match read_dump(text, "topo.xml") {
        Ok(TopologyDump::Topology(topology)) => topology,
        other => panic!("{other:?}"),
    }
}

fn graphs(text: &str) -> Graphs {
    match read_dump(text, "graph.xml") {
        Ok(TopologyDump::Graphs(graphs)) => graphs,
        other => panic!("{other:?}"),
    }
}

fn row(topology: &Topology, index: usize) -> String {
    let matrix = matrix::topology_matrix(topology);
    matrix.cells[index].iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn real_dumps_of_one_gpu_are_read() {
    let one = topology(ONE_GPU);
    assert_eq!((one.gpus.len(), one.nics.len()), (1, 1));
    assert_eq!(one.gpus[0].bus_id, "0000:00:06.0");
    // A width of 0 is not known.
    assert_eq!((one.gpus[0].pcie.gts, one.gpus[0].pcie.width), (Some(32.0), None));
    assert_eq!((one.nics[0].gbps, one.nics[0].rdma), (Some(10.0), false));
    assert_eq!(row(&one, 0), "X PHB");
    let two = topology(TWO_RANKS);
    assert_eq!(two.gpus.len(), 1);
    assert_eq!(two.gpus[0].ranks, [0, 1]);
    assert_eq!(two.gpus[0].pcie.short_text(), "Gen5 x16");
    assert_eq!(two.numa_nodes[0].id, None);
    assert!(examine_topology(Some(&two), Some(&graphs(TWO_RANKS_GRAPH))).findings.is_empty());
    assert!(examine_topology(Some(&one), Some(&graphs(ONE_GPU_GRAPH))).findings.is_empty());
}

#[test]
fn an_hgx_has_nvswitch_and_a_nic_at_each_gpu() {
    let topology = topology(HGX);
    assert_eq!(row(&topology, 0), "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX PHB PHB PHB SYS SYS SYS SYS PHB");
    assert_eq!(row(&topology, 7), "NV18 NV18 NV18 NV18 NV18 NV18 NV18 X SYS SYS SYS SYS PHB PHB PHB PIX SYS");
    assert_eq!(topology.numa_nodes[0].cpus.as_deref(), Some("0-55,112-167"));
    let examination = examine_topology(Some(&topology), Some(&graphs(HGX_GRAPH)));
    assert_eq!(examination.proof[0], "NVLink (at least 18 links) between all 28 pairs of 8 GPUs");
    // The slower NIC is for storage: no reason for an alarm.
    let findings: Vec<_> =
        examination.findings.iter().map(|finding| (finding.rule.as_str(), finding.severity)).collect();
    assert_eq!(findings, [("nic-not-in-graph", crate::finding::Severity::Advice)]);
}

#[test]
fn a_p4d_of_nccl_2_18_has_no_host_hash() {
    let topology = topology(P4D);
    assert_eq!(topology.host_count(), 1);
    assert_eq!(row(&topology, 0), "X NV12 NV12 NV12 NV12 NV12 NV12 NV12 PIX PHB SYS SYS");
    let examination = examine_topology(Some(&topology), Some(&graphs(P4D_GRAPH)));
    let finding = &examination.findings[0];
    assert_eq!(finding.rule, "nic-not-in-graph");
    assert_eq!(finding.diagnosis, "No channel uses NIC3 (rdmap160s27); 3 of 4 NICs carry data.");
    let channels = examination.sections.iter().find(|section| section.title == "Ring: channels").unwrap();
    let Body::Lines(lines) = &channels.body else { panic!("{channels:?}") };
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("0, 3, 6: NIC0 (rdmap16s27) > GPU0 > GPU1 > "), "{lines:?}");
}

#[test]
fn switches_behind_switches_are_read() {
    let topology = topology(P5);
    assert_eq!((topology.gpus.len(), topology.nics.len()), (8, 32));
    assert_eq!(topology.gpus[0].place.pcie_switches(), ["0000:40:00.0", "0000:41:00.0"]);
    assert!(row(&topology, 0).starts_with("X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX PIX PIX PIX PHB"));
}

#[test]
fn a_spark_has_four_nics_without_a_switch() {
    let topology = topology(SPARK);
    assert_eq!(row(&topology, 0), "X PHB PHB PHB PHB");
    assert_eq!(topology.gpus[0].name.as_deref(), Some("Blackwell (sm121)"));
    assert!(examine_topology(Some(&topology), None).findings.is_empty());
}

#[test]
fn hosts_of_a_rack_are_told_apart() {
    let topology = topology(GB200);
    assert_eq!(topology.host_count(), 2);
    let labels: Vec<&str> = topology.gpus.iter().map(|gpu| gpu.label.as_str()).collect();
    assert_eq!(labels[3..5], ["0:GPU3", "1:GPU0"]);
    assert_eq!(row(&topology, 0), "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PHB PHB SYS SYS NET NET NET NET");
    assert_eq!((topology.gpus[4].c2c_links, topology.gpus[4].ranks.as_slice()), (Some(10), &[4][..]));
}

#[test]
fn graphs_have_speeds_and_distinct_channels() {
    let graphs = graphs(HGX_GRAPH);
    let ring = &graphs.graphs[0];
    assert_eq!((ring.algorithm.as_str(), ring.channels.len()), ("Ring", 16));
    assert_eq!((ring.total_intra(), ring.total_inter()), (Some(320.0), Some(320.0)));
    let distinct = ring.distinct_channels();
    assert_eq!(distinct.len(), 8);
    assert_eq!(distinct[3].0, [3, 11]);
    assert_eq!(graphs.net_devices().len(), 8);
    assert_eq!(graphs.graphs[4].channels[2].stops.len(), 3);
}

/// Values of wrong types are skipped, as in NCCL. Nothing panics.
#[test]
fn wrong_values_are_left_out() {
    let topology = topology(
        r#"<system version="1"><cpu numaid="x" host_hash="zz" affinity="g,,1">
            <pci link_speed="fast" link_width="-3" device="0xzz">
              <gpu dev="99999999999" sm="-1" rank="a">
                <nvlink count="4294967295"/><nvlink count="5"/><c2c count="q"/>
              </gpu>
              <nic>
                <net name="" dev="-1" speed="inf"/><net net="0" name="gin"/><net dev="18446744073709551616"/>
              </nic>
              <surprise><pci/></surprise>
            </pci>
            <nic><net name="e" dev="1" speed="-1" gdr="yes"/></nic>
          </cpu></system>"#,
    );
    assert_eq!((topology.gpus.len(), topology.nics.len()), (1, 3));
    assert_eq!(topology.gpus[0].nvlink_count(), Some(u32::MAX));
    assert_eq!(topology.gpus[0].pcie, PcieLink::default());
    assert!(topology.nics.iter().all(|nic| nic.gbps.is_none()));
    let examination = examine_topology(Some(&topology), None);
    serde_json::to_string(&examination).unwrap();
}

#[test]
fn files_of_other_kinds_are_refused_with_advice() {
    let graph = |inner: &str| format!("<graphs version=\"1\">{inner}</graphs>");
    let many = format!("<graph id=\"0\">{}</graph>", "<channel/>".repeat(1025));
    let devices = "<pci><nic><net name=\"n\"/></nic></pci>".repeat(2049);
    for (text, part) in [
        ("<html/>".to_owned(), "neither a topology"),
        ("<system version=\"2\"><cpu/></system>".to_owned(), "version \"2\""),
        ("<system version=\"1\"/>".to_owned(), "no <cpu>"),
        (format!("<system><cpu>{devices}</cpu></system>"), "more than 2048"),
        (graph(""), "no <graph>"),
        (graph("<graph/>"), "attribute id"),
        (graph(&many), "1025 channels"),
        ("not xml".to_owned(), "no XML"),
    ] {
        let error = read_dump(&text, "x.xml").unwrap_err().to_string();
        assert!(error.starts_with("x.xml: ") && error.contains(part), "{error} / {part}");
    }
}

/// Each prefix of the files, and each file with a byte changed, is read or refused.
#[test]
fn cut_and_changed_files_do_not_panic() {
    for text in [P4D, SPARK, P4D_GRAPH, TWO_RANKS] {
        for end in (0..text.len()).step_by(97) {
            let _ = read_dump(&text[..end], "cut.xml");
        }
        let mut state = 1_u64;
        for _ in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut bytes = text.as_bytes().to_vec();
            let at = (state >> 20) as usize % bytes.len();
            bytes[at] = b"<>\"/0x9-& "[(state >> 50) as usize % 10];
            if let Ok(text) = String::from_utf8(bytes)
                && let Ok(TopologyDump::Topology(topology)) = read_dump(&text, "changed.xml")
            {
                examine_topology(Some(&topology), None);
            }
        }
    }
}

/// A topology file of a cloud may omit devices that NCCL finds by itself.
#[test]
fn a_file_without_gpus_says_that_nccl_adds_them() {
    let topology = topology(
        r#"<system version="1"><cpu numaid="0"><pci busid="0000:45:00.0">
            <pci busid="0000:4f:00.0" link_speed="32 GT/s PCIe"><nic><net name="rdmap79s0"/></nic></pci>
          </pci></cpu></system>"#,
    );
    assert_eq!(topology.nics[0].label, "NIC0");
    assert!(topology.unseen[0].starts_with("GPUs are not in this file"), "{:?}", topology.unseen);
    assert!(examine_topology(Some(&topology), None).findings.is_empty());
}

#[test]
fn masks_become_ranges() {
    for (mask, expected) in [
        ("0000ffff,0000000f", Some("0-3,32-47")),
        ("1", Some("0")),
        ("00000000,80000001", Some("0,31")),
        ("0", None),
        ("", None),
        ("xyz", None),
        ("123456789", None),
    ] {
        assert_eq!(cpu_ranges(mask).as_deref(), expected, "{mask}");
    }
}
