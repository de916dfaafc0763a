//! The steps of a ladder, which all processes take together.

use std::sync::Arc;

use collectives::world;
use engine::backend;
use engine::bench::{Bench, RunFailure};
use engine::collective::Collective;
use engine::process::Joined;
use engine::request::{BackendChoice, Request};
use engine::supervision::{Stop, Verdict, interrupted_outcome, signal_code};
use record::Settings;

use super::model::{RungEnd, Step};
use super::session::Session;
use super::small_bytes;
use crate::command::pairs::{ProcessHost, gather};

/// Default large size on GPUs.
const GPU_BYTES: u64 = 1 << 30;
/// Default large size in host memory.
const HOST_BYTES: u64 = 4 << 20;

/// Measures rung by rung until rank 0 ends the ladder, and returns the exit code.
///
/// # Errors
/// A refusal, the same on all processes.
pub(super) fn climb_ladder(
    process: &Joined,
    bench: &mut Bench<'_>,
    session: &Arc<Session>,
    request: &Request,
) -> Result<u8, Stop> {
    let leads = process.job_world().rank() == 0;
    let host = world::host();
    session.set_processes(gather(process, &ProcessHost { name: host.name, id: host.id }));
    let bytes = agree_on_bytes(request, session, process);
    let request = &with_sizes(request, bytes);
    // Rank 0 alone: the number of ranks is known without a connection between hosts.
    let first = Request { collectives: vec![Collective::AllReduce], ..request.clone() };
    let alone = Request { groups: Some(vec![vec![0]]), ..with_sizes(&first, 16) };
    if let Some(code) = run_request(process, bench, session, &alone)? {
        return Ok(code);
    }
    session.begin_ladder(bench.rank_count(), bytes);
    loop {
        let step = if leads { session.choose_step() } else { Step::End(0) };
        let ranks = match gather(process, &step).swap_remove(0) {
            Step::Measure(ranks) => ranks,
            Step::Refuse(reason) => return Err(Stop::Refused(reason)),
            Step::End(code) => {
                process.salvage().remove_hook();
                return Ok(code);
            }
        };
        let rung = Request { groups: Some(vec![ranks]), ..request.clone() };
        if let Some(code) = run_request(process, bench, session, &rung)? {
            return Ok(code);
        }
    }
}

/// Carries out a request. Returns the exit code when the ladder ends with it.
fn run_request(
    process: &Joined,
    bench: &mut Bench<'_>,
    session: &Arc<Session>,
    request: &Request,
) -> Result<Option<u8>, Stop> {
    let leads = process.job_world().rank() == 0;
    if leads {
        let saved = Arc::clone(session);
        process.save_with(move |outcome| saved.save_early(&outcome));
    }
    match bench.run(request, Arc::clone(session) as _) {
        Ok(Verdict::Stopped(signal)) => {
            if leads {
                session.save_early(&interrupted_outcome(signal));
            }
            Ok(Some(signal_code(signal)))
        }
        Ok(Verdict::Good | Verdict::Wrong) => {
            if leads {
                session.end_rung(&RungEnd::Measured);
            }
            Ok(None)
        }
        // The same on all processes. Rank 0 decides whether the ladder goes on.
        Err(Stop::Failed(error)) if error.is::<RunFailure>() => {
            if leads {
                session.end_rung(&RungEnd::Failed(error.to_string()));
            }
            Ok(None)
        }
        Err(stop) => Err(stop),
    }
}

/// Returns the large size: as asked for, or the default of the backend.
fn agree_on_bytes(request: &Request, session: &Session, process: &Joined) -> u64 {
    let has_gpus = request.backend != BackendChoice::Fabric && backend::missing_gpus().is_none();
    let all_have = gather(process, &has_gpus).iter().all(|has| *has);
    session.asked_bytes().unwrap_or(if all_have { GPU_BYTES } else { HOST_BYTES })
}

/// Returns the request with two sizes: the small one, and the largest multiple of it up to `bytes`.
fn with_sizes(request: &Request, bytes: u64) -> Request {
    let small = request.collectives.first().map_or(1, |collective| small_bytes(*collective));
    let settings = Settings {
        min_bytes: small,
        step_factor: Some((bytes / small).max(2)),
        step_bytes: None,
        ..request.settings.clone()
    };
    Request { settings, max_bytes: Some(bytes.max(small)), ..request.clone() }
}
