//! `nccl-bench versus`: compares two libraries, sets of variables or programs by starts of fresh processes.
//!
//! A process can be fast or slow for as long as it lives. So the sides take turns in whole starts, and
//! [`judge::versus`] compares the starts.

mod arguments;
mod outcome;
mod report;
mod side;
mod summary;

use std::io::{self, Write as _};
use std::path::Path;

use clap::{ArgMatches, Args as _, FromArgMatches as _};
use engine::supervision::{FAILED, signal_code};
use judge::versus::{Criteria, Outcome, Side, are_rows_testable, compare_sides, needed_starts};

use super::output_file::Maker;
use super::starts::{ResultNames, Runner, StartEnd, StartFailure, convert_start, refuse_inner_launcher};
use super::{Command, Context};
use crate::exit::{ExitError, SUCCESS};
pub use arguments::{VersusArguments, VersusFormat};
use outcome::{VersusEnd, VersusReport};
use side::ComparedSide;

/// Exit code when it cannot be told whether B is slower (`--fail-if-slower`), as in `nccl-bench doctor`.
const CANNOT_TELL: u8 = 3;

/// Name of the file of a start's results.
const RESULTS: ResultNames<'static> = ResultNames { requested: "results.json", written: "results.json" };

/// Description of the file of `--output`.
const MAKER: Maker = Maker {
    mark: outcome::REPORT,
    product: "comparison of starts",
    advice: "name another --output",
    input: "is read by this command",
};

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct VersusCommand;

impl Command for VersusCommand {
    fn define_command(&self) -> clap::Command {
        VersusArguments::augment_args(clap::Command::new("versus"))
            .after_help(arguments::AFTER_HELP)
            .about("Compare two libraries, settings or programs by fresh starts, in turn")
    }

    fn takes_over_signals(&self) -> bool {
        true
    }

    fn run_command(&self, matches: &ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = VersusArguments::from_arg_matches(matches)?;
        if let Some(refusal) = refuse_inner_launcher("versus") {
            return refusal;
        }
        if let Some(path) = &arguments.output {
            check_output(path, arguments.force)?;
        }
        let side = |side| ComparedSide::new(side, &arguments, context.root);
        let mut sides = [side(Side::A)?, side(Side::B)?];
        let end = run_starts(&arguments, &mut sides)?;
        let report = make_report(&arguments, &sides, end);
        let written = write_reports(&arguments, &report);
        let is_prose = matches!(arguments.format, VersusFormat::Text | VersusFormat::Markdown);
        if !is_prose && !matches!(report.outcome, VersusEnd::Complete) {
            engine::supervision::print_message(format_args!("error: {}", report.outcome));
        }
        written?;
        Ok(exit_code(&arguments, &report))
    }
}

/// Checks that the file of `--output` can be written.
fn check_output(path: &Path, force: bool) -> Result<(), ExitError> {
    if path.extension().is_none_or(|suffix| !suffix.eq_ignore_ascii_case("json")) {
        return Err(ExitError::refused(format!("--output {}: the name must end in .json", path.display())));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(ExitError::refused(format!(
            "--output {}: the folder {} does not exist",
            path.display(),
            folder.display()
        )));
    }
    MAKER.refuse_unrelated(path, force, &[]).map_err(|error| ExitError::refused(error.to_string()))
}

/// Runs the starts of both sides in turn, until all are done, one fails, or a signal arrives.
fn run_starts(arguments: &VersusArguments, sides: &mut [ComparedSide; 2]) -> Result<VersusEnd, ExitError> {
    let order = Side::order_starts(arguments.starts);
    let mut runner = Runner::new(order.len())?;
    let mut end = VersusEnd::Complete;
    for (index, &side) in order.iter().enumerate() {
        let compared = &mut sides[side as usize];
        let failed =
            |failure: StartFailure| VersusEnd::Failed { start: index + 1, of: order.len(), side, failure };
        let result = runner.run_start(&compared.command, &format!(", side {}", side.letter()), RESULTS);
        let result =
            result.map(|rows| compared.add_run(rows).map_err(StartEnd::Failed)).and_then(|added| added);
        match result {
            Ok(()) => {}
            Err(StartEnd::Failed(failure)) => {
                end = failed(failure);
                break;
            }
            Err(StartEnd::Interrupted(signal)) => {
                end =
                    VersusEnd::Interrupted { signal: signal.as_str().to_owned(), code: signal_code(signal) };
                break;
            }
        }
        if index == 0 {
            announce_needed_starts(
                &runner,
                arguments.starts,
                sides[side as usize].runs[0].rows.keys().count(),
            );
        }
    }
    runner.finish();
    Ok(end)
}

/// Announces, after the first start, that there are too few starts for so many rows.
fn announce_needed_starts(runner: &Runner, starts: usize, rows: usize) {
    if are_rows_testable([starts, starts], rows) {
        return;
    }
    let advice = needed_starts(rows).map_or_else(
        || "measure fewer rows".to_owned(),
        |needed| format!("--starts {needed} allows it, and so do fewer rows"),
    );
    runner.print_message(&format!(
        "note: with {starts} starts of each side and {rows} rows, no difference of a single row can be significant; \
         only the overall result is tested ({advice})"
    ));
}

fn make_report(arguments: &VersusArguments, sides: &[ComparedSide; 2], end: VersusEnd) -> VersusReport {
    let starts = sides.each_ref().map(|side| side.runs.iter().map(convert_start).collect::<Vec<_>>());
    let criteria =
        Criteria { threshold: arguments.threshold.0, is_complete: matches!(end, VersusEnd::Complete) };
    let comparison = compare_sides(&starts[0], &starts[1], &criteria);
    VersusReport::new(arguments.starts, sides, comparison, end)
}

/// Writes the file of `--output`, and the report to standard output.
fn write_reports(arguments: &VersusArguments, report: &VersusReport) -> Result<(), ExitError> {
    if let Some(path) = &arguments.output {
        let mut text = Vec::new();
        report::write_json(report, &mut text).map_err(ExitError::Output)?;
        let files = [(path.clone(), text)];
        MAKER.write_all(&files, arguments.force, &[]).map_err(engine::supervision::Stop::Failed)?;
    }
    let out = &mut io::stdout().lock();
    let written = match arguments.format {
        VersusFormat::Text => report::write_text(report, out),
        VersusFormat::Markdown => report::write_markdown(report, out),
        VersusFormat::Csv => report::write_csv(report, out),
        VersusFormat::Json => report::write_json(report, out),
    };
    written.and_then(|()| out.flush()).map_err(ExitError::Output)
}

/// Returns the exit code of a comparison.
fn exit_code(arguments: &VersusArguments, report: &VersusReport) -> u8 {
    if let VersusEnd::Interrupted { code, .. } = report.outcome {
        return code;
    }
    if !report.is_whole() {
        return FAILED;
    }
    let has = |wanted: fn(&Outcome) -> bool| report.all_outcomes().any(|outcome| wanted(&outcome));
    match arguments.fail_if_slower {
        true if has(|outcome| matches!(outcome, Outcome::Slower { .. })) => FAILED,
        true if has(|outcome| matches!(outcome, Outcome::CannotTell { .. })) => CANNOT_TELL,
        _ => SUCCESS,
    }
}
