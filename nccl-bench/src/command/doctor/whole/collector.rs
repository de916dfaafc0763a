//! The observer of the doctor's measurement.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use collectives::world;
use diagnosis::examination::{Body, Examination, Health, Section};
use diagnosis::finding::{Evidence, Finding, Severity};
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::{self, Reader};
use engine::session::{Observer, Start};
use engine::supervision::{Stop, ranges};
use engine::sweep::Event;
use record::{Measurement, Outcome, Run};
use serde_json::json;

use super::exchange::Exchange;
use super::lock;
use super::receiver::{POLL, Received};
use super::wire::PackedLog;
use crate::command::doctor::gather;
use crate::command::doctor::output::{self, Output};

/// Time in which the logs of the other processes have to arrive after a failure. With the time of the report below the
/// limit of saving results.
const LOG_TIME: Duration = Duration::from_secs(2);

/// The same after a signal: mpirun kills a second after it, and the report comes 0.2 s after it.
const LOG_TIME_AFTER_SIGNAL: Duration = Duration::from_millis(300);

/// Time in which the logs have to arrive after a complete measurement; then the world sends the missing ones.
const LOG_TIME_OF_COMPLETE: Duration = Duration::from_secs(20);

/// Time that the other processes wait for rank 0's report before they end; below the limit of saving results.
const REPORT_TIME: Duration = Duration::from_secs(4);

/// Time that a launcher gets to read the report before this process ends.
const FORWARD_TIME: Duration = Duration::from_millis(500);

/// Collects the measurements, and reports them when the job ends before its time.
pub(super) struct Collector {
    exchange: Exchange,
    output: Output,
    /// Examinations before the measurement.
    before: Mutex<Vec<Examination>>,
    state: Mutex<State>,
    is_first: bool,
    /// True once a failure was reported. Held while it is.
    reported: Mutex<bool>,
}

#[derive(Default)]
struct State {
    run: Option<Run>,
    measurements: Vec<Measurement>,
    transport: Option<String>,
}

/// The thread of rank 0 that ends the job when another process tells its failure; ends when it is dropped.
pub(super) struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _unused = thread.join();
        }
    }
}

impl Collector {
    pub(super) fn new(exchange: Exchange, output: Output, is_first: bool) -> Self {
        Self {
            exchange,
            output,
            before: Mutex::default(),
            state: Mutex::default(),
            is_first,
            reported: Mutex::default(),
        }
    }

    /// Adds examinations that the report of a failure contains as well.
    pub(super) fn add(&self, examinations: impl IntoIterator<Item = Examination>) {
        lock(&self.before).extend(examinations);
    }

    /// The examinations so far, which are then no longer part of a failure's report.
    pub(super) fn take(&self) -> Vec<Examination> {
        mem::take(&mut lock(&self.before))
    }

    /// Waits in the background for the failure of another process, then reports and ends the job; on rank 0 only. Other
    /// processes may not notice the failure: they wait for that process inside NCCL.
    pub(super) fn watch(self: &Arc<Self>, world: &world::Handle) -> io::Result<Watch> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut thread = None;
        if self.is_first {
            let (collector, is_over) = (Arc::clone(self), Arc::clone(&is_over));
            // The last handle of a world leaves the job, which is for the main thread to do.
            let world = Arc::downgrade(world);
            let wait = move || {
                while !is_over.load(Ordering::SeqCst) {
                    if let (Some((_, message)), Some(world)) = (collector.exchange.failure(), world.upgrade())
                    {
                        collector.report(&message, LOG_TIME);
                        world.abort(i32::from(Health::Broken.code()), &message);
                    }
                    thread::sleep(4 * POLL);
                }
            };
            thread = Some(thread::Builder::new().name("failures".to_owned()).spawn(wait)?);
        }
        Ok(Watch { is_over, thread })
    }

    /// Returns the logs of all processes after a complete measurement; on rank 0 only. Collective.
    pub(super) fn complete_logs(&self, world: &world::Handle) -> Result<Received, Stop> {
        let mut received = self.exchange.collect(LOG_TIME_OF_COMPLETE);
        let missing = gather(&**world, &missing(&received.logs, world.size()))?;
        let is_missing = missing[0].contains(&world.rank());
        let own = if is_missing { self.exchange.own_log().encode() } else { Vec::new() };
        let rest = world.all_gather(&own)?;
        received.logs.extend(rest.iter().filter_map(|log| PackedLog::decode(log)));
        Ok(received)
    }

    /// The examination of NCCL's logs; `None` after a complete measurement without NCCL.
    pub(super) fn of_logs(&self, logs: Vec<PackedLog>, limit: Option<Duration>) -> Option<Examination> {
        let backend = lock(&self.state).run.as_ref().map(|run| run.provenance.backend.clone());
        if limit.is_none() && backend.as_deref() != Some("nccl") {
            return None;
        }
        Some(examine(logs, &self.exchange.hosts, limit.unwrap_or(LOG_TIME_OF_COMPLETE)))
    }

    /// Reports a failure with the logs of all processes, once; on rank 0 only.
    fn report(&self, message: &str, limit: Duration) {
        let mut reported = lock(&self.reported);
        if *reported {
            return;
        }
        *reported = true;
        let Received { logs, failures } = self.exchange.collect(limit);
        let mut examinations: Vec<_> = self.of_logs(logs, Some(limit)).into_iter().collect();
        examinations.push(self.measurement(None, &self.evidence(message, failures)));
        examinations.extend(self.take());
        drop_repeated_faults(&mut examinations);
        if let Err(error) = output::write(&self.output, &examinations) {
            let _ = error.report();
        }
        // Open MPI drops what it has not yet read of the output of a process that aborts.
        thread::sleep(FORWARD_TIME);
        self.exchange.release();
    }

    /// Waits for rank 0's report, since MPI's launcher ends all processes with this one. Without it, prints the warnings.
    fn wait_for_report(&self) {
        if !self.exchange.wait_for_report(REPORT_TIME) {
            eprint!("{}", warnings(&self.exchange.own_text()));
        }
    }

    /// The messages of a failure: that of rank 0, then those of the other processes.
    fn evidence(&self, message: &str, failures: Vec<(usize, String)>) -> Vec<Evidence> {
        let text = |text: String, place: String| Evidence { place, text, ..Evidence::default() };
        let others = failures.into_iter().filter(|(_, told)| told != message).map(|(process, told)| {
            let host = self.exchange.hosts.get(process).map_or("", String::as_str);
            text(told, format!("process {process} on {host}"))
        });
        std::iter::once(text(message.to_owned(), "measurement".to_owned())).chain(others).take(8).collect()
    }

    /// The examination of the measurement, which was refused, failed with messages, or is complete.
    pub(super) fn measurement(&self, refused: Option<&str>, failure: &[Evidence]) -> Examination {
        let state = lock(&self.state);
        let mut examination = Examination::new("measurement");
        examination.findings.extend((!failure.is_empty()).then(|| failed(failure)));
        examination.findings.extend(wrong(&state.measurements));
        match (&state.run, refused) {
            (_, Some(reason)) => examination.unseen.push(not_measured(reason)),
            (None, None) => examination.unseen.push("nothing was measured".to_owned()),
            (Some(run), None) if examination.findings.is_empty() => prove(run, &state, &mut examination),
            (Some(_), None) => {}
        }
        examination.sections = sections(&state);
        examination.facts = json!({
            "backend": state.run.as_ref().map(|run| &run.provenance.backend),
            "transport": state.transport,
            "ranks": state.run.as_ref().map(|run| &run.ranks),
            "measurements": state.measurements,
        });
        examination
    }
}

impl Observer for Collector {
    fn start(&self, start: Start<'_>) -> anyhow::Result<()> {
        lock(&self.state).run = Some(start.run);
        Ok(())
    }

    fn connected(&self, transport: Option<String>, _notes: Vec<String>) -> anyhow::Result<()> {
        lock(&self.state).transport = transport;
        Ok(())
    }

    fn event(&self, event: Event<'_>) -> anyhow::Result<()> {
        if let Event::Measured(measurement, _) = event {
            lock(&self.state).measurements.push(measurement.clone());
        }
        Ok(())
    }

    fn finish(&self, _outcome: Outcome) -> anyhow::Result<()> {
        Ok(())
    }

    fn failed(&self, message: &str) {
        self.salvage(Outcome::Failed { message: message.to_owned() });
    }

    /// Rank 0 reports with the logs of all processes; every other process tells it, and waits for the report.
    fn salvage(&self, outcome: Outcome) {
        match (outcome, self.is_first) {
            (Outcome::Running | Outcome::Complete, _) => {}
            (Outcome::Failed { message }, true) => self.report(&message, LOG_TIME),
            (Outcome::Interrupted { signal }, true) => {
                self.report(&format!("interrupted by {signal}"), LOG_TIME_AFTER_SIGNAL);
            }
            (Outcome::Failed { message }, false) => {
                self.exchange.tell(&message);
                self.wait_for_report();
            }
            // A signal ends the job with a code of its own.
            (Outcome::Interrupted { .. }, false) => self.wait_for_report(),
        }
    }
}

/// Draws conclusions from the logs of the processes of `hosts`, which had to arrive within `limit`.
fn examine(logs: Vec<PackedLog>, hosts: &[String], limit: Duration) -> Examination {
    let missing = missing(&logs, hosts.len());
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    let mut cut = Vec::new();
    for log in logs {
        let host = hosts.get(log.process).map_or("", String::as_str);
        reader.read(&format!("NCCL's log of process {} on {host}", log.process), &log.gzip[..]);
        if !log.is_whole {
            cut.push(log.process);
        }
    }
    let mut examination = log::conclusions::conclude(&reader.finish(), &rules);
    if !cut.is_empty() {
        examination.unseen.push(format!("the end of NCCL's log of {}, which is long", processes(&cut)));
    }
    let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for process in missing {
        by_host.entry(&hosts[process]).or_default().push(process);
    }
    let unseen = by_host.iter().map(|(host, missing)| {
        format!(
            "NCCL's log of {} on {host}: it did not reach rank 0 within {} s",
            processes(missing),
            limit.as_secs_f64()
        )
    });
    examination.unseen.splice(0..0, unseen);
    examination
}

/// The processes of which there is no log.
fn missing(logs: &[PackedLog], size: usize) -> Vec<usize> {
    (0..size).filter(|&process| logs.iter().all(|log| log.process != process)).collect()
}

/// Words for processes: `process 1`, `processes 0, 2-5`.
fn processes(numbers: &[usize]) -> String {
    let noun = if numbers.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}", ranges(numbers))
}

/// Removes the advice about known faults of a host where that of the log is about the same versions.
pub(super) fn drop_repeated_faults(examinations: &mut [Examination]) {
    const RULE: &str = "known-faults";
    // `3 known faults of NCCL 2.28.9, each under ...`
    fn versions(finding: &Finding) -> Option<&str> {
        (finding.rule == RULE).then(|| finding.diagnosis.split_once(" of "))?.map(|(_, versions)| versions)
    }
    let of_log = examinations.iter().filter(|examination| examination.subject == "log");
    let Some(of_log) = of_log.flat_map(|log| &log.findings).find_map(versions).map(str::to_owned) else {
        return;
    };
    let is_same = |versions: &str| {
        of_log.strip_prefix(versions).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
    };
    for examination in examinations.iter_mut().filter(|examination| examination.subject != "log") {
        let before = examination.findings.len();
        examination.findings.retain(|finding| !versions(finding).is_some_and(is_same));
        if examination.findings.len() < before {
            examination.sections.retain(|section| section.title != "Known faults");
        }
    }
}

fn failed(evidence: &[Evidence]) -> Finding {
    let reason = evidence.iter().find_map(|one| one.text.lines().next()).unwrap_or("no reason is known");
    let text = format!("the doctor's measurement failed: {reason}");
    let mut finding = Finding::new("measurement-failed", Severity::Broken, text);
    finding.remedy =
        Some("read the findings about the log; repeat it with: nccl-bench allreduce,alltoall".to_owned());
    finding.evidence = evidence.to_vec();
    finding
}

/// The finding about wrong data, if there is any.
fn wrong(measurements: &[Measurement]) -> Option<Finding> {
    let wrong: Vec<&Measurement> =
        measurements.iter().filter(|one| one.wrong.is_some_and(|wrong| wrong > 0)).collect();
    let first = wrong.first()?;
    let mut finding = Finding::new("wrong-data", Severity::Broken, "a collective delivered wrong data");
    finding.cause = Some("a fault of a GPU, a link, a network device, or the library".to_owned());
    finding.remedy = Some(format!(
        "nccl-bench {} -b {} -e {} --check-on-stream 10 names rank, element and values",
        first.collective, first.bytes, first.bytes
    ));
    finding.occurrences = wrong.len() as u64;
    let evidence = |one: &&Measurement| Evidence {
        place: "measurement".to_owned(),
        text: format!(
            "{} of {} bytes: {} wrong elements",
            one.collective,
            one.bytes,
            one.wrong.unwrap_or_default()
        ),
        ..Evidence::default()
    };
    finding.evidence = wrong.iter().take(4).map(evidence).collect();
    Some(finding)
}

/// Adds what the measurement proves.
fn prove(run: &Run, state: &State, examination: &mut Examination) {
    let verified = state.measurements.iter().filter(|one| one.wrong == Some(0)).count();
    if verified == 0 {
        examination.unseen.push("no data was verified".to_owned());
        return;
    }
    let ranks = match run.ranks.len() {
        1 => "1 rank".to_owned(),
        several => format!("{several} ranks"),
    };
    let over = match (run.provenance.backend.as_str(), &state.transport) {
        ("nccl", _) => format!("{ranks} on GPUs"),
        (_, Some(transport)) => format!("{ranks} in host memory over {transport}"),
        (backend, None) => format!("{ranks} over {backend}"),
    };
    examination
        .proof
        .push(format!("data verified on {over}: allreduce and alltoall, {verified} sizes and placements"));
}

/// A sentence about a measurement that was refused.
fn not_measured(reason: &str) -> String {
    match reason.strip_prefix("--backend nccl cannot run: ") {
        Some(reason) => format!("no GPU seen that NCCL can use: {reason}"),
        None => format!("nothing was measured: {reason}"),
    }
}

fn sections(state: &State) -> Vec<Section> {
    if state.measurements.is_empty() {
        return Vec::new();
    }
    let columns = ["collective", "bytes", "placement", "time (us)", "busbw (GB/s)", "wrong"];
    let row = |one: &Measurement| {
        vec![
            one.collective.clone(),
            one.bytes.to_string(),
            one.placement.name().to_owned(),
            format!("{:.1}", one.time_us),
            format!("{:.2}", one.busbw_gbps),
            one.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string()),
        ]
    };
    vec![Section {
        title: "Measurement".to_owned(),
        body: Body::Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: state.measurements.iter().map(row).collect(),
        },
    }]
}

/// The first warnings in a log.
fn warnings(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().filter(|line| line.contains("NCCL WARN")).take(5).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn log(process: usize, is_whole: bool, text: &str) -> PackedLog {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        PackedLog { process, is_whole, gzip: encoder.finish().unwrap() }
    }

    #[test]
    fn a_failed_measurement_says_why() {
        let evidence = |text: &str| Evidence { text: text.to_owned(), ..Evidence::default() };
        let finding =
            failed(&[evidence("rank 1 on host vm died:\n  its connection closed"), evidence("other")]);
        assert_eq!(finding.diagnosis, "the doctor's measurement failed: rank 1 on host vm died:");
        assert_eq!(finding.evidence.len(), 2);
    }

    #[test]
    fn known_faults_of_the_same_versions_are_told_once() {
        let examination = |subject, text: &str| {
            let mut examination = Examination::new(subject);
            examination.findings.push(Finding::new("known-faults", Severity::Advice, text));
            examination
                .sections
                .push(Section { title: "Known faults".to_owned(), body: Body::Lines(Vec::new()) });
            examination
        };
        let log = "3 known faults of NCCL 2.28.9, each under conditions that the log does not show";
        for (host, left) in [
            ("4 known faults of NCCL 2.28.9", 0),
            ("4 known faults of NCCL 2.28.9, libfabric 2.4.0", 1),
            ("1 known fault of NCCL 2.28", 1),
        ] {
            let mut both = [examination("log", log), examination("host", host)];
            drop_repeated_faults(&mut both);
            assert_eq!((both[0].findings.len(), both[0].sections.len()), (1, 1));
            assert_eq!((both[1].findings.len(), both[1].sections.len()), (left, left), "{host}");
        }
    }

    #[test]
    fn findings_name_the_process_of_their_log_and_missing_logs_are_listed() {
        let hosts = ["node0", "node0", "node1", "node1", "node1"].map(str::to_owned);
        let warning = "node1:42:42 [0] misc/socket.cc:52 NCCL WARN socketProgress: Connection closed by remote peer node0<40000>\n";
        let logs = vec![
            log(0, true, "node0:40:40 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.1<0>\n"),
            log(2, false, warning),
        ];
        let examination = examine(logs, &hosts, LOG_TIME);
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
