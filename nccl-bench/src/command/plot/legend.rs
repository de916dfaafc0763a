//! Legends: the colour of each run, and the meaning of lines, bands and markers.

use std::collections::BTreeMap;

use super::chart::{Frame, run_class};
use super::model::{Picture, Point, Section};
use super::{Spread, marker, text};
use crate::command::markup::{Px, escaped, svg_text};
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
struct Entry {
    /// SVG of a line or marker, 26 pixels wide and vertically centred on the origin; may be empty.
    sample: String,
    text: String,
}

/// Returns a run's name in a page, with its colour.
pub(super) fn run_name(run: usize, label: &str) -> String {
    format!("<span class=\"swatch {}\"></span>{}", run_class(run), escaped(label))
}

/// Returns the entries of a section, in groups: runs; placements and the statistic of lines and bands;
/// algorithms and wrong data.
fn entries(picture: &Picture, section: &Section) -> Vec<Vec<Entry>> {
    let line = |class: &str| format!("<path class=\"sample {class}\" d=\"M0 0h26\"/>");
    let mut lines: Vec<Entry> = Vec::new();
    let has = |placement| section.series.iter().any(|series| series.placement == placement);
    let placements = [Placement::OutOfPlace, Placement::InPlace];
    if placements.into_iter().all(has) {
        lines.extend(placements.map(|placement| Entry {
            sample: line(&format!("neutral {}", placement.name())),
            text: placement.name().to_owned(),
        }));
    }
    lines.push(if picture.medians {
        let slowest = picture.options.spread == Spread::Max;
        let end = if slowest { "the slowest" } else { "95th percentile" };
        let band = "<rect class=\"band neutral\" y=\"-6\" width=\"26\" height=\"12\"/>";
        let text = format!("lines: median of single operations, band: fastest to {end}");
        Entry { sample: band.to_owned() + &line("neutral"), text }
    } else {
        Entry { sample: String::new(), text: "lines: mean of all operations".to_owned() }
    });
    let mut groups = vec![runs(picture, section, line), lines, markers(picture, section)];
    groups.retain(|group| !group.is_empty());
    groups
}

/// Returns the entries of the algorithms, after the names of the libraries that chose them, and of wrong
/// data.
fn markers(picture: &Picture, section: &Section) -> Vec<Entry> {
    let chosen = section.points().filter_map(Point::algorithm);
    let chosen: BTreeMap<_, _> =
        chosen.map(|chosen| ((&chosen.algorithm, &chosen.protocol), chosen)).collect();
    let mut libraries: Vec<&str> = Vec::new();
    for series in section.series.iter().filter(|series| series.points.iter().any(|p| p.algorithm().is_some()))
    {
        let name = text::library_name(picture.runs[series.run].1);
        if !libraries.contains(&name) {
            libraries.push(name);
        }
    }
    let mut entries = Vec::new();
    if !libraries.is_empty() {
        let text = format!("algorithm ({}):", libraries.join(", "));
        entries.push(Entry { sample: String::new(), text });
    }
    entries.extend(chosen.into_iter().map(|((algorithm, protocol), chosen)| {
        let marker = marker::draw(Some(chosen), false);
        let sample = format!("<g class=\"neutral\" transform=\"translate(13 0)\">{marker}</g>");
        let protocol = protocol.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
        Entry { sample, text: format!("{algorithm}{protocol}") }
    }));
    if section.points().any(Point::is_wrong) {
        let sample = "<circle class=\"wrong\" transform=\"translate(13 0)\" r=\"7\"/>".to_owned();
        entries.push(Entry { sample, text: "wrong data".to_owned() });
    }
    entries
}

/// Returns the entries of the runs, with marks for incomplete or unverified runs.
fn runs(picture: &Picture, section: &Section, line: impl Fn(&str) -> String) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (index, (label, run)) in picture.runs.iter().enumerate() {
        let mut series = section.series.iter().filter(|series| series.run == index).peekable();
        if series.peek().is_some() {
            let mut text = text::shortened(label, LONGEST_LABEL);
            if let Some((state, _)) = text::describe_unfinished(&run.outcome) {
                text += &format!(" ({state})");
            }
            if series.flat_map(|series| &series.points).all(|point| point.wrong().is_none()) {
                text += " (not verified)";
            }
            entries.push(Entry { sample: line(&run_class(index)), text });
        }
    }
    entries
}

/// Returns a page's legend.
pub(super) fn page(picture: &Picture, section: &Section) -> String {
    let entry = |Entry { sample, text }: &Entry| {
        let key = match &**sample {
            "" => String::new(),
            sample => {
                format!("<svg class=\"chart key\" viewBox=\"0 -8 26 16\" aria-hidden=\"true\">{sample}</svg>")
            }
        };
        format!("<li class=\"entry\">{key}{}</li>\n", escaped(text))
    };
    let group = |entries: &Vec<Entry>| {
        format!("<ul class=\"legend\">\n{}</ul>\n", entries.iter().map(entry).collect::<String>())
    };
    entries(picture, section).iter().map(group).collect()
}

/// Returns a drawing's legend from `top` on, and the place of its next row. A new row begins with each group,
/// and with an entry that does not fit beside the others.
pub(super) fn drawing(picture: &Picture, section: &Section, top: f64) -> (String, f64) {
    let (mut drawn, mut y) = (String::new(), top);
    for group in entries(picture, section) {
        let mut x = 0.0;
        for Entry { sample, text } in group {
            let before = if sample.is_empty() { 0.0 } else { SAMPLE };
            let width = before + text::width(&text);
            if x > 0.0 && x + width > Frame::WIDE.width {
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
