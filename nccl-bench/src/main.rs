//! Measures and verifies collectives over NCCL and libfabric.

use std::process::ExitCode;

use nccl_bench::command::Program;
use nccl_bench::{cli, mpi_exec};

fn main() -> ExitCode {
    cli::main(Program { hand_over: mpi_exec::hand_over, join: mpi_exec::join_world, mpi: None })
}
