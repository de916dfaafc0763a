//! The overview of a page with several sections: a link and a small chart for each. The small charts share
//! their axis of sizes. Each has its own axis of values, since the slower collectives would be flat on a
//! common one.

use super::axis::Axis;
use super::markup::{Attributes, Markup, path};
use super::model::{Picture, Point, Section};
use super::{Metric, style, text};

const WIDTH: f64 = 120.0;
const HEIGHT: f64 = 44.0;
const MARGIN: f64 = 3.0;

/// Writes the links, which stay in view while the page is scrolled.
pub(super) fn links(markup: &mut Markup, picture: &Picture) {
    markup.element("nav", &[("class", &"links"), ("aria-label", &"Sections")], |markup| {
        markup.labelled("a", &[("href", &"#overview")], "Overview");
        for (index, section) in picture.sections.iter().enumerate() {
            markup.labelled("a", &[("href", &format!("#section{index}"))], &picture.name(section));
        }
        markup.labelled("a", &[("href", &"#runs")], "Runs");
    });
}

/// Writes the small charts.
pub(super) fn charts(markup: &mut Markup, picture: &Picture) {
    let metric = picture.options.metrics[0];
    let sizes = sizes(picture, metric);
    markup.element("section", &[("id", &"overview")], |markup| {
        markup.element("h2", &[], |markup| {
            markup.text("Overview ");
            markup.labelled(
                "small",
                &[],
                &format!("{} against message size, each to its own scale", metric.title()),
            );
        });
        markup.element("div", &[("class", &"overview")], |markup| {
            for (index, section) in picture.sections.iter().enumerate() {
                markup.element("a", &[("href", &format!("#section{index}"))], |markup| {
                    markup.labelled("b", &[], &picture.name(section));
                    if let (Some(sizes), Some(values)) = (&sizes, values(picture, section, metric)) {
                        let view = format!("0 0 {WIDTH} {HEIGHT}");
                        let attributes: Attributes =
                            &[("class", &"chart small"), ("viewBox", &view), ("aria-hidden", &"true")];
                        markup.element("svg", attributes, |markup| {
                            draw(markup, picture, section, (sizes, &values))
                        });
                    }
                    markup.labelled("span", &[], &best(section, metric));
                });
            }
        });
        let hint =
            "Point at a size in a chart, tap it, or go there with the Tab and arrow keys, for its numbers.";
        markup.labelled("p", &[("class", &"note")], hint);
    });
}

/// The axis of sizes that all small charts share.
fn sizes(picture: &Picture, metric: Metric) -> Option<Axis> {
    let points = picture.sections.iter().flat_map(Section::points);
    let drawn = points.filter(|point| point.drawn(metric, picture.options.scale).is_some());
    Axis::of_sizes(&drawn.map(|point| point.bytes).collect::<Vec<_>>(), (MARGIN, WIDTH - MARGIN))
}

fn values(picture: &Picture, section: &Section, metric: Metric) -> Option<Axis> {
    let scale = picture.options.scale;
    let values: Vec<f64> = section.points().filter_map(|point| point.drawn(metric, scale)).collect();
    let vertical = (HEIGHT - MARGIN, MARGIN);
    metric.axis(&values, scale, vertical)
}

fn draw(markup: &mut Markup, picture: &Picture, section: &Section, (sizes, values): (&Axis, &Axis)) {
    let scale = picture.options.scale;
    let metric = picture.options.metrics[0];
    markup.leaf("path", &[("class", &"frame"), ("d", &format!("M0 {}H{WIDTH}", HEIGHT - MARGIN))]);
    for series in &section.series {
        let class =
            format!("line {} {}", style::run_class(series.run), text::placement_name(series.placement));
        let drawn = |point: &Point| point.drawn(metric, scale).map(|value| (point.bytes, value));
        for part in series.points.split(|point| drawn(point).is_none()).filter(|part| part.len() > 1) {
            let corner = |(bytes, value)| (sizes.position(bytes as f64), values.position(value));
            let corners = part.iter().filter_map(drawn).map(corner);
            markup.leaf("path", &[("class", &class), ("d", &path(corners))]);
        }
    }
}

/// The best value of a section, the highest bandwidth or the shortest time. Measurements with wrong data do
/// not count.
fn best(section: &Section, metric: Metric) -> String {
    let right = section.points().filter(|point| point.bytes > 0 && !point.is_wrong());
    let values = right.filter_map(|point| point.value(metric)).filter(|&value| value > 0.0);
    let text = match metric {
        Metric::Time => values.reduce(f64::min).map(|us| format!("from {} µs", text::digits(us))),
        _ => values.reduce(f64::max).map(|gbps| format!("up to {} GB/s", text::digits(gbps))),
    };
    text.unwrap_or_default()
}
