//! `nccl-bench` for the ranks of an MPI launcher; `nccl-bench` itself starts it there.

use std::process::ExitCode;
use std::time::Duration;

use collectives::world;
use nccl_bench::handover::Meeting;
use nccl_bench::watch::Limited;
use nccl_bench::{backend, handover, program};

/// Limit on starting MPI where `-T` gives none.
const LONGEST_START: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let here = |_: &_| Ok(());
    let join = |meeting: &Meeting| {
        let mut options = handover::options(meeting)?;
        options.join_mpi = Some(world::mpi);
        // MPI waits for its ranks without a limit of its own. Thousands of ranks may need minutes.
        let limit =
            if meeting.timeout.is_some() { options.timeout } else { options.timeout.max(LONGEST_START) };
        let _limited = Limited::start(limit, "starting MPI")?;
        world::from_environment(&options).map_err(handover::stop)
    };
    program::main(here, join, Some(backend::mpi::find))
}
