//! The measurement: which operations run when, what is timed, and when results are verified.
//!
//! It follows nccl-tests so that numbers compare: warm-up over a ladder of sizes, then per size and placement one
//! untimed operation, a barrier, the timed iterations on the wall clock of every rank, and verification in a run of its
//! own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::DataType;
use collectives::world::World;
use serde::{Deserialize, Serialize};

use crate::backend::{Abilities, Backend, MemoryUse, Place, Schedule, Side, Times, Work};
use crate::cli::{Fault, Roots, Settings};
use crate::collective::{Bandwidth, Collective, Member};
use crate::data::{Mismatches, Op};
use crate::files::provenance::now_utc;
use crate::interrupt::Signal;
use crate::record::{Algorithm, Average, Measurement, Mismatch, PerIteration, Placement, RankTimes, Versus};
use crate::size::Sweep;
use crate::statistics::Statistics;
use crate::traffic::{Pattern, Traffic};

/// The seed of the data that timed operations move.
const TIMING_SEED: u64 = 99;
/// Rounds that a median needs before anything is said of how well it is known.
const LEAST_ROUNDS: usize = 6;
/// What one size may take when nothing else ends the rounds.
const DEFAULT_BUDGET: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which collectives, one after the other.
    pub collectives: Vec<Collective>,
    /// Over which sizes.
    pub sweep: Sweep,
    /// Of which types.
    pub data_types: Vec<DataType>,
    /// With which operators, where the collective has one.
    pub ops: Vec<Op>,
    /// With which roots, where the collective has one.
    pub roots: Roots,
    /// Who sends how much to whom in alltoallv.
    pub pattern: Pattern,
    /// Warm-up operations per size.
    pub warm_up: usize,
    /// The timed operations per size and placement.
    pub schedule: Schedule,
    /// Iterations left out of the statistics.
    pub skip: usize,
    /// Whether each iteration shall be timed in a run of its own when the schedule does not do it.
    pub statistics: bool,
    /// How the ranks' times become one.
    pub average: Average,
    /// Whether bandwidths are those of the time to enqueue.
    pub cpu_time: bool,
    /// Verifications per size and placement.
    pub checks: usize,
    /// Runs of all sizes; 0: without end.
    pub cycles: usize,
    /// Rounds of the timed operations, at least 1, of which the median counts.
    pub rounds: usize,
    /// What the other side can do that is measured in turn with the backend, round by round.
    pub versus: Option<Abilities>,
    /// Repeat each measurement until its median is known this well, whatever `rounds` says.
    pub until_stable: Option<f64>,
    /// What one measurement may take.
    pub budget: Option<Duration>,
    /// One element to damage before each verification.
    pub fault: Option<Fault>,
    /// Whether GPU memory is reported.
    pub memory_report: bool,
    /// Collectives that are measured with two buffers only.
    pub out_of_place_only: Vec<Collective>,
}

impl Plan {
    /// What `settings` ask for, up to the size that all ranks have memory for.
    #[must_use]
    pub fn new(settings: &Settings, max_bytes: u64) -> Self {
        Self {
            collectives: settings.collectives.clone(),
            sweep: Sweep { min: settings.min_bytes, max: max_bytes, step: settings.step },
            data_types: settings.data_types.clone(),
            ops: settings.ops.clone(),
            roots: settings.roots,
            pattern: settings.variables.pattern.clone(),
            warm_up: settings.warm_up,
            schedule: Schedule {
                iterations: settings.iterations,
                aggregated: settings.aggregated,
                blocking: settings.blocking,
                graph_launches: settings.graph_launches,
                each: settings.per_iteration,
            },
            skip: settings.per_iteration_skip,
            statistics: settings.per_iteration || settings.stats || !settings.outputs.is_empty(),
            average: settings.average,
            cpu_time: settings.cpu_time,
            checks: settings.checks,
            cycles: settings.cycles,
            rounds: settings.rounds,
            versus: None,
            until_stable: settings.until_stable,
            budget: settings.budget,
            fault: settings.fault,
            memory_report: settings.memory_report,
            out_of_place_only: Vec::new(),
        }
    }

    /// Where the input of a collective is, one after the other.
    #[must_use]
    pub fn placements(&self, collective: Collective) -> &'static [Placement] {
        let both = &[Placement::OutOfPlace, Placement::InPlace];
        if self.out_of_place_only.contains(&collective) { &both[..1] } else { both }
    }
}

/// What happens in a sweep, in order; the same on every rank.
#[derive(Debug)]
pub enum Event<'a> {
    /// The measurements of a collective follow.
    Begin(Collective),
    /// One placement of one row.
    Measured(&'a Measurement, &'a Work),
    /// A collective is left out, and why.
    LeftOut(Collective, String),
    /// All measurements of a collective have been taken. With the most GPU memory that a rank has taken, where that was
    /// asked for.
    End(Option<MemoryUse>),
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was measured.
    Complete,
    /// Some rank was asked to stop, by this signal.
    Stopped(Signal),
}

/// What a sweep asks of its surroundings.
pub trait Observer {
    /// Sees each event.
    ///
    /// # Errors
    /// Ends the sweep.
    fn event(&mut self, event: Event<'_>) -> anyhow::Result<()>;

    /// What this rank is about to do: for those who watch it.
    fn phase(&self, _what: &dyn Fn() -> String) {}

    /// What this rank does now may take as long as it likes.
    fn unlimited(&self, _what: &'static str) {}

    /// The signal for which the sweep shall end after this measurement.
    fn stop(&self) -> Option<Signal> {
        None
    }

    /// A measurement begins.
    ///
    /// # Errors
    /// Ends the sweep.
    fn before(&mut self, _work: &Work) -> anyhow::Result<()> {
        Ok(())
    }

    /// Operations that are not timed begin or end, of which it can be learned how they are carried out.
    fn listen(&mut self, _on: bool) {}

    /// How the operations since then were carried out, `aggregated` of them in a group, where that is known.
    ///
    /// # Errors
    /// Ends the sweep.
    fn algorithm(&mut self, _work: &Work, _aggregated: usize) -> anyhow::Result<Option<Algorithm>> {
        Ok(None)
    }
}

/// Runs the sweep as one rank of `world`. Every rank calls it with the same plan.
///
/// # Errors
/// When the backend or another rank fails, or the observer does.
pub fn run(
    plan: &Plan,
    world: &dyn World,
    place: Place,
    backend: &mut dyn Backend,
    observer: &mut dyn Observer,
) -> anyhow::Result<End> {
    let mut seed = TIMING_SEED;
    for &collective in &plan.collectives {
        if !collective.runs_over(place.ranks) {
            let reason = format!("it needs a power of two of ranks, and there are {}", place.ranks);
            observer.event(Event::LeftOut(collective, reason))?;
            continue;
        }
        observer.event(Event::Begin(collective))?;
        for case in cases(plan, collective, place) {
            let mut rank = RankSweep { plan, world, place, backend, observer, case, seed: &mut seed };
            if let End::Stopped(signal) = rank.run()? {
                return Ok(End::Stopped(signal));
            }
        }
        let memory = if plan.memory_report { most_memory(world, backend)? } else { None };
        observer.event(Event::End(memory))?;
    }
    Ok(End::Complete)
}

/// The most that any rank has taken of each kind.
fn most_memory(world: &dyn World, backend: &dyn Backend) -> anyhow::Result<Option<MemoryUse>> {
    let own = backend.memory_use().unwrap_or_default();
    let all: Vec<MemoryUse> = decode(&world.all_gather(&serde_json::to_vec(&own)?)?)?;
    Ok(all.into_iter().reduce(|one, other| MemoryUse {
        initialization: one.initialization.max(other.initialization),
        buffers: one.buffers.max(other.buffers),
        operations: one.operations.max(other.operations),
    }))
}

/// What does not change over the sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    collective: Collective,
    data_type: DataType,
    op: Option<Op>,
    root: Option<usize>,
}

/// All of a collective: types, of each the operators, of each the roots.
pub(crate) fn cases(plan: &Plan, collective: Collective, place: Place) -> Vec<Case> {
    let ops: Vec<Option<Op>> =
        if collective.loops_over_ops() { plan.ops.iter().copied().map(Some).collect() } else { vec![None] };
    let roots: Vec<Option<usize>> = match plan.roots {
        _ if !collective.has_root() => vec![None],
        Roots::One(root) => vec![Some(root)],
        Roots::All => (0..place.ranks).map(Some).collect(),
    };
    let mut cases = Vec::new();
    for &data_type in &plan.data_types {
        for &op in &ops {
            cases.extend(roots.iter().map(|&root| Case { collective, data_type, op, root }));
        }
    }
    cases
}

/// The sweep of one case.
struct RankSweep<'a> {
    plan: &'a Plan,
    world: &'a dyn World,
    place: Place,
    backend: &'a mut dyn Backend,
    observer: &'a mut dyn Observer,
    case: Case,
    seed: &'a mut u64,
}

impl RankSweep<'_> {
    fn run(&mut self) -> anyhow::Result<End> {
        let sweep = self.plan.sweep;
        self.observer.phase(&|| format!("the warm-up of {}", self.case.collective));
        self.world.barrier()?;
        // Also where nothing is verified: times depend on the data. And what it needs to load, it loads here.
        self.backend.fill(&self.work(sweep.max), Placement::OutOfPlace, TIMING_SEED)?;
        for &side in self.sides(Placement::OutOfPlace) {
            self.turn(side)?;
            for bytes in sweep.warm_up_sizes() {
                let work = self.work(bytes);
                for index in 0..self.plan.warm_up {
                    self.backend.start(&work, Placement::OutOfPlace, index, false)?;
                }
                self.backend.complete()?;
            }
        }
        let mut cycle = 0;
        while self.plan.cycles == 0 || cycle < self.plan.cycles {
            for bytes in sweep.sizes() {
                let work = self.work(bytes);
                for &placement in self.plan.placements(work.collective) {
                    let (measurement, stop) = self.measure(&work, placement, cycle)?;
                    self.observer.unlimited("writing the report");
                    self.observer.event(Event::Measured(&measurement, &work))?;
                    if let Some(signal) = stop {
                        return Ok(End::Stopped(signal));
                    }
                }
            }
            cycle += 1;
        }
        Ok(End::Complete)
    }

    fn work(&self, bytes: u64) -> Work {
        let Case { collective, data_type, op, root } = self.case;
        let member = Member { rank: self.place.rank, ranks: self.place.ranks, root };
        let traffic = (collective == Collective::AllToAllV)
            .then(|| Arc::new(Traffic::new(&self.plan.pattern, bytes, data_type, member.ranks)));
        let counts = collective.counts(bytes, data_type, member, traffic.as_deref());
        Work { collective, data_type, op, member, counts, traffic }
    }

    /// Who measures: ours, and theirs where there is one that can do the same.
    fn sides(&self, placement: Placement) -> &'static [Side] {
        let both = &[Side::Ours, Side::Theirs];
        let theirs = self.plan.versus.as_ref().is_some_and(|theirs| {
            placement == Placement::OutOfPlace || !theirs.out_of_place_only.contains(&self.case.collective)
        });
        if theirs { both } else { &both[..1] }
    }

    /// Gives a side its turn, when every rank is done with what the other side did: until then that one may have to be
    /// called for other ranks' operations to end.
    fn turn(&mut self, side: Side) -> anyhow::Result<()> {
        if self.plan.versus.is_some() {
            self.world.barrier()?;
            self.backend.turn(side);
        }
        Ok(())
    }

    fn measure(
        &mut self,
        work: &Work,
        placement: Placement,
        cycle: usize,
    ) -> anyhow::Result<(Measurement, Option<Signal>)> {
        let (plan, sides) = (self.plan, self.sides(placement));
        let name = || describe(work, placement);
        self.observer.phase(&|| format!("the untimed operation of {}", name()));
        self.observer.before(work)?;
        if plan.checks > 0 {
            self.backend.fill(work, placement, TIMING_SEED)?;
        }
        let alike = plan.schedule.aggregated <= 1 && plan.schedule.graph_launches == 0;
        self.observer.listen(alike);
        for &side in sides {
            self.turn(side)?;
            self.backend.start(work, placement, 0, false)?;
            self.backend.complete()?;
        }
        self.observer.listen(false);
        self.observer.phase(&|| format!("the timed operations of {}", name()));
        let (operations, rounds) = self.rounds(work, placement)?;
        self.turn(Side::Ours)?;
        let chosen = self.backend.algorithm(work, placement);
        let each_us = match rounds.first() {
            Some(ours) => self.each(work, placement, ours)?,
            None => Vec::new(),
        };
        if !alike {
            self.observer.phase(&|| format!("one more untimed iteration of {}", name()));
            self.listen(work, placement)?;
        }
        let verified =
            plan.checks > 0 && (placement == Placement::OutOfPlace || work.collective.has_in_place());
        self.observer.phase(&|| format!("the verification of {}", name()));
        let mut found = Vec::with_capacity(sides.len());
        for (&side, rounds) in sides.iter().zip(&rounds) {
            self.turn(side)?;
            let wrong = if verified { self.verify(work, placement)? } else { Mismatches::default() };
            found.push(Found {
                seconds: rounds.seconds.clone(),
                wrong: wrong.wrong,
                first: wrong.first.map(|first| first.to_string()).unwrap_or_default(),
            });
        }

        let finding = Finding {
            process: std::process::id(),
            host: collectives::world::host().id,
            enqueue: rounds.first().map_or(0.0, |ours| median(&ours.enqueue)),
            each_us,
            sides: found,
            stop: self.observer.stop().map(Signal::number),
        };
        let findings = self.exchange(&finding)?;
        let stop = findings.iter().filter_map(|finding| Signal::from_number(finding.stop?)).max();
        let mut measurement = self.measurement(work, placement, cycle, operations, verified, &findings);
        measurement.algorithm = match chosen {
            None => self.observer.algorithm(work, plan.schedule.aggregated)?,
            chosen => chosen,
        };
        Ok((measurement, stop))
    }

    /// Runs the schedule of each side, once or in rounds: so many, or until the medians are stable. With how many operations
    /// each side made.
    fn rounds(&mut self, work: &Work, placement: Placement) -> anyhow::Result<(usize, Vec<Rounds>)> {
        let plan = self.plan;
        let begun = Instant::now();
        let budget = plan.budget.unwrap_or(DEFAULT_BUDGET);
        let mut schedule = plan.schedule;
        if plan.budget.is_some() {
            schedule.iterations = self.affordable(work, placement, budget)?;
        }
        let operations = schedule.operations();
        let mut sides: Vec<(Side, Rounds)> =
            self.sides(placement).iter().map(|&side| (side, Rounds::default())).collect();
        let mut common = vec![Vec::new(); sides.len()];
        for round in 1.. {
            for (side, rounds) in &mut sides {
                self.turn(*side)?;
                rounds.add(self.timed(work, placement, &schedule)?, operations);
            }
            let enough = match plan.until_stable {
                None => round >= plan.rounds,
                Some(share) => {
                    let over = begun.elapsed() >= budget;
                    let seconds = sides.iter().filter_map(|(_, rounds)| rounds.seconds.last().copied());
                    // All ranks decide by the same numbers.
                    let all = self.exchange(&Round { seconds: seconds.collect(), over })?;
                    for (side, common) in common.iter_mut().enumerate() {
                        common.push(reduce(
                            plan.average,
                            all.iter().map(|round| round.seconds.get(side).copied().unwrap_or(f64::NAN)),
                        ));
                    }
                    all.iter().any(|round| round.over) || common.iter().all(|rounds| is_stable(rounds, share))
                }
            };
            if enough {
                break;
            }
            // Who was last in this round is first in the next.
            sides.reverse();
            common.reverse();
        }
        sides.sort_by_key(|(side, _)| *side == Side::Theirs);
        let rounds: Vec<Rounds> = sides.into_iter().map(|(_, rounds)| rounds).collect();
        Ok((operations * rounds.first().map_or(0, |ours| ours.seconds.len()), rounds))
    }

    /// How many iterations fit into the budget, at most as many as the schedule has: the same on every rank.
    fn affordable(&mut self, work: &Work, placement: Placement, budget: Duration) -> anyhow::Result<usize> {
        let schedule = self.plan.schedule;
        let rounds = if self.plan.until_stable.is_some() { 1 } else { self.plan.rounds };
        let launches = schedule.graph_launches.max(1) * rounds;
        fitting(budget.as_secs_f64() / launches as f64, schedule.iterations, |iterations| {
            let trial = Schedule { iterations, graph_launches: 0, each: false, ..schedule };
            let mut seconds = Vec::new();
            for &side in self.sides(placement) {
                self.turn(side)?;
                seconds.push(self.timed(work, placement, &trial)?.total.as_secs_f64());
            }
            let all = self.exchange(&Round { seconds, over: false })?;
            Ok(all.iter().map(|round| round.seconds.iter().sum()).fold(f64::MIN_POSITIVE, f64::max))
        })
    }

    fn timed(&mut self, work: &Work, placement: Placement, schedule: &Schedule) -> anyhow::Result<Times> {
        let world = self.world;
        let barrier = || Ok(world.barrier()?);
        barrier()?;
        let times = self.backend.time(work, placement, schedule, &barrier)?;
        barrier()?;
        Ok(times)
    }

    /// One iteration to learn from how operations of a group or of a graph are carried out, which may be unlike one alone.
    /// It comes after what is timed, so that it does not change that.
    fn listen(&mut self, work: &Work, placement: Placement) -> anyhow::Result<()> {
        let schedule = self.plan.schedule;
        let graph_launches = schedule.graph_launches.min(1);
        let one = Schedule { iterations: 1, graph_launches, each: false, ..schedule };
        self.observer.listen(true);
        self.timed(work, placement, &one)?;
        self.observer.listen(false);
        Ok(())
    }

    /// The times of each iteration: of the timed ones, or of a run of its own, so that timing each of them does not
    /// change what the table shows.
    fn each(&mut self, work: &Work, placement: Placement, rounds: &Rounds) -> anyhow::Result<Vec<f64>> {
        if !self.plan.statistics || !rounds.each_us.is_empty() {
            return Ok(rounds.each_us.clone());
        }
        let schedule = Schedule { graph_launches: 0, each: true, ..self.plan.schedule };
        Ok(self.timed(work, placement, &schedule)?.each_us)
    }

    fn verify(&mut self, work: &Work, placement: Placement) -> anyhow::Result<Mismatches> {
        let graph = self.plan.schedule.graph_launches > 0;
        let mut wrong = Mismatches::default();
        for _ in 0..self.plan.checks {
            *self.seed += 1;
            self.backend.fill(work, placement, *self.seed)?;
            self.backend.start(work, placement, 0, graph)?;
            self.backend.complete()?;
            if let Some(fault) = self.plan.fault.filter(|fault| fault.rank == self.world.rank()) {
                self.backend.damage(work, placement, fault.index)?;
            }
            let found = self.backend.check(work, placement, *self.seed)?;
            // No rank leaves out a verification because of what it found: the others are waiting for it in the next one.
            if wrong.wrong == 0 {
                wrong = found;
            }
        }
        Ok(wrong)
    }

    fn exchange<T: Serialize + for<'de> Deserialize<'de>>(&self, own: &T) -> anyhow::Result<Vec<T>> {
        decode(&self.world.all_gather(&serde_json::to_vec(own)?)?)
    }

    fn measurement(
        &self,
        work: &Work,
        placement: Placement,
        cycle: usize,
        operations: usize,
        verified: bool,
        findings: &[Finding],
    ) -> Measurement {
        let (plan, collective) = (self.plan, work.collective);
        let moved = collective.moved(&work.counts, work.data_type, work.member.ranks);
        let side = |side: Side| -> Option<Taken> {
            let ranks: Option<Vec<&Found>> =
                findings.iter().map(|finding| finding.sides.get(side as usize)).collect();
            Some(Taken::of(&ranks?, plan.average, verified))
        };
        let ours = side(Side::Ours).unwrap_or_default();
        let bandwidth = |taken: &Taken| Bandwidth::new(collective, moved, taken.seconds, work.member.ranks);
        let versus = side(Side::Theirs).map(|theirs| {
            let Bandwidth { algorithm, bus } = bandwidth(&theirs);
            Versus {
                time_us: theirs.seconds * 1e6,
                algbw_gbps: algorithm,
                busbw_gbps: bus,
                ratio: ours.seconds / theirs.seconds,
                best_ratio: ours.best / theirs.best,
                rounds_us: theirs.rounds_us,
                wrong: theirs.wrong,
                mismatches: theirs.mismatches,
            }
        });
        let bandwidth = bandwidth(&ours);
        let skipped = |times: &[f64]| Statistics::of(times.get(plan.skip..).unwrap_or_default());
        let times_us = longest(findings.iter().map(|finding| &finding.each_us[..]));
        let per_rank = findings
            .iter()
            .map(|finding| RankTimes {
                time_us: finding.sides.first().map_or(0.0, |ours| median(&ours.seconds)) * 1e6,
                statistics: skipped(&finding.each_us),
            })
            .collect();
        Measurement {
            collective: collective.name().to_owned(),
            cycle,
            data_type: work.data_type.name().to_owned(),
            op: work.op.map(|op| op.name().to_owned()),
            root: work.member.root,
            placement,
            bytes: work.bytes() as u64,
            count: work.counts.parameter as u64,
            time_us: ours.seconds * 1e6,
            cpu_time_us: plan.cpu_time.then(|| findings[0].enqueue * 1e6),
            algbw_gbps: bandwidth.algorithm,
            busbw_gbps: bandwidth.bus,
            wrong: ours.wrong,
            operations,
            rounds_us: ours.rounds_us,
            versus,
            statistics: skipped(&times_us),
            per_iteration: plan.schedule.each.then(|| PerIteration {
                skipped: plan.skip,
                processes_us: processes(findings),
                times_us,
            }),
            per_rank,
            algorithm: None,
            mismatches: ours.mismatches,
            measured_at: now_utc(),
        }
    }
}

/// What is being measured, for messages.
fn describe(work: &Work, placement: Placement) -> String {
    let op = work.op.map(|op| format!(" {}", op.name())).unwrap_or_default();
    let place = match placement {
        Placement::OutOfPlace => "out of place",
        Placement::InPlace => "in place",
    };
    format!("{} {}{op} of {} bytes, {place}", work.collective, work.data_type.name(), work.bytes())
}

/// What the rounds of one side took on this rank.
#[derive(Default)]
struct Rounds {
    /// Seconds per operation of each.
    seconds: Vec<f64>,
    /// Seconds per operation to enqueue it, of each.
    enqueue: Vec<f64>,
    /// Of the last one.
    each_us: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, times: Times, operations: usize) {
        let per_operation = |time: Duration| time.as_secs_f64() / operations as f64;
        self.seconds.push(per_operation(times.total));
        self.enqueue.push(per_operation(times.enqueue));
        self.each_us = times.each_us;
    }
}

/// What one side took, over all ranks.
#[derive(Default)]
struct Taken {
    /// Per operation: the ranks' medians, made one.
    seconds: f64,
    /// Per operation of the shortest round.
    best: f64,
    /// Of each round, where there are several.
    rounds_us: Vec<f64>,
    wrong: Option<u64>,
    mismatches: Vec<Mismatch>,
}

impl Taken {
    fn of(ranks: &[&Found], average: Average, verified: bool) -> Self {
        let count = ranks.iter().map(|found| found.seconds.len()).min().unwrap_or(0);
        let rounds: Vec<f64> =
            (0..count).map(|round| reduce(average, ranks.iter().map(|found| found.seconds[round]))).collect();
        let mismatches = ranks.iter().enumerate().filter(|(_, found)| found.wrong > 0);
        Self {
            seconds: reduce(average, ranks.iter().map(|found| median(&found.seconds))),
            best: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            rounds_us: if count > 1 {
                rounds.iter().map(|seconds| seconds * 1e6).collect()
            } else {
                Vec::new()
            },
            wrong: verified.then(|| ranks.iter().map(|found| found.wrong).sum()),
            mismatches: mismatches
                .map(|(rank, found)| Mismatch { rank, wrong: found.wrong, first: found.first.clone() })
                .collect(),
        }
    }
}

/// What one rank tells the others after a round.
#[derive(Debug, Serialize, Deserialize)]
struct Round {
    /// Per operation, of each side.
    seconds: Vec<f64>,
    over: bool,
}

/// What one rank tells the others after a measurement.
#[derive(Debug, Serialize, Deserialize)]
struct Finding {
    process: u32,
    host: String,
    /// Per operation.
    enqueue: f64,
    each_us: Vec<f64>,
    /// Ours, then theirs where it has measured, too.
    sides: Vec<Found>,
    /// The number of a signal.
    stop: Option<i32>,
}

/// What one rank found of one side.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    /// Per operation, of each round.
    seconds: Vec<f64>,
    wrong: u64,
    first: String,
}

fn decode<T: for<'de> Deserialize<'de>>(messages: &[Vec<u8>]) -> anyhow::Result<Vec<T>> {
    Ok(messages.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}

/// How many iterations take at most `seconds`, from 1 to `most`; `trial` says what so many take. The last trial is of a
/// twentieth of them at least: a few say little of many, since waiting for the other ranks to begin counts for as much
/// as they do.
fn fitting(
    seconds: f64,
    most: usize,
    mut trial: impl FnMut(usize) -> anyhow::Result<f64>,
) -> anyhow::Result<usize> {
    let mut tried = 1;
    loop {
        let each = trial(tried)? / tried as f64;
        let fitting = ((seconds / each) as usize).clamp(1, most);
        if fitting / 20 <= tried {
            return Ok(fitting);
        }
        tried = fitting / 10;
    }
}

/// One time of all ranks'.
fn reduce(average: Average, times: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = times.len() as f64;
    match average {
        Average::Rank0 => times.clone().next().unwrap_or_default(),
        Average::Mean => times.sum::<f64>() / count,
        Average::Min => times.fold(f64::INFINITY, f64::min),
        Average::Max => times.fold(0.0, f64::max),
    }
}

/// Of each iteration the longest time.
fn longest<'a>(ranks: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut longest = Vec::new();
    for times in ranks {
        longest.resize(longest.len().max(times.len()), 0.0_f64);
        longest.iter_mut().zip(times).for_each(|(longest, time)| *longest = longest.max(*time));
    }
    longest
}

/// Of each process's ranks, of each iteration the longest time; none for a single process.
fn processes(findings: &[Finding]) -> Vec<Vec<f64>> {
    let processes: Vec<&[Finding]> =
        findings.chunk_by(|one, other| (one.process, &one.host) == (other.process, &other.host)).collect();
    if processes.len() < 2 {
        return Vec::new();
    }
    processes
        .into_iter()
        .map(|findings| longest(findings.iter().map(|finding| &finding.each_us[..])))
        .collect()
}

fn median(values: &[f64]) -> f64 {
    Statistics::of(values).map_or(0.0, |statistics| statistics.median_us)
}

/// Whether the median of the rounds is known as well as `share` of it: whether the 95 % confidence interval, from order
/// statistics (the binomial distribution, approximated by the normal one), is within it to both sides.
fn is_stable(rounds: &[f64], share: f64) -> bool {
    let count = rounds.len();
    if count < LEAST_ROUNDS {
        return false;
    }
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let reach = 1.96 * (count as f64).sqrt() / 2.0;
    let middle = count as f64 / 2.0;
    let lower = sorted[(middle - reach).floor().max(0.0) as usize];
    let upper = sorted[((middle + reach).ceil() as usize).min(count - 1)];
    let median = median(&sorted);
    upper - median <= share * median && median - lower <= share * median
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use collectives::world;

    use super::*;
    use crate::cli;

    #[test]
    fn the_ranks_times_become_one_as_asked() {
        let times = [3.0, 1.0, 2.0, 6.0];
        let reduced = [Average::Rank0, Average::Mean, Average::Min, Average::Max]
            .map(|average| reduce(average, times.iter().copied()));
        assert_eq!(reduced, [3.0, 3.0, 1.0, 6.0]);
    }

    #[test]
    fn an_iteration_lasts_as_long_as_its_slowest_rank() {
        let finding = |process, each_us: &[f64]| Finding {
            process,
            host: "here".to_owned(),
            enqueue: 0.0,
            each_us: each_us.to_vec(),
            sides: Vec::new(),
            stop: None,
        };
        let findings = [finding(7, &[1.0, 5.0]), finding(7, &[2.0, 4.0]), finding(8, &[3.0, 3.0])];
        assert_eq!(longest(findings.iter().map(|finding| &finding.each_us[..])), [3.0, 5.0]);
        assert_eq!(processes(&findings), [[2.0, 5.0], [3.0, 3.0]]);
        assert_eq!(processes(&findings[..2]), [[0.0; 0]; 0]);
    }

    #[test]
    fn a_median_is_stable_when_both_ends_of_its_interval_are_near() {
        let near: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 5) * 0.1).collect();
        assert!(is_stable(&near, 0.01));
        assert!(!is_stable(&near[..LEAST_ROUNDS - 1], 0.01));
        let spread: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 2) * 10.0).collect();
        assert!(!is_stable(&spread, 0.01));
        assert!(is_stable(&spread, 0.2));
        // A few outliers do not matter.
        let mut outliers = near;
        outliers[3] = 1000.0;
        assert!(is_stable(&outliers, 0.01));
    }

    /// What happens, in order.
    #[derive(Clone, Default)]
    struct Told(Rc<RefCell<Vec<&'static str>>>);

    impl Told {
        fn add(&self, what: &'static str) {
            self.0.borrow_mut().push(what);
        }
    }

    impl Backend for Told {
        fn fill(&mut self, _: &Work, _: Placement, _: u64) -> anyhow::Result<()> {
            Ok(())
        }

        fn turn(&mut self, side: Side) {
            self.add(if side == Side::Ours { "ours" } else { "theirs" });
        }

        fn start(&mut self, _: &Work, _: Placement, _: usize, graph: bool) -> anyhow::Result<()> {
            self.add(if graph { "start in a graph" } else { "start" });
            Ok(())
        }

        fn complete(&mut self) -> anyhow::Result<()> {
            self.add("complete");
            Ok(())
        }

        fn time(
            &mut self,
            _: &Work,
            _: Placement,
            schedule: &Schedule,
            _: &dyn Fn() -> anyhow::Result<()>,
        ) -> anyhow::Result<Times> {
            let Schedule { iterations, aggregated, graph_launches, .. } = *schedule;
            self.add(match (iterations, aggregated, graph_launches) {
                (5, ..) => "time",
                (1, 3, 0) => "one group",
                (1, 1, 1) => "one graph",
                _ => "something else",
            });
            Ok(Times::default())
        }

        fn damage(&mut self, _: &Work, _: Placement, _: usize) -> anyhow::Result<()> {
            Ok(())
        }

        fn check(&mut self, _: &Work, _: Placement, _: u64) -> anyhow::Result<Mismatches> {
            Ok(Mismatches::default())
        }
    }

    impl Observer for Told {
        fn event(&mut self, _: Event<'_>) -> anyhow::Result<()> {
            Ok(())
        }

        fn listen(&mut self, on: bool) {
            self.add(if on { "listen" } else { "stop listening" });
        }

        fn algorithm(&mut self, _: &Work, _: usize) -> anyhow::Result<Option<Algorithm>> {
            self.add("algorithm");
            Ok(None)
        }
    }

    fn plan(options: &str) -> Plan {
        let line = format!("nccl-bench allreduce -b 8 -e 8 -w 0 -n 5 -c 1 {options}");
        let cli::Command::Measure(settings) = cli::parse(line.split_whitespace()).unwrap() else {
            panic!("a measurement")
        };
        Plan::new(&settings, 8)
    }

    /// What happens in a sweep.
    fn all(plan: &Plan) -> Vec<&'static str> {
        let told = Told::default();
        let (mut backend, mut observer) = (told.clone(), told.clone());
        let place = Place { rank: 0, ranks: 1, color: 0 };
        run(plan, &*world::single(), place, &mut backend, &mut observer).unwrap();
        told.0.take()
    }

    /// What happens in the first measurement of a sweep.
    fn first(options: &str) -> Vec<&'static str> {
        let all = all(&plan(options));
        // The warm-up comes first.
        let end = all.iter().position(|&what| what == "algorithm").unwrap();
        all[1..end].to_vec()
    }

    #[test]
    fn nccl_is_listened_to_while_something_like_the_timed_operations_is_not_timed() {
        let off = "stop listening";
        assert_eq!(first(""), ["listen", "start", "complete", off, "time", "start", "complete"]);
        let untimed = [off, "start", "complete", off, "time"];
        let group = ["listen", "one group", off, "start", "complete"];
        assert_eq!(first("-m 3"), [untimed, group].concat());
        let graph = ["listen", "one graph", off, "start in a graph", "complete"];
        assert_eq!(first("-G 2"), [untimed, graph].concat());
    }

    #[test]
    fn two_sides_take_turns_and_the_last_of_a_round_is_the_first_of_the_next() {
        let mut plan = plan("--vs mpi --rounds 3");
        plan.versus = Some(Abilities::default());
        let work = |side| [side, "start", "complete"];
        let time = |side| [side, "time"];
        let placement = [
            &["listen"][..],
            &work("ours"),
            &work("theirs"),
            &["stop listening"],
            &[time("ours"), time("theirs"), time("theirs"), time("ours"), time("ours"), time("theirs")]
                .concat(),
            &["ours"],
            &work("ours"),
            &work("theirs"),
            &["algorithm"],
        ]
        .concat();
        let warm_up = ["ours", "complete", "theirs", "complete"];
        assert_eq!(all(&plan), [&warm_up[..], &placement, &placement].concat());
        // The other side cannot do it in place.
        plan.versus =
            Some(Abilities { out_of_place_only: vec![Collective::AllReduce], ..Abilities::default() });
        let alone = [
            &["listen"][..],
            &work("ours"),
            &["stop listening"],
            &time("ours").repeat(3),
            &["ours"],
            &work("ours"),
            &["algorithm"],
        ]
        .concat();
        assert_eq!(all(&plan), [&warm_up[..], &placement, &alone].concat());
    }

    #[test]
    fn what_fits_is_tried_with_so_many_that_a_late_start_hardly_counts() {
        let fits = |seconds, most, start: f64, each: f64| {
            let mut tried = Vec::new();
            let found = fitting(seconds, most, |iterations| {
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
    fn what_the_ranks_took_is_made_one_round_by_round() {
        let found =
            |seconds: [f64; 3], wrong| Found { seconds: seconds.to_vec(), wrong, first: "it".to_owned() };
        let ranks = [found([3.0, 1.0, 2.0], 0), found([5.0, 9.0, 6.0], 4)];
        let taken = Taken::of(&[&ranks[0], &ranks[1]], Average::Mean, true);
        // The mean of the medians; the shortest of the rounds' means.
        assert_eq!((taken.seconds, taken.best), (4.0, 4.0));
        assert_eq!(taken.rounds_us, [4e6, 5e6, 4e6]);
        assert_eq!(taken.wrong, Some(4));
        assert_eq!(taken.mismatches, [Mismatch { rank: 1, wrong: 4, first: "it".to_owned() }]);
        let slowest = Taken::of(&[&ranks[0], &ranks[1]], Average::Max, false);
        assert_eq!((slowest.seconds, slowest.best, slowest.wrong), (6.0, 5.0, None));
        let once = Found { seconds: vec![2.0], wrong: 0, first: String::new() };
        let once = Taken::of(&[&once], Average::Mean, true);
        assert_eq!((once.seconds, once.best, once.rounds_us), (2.0, 2.0, Vec::new()));
    }
}
