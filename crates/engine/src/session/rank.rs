//! One rank of a session, on its own thread.

use anyhow::Context as _;
use collectives::world;
use record::{Algorithm, Outcome, Rank, nccl_tests};

use super::checks::{check_elements, check_fault};
use super::start::start_of_record;
use super::{Shared, Start};
use crate::backend::{Backend, Device, Node, Work};
use crate::nccl_choice::{self, Sources};
use crate::request::Request;
use crate::supervision::{Interrupt, Signal, Stop, Verdict, Watched};
use crate::sweep::{self, End, Event, Plan, RankObserver, sizing};

const READING_LOG: &str = "reading NCCL's log";

/// Opens the device of rank `index` of this process, connects it, and runs the sweep.
pub(super) fn run(
    request: &Request,
    node: &dyn Node,
    index: usize,
    world: &world::Handle,
    watched: &Watched,
    shared: &Shared<'_>,
) -> Result<Verdict, Stop> {
    watched.phase("opening its device");
    let device = node.open(index)?;
    watched.place(device.memory());
    watched.phase("the exchange of sizes and devices");
    let place = node.place(index);
    let (max_bytes, rooms, reduced_to) = sizing::sizes(request, node, &*device, place, &**world)?;
    check_fault(request, max_bytes, place)?;
    let out_of_place_only = node.abilities().out_of_place_only;
    let plan = Plan { out_of_place_only, versus: node.versus(), ..Plan::new(request, max_bytes) };
    check_elements(request, plan.sweep, place)?;
    let ranks = describe_ranks(&*device, world)?;
    let leads = world.rank() == 0;
    watched.unlimited("writing the report");
    if leads {
        let mut run = start_of_record(request, node, &**world, ranks, max_bytes);
        run.notes.extend(shared.choices_note.clone());
        shared.observer.start(Start { run, plan: &plan, place, reduced_to })?;
    }
    let mut reporter = Reporter { shared, leads, watched, failed_checks: 0, measured: 0, busbw_sum: 0.0 };
    let mut end = End::Complete;
    watched.phase("connecting to the other ranks");
    device.connect(world, rooms, &mut |backend: &mut dyn Backend| {
        if leads {
            shared.observer.connected(backend.transport(), backend.notes())?;
        }
        end = sweep::run(&plan, &**world, place, backend, &mut reporter)?;
        watched.phase("closing its device");
        Ok(())
    })?;
    watched.unlimited("writing the report");
    if leads {
        shared.observer.finish(match end {
            End::Complete => Outcome::Complete,
            End::Stopped(signal) => signal.outcome(),
        })?;
    }
    let mean = reporter.busbw_sum / reporter.measured as f64;
    let slow = nccl_tests::enough(mean, request.variables.min_bandwidth) == Some(false);
    Ok(match end {
        _ if reporter.failed_checks > 0 => Verdict::Wrong,
        End::Stopped(signal) => Verdict::Stopped(signal),
        End::Complete if slow => Verdict::Wrong,
        End::Complete => Verdict::Good,
    })
}

/// All ranks with their devices, in order.
fn describe_ranks(device: &dyn Device, world: &world::Handle) -> Result<Vec<Rank>, Stop> {
    let host = world::host().name;
    let own = Rank { rank: world.rank(), pid: std::process::id(), host, ..device.describe() };
    let all = world.all_gather(&serde_json::to_vec(&own)?)?;
    Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}

/// Passes what happens in one rank's sweep to the watchdog and, for rank 0, to the session's observer.
struct Reporter<'a> {
    shared: &'a Shared<'a>,
    /// True for rank 0.
    leads: bool,
    watched: &'a Watched,
    failed_checks: u64,
    measured: usize,
    busbw_sum: f64,
}

impl Reporter<'_> {
    fn choices(&self) -> std::sync::MutexGuard<'_, Sources> {
        self.shared.choices.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn interrupt(&self) -> &Interrupt {
        self.shared.interrupt
    }
}

impl RankObserver for Reporter<'_> {
    fn event(&mut self, event: Event<'_>) -> anyhow::Result<()> {
        if let Event::Measured(measurement, _) = event {
            self.failed_checks += measurement.failed_checks();
            self.measured += 1;
            self.busbw_sum += measurement.busbw_gbps;
        }
        if self.leads { self.shared.observer.event(event) } else { Ok(()) }
    }

    fn phase(&self, what: &dyn Fn() -> String) {
        let what = what();
        if self.leads {
            self.shared.observer.phase(&what);
        }
        self.watched.phase(what);
    }

    fn before(&mut self, _work: &Work) -> anyhow::Result<()> {
        if self.leads { self.choices().forget().context(READING_LOG) } else { Ok(()) }
    }

    fn listen(&mut self, on: bool) {
        if self.leads {
            nccl_choice::profiler::listen(on);
        }
    }

    fn algorithm(&mut self, work: &Work, aggregated: usize) -> anyhow::Result<Option<Algorithm>> {
        if !self.leads {
            return Ok(None);
        }
        let operation = nccl_choice::Operation {
            collective: work.collective.name(),
            count_bytes: (work.counts.parameter * work.data_type.size()) as u64,
            ranks: work.member.ranks,
            aggregated,
        };
        self.choices().chosen(&operation).context(READING_LOG)
    }

    fn unlimited(&self, what: &'static str) {
        self.watched.unlimited(what);
    }

    fn stop(&self) -> Option<Signal> {
        if self.leads && self.shared.observer.is_closed() {
            self.interrupt().request(Signal::Pipe);
        }
        self.interrupt().requested()
    }
}
