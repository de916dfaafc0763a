//! Reader of NCCL's log, and conclusions from it.

mod answers;
mod blank;
mod channel;
mod clean;
mod communicators;
pub mod conclusions;
mod csv;
mod deferred;
pub mod digest;
mod exceptions;
mod fold;
mod format;
#[doc(hidden)]
pub mod fuzz;
mod headers;
mod input;
mod label;
mod line;
mod message;
mod messages;
mod output;
mod path;
mod quote;
mod reader;
mod roll;
mod sizes;
mod source;
mod tables;
mod tasks;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod variable;
mod watchdog;

mod wrap;
mod writers;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use digest::Digest;

use crate::knowledge::rules::Rules;

pub use reader::Reader;

/// An error while a log is opened.
#[derive(Debug)]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub source: io::Error,
}

/// Reads the logs of a job. `-` is standard input.
///
/// # Errors
///
/// A file that cannot be opened. An incomplete read is not an error, but has an
/// [`Input::problem`](digest::Input::problem).
pub fn read_files<P: AsRef<Path>>(paths: &[P], rules: &Rules) -> Result<Digest, Error> {
    let mut reader = Reader::new(rules);
    for path in paths {
        let path = path.as_ref();
        if path == Path::new("-") {
            reader.read_stream("standard input", io::stdin().lock());
            continue;
        }
        let error = |source| Error { path: path.to_owned(), source };
        let file = File::open(path).map_err(error)?;
        if file.metadata().map_err(error)?.is_dir() {
            return Err(error(io::Error::new(
                io::ErrorKind::IsADirectory,
                "it is a directory: name the files in it",
            )));
        }
        reader.read_stream(&path.to_string_lossy(), file);
    }
    Ok(reader.finish())
}

impl std::fmt::Display for Error {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "cannot read the log {}: {}", self.path.display(), self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
