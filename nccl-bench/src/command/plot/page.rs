//! The HTML page: headlines, overview, charts, tables, and the machine and settings of each run, without
//! scripts, fonts or links to other files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::chart::{Chart, ChartFrame};
use super::headline::{self, Headline};
use super::model::{Picture, Point, Section};
use super::output::MARK;
use super::{Metric, legend, numbers, reading, text};
use crate::command::markup::escape_xml;
use record::Run;

/// The whole page.
pub(super) fn render_page(picture: &Picture) -> String {
    let several = picture.sections.len() > 1;
    let sections = picture.sections.iter().enumerate();
    format!(
        include_str!("page.html"),
        mark = MARK,
        title = escape_xml(picture.options.plot_title()),
        chart_css = include_str!("chart.css"),
        page_css = include_str!("page.css"),
        problems = render_problems(picture),
        headlines = (0..picture.runs.len()).map(|run| render_headline(picture, run)).collect::<String>(),
        overview = if several { render_overview(picture) } else { String::new() },
        sections = sections.map(|(index, section)| draw_section(picture, index, section)).collect::<String>(),
        runs = render_runs(picture),
    )
}

/// The list of problems, if there are any.
fn render_problems(picture: &Picture) -> String {
    let mut items = String::new();
    for (label, run) in &picture.runs {
        for problem in headline::list_problems(run) {
            items += &format!("<li><strong>{}</strong>\n {}</li>\n", escape_xml(label), escape_xml(&problem));
        }
    }
    if items.is_empty() { items } else { format!("<ul class=\"problems\">\n{items}</ul>\n") }
}

fn render_headline(picture: &Picture, index: usize) -> String {
    let Headline { peak, peak_of, facts } = Headline::new(picture, &picture.sections, index);
    let name = match &picture.runs[..] {
        [_] => String::new(),
        runs => format!("<h2>{}</h2>\n", legend::run_name(index, &runs[index].0)),
    };
    let facts: String = facts.iter().map(|fact| format!("<p>{}</p>\n", escape_xml(fact))).collect();
    format!(
        "<div class=\"headline\">\n{name}<p class=\"peak\"><strong>{peak}</strong>\n{}</p>\n{facts}</div>\n",
        escape_xml(&peak_of)
    )
}

/// Links that stay in view while the page is scrolled, and a small chart for each section.
fn render_overview(picture: &Picture) -> String {
    let metric = picture.metrics[0];
    let (mut links, mut charts) = (String::new(), String::new());
    for (index, section) in picture.sections.iter().enumerate() {
        let name = escape_xml(&picture.section_name(section));
        links += &format!("<a href=\"#section{index}\">{name}</a>\n");
        charts += &format!(
            "<a href=\"#section{index}\"><b>{name}</b>\n{}<span>{}</span></a>\n",
            Chart { picture, section, metric }.small_svg(),
            best_value(section, metric)
        );
    }
    format!(
        "<nav class=\"links\" aria-label=\"Sections\"><a href=\"#overview\">Overview</a>\n{links}<a \
         href=\"#runs\">Runs</a></nav>\n<section id=\"overview\">\n<h2>Overview <small>{} against message \
         size, each to its own scale</small></h2>\n<div class=\"overview\">\n{charts}</div>\n<p \
         class=\"note\">Point at a size in a chart, tap it, or go there with the Tab and arrow keys, for its \
         numbers.</p>\n</section>\n",
        metric.metric_title()
    )
}

/// The best value of a section, the highest bandwidth or the shortest time. Measurements with wrong data do
/// not count.
fn best_value(section: &Section, metric: Metric) -> String {
    let right = section.all_points().filter(|point| point.bytes > 0 && !point.is_wrong());
    let values = right.filter_map(|point: &Point| point.chart_value(metric)).filter(|&value| value > 0.0);
    let text = match metric {
        Metric::Time => values.reduce(f64::min).map(|us| format!("from {} µs", text::value_text(us))),
        _ => values.reduce(f64::max).map(|gbps| format!("up to {} GB/s", text::value_text(gbps))),
    };
    text.unwrap_or_default()
}

fn draw_section(picture: &Picture, index: usize, section: &Section) -> String {
    let mut figures = String::new();
    for (number, &metric) in picture.metrics.iter().enumerate() {
        let chart = Chart { picture, section, metric };
        let notes = chart.list_notes().into_iter().map(|note| format!("<p class=\"note\">{note}</p>\n"));
        figures += &format!(
            "<figure>\n<figcaption>{}</figcaption>\n<div class=\"plot\">\n{}{}{}</div>\n{}</figure>\n",
            metric.metric_title(),
            chart.inline_svg("wide", &ChartFrame::WIDE),
            chart.inline_svg("narrow", &ChartFrame::NARROW),
            reading::render_labels(&chart, &format!("reading-{index}-{number}")),
            notes.collect::<String>()
        );
    }
    // With several sections, open tables would push the next charts out of view.
    let open = if picture.sections.len() == 1 { " open=\"open\"" } else { "" };
    format!(
        "<section id=\"section{index}\">\n<h2>{} <small>{}</small></h2>\n{}<div class=\"charts\">\n\
         {figures}</div>\n\
         <details{open}><summary>Numbers</summary>\n<div class=\"scroll\">\n{}</div></details>\n</section>\n",
        escape_xml(&section.key.collective),
        escape_xml(&section.detail()),
        legend::page_legend(picture, section),
        numbers::numbers_table(picture, section)
    )
}

/// Rows that differ between any two runs.
const STARTED_AT: &str = "started at";
const ENDED_AT: &str = "ended at";

/// The rows of the table of the runs' machines and settings.
fn render_runs(picture: &Picture) -> String {
    let names = picture.runs.iter().enumerate();
    let names = names.map(|(index, (label, _))| legend::run_name(index, label));
    let heads: String = names.map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
    let caption = match &picture.runs[..] {
        [_] => "",
        _ => "<caption>What is not the same in all runs is marked with ≠.</caption>\n",
    };
    let mut rows = format!("{caption}<thead><tr><td></td>{heads}</tr></thead>\n<tbody>\n");
    let facts: Vec<_> = picture.runs.iter().map(|(_, run)| run_facts(run)).collect();
    for group in 0..facts[0].len() {
        let (heading, columns) = (facts[0][group].0, picture.runs.len() + 1);
        let names: BTreeSet<&String> = facts.iter().flat_map(|facts| facts[group].1.keys()).collect();
        if !names.is_empty() {
            rows += &format!("<tr><th colspan=\"{columns}\">{heading}</th></tr>\n");
        }
        for name in names {
            let values: Vec<Option<&String>> = facts.iter().map(|facts| facts[group].1.get(name)).collect();
            let differs = ![STARTED_AT, ENDED_AT].contains(&name.as_str())
                && values.iter().any(|value| *value != values[0]);
            let (class, mark) = if differs { (" class=\"differs\"", "≠ ") } else { ("", "") };
            let cells =
                values.iter().map(|value| value.map_or_else(|| "–".to_owned(), |text| escape_xml(text)));
            let cells: String = cells.map(|cell| format!("<td>{cell}</td>")).collect();
            rows += &format!("<tr{class}><th scope=\"row\">{mark}{}</th>{cells}</tr>\n", escape_xml(name));
        }
    }
    rows + "</tbody>\n"
}

/// The facts about a run, in groups.
fn run_facts(run: &Run) -> [(&'static str, BTreeMap<String, String>); 4] {
    let mut own = BTreeMap::from([
        (
            "outcome",
            text::describe_unfinished(&run.outcome).map_or_else(|| "complete".to_owned(), |(_, text)| text),
        ),
        (STARTED_AT, run.started_at.clone()),
        (ENDED_AT, run.ended_at.clone().unwrap_or_default()),
        ("program", run.program.clone()),
        ("command", run.command.join(" ")),
        ("notes", run.notes.join("; ")),
    ]);
    own.retain(|_, text| !text.is_empty());
    let own = own.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
    let mut machine = field_texts(&run.provenance);
    machine.remove("environment");
    machine.insert("ranks".to_owned(), run.ranks.len().to_string());
    machine.insert("devices".to_owned(), run.devices_text());
    machine.insert("hosts".to_owned(), text::host_names(run).join(", "));
    let mut settings = field_texts(&run.settings);
    settings.extend(run.describe_pairs().map(|pairs| ("pairs".to_owned(), pairs)));
    let environment = run.provenance.environment.clone();
    [("Run", own), ("Machine", machine), ("Settings", settings), ("Environment", environment)]
}

/// The fields of a part of a run, by their names in the native format.
fn field_texts(part: &impl Serialize) -> BTreeMap<String, String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(part) else { return BTreeMap::new() };
    let text = |value: Value| match value {
        Value::String(text) => text,
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    };
    fields.into_iter().map(|(name, value)| (name.replace('_', " "), text(value))).collect()
}
