//! The sweep of one case on one rank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::world::World;

use super::repeat::{fitting_iterations, is_stable};
use super::results::{self, BackendResult, RankResult, RankRounds, RoundTimes, reduce_times};
use super::{Case, RankObserver, SweepEvent, SweepPlan, SweepStep};
use crate::backend::{Backend, BackendRole, StreamRounds, TimedLoop, Times};
use crate::collective::{Collective, Counts, Participant, RankWork};
use crate::data::Mismatches;
use crate::data::traffic::Traffic;
use crate::gather::gather_json;
use crate::groups::{GroupPosition, Groups};
use crate::supervision::Signal;
use record::statistics::find_median;
use record::{Measurement, Placement};

pub(super) const TIMING_SEED: u64 = 99;
/// Distance of the first seeds of two groups: more than the verifications of a run.
pub(super) const GROUP_SEEDS: u64 = 1 << 40;
/// Default time limit of one size.
const DEFAULT_BUDGET: Duration = Duration::from_secs(5);

pub(super) struct RankSweep<'a> {
    pub(super) plan: &'a SweepPlan,
    pub(super) world: &'a dyn World,
    pub(super) groups: &'a Groups,
    pub(super) backend: &'a mut dyn Backend,
    pub(super) observer: &'a mut dyn RankObserver,
    pub(super) case: Case,
    /// Seed of the data of timed operations.
    pub(super) first_seed: u64,
    pub(super) seed: &'a mut u64,
}

impl RankSweep<'_> {
    pub(super) fn run_case(&mut self) -> anyhow::Result<Option<Signal>> {
        let sweep = self.plan.sweep;
        self.begin_step("warm-up", self.case.collective.to_string());
        self.world.barrier()?;
        // Also without verification: times depend on the data, and the kernels are loaded here.
        self.backend.fill_buffers(&self.rank_work(sweep.max, Placement::OutOfPlace), self.first_seed)?;
        for &role in self.measured_roles(Placement::OutOfPlace) {
            self.switch_backend(role)?;
            for bytes in sweep.warm_up_sizes() {
                let work = self.rank_work(bytes, Placement::OutOfPlace);
                for index in 0..self.plan.request.settings.warm_up {
                    self.backend.start_operation(&work, index, false)?;
                }
                self.backend.await_completion()?;
            }
        }
        let mut cycle = 0;
        while self.plan.request.settings.cycles == 0 || cycle < self.plan.request.settings.cycles {
            for bytes in sweep.list_sizes() {
                for &placement in self.plan.list_placements(self.case.collective) {
                    let (measurements, stop) = self.measure_placement(bytes, placement, cycle)?;
                    self.observer.begin_unlimited_step("writing the report");
                    for (measurement, work) in &measurements {
                        self.observer.handle_event(SweepEvent::Measured(measurement, Some(work)))?;
                    }
                    if let Some(Stopping { signal, reached }) = stop {
                        if let Some(reached) = reached {
                            self.observer.handle_event(SweepEvent::Stopped(signal, reached))?;
                        }
                        return Ok(Some(signal));
                    }
                }
            }
            cycle += 1;
        }
        Ok(None)
    }

    /// The operation of this rank. A rank that does not measure gets the operation of the first rank that
    /// does.
    fn rank_work(&self, bytes: u64, placement: Placement) -> RankWork {
        let position =
            self.groups.rank_position(self.world.rank()).unwrap_or_else(|| self.groups.first_position());
        self.work_at(position, bytes, placement)
    }

    fn work_at(&self, position: GroupPosition, bytes: u64, placement: Placement) -> RankWork {
        let Case { collective, data_type, op, root } = self.case;
        let participant = Participant { rank: position.rank, ranks: position.ranks, root };
        let traffic = (collective == Collective::AllToAllV).then(|| {
            Arc::new(Traffic::new(&self.plan.request.variables.pattern, bytes, data_type, participant.ranks))
        });
        let counts = Counts::new(collective, bytes, data_type, participant, traffic.as_deref());
        RankWork { collective, data_type, op, participant, placement, counts, traffic }
    }

    /// The backends that are measured: the primary one, and the baseline if it supports the same.
    fn measured_roles(&self, placement: Placement) -> &'static [BackendRole] {
        let both = &[BackendRole::Primary, BackendRole::Baseline];
        let baseline = self.plan.versus.as_ref().is_some_and(|baseline| {
            placement == Placement::OutOfPlace || !baseline.out_of_place_only.contains(&self.case.collective)
        });
        if baseline { both } else { &both[..1] }
    }

    /// Selects a backend after all ranks have finished with the other one: a rank may have to call that
    /// library for operations of other ranks to end.
    fn switch_backend(&mut self, role: BackendRole) -> anyhow::Result<()> {
        if self.plan.versus.is_some() {
            self.world.barrier()?;
            self.backend.activate_role(role);
        }
        Ok(())
    }

    fn begin_step(&self, activity: &'static str, subject: String) {
        self.observer.begin_step(SweepStep { activity, subject });
    }

    /// Measures one size. Returns the measurement of each group, and the signal that ends the sweep.
    fn measure_placement(
        &mut self,
        bytes: u64,
        placement: Placement,
        cycle: usize,
    ) -> anyhow::Result<(Vec<GroupMeasurement>, Option<Stopping>)> {
        let plan = self.plan;
        let work = &self.rank_work(bytes, placement);
        let name = describe_work(work);
        self.begin_step("untimed operation", name.clone());
        self.observer.prepare_measurement(work)?;
        if plan.request.settings.checks > 0 {
            self.backend.fill_buffers(work, self.first_seed)?;
        }
        // Operations of a group or a graph may be carried out in another way than a single one.
        let alike = plan.timed_loop().aggregated <= 1 && plan.timed_loop().graph_launches == 0;
        self.run_untimed(work, alike)?;
        self.begin_step("timed operations", name.clone());
        let (rounds, stable) = self.time_rounds(work)?;
        let operations = rounds.first().map_or(0, |primary| primary.operations);
        self.switch_backend(BackendRole::Primary)?;
        let chosen = self.backend.operation_algorithm(work);
        let each_us = match rounds.first() {
            Some(primary) => self.iteration_times(work, primary)?,
            None => Vec::new(),
        };
        if !alike {
            self.begin_step("additional untimed iteration", name.clone());
            self.record_untimed_iteration(work)?;
        }
        self.begin_step("verification", name);
        let is_verified_at =
            |(position, _): (GroupPosition, _)| self.is_verified(&self.work_at(position, bytes, placement));
        let is_any_verified =
            plan.request.settings.stream_checks.is_some() && self.groups.iter().any(is_verified_at);
        let backends = self.verify_backends(work, &rounds, is_any_verified)?;
        let results = RankResult {
            process: std::process::id(),
            host: collectives::world::host().id,
            enqueue: rounds.first().and_then(|primary| find_median(&primary.enqueue)).unwrap_or(0.0),
            each_us,
            backends,
            algorithm: chosen,
            stop: self.observer.stop_signal().map(|signal| signal as i32),
        };
        let ranks = gather_json(self.world, &results)?;
        let stop = ranks.iter().filter_map(|results| Signal::try_from(results.stop?).ok()).max();
        let stop = stop.map(|signal| Stopping { signal, reached: find_reached_ranks(signal, &ranks) });
        let groups = self.groups;
        let mut measurements = Vec::with_capacity(groups.group_count());
        for (position, members) in groups.iter() {
            let work = self.work_at(position, bytes, placement);
            let results = results::of_group(groups, members, &ranks);
            let verified = self.is_verified(&work);
            let mut measurement =
                results::group_measurement(plan, &work, cycle, operations, verified, &results);
            measurement.group = (groups.group_count() > 1).then(|| position.group_number());
            measurement.stable = stable;
            measurement.algorithm = match &results[0].1.algorithm {
                // NCCL reports its choices for rank 0.
                None if members.contains(&0) => {
                    self.observer.recorded_algorithm(&work, plan.timed_loop().aggregated)?
                }
                chosen => chosen.clone(),
            };
            measurements.push((measurement, work));
        }
        Ok((measurements, stop))
    }

    /// True when the results of an operation are verified.
    fn is_verified(&self, work: &RankWork) -> bool {
        self.plan.request.settings.checks > 0
            && work.has_elements()
            && (work.placement == Placement::OutOfPlace || work.collective.has_in_place())
    }

    /// Runs one operation of each backend, and records NCCL's choice if `record` is true.
    fn run_untimed(&mut self, work: &RankWork, record: bool) -> anyhow::Result<()> {
        self.observer.record_choices(record);
        for &role in self.measured_roles(work.placement) {
            self.switch_backend(role)?;
            self.backend.start_operation(work, 0, false)?;
            self.backend.await_completion()?;
        }
        self.observer.record_choices(false);
        Ok(())
    }

    /// Combines the times of each backend with the findings of its verification. `is_any_verified`: the
    /// results of some group are verified.
    fn verify_backends(
        &mut self,
        work: &RankWork,
        rounds: &[RankRounds],
        is_any_verified: bool,
    ) -> anyhow::Result<Vec<BackendResult>> {
        let verified = self.is_verified(work);
        let mut results = Vec::with_capacity(rounds.len());
        for (&role, rounds) in self.measured_roles(work.placement).iter().zip(rounds) {
            self.switch_backend(role)?;
            let found = if verified { self.verify_result(work)? } else { Mismatches::default() };
            results.push(BackendResult {
                seconds: rounds.seconds.clone(),
                wrong: found.wrong,
                first: found.first.map(|first| first.to_string()).unwrap_or_default(),
            });
        }
        if let Some(count) = self.plan.request.settings.stream_checks
            && is_any_verified
        {
            self.begin_step("check on the stream", describe_work(work));
            self.verify_on_stream(work, count, &mut results[0])?;
        }
        Ok(results)
    }

    /// Runs the timed loop of each backend, in a fixed number of rounds or until the medians are stable. Also
    /// returns whether they are, with `until_stable`.
    fn time_rounds(&mut self, work: &RankWork) -> anyhow::Result<(Vec<RankRounds>, Option<bool>)> {
        let plan = self.plan;
        let begun = Instant::now();
        let (settings, asked) = (&plan.request.settings, plan.request.time_budget());
        let mut budget = asked.unwrap_or(DEFAULT_BUDGET);
        let mut timed_loop = plan.timed_loop();
        if asked.is_some() {
            let statistics;
            (timed_loop.iterations, statistics) = self.affordable_iterations(work, budget)?;
            budget = budget.saturating_sub(statistics);
        }
        let mut roles: Vec<(BackendRole, RankRounds)> =
            self.measured_roles(work.placement).iter().map(|&role| (role, RankRounds::default())).collect();
        let mut common = vec![Vec::new(); roles.len()];
        let mut stable = settings.until_stable.map(|_| false);
        for round in 1.. {
            for (role, rounds) in &mut roles {
                self.switch_backend(*role)?;
                rounds.add_round(self.run_timed_loop(work, &timed_loop)?, &timed_loop);
            }
            if settings.until_stable.is_none() && round >= settings.rounds.unwrap_or(1) {
                break;
            }
            if settings.until_stable.is_some() || asked.is_some() {
                let over = begun.elapsed() >= budget;
                let seconds = roles.iter().filter_map(|(_, rounds)| rounds.seconds.last().copied());
                // All ranks decide by the same times.
                let all = gather_json(self.world, &RoundTimes { seconds: seconds.collect(), over })?;
                let measured: Vec<&RoundTimes> =
                    self.groups.measured_ranks().filter_map(|rank| all.get(rank)).collect();
                for (role, common) in common.iter_mut().enumerate() {
                    let times = |round: &&RoundTimes| round.seconds.get(role).copied().unwrap_or(f64::NAN);
                    common.push(reduce_times(settings.average, measured.iter().map(times)));
                }
                stable =
                    settings.until_stable.map(|share| common.iter().all(|rounds| is_stable(rounds, share)));
                if stable == Some(true) || all.iter().any(|round| round.over) {
                    break;
                }
            }
            // The last backend of this round is the first of the next.
            roles.reverse();
            common.reverse();
        }
        roles.sort_by_key(|(role, _)| *role == BackendRole::Baseline);
        Ok((roles.into_iter().map(|(_, rounds)| rounds).collect(), stable))
    }

    /// Number of iterations that fit into the budget with the pass for the statistics, at most that of the
    /// timed loop, and the time of that pass. The same on every rank.
    fn affordable_iterations(
        &mut self,
        work: &RankWork,
        budget: Duration,
    ) -> anyhow::Result<(usize, Duration)> {
        let timed_loop = self.plan.timed_loop();
        let settings = &self.plan.request.settings;
        let rounds = if settings.until_stable.is_some() { 1 } else { settings.rounds.unwrap_or(1) };
        let launches = timed_loop.graph_launches.max(1) * rounds;
        let mut each = 0.0;
        let iterations = fitting_iterations(budget.as_secs_f64(), timed_loop.iterations, |iterations| {
            let trial = TimedLoop { iterations, graph_launches: 0, each: false, ..timed_loop };
            let mut seconds = vec![0.0];
            if self.has_statistics_pass() {
                self.switch_backend(BackendRole::Primary)?;
                seconds[0] =
                    self.run_timed_loop(work, &TimedLoop { each: true, ..trial })?.total.as_secs_f64();
            }
            for &role in self.measured_roles(work.placement) {
                self.switch_backend(role)?;
                seconds.push(self.run_timed_loop(work, &trial)?.total.as_secs_f64() * launches as f64);
            }
            let all = gather_json(self.world, &RoundTimes { seconds, over: false })?;
            let statistics = all.iter().filter_map(|rank| rank.seconds.first().copied()).fold(0.0, f64::max);
            each = statistics / iterations as f64;
            Ok(all.iter().map(|rank| rank.seconds.iter().sum()).fold(f64::MIN_POSITIVE, f64::max))
        })?;
        let statistics = Duration::try_from_secs_f64(each * iterations as f64).unwrap_or(budget);
        Ok((iterations, statistics))
    }

    fn run_timed_loop(&mut self, work: &RankWork, timed_loop: &TimedLoop) -> anyhow::Result<Times> {
        let world = self.world;
        let barrier = || Ok(world.barrier()?);
        barrier()?;
        let times = self.backend.time_loop(work, timed_loop, &barrier)?;
        barrier()?;
        Ok(times)
    }

    /// Runs one more iteration to record how operations of a group or graph are carried out, which may differ
    /// from a single one. It runs after the timed ones, so that it does not affect them.
    fn record_untimed_iteration(&mut self, work: &RankWork) -> anyhow::Result<()> {
        let timed_loop = self.plan.timed_loop();
        let graph_launches = timed_loop.graph_launches.min(1);
        let one = TimedLoop { iterations: 1, graph_launches, each: false, ..timed_loop };
        self.observer.record_choices(true);
        self.run_timed_loop(work, &one)?;
        self.observer.record_choices(false);
        Ok(())
    }

    /// The time of each iteration: of the timed ones, or of a second pass, so that timing each iteration does
    /// not change the reported time.
    fn iteration_times(&mut self, work: &RankWork, rounds: &RankRounds) -> anyhow::Result<Vec<f64>> {
        // By the plan, which is the same on ranks that do not measure.
        if !self.has_statistics_pass() {
            return Ok(rounds.each_us.clone());
        }
        let iterations = rounds.iterations;
        let timed_loop = TimedLoop { iterations, graph_launches: 0, each: true, ..self.plan.timed_loop() };
        Ok(self.run_timed_loop(work, &timed_loop)?.each_us)
    }

    /// True when each iteration is timed in a pass of its own: not asked for with the timed ones, or these
    /// are a graph.
    fn has_statistics_pass(&self) -> bool {
        let request = &self.plan.request;
        request.statistics && (!request.settings.per_iteration || request.settings.graph_launches > 0)
    }

    fn verify_result(&mut self, work: &RankWork) -> anyhow::Result<Mismatches> {
        let graph = self.plan.timed_loop().graph_launches > 0;
        let mut wrong = Mismatches::default();
        for _ in 0..self.plan.request.settings.checks {
            *self.seed += 1;
            self.backend.fill_buffers(work, *self.seed)?;
            self.backend.start_operation(work, 0, graph)?;
            self.backend.await_completion()?;
            if let Some(fault) = self.plan.request.fault.filter(|fault| fault.rank == self.world.rank()) {
                self.backend.corrupt_result(work, *self.seed, fault.index)?;
            }
            let found = self.backend.check_result(work, *self.seed)?;
            // A rank with wrong data does not skip verifications, because the others wait for it.
            if wrong.wrong == 0 {
                wrong = found;
            }
        }
        Ok(wrong)
    }

    /// Runs the check on the stream, eager and as a graph, and adds its findings to those of the
    /// verification.
    fn verify_on_stream(
        &mut self,
        work: &RankWork,
        count: usize,
        found: &mut BackendResult,
    ) -> anyhow::Result<()> {
        let world = self.world;
        let barrier = || Ok(world.barrier()?);
        let corrupt_index =
            self.plan.request.fault.filter(|fault| fault.rank == world.rank()).map(|fault| fault.index);
        for make in [StreamRounds::eager_rounds, StreamRounds::graph_rounds] {
            let rounds = StreamRounds { corrupt_index, ..make(count, *self.seed + 1) };
            *self.seed += rounds.rounds as u64;
            if !self.is_verified(work) {
                // Only the results of another group are verified.
                barrier()?;
            } else if let Some(tally) = self.backend.check_on_stream(work, &rounds, &barrier)? {
                found.add_tally(&rounds, tally);
            }
        }
        Ok(())
    }
}

fn describe_work(work: &RankWork) -> String {
    let op = work.op.map(|op| format!(" {}", op.operator_name())).unwrap_or_default();
    let position = match work.placement {
        Placement::OutOfPlace => "out of place",
        Placement::InPlace => "in place",
    };
    format!(
        "{} {}{op} of {} bytes, {position}",
        work.collective,
        work.data_type.name(),
        work.reported_bytes()
    )
}

/// The measurement of a group, and the operation of its first rank.
type GroupMeasurement = (Measurement, RankWork);

/// A signal that ends the sweep.
struct Stopping {
    signal: Signal,
    /// The ranks that it has reached, if there are processes that no signal has reached.
    reached: Option<Vec<usize>>,
}

/// Ranks of the processes that a signal has reached; `None` if each process has a signal.
fn find_reached_ranks(signal: Signal, ranks: &[RankResult]) -> Option<Vec<usize>> {
    let shares =
        |one: &RankResult, other: &RankResult| (&one.host, one.process) == (&other.host, other.process);
    if ranks.iter().all(|rank| ranks.iter().any(|other| shares(rank, other) && other.stop.is_some())) {
        return None;
    }
    let is_reached = |rank: &RankResult| {
        ranks.iter().any(|other| shares(rank, other) && other.stop == Some(signal as i32))
    };
    Some((0..ranks.len()).filter(|&rank| is_reached(&ranks[rank])).collect())
}
