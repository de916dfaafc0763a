//! One rank of a run over pairs of ranks, on its own thread.

use collectives::world;
use record::RunOutcome;

use super::rank::{Reporter, gather_ranks};
use super::start::{describe_processes, describe_run};
use super::{RunContext, Start};
use crate::groups::Groups;
use crate::pairs::{PairRank, PairRequest};
use crate::request::Binding;
use crate::supervision::{RankProgress, Stop, Verdict, interrupted_outcome};

/// Opens the endpoints of a rank, and measures each pair. A rank of no pair only takes part in the exchanges.
/// `leads`: the rank reports to the observer.
pub(super) fn run_pairs(
    request: &PairRequest,
    leads: bool,
    world: &world::Handle,
    progress: &RankProgress,
    context: &RunContext<'_>,
) -> Result<Verdict, Stop> {
    let groups = Groups::of_chosen(&request.list_ranks(), world.size())?;
    progress.begin_step("opening its endpoints");
    let mut rank = PairRank::open_rank(request, world, context.at_failure)?;
    // Threads of endpoints would inherit a binding.
    let ranks =
        gather_ranks(rank.describe_rank(), Binding::None, request.names, request.threads, &groups, &**world)?;
    progress.begin_unlimited_step("writing the report");
    if leads {
        let (mut provenance, settings) = rank.describe_run();
        provenance.world = describe_processes(&**context.process.job_world(), &**world);
        let run = describe_run(&request.program, &request.command, provenance, settings, ranks, Vec::new());
        context.observer.start_run(Start { run, plan: None, groups: &groups, reduced_to: None })?;
    }
    let mut reporter = Reporter::new(context, leads, progress);
    let mut stopped = None;
    for &pair in &request.pairs {
        stopped = rank.measure_pair(pair, &groups, &mut reporter)?;
        if stopped.is_some() {
            break;
        }
    }
    drop(rank);
    // The reader of the results may have gone since the last size. No rank leaves before all have come here.
    let stopped = stopped.max(context.process.interrupt().requested_by_any(&**world)?);
    if leads {
        context.observer.finish_run(stopped.map_or(RunOutcome::Complete, interrupted_outcome))?;
    }
    Ok(match stopped {
        _ if reporter.failed_checks > 0 => Verdict::Wrong,
        Some(signal) => Verdict::Stopped(signal),
        None => Verdict::Good,
    })
}
