//! The steps of a search, which all processes take together.

use std::sync::Arc;

use collectives::world;
use engine::backend;
use engine::bench::{Bench, RunFailure};
use engine::process::Joined;
use engine::request::{BackendChoice, Request};
use engine::supervision::{FAILED, Stop, Verdict, interrupted_outcome, signal_code};
use record::{RunOutcome, Settings};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::session::{Session, Step};
use super::units::ProcessHost;
use super::{CANNOT_TELL, GPU_BYTES, HOST_BYTES, PairsArguments};

/// The bytes of an exchange: as asked for, or the default of the backend.
pub(super) fn agree_on_bytes(arguments: &PairsArguments, process: &Joined) -> u64 {
    let has_gpus = arguments.backend != BackendChoice::Fabric && backend::missing_gpus().is_none();
    let all = gather(process, &has_gpus);
    let default = if all.iter().all(|has| *has) { GPU_BYTES } else { HOST_BYTES };
    arguments.bytes.map_or(default, |size| size.0)
}

/// Measures until rank 0 ends the search, and returns the exit code.
///
/// # Errors
/// A refusal, the same on all processes.
pub(super) fn run_steps(
    process: &Joined,
    bench: &mut Bench<'_>,
    session: &Arc<Session>,
    request: &Request,
) -> Result<u8, Stop> {
    let world = process.job_world();
    let leads = world.rank() == 0;
    let host = world::host();
    session.set_processes(gather(process, &ProcessHost { name: host.name, id: host.id }));
    loop {
        if leads {
            let saved = Arc::clone(session);
            process.save_with(move |outcome| saved.save_early(outcome));
        }
        let step = if leads { session.choose_step() } else { Step::End(0) };
        let groups = match gather(process, &step).swap_remove(0) {
            Step::Measure(groups) => groups,
            Step::Refuse(reason) => return Err(Stop::Refused(reason)),
            Step::End(code) => {
                process.salvage().remove_hook();
                return Ok(code);
            }
        };
        let request = match groups {
            Some(_) => Request { groups, ..request.clone() },
            None => make_first_request(request),
        };
        match bench.run(&request, Arc::clone(session) as _) {
            Ok(Verdict::Stopped(signal)) => {
                if leads {
                    session.save_early(interrupted_outcome(signal));
                }
                return Ok(signal_code(signal));
            }
            Ok(Verdict::Good | Verdict::Wrong) => session.end_run(),
            Err(Stop::Failed(error)) if error.is::<RunFailure>() => {
                if leads {
                    session.save_early(RunOutcome::Failed { message: error.to_string() });
                }
                return Ok(CANNOT_TELL);
            }
            Err(stop) => return Err(stop),
        }
    }
}

/// The request before the first round: an exchange among all ranks, which also warms up.
fn make_first_request(request: &Request) -> Request {
    let settings = Settings { iterations: 1, rounds: None, budget_seconds: None, ..request.settings.clone() };
    Request { settings, ..request.clone() }
}

/// Gathers a value of every process. A process that cannot ends the job.
pub(in crate::command) fn gather<T: Serialize + DeserializeOwned>(process: &Joined, own: &T) -> Vec<T> {
    let all = || -> anyhow::Result<Vec<T>> {
        let gathered = process.job_world().all_gather(&serde_json::to_vec(own)?)?;
        Ok(gathered.iter().map(|each| serde_json::from_slice(each)).collect::<Result<_, _>>()?)
    };
    all().unwrap_or_else(|error| process.fail_job(&error, FAILED))
}
