//! The observer of the doctor's measurement.

use std::io::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use diagnosis::examination::{Body, Examination, Section};
use diagnosis::finding::{Evidence, Finding, Severity};
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::{self, Reader};
use engine::nccl_choice::CapturedLog;
use engine::session::{Observer, Start};
use engine::sweep::Event;
use flate2::Compression;
use flate2::write::GzEncoder;
use record::{Measurement, Outcome, Run};
use serde_json::json;

use crate::command::doctor::output::{self, Output};

/// Time that rank 0 gets for its report before the other processes end; below the limit of saving results.
const REPORT_TIME: Duration = Duration::from_secs(3);

/// Time that a launcher gets to read the report before this process ends.
const FORWARD_TIME: Duration = Duration::from_millis(500);

/// Largest part of a process's log that is read.
const LOG_BYTES: u64 = 12 << 20;

/// Collects the measurements, and reports them when the job ends before its time.
pub(super) struct Collector {
    /// NCCL's log of this process.
    log: CapturedLog,
    output: Output,
    /// Examinations before the measurement.
    before: Mutex<Vec<Examination>>,
    state: Mutex<State>,
    is_first: bool,
}

#[derive(Default)]
struct State {
    run: Option<Run>,
    measurements: Vec<Measurement>,
    transport: Option<String>,
}

impl Collector {
    pub(super) fn new(log: CapturedLog, output: Output, is_first: bool) -> Self {
        Self { log, output, before: Mutex::default(), state: Mutex::default(), is_first }
    }

    /// Adds examinations that the report of a failure contains as well.
    pub(super) fn add(&self, examinations: impl IntoIterator<Item = Examination>) {
        lock(&self.before).extend(examinations);
    }

    /// The examinations so far, which are then no longer part of a failure's report.
    pub(super) fn take(&self) -> Vec<Examination> {
        std::mem::take(&mut lock(&self.before))
    }

    /// NCCL's log of this process, and true when that is all of it.
    fn own_log(&self) -> (Vec<u8>, bool) {
        self.log.read(LOG_BYTES).unwrap_or_default()
    }

    /// NCCL's log of this process for [`Collector::of_logs`]: a byte that is 1 when it is whole, then the log, compressed.
    pub(super) fn packed_log(&self) -> io::Result<Vec<u8>> {
        let (text, whole) = self.own_log();
        let mut encoder = GzEncoder::new(vec![u8::from(whole)], Compression::fast());
        encoder.write_all(&text)?;
        encoder.finish()
    }

    /// The examination of the packed logs of all processes; `None` without a measurement over NCCL.
    pub(super) fn of_logs(&self, packed: Vec<Vec<u8>>) -> Option<Examination> {
        let state = lock(&self.state);
        if state.run.as_ref()?.provenance.backend != "nccl" {
            return None;
        }
        let is_whole = packed.iter().all(|log| log.first() == Some(&1));
        let named = packed.into_iter().enumerate().map(|(process, mut log)| {
            log.drain(..1.min(log.len()));
            (format!("NCCL's log of process {process}"), log)
        });
        let mut examination = examine(&named.collect::<Vec<_>>());
        if !is_whole {
            examination.unseen.push("the end of a log of NCCL, which is longer than 12 MiB".to_owned());
        }
        Some(examination)
    }

    /// The examination of the measurement, which ended with `failure` or completely.
    pub(super) fn measurement(&self, failure: Option<&str>) -> Examination {
        let state = lock(&self.state);
        let mut examination = Examination::new("measurement");
        examination.findings.extend(failure.map(failed));
        examination.findings.extend(wrong(&state.measurements));
        match &state.run {
            Some(run) if failure.is_none() && examination.findings.is_empty() => {
                prove(run, &state, &mut examination);
            }
            Some(_) => {}
            None => examination.unseen.push("nothing was measured".to_owned()),
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

    /// Rank 0 reports with its own log; every other process prints the warnings in its log.
    fn salvage(&self, outcome: Outcome) {
        let (text, _) = self.own_log();
        if !self.is_first {
            eprint!("{}", warnings(&text));
            // An end of this process makes MPI's launcher kill rank 0 in the middle of its report.
            thread::sleep(REPORT_TIME);
            return;
        }
        let message = match outcome {
            Outcome::Failed { message } => message,
            Outcome::Interrupted { signal } => format!("interrupted by {signal}"),
            Outcome::Running | Outcome::Complete => return,
        };
        let mut log = examine(&[("NCCL's log of rank 0's process".to_owned(), text)]);
        log.unseen.push("the logs of the other processes: the job ended early".to_owned());
        let mut examinations = vec![log, self.measurement(Some(&message))];
        examinations.extend(self.take());
        if let Err(error) = output::write(&self.output, &examinations) {
            let _ = error.report();
        }
        // Open MPI drops what it has not yet read of the output of a process that aborts.
        thread::sleep(FORWARD_TIME);
    }
}

/// Draws conclusions from the logs of processes.
fn examine(logs: &[(String, Vec<u8>)]) -> Examination {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    for (name, text) in logs {
        reader.read(name, &text[..]);
    }
    log::conclusions::conclude(&reader.finish(), &rules)
}

fn failed(message: &str) -> Finding {
    let mut finding = Finding::new(
        "measurement-failed",
        Severity::Broken,
        "the collectives of the doctor's measurement failed",
    );
    finding.remedy =
        Some("read the findings about the log; repeat it with: nccl-bench allreduce,alltoall".to_owned());
    finding.evidence =
        vec![Evidence { place: "measurement".to_owned(), text: message.to_owned(), ..Evidence::default() }];
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

fn sections(state: &State) -> Vec<Section> {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
