//! `nccl-bench` for the ranks of an MPI launcher; `nccl-bench` itself starts it there.

use std::process::ExitCode;

use collectives::world;
use nccl_bench::handover::Meeting;
use nccl_bench::watch::Limited;
use nccl_bench::{backend, handover, program};

fn main() -> ExitCode {
    let here = |_: &_| Ok(());
    let join = |meeting: &Meeting| {
        let mut options = handover::options(meeting)?;
        options.join_mpi = Some(world::mpi);
        // MPI waits for its ranks without a limit of its own.
        let _limited = Limited::start(meeting.timeout.map(|_| options.timeout), "starting MPI")?;
        world::from_environment(&options).map_err(handover::stop)
    };
    program::main(here, join, Some(backend::mpi::find))
}
