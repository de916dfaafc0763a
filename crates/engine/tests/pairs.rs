//! Pairs of ranks in one process, over host memory. It takes over the signals, so this test has a process of
//! its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::mem;
use std::sync::{Arc, Mutex};

use collectives::world;
use engine::bench::{Bench, Observer, Start};
use engine::collective::Collective;
use engine::pairs::{PairRequest, Test};
use engine::process::Process;
use engine::request::{BackendChoice, Request, SizeStep};
use engine::supervision::Verdict;
use engine::sweep::SweepEvent;
use record::{Run, RunOutcome};

/// The record of a run.
#[derive(Default)]
struct Recorded(Mutex<Option<Run>>);

impl Observer for Recorded {
    fn start_run(&self, start: Start<'_>) -> anyhow::Result<()> {
        *self.0.lock().unwrap() = Some(start.run);
        Ok(())
    }

    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        if let (SweepEvent::Measured(measurement, _), Some(run)) = (event, &mut *self.0.lock().unwrap()) {
            run.measurements.push(measurement.clone());
        }
        Ok(())
    }

    fn finish_run(&self, outcome: RunOutcome) -> anyhow::Result<()> {
        self.0.lock().unwrap().as_mut().unwrap().outcome = outcome;
        Ok(())
    }

    fn salvage_results(&self, outcome: RunOutcome) {
        panic!("nothing ends the process early: {outcome:?}");
    }
}

#[test]
fn a_process_measures_one_pair_of_its_ranks_after_the_other() {
    let process = Process::start().unwrap().join_world(world::single());
    let mut bench = Bench::open(&process, None);
    let recorded = Arc::new(Recorded::default());
    let request = |test, pair| PairRequest {
        pairs: vec![pair],
        threads: 3,
        min_bytes: 64,
        max_bytes: 4096,
        step: SizeStep::Factor(64),
        transfers: Some(4),
        rounds: 3,
        window: 2,
        ..PairRequest::new(test)
    };
    for (test, pair, numbers, ranks) in [
        (Test::PingPong, [0, 1], [0, 1], [None, None]),
        (Test::Bandwidth, [2, 1], [1, 0], [Some(1), Some(2)]),
        (Test::Write, [0, 1], [0, 1], [None, None]),
    ] {
        let verdict = bench.run(&request(test, pair), recorded.clone()).unwrap();
        assert_eq!(verdict, Verdict::Good);
        let run = mem::take(&mut *recorded.0.lock().unwrap()).unwrap();
        assert_eq!((&run.outcome, run.provenance.transport.as_deref()), (&RunOutcome::Complete, Some("tcp")));
        let found: Vec<Option<usize>> = run.ranks.iter().map(|rank| rank.job_rank).collect();
        assert_eq!(found, ranks);
        assert!(run.ranks.iter().all(|rank| rank.addresses.len() == 1), "{:?}", run.ranks);
        let operations = if test == Test::PingPong { 24 } else { 12 };
        let sizes: Vec<u64> = run.measurements.iter().map(|one| one.bytes).collect();
        assert_eq!(sizes, [64, 4096]);
        for measurement in &run.measurements {
            assert_eq!(
                (measurement.collective.as_str(), measurement.pair),
                (test.test_name(), Some(numbers))
            );
            assert_eq!((measurement.wrong, measurement.operations), (Some(0), operations));
            assert_eq!(measurement.rounds_us.len(), 3);
            assert!(measurement.time_us > 0.0 && measurement.busbw_gbps == measurement.algbw_gbps);
        }
        // The same ranks carry out collectives in between.
        let mut collectives = Request {
            backend: BackendChoice::Fabric,
            threads: Some(3),
            max_bytes: Some(64),
            ..Request::new(vec![Collective::AllReduce])
        };
        collectives.settings.iterations = 1;
        assert_eq!(bench.run(&collectives, recorded.clone()).unwrap(), Verdict::Good);
    }

    let unknown = PairRequest { provider: "cxi".to_owned(), ..request(Test::PingPong, [0, 1]) };
    let refused = |request: &PairRequest, bench: &mut Bench<'_>| {
        bench.run(request, Arc::new(Recorded::default())).unwrap_err().refusal_text().unwrap()
    };
    let reason = refused(&unknown, &mut bench);
    assert!(reason.starts_with("rank 0: ") && reason.contains("provider 'cxi'"), "{reason}");
    let reason = refused(&request(Test::PingPong, [0, 3]), &mut bench);
    assert_eq!(reason, "rank 3 is to measure, but there are 3 ranks, counted from 0");
    for (wrong, reason) in [
        (PairRequest { pairs: Vec::new(), ..request(Test::Read, [0, 1]) }, "the list of pairs is empty"),
        (request(Test::Read, [1, 1]), "a rank is paired with itself"),
        (PairRequest { min_bytes: 8192, ..request(Test::Read, [0, 1]) }, "above the largest"),
        (PairRequest { rounds: 0, ..request(Test::Read, [0, 1]) }, "at least 1"),
        (PairRequest { domains: vec![String::new(); 2], ..request(Test::Read, [0, 1]) }, "needs an endpoint"),
    ] {
        let found = refused(&wrong, &mut bench);
        assert!(found.contains(reason), "{found}");
    }
}
