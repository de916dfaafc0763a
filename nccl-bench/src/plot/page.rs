//! The HTML page: charts, tables, and what the runs ran on. It needs nothing else: no script, no font, no network.

use std::collections::BTreeMap;

use super::chart::{self, Chart};
use super::markup::{Attributes, Markup};
use super::model::{self, Picture, Point, Section};
use super::{Metric, Spread, style};
use crate::record::{Placement, Run};

/// A label with more characters loses its middle in tables of numbers.
const LONGEST_LABEL: usize = 32;

/// The whole page.
pub(super) fn write(picture: &Picture, head: &str) -> String {
    let mut markup = Markup::default();
    markup.raw("<!DOCTYPE html>\n");
    markup.raw(head);
    markup.element("html", &[("xmlns", &"http://www.w3.org/1999/xhtml"), ("lang", &"en")], |markup| {
        let title = picture.options.title();
        markup.element("head", &[], |markup| {
            markup.leaf("meta", &[("charset", &"utf-8")]);
            markup
                .leaf("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
            markup.labelled("title", &[], title);
            markup.element("style", &[], |markup| markup.raw(&style::page()));
        });
        markup.element("body", &[], |markup| {
            header(markup, picture, title);
            for (index, section) in picture.sections.iter().enumerate() {
                draw_section(markup, picture, index, section);
            }
            runs(markup, picture);
            markup.labelled(
                "footer",
                &[],
                "Sizes are binary (1 KiB = 1024 B), bandwidths decimal (1 GB/s = 1e9 bytes per second). Time is the \
                 mean per operation; algbw is size over time, busbw what each rank's link carries at least.",
            );
        });
    });
    markup.finish()
}

fn header(markup: &mut Markup, picture: &Picture, title: &str) {
    markup.element("header", &[], |markup| {
        markup.labelled("h1", &[], title);
        if let Some(facts) = picture.facts() {
            markup.labelled("p", &[], &facts);
        }
        if picture.sections.len() > 1 {
            markup.element("nav", &[], |markup| {
                for (index, section) in picture.sections.iter().enumerate() {
                    let text = format!("{} ({})", section.collective, Picture::detail(section));
                    markup.labelled("a", &[("href", &format!("#section{index}"))], &text);
                }
                markup.labelled("a", &[("href", &"#runs")], "runs");
            });
        }
    });
    let mut problems: Vec<(&str, String)> = Vec::new();
    for (label, run) in &picture.runs {
        if let Some((_, text)) = model::unfinished(&run.outcome) {
            problems.push((label, format!("{text}. What it had measured is shown.")));
        }
        let wrong = run.measurements.iter().filter(|each| each.wrong.is_some_and(|wrong| wrong > 0)).count();
        if wrong > 0 {
            problems.push((label, format!("has wrong data in {}.", model::counted(wrong, "measurement"))));
        }
        if run.measurements.is_empty() {
            problems.push((label, "holds no measurement.".to_owned()));
        }
    }
    if !problems.is_empty() {
        markup.element("ul", &[("class", &"problems")], |markup| {
            for (label, text) in problems {
                markup.element("li", &[], |markup| {
                    markup.labelled("strong", &[], label);
                    markup.text(&format!(" {text}"));
                });
            }
        });
    }
}

fn draw_section(markup: &mut Markup, picture: &Picture, index: usize, section: &Section) {
    markup.element("section", &[("id", &format!("section{index}"))], |markup| {
        markup.element("h2", &[], |markup| {
            markup.text(section.collective);
            markup.text(" ");
            markup.labelled("small", &[], &Picture::detail(section));
        });
        markup.element("div", &[("class", &"charts")], |markup| {
            for &metric in &picture.options.metrics {
                let chart = Chart::new(picture, section, metric);
                markup.element("figure", &[], |markup| chart::inline(markup, &chart));
            }
        });
        markup.element("details", &[("open", &"open")], |markup| {
            markup.labelled("summary", &[], "Numbers");
            markup.element("div", &[("class", &"scroll")], |markup| numbers(markup, picture, section));
        });
    });
}

/// The columns of one placement.
fn columns(picture: &Picture, section: &Section) -> Vec<(&'static str, &'static str)> {
    let mut columns = vec![("time", "µs")];
    if section.points().flat_map(|point| &point.measurements).any(|each| each.statistics.is_some()) {
        match picture.options.spread {
            Spread::None => {}
            Spread::P95 => columns.extend([("min", "µs"), ("p95", "µs")]),
            Spread::Max => columns.extend([("min", "µs"), ("max", "µs")]),
        }
    }
    columns.extend([("algbw", "GB/s"), ("busbw", "GB/s"), ("wrong", "")]);
    columns
}

fn numbers(markup: &mut Markup, picture: &Picture, section: &Section) {
    let placements: Vec<Placement> = [Placement::OutOfPlace, Placement::InPlace]
        .into_iter()
        .filter(|&placement| section.has(placement))
        .collect();
    let columns = columns(picture, section);
    let several = picture.runs.len() > 1;
    let algorithms = section.points().any(|point| point.algorithms().is_some());
    // Of each size and run the points, in the order of placements.
    let mut rows: BTreeMap<u64, BTreeMap<usize, Vec<Option<&Point>>>> = BTreeMap::new();
    for series in &section.series {
        for point in &series.points {
            let row = rows.entry(point.bytes).or_default().entry(series.run);
            let cells = row.or_insert_with(|| vec![None; placements.len()]);
            for (cell, placement) in cells.iter_mut().zip(&placements) {
                if *placement == series.placement {
                    *cell = Some(point);
                }
            }
        }
    }
    markup.element("table", &[("class", &"numbers")], |markup| {
        if section.repeats() > 1 {
            let text = "Medians where a size was measured more than once; wrong elements are added up.";
            markup.labelled("caption", &[], text);
        }
        markup.element("thead", &[], |markup| {
            markup.element("tr", &[], |markup| {
                markup.labelled("th", &[("rowspan", &2), ("scope", &"col")], "size");
                if several {
                    markup.labelled("th", &[("rowspan", &2), ("scope", &"col"), ("class", &"name")], "run");
                }
                for &placement in &placements {
                    let span = columns.len();
                    let attributes: Attributes =
                        &[("colspan", &span), ("class", &"group first"), ("scope", &"colgroup")];
                    markup.labelled("th", attributes, model::placement_name(placement));
                }
                if algorithms {
                    markup.labelled(
                        "th",
                        &[("rowspan", &2), ("class", &"name first"), ("scope", &"col")],
                        "chosen by NCCL",
                    );
                }
            });
            markup.element("tr", &[], |markup| {
                for _ in &placements {
                    for (index, (name, unit)) in columns.iter().enumerate() {
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
        });
        for (bytes, runs) in &rows {
            markup.element("tbody", &[("class", &"size")], |markup| {
                for (index, (&run, cells)) in runs.iter().enumerate() {
                    markup.element("tr", &[], |markup| {
                        if index == 0 {
                            let size = model::exact_size(*bytes);
                            let (short, exact) =
                                size.split_once(" (").map_or((&*size, None), |(short, rest)| {
                                    (short, Some(rest.trim_end_matches(')').to_owned()))
                                });
                            let title = exact.unwrap_or_else(|| short.to_owned());
                            let attributes: Attributes =
                                &[("rowspan", &runs.len()), ("scope", &"rowgroup"), ("title", &title)];
                            markup.labelled("th", attributes, short);
                        }
                        if several {
                            let label = &picture.runs[run].0;
                            let attributes: Attributes =
                                &[("class", &"name"), ("scope", &"row"), ("title", label)];
                            markup.element("th", attributes, |markup| {
                                name(markup, run, &model::shortened(label, LONGEST_LABEL));
                            });
                        }
                        for cell in cells {
                            for (index, (name, _)) in columns.iter().enumerate() {
                                number(markup, name, *cell, index == 0);
                            }
                        }
                        if algorithms {
                            let mut found: Vec<String> =
                                cells.iter().flatten().filter_map(|point| point.algorithms()).collect();
                            found.dedup();
                            markup.labelled("td", &[("class", &"text first")], &found.join(" | "));
                        }
                    });
                }
            });
        }
    });
}

/// One cell of the numbers.
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
        // Where nothing is a number, what was found instead.
        Some(metric) => {
            point.value(metric).or_else(|| point.measurements.first().map(|each| metric.of(each)))
        }
        None => {
            let statistics = point.measurements.iter().filter_map(|each| each.statistics.as_ref());
            match column {
                "min" => statistics.map(|each| each.min_us).reduce(f64::min),
                "p95" => statistics.map(|each| each.p95_us).reduce(f64::max),
                _ => statistics.map(|each| each.max_us).reduce(f64::max),
            }
        }
    };
    markup.labelled("td", &[("class", &class)], &value.map(model::digits).unwrap_or_default());
}

/// A run's name, with its colour.
fn name(markup: &mut Markup, run: usize, label: &str) {
    let class = format!("swatch run{}", run % style::RUNS.len());
    markup.labelled("span", &[("class", &class)], "");
    markup.text(label);
}

/// What the runs ran on, side by side.
fn runs(markup: &mut Markup, picture: &Picture) {
    markup.element("section", &[("id", &"runs")], |markup| {
        markup.labelled("h2", &[], "Runs");
        markup.element("div", &[("class", &"scroll")], |markup| {
            markup.element("table", &[("class", &"runs")], |markup| {
                if picture.runs.len() > 1 {
                    markup.labelled("caption", &[], "What is not the same in all runs is marked with ≠.");
                }
                markup.element("thead", &[], |markup| {
                    markup.element("tr", &[], |markup| {
                        markup.labelled("td", &[], "");
                        for (index, (label, _)) in picture.runs.iter().enumerate() {
                            markup.element("th", &[("scope", &"col")], |markup| name(markup, index, label));
                        }
                    });
                });
                markup.element("tbody", &[], |markup| {
                    for (heading, rows) in provenance(picture) {
                        if !rows.is_empty() {
                            let span = picture.runs.len() + 1;
                            markup.element("tr", &[], |markup| {
                                markup.labelled("th", &[("colspan", &span)], heading);
                            });
                        }
                        for row in rows {
                            row.write(markup);
                        }
                    }
                });
            });
        });
    });
}

/// One line of the provenance: a value per run.
struct Row {
    name: String,
    values: Vec<String>,
    /// Whether a difference is news: two runs never begin at the same time.
    compared: bool,
}

impl Row {
    fn write(&self, markup: &mut Markup) {
        let differs = self.compared && self.values.windows(2).any(|pair| pair[0] != pair[1]);
        let class = if differs { "differs" } else { "" };
        markup.element("tr", &[("class", &class)], |markup| {
            let mark = if differs { "≠ " } else { "" };
            markup.labelled("th", &[("scope", &"row")], &format!("{mark}{}", self.name));
            for value in &self.values {
                markup.labelled("td", &[], value);
            }
        });
    }
}

fn provenance(picture: &Picture) -> [(&'static str, Vec<Row>); 4] {
    let row = |name: &str, compared: bool, value: &dyn Fn(&Run) -> String| Row {
        name: name.to_owned(),
        values: picture.runs.iter().map(|(_, run)| value(run)).collect(),
        compared,
    };
    let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
    let mut run = vec![
        row("outcome", true, &|run| {
            model::unfinished(&run.outcome).map_or_else(|| "complete".to_owned(), |(_, text)| text)
        }),
        row("began", false, &|run| run.started_at.clone()),
        row("ended", false, &|run| or_dash(&run.ended_at)),
        row("program", true, &|run| run.program.clone()),
        row("command", true, &|run| run.command.join(" ")),
    ];
    if picture.runs.iter().any(|(_, run)| !run.notes.is_empty()) {
        run.push(row("notes", true, &|run| run.notes.join("; ")));
    }
    let machine = vec![
        row("ranks", true, &|run| run.ranks.len().to_string()),
        row("devices", true, &model::devices),
        row("hosts", true, &|run| model::hosts(run).join(", ")),
        row("world", true, &|run| run.provenance.world.clone()),
        row("backend", true, &|run| run.provenance.backend.clone()),
        row("library", true, &|run| run.provenance.library_version.clone()),
        row("library file", true, &|run| run.provenance.library_path.clone()),
        row("CUDA of the driver", true, &|run| or_dash(&run.provenance.cuda_driver)),
        row("transport", true, &|run| or_dash(&run.provenance.transport)),
        row("system", true, &|run| run.provenance.system.clone()),
    ];
    let settings: Vec<BTreeMap<String, String>> = picture.runs.iter().map(|(_, run)| settings(run)).collect();
    let environments: Vec<&BTreeMap<String, String>> =
        picture.runs.iter().map(|(_, run)| &run.provenance.environment).collect();
    let settings = union(&settings.iter().collect::<Vec<_>>());
    [("Run", run), ("Machine", machine), ("Settings", settings), ("Environment", union(&environments))]
}

/// A row for each name that any run has.
fn union(maps: &[&BTreeMap<String, String>]) -> Vec<Row> {
    let mut names: Vec<&String> = maps.iter().flat_map(|map| map.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let value =
        |map: &BTreeMap<String, String>, name: &str| map.get(name).cloned().unwrap_or_else(|| "–".to_owned());
    names
        .into_iter()
        .map(|name| Row {
            name: name.clone(),
            values: maps.iter().map(|map| value(map, name)).collect(),
            compared: true,
        })
        .collect()
}

/// The settings as the native format has them, by name.
fn settings(run: &Run) -> BTreeMap<String, String> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(&run.settings) else {
        return BTreeMap::new();
    };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text.replace('_', " "),
        serde_json::Value::Bool(true) => "yes".to_owned(),
        serde_json::Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    };
    fields.into_iter().map(|(name, value)| (name.replace('_', " "), text(value))).collect()
}
