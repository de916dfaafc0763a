//! One rank of a run, on its own thread.

use std::sync::Arc;

use anyhow::Context as _;
use collectives::world::{self, Part, Reason, World};
use record::{Algorithm, Rank, RunOutcome, nccl_tests};

use super::checks::{check_elements, check_fault};
use super::clock::{StartClock, summarize_start};
use super::placement::place_rank;
use super::start::{describe_processes, start_of_record};
use super::{Connection, RunContext, Start};
use crate::backend::{Backend, BufferSizes, Idle, Node, RankDevice};
use crate::collective::RankWork;
use crate::failure::{AtFailure, RunFailure};
use crate::gather::gather_json;
use crate::groups::Groups;
use crate::nccl_choice::{self, ChoiceSources};
use crate::request::{Binding, Names, Request};
use crate::supervision::{RankProgress, Signal, Stop, Verdict, interrupted_outcome, number_ranges};
use crate::sweep::{self, RankObserver, SweepEvent, SweepPlan, SweepStep, sizing};

const READING_LOG: &str = "reading NCCL's log";

/// Opens the device of rank `index` of this process, connects it, and runs the sweep. A rank that does not
/// measure only takes part in the exchanges.
pub(super) fn run_rank(
    request: &Request,
    node: &Node,
    index: usize,
    world: &world::Handle,
    progress: &RankProgress,
    context: &RunContext<'_>,
) -> Result<Verdict, Stop> {
    let groups = &node.groups;
    let position = groups.rank_position(world.rank());
    progress.begin_step("opening its device");
    let mut clock = StartClock::start();
    let opened = position.map(|_| (node.open)(index)).transpose();
    clock.end_phase();
    let device = context.at_failure.exchange_failures(&**world, opened)?;
    if let Some(device) = &device {
        progress.set_device(device.memory.as_str());
    }
    progress.begin_step("the exchange of sizes and devices");
    let (max_bytes, buffer_sizes, reduced_to) =
        sizing::agree_on_sizes(request, node.default_max_bytes, device.as_ref(), groups, &**world)?;
    check_fault(request, max_bytes, groups)?;
    let plan = SweepPlan {
        out_of_place_only: node.capabilities.out_of_place_only.clone(),
        versus: node.versus.clone(),
        ..SweepPlan::new(request, max_bytes)
    };
    check_elements(request, plan.sweep, groups)?;
    let described = device.as_ref().map(|device| device.rank.clone()).unwrap_or_default();
    let ranks =
        gather_ranks(described, request.binding, request.names, node.threads * node.gpus, groups, &**world)?;
    let leads = world.rank() == 0;
    progress.begin_unlimited_step("writing the report");
    if leads {
        let processes = describe_processes(&**context.process.job_world(), &**world);
        let mut run = start_of_record(request, node, processes, ranks, max_bytes);
        run.notes.extend(context.process.recorded_choices().note.clone());
        context.observer.start_run(Start { run, plan: Some(&plan), groups, reduced_to })?;
    }
    let mut reporter = Reporter::new(context, leads, progress);
    let mut stopped = None;
    progress.begin_step("connecting to the other ranks");
    clock.begin_phase();
    connect_group(
        node,
        device,
        buffer_sizes,
        world,
        context.at_failure,
        clock,
        &mut |backend: &mut dyn Backend, seconds| {
            let connection = gather_connection(backend, seconds, groups, &**world)?;
            if leads {
                context.observer.note_connection(connection)?;
            }
            stopped = sweep::run_sweep(&plan, &**world, groups, backend, &mut reporter)?;
            progress.begin_step("closing its device");
            Ok(())
        },
    )?;
    // A rank that fails while it closes its device fails the run, and NCCL's log of every process is
    // complete: within a process, the last rank to destroy its communicator frees the objects of all ranks,
    // and logs their end.
    progress.begin_step("the barrier after closing its device");
    world.barrier()?;
    progress.begin_unlimited_step("writing the report");
    if leads {
        context.observer.finish_run(stopped.map_or(RunOutcome::Complete, interrupted_outcome))?;
    }
    let mean = reporter.busbw_sum / reporter.measured as f64;
    let slow = nccl_tests::is_enough(mean, request.variables.min_bandwidth) == Some(false);
    Ok(match stopped {
        _ if reporter.failed_checks > 0 => Verdict::Wrong,
        Some(signal) => Verdict::Stopped(signal),
        None if slow => Verdict::Wrong,
        None => Verdict::Good,
    })
}

/// Places this rank, one of `threads` in its process, whose device is `described`. Returns the ranks that
/// measure, numbered for the record.
pub(super) fn gather_ranks(
    described: Rank,
    binding: Binding,
    names: Names,
    threads: usize,
    groups: &Groups,
    world: &dyn World,
) -> Result<Vec<Rank>, Stop> {
    let mut own = Rank { rank: world.rank(), pid: std::process::id(), host: world::host().name, ..described };
    place_rank(binding, names, threads, &mut own, world)?;
    let numbered = |rank: Rank| {
        let (job_rank, position) = (rank.rank, groups.rank_position(rank.rank)?);
        let number = groups.measured_number(job_rank)?;
        Some(Rank {
            rank: number,
            job_rank: (number != job_rank).then_some(job_rank),
            group: position.group_number(),
            ..rank
        })
    };
    Ok(gather_json(world, &own)?.into_iter().filter_map(numbered).collect())
}

/// The work of a connected rank, which takes the seconds of the phases of its start.
type ConnectedBody<'a> = dyn FnMut(&mut dyn Backend, Vec<f64>) -> anyhow::Result<()> + 'a;

/// Gathers what the ranks know about their connection. `seconds` are the times of this rank's phases.
fn gather_connection(
    backend: &dyn Backend,
    seconds: Vec<f64>,
    groups: &Groups,
    world: &dyn World,
) -> anyhow::Result<Connection> {
    // Rank 0 need not be one of the ranks that measure.
    let is_first = groups.measured_ranks().next() == Some(world.rank());
    let described = is_first.then(|| (backend.transport_name(), backend.list_notes()));
    let seconds = groups.rank_position(world.rank()).map(|_| seconds);
    let (described, seconds): (Vec<_>, Vec<_>) =
        gather_json(world, &(described, seconds))?.into_iter().unzip();
    let (transport, notes) = described.into_iter().flatten().next().unwrap_or_default();
    let phases = summarize_start(&seconds.into_iter().flatten().collect::<Vec<_>>());
    Ok(Connection { transport, notes, phases })
}

/// Connects the rank within its group, and calls `body` with the times of its phases once all ranks of the
/// job are connected.
fn connect_group(
    node: &Node,
    device: Option<RankDevice>,
    buffer_sizes: BufferSizes,
    world: &world::Handle,
    at_failure: AtFailure,
    mut clock: StartClock,
    body: &mut ConnectedBody<'_>,
) -> anyhow::Result<()> {
    let members = node.groups.group_members(world.rank());
    let part = Part::new(world, &members)?;
    let mut is_connected = false;
    let mut when_connected = |backend: &mut dyn Backend| {
        is_connected = true;
        clock.end_phase();
        let ended = part.end(None);
        at_failure.exchange_failures(&**world, ended.map_err(anyhow::Error::from))?;
        body(backend, clock.phase_seconds())
    };
    let result = match device {
        Some(device) => {
            (device.connect)(&(Arc::clone(&part) as world::Handle), buffer_sizes, &mut when_connected)
        }
        None => when_connected(&mut Idle),
    };
    let result = result.map_err(|error| match error.is::<RunFailure>() || members.len() == world.size() {
        true => error,
        // Errors of communicators number the ranks of the group.
        false => error.context(format!("in the group of the job's ranks {}", number_ranges(&members))),
    });
    match result {
        Err(error) if !is_connected && node.connects_over_world && at_failure == AtFailure::EndRun => {
            // The error that it returns adds nothing: it repeats this one, or the next exchange returns it.
            let _ended = part.end(Some(Reason::from(format!("{error:#}"))));
            at_failure.exchange_failures(&**world, Err(error))
        }
        result => result,
    }
}

/// Passes the events of one rank to the watchdog and, if it leads, to the run's observer.
pub(super) struct Reporter<'a> {
    context: &'a RunContext<'a>,
    /// True for rank 0, and for the first rank of a process that reports.
    leads: bool,
    progress: &'a RankProgress,
    pub(super) failed_checks: u64,
    measured: usize,
    busbw_sum: f64,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(context: &'a RunContext<'a>, leads: bool, progress: &'a RankProgress) -> Self {
        Self { context, leads, progress, failed_checks: 0, measured: 0, busbw_sum: 0.0 }
    }

    fn lock_choices(&self) -> std::sync::MutexGuard<'_, ChoiceSources> {
        self.context
            .process
            .recorded_choices()
            .sources
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl RankObserver for Reporter<'_> {
    fn handle_event(&mut self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        if let SweepEvent::Measured(measurement, _) = event {
            self.failed_checks += measurement.failed_checks();
            self.measured += 1;
            self.busbw_sum += measurement.busbw_gbps;
        }
        if self.leads { self.context.observer.receive_event(event) } else { Ok(()) }
    }

    fn begin_step(&self, step: SweepStep) {
        if self.leads {
            self.context.observer.show_step(&step);
        }
        self.progress.begin_step(step.to_string());
    }

    fn prepare_measurement(&mut self, _work: &RankWork) -> anyhow::Result<()> {
        if self.leads { self.lock_choices().discard_choices().context(READING_LOG) } else { Ok(()) }
    }

    fn record_choices(&mut self, on: bool) {
        if self.leads {
            nccl_choice::profiler::set_enabled(on);
        }
    }

    fn recorded_algorithm(
        &mut self,
        work: &RankWork,
        aggregated: usize,
    ) -> anyhow::Result<Option<Algorithm>> {
        if !self.leads {
            return Ok(None);
        }
        let operation = nccl_choice::OperationKey {
            collective: work.collective.collective_name(),
            count_bytes: (work.counts.parameter * work.data_type.size()) as u64,
            ranks: work.participant.ranks,
            aggregated,
        };
        self.lock_choices().chosen_algorithm(&operation).context(READING_LOG)
    }

    fn begin_unlimited_step(&self, what: &'static str) {
        self.progress.begin_unlimited_step(what);
    }

    fn stop_signal(&self) -> Option<Signal> {
        if self.leads && self.context.observer.is_closed() {
            self.context.process.interrupt().request_stop(Signal::SIGPIPE);
        }
        self.context.process.interrupt().requested_signal()
    }
}
