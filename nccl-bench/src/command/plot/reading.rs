//! The numbers of a point, shown in a page without a script: each size of a chart is covered by the label of
//! a radio button, and the numbers in the label appear while it is hovered, tapped, or focused by the
//! keyboard.

use super::chart::Chart;
use super::markup::{Attributes, Markup};
use super::{legend, text};

/// Writes the labels of a chart. `group` is the name of their radio buttons, unique to the chart.
pub(super) fn write(markup: &mut Markup, chart: &Chart, group: &str) {
    let sizes = chart.sizes();
    let strips = strips(&sizes.iter().map(|&(_, at)| at).collect::<Vec<_>>());
    let (Some(first), Some(last)) = (strips.first(), strips.last()) else { return };
    let style = format!("--start:{:.4};--width:{:.4}", first.0, last.1 - first.0);
    let label = format!("{} by message size", chart.title());
    let attributes: Attributes =
        &[("class", &"readings"), ("role", &"radiogroup"), ("aria-label", &label), ("style", &style)];
    markup.element("div", attributes, |markup| {
        for (&(bytes, _), (from, to)) in sizes.iter().zip(&strips) {
            markup.element("label", &[("style", &format!("flex-grow:{:.4}", to - from))], |markup| {
                markup.leaf("input", &[("type", &"radio"), ("name", &group)]);
                markup.element("span", &[("class", &"reading")], |markup| write_size(markup, chart, bytes));
            });
        }
    });
}

fn write_size(markup: &mut Markup, chart: &Chart, bytes: u64) {
    markup.labelled("b", &[], &text::exact_size(bytes));
    let several = chart.picture.runs.len() > 1;
    for series in &chart.section.series {
        for point in series.points.iter().filter(|point| point.bytes == bytes) {
            let class = if point.is_wrong() { "wrong" } else { "" };
            markup.element("span", &[("class", &class)], |markup| {
                let label =
                    if several { format!("{}, ", chart.picture.runs[series.run].0) } else { String::new() };
                let name = format!("{label}{}: ", text::placement_name(series.placement));
                markup.element("b", &[], |markup| legend::run_name(markup, series.run, &name));
                markup.text(&point.details().join(" · "));
            });
        }
    }
}

/// The start and end of each place's strip: halfway to each neighbour. The first and last strip reach as far
/// outwards as inwards, with a limit.
fn strips(places: &[f64]) -> Vec<(f64, f64)> {
    const WIDEST_END: f64 = 0.05;
    let middles: Vec<f64> = places.windows(2).map(|pair| f64::midpoint(pair[0], pair[1])).collect();
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return Vec::new() };
    let beyond =
        |inwards: Option<&f64>, end: f64| inwards.map_or(WIDEST_END, |at| (at - end).abs().min(WIDEST_END));
    let start = first - beyond(middles.first(), *first);
    let end = last + beyond(middles.last(), *last);
    let edges: Vec<f64> = std::iter::once(start).chain(middles).chain([end]).collect();
    edges.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_reaches_half_the_way_to_its_neighbours() {
        let close = |found: &[(f64, f64)], expected: &[(f64, f64)]| {
            assert_eq!(found.len(), expected.len());
            for (one, other) in found.iter().zip(expected) {
                assert!((one.0 - other.0).abs() < 1e-9 && (one.1 - other.1).abs() < 1e-9, "{found:?}");
            }
        };
        close(&strips(&[0.0, 0.04, 0.1, 1.0]), &[(-0.02, 0.02), (0.02, 0.07), (0.07, 0.55), (0.55, 1.05)]);
        close(&strips(&[0.5]), &[(0.45, 0.55)]);
        close(&strips(&[]), &[]);
    }
}
