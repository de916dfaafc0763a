//! The program over host memory that the README shows, built with and without MPI, and started in each way
//! that the README names.

#![allow(clippy::unwrap_used, clippy::panic)] // tests
#![cfg(feature = "fabric")]

#[path = "port/mod.rs"]
mod port;

use std::env;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use port::reserve_port;

/// The source of the program, taken from the README.
fn source() -> &'static str {
    let blocks = include_str!("../README.md").split("```rust,no_run\n").skip(1);
    let mut programs = blocks.filter_map(|block| block.split_once("```\n").map(|(program, _)| program));
    programs.find(|program| program.contains("Job::from_environment")).unwrap()
}

/// Builds the program in a project of its own, with these features of `collectives`.
fn build(features: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = features.join("-");
    let project = tempfile::tempdir().unwrap();
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         collectives = {{ path = {root:?}, default-features = false, features = {features:?} }}\n"
    );
    fs::write(project.path().join("Cargo.toml"), manifest).unwrap();
    fs::create_dir(project.path().join("src")).unwrap();
    fs::write(project.path().join("src/main.rs"), source()).unwrap();
    fs::copy(root.join("Cargo.lock"), project.path().join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host_readme");
    let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--offline", "--quiet"])
        .current_dir(project.path())
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join("debug").join(name)
}

/// The program, built once for all tests: without MPI, and also with it when this test has the feature `mpi`.
fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let mut programs = vec![build(&["fabric"])];
        if cfg!(feature = "mpi") {
            programs.push(build(&["fabric", "mpi"]));
        }
        programs
    })
}

/// A command that runs a program without the variables of a launcher, for at most 60 seconds.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60"]).arg(program).stdin(Stdio::null());
    for (name, _) in env::vars() {
        let foreign =
            ["NCCL_BENCH_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_", "JOB_COMPLETION_"];
        let torch = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&name.as_str());
        if torch || foreign.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Checks that the program succeeded, and that each of `ranks` has printed the mean over all `size` ranks.
fn assert_met(output: &Output, ranks: Range<usize>, size: usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for rank in ranks {
        let line = format!("rank {rank} of {size}: mean {} ", (size - 1) as f32 / 2.0);
        assert!(text.contains(&line), "{line}: {output:?}");
    }
}

fn under(launcher: &str, arguments: &[&str]) {
    for program in programs() {
        // Launchers of Open MPI that start at the same time collide in `/tmp`, so each has a folder of its
        // own.
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(launcher);
        command.env("TMPDIR", folder.path());
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        assert_met(&command.args(["-np", "3"]).args(arguments).arg(program).output().unwrap(), 0..3, 3);
    }
}

#[test]
fn alone_it_is_the_only_rank() {
    for program in programs() {
        assert_met(&command(program).output().unwrap(), 0..1, 1);
    }
}

#[test]
fn its_ranks_meet_under_open_mpi() {
    under("mpirun.openmpi", &["--oversubscribe"]);
}

#[test]
fn its_ranks_meet_under_mpich() {
    under("mpirun.mpich", &[]);
}

#[test]
fn its_ranks_meet_with_the_variables_of_torchrun() {
    for program in programs() {
        let port = reserve_port().to_string();
        let ranks = ["0", "1"].map(|rank| {
            let meeting = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
            let mut command = command(program);
            command.envs([("RANK", rank), ("WORLD_SIZE", "2")]).envs(meeting);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        for (rank, process) in ranks.into_iter().enumerate() {
            assert_met(&process.wait_with_output().unwrap(), rank..rank + 1, 2);
        }
    }
}

#[test]
fn mpirun_on_several_hosts_needs_an_address() {
    let variables = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    for program in programs() {
        let output = command(program).envs(variables).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            text.contains("mpirun -x NCCL_BENCH_ADDR=node1:29500") && text.contains("join_mpi"),
            "{text}"
        );
    }
}
