//! The end of the program: messages and exit codes.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::error::ErrorKind;
use engine::supervision::{CLOSED_PIPE, REFUSED, Stop, print_message};

/// True if standard output was closed when the process started. Before `main`, Rust's runtime opens
/// `/dev/null` in its place.
static CLOSED_AT_START: AtomicBool = AtomicBool::new(false);

// SAFETY: the section is an array of functions with this ABI. The C library calls them before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look_at_standard_output;

/// Exit code of a completed command.
pub const SUCCESS: u8 = 0;

/// An end of the program before the end of its command.
#[derive(Debug)]
pub enum ExitError {
    /// A refusal or a failure, printed on standard error.
    Stopped(Stop),
    /// The answer of the command line's parser: help, the version, or a refusal.
    Parser(Box<clap::Error>),
    /// Standard output cannot be written.
    Output(io::Error),
}

impl ExitError {
    /// Returns a refusal of the request: exit code 2.
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Stopped(Stop::Refused(message.into()))
    }

    /// Prints the message, and returns the exit code.
    #[must_use]
    pub fn report_error(self) -> u8 {
        match self {
            Self::Stopped(stop) => {
                match &stop {
                    Stop::Failed(error) => print_message(format_args!("error: {error:#}")),
                    refused => {
                        print_message(format_args!("error: {}", refused.refusal_text().unwrap_or_default()));
                    }
                }
                stop.code()
            }
            Self::Parser(answer) if answer.use_stderr() => {
                let text = answer.render();
                // The parser would write it in pieces.
                let is_plain = anstream::AutoStream::choice(&io::stderr()) == anstream::ColorChoice::Never;
                let text = if is_plain { text.to_string() } else { text.ansi().to_string() };
                print_message(text.trim_end());
                u8::try_from(answer.exit_code()).unwrap_or(REFUSED)
            }
            Self::Parser(answer) => {
                let printed = answer.print().and_then(|()| io::stdout().flush());
                match printed {
                    Err(problem) => Self::Output(problem).report_error(),
                    Ok(()) => u8::try_from(answer.exit_code()).unwrap_or(REFUSED),
                }
            }
            // The reader has closed the pipe.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => CLOSED_PIPE,
            Self::Output(error) => {
                let error = anyhow::Error::new(error).context("writing to standard output");
                Self::Stopped(Stop::Failed(error)).report_error()
            }
        }
    }
}

impl From<Stop> for ExitError {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

impl From<clap::Error> for ExitError {
    fn from(error: clap::Error) -> Self {
        Self::Parser(Box::new(error))
    }
}

/// Returns a refusal in the form of the parser's messages. It has no usage line, because the message contains
/// the advice.
pub fn parser_refusal(message: impl Display) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n"))
}

/// Checks that this process was started with a standard output, because the results need it.
///
/// # Errors
/// [`Stop::Refused`] when it was closed.
pub fn check_standard_output() -> Result<(), Stop> {
    if !CLOSED_AT_START.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Stop::Refused(
        "standard output is closed, so the output would be lost; write >/dev/null if only files are wanted"
            .to_owned(),
    ))
}

/// Records whether standard output is closed. It runs before `main`, so it must neither print nor panic.
extern "C" fn look_at_standard_output() {
    // SAFETY: the call only reads the flags of a descriptor, or fails.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED_AT_START.store(flags == -1, Ordering::Relaxed);
}

/// Prints a text on standard output.
///
/// # Errors
/// [`ExitError::Output`] when it cannot be written.
pub fn print_text(text: &str) -> Result<u8, ExitError> {
    io::stdout().write_all(text.as_bytes()).map_err(ExitError::Output)?;
    Ok(SUCCESS)
}
