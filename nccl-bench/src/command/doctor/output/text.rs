//! The examinations as text for a terminal or a pipe.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style as Colour};
use diagnosis::examination::{Body, Examination, Health, Section};
use diagnosis::finding::{Finding, Severity};

use super::layout::{align_columns, pad_text, plain_line};
use super::matrix;

/// Style of the text.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::command) struct Style {
    /// With colours.
    pub(super) colour: bool,
    /// Width of the terminal; `None` without wrapping.
    pub(super) width: Option<usize>,
    /// With all findings, their evidence, and all facts.
    pub(super) verbose: bool,
}

/// Smallest width for wrapping. Narrower terminals count as this wide.
const NARROWEST: usize = 40;

/// Number of lines of a screen.
const SCREEN: usize = 24;

/// Limits of a text.
#[derive(Clone, Copy)]
struct Limits {
    /// Number of findings after the first one.
    findings: usize,
    /// Number of messages of the first finding.
    messages: usize,
    /// Number of characters of a message.
    characters: usize,
    /// Number of lines of a remedy.
    remedy: usize,
    /// Number of lines of a list.
    list: usize,
}

/// Limits of the short text, widest first. The first ones that fit on a screen are used, else the last ones.
const SHORT: [Limits; 3] = [
    Limits { findings: 1, messages: 2, characters: 260, remedy: 2, list: 2 },
    Limits { findings: 1, messages: 1, characters: 130, remedy: 2, list: 1 },
    Limits { findings: 0, messages: 1, characters: 60, remedy: 1, list: 1 },
];

/// No limits, for the long text.
const LONG: Limits = Limits {
    findings: usize::MAX,
    messages: usize::MAX,
    characters: usize::MAX,
    remedy: usize::MAX,
    list: usize::MAX,
};

/// Subjects whose facts were asked for: the variables, and the devices of the host.
const SHOWN: [&str; 2] = ["environment", "host"];

/// Returns the whole text.
pub(super) fn render_text(examinations: &[Examination], style: &Style) -> String {
    let health = super::overall_health(examinations);
    let verdict = super::verdict_line(examinations);
    let mut text = style.wrap_indented(&plain_line(&verdict), "");
    if style.colour {
        text = colour_text(text.trim_end(), health_colour(health).bold()) + "\n";
    }
    let reason = super::verdict_reason(examinations);
    let render =
        |limits: &Limits| text.clone() + &render_paragraphs(examinations, style, limits, Some(&reason));
    if style.verbose {
        return render(&LONG);
    }
    let mut texts = SHORT.iter().map(render);
    let mut text = texts.next().unwrap_or_default();
    while text.lines().count() > SCREEN
        && let Some(shorter) = texts.next()
    {
        text = shorter;
    }
    text
}

/// Returns the text without the verdict: findings, proof, the list of unseen facts, and the facts.
pub(in crate::command) fn render_details(examinations: &[Examination], style: &Style) -> String {
    render_paragraphs(examinations, &Style { verbose: true, ..*style }, &LONG, None)
}

/// Returns the details. `said` is the verdict's reason, and is not repeated.
fn render_paragraphs(
    examinations: &[Examination],
    style: &Style,
    limits: &Limits,
    said: Option<&str>,
) -> String {
    let is_doubt = super::overall_health(examinations) == Health::CannotTell;
    let doubt = super::find_doubt(examinations).filter(|_| is_doubt && said.is_some());
    let findings = super::sort_findings(examinations);
    let shown = if style.verbose { findings.len() } else { count_shown(&findings, limits) };
    let mut is_whole = shown == findings.len();
    let mut text = String::new();
    for (index, finding) in findings.into_iter().take(shown).enumerate() {
        let is_said = index == 0 && said == Some(finding.diagnosis.trim_end_matches('.'));
        let (paragraph, is_full) = style.render_finding(index + 1, finding, limits, is_said);
        text += &paragraph;
        is_whole &= is_full;
    }
    let mut list = |title: &str, select: fn(&Examination) -> &Vec<String>| {
        let is_new = |line: &&String| doubt != Some(line.trim_end_matches('.'));
        let mut lines: Vec<&String> = examinations.iter().flat_map(select).filter(is_new).collect();
        is_whole &= lines.len() <= limits.list;
        lines.truncate(limits.list);
        if lines.is_empty() { String::new() } else { style.render_list(title, &lines) }
    };
    text += &list("Proven", |examination| &examination.proof);
    text += &list("Not seen", |examination| &examination.unseen);
    text += &list("Not applicable", |examination| &examination.not_applicable);
    for examination in examinations {
        let is_asked = examinations.len() == 1 && SHOWN.contains(&examination.subject);
        match style.verbose || is_asked {
            true => examination.sections.iter().for_each(|section| text += &style.render_section(section)),
            false => is_whole &= examination.sections.is_empty(),
        }
    }
    if !is_whole {
        text += "\n--verbose shows all findings, their evidence, and the facts.\n";
    }
    text
}

/// Returns the number of findings in the short text: the first one, and the next ones except advice.
fn count_shown(findings: &[&Finding], limits: &Limits) -> usize {
    let others = findings.iter().skip(1).take_while(|finding| finding.severity != Severity::Advice);
    findings.len().min(1) + others.count().min(limits.findings)
}

impl Style {
    /// Returns the paragraph of a finding, without the diagnosis if the verdict contains it, and true if
    /// nothing is left out.
    fn render_finding(
        &self,
        number: usize,
        finding: &Finding,
        limits: &Limits,
        is_said: bool,
    ) -> (String, bool) {
        let severity = finding.severity.to_string();
        let severity =
            if self.colour { colour_text(&severity, severity_colour(finding.severity)) } else { severity };
        let rule = plain_line(&finding.rule);
        let mut text = if is_said {
            format!("\n{number}. {severity} [{rule}]\n")
        } else {
            let first = format!("{} [{rule}]", plain_line(&finding.diagnosis));
            let prefix = finding.severity.to_string().len() + number.to_string().len() + 4;
            let wrapped = self.wrapped_from(&first, prefix, "   ");
            format!("\n{number}. {severity}: {}", wrapped.trim_start())
        };
        let is_first = number == 1;
        let is_shown = |name: &str| self.verbose || name == "Remedy" || is_first && name != "Source";
        let mut is_whole = true;
        for (name, value) in super::finding_details(finding) {
            if !is_shown(name) {
                is_whole = false;
                continue;
            }
            is_whole &= value.lines().count() <= limits.remedy;
            for (index, line) in value.lines().take(limits.remedy).enumerate() {
                let head = if index == 0 { format!("   {:10}", format!("{name}:")) } else { " ".repeat(13) };
                let wrapped = self.wrapped_from(&plain_line(line), 13, &" ".repeat(13));
                let head = if self.colour { colour_text(&head, Colour::new().bold()) } else { head };
                text += &format!("{head}{}", wrapped.trim_start());
            }
        }
        let (evidence, is_full) = self.render_evidence(finding, limits, is_first);
        (text + &evidence, is_whole && is_full)
    }

    /// Returns the messages of a finding, and true if none is left out.
    fn render_evidence(&self, finding: &Finding, limits: &Limits, is_first: bool) -> (String, bool) {
        let evidence = if self.verbose || is_first { limits.messages } else { 0 };
        let consequences = if self.verbose { usize::MAX } else { 0 };
        let (shown, then) = (finding.evidence.iter().take(evidence), finding.consequences.iter());
        let lines = shown.map(|each| ("", each)).chain(then.take(consequences).map(|each| ("then ", each)));
        let mut text = String::new();
        let mut is_whole = finding.evidence.len() <= evidence && finding.consequences.len() <= consequences;
        for (then, each) in lines {
            let line = plain_line(&format!("{then}{}: {}", super::evidence_place(each), each.text));
            let cut = line.char_indices().nth(limits.characters);
            let line = cut.map_or(line.clone(), |(end, _)| format!("{}...", &line[..end]));
            is_whole &= cut.is_none();
            text += &self.wrap_indented(&line, "   > ");
        }
        let more = finding.occurrences.saturating_sub(finding.evidence.len() as u64);
        if more > 0 && self.verbose && !finding.evidence.is_empty() {
            let _ = writeln!(text, "   > and {more} more");
        }
        (text, is_whole)
    }

    fn render_heading(&self, title: &str) -> String {
        let title = plain_line(title);
        if self.colour {
            format!("\n{}\n", colour_text(&title, Colour::new().bold()))
        } else {
            format!("\n{title}\n")
        }
    }

    fn render_list(&self, title: &str, lines: &[&String]) -> String {
        let mut text = self.render_heading(title);
        for line in lines {
            text += &self.wrap_lines(&format!("- {}", plain_line(line)), "  ", "    ");
        }
        text
    }

    fn render_section(&self, section: &Section) -> String {
        let mut text = self.render_heading(&section.title);
        match &section.body {
            Body::Facts(facts) => {
                let longest =
                    facts.iter().map(|(name, _)| textwrap::core::display_width(&plain_line(name))).max();
                let indent = 4 + longest.unwrap_or(0).min(28);
                for (name, value) in facts {
                    let name = pad_text(&plain_line(name), indent - 4);
                    let line = format!("  {name}  {}", plain_line(value));
                    text += &self.wrap_hanging(line.trim_end(), indent);
                }
            }
            Body::Table { columns: heads, rows } => {
                let all: Vec<Vec<String>> = std::iter::once(heads).chain(rows).cloned().collect();
                text += &self.render_table(&all);
            }
            Body::Matrix(matrix) => text += &indent_lines(&matrix::matrix_lines(matrix)),
            Body::Lines(lines) => lines
                .iter()
                .for_each(|line| text += &self.wrap_hanging(&format!("  {}", plain_line(line)), 4)),
        }
        text
    }

    /// Returns a table, or a line for each cell if the terminal is too narrow.
    fn render_table(&self, rows: &[Vec<String>]) -> String {
        let lines = align_columns(rows);
        let widest = lines.iter().map(|line| textwrap::core::display_width(line)).max().unwrap_or(0);
        match (self.width, rows.split_first()) {
            (Some(width), Some((heads, rows))) if widest + 2 > width.max(NARROWEST) => {
                let mut text = String::new();
                for row in rows {
                    for (index, (head, cell)) in heads.iter().zip(row).enumerate() {
                        let mark = if index == 0 { "- " } else { "  " };
                        text += &self
                            .wrap_hanging(&format!("  {mark}{}: {}", plain_line(head), plain_line(cell)), 6);
                    }
                }
                text
            }
            _ => indent_lines(&lines),
        }
    }

    /// Wraps a text into lines with this indentation.
    fn wrap_indented(&self, line: &str, indent: &str) -> String {
        self.wrap_lines(line, indent, &format!("{indent}{}", if indent.is_empty() { "" } else { "  " }))
    }

    /// Wraps a text into lines. The first begins at a column, the next ones with an indentation.
    fn wrapped_from(&self, line: &str, column: usize, indent: &str) -> String {
        self.wrap_lines(line, &" ".repeat(column), indent)
    }

    /// Wraps a text into lines, all but the first indented.
    fn wrap_hanging(&self, line: &str, indent: usize) -> String {
        self.wrap_lines(line, "", &" ".repeat(indent))
    }

    fn wrap_lines(&self, line: &str, first: &str, others: &str) -> String {
        let Some(width) = self.width else { return format!("{first}{line}\n") };
        // A path or command longer than the line stays whole for copying.
        let options = textwrap::Options::new(width.max(NARROWEST)).break_words(false);
        textwrap::fill(line, options.initial_indent(first).subsequent_indent(others)) + "\n"
    }
}

fn indent_lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

fn colour_text(text: &str, colour: Colour) -> String {
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
