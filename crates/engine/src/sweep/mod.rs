//! The measurement: which operations run when, what is timed, and when results are verified.
//!
//! It follows nccl-tests so that numbers compare: warm-up over a ladder of sizes, then per size and placement one
//! untimed operation, a barrier, the timed iterations on the wall clock of every rank, and verification in a run of its
//! own. `rank` does so on each rank, `repeat` says how often, and `results` makes one measurement of what all ranks found.

mod rank;
mod repeat;
mod results;
pub mod sizing;

use collectives::DataType;
use collectives::world::World;
use serde::Deserialize;

use crate::backend::{Backend, Capabilities, GroupPosition, MemoryUse, TimedLoop, Work};
use crate::collective::Collective;
use crate::data::Op;
use crate::request::Sweep;
use crate::request::{Request, Roots};
use crate::supervision::Signal;
use rank::{RankSweep, TIMING_SEED};
use record::{Algorithm, Measurement, Placement};

/// A request with what the ranks and the backend determine.
#[derive(Clone, Debug)]
pub struct SweepPlan {
    /// What is measured.
    pub request: Request,
    /// The sizes: from the request's smallest to the largest that all ranks have memory for.
    pub sweep: Sweep,
    /// Capabilities of the other role, where it is measured in turn with the backend, round by round.
    pub versus: Option<Capabilities>,
    /// Collectives that are measured with two buffers only.
    pub out_of_place_only: Vec<Collective>,
}

impl SweepPlan {
    /// The plan for sizes up to `max_bytes`, with one role.
    #[must_use]
    pub fn new(request: &Request, max_bytes: u64) -> Self {
        let sweep = Sweep { min: request.min_bytes, max: max_bytes, step: request.step };
        Self { request: request.clone(), sweep, versus: None, out_of_place_only: Vec::new() }
    }

    /// The timed operations of a size and placement.
    #[must_use]
    pub fn timed_loop(&self) -> TimedLoop {
        TimedLoop {
            iterations: self.request.iterations,
            aggregated: self.request.aggregated,
            blocking: self.request.blocking,
            graph_launches: self.request.graph_launches,
            each: self.request.per_iteration,
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
pub enum SweepEnd {
    /// Everything was measured.
    Complete,
    /// Some rank was asked to stop, by this signal.
    Stopped(Signal),
}

/// What a sweep asks of its surroundings.
pub trait RankObserver {
    /// Sees each event.
    ///
    /// # Errors
    /// Ends the sweep.
    fn event(&mut self, event: Event<'_>) -> anyhow::Result<()>;

    /// What this rank is about to do: for those who watch it.
    fn begin_step(&self, _what: &dyn Fn() -> String) {}

    /// What this rank does now may take as long as it likes.
    fn begin_unlimited_step(&self, _what: &'static str) {}

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
    fn record_choices(&mut self, _on: bool) {}

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
    plan: &SweepPlan,
    world: &dyn World,
    position: GroupPosition,
    backend: &mut dyn Backend,
    observer: &mut dyn RankObserver,
) -> anyhow::Result<SweepEnd> {
    let mut seed = TIMING_SEED;
    for &collective in &plan.request.collectives {
        if !collective.runs_over(position.ranks) {
            let reason = format!("it needs a power of two of ranks, and there are {}", position.ranks);
            observer.event(Event::LeftOut(collective, reason))?;
            continue;
        }
        observer.event(Event::Begin(collective))?;
        for case in cases(plan, collective, position) {
            let mut rank = RankSweep { plan, world, position, backend, observer, case, seed: &mut seed };
            if let SweepEnd::Stopped(signal) = rank.run()? {
                return Ok(SweepEnd::Stopped(signal));
            }
        }
        let memory = if plan.request.memory_report { most_memory(world, backend)? } else { None };
        observer.event(Event::End(memory))?;
    }
    Ok(SweepEnd::Complete)
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
pub struct Case {
    collective: Collective,
    data_type: DataType,
    op: Option<Op>,
    root: Option<usize>,
}

/// All of a collective: types, of each the operators, of each the roots.
pub fn cases(plan: &SweepPlan, collective: Collective, position: GroupPosition) -> Vec<Case> {
    let ops: Vec<Option<Op>> = if collective.loops_over_ops() {
        plan.request.ops.iter().copied().map(Some).collect()
    } else {
        vec![None]
    };
    let roots: Vec<Option<usize>> = match plan.request.roots {
        _ if !collective.has_root() => vec![None],
        Roots::One(root) => vec![Some(root)],
        Roots::All => (0..position.ranks).map(Some).collect(),
    };
    let mut cases = Vec::new();
    for &data_type in &plan.request.data_types {
        for &op in &ops {
            cases.extend(roots.iter().map(|&root| Case { collective, data_type, op, root }));
        }
    }
    cases
}

fn decode<T: for<'de> Deserialize<'de>>(messages: &[Vec<u8>]) -> anyhow::Result<Vec<T>> {
    Ok(messages.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests;
