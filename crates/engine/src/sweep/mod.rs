//! The measurement: the order of operations, the timing, and the verification.
//!
//! It follows nccl-tests, so that results are comparable: a warm-up over powers of two of sizes, then for
//! each size and placement one untimed operation, a barrier, the timed iterations on the wall clock of every
//! rank, and a separate verification. `rank` does so on each rank, `repeat` determines the number of
//! repetitions, and `results` combines the ranks' results.

mod rank;
mod repeat;
mod results;
pub(crate) mod sizing;

use std::fmt;

use collectives::DataType;
use collectives::world::World;

use crate::backend::{Backend, Capabilities, MemoryUse, TimedLoop};
use crate::collective::{Collective, RankWork};
use crate::data::Op;
use crate::gather::gather_json;
use crate::groups::Groups;
use crate::request::{Request, Roots, Sweep};
use crate::supervision::Signal;
use rank::{GROUP_SEEDS, RankSweep, TIMING_SEED};
use record::{Algorithm, Measurement, Placement};

/// A request with the limits of the ranks and the backend.
#[derive(Clone, Debug)]
pub struct SweepPlan {
    /// The request.
    pub request: Request,
    /// The sizes: from the request's smallest to the largest that all ranks have memory for.
    pub sweep: Sweep,
    /// Capabilities of the baseline, if there is one.
    pub versus: Option<Capabilities>,
    /// Collectives that are measured out of place only.
    pub out_of_place_only: Vec<Collective>,
}

impl SweepPlan {
    /// Returns the plan for sizes up to `max_bytes`, without a baseline.
    pub fn new(request: &Request, max_bytes: u64) -> Self {
        let sweep = Sweep { min: request.settings.min_bytes, max: max_bytes, step: request.size_step() };
        Self { request: request.clone(), sweep, versus: None, out_of_place_only: Vec::new() }
    }

    pub(crate) fn timed_loop(&self) -> TimedLoop {
        TimedLoop {
            iterations: self.request.settings.iterations,
            aggregated: self.request.settings.aggregated,
            blocking: self.request.settings.blocking,
            graph_launches: self.request.settings.graph_launches,
            each: self.request.settings.per_iteration,
        }
    }

    /// Placements of a collective, in order.
    pub fn list_placements(&self, collective: Collective) -> &'static [Placement] {
        let both = &[Placement::OutOfPlace, Placement::InPlace];
        let is_single = self.request.out_of_place || self.out_of_place_only.contains(&collective);
        if is_single { &both[..1] } else { both }
    }
}

/// Events of a sweep, in order; the same on every rank.
#[derive(Debug)]
pub enum SweepEvent<'a> {
    /// The measurements of a collective begin.
    Begin(Collective),
    /// A measurement of one size and placement: of the only group, or of each group in turn. The `RankWork`
    /// is the operation of the group's first rank; absent for a pair of ranks.
    Measured(&'a Measurement, Option<&'a RankWork>),
    /// A signal ends the sweep, and has reached only these ranks so far.
    Stopped(Signal, Vec<usize>),
    /// A collective is left out, for this reason.
    LeftOut(Collective, String),
    /// The measurements of a collective have ended. With the largest memory use of a rank, if it was
    /// requested.
    End(Option<MemoryUse>),
}

/// A step of a sweep, as the watchdog and the display of progress name it: `the timed operations of allreduce
/// float`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepStep {
    /// The kind of step: `timed operations`.
    pub activity: &'static str,
    /// The collective, or the operation: `allreduce float sum of 8 bytes, in place`.
    pub subject: String,
}

impl fmt::Display for SweepStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the {} of {}", self.activity, self.subject)
    }
}

/// Receiver of the events of a rank's sweep, and source of its stop requests and NCCL's choices. An error of
/// a method ends the sweep.
pub(crate) trait RankObserver {
    fn handle_event(&mut self, event: SweepEvent<'_>) -> anyhow::Result<()>;

    /// Begins a step, for the watchdog and the progress display.
    fn begin_step(&self, _step: SweepStep) {}

    fn begin_unlimited_step(&self, _what: &'static str) {}

    /// The signal that stops the sweep after this measurement, if any.
    fn stop_signal(&self) -> Option<Signal> {
        None
    }

    fn prepare_measurement(&mut self, _work: &RankWork) -> anyhow::Result<()> {
        Ok(())
    }

    /// Starts or stops the recording of choices, during operations that are not timed.
    fn record_choices(&mut self, _on: bool) {}

    /// Returns the algorithm of the recorded operations, `aggregated` of them in a group, if it is known.
    fn recorded_algorithm(
        &mut self,
        _work: &RankWork,
        _aggregated: usize,
    ) -> anyhow::Result<Option<Algorithm>> {
        Ok(None)
    }
}

/// Runs the sweep as one rank of `world`, also one that does not measure. Every rank calls it with the same
/// plan and groups. Returns the signal that has stopped it, if any.
pub(crate) fn run_sweep(
    plan: &SweepPlan,
    world: &dyn World,
    groups: &Groups,
    backend: &mut dyn Backend,
    observer: &mut dyn RankObserver,
) -> anyhow::Result<Option<Signal>> {
    // Different in each group: data of another group must not be taken for right.
    let first_seed = TIMING_SEED + GROUP_SEEDS * groups.group_index(world.rank()).unwrap_or(0) as u64;
    let mut seed = first_seed;
    for &collective in &plan.request.collectives {
        if let Some(ranks) = groups.group_sizes().find(|&ranks| !collective.runs_over(ranks)) {
            let reason = format!("it needs 2, 4, 8, ... ranks, but there are {ranks}");
            observer.handle_event(SweepEvent::LeftOut(collective, reason))?;
            continue;
        }
        observer.handle_event(SweepEvent::Begin(collective))?;
        for case in list_cases(plan, collective, groups.smallest_size()) {
            let mut rank =
                RankSweep { plan, world, groups, backend, observer, case, first_seed, seed: &mut seed };
            if let Some(signal) = rank.run_case()? {
                return Ok(Some(signal));
            }
        }
        let memory = if plan.request.memory_report { most_memory(world, backend)? } else { None };
        observer.handle_event(SweepEvent::End(memory))?;
    }
    Ok(None)
}

/// Maximum over the ranks of each kind of memory.
fn most_memory(world: &dyn World, backend: &dyn Backend) -> anyhow::Result<Option<MemoryUse>> {
    let all = gather_json(world, &backend.memory_use().unwrap_or_default())?;
    Ok(all.into_iter().reduce(|one, other| MemoryUse {
        initialization: one.initialization.max(other.initialization),
        buffers: one.buffers.max(other.buffers),
        operations: one.operations.max(other.operations),
    }))
}

/// The parameters that all sizes of a table share.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    collective: Collective,
    data_type: DataType,
    op: Option<Op>,
    root: Option<usize>,
}

/// All cases of a collective: types, of each the operators, of each the roots. `ranks` is the number of ranks
/// of the smallest group.
pub fn list_cases(plan: &SweepPlan, collective: Collective, ranks: usize) -> Vec<Case> {
    let ops: Vec<Option<Op>> = if collective.is_reduction() {
        plan.request.ops.iter().copied().map(Some).collect()
    } else {
        vec![None]
    };
    let roots: Vec<Option<usize>> = match plan.request.roots {
        _ if !collective.has_root() => vec![None],
        Roots::One(root) => vec![Some(root)],
        Roots::All => (0..ranks).map(Some).collect(),
    };
    let mut cases = Vec::new();
    for &data_type in &plan.request.data_types {
        for &op in &ops {
            cases.extend(roots.iter().map(|&root| Case { collective, data_type, op, root }));
        }
    }
    cases
}

#[cfg(test)]
mod tests;
