//! Facts and findings about a topology and NCCL's graphs.

use std::collections::BTreeMap;

use serde_json::json;

use super::findings;
use super::graph::{Channel, Graph, Graphs, Stop};
use super::matrix::{Device, all_paths, device_table, path_between, topology_matrix, transport_table};
use super::model::{Topology, TopologyNic};
use super::path::Path;
use crate::examination::{Body, Examination, Section};
use crate::words::{self, plural};

/// Examines a topology, NCCL's graphs, or both of one job.
pub fn examine_topology(topology: Option<&Topology>, graphs: Option<&Graphs>) -> Examination {
    let mut examination = Examination::new("topology");
    if let Some(topology) = topology {
        examination.unseen.clone_from(&topology.unseen);
        let body = Body::Facts(summarize_topology(topology));
        examination.sections.push(Section { title: "Topology".to_owned(), body });
        let body = Body::Matrix(topology_matrix(topology));
        examination.sections.push(Section { title: "Paths".to_owned(), body });
        examination.sections.push(device_table(topology));
        examination.sections.push(transport_table(topology));
        examination.proof = state_proof(topology);
        examination.findings = findings::find_problems(topology);
    }
    if let Some(graphs) = graphs {
        examination.sections.push(graph_table(graphs));
        for graph in graphs.graphs.iter().filter(|graph| !graph.channels.is_empty()) {
            examination.sections.push(channel_table(graph, topology));
        }
        if graphs.net_devices().is_empty() {
            examination.unseen.push(
                "NICs are in no channel: the job runs on one host, and NCCL uses no NIC there".to_owned(),
            );
        }
        if let Some(topology) = topology {
            examination.findings.extend(findings::unused_nics(topology, graphs));
        }
    }
    examination.facts = json!({
        "topology": topology,
        "labels": topology.map(list_labels),
        "paths": topology.map(all_paths),
        "graphs": graphs,
    });
    examination.sort_findings();
    examination
}

/// Returns the labels of all devices.
fn list_labels(topology: &Topology) -> Vec<String> {
    Device::all(topology).iter().map(|device| device.label().to_owned()).collect()
}

/// Returns the facts in short, with their names.
pub(super) fn summarize_topology(topology: &Topology) -> Vec<(String, String)> {
    let mut facts = vec![("source".to_owned(), topology.source.clone())];
    if topology.host_count() > 1 {
        facts.push(("hosts".to_owned(), topology.host_count().to_string()));
    }
    let products =
        count_names(topology.gpus.iter().map(|gpu| gpu.name.clone().unwrap_or_else(|| "GPU".to_owned())));
    facts.push(("GPUs".to_owned(), or_none(products)));
    if let Some(text) = nvlink_summary(topology) {
        facts.push(("NVLink".to_owned(), text));
    }
    facts.push(("NICs".to_owned(), or_none(count_names(topology.nics.iter().map(describe_nic)))));
    let told: Vec<bool> = topology.nics.iter().filter(|nic| nic.rdma).filter_map(|nic| nic.gdr).collect();
    if !told.is_empty() {
        let with = told.iter().filter(|gdr| **gdr).count();
        facts.push(("GPUDirect RDMA".to_owned(), format!("NCCL found it on {with} of {} NICs", told.len())));
    }
    for node in &topology.numa_nodes {
        let id = node.id.map_or("-1".to_owned(), |id| id.to_string());
        let host = if topology.host_count() > 1 { format!("host {} ", node.host) } else { String::new() };
        let cpus = node.cpus.as_ref().map(|cpus| format!("CPUs {cpus}"));
        let model = node.model.clone();
        let text = [cpus, model].into_iter().flatten().collect::<Vec<_>>().join(", ");
        facts.push((format!("{host}NUMA node {id}"), or_none(text)));
    }
    if topology.is_virtual {
        facts.push(("machine".to_owned(), "virtual".to_owned()));
    }
    facts
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

/// Returns `400 Gb/s InfiniBand`.
fn describe_nic(nic: &TopologyNic) -> String {
    let rate = nic.gbps.map(|gbps| format!("{gbps} Gb/s"));
    let layer = nic.link_layer.clone();
    let use_ = (!nic.rdma).then(|| "(no RDMA)".to_owned());
    let text = [rate, layer, use_].into_iter().flatten().collect::<Vec<_>>().join(" ");
    if text.is_empty() { "of unknown rate".to_owned() } else { text }
}

/// Returns `8 x NVIDIA H100, 1 x NVIDIA T400`.
fn count_names(names: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts.iter().map(|(name, count)| format!("{count} x {name}")).collect::<Vec<_>>().join(", ")
}

fn nvlink_summary(topology: &Topology) -> Option<String> {
    let counts: Vec<u32> = topology.gpus.iter().filter_map(super::model::TopologyGpu::nvlink_count).collect();
    let (least, most) = (*counts.iter().min()?, *counts.iter().max()?);
    let to =
        match (topology.gpus.iter().any(|gpu| gpu.switch_links() > 0), findings::is_direct(&topology.gpus)) {
            (true, _) => "to NVSwitch",
            (false, true) => "directly between GPUs",
            (false, false) => "",
        };
    Some(match (least, most) {
        (0, 0) => "none active".to_owned(),
        (least, most) if least == most => format!("{most} links per GPU {to}"),
        (least, most) => format!("{least} to {most} links per GPU {to}"),
    })
}

/// Returns statements proven by the topology.
fn state_proof(topology: &Topology) -> Vec<String> {
    let mut proof = Vec::new();
    let gpus = &topology.gpus;
    let pairs: Vec<Path> = (0..gpus.len())
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .map(|(a, b)| path_between(topology, Device::Gpu(&gpus[a]), Device::Gpu(&gpus[b])))
        .collect();
    let least =
        pairs.iter().map(|path| if let Path::NvLink(links) = path { *links } else { 0 }).min().unwrap_or(0);
    if least > 0 {
        let all = match (pairs.len(), gpus.len()) {
            (1, _) => "the 2 GPUs".to_owned(),
            (pairs, gpus) => format!("all {pairs} pairs of {gpus} GPUs"),
        };
        proof.push(format!("NVLink (at least {least} links) between {all}"));
    }
    let nics: Vec<&TopologyNic> = topology.nics.iter().filter(|nic| nic.rdma).collect();
    let near =
        |gpu| nics.iter().any(|nic| path_between(topology, Device::Gpu(gpu), Device::Nic(nic)) <= Path::Pxb);
    if !gpus.is_empty() && gpus.iter().all(near) {
        proof.push(format!(
            "each of {} GPUs has a NIC within PIX or PXB: data need not pass the CPU",
            gpus.len()
        ));
    }
    let full =
        |gpu: &super::model::TopologyGpu| gpu.pcie.width.is_some() && gpu.pcie.width == gpu.pcie.max_width;
    if !gpus.is_empty() && gpus.iter().all(full) {
        let have = plural(gpus.len(), "has", "have");
        proof.push(format!("the PCIe links of {} {have} all lanes", words::counted(gpus.len(), "GPU")));
    }
    proof
}

fn graph_table(graphs: &Graphs) -> Section {
    let columns = ["graph", "pattern", "channels", "in host", "GB/s", "between hosts", "GB/s", "cross NIC"];
    let speed = |per_channel: Option<f64>, total: Option<f64>| match (per_channel, total) {
        (Some(per_channel), Some(total)) if total > 0.0 => format!("{total} ({per_channel} a channel)"),
        _ => "-".to_owned(),
    };
    let row = |graph: &Graph| {
        let unused = graph.channels.is_empty();
        let class =
            |class: &Option<String>| class.clone().filter(|_| !unused).unwrap_or_else(|| "-".to_owned());
        vec![
            graph.algorithm.clone(),
            graph.pattern.to_owned(),
            if unused { "not possible".to_owned() } else { graph.channels.len().to_string() },
            class(&graph.type_intra),
            speed(graph.speed_intra, graph.total_intra()),
            class(&graph.type_inter),
            speed(graph.speed_inter, graph.total_inter()),
            if graph.cross_nic { "yes" } else { "no" }.to_owned(),
        ]
    };
    let rows = graphs.graphs.iter().map(row).collect();
    Section {
        title: format!("Graphs of {}", graphs.source),
        body: Body::Table { columns: columns.map(str::to_owned).to_vec(), rows },
    }
}

/// Returns the channels of a graph, equal ones together.
fn channel_table(graph: &Graph, topology: Option<&Topology>) -> Section {
    let several = graph
        .channels
        .iter()
        .flat_map(|channel| &channel.stops)
        .any(|stop| matches!(stop, Stop::Gpu { host: 1.., .. } | Stop::Net { host: 1.., .. }));
    let line = |(numbers, channel): (Vec<u32>, &Channel)| {
        let stops: Vec<String> = channel.stops.iter().map(|stop| name(*stop, several, topology)).collect();
        let stops = if stops.is_empty() { "no device".to_owned() } else { stops.join(" > ") };
        format!("{}: {stops}", words::ranges_text(&numbers))
    };
    Section {
        title: format!("{}: channels", graph.algorithm),
        body: Body::Lines(graph.distinct_channels().into_iter().map(line).collect()),
    }
}

/// Returns the label of a device of a channel. A NIC has its name, if the topology is known.
fn name(stop: Stop, several_hosts: bool, topology: Option<&Topology>) -> String {
    let prefix = |host: u32| if several_hosts { format!("{host}:") } else { String::new() };
    match stop {
        Stop::Gpu { host, dev, rank } => {
            let rank =
                rank.filter(|rank| *rank != dev).map(|rank| format!(" (rank {rank})")).unwrap_or_default();
            format!("{}GPU{dev}{rank}", prefix(host))
        }
        Stop::Net { host, dev } => {
            let is_it = |nic: &&TopologyNic| nic.dev == Some(dev) && nic.place.host == host;
            let nic = topology.and_then(|topology| topology.nics.iter().find(is_it));
            let name = nic.map(|nic| format!(" ({})", nic.name)).unwrap_or_default();
            format!("{}NIC{dev}{name}", prefix(host))
        }
    }
}
