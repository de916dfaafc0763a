//! A run in this process, over host memory. It takes over the signals, so this test has a process of its
//! own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use collectives::world;
use engine::bench::{Bench, Connection, Observer, Start};
use engine::collective::Collective;
use engine::process::Process;
use engine::request::{BackendChoice, Request};
use engine::supervision::{Stop, Verdict};
use engine::sweep::{SweepEvent, SweepStep};
use record::{Measurement, Phase, Placement, Run, RunOutcome, Settings};

/// Collects everything that a run reports.
#[derive(Default)]
struct Collected {
    events: Mutex<Vec<String>>,
    steps: Mutex<Vec<String>>,
    run: Mutex<Option<Run>>,
    measurements: Mutex<Vec<Measurement>>,
}

impl Collected {
    fn add(&self, event: impl Into<String>) {
        self.events.lock().unwrap().push(event.into());
    }
}

impl Observer for Collected {
    fn open_outputs(&self) -> Result<(), Stop> {
        self.add("prepare");
        Ok(())
    }

    fn start_run(&self, start: Start<'_>) -> anyhow::Result<()> {
        self.add(format!("start with {} ranks", start.groups.largest_size()));
        *self.run.lock().unwrap() = Some(start.run);
        Ok(())
    }

    fn note_connection(&self, connection: Connection) -> anyhow::Result<()> {
        let phases: Vec<_> = connection.phases.iter().map(|one| (one.phase, one.longest_s > 0.0)).collect();
        assert_eq!(phases, [(Phase::Device, true), (Phase::Connection, true)]);
        assert!(connection.transport.is_some_and(|transport| !transport.is_empty()));
        self.add("connected");
        Ok(())
    }

    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        match event {
            SweepEvent::Begin(collective) => self.add(format!("begin {collective}")),
            SweepEvent::Measured(measurement, _) => {
                self.add(format!("measured {}", measurement.bytes));
                self.measurements.lock().unwrap().push(measurement.clone());
            }
            SweepEvent::Stopped(signal, ranks) => panic!("{} reached {ranks:?}", signal.as_str()),
            SweepEvent::LeftOut(collective, reason) => panic!("{collective} is left out: {reason}"),
            SweepEvent::End(memory) => {
                assert_eq!(memory, None, "nobody has asked for it");
                self.add("end");
            }
        }
        Ok(())
    }

    fn show_step(&self, step: &SweepStep) {
        self.steps.lock().unwrap().push(step.to_string());
    }

    fn finish_run(&self, outcome: RunOutcome) -> anyhow::Result<()> {
        self.add(format!("finish {outcome:?}"));
        Ok(())
    }

    fn salvage_results(&self, outcome: RunOutcome) {
        panic!("nothing ends the process early: {outcome:?}");
    }
}

#[test]
fn a_run_reports_its_measurements_in_order_and_returns_a_verdict() {
    let request = Request {
        backend: BackendChoice::Fabric,
        threads: Some(2),
        max_bytes: Some(256),
        settings: Settings { min_bytes: 64, iterations: 3, ..Settings::of_collectives() },
        ..Request::new(vec![Collective::AllReduce, Collective::AllToAll])
    };
    let observer = Arc::new(Collected::default());
    let process = Process::start_for(&request).unwrap().join_world(world::single());
    let verdict = Bench::open(&process, None).run_last(&request, observer.clone()).unwrap();
    assert_eq!((verdict, verdict.verdict_code()), (Verdict::Good, 0));

    let of_collective = |name: &str| {
        let measured = [64, 64, 128, 128, 256, 256].map(|bytes| format!("measured {bytes}"));
        [vec![format!("begin {name}")], measured.to_vec(), vec!["end".to_owned()]].concat()
    };
    let expected = [
        ["prepare", "start with 2 ranks", "connected"].map(str::to_owned).to_vec(),
        of_collective("allreduce"),
        of_collective("alltoall"),
        vec!["finish Complete".to_owned()],
    ];
    assert_eq!(*observer.events.lock().unwrap(), expected.concat());
    let steps = observer.steps.lock().unwrap();
    assert!(
        steps.iter().any(|step| step == "the timed operations of allreduce float sum of 64 bytes, in place"),
        "{steps:?}"
    );

    let run = observer.run.lock().unwrap().take().unwrap();
    assert_eq!((run.provenance.backend.as_str(), run.outcome), ("fabric", RunOutcome::Running));
    assert_eq!((run.ranks.len(), run.measurements.len(), run.settings.threads), (2, 0, 2));

    let measurements = observer.measurements.lock().unwrap();
    assert_eq!(measurements.len(), 12);
    for (index, measurement) in measurements.iter().enumerate() {
        let placement = [Placement::OutOfPlace, Placement::InPlace][index % 2];
        assert_eq!((measurement.placement, measurement.operations), (placement, 3));
        assert_eq!(measurement.per_rank.len(), 2);
        // An alltoall in place is timed, but has no defined result.
        let verified = measurement.collective == "allreduce" || placement == Placement::OutOfPlace;
        assert_eq!(measurement.wrong, verified.then_some(0), "{measurement:?}");
        assert!(measurement.time_us > 0.0 && measurement.algbw_gbps > 0.0);
    }
}
