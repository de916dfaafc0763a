//! The results that ranks exchange after a measurement, and their combination.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SweepPlan;
use crate::backend::{BackendRole, StreamRounds, TimedLoop, Times};
use crate::collective::{Bandwidth, RankWork};
use crate::data::Tally;
use crate::groups::Groups;
use record::provenance::now_utc;
use record::statistics::{Statistics, find_median};
use record::{Algorithm, Average, Measurement, PerIteration, RankMismatch, RankTimes, Versus};

/// Times of the rounds of one backend on this rank.
#[derive(Default)]
pub(super) struct RankRounds {
    /// Iterations of a round.
    pub(super) iterations: usize,
    pub(super) operations: usize,
    /// Seconds per operation of each round.
    pub(super) seconds: Vec<f64>,
    /// Seconds to enqueue an operation, of each round.
    pub(super) enqueue: Vec<f64>,
    /// Microseconds per operation of each iteration of the last round.
    pub(super) each_us: Vec<f64>,
}

impl RankRounds {
    pub(super) fn add_round(&mut self, times: Times, timed_loop: &TimedLoop) {
        let operations = timed_loop.total_operations();
        let per_operation = |time: Duration| time.as_secs_f64() / operations as f64;
        self.iterations = timed_loop.iterations;
        self.operations += operations;
        self.seconds.push(per_operation(times.total));
        self.enqueue.push(per_operation(times.enqueue));
        self.each_us = times.each_us;
    }
}

/// Combined result of one backend over all ranks.
#[derive(Default)]
pub(super) struct JobResult {
    /// Seconds per operation: the ranks' medians, reduced to one.
    pub(super) seconds: f64,
    /// Seconds per operation of the shortest round.
    pub(super) best: f64,
    /// Microseconds per operation of each round; empty for a single round.
    pub(super) rounds_us: Vec<f64>,
    pub(super) wrong: Option<u64>,
    pub(super) mismatches: Vec<RankMismatch>,
}

impl JobResult {
    /// `ranks` has the number of each rank for the record, and its result.
    pub(super) fn from_ranks(ranks: &[(usize, &BackendResult)], average: Average, verified: bool) -> Self {
        let results = || ranks.iter().map(|&(_, found)| found);
        let count = results().map(|found| found.seconds.len()).min().unwrap_or(0);
        let rounds: Vec<f64> = (0..count)
            .map(|round| reduce_times(average, results().map(|found| found.seconds[round])))
            .collect();
        let mismatches = ranks.iter().filter(|(_, found)| found.wrong > 0);
        Self {
            seconds: reduce_times(average, results().map(|found| find_median(&found.seconds).unwrap_or(0.0))),
            best: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            rounds_us: if count > 1 {
                rounds.iter().map(|seconds| seconds * 1e6).collect()
            } else {
                Vec::new()
            },
            wrong: verified.then(|| results().map(|found| found.wrong).sum()),
            mismatches: mismatches
                .map(|&(rank, found)| RankMismatch { rank, wrong: found.wrong, first: found.first.clone() })
                .collect(),
        }
    }

    /// The record of a baseline with this result, beside that of the primary backend.
    fn into_versus(self, primary: &Self, bandwidth: Bandwidth) -> Versus {
        Versus {
            time_us: self.seconds * 1e6,
            algbw_gbps: bandwidth.algorithm,
            busbw_gbps: bandwidth.bus,
            ratio: primary.seconds / self.seconds,
            best_ratio: primary.best / self.best,
            rounds_us: self.rounds_us,
            wrong: self.wrong,
            mismatches: self.mismatches,
        }
    }
}

/// Message of one rank after a round.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RoundTimes {
    /// Seconds per operation, of each backend.
    pub(super) seconds: Vec<f64>,
    pub(super) over: bool,
}

/// Message of one rank after a measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RankResult {
    pub(super) process: u32,
    pub(super) host: String,
    /// Seconds to enqueue an operation.
    pub(super) enqueue: f64,
    pub(super) each_us: Vec<f64>,
    /// Results of the primary backend, then of the baseline, if it was measured.
    pub(super) backends: Vec<BackendResult>,
    /// The algorithm, if the backend has selected it.
    pub(super) algorithm: Option<Algorithm>,
    /// Number of the signal that this rank has received.
    pub(super) stop: Option<i32>,
}

/// Result of one backend on one rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BackendResult {
    /// Seconds per operation of each round.
    pub(super) seconds: Vec<f64>,
    pub(super) wrong: u64,
    pub(super) first: String,
}

impl BackendResult {
    pub(super) fn add_tally(&mut self, rounds: &StreamRounds, Tally { wrong, lowest }: Tally) {
        self.wrong = self.wrong.saturating_add(wrong);
        let way = if rounds.graph_launches == 0 { "eager" } else { "as a graph" };
        if !self.first.is_empty() {
            self.first.push_str("; ");
        }
        self.first.push_str(&format!(
            "element {lowest} (on the stream, {way}: {wrong} wrong in {} rounds, this one with the lowest \
             number)",
            rounds.total_rounds()
        ));
    }
}

/// The results of the ranks of a group, each with the number of the rank for the record.
pub(super) fn of_group<'a>(
    groups: &Groups,
    members: &[usize],
    all: &'a [RankResult],
) -> Vec<(usize, &'a RankResult)> {
    members.iter().filter_map(|&rank| Some((groups.measured_number(rank)?, all.get(rank)?))).collect()
}

/// The measurement of a group with these results.
pub(super) fn group_measurement(
    plan: &SweepPlan,
    work: &RankWork,
    cycle: usize,
    operations: usize,
    verified: bool,
    ranks: &[(usize, &RankResult)],
) -> Measurement {
    let collective = work.collective;
    let role = |role: BackendRole| -> Option<JobResult> {
        let ranks: Option<Vec<(usize, &BackendResult)>> =
            ranks.iter().map(|(rank, results)| Some((*rank, results.backends.get(role as usize)?))).collect();
        Some(JobResult::from_ranks(&ranks?, plan.request.settings.average, verified))
    };
    let primary = role(BackendRole::Primary).unwrap_or_default();
    let bandwidth = |result: &JobResult| {
        Bandwidth::new(collective, work.moved_bytes(), result.seconds, work.participant.ranks)
    };
    let versus = role(BackendRole::Baseline).map(|baseline| {
        let bandwidth = bandwidth(&baseline);
        baseline.into_versus(&primary, bandwidth)
    });
    let bandwidth = bandwidth(&primary);
    let skipped = |times: &[f64]| {
        Statistics::from_times(times.get(plan.request.settings.per_iteration_skip..).unwrap_or_default())
    };
    let results: Vec<&RankResult> = ranks.iter().map(|&(_, results)| results).collect();
    let times_us = longest_times(results.iter().map(|results| &results.each_us[..]));
    let per_rank = results
        .iter()
        .map(|results| RankTimes {
            time_us: results
                .backends
                .first()
                .and_then(|primary| find_median(&primary.seconds))
                .unwrap_or(0.0)
                * 1e6,
            statistics: skipped(&results.each_us),
        })
        .collect();
    Measurement {
        collective: collective.collective_name().to_owned(),
        cycle,
        data_type: work.data_type.name().to_owned(),
        op: work.op.map(|op| op.operator_name().to_owned()),
        root: work.participant.root,
        placement: work.placement,
        bytes: work.reported_bytes() as u64,
        count: work.counts.parameter as u64,
        time_us: primary.seconds * 1e6,
        cpu_time_us: plan.request.settings.cpu_time.then(|| results[0].enqueue * 1e6),
        algbw_gbps: bandwidth.algorithm,
        busbw_gbps: bandwidth.bus,
        wrong: primary.wrong,
        operations,
        rounds_us: primary.rounds_us,
        versus,
        statistics: skipped(&times_us),
        per_iteration: plan.timed_loop().each.then(|| PerIteration {
            skipped: plan.request.settings.per_iteration_skip,
            processes_us: process_times(&results),
            times_us,
        }),
        per_rank,
        mismatches: primary.mismatches,
        measured_at: now_utc(),
        ..Measurement::default()
    }
}

pub(super) fn reduce_times(average: Average, times: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = times.len() as f64;
    match average {
        Average::Rank0 => times.clone().next().unwrap_or_default(),
        Average::Mean => times.sum::<f64>() / count,
        Average::Min => times.fold(f64::INFINITY, f64::min),
        Average::Max => times.fold(0.0, f64::max),
    }
}

/// Returns the longest time of each iteration.
pub(super) fn longest_times<'a>(ranks: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut longest = Vec::new();
    for times in ranks {
        longest.resize(longest.len().max(times.len()), 0.0_f64);
        longest.iter_mut().zip(times).for_each(|(longest, time)| *longest = longest.max(*time));
    }
    longest
}

/// Returns the longest time of each iteration for each process; empty for a single process.
pub(super) fn process_times(ranks: &[&RankResult]) -> Vec<Vec<f64>> {
    let processes: Vec<&[&RankResult]> =
        ranks.chunk_by(|one, other| (one.process, &one.host) == (other.process, &other.host)).collect();
    if processes.len() < 2 {
        return Vec::new();
    }
    processes
        .into_iter()
        .map(|ranks| longest_times(ranks.iter().map(|results| &results.each_us[..])))
        .collect()
}
