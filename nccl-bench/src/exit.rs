//! The end of the program: what becomes of an error or a verdict, in one place.

use std::io::{self, Write as _};
use std::process::ExitCode;

use engine::supervision::{CLOSED_PIPE, REFUSED, Signal, Stop, Verdict};

/// How a command has ended.
#[derive(Debug)]
pub enum Exit {
    /// With this exit code, and nothing to say.
    Code(u8),
    /// With an error that is printed on standard error.
    Stopped(Stop),
    /// With an answer of the command line's parser: help, the version, or a refusal.
    Parser(Box<clap::Error>),
    /// Standard output cannot be written.
    Output(io::Error),
}

impl Exit {
    /// Everything was done.
    pub const SUCCESS: Self = Self::Code(0);

    /// The request cannot be carried out: exit code 2.
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Stopped(Stop::Refused(message.into()))
    }

    /// A transfer between two ranks has ended; a signal that ended it is named on standard error.
    #[must_use]
    pub fn interrupted(verdict: Verdict) -> Self {
        if let Verdict::Stopped(signal) = verdict
            && signal != Signal::Pipe
        {
            eprintln!("nccl-bench: interrupted by {}; not all sizes were measured", signal.name());
        }
        verdict.into()
    }

    /// Prints what there is to say, and returns the exit code.
    #[must_use]
    pub fn report(self) -> ExitCode {
        match self {
            Self::Code(code) => ExitCode::from(code),
            Self::Stopped(stop) => {
                match &stop {
                    Stop::Refused(message) => eprintln!("error: {message}"),
                    Stop::Failed(error) => eprintln!("error: {error:#}"),
                }
                ExitCode::from(stop.code())
            }
            Self::Parser(answer) => {
                let printed = answer.print().and_then(|()| io::stdout().flush());
                match printed {
                    Err(problem) if !answer.use_stderr() => Self::Output(problem).report(),
                    _ => ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(REFUSED)),
                }
            }
            // Its reader has gone.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(CLOSED_PIPE),
            Self::Output(error) => {
                let error = anyhow::Error::new(error).context("writing to standard output");
                Self::Stopped(Stop::Failed(error)).report()
            }
        }
    }
}

impl From<Verdict> for Exit {
    fn from(verdict: Verdict) -> Self {
        Self::Code(verdict.code())
    }
}

impl From<Stop> for Exit {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

impl From<clap::Error> for Exit {
    fn from(error: clap::Error) -> Self {
        Self::Parser(Box::new(error))
    }
}

impl<E: Into<Self>> From<Result<Self, E>> for Exit {
    fn from(result: Result<Self, E>) -> Self {
        result.unwrap_or_else(Into::into)
    }
}

/// Prints a whole text on standard output.
pub fn print(text: &str) -> Exit {
    io::stdout().write_all(text.as_bytes()).map_or_else(Exit::Output, |()| Exit::SUCCESS)
}
