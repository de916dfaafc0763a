//! The logs of a complete measurement of `doctor`, which rank 0 gathers: each is whole, and each process is
//! there.
//!
//! NCCL and the CUDA driver are fakes; this NCCL writes a log.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Ended, Process, bench, host, reserve_port, start};
use crate::{Tests, tests};

pub(crate) const TESTS: Tests = tests![
    the_lines_of_a_rank_that_closes_late_are_in_the_report,
    a_rank_that_dies_while_it_closes_is_reported,
    a_process_that_dies_when_it_is_asked_for_its_log_is_reported,
];

/// The folder of the fakes, with the driver `libcuda.so` and NCCL.
pub(crate) struct Fakes(pub(crate) TempDir);

impl Fakes {
    pub(crate) fn build() -> Self {
        let fakes = Self(tempfile::tempdir().unwrap());
        let driver = ["log.c", "cuda.c", "memory.c", "effects.c", "order.c", "graphs.c"].map(fake);
        let driver = [&driver[..], &[data("measured_gpu.c")]].concat();
        compile(&driver, &fakes.driver(), &["-Wl,-soname,libcuda.so", "-DcuInit=fake_cuInit"]);
        let nccl =
            ["nccl.c", "communicators.c", "objects.c", "exchange.c", "worker.c", "parameters.c"].map(fake);
        let nccl = [&nccl[..], &[data("logging_nccl.c"), fakes.driver()]].concat();
        // The functions that write the log call those of the fake.
        let names = ["ncclCommInitRankConfig", "ncclCommDestroy"].map(|name| format!("-D{name}=fake_{name}"));
        compile(&nccl, &fakes.nccl(), &["-DFAKE_VERSION=22809", &names[0], &names[1]]);
        fakes
    }

    fn driver(&self) -> PathBuf {
        self.0.path().join("libcuda.so")
    }

    pub(crate) fn nccl(&self) -> PathBuf {
        self.0.path().join("libnccl.so.2")
    }

    /// Starts the doctor as several processes, which divide the four GPUs of the fake driver among them.
    /// `change` changes the command of a rank's process.
    fn start(&self, processes: usize, change: impl Fn(usize, &mut Command)) -> Vec<Process> {
        let port = reserve_port();
        let start_rank = |rank: usize| {
            let mut doctor = bench("doctor -T 60 --json");
            doctor.env("LD_LIBRARY_PATH", self.0.path()).env("NCCL_LIBRARY", self.nccl());
            doctor.env("NCCL_BENCH_RANK", rank.to_string());
            doctor.env("NCCL_BENCH_SIZE", processes.to_string());
            doctor.env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"));
            change(rank, &mut doctor);
            start(doctor)
        };
        (0..processes).map(start_rank).collect()
    }
}

/// A source of the fakes.
fn fake(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fake").join(name)
}

/// A source of these tests.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Builds a shared library.
fn compile(sources: &[PathBuf], output: &Path, flags: &[&str]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]);
    compiler.args(["-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic", "-I"]).arg(fake(""));
    compiler.args(flags).args(sources).arg("-o").arg(output);
    assert!(compiler.status().unwrap().success(), "{output:?} does not compile");
}

/// The examination of the logs in a report.
pub(crate) fn examination_of_logs(report: &str) -> Value {
    let report: Value = serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {report}"));
    let examinations = report["examinations"].as_array().unwrap();
    examinations.iter().find(|one| one["subject"] == "log").unwrap_or_else(|| panic!("{report}")).clone()
}

fn ends(job: Vec<Process>) -> Vec<Ended> {
    job.into_iter().map(|mut process| process.ended()).collect()
}

/// Panics unless rank 0 reports the death of rank `dead`, and all other processes fail.
fn assert_death_is_reported(ends: &[Ended], dead: usize) {
    let failure = format!("the doctor's measurement failed: rank {dead} on host {} died", host());
    for (rank, ended) in ends.iter().enumerate() {
        let code = if rank == dead { None } else { Some(2) };
        assert_eq!(ended.code, code, "rank {rank}: {ended:?}");
        assert_eq!(ended.stdout.contains(&failure), rank == 0, "rank {rank}: {ended:?}");
    }
}

/// NCCL destroys the communicator of a rank without waiting for other processes, and writes the end of all
/// those of a process when the last one is destroyed.
fn the_lines_of_a_rank_that_closes_late_are_in_the_report() {
    let fakes = Fakes::build();
    for (processes, late) in [(4, "1"), (2, "3"), (1, "2")] {
        let ends = ends(fakes.start(processes, |_, doctor| _ = doctor.env("TEST_LATE_RANK", late)));
        let log = examination_of_logs(&ends[0].stdout);
        let (health, communicators) = (&log["health"], log["facts"]["communicators"].as_array().unwrap());
        assert_eq!((health, communicators.len()), (&Value::from("healthy"), 1), "{processes}: {log}");
        for rank in 0..4 {
            let member = &communicators[0]["members"][rank.to_string()];
            assert_eq!(member["destroyed"], true, "{processes} processes, rank {rank}: {log}");
        }
    }
}

fn a_rank_that_dies_while_it_closes_is_reported() {
    let ends = ends(Fakes::build().start(4, |_, doctor| _ = doctor.env("TEST_DYING_RANK", "2")));
    assert_death_is_reported(&ends, 2);
    let log = examination_of_logs(&ends[0].stdout);
    assert_eq!(log["facts"]["communicators"][0]["members"]["2"]["destroyed"], false, "{log}");
}

fn a_process_that_dies_when_it_is_asked_for_its_log_is_reported() {
    let fakes = Fakes::build();
    let library = fakes.0.path().join("dies_when_asked.so");
    compile(&[data("dies_when_asked.c")], &library, &[]);
    let job = fakes.start(4, |rank, doctor| match rank {
        1 => _ = doctor.env("LD_PRELOAD", &library),
        // Rank 0 has its log only from itself.
        3 => _ = doctor.env("NCCL_HOSTID", "another"),
        _ => {}
    });
    let ends = ends(job);
    assert_death_is_reported(&ends, 1);
    let log = examination_of_logs(&ends[0].stdout);
    for rank in 0..4 {
        let member = &log["facts"]["communicators"][0]["members"][rank.to_string()];
        assert_eq!(member["destroyed"], true, "rank {rank}: {log}");
    }
}
