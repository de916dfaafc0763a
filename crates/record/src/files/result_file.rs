//! One result file of a run.

use std::io;
use std::path::PathBuf;

use super::json_lines::{self, JsonLines};
use super::replacement::{FileVersion, refuse_other};
use super::reserve::{Reserve, is_no_space, shorten_run};
use super::{FileFormat, csv, json, markdown, nccl_tests, replacement};
use crate::run::{Measurement, Run};

pub(super) const LINES: FileContent = FileContent::Own(FileFormat::JsonLines);

/// Bytes in a row of CSV besides its measurement: the run, the machine and the settings.
const ROW: u64 = 1024;
/// Bytes of a line of JSON around a measurement.
const LINE: u64 = 16;

/// The content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    /// Results in a format of nccl-bench.
    Own(FileFormat),
    /// The JSON of nccl-tests.
    NcclTests,
}

/// A file on the process of rank 0.
#[derive(Debug)]
pub(super) struct ResultFile {
    /// The path for messages.
    pub(super) path: PathBuf,
    pub(super) content: FileContent,
    /// The replaced file: `path` with links resolved.
    pub(super) target: PathBuf,
    /// The open file of JSON Lines, from the start of the run on.
    lines: Option<JsonLines>,
    /// Space for another format, from the start of the run on.
    reserve: Option<Reserve>,
    /// The file replaced by the next write: found before the run, or written at its start. For JSON Lines,
    /// the file found before the run.
    known: Option<FileVersion>,
    /// True after a reported measurement without space.
    is_full: bool,
}

impl ResultFile {
    pub(super) fn new(path: PathBuf, content: FileContent, target: PathBuf) -> Self {
        let known = FileVersion::from_path(&target).ok().flatten();
        Self { path, content, target, lines: None, reserve: None, known, is_full: false }
    }

    /// Replaces the file by the unfinished run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn start_run(&mut self, run: &Run) -> io::Result<()> {
        if self.content != LINES {
            self.write_run(run)?;
            self.reserve = Some(Reserve::reserve_beside(&self.target)?);
            return Ok(());
        }
        let header = json_lines::header_line(run)?;
        let check = || refuse_other(&self.target, self.known);
        let file = replacement::replace_file(&self.target, |out| out.write_all(&header), check)?;
        self.lines = Some(JsonLines::after_header(file, header.len() as u64, run));
        Ok(())
    }

    /// Adds the transport of `run` to JSON Lines.
    ///
    /// # Errors
    /// When there is no space for it.
    pub(super) fn add_connected(&mut self, run: &Run) -> io::Result<()> {
        let added = self.lines.as_mut().map_or(Ok(()), |lines| lines.add_connected(run));
        self.is_full |= added.is_err();
        added
    }

    /// Adds a measurement of `bytes` bytes in JSON, or reserves space for it.
    ///
    /// # Errors
    /// When there is no space for it.
    pub(super) fn add_measurement(&mut self, measurement: &Measurement, bytes: u64) -> io::Result<()> {
        let around = if self.content == FileContent::Own(FileFormat::Csv) { ROW } else { LINE };
        let added = match (&mut self.lines, &mut self.reserve) {
            (Some(lines), _) => lines.add_measurement(measurement),
            (None, Some(reserve)) => reserve.add_measurement(bytes + around),
            (None, None) => Ok(()),
        };
        self.is_full |= added.is_err();
        added
    }

    /// Writes the whole run, or on a full disk only the measurements with space.
    ///
    /// # Errors
    /// When not all of the run can be written, unless [`add_measurement`](Self::add_measurement) has failed
    /// before.
    pub(super) fn finish_run(&mut self, run: &Run) -> io::Result<()> {
        let written = if self.content == LINES { self.finish_lines(run) } else { self.finish_whole(run) };
        match written {
            Err(error) if self.is_full && is_no_space(&error) => Ok(()),
            written => written,
        }
    }

    /// Ends the file of JSON Lines, or writes it again if it was removed or emptied meanwhile.
    fn finish_lines(&mut self, run: &Run) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) if lines.are_in(&self.target)? => lines.finish_file(run),
            Some(_) => {
                // It is this run's own, emptied, or gone.
                self.known = FileVersion::from_path(&self.target)?;
                self.write_run(run)
            }
            None => self.write_run(run),
        }
    }

    fn finish_whole(&mut self, run: &Run) -> io::Result<()> {
        // Its space is free now.
        let reserved = self.reserve.take().map_or(0, |reserve| reserve.measurement_count());
        let Err(error) = self.write_run(run) else { return Ok(()) };
        if is_no_space(&error) {
            // Another program may have taken a part of the space: searches for the largest number of
            // measurements that fits.
            let (mut fitting, mut too_many) = (0, run.measurements.len());
            let mut tried = reserved.min(too_many.saturating_sub(1));
            while tried > fitting {
                match self.write_run(&shorten_run(run, tried, &error)) {
                    Ok(()) => fitting = tried,
                    Err(_) => too_many = tried,
                }
                tried = fitting.midpoint(too_many);
            }
        }
        // The error of the complete file.
        Err(error)
    }

    /// Replaces the known file by the whole run.
    fn write_run(&mut self, run: &Run) -> io::Result<()> {
        let content = |out: &mut dyn io::Write| match self.content {
            FileContent::Own(FileFormat::Json) => json::write_json(run, out),
            FileContent::Own(FileFormat::Csv) => csv::write_csv(run, out),
            FileContent::Own(FileFormat::Markdown) => markdown::write_markdown(run, out),
            FileContent::Own(FileFormat::JsonLines) => json_lines::write_lines(run, out),
            FileContent::NcclTests => out.write_all(nccl_tests::render_json(run).as_bytes()),
        };
        let file =
            replacement::replace_file(&self.target, content, || refuse_other(&self.target, self.known))?;
        self.known = Some(FileVersion::from(&file.metadata()?));
        file.sync_all()
    }
}
