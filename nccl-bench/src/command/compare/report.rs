//! A comparison as text, Markdown, CSV and JSON.

use std::io::{self, Write};

use record::RunOutcome;
use record::matching::{ComparedRow, Comparison, FileVerdict, Metric, Threshold, file_letter};
use record::rank_test::LEVEL;

use crate::command::table::{Table, convert_csv_error, escape_cell, format_number, format_probability};

/// Maximum number of rows that a verdict names, the worst first.
const NAMED_ROWS: usize = 10;

pub(super) fn write_text_report(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    files_table(comparison).write_text(out)?;
    if let Some(differences) = differences_table(comparison) {
        writeln!(out, "\nNot the same in all, so that more than one thing may be compared:")?;
        differences.write_text(out)?;
    }
    for (name, table) in row_tables(comparison) {
        writeln!(out, "\n{name}")?;
        table.write_text(out)?;
    }
    writeln!(out, "\nGeometric means of the ratios")?;
    means_table(comparison).write_text(out)?;
    writeln!(out)?;
    describe_verdicts(comparison).iter().try_for_each(|line| writeln!(out, "{line}"))
}

pub(super) fn write_markdown_report(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "# Comparison of {}\n", describe_metric(comparison.metric))?;
    files_table(comparison).write_markdown(out)?;
    if let Some(differences) = differences_table(comparison) {
        writeln!(out, "\n## Not the same in all\n\nMore than one thing may be compared.\n")?;
        differences.write_markdown(out)?;
    }
    for (name, table) in row_tables(comparison) {
        writeln!(out, "\n## {name}\n")?;
        table.write_markdown(out)?;
    }
    writeln!(out, "\n## Geometric means of the ratios\n")?;
    means_table(comparison).write_markdown(out)?;
    writeln!(out, "\n## Verdict\n\n```text")?;
    describe_verdicts(comparison).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out, "```")
}

/// One line for each row and each file after the first.
pub(super) fn write_csv_report(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    let unit = match comparison.metric {
        Metric::Time => "time_us",
        Metric::Busbw => "busbw_gbps",
    };
    let mut writer = csv::Writer::from_writer(out);
    let head = ["collective", "data_type", "op", "root", "placement", "bytes", "first", "other"];
    let values = [format!("first_{unit}"), format!("other_{unit}"), "ratio".to_owned(), "slower".to_owned()];
    let is_tested = comparison.rows.iter().any(|row| row.test.is_some());
    let is_marked = comparison.rows.iter().any(|row| !row.unstable.is_empty());
    let has_groups = comparison.rows.iter().any(|row| row.key.table.group.is_some());
    let optional = is_tested.then_some("p").into_iter().chain(is_marked.then_some("unstable"));
    let has_pairs = comparison.rows.iter().any(|row| row.key.table.pair.is_some());
    let of_pair = has_pairs.then_some(["first_rank", "second_rank"]).into_iter().flatten();
    let optional = optional.chain(has_groups.then_some("group")).chain(of_pair);
    let head = head.into_iter().chain(values.iter().map(String::as_str)).chain(optional);
    writer.write_record(head).map_err(convert_csv_error)?;
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    for (index, row) in comparison.rows.iter().enumerate() {
        let table = &row.key.table;
        for verdict in &comparison.verdicts {
            let file = verdict.file;
            let cells = [
                table.collective.clone(),
                table.data_type.clone(),
                table.op.clone().unwrap_or_default(),
                table.root.map(|root| root.to_string()).unwrap_or_default(),
                row.key.placement.placement_name().replace('-', "_"),
                row.key.bytes.to_string(),
                comparison.files[0].path.display().to_string(),
                comparison.files[file].path.display().to_string(),
                number(row.values[0]),
                number(row.values[file]),
                number(row.ratios[file - 1]),
                verdict.slower.contains(&index).to_string(),
            ];
            let p = is_tested.then(|| number(row.test.as_ref().map(|test| test.p)));
            let is_unstable = row.unstable.iter().any(|&index| index == 0 || index == file);
            let unstable = is_marked.then(|| is_unstable.to_string());
            let group = has_groups.then(|| table.group.map(|group| group.to_string()).unwrap_or_default());
            let pair = table.pair.map_or_else(Default::default, |pair| pair.map(|rank| rank.to_string()));
            let pair = has_pairs.then_some(pair).into_iter().flatten();
            let optional = p.into_iter().chain(unstable).chain(group).chain(pair);
            writer.write_record(cells.into_iter().chain(optional)).map_err(convert_csv_error)?;
        }
    }
    writer.flush()
}

pub(super) fn write_json_report(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, comparison)?;
    writeln!(out)
}

fn files_table(comparison: &Comparison) -> Table {
    let row = |file: &record::matching::ComparedFile| {
        vec![
            file.letter.clone(),
            escape_cell(&file.path.display().to_string()),
            escape_cell(&file.program),
            escape_cell(&file.started_at),
            escape_cell(&file.library),
            escape_cell(&file.devices),
            match &file.outcome {
                RunOutcome::Running => "running or killed",
                RunOutcome::Complete => "complete",
                RunOutcome::Interrupted { .. } => "interrupted",
                RunOutcome::Failed { .. } => "failed",
            }
            .to_owned(),
        ]
    };
    Table {
        head: ["", "file", "program", "started", "library", "ranks", "outcome"].map(str::to_owned).to_vec(),
        left: vec![true; 7],
        rows: comparison.files.iter().map(row).collect(),
    }
}

fn differences_table(comparison: &Comparison) -> Option<Table> {
    let letters = comparison.files.iter().map(|file| file.letter.clone());
    let row = |difference: &record::matching::Difference| {
        let values = difference
            .values
            .iter()
            .map(|value| value.as_deref().map_or_else(|| "-".to_owned(), escape_cell));
        [escape_cell(&difference.what)].into_iter().chain(values).collect()
    };
    (!comparison.differences.is_empty()).then(|| Table {
        head: [String::new()].into_iter().chain(letters).collect(),
        left: vec![true; comparison.files.len() + 1],
        rows: comparison.differences.iter().map(row).collect(),
    })
}

/// One table for each collective, type, operator and root.
fn row_tables(comparison: &Comparison) -> Vec<(String, Table)> {
    let mut tables: Vec<(String, Table)> = Vec::new();
    let mut head = vec!["bytes".to_owned(), "placement".to_owned(), file_letter(0)];
    for file in 1..comparison.files.len() {
        head.extend([file_letter(file), format!("{}/{}", file_letter(file), file_letter(0))]);
    }
    let is_tested = comparison.rows.iter().any(|row| row.test.is_some());
    head.extend(is_tested.then(|| "p".to_owned()));
    head.push(String::new());
    let left: Vec<bool> = (0..head.len()).map(|column| column == 1 || column == head.len() - 1).collect();
    for (index, row) in comparison.rows.iter().enumerate() {
        let name =
            format!("{}: {}", escape_cell(&row.key.table.table_name()), describe_metric(comparison.metric));
        if !tables.iter().any(|(known, _)| *known == name) {
            tables.push((name.clone(), Table { head: head.clone(), left: left.clone(), rows: Vec::new() }));
        }
        if let Some((_, table)) = tables.iter_mut().find(|(known, _)| *known == name) {
            table.rows.push(row_cells(comparison, index, row, is_tested));
        }
    }
    tables
}

fn row_cells(comparison: &Comparison, index: usize, row: &ComparedRow, is_tested: bool) -> Vec<String> {
    let mut cells = vec![
        row.key.bytes.to_string(),
        row.key.placement.placement_name().to_owned(),
        format_number(row.values[0]),
    ];
    for (value, ratio) in row.values[1..].iter().zip(&row.ratios) {
        cells.extend([
            format_number(*value),
            ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
        ]);
    }
    if is_tested {
        cells.push(row.test.as_ref().map_or_else(|| "-".to_owned(), |test| format_probability(test.p)));
    }
    let slower = comparison.verdicts.iter().filter(|verdict| verdict.slower.contains(&index));
    let slower: Vec<&str> = slower.map(|verdict| comparison.files[verdict.file].letter.as_str()).collect();
    if row.test.as_ref().is_some_and(|test| test.has_too_few) {
        cells.push("too few runs".to_owned());
        return cells;
    }
    let unstable: Vec<&str> =
        row.unstable.iter().map(|&file| comparison.files[file].letter.as_str()).collect();
    let marks = [(slower, "slower"), (unstable, "not stable")];
    let marks = marks.iter().filter(|(letters, _)| !letters.is_empty());
    cells.push(
        marks.map(|(letters, mark)| format!("{} {mark}", letters.join(", "))).collect::<Vec<_>>().join("; "),
    );
    cells
}

fn means_table(comparison: &Comparison) -> Table {
    let mut head = vec!["collective".to_owned()];
    for file in 1..comparison.files.len() {
        head.extend([format!("{}/{}", file_letter(file), file_letter(0)), "rows".to_owned()]);
    }
    let row = |mean: &record::matching::MeanRatio| {
        let mut cells = vec![mean.collective.as_deref().map_or_else(|| "all".to_owned(), escape_cell)];
        for (ratio, rows) in mean.ratios.iter().zip(&mean.rows) {
            let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}"));
            cells.extend([ratio, rows.to_string()]);
        }
        cells
    };
    Table {
        left: (0..head.len()).map(|column| column == 0).collect(),
        head,
        rows: comparison.means.iter().map(row).collect(),
    }
}

fn describe_verdicts(comparison: &Comparison) -> Vec<String> {
    let wrong = comparison.files.iter().filter(|file| !file.wrong.is_empty());
    let wrong = wrong.flat_map(|file| {
        let mut lines = vec![format!("FAIL: {} has wrong data:", file.letter)];
        append_first_rows(&mut lines, &file.wrong, Clone::clone);
        lines
    });
    wrong
        .chain(comparison.verdicts.iter().flat_map(|verdict| describe_verdict(comparison, verdict)))
        .collect()
}

fn describe_verdict(comparison: &Comparison, verdict: &FileVerdict) -> Vec<String> {
    let (a, b) = (file_letter(0), file_letter(verdict.file));
    let threshold = Threshold(comparison.threshold);
    let mut lines: Vec<String> = verdict.notes.iter().map(|note| format!("Note: {note}")).collect();
    let mut incomplete = verdict.incomplete.clone();
    for (only, other, rows) in [(&a, &b, &verdict.missing), (&b, &a, &verdict.extra)] {
        if !rows.is_empty() {
            incomplete.push(format!("only in {only}, not in {other}: {}", rows.join(", ")));
        }
    }
    let before = if comparison.partial { "Not whole" } else { "FAIL" };
    lines.extend(incomplete.iter().map(|why| format!("{before}: {why}")));
    if !comparison.partial && !incomplete.is_empty() {
        lines.push(format!("  --partial compares the rows that both {a} and {b} have"));
    }
    lines.extend(verdict.unverified.iter().map(|why| format!("FAIL: {why}")));
    if let Some([first, other]) = &verdict.rank_counts {
        let list =
            |counts: &[usize]| counts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        lines.push(format!("FAIL: {a} was measured with {} ranks, {b} with {}", list(first), list(other)));
    }
    let compared = verdict.compared;
    if !verdict.slower.is_empty() {
        let slower = verdict.slower.len();
        lines.push(format!(
            "FAIL: {b} is slower than {a} by more than {threshold} in {slower} of {compared} rows; the worst:"
        ));
        append_first_rows(&mut lines, &verdict.slower, |&index| {
            let row = &comparison.rows[index];
            let ratio = row.ratios[verdict.file - 1].unwrap_or(f64::NAN);
            format!(
                "{b}/{a} {ratio:.3}  {}: {} -> {} {}",
                row.key.row_name(),
                format_number(row.values[0]),
                format_number(row.values[verdict.file]),
                comparison.metric.unit_name()
            )
        });
    }
    if verdict.pass {
        let pass = if incomplete.is_empty() { "PASS" } else { "PASS for what was compared" };
        lines.push(format!(
            "{pass}: {b} is nowhere slower than {a} by more than {threshold} ({compared} rows)"
        ));
    }
    if verdict.faster > 0 {
        lines.push(format!(
            "{b} is faster than {a} by more than {threshold} in {} of {compared} rows",
            verdict.faster
        ));
    }
    lines.extend(describe_test(comparison, verdict));
    lines
}

/// The lines about the test of several runs on each side.
fn describe_test(comparison: &Comparison, verdict: &FileVerdict) -> Vec<String> {
    let (a, b) = (&comparison.files[0], &comparison.files[verdict.file]);
    let mut lines = Vec::new();
    if verdict.untestable > 0 {
        lines.push(format!(
            "CANNOT TELL: with {} runs of {} and {} of {}, no difference can be significant (p < {LEVEL}) in \
             {} of {} rows",
            a.runs, a.letter, b.runs, b.letter, verdict.untestable, verdict.compared
        ));
        lines.push("  give at least 4 runs on each side".to_owned());
    }
    let insignificant = verdict.insignificant;
    if insignificant > 0 && verdict.untestable == 0 {
        let threshold = Threshold(comparison.threshold);
        lines.push(format!(
            "Note: {insignificant} of {} rows differ by more than {threshold}, and not significantly (p >= \
             {LEVEL}): the runs of a side differ as much",
            verdict.compared
        ));
    }
    lines
}

/// The first few, one per line.
fn append_first_rows<T>(lines: &mut Vec<String>, all: &[T], name: impl Fn(&T) -> String) {
    lines.extend(all.iter().take(NAMED_ROWS).map(|each| format!("  {}", name(each))));
    if all.len() > NAMED_ROWS {
        lines.push(format!("  and {} more", all.len() - NAMED_ROWS));
    }
}

const fn describe_metric(metric: Metric) -> &'static str {
    match metric {
        Metric::Time => "time per operation in microseconds",
        Metric::Busbw => "bus bandwidth in GB/s",
    }
}
