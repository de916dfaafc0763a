//! The examinations as an HTML page without scripts, fonts or links to other files.

use std::collections::BTreeMap;

use diagnosis::examination::{Body, Examination, Grade, Health, Matrix, Section};
use diagnosis::finding::Finding;

use super::{layout, matrix};
use crate::command::markup::escape_xml;

/// Returns the whole page.
pub(super) fn render_page(examinations: &[Examination]) -> String {
    let health = super::overall_health(examinations);
    let verdict = super::verdict_line(examinations);
    let reason = super::verdict_reason(examinations);
    let list = |title: &str, select: fn(&Examination) -> &Vec<String>| {
        let lines: Vec<&String> = examinations.iter().flat_map(select).collect();
        if lines.is_empty() { String::new() } else { format!("<h2>{title}</h2>\n{}", render_items(&lines)) }
    };
    let several = examinations.len() > 1;
    format!(
        include_str!("page.html"),
        mark = super::MARK,
        title = safe_text(&verdict),
        css = include_str!("page.css"),
        health = health_class(health),
        health_words = health,
        reason = safe_text(&reason),
        program = safe_text(concat!("nccl-bench ", env!("CARGO_PKG_VERSION"), " doctor")),
        findings = render_findings(examinations),
        proof = list("Proven", |examination| &examination.proof),
        unseen = list("Not seen", |examination| &examination.unseen),
        not_applicable = list("Not applicable", |examination| &examination.not_applicable),
        sections = examinations.iter().map(|each| render_sections(each, several)).collect::<String>(),
    )
}

/// Escapes a text for the page, including characters with an effect on its order.
fn safe_text(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(layout::plain_line).collect();
    escape_xml(&lines.join("\n"))
}

fn render_items(lines: &[&String]) -> String {
    let items: String = lines.iter().map(|line| format!("<li>{}</li>\n", safe_text(line))).collect();
    format!("<ul class=\"plain\">\n{items}</ul>\n")
}

fn render_findings(examinations: &[Examination]) -> String {
    let all: String = super::sort_findings(examinations).into_iter().map(render_finding).collect();
    if all.is_empty() { all } else { format!("<h2>Findings</h2>\n{all}") }
}

fn render_finding(finding: &Finding) -> String {
    let mut evidence: String = finding
        .evidence
        .iter()
        .map(|each| {
            format!(
                "<li><span>{}</span><code>{}</code></li>\n",
                safe_text(&super::evidence_place(each)),
                safe_text(&each.text)
            )
        })
        .collect();
    let more = finding.occurrences.saturating_sub(finding.evidence.len() as u64);
    if more > 0 && !evidence.is_empty() {
        evidence += &format!("<li><span>and {more} more</span></li>\n");
    }
    evidence.extend(finding.consequences.iter().map(|each| {
        let (place, text) = (safe_text(&super::evidence_place(each)), safe_text(&each.text));
        format!("<li><span>then {place}</span><code>{text}</code></li>\n")
    }));
    if !evidence.is_empty() {
        evidence = format!("<ul class=\"evidence\">\n{evidence}</ul>\n");
    }
    let named: String = super::finding_details(finding)
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", safe_text(&value)))
        .collect();
    let details = if named.is_empty() { named } else { format!("<dl>\n{named}</dl>\n") };
    let severity = finding.severity;
    format!(
        "<section class=\"finding {severity}\">\n<p class=\"severity\">{severity} <code>{}</code></p>\n\
         <h3>{}</h3>\n{evidence}{details}</section>\n",
        safe_text(&finding.rule),
        safe_text(&finding.diagnosis)
    )
}

fn render_sections(examination: &Examination, several: bool) -> String {
    let subject =
        if several { format!("{}: ", super::examination_title(examination)) } else { String::new() };
    let section = |section: &Section| {
        let title = format!("{subject}{}", section.title);
        format!("<section>\n<h2>{}</h2>\n{}</section>\n", safe_text(&title), render_body(section))
    };
    examination.sections.iter().map(section).collect()
}

fn render_body(section: &Section) -> String {
    match &section.body {
        Body::Facts(facts) => {
            let facts = facts
                .iter()
                .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>\n", safe_text(name), safe_text(value)));
            format!("<dl class=\"facts\">\n{}</dl>\n", facts.collect::<String>())
        }
        Body::Table { columns, rows } => render_table(columns, rows),
        Body::Matrix(matrix) => render_matrix(matrix, &section.title),
        Body::Lines(lines) => {
            let lines: String = lines.iter().map(|line| safe_text(line) + "\n").collect();
            format!("<pre>{lines}</pre>\n")
        }
    }
}

fn render_table(columns: &[String], rows: &[Vec<String>]) -> String {
    let heads: String =
        columns.iter().map(|head| format!("<th scope=\"col\">{}</th>", safe_text(head))).collect();
    let row = |row: &Vec<String>| {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", safe_text(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table>\n<thead><tr>{heads}</tr></thead>\n\
         <tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// Returns the picture of a matrix with its legend.
fn render_matrix(matrix: &Matrix, title: &str) -> String {
    let mut grades: BTreeMap<&str, Grade> = BTreeMap::new();
    for cell in matrix.cells.iter().flatten() {
        grades.entry(&cell.text).or_insert(cell.grade);
    }
    let entry = |(name, words): &(String, String)| {
        let class = matrix::grade_class(grades.get(name.as_str()).copied().unwrap_or_default());
        format!(
            "<li><span class=\"key {class}\"></span><b>{}</b> {}</li>\n",
            safe_text(name),
            safe_text(words)
        )
    };
    let legend: String = matrix.legend.iter().map(entry).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\">{}</div>\n<ul class=\"legend\">\n{legend}</ul>\n",
        matrix::draw_picture(matrix, title)
    )
}

/// Returns the class of a health in the style sheet.
fn health_class(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Broken => "broken",
        Health::CannotTell => "cannot_tell",
    }
}
