//! The program as a process, for several test programs.

use std::process::{Command, Output};

/// `nccl-bench` without what a launcher or the user's own environment would add, but for the libfabric that
/// is tested.
pub(crate) fn nccl_bench(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    command.args(arguments.split_whitespace());
    for (name, _) in std::env::vars() {
        if [
            "OMPI_",
            "PMI",
            "SLURM_",
            "NCCL_",
            "RANK",
            "WORLD_SIZE",
            "MASTER_",
            "JOB_COMPLETION_",
            "CUDA_VISIBLE_",
        ]
        .iter()
        .any(|p| name.starts_with(p))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs it to its end.
pub(crate) fn run(arguments: &str) -> Output {
    nccl_bench(arguments).output().unwrap()
}

/// Its standard output.
pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Its standard error.
pub(crate) fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
