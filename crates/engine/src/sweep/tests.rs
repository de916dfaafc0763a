use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use collectives::world;

use super::repeat::{LEAST_ROUNDS, fitting_iterations, is_stable};
use super::results::{BackendResult, JobResult, RankResult, longest_times, process_times, reduce_times};
use super::*;
use crate::backend::{BackendRole, Barrier, StreamRounds, Times};
use crate::data::{Mismatches, Tally};
use crate::request::Fault;
use record::{Average, RankMismatch};

#[test]
fn the_ranks_times_become_one_as_asked() {
    let times = [3.0, 1.0, 2.0, 6.0];
    let reduced = [Average::Rank0, Average::Mean, Average::Min, Average::Max]
        .map(|average| reduce_times(average, times.iter().copied()));
    assert_eq!(reduced, [3.0, 3.0, 1.0, 6.0]);
}

#[test]
fn an_iteration_lasts_as_long_as_its_slowest_rank() {
    let results = |process, each_us: &[f64]| RankResult {
        process,
        host: "here".to_owned(),
        enqueue: 0.0,
        each_us: each_us.to_vec(),
        backends: Vec::new(),
        algorithm: None,
        stop: None,
    };
    let ranks = [results(7, &[1.0, 5.0]), results(7, &[2.0, 4.0]), results(8, &[3.0, 3.0])];
    assert_eq!(longest_times(ranks.iter().map(|results| &results.each_us[..])), [3.0, 5.0]);
    let [first, second, third] = &ranks;
    assert_eq!(process_times(&[first, second, third]), [[2.0, 5.0], [3.0, 3.0]]);
    assert_eq!(process_times(&[first, second]), [[0.0; 0]; 0]);
}

#[test]
fn a_median_is_stable_when_both_ends_of_its_interval_are_near() {
    let near: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i % 5) * 0.1).collect();
    assert!(is_stable(&near, 0.01));
    assert!(is_stable(&near[..2 * LEAST_ROUNDS], 0.01));
    assert!(!is_stable(&near[..2 * LEAST_ROUNDS - 1], 0.01));
    let spread: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i % 2) * 10.0).collect();
    assert!(!is_stable(&spread, 0.01));
    assert!(is_stable(&spread, 0.2));
    // A few outliers do not matter.
    let mut outliers = near;
    outliers[3] = 1000.0;
    assert!(is_stable(&outliers, 0.01));
}

#[test]
fn two_batches_that_differ_are_not_stable() {
    // Each batch is precise; so are both together, whose median is in the first.
    let mut rounds = vec![100.0; 60];
    rounds.extend([101.5; 50]);
    assert!(!is_stable(&rounds, 0.01));
    assert!(is_stable(&rounds, 0.02));
}

/// Records the calls, in order.
#[derive(Clone, Default)]
struct Told {
    calls: Rc<RefCell<Vec<&'static str>>>,
    /// The timed loops, as iterations and whether each is timed.
    loops: Rc<RefCell<Vec<(usize, bool)>>>,
    /// Time of an iteration.
    iteration: Duration,
}

impl Told {
    fn add(&self, what: &'static str) {
        self.calls.borrow_mut().push(what);
    }
}

impl Backend for Told {
    fn fill_buffers(&mut self, _: &RankWork, _: u64) -> anyhow::Result<()> {
        Ok(())
    }

    fn activate_role(&mut self, role: BackendRole) {
        self.add(if role == BackendRole::Primary { "primary" } else { "baseline" });
    }

    fn start_operation(&mut self, _: &RankWork, _: usize, graph: bool) -> anyhow::Result<()> {
        self.add(if graph { "start in a graph" } else { "start" });
        Ok(())
    }

    fn await_completion(&mut self) -> anyhow::Result<()> {
        self.add("complete");
        Ok(())
    }

    fn time_loop(&mut self, _: &RankWork, timed_loop: &TimedLoop, _: &Barrier<'_>) -> anyhow::Result<Times> {
        let TimedLoop { iterations, aggregated, graph_launches, .. } = *timed_loop;
        self.add(match (iterations, aggregated, graph_launches) {
            (5, ..) => "time",
            (1, 3, 0) => "one group",
            (1, 1, 1) => "one graph",
            _ => "something else",
        });
        self.loops.borrow_mut().push((iterations, timed_loop.each));
        let total = self.iteration * iterations as u32 * graph_launches.max(1) as u32;
        let each_us = vec![1.0; if timed_loop.each { iterations } else { 0 }];
        Ok(Times { total, each_us, ..Times::default() })
    }

    fn corrupt_result(&mut self, _: &RankWork, _: u64, _: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn check_result(&mut self, _: &RankWork, _: u64) -> anyhow::Result<Mismatches> {
        Ok(Mismatches::default())
    }

    fn check_on_stream(
        &mut self,
        _: &RankWork,
        rounds: &StreamRounds,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Option<Tally>> {
        barrier()?;
        self.add(match (rounds.rounds, rounds.graph_launches) {
            (10, 0) => "on the stream",
            (3, 4) => "a graph on the stream",
            _ => "something else on the stream",
        });
        Ok(rounds
            .corrupt_index
            .map(|index| Tally { wrong: rounds.total_rounds() as u64, lowest: index as u64 }))
    }
}

impl RankObserver for Told {
    fn handle_event(&mut self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        if let SweepEvent::Measured(Measurement { wrong: Some(22), .. }, _) = event {
            self.add("22 wrong");
        }
        Ok(())
    }

    fn record_choices(&mut self, on: bool) {
        self.add(if on { "record" } else { "stop recording" });
    }

    fn recorded_algorithm(&mut self, _: &RankWork, _: usize) -> anyhow::Result<Option<Algorithm>> {
        self.add("algorithm");
        Ok(None)
    }
}

/// The plan of an allreduce of 8 bytes, with these changes to its request.
fn plan(change: impl FnOnce(&mut Request)) -> SweepPlan {
    let mut request = Request::new(vec![Collective::AllReduce]);
    (request.settings.warm_up, request.settings.iterations) = (0, 5);
    change(&mut request);
    SweepPlan::new(&request, 8)
}

/// Calls of a whole sweep.
fn all(plan: &SweepPlan) -> Vec<&'static str> {
    let told = Told::default();
    let (mut backend, mut observer) = (told.clone(), told.clone());
    run_sweep(plan, &*world::single(), &Groups::of_all(1), &mut backend, &mut observer).unwrap();
    told.calls.take()
}

/// Calls of the first measurement of a sweep.
fn first(change: impl FnOnce(&mut Request)) -> Vec<&'static str> {
    let all = all(&plan(change));
    // The warm-up comes first.
    let end = all.iter().position(|&what| what == "algorithm").unwrap();
    all[1..end].to_vec()
}

#[test]
fn nccl_is_listened_to_while_something_like_the_timed_operations_is_not_timed() {
    let off = "stop recording";
    assert_eq!(first(|_| ()), ["record", "start", "complete", off, "time", "start", "complete"]);
    let untimed = [off, "start", "complete", off, "time"];
    let group = ["record", "one group", off, "start", "complete"];
    assert_eq!(first(|request| request.settings.aggregated = 3), [untimed, group].concat());
    let graph = ["record", "one graph", off, "start in a graph", "complete"];
    assert_eq!(first(|request| request.settings.graph_launches = 2), [untimed, graph].concat());
}

#[test]
fn the_check_on_the_stream_follows_the_verification_eager_and_as_a_graph() {
    let placement = ["record", "start", "complete", "stop recording", "time", "start", "complete"];
    let on_stream = ["on the stream", "a graph on the stream", "algorithm"];
    let measured = [&placement[..], &on_stream].concat();
    assert_eq!(
        all(&plan(|request| request.settings.stream_checks = Some(10))),
        [&["complete"], &measured[..], &measured].concat()
    );
    // 10 rounds, and 4 launches of a graph of 3.
    let wrong = [&measured[..], &["22 wrong"]].concat();
    let corrupt_index = |rank| {
        plan(move |request| {
            request.settings.stream_checks = Some(10);
            request.fault = Some(Fault { rank, index: 1 });
        })
    };
    let found = all(&corrupt_index(0));
    assert_eq!(found, [&["complete"], &wrong[..], &wrong].concat());
    assert_eq!(
        all(&corrupt_index(1)),
        [&["complete"], &measured[..], &measured].concat(),
        "the fault of another rank"
    );
}

#[test]
fn a_graph_has_two_rounds_or_more_and_is_launched_again() {
    for (count, rounds, launches) in
        [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 2, 2), (10, 3, 4), (200, 50, 4), (1000, 63, 16)]
    {
        let found = StreamRounds::graph_rounds(count, 7);
        assert_eq!((found.rounds, found.graph_launches), (rounds, launches), "{count}");
        assert!(found.total_rounds() >= count && found.seed == 7);
    }
}

#[test]
fn what_was_wrong_on_the_stream_is_added_and_named() {
    let mut found = BackendResult { seconds: Vec::new(), wrong: 2, first: "element 0: wrong".to_owned() };
    found.add_tally(&StreamRounds::eager_rounds(200, 1), Tally { wrong: 30, lowest: 5 });
    found.add_tally(&StreamRounds::graph_rounds(200, 1), Tally { wrong: 400, lowest: 6 });
    assert_eq!(found.wrong, 432);
    let parts: Vec<&str> = found.first.split("; ").collect();
    assert_eq!(parts[0], "element 0: wrong");
    assert!(parts[1].starts_with("element 5 (on the stream, eager: 30 wrong in 200 rounds"), "{parts:?}");
    assert!(
        parts[2].starts_with("element 6 (on the stream, as a graph: 400 wrong in 200 rounds"),
        "{parts:?}"
    );
}

#[test]
fn two_sides_take_turns_and_the_last_of_a_round_is_the_first_of_the_next() {
    let mut plan = plan(|request| request.settings.rounds = Some(3));
    plan.versus = Some(Capabilities::default());
    let work = |role| [role, "start", "complete"];
    let time = |role| [role, "time"];
    let placement = [
        &["record"][..],
        &work("primary"),
        &work("baseline"),
        &["stop recording"],
        &[
            time("primary"),
            time("baseline"),
            time("baseline"),
            time("primary"),
            time("primary"),
            time("baseline"),
        ]
        .concat(),
        &["primary"],
        &work("primary"),
        &work("baseline"),
        &["algorithm"],
    ]
    .concat();
    let warm_up = ["primary", "complete", "baseline", "complete"];
    assert_eq!(all(&plan), [&warm_up[..], &placement, &placement].concat());
    // The baseline cannot do it in place.
    plan.versus =
        Some(Capabilities { out_of_place_only: vec![Collective::AllReduce], ..Capabilities::default() });
    let alone = [
        &["record"][..],
        &work("primary"),
        &["stop recording"],
        &time("primary").repeat(3),
        &["primary"],
        &work("primary"),
        &["algorithm"],
    ]
    .concat();
    assert_eq!(all(&plan), [&warm_up[..], &placement, &alone].concat());
}

#[test]
fn what_fits_is_tried_with_so_many_that_a_late_start_hardly_counts() {
    let fits = |seconds, most, start: f64, each: f64| {
        let mut tried = Vec::new();
        let found = fitting_iterations(seconds, most, |iterations| {
            tried.push(iterations);
            Ok(start + each * iterations as f64)
        });
        (found.unwrap(), tried)
    };
    // One alone seems to take 101 us.
    let (found, tried) = fits(0.0101, 1_000_000, 100e-6, 1e-6);
    assert!((8000..=10_000).contains(&found), "{found}");
    assert!(tried[0] == 1 && tried.len() <= 5 && tried.last() > Some(&400), "{tried:?}");
    assert_eq!(fits(1.0, 5, 0.0, 1e-6), (5, vec![1]));
    assert_eq!(fits(1.0, 100, 0.0, 0.25), (4, vec![1]));
    assert_eq!(fits(1.0, 100, 0.0, 3.0), (1, vec![1]));
    assert_eq!(fits(1.0, 1, 0.0, 0.0), (1, vec![1]));
}

#[test]
fn the_pass_for_the_statistics_is_within_the_budget() {
    let loops = |change: fn(&mut Request)| {
        let told = Told { iteration: Duration::from_millis(10), ..Told::default() };
        let (mut backend, mut observer) = (told.clone(), told.clone());
        let mut plan = plan(|request| {
            (request.settings.iterations, request.settings.checks, request.statistics) = (1000, 0, true);
            request.settings.budget_seconds = Some(1.0);
            change(request);
        });
        plan.out_of_place_only = vec![Collective::AllReduce];
        run_sweep(&plan, &*world::single(), &Groups::of_all(1), &mut backend, &mut observer).unwrap();
        told.loops.take()
    };
    // The trials of one and of some come first, of both passes. 100 operations take a second.
    let trials = [(1, true), (1, false), (5, true), (5, false)];
    let found = loops(|_| ());
    assert_eq!(found, [&trials[..], &[(50, false), (50, true)]].concat());
    // Three rounds and the pass.
    let found = loops(|request| request.settings.rounds = Some(3));
    assert_eq!(found, [&trials[..2], &[(25, false); 3], &[(25, true)]].concat());
    // No pass of their own.
    let found = loops(|request| request.statistics = false);
    assert_eq!(found[found.len() - 1], (100, false));
    let found = loops(|request| request.settings.per_iteration = true);
    assert_eq!(found[found.len() - 1], (100, true));
    // Without a budget nothing is cut.
    assert_eq!(loops(|request| request.settings.budget_seconds = None), [(1000, false), (1000, true)]);
}

#[test]
fn what_the_ranks_took_is_made_one_round_by_round() {
    let found =
        |seconds: [f64; 3], wrong| BackendResult { seconds: seconds.to_vec(), wrong, first: "it".to_owned() };
    let ranks = [found([3.0, 1.0, 2.0], 0), found([5.0, 9.0, 6.0], 4)];
    let taken = JobResult::from_ranks(&[(0, &ranks[0]), (3, &ranks[1])], Average::Mean, true);
    // The mean of the medians; the shortest of the rounds' means.
    assert_eq!((taken.seconds, taken.best), (4.0, 4.0));
    assert_eq!(taken.rounds_us, [4e6, 5e6, 4e6]);
    assert_eq!(taken.wrong, Some(4));
    assert_eq!(taken.mismatches, [RankMismatch { rank: 3, wrong: 4, first: "it".to_owned() }]);
    let slowest = JobResult::from_ranks(&[(0, &ranks[0]), (3, &ranks[1])], Average::Max, false);
    assert_eq!((slowest.seconds, slowest.best, slowest.wrong), (6.0, 5.0, None));
    let once = BackendResult { seconds: vec![2.0], wrong: 0, first: String::new() };
    let once = JobResult::from_ranks(&[(0, &once)], Average::Mean, true);
    assert_eq!((once.seconds, once.best, once.rounds_us), (2.0, 2.0, Vec::new()));
}
