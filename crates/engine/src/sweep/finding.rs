//! What the ranks tell each other after a measurement, and how it becomes one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Plan;
use crate::backend::{Side, StreamRounds, Times, Work};
use crate::collective::{Bandwidth, Layout as _};
use crate::data::Tally;
use record::provenance::now_utc;
use record::statistics::{Statistics, median};
use record::{Average, Measurement, Mismatch, PerIteration, Placement, RankTimes, Versus};

/// What the rounds of one side took on this rank.
#[derive(Default)]
pub(super) struct Rounds {
    /// Operations of all together.
    pub(super) operations: usize,
    /// Seconds per operation of each.
    pub(super) seconds: Vec<f64>,
    /// Seconds per operation to enqueue it, of each.
    pub(super) enqueue: Vec<f64>,
    /// Of the last one.
    pub(super) each_us: Vec<f64>,
}

impl Rounds {
    pub(super) fn add(&mut self, times: Times, operations: usize) {
        let per_operation = |time: Duration| time.as_secs_f64() / operations as f64;
        self.operations += operations;
        self.seconds.push(per_operation(times.total));
        self.enqueue.push(per_operation(times.enqueue));
        self.each_us = times.each_us;
    }
}

/// What one side took, over all ranks.
#[derive(Default)]
pub(super) struct Taken {
    /// Per operation: the ranks' medians, made one.
    pub(super) seconds: f64,
    /// Per operation of the shortest round.
    pub(super) best: f64,
    /// Of each round, where there are several.
    pub(super) rounds_us: Vec<f64>,
    pub(super) wrong: Option<u64>,
    pub(super) mismatches: Vec<Mismatch>,
}

impl Taken {
    pub(super) fn of(ranks: &[&Found], average: Average, verified: bool) -> Self {
        let count = ranks.iter().map(|found| found.seconds.len()).min().unwrap_or(0);
        let rounds: Vec<f64> =
            (0..count).map(|round| reduce(average, ranks.iter().map(|found| found.seconds[round]))).collect();
        let mismatches = ranks.iter().enumerate().filter(|(_, found)| found.wrong > 0);
        Self {
            seconds: reduce(average, ranks.iter().map(|found| median(&found.seconds).unwrap_or(0.0))),
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
pub(super) struct Round {
    /// Per operation, of each side.
    pub(super) seconds: Vec<f64>,
    pub(super) over: bool,
}

/// What one rank tells the others after a measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) process: u32,
    pub(super) host: String,
    /// Per operation.
    pub(super) enqueue: f64,
    pub(super) each_us: Vec<f64>,
    /// Ours, then theirs where it has measured, too.
    pub(super) sides: Vec<Found>,
    /// The number of a signal.
    pub(super) stop: Option<i32>,
}

/// What one rank found of one side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Found {
    /// Per operation, of each round.
    pub(super) seconds: Vec<f64>,
    pub(super) wrong: u64,
    pub(super) first: String,
}

impl Found {
    /// Adds what a check on the stream found, with words that say so.
    pub(super) fn add(&mut self, rounds: &StreamRounds, Tally { wrong, lowest }: Tally) {
        self.wrong = self.wrong.saturating_add(wrong);
        let way = if rounds.graph_launches == 0 { "eager" } else { "as a graph" };
        if !self.first.is_empty() {
            self.first.push_str("; ");
        }
        self.first.push_str(&format!(
            "element {lowest} (on the stream, {way}: {wrong} wrong in {} rounds, this one with the lowest number)",
            rounds.total()
        ));
    }
}

/// The measurement that all ranks' findings make.
pub(super) fn measurement(
    plan: &Plan,
    work: &Work,
    placement: Placement,
    cycle: usize,
    operations: usize,
    verified: bool,
    findings: &[Finding],
) -> Measurement {
    let collective = work.collective;
    let moved = collective.moved(&work.counts, work.data_type, work.member.ranks);
    let side = |side: Side| -> Option<Taken> {
        let ranks: Option<Vec<&Found>> =
            findings.iter().map(|finding| finding.sides.get(side as usize)).collect();
        Some(Taken::of(&ranks?, plan.request.average, verified))
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
    let skipped =
        |times: &[f64]| Statistics::of(times.get(plan.request.per_iteration_skip..).unwrap_or_default());
    let times_us = longest(findings.iter().map(|finding| &finding.each_us[..]));
    let per_rank = findings
        .iter()
        .map(|finding| RankTimes {
            time_us: finding.sides.first().and_then(|ours| median(&ours.seconds)).unwrap_or(0.0) * 1e6,
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
        cpu_time_us: plan.request.cpu_time.then(|| findings[0].enqueue * 1e6),
        algbw_gbps: bandwidth.algorithm,
        busbw_gbps: bandwidth.bus,
        wrong: ours.wrong,
        operations,
        rounds_us: ours.rounds_us,
        stable: None,
        versus,
        statistics: skipped(&times_us),
        per_iteration: plan.schedule().each.then(|| PerIteration {
            skipped: plan.request.per_iteration_skip,
            processes_us: processes(findings),
            times_us,
        }),
        per_rank,
        algorithm: None,
        mismatches: ours.mismatches,
        measured_at: now_utc(),
    }
}

/// One time of all ranks'.
pub(super) fn reduce(average: Average, times: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = times.len() as f64;
    match average {
        Average::Rank0 => times.clone().next().unwrap_or_default(),
        Average::Mean => times.sum::<f64>() / count,
        Average::Min => times.fold(f64::INFINITY, f64::min),
        Average::Max => times.fold(0.0, f64::max),
    }
}

/// Of each iteration the longest time.
pub(super) fn longest<'a>(ranks: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut longest = Vec::new();
    for times in ranks {
        longest.resize(longest.len().max(times.len()), 0.0_f64);
        longest.iter_mut().zip(times).for_each(|(longest, time)| *longest = longest.max(*time));
    }
    longest
}

/// Of each process's ranks, of each iteration the longest time; none for a single process.
pub(super) fn processes(findings: &[Finding]) -> Vec<Vec<f64>> {
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
