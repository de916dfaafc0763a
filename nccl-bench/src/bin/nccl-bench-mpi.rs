//! `nccl-bench` for the ranks of an MPI launcher; `nccl-bench` itself starts it there.

use std::process::ExitCode;

use collectives::world;
use nccl_bench::{backend, handover, program};

fn main() -> ExitCode {
    let here = |_: &_| Ok(());
    let join = |settings: &_| {
        let mut options = handover::options(settings)?;
        options.join_mpi = Some(world::mpi);
        world::from_environment(&options).map_err(handover::stop)
    };
    program::main(here, join, Some(backend::mpi::find))
}
