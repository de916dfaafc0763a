//! A run of nccl-tests or rccl-tests while its text is read.

mod run;

use super::command::Command;
use super::head::HeadLine;
use super::table::{Columns, Row};
use crate::files::read::nccl_tests::library_version;
use crate::run::{Placement, Rank};
use crate::settings::{Blocking, Settings};

const NCCL_BENCH: &str = "nccl-bench";

/// Parts of the text, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    #[default]
    Nothing,
    Program,
    Start,
    Settings,
    Devices,
    Placements,
    Columns,
    Foot,
    End,
}

/// The facts of a run so far.
#[derive(Debug, Default)]
pub(super) struct Draft {
    part: Part,
    program: Option<&'static str>,
    program_version: String,
    is_rccl: bool,
    backend: Option<String>,
    library_version: String,
    start: Option<String>,
    command: Option<Command>,
    settings: Option<Settings>,
    has_unaligned: bool,
    reduced_bytes: Option<u64>,
    blocking: Option<Blocking>,
    parallel_init: bool,
    skipped: Option<usize>,
    ranks: Vec<Rank>,
    has_damaged_device: bool,
    placements: Vec<Placement>,
    columns: Option<Columns>,
    rows: Vec<Row>,
    /// The first part of a row that a message of NCCL has broken.
    part_of_row: Option<String>,
    damaged_rows: usize,
    has_cut_row: bool,
    is_right: Option<bool>,
    /// True when the text has the end of two tables and the head of one.
    is_mixed: bool,
    average: Option<f64>,
    is_too_low: bool,
    failure: Option<String>,
}

impl Draft {
    /// The draft of a run that begins with a command, if one was found.
    pub(super) fn with_command(command: Option<Command>) -> Self {
        Self { command, ..Self::default() }
    }

    /// The draft of the next collective of nccl-bench, whose text has the program and the devices once.
    /// `None` when the line begins a run of another program.
    pub(super) fn next_section(&self, line: &HeadLine<'_>) -> Option<Self> {
        let is_section = self.program == Some(NCCL_BENCH) && !matches!(line, HeadLine::Program { .. });
        is_section.then(|| Self {
            program: self.program,
            program_version: self.program_version.clone(),
            backend: self.backend.clone(),
            library_version: self.library_version.clone(),
            settings: self.settings.clone(),
            has_unaligned: self.has_unaligned,
            ranks: self.ranks.clone(),
            has_damaged_device: self.has_damaged_device,
            ..Self::default()
        })
    }

    /// True when the line is the beginning of another run than this one.
    pub(super) fn is_ended_by(&self, line: &HeadLine<'_>) -> bool {
        begun_part(line).is_some_and(|part| self.part >= part)
    }

    /// True when the line can begin a run.
    pub(super) fn can_begin_with(line: &HeadLine<'_>) -> bool {
        begun_part(line).is_some()
    }

    /// True when the text had rows, or lines that look like damaged rows.
    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty() || self.damaged_rows > 0 || self.part_of_row.is_some()
    }

    /// True when the text announced a run.
    pub(super) fn has_head(&self) -> bool {
        self.start.is_some() || self.settings.is_some()
    }

    /// Adds a line of the head or of the foot.
    pub(super) fn add_line(&mut self, line: HeadLine<'_>) {
        if matches!(line, HeadLine::OutOfBounds(_) | HeadLine::Average { .. } | HeadLine::End) {
            self.end_row();
        }
        if let Some(part) = begun_part(&line) {
            self.part = part;
        }
        match line {
            HeadLine::Program { name, version, library } => {
                self.add_program(name, version);
                if let Some(code) = library {
                    self.library_version = library_version(code);
                }
            }
            HeadLine::ProgramVersion { name, version } => self.add_program(name, version),
            HeadLine::Backend { name, version } => {
                self.backend = Some(name.to_owned());
                version.clone_into(&mut self.library_version);
            }
            HeadLine::Start(name) => self.start = Some(name.to_owned()),
            HeadLine::Settings { settings, has_unaligned } => {
                (self.settings, self.has_unaligned) = (Some(*settings), has_unaligned);
            }
            HeadLine::Device(Some(rank)) => self.ranks.push(*rank),
            HeadLine::Device(None) => self.has_damaged_device = true,
            HeadLine::ReducedBytes(bytes) => self.reduced_bytes = Some(bytes),
            HeadLine::Blocking(mode) => self.blocking = Some(mode),
            HeadLine::ParallelInit => self.parallel_init = true,
            HeadLine::PerIteration(skipped) => self.skipped = Some(skipped),
            HeadLine::Placements(placements) => self.placements = placements,
            HeadLine::Columns(columns) => self.columns = Some(columns),
            HeadLine::OutOfBounds(is_right) => {
                self.is_mixed |= self.is_right.is_some();
                (self.is_right, self.part) = (Some(is_right), self.part.max(Part::Foot));
            }
            HeadLine::Average { busbw, is_too_low } => {
                (self.average, self.is_too_low) = (Some(busbw), is_too_low);
                self.part = self.part.max(Part::Foot);
            }
            HeadLine::End => self.part = Part::End,
            HeadLine::LibraryVersion { is_rccl, version } => {
                self.is_rccl |= is_rccl;
                if self.library_version.is_empty() {
                    version.clone_into(&mut self.library_version);
                }
            }
            // After the foot it repeats a result.
            HeadLine::Failure(message) if self.average.is_none() && self.failure.is_none() => {
                self.failure = Some(message.to_owned());
            }
            HeadLine::DeviceList | HeadLine::Failure(_) => {}
        }
    }

    fn add_program(&mut self, name: &'static str, version: &str) {
        self.program = Some(name);
        self.is_rccl |= name == "rccl-tests";
        version.clone_into(&mut self.program_version);
    }

    /// Adds a row, or a part of it; returns false for a line that is none. `is_whole` is false for the end of
    /// the file in the middle of a line.
    pub(super) fn add_row(&mut self, line: &str, is_whole: bool) -> bool {
        let Some(columns) = self.columns.as_ref().filter(|_| self.part == Part::Columns) else {
            return false;
        };
        let text = self.before_message(line);
        let row = columns.read_row(text, &self.placements);
        if let Some(part) = self.part_of_row.take_if(|_| !Columns::begins_row(text)) {
            return self.continue_row(part, text, is_whole);
        }
        if !Columns::begins_row(text) {
            return false;
        }
        self.end_row();
        match row {
            _ if !is_whole => self.has_cut_row = true,
            Some(row) => self.rows.push(row),
            None => self.part_of_row = Some(text.to_owned()),
        }
        true
    }

    /// Adds a line to the part of a row; returns false when it is not one of numbers.
    fn continue_row(&mut self, part: String, text: &str, is_whole: bool) -> bool {
        let Some(columns) = self.columns.as_ref().filter(|_| Columns::continues_row(text)) else {
            self.part_of_row = Some(part);
            return false;
        };
        let line = format!("{part} {text}");
        match columns.read_row(&line, &self.placements) {
            _ if !is_whole => self.has_cut_row = true,
            Some(row) => self.rows.push(row),
            None if columns.is_part(&line) => self.part_of_row = Some(line),
            None => self.damaged_rows += 1,
        }
        true
    }

    /// Counts a row without its end.
    fn end_row(&mut self) {
        self.damaged_rows += usize::from(self.part_of_row.take().is_some());
    }

    /// Returns the text before a message of NCCL on the same line: `vm:4422:4422 [0] NCCL INFO ...`.
    fn before_message<'a>(&self, line: &'a str) -> &'a str {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let Some((before, _)) = line.split_once(" NCCL ") else { return line };
        let Some((before, _)) = before.rsplit_once(" [") else { return line };
        let mut parts = before.rsplitn(3, ':');
        let numbers = [parts.next(), parts.next()];
        let Some(before) = parts.next().filter(|_| numbers.into_iter().flatten().all(is_number)) else {
            return line;
        };
        // The host follows the row without a space.
        self.ranks.iter().find_map(|rank| before.strip_suffix(rank.host.as_str())).unwrap_or(line)
    }
}

/// Returns the part of the text that begins with a line. `None` for lines within a part.
fn begun_part(line: &HeadLine<'_>) -> Option<Part> {
    match line {
        HeadLine::Program { .. } => Some(Part::Program),
        HeadLine::Start(_) => Some(Part::Start),
        HeadLine::Settings { .. } => Some(Part::Settings),
        HeadLine::DeviceList => Some(Part::Devices),
        HeadLine::Placements(_) => Some(Part::Placements),
        HeadLine::Columns(_) => Some(Part::Columns),
        _ => None,
    }
}
