//! The examination of the doctor's measurement.

use diagnosis::examination::{Body, Examination, Section};
use diagnosis::finding::{Evidence, Finding, Severity};
use engine::supervision::Stop;
use record::{Measurement, Run};
use serde_json::json;

use super::COLLECTIVES;

/// The measurement so far.
#[derive(Default)]
pub(super) struct MeasurementState {
    pub(super) run: Option<Run>,
    pub(super) measurements: Vec<Measurement>,
    pub(super) transport: Option<String>,
}

/// The end of the measurement.
#[derive(Clone, Copy)]
pub(super) enum End<'a> {
    /// Everything was measured.
    Complete,
    /// It was refused.
    Refused(&'a Stop),
    /// It failed, with the messages of the processes.
    Failed(&'a [Evidence]),
    /// It was ended by this signal: `SIGINT`.
    Interrupted(&'a str),
}

impl MeasurementState {
    /// Returns the examination.
    pub(super) fn to_examination(&self, end: End<'_>) -> Examination {
        let mut examination = Examination::new("measurement");
        if let End::Failed(evidence) = end {
            examination.findings.push(describe_failure(evidence));
        }
        examination.findings.extend(describe_wrong_data(&self.measurements));
        match (&self.run, end) {
            (_, End::Refused(refusal)) => examination.unseen.push(describe_refusal(refusal)),
            (_, End::Interrupted(signal)) => {
                examination
                    .unseen
                    .push(format!("interrupted by {signal} before the measurement was complete"));
                examination.interrupted = Some(signal.to_owned());
            }
            (None, _) => examination.unseen.push("nothing was measured".to_owned()),
            (Some(run), End::Complete) if examination.findings.is_empty() => {
                add_proof(run, self, &mut examination);
            }
            (Some(_), End::Complete | End::Failed(_)) => {}
        }
        examination.sections = measurement_sections(self);
        examination.facts = json!({
            "backend": self.run.as_ref().map(|run| &run.provenance.backend),
            "transport": self.transport,
            "ranks": self.run.as_ref().map(|run| &run.ranks),
            "measurements": self.measurements,
        });
        examination
    }
}

fn describe_failure(evidence: &[Evidence]) -> Finding {
    let reason = evidence.iter().find_map(|one| one.text.lines().next()).unwrap_or("no reason is known");
    let text = format!("the doctor's measurement failed: {reason}");
    let mut finding = Finding::new("measurement-failed", Severity::Broken, text);
    finding.remedy =
        Some("read the findings about the log; repeat it with: nccl-bench allreduce,alltoall".to_owned());
    finding.evidence = evidence.to_vec();
    finding
}

/// Returns the finding about wrong data, if any.
fn describe_wrong_data(measurements: &[Measurement]) -> Option<Finding> {
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

/// Adds the proof of the measurement.
fn add_proof(run: &Run, state: &MeasurementState, examination: &mut Examination) {
    let verified = state.measurements.iter().filter(|one| one.wrong == Some(0)).count();
    if verified == 0 {
        examination.unseen.push("no data was verified".to_owned());
        return;
    }
    if run.provenance.backend != "nccl" {
        examination.unseen.extend(unproven_exchange(run, state));
        if !examination.unseen.is_empty() {
            return;
        }
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

/// Returns sentences about missing parts of a proof that ranks exchanged data in host memory. It needs
/// several ranks, and verified data of each collective with a rate above zero.
fn unproven_exchange(run: &Run, state: &MeasurementState) -> Vec<String> {
    if run.ranks.len() < 2 {
        return vec![
            "an exchange between ranks: there is one rank; start at least two (mpirun -np 2)".to_owned(),
        ];
    }
    let is_proven = |one: &&Measurement| {
        one.bytes > 0 && one.wrong == Some(0) && one.busbw_gbps.is_finite() && one.busbw_gbps > 0.0
    };
    let proven: Vec<&str> =
        state.measurements.iter().filter(is_proven).map(|one| one.collective.as_str()).collect();
    let missing = COLLECTIVES
        .iter()
        .map(|collective| collective.collective_name())
        .filter(|name| !proven.contains(name));
    missing.map(|name| format!("{name}: no data of it was verified and timed")).collect()
}

/// Returns a sentence about a refused measurement.
fn describe_refusal(refusal: &Stop) -> String {
    match refusal {
        Stop::NoGpus { reason, .. } => format!("no GPU that NCCL can use: {reason}"),
        other => format!("nothing was measured: {}", other.refusal_text().unwrap_or_default()),
    }
}

fn measurement_sections(state: &MeasurementState) -> Vec<Section> {
    if state.measurements.is_empty() {
        return Vec::new();
    }
    let columns = ["collective", "bytes", "placement", "time (us)", "busbw (GB/s)", "wrong"];
    let row = |one: &Measurement| {
        vec![
            one.collective.clone(),
            one.bytes.to_string(),
            one.placement.placement_name().to_owned(),
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

#[cfg(test)]
mod tests {
    use diagnosis::examination::Health;
    use engine::collective::Collective;

    use super::*;

    #[test]
    fn a_failed_measurement_says_why() {
        let evidence = |text: &str| Evidence { text: text.to_owned(), ..Evidence::default() };
        let finding = describe_failure(&[
            evidence("rank 1 on host vm died:\n  its connection closed"),
            evidence("other"),
        ]);
        assert_eq!(finding.diagnosis, "the doctor's measurement failed: rank 1 on host vm died:");
        assert_eq!(finding.evidence.len(), 2);
    }

    /// Examines a complete measurement of host memory after a change.
    fn in_host_memory(change: impl FnOnce(&mut Run, &mut Vec<Measurement>)) -> Examination {
        let mut run = record::sample::full_run();
        run.provenance.backend = "fabric".to_owned();
        let of = |collective: &Collective| {
            record::sample::sample_measurement(
                collective.collective_name(),
                record::Placement::OutOfPlace,
                64,
                10.0,
            )
        };
        let mut measurements: Vec<Measurement> = COLLECTIVES.iter().map(of).collect();
        change(&mut run, &mut measurements);
        MeasurementState { run: Some(run), measurements, transport: Some("shm".to_owned()) }
            .to_examination(End::Complete)
    }

    #[test]
    fn ranks_in_host_memory_are_healthy_with_verified_data_of_each_collective() {
        let examination = in_host_memory(|_, _| ());
        assert_eq!(examination.health(), Health::Healthy, "{examination:?}");
        let proof = "data verified on 2 ranks in host memory over shm: allreduce and alltoall, 2 sizes and \
                     placements";
        assert_eq!(examination.proof, [proof]);
    }

    #[test]
    fn an_exchange_that_was_not_made_or_not_verified_is_not_healthy() {
        type Change = fn(&mut Run, &mut Vec<Measurement>);
        let unproven = "alltoall: no data of it was verified and timed";
        let cases: [(Change, &str); 5] = [
            (
                |run, _| run.ranks.truncate(1),
                "an exchange between ranks: there is one rank; start at least two (mpirun -np 2)",
            ),
            (|_, measurements| measurements.truncate(1), unproven),
            (|_, measurements| measurements[1].wrong = None, unproven),
            (|_, measurements| measurements[1].bytes = 0, unproven),
            (|_, measurements| measurements[1].busbw_gbps = 0.0, unproven),
        ];
        for (change, unseen) in cases {
            let examination = in_host_memory(change);
            assert_eq!(examination.health(), Health::CannotTell, "{examination:?}");
            assert_eq!(examination.unseen, [unseen]);
        }
    }

    #[test]
    fn wrong_data_in_host_memory_is_broken() {
        let examination = in_host_memory(|_, measurements| measurements[0].wrong = Some(3));
        assert_eq!(examination.health(), Health::Broken, "{examination:?}");
        assert!(examination.proof.is_empty(), "{examination:?}");
    }

    #[test]
    fn an_interrupted_measurement_fails_nothing_and_proves_nothing() {
        let examination = MeasurementState::default().to_examination(End::Interrupted("SIGTERM"));
        assert_eq!(examination.interrupted.as_deref(), Some("SIGTERM"));
        assert_eq!(examination.unseen, ["interrupted by SIGTERM before the measurement was complete"]);
        assert!(examination.findings.is_empty() && examination.proof.is_empty(), "{examination:?}");
    }
}
