//! Reasons why a start has no usable result.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;

use engine::supervision::{FAILED, WRONG_DATA};
use record::RunOutcome;
use serde::Serialize;

/// Maximum number of rows with wrong data that a message names.
const NAMED_ROWS: usize = 5;

/// Reason why a start has no usable result.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(in crate::command) enum StartFailure {
    /// Its command cannot be started, or its files cannot be made.
    NotStarted {
        /// The first word of the command.
        program: String,
        /// Reason.
        #[serde(serialize_with = "write_text")]
        error: io::Error,
    },
    /// It ended with a failure.
    Ended {
        /// End of the first process.
        #[serde(serialize_with = "write_status")]
        status: ExitStatus,
        /// Last lines of its messages.
        messages: Vec<String>,
    },
    /// It ended well, and its results cannot be read.
    Unreadable {
        /// Reason.
        #[serde(serialize_with = "write_text")]
        error: record::files::ReadError,
        /// Last lines of its messages.
        messages: Vec<String>,
    },
    /// Its results say that it is not complete.
    Incomplete {
        /// Outcome in its results.
        outcome: RunOutcome,
    },
    /// It has wrong data.
    WrongData {
        /// Rows with wrong data.
        rows: Vec<String>,
    },
    /// It did not use the library that was asked for.
    OtherLibrary {
        /// The library asked for.
        wanted: PathBuf,
        /// The library in its results.
        used: String,
    },
}

impl StartFailure {
    /// Exit code of a command that ends with this failure: the code of the start, if it has one.
    pub(in crate::command) fn exit_code(&self) -> u8 {
        match self {
            Self::WrongData { .. } => WRONG_DATA,
            Self::Ended { status, .. } => status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .filter(|&code| code > 0)
                .unwrap_or(FAILED),
            _ => FAILED,
        }
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { program, error } => write!(formatter, "{program} cannot be started: {error}"),
            Self::Ended { status, messages } => {
                write!(formatter, "{}", describe_status(*status))?;
                write_messages(formatter, messages)
            }
            Self::Unreadable { error, messages } => {
                write!(
                    formatter,
                    "it wrote no usable results: {error}; if rank 0 runs on another host, set TMPDIR to a \
                     folder that both hosts share"
                )?;
                write_messages(formatter, messages)
            }
            Self::Incomplete { outcome } => match outcome {
                RunOutcome::Failed { message } => write!(formatter, "its run failed: {message}"),
                RunOutcome::Interrupted { signal } => write!(formatter, "its run was ended by {signal}"),
                RunOutcome::Running | RunOutcome::Complete => formatter.write_str("its run has not ended"),
            },
            Self::WrongData { rows } => {
                formatter.write_str("wrong data")?;
                rows.iter().take(NAMED_ROWS).try_for_each(|row| write!(formatter, "\n  {row}"))?;
                if rows.len() > NAMED_ROWS {
                    write!(formatter, "\n  and {} more", rows.len() - NAMED_ROWS)?;
                }
                Ok(())
            }
            Self::OtherLibrary { wanted, used } => write!(
                formatter,
                "it used {used} instead of {}: only runs on GPUs use NCCL",
                wanted.display()
            ),
        }
    }
}

/// Describes the end of a process: `exit code 1`, `ended by signal 9`.
fn describe_status(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn write_messages(formatter: &mut fmt::Formatter<'_>, messages: &[String]) -> fmt::Result {
    messages.iter().try_for_each(|line| write!(formatter, "\n  | {line}"))
}

fn write_text<T: fmt::Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn write_status<S: serde::Serializer>(status: &ExitStatus, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&describe_status(*status))
}
