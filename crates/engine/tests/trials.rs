//! A hundred requests over changing ranks of one job of four, some of which fail: by threads of a process,
//! and by processes under mpirun. It takes over the signals, so each job has processes of its own.
//!
//! `cargo test -p nccl-bench-engine --test trials -- gpu` does so with 20 requests over four GPUs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, exit};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use collectives::world;
use engine::bench::{Bench, Connection, Observer, RunFailure, Start};
use engine::collective::Collective;
use engine::process::Process;
use engine::request::{BackendChoice, Fault, Request};
use engine::supervision::{Stop, Verdict};
use engine::sweep::SweepEvent;
use record::{Blocking, Run, RunOutcome, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// The folder for the results, in the processes of a job.
const FOLDER: &str = "NCCL_BENCH_TEST_TRIALS";
/// Set in these processes when they measure GPUs.
const GPUS: &str = "NCCL_BENCH_TEST_GPUS";
/// Number of ranks.
const RANKS: usize = 4;
/// The request with a damaged element.
const DAMAGED: usize = 6;
/// A hypercube of three ranks.
const REFUSED: usize = 7;
/// The request during which the process of rank 2 can open no file.
const NOT_OPENED: usize = 37;
/// The request during which the process of rank 2 can open one file at a time.
const NOT_CONNECTED: usize = 38;
/// The rank whose process has these limits.
const LIMITED: usize = 2;

/// The end of a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum End {
    Good,
    Wrong,
    Refused(String),
    Failed(RunFailure),
}

/// Result of a request, as rank 0 saves it.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    end: End,
    /// Absent when the request was refused, or failed before the record began.
    run: Option<Run>,
    /// Microseconds from the end of the request before until the ranks were connected; absent if they were
    /// not.
    until_connected_us: Option<u128>,
}

#[derive(Default)]
struct Collected {
    run: Mutex<Option<Run>>,
    connected: Mutex<Option<Instant>>,
}

impl Observer for Collected {
    fn start_run(&self, start: Start<'_>) -> anyhow::Result<()> {
        *self.run.lock().unwrap() = Some(start.run);
        Ok(())
    }

    fn note_connection(&self, _connection: Connection) -> anyhow::Result<()> {
        *self.connected.lock().unwrap() = Some(Instant::now());
        Ok(())
    }

    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        if let (SweepEvent::Measured(measurement, _), Some(run)) = (event, &mut *self.run.lock().unwrap()) {
            run.measurements.push(measurement.clone());
        }
        Ok(())
    }

    fn finish_run(&self, outcome: RunOutcome) -> anyhow::Result<()> {
        if let Some(run) = &mut *self.run.lock().unwrap() {
            run.outcome = outcome;
        }
        Ok(())
    }

    fn salvage_results(&self, outcome: RunOutcome) {
        panic!("nothing ends the process early: {outcome:?}");
    }
}

/// Number of requests. Those over GPUs end before files are limited.
fn count_trials(on_gpus: bool) -> usize {
    if on_gpus { 20 } else { 100 }
}

/// The ranks of a request: each set of one to four ranks in turn.
fn ranks_of(trial: usize) -> Vec<usize> {
    let set = match trial {
        DAMAGED | NOT_OPENED | NOT_CONNECTED => 0b0110,
        REFUSED => 0b1101,
        trial => 1 + trial % ((1 << RANKS) - 1),
    };
    (0..RANKS).filter(|rank| set & (1 << rank) != 0).collect()
}

fn request(trial: usize, threads: usize) -> Request {
    let all = Collective::ALL.iter().filter(|&&collective| collective != Collective::Hypercube);
    let all: Vec<Collective> = all.copied().collect();
    let collective = match trial {
        DAMAGED => Collective::AllReduce,
        REFUSED => Collective::Hypercube,
        trial => all[trial % all.len()],
    };
    let on_gpus = env::var_os(GPUS).is_some();
    Request {
        groups: Some(vec![ranks_of(trial)]),
        backend: if on_gpus { BackendChoice::Nccl } else { BackendChoice::Fabric },
        threads: Some(threads),
        gpus: on_gpus.then_some(1),
        settings: Settings {
            min_bytes: 256,
            iterations: 2 + trial % 3,
            per_iteration: trial % 5 == 1,
            blocking: [Blocking::No, Blocking::WaitAndBarrier, Blocking::Wait, Blocking::Outer][trial % 4],
            ..Settings::of_collectives()
        },
        max_bytes: Some(1024),
        statistics: trial % 5 <= 2,
        // Nothing is connected over it yet.
        provider: if trial == NOT_CONNECTED { "tcp" } else { "auto" }.to_owned(),
        fault: (trial == DAMAGED).then_some(Fault { rank: LIMITED, index: 3 }),
        ..Request::new(vec![collective])
    }
}

/// Limits the files that this process can open to `more` than now, while `action` runs.
fn with_few_files<R>(more: u64, action: impl FnOnce() -> R) -> R {
    let before = getrlimit(Resource::Nofile);
    let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    let open: Vec<u64> = open.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
    // The limit is one for the numbers of files, of which some may be free; the folder's own is.
    let mut held = Vec::new();
    let limit = loop {
        let file = fs::File::open("/dev/null").unwrap();
        let number = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
        held.push(file);
        if number > *open.iter().max().unwrap() {
            break number + 1;
        }
    };
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit + more), ..before }).unwrap();
    let result = action();
    setrlimit(Resource::Nofile, before).unwrap();
    result
}

/// The part of one process.
fn run_job(folder: &Path) {
    let process = Process::start_for(&request(0, 1)).unwrap();
    let process = process.join_world(world::from_environment(&world::Options::default()).unwrap());
    let own = process.job_world().rank();
    let threads = RANKS / process.job_world().size();
    let mut bench = Bench::open(&process, None);
    let mut before = Instant::now();
    for trial in 0..count_trials(env::var_os(GPUS).is_some()) {
        let observer = Arc::new(Collected::default());
        let mut run = || bench.run(&request(trial, threads), observer.clone());
        let result = match trial {
            NOT_OPENED if own == LIMITED / threads => with_few_files(0, run),
            NOT_CONNECTED if own == LIMITED / threads => with_few_files(1, run),
            _ => run(),
        };
        let end = match result {
            Ok(Verdict::Good) => End::Good,
            Ok(Verdict::Wrong) => End::Wrong,
            Ok(stopped @ Verdict::Stopped(_)) => panic!("{stopped:?}"),
            Err(Stop::Failed(error)) => End::Failed(error.downcast().unwrap()),
            Err(refused) => End::Refused(refused.refusal_text().unwrap()),
        };
        let connected = observer.connected.lock().unwrap().take();
        let until_connected_us = connected.map(|connected| (connected - before).as_micros());
        before = Instant::now();
        if own == 0 {
            let kept = Kept { end, run: observer.run.lock().unwrap().take(), until_connected_us };
            fs::write(folder.join(format!("{trial}.json")), serde_json::to_vec(&kept).unwrap()).unwrap();
            before = Instant::now();
        }
    }
}

/// Checks what the job of `name` has kept of `trials` requests.
fn check_results(name: &str, folder: &Path, trials: usize) {
    let mut between = Vec::new();
    for trial in 0..trials {
        let kept = fs::read(folder.join(format!("{trial}.json"))).unwrap();
        let Kept { end, run, until_connected_us } = serde_json::from_slice(&kept).unwrap();
        let ranks = ranks_of(trial);
        match (trial, &end) {
            (DAMAGED, End::Wrong) => {}
            (REFUSED, End::Refused(reason)) => {
                assert!(reason.contains("2, 4, 8, ... ranks, but there are 3"), "{name}: {reason}");
                assert_eq!(run, None);
                continue;
            }
            (NOT_OPENED | NOT_CONNECTED, End::Failed(failure)) => {
                // All ranks of the process have its limit.
                let named = if name == "threads" { &ranks[..] } else { &[LIMITED] };
                assert!(named.contains(&failure.rank), "{name}: {failure}");
                assert!(failure.reason.contains("oo many open files"), "{name}: {failure}");
                if let Some(run) = &run {
                    assert_eq!(run.outcome, RunOutcome::Failed { message: failure.to_string() });
                }
                // With one file for two ranks, either step can fail.
                assert!(name == "threads" || run.is_some() == (trial == NOT_CONNECTED), "{name}: {failure}");
                continue;
            }
            (DAMAGED | REFUSED | NOT_OPENED | NOT_CONNECTED, unexpected) => panic!("{name}: {unexpected:?}"),
            (_, End::Good) => {}
            unexpected => panic!("{name}: {unexpected:?}"),
        }
        let run = run.unwrap();
        assert_eq!(run.outcome, RunOutcome::Complete);
        let job_ranks: Vec<usize> = run.ranks.iter().map(|rank| rank.job_rank.unwrap_or(rank.rank)).collect();
        assert_eq!(job_ranks, ranks, "{name}: {trial}");
        assert!(run.ranks.iter().enumerate().all(|(number, rank)| rank.rank == number));
        // Three sizes in both placements.
        assert_eq!(run.measurements.len(), 6, "{name}: {trial}");
        for measurement in &run.measurements {
            assert_eq!(measurement.per_rank.len(), ranks.len());
            assert_eq!((measurement.operations, measurement.group), (2 + trial % 3, None));
            let damaged: Vec<usize> = measurement.mismatches.iter().map(|found| found.rank).collect();
            // Rank 2 is the second of those that measure.
            assert_eq!(damaged, if trial == DAMAGED { vec![1] } else { vec![] }, "{name}: {trial}");
        }
        between.extend(until_connected_us.filter(|_| trial > 0));
    }
    between.sort_unstable();
    let (median, most) = (between[between.len() / 2], between[between.len() - 1]);
    println!(
        "{name}: from the end of a request until the next is connected: median {median} us, at most {most} us"
    );
}

fn main() {
    if let Some(folder) = env::var_os(FOLDER) {
        return run_job(Path::new(&folder));
    }
    let on_gpus = env::args().any(|argument| argument == "gpu");
    let program = env::current_exe().unwrap();
    let mpirun = |processes: &str| {
        let mut command = Command::new("mpirun");
        command.args(["--bind-to", "none", "-np", processes]).arg(&program);
        for name in
            ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"]
        {
            command.env(name, "1");
        }
        command
    };
    let jobs = BTreeMap::from([
        ("threads", Command::new(&program)),
        ("processes of two threads", mpirun("2")),
        ("processes", mpirun("4")),
    ]);
    for (name, mut command) in jobs {
        let folder = tempfile::tempdir().unwrap();
        if on_gpus {
            command.env(GPUS, "1");
        }
        let mut job = command.env(FOLDER, folder.path()).spawn().unwrap();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = job.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > Duration::from_secs(300) {
                let _ended = job.kill();
                panic!("{name}: the job hangs");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{name}: {status}");
        check_results(name, folder.path(), count_trials(on_gpus));
    }
    println!("ok");
    exit(0);
}
