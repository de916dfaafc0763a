//! Legends: the colour of each run, and the meaning of lines, bands and markers.

use super::frame::Frame;
use super::markup::{Attributes, Markup, Px};
use super::model::{Picture, Point, Section, Source};
use super::{Spread, marker, style, text};
use record::{Algorithm, Placement};

/// Distance between the rows of a drawing's legend.
pub(super) const ROW: f64 = 21.0;
/// Width of a line or marker in a drawing's legend, with the gap after it.
const SAMPLE: f64 = 34.0;
const GAP: f64 = 22.0;
/// Longest label in characters; a longer one loses its middle.
const LONGEST_LABEL: usize = 48;

/// An entry of a legend.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    sample: Sample,
    pub(super) text: String,
}

/// The sample of a line or marker before the text of an entry.
#[derive(Clone, Debug)]
enum Sample {
    Nothing,
    Run(usize),
    Placement(Placement),
    Band,
    Chosen(Algorithm),
    Wrong,
}

/// The entries of a section, in groups: runs; placements and the statistic of lines and bands; algorithms and
/// wrong data.
pub(super) fn entries(picture: &Picture, section: &Section) -> Vec<Vec<Entry>> {
    let mut groups = vec![runs(picture, section)];
    let mut lines: Vec<Entry> = Vec::new();
    if section.has(Placement::OutOfPlace) && section.has(Placement::InPlace) {
        lines.extend([Placement::OutOfPlace, Placement::InPlace].map(|placement| Entry {
            sample: Sample::Placement(placement),
            text: text::placement_name(placement).to_owned(),
        }));
    }
    lines.push(match (picture.source, picture.options.spread) {
        (Source::Mean, _) | (_, Spread::None) => {
            Entry { sample: Sample::Nothing, text: "lines: mean of all operations".to_owned() }
        }
        (Source::Median, spread) => {
            let end = if spread == Spread::Max { "the slowest" } else { "95th percentile" };
            let text = format!("lines: median of single operations, band: fastest to {end}");
            Entry { sample: Sample::Band, text }
        }
    });
    groups.push(lines);
    groups.push(markers(picture, section));
    groups.retain(|group| !group.is_empty());
    groups
}

/// The entries of the runs, marked where a run is incomplete or was not verified.
fn runs(picture: &Picture, section: &Section) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (index, (label, run)) in picture.runs.iter().enumerate() {
        let mut series = section.series.iter().filter(|series| series.run == index).peekable();
        if series.peek().is_some() {
            let mut text = text::shortened(label, LONGEST_LABEL);
            if let Some((state, _)) = text::unfinished(&run.outcome) {
                text.push_str(&format!(" ({state})"));
            }
            if series.flat_map(|series| &series.points).all(|point| point.wrong().is_none()) {
                text.push_str(" (not verified)");
            }
            entries.push(Entry { sample: Sample::Run(index), text });
        }
    }
    entries
}

fn markers(picture: &Picture, section: &Section) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut known: Vec<Algorithm> = Vec::new();
    for chosen in section.points().filter_map(Point::algorithm) {
        let alike =
            |other: &Algorithm| (&other.algorithm, &other.protocol) == (&chosen.algorithm, &chosen.protocol);
        if !known.iter().any(alike) {
            known.push(chosen.clone());
        }
    }
    known.sort_by(|a, b| (&a.algorithm, &a.protocol).cmp(&(&b.algorithm, &b.protocol)));
    if let Some(heading) = picture.algorithm_heading(section) {
        entries.push(Entry { sample: Sample::Nothing, text: format!("{heading}:") });
    }
    entries.extend(known.into_iter().map(|chosen| {
        let protocol = chosen.protocol.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
        Entry { text: format!("{}{protocol}", chosen.algorithm), sample: Sample::Chosen(chosen) }
    }));
    if section.points().any(Point::is_wrong) {
        entries.push(Entry { sample: Sample::Wrong, text: "wrong data".to_owned() });
    }
    entries
}

/// Writes a page's legend.
pub(super) fn write(markup: &mut Markup, picture: &Picture, section: &Section) {
    for group in entries(picture, section) {
        markup.element("ul", &[("class", &"legend")], |markup| {
            for entry in &group {
                markup.element("li", &[("class", &"entry")], |markup| {
                    if !matches!(entry.sample, Sample::Nothing) {
                        let attributes: Attributes =
                            &[("class", &"chart key"), ("viewBox", &"0 -8 26 16"), ("aria-hidden", &"true")];
                        markup.element("svg", attributes, |markup| draw_sample(markup, &entry.sample));
                    }
                    markup.text(&entry.text);
                });
            }
        });
    }
}

/// Writes a run's name, with its colour.
pub(super) fn run_name(markup: &mut Markup, run: usize, label: &str) {
    markup.labelled("span", &[("class", &format!("swatch {}", style::run_class(run)))], "");
    markup.text(label);
}

/// Lays out the entries of a drawing's legend side by side, with the place of each. A new row begins with
/// each group, and where an entry does not fit.
pub(super) fn laid_out(picture: &Picture, section: &Section, top: f64) -> Vec<(f64, f64, Entry)> {
    let mut places = Vec::new();
    let mut y = top;
    for group in entries(picture, section) {
        let mut x = 0.0;
        for entry in group {
            let sample = if matches!(entry.sample, Sample::Nothing) { 0.0 } else { SAMPLE };
            let width = sample + text::width(&entry.text);
            if x > 0.0 && x + width > Frame::WIDE.width {
                (x, y) = (0.0, y + ROW);
            }
            places.push((x, y, entry));
            x += width + GAP;
        }
        y += ROW;
    }
    places
}

/// Writes an entry of a drawing's legend.
pub(super) fn draw(markup: &mut Markup, x: f64, y: f64, entry: &Entry) {
    let mut left = x;
    if !matches!(entry.sample, Sample::Nothing) {
        let transform = format!("translate({} {})", Px(x), Px(y - 4.0));
        markup.element("g", &[("transform", &transform)], |markup| draw_sample(markup, &entry.sample));
        left += SAMPLE;
    }
    markup.svg_text("entry", (left, y), &entry.text);
}

/// Writes a sample 26 pixels wide, vertically centred on the origin.
fn draw_sample(markup: &mut Markup, sample: &Sample) {
    let line = |markup: &mut Markup, class: &str| {
        markup.leaf("path", &[("class", &format!("sample {class}")), ("d", &"M0 0h26")]);
    };
    let centre = "translate(13 0)";
    match sample {
        Sample::Nothing => {}
        Sample::Run(index) => line(markup, &style::run_class(*index)),
        Sample::Placement(placement) => {
            line(markup, &format!("neutral {}", text::placement_name(*placement)));
        }
        Sample::Band => {
            markup.leaf("rect", &[("class", &"band neutral"), ("y", &-6), ("width", &26), ("height", &12)]);
            line(markup, "neutral");
        }
        Sample::Chosen(algorithm) => {
            markup.element("g", &[("class", &"neutral"), ("transform", &centre)], |markup| {
                marker::draw(markup, Some(algorithm), false);
            });
        }
        Sample::Wrong => {
            markup.leaf("circle", &[("class", &"wrong"), ("transform", &centre), ("r", &7)]);
        }
    }
}
