//! Readers of result files: native JSON, JSON Lines, the JSON of nccl-tests (`-J`), and tables in text.
//!
//! A file is read once from beginning to end, so it can be a pipe. Measurements of JSON are read one at a
//! time, so the caller decides what to keep in memory.

mod compressed;
mod error;
mod field_reader;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod nccl_tests;
mod non_finite;
mod source;
mod text;

use std::io::{self, BufRead, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeSeed as _;
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::json_lines::{ConnectedLine, EndLine};
use crate::run::{Measurement, Run, RunOutcome};
pub use error::{ReadError, ReadProblem};
use field_reader::{FieldReader, known_version};
use source::{FileReader, Source};

/// The program of a run read from a file of nccl-tests.
pub(crate) const NCCL_TESTS: &str = "nccl-tests";

const CUT: &str = "the program that wrote it was stopped, or it was copied in part";
/// Reason for an incomplete file of nccl-tests: its runs leave such files at an early end.
const CUT_NCCL_TESTS: &str = "nccl-tests leaves its JSON like this when it crashes or is interrupted";

/// Maximum length of a line of JSON Lines, in bytes. A measurement takes about ten for each iteration of each
/// process.
const LONGEST_LINE: u64 = 1 << 30;

/// Checks that at most one of the files is standard input, `-`.
///
/// # Errors
/// When several are.
pub fn check_names<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<(), ReadError> {
    let mut inputs = paths.into_iter().filter(|path| path.as_os_str() == source::STANDARD_INPUT);
    match (inputs.next(), inputs.next()) {
        (_, Some(path)) => Err(ReadError { path: path.clone(), problem: ReadProblem::NamedTwice }),
        _ => Ok(()),
    }
}

/// Reads the only run of a file, like [`read_runs`].
///
/// # Errors
/// Like [`read_runs`], and when the file has several runs.
pub fn read_run(path: &Path) -> Result<Run, ReadError> {
    let run = source::open_source(path).and_then(read_source).and_then(refuse_empty).and_then(only_run);
    run.map_err(|problem| ReadError { path: path.to_owned(), problem })
}

/// Reads the runs of a file, also compressed (gzip, zstd). The format is detected by the content. The path
/// `-` is standard input.
///
/// - Native JSON, JSON Lines and the JSON of nccl-tests have one run. If JSON Lines end in the middle of a
///   line, the whole lines count, and the outcome is [`RunOutcome::Running`].
/// - Text can have any number of runs: tables of nccl-tests, rccl-tests and the OSU Micro-Benchmarks, also
///   with prefixes of launchers and between other lines. A run without the end of its table has the outcome
///   [`RunOutcome::Running`]. A run without a row is included if another run has rows.
///
/// Files of other programs lack parts of a [`Run`]. These are absent or empty, and `notes` names the source.
/// A collective that the text does not tell is [`UNKNOWN_COLLECTIVE`](crate::collective::UNKNOWN_COLLECTIVE).
///
/// # Errors
/// When the file cannot be read, has none of these formats, a newer program wrote it, or has no measurement.
pub fn read_runs(path: &Path) -> Result<Vec<Run>, ReadError> {
    let runs = source::open_source(path).and_then(read_source).and_then(refuse_empty);
    runs.map_err(|problem| ReadError { path: path.to_owned(), problem })
}

/// Reads a run like [`read_run`], but passes each measurement to `take` instead of keeping it: the returned
/// run has none. `join` makes one run of those of a text. For JSON of nccl-tests, each row counts as a cycle.
/// With `partial`, JSON may end in the middle: then the measurements before are read, and the outcome is
/// [`RunOutcome::Running`].
///
/// # Errors
/// Like [`read_runs`], and those of `join`; measurements passed to `take` before the error are not valid
/// results.
pub(crate) fn read_each(
    path: &Path,
    partial: bool,
    join: &dyn Fn(Vec<Run>) -> Result<Run, ReadProblem>,
    take: &mut dyn FnMut(Measurement),
) -> Result<Run, ReadError> {
    let read = |source| match source {
        Source::Json(mut source) => {
            let content = read_content(&mut source, partial, take)?;
            match content.measurements {
                0 => Err(no_measurement(&content.run)),
                _ => Ok(content.run),
            }
        }
        Source::Text(mut source) => {
            let mut run = join(refuse_empty(text::read_text(&mut source)?)?)?;
            std::mem::take(&mut run.measurements).into_iter().for_each(take);
            Ok(run)
        }
    };
    let run = source::open_source(path).and_then(read);
    run.map_err(|problem| ReadError { path: path.to_owned(), problem })
}

fn no_measurement(run: &Run) -> ReadProblem {
    ReadProblem::NoMeasurement(match &run.outcome {
        RunOutcome::Running => "the run has not reached its first measurement, or was killed".to_owned(),
        RunOutcome::Complete => "nothing was to be measured".to_owned(),
        RunOutcome::Interrupted { signal } => format!("the run was ended by {signal}"),
        RunOutcome::Failed { message } => format!("the run failed: {message}"),
    })
}

#[cfg(test)]
pub(super) fn parse_text(text: &[u8]) -> Result<Run, ReadProblem> {
    source::decompress_source(text).and_then(read_source).and_then(only_run)
}

fn only_run(mut runs: Vec<Run>) -> Result<Run, ReadProblem> {
    match (runs.pop(), runs.len()) {
        (Some(run), 0) => Ok(run),
        (_, others) => Err(ReadProblem::SeveralRuns(others + 1)),
    }
}

fn read_source(source: Source<'_>) -> Result<Vec<Run>, ReadProblem> {
    let mut source = match source {
        Source::Json(source) => source,
        Source::Text(mut source) => return text::read_text(&mut source),
    };
    let mut measurements = Vec::new();
    let ReadContent { mut run, rows, .. } =
        read_content(&mut source, false, &mut |measurement| measurements.push(measurement))?;
    if let Some(rows) = rows {
        nccl_tests::number_cycles(&mut measurements, rows, run.settings.cycles);
    }
    run.measurements = measurements;
    Ok(vec![run])
}

fn refuse_empty(runs: Vec<Run>) -> Result<Vec<Run>, ReadProblem> {
    match runs.first() {
        Some(first) if runs.iter().all(|run| run.measurements.is_empty()) => Err(no_measurement(first)),
        _ => Ok(runs),
    }
}

/// The content of a file, with the number of its measurements in place of the measurements.
struct ReadContent {
    run: Run,
    measurements: usize,
    /// Number of rows in a file of nccl-tests; `None` for native files.
    rows: Option<usize>,
}

fn read_content(
    source: &mut FileReader<'_>,
    partial: bool,
    take: &mut dyn FnMut(Measurement),
) -> Result<ReadContent, ReadProblem> {
    let mut document = FieldReader::new(take);
    let mut deserializer = serde_json::Deserializer::from_reader(&mut *source);
    let read = (&mut document).deserialize(&mut deserializer);
    if read.is_ok() && document.fields.get("kind").is_some_and(|kind| kind == "run") {
        drop(deserializer);
        return read_lines(source, document);
    }
    match read.and_then(|()| deserializer.end()) {
        Ok(()) => finish_content(&mut document),
        Err(error) => match convert_error(&error, &mut document) {
            ReadProblem::EndMissing(_) if partial && document.taken > 0 => {
                let mut content = finish_content(&mut document)?;
                content.run.outcome = RunOutcome::Running;
                Ok(content)
            }
            problem => Err(problem),
        },
    }
}

fn finish_content(document: &mut FieldReader<'_>) -> Result<ReadContent, ReadProblem> {
    let from_nccl_tests = document.is_from_nccl_tests();
    let fields = std::mem::take(&mut document.fields);
    let measurements = document.taken;
    if from_nccl_tests {
        return Ok(ReadContent {
            run: nccl_tests::make_run(fields)?,
            measurements,
            rows: Some(document.rows),
        });
    }
    let run = make_run(fields)?;
    if document.list.is_none() {
        return Err(ReadProblem::Damaged("it is damaged: missing field `measurements`".to_owned()));
    }
    refuse_contradiction(&run, document.has_uncounted_mismatch)?;
    Ok(ReadContent { run, measurements, rows: None })
}

/// Makes a run, without measurements, from the fields of a native file.
fn make_run(mut fields: Map<String, Value>) -> Result<Run, ReadProblem> {
    if !fields.get("schema_version").is_some_and(Value::is_u64) {
        return Err(ReadProblem::NotOurs("it is JSON of another kind".to_owned()));
    }
    known_version(&fields)?;
    if !["command", "settings", "outcome"].iter().any(|name| fields.contains_key(*name)) {
        return Err(ReadProblem::NotOurs(
            "it is a report of another command, without measurements".to_owned(),
        ));
    }
    fields.insert("measurements".to_owned(), Value::Array(Vec::new()));
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| ReadProblem::Damaged(format!("it is damaged: {error}")))
}

/// Refuses a native file with a contradiction: it was changed after the program wrote it.
fn refuse_contradiction(run: &Run, has_uncounted_mismatch: bool) -> Result<(), ReadProblem> {
    let is_complete = run.outcome == RunOutcome::Complete;
    let mut ranks: Vec<usize> = run.ranks.iter().map(|rank| rank.rank).collect();
    ranks.sort_unstable();
    let found = if run.ranks.is_empty() {
        "it names no rank"
    } else if ranks.iter().enumerate().any(|(index, &rank)| index != rank) {
        "it names a rank twice, or omits a rank"
    } else if is_complete && run.ended_at.is_none() {
        "its run is complete, but has no `ended_at`"
    } else if is_complete && run.left_out.is_some_and(|left_out| left_out.measurements > 0) {
        "its run is complete, but measurements are missing"
    } else if has_uncounted_mismatch {
        "a measurement lists ranks with wrong elements, but counts none"
    } else {
        return Ok(());
    };
    Err(ReadProblem::Damaged(format!("it is damaged: {found}")))
}

/// The kind of a line.
#[derive(Deserialize)]
struct LineKind {
    kind: Option<String>,
}

/// Reads the lines after the header.
fn read_lines(
    source: &mut FileReader<'_>,
    mut document: FieldReader<'_>,
) -> Result<ReadContent, ReadProblem> {
    let mut run = make_run(std::mem::take(&mut document.fields))?;
    // The last line, if present, replaces the header's outcome.
    run.outcome = RunOutcome::Running;
    let mut has_ended = false;
    let mut wrong = 0;
    let mut line = Vec::new();
    // The first iteration reads the rest of the header's line.
    for number in 1_usize.. {
        line.clear();
        let length = source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        let whole = line.ends_with(b"\n");
        let damaged = |problem: &dyn std::fmt::Display| {
            ReadProblem::Damaged(format!("line {number} is damaged: {problem}"))
        };
        if length as u64 == LONGEST_LINE && !whole {
            return Err(damaged(&"it is longer than 1 GiB"));
        }
        if !line.trim_ascii().is_empty() {
            let found: LineKind = match serde_json::from_slice(&line) {
                Ok(found) => found,
                Err(_) if !whole => break,
                Err(error) => return Err(damaged(&error)),
            };
            match found.kind.as_deref() {
                Some("measurement" | "connected" | "end") if has_ended => {
                    return Err(damaged(&"it follows the end of the run"));
                }
                Some("measurement") => {
                    let measurement: Measurement =
                        serde_json::from_slice(&line).map_err(|error| damaged(&error))?;
                    wrong += usize::from(measurement.is_wrong());
                    document.take_measurement(measurement);
                }
                Some("connected") => {
                    let found: ConnectedLine =
                        serde_json::from_slice(&line).map_err(|error| damaged(&error))?;
                    (run.provenance.transport, run.notes) = (found.transport, found.notes);
                    run.start_phases = found.start_phases;
                }
                Some("end") => {
                    let end: EndLine = serde_json::from_slice(&line).map_err(|error| damaged(&error))?;
                    let (taken, all) = (document.taken, end.summary.measurements);
                    if taken != all {
                        return Err(damaged(&format!(
                            "it ends a run of {all} measurements, but {taken} are in the file"
                        )));
                    }
                    if end.summary.wrong_measurements.is_some_and(|all| all != wrong) {
                        return Err(damaged(&format!(
                            "it ends a run with a different number of wrong measurements than the {wrong} \
                             in the file"
                        )));
                    }
                    (run.outcome, run.ended_at, run.notes) = (end.outcome, end.ended_at, end.notes);
                    (run.left_out, has_ended) = (end.left_out, true);
                }
                Some("run") => return Err(damaged(&"another run begins; give each a file of its own")),
                // A later program of the same version may add kinds.
                Some(_) => {}
                None => return Err(damaged(&"it has no \"kind\"")),
            }
        }
        if !whole {
            break;
        }
    }
    refuse_contradiction(&run, document.has_uncounted_mismatch)?;
    Ok(ReadContent { run, measurements: document.taken, rows: None })
}

/// Converts the error of reading a JSON object into the reported problem.
fn convert_error(error: &serde_json::Error, document: &mut FieldReader<'_>) -> ReadProblem {
    let fields = &document.fields;
    match error.classify() {
        Category::Io => ReadProblem::Unreadable(io::Error::new(
            error.io_error_kind().unwrap_or(io::ErrorKind::Other),
            error.to_string(),
        )),
        Category::Eof if fields.contains_key("version") => ReadProblem::EndMissing(CUT_NCCL_TESTS),
        Category::Eof => ReadProblem::EndMissing(CUT),
        Category::Syntax => ReadProblem::NotOurs(format!("it is not JSON: {error}")),
        Category::Data => match document.problem.take() {
            Some(problem) => problem,
            None if fields.contains_key("version") => {
                ReadProblem::Damaged(format!("it is not as nccl-tests writes it: {error}"))
            }
            None if fields.contains_key("schema_version") || document.list.is_some() => {
                ReadProblem::Damaged(format!("it is damaged: {error}"))
            }
            None => ReadProblem::NotOurs("it is JSON of another kind".to_owned()),
        },
    }
}
