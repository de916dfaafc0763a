//! One rank's way through the sweep of one case: what it does when, and with whom it waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::world::World;
use serde::{Deserialize, Serialize};

use super::finding::{self, Finding, Found, Round, Rounds, reduce};
use super::repeat::{fitting, is_stable};
use super::{Case, End, Event, Plan, RankObserver, decode};
use crate::backend::{Backend, Place, Schedule, Side, StreamRounds, Times, Work};
use crate::collective::{Collective, Layout as _, Member};
use crate::data::Mismatches;
use crate::data::traffic::Traffic;
use crate::supervision::Signal;
use record::statistics::median;
use record::{Measurement, Placement};

/// The seed of the data that timed operations move.
pub(super) const TIMING_SEED: u64 = 99;
/// What one size may take when nothing else ends the rounds.
const DEFAULT_BUDGET: Duration = Duration::from_secs(5);

/// The sweep of one case.
pub(super) struct RankSweep<'a> {
    pub(super) plan: &'a Plan,
    pub(super) world: &'a dyn World,
    pub(super) place: Place,
    pub(super) backend: &'a mut dyn Backend,
    pub(super) observer: &'a mut dyn RankObserver,
    pub(super) case: Case,
    pub(super) seed: &'a mut u64,
}

impl RankSweep<'_> {
    pub(super) fn run(&mut self) -> anyhow::Result<End> {
        let sweep = self.plan.sweep;
        self.observer.phase(&|| format!("the warm-up of {}", self.case.collective));
        self.world.barrier()?;
        // Also where nothing is verified: times depend on the data. And what it needs to load, it loads here.
        self.backend.fill(&self.work(sweep.max), Placement::OutOfPlace, TIMING_SEED)?;
        for &side in self.sides(Placement::OutOfPlace) {
            self.turn(side)?;
            for bytes in sweep.warm_up_sizes() {
                let work = self.work(bytes);
                for index in 0..self.plan.request.warm_up {
                    self.backend.start(&work, Placement::OutOfPlace, index, false)?;
                }
                self.backend.complete()?;
            }
        }
        let mut cycle = 0;
        while self.plan.request.cycles == 0 || cycle < self.plan.request.cycles {
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
        let traffic = (collective == Collective::AllToAllV).then(|| {
            Arc::new(Traffic::new(&self.plan.request.variables.pattern, bytes, data_type, member.ranks))
        });
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
        if plan.request.checks > 0 {
            self.backend.fill(work, placement, TIMING_SEED)?;
        }
        let alike = plan.schedule().aggregated <= 1 && plan.schedule().graph_launches == 0;
        self.observer.listen(alike);
        for &side in sides {
            self.turn(side)?;
            self.backend.start(work, placement, 0, false)?;
            self.backend.complete()?;
        }
        self.observer.listen(false);
        self.observer.phase(&|| format!("the timed operations of {}", name()));
        let (rounds, stable) = self.rounds(work, placement)?;
        let operations = rounds.first().map_or(0, |ours| ours.operations);
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
        let verified = plan.request.checks > 0
            && work.has_elements()
            && (placement == Placement::OutOfPlace || work.collective.has_in_place());
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
        if verified && let Some(count) = plan.request.stream_checks {
            self.observer.phase(&|| format!("the check on the stream of {}", name()));
            self.verify_on_stream(work, placement, count, &mut found[0])?;
        }

        let finding = Finding {
            process: std::process::id(),
            host: collectives::world::host().id,
            enqueue: rounds.first().and_then(|ours| median(&ours.enqueue)).unwrap_or(0.0),
            each_us,
            sides: found,
            stop: self.observer.stop().map(Signal::number),
        };
        let findings = self.exchange(&finding)?;
        let stop = findings.iter().filter_map(|finding| Signal::from_number(finding.stop?)).max();
        let mut measurement =
            finding::measurement(plan, work, placement, cycle, operations, verified, &findings);
        measurement.stable = stable;
        measurement.algorithm = match chosen {
            None => self.observer.algorithm(work, plan.schedule().aggregated)?,
            chosen => chosen,
        };
        Ok((measurement, stop))
    }

    /// Runs the schedule of each side, once or in rounds: so many, or until the medians are stable. Returns also whether
    /// the medians are stable, with `--until-stable`.
    fn rounds(&mut self, work: &Work, placement: Placement) -> anyhow::Result<(Vec<Rounds>, Option<bool>)> {
        let plan = self.plan;
        let begun = Instant::now();
        let budget = plan.request.budget.unwrap_or(DEFAULT_BUDGET);
        let mut schedule = plan.schedule();
        if plan.request.budget.is_some() {
            schedule.iterations = self.affordable(work, placement, budget)?;
        }
        let operations = schedule.operations();
        let mut sides: Vec<(Side, Rounds)> =
            self.sides(placement).iter().map(|&side| (side, Rounds::default())).collect();
        let mut common = vec![Vec::new(); sides.len()];
        let mut stable = plan.request.until_stable.map(|_| false);
        for round in 1.. {
            for (side, rounds) in &mut sides {
                self.turn(*side)?;
                rounds.add(self.timed(work, placement, &schedule)?, operations);
            }
            if plan.request.until_stable.is_none() && round >= plan.request.rounds {
                break;
            }
            if plan.request.until_stable.is_some() || plan.request.budget.is_some() {
                let over = begun.elapsed() >= budget;
                let seconds = sides.iter().filter_map(|(_, rounds)| rounds.seconds.last().copied());
                // All ranks decide by the same numbers.
                let all = self.exchange(&Round { seconds: seconds.collect(), over })?;
                for (side, common) in common.iter_mut().enumerate() {
                    let times = all.iter().map(|round| round.seconds.get(side).copied().unwrap_or(f64::NAN));
                    common.push(reduce(plan.request.average, times));
                }
                stable = plan
                    .request
                    .until_stable
                    .map(|share| common.iter().all(|rounds| is_stable(rounds, share)));
                if stable == Some(true) || all.iter().any(|round| round.over) {
                    break;
                }
            }
            // Who was last in this round is first in the next.
            sides.reverse();
            common.reverse();
        }
        sides.sort_by_key(|(side, _)| *side == Side::Theirs);
        Ok((sides.into_iter().map(|(_, rounds)| rounds).collect(), stable))
    }

    /// How many iterations fit into the budget, at most as many as the schedule has: the same on every rank.
    fn affordable(&mut self, work: &Work, placement: Placement, budget: Duration) -> anyhow::Result<usize> {
        let schedule = self.plan.schedule();
        let rounds = if self.plan.request.until_stable.is_some() { 1 } else { self.plan.request.rounds };
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
        let schedule = self.plan.schedule();
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
        if !self.plan.request.statistics || !rounds.each_us.is_empty() {
            return Ok(rounds.each_us.clone());
        }
        let schedule = Schedule { graph_launches: 0, each: true, ..self.plan.schedule() };
        Ok(self.timed(work, placement, &schedule)?.each_us)
    }

    fn verify(&mut self, work: &Work, placement: Placement) -> anyhow::Result<Mismatches> {
        let graph = self.plan.schedule().graph_launches > 0;
        let mut wrong = Mismatches::default();
        for _ in 0..self.plan.request.checks {
            *self.seed += 1;
            self.backend.fill(work, placement, *self.seed)?;
            self.backend.start(work, placement, 0, graph)?;
            self.backend.complete()?;
            if let Some(fault) = self.plan.request.fault.filter(|fault| fault.rank == self.world.rank()) {
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

    /// The check on the stream, eager and as a graph. What it finds is added to what the verification has found.
    fn verify_on_stream(
        &mut self,
        work: &Work,
        placement: Placement,
        count: usize,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        let world = self.world;
        let barrier = || Ok(world.barrier()?);
        let damaged =
            self.plan.request.fault.filter(|fault| fault.rank == world.rank()).map(|fault| fault.index);
        for make in [StreamRounds::eager, StreamRounds::graph] {
            let rounds = StreamRounds { damaged, ..make(count, *self.seed + 1) };
            *self.seed += rounds.rounds as u64;
            if let Some(tally) = self.backend.check_on_stream(work, placement, &rounds, &barrier)? {
                found.add(&rounds, tally);
            }
        }
        Ok(())
    }

    fn exchange<T: Serialize + for<'de> Deserialize<'de>>(&self, own: &T) -> anyhow::Result<Vec<T>> {
        decode(&self.world.all_gather(&serde_json::to_vec(own)?)?)
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
