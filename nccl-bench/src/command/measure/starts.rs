//! Measurement in several starts (`--starts`): runs them, and reports medians of the starts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use engine::supervision::{print_message, signal_code};
use judge::versus::{StartsRow, summarize_starts};
use record::matching::RunRows;

use super::{Invocation, MeasureArguments};
use crate::command::starts::{
    ResultNames, ResultSource, Runner, StartCommand, StartEnd, convert_start, describe_two_speeds,
    find_program, format_share, refuse_inner_launcher, split_words,
};
use crate::command::table::{Table, format_number};
use crate::exit::{ExitError, SUCCESS, print_text};

/// Hidden option with the number of a start.
const NTH_START: &str = "--nth-start";

/// Name of the file of a start's results, before it gets the start's number.
const RESULTS: &str = "results.json";

/// Makes the arguments those of one start: its files get its number.
pub(super) fn make_nth_start(arguments: &mut MeasureArguments, number: usize) {
    arguments.starts = None;
    for output in &mut arguments.output {
        output.path = number_path(&output.path, number);
    }
}

/// Inserts a number before the suffix: `run.json` becomes `run-3.json`.
fn number_path(path: &std::path::Path, number: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(suffix) = path.extension() {
        name.push(".");
        name.push(suffix);
    }
    path.with_file_name(name)
}

/// Measures in several starts, prints the medians, and returns the exit code.
///
/// # Errors
/// When the starts cannot begin.
pub(super) fn measure_starts(
    count: usize,
    arguments: &MeasureArguments,
    invocation: &Invocation,
) -> Result<u8, ExitError> {
    if let Some(refusal) = refuse_inner_launcher("--starts") {
        return refusal;
    }
    let command = make_command(arguments, invocation)?;
    let mut runner = Runner::new(count)?;
    let (mut runs, mut end) = (Vec::new(), None);
    for number in 1..=count {
        let mut nth = command.clone();
        nth.arguments.extend([NTH_START.to_owned(), number.to_string()]);
        let written = number_path(RESULTS.as_ref(), number);
        let names = ResultNames { requested: RESULTS, written: &written.to_string_lossy() };
        match runner.run_start(&nth, "", names) {
            Ok(rows) => runs.push(rows),
            Err(reason) => {
                end = Some(reason);
                break;
            }
        }
    }
    runner.finish();
    let (code, problem) = match &end {
        None => (SUCCESS, None),
        Some(StartEnd::Interrupted(signal)) => {
            let done = format!("INCOMPLETE: ended by {signal} after {} of {count} starts", runs.len());
            (signal_code(*signal), Some(done))
        }
        Some(StartEnd::Failed(failure)) => {
            (failure.exit_code(), Some(format!("FAIL: start {} of {count}: {failure}", runs.len() + 1)))
        }
    };
    match (problem, runs.is_empty()) {
        (Some(problem), true) => print_message(problem),
        (problem, _) => {
            let end = problem.map(|problem| format!("\n{problem}\n")).unwrap_or_default();
            print_text(&(render_starts(&command, &runs, count) + &end))?;
        }
    }
    Ok(code)
}

/// Makes the command line of all starts, which differ in their number.
fn make_command(arguments: &MeasureArguments, invocation: &Invocation) -> Result<StartCommand, ExitError> {
    let launcher = arguments.launcher.as_deref().map(|text| split_words("--launcher", text)).transpose();
    let launcher = launcher.map_err(ExitError::refused)?.unwrap_or_default();
    if let Some(first) = launcher.first().filter(|first| find_program(first).is_none()) {
        return Err(ExitError::refused(format!("--launcher: there is no program '{first}': check its path")));
    }
    // A name of nccl-tests selects nccl-tests' defaults.
    let link = invocation.command.first().filter(|_| invocation.as_nccl_tests).cloned();
    let own = || std::env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    let program = link.or_else(own);
    let program =
        program.ok_or_else(|| ExitError::refused("--starts: the path of this program is not known"))?;
    Ok(StartCommand {
        launcher,
        variables: Vec::new(),
        program: vec![program],
        arguments: invocation.command.iter().skip(1).cloned().collect(),
        source: ResultSource::OwnJson,
    })
}

/// Returns the report: medians of the starts, with their range.
fn render_starts(command: &StartCommand, runs: &[RunRows], count: usize) -> String {
    let launcher = if command.launcher.is_empty() {
        String::new()
    } else {
        format!(" by {}", shell_words::join(&command.launcher))
    };
    let collect = |describe: &dyn Fn(&RunRows) -> String| {
        runs.iter().map(describe).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; ")
    };
    let library = collect(&|rows| {
        let used = &rows.run.provenance;
        format!("{} {} ({})", used.backend, used.library_version, used.library_path)
    });
    let devices = collect(&|rows| rows.run.devices_text());
    let unverified: usize = runs.iter().map(|rows| rows.rows.unverified).sum();
    let mut text = format!("# {} of {count} starts{launcher}: {devices}, {library}\n", runs.len());
    let starts: Vec<_> = runs.iter().map(convert_start).collect();
    for (name, table) in row_tables(&summarize_starts(&starts)) {
        let mut lines = Vec::new();
        // Writing to memory cannot fail.
        let _ = table.write_text(&mut lines);
        let _ = write!(text, "\n{name}\n{}", String::from_utf8_lossy(&lines));
    }
    if unverified > 0 {
        let _ = write!(text, "\nNote: {unverified} measurements were not verified\n");
    }
    text
}

/// Returns one table for each collective, type, operator and root.
fn row_tables(rows: &[StartsRow]) -> Vec<(String, Table)> {
    let mut tables: Vec<(String, Table)> = Vec::new();
    for row in rows {
        let name =
            format!("{}: time per operation in microseconds, of the starts", row.key.table.table_name());
        if !tables.iter().any(|(known, _)| *known == name) {
            let head =
                ["bytes", "placement", "median", "min", "max", "spread", ""].map(str::to_owned).to_vec();
            let left = (0..head.len()).map(|column| column == 1 || column == head.len() - 1).collect();
            tables.push((name.clone(), Table { head, left, rows: Vec::new() }));
        }
        if let Some((_, table)) = tables.iter_mut().find(|(known, _)| *known == name) {
            table.rows.push(row_cells(row));
        }
    }
    tables
}

fn row_cells(row: &StartsRow) -> Vec<String> {
    let times = row.times.as_ref();
    let missing = (row.missing > 0).then(|| format!("no time in {} starts", row.missing));
    let speeds = times.and_then(|times| times.two_speeds.as_ref());
    let speeds = speeds.map(|speeds| format!("two speeds: {}", describe_two_speeds(speeds)));
    vec![
        row.key.bytes.to_string(),
        row.key.placement.placement_name().to_owned(),
        format_number(times.map(|times| times.median_us)),
        format_number(times.map(|times| times.min_us)),
        format_number(times.map(|times| times.max_us)),
        times.map_or_else(|| "-".to_owned(), |times| format_share(times.spread)),
        missing.into_iter().chain(speeds).collect::<Vec<_>>().join("; "),
    ]
}

#[cfg(test)]
mod tests {
    use super::number_path;

    #[test]
    fn files_of_a_start_have_its_number() {
        for (path, expected) in
            [("run.json", "run-3.json"), ("/a.b/x.y.csv", "/a.b/x.y-3.csv"), ("noext", "noext-3")]
        {
            assert_eq!(number_path(path.as_ref(), 3), std::path::Path::new(expected));
        }
    }
}
