//! One chart as SVG: one metric of one section, all runs in it.

use super::axis::Axis;
use super::markup::{Markup, Px};
use super::model::{self, Picture, Point, Section, Series};
use super::{Metric, Scale, Spread, style};
use crate::record::{Algorithm, Placement};

/// The width of a chart. Its height depends on its legend.
pub(super) const WIDTH: f64 = 760.0;

const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 376.0;
/// Between the frame and the first and last size, so that markers do not touch it.
const INSET: f64 = 12.0;
/// The baseline of the legend's first row.
const LEGEND: f64 = BOTTOM + 72.0;
const ROW: f64 = 20.0;
/// A legend's line or marker, with the gap behind it.
const SAMPLE: f64 = 34.0;
const GAP: f64 = 22.0;
/// A label with more characters loses its middle.
const LONGEST_LABEL: usize = 56;
/// With more points in a chart, markers are smaller.
const MANY_POINTS: usize = 250;

/// A chart that has been laid out.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    picture: &'a Picture<'a>,
    section: &'a Section<'a>,
    metric: Metric,
    /// Nothing when there is nothing to draw.
    axes: Option<(Axis, Axis)>,
    /// Each with its place.
    legend: Vec<(f64, f64, Entry)>,
    /// What the reader must know, a line each, from this position on.
    notes: Vec<String>,
    notes_at: f64,
}

/// An entry of the legend.
#[derive(Clone, Debug)]
enum Entry {
    Run { index: usize, text: String },
    Placement(Placement),
    Spread(&'static str),
    Chosen(Algorithm),
    Wrong,
}

impl<'a> Chart<'a> {
    /// Lays a chart out.
    pub(super) fn new(picture: &'a Picture<'a>, section: &'a Section<'a>, metric: Metric) -> Self {
        let mut chart = Self {
            picture,
            section,
            metric,
            axes: None,
            legend: Vec::new(),
            notes: Vec::new(),
            notes_at: BOTTOM,
        };
        chart.axes = chart.scales();
        chart.notes = chart.left_out();
        if chart.axes.is_some() {
            chart.lay_legend_out();
        }
        chart
    }

    /// How high it is.
    pub(super) fn height(&self) -> f64 {
        let last = self.legend.last().map_or(BOTTOM, |&(_, y, _)| y);
        8.0 + if self.notes.is_empty() { last } else { self.notes_at + 18.0 * (self.notes.len() - 1) as f64 }
    }

    /// What it shows: `allreduce: bus bandwidth`.
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.section.collective, self.metric.title())
    }

    /// Writes it, from the origin on.
    pub(super) fn draw(&self, markup: &mut Markup) {
        self.text(markup, "title", (0.0, 18.0), &self.title());
        let mut below = Picture::detail(self.section);
        for placement in [Placement::OutOfPlace, Placement::InPlace] {
            if self.section.series.iter().all(|series| series.placement == placement) {
                below = format!("{below}, {}", model::placement_name(placement));
            }
        }
        if let Some(facts) = self.picture.facts() {
            below = format!("{below} · {facts}");
        }
        self.text(markup, "muted", (0.0, 38.0), &model::shortened(&below, 110));
        match &self.axes {
            Some((sizes, values)) => {
                self.draw_axes(markup, sizes, values);
                for series in &self.section.series {
                    self.draw_series(markup, series, sizes, values);
                }
                for (x, y, entry) in &self.legend {
                    draw_entry(markup, *x, *y, entry);
                }
            }
            None => {
                let middle = f64::midpoint(LEFT, RIGHT);
                self.text(markup, "muted middle", (middle, f64::midpoint(TOP, BOTTOM)), "nothing to draw");
            }
        }
        for (index, note) in self.notes.iter().enumerate() {
            self.text(markup, "muted", (0.0, self.notes_at + 18.0 * index as f64), note);
        }
    }

    fn scale(&self) -> Scale {
        self.picture.options.scale
    }

    fn spread(&self, point: &Point) -> Option<(f64, f64)> {
        point.spread(self.metric, self.picture.options.spread, self.scale())
    }

    fn scales(&self) -> Option<(Axis, Axis)> {
        let (mut sizes, mut values) = (Vec::new(), Vec::new());
        for point in self.section.points() {
            if let Some(value) = point.drawn(self.metric, self.scale()) {
                sizes.push(point.bytes);
                values.push(value);
                if let Some((low, high)) = self.spread(point) {
                    values.extend([low, high]);
                }
            }
        }
        let vertical = (BOTTOM, TOP);
        let values = match self.metric {
            Metric::Time => Axis::of_times(&values, vertical),
            Metric::Busbw | Metric::Algbw => Axis::of_bandwidths(&values, self.scale(), vertical),
        };
        Some((Axis::of_sizes(&sizes, (LEFT + INSET, RIGHT - INSET))?, values?))
    }

    /// What is not in the chart, or not as the reader would expect.
    fn left_out(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let sized = || self.section.points().filter(|point| point.bytes > 0);
        if self.section.points().any(|point| point.bytes == 0) {
            notes.push("Size 0 is left out: it has no place on an axis of powers of two.".to_owned());
        }
        let ranks = |series: &Series| self.picture.runs[series.run].1.ranks.len();
        let single = self.section.series.iter().any(|series| ranks(series) == 1);
        let zero = sized().filter(|point| point.value(self.metric) == Some(0.0)).count();
        if self.metric == Metric::Busbw && single && zero > 0 {
            notes.push(
                "The bus bandwidth of a single rank is 0, since it sends nothing: --metric algbw shows more."
                    .to_owned(),
            );
        }
        let missing = sized().filter(|point| point.drawn(self.metric, self.scale()).is_none()).count();
        if missing > 0 {
            let what = if missing == 1 { "1 value is" } else { &format!("{missing} values are") };
            notes.push(format!("{what} left out: zero, or no number."));
        }
        if self.section.repeats() > 1 {
            notes.push(format!("Medians of up to {} measurements of a size.", self.section.repeats()));
        }
        if self.picture.runs.len() > style::RUNS.len() {
            notes.push(format!(
                "Colours repeat after {} runs; point at a marker for its run.",
                style::RUNS.len()
            ));
        }
        notes
    }

    fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for (index, (label, run)) in self.picture.runs.iter().enumerate() {
            if self.section.series.iter().any(|series| series.run == index) {
                let state = model::unfinished(&run.outcome).map(|(state, _)| format!(" ({state})"));
                let text = format!("{}{}", model::shortened(label, LONGEST_LABEL), state.unwrap_or_default());
                entries.push(Entry::Run { index, text });
            }
        }
        if self.section.has(Placement::OutOfPlace) && self.section.has(Placement::InPlace) {
            entries.extend([Placement::OutOfPlace, Placement::InPlace].map(Entry::Placement));
        }
        let drawn = || self.section.points().filter(|point| point.drawn(self.metric, self.scale()).is_some());
        if drawn().any(|point| self.spread(point).is_some()) {
            entries.push(Entry::Spread(match self.picture.options.spread {
                Spread::Max => "fastest to slowest operation",
                Spread::P95 | Spread::None => "fastest to 95th percentile",
            }));
        }
        let mut known: Vec<Algorithm> = Vec::new();
        for chosen in drawn().filter_map(chosen) {
            let alike = |other: &Algorithm| {
                (&other.algorithm, &other.protocol) == (&chosen.algorithm, &chosen.protocol)
            };
            if !known.iter().any(alike) {
                known.push(chosen.clone());
            }
        }
        known.sort_by(|a, b| (&a.algorithm, &a.protocol).cmp(&(&b.algorithm, &b.protocol)));
        entries.extend(known.into_iter().map(Entry::Chosen));
        if drawn().any(is_wrong) {
            entries.push(Entry::Wrong);
        }
        entries
    }

    /// Puts the legend's entries side by side, and into the next row where one has no place. Runs have rows of their own.
    fn lay_legend_out(&mut self) {
        let (mut x, mut y) = (LEFT, LEGEND);
        let mut after_runs = false;
        for entry in self.entries() {
            let width = SAMPLE + text_width(&entry.text()) + GAP;
            let first_after_runs = !matches!(entry, Entry::Run { .. }) && !after_runs;
            after_runs |= first_after_runs;
            if x > LEFT && (x + width - GAP > RIGHT || first_after_runs) {
                (x, y) = (LEFT, y + ROW);
            }
            self.legend.push((x, y, entry));
            x += width;
        }
        self.notes_at = y + ROW + 4.0;
    }

    fn text(&self, markup: &mut Markup, class: &str, (x, y): (f64, f64), text: &str) {
        markup.labelled("text", &[("class", &class), ("x", &Px(x)), ("y", &Px(y))], text);
    }

    fn draw_axes(&self, markup: &mut Markup, sizes: &Axis, values: &Axis) {
        let (mut lines, mut marks) = (String::new(), String::new());
        for tick in &values.ticks {
            let y = Px(values.position(tick.value));
            lines.push_str(&format!("M{LEFT} {y}H{RIGHT}"));
        }
        for tick in &sizes.ticks {
            let x = Px(sizes.position(tick.value));
            if tick.label.is_some() {
                lines.push_str(&format!("M{x} {TOP}V{BOTTOM}"));
            }
            let end = BOTTOM + if tick.label.is_some() { 6.0 } else { 3.0 };
            marks.push_str(&format!("M{x} {BOTTOM}V{end}"));
        }
        markup.leaf("path", &[("class", &"grid"), ("d", &lines)]);
        markup.leaf("path", &[("class", &"frame"), ("d", &format!("M{LEFT} {BOTTOM}H{RIGHT}{marks}"))]);
        markup.element("g", &[("class", &"values")], |markup| {
            for tick in &values.ticks {
                if let Some(label) = &tick.label {
                    self.text(markup, "muted end", (LEFT - 8.0, values.position(tick.value) + 4.0), label);
                }
            }
        });
        markup.element("g", &[("class", &"sizes")], |markup| {
            for tick in &sizes.ticks {
                if let Some(label) = &tick.label {
                    self.text(markup, "muted middle", (sizes.position(tick.value), BOTTOM + 21.0), label);
                }
            }
        });
        if self.metric != Metric::Time {
            self.text(markup, "muted end", (LEFT - 8.0, TOP - 16.0), "GB/s");
        }
        self.text(markup, "muted middle", (f64::midpoint(LEFT, RIGHT), BOTTOM + 42.0), "message size");
    }

    fn draw_series(&self, markup: &mut Markup, series: &Series, sizes: &Axis, values: &Axis) {
        let placement = model::placement_name(series.placement);
        let class = format!("series run{} {placement}", series.run % style::RUNS.len());
        markup.element("g", &[("class", &class)], |markup| {
            let place = |point: &Point| {
                let value = point.drawn(self.metric, self.scale())?;
                Some((sizes.position(point.bytes as f64), values.position(value)))
            };
            // A point that has no place interrupts line and band.
            for part in series.points.split(|point| place(point).is_none()) {
                for banded in part.split(|point| self.spread(point).is_none()).filter(|part| part.len() > 1) {
                    let edge = |point: &Point, upper: bool| {
                        let (low, high) = self.spread(point)?;
                        let y = values.position(if upper { high } else { low });
                        Some(format!("{} {}", Px(sizes.position(point.bytes as f64)), Px(y)))
                    };
                    let there = banded.iter().filter_map(|point| edge(point, true));
                    let back = banded.iter().rev().filter_map(|point| edge(point, false));
                    let outline = there.chain(back).collect::<Vec<_>>().join("L");
                    markup.leaf("path", &[("class", &"band"), ("d", &format!("M{outline}Z"))]);
                }
                if part.len() > 1 {
                    let corners: Vec<_> =
                        part.iter().filter_map(place).map(|(x, y)| format!("{} {}", Px(x), Px(y))).collect();
                    let class = format!("line {placement}");
                    markup.leaf("path", &[("class", &class), ("d", &format!("M{}", corners.join("L")))]);
                }
            }
            let small = self.section.points().count() > MANY_POINTS;
            for point in &series.points {
                if let Some((x, y)) = place(point) {
                    let transform = format!("translate({} {})", Px(x), Px(y));
                    markup.element("g", &[("class", &"point"), ("transform", &transform)], |markup| {
                        markup.labelled("title", &[], &self.tooltip(series, point));
                        markup.leaf("circle", &[("class", &"hit"), ("r", &8)]);
                        draw_marker(markup, chosen(point), small);
                        if is_wrong(point) {
                            markup.leaf("circle", &[("class", &"wrong"), ("r", &7)]);
                        }
                    });
                }
            }
        });
    }

    fn tooltip(&self, series: &Series, point: &Point) -> String {
        let mut lines = vec![
            format!("{}, {}", self.picture.runs[series.run].0, model::placement_name(series.placement)),
            model::exact_size(point.bytes),
        ];
        for (metric, name, unit) in
            [(Metric::Time, "time", "µs"), (Metric::Algbw, "algbw", "GB/s"), (Metric::Busbw, "busbw", "GB/s")]
        {
            if let Some(value) = point.value(metric) {
                lines.push(format!("{name} {} {unit}", model::digits(value)));
            }
        }
        if let [one] = point.measurements[..]
            && let Some(found) = &one.statistics
        {
            let times = [
                ("min", found.min_us),
                ("median", found.median_us),
                ("p95", found.p95_us),
                ("p99", found.p99_us),
                ("max", found.max_us),
            ];
            let times = times.map(|(name, us)| format!("{name} {}", model::digits(us)));
            lines.push(format!("{} µs", times.join(", ")));
        } else if point.measurements.len() > 1 {
            lines.push(format!("median of {} measurements", point.measurements.len()));
        }
        lines.extend(point.algorithms());
        if let Some(wrong) = point.wrong().filter(|&wrong| wrong > 0) {
            lines.push(format!("WRONG DATA: {}", model::counted(wrong as usize, "element")));
        }
        lines.join("\n")
    }
}

impl Entry {
    fn text(&self) -> String {
        match self {
            Self::Run { text, .. } => text.clone(),
            Self::Placement(placement) => model::placement_name(*placement).to_owned(),
            Self::Spread(text) => (*text).to_owned(),
            Self::Chosen(Algorithm { algorithm, protocol, .. }) => {
                let protocol = protocol.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
                format!("{algorithm}{protocol}")
            }
            Self::Wrong => "wrong data".to_owned(),
        }
    }
}

/// A whole SVG file with charts beside and below each other: as many columns as there are metrics.
pub(super) fn file(charts: &[Chart], columns: usize, heading: Option<&str>, head: &str) -> String {
    const MARGIN: f64 = 24.0;
    const BETWEEN: f64 = 36.0;
    let columns = columns.clamp(1, charts.len().max(1));
    let width = 2.0 * MARGIN + WIDTH * columns as f64 + BETWEEN * (columns - 1) as f64;
    let mut places = Vec::new();
    let mut y = MARGIN + if heading.is_some() { 40.0 } else { 0.0 };
    for row in charts.chunks(columns) {
        places.extend((0..row.len()).map(|column| (MARGIN + (WIDTH + BETWEEN) * column as f64, y)));
        y += row.iter().map(Chart::height).fold(0.0, f64::max) + BETWEEN;
    }
    let height = y - BETWEEN + MARGIN;
    let mut markup = Markup::default();
    markup.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    markup.raw(head);
    let titles: Vec<String> = charts.iter().map(Chart::title).collect();
    let label = heading.map_or_else(|| titles.join("; "), str::to_owned);
    markup.element(
        "svg",
        &[
            ("xmlns", &"http://www.w3.org/2000/svg"),
            ("class", &"chart"),
            ("role", &"img"),
            ("aria-label", &label),
            ("width", &Px(width)),
            ("height", &Px(height)),
            ("viewBox", &format!("0 0 {} {}", Px(width), Px(height))),
        ],
        |markup| {
            markup.element("style", &[], |markup| markup.raw(&style::charts()));
            markup.leaf("rect", &[("class", &"ground"), ("width", &"100%"), ("height", &"100%")]);
            if let Some(heading) = heading {
                let size = "font-size:20px";
                markup.labelled(
                    "text",
                    &[("class", &"title"), ("style", &size), ("x", &MARGIN), ("y", &40)],
                    heading,
                );
            }
            for (chart, (x, y)) in charts.iter().zip(places) {
                let transform = format!("translate({} {})", Px(x), Px(y));
                markup.element("g", &[("transform", &transform)], |markup| chart.draw(markup));
            }
        },
    );
    markup.finish()
}

/// A chart inside a page. It has its style sheet with it, so that it can be taken out of the page.
pub(super) fn inline(markup: &mut Markup, chart: &Chart) {
    let view = format!("0 0 {} {}", Px(WIDTH), Px(chart.height()));
    markup.element(
        "svg",
        &[
            ("xmlns", &"http://www.w3.org/2000/svg"),
            ("class", &"chart"),
            ("role", &"img"),
            ("aria-label", &chart.title()),
            ("viewBox", &view),
        ],
        |markup| {
            markup.element("style", &[], |markup| markup.raw(&style::charts()));
            chart.draw(markup);
        },
    );
}

fn draw_entry(markup: &mut Markup, x: f64, y: f64, entry: &Entry) {
    let line = format!("M{} {}h26", Px(x), Px(y - 4.0));
    let class = match entry {
        Entry::Run { index, .. } => format!("sample run{}", index % style::RUNS.len()),
        Entry::Placement(placement) => format!("sample neutral {}", model::placement_name(*placement)),
        Entry::Spread(_) => "band neutral".to_owned(),
        Entry::Chosen(_) | Entry::Wrong => "neutral".to_owned(),
    };
    let centre = format!("translate({} {})", Px(x + 13.0), Px(y - 4.0));
    match entry {
        Entry::Run { .. } | Entry::Placement(_) => {
            markup.leaf("path", &[("class", &class), ("d", &line)]);
        }
        Entry::Spread(_) => {
            let (left, top) = (Px(x), Px(y - 10.0));
            markup.leaf(
                "rect",
                &[("class", &class), ("x", &left), ("y", &top), ("width", &26), ("height", &12)],
            );
        }
        Entry::Chosen(algorithm) => {
            markup.element("g", &[("class", &class), ("transform", &centre)], |markup| {
                draw_marker(markup, Some(algorithm), false);
            });
        }
        Entry::Wrong => {
            markup.leaf("circle", &[("class", &"wrong"), ("transform", &centre), ("r", &7)]);
        }
    }
    let (left, base) = (Px(x + SAMPLE), Px(y));
    markup.labelled("text", &[("class", &"entry"), ("x", &left), ("y", &base)], &entry.text());
}

/// The shape says the algorithm, the filling the protocol: full for `simple`, hollow for `ll`, hollow with a dot for
/// `ll128`. A small dot is nothing known.
fn draw_marker(markup: &mut Markup, chosen: Option<&Algorithm>, small: bool) {
    let Some(chosen) = chosen else {
        let radius = if small { 1.25 } else { 2.5 };
        markup.leaf("circle", &[("class", &"mark"), ("r", &radius)]);
        return;
    };
    let name: String = chosen.algorithm.to_ascii_lowercase().replace(['_', ' ', '-'], "");
    let shape = match name.as_str() {
        "ring" => "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
        "tree" => "M0 -4.5L4.2 3H-4.2Z",
        "nvls" => "M-3.3 -3.3H3.3V3.3H-3.3Z",
        "nvlstree" => "M0 4.5L4.2 -3H-4.2Z",
        "collnetdirect" => "M0 -4.8L4.8 0L0 4.8L-4.8 0Z",
        "collnetchain" => "M-4.5 0L-2.25 -3.9H2.25L4.5 0L2.25 3.9H-2.25Z",
        "pat" => "M0 -4.8L4.6 -1.5L2.8 3.9H-2.8L-4.6 -1.5Z",
        _ => "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
    };
    let protocol = chosen.protocol.as_deref().map(str::to_ascii_lowercase);
    let hollow = matches!(protocol.as_deref(), Some("ll" | "ll128"));
    let class = if hollow { "mark hollow" } else { "mark" };
    let scale = if small { "scale(0.6)" } else { "scale(1)" };
    markup.leaf("path", &[("class", &class), ("d", &shape), ("transform", &scale)]);
    if protocol.as_deref() == Some("ll128") {
        markup.leaf("circle", &[("r", &if small { 0.5 } else { 0.9 })]);
    }
}

/// What NCCL chose, of the first measurement that knows it.
fn chosen<'a>(point: &Point<'a>) -> Option<&'a Algorithm> {
    point.measurements.iter().find_map(|each| each.algorithm.as_ref())
}

fn is_wrong(point: &Point) -> bool {
    point.wrong().is_some_and(|wrong| wrong > 0)
}

/// How wide a text may be in 12 pixels: there is no font to measure it with, so that of a wide one.
fn text_width(text: &str) -> f64 {
    let share = |character: char| match character {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '\'' | '!' => 0.34,
        ' ' | 'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 1.0,
        'A'..='Z' => 0.75,
        _ if character < '\u{1100}' => 0.64,
        _ => 1.1,
    };
    text.chars().map(share).sum::<f64>() * 12.0
}
