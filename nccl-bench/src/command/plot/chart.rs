//! A chart: the values of one metric in one section, of all runs, with axes.

use super::axis::Axis;
use super::model::{Picture, Point, Section, Series};
use super::{Metric, marker, text};
use crate::command::markup::{Px, escape_xml, svg_path, svg_text};

/// Number of colours of runs in the style sheets.
const COLOURS: usize = 10;
/// Number of points in a chart above which markers are smaller.
const MANY_POINTS: usize = 250;
/// Pixels between the points of a line below which markers are smaller.
const NARROW_STEP: f64 = 12.0;

/// The layout of a chart, in the pixels of its SVG.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChartFrame {
    pub(super) width: f64,
    height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    top: f64,
    bottom: f64,
    /// Distance of the first and last size from the frame. It keeps markers away from the frame.
    inset: f64,
}

impl ChartFrame {
    /// The layout for half a page and for drawings.
    pub(super) const WIDE: Self =
        Self { width: 640.0, height: 350.0, left: 64.0, right: 628.0, top: 26.0, bottom: 306.0, inset: 12.0 };
    /// The layout for a phone: as wide as its screen, so text is not scaled down.
    pub(super) const NARROW: Self =
        Self { width: 360.0, height: 284.0, left: 60.0, right: 352.0, top: 26.0, bottom: 240.0, inset: 12.0 };
    /// The layout of the overview, for lines without axes.
    const SMALL: Self =
        Self { width: 120.0, height: 44.0, left: 0.0, right: 120.0, top: 3.0, bottom: 41.0, inset: 3.0 };

    /// Returns the x coordinates of the first and the last message size.
    fn x_range(&self) -> (f64, f64) {
        (self.left + self.inset, self.right - self.inset)
    }
}

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

impl Chart<'_> {
    /// Height of the chart in a drawing.
    pub(super) const HEIGHT: f64 = ChartFrame::WIDE.height;

    /// Returns the title: `allreduce: bus bandwidth`.
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.section.key.collective, self.metric.metric_title())
    }

    /// Returns the chart at the origin. A drawing needs `tooltips`, since nothing else shows the numbers of
    /// its points.
    pub(super) fn draw_chart(&self, frame: &ChartFrame, tooltips: bool) -> String {
        let Some(axes) = self.make_axes(frame, true) else {
            let middle = (f64::midpoint(frame.left, frame.right), f64::midpoint(frame.top, frame.bottom));
            return svg_text("muted middle", middle, "nothing to draw");
        };
        let points = self.section.series.iter().map(|series| series.points.len());
        let (longest, all) = (points.clone().max().unwrap_or(0), points.sum::<usize>());
        let (from, to) = frame.x_range();
        let small = all > MANY_POINTS || (to - from) / (longest as f64) < NARROW_STEP;
        let mut drawn = self.draw_axes(frame, &axes);
        for series in &self.section.series {
            let lines = self.draw_bands(series, &axes) + &self.draw_lines(series, &axes);
            let points = series.points.iter().filter_map(|point| {
                let (x, y) = self.place_point(point, &axes)?;
                let tip = if tooltips { self.draw_tooltip(series, point) } else { String::new() };
                let wrong = if point.is_wrong() { "<circle class=\"wrong\" r=\"7\"/>" } else { "" };
                let marker = marker::draw_marker(point.first_algorithm(), small);
                Some(format!(
                    "<g class=\"point\" transform=\"translate({} {})\">{tip}{marker}{wrong}</g>\n",
                    Px(x),
                    Px(y)
                ))
            });
            drawn += &series_group(series, &(lines + &points.collect::<String>()));
        }
        drawn
    }

    /// Returns the chart as an SVG element of a page. The page has the style sheet and shows the numbers of
    /// points.
    pub(super) fn inline_svg(&self, class: &str, frame: &ChartFrame) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart {class}\" role=\"img\" \
             aria-label=\"{}\" viewBox=\"0 0 {} {}\">{}</svg>\n",
            escape_xml(&self.title()),
            frame.width,
            frame.height,
            self.draw_chart(frame, false)
        )
    }

    /// Returns the lines alone, as a small SVG element for the overview. It has a scale of its own, since
    /// slower collectives would be flat on a common one.
    pub(super) fn small_svg(&self) -> String {
        let frame = ChartFrame::SMALL;
        let Some(axes) = self.make_axes(&frame, false) else { return String::new() };
        let lines =
            self.section.series.iter().map(|series| series_group(series, &self.draw_lines(series, &axes)));
        format!(
            "<svg class=\"chart small\" viewBox=\"0 0 {} {}\" aria-hidden=\"true\">\
             <path class=\"frame\" d=\"M0 {}H{}\"/>{}</svg>\n",
            frame.width,
            frame.height,
            frame.bottom,
            frame.right,
            lines.collect::<String>()
        )
    }

    /// Returns the sizes with points, ascending, each with its position on the axis: 0 for the first, 1 for
    /// the last.
    pub(super) fn size_positions(&self) -> Vec<(u64, f64)> {
        let Some(axes) = self.make_axes(&ChartFrame::WIDE, true) else { return Vec::new() };
        let (from, to) = ChartFrame::WIDE.x_range();
        let drawn = self.section.all_points().filter(|point| self.drawn_value(point).is_some());
        let mut sizes: Vec<u64> = drawn.map(|point| point.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let share = |size: u64| (axes.sizes.value_position(size as f64) - from) / (to - from);
        sizes.into_iter().map(|size| (size, share(size))).collect()
    }

    /// Returns notes on missing values, and on medians and colours.
    pub(super) fn list_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let sized = || self.section.all_points().filter(|point| point.bytes > 0);
        if self.section.all_points().any(|point| point.bytes == 0) {
            notes.push("Size 0 is skipped: it has no place on an axis of powers of two.".to_owned());
        }
        let ranks = |series: &Series| self.picture.runs[series.run].1.ranks.len();
        let single = self.section.series.iter().any(|series| ranks(series) == 1);
        if self.metric == Metric::Busbw
            && single
            && sized().any(|point| point.chart_value(self.metric) == Some(0.0))
        {
            notes.push(
                "The bus bandwidth of a single rank is 0, since it sends nothing: --metric algbw shows more."
                    .to_owned(),
            );
        }
        let missing = sized().filter(|point| self.drawn_value(point).is_none()).count();
        if missing > 0 {
            let what = if missing == 1 { "1 value is" } else { &format!("{missing} values are") };
            notes.push(format!("{what} skipped: zero, or not a number."));
        }
        if self.section.most_repeats() > 1 {
            notes.push(format!("Medians of up to {} measurements of a size.", self.section.most_repeats()));
        }
        if self.picture.runs.len() > COLOURS {
            notes.push(format!("Colours repeat after {} runs.", COLOURS));
        }
        notes
    }

    fn drawn_value(&self, point: &Point) -> Option<f64> {
        point.drawable_value(self.metric, self.picture.options.scale)
    }

    fn drawn_spread(&self, point: &Point) -> Option<(f64, f64)> {
        point.value_spread(self.metric, self.picture.options)
    }

    /// Returns the axes, with space for the bands if these are drawn; `None` when nothing can be drawn.
    fn make_axes(&self, frame: &ChartFrame, bands: bool) -> Option<Axes> {
        let (mut sizes, mut values) = (Vec::new(), Vec::new());
        for point in self.section.all_points() {
            if let Some(value) = self.drawn_value(point) {
                sizes.push(point.bytes);
                values.push(value);
                if bands && let Some((low, high)) = self.drawn_spread(point) {
                    values.extend([low, high]);
                }
            }
        }
        let vertical = (frame.bottom, frame.top);
        let values = Axis::of_values(self.metric, self.picture.options.scale, &values, vertical)?;
        Some(Axes { sizes: Axis::of_sizes(&sizes, frame.x_range())?, values })
    }

    fn draw_axes(&self, frame: &ChartFrame, Axes { sizes, values }: &Axes) -> String {
        let ChartFrame { left, right, top, bottom, .. } = *frame;
        let (mut grid, mut marks) = (String::new(), String::new());
        let (mut value_labels, mut size_labels) = (String::new(), String::new());
        for tick in &values.ticks {
            let y = values.value_position(tick.value);
            grid += &format!("M{left} {}H{right}", Px(y));
            if let Some(label) = &tick.label {
                value_labels += &svg_text("muted end", (left - 8.0, y + 4.0), label);
            }
        }
        for tick in &sizes.ticks {
            let x = sizes.value_position(tick.value);
            let mut length = 3.0;
            if let Some(label) = &tick.label {
                grid += &format!("M{} {top}V{bottom}", Px(x));
                size_labels += &svg_text("muted middle", (x, bottom + 21.0), label);
                length = 6.0;
            }
            marks += &format!("M{} {bottom}V{}", Px(x), bottom + length);
        }
        let unit = match self.metric {
            Metric::Time => String::new(),
            Metric::Busbw | Metric::Algbw => svg_text("muted end", (left - 8.0, top - 13.0), "GB/s"),
        };
        let name = svg_text("muted middle", (f64::midpoint(left, right), bottom + 40.0), "message size");
        format!(
            "<path class=\"grid\" d=\"{grid}\"/>\n\
             <path class=\"frame\" d=\"M{left} {bottom}H{right}{marks}\"/>\n\
             <g class=\"values\">{value_labels}</g>\n<g class=\"sizes\">{size_labels}</g>\n{unit}{name}"
        )
    }

    fn place_point(&self, point: &Point, axes: &Axes) -> Option<(f64, f64)> {
        let value = self.drawn_value(point)?;
        Some((axes.sizes.value_position(point.bytes as f64), axes.values.value_position(value)))
    }

    /// Returns the line of a series. It is interrupted at points that cannot be drawn.
    fn draw_lines(&self, series: &Series, axes: &Axes) -> String {
        let places: Vec<_> = series.points.iter().map(|point| self.place_point(point, axes)).collect();
        let parts = places.split(Option::is_none).filter(|part| part.len() > 1);
        let line = |part: &[_]| {
            format!("<path class=\"line\" d=\"{}\"/>\n", svg_path(part.iter().copied().flatten()))
        };
        parts.map(line).collect()
    }

    /// Returns the band of a series. It is interrupted like the line, and at points without a range.
    fn draw_bands(&self, series: &Series, axes: &Axes) -> String {
        let edges = |point: &Point| {
            let (low, high) = self.drawn_value(point).and_then(|_| self.drawn_spread(point))?;
            let x = axes.sizes.value_position(point.bytes as f64);
            Some([(x, axes.values.value_position(high)), (x, axes.values.value_position(low))])
        };
        let edges: Vec<_> = series.points.iter().map(edges).collect();
        let parts = edges.split(Option::is_none).filter(|part| part.len() > 1);
        let outline = |part: &[Option<[_; 2]>]| {
            let there = part.iter().flatten().map(|[upper, _]| *upper);
            let back = part.iter().rev().flatten().map(|[_, lower]| *lower);
            format!("<path class=\"band\" d=\"{}Z\"/>\n", svg_path(there.chain(back)))
        };
        parts.map(outline).collect()
    }

    /// Returns the numbers of a point, shown by a browser over an invisible circle around it.
    fn draw_tooltip(&self, series: &Series, point: &Point) -> String {
        let run = &self.picture.runs[series.run].0;
        let head = [format!("{run}, {}", series.placement.placement_name()), text::exact_size(point.bytes)];
        let lines: Vec<String> = head.into_iter().chain(point.list_details()).collect();
        format!("<title>{}</title><circle class=\"hit\" r=\"8\"/>", escape_xml(&lines.join("\n")))
    }
}

/// Returns the CSS class with the colour of run `index`.
pub(super) fn run_class(index: usize) -> String {
    format!("run{}", index % COLOURS)
}

/// Returns the group of a series, with its colour and dashes.
fn series_group(series: &Series, content: &str) -> String {
    let (run, placement) = (run_class(series.run), series.placement.placement_name());
    format!("<g class=\"series {run} {placement}\">{content}</g>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_sizes_in_a_page_are_those_of_its_charts() {
        for frame in [ChartFrame::WIDE, ChartFrame::NARROW] {
            let (from, to) = frame.x_range();
            let share = |pixels: f64| (1e6 * pixels / frame.width).round() / 1e4;
            let style = format!("--from:{}%;--span:{}%", share(from), share(to - from));
            assert!(include_str!("page.css").contains(&style), "{style}");
        }
    }
}
