//! Writers of result files (native JSON, JSON Lines, CSV and Markdown), and readers of the two kinds of JSON
//! and of files of other programs.
//!
//! docs/results.md describes them. A file is written to a temporary name in its folder and then renamed. So a
//! full disk or a reader never sees half a file in place of an older one. Only JSON Lines grows during the
//! run: it has all measurements when the process is killed.

mod csv;
#[cfg(test)]
mod documentation;
mod json;
mod json_lines;
mod markdown;
pub mod nccl_tests;
mod own;
mod read;
pub mod replacement;
mod reserve;
mod result_file;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

#[cfg(any(test, fuzzing))]
pub use read::fuzz;
pub(crate) use read::{NCCL_TESTS, read_each};
pub use read::{ReadError, ReadProblem, check_names, read_run, read_runs};

use crate::run::{Measurement, Run};
use result_file::{FileContent, LINES, ResultFile};

/// A file to write (`--output`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Path of the file.
    pub path: PathBuf,
    /// Format, chosen by the suffix.
    pub format: FileFormat,
}

/// The formats of result files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// The whole [`Run`] (`.json`).
    Json,
    /// The same, one line per measurement, written when it is measured (`.jsonl`).
    JsonLines,
    /// A row per measurement (`.csv`).
    Csv,
    /// Tables for people (`.md`).
    Markdown,
}

impl FileFormat {
    /// All formats, by suffix.
    const SUFFIXES: [(&'static str, Self); 4] =
        [("json", Self::Json), ("jsonl", Self::JsonLines), ("csv", Self::Csv), ("md", Self::Markdown)];
}

/// A file name without the suffix of a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the suffix of '{0}' does not select a format: .json (all of a run), .jsonl (the same, line by line \
     while it runs), .csv (a row per measurement) or .md (Markdown tables)"
)]
pub struct UnknownSuffix(String);

impl FromStr for Output {
    type Err = UnknownSuffix;

    fn from_str(text: &str) -> Result<Self, UnknownSuffix> {
        let path = PathBuf::from(text);
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        let format = FileFormat::SUFFIXES.iter().find(|(known, _)| suffix.as_deref() == Some(known));
        match format {
            Some(&(_, format)) => Ok(Self { path, format }),
            None => Err(UnknownSuffix(text.to_owned())),
        }
    }
}

/// Errors of writing files, each with its reason.
#[derive(Debug, thiserror::Error)]
pub struct WriteError {
    /// Files with failed writes, with their reasons; at least one.
    pub failures: Vec<(PathBuf, io::Error)>,
}

impl WriteError {
    /// Returns `Ok` when there are no failures.
    fn unless_empty(failures: Vec<(PathBuf, io::Error)>) -> Result<(), Self> {
        if failures.is_empty() { Ok(()) } else { Err(Self { failures }) }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (path, reason)) in self.failures.iter().enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(formatter, "{separator}cannot write {}: {reason}", path.display())?;
        }
        Ok(())
    }
}

/// Reason for refusing a file of another program.
const FOREIGN: &str =
    "it exists and is not a result file of nccl-bench; name another file, or use --force to replace it";

/// The result files of a run, on the process of rank 0.
#[derive(Debug, Default)]
pub struct Files {
    files: Vec<ResultFile>,
}

impl Files {
    /// Checks that every file can be written, before anything is measured. Nothing is replaced yet. With
    /// `force`, files of other programs will be replaced.
    ///
    /// When one is a folder or named twice, is not a result file and `force` is not set, its folder is
    /// missing or not writable, or the disk is full. All such files are named.
    pub fn open_outputs(outputs: &[Output], force: bool) -> Result<Self, WriteError> {
        let mut files: Vec<ResultFile> = Vec::new();
        let mut failures = Vec::new();
        for output in outputs {
            let target = replacement::check_target(&output.path).and_then(|target| {
                if files.iter().any(|file| file.target == target) {
                    return Err(io::Error::other("it is named twice"));
                }
                if !force && replacement::is_foreign(&target, own::is_result) {
                    return Err(io::Error::other(FOREIGN));
                }
                Ok(target)
            });
            match target {
                Ok(target) => {
                    files.push(ResultFile::new(output.path.clone(), FileContent::Own(output.format), target));
                }
                Err(reason) => failures.push((output.path.clone(), reason)),
            }
        }
        WriteError::unless_empty(failures).map(|()| Self { files })
    }

    /// Adds the file of nccl-tests' JSON created by [`nccl_tests::create_target`].
    pub fn add_nccl_tests(&mut self, path: PathBuf) {
        self.files.push(ResultFile::new(path.clone(), FileContent::NcclTests, path));
    }

    /// Returns true when `path` names one of the files, with links resolved.
    pub fn has_target(&self, path: &std::path::Path) -> bool {
        replacement::resolve_links(path)
            .is_ok_and(|target| self.files.iter().any(|file| file.target == target))
    }

    /// Replaces all files by the unfinished record, so files of an earlier run cannot be mistaken for this
    /// one's, even after an early end. `run` has no measurements yet.
    ///
    /// # Errors
    /// When one cannot be written. The older file is then unchanged.
    pub fn start_run(&mut self, run: &Run) -> Result<(), WriteError> {
        self.act_on_each(|file| file.start_run(run))
    }

    /// Adds the transport, unknown at the start, to the files of JSON Lines.
    ///
    /// # Errors
    /// When one has no space for it.
    pub fn add_connected(&mut self, run: &Run) -> Result<(), WriteError> {
        self.act_on_each(|file| file.add_connected(run))
    }

    /// Adds a measurement to the files of JSON Lines, flushed at once, and reserves space for it in files of
    /// other formats.
    ///
    /// # Errors
    /// When one has no space for it. This file then has the earlier measurements, once it is finished.
    pub fn add_measurement(&mut self, measurement: &Measurement) -> Result<(), WriteError> {
        let bytes = json::count_bytes(measurement);
        self.act_on_each(|file| file.add_measurement(measurement, bytes))
    }

    /// Writes all files with the outcome of `run`. JSON Lines gets its missing lines: all lines if
    /// [`start_run`](Self::start_run) was not called, or some after a full disk. On a full disk the other
    /// formats have the measurements with reserved space.
    ///
    /// # Errors
    /// When a file cannot be written, or lacks a part of the run and
    /// [`add_measurement`](Self::add_measurement) has not failed for it. The other files are written. A file
    /// that cannot be replaced keeps its older content.
    pub fn finish_run(mut self, run: &Run) -> Result<(), WriteError> {
        // JSON Lines, the fastest format, first: a launcher may kill the process within a second.
        self.files.sort_by_key(|file| file.content != LINES);
        self.act_on_each(|file| file.finish_run(run))
    }

    /// Calls `act` for all files, even after a failure.
    fn act_on_each(
        &mut self,
        mut act: impl FnMut(&mut ResultFile) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let act = |file: &mut ResultFile| act(file).err().map(|reason| (file.path.clone(), reason));
        WriteError::unless_empty(self.files.iter_mut().filter_map(act).collect())
    }
}

#[cfg(test)]
mod tests;
