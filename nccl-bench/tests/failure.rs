//! Ranks that crash, hang or are interrupted: whoever is left names them and ends, in time and with the right code.
//!
//! Real processes over libfabric and host memory. Some tests start this program again as a rank (`FAILURE_STEPS`), to
//! have a rank hang at a place of their choice. The only assertion about time is that a job does not hang.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp;
use collectives::fabric::{self, Communicator};
use collectives::world::{self, OnFailure, Options};
use engine::supervision::Salvage;
use engine::supervision::Watchdog;
use libtest_mimic::{Arguments, Trial};
use record::Outcome;

const TESTS: &[(&str, fn())] = &[
    ("a_signal_ends_a_stuck_run_with_its_code", a_signal_ends_a_stuck_run_with_its_code),
    ("a_signal_stops_a_sweep_between_measurements", a_signal_stops_a_sweep_between_measurements),
    (
        "what_was_measured_before_a_stuck_operation_is_kept",
        what_was_measured_before_a_stuck_operation_is_kept,
    ),
    ("results_are_kept_when_nobody_reads_the_output", results_are_kept_when_nobody_reads_the_output),
    ("a_second_signal_does_not_wait", a_second_signal_does_not_wait),
    ("a_signal_that_was_ignored_stays_ignored", a_signal_that_was_ignored_stays_ignored),
    ("a_signal_to_one_rank_stops_all", a_signal_to_one_rank_stops_all),
    ("a_signal_to_one_stuck_rank_ends_all", a_signal_to_one_stuck_rank_ends_all),
    ("a_signal_ends_a_rank_that_waits_for_others", a_signal_ends_a_rank_that_waits_for_others),
    ("a_closed_output_ends_a_run_quietly", a_closed_output_ends_a_run_quietly),
    ("a_closed_output_ends_all_ranks_quietly", a_closed_output_ends_all_ranks_quietly),
    ("a_killed_rank_is_named", a_killed_rank_is_named),
    ("a_stopped_rank_is_named", a_stopped_rank_is_named),
    ("a_stopped_rank_is_named_by_the_watchdog", a_stopped_rank_is_named_by_the_watchdog),
    ("a_rank_that_hangs_is_told_from_those_that_wait", a_rank_that_hangs_is_told_from_those_that_wait),
    ("ranks_that_hang_together_are_all_named", ranks_that_hang_together_are_all_named),
    ("a_process_that_hangs_before_it_has_ranks_is_named", a_process_that_hangs_before_it_has_ranks_is_named),
    ("a_thread_that_hangs_is_named", a_thread_that_hangs_is_named),
    ("a_thread_that_fails_is_named_by_all", a_thread_that_fails_is_named_by_all),
    ("a_rank_that_never_comes_is_named", a_rank_that_never_comes_is_named),
    ("the_meeting_may_have_a_limit_of_its_own", the_meeting_may_have_a_limit_of_its_own),
    ("saving_cannot_hold_up_the_end", saving_cannot_hold_up_the_end),
    ("the_results_are_saved_when_another_rank_dies", the_results_are_saved_when_another_rank_dies),
    ("what_is_not_limited_may_take_its_time", what_is_not_limited_may_take_its_time),
    #[cfg(feature = "mpi")]
    ("a_killed_rank_of_mpirun_is_named", a_killed_rank_of_mpirun_is_named),
    #[cfg(feature = "mpi")]
    ("a_stopped_rank_of_mpirun_is_named", a_stopped_rank_of_mpirun_is_named),
    #[cfg(feature = "mpi")]
    ("a_stopped_rank_of_mpirun_is_named_by_the_watchdog", a_stopped_rank_of_mpirun_is_named_by_the_watchdog),
    #[cfg(feature = "mpi")]
    ("a_signal_to_mpirun_ends_its_ranks", a_signal_to_mpirun_ends_its_ranks),
];

fn main() {
    if let Ok(steps) = env::var("FAILURE_STEPS") {
        rank(&steps);
        return;
    }
    let trials = TESTS.iter().map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

// Processes.

/// A sweep that does not end by itself while a test runs: a million sizes.
const LONG_SWEEP: &str = "allreduce --backend fabric -b 8 -e 8M -i 8 -n 1";
/// A measurement that does not: hours of operations.
const LONG_MEASUREMENT: &str = "allreduce --backend fabric -b 8 -e 8 -n 4000000000";
/// A limit for each phase, in seconds, which three ranks keep on two busy cores: emulated, they are slow.
const WATCHDOG_S: u32 = if cfg!(target_arch = "x86_64") { 10 } else { 30 };
/// What rank 0 prints when the ranks are connected, just before it measures.
const CONNECTED: &str = "#        (B)";

/// A process that a test has started; killed when the test is over.
struct Process {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<thread::JoinHandle<String>>,
    seen: String,
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// A program in an environment without a launcher's variables, with signals as they are on a terminal.
fn command(program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    for (name, _) in env::vars() {
        let torch = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&name.as_str());
        let foreign = [
            "NCCL_BENCH_",
            "OMPI_",
            "PMI",
            "SLURM_",
            "TORCHELASTIC_",
            "MASTER_",
            "JOB_COMPLETION_",
            "NCCL_HOSTID",
        ];
        if torch || foreign.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    // SAFETY: `signal` may be called between `fork` and `exec`.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    command
}

fn bench(arguments: &str) -> Command {
    command(env!("CARGO_BIN_EXE_nccl-bench"), arguments)
}

fn start(mut command: Command) -> Process {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut errors = child.stderr.take().unwrap();
    let stderr = thread::spawn(move || {
        let mut text = Vec::new();
        errors.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    Process { child, stdout: Some(stdout), stderr: Some(stderr), seen: String::new() }
}

/// Starts `size` ranks that meet over TCP.
fn start_job(size: usize, of: impl Fn() -> Command, variables: &[(&str, &str)]) -> Vec<Process> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let ranks = (0..size).map(|rank| {
        let mut command = of();
        command.env("NCCL_BENCH_RANK", rank.to_string());
        command.env("NCCL_BENCH_SIZE", size.to_string());
        command.env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"));
        start({
            command.envs(variables.iter().copied());
            command
        })
    });
    ranks.collect()
}

impl Process {
    fn signal(&self, signal: libc::c_int) {
        send(self.child.id(), signal);
    }

    /// Reads standard output up to a line that starts so.
    fn read_to(&mut self, start: &str) {
        let output = self.stdout.as_mut().unwrap();
        loop {
            let mut line = String::new();
            if output.read_line(&mut line).unwrap() == 0 {
                let stderr = self.stderr.take().unwrap().join().unwrap();
                panic!("it ended before `{start}`: {}{stderr}", self.seen);
            }
            self.seen += &line;
            if line.starts_with(start) {
                return;
            }
        }
    }

    /// Waits for the end, which comes within a minute of a job that does not hang.
    fn ended(&mut self) -> Ended {
        let by = Instant::now() + Duration::from_secs(60);
        let rest = self.stdout.take().map(|mut output| {
            thread::spawn(move || {
                let mut text = Vec::new();
                output.read_to_end(&mut text).unwrap();
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() >= by {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                break None;
            }
            thread::sleep(Duration::from_millis(10));
        };
        let rest = rest.map(|rest| rest.join().unwrap()).unwrap_or_default();
        let stdout = std::mem::take(&mut self.seen) + &rest;
        let stderr = self.stderr.take().unwrap().join().unwrap();
        let Some(status) = status else { panic!("it hangs: {stdout}{stderr}") };
        Ended { code: status.code(), stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(process: u32, signal: libc::c_int) {
    // SAFETY: `kill` touches no memory; the process has not been waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(process as libc::pid_t, signal) }, 0);
}

fn host() -> String {
    world::host().name
}

// Signals.

fn a_signal_ends_a_stuck_run_with_its_code() {
    for (signal, name, code) in
        [(libc::SIGINT, "SIGINT", 130), (libc::SIGTERM, "SIGTERM", 143), (libc::SIGHUP, "SIGHUP", 129)]
    {
        // libfabric is loaded, and its providers have installed handlers of their own, which end with code 1.
        let mut run = start(bench(&format!("{LONG_MEASUREMENT} -t 2")));
        run.read_to(CONNECTED);
        run.signal(signal);
        let ended = run.ended();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.stderr, format!("nccl-bench: ended by {name}\n"), "{ended:?}");
    }
}

fn a_signal_stops_a_sweep_between_measurements() {
    let folder = tempfile::tempdir().unwrap();
    let [json, lines, compatible] =
        ["run.json", "run.jsonl", "tests.json"].map(|name| folder.path().join(name));
    let files =
        format!("--output {} --output {} -J {}", json.display(), lines.display(), compatible.display());
    let mut run = start(bench(&format!("{LONG_SWEEP} -t 2 {files}")));
    run.read_to(CONNECTED);
    run.read_to("  ");
    run.signal(libc::SIGINT);
    let ended = run.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(130), ""), "{ended:?}");
    assert!(ended.stdout.ends_with(&not_whole("SIGINT")), "{ended:?}");
    for success in ["OK", "Out of bounds", "Avg bus", "concluded"] {
        assert!(!ended.stdout.contains(success), "{ended:?}");
    }
    for file in [json, lines] {
        assert_interrupted(&record::files::read(&file).unwrap());
    }
    let text = std::fs::read_to_string(compatible).unwrap();
    assert!(text.contains("SIGINT") && !text.contains("end_time"), "{text}");
}

/// The last line of a run that a signal ended.
fn not_whole(signal: &str) -> String {
    format!("# Test failure: FAILED: this run is not whole: interrupted by {signal}\n")
}

fn assert_interrupted(run: &record::Run) {
    assert_eq!(run.outcome, Outcome::Interrupted { signal: "SIGINT".to_owned() });
    assert!(!run.measurements.is_empty() && run.ended_at.is_some(), "{run:?}");
}

fn what_was_measured_before_a_stuck_operation_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    // The second size takes far longer than a signal waits.
    let sizes = "allreduce --backend fabric -b 8 -e 64M -f 8388608 -n 2000 -t 2";
    let mut run = start(bench(&format!("{sizes} --output {}", file.display())));
    run.read_to(CONNECTED);
    run.read_to("  ");
    run.signal(libc::SIGINT);
    let ended = run.ended();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let kept = record::files::read(&file).unwrap();
    assert_interrupted(&kept);
    assert_eq!(kept.measurements.len(), 2, "{kept:?}");
}

fn results_are_kept_when_nobody_reads_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let [json, lines] = ["run.json", "run.jsonl"].map(|name| folder.path().join(name));
    let files = format!("--output {} --output {}", json.display(), lines.display());
    let mut run = start(bench(&format!("allreduce --backend fabric -b 8 -e 8 -n 1 -w 0 -N 0 -t 2 {files}")));
    run.read_to(CONNECTED);
    // The pipe holds 64 KiB: when the file of lines stops growing, a row is being printed that nobody reads.
    let length = || std::fs::metadata(&lines).map_or(0, |found| found.len());
    let mut before = 0;
    loop {
        thread::sleep(Duration::from_secs(1));
        let now = length();
        if now > 0 && now == before {
            break;
        }
        before = now;
    }
    run.signal(libc::SIGTERM);
    // Nobody reads until it has ended.
    let by = Instant::now() + Duration::from_secs(60);
    while run.child.try_wait().unwrap().is_none() && Instant::now() < by {
        thread::sleep(Duration::from_millis(10));
    }
    let ended = run.ended();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    for file in [json, lines] {
        let kept = record::files::read(&file).unwrap();
        assert_eq!(kept.outcome, Outcome::Interrupted { signal: "SIGTERM".to_owned() });
        assert!(kept.measurements.len() > 100, "{}", kept.measurements.len());
    }
}

fn a_second_signal_does_not_wait() {
    let mut run = start(bench(&format!("{LONG_MEASUREMENT} -t 2")));
    run.read_to(CONNECTED);
    run.signal(libc::SIGINT);
    thread::sleep(Duration::from_millis(200));
    run.signal(libc::SIGTERM);
    let ended = run.ended();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(ended.stderr.contains("ended by SIGTERM"), "{ended:?}");
}

fn a_signal_that_was_ignored_stays_ignored() {
    // By the time of the second one libfabric's providers have installed handlers of their own.
    for (ignored, other) in
        [(libc::SIGHUP, libc::SIGTERM), (libc::SIGINT, libc::SIGTERM), (libc::SIGTERM, libc::SIGINT)]
    {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.json");
        let mut command = bench(&format!("{LONG_SWEEP} -t 2 --output {}", file.display()));
        // SAFETY: `signal` may be called between `fork` and `exec`.
        unsafe {
            command.pre_exec(move || {
                libc::signal(ignored, libc::SIG_IGN);
                Ok(())
            })
        };
        let mut run = start(command);
        run.read_to(CONNECTED);
        run.signal(ignored);
        run.read_to("  ");
        run.signal(ignored);
        run.read_to("  ");
        run.signal(other);
        let ended = run.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(128 + other), ""), "{ended:?}");
        let kept = record::files::read(&file).unwrap();
        assert!(
            matches!(&kept.outcome, Outcome::Interrupted { .. }) && !kept.measurements.is_empty(),
            "{kept:?}"
        );
    }
}

fn a_signal_to_one_rank_stops_all() {
    let mut job = start_job(3, || bench(LONG_SWEEP), &[]);
    job[0].read_to(CONNECTED);
    job[0].read_to("  ");
    job[2].signal(libc::SIGTERM);
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(143), ""), "rank {rank}: {ended:?}");
        assert_eq!(ended.stdout.ends_with(&not_whole("SIGTERM")), rank == 0, "rank {rank}: {ended:?}");
    }
}

fn a_signal_to_one_stuck_rank_ends_all() {
    let mut job = start_job(3, || bench(LONG_MEASUREMENT), &[]);
    job[0].read_to(CONNECTED);
    job[1].signal(libc::SIGINT);
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!(ended.code, Some(130), "rank {rank}: {ended:?}");
        assert!(ended.stderr.starts_with(&format!("rank 1 on host {}", host())), "rank {rank}: {ended:?}");
        assert!(ended.stderr.contains("ended by SIGINT"), "rank {rank}: {ended:?}");
    }
}

fn a_signal_ends_a_rank_that_waits_for_others() {
    // Rank 0 is there already.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut command = bench(LONG_SWEEP);
    command.envs([("NCCL_BENCH_RANK", "1"), ("NCCL_BENCH_SIZE", "2"), ("NCCL_BENCH_ADDR", &address)]);
    let mut waiting = start(command);
    let (_rank_0, _) = listener.accept().unwrap();
    waiting.signal(libc::SIGINT);
    let ended = waiting.ended();
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(130), "nccl-bench: ended by SIGINT\n"),
        "{ended:?}"
    );
}

fn a_closed_output_ends_a_run_quietly() {
    let mut run = start(bench(&format!("{LONG_SWEEP} -t 2")));
    run.read_to("# nccl-bench version");
    run.stdout = None;
    let ended = run.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(141), ""), "{ended:?}");
}

fn a_closed_output_ends_all_ranks_quietly() {
    let mut job = start_job(3, || bench(LONG_SWEEP), &[]);
    job[0].read_to(CONNECTED);
    job[0].read_to("  ");
    job[0].stdout = None;
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(141), ""), "rank {rank}: {ended:?}");
    }
}

// Ranks that crash or stand still, in the middle of a sweep.

fn a_killed_rank_is_named() {
    for dead in [0, 1] {
        let mut job = start_job(3, || bench(LONG_SWEEP), &[]);
        job[0].read_to(CONNECTED);
        job[0].read_to("  ");
        job[dead].signal(libc::SIGKILL);
        for rank in (0..3).filter(|&rank| rank != dead) {
            let ended = job[rank].ended();
            assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
            let named = format!("rank {dead} on host {} died: its connection", host());
            assert!(ended.stderr.contains(&named), "rank {rank}: {ended:?}");
        }
    }
}

fn a_stopped_rank_is_named() {
    for (dead, arguments) in [(1, LONG_SWEEP), (0, LONG_MEASUREMENT)] {
        let mut job = start_job(3, || bench(arguments), &[("NCCL_BENCH_DEAD_AFTER", "3")]);
        job[0].read_to(CONNECTED);
        job[dead].signal(libc::SIGSTOP);
        for rank in (0..3).filter(|&rank| rank != dead) {
            let ended = job[rank].ended();
            assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
            let named = format!("rank {dead} on host {} died: nothing was heard from it for 3 s", host());
            assert!(ended.stderr.contains(&named), "rank {rank}: {ended:?}");
        }
    }
}

/// Panics unless this process ended because the watchdog found that rank 1 keeps the others waiting.
fn assert_watchdog_named_rank_1(stderr: &str) {
    let named = stderr.contains(&format!("rank 1 on {} (host memory)", host()));
    // All can stand in the same operation, which no rank can finish without the others.
    let late = stderr.contains(" did not finish ") || stderr.contains("no rank has finished ");
    let limit = format!(" within {WATCHDOG_S} s");
    assert!(named && late && stderr.contains(&limit), "{stderr}");
}

fn a_stopped_rank_is_named_by_the_watchdog() {
    // As if nobody noticed its silence.
    let mut job =
        start_job(3, || bench(&format!("{LONG_SWEEP} -T {WATCHDOG_S}")), &[("NCCL_BENCH_DEAD_AFTER", "0")]);
    job[0].read_to(CONNECTED);
    job[0].read_to("  ");
    thread::sleep(Duration::from_millis(1500));
    job[1].signal(libc::SIGSTOP);
    for rank in [0, 2] {
        let ended = job[rank].ended();
        assert_eq!(ended.code, Some(4), "rank {rank}: {ended:?}");
        assert_watchdog_named_rank_1(&ended.stderr);
    }
}

// Ranks of this program's own, which hang where a test wants it.

/// Does steps as a rank of the job or, with `threads` or `threads=4` first, as two or so many ranks of it; each step is
/// for all ranks, or `step@rank` for one. The watchdog's limit is two seconds. What is saved is printed.
fn rank(steps: &str) {
    let mut steps: Vec<&str> = steps.split(' ').collect();
    let mut options = Options::from_environment().unwrap();
    options.on_failure = OnFailure::Exit;
    let process = world::from_environment(&options).unwrap();
    let threads =
        steps[0].strip_prefix("threads").map(|count| count.strip_prefix('=').unwrap_or("2").to_owned());
    if threads.is_some() {
        steps.remove(0);
    }
    let threads: usize = threads.map_or(1, |count| count.parse().unwrap());
    let rescue = Salvage::default();
    let stuck = steps[0] == "stuck-hook";
    rescue.set(move |outcome| {
        let Outcome::Failed { message } = outcome else { panic!("{outcome:?}") };
        println!("saved: {message}");
        if stuck {
            thread::sleep(Duration::from_secs(600));
        }
    });
    rescue.watch(&*process);
    let mut watch = Watchdog::start(&process, Some(Duration::from_secs(2)), &rescue).unwrap();
    watch.begin_step("looking for devices");
    if steps[0] == format!("early@{}", process.rank()) {
        thread::sleep(Duration::from_secs(600));
    }
    let ranks = world::threads(process.clone(), threads).unwrap();
    let watched = watch.ranks(ranks.iter().map(|rank| rank.rank()));
    thread::scope(|scope| {
        for (world, watched) in ranks.into_iter().zip(watched) {
            let (steps, rescue) = (&steps, &rescue);
            scope.spawn(move || {
                watched.set_device(format!("GPU {}", world.rank()));
                let mut communicator = None;
                let end = |error: &dyn std::fmt::Display| -> ! { rescue.end(&*world, 1, &error.to_string()) };
                for step in steps {
                    let (step, rank) = step.split_once('@').unwrap_or((step, ""));
                    let mine = rank.is_empty() || rank.parse() == Ok(world.rank());
                    match step {
                        "init" => watched.begin_step("initialising NCCL"),
                        "barrier" => {
                            watched.begin_step("a barrier");
                            world.barrier().unwrap_or_else(|error| end(&error));
                        }
                        "connect" => {
                            let connected = Communicator::new(world.clone(), &fabric::Options::default());
                            communicator = Some(connected.unwrap_or_else(|error| end(&error)));
                        }
                        "reduce" => {
                            let (communicator, mut data) =
                                (communicator.as_mut().unwrap(), vec![1_f32; 300_000]);
                            let reduced = communicator.all_reduce_in_place(&mut data, ReduceOp::Sum);
                            reduced.unwrap_or_else(|error| end(&error));
                        }
                        "error" if mine => end(&"lost its device"),
                        "panic" if mine => std::panic::resume_unwind(Box::new("as the test wants it")),
                        "hang" if mine => thread::sleep(Duration::from_secs(600)),
                        // SAFETY: `kill` touches no memory, and the number is this process' own.
                        "kill" if mine => drop(unsafe { libc::kill(libc::getpid(), libc::SIGKILL) }),
                        "rest" => {
                            watched.begin_unlimited_step("writing a report");
                            thread::sleep(Duration::from_secs(5));
                        }
                        "hang" | "kill" | "stuck-hook" | "early" | "error" | "panic" => {}
                        other => panic!("unknown step {other}"),
                    }
                }
            });
        }
    });
    drop(watch);
    rescue.clear();
}

fn this_program(steps: &str) -> Command {
    let mut command = command(env::current_exe().unwrap().to_str().unwrap(), "");
    command.env("FAILURE_STEPS", steps);
    command
}

/// Panics unless all processes end with code 4 and say `expected`, rank 0 as the one that found it, and all saved it.
fn assert_timed_out(mut job: Vec<Process>, expected: &str) {
    for (rank, process) in job.iter_mut().enumerate() {
        let ended = process.ended();
        assert_eq!(ended.code, Some(4), "rank {rank}: {ended:?}");
        let who = format!("rank 0 on host {}", host());
        let line = match rank {
            0 => format!("{who}: nccl-bench: {expected}\n"),
            _ => {
                format!("{who} aborted with exit code 4: nccl-bench: {expected}; rank {rank} ends with it\n")
            }
        };
        assert_eq!(ended.stderr, line, "rank {rank}");
        assert!(
            ended.stdout.contains("saved: ") && ended.stdout.contains(expected),
            "rank {rank}: {ended:?}"
        );
    }
}

fn a_rank_that_hangs_is_told_from_those_that_wait() {
    for (late, waiting) in [(1, "0, 2"), (0, "1-2")] {
        let job = start_job(3, || this_program(&format!("init hang@{late} barrier")), &[]);
        let who = format!("rank {late} on {} (GPU {late})", host());
        let expected =
            format!("{who} did not finish initialising NCCL within 2 s; rank {waiting} wait in a barrier");
        assert_timed_out(job, &expected);
    }
}

fn ranks_that_hang_together_are_all_named() {
    let job = start_job(2, || this_program("barrier init hang"), &[]);
    let host = host();
    let both = format!("rank 0 on {host} (GPU 0), rank 1 on {host} (GPU 1)");
    assert_timed_out(job, &format!("no rank has finished initialising NCCL within 2 s: {both}"));
}

fn a_process_that_hangs_before_it_has_ranks_is_named() {
    let job = start_job(2, || this_program("early@1 barrier"), &[]);
    let host = host();
    // The other one has come further, but to nothing that has another name.
    let both = format!("process 0 on {host}, process 1 on {host}");
    assert_timed_out(job, &format!("no rank has finished looking for devices within 2 s: {both}"));
}

fn a_thread_that_hangs_is_named() {
    let ended = start(this_program("threads init hang@1 barrier")).ended();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let line = format!(
        "nccl-bench: rank 1 on {} (GPU 1) did not finish initialising NCCL within 2 s; rank 0 waits in a barrier\n",
        host()
    );
    assert_eq!(ended.stderr, line);
    assert!(ended.stdout.starts_with("saved: rank 1 on "), "{ended:?}");
}

/// Panics unless all processes end because of this rank, whose failure `said` tells, and have saved that.
fn assert_all_end_with(mut job: Vec<Process>, rank: usize, said: &str, steps: &str) {
    let who = format!("rank {rank} on host {}", host());
    for (process, ended) in job.iter_mut().map(Process::ended).enumerate() {
        let line = ended.stderr.lines().next().unwrap_or_default();
        assert!(line.starts_with(&who) && line.contains(said), "{steps}, process {process}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{steps}, process {process}: {ended:?}");
        let saved = ended.stdout.strip_prefix("saved: ").unwrap_or_default();
        let named = saved.starts_with(&who) && saved.contains(said);
        assert!(named, "{steps}, process {process}: {ended:?}");
        assert_ne!(ended.code, Some(0), "{steps}, process {process}: {ended:?}");
    }
}

fn a_thread_that_fails_is_named_by_all() {
    for (processes, threads, rank) in [(2, 2, 1), (2, 2, 3), (3, 2, 2)] {
        for (fault, said) in [("panic", "panicked"), ("error", "lost its device")] {
            for (before, after) in [("barrier", "barrier"), ("connect reduce", "reduce")] {
                let steps = format!("threads={threads} {before} {fault}@{rank} {after}");
                assert_all_end_with(start_job(processes, || this_program(&steps), &[]), rank, said, &steps);
            }
        }
    }
    // In a process alone no rank is another one's process.
    for (fault, said) in [("panic", "panicked"), ("error", "lost its device")] {
        let steps = format!("threads=4 connect reduce {fault}@2 reduce");
        let ended = start(this_program(&steps)).ended();
        let named = ended.stderr.starts_with("rank 2") && ended.stderr.contains(said);
        assert!(named && ended.stderr.lines().count() == 1, "{steps}: {ended:?}");
        assert!(ended.stdout.starts_with("saved: rank 2 on host "), "{steps}: {ended:?}");
    }
}

/// How rank `rank` of 2 ends that is alone, with `-T 2`.
fn alone(rank: &str, variables: &[(&str, &str)]) -> Ended {
    let variables = [&[("NCCL_BENCH_RANK", rank), ("NCCL_BENCH_SIZE", "2")], variables].concat();
    let ended = start_job(1, || bench("allreduce --backend fabric -T 2"), &variables).remove(0).ended();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""), "{ended:?}");
    ended
}

fn a_rank_that_never_comes_is_named() {
    let zero = alone("0", &[]);
    assert!(zero.stderr.starts_with("error: the rendezvous at 127.0.0.1:"), "{zero:?}");
    assert!(zero.stderr.ends_with(" failed: after 2 s, 1 of 2 ranks is missing: rank 1\n"), "{zero:?}");
    let one = alone("1", &[]);
    let tried = "error: rank 1 did not find rank 0 within 2 s; tried 127.0.0.1:";
    assert!(one.stderr.starts_with(tried) && one.stderr.contains(": Connection refused"), "{one:?}");
}

fn the_meeting_may_have_a_limit_of_its_own() {
    let zero = alone("0", &[("NCCL_BENCH_TIMEOUT", "0.5")]);
    assert!(zero.stderr.ends_with(" failed: after 0.5 s, 1 of 2 ranks is missing: rank 1\n"), "{zero:?}");
}

fn saving_cannot_hold_up_the_end() {
    let mut job = start_job(2, || this_program("stuck-hook init hang@1 barrier"), &[]);
    for process in &mut job {
        let ended = process.ended();
        assert_eq!(ended.code, Some(4), "{ended:?}");
        assert!(ended.stdout.contains("saved: "), "it was begun: {ended:?}");
    }
}

fn the_results_are_saved_when_another_rank_dies() {
    // One waits for it in a call of the world, which fails; the other hangs elsewhere, and its process is ended.
    let mut job = start_job(3, || this_program("init barrier kill@1 hang@2 barrier"), &[]);
    for rank in [0, 2] {
        let ended = job[rank].ended();
        assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
        let dead = format!("rank 1 on host {} died: its connection", host());
        assert!(ended.stderr.starts_with(&dead), "rank {rank}: {ended:?}");
        assert!(ended.stdout.starts_with(&format!("saved: {dead}")), "rank {rank}: {ended:?}");
    }
}

fn what_is_not_limited_may_take_its_time() {
    for ended in
        start_job(2, || this_program("init barrier rest barrier"), &[]).iter_mut().map(Process::ended)
    {
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(0), "", ""),
            "{ended:?}"
        );
    }
}

// Under mpirun, with the MPI whose launcher is the default.

/// `mpirun` with its ranks' processes, which rank 0 lists.
#[cfg(feature = "mpi")]
struct Launched {
    launcher: Process,
    ranks: Vec<u32>,
    _session: tempfile::TempDir,
}

#[cfg(feature = "mpi")]
fn mpirun(ranks: usize, arguments: &str, variables: &[(&str, &str)]) -> Launched {
    // Naming the sibling makes cargo build it; nccl-bench finds it beside itself.
    assert!(std::path::Path::new(env!("CARGO_BIN_EXE_nccl-bench-mpi")).exists());
    // Open MPI's launchers that start at the same time race for one folder in the usual place.
    let session = tempfile::tempdir().unwrap();
    let mut command =
        command("mpirun", &format!("-np {ranks} {} {arguments}", env!("CARGO_BIN_EXE_nccl-bench")));
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("TMPDIR", session.path())
        .envs(variables.iter().copied());
    let mut launcher = start(command);
    launcher.read_to(CONNECTED);
    launcher.read_to("  ");
    let pid = |line: &str| line.split_once(" Pid ")?.1.split_whitespace().next()?.parse().ok();
    let processes: Vec<u32> = launcher.seen.lines().filter_map(pid).collect();
    assert_eq!(processes.len(), ranks, "{}", launcher.seen);
    Launched { launcher, ranks: processes, _session: session }
}

#[cfg(feature = "mpi")]
fn a_killed_rank_of_mpirun_is_named() {
    let mut job = mpirun(3, LONG_SWEEP, &[]);
    send(job.ranks[1], libc::SIGKILL);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    // Open MPI names it, too, and may be faster.
    let named = ended.stderr.contains(&format!("rank 1 on host {} died", host()))
        || ended.stderr.contains(&format!("rank 1 with PID {} on node {}", job.ranks[1], host()));
    assert!(named, "{ended:?}");
}

#[cfg(feature = "mpi")]
fn a_stopped_rank_of_mpirun_is_named() {
    let mut job = mpirun(3, LONG_SWEEP, &[("NCCL_BENCH_DEAD_AFTER", "3")]);
    send(job.ranks[1], libc::SIGSTOP);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    let named = format!("rank 1 on host {} died: nothing was heard from it for 3 s", host());
    assert!(ended.stderr.contains(&named), "{ended:?}");
}

#[cfg(feature = "mpi")]
fn a_stopped_rank_of_mpirun_is_named_by_the_watchdog() {
    let mut job = mpirun(3, &format!("{LONG_SWEEP} -T {WATCHDOG_S}"), &[("NCCL_BENCH_DEAD_AFTER", "0")]);
    thread::sleep(Duration::from_millis(1500));
    send(job.ranks[1], libc::SIGSTOP);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert_watchdog_named_rank_1(&ended.stderr);
}

#[cfg(feature = "mpi")]
fn a_signal_to_mpirun_ends_its_ranks() {
    // It sends SIGTERM to its ranks, and SIGKILL soon after.
    let mut job = mpirun(2, LONG_SWEEP, &[]);
    job.launcher.signal(libc::SIGTERM);
    let ended = job.launcher.ended();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    let by = Instant::now() + Duration::from_secs(60);
    while job.ranks.iter().any(|&rank| is_running(rank)) {
        assert!(Instant::now() < by, "they are still there: {:?}", job.ranks);
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether there is such a process that is more than its exit code.
#[cfg(feature = "mpi")]
fn is_running(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}
