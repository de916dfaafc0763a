//! A comparison as text, Markdown, CSV and JSON.

use std::io::{self, Write};

use judge::versus::{ComparedRow, Difference, Outcome, SideTimes};

use super::outcome::VersusReport;
use super::summary::{describe_outcome, describe_report, format_interval, has_two_speeds};
use crate::command::starts::format_share;
use crate::command::table::{Table, convert_csv_error, escape_cell, format_number};

pub(super) fn write_text(report: &VersusReport, out: &mut impl Write) -> io::Result<()> {
    sides_table(report).write_text(out)?;
    for (name, table) in row_tables(report) {
        writeln!(out, "\n{name}")?;
        table.write_text(out)?;
    }
    writeln!(out)?;
    describe_report(report).iter().try_for_each(|line| writeln!(out, "{line}"))
}

pub(super) fn write_markdown(report: &VersusReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "# Comparison of starts\n")?;
    sides_table(report).write_markdown(out)?;
    for (name, table) in row_tables(report) {
        writeln!(out, "\n## {name}\n")?;
        table.write_markdown(out)?;
    }
    writeln!(out, "\n## Result\n\n```text")?;
    describe_report(report).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out, "```")
}

pub(super) fn write_json(report: &VersusReport, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}

/// Writes one line for each row, and one for the overall mean.
pub(super) fn write_csv(report: &VersusReport, out: &mut impl Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let head = [
        "collective",
        "data_type",
        "op",
        "root",
        "group",
        "placement",
        "bytes",
        "a_starts",
        "a_us",
        "a_min_us",
        "a_max_us",
        "b_starts",
        "b_us",
        "b_min_us",
        "b_max_us",
        "ratio",
        "ratio_lower",
        "ratio_upper",
        "p",
        "corrected_p",
        "result",
        "value",
    ];
    writer.write_record(head).map_err(convert_csv_error)?;
    for row in &report.comparison.rows {
        let table = &row.key.table;
        let number = |value: Option<usize>| value.map(|value| value.to_string()).unwrap_or_default();
        let key = [
            table.collective.clone(),
            table.data_type.clone(),
            table.op.clone().unwrap_or_default(),
            number(table.root),
            number(table.group),
            row.key.placement.placement_name().replace('-', "_"),
            row.key.bytes.to_string(),
        ];
        writer.write_record(key.into_iter().chain(csv_cells(&row.difference))).map_err(convert_csv_error)?;
    }
    if let Some(overall) = &report.comparison.overall {
        let key = ["overall", "", "", "", "", "", ""].map(str::to_owned);
        writer.write_record(key.into_iter().chain(csv_cells(overall))).map_err(convert_csv_error)?;
    }
    writer.flush()
}

fn csv_cells(difference: &Difference) -> Vec<String> {
    let side = |side: &SideTimes| {
        let times = [side.median_us, side.min_us, side.max_us].map(|time| time.to_string());
        [side.times_us.len().to_string()].into_iter().chain(times).collect::<Vec<_>>()
    };
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let interval = difference.estimate.interval;
    let (result, value) = match difference.outcome {
        Outcome::Slower { by } => ("slower", Some(by)),
        Outcome::Faster { by } => ("faster", Some(by)),
        Outcome::NoDifference { resolution } => ("no_difference", Some(resolution)),
        Outcome::CannotTell { .. } => ("cannot_tell", None),
    };
    let mut cells = side(&difference.a);
    cells.extend(side(&difference.b));
    cells.extend([
        difference.estimate.ratio.to_string(),
        number(interval.map(|[lower, _]| lower)),
        number(interval.map(|[_, upper]| upper)),
        difference.p.to_string(),
        number(difference.corrected_p),
        result.to_owned(),
        number(value),
    ]);
    cells
}

fn sides_table(report: &VersusReport) -> Table {
    let text = |texts: &std::collections::BTreeSet<String>| {
        let texts: Vec<String> = texts.iter().map(|text| escape_cell(text)).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join("; ") }
    };
    let rows = report.both_sides().map(|(side, reported)| {
        vec![
            side.letter().to_string(),
            format!("{} of {}", reported.starts, report.planned_starts),
            text(&reported.libraries),
            text(&reported.devices),
            escape_cell(&reported.command_line),
        ]
    });
    Table {
        head: ["", "starts", "library", "ranks", "command"].map(str::to_owned).to_vec(),
        left: vec![true; 5],
        rows: rows.to_vec(),
    }
}

/// Returns one table for each collective, type, operator and root.
fn row_tables(report: &VersusReport) -> Vec<(String, Table)> {
    let interval = format!("{} % interval", report.comparison.interval_percent);
    let head = ["bytes", "placement", "A us", "spread", "B us", "spread", "B/A", &interval, "B"];
    let mut tables: Vec<(String, Table)> = Vec::new();
    for row in &report.comparison.rows {
        let name = format!(
            "{}: time per operation in microseconds, medians of starts",
            escape_cell(&row.key.table.table_name())
        );
        if !tables.iter().any(|(known, _)| *known == name) {
            let head = head.map(str::to_owned).to_vec();
            let left = (0..head.len()).map(|column| column == 1 || column == head.len() - 1).collect();
            tables.push((name.clone(), Table { head, left, rows: Vec::new() }));
        }
        if let Some((_, table)) = tables.iter_mut().find(|(known, _)| *known == name) {
            table.rows.push(row_cells(row));
        }
    }
    tables
}

fn row_cells(row: &ComparedRow) -> Vec<String> {
    let difference = &row.difference;
    let speeds = if has_two_speeds(difference) { "; two speeds" } else { "" };
    vec![
        row.key.bytes.to_string(),
        row.key.placement.placement_name().to_owned(),
        format_number(Some(difference.a.median_us)),
        format_share(difference.a.spread),
        format_number(Some(difference.b.median_us)),
        format_share(difference.b.spread),
        format!("{:.3}", difference.estimate.ratio),
        format_interval(difference),
        format!("{}{speeds}", describe_outcome(difference)),
    ]
}
