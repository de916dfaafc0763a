//! The table of a section's numbers.

use std::collections::BTreeMap;

use super::markup::{Attributes, Markup};
use super::model::{Picture, Point, Section, Source};
use super::{Metric, Spread, legend, text};
use record::Placement;

/// Longest label in characters; a longer one loses its middle.
const LONGEST_LABEL: usize = 32;

/// The columns of a section's table.
struct NumberColumns {
    placements: Vec<Placement>,
    /// Names and units of the columns that each placement has.
    values: Vec<(&'static str, &'static str)>,
    /// True when a column names the run.
    runs: bool,
    /// Heading of the column of algorithms; `None` when no algorithm is known.
    algorithms: Option<String>,
}

impl NumberColumns {
    fn of(picture: &Picture, section: &Section) -> Self {
        let mut values = vec![("time", "µs"), ("algbw", "GB/s"), ("busbw", "GB/s"), ("wrong", "")];
        if picture.source == Source::Median {
            let slowest = if picture.options.spread == Spread::Max { "max" } else { "p95" };
            values.extend([("min", "µs"), ("median", "µs"), (slowest, "µs")]);
        }
        let placements = [Placement::OutOfPlace, Placement::InPlace].into_iter();
        Self {
            placements: placements.filter(|&placement| section.has(placement)).collect(),
            values,
            runs: picture.runs.len() > 1,
            algorithms: picture.algorithm_heading(section),
        }
    }
}

/// The points of one run at one size, one for each of [`NumberColumns::placements`].
type Cells<'a> = Vec<Option<&'a Point<'a>>>;

/// Writes the table.
pub(super) fn write(markup: &mut Markup, picture: &Picture, section: &Section) {
    let columns = NumberColumns::of(picture, section);
    let mut rows: BTreeMap<u64, BTreeMap<usize, Cells>> = BTreeMap::new();
    for series in &section.series {
        for point in &series.points {
            let row = rows.entry(point.bytes).or_default().entry(series.run);
            let cells = row.or_insert_with(|| vec![None; columns.placements.len()]);
            for (cell, placement) in cells.iter_mut().zip(&columns.placements) {
                if *placement == series.placement {
                    *cell = Some(point);
                }
            }
        }
    }
    markup.element("table", &[("class", &"numbers")], |markup| {
        let caption = caption(picture, section);
        if !caption.is_empty() {
            markup.labelled("caption", &[], &caption);
        }
        markup.element("thead", &[], |markup| heads(markup, &columns));
        for (bytes, runs) in &rows {
            markup.element("tbody", &[("class", &"size")], |markup| {
                for (index, (&run, cells)) in runs.iter().enumerate() {
                    markup.element("tr", &[], |markup| {
                        if index == 0 {
                            size(markup, *bytes, runs.len());
                        }
                        row(markup, &columns, (&picture.runs[run].0, run), cells);
                    });
                }
            });
        }
    });
}

fn caption(picture: &Picture, section: &Section) -> String {
    let mut sentences = Vec::new();
    if picture.source == Source::Median {
        sentences.push(
            "time, algbw and busbw: mean of all operations, as in the table of a run. The others: of operations that \
             were timed one by one, as in the charts.",
        );
    }
    if section.repeats() > 1 {
        sentences.push("Medians where a size was measured more than once; wrong elements are added up.");
    }
    sentences.join(" ")
}

fn heads(markup: &mut Markup, columns: &NumberColumns) {
    markup.element("tr", &[], |markup| {
        markup.labelled("th", &[("rowspan", &2), ("scope", &"col")], "size");
        if columns.runs {
            markup.labelled("th", &[("rowspan", &2), ("scope", &"col"), ("class", &"name")], "run");
        }
        for &placement in &columns.placements {
            let span = columns.values.len();
            let attributes: Attributes =
                &[("colspan", &span), ("class", &"group first"), ("scope", &"colgroup")];
            markup.labelled("th", attributes, text::placement_name(placement));
        }
        if let Some(heading) = &columns.algorithms {
            let attributes: Attributes = &[("rowspan", &2), ("class", &"name first"), ("scope", &"col")];
            markup.labelled("th", attributes, heading);
        }
    });
    markup.element("tr", &[], |markup| {
        for _ in &columns.placements {
            for (index, (name, unit)) in columns.values.iter().enumerate() {
                let class = if index == 0 { "first" } else { "" };
                markup.element("th", &[("scope", &"col"), ("class", &class)], |markup| {
                    markup.text(name);
                    if !unit.is_empty() {
                        markup.text(" ");
                        markup.labelled("small", &[], unit);
                    }
                });
            }
        }
    });
}

fn size(markup: &mut Markup, bytes: u64, rows: usize) {
    let size = text::exact_size(bytes);
    let (short, exact) = size
        .split_once(" (")
        .map_or((&*size, None), |(short, rest)| (short, Some(rest.trim_end_matches(')').to_owned())));
    let title = exact.unwrap_or_else(|| short.to_owned());
    let attributes: Attributes = &[("rowspan", &rows), ("scope", &"rowgroup"), ("title", &title)];
    markup.labelled("th", attributes, short);
}

/// Writes the cells of a row, after that of the size.
fn row(markup: &mut Markup, columns: &NumberColumns, (label, run): (&str, usize), cells: &Cells) {
    if columns.runs {
        let attributes: Attributes = &[("class", &"name"), ("scope", &"row"), ("title", &label)];
        markup.element("th", attributes, |markup| {
            legend::run_name(markup, run, &text::shortened(label, LONGEST_LABEL));
        });
    }
    for cell in cells {
        for (index, (name, _)) in columns.values.iter().enumerate() {
            number(markup, name, *cell, index == 0);
        }
    }
    if columns.algorithms.is_some() {
        let mut found: Vec<String> = cells.iter().flatten().filter_map(|point| point.algorithms()).collect();
        found.dedup();
        markup.labelled("td", &[("class", &"text first")], &found.join(" | "));
    }
}

/// Writes one number.
fn number(markup: &mut Markup, column: &str, point: Option<&Point>, first: bool) {
    let class = if first { "first" } else { "" };
    let Some(point) = point else { return markup.labelled("td", &[("class", &class)], "") };
    if column == "wrong" {
        return match point.wrong() {
            None => markup.labelled("td", &[("title", &"not verified")], "N/A"),
            Some(0) => markup.labelled("td", &[], "0"),
            Some(wrong) => {
                let mismatches = point.measurements.iter().flat_map(|each| &each.mismatches);
                let ranks: Vec<String> =
                    mismatches.map(|found| format!("rank {}: {}", found.rank, found.first)).collect();
                markup.labelled(
                    "td",
                    &[("class", &"wrong"), ("title", &ranks.join("\n"))],
                    &wrong.to_string(),
                );
            }
        };
    }
    let metric = match column {
        "time" => Some(Metric::Time),
        "algbw" => Some(Metric::Algbw),
        "busbw" => Some(Metric::Busbw),
        _ => None,
    };
    let value = match metric {
        // Without a finite value, print the value that was measured (NaN, infinity).
        Some(metric) => point.mean(metric).or_else(|| point.measurements.first().map(|each| metric.of(each))),
        None => {
            let statistics = point.measurements.iter().filter_map(|each| each.statistics.as_ref());
            match column {
                "min" => statistics.map(|each| each.min_us).reduce(f64::min),
                "median" if point.source() == Source::Median => point.value(Metric::Time),
                "median" => None,
                "p95" => statistics.map(|each| each.p95_us).reduce(f64::max),
                _ => statistics.map(|each| each.max_us).reduce(f64::max),
            }
        }
    };
    markup.labelled("td", &[("class", &class)], &value.map(text::digits).unwrap_or_default());
}
