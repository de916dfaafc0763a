//! `nccl-bench` for the ranks of an MPI launcher, started by `nccl-bench` itself.

use std::process::ExitCode;
use std::time::Duration;

use collectives::world;
use engine::backend;
use engine::supervision::{Stop, TimeLimit};
use nccl_bench::command::Program;
use nccl_bench::mpi_exec::JoinRequest;
use nccl_bench::{cli, mpi_exec};

/// Limit on starting MPI if neither `-T` nor the environment gives one.
const LONGEST_START: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    cli::main(Program { hand_over: |_| Ok(()), join, mpi: Some(backend::mpi::find_mpi) })
}

fn join(request: &JoinRequest) -> Result<world::Handle, Stop> {
    let mut options = mpi_exec::world_options(request)?;
    options.join_mpi = Some(world::mpi);
    // MPI waits for its ranks without a limit of its own. Thousands of ranks may need minutes.
    let is_given = request.timeout.is_some() || std::env::var_os("NCCL_BENCH_TIMEOUT").is_some();
    let limit = if is_given { options.timeout } else { options.timeout.max(LONGEST_START) };
    let _limited = TimeLimit::start(limit, "starting MPI", "-T, NCCL_BENCH_TIMEOUT")?;
    world::from_environment(&options).map_err(mpi_exec::error_to_stop)
}
