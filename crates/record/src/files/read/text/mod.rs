//! A reader of text: tables of nccl-tests, rccl-tests and the OSU Micro-Benchmarks, in a log.
//!
//! Each line belongs to a stream, named by the prefixes of launchers ([`line`]). In a stream, the head of a
//! table begins a run, and a head after rows begins the next one. Other lines are skipped.

mod collective;
mod command;
mod draft;
mod head;
mod line;
mod osu;
mod table;

use std::collections::HashMap;
use std::io::{BufRead as _, Read as _};

use super::error::ReadProblem;
use super::source::FileReader;
use crate::run::Run;
use command::{Command, Prompt, find_command};
use draft::Draft;
use head::{HeadLine, read_head_line};
use line::{Readings, clean_line};
use osu::{OsuDraft, OsuLine, read_osu_line};
use table::Columns;

/// Longest line that is read, in bytes; a longer one is skipped.
const LONGEST_LINE: u64 = 1 << 20;
/// Bytes that are searched for the head of a table.
const SEARCHED: usize = 1 << 30;
/// Lines between a command and the head of its table.
const NEAR: usize = 500;
/// Longest command in several lines, in bytes.
const LONGEST_COMMAND: usize = 1 << 16;

const NO_TABLE: &str = "it is text without such a table";
const NO_TABLE_SO_FAR: &str = "it is text without such a table in its first GiB";
const NO_HEAD: &str = "it is text without the head of a table: the line with size, count and type, which names the \
                       columns";

/// Reads all runs of a text, in the order of their heads. Runs without a row are included.
pub(super) fn read_text(source: &mut FileReader<'_>) -> Result<Vec<Run>, ReadProblem> {
    let mut reader = TextReader::default();
    let mut line = Vec::new();
    let mut searched = 0_usize;
    loop {
        if reader.drafts.is_empty() && searched > SEARCHED {
            return Err(ReadProblem::NotOurs(NO_TABLE_SO_FAR.to_owned()));
        }
        line.clear();
        let length = source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        if length == 0 {
            break;
        }
        searched = searched.saturating_add(length);
        let is_whole = line.ends_with(b"\n");
        if !is_whole && length as u64 == LONGEST_LINE {
            // The rest of an endless line is not waited for.
            searched = searched.saturating_add(source.by_ref().take(SEARCHED as u64).skip_until(b'\n')?);
            continue;
        }
        // A terminal writes again over what precedes a carriage return.
        for part in line.split(|&byte| byte == b'\r' || byte == b'\n').filter(|part| !part.is_empty()) {
            reader.add_line(&clean_line(part), is_whole);
        }
    }
    reader.finish()
}

/// A run while it is read.
#[derive(Debug)]
enum AnyDraft {
    Tests(Box<Draft>),
    Osu(Box<OsuDraft>),
}

/// The lines of one writer.
#[derive(Debug, Default)]
struct Stream {
    /// Index of its last run.
    draft: Option<usize>,
    /// Number of the last command that one of its runs has taken.
    commands: usize,
}

/// The command before the next run of each stream.
#[derive(Debug)]
struct LastCommand {
    /// Absent for a command that starts no test program.
    command: Option<Command>,
    /// Number among the commands, from 1 on.
    number: usize,
    /// Number of its line.
    line: usize,
}

#[derive(Debug, Default)]
struct TextReader {
    drafts: Vec<AnyDraft>,
    streams: HashMap<String, Stream>,
    command: Option<LastCommand>,
    /// The beginning of a command in several lines.
    continued: Option<String>,
    lines: usize,
    has_lost_rows: bool,
}

impl TextReader {
    fn add_line(&mut self, line: &str, is_whole: bool) {
        self.lines += 1;
        if self.continue_command(line) {
            return;
        }
        let mut readings = Readings::new(line);
        while let Some((tag, text)) = readings.next_reading() {
            if self.take_reading(tag, text, is_whole) {
                return;
            }
            self.has_lost_rows |= Columns::begins_row(text);
        }
    }

    /// Takes a line, or the part of it after some prefixes. Returns false for a line of another program.
    fn take_reading(&mut self, tag: &str, text: &str, is_whole: bool) -> bool {
        if let Some(line) = read_head_line(text) {
            self.take_head_line(tag, line);
            return true;
        }
        if let Some(line) = read_osu_line(text) {
            self.take_osu_line(tag, &line);
            return true;
        }
        let is_row = match self.open_draft(tag) {
            Some(AnyDraft::Tests(draft)) => draft.add_row(text, is_whole),
            Some(AnyDraft::Osu(draft)) => draft.add_row(text, is_whole),
            None => false,
        };
        is_row || self.take_command(text)
    }

    fn open_draft(&mut self, tag: &str) -> Option<&mut AnyDraft> {
        let place = self.streams.get(tag)?.draft?;
        self.drafts.get_mut(place)
    }

    fn take_head_line(&mut self, tag: &str, line: HeadLine<'_>) {
        let (is_new, section) = match self.open_draft(tag) {
            Some(AnyDraft::Tests(draft)) => (draft.is_ended_by(&line), draft.next_section(&line)),
            Some(AnyDraft::Osu(_)) | None => (Draft::can_begin_with(&line), None),
        };
        if is_new {
            let draft = section.unwrap_or_else(|| Draft::with_command(self.use_command(tag)));
            self.begin_draft(tag, AnyDraft::Tests(Box::new(draft)));
        }
        if let Some(AnyDraft::Tests(draft)) = self.open_draft(tag) {
            draft.add_line(line);
        }
    }

    fn take_osu_line(&mut self, tag: &str, line: &OsuLine<'_>) {
        match (line, self.open_draft(tag)) {
            (OsuLine::Title { library, test, version }, _) => {
                let draft = OsuDraft::with_title(library, test, version);
                self.begin_draft(tag, AnyDraft::Osu(Box::new(draft)));
            }
            (OsuLine::DataType(name), Some(AnyDraft::Osu(draft))) => draft.add_data_type(name),
            (OsuLine::Columns(names), Some(AnyDraft::Osu(draft))) => draft.add_columns(names),
            _ => {}
        }
    }

    fn begin_draft(&mut self, tag: &str, draft: AnyDraft) {
        self.streams.entry(tag.to_owned()).or_default().draft = Some(self.drafts.len());
        self.drafts.push(draft);
    }

    /// Returns the command that is near, unless an earlier run of the stream has taken it.
    fn use_command(&mut self, tag: &str) -> Option<Command> {
        let last = self.command.as_ref().filter(|last| self.lines - last.line <= NEAR)?;
        let stream = self.streams.entry(tag.to_owned()).or_default();
        let is_unused = std::mem::replace(&mut stream.commands, last.number) < last.number;
        last.command.clone().filter(|_| is_unused)
    }

    /// Takes a command, or its beginning. Returns false for another line.
    fn take_command(&mut self, text: &str) -> bool {
        match find_command(text) {
            Prompt::None => return false,
            Prompt::Command(text) => self.add_command(text),
            Prompt::Continued(beginning) => self.continued = Some(beginning.to_owned()),
        }
        true
    }

    fn add_command(&mut self, text: &str) {
        let number = self.command.as_ref().map_or(0, |last| last.number) + 1;
        self.command = Some(LastCommand { command: Command::from_text(text), number, line: self.lines });
    }

    /// Takes the next line of a command in several lines. Returns false without one.
    fn continue_command(&mut self, line: &str) -> bool {
        let Some(mut command) = self.continued.take() else { return false };
        let line = line.trim();
        let (part, is_last) = line.strip_suffix('\\').map_or((line, true), |part| (part, false));
        command.push(' ');
        command.push_str(part);
        if is_last || command.len() > LONGEST_COMMAND {
            self.add_command(&command);
        } else {
            self.continued = Some(command);
        }
        true
    }

    fn finish(self) -> Result<Vec<Run>, ReadProblem> {
        let has_run = |draft: &AnyDraft| match draft {
            AnyDraft::Tests(draft) => draft.has_rows() || draft.has_head(),
            AnyDraft::Osu(draft) => draft.has_table(),
        };
        let drafts = self.drafts.into_iter().filter(has_run);
        let runs: Vec<Run> = drafts
            .map(|draft| match draft {
                AnyDraft::Tests(draft) => draft.into_run(),
                AnyDraft::Osu(draft) => draft.into_run(),
            })
            .collect();
        match runs.len() {
            0 if self.has_lost_rows => Err(ReadProblem::NotOurs(NO_HEAD.to_owned())),
            0 => Err(ReadProblem::NotOurs(NO_TABLE.to_owned())),
            _ => Ok(runs),
        }
    }
}

#[cfg(test)]
mod tests;
