//! Reading result files again: native JSON, JSON Lines, and what nccl-tests writes (`-J`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_json::error::Category;

use super::json_lines::End;
use super::nccl_tests;
use crate::record::{Outcome, Run, SCHEMA_VERSION};

/// A file that is no result to go on with.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ReadError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is something else.
    #[error(
        "it is no result file: expected JSON or JSON Lines of nccl-bench (--output), or JSON of nccl-tests (-J); {0}"
    )]
    NotOurs(String),
    /// Its end is missing.
    #[error("it ends in the middle; {0}")]
    Cut(&'static str),
    /// A later program wrote it.
    #[error(
        "it has version {found} of the format, and this program knows {known}; read it with a newer nccl-bench"
    )]
    Newer {
        /// The file's version.
        found: u64,
        /// The newest that can be read.
        known: u32,
    },
    /// A part is not as it should be.
    #[error("{0}")]
    Damaged(String),
    /// There is nothing in it to show.
    #[error("it has no measurement: {0}")]
    NoMeasurement(String),
}

const CUT: &str = "the program that wrote it was stopped, or it was copied in part";
/// nccl-tests' files only: a run that ends early leaves them like this.
const CUT_NCCL_TESTS: &str = "nccl-tests leaves its JSON like this when it crashes or is interrupted";

/// Reads a run from native JSON, JSON Lines or the JSON of nccl-tests; the content says which it is.
///
/// Of JSON Lines that end in the middle of a line, the whole lines count, and the outcome is [`Outcome::Running`].
/// nccl-tests says less than a [`Run`] holds: what is unknown is absent or empty, and `notes` names its source.
///
/// # Errors
/// When the file cannot be read, is none of the three, a newer program wrote it, or has no measurement.
pub fn read(path: &Path) -> Result<Run, ReadError> {
    let run = fs::read(path).map_err(Problem::from).and_then(|content| parse(&content)).and_then(|run| {
        if run.measurements.is_empty() { Err(Problem::NoMeasurement(ended(&run.outcome))) } else { Ok(run) }
    });
    run.map_err(|problem| ReadError { path: path.to_owned(), problem })
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Running => "the run has not got that far, or was killed".to_owned(),
        Outcome::Complete => "nothing was to be measured".to_owned(),
        Outcome::Interrupted { signal } => format!("the run was ended by {signal}"),
        Outcome::Failed { message } => format!("the run failed: {message}"),
    }
}

pub(super) fn parse(content: &[u8]) -> Result<Run, Problem> {
    if content.trim_ascii().is_empty() {
        return Err(Problem::NotOurs("it is empty".to_owned()));
    }
    let first = content.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if let Ok(header) = serde_json::from_slice::<Value>(first)
        && header["kind"] == "run"
    {
        return lines(header, &content[first.len()..]);
    }
    let value = match serde_json::from_slice(content) {
        Ok(value) => value,
        Err(error) => nccl_tests::repaired(content).ok_or_else(|| unreadable(content, &error))?,
    };
    if nccl_tests::wrote(&value) { nccl_tests::run(value) } else { run(value) }
}

/// A whole run, or the header of JSON Lines with an empty list of measurements.
fn run(value: Value) -> Result<Run, Problem> {
    let Some(found) = value["schema_version"].as_u64() else {
        return Err(Problem::NotOurs("it is JSON of another kind".to_owned()));
    };
    if found > u64::from(SCHEMA_VERSION) {
        return Err(Problem::Newer { found, known: SCHEMA_VERSION });
    }
    serde_json::from_value(value).map_err(|error| Problem::Damaged(format!("it is damaged: {error}")))
}

fn lines(mut header: Value, rest: &[u8]) -> Result<Run, Problem> {
    header["measurements"] = Value::Array(Vec::new());
    let mut run = run(header)?;
    // What the header says is older than what the last line says, if there is one.
    run.outcome = Outcome::Running;
    let lines: Vec<&[u8]> = rest.split(|&byte| byte == b'\n').collect();
    let last = lines.len() - 1;
    for (index, line) in lines.into_iter().enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let damaged = |problem: &dyn std::fmt::Display| {
            // The rest begins with the newline of the first line, so that its line 1 is the file's second.
            Problem::Damaged(format!("line {} is damaged: {problem}", index + 1))
        };
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(_) if index == last => break,
            Err(error) => return Err(damaged(&error)),
        };
        match value["kind"].as_str() {
            Some("measurement") => {
                run.measurements.push(serde_json::from_value(value).map_err(|error| damaged(&error))?);
            }
            Some("end") => {
                let end: End = serde_json::from_value(value).map_err(|error| damaged(&error))?;
                (run.outcome, run.ended_at, run.notes) = (end.outcome, end.ended_at, end.notes);
            }
            Some("run") => return Err(damaged(&"another run begins; give each a file of its own")),
            // A later program of the same version may add kinds.
            Some(_) => {}
            None => return Err(damaged(&"it has no \"kind\"")),
        }
    }
    Ok(run)
}

/// Why it is not JSON.
fn unreadable(content: &[u8], error: &serde_json::Error) -> Problem {
    if !content.trim_ascii_start().starts_with(b"{") {
        return Problem::NotOurs("it is not JSON".to_owned());
    }
    match error.classify() {
        Category::Eof if nccl_tests::began(content) => Problem::Cut(CUT_NCCL_TESTS),
        Category::Eof => Problem::Cut(CUT),
        _ => Problem::NotOurs(format!("it is not JSON: {error}")),
    }
}
