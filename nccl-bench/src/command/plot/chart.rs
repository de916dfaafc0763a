//! A chart: the values of one metric in one section, of all runs, with axes.

use super::axis::Axis;
use super::frame::Frame;
use super::markup::{Attributes, Markup, Px, path};
use super::model::{Picture, Point, Section, Series};
use super::{Metric, Scale, marker, style, text};

/// Number of points in a chart above which markers are smaller.
const MANY_POINTS: usize = 250;
/// Pixels between the points of a line below which markers are smaller.
const NARROW_STEP: f64 = 12.0;

/// A chart: one metric of one section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart<'a> {
    pub(super) picture: &'a Picture<'a>,
    pub(super) section: &'a Section<'a>,
    pub(super) metric: Metric,
}

/// The axes of a chart in a frame.
struct Axes {
    sizes: Axis,
    values: Axis,
}

impl<'a> Chart<'a> {
    /// The title: `allreduce: bus bandwidth`.
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.section.collective, self.metric.title())
    }

    /// Draws the chart at the origin. A drawing needs `tooltips`, since nothing else shows the numbers of its points.
    pub(super) fn draw(&self, markup: &mut Markup, frame: &Frame, tooltips: bool) {
        let Some(axes) = self.axes(frame) else {
            let middle = (f64::midpoint(frame.left, frame.right), f64::midpoint(frame.top, frame.bottom));
            return markup.svg_text("muted middle", middle, "nothing to draw");
        };
        self.draw_axes(markup, frame, &axes);
        let points = self.section.series.iter().map(|series| series.points.len());
        let (longest, all) = (points.clone().max().unwrap_or(0), points.sum::<usize>());
        let (from, to) = frame.sizes();
        let small = all > MANY_POINTS || (to - from) / (longest as f64) < NARROW_STEP;
        for series in &self.section.series {
            let placement = text::placement_name(series.placement);
            let class = format!("series {} {placement}", style::run_class(series.run));
            markup.element("g", &[("class", &class)], |markup| {
                self.draw_line(markup, series, &axes);
                for point in &series.points {
                    self.draw_point(markup, point, &axes, small);
                }
            });
        }
        if tooltips {
            // Drawn last, so that no series covers them.
            for series in &self.section.series {
                for point in &series.points {
                    self.draw_tooltip(markup, series, point, &axes);
                }
            }
        }
    }

    /// Writes the chart as an SVG element of a page. The page has the style sheet and shows the numbers of points.
    pub(super) fn inline(&self, markup: &mut Markup, frame: &Frame) {
        let view = format!("0 0 {} {}", Px(frame.width), Px(frame.height));
        let class = format!("chart {}", frame.name);
        markup.element(
            "svg",
            &[
                ("xmlns", &"http://www.w3.org/2000/svg"),
                ("class", &class),
                ("role", &"img"),
                ("aria-label", &self.title()),
                ("viewBox", &view),
            ],
            |markup| self.draw(markup, frame, false),
        );
    }

    /// The sizes that have a point, ascending, each with its position on the axis: 0 for the first, 1 for the
    /// last.
    pub(super) fn sizes(&self) -> Vec<(u64, f64)> {
        let Some(axes) = self.axes(&Frame::WIDE) else { return Vec::new() };
        let (from, to) = Frame::WIDE.sizes();
        let drawn = self.section.points().filter(|point| self.value(point).is_some());
        let mut sizes: Vec<u64> = drawn.map(|point| point.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let share = |size: u64| (axes.sizes.position(size as f64) - from) / (to - from);
        sizes.into_iter().map(|size| (size, share(size))).collect()
    }

    /// Notes on values that are left out, and on medians and colours.
    pub(super) fn notes(&self) -> Vec<String> {
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
        let missing = sized().filter(|point| self.value(point).is_none()).count();
        if missing > 0 {
            let what = if missing == 1 { "1 value is" } else { &format!("{missing} values are") };
            notes.push(format!("{what} left out: zero, or no number."));
        }
        if self.section.repeats() > 1 {
            notes.push(format!("Medians of up to {} measurements of a size.", self.section.repeats()));
        }
        if self.picture.runs.len() > style::RUNS.len() {
            notes.push(format!("Colours repeat after {} runs.", style::RUNS.len()));
        }
        notes
    }

    fn scale(&self) -> Scale {
        self.picture.options.scale
    }

    fn value(&self, point: &Point) -> Option<f64> {
        point.drawn(self.metric, self.scale())
    }

    fn spread(&self, point: &Point) -> Option<(f64, f64)> {
        point.spread(self.metric, self.picture.options.spread, self.scale())
    }

    /// The axes; `None` when there is nothing to draw.
    fn axes(&self, frame: &Frame) -> Option<Axes> {
        let (mut sizes, mut values) = (Vec::new(), Vec::new());
        for point in self.section.points() {
            if let Some(value) = self.value(point) {
                sizes.push(point.bytes);
                values.push(value);
                if let Some((low, high)) = self.spread(point) {
                    values.extend([low, high]);
                }
            }
        }
        let vertical = (frame.bottom, frame.top);
        let values = self.metric.axis(&values, self.scale(), vertical);
        Some(Axes { sizes: Axis::of_sizes(&sizes, frame.sizes())?, values: values? })
    }

    fn draw_axes(&self, markup: &mut Markup, frame: &Frame, Axes { sizes, values }: &Axes) {
        let Frame { left, right, top, bottom, .. } = *frame;
        let (mut lines, mut marks) = (String::new(), String::new());
        for tick in &values.ticks {
            let y = Px(values.position(tick.value));
            lines.push_str(&format!("M{left} {y}H{right}"));
        }
        for tick in &sizes.ticks {
            let x = Px(sizes.position(tick.value));
            if tick.label.is_some() {
                lines.push_str(&format!("M{x} {top}V{bottom}"));
            }
            let end = bottom + if tick.label.is_some() { 6.0 } else { 3.0 };
            marks.push_str(&format!("M{x} {bottom}V{end}"));
        }
        markup.leaf("path", &[("class", &"grid"), ("d", &lines)]);
        markup.leaf("path", &[("class", &"frame"), ("d", &format!("M{left} {bottom}H{right}{marks}"))]);
        markup.element("g", &[("class", &"values")], |markup| {
            for tick in &values.ticks {
                if let Some(label) = &tick.label {
                    markup.svg_text("muted end", (left - 8.0, values.position(tick.value) + 4.0), label);
                }
            }
        });
        markup.element("g", &[("class", &"sizes")], |markup| {
            for tick in &sizes.ticks {
                if let Some(label) = &tick.label {
                    markup.svg_text("muted middle", (sizes.position(tick.value), bottom + 21.0), label);
                }
            }
        });
        if self.metric != Metric::Time {
            markup.svg_text("muted end", (left - 8.0, top - 13.0), "GB/s");
        }
        markup.svg_text("muted middle", (f64::midpoint(left, right), bottom + 40.0), "message size");
    }

    fn place(&self, point: &Point, axes: &Axes) -> Option<(f64, f64)> {
        let value = self.value(point)?;
        Some((axes.sizes.position(point.bytes as f64), axes.values.position(value)))
    }

    /// Draws the line and the band of a series. Both are interrupted at a point that cannot be drawn.
    fn draw_line(&self, markup: &mut Markup, series: &Series, axes: &Axes) {
        for part in series.points.split(|point| self.place(point, axes).is_none()) {
            for banded in part.split(|point| self.spread(point).is_none()).filter(|part| part.len() > 1) {
                let edge = |point: &Point, upper: bool| {
                    let (low, high) = self.spread(point)?;
                    let y = axes.values.position(if upper { high } else { low });
                    Some((axes.sizes.position(point.bytes as f64), y))
                };
                let there = banded.iter().filter_map(|point| edge(point, true));
                let back = banded.iter().rev().filter_map(|point| edge(point, false));
                let outline = path(there.chain(back)) + "Z";
                markup.leaf("path", &[("class", &"band"), ("d", &outline)]);
            }
            if part.len() > 1 {
                let corners = part.iter().filter_map(|point| self.place(point, axes));
                let class = format!("line {}", text::placement_name(series.placement));
                markup.leaf("path", &[("class", &class), ("d", &path(corners))]);
            }
        }
    }

    fn draw_point(&self, markup: &mut Markup, point: &Point, axes: &Axes, small: bool) {
        let Some((x, y)) = self.place(point, axes) else { return };
        let transform = format!("translate({} {})", Px(x), Px(y));
        markup.element("g", &[("class", &"point"), ("transform", &transform)], |markup| {
            marker::draw(markup, point.algorithm(), small);
            if point.is_wrong() {
                markup.leaf("circle", &[("class", &"wrong"), ("r", &7)]);
            }
        });
    }

    /// Writes the tooltip of a point, on an invisible circle. A mouse over the circle shows its `title`. A
    /// tap or the keyboard gives it the focus, and the style sheet then shows the numbers as text; programs
    /// that draw SVG without style sheets leave that text out.
    fn draw_tooltip(&self, markup: &mut Markup, series: &Series, point: &Point, axes: &Axes) {
        const LINE: f64 = 18.0;
        let Some((x, y)) = self.place(point, axes) else { return };
        let run = &self.picture.runs[series.run].0;
        let mut lines =
            vec![format!("{run}, {}", text::placement_name(series.placement)), text::exact_size(point.bytes)];
        lines.extend(point.details());
        let width = lines.iter().map(|line| text::width(line)).fold(0.0, f64::max) + 16.0;
        let height = LINE * lines.len() as f64 + 10.0;
        markup.element("g", &[("class", &"target"), ("tabindex", &0)], |markup| {
            markup.labelled("title", &[], &lines.join("\n"));
            markup.leaf("circle", &[("class", &"hit"), ("cx", &Px(x)), ("cy", &Px(y)), ("r", &8)]);
            let place = format!("translate({} {})", Frame::WIDE.left + 8.0, Frame::WIDE.top + 4.0);
            let attributes: Attributes = &[("class", &"tip"), ("display", &"none"), ("transform", &place)];
            markup.element("g", attributes, |markup| {
                let attributes: Attributes =
                    &[("class", &"ground"), ("width", &Px(width)), ("height", &Px(height))];
                markup.leaf("rect", attributes);
                for (index, line) in lines.iter().enumerate() {
                    markup.svg_text("", (8.0, LINE * (index + 1) as f64), line);
                }
            });
        });
    }
}
