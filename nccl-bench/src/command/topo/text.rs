//! The topology as text: the matrix in the form of `nvidia-smi topo -m`, then the other facts.

use diagnosis::examination::{Body, Examination, Matrix};
use diagnosis::topology::Topology;
use diagnosis::topology::graph::{Graph, Graphs};
use diagnosis::topology::matrix::Device;

use super::Input;
use crate::command::doctor::output;
use crate::command::doctor::output::layout::{align_columns, plain_line};
use crate::command::doctor::output::text::render_details;

/// Returns the whole text.
pub(super) fn topology_text(input: &Input, examination: &Examination) -> String {
    let mut text = String::new();
    if let Some(topology) = &input.topology {
        if input.is_empty() {
            text += "No GPU and no NIC was found.\n";
        }
        let matrices = examination.sections.iter().filter_map(|section| match &section.body {
            Body::Matrix(matrix) if !matrix.labels.is_empty() => Some(matrix),
            _ => None,
        });
        matrices.for_each(|matrix| text += &matrix_text(topology, matrix));
    }
    let mut rest = examination.clone();
    rest.sections.retain(|section| match &section.body {
        Body::Matrix(_) => false,
        Body::Table { rows, .. } => !rows.is_empty(),
        _ => true,
    });
    text += &render_details(&[rest], &output::output_style());
    if input.graphs.as_ref().is_some_and(has_local_graph) {
        text += "\nLOC: inside one GPU, of one rank or of several that share it; nvidia-smi topo -m explains \
                 the other letters\n";
    }
    text.trim_start_matches('\n').to_owned()
}

/// Returns true when a graph stays inside a GPU. `nvidia-smi` has no letters for it.
fn has_local_graph(graphs: &Graphs) -> bool {
    let is_local = |graph: &Graph| {
        !graph.channels.is_empty()
            && [&graph.type_intra, &graph.type_inter].into_iter().flatten().any(|class| class == "LOC")
    };
    graphs.graphs.iter().any(is_local)
}

/// Returns the matrix with the CPUs and the NUMA node of each device, the legend, and the names of the NICs.
fn matrix_text(topology: &Topology, matrix: &Matrix) -> String {
    let affinity = ["CPU Affinity", "NUMA Affinity"].map(str::to_owned);
    let head = std::iter::once(String::new()).chain(matrix.labels.iter().cloned()).chain(affinity);
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    for ((label, cells), device) in matrix.labels.iter().zip(&matrix.cells).zip(Device::all(topology)) {
        // The cell of the device itself is indented, as in nvidia-smi.
        let cells =
            cells.iter().map(|cell| if cell.text == "X" { " X".to_owned() } else { cell.text.clone() });
        let place = device.place();
        let cpus = place.cpus.clone().unwrap_or_else(|| "N/A".to_owned());
        let numa = place.numa.map_or_else(|| "N/A".to_owned(), |node| node.to_string());
        rows.push(std::iter::once(label.clone()).chain(cells).chain([cpus, numa]).collect());
    }
    let mut text: String = align_columns(&rows).iter().map(|line| format!("{line}\n")).collect();
    text += "\nLegend\n";
    let legend: Vec<Vec<String>> =
        matrix.legend.iter().map(|(letters, words)| vec![format!("  {letters}"), words.clone()]).collect();
    align_columns(&legend).iter().for_each(|line| text += &format!("{line}\n"));
    if !topology.nics.is_empty() {
        text += "\nNIC legend\n";
        for nic in &topology.nics {
            text += &format!("  {}: {}\n", plain_line(&nic.label), plain_line(&nic.name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use diagnosis::topology::{TopologyDump, examine_topology, read_dump};

    use super::*;

    #[test]
    fn the_matrix_is_that_of_nvidia_smi() {
        const XML: &str = r#"<system version="1">
            <cpu numaid="0" affinity="0000000f">
              <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
                <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
                  <gpu dev="0" sm="80" rank="0">
                    <nvlink target="0000:21:00.0" count="4" tclass="0x030200"/>
                  </gpu>
                </pci>
                <pci busid="0000:12:00.0" class="0x020000">
                  <nic><net name="mlx5_0" dev="0" speed="100000"/></nic>
                </pci>
              </pci>
            </cpu>
            <cpu numaid="1" affinity="000000f0">
              <pci busid="0000:21:00.0" class="0x030200">
                <gpu dev="1" sm="80" rank="1">
                  <nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>
                </gpu>
              </pci>
            </cpu>
          </system>"#;
        let TopologyDump::Topology(topology) = read_dump(XML, "topo.xml").unwrap() else {
            panic!("no topology")
        };
        let examination = examine_topology(Some(&topology), None);
        let input = Input { topology: Some(topology), graphs: None };
        let text = topology_text(&input, &examination);
        let matrix = text.split("\nLegend").next().unwrap();
        assert_eq!(
            matrix,
            "      GPU0  GPU1  NIC0  CPU Affinity  NUMA Affinity\n\
             GPU0   X    NV4   PIX   0-3           0\n\
             GPU1  NV4    X    SYS   4-7           1\n\
             NIC0  PIX   SYS    X    0-3           0\n"
        );
        assert!(text.contains("  NIC0: mlx5_0\n"), "{text}");
        assert!(text.contains("P2P over NVLink"), "{text}");
    }
}
