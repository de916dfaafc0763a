//! Exchange of results among all ranks.

use collectives::world;
use engine::gather::gather;
use engine::supervision::Stop;

/// Returns `opened` when it succeeded on all ranks, else the error of the first rank that failed. Collective.
pub(super) fn on_all_ranks<T>(opened: Result<T, Stop>, world: &world::Handle) -> Result<T, Stop> {
    let describe = |stop: &Stop| match stop {
        Stop::Failed(error) => (false, format!("{error:#}")),
        refused => (true, refused.refusal().unwrap_or_default()),
    };
    let problem = opened.as_ref().err().map(describe);
    let problems: Vec<Option<(bool, String)>> = gather(&**world, &problem)?;
    let first = problems.into_iter().enumerate().find_map(|(rank, problem)| Some((rank, problem?)));
    match first {
        None => opened,
        Some((rank, (true, problem))) => Err(Stop::Refused(format!("rank {rank}: {problem}"))),
        Some((rank, (false, problem))) => Err(Stop::Failed(anyhow::anyhow!("rank {rank}: {problem}"))),
    }
}
