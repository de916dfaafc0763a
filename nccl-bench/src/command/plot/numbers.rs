//! The table of a section's numbers.

use std::collections::BTreeMap;

use super::model::{Picture, Point, Section, Series};
use super::{Metric, Spread, legend, text};
use crate::command::markup::escape_xml;
use record::Measurement;
use record::statistics::Statistics;

/// Longest label in characters; a longer one loses its middle.
const LONGEST_LABEL: usize = 32;

/// Returns the table, with a row for each size, run and placement.
pub(super) fn numbers_table(picture: &Picture, section: &Section) -> String {
    let algorithms = section.all_points().any(|point| point.algorithms_text().is_some());
    let mut sizes: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for series in &section.series {
        for point in &series.points {
            sizes.entry(point.bytes).or_default().push(row_cells(picture, series, point, algorithms));
        }
    }
    let mut bodies = String::new();
    for (&bytes, rows) in &sizes {
        let size = format!(
            "<th rowspan=\"{}\" scope=\"rowgroup\" title=\"{bytes} B\">{}</th>",
            rows.len(),
            text::size_text(bytes)
        );
        let rows = rows.join("</tr>\n<tr>");
        bodies += &format!("<tbody class=\"size\"><tr>{size}{rows}</tr></tbody>\n");
    }
    let head: String = column_heads(picture, algorithms)
        .into_iter()
        .map(|(name, unit)| {
            let class = if ["run", "placement", "algorithm"].contains(&name) { "name" } else { "number" };
            format!("<th scope=\"col\" class=\"{class}\">{name} <small>{unit}</small></th>")
        })
        .collect();
    format!(
        "<table class=\"numbers\">\n<caption>{}</caption>\n<thead><tr>{head}</tr></thead>\n\
         {bodies}</table>\n",
        table_caption(picture, section)
    )
}

/// Returns the names and units of the columns.
fn column_heads(picture: &Picture, algorithms: bool) -> Vec<(&'static str, &'static str)> {
    let mut head = vec![("size", "")];
    head.extend((picture.runs.len() > 1).then_some(("run", "")));
    head.extend([("placement", ""), ("time", "µs"), ("algbw", "GB/s"), ("busbw", "GB/s"), ("wrong", "")]);
    if picture.medians {
        let slowest = if picture.options.spread == Spread::Max { "max" } else { "p95" };
        head.extend([("min", "µs"), ("median", "µs"), (slowest, "µs")]);
    }
    head.extend(algorithms.then_some(("algorithm", "")));
    head
}

fn table_caption(picture: &Picture, section: &Section) -> String {
    let mut sentences = Vec::new();
    if picture.medians {
        sentences.push(
            "time, algbw and busbw: mean of all operations, as in the table of a run. Other columns: \
             operations timed one by one, as in the charts.",
        );
    }
    if section.most_repeats() > 1 {
        sentences.push("Medians where a size was measured more than once; wrong elements are added up.");
    }
    sentences.join(" ")
}

/// Returns the cells of a row, after the size.
fn row_cells(picture: &Picture, series: &Series, point: &Point, algorithms: bool) -> String {
    let mut cells = String::new();
    if picture.runs.len() > 1 {
        let label = &picture.runs[series.run].0;
        let name = legend::run_name(series.run, &text::shorten_middle(label, LONGEST_LABEL));
        cells += &format!("<th class=\"name\" scope=\"row\" title=\"{}\">{name}</th>", escape_xml(label));
    }
    cells += &format!("<td class=\"name\">{}</td>", series.placement.placement_name());
    let number = |value: Option<f64>| format!("<td>{}</td>", value.map(text::value_text).unwrap_or_default());
    for metric in [Metric::Time, Metric::Algbw, Metric::Busbw] {
        // Without a finite value, print the measured value (NaN, infinity).
        let measured = || point.measurements.first().map(|each| metric.value_of(each));
        cells += &number(point.mean_value(metric).or_else(measured));
    }
    cells += &wrong_cell(point);
    if picture.medians {
        let of = |value: fn(&Statistics) -> f64| {
            let found = point.measurements.iter().filter_map(|each| each.statistics.as_ref());
            found.map(value).collect::<Vec<f64>>()
        };
        let slowest = of(match picture.options.spread {
            Spread::Max => |found| found.max_us,
            Spread::P95 | Spread::None => |found| found.p95_us,
        });
        cells += &number(of(|found| found.min_us).into_iter().reduce(f64::min));
        cells += &number(point.chart_value(Metric::Time));
        cells += &number(slowest.into_iter().reduce(f64::max));
    }
    if algorithms {
        cells +=
            &format!("<td class=\"text\">{}</td>", escape_xml(&point.algorithms_text().unwrap_or_default()));
    }
    cells
}

/// Returns the cell of the wrong elements, with the names of their ranks.
fn wrong_cell(point: &Point) -> String {
    let ranks = |each: &Measurement| {
        let lines = each.mismatches.iter().map(|found| format!("rank {}: {}\n", found.rank, found.first));
        lines.collect::<String>()
    };
    match point.wrong_elements() {
        None => "<td title=\"not verified\">N/A</td>".to_owned(),
        Some(0) => "<td>0</td>".to_owned(),
        Some(wrong) => {
            let ranks: String = point.measurements.iter().map(|each| ranks(each)).collect();
            format!("<td class=\"wrong\" title=\"{}\">{wrong}</td>", escape_xml(ranks.trim_end()))
        }
    }
}
