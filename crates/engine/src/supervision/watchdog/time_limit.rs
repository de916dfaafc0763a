//! Time limit of a process that has not joined a world yet.

use std::io;
use std::time::Duration;

use collectives::world;

use super::worker::{Worker, WorkerOwner};
use crate::supervision::{TIMED_OUT, print_message};

/// Time after which a waiting process reports what it waits for.
const REPORT_AFTER: Duration = Duration::from_secs(20);

/// Time limit of a process that has not joined a world yet. The limit ends when this is dropped.
#[derive(Debug)]
pub struct TimeLimit {
    _worker: Worker,
}

impl TimeLimit {
    /// Limits the time of `step`, such as `starting MPI`. After `limit` the process prints a message and ends
    /// with exit code 4, upon which its launcher ends the others. Before that, the first two ranks report
    /// what they wait for, and `source`: the option and the variable that set the limit.
    pub fn start(limit: Duration, step: &'static str, source: &'static str) -> io::Result<Self> {
        Ok(Self { _worker: Worker::start("limit", move |owner| enforce_limit(limit, step, source, owner))? })
    }
}

fn enforce_limit(limit: Duration, step: &str, source: &str, owner: &WorkerOwner) {
    let rank = world::Started::detect().rank;
    let name = rank.map_or_else(|| "this process".to_owned(), |rank| format!("rank {rank}"));
    let host = world::host().name;
    let report_after = limit.min(REPORT_AFTER);
    if owner.dropped_within(report_after) {
        return;
    }
    if report_after < limit && rank.is_none_or(|rank| rank < 2) {
        print_message(format_args!(
            "nccl-bench: {name} on {host} is still {step}, for {} s now; it waits for all processes of the \
             launcher to do the same, and gives up after {} s ({source})",
            report_after.as_secs(),
            limit.as_secs()
        ));
    }
    if owner.dropped_within(limit - report_after) {
        return;
    }
    let limit_s = limit.as_secs_f64();
    print_message(format_args!("nccl-bench: {name} on {host} did not finish {step} within {limit_s} s"));
    // SAFETY: ends the process without the exit handlers of libraries, one of which hangs.
    unsafe { libc::_exit(i32::from(TIMED_OUT)) }
}
