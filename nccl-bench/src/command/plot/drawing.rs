//! Charts as one SVG file, with headline, legends and a style sheet of its own.

use super::chart::Chart;
use super::frame::Frame;
use super::headline::{self, Headline};
use super::markup::{Attributes, Markup, Px};
use super::model::{Picture, Section};
use super::{Metric, legend, style, text};

const MARGIN: f64 = 24.0;
const BETWEEN: f64 = 36.0;
/// Distance between lines of text.
const LINE: f64 = 19.0;
/// Height of the two lines above a chart: its title, and its section's data type, operator and root.
const TITLES: f64 = 48.0;
/// Distance from a chart to the first baseline of its legend.
const TO_LEGEND: f64 = 20.0;
/// Longest detail of a section in characters; a longer one loses its middle.
const LONGEST_DETAIL: usize = 80;

/// A chart with its titles, legend and notes.
struct Cell<'a> {
    chart: Chart<'a>,
    legend: Vec<(f64, f64, legend::Entry)>,
    notes: Vec<String>,
}

impl<'a> Cell<'a> {
    fn new(picture: &'a Picture<'a>, section: &'a Section<'a>, metric: Metric) -> Self {
        let chart = Chart { picture, section, metric };
        let legend = legend::laid_out(picture, section, TITLES + Frame::WIDE.height + TO_LEGEND);
        let notes = chart.notes().iter().flat_map(|note| wrapped(note, Frame::WIDE.width)).collect();
        Self { chart, legend, notes }
    }

    fn notes_at(&self) -> f64 {
        self.legend.last().map_or(TITLES + Frame::WIDE.height, |&(_, y, _)| y) + legend::ROW
    }

    fn height(&self) -> f64 {
        self.notes_at() + LINE * self.notes.len() as f64 - LINE / 2.0
    }

    fn draw(&self, markup: &mut Markup) {
        markup.svg_text("title", (0.0, 18.0), &self.chart.title());
        let detail = text::shortened(&Picture::detail(self.chart.section), LONGEST_DETAIL);
        markup.svg_text("muted", (0.0, 37.0), &detail);
        markup.element(
            "g",
            &[("class", &"plot"), ("transform", &format!("translate(0 {TITLES})"))],
            |markup| {
                self.chart.draw(markup, &Frame::WIDE, true);
            },
        );
        for (x, y, entry) in &self.legend {
            legend::draw(markup, *x, *y, entry);
        }
        for (index, note) in self.notes.iter().enumerate() {
            markup.svg_text("muted", (0.0, self.notes_at() + LINE * index as f64), note);
        }
    }
}

/// Writes the drawing: a row of charts for each section, a column for each metric.
pub(super) fn write<'a>(
    picture: &'a Picture<'a>,
    sections: &'a [Section<'a>],
    metrics: &[Metric],
    heading: Option<&str>,
    head: &str,
) -> String {
    let columns = metrics.len().max(1);
    let rows: Vec<Vec<Cell>> = sections
        .iter()
        .map(|section| metrics.iter().map(|&metric| Cell::new(picture, section, metric)).collect())
        .collect();
    let inner = Frame::WIDE.width * columns as f64 + BETWEEN * (columns - 1) as f64;
    let lines = headlines(picture, sections, inner);
    let heading_height = if heading.is_some() { 32.0 } else { 0.0 };
    let mut y = MARGIN + heading_height + LINE * lines.len() as f64 + 12.0;
    let mut cells = Vec::new();
    for row in &rows {
        let places = (0..).map(|column| MARGIN + (Frame::WIDE.width + BETWEEN) * f64::from(column));
        cells.extend(row.iter().zip(places).map(|(cell, x)| (cell, x, y)));
        y += row.iter().map(Cell::height).fold(0.0, f64::max) + BETWEEN;
    }
    let (width, height) = (2.0 * MARGIN + inner, y - BETWEEN + MARGIN);
    let titles = cells.iter().map(|(cell, ..)| cell.chart.title()).collect::<Vec<_>>().join("; ");
    let label = heading.map_or(titles, str::to_owned);
    let mut markup = Markup::default();
    markup.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    markup.raw(head);
    let attributes: Attributes = &[
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("class", &"chart"),
        ("role", &"img"),
        ("aria-label", &label),
        ("width", &Px(width)),
        ("height", &Px(height)),
        ("viewBox", &format!("0 0 {} {}", Px(width), Px(height))),
    ];
    markup.element("svg", attributes, |markup| {
        markup.element("style", &[], |markup| markup.raw(&style::charts()));
        markup.leaf("rect", &[("class", &"ground"), ("width", &"100%"), ("height", &"100%")]);
        if let Some(heading) = heading {
            markup.svg_text("title heading", (MARGIN, MARGIN + 16.0), heading);
        }
        for (index, (class, line)) in lines.iter().enumerate() {
            let y = MARGIN + heading_height + LINE * index as f64 + 12.0;
            markup.svg_text(class, (MARGIN, y), line);
        }
        for (cell, x, y) in cells {
            let transform = format!("translate({} {})", Px(x), Px(y));
            markup.element("g", &[("class", &"cell"), ("transform", &transform)], |markup| cell.draw(markup));
        }
    });
    markup.finish()
}

/// The headline and the problems of each run, as lines with their CSS classes.
fn headlines(picture: &Picture, sections: &[Section], width: f64) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for (index, (label, run)) in picture.runs.iter().enumerate() {
        if sections.iter().all(|section| section.series.iter().all(|series| series.run != index)) {
            continue;
        }
        let name = if picture.runs.len() > 1 { format!("{label}: ") } else { String::new() };
        let found = Headline::new(picture, sections, index);
        let mut parts = vec![format!("{name}{} {}", found.peak, found.peak_of), text::machine(run)];
        parts.push(text::library(run));
        if found.is_verified {
            parts.push(found.verification);
        }
        lines.extend(wrapped(&parts.join(" · "), width).into_iter().map(|line| ("headline", line)));
        for problem in headline::problems(run) {
            let text = format!("{label} {problem}");
            lines.extend(wrapped(&text, width).into_iter().map(|line| ("alarm", line)));
        }
    }
    lines
}

/// Wraps a text into lines of at most `width` pixels. A longer word has a line of its own.
fn wrapped(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text::width(&format!("{line} {word}")) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
