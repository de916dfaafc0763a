//! Positions of NUMA nodes, host bridges, switches, NICs and GPUs, and the PCIe links between them.

use super::text::{first_fitting, fit, width};
use super::tree::{Branch, Kind, grow};
use super::{Anchor, Drawing, Frame};
use crate::topology::model::{Gpu, Nic, NumaNode, Topology};

/// Width of a column of devices.
const COLUMN: f64 = 154.0;
/// Distance between columns, and between branches.
const GAP: f64 = 10.0;
/// Distance between NUMA nodes.
const BETWEEN_NODES: f64 = 44.0;
/// Space between the frame of a NUMA node and its content.
const PADDING: f64 = 12.0;
/// Height of a NUMA node's box.
const NODE: f64 = 48.0;
/// Height of a bar, and of the space below it.
const BAR: f64 = 24.0;
const BELOW_BAR: f64 = 18.0;
/// Height of a NIC, and of the space below it.
const NIC: f64 = 38.0;
const BELOW_NIC: f64 = 8.0;
/// Height of a GPU.
pub(super) const GPU: f64 = 84.0;
/// Distance of a device from the left edge of its column. The line from above runs there.
const TRUNK: f64 = 15.0;
/// Width of the texts of a NIC, and size of its name.
const NIC_TEXT: f64 = COLUMN - TRUNK - 14.0;
const NAME: f64 = 12.0;

/// The positions on a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Placed {
    nodes: Vec<(Branch, Frame)>,
    bars: Vec<(Kind, String, Frame)>,
    /// GPUs by their index in the topology.
    pub(super) gpus: Vec<(usize, Frame)>,
    nics: Vec<(usize, Frame)>,
    links: Vec<Vec<(f64, f64)>>,
    /// Right edge.
    pub(super) right: f64,
    /// Lower edge.
    pub(super) bottom: f64,
}

/// Places the devices of a host, from a corner on.
pub(super) fn place(topology: &Topology, host: u32, (left, top): (f64, f64)) -> Placed {
    let nodes = grow(topology, host);
    let depth = nodes.iter().map(Branch::depth).max().unwrap_or(1) - 1;
    let stack = nodes.iter().map(Branch::stack).max().unwrap_or(0);
    let has_gpu = nodes.iter().any(Branch::has_gpu);
    let levels = Levels {
        bars: top + PADDING + NODE + BELOW_BAR,
        devices: top + PADDING + NODE + BELOW_BAR + depth as f64 * (BAR + BELOW_BAR),
        stack,
    };
    let mut placed =
        Placed { bottom: levels.gpus() + if has_gpu { GPU } else { 0.0 } + PADDING, ..Placed::default() };
    let mut x = left;
    for node in nodes {
        let frame = Frame { x, y: top, width: breadth(&node) + 2.0 * PADDING, height: placed.bottom - top };
        let head = top + PADDING + NODE;
        placed.spread(&node, x + PADDING, head, 0, &levels);
        x = frame.right() + BETWEEN_NODES;
        placed.right = frame.right();
        placed.nodes.push((node, frame));
    }
    placed
}

/// Heights common to all branches.
struct Levels {
    /// Upper edge of the first bars.
    bars: f64,
    /// Upper edge of the NICs.
    devices: f64,
    stack: usize,
}

impl Levels {
    fn gpus(&self) -> f64 {
        self.devices + self.stack as f64 * (NIC + BELOW_NIC)
    }
}

/// Returns the width of a branch.
fn breadth(branch: &Branch) -> f64 {
    let columns = branch.columns.iter().map(|_| COLUMN);
    let parts: Vec<f64> = columns.chain(branch.branches.iter().map(breadth)).collect();
    let gaps = GAP * parts.len().saturating_sub(1) as f64;
    // A node without devices has its own text.
    (parts.iter().sum::<f64>() + gaps).max(COLUMN)
}

impl Placed {
    /// Places the devices below a branch with this lower edge.
    fn spread(&mut self, branch: &Branch, left: f64, above: f64, level: usize, levels: &Levels) {
        let mut x = left;
        for column in &branch.columns {
            let trunk = x + 5.0;
            let device = |y, height| Frame { x: x + TRUNK, y, width: COLUMN - TRUNK, height };
            let mut lowest = above;
            for (position, nic) in column.nics.iter().enumerate() {
                let frame = device(levels.devices + position as f64 * (NIC + BELOW_NIC), NIC);
                self.nics.push((*nic, frame));
                lowest = frame.y + NIC / 2.0;
                self.links.push(vec![(trunk, lowest), (frame.x, lowest)]);
            }
            if let Some(gpu) = column.gpu {
                let frame = device(levels.gpus(), GPU);
                self.gpus.push((gpu, frame));
                lowest = frame.y + 22.0;
                self.links.push(vec![(trunk, lowest), (frame.x, lowest)]);
            }
            self.links.push(vec![(trunk, above), (trunk, lowest)]);
            x += COLUMN + GAP;
        }
        for below in &branch.branches {
            let y = levels.bars + level as f64 * (BAR + BELOW_BAR);
            let frame = Frame { x, y, width: breadth(below), height: BAR };
            self.links.push(vec![(frame.middle(), above), (frame.middle(), y)]);
            self.bars.push((below.kind, below.key.clone(), frame));
            self.spread(below, x, frame.bottom(), level + 1, levels);
            x = frame.right() + GAP;
        }
    }
}

/// Draws the placed devices.
pub(super) fn draw(
    drawing: &mut Drawing,
    topology: &Topology,
    placed: &Placed,
    is_marked: &dyn Fn(&str) -> bool,
) {
    for (_, frame) in &placed.nodes {
        drawing.rectangle("node", *frame, String::new());
    }
    for pair in placed.nodes.windows(2) {
        if let [(_, left), (_, right)] = pair {
            interconnect(drawing, *left, *right);
        }
    }
    for link in &placed.links {
        drawing.line("pcie", link.clone());
    }
    for (branch, frame) in &placed.nodes {
        draw_node(drawing, topology, branch, *frame);
    }
    for (kind, key, frame) in &placed.bars {
        let (class, texts) = match kind {
            Kind::Switch => ("switch", ["PCIe switch ", "switch ", ""]),
            _ => ("bridge", ["PCIe host bridge ", "host bridge ", ""]),
        };
        drawing.rectangle(class, *frame, format!("{}{key}", texts[0]));
        let text = first_fitting(&texts.map(|text| format!("{text}{key}")), 11.0, frame.width - 8.0);
        drawing.text("bar", (frame.middle(), frame.y + 16.0), Anchor::Middle, 11.0, text);
    }
    // The name is typed in variables, so it has priority for the space.
    let with_label = topology.nics.iter().all(|nic| width(&labelled(nic), NAME) <= NIC_TEXT);
    for (index, frame) in &placed.nics {
        draw_nic(drawing, &topology.nics[*index], *frame, with_label, is_marked);
    }
    for (index, frame) in &placed.gpus {
        draw_gpu(drawing, &topology.gpus[*index], *frame, is_marked);
    }
}

/// Draws the link between two neighbouring NUMA nodes.
fn interconnect(drawing: &mut Drawing, left: Frame, right: Frame) {
    let y = left.y + PADDING + NODE / 2.0;
    drawing.line("interconnect", vec![(left.right() - PADDING, y), (right.x + PADDING, y)]);
    let middle = (left.right() + right.x) / 2.0;
    drawing.text("muted", (middle, y - 8.0), Anchor::Middle, 11.0, "SYS".to_owned());
}

fn draw_node(drawing: &mut Drawing, topology: &Topology, branch: &Branch, frame: Frame) {
    let head = Frame {
        x: frame.x + PADDING,
        y: frame.y + PADDING,
        width: frame.width - 2.0 * PADDING,
        height: NODE,
    };
    let id = branch.key.parse::<u32>().ok();
    let node: Option<&NumaNode> = topology.numa_nodes.iter().find(|node| node.id == id);
    let title = if branch.key.is_empty() {
        "NUMA node not known".to_owned()
    } else {
        format!("NUMA node {}", branch.key)
    };
    let cpus =
        node.and_then(|node| node.cpus.as_ref()).map(|cpus| format!("CPUs {cpus}")).unwrap_or_default();
    let model = node.and_then(|node| node.model.clone()).unwrap_or_default();
    drawing.rectangle("cpu", head, [title.as_str(), &cpus, &model].join("\n").trim().to_owned());
    let room = head.width - 20.0;
    let title = fit(&title, 14.0, room);
    let rest = room - width(&title, 14.0) - 16.0;
    drawing.text("strong oncpu", (head.x + 10.0, head.y + 20.0), Anchor::Start, 14.0, title);
    drawing.text("oncpu", (head.x + 10.0, head.y + 38.0), Anchor::Start, 12.0, fit(&cpus, 12.0, room));
    if rest > 90.0 {
        drawing.text(
            "oncpu",
            (head.right() - 10.0, head.y + 20.0),
            Anchor::End,
            12.0,
            fit(&model, 12.0, rest),
        );
    }
}

fn labelled(nic: &Nic) -> String {
    format!("{} {}", nic.label, nic.name)
}

fn draw_nic(
    drawing: &mut Drawing,
    nic: &Nic,
    frame: Frame,
    with_label: bool,
    is_marked: &dyn Fn(&str) -> bool,
) {
    let rate = nic.gbps.map(|gbps| format!("{gbps} Gb/s")).unwrap_or_default();
    let state =
        nic.state.clone().filter(|state| !["ACTIVE", "UP"].contains(&state.as_str())).unwrap_or_default();
    let link = nic.pcie.text();
    let joined = |parts: &[&String], between: &str| {
        let parts: Vec<&str> =
            parts.iter().map(|part| part.as_str()).filter(|part| !part.is_empty()).collect();
        parts.join(between)
    };
    let bus_id = nic.bus_id.clone().unwrap_or_default();
    let interface = nic.interface.clone().unwrap_or_default();
    let hint = [&labelled(nic), &interface, &bus_id, &rate, &link, &state];
    let class = if is_marked(&nic.label) {
        "nic marked"
    } else if state.is_empty() {
        "nic"
    } else {
        "nic down"
    };
    drawing.rectangle(class, frame, joined(&hint, "\n"));
    let room = NIC_TEXT;
    let name = if with_label { labelled(nic) } else { nic.name.clone() };
    let name = fit(&name, NAME, room);
    drawing.text("strong", (frame.x + 7.0, frame.y + 16.0), Anchor::Start, NAME, name);
    let first = if state.is_empty() { rate } else { state };
    let details = first_fitting(&[joined(&[&first, &link], ", "), first], 11.0, room);
    drawing.text("muted", (frame.x + 7.0, frame.y + 31.0), Anchor::Start, 11.0, details);
}

fn draw_gpu(drawing: &mut Drawing, gpu: &Gpu, frame: Frame, is_marked: &dyn Fn(&str) -> bool) {
    let product = gpu.product().unwrap_or_default();
    let link = gpu.pcie.text();
    let links = gpu.nvlink_count().map(|count| format!("{count} NVLinks")).unwrap_or_default();
    let hint: Vec<&str> = [gpu.label.as_str(), product, &gpu.bus_id, &link, &links]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    drawing.rectangle(if is_marked(&gpu.label) { "gpu marked" } else { "gpu" }, frame, hint.join("\n"));
    let room = frame.width - 16.0;
    let x = frame.x + 8.0;
    drawing.text("strong ongpu", (x, frame.y + 22.0), Anchor::Start, 16.0, fit(&gpu.label, 16.0, room));
    let ranks: Vec<String> = gpu.ranks.iter().map(u32::to_string).collect();
    let own = (ranks.len() == 1 && gpu.ranks[0] == gpu.index) || ranks.is_empty();
    let place = if own { link } else { format!("rank {} {link}", ranks.join(",")) };
    for (line, text) in [product, &place, &gpu.bus_id].into_iter().enumerate() {
        let y = frame.y + 40.0 + 16.0 * line as f64;
        drawing.text("ongpu", (x, y), Anchor::Start, 11.0, fit(text, 11.0, room));
    }
}
