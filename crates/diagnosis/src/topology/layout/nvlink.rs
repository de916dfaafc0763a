//! NVLink below the GPUs: a line per link to NVSwitch, or a track per pair of GPUs.

use super::pcie::Placed;
use super::{Anchor, Drawing, Frame};
use crate::topology::model::{Gpu, NvLinkEnd, Topology};

/// Height of the links between GPUs and NVSwitch.
const BUNDLE: f64 = 56.0;
/// Height of NVSwitch.
const SWITCH: f64 = 34.0;
/// Space of a bundle below a GPU, and between two of its lines.
const BUNDLE_WIDTH: f64 = 70.0;
const BETWEEN_LINES: f64 = 5.5;
/// Distance between two tracks.
const TRACK: f64 = 22.0;
/// Largest number of links drawn as separate lines.
const MOST_LINES: u32 = 36;

/// Draws the links. Returns the lower edge.
pub(super) fn draw(drawing: &mut Drawing, topology: &Topology, placed: &Placed) -> f64 {
    let gpus: Vec<(&Gpu, Frame)> =
        placed.gpus.iter().map(|(index, frame)| (&topology.gpus[*index], *frame)).collect();
    let pairs = pairs(&gpus);
    let mut bottom = placed.bottom;
    if !pairs.is_empty() {
        bottom = tracks(drawing, &gpus, &pairs, bottom);
    }
    let most = topology.gpus.iter().map(Gpu::switch_links).max().unwrap_or(0);
    if gpus.iter().any(|(gpu, _)| gpu.switch_links() > 0) {
        let name = if topology.hosts() > 1 { "NVSwitch, common to the hosts" } else { "NVSwitch" };
        bottom = switch(drawing, &gpus, bottom, most, name);
    }
    bottom
}

/// Draws NVSwitch with a bundle of lines to each GPU. Missing links of a GPU, compared with the GPU with most
/// links, are marked.
fn switch(drawing: &mut Drawing, gpus: &[(&Gpu, Frame)], above: f64, most: u32, name: &str) -> f64 {
    let top = above + BUNDLE - 12.0;
    let left = gpus.iter().map(|(_, frame)| frame.x).fold(f64::INFINITY, f64::min);
    let right = gpus.iter().map(|(_, frame)| frame.right()).fold(0.0, f64::max);
    let lines = most.min(MOST_LINES);
    let between = (BUNDLE_WIDTH / f64::from(lines.max(1))).min(BETWEEN_LINES);
    for (gpu, frame) in gpus {
        let links = gpu.switch_links();
        for line in 0..lines {
            let x = frame.x + 10.0 + f64::from(line) * between;
            let class = if line < links { "nvlink" } else { "nvlink missing" };
            drawing.line(class, vec![(x, frame.bottom()), (x, top)]);
        }
        let class = if links < most { "alarm" } else { "strong" };
        let at = (frame.right() - 2.0, above + (top - above) / 2.0 + 4.0);
        drawing.text(class, at, Anchor::End, 12.0, format!("NV{links}"));
    }
    let frame = Frame { x: left, y: top, width: right - left, height: SWITCH };
    drawing.rectangle("nvswitch", frame, "NVLink switches".to_owned());
    let text = super::text::fit(name, 15.0, frame.width - 8.0);
    drawing.text("strong ongpu", (frame.middle(), frame.y + 22.0), Anchor::Middle, 15.0, text);
    frame.bottom()
}

/// A pair of GPUs, by their position in the row, and its number of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Linked {
    a: usize,
    b: usize,
    links: u32,
}

fn pairs(gpus: &[(&Gpu, Frame)]) -> Vec<Linked> {
    let mut pairs = Vec::new();
    for (a, (gpu, _)) in gpus.iter().enumerate() {
        for link in gpu.nvlinks.iter().flatten() {
            let NvLinkEnd::Gpu(bus_id) = &link.to else { continue };
            let other = gpus.iter().position(|(other, _)| other.bus_id == *bus_id);
            if let Some(b) = other.filter(|b| *b != a) {
                let pair = Linked { a: a.min(b), b: a.max(b), links: link.count };
                if !pairs.iter().any(|known: &Linked| (known.a, known.b) == (pair.a, pair.b)) {
                    pairs.push(pair);
                }
            }
        }
    }
    // Short ones come first, to get the upper tracks.
    pairs.sort_by_key(|pair| (pair.b - pair.a, pair.a));
    pairs
}

/// Draws a horizontal line for each pair, with vertical lines to both GPUs. Returns the lower edge.
fn tracks(drawing: &mut Drawing, gpus: &[(&Gpu, Frame)], pairs: &[Linked], above: f64) -> f64 {
    // Each end has its own place below its GPU, from left to right by the other end's position.
    let end = |gpu: usize, pair: &Linked| {
        let mut others: Vec<usize> = (pairs.iter())
            .filter(|other| other.a == gpu || other.b == gpu)
            .map(|other| other.a + other.b - gpu)
            .collect();
        others.sort_unstable();
        let frame = gpus[gpu].1;
        let at = others.iter().position(|other| *other == pair.a + pair.b - gpu).unwrap_or(0);
        frame.x + frame.width * (at as f64 + 1.0) / (others.len() as f64 + 1.0)
    };
    let mut taken: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut labels = Vec::new();
    for pair in pairs {
        let (left, right) = (end(pair.a, pair), end(pair.b, pair));
        let is_free =
            |track: &Vec<(f64, f64)>| track.iter().all(|(from, to)| right + 8.0 < *from || left - 8.0 > *to);
        let track = taken.iter().position(is_free).unwrap_or_else(|| {
            taken.push(Vec::new());
            taken.len() - 1
        });
        taken[track].push((left, right));
        let y = above + 14.0 + TRACK * track as f64;
        let bottom = gpus[pair.a].1.bottom();
        drawing.line("nvlink track", vec![(left, bottom), (left, y), (right, y), (right, bottom)]);
        labels.push(((left + right) / 2.0, y, format!("NV{}", pair.links)));
    }
    for (x, y, text) in labels {
        let frame = Frame { x: x - 20.0, y: y - 8.0, width: 40.0, height: 16.0 };
        drawing.rectangle("label", frame, String::new());
        drawing.text("strong", (x, y + 4.0), Anchor::Middle, 12.0, text);
    }
    above + 14.0 + TRACK * taken.len() as f64
}
