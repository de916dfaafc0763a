//! The record of a run as it grows, and everything that is made of it: the text on standard output, and the files.
//!
//! There is one, in rank 0's process. It is finished once, by whoever comes first: rank 0 at the end, or what ends the
//! process early.

use std::io::{self, Stdout};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::cli::Settings;
use crate::collective::Collective;
use crate::files::{Files, provenance::now_utc};
use crate::nccl_tests_json;
use crate::progress::Progress;
use crate::record::{Algorithm, Measurement, Outcome, Run};
use crate::report::{Extras, TextReport};
use crate::stop::Stop;
use crate::table::{MemoryUsage, too_slow};
use crate::tuning::{Operation, Sources};

const WRITING: &str = "writing to standard output";
const MATRIX_FILE: &str = "NCCL_TESTS_ALLTOALLV_MATRIX_FILE";
const READING_LOG: &str = "reading NCCL's log";

/// Longest wait of a process that is being ended for a row that is being printed.
const PRINTING: Duration = Duration::from_millis(300);

/// The record and its reports, shared between rank 0 and what may end the process.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Shared>);

/// Printing can block without end, when the reader of standard output does not read. So nothing is printed under the
/// lock of the record, which whoever ends the process has to take. Who takes both locks takes `state` first.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    text: Mutex<Text>,
}

/// Everything that is shown on a terminal.
#[derive(Debug, Default)]
struct Text {
    /// Absent once the reader of standard output has gone, and after the end.
    report: Option<TextReport<Stdout>>,
    progress: Progress,
}

#[derive(Debug, Default)]
enum State {
    /// The files can be written, but nothing runs yet.
    #[default]
    Closed,
    Open(Box<Reports>),
    Recording(Box<Reports>, Box<Run>),
}

#[derive(Debug)]
struct Reports {
    files: Files,
    nccl_tests_json: Option<PathBuf>,
    extras: Extras,
    reduced_to: Option<u64>,
    /// Where NCCL's choices are read.
    choices: Sources,
    /// What will not be known of them.
    note: Option<String>,
    /// Whether anything has been written to the files.
    started: bool,
}

impl Drop for Reports {
    /// The file that was made to see whether it can be does not stay when nothing comes of it.
    fn drop(&mut self) {
        if let Some(path) = self.nccl_tests_json.as_ref().filter(|_| !self.started) {
            let _gone = std::fs::remove_file(path);
        }
    }
}

impl Recorder {
    /// Makes sure that all files can be written.
    ///
    /// `choices` is where NCCL's are read, and what will not be known of them.
    ///
    /// # Errors
    /// [`Stop::Refused`] when a file cannot be written.
    pub fn open(settings: &Settings, choices: (Sources, Option<String>)) -> Result<Self, Stop> {
        let refused = |error: &dyn std::fmt::Display| Stop::Refused(error.to_string());
        let files = Files::open(&settings.outputs).map_err(|error| refused(&error))?;
        named_once(settings, &files)?;
        let target = |path: &PathBuf| nccl_tests_json::target(path);
        let nccl_tests_json =
            settings.nccl_tests_json.as_ref().map(target).transpose().map_err(|error| refused(&error))?;
        let (choices, note) = choices;
        let extras =
            Extras { provenance: true, statistics: settings.stats, algorithm: settings.show_algorithm };
        let reports =
            Reports { files, nccl_tests_json, extras, reduced_to: None, choices, note, started: false };
        let state = Mutex::new(State::Open(Box::new(reports)));
        Ok(Self(Arc::new(Shared { state, text: Mutex::default() })))
    }

    /// Writes what is known before anything is measured, and shows `progress` from now on. `reduced_to` is the largest
    /// size where memory did not allow the one that was asked for.
    ///
    /// # Errors
    /// When a file or standard output cannot be written.
    pub fn start(
        &self,
        mut run: Run,
        first: Collective,
        reduced_to: Option<u64>,
        progress: Progress,
    ) -> anyhow::Result<()> {
        let mut state = self.state();
        let State::Open(mut reports) = std::mem::take(&mut *state) else { return Ok(()) };
        run.notes.extend(reports.note.take());
        if let Some(path) = &reports.nccl_tests_json {
            write_json(path, &run)?;
        }
        reports.started = true;
        reports.reduced_to = reduced_to;
        let started = reports.files.start(&run);
        let (extras, json) = (reports.extras, reports.nccl_tests_json.clone());
        *state = State::Recording(reports, Box::new(run.clone()));
        drop(state);
        let mut text = self.text();
        text.progress = progress;
        if let Some(path) = json {
            print(&crate::table::json_notice(&path))?;
        }
        text.report = open_pipe(TextReport::start(io::stdout(), &run, first.name(), extras))?;
        Ok(started?)
    }

    /// Says what became known when the ranks were connected.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn connected(&self, transport: Option<String>, notes: Vec<String>) -> anyhow::Result<()> {
        let lines = transport.iter().map(|transport| format!("Transport: {transport}"));
        let lines: Vec<String> = lines.chain(notes.iter().cloned()).collect();
        self.with(|_, run| {
            run.provenance.transport = transport;
            run.notes.extend(notes);
            Ok(())
        })?;
        self.print(|text| if lines.is_empty() { Ok(()) } else { text.comment(&lines.join("\n")) })
    }

    /// The measurements of a collective follow.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn begin(&self, collective: Collective) -> anyhow::Result<()> {
        let mut reduced = None;
        self.with(|reports, _| {
            reduced = reports.reduced_to;
            Ok(())
        })?;
        self.print(|text| text.section(collective.name(), reduced))
    }

    /// Takes a measurement.
    ///
    /// # Errors
    /// When a file or standard output cannot be written.
    pub fn measurement(&self, measurement: &Measurement) -> anyhow::Result<()> {
        let mut recorded = false;
        self.with(|reports, run| {
            recorded = true;
            run.measurements.push(measurement.clone());
            Ok(reports.files.measurement(measurement)?)
        })?;
        if !recorded {
            // The process is being ended, and has written its files: nothing is printed that is not in them.
            return Ok(());
        }
        self.text().progress.measured(measurement.bytes);
        self.print(|text| text.measurement(measurement))
    }

    /// What is being measured now.
    pub fn phase(&self, what: &str) {
        self.text().progress.phase(what);
    }

    /// NCCL's choices before this do not count.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn forget_choices(&self) -> anyhow::Result<()> {
        self.with(|reports, _| reports.choices.forget().context(READING_LOG))
    }

    /// What NCCL has chosen for an operation since then.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn chosen(&self, operation: &Operation<'_>) -> anyhow::Result<Option<Algorithm>> {
        let mut found = None;
        self.with(|reports, _| {
            found = reports.choices.chosen(operation).context(READING_LOG)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Prints something that belongs to the last row.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn comment(&self, lines: &str) -> anyhow::Result<()> {
        self.print(|text| text.comment(lines))
    }

    /// Says something between the rows, and in the files.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn note(&self, note: String) -> anyhow::Result<()> {
        self.with(|_, run| {
            run.notes.push(note.clone());
            Ok(())
        })?;
        self.print(|text| text.comment(&note))
    }

    /// All measurements of a collective have been taken.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn end(&self, memory: Option<MemoryUsage>) -> anyhow::Result<()> {
        self.print(|text| text.foot(memory, None))
    }

    /// Whether nobody reads standard output any more.
    #[must_use]
    pub fn pipe_is_closed(&self) -> bool {
        let recording = matches!(&*self.state(), State::Recording(..));
        recording && self.text().report.is_none()
    }

    /// Writes all files with this outcome, then the end of the text; does nothing when that was done before, or nothing
    /// ran.
    ///
    /// # Errors
    /// When a file cannot be written; the others are.
    pub fn finish(&self, outcome: Outcome) -> anyhow::Result<()> {
        let why = not_whole(&outcome);
        let Some(written) = self.write_files(outcome) else { return Ok(()) };
        self.text().end(why);
        written
    }

    /// As [`Recorder::finish`] where the process is about to be ended: what cannot be printed soon is in the files only.
    pub fn rescue(&self, outcome: Outcome) {
        let why = not_whole(&outcome);
        let Some(written) = self.write_files(outcome) else { return };
        let by = Instant::now() + PRINTING;
        loop {
            match self.0.text.try_lock() {
                Ok(mut text) => break text.end(why),
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner().end(why),
                Err(TryLockError::WouldBlock) if Instant::now() >= by => break,
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        }
        if let Err(error) = written {
            eprintln!("error: {error:#}");
        }
    }

    /// Writes all files; `None` when there is nothing to write any more.
    fn write_files(&self, outcome: Outcome) -> Option<anyhow::Result<()>> {
        let State::Recording(mut reports, mut run) = std::mem::take(&mut *self.state()) else {
            return None;
        };
        run.ended_at = Some(now_utc());
        run.outcome = outcome;
        run.notes.extend(too_slow(&run));
        let written = std::mem::take(&mut reports.files).finish(&run);
        let json = reports.nccl_tests_json.as_ref().map(|path| write_json(path, &run));
        Some(json.transpose().map(drop).and(written.map_err(Into::into)))
    }

    fn with(&self, action: impl FnOnce(&mut Reports, &mut Run) -> anyhow::Result<()>) -> anyhow::Result<()> {
        match &mut *self.state() {
            State::Recording(reports, run) => action(reports, run),
            State::Open(_) | State::Closed => Ok(()),
        }
    }

    /// Prints, unless the reader has gone.
    fn print(&self, action: impl FnOnce(&mut TextReport<Stdout>) -> io::Result<()>) -> anyhow::Result<()> {
        let mut text = self.text();
        let Text { report, progress } = &mut *text;
        if let Some(printing) = report
            && open_pipe(progress.above(|| action(printing)))?.is_none()
        {
            *report = None;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.0.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that no file of another role is also a result file.
fn named_once(settings: &Settings, files: &Files) -> Result<(), Stop> {
    let json = settings.nccl_tests_json.clone().map(|path| ("-J", path));
    let matrix = std::env::var_os(MATRIX_FILE).map(|path| (MATRIX_FILE, PathBuf::from(path)));
    for (role, path) in json.into_iter().chain(matrix) {
        if files.replaces(&path) {
            let name = path.display();
            return Err(Stop::Refused(format!(
                "cannot write {name}: it is named twice, by --output and {role}"
            )));
        }
    }
    Ok(())
}

impl Text {
    /// The last lines; nothing is printed behind them.
    fn end(&mut self, why: Option<String>) {
        self.progress.end();
        if let (Some(mut report), Some(why)) = (self.report.take(), why) {
            // What cannot be printed any more is in the files.
            let _printed = report.stop(&why);
        }
    }
}

/// The reason for which a run is not whole.
fn not_whole(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Interrupted { signal } => Some(format!("interrupted by {signal}")),
        Outcome::Failed { message } => Some(message.clone()),
        Outcome::Running | Outcome::Complete => None,
    }
}

/// `None` when nobody reads standard output any more.
fn open_pipe<T>(printed: io::Result<T>) -> anyhow::Result<Option<T>> {
    match printed {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Err(error) => Err(error).context(WRITING),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    use io::Write as _;
    let mut out = io::stdout();
    open_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush())).map(drop)
}

fn write_json(path: &Path, run: &Run) -> anyhow::Result<()> {
    let written = nccl_tests_json::write(path, &nccl_tests_json::render(run));
    written.with_context(|| format!("writing {}", path.display()))
}
