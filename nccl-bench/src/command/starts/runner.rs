//! Runs starts one after another, and reads their results.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use collectives::world;
use engine::supervision::{Interrupt, Salvage, Signal, Stop};
use indicatif::{ProgressBar, ProgressStyle};
use judge::versus::Start;
use record::RunOutcome;
use record::matching::{Metric, RunRows, read_rows};
use record::sides::SelectedSide;
use tempfile::TempDir;

use super::child::{ChildEnd, run_child};
use super::{StartCommand, StartFailure};

/// Lines and bytes of the messages of a failed start that are shown, from their end.
const SHOWN_LINES: usize = 15;
const LONGEST_LINE: usize = 400;

const TEMPLATE: &str = "{bar:10} {percent:>3}% {elapsed} elapsed  {wide_msg}";

/// An end of a start without results.
#[derive(Debug)]
pub(in crate::command) enum StartEnd {
    /// It failed.
    Failed(StartFailure),
    /// A signal ended it, and ends the command.
    Interrupted(Signal),
}

/// Runs starts, with a progress bar, until one fails or a signal arrives.
pub(in crate::command) struct Runner {
    interrupt: Interrupt,
    /// The world of this process alone. Without it, a signal would end the process at once.
    _world: world::Handle,
    bar: ProgressBar,
    total: usize,
    begun: usize,
}

impl Runner {
    /// Takes over the signals, for a number of starts.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(in crate::command) fn new(total: usize) -> Result<Self, Stop> {
        let interrupt = Interrupt::install(Salvage::default())?;
        let world = world::single();
        interrupt.set_world(&world);
        // Hidden unless standard error is a terminal.
        let bar = ProgressBar::new(total as u64);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Ok(Self { interrupt, _world: world, bar, total, begun: 0 })
    }

    /// Starts the command, waits for its end, and reads its results. `label` ends the progress:
    /// `start 5 of 16, side B`. The results are in the file `name` of a folder of this start.
    ///
    /// # Errors
    /// When it has no usable results, or a signal arrived.
    pub(in crate::command) fn run_start(
        &mut self,
        command: &StartCommand,
        label: &str,
        names: ResultNames<'_>,
    ) -> Result<RunRows, StartEnd> {
        if let Some(signal) = self.interrupt.requested_signal() {
            self.interrupt.mark_done();
            return Err(StartEnd::Interrupted(signal));
        }
        self.begun += 1;
        self.bar.set_message(format!("start {} of {}{label}", self.begun, self.total));
        self.bar.tick();
        let result = self.run_in_folder(command, names);
        self.bar.inc(1);
        result
    }

    /// Prints a message above the progress.
    pub(in crate::command) fn print_message(&self, message: &str) {
        self.bar.suspend(|| engine::supervision::print_message(message));
    }

    /// Removes the progress.
    pub(in crate::command) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn run_in_folder(&self, command: &StartCommand, names: ResultNames<'_>) -> Result<RunRows, StartEnd> {
        let words = |folder: &TempDir| command.words_with_results(&folder.path().join(names.requested));
        let program = command.words().into_iter().next().unwrap_or_default();
        let not_started =
            |error| StartEnd::Failed(StartFailure::NotStarted { program: program.clone(), error });
        let folder = tempfile::Builder::new().prefix("nccl-bench-").tempdir().map_err(not_started)?;
        let messages = Messages::in_folder(folder.path());
        let mut process = Command::new(&program);
        process.args(words(&folder).into_iter().skip(1)).stdin(Stdio::null());
        process.stdout(File::create(&messages.output).map_err(not_started)?);
        process.stderr(File::create(&messages.errors).map_err(not_started)?);
        match run_child(&mut process, &self.interrupt).map_err(not_started)? {
            ChildEnd::Stopped(signal) => Err(StartEnd::Interrupted(signal)),
            ChildEnd::Ended(status) => {
                let results = folder.path().join(names.written);
                read_results(&results, status, &messages).map_err(StartEnd::Failed)
            }
        }
    }
}

/// Names of the file of a start's results.
#[derive(Clone, Copy, Debug)]
pub(in crate::command) struct ResultNames<'a> {
    /// The name on the command line.
    pub(in crate::command) requested: &'a str,
    /// The name of the written file.
    pub(in crate::command) written: &'a str,
}

/// Files with the output of a start.
struct Messages {
    output: PathBuf,
    errors: PathBuf,
}

impl Messages {
    fn in_folder(folder: &Path) -> Self {
        Self { output: folder.join("stdout"), errors: folder.join("stderr") }
    }

    /// Returns the last lines of standard error, or of standard output if there are none.
    fn last_lines(&self) -> Vec<String> {
        let lines = [&self.errors, &self.output].map(|path| read_last_lines(path).unwrap_or_default());
        lines.into_iter().find(|lines| !lines.is_empty()).unwrap_or_default()
    }
}

fn read_last_lines(path: &Path) -> io::Result<Vec<String>> {
    let mut last = VecDeque::new();
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        let line = line?;
        let text = String::from_utf8_lossy(&line);
        let text: String =
            text.trim_end().chars().filter(|letter| !letter.is_control()).take(LONGEST_LINE).collect();
        if text.is_empty() {
            continue;
        }
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(text);
    }
    Ok(last.into())
}

/// Reads and checks the results of a start that has ended.
fn read_results(path: &Path, status: ExitStatus, messages: &Messages) -> Result<RunRows, StartFailure> {
    let read = read_rows(path, SelectedSide::Own, Metric::Time, false);
    let rows = read.map(|sides| sides.into_iter().next());
    if let Ok(Some(rows)) = &rows {
        let wrong = rows.rows.describe_wrong();
        if !wrong.is_empty() {
            return Err(StartFailure::WrongData { rows: wrong });
        }
    }
    if !status.success() {
        return Err(StartFailure::Ended { status, messages: messages.last_lines() });
    }
    match rows {
        Err(error) => Err(StartFailure::Unreadable { error, messages: messages.last_lines() }),
        Ok(Some(rows)) if rows.run.outcome == RunOutcome::Complete => Ok(rows),
        Ok(rows) => {
            let outcome = rows.map_or(RunOutcome::Running, |rows| rows.run.outcome);
            Err(StartFailure::Incomplete { outcome })
        }
    }
}

/// Converts the results of a start for a comparison.
pub(in crate::command) fn convert_start(rows: &RunRows) -> Start {
    let keys = rows.rows.keys();
    Start { times_us: keys.map(|key| (key.clone(), rows.rows.median(key))).collect() }
}
