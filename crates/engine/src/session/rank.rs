//! One rank of a session, on its own thread.

use anyhow::Context as _;
use collectives::world;
use record::{Algorithm, Outcome, Rank, nccl_tests};

use super::checks::{check_elements, check_fault};
use super::placement::place_rank;
use super::start::{describe_processes, start_of_record};
use super::{ProcessContext, Start};
use crate::backend::{Backend, Node};
use crate::collective::Work;
use crate::gather::gather;
use crate::nccl_choice::{self, ChoiceSources};
use crate::request::Request;
use crate::supervision::{RankProgress, Signal, Stop, Verdict, interrupted};
use crate::sweep::{self, Event, RankObserver, SweepPlan, SweepStep, sizing};

const READING_LOG: &str = "reading NCCL's log";

/// Opens the device of rank `index` of this process, connects it, and runs the sweep.
pub(super) fn run(
    request: &Request,
    node: &Node,
    index: usize,
    world: &world::Handle,
    progress: &RankProgress,
    context: &ProcessContext<'_>,
) -> Result<Verdict, Stop> {
    progress.begin_step("opening its device");
    let device = (node.open)(index)?;
    progress.set_device(device.memory.as_str());
    progress.begin_step("the exchange of sizes and devices");
    let position = node.position(index);
    let (max_bytes, buffer_sizes, reduced_to) =
        sizing::sizes(request, node.default_max_bytes, &device, position, &**world)?;
    check_fault(request, max_bytes, position)?;
    let plan = SweepPlan {
        out_of_place_only: node.capabilities.out_of_place_only.clone(),
        versus: node.versus.clone(),
        ..SweepPlan::new(request, max_bytes)
    };
    check_elements(request, plan.sweep, position)?;
    let host = world::host().name;
    let mut own = Rank { rank: world.rank(), pid: std::process::id(), host, ..device.rank };
    place_rank(request.binding, node.threads * node.gpus, &mut own, &**world)?;
    let ranks = gather(&**world, &own)?;
    let leads = world.rank() == 0;
    progress.begin_unlimited_step("writing the report");
    if leads {
        let mut run =
            start_of_record(request, node, describe_processes(context.process, &**world), ranks, max_bytes);
        run.notes.extend(context.choices_note.clone());
        context.observer.start(Start { run, plan: &plan, position, reduced_to })?;
    }
    let mut reporter = Reporter { context, leads, progress, failed_checks: 0, measured: 0, busbw_sum: 0.0 };
    let mut stopped = None;
    progress.begin_step("connecting to the other ranks");
    (device.connect)(world, buffer_sizes, &mut |backend: &mut dyn Backend| {
        if leads {
            context.observer.connected(backend.transport(), backend.notes())?;
        }
        stopped = sweep::run(&plan, &**world, position, backend, &mut reporter)?;
        progress.begin_step("closing its device");
        Ok(())
    })?;
    // A rank that fails while it closes its device fails the run, and NCCL's log of every process is
    // complete: within a process, the last rank to destroy its communicator frees the objects of all ranks,
    // and logs their end.
    progress.begin_step("the barrier after closing its device");
    world.barrier()?;
    progress.begin_unlimited_step("writing the report");
    if leads {
        context.observer.finish(stopped.map_or(Outcome::Complete, interrupted))?;
    }
    let mean = reporter.busbw_sum / reporter.measured as f64;
    let slow = nccl_tests::enough(mean, request.variables.min_bandwidth) == Some(false);
    Ok(match stopped {
        _ if reporter.failed_checks > 0 => Verdict::Wrong,
        Some(signal) => Verdict::Stopped(signal),
        None if slow => Verdict::Wrong,
        None => Verdict::Good,
    })
}

/// Passes the events of one rank's sweep to the watchdog and, on rank 0, to the session's observer.
struct Reporter<'a> {
    context: &'a ProcessContext<'a>,
    /// True for rank 0.
    leads: bool,
    progress: &'a RankProgress,
    failed_checks: u64,
    measured: usize,
    busbw_sum: f64,
}

impl Reporter<'_> {
    fn choices(&self) -> std::sync::MutexGuard<'_, ChoiceSources> {
        self.context.choices.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl RankObserver for Reporter<'_> {
    fn event(&mut self, event: Event<'_>) -> anyhow::Result<()> {
        if let Event::Measured(measurement, _) = event {
            self.failed_checks += measurement.failed_checks();
            self.measured += 1;
            self.busbw_sum += measurement.busbw_gbps;
        }
        if self.leads { self.context.observer.event(event) } else { Ok(()) }
    }

    fn begin_step(&self, step: SweepStep) {
        if self.leads {
            self.context.observer.step(&step);
        }
        self.progress.begin_step(step.to_string());
    }

    fn before(&mut self, _work: &Work) -> anyhow::Result<()> {
        if self.leads { self.choices().clear().context(READING_LOG) } else { Ok(()) }
    }

    fn record_choices(&mut self, on: bool) {
        if self.leads {
            nccl_choice::profiler::set_enabled(on);
        }
    }

    fn algorithm(&mut self, work: &Work, aggregated: usize) -> anyhow::Result<Option<Algorithm>> {
        if !self.leads {
            return Ok(None);
        }
        let operation = nccl_choice::OperationKey {
            collective: work.collective.name(),
            count_bytes: (work.counts.parameter * work.data_type.size()) as u64,
            ranks: work.participant.ranks,
            aggregated,
        };
        self.choices().chosen(&operation).context(READING_LOG)
    }

    fn begin_unlimited_step(&self, what: &'static str) {
        self.progress.begin_unlimited_step(what);
    }

    fn stop(&self) -> Option<Signal> {
        if self.leads && self.context.observer.is_closed() {
            self.context.interrupt.request(Signal::SIGPIPE);
        }
        self.context.interrupt.requested()
    }
}
