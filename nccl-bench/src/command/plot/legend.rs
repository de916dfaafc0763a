//! Legends: the colour of each run, and the meaning of lines, bands and markers.

use std::collections::BTreeMap;

use super::chart::{ChartFrame, run_class};
use super::model::{Picture, Point, Section};
use super::{Spread, marker, text};
use crate::command::markup::{Px, escape_xml, svg_text};
use record::Placement;

/// Distance between the rows of a drawing's legend.
pub(super) const ROW: f64 = 21.0;
/// Width of a sample in a drawing's legend, with the gap after it.
const SAMPLE: f64 = 34.0;
const GAP: f64 = 22.0;
/// Longest label in characters; a longer one loses its middle.
const LONGEST_LABEL: usize = 48;

/// An entry of a legend.
#[derive(Clone, Debug)]
struct LegendEntry {
    /// SVG of a line or marker, 26 pixels wide and vertically centred on the origin; may be empty.
    sample: String,
    text: String,
}

/// Returns a run's name in a page, with its colour.
pub(super) fn run_name(run: usize, label: &str) -> String {
    format!("<span class=\"swatch {}\"></span>{}", run_class(run), escape_xml(label))
}

/// Returns the entries of a section, in groups: runs; placements and the statistic of lines and bands;
/// algorithms and wrong data.
fn entry_groups(picture: &Picture, section: &Section) -> Vec<Vec<LegendEntry>> {
    let line = |class: &str| format!("<path class=\"sample {class}\" d=\"M0 0h26\"/>");
    let mut lines: Vec<LegendEntry> = Vec::new();
    let has = |placement| section.series.iter().any(|series| series.placement == placement);
    let placements = [Placement::OutOfPlace, Placement::InPlace];
    if placements.into_iter().all(has) {
        lines.extend(placements.map(|placement| LegendEntry {
            sample: line(&format!("neutral {}", placement.placement_name())),
            text: placement.placement_name().to_owned(),
        }));
    }
    lines.push(if picture.medians {
        let slowest = picture.options.spread == Spread::Max;
        let end = if slowest { "the slowest" } else { "95th percentile" };
        let band = "<rect class=\"band neutral\" y=\"-6\" width=\"26\" height=\"12\"/>";
        let text = format!("lines: median of single operations, band: fastest to {end}");
        LegendEntry { sample: band.to_owned() + &line("neutral"), text }
    } else {
        LegendEntry { sample: String::new(), text: "lines: mean of all operations".to_owned() }
    });
    let mut groups = vec![run_entries(picture, section, line), lines, marker_entries(picture, section)];
    groups.retain(|group| !group.is_empty());
    groups
}

/// Returns the entries of the algorithms, after the names of the libraries that chose them, and of wrong
/// data.
fn marker_entries(picture: &Picture, section: &Section) -> Vec<LegendEntry> {
    let chosen = section.all_points().filter_map(Point::first_algorithm);
    let chosen: BTreeMap<_, _> =
        chosen.map(|chosen| ((&chosen.algorithm, &chosen.protocol), chosen)).collect();
    let mut libraries: Vec<&str> = Vec::new();
    for series in
        section.series.iter().filter(|series| series.points.iter().any(|p| p.first_algorithm().is_some()))
    {
        let name = text::library_name(picture.runs[series.run].1);
        if !libraries.contains(&name) {
            libraries.push(name);
        }
    }
    let mut entries = Vec::new();
    if !libraries.is_empty() {
        let text = format!("algorithm ({}):", libraries.join(", "));
        entries.push(LegendEntry { sample: String::new(), text });
    }
    entries.extend(chosen.into_iter().map(|((algorithm, protocol), chosen)| {
        let marker = marker::draw_marker(Some(chosen), false);
        let sample = format!("<g class=\"neutral\" transform=\"translate(13 0)\">{marker}</g>");
        let protocol = protocol.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
        LegendEntry { sample, text: format!("{algorithm}{protocol}") }
    }));
    if section.all_points().any(Point::is_wrong) {
        let sample = "<circle class=\"wrong\" transform=\"translate(13 0)\" r=\"7\"/>".to_owned();
        entries.push(LegendEntry { sample, text: "wrong data".to_owned() });
    }
    entries
}

/// Returns the entries of the runs, with marks for incomplete or unverified runs.
fn run_entries(picture: &Picture, section: &Section, line: impl Fn(&str) -> String) -> Vec<LegendEntry> {
    let mut entries = Vec::new();
    for (index, (label, run)) in picture.runs.iter().enumerate() {
        let mut series = section.series.iter().filter(|series| series.run == index).peekable();
        if series.peek().is_some() {
            let mut text = text::shorten_middle(label, LONGEST_LABEL);
            if let Some((state, _)) = text::describe_unfinished(&run.outcome) {
                text += &format!(" ({state})");
            }
            if series.flat_map(|series| &series.points).all(|point| point.wrong_elements().is_none()) {
                text += " (not verified)";
            }
            entries.push(LegendEntry { sample: line(&run_class(index)), text });
        }
    }
    entries
}

/// Returns a page's legend.
pub(super) fn page_legend(picture: &Picture, section: &Section) -> String {
    let entry = |LegendEntry { sample, text }: &LegendEntry| {
        let key = match &**sample {
            "" => String::new(),
            sample => {
                format!("<svg class=\"chart key\" viewBox=\"0 -8 26 16\" aria-hidden=\"true\">{sample}</svg>")
            }
        };
        format!("<li class=\"entry\">{key}{}</li>\n", escape_xml(text))
    };
    let group = |entries: &Vec<LegendEntry>| {
        format!("<ul class=\"legend\">\n{}</ul>\n", entries.iter().map(entry).collect::<String>())
    };
    entry_groups(picture, section).iter().map(group).collect()
}

/// Returns a drawing's legend from `top` on, and the place of its next row. A new row begins with each group,
/// and with an entry that does not fit beside the others.
pub(super) fn drawing_legend(picture: &Picture, section: &Section, top: f64) -> (String, f64) {
    let (mut drawn, mut y) = (String::new(), top);
    for group in entry_groups(picture, section) {
        let mut x = 0.0;
        for LegendEntry { sample, text } in group {
            let before = if sample.is_empty() { 0.0 } else { SAMPLE };
            let width = before + text::estimate_width(&text);
            if x > 0.0 && x + width > ChartFrame::WIDE.width {
                (x, y) = (0.0, y + ROW);
            }
            drawn += &format!("<g transform=\"translate({} {})\">{sample}</g>\n", Px(x), Px(y - 4.0));
            drawn += &svg_text("entry", (x + before, y), &text);
            x += width + GAP;
        }
        y += ROW;
    }
    (drawn, y)
}
