//! The layout of a drawing of a topology: boxes, lines and texts with their positions, without colours.
//!
//! From top to bottom: NUMA nodes side by side, host bridges, PCIe switches, NICs, GPUs, and NVLink below the
//! GPUs. `tree` sorts the devices, `pcie` places them, `nvlink` draws the links between GPUs, `text`
//! estimates widths.

mod nvlink;
mod pcie;
mod text;
mod tree;

#[cfg(test)]
mod tests;

pub use text::width;

use super::model::Topology;
use crate::finding::{Finding, Severity};

/// Distance from the border.
const MARGIN: f64 = 28.0;
/// Least width, for title and notes.
const LEAST_WIDTH: f64 = 640.0;
/// Most findings in the drawing.
const MOST_FINDINGS: usize = 5;
/// Distance between hosts.
const BETWEEN_HOSTS: f64 = 36.0;

/// The letters of the matrix, for the legend.
const LEGEND: &str = "NV#: # NVLinks  ·  PIX: below one PCIe switch  ·  PXB: a switch behind a switch  ·  PHB/NODE: \
                      through the CPU of a NUMA node  ·  SYS: between NUMA nodes";

/// A drawing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawing {
    /// Width in pixels.
    pub width: f64,
    /// Height in pixels.
    pub height: f64,
    /// Description for readers who cannot see it.
    pub description: String,
    /// The shapes, from back to front.
    pub shapes: Vec<Shape>,
}

/// A part of a drawing.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A rectangle with round corners.
    Box {
        /// Class of the style sheet.
        class: &'static str,
        /// Position and size.
        frame: Frame,
        /// Text for the pointer.
        hint: String,
    },
    /// A line through points.
    Line {
        /// Class of the style sheet.
        class: &'static str,
        /// The points.
        points: Vec<(f64, f64)>,
    },
    /// A line of text.
    Text {
        /// Classes of the style sheet.
        class: &'static str,
        /// Start, middle or end of the baseline.
        at: (f64, f64),
        /// The point of the text at the position.
        anchor: Anchor,
        /// Size of the font in pixels.
        size: f64,
        /// The text.
        text: String,
    },
}

/// The point of a text at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The start.
    Start,
    /// The middle.
    Middle,
    /// The end.
    End,
}

/// Position and size of a rectangle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Frame {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

impl Frame {
    /// Returns the right edge.
    pub fn right(self) -> f64 {
        self.x + self.width
    }

    /// Returns the lower edge.
    pub fn bottom(self) -> f64 {
        self.y + self.height
    }

    /// Returns the horizontal middle.
    pub fn middle(self) -> f64 {
        self.x + self.width / 2.0
    }
}

impl Shape {
    /// Returns the frame of a text, an upper estimate, or `None` for other shapes.
    pub fn text_frame(&self) -> Option<Frame> {
        let Self::Text { at: (x, y), anchor, size, text, .. } = self else { return None };
        let width = text::width(text, *size);
        let x = match anchor {
            Anchor::Start => *x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        Some(Frame { x, y: y - 0.8 * size, width, height: size * 1.05 })
    }
}

/// Lays out a topology. Devices in a finding are marked, and the worst findings are listed below.
pub fn lay_out(topology: &Topology, findings: &[Finding]) -> Drawing {
    let serious: Vec<&Finding> = findings
        .iter()
        .filter(|finding| matches!(finding.severity, Severity::Broken | Severity::Degraded))
        .collect();
    let is_marked = |label: &str| {
        let named = |text: &str| text.strip_prefix(label).is_some_and(|rest| rest.starts_with([' ', ':']));
        serious.iter().flat_map(|finding| &finding.evidence).any(|evidence| named(&evidence.text))
    };
    let mut drawing = Drawing::default();
    let mut y = MARGIN + 62.0;
    let hosts = topology.hosts();
    for host in 0..hosts {
        if hosts > 1 {
            let text = format!("host {host}");
            drawing.text("strong", (MARGIN, y + 12.0), Anchor::Start, 14.0, text);
            y += 24.0;
        }
        let placed = pcie::place(topology, host, (MARGIN, y));
        pcie::draw(&mut drawing, topology, &placed, &is_marked);
        let bottom = nvlink::draw(&mut drawing, topology, &placed);
        drawing.width = drawing.width.max(placed.right + MARGIN);
        y = bottom + BETWEEN_HOSTS;
    }
    drawing.width = drawing.width.max(LEAST_WIDTH);
    y = notes(&mut drawing, topology, &serious, y - BETWEEN_HOSTS + 22.0);
    title(&mut drawing, topology);
    drawing.height = y + MARGIN;
    drawing
}

/// Draws the two lines above.
fn title(drawing: &mut Drawing, topology: &Topology) {
    let room = drawing.width - 2.0 * MARGIN;
    let file = std::path::Path::new(&topology.source).file_name().map(|name| name.to_string_lossy());
    let title = match file {
        Some(name) if topology.is_dump => format!("Topology: {name}"),
        _ => "Topology".to_owned(),
    };
    drawing.text("title", (MARGIN, MARGIN + 18.0), Anchor::Start, 22.0, text::fit(&title, 22.0, room));
    let summary = super::examine::summary(topology)
        .into_iter()
        .filter(|(name, _)| ["GPUs", "NVLink", "NICs"].contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {value}"));
    let summary = summary.collect::<Vec<_>>().join("  ·  ");
    drawing.description = format!("{title}. {summary}");
    drawing.text("muted", (MARGIN, MARGIN + 41.0), Anchor::Start, 13.0, text::fit(&summary, 13.0, room));
}

/// Draws the findings and the invisible facts. Returns the lower edge.
fn notes(drawing: &mut Drawing, topology: &Topology, findings: &[&Finding], mut y: f64) -> f64 {
    let room = drawing.width - 2.0 * MARGIN;
    let mut line = |drawing: &mut Drawing, class, text: &str| {
        for part in text::wrap(text, 12.0, room) {
            y += 17.0;
            drawing.text(class, (MARGIN, y), Anchor::Start, 12.0, part);
        }
    };
    line(drawing, "muted", LEGEND);
    for finding in findings.iter().take(MOST_FINDINGS) {
        line(drawing, "alarm", &finding.diagnosis);
    }
    if findings.len() > MOST_FINDINGS {
        line(drawing, "alarm", &format!("{} more findings: nccl-bench topo", findings.len() - MOST_FINDINGS));
    }
    for unseen in &topology.unseen {
        line(drawing, "muted", &format!("Not seen: {unseen}"));
    }
    y
}

impl Drawing {
    fn text(&mut self, class: &'static str, at: (f64, f64), anchor: Anchor, size: f64, text: String) {
        if !text.is_empty() {
            self.shapes.push(Shape::Text { class, at, anchor, size, text });
        }
    }

    fn line(&mut self, class: &'static str, points: Vec<(f64, f64)>) {
        self.shapes.push(Shape::Line { class, points });
    }

    fn rectangle(&mut self, class: &'static str, frame: Frame, hint: String) {
        self.shapes.push(Shape::Box { class, frame, hint });
    }
}
