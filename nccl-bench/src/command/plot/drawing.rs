//! Charts as one SVG file, with headline, legends and a style sheet of its own.

use super::chart::{Chart, ChartFrame};
use super::headline::{self, Headline};
use super::model::{Picture, Section};
use super::output::MARK;
use super::{Metric, legend, text};
use crate::command::markup::{Px, escape_xml, svg_text};

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

/// Returns the drawing: a row of charts for each section, a column for each metric.
pub(super) fn render_drawing(
    picture: &Picture,
    sections: &[Section],
    metrics: &[Metric],
    heading: Option<&str>,
) -> String {
    let columns = metrics.len() as f64;
    let inner = ChartFrame::WIDE.width * columns + BETWEEN * (columns - 1.0);
    let (mut content, mut y) = (String::new(), MARGIN);
    if let Some(heading) = heading {
        content += &svg_text("title heading", (MARGIN, y + 16.0), heading);
        y += 32.0;
    }
    for (class, line) in headline_lines(picture, sections, inner) {
        content += &svg_text(class, (MARGIN, y + 12.0), &line);
        y += LINE;
    }
    y += 12.0;
    let mut titles = Vec::new();
    for section in sections {
        let (mut x, mut height) = (MARGIN, 0.0);
        for &metric in metrics {
            let chart = Chart { picture, section, metric };
            let (drawn, bottom) = draw_cell(&chart);
            content +=
                &format!("<g class=\"cell\" transform=\"translate({} {})\">{drawn}</g>\n", Px(x), Px(y));
            titles.push(chart.title());
            x += ChartFrame::WIDE.width + BETWEEN;
            height = bottom.max(height);
        }
        y += height + BETWEEN;
    }
    let (width, height) = (Px(2.0 * MARGIN + inner), Px(y - BETWEEN + MARGIN));
    let label = heading.map_or_else(|| titles.join("; "), str::to_owned);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         {MARK}<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" aria-label=\"{}\" \
         width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <style>\n{}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n{content}</svg>\n",
        escape_xml(&label),
        include_str!("chart.css")
    )
}

/// Returns a chart with its titles, legend and notes, and its height.
fn draw_cell(chart: &Chart) -> (String, f64) {
    let detail = text::shorten_middle(&chart.section.detail(), LONGEST_DETAIL);
    let titles = svg_text("title", (0.0, 18.0), &chart.title()) + &svg_text("muted", (0.0, 37.0), &detail);
    let plot = chart.draw_chart(&ChartFrame::WIDE, true);
    let top = TITLES + Chart::HEIGHT + TO_LEGEND;
    let (legend, mut y) = legend::drawing_legend(chart.picture, chart.section, top);
    let mut notes = String::new();
    for line in chart.list_notes().iter().flat_map(|note| wrap_text(note, ChartFrame::WIDE.width)) {
        notes += &svg_text("muted", (0.0, y), &line);
        y += LINE;
    }
    let drawn =
        format!("{titles}<g class=\"plot\" transform=\"translate(0 {TITLES})\">{plot}</g>\n{legend}{notes}");
    (drawn, y - LINE / 2.0)
}

/// Returns the headline and the problems of each run, as lines with their CSS classes.
fn headline_lines(picture: &Picture, sections: &[Section], width: f64) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for (index, (label, run)) in picture.runs.iter().enumerate() {
        if sections.iter().all(|section| section.series.iter().all(|series| series.run != index)) {
            continue;
        }
        let name = if picture.runs.len() > 1 { format!("{label}: ") } else { String::new() };
        let Headline { peak, peak_of, facts } = Headline::new(picture, sections, index);
        let headline = format!("{name}{peak} {peak_of} · {}", facts.join(" · "));
        lines.extend(wrap_text(&headline, width).into_iter().map(|line| ("headline", line)));
        for problem in headline::list_problems(run) {
            let text = format!("{label} {problem}");
            lines.extend(wrap_text(&text, width).into_iter().map(|line| ("alarm", line)));
        }
    }
    lines
}

/// Wraps a text into lines of at most `width` pixels. A longer word has a line of its own.
fn wrap_text(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text::estimate_width(&format!("{line} {word}")) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
