//! The examinations as text for a terminal or a pipe.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style as Colour};
use diagnosis::examination::{Body, Examination, Health, Section};
use diagnosis::finding::{Finding, Severity};

use super::layout::{columns, padded, plain};
use super::matrix;

/// Style of the text.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::command) struct Style {
    /// With colours.
    pub(super) colour: bool,
    /// Width of the terminal; `None` without wrapping.
    pub(super) width: Option<usize>,
}

/// Smallest width for wrapping. Narrower terminals count as this wide.
const NARROWEST: usize = 40;

/// Returns the whole text.
pub(super) fn write(examinations: &[Examination], style: &Style) -> String {
    let health = super::health(examinations);
    let verdict = super::verdict(examinations);
    let mut text = style.wrapped(&plain(&verdict), "");
    if style.colour {
        text = coloured(text.trim_end(), health_colour(health).bold()) + "\n";
    }
    text + &paragraphs(examinations, style, Some(&super::reason(examinations)))
}

/// Returns the text without the verdict: findings, proof, the list of unseen facts, and the facts.
pub(in crate::command) fn details(examinations: &[Examination], style: &Style) -> String {
    paragraphs(examinations, style, None)
}

/// Returns the details. `said` is the verdict's reason, and is not repeated.
fn paragraphs(examinations: &[Examination], style: &Style, said: Option<&str>) -> String {
    let is_doubt = super::health(examinations) == Health::CannotTell;
    let doubt = super::doubt(examinations).filter(|_| is_doubt && said.is_some());
    let mut text = String::new();
    for (index, finding) in super::sorted(examinations).into_iter().enumerate() {
        let is_said = index == 0 && said == Some(finding.diagnosis.trim_end_matches('.'));
        text += &style.finding(index + 1, finding, is_said);
    }
    let listed = |title: &str, select: fn(&Examination) -> &Vec<String>| {
        let is_new = |line: &&String| doubt != Some(line.trim_end_matches('.'));
        let lines: Vec<&String> = examinations.iter().flat_map(select).filter(is_new).collect();
        if lines.is_empty() { String::new() } else { style.list(title, &lines) }
    };
    text += &listed("Proven", |examination| &examination.proof);
    text += &listed("Not seen", |examination| &examination.unseen);
    text += &listed("Not applicable", |examination| &examination.not_applicable);
    for examination in examinations {
        for section in &examination.sections {
            text += &style.section(section);
        }
    }
    text
}

impl Style {
    /// Returns the paragraph of a finding, without the diagnosis if the verdict contains it.
    fn finding(&self, number: usize, finding: &Finding, is_said: bool) -> String {
        let severity = finding.severity.to_string();
        let severity =
            if self.colour { coloured(&severity, severity_colour(finding.severity)) } else { severity };
        let rule = plain(&finding.rule);
        let mut text = if is_said {
            format!("\n{number}. {severity} [{rule}]\n")
        } else {
            let first = format!("{} [{rule}]", plain(&finding.diagnosis));
            let prefix = finding.severity.to_string().len() + number.to_string().len() + 4;
            let wrapped = self.wrapped_from(&first, prefix, "   ");
            format!("\n{number}. {severity}: {}", wrapped.trim_start())
        };
        for evidence in &finding.evidence {
            let line = format!("{}: {}", super::place(evidence), evidence.text);
            text += &self.wrapped(&plain(&line), "   > ");
        }
        let more = finding.occurrences.saturating_sub(finding.evidence.len() as u64);
        if more > 0 && !finding.evidence.is_empty() {
            let _ = writeln!(text, "   > and {more} more");
        }
        for evidence in &finding.consequences {
            let line = format!("then {}: {}", super::place(evidence), evidence.text);
            text += &self.wrapped(&plain(&line), "   > ");
        }
        for (name, value) in super::details(finding) {
            for (index, line) in value.lines().enumerate() {
                let head = if index == 0 { format!("   {:10}", format!("{name}:")) } else { " ".repeat(13) };
                let wrapped = self.wrapped_from(&plain(line), 13, &" ".repeat(13));
                let head = if self.colour { coloured(&head, Colour::new().bold()) } else { head };
                text += &format!("{head}{}", wrapped.trim_start());
            }
        }
        text
    }

    fn heading(&self, title: &str) -> String {
        let title = plain(title);
        if self.colour {
            format!("\n{}\n", coloured(&title, Colour::new().bold()))
        } else {
            format!("\n{title}\n")
        }
    }

    fn list(&self, title: &str, lines: &[&String]) -> String {
        let mut text = self.heading(title);
        for line in lines {
            text += &self.wrap(&format!("- {}", plain(line)), "  ", "    ");
        }
        text
    }

    fn section(&self, section: &Section) -> String {
        let mut text = self.heading(&section.title);
        match &section.body {
            Body::Facts(facts) => {
                let longest = facts.iter().map(|(name, _)| textwrap::core::display_width(&plain(name))).max();
                let indent = 4 + longest.unwrap_or(0).min(28);
                for (name, value) in facts {
                    let name = padded(&plain(name), indent - 4);
                    let line = format!("  {name}  {}", plain(value));
                    text += &self.hanging(line.trim_end(), indent);
                }
            }
            Body::Table { columns: heads, rows } => {
                let all: Vec<Vec<String>> = std::iter::once(heads).chain(rows).cloned().collect();
                text += &self.table(&all);
            }
            Body::Matrix(matrix) => text += &indented(&matrix::lines(matrix)),
            Body::Lines(lines) => {
                lines.iter().for_each(|line| text += &self.hanging(&format!("  {}", plain(line)), 4))
            }
        }
        text
    }

    /// Returns a table, or a line for each cell if the terminal is too narrow.
    fn table(&self, rows: &[Vec<String>]) -> String {
        let lines = columns(rows);
        let widest = lines.iter().map(|line| textwrap::core::display_width(line)).max().unwrap_or(0);
        match (self.width, rows.split_first()) {
            (Some(width), Some((heads, rows))) if widest + 2 > width.max(NARROWEST) => {
                let mut text = String::new();
                for row in rows {
                    for (index, (head, cell)) in heads.iter().zip(row).enumerate() {
                        let mark = if index == 0 { "- " } else { "  " };
                        text += &self.hanging(&format!("  {mark}{}: {}", plain(head), plain(cell)), 6);
                    }
                }
                text
            }
            _ => indented(&lines),
        }
    }

    /// Wraps a text into lines with this indentation.
    fn wrapped(&self, line: &str, indent: &str) -> String {
        self.wrap(line, indent, &format!("{indent}{}", if indent.is_empty() { "" } else { "  " }))
    }

    /// Wraps a text into lines. The first begins at a column, the next ones with an indentation.
    fn wrapped_from(&self, line: &str, column: usize, indent: &str) -> String {
        self.wrap(line, &" ".repeat(column), indent)
    }

    /// Wraps a text into lines, all but the first indented.
    fn hanging(&self, line: &str, indent: usize) -> String {
        self.wrap(line, "", &" ".repeat(indent))
    }

    fn wrap(&self, line: &str, first: &str, others: &str) -> String {
        let Some(width) = self.width else { return format!("{first}{line}\n") };
        // A path or command longer than the line stays whole for copying.
        let options = textwrap::Options::new(width.max(NARROWEST)).break_words(false);
        textwrap::fill(line, options.initial_indent(first).subsequent_indent(others)) + "\n"
    }
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

fn coloured(text: &str, colour: Colour) -> String {
    format!("{colour}{text}{colour:#}")
}

fn health_colour(health: Health) -> Colour {
    let colour = match health {
        Health::Healthy => AnsiColor::Green,
        Health::Degraded => AnsiColor::Yellow,
        Health::Broken => AnsiColor::Red,
        Health::CannotTell => AnsiColor::Magenta,
    };
    colour.on_default()
}

fn severity_colour(severity: Severity) -> Colour {
    let colour = match severity {
        Severity::Broken => AnsiColor::Red,
        Severity::Degraded => AnsiColor::Yellow,
        Severity::Unknown => AnsiColor::Magenta,
        Severity::Advice => AnsiColor::Cyan,
    };
    colour.on_default().bold()
}
