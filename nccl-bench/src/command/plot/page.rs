//! The HTML page: headlines, overview, charts, tables, and the machine and settings of each run, without scripts, fonts or
//! links to other files.

use std::collections::BTreeMap;

use super::chart::Chart;
use super::frame::Frame;
use super::headline::{self, Headline};
use super::markup::Markup;
use super::model::{Picture, Section};
use super::{legend, numbers, overview, reading, style, text};
use record::Run;

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
            markup.element("style", &[], |markup| {
                markup.raw(&style::charts());
                markup.raw(&style::page());
            });
        });
        markup.element("body", &[], |markup| {
            header(markup, picture, title);
            if picture.sections.len() > 1 {
                overview::links(markup, picture);
                overview::charts(markup, picture);
            }
            for (index, section) in picture.sections.iter().enumerate() {
                draw_section(markup, picture, index, section);
            }
            runs(markup, picture);
            markup.labelled(
                "footer",
                &[],
                "Sizes are binary (1 KiB = 1024 B), bandwidths decimal (1 GB/s = 1e9 bytes per second). algbw is size \
                 over time, busbw what each rank's link carries at least.",
            );
        });
    });
    markup.finish()
}

fn header(markup: &mut Markup, picture: &Picture, title: &str) {
    markup.element("header", &[], |markup| {
        markup.labelled("h1", &[], title);
        let problems: Vec<(&str, String)> = picture
            .runs
            .iter()
            .flat_map(|(label, run)| headline::problems(run).into_iter().map(|text| (label.as_str(), text)))
            .collect();
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
        markup.element("div", &[("class", &"headlines")], |markup| {
            for (index, (label, _)) in picture.runs.iter().enumerate() {
                let headline = Headline::new(picture, &picture.sections, index);
                markup.element("div", &[("class", &"headline")], |markup| {
                    if picture.runs.len() > 1 {
                        markup.element("h2", &[], |markup| legend::run_name(markup, index, label));
                    }
                    markup.element("p", &[("class", &"peak")], |markup| {
                        markup.labelled("strong", &[], &headline.peak);
                        markup.text(&headline.peak_of);
                    });
                    for fact in &headline.facts {
                        markup.labelled("p", &[], fact);
                    }
                    let class = if headline.is_verified { "" } else { "alarm" };
                    markup.labelled("p", &[("class", &class)], &headline.verification);
                });
            }
        });
    });
}

fn draw_section(markup: &mut Markup, picture: &Picture, index: usize, section: &Section) {
    markup.element("section", &[("id", &format!("section{index}"))], |markup| {
        markup.element("h2", &[], |markup| {
            markup.text(section.collective);
            markup.text(" ");
            markup.labelled("small", &[], &Picture::detail(section));
        });
        legend::write(markup, picture, section);
        markup.element("div", &[("class", &"charts")], |markup| {
            for (number, &metric) in picture.options.metrics.iter().enumerate() {
                let chart = Chart { picture, section, metric };
                markup.element("figure", &[], |markup| {
                    markup.labelled("figcaption", &[], metric.title());
                    markup.element("div", &[("class", &"plot")], |markup| {
                        chart.inline(markup, &Frame::WIDE);
                        chart.inline(markup, &Frame::NARROW);
                        reading::write(markup, &chart, &format!("reading-{index}-{number}"));
                    });
                    for note in chart.notes() {
                        markup.labelled("p", &[("class", &"note")], &note);
                    }
                });
            }
        });
        // With several sections, open tables would push the next charts out of view.
        let open = if picture.sections.len() == 1 { "open" } else { "" };
        markup.element("details", &[("open", &open)], |markup| {
            markup.labelled("summary", &[], "Numbers");
            markup.element("div", &[("class", &"scroll")], |markup| numbers::write(markup, picture, section));
        });
    });
}

/// Writes the table of the runs' machines and settings.
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
                            markup.element("th", &[("scope", &"col")], |markup| {
                                legend::run_name(markup, index, label)
                            });
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

/// A row of the table: one value per run.
struct Fact {
    name: String,
    values: Vec<String>,
    /// False where values always differ, such as times.
    compared: bool,
}

impl Fact {
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

fn provenance(picture: &Picture) -> [(&'static str, Vec<Fact>); 4] {
    let row = |name: &str, compared: bool, value: &dyn Fn(&Run) -> String| Fact {
        name: name.to_owned(),
        values: picture.runs.iter().map(|(_, run)| value(run)).collect(),
        compared,
    };
    let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
    let mut run = vec![
        row("outcome", true, &|run| {
            text::unfinished(&run.outcome).map_or_else(|| "complete".to_owned(), |(_, text)| text)
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
        row("devices", true, &text::devices),
        row("hosts", true, &|run| text::hosts(run).join(", ")),
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
fn union(maps: &[&BTreeMap<String, String>]) -> Vec<Fact> {
    let mut names: Vec<&String> = maps.iter().flat_map(|map| map.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let value =
        |map: &BTreeMap<String, String>, name: &str| map.get(name).cloned().unwrap_or_else(|| "–".to_owned());
    names
        .into_iter()
        .map(|name| Fact {
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
