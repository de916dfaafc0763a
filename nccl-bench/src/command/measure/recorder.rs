//! The record of a run while it grows, and its reports: the text on standard output, and the files.
//!
//! The recorder is in rank 0's process, or in another one that reports. It is finished once, by the leading
//! rank at the end or by the thread that ends the process early.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::tz::TimeZone;

use engine::bench::{Observer, Start};
use engine::collective::Work;
use engine::data::traffic::{Pattern, Traffic};
use engine::request::Request;
use engine::supervision::{Stop, print_message};
use engine::sweep::{Event, SweepStep};
use record::files::{Files, Output, nccl_tests as nccl_tests_json};
use record::nccl_tests::too_slow;
use record::provenance::now_utc;
use record::{Measurement, Outcome, Run};

use super::Arguments;
use crate::report::Report;
use crate::report::pairs::PairTable;
use crate::report::progress::Progress;
use crate::report::table::{self, Columns};
use crate::report::text::TextReport;

const WRITING: &str = "writing to standard output";
const MATRIX_FILE: &str = "NCCL_TESTS_ALLTOALLV_MATRIX_FILE";

/// Maximum time that the end of the process waits for a row that is being printed.
const PRINTING: Duration = Duration::from_millis(300);

/// The record and its reports, shared between the leading rank and the threads that may end the process.
///
/// Printing blocks while the reader of standard output does not read. So nothing is printed under the lock
/// `state`, which the thread that ends the process takes. `state` is locked before `text`.
#[derive(Debug, Default)]
pub(in crate::command) struct Recorder {
    /// The files to open, once the ranks have joined and this process knows that it reports.
    outputs: Vec<Output>,
    /// Replaces files of other programs.
    force: bool,
    nccl_tests_json: Option<PathBuf>,
    /// Columns of the table.
    statistics: bool,
    algorithm: bool,
    brief: bool,
    /// The pattern of an alltoallv, where a summary of its traffic is printed.
    summary: Option<Pattern>,
    begun: Arc<AtomicBool>,
    state: Mutex<State>,
    text: Mutex<Text>,
}

/// The output on a terminal.
#[derive(Debug, Default)]
struct Text {
    /// `None` after the end, and when standard output is closed.
    report: Option<Box<dyn Report>>,
    progress: Progress,
    /// The largest size in bytes, where memory did not allow the requested one.
    reduced_to: Option<u64>,
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
}

impl Drop for Reports {
    /// Removes the file that was only created, if nothing was written.
    fn drop(&mut self) {
        let is_empty = |path: &&PathBuf| path.metadata().is_ok_and(|found| found.len() == 0);
        if let Some(path) = self.nccl_tests_json.as_ref().filter(is_empty) {
            let _gone = std::fs::remove_file(path);
        }
    }
}

impl Recorder {
    pub(super) fn new(arguments: &Arguments, request: &Request) -> Self {
        let variables = &request.variables;
        Self {
            outputs: arguments.output.clone(),
            force: arguments.force,
            nccl_tests_json: arguments.nccl_tests_json.clone(),
            statistics: arguments.stats,
            algorithm: arguments.log_choices,
            brief: arguments.brief,
            summary: variables.traffic_summary.then(|| variables.pattern.clone()),
            ..Self::default()
        }
    }

    /// A recorder of pairs of ranks.
    pub(in crate::command) fn of_pairs(outputs: Vec<Output>, force: bool) -> Self {
        Self { outputs, force, ..Self::default() }
    }

    /// Takes a measurement into the record and the files, and prints its row.
    fn measurement(&self, measurement: &Measurement, work: Option<&Work>) -> anyhow::Result<()> {
        let mut recorded = false;
        self.with(|reports, run| {
            recorded = true;
            run.measurements.push(measurement.clone());
            Ok(reports.files.measurement(measurement)?)
        })?;
        if !recorded {
            // The files are already complete. Nothing is printed that they do not contain.
            return Ok(());
        }
        self.text().progress.measured(measurement.bytes);
        self.print(|text| text.measurement(measurement))?;
        match (&self.summary, work) {
            (Some(pattern), Some(work @ Work { traffic: Some(traffic), .. })) => {
                self.print(|text| text.comment(&traffic_summary(pattern, traffic, measurement, work)))
            }
            _ => Ok(()),
        }
    }

    /// Prints a note between the rows, and keeps it in the files.
    fn note(&self, note: String) -> anyhow::Result<()> {
        self.with(|_, run| {
            run.notes.push(note.clone());
            Ok(())
        })?;
        self.print(|text| text.comment(&note))
    }

    /// Writes all files; `None` when they have been written, or nothing ran. A second caller waits until they
    /// are written: it may end the process.
    fn write_files(&self, outcome: Outcome) -> Option<anyhow::Result<()>> {
        let mut state = self.state();
        let State::Recording(mut reports, mut run) = std::mem::take(&mut *state) else {
            return None;
        };
        run.ended_at = Some(now_utc());
        run.outcome = outcome;
        run.notes.extend(too_slow(&run));
        Some(std::mem::take(&mut reports.files).finish(&run).map_err(Into::into))
    }

    fn with(&self, action: impl FnOnce(&mut Reports, &mut Run) -> anyhow::Result<()>) -> anyhow::Result<()> {
        match &mut *self.state() {
            State::Recording(reports, run) => action(reports, run),
            State::Open(_) | State::Closed => Ok(()),
        }
    }

    /// True once the run has begun: a signal that comes earlier leaves neither a table nor files.
    pub(in crate::command) fn begun(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.begun)
    }

    /// Prints, unless standard output is closed.
    fn print(&self, action: impl FnOnce(&mut dyn Report) -> io::Result<()>) -> anyhow::Result<()> {
        let mut text = self.text();
        let Text { report, progress, .. } = &mut *text;
        if let Some(printing) = report
            && open_pipe(progress.above(|| action(&mut **printing)))?.is_none()
        {
            *report = None;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recorder {
    /// Opens all files.
    fn prepare(&self) -> Result<(), Stop> {
        let refused = |error: &dyn std::fmt::Display| Stop::Refused(error.to_string());
        let mut files = Files::open(&self.outputs, self.force).map_err(|error| refused(&error))?;
        named_once(self.nccl_tests_json.as_ref(), &files)?;
        let target = |path: &PathBuf| nccl_tests_json::target(path);
        let nccl_tests_json =
            self.nccl_tests_json.as_ref().map(target).transpose().map_err(|error| refused(&error))?;
        if let Some(path) = &nccl_tests_json {
            files.add_nccl_tests(path.clone());
        }
        let reports = Reports { files, nccl_tests_json };
        *self.state() = State::Open(Box::new(reports));
        Ok(())
    }

    fn start(&self, start: Start<'_>) -> anyhow::Result<()> {
        let Start { run, plan, groups, reduced_to } = start;
        let mut state = self.state();
        let State::Open(mut reports) = std::mem::take(&mut *state) else { return Ok(()) };
        self.begun.store(true, Ordering::SeqCst);
        let started = reports.files.start(&run);
        let json = reports.nccl_tests_json.clone();
        *state = State::Recording(reports, Box::new(run.clone()));
        drop(state);
        let mut text = self.text();
        text.reduced_to = reduced_to;
        if let Some(path) = json {
            print(&table::json_notice(&path))?;
        }
        text.report = open_pipe(match plan {
            Some(plan) => {
                text.progress = Progress::new(plan, groups);
                let first = plan.request.collectives.first().map_or("", |collective| collective.name());
                let columns = Columns {
                    statistics: self.statistics,
                    algorithm: self.algorithm,
                    brief: self.brief,
                    ..Columns::of(&run)
                };
                let report = TextReport::start(io::stdout(), &run, first, columns, TimeZone::system());
                report.map(|report| Box::new(report) as Box<dyn Report>)
            }
            None => PairTable::start(io::stdout(), &run).map(|report| Box::new(report) as Box<dyn Report>),
        })?;
        Ok(started?)
    }

    fn connected(&self, transport: Option<String>, notes: Vec<String>) -> anyhow::Result<()> {
        let lines = transport.iter().map(|transport| format!("Transport: {transport}"));
        let lines: Vec<String> = lines.chain(notes.iter().cloned()).collect();
        self.with(|reports, run| {
            run.provenance.transport = transport;
            run.notes.extend(notes);
            Ok(reports.files.connected(run)?)
        })?;
        self.print(|text| if lines.is_empty() { Ok(()) } else { text.comment(&lines.join("\n")) })
    }

    fn event(&self, event: Event<'_>) -> anyhow::Result<()> {
        match event {
            Event::Begin(collective) => {
                let reduced_to = self.text().reduced_to;
                self.print(|text| text.section(collective.name(), reduced_to))
            }
            Event::Measured(measurement, work) => self.measurement(measurement, work),
            Event::LeftOut(collective, reason) => self.note(format!("{collective} is skipped: {reason}")),
            Event::Stopped(signal, ranks) => {
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                let ranks = ranks.join(", ");
                self.note(format!("{} reached {noun} {ranks} first, and ends the run", signal.as_str()))
            }
            Event::End(memory) => self.print(|text| text.foot(memory)),
        }
    }

    fn step(&self, step: &SweepStep) {
        self.text().progress.begin_step(step);
    }

    /// Writes all files with this outcome, then the end of the text; does nothing when that was done before,
    /// or nothing ran. An error with one file does not keep the others from being written.
    fn finish(&self, outcome: Outcome) -> anyhow::Result<()> {
        let why = not_whole(&outcome);
        let Some(written) = self.write_files(outcome) else { return Ok(()) };
        let unwritten = written.as_ref().err().map(|error| format!("{error:#}"));
        self.text().end(why.or(unwritten));
        written
    }

    /// The same, but skips the text when it cannot be printed soon.
    fn salvage(&self, outcome: Outcome) {
        let why = not_whole(&outcome);
        let Some(written) = self.write_files(outcome) else { return };
        let by = Instant::now() + PRINTING;
        loop {
            match self.text.try_lock() {
                Ok(mut text) => break text.end(why),
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner().end(why),
                Err(TryLockError::WouldBlock) if Instant::now() >= by => break,
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        }
        if let Err(error) = written {
            print_message(format_args!("error: {error:#}"));
        }
    }

    fn is_closed(&self) -> bool {
        let recording = matches!(&*self.state(), State::Recording(..));
        recording && self.text().report.is_none()
    }
}

/// Checks that no file of another role is also a result file.
fn named_once(json: Option<&PathBuf>, files: &Files) -> Result<(), Stop> {
    let json = json.map(|path| ("-J", path.clone()));
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
    /// Prints the last lines.
    fn end(&mut self, why: Option<String>) {
        self.progress.end();
        if let (Some(mut report), Some(why)) = (self.report.take(), why) {
            // The files have all results.
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

/// `None` when standard output is closed.
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

/// The traffic of each rank in an alltoallv, as nccl-tests reports it.
fn traffic_summary(pattern: &Pattern, traffic: &Traffic, measurement: &Measurement, work: &Work) -> String {
    let size = work.data_type.size();
    let bytes = |elements: usize| (elements * size) as u64;
    let ranks: Vec<(u64, u64)> = (0..work.participant.ranks)
        .map(|rank| (bytes(traffic.sent(rank)), bytes(traffic.received(rank))))
        .collect();
    let total_bytes = bytes(traffic.parameter * work.participant.ranks);
    table::alltoallv_summary(pattern, total_bytes, measurement.time_us, &ranks)
}
