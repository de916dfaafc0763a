//! The measurement: which operations run when, what is timed, and when results are verified.
//!
//! It follows nccl-tests so that numbers compare: warm-up over a ladder of sizes, then per size and placement one
//! untimed operation, a barrier, `iterations` back-to-back operations on the wall clock of every rank, and
//! verification in a run of its own. The time is the mean over operations and ranks.

use std::time::Instant;

use collectives::world::World;
use collectives::{DataType, ReduceOp};

use crate::backend::{Backend, Work};
use crate::cli::Fault;
use crate::collective::{Bandwidth, Collective, Placement};
use crate::data::{Mismatch, Mismatches};
use crate::size::Sweep;

/// The seed of the data that timed operations move.
const TIMING_SEED: u64 = 99;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which collective.
    pub collective: Collective,
    /// Over which sizes.
    pub sweep: Sweep,
    /// Of which types.
    pub data_types: Vec<DataType>,
    /// With which operators, where the collective reduces.
    pub ops: Vec<ReduceOp>,
    /// Warm-up operations per size.
    pub warm_up: usize,
    /// Timed operations per size and placement.
    pub iterations: usize,
    /// Verifications per size and placement.
    pub checks: usize,
    /// One element to damage before each verification.
    pub fault: Option<Fault>,
}

/// One placement of one row.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was measured.
    pub work: Work,
    /// Where the input was.
    pub placement: Placement,
    /// Seconds per operation: the mean over operations and ranks.
    pub seconds: f64,
    /// What that time means.
    pub bandwidth: Bandwidth,
    /// Wrong elements on all ranks; `None` when nothing was verified.
    pub wrong: Option<u64>,
    /// Each rank with wrong elements.
    pub mismatches: Vec<(usize, Mismatches)>,
}

/// What a whole sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Measurements taken.
    pub measurements: usize,
    /// Pairs of rank and verification that found wrong data.
    pub failed_checks: u64,
    bus_bandwidth_sum: f64,
}

impl Tally {
    /// The mean of all bus bandwidths, both placements, in GB/s.
    #[must_use]
    pub fn mean_bus_bandwidth(&self) -> f64 {
        self.bus_bandwidth_sum / (self.measurements.max(1)) as f64
    }
}

/// Runs the sweep as one rank of `world`. Every rank calls it with the same plan; `observe` sees each measurement,
/// with the same values on every rank.
///
/// # Errors
/// When the backend or another rank fails, or `observe` does.
pub fn run(
    plan: &Plan,
    world: &dyn World,
    backend: &mut dyn Backend,
    observe: &mut dyn FnMut(&Measurement) -> anyhow::Result<()>,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let mut seed = TIMING_SEED;
    for &data_type in &plan.data_types {
        for op in plan.collective.ops(&plan.ops) {
            let work = |bytes| Work {
                collective: plan.collective,
                data_type,
                op,
                counts: plan.collective.counts(bytes, data_type, world.size()),
            };
            world.barrier()?;
            // Also where nothing is verified: times depend on the data. And what it needs to load, it loads here.
            backend.fill(&work(plan.sweep.max), Placement::OutOfPlace, TIMING_SEED)?;
            warm_up(plan, backend, work)?;
            for bytes in plan.sweep.sizes() {
                for placement in Placement::BOTH {
                    let measurement = measure(plan, world, backend, &work(bytes), placement, &mut seed)?;
                    tally.measurements += 1;
                    tally.failed_checks += measurement.mismatches.len() as u64;
                    tally.bus_bandwidth_sum += measurement.bandwidth.bus;
                    observe(&measurement)?;
                }
            }
        }
    }
    Ok(tally)
}

fn warm_up(plan: &Plan, backend: &mut dyn Backend, work: impl Fn(u64) -> Work) -> anyhow::Result<()> {
    for bytes in plan.sweep.warm_up_sizes() {
        let work = work(bytes);
        for iteration in 0..plan.warm_up {
            backend.start(&work, Placement::OutOfPlace, shift(plan, &work, iteration))?;
        }
        backend.complete()?;
    }
    Ok(())
}

/// Where in the buffers an iteration works: successive ones move on, so that caches do not flatter small sizes.
fn shift(plan: &Plan, work: &Work, iteration: usize) -> usize {
    match work.bytes() {
        0 => 0,
        bytes => bytes * (iteration % (plan.sweep.max as usize / bytes).max(1)),
    }
}

fn measure(
    plan: &Plan,
    world: &dyn World,
    backend: &mut dyn Backend,
    work: &Work,
    placement: Placement,
    seed: &mut u64,
) -> anyhow::Result<Measurement> {
    if plan.checks > 0 {
        backend.fill(work, placement, TIMING_SEED)?;
    }
    backend.start(work, placement, 0)?;
    backend.complete()?;

    world.barrier()?;
    let start = Instant::now();
    for iteration in 0..plan.iterations {
        backend.start(work, placement, shift(plan, work, iteration))?;
    }
    backend.complete()?;
    let seconds = start.elapsed().as_secs_f64() / plan.iterations as f64;
    world.barrier()?;

    let mut wrong = Mismatches::default();
    for _ in 0..plan.checks {
        *seed += 1;
        backend.fill(work, placement, *seed)?;
        backend.start(work, placement, 0)?;
        backend.complete()?;
        if let Some(fault) = plan.fault.filter(|fault| fault.rank == world.rank()) {
            backend.damage(work, fault.index)?;
        }
        let found = backend.check(work, *seed)?;
        // No rank leaves out a verification because of what it found: the others are waiting for it in the next one.
        if wrong.wrong == 0 {
            wrong = found;
        }
    }

    let ranks = world.all_gather(&Finding { seconds, wrong }.encode())?;
    let findings: Vec<Finding> =
        ranks.iter().filter_map(|bytes| Finding::decode(bytes, work.data_type)).collect();
    anyhow::ensure!(findings.len() == world.size(), "a rank sent a result that this version cannot read");
    let seconds = findings.iter().map(|finding| finding.seconds).sum::<f64>() / findings.len() as f64;
    let mismatches: Vec<(usize, Mismatches)> = findings
        .iter()
        .enumerate()
        .filter(|(_, finding)| finding.wrong.wrong > 0)
        .map(|(rank, finding)| (rank, finding.wrong))
        .collect();
    Ok(Measurement {
        work: *work,
        placement,
        seconds,
        bandwidth: Bandwidth::new(work.collective, work.bytes(), seconds, world.size()),
        wrong: (plan.checks > 0).then(|| findings.iter().map(|finding| finding.wrong.wrong).sum()),
        mismatches,
    })
}

/// What one rank tells the others after a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Finding {
    seconds: f64,
    wrong: Mismatches,
}

impl Finding {
    fn encode(&self) -> Vec<u8> {
        let first =
            self.wrong.first.map_or([0; 3], |first| [first.index, first.expected_bits, first.found_bits]);
        [[self.seconds.to_bits(), self.wrong.wrong].as_slice(), &first]
            .concat()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    fn decode(bytes: &[u8], data_type: DataType) -> Option<Self> {
        let words: Vec<u64> =
            bytes.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes)).collect();
        let [seconds, wrong, index, expected_bits, found_bits] = words[..] else { return None };
        let first = (wrong > 0).then_some(Mismatch { index, expected_bits, found_bits, data_type });
        Some(Self { seconds: f64::from_bits(seconds), wrong: Mismatches { wrong, first } })
    }
}
