//! The numbers of a point, shown in a page without a script: each size of a chart is covered by the label of
//! a radio button, and the numbers in the label appear while it is hovered, tapped, or focused by the
//! keyboard.

use super::chart::Chart;
use super::{legend, text};
use crate::command::markup::escape_xml;

/// Returns the labels of a chart. `group` is the name of their radio buttons, unique to the chart.
pub(super) fn render_labels(chart: &Chart, group: &str) -> String {
    let sizes = chart.size_positions();
    let strips = strip_ranges(&sizes.iter().map(|&(_, at)| at).collect::<Vec<_>>());
    let (Some(first), Some(last)) = (strips.first(), strips.last()) else { return String::new() };
    let label = |(&(bytes, _), &(from, to)): (&(u64, f64), &(f64, f64))| {
        format!(
            "<label style=\"flex-grow:{:.4}\"><input type=\"radio\" name=\"{group}\"/>\
             <span class=\"reading\"><b>{}</b>\n{}</span></label>\n",
            to - from,
            text::exact_size(bytes),
            render_numbers(chart, bytes)
        )
    };
    format!(
        "<div class=\"readings\" role=\"radiogroup\" aria-label=\"{} by message size\" \
         style=\"--start:{:.4};--width:{:.4}\">\n{}</div>\n",
        escape_xml(&chart.title()),
        first.0,
        last.1 - first.0,
        sizes.iter().zip(&strips).map(label).collect::<String>()
    )
}

/// Returns the numbers of all runs at a size, a line for each point.
fn render_numbers(chart: &Chart, bytes: u64) -> String {
    let runs = &chart.picture.runs;
    let mut lines = String::new();
    for series in &chart.section.series {
        let label = if runs.len() > 1 { format!("{}, ", runs[series.run].0) } else { String::new() };
        let name = legend::run_name(series.run, &format!("{label}{}: ", series.placement.placement_name()));
        for point in series.points.iter().filter(|point| point.bytes == bytes) {
            let class = if point.is_wrong() { "wrong" } else { "right" };
            let details = escape_xml(&point.list_details().join(" · "));
            lines += &format!("<span class=\"{class}\"><b>{name}</b>{details}</span>\n");
        }
    }
    lines
}

/// Returns the start and end of each place's strip: halfway to each neighbour. The first and last strip reach
/// as far outwards as inwards, with a limit.
fn strip_ranges(places: &[f64]) -> Vec<(f64, f64)> {
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
        close(
            &strip_ranges(&[0.0, 0.04, 0.1, 1.0]),
            &[(-0.02, 0.02), (0.02, 0.07), (0.07, 0.55), (0.55, 1.05)],
        );
        close(&strip_ranges(&[0.5]), &[(0.45, 0.55)]);
        close(&strip_ranges(&[]), &[]);
    }
}
