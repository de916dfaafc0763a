//! NCCL's graph file (`NCCL_GRAPH_DUMP_FILE`): the channels of rings and trees.
//!
//! `graphs` > `graph` > `channel` > `net`, `gpu`. Numbers of devices are decimal up to NCCL 2.18 and
//! hexadecimal with `0x` later. Their highest byte is the number of the host.

use roxmltree::Node;
use serde::Serialize;

use super::xml::{check_version, child_elements, number_attribute};

/// Most channels of a graph. NCCL has 64 at most.
const MOST_CHANNELS: usize = 1024;

/// The graphs of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graphs {
    /// Name of the file.
    pub source: String,
    /// The graphs, in the order of the file.
    pub graphs: Vec<Graph>,
}

/// A graph: the channels of an algorithm.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    /// Number in NCCL: 0 ring, 1 tree, 2 CollNet chain, 3 NVLS, 4 CollNet direct.
    pub id: i32,
    /// Name of the algorithm.
    pub algorithm: String,
    /// Pattern of the search, in words.
    pub pattern: &'static str,
    /// True if a channel may use different NICs for sending and receiving.
    pub cross_nic: bool,
    /// Bandwidth of a channel within the host in GB/s.
    pub speed_intra: Option<f64>,
    /// Bandwidth of a channel between hosts in GB/s.
    pub speed_inter: Option<f64>,
    /// Worst class of path between GPUs: `NVL`, `PIX`.
    pub type_intra: Option<String>,
    /// Worst class of path between GPU and NIC.
    pub type_inter: Option<String>,
    /// The channels.
    pub channels: Vec<Channel>,
}

/// A channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Channel {
    /// The devices, in the order of the ring, chain or tree.
    pub stops: Vec<Stop>,
}

/// A device of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// A GPU.
    Gpu {
        /// Number of the host.
        host: u32,
        /// Number in the driver.
        dev: u32,
        /// Rank, from NCCL 2.30 on.
        rank: Option<u32>,
    },
    /// A network device.
    Net {
        /// Number of the host.
        host: u32,
        /// Number in NCCL.
        dev: u32,
    },
}

pub(super) fn read_graphs(root: Node<'_, '_>, name: &str) -> Result<Graphs, String> {
    check_version(root)?;
    let mut graphs = Vec::new();
    for graph in child_elements(root, "graph") {
        graphs.push(read_graph(graph)?);
    }
    if graphs.is_empty() {
        return Err("<graphs> has no <graph>; NCCL writes it when a communicator starts".to_owned());
    }
    Ok(Graphs { source: name.to_owned(), graphs })
}

fn read_graph(node: Node<'_, '_>) -> Result<Graph, String> {
    let id = number_attribute(node, "id").ok_or("a <graph> has no number in its attribute id")?;
    let channels: Vec<Channel> = child_elements(node, "channel").map(read_channel).collect();
    if channels.len() > MOST_CHANNELS {
        return Err(format!("graph {id} has {} channels; NCCL has 64 at most", channels.len()));
    }
    let speed =
        |name: &str| number_attribute(node, name).filter(|speed: &f64| speed.is_finite() && *speed >= 0.0);
    Ok(Graph {
        id,
        algorithm: algorithm_name(id),
        pattern: pattern_name(number_attribute(node, "pattern").unwrap_or(0)),
        cross_nic: number_attribute::<i32>(node, "crossnic").is_some_and(|cross| cross > 0),
        speed_intra: speed("speedintra"),
        speed_inter: speed("speedinter"),
        type_intra: node.attribute("typeintra").map(str::to_owned),
        type_inter: node.attribute("typeinter").map(str::to_owned),
        channels,
    })
}

fn read_channel(node: Node<'_, '_>) -> Channel {
    let stops = node.children().filter_map(|child| {
        let (host, dev) = parse_device(child.attribute("dev")?)?;
        match child.tag_name().name() {
            "gpu" => Some(Stop::Gpu { host, dev, rank: number_attribute(child, "rank") }),
            "net" => Some(Stop::Net { host, dev }),
            _ => None,
        }
    });
    Channel { stops: stops.collect() }
}

/// Returns the host and number of a device.
fn parse_device(text: &str) -> Option<(u32, u32)> {
    let text = text.trim();
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    Some(((number >> 56) as u32, u32::try_from(number & ((1 << 56) - 1)).ok()?))
}

fn algorithm_name(id: i32) -> String {
    match id {
        0 => "Ring",
        1 => "Tree",
        2 => "CollNet chain",
        3 => "NVLS",
        4 => "CollNet direct",
        other => return format!("graph {other}"),
    }
    .to_owned()
}

fn pattern_name(number: i32) -> &'static str {
    match number {
        1 => "balanced tree",
        2 => "split tree",
        3 => "tree",
        4 => "ring",
        5 => "NVLS",
        6 => "CollNet direct",
        _ => "unknown",
    }
}

impl Graph {
    /// Returns the total bandwidth within the host in GB/s: a channel's bandwidth times the number of
    /// channels.
    pub fn total_intra(&self) -> Option<f64> {
        self.speed_intra.map(|speed| speed * self.channels.len() as f64)
    }

    /// Returns the total bandwidth between hosts in GB/s.
    pub fn total_inter(&self) -> Option<f64> {
        self.speed_inter.map(|speed| speed * self.channels.len() as f64)
    }

    /// Returns groups of equal channels, with their numbers, in the order of each group's first channel.
    pub fn distinct_channels(&self) -> Vec<(Vec<u32>, &Channel)> {
        let mut distinct: Vec<(Vec<u32>, &Channel)> = Vec::new();
        let mut known: std::collections::HashMap<&Channel, usize> = std::collections::HashMap::new();
        for (index, channel) in (0..).zip(&self.channels) {
            let at = *known.entry(channel).or_insert_with(|| {
                distinct.push((Vec::new(), channel));
                distinct.len() - 1
            });
            distinct[at].0.push(index);
        }
        distinct
    }
}

impl Graphs {
    /// Returns the network devices in channels, each once.
    pub fn net_devices(&self) -> Vec<(u32, u32)> {
        let stops = self.graphs.iter().flat_map(|graph| &graph.channels).flat_map(|channel| &channel.stops);
        let nets = stops
            .filter_map(|stop| if let Stop::Net { host, dev } = stop { Some((*host, *dev)) } else { None });
        let mut nets: Vec<(u32, u32)> = nets.collect();
        nets.sort_unstable();
        nets.dedup();
        nets
    }

    /// Returns the GPUs in channels, each once.
    pub fn gpu_devices(&self) -> Vec<(u32, u32)> {
        let stops = self.graphs.iter().flat_map(|graph| &graph.channels).flat_map(|channel| &channel.stops);
        let gpus =
            stops.filter_map(
                |stop| if let Stop::Gpu { host, dev, .. } = stop { Some((*host, *dev)) } else { None },
            );
        let mut gpus: Vec<(u32, u32)> = gpus.collect();
        gpus.sort_unstable();
        gpus.dedup();
        gpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_are_decimal_or_hexadecimal_with_the_host_above() {
        for (text, expected) in [
            ("10", Some((0, 10))),
            ("0xa", Some((0, 10))),
            ("0x10000000000000a", Some((1, 10))),
            ("0", Some((0, 0))),
            ("", None),
            ("-1", None),
            ("0xffffffffffffffff", None),
            ("0x", None),
        ] {
            assert_eq!(parse_device(text), expected, "{text}");
        }
    }
}
