use super::super::samples::{GB200, HGX, P4D, P5, SPARK, TWO_RANKS};
use super::super::{Dump, examine, read_dump};
use super::*;
use crate::topology::model::{Gpu, Locality, Nic, NumaNode, NvLink, NvLinkEnd};

fn drawing(text: &str) -> Drawing {
    let Ok(Dump::Topology(topology)) = read_dump(text, "topo.xml") else { panic!("no topology") };
    lay_out(&topology, &examine(Some(&topology), None).findings)
}

fn overlap(a: Frame, b: Frame) -> bool {
    a.x < b.right() && b.x < a.right() && a.y < b.bottom() && b.y < a.bottom()
}

/// Checks that no text covers another one or leaves the drawing, and that boxes of devices are apart.
fn check(name: &str, drawing: &Drawing) {
    let texts: Vec<(Frame, &Shape)> =
        drawing.shapes.iter().filter_map(|shape| Some((shape.text_frame()?, shape))).collect();
    assert!(!texts.is_empty(), "{name}");
    for (index, (frame, shape)) in texts.iter().enumerate() {
        assert!(frame.x >= 0.0 && frame.right() <= drawing.width, "{name}: {shape:?} leaves the drawing");
        assert!(frame.y >= 0.0 && frame.bottom() <= drawing.height, "{name}: {shape:?} leaves the drawing");
        for (other, other_shape) in &texts[..index] {
            assert!(!overlap(*frame, *other), "{name}: {shape:?} covers {other_shape:?}");
        }
    }
    let is_device = |class: &str| {
        ["gpu", "nic", "switch", "bridge", "cpu", "nvswitch", "label"]
            .iter()
            .any(|kind| class.starts_with(kind))
    };
    let boxes: Vec<Frame> = (drawing.shapes.iter())
        .filter_map(|shape| match shape {
            Shape::Box { class, frame, .. } if is_device(class) => Some(*frame),
            _ => None,
        })
        .collect();
    for (index, frame) in boxes.iter().enumerate() {
        assert!(frame.right() <= drawing.width && frame.bottom() <= drawing.height, "{name}: {frame:?}");
        assert!(
            boxes[..index].iter().all(|other| !overlap(*frame, *other)),
            "{name}: {frame:?} covers another box"
        );
    }
}

fn has_text(drawing: &Drawing, wanted: &str) -> bool {
    drawing.shapes.iter().any(|shape| matches!(shape, Shape::Text { text, .. } if text == wanted))
}

#[test]
fn texts_and_boxes_of_known_machines_do_not_overlap() {
    for (name, text) in
        [("hgx", HGX), ("p4d", P4D), ("p5", P5), ("spark", SPARK), ("gb200", GB200), ("vm", TWO_RANKS)]
    {
        check(name, &drawing(text));
    }
}

#[test]
fn eight_gpus_and_32_nics_are_all_drawn() {
    let drawing = drawing(P5);
    for number in 0..8 {
        assert!(has_text(&drawing, &format!("GPU{number}")), "GPU{number}");
    }
    let nics = drawing.shapes.iter().filter(|shape| matches!(shape, Shape::Box { class: "nic", .. })).count();
    assert_eq!(nics, 32);
    let links =
        drawing.shapes.iter().filter(|shape| matches!(shape, Shape::Line { class: "nvlink", .. })).count();
    assert_eq!(links, 8 * 18);
}

/// Long names, many host bridges, eight NUMA nodes, all pairs linked: all large parts at once.
#[test]
fn crowded_machines_do_not_overlap() {
    let place = |index: usize| Locality {
        numa: Some(index as u32 / 2),
        host_bridge: Some(format!("pci0000:{index:02x}")),
        ports: ["root", "up", "down", "up2", "down2"].iter().map(|port| format!("{port}-{index}")).collect(),
        ..Locality::default()
    };
    let gpus: Vec<Gpu> = (0..8)
        .map(|index| Gpu {
            label: format!("GPU{index}"),
            bus_id: index.to_string(),
            name: Some("NVIDIA RTX PRO 6000 Blackwell Server Edition".to_owned()),
            place: place(index),
            nvlinks: Some(
                (0..8)
                    .filter(|other| *other != index)
                    .map(|other| NvLink { to: NvLinkEnd::Gpu(other.to_string()), count: 2 })
                    .collect(),
            ),
            ..Gpu::default()
        })
        .collect();
    let nics = (0..48)
        .map(|index| Nic {
            label: format!("NIC{index}"),
            name: "a_very_long_name_of_an_rdma_device_WWWW".to_owned(),
            gbps: Some(123_456.789),
            state: Some("INITIALISING".to_owned()),
            place: place(index % 12),
            rdma: true,
            ..Nic::default()
        })
        .collect();
    let node = |id| NumaNode {
        id: Some(id),
        cpus: Some("0-9,11-19,21-29,31-39,41-49,51-59,61-69".to_owned()),
        model: Some("AMD EPYC 9654 96-Core Processor".to_owned()),
        host: 0,
    };
    let mut topology = Topology {
        numa_nodes: (0..8).map(node).collect(),
        gpus,
        nics,
        unseen: vec!["word ".repeat(300), "W".repeat(900)],
        ..Topology::default()
    };
    check("crowded", &lay_out(&topology, &examine(Some(&topology), None).findings));
    topology.gpus.clear();
    check("NICs only", &lay_out(&topology, &[]));
    topology.nics.clear();
    check("nothing", &lay_out(&topology, &[]));
    check("empty", &lay_out(&Topology::default(), &[]));
}

#[test]
fn devices_of_findings_are_marked_and_missing_links_drawn() {
    let text = HGX.replacen("count=\"18\"", "count=\"16\"", 1);
    let drawing = drawing(&text);
    let marked =
        drawing.shapes.iter().filter(|shape| matches!(shape, Shape::Box { class: "gpu marked", .. })).count();
    assert_eq!(marked, 1);
    let missing = drawing
        .shapes
        .iter()
        .filter(|shape| matches!(shape, Shape::Line { class: "nvlink missing", .. }))
        .count();
    assert_eq!(missing, 2);
    assert!(has_text(&drawing, "NV16"));
    assert!(has_text(&drawing, "GPU0 has fewer NVLinks than the 18 of the other GPUs of this product."));
}
