//! Requests that are impossible, incomplete, or differ between processes, and must be refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/port/mod.rs"]
mod port;
mod program;

use std::io::Read as _;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use diagnosis::knowledge::rules::{Origin, Rules};
use port::reserve_port;
use program::{err, nccl_bench, out, run};

/// A measurement of two ranks that takes no time.
const SHORT: &str = "allreduce --backend fabric -e 1K -n 1";

/// Asserts that the run was refused before it printed anything, and for which reason.
fn assert_refused(output: &Output, reasons: &[&str]) {
    let text = err(output);
    assert_eq!((output.status.code(), out(output).as_str()), (Some(2), ""), "{text}");
    for reason in reasons {
        assert!(text.contains(reason), "no '{reason}' in: {text}");
    }
}

#[test]
fn who_names_gpus_does_not_get_host_memory() {
    if std::path::Path::new("/proc/driver/nvidia").exists() {
        println!("skipped: this machine has GPUs, which the same commands measure");
        return;
    }
    let health_check = || {
        let mut command = nccl_bench("-b 8 -e 1K");
        command.arg0("all_reduce_perf");
        command
    };
    let ways_out = ["no CUDA driver", "--backend fabric"];
    assert_refused(
        &health_check().output().unwrap(),
        &[&ways_out[..], &["the program's name, all_reduce_perf, asks for GPUs"]].concat(),
    );
    assert_refused(&health_check().args(["-g", "1"]).output().unwrap(), &["-g 1 asks for GPUs"]);
    assert_refused(&run("allreduce -e 1K -g 1"), &[&ways_out[..], &["-g 1 asks"]].concat());
    for (variable, value) in
        [("CUDA_VISIBLE_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "GPU-1a2b,1"), ("NCCL_TESTS_DEVICE", "0")]
    {
        let output = nccl_bench("allreduce -e 1K").env(variable, value).output().unwrap();
        assert_refused(&output, &[&format!("{variable}={value} asks for GPUs")]);
    }
    // A choice of no GPU, or of libfabric, is no request for GPUs.
    for value in ["", "-1", "NoDevFiles"] {
        let output = nccl_bench("allreduce -e 8 -n 1").env("CUDA_VISIBLE_DEVICES", value).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{value}: {}", err(&output));
        assert!(out(&output).contains("# Host memory, because no GPU can be used"), "{}", out(&output));
    }
    let chosen = nccl_bench(SHORT).env("CUDA_VISIBLE_DEVICES", "0").output().unwrap();
    assert_eq!(chosen.status.code(), Some(0), "{}", err(&chosen));
}

#[test]
fn host_memory_has_no_stream_to_check_on() {
    assert_refused(&run(&format!("{SHORT} --check-on-stream")), &["--check-on-stream: only NCCL over GPUs"]);
    if !std::path::Path::new("/proc/driver/nvidia").exists() {
        // Host memory because there is no GPU.
        assert_refused(&run("allreduce -e 1K -n 1 --check-on-stream 5"), &["--check-on-stream: only NCCL"]);
    }
}

#[test]
fn half_a_set_of_rank_variables_is_refused() {
    for (set, value, missing) in [
        ("NCCL_BENCH_RANK", "1", "NCCL_BENCH_SIZE"),
        ("NCCL_BENCH_SIZE", "2", "NCCL_BENCH_RANK"),
        ("NCCL_BENCH_ADDR", "h:1", "NCCL_BENCH_RANK"),
        ("RANK", "1", "WORLD_SIZE"),
        ("WORLD_SIZE", "2", "RANK"),
    ] {
        let output = nccl_bench(SHORT).env(set, value).output().unwrap();
        assert_refused(
            &output,
            &[&format!("{set} is set but {missing} is not"), &format!("set {missing}, or unset {set}")],
        );
    }
    let both = nccl_bench(SHORT).env("NCCL_BENCH_RANK", "1").env("NCCL_BENCH_ADDR", "h:1").output().unwrap();
    assert_refused(&both, &["NCCL_BENCH_RANK is set but NCCL_BENCH_SIZE is not"]);
    for (name, value) in [("PMI_SIZE", "2"), ("PMI_RANK", "1"), ("SLURM_PROCID", "1"), ("LOCAL_RANK", "1")] {
        let output = nccl_bench(SHORT).env(name, value).output().unwrap();
        assert_refused(
            &output,
            &[
                &format!(
                    "{name} is {value}: another launcher or a scheduler of nodes has started this process"
                ),
                "NCCL_BENCH_ADDR",
            ],
        );
    }
    // Variables of a login node, a batch script or an image do not mean that there are several ranks.
    let login = [
        &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "16"), ("SLURM_NNODES", "2"), ("SLURM_PROCID", "0")][..],
        &[("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")],
        &[("WORLD_SIZE", "1")],
        &[("LOCAL_RANK", "0")],
    ];
    for variables in login {
        let output = nccl_bench(SHORT).envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{variables:?}: {}", err(&output));
        assert!(out(&output).contains("# World: one process"), "{variables:?}: {}", out(&output));
    }
}

/// Runs two processes as a user would by hand, each with its own options, until both have ended.
fn by_hand(options: [&str; 2], variables: &[(&str, &str)]) -> [Output; 2] {
    by_hand_with(options, variables, [SHORT; 2])
}

/// [`by_hand`] with a command for each process.
fn by_hand_with(options: [&str; 2], variables: &[(&str, &str)], commands: [&str; 2]) -> [Output; 2] {
    let port = reserve_port();
    let start = |rank: usize| {
        // A hang ends as exit code 124.
        let mut command = Command::new("timeout");
        command.arg("120").arg(env!("CARGO_BIN_EXE_nccl-bench"));
        let process = nccl_bench(&format!("{} {}", commands[rank], options[rank]));
        command.args(process.get_args());
        for (name, _) in process.get_envs() {
            command.env_remove(name);
        }
        command.env("NCCL_BENCH_RANK", rank.to_string()).env("NCCL_BENCH_SIZE", "2");
        command.env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"));
        if rank == 0 {
            command.envs(variables.iter().copied());
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    [start(0), start(1)].map(|process| process.wait_with_output().unwrap())
}

#[test]
fn processes_with_different_options_are_told_who_was_asked_for_what() {
    let folder = tempfile::tempdir().unwrap();
    let output = format!("--output {}", folder.path().join("run.json").display());
    for (options, differ) in [
        (["-n 20", "-n 21"], "they differ in -n:"),
        (["-c 1", "-c 0"], "they differ in -c:"),
        (["", "--check-on-stream"], "they differ in --check-on-stream:"),
        (["--stats", ""], "they differ in --stats:"),
        (["", "--until-stable 1%"], "they differ in --until-stable:"),
        ([output.as_str(), ""], "they differ in --output:"),
        (["", output.as_str()], "they differ in --output:"),
        (["-b 8 -d half", "-b 16 -d float"], "they differ in -b, -d:"),
        (["--algo ring", ""], "they differ in --algo"),
    ] {
        for ended in by_hand(options, &[]) {
            let host = collectives::world::host().name;
            let shown =
                format!("process 1 on {host}: {} {SHORT} {}", env!("CARGO_BIN_EXE_nccl-bench"), options[1]);
            assert_refused(&ended, &["started with different options", differ, shown.trim_end()]);
            let text = err(&ended);
            let line = text.lines().next().unwrap_or_default();
            let rule = Rules::built_in().find_rule(line.as_bytes(), Origin::Any).map(|rule| rule.id.clone());
            assert_eq!(rule.as_deref(), Some("nccl-bench-options-differ"), "doctor log has to know: {line}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a refused run leaves no file");
    for ended in by_hand([""; 2], &[("NCCL_TESTS_MIN_BW", "1")]) {
        assert_refused(
            &ended,
            &["they differ in NCCL_TESTS_MIN_BW:", "process 0 on", "NCCL_TESTS_MIN_BW=1 "],
        );
    }
    // Rank 0's file cannot be written: both end.
    let missing = format!("--output {}", folder.path().join("missing/run.json").display());
    for ended in by_hand([&missing; 2], &[]) {
        assert_refused(&ended, &["missing does not exist"]);
    }
}

#[test]
fn processes_of_different_commands_are_told_so() {
    let [measuring, moving] = by_hand_with(["", ""], &[], [SHORT, "fabric bw -e 8"]);
    assert_refused(&measuring, &["process 1 runs a different command or nccl-bench version"]);
    assert_eq!(moving.status.code(), Some(2), "{}", err(&moving));
}

#[test]
#[ignore = "the second process of the next test"]
fn a_process_joins_the_job_and_leaves() {
    drop(collectives::world::from_environment(&collectives::world::Options::default()).unwrap());
}

#[test]
fn a_run_that_fails_before_it_begins_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", reserve_port());
    let start = |mut command: Command, rank: &str| {
        command.env("NCCL_BENCH_RANK", rank).env("NCCL_BENCH_SIZE", "2").env("NCCL_BENCH_ADDR", &address);
        command.current_dir(&folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let measuring = start(nccl_bench(&format!("{SHORT} -J run.json --output run.jsonl")), "0");
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--ignored", "--exact", "a_process_joins_the_job_and_leaves"]);
    let other = start(other, "1").wait_with_output().unwrap();
    assert!(other.status.success(), "{}{}", out(&other), err(&other));
    let ended = measuring.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), out(&ended).as_str()), (Some(1), ""), "{}", err(&ended));
    assert!(err(&ended).contains("has left the job"), "{}", err(&ended));
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, [""; 0]);
}

#[test]
fn what_nobody_would_verify_or_could_measure_is_refused() {
    let gather = "gather --backend fabric -e 64 -n 1";
    assert_refused(
        &run(&format!("{gather} --inject-fault 1:0")),
        &["rank 1, but this rank has no verified result"],
    );
    for line in ["--inject-fault 0:0", "-r 1 --inject-fault 1:0"] {
        let found = run(&format!("{gather} {line}"));
        assert_eq!(found.status.code(), Some(7), "{line}: {}", err(&found));
    }
    for line in ["hypercube", "allreduce,hypercube"] {
        let three = run(&format!("{line} --backend fabric -e 64 -n 1 -t 3"));
        assert_refused(&three, &["hypercube needs 2, 4, 8, ... ranks, but there are 3"]);
    }
}

#[test]
fn the_name_of_a_file_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let name = file.display();
    let output = run(&format!("{SHORT} --output {name} -J {name}"));
    assert_refused(&output, &["it is named twice, by --output and -J"]);
    let other = folder.path().join("sub/../run.json");
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    let output = run(&format!("{SHORT} --output {name} -J {}", other.display()));
    assert_refused(&output, &["it is named twice, by --output and -J"]);
    assert!(!file.exists());
}

#[test]
fn what_cannot_be_done_is_said_in_words_of_the_user() {
    assert_refused(&run("allreduce,bogus"), &["error: 'bogus' is not a collective; write one of"]);
    assert!(!err(&run("allreduce,bogus")).contains("--collectives"));
    let output = run(&format!("{SHORT} --output /proc/run.json"));
    assert_refused(&output, &["cannot write /proc/run.json: no file can be made in /proc"]);
    assert!(!err(&output).contains(".part"), "{}", err(&output));
    let output = nccl_bench(SHORT).env("FI_PROVIDER", "bogus").output().unwrap();
    assert_refused(&output, &["FI_PROVIDER=bogus"]);
    let output = nccl_bench(SHORT).env("NCCL_TESTS_SPLIT", "XOR 2").output().unwrap();
    assert_refused(&output, &["error: NCCL_TESTS_SPLIT=XOR 2: write AND, OR, MOD or DIV"]);
    assert!(!err(&output).contains("Usage"), "{}", err(&output));
    let output = run("plot /nowhere/run.json");
    assert_eq!(err(&output).matches("(os error 2)").count(), 1, "{}", err(&output));
    let lost = nccl_bench(&format!("{SHORT} -T 1"))
        .envs([("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "nonexistent.invalid")])
        .output()
        .unwrap();
    assert_eq!(lost.status.code(), Some(4), "{}", err(&lost));
    assert!(
        err(&lost).contains("rank 0's name nonexistent.invalid cannot be resolved here"),
        "{}",
        err(&lost)
    );
}

#[test]
fn a_dry_run_counts_the_ranks_of_the_run_and_says_that_it_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let output = run(&format!("{SHORT} --dry-run --output {}", file.display()));
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(text.starts_with("2 ranks; sizes from 8 to 1K"), "{text}");
    assert!(
        text.contains(&format!("Nothing is measured, and nothing is written to {}", file.display())),
        "{text}"
    );
    assert!(!file.exists());
    assert!(out(&run("allreduce --dry-run -g 1")).starts_with("1 rank; "));
    if !std::path::Path::new("/proc/driver/nvidia").exists() {
        let text = out(&run("allreduce --dry-run"));
        assert!(text.starts_with("2 ranks; sizes from 8 to 64M;"), "{text}");
        assert!(text.contains("\nHost memory, because no GPU can be used: "), "{text}");
        let text = out(&run("allreduce --dry-run -g 1"));
        assert!(text.contains("\nFor another machine, because no GPU can be used here: "), "{text}");
        assert_refused(&run("hypercube --dry-run --ranks 3"), &["needs 2, 4, 8, ... ranks, but there are 3"]);
    }
}

#[test]
fn a_closed_standard_output_is_refused() {
    for arguments in [SHORT, "--version", "help exit-codes"] {
        let mut command = nccl_bench(arguments);
        // SAFETY: `close` is allowed between `fork` and `exec`.
        unsafe {
            command
                .pre_exec(|| if libc::close(1) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) })
        };
        assert_refused(&command.output().unwrap(), &["error: standard output is closed", ">/dev/null"]);
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let full = || std::fs::File::create("/dev/full").unwrap();
    for arguments in ["--help", "allreduce --help", "--version", "help exit-codes"] {
        let output = nccl_bench(arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", err(&output));
        assert!(err(&output).contains("No space left on device"), "{arguments}: {}", err(&output));
    }
    let text = out(&run("help exit-codes"));
    for code in ["129", "130", "141", "143"] {
        assert!(text.contains(code), "{text}");
    }
}

/// Runs a command and returns its writes to standard error, each by itself.
fn record_writes(mut command: Command) -> Vec<String> {
    let mut ends = [0; 2];
    // SAFETY: the call fills two descriptors. In this mode, each read gives what one write has put in.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_DIRECT) }, 0);
    // SAFETY: both were just opened, and belong to nobody else.
    let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    // It holds the other end, too.
    drop(command);
    let mut reader = std::fs::File::from(reader);
    let mut writes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = reader.read(&mut buffer).unwrap();
        if length == 0 {
            break;
        }
        writes.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    child.wait().unwrap();
    writes
}

#[test]
fn a_message_is_one_write() {
    assert_eq!(record_writes(nccl_bench("fabric bw -b 1M -e 1K")), ["error: -b 1M is more than -e 1K\n"]);
    let mut second = nccl_bench("topo");
    second.envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")]);
    second.env_remove("TORCHELASTIC_RUN_ID");
    let [note] = &record_writes(second)[..] else { panic!("not one write") };
    assert!(note.starts_with("note: the variables of ") && note.ends_with(" on rank 0 alone\n"), "{note}");
    let [parser] = &record_writes(nccl_bench("fabric bw --enpoints 2"))[..] else { panic!("not one write") };
    assert!(parser.starts_with("error: unexpected argument '--enpoints' found\n"), "{parser}");
    assert!(parser.contains("--endpoints") && parser.ends_with("'--help'.\n"), "{parser}");
}
