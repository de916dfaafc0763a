//! The record of a run while it grows, and its reports: the text on standard output, and the files.
//!
//! The recorder is in rank 0's process, or in another one that reports. It is finished once, by the leading
//! rank at the end or by the thread that ends the process early.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::tz::TimeZone;

use engine::bench::{Connection, Observer, Start};
use engine::collective::RankWork;
use engine::data::traffic::{Pattern, Traffic};
use engine::request::Request;
use engine::supervision::{Stop, print_message};
use engine::sweep::{SweepEvent, SweepStep};
use judge::Grade;
use record::files::{Files, Output, nccl_tests as nccl_tests_json};
use record::nccl_tests::too_slow;
use record::provenance::now_utc;
use record::{Measurement, Run, RunOutcome};

use super::MeasureArguments;
use crate::command::judge::{LoadedBasis, comment_lines};
use crate::report::Report;
use crate::report::pairs::PairTable;
use crate::report::progress::SweepProgress;
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
    /// The basis of a verdict, if one is asked for.
    basis: Option<LoadedBasis>,
    grade: Arc<OnceLock<Grade>>,
    state: Mutex<RecorderState>,
    text: Mutex<Text>,
}

/// The output on a terminal.
#[derive(Debug, Default)]
struct Text {
    /// `None` after the end, and when standard output is closed.
    report: Option<Box<dyn Report>>,
    progress: SweepProgress,
    /// The largest size in bytes, where memory did not allow the requested one.
    reduced_to: Option<u64>,
}

#[derive(Debug, Default)]
enum RecorderState {
    /// The files can be written, but nothing runs yet.
    #[default]
    Closed,
    Open(Box<Reports>),
    Recording(Box<Reports>, Box<Run>),
}

/// The end of a run.
struct Written {
    /// The end of its files.
    result: anyhow::Result<()>,
    /// The verdict in lines.
    verdict: Option<String>,
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
    pub(super) fn new(arguments: &MeasureArguments, request: &Request, basis: Option<LoadedBasis>) -> Self {
        let variables = &request.variables;
        Self {
            outputs: arguments.output.clone(),
            force: arguments.force,
            nccl_tests_json: arguments.nccl_tests_json.clone(),
            statistics: arguments.stats,
            algorithm: arguments.log_choices,
            brief: arguments.brief,
            summary: variables.traffic_summary.then(|| variables.pattern.clone()),
            basis,
            ..Self::default()
        }
    }

    /// A recorder of pairs of ranks.
    pub(in crate::command) fn of_pairs(outputs: Vec<Output>, force: bool) -> Self {
        Self { outputs, force, ..Self::default() }
    }

    /// Takes a measurement into the record and the files, and prints its row.
    fn record_measurement(&self, measurement: &Measurement, work: Option<&RankWork>) -> anyhow::Result<()> {
        let mut recorded = false;
        self.with_record(|reports, run| {
            recorded = true;
            run.measurements.push(measurement.clone());
            Ok(reports.files.add_measurement(measurement)?)
        })?;
        if !recorded {
            // The files are already complete. Nothing is printed that they do not contain.
            return Ok(());
        }
        self.lock_text().progress.advance_progress(measurement.bytes);
        self.print_report(|text| text.write_measurement(measurement))?;
        match (&self.summary, work) {
            (Some(pattern), Some(work @ RankWork { traffic: Some(traffic), .. })) => {
                self.print_report(|text| {
                    text.write_comment(&traffic_summary(pattern, traffic, measurement, work))
                })
            }
            _ => Ok(()),
        }
    }

    /// Prints a note between the rows, and keeps it in the files.
    fn record_note(&self, note: String) -> anyhow::Result<()> {
        self.with_record(|_, run| {
            run.notes.push(note.clone());
            Ok(())
        })?;
        self.print_report(|text| text.write_comment(&note))
    }

    /// Writes all files; `None` when they have been written, or nothing ran. A second caller waits until they
    /// are written: it may end the process.
    fn write_files(&self, outcome: RunOutcome) -> Option<Written> {
        let mut state = self.lock_state();
        let RecorderState::Recording(mut reports, mut run) = std::mem::take(&mut *state) else {
            return None;
        };
        run.ended_at = Some(now_utc());
        run.outcome = outcome;
        run.notes.extend(too_slow(&run));
        let written = std::mem::take(&mut reports.files).finish_run(&run).map_err(Into::into);
        Some(Written { result: written, verdict: self.judge_measured(&run) })
    }

    /// Returns the verdict in lines, if one is asked for, and keeps its grade.
    fn judge_measured(&self, run: &Run) -> Option<String> {
        let verdict = self.basis.as_ref()?.judge_run(run);
        // The run is finished once.
        let _first = self.grade.set(verdict.grade);
        Some(comment_lines(&verdict).join("\n"))
    }

    fn with_record(
        &self,
        action: impl FnOnce(&mut Reports, &mut Run) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match &mut *self.lock_state() {
            RecorderState::Recording(reports, run) => action(reports, run),
            RecorderState::Open(_) | RecorderState::Closed => Ok(()),
        }
    }

    /// True once the run has begun: a signal that comes earlier leaves neither a table nor files.
    pub(in crate::command) fn begun_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.begun)
    }

    /// Prints, unless standard output is closed.
    fn print_report(&self, action: impl FnOnce(&mut dyn Report) -> io::Result<()>) -> anyhow::Result<()> {
        let mut text = self.lock_text();
        let Text { report, progress, .. } = &mut *text;
        if let Some(printing) = report
            && open_pipe(progress.print_above(|| action(&mut **printing)))?.is_none()
        {
            *report = None;
        }
        Ok(())
    }

    /// The grade of the verdict, after the end of a run in this process that was to be judged.
    pub(super) fn grade_cell(&self) -> Arc<OnceLock<Grade>> {
        Arc::clone(&self.grade)
    }

    fn lock_state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_text(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recorder {
    /// Opens all files.
    fn open_outputs(&self) -> Result<(), Stop> {
        let refused = |error: &dyn std::fmt::Display| Stop::Refused(error.to_string());
        let mut files = Files::open_outputs(&self.outputs, self.force).map_err(|error| refused(&error))?;
        named_once(self.nccl_tests_json.as_ref(), &files)?;
        let target = |path: &PathBuf| nccl_tests_json::create_target(path);
        let nccl_tests_json =
            self.nccl_tests_json.as_ref().map(target).transpose().map_err(|error| refused(&error))?;
        if let Some(path) = &nccl_tests_json {
            files.add_nccl_tests(path.clone());
        }
        let reports = Reports { files, nccl_tests_json };
        *self.lock_state() = RecorderState::Open(Box::new(reports));
        Ok(())
    }

    fn start_run(&self, start: Start<'_>) -> anyhow::Result<()> {
        let Start { run, plan, groups, reduced_to } = start;
        let mut state = self.lock_state();
        let RecorderState::Open(mut reports) = std::mem::take(&mut *state) else { return Ok(()) };
        self.begun.store(true, Ordering::SeqCst);
        let started = reports.files.start_run(&run);
        let json = reports.nccl_tests_json.clone();
        *state = RecorderState::Recording(reports, Box::new(run.clone()));
        drop(state);
        let mut text = self.lock_text();
        text.reduced_to = reduced_to;
        if let Some(path) = json {
            print_flushed(&table::json_notice(&path))?;
        }
        text.report = open_pipe(match plan {
            Some(plan) => {
                text.progress = SweepProgress::new(plan, groups);
                let first =
                    plan.request.collectives.first().map_or("", |collective| collective.collective_name());
                let columns = Columns {
                    statistics: self.statistics,
                    algorithm: self.algorithm,
                    brief: self.brief,
                    ..Columns::of_run(&run)
                };
                let report = TextReport::start_report(io::stdout(), &run, first, columns, TimeZone::system());
                report.map(|report| Box::new(report) as Box<dyn Report>)
            }
            None => {
                PairTable::start_table(io::stdout(), &run).map(|report| Box::new(report) as Box<dyn Report>)
            }
        })?;
        Ok(started?)
    }

    fn note_connection(&self, connection: Connection) -> anyhow::Result<()> {
        let Connection { transport, notes, phases } = connection;
        let lines = transport.iter().map(|transport| format!("Transport: {transport}"));
        let lines: Vec<String> = lines.chain(notes.iter().cloned()).collect();
        self.with_record(|reports, run| {
            (run.provenance.transport, run.start_phases) = (transport, phases);
            run.notes.extend(notes);
            Ok(reports.files.add_connected(run)?)
        })?;
        self.print_report(
            |text| if lines.is_empty() { Ok(()) } else { text.write_comment(&lines.join("\n")) },
        )
    }

    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        match event {
            SweepEvent::Begin(collective) => {
                let reduced_to = self.lock_text().reduced_to;
                self.print_report(|text| text.begin_section(collective.collective_name(), reduced_to))
            }
            SweepEvent::Measured(measurement, work) => self.record_measurement(measurement, work),
            SweepEvent::LeftOut(collective, reason) => {
                self.record_note(format!("{collective} is skipped: {reason}"))
            }
            SweepEvent::Stopped(signal, ranks) => {
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                let ranks = ranks.join(", ");
                self.record_note(format!(
                    "{} reached {noun} {ranks} first, and ends the run",
                    signal.as_str()
                ))
            }
            SweepEvent::End(memory) => self.print_report(|text| text.end_section(memory)),
        }
    }

    fn show_step(&self, step: &SweepStep) {
        self.lock_text().progress.begin_step(step);
    }

    /// Writes all files with this outcome, then the end of the text; does nothing when that was done before,
    /// or nothing ran. An error with one file does not keep the others from being written.
    fn finish_run(&self, outcome: RunOutcome) -> anyhow::Result<()> {
        let why = not_whole(&outcome);
        let Some(written) = self.write_files(outcome) else { return Ok(()) };
        let unwritten = written.result.as_ref().err().map(|error| format!("{error:#}"));
        self.lock_text().end_text(written.verdict, why.or(unwritten));
        written.result
    }

    /// The same, but skips the text when it cannot be printed soon.
    fn salvage_results(&self, outcome: RunOutcome) {
        let why = not_whole(&outcome);
        let Some(written) = self.write_files(outcome) else { return };
        let by = Instant::now() + PRINTING;
        loop {
            match self.text.try_lock() {
                Ok(mut text) => break text.end_text(written.verdict, why),
                Err(TryLockError::Poisoned(poisoned)) => {
                    break poisoned.into_inner().end_text(written.verdict, why);
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= by => break,
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        }
        if let Err(error) = written.result {
            print_message(format_args!("error: {error:#}"));
        }
    }

    fn is_closed(&self) -> bool {
        let recording = matches!(&*self.lock_state(), RecorderState::Recording(..));
        recording && self.lock_text().report.is_none()
    }
}

/// Checks that no file of another role is also a result file.
fn named_once(json: Option<&PathBuf>, files: &Files) -> Result<(), Stop> {
    let json = json.map(|path| ("-J", path.clone()));
    let matrix = std::env::var_os(MATRIX_FILE).map(|path| (MATRIX_FILE, PathBuf::from(path)));
    for (role, path) in json.into_iter().chain(matrix) {
        if files.has_target(&path) {
            let name = path.display();
            return Err(Stop::Refused(format!(
                "cannot write {name}: it is named twice, by --output and {role}"
            )));
        }
    }
    Ok(())
}

impl Text {
    /// Prints the last lines. The files have all results, so nothing is lost when they cannot be printed.
    fn end_text(&mut self, verdict: Option<String>, why: Option<String>) {
        self.progress.remove_bar();
        let Some(mut report) = self.report.take() else { return };
        if let Some(verdict) = verdict {
            let _printed = report.write_comment(&verdict);
        }
        if let Some(why) = why {
            let _printed = report.stop_report(&why);
        }
    }
}

/// The reason for which a run is not whole.
fn not_whole(outcome: &RunOutcome) -> Option<String> {
    match outcome {
        RunOutcome::Interrupted { signal } => Some(format!("interrupted by {signal}")),
        RunOutcome::Failed { message } => Some(message.clone()),
        RunOutcome::Running | RunOutcome::Complete => None,
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

fn print_flushed(text: &str) -> anyhow::Result<()> {
    use io::Write as _;
    let mut out = io::stdout();
    open_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush())).map(drop)
}

/// The traffic of each rank in an alltoallv, as nccl-tests reports it.
fn traffic_summary(
    pattern: &Pattern,
    traffic: &Traffic,
    measurement: &Measurement,
    work: &RankWork,
) -> String {
    let size = work.data_type.size();
    let bytes = |elements: usize| (elements * size) as u64;
    let ranks: Vec<(u64, u64)> = (0..work.participant.ranks)
        .map(|rank| (bytes(traffic.sent_elements(rank)), bytes(traffic.received_elements(rank))))
        .collect();
    let total_bytes = bytes(traffic.parameter * work.participant.ranks);
    table::alltoallv_summary(pattern, total_bytes, measurement.time_us, &ranks)
}
