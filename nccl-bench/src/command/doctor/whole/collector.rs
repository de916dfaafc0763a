//! The observer of the doctor's measurement.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use collectives::world;
use diagnosis::examination::{Examination, KNOWN_FAULTS};
use diagnosis::finding::{Evidence, Finding};
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::{self, Reader};
use engine::bench::{Connection, Observer, Start};
use engine::supervision::{Stop, number_ranges, print_message, start_thread};
use engine::sweep::SweepEvent;
use record::RunOutcome;

use super::exchange::{LogExchange, POLL, Received};
use super::lock_mutex;
use super::measurement::{End, MeasurementState};
use super::message::{Ending, PackedLog};
use crate::command::doctor::gather_values;
use crate::command::doctor::output::{self, Output};
use crate::exit::ExitError;

/// Time limit for the logs of the other processes after a failure. Together with the report's time it is
/// below the time limit of saving results.
const LOG_TIME: Duration = Duration::from_secs(2);

/// The same after a signal: mpirun kills one second after it, and the report begins 0.2 s after it.
const LOG_TIME_AFTER_SIGNAL: Duration = Duration::from_millis(300);

/// Time limit for the logs after a complete measurement. Then the world sends the missing ones.
const LOG_TIME_OF_COMPLETE: Duration = Duration::from_secs(20);

/// Time limit of the other processes' wait for rank 0's report before they end. It is below the time limit of
/// saving results.
const REPORT_TIME: Duration = Duration::from_secs(4);

/// Time for a launcher to read the report before this process ends.
const FORWARD_TIME: Duration = Duration::from_millis(500);

/// Collects the measurements, and reports them after an early end of the job.
pub(super) struct Collector {
    exchange: Arc<LogExchange>,
    output: Output,
    /// Examinations before the measurement.
    before: Mutex<Vec<Examination>>,
    state: Mutex<MeasurementState>,
    is_first: bool,
    /// The exit code of the written report, also after an early end. Locked during the write.
    reported: Mutex<Option<u8>>,
}

/// The thread of rank 0 that ends the job when another process reports its end. The thread ends when this
/// value is dropped.
pub(super) struct EndingWatch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for EndingWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _unused = thread.join();
        }
    }
}

impl Collector {
    pub(super) fn new(exchange: Arc<LogExchange>, output: Output, is_first: bool) -> Self {
        Self {
            exchange,
            output,
            before: Mutex::default(),
            state: Mutex::default(),
            is_first,
            reported: Mutex::default(),
        }
    }

    /// Adds examinations to the report of an early end.
    pub(super) fn add_examinations(&self, examinations: impl IntoIterator<Item = Examination>) {
        lock_mutex(&self.before).extend(examinations);
    }

    /// Returns the examinations so far, and removes them from the report of an early end.
    pub(super) fn take_examinations(&self) -> Vec<Examination> {
        mem::take(&mut lock_mutex(&self.before))
    }

    /// Waits in the background for the early end of another process, then reports and ends the job; on rank 0
    /// only. Other processes may not notice it, because they wait for that process inside NCCL.
    pub(super) fn watch_endings(self: &Arc<Self>, world: &world::Handle) -> io::Result<EndingWatch> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut thread = None;
        if self.is_first {
            let (collector, is_over) = (Arc::clone(self), Arc::clone(&is_over));
            // Dropping the last handle of a world leaves the job. Only the main thread may do that.
            let world = Arc::downgrade(world);
            let wait = move || {
                while !is_over.load(Ordering::SeqCst) {
                    if let (Some((process, ending)), Some(world)) =
                        (collector.exchange.first_ending(), world.upgrade())
                    {
                        collector.end_job(&*world, process, ending);
                    }
                    thread::sleep(4 * POLL);
                }
            };
            thread = Some(start_thread("endings", wait)?);
        }
        Ok(EndingWatch { is_over, thread })
    }

    /// Reports the end of another process, and ends the job.
    fn end_job(&self, world: &dyn world::World, process: usize, ending: Ending) -> ! {
        // After a death, the launcher may have interrupted the others. From here on no other failure ends
        // this process, so the report and the exit code have one reason.
        let ending = match world.begin_end() {
            Ok(()) => ending,
            Err((error, _)) => Ending::Failed(error.to_string()),
        };
        self.report_ending(&ending);
        let message = match &ending {
            Ending::Failed(message) => message.clone(),
            Ending::Interrupted(signal) => {
                let host = self.exchange.hosts.get(process).map_or("unknown", String::as_str);
                format!("nccl-bench: process {process} on host {host} was ended by {signal}")
            }
        };
        world.abort(i32::from(ending.code()), &message)
    }

    /// Returns the logs of all processes after a complete measurement; on rank 0 only. Collective.
    pub(super) fn complete_logs(&self, world: &world::Handle) -> Result<Vec<PackedLog>, Stop> {
        let mut logs: Vec<_> = self.exchange.collect_logs(LOG_TIME_OF_COMPLETE).logs.into_values().collect();
        let missing = gather_values(&**world, &missing_processes(&logs, world.size()))?;
        let is_missing = missing[0].contains(&world.rank());
        let own = if is_missing { self.exchange.own_log().encode_log() } else { Vec::new() };
        let rest = world.all_gather(&own)?;
        logs.extend(rest.iter().filter_map(|log| PackedLog::decode_log(log)));
        Ok(logs)
    }

    /// Returns the examination of NCCL's logs; `None` after a complete measurement without NCCL.
    pub(super) fn of_logs(&self, logs: Vec<PackedLog>, limit: Option<Duration>) -> Option<Examination> {
        let backend = lock_mutex(&self.state).run.as_ref().map(|run| run.provenance.backend.clone());
        if limit.is_none() && backend.as_deref() != Some("nccl") {
            return None;
        }
        Some(examine_logs(logs, &self.exchange.hosts, limit.unwrap_or(LOG_TIME_OF_COMPLETE)))
    }

    /// Writes the report, unless another thread has. Returns the report's exit code.
    pub(super) fn report_once(&self, write: impl FnOnce() -> Result<u8, ExitError>) -> Result<u8, ExitError> {
        let mut reported = lock_mutex(&self.reported);
        if let Some(code) = *reported {
            return Ok(code);
        }
        let code = write()?;
        *reported = Some(code);
        Ok(code)
    }

    /// Reports an early end with the logs of all processes, once; on rank 0 only.
    fn report_ending(&self, ending: &Ending) {
        let _ = self.report_once(|| {
            self.write_report(ending);
            Ok(ending.code())
        });
    }

    fn write_report(&self, ending: &Ending) {
        let limit = match ending {
            Ending::Failed(_) => LOG_TIME,
            Ending::Interrupted(_) => LOG_TIME_AFTER_SIGNAL,
        };
        let Received { logs, endings, .. } = self.exchange.collect_logs(limit);
        let logs = logs.into_values().collect();
        let mut examinations: Vec<_> = self.of_logs(logs, Some(limit)).into_iter().collect();
        examinations.push(match ending {
            Ending::Failed(message) => {
                self.examine_measurement(End::Failed(&self.collect_evidence(message, endings)))
            }
            Ending::Interrupted(signal) => self.examine_measurement(End::Interrupted(signal)),
        });
        examinations.extend(self.take_examinations());
        drop_repeated_faults(&mut examinations);
        if let Err(error) = output::write_reports(&self.output, &examinations) {
            let _ = error.report_error();
        }
        // Open MPI drops unread output of an aborting process.
        thread::sleep(FORWARD_TIME);
        self.exchange.announce_report();
    }

    /// Waits for rank 0's report, since MPI's launcher ends all processes with this one. Without it, prints
    /// the warnings.
    fn wait_for_report(&self) {
        if !self.exchange.wait_for_report(REPORT_TIME) {
            let warnings = first_warnings(&self.exchange.own_text());
            if !warnings.is_empty() {
                print_message(warnings.trim_end());
            }
        }
    }

    /// Returns the messages of a failure: first rank 0's, then the other processes'.
    fn collect_evidence(&self, message: &str, endings: BTreeMap<usize, Ending>) -> Vec<Evidence> {
        let text = |text: String, place: String| Evidence { place, text, ..Evidence::default() };
        let others = endings.into_iter().filter_map(|(process, ending)| match ending {
            Ending::Failed(told) if told != message => {
                let host = self.exchange.hosts.get(process).map_or("", String::as_str);
                Some(text(told, format!("process {process} on {host}")))
            }
            _ => None,
        });
        std::iter::once(text(message.to_owned(), "measurement".to_owned())).chain(others).take(8).collect()
    }

    /// Returns the examination of the measurement with this end.
    pub(super) fn examine_measurement(&self, end: End<'_>) -> Examination {
        lock_mutex(&self.state).to_examination(end)
    }
}

impl Observer for Collector {
    fn start_run(&self, start: Start<'_>) -> anyhow::Result<()> {
        lock_mutex(&self.state).run = Some(start.run);
        Ok(())
    }

    fn note_connection(&self, connection: Connection) -> anyhow::Result<()> {
        lock_mutex(&self.state).transport = connection.transport;
        Ok(())
    }

    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        if let SweepEvent::Measured(measurement, _) = event {
            lock_mutex(&self.state).measurements.push(measurement.clone());
        }
        Ok(())
    }

    fn finish_run(&self, _outcome: RunOutcome) -> anyhow::Result<()> {
        Ok(())
    }

    fn report_failure(&self, message: &str) {
        self.salvage_results(RunOutcome::Failed { message: message.to_owned() });
    }

    /// Reports with the logs of all processes on rank 0. Every other process sends its ending to rank 0, and
    /// waits for the report.
    fn salvage_results(&self, outcome: RunOutcome) {
        let ending = match outcome {
            RunOutcome::Running | RunOutcome::Complete => return,
            RunOutcome::Failed { message } => Ending::Failed(message),
            RunOutcome::Interrupted { signal } => Ending::Interrupted(signal),
        };
        if self.is_first {
            self.report_ending(&ending);
        } else {
            self.exchange.tell_end(ending);
            self.wait_for_report();
        }
    }
}

/// Draws conclusions from the logs of the processes of `hosts`. The logs had to arrive within `limit`.
fn examine_logs(logs: Vec<PackedLog>, hosts: &[String], limit: Duration) -> Examination {
    let missing = missing_processes(&logs, hosts.len());
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    let mut cut = Vec::new();
    for log in logs {
        let host = hosts.get(log.process).map_or("", String::as_str);
        reader.read_stream(&format!("NCCL's log of process {} on {host}", log.process), &log.gzip[..]);
        if !log.is_whole {
            cut.push(log.process);
        }
    }
    let mut examination = log::conclusions::conclude(&reader.finish(), &rules);
    if !cut.is_empty() {
        examination.unseen.push(format!("the end of NCCL's log of {}, which is long", processes_text(&cut)));
    }
    let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for process in missing {
        by_host.entry(&hosts[process]).or_default().push(process);
    }
    let unseen = by_host.iter().map(|(host, missing)| {
        format!(
            "NCCL's log of {} on {host}: it did not reach rank 0 within {} s",
            processes_text(missing),
            limit.as_secs_f64()
        )
    });
    examination.unseen.splice(0..0, unseen);
    examination
}

/// Returns the processes without a log.
fn missing_processes(logs: &[PackedLog], size: usize) -> Vec<usize> {
    (0..size).filter(|&process| logs.iter().all(|log| log.process != process)).collect()
}

/// Returns words for processes: `process 1`, `processes 0, 2-5`.
fn processes_text(numbers: &[usize]) -> String {
    let noun = if numbers.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}", number_ranges(numbers))
}

/// Removes a host's advice about known faults if the log's advice is about the same versions.
pub(super) fn drop_repeated_faults(examinations: &mut [Examination]) {
    const RULE: &str = "known-faults";
    let of_log = examinations.iter().filter(|examination| examination.subject == "log");
    let advice = of_log.flat_map(|log| &log.findings).filter(|finding| finding.rule == RULE);
    let versions: Vec<String> = advice.flat_map(|finding| finding.versions.clone()).collect();
    let is_repeated = |finding: &Finding| {
        finding.rule == RULE && finding.versions.iter().all(|version| versions.contains(version))
    };
    for examination in examinations.iter_mut().filter(|examination| examination.subject != "log") {
        let before = examination.findings.len();
        examination.findings.retain(|finding| !is_repeated(finding));
        if examination.findings.len() < before {
            examination.sections.retain(|section| section.title != KNOWN_FAULTS);
        }
    }
}

/// Returns the first warnings in a log.
fn first_warnings(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().filter(|line| line.contains("NCCL WARN")).take(5).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use diagnosis::examination::{Body, Section};
    use diagnosis::finding::Severity;

    use super::*;

    fn log(process: usize, is_whole: bool, text: &str) -> PackedLog {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        PackedLog { process, is_whole, gzip: encoder.finish().unwrap() }
    }

    #[test]
    fn known_faults_of_the_same_versions_are_told_once() {
        let examination = |subject, versions: &[&str]| {
            let mut examination = Examination::new(subject);
            let versions = versions.iter().map(|&version| version.to_owned()).collect();
            let advice = Finding::new("known-faults", Severity::Advice, "3 known faults");
            examination.findings.push(Finding { versions, ..advice });
            examination
                .sections
                .push(Section { title: KNOWN_FAULTS.to_owned(), body: Body::Lines(Vec::new()) });
            examination
        };
        for (host, left) in
            [(&["NCCL 2.28.9"][..], 0), (&["NCCL 2.28.9", "libfabric 2.4.0"], 1), (&["NCCL 2.28"], 1)]
        {
            let mut both = [examination("log", &["NCCL 2.28.9"]), examination("host", host)];
            drop_repeated_faults(&mut both);
            assert_eq!((both[0].findings.len(), both[0].sections.len()), (1, 1));
            assert_eq!((both[1].findings.len(), both[1].sections.len()), (left, left), "{host:?}");
        }
    }

    #[test]
    fn findings_name_the_process_of_their_log_and_missing_logs_are_listed() {
        let hosts = ["node0", "node0", "node1", "node1", "node1"].map(str::to_owned);
        let warning = "node1:42:42 [0] misc/socket.cc:52 NCCL WARN socketProgress: Connection closed by \
                       remote peer node0<40000>\n";
        let logs = vec![
            log(0, true, "node0:40:40 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.1<0>\n"),
            log(2, false, warning),
        ];
        let examination = examine_logs(logs, &hosts, LOG_TIME);
        assert_eq!(
            examination.unseen[..2],
            [
                "NCCL's log of process 1 on node0: it did not reach rank 0 within 2 s",
                "NCCL's log of processes 3-4 on node1: it did not reach rank 0 within 2 s"
            ]
        );
        let cut = "the end of NCCL's log of process 2, which is long";
        assert!(examination.unseen.iter().any(|unseen| unseen == cut), "{:?}", examination.unseen);
        let place = "NCCL's log of process 2 on node1";
        let named =
            |finding: &Finding| finding.evidence.iter().any(|evidence| evidence.place.starts_with(place));
        assert!(examination.findings.iter().any(named), "{:?}", examination.findings);
    }
}
