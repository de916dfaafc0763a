//! Odd command lines, variables and files: each ends with the right code, in time, and says what is wrong in
//! words of the user.
//!
//! `cargo test --test odd_inputs -- --nocapture` prints a row for each.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The common part of most command lines: two ranks over host memory.
const A: &str = "nccl-bench allreduce --backend fabric -e 1K";

/// The words of Rust's debug output, of temporary files and of panics, which no user should see.
const NEVER: [&str; 6] = ["panicked", "Some(", "None,", " { ", ".part", "RUST_BACKTRACE"];

/// Seconds after which a command counts as hanging.
const LIMIT: u32 = 60;

/// Command line of bash, where `A` stands for the measurement; exit code; what is printed.
const CASES: &[(&str, i32, &str)] = &[
    ("nccl-bench allreduce -b 1M -e 1K", 2, "the largest size (-e 1K) is below the smallest (-b 1M)"),
    ("A -b -5", 2, "it is negative"),
    ("A -b 0", 2, "at least one byte"),
    ("nccl-bench allreduce -e ''", 2, "it is not a number"),
    ("nccl-bench allreduce -e 1P", 2, "its unit is unknown"),
    ("nccl-bench allreduce -e １Ｍ", 2, "it is not a number"),
    ("A -f 1", 2, "write 2 or more"),
    ("A -w 4294967296", 2, "write a whole number from 0 to 4294967295"),
    ("A -t 100000", 2, "write a whole number from 1 to 4096"),
    ("A -d float128", 2, "'float128' is none of int8"),
    ("A -o sum,,max", 2, "'' is none of sum"),
    ("nccl-bench broadcast --backend fabric -r 7 -t 2 -e 64", 2, "-r 7: there are 2 ranks, counted from 0"),
    ("nccl-bench allreduce,bogus", 2, "error: 'bogus' is not a collective; write one of allreduce"),
    ("nccl-bench ''", 2, "unrecognized subcommand ''"),
    ("A --output /nonexistent/x.json", 2, "the folder /nonexistent does not exist"),
    ("A --output /proc/x.json", 2, "cannot write /proc/x.json: no file can be made in /proc"),
    ("A --output x.txt", 2, "does not select a format"),
    ("A --output x.json --output ./x.json", 2, "cannot write ./x.json: it is named twice"),
    ("A --output y.json -J y.json", 2, "cannot write y.json: it is named twice, by --output and -J"),
    ("A --output notes.md", 2, "cannot write notes.md: it exists and is not a result file of nccl-bench; "),
    ("A --force", 2, "--output <FILE>"),
    (
        "mkdir libm; cp $(cc -print-file-name=libm.so.6) libm/libcuda.so.1; LD_LIBRARY_PATH=$PWD/libm \
         nccl-bench allreduce -g 1 -e 8",
        2,
        "libcuda.so.1 is not a CUDA driver: ",
    ),
    ("NCCL_BENCH_RNAK=1 NCCL_BENCH_SZIE=2 A", 2, "nothing reads it: did you mean NCCL_BENCH_"),
    ("FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2 A", 2, "FLUX_JOB_SIZE is 2: another launcher or"),
    ("PMI_RANK=0 A", 2, "PMI_RANK is 0: another launcher or"),
    ("OMPI_COMM_WORLD_RANK=0 A", 2, "OMPI_COMM_WORLD_RANK is set but OMPI_COMM_WORLD_SIZE is not"),
    (
        "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 FLUX_JOB_SIZE=2 A",
        2,
        "SLURM_STEP_NUM_TASKS is 1, but FLUX_JOB_SIZE is 2",
    ),
    ("RANK=x WORLD_SIZE=1 A", 2, "RANK is `x`, not a valid rank"),
    ("RANK=-1 WORLD_SIZE=2 A", 2, "RANK is `-1`, not a number"),
    (
        "cp notes.md n.md; A --output n.md --force && A --output n.md && grep '^# nccl-bench: ' n.md",
        0,
        "# nccl-bench: ",
    ),
    (
        "mkdir -p m/man1; cp notes.md m/man1/nccl-bench.1; nccl-bench man --output m",
        2,
        "is not a manual page of nccl-bench",
    ),
    ("A --output full.json", 2, "cannot write full.json: it is not a regular file"),
    ("A -J full.json", 2, "-J full.json: cannot be created: it is not a regular file"),
    ("A --output mine.json > mine.json", 2, "cannot write mine.json: standard output goes there"),
    (
        "ulimit -f 16; A --provider tcp -b 8 -e 8 -n 1 -N 100 --output big.json",
        1,
        "cannot write big.json: File too large",
    ),
    (
        "ulimit -v 120000; A",
        2,
        "the limit of this process's memory (ulimit -v) is 120000 KiB, but nccl-bench needs",
    ),
    ("ulimit -s 100; A", 2, "the limit of the stack (ulimit -s) is 100 KiB, but nccl-bench needs"),
    ("nccl-bench fabric rma --read --until completed", 2, "cannot be used with '--until <WHEN>'"),
    ("nccl-bench fabric info -s 80", 2, "--node <NODE>"),
    ("nccl-bench fabric info -n localhost -s x", 2, "'--service <PORT>': it is not a whole number from 0 on"),
    ("NCCL_TESTS_MIN_BW=-1 A", 2, "NCCL_TESTS_MIN_BW=-1: write GB/s from 0 on"),
    ("A -r 5", 0, "# -r is ignored: no measured collective has a root"),
    ("nccl-bench compare before.json", 2, "a comparison needs two files or more"),
    ("nccl-bench compare missing.json before.json", 2, "missing.json: it cannot be read: No such file"),
    ("nccl-bench plot empty.json", 2, "1 file cannot be read"),
    (
        "nccl-bench plot in.svg --force --output in.svg",
        2,
        "in.svg holds results to draw; name another --output",
    ),
    ("nccl-bench plot before.json --output mine.html", 2, "mine.html exists and is not a plot of nccl-bench"),
    ("nccl-bench compare before.json trunc.json", 2, "trunc.json: it ends in the middle"),
    ("nccl-bench compare before.json trunc.jsonl", 1, "FAIL"),
    ("nccl-bench compare before.json before.json", 2, "before.json is named twice: each run counts once"),
    ("nccl-bench compare before.json lines.jsonl", 2, "are of the same run: each run counts once"),
    ("nccl-bench compare before.json nan.json", 2, "nan.json: it is not a result file"),
    ("nccl-bench compare before.json future.json", 2, "it has version 2 of the format"),
    ("nccl-bench compare before.json a2a.json", 2, "have no measurement in common"),
    ("nccl-bench compare before.json neg.json", 2, "neg.json: it is damaged"),
    ("nccl-bench compare before.json deep.json", 2, "deep.json: it is not a result file"),
    ("nccl-bench compare before.json bom.json", 0, "PASS"),
    ("nccl-bench compare same.json several.json --threshold 99%", 0, "alltoall float"),
    ("nccl-bench compare before.json /dev/zero", 2, "/dev/zero"),
    ("NCCL_BENCH_RANK=1 NCCL_BENCH_ADDR=h:1 A", 2, "NCCL_BENCH_RANK is set but NCCL_BENCH_SIZE is not"),
    ("RANK=1 A", 2, "RANK is set but WORLD_SIZE is not"),
    ("WORLD_SIZE=0 RANK=0 MASTER_ADDR=localhost A", 2, "rank 0 of 0 is impossible"),
    ("WORLD_SIZE=2 RANK=2 MASTER_ADDR=localhost A", 2, "rank 2 of 2 is impossible"),
    ("WORLD_SIZE=two RANK=0 MASTER_ADDR=localhost A", 2, "WORLD_SIZE is `two`, not a number"),
    ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost MASTER_PORT=garbage A", 2, "not a port from 1 to 65535"),
    ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=nonexistent.invalid A -T 2", 4, "its name cannot be resolved"),
    (
        "WORLD_SIZE=2 RANK=0 MASTER_ADDR=nonexistent.invalid A -T 2",
        4,
        "nonexistent.invalid cannot be resolved",
    ),
    (
        "WORLD_SIZE=2 RANK=0 MASTER_ADDR=192.0.2.1 A -T 2",
        4,
        "192.0.2.1, but this is not an address of this host",
    ),
    ("JOB_COMPLETION_INDEX=0 NCCL_BENCH_ADDR=h:1 A", 2, "NCCL_BENCH_ADDR is set but NCCL_BENCH_SIZE is not"),
    ("JOB_COMPLETION_INDEX=1 A", 2, "this is pod 1 of an indexed Job"),
    ("FABRIC_LIBRARY=/nope.so A", 2, "no usable libfabric was found"),
    ("NCCL_TESTS_MIN_BW=fast A", 2, "NCCL_TESTS_MIN_BW=fast: write GB/s"),
    ("FI_PROVIDER=bogus A", 2, "FI_PROVIDER=bogus"),
    ("FI_PROVIDER=tcp A -t 2", 0, "# Transport: tcp"),
    ("FI_PROVIDER=tcp A -t 2 --provider tcp", 0, "# Out of bounds values : 0 OK"),
    ("A --provider verbs", 2, "does not have this provider"),
    ("A --algo ring --algo pairwise", 2, "--algo ring and --algo pairwise: all_reduce has both"),
    ("nccl-bench fabric bw --completion block --pause 5", 2, "--pause is for --completion poll"),
    ("nccl-bench doctor job --pid $$ --address 127.0.0.1:1", 3, "gave no answer about the job of process "),
    ("A --vs mpi", 2, "--vs mpi needs the ranks of an MPI launcher"),
    ("A -G 1 -z 1", 2, "-z 1 and -z 2 wait inside the capture of -G"),
    ("A --until-stable 1% --rounds 3", 2, "cannot be used with"),
    ("A -e 8 -n 1 --rounds 10000000 --budget 0.1", 0, "# Out of bounds values : 0 OK"),
    ("A -e 8 -n 1 --until-stable 0.000001% --budget 0.1", 0, "# NOT STABLE out of place: "),
    (
        "nccl-bench alltoall --backend fabric -t 8 -b 8 -e 8",
        2,
        "alltoall: the largest size, 8, gives no rank",
    ),
    (
        "nccl-bench alltoall --backend fabric -t 8 -b 64 -e 200 -f 4",
        2,
        "alltoall: the largest size, 64, gives no rank",
    ),
    (
        "nccl-bench alltoallv --backend fabric -t 8 -b 8 -e 8",
        2,
        "alltoallv: the largest size, 8, gives no rank",
    ),
    ("nccl-bench all --backend fabric -b 1 -e 1", 2, "is below one element of 4 bytes"),
    (
        "CUDA_VISIBLE_DEVICES=-1 NCCL_LIBRARY=/nope.so nccl-bench allreduce -e 64",
        0,
        "# Out of bounds values : 0 OK",
    ),
    ("NCCL_LIBRARY=/nope.so nccl-bench allreduce -e 64", 2, "NCCL_LIBRARY=/nope.so asks for GPUs"),
    (
        "NCCL_TESTS_MIN_BW=1000000 A --output slow.md; grep -h reached slow.md",
        0,
        "is not reached: the mean busbw is ",
    ),
    (
        "NCCL_TESTS_ALLTOALLV_MATRIX_FILE=matrix NCCL_TESTS_ALLTOALLV_MATRIX_SCALE=1e300 A",
        2,
        "matrix: line 1: '8' times 1e300",
    ),
    ("A -R 2", 2, "only NCCL over GPUs supports this"),
    ("A --inject-fault 9:0", 2, "--inject-fault names rank 9, but there are 2 ranks"),
    ("A --inject-fault 1:0 -c 0", 2, "-c 0 verifies nothing"),
    ("A --between ring", 2, "add --algo hierarchical"),
    ("A --dry-run --output dry.json", 0, "2 ranks; sizes from 8 to 1K"),
    ("all_reduce_perf -b 8 -e 1K -g 1", 2, "-g 1 asks for GPUs, but none can be used"),
    ("all_reduce_perf -b 8 -e 1K -g 2", 2, "-g 2 asks for GPUs, but none can be used"),
    ("A > /dev/full", 1, "writing to standard output: No space left on device"),
    ("nccl-bench --help > /dev/full", 1, "writing to standard output: No space left on device"),
    ("A -N 0 | head -1; exit ${PIPESTATUS[0]}", 141, "# nccl-bench version"),
    ("TERM=dumb A", 0, "# Out of bounds values : 0 OK"),
    ("COLUMNS=20 A", 0, "# Out of bounds values : 0 OK"),
    ("NO_COLOR=1 A", 0, "# Out of bounds values : 0 OK"),
    ("LC_ALL=C A", 0, "# Out of bounds values : 0 OK"),
    ("nccl-bench fabric bw --connect localhost:1 -T 4", 4, "localhost:1"),
    ("nccl-bench topo missing.xml", 2, "missing.xml cannot be read: No such file"),
    ("nccl-bench topo before.json", 2, "before.json: no XML"),
    ("nccl-bench topo empty.json", 2, "empty.json: the file is empty"),
    ("nccl-bench topo deep.xml", 2, "deep.xml: elements are nested more than 64 deep"),
    ("nccl-bench topo /dev/zero", 2, "/dev/zero cannot be read: it is a pipe or a device"),
    ("nccl-bench topo pipe", 2, "pipe cannot be read: it is a pipe or a device"),
    (
        "truncate -s 33M big.xml; nccl-bench topo big.xml",
        2,
        "big.xml cannot be read: it has more than 32 MiB",
    ),
    ("nccl-bench doctor env --file /dev/zero", 2, "reading /dev/zero: it is a pipe or a device"),
    ("nccl-bench doctor env --file pipe", 2, "reading pipe: it is a pipe or a device"),
    ("nccl-bench doctor env --file .", 2, "reading .: it is a directory"),
    ("truncate -s 5M big; nccl-bench doctor env --file big", 2, "reading big: it has more than 4 MiB"),
    ("nccl-bench doctor env --file - < /dev/zero", 2, "reading standard input: it has more than 4 MiB"),
    (
        "nccl-bench doctor log --rules /dev/zero mine.html",
        2,
        "/dev/zero: cannot read: it is a pipe or a device",
    ),
    ("nccl-bench doctor log --rules pipe mine.html", 2, "pipe: cannot read: it is a pipe or a device"),
    ("truncate -s 5M r.toml; nccl-bench doctor log --rules r.toml mine.html", 2, "it has more than 4 MiB"),
    ("nccl-bench doctor log --rules missing.toml mine.html", 2, "missing.toml: cannot read: No such file"),
    ("nccl-bench doctor job --flight-recorder pipe", 2, "`pipe` cannot be read: it is a pipe or a device"),
    (
        "truncate -s 1025M rank_0; nccl-bench doctor job --flight-recorder rank_0",
        2,
        "it has more than 1024 MiB",
    ),
    ("nccl-bench topo topo.xml topo.xml", 2, "topo.xml is a second topology"),
    ("nccl-bench topo topo.xml --svg t.svg", 2, "unexpected argument '--svg' found"),
    ("nccl-bench topo topo.xml", 0, "PIX    X    0-3"),
    ("nccl-bench topo topo.xml --json", 0, "\"subject\": \"topology\""),
    ("nccl-bench topo none.xml", 3, "No GPU and no NIC was found."),
];

/// The file of another run, which began a thousand years earlier.
fn begun_earlier(file: &str) -> String {
    ["\"started_at\":\"", "\"started_at\": \""]
        .iter()
        .fold(file.to_owned(), |file, start| file.replacen(&format!("{start}2"), &format!("{start}1"), 1))
}

/// A folder with the program, a link of nccl-tests' name, and good and damaged result files.
fn prepare(folder: &Path) {
    let program = env!("CARGO_BIN_EXE_nccl-bench");
    std::os::unix::fs::symlink(program, folder.join("nccl-bench")).unwrap();
    std::os::unix::fs::symlink(program, folder.join("all_reduce_perf")).unwrap();
    for files in [
        "allreduce --backend fabric -e 1M -n 1 --output before.json --output lines.jsonl",
        "alltoall --backend fabric -e 1K -n 1 --output a2a.json",
        "allgather,alltoall --backend fabric -b 1K -e 1K -n 1 -J several.json --output same.json",
    ] {
        let (code, text) = run(folder, &format!("nccl-bench {files}"));
        assert_eq!(code, 0, "{text}");
    }
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let before = read("before.json");
    write("in.svg", &before);
    write("matrix", "8 8\n8 8\n");
    write("mine.html", "<p>my own page</p>");
    write("notes.md", "# My notes\n");
    write("empty.json", "");
    write("trunc.json", &before[..before.len() / 2]);
    // The header, the transport and one measurement, as of a run that was killed.
    write(
        "trunc.jsonl",
        &begun_earlier(&read("lines.jsonl"))
            .lines()
            .take(3)
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    );
    write("nan.json", &before.replacen("\"bytes\": 8", "\"bytes\": NaN", 1));
    write("future.json", &before.replacen("\"schema_version\": 1", "\"schema_version\": 2", 1));
    write("neg.json", &before.replacen("\"bytes\": 8", "\"bytes\": -1", 1));
    write("deep.json", &"[".repeat(100_000));
    write("deep.xml", &"<pci>".repeat(100_000));
    write("none.xml", "<system version=\"1\"><cpu numaid=\"0\"/></system>");
    write(
        "topo.xml",
        "<system version=\"1\"><cpu numaid=\"0\" affinity=\"f\"><pci busid=\"0000:10:00.0\" \
         class=\"0x060400\"><pci busid=\"0000:11:00.0\"><gpu dev=\"0\" sm=\"90\"/></pci><pci \
         busid=\"0000:12:00.0\"><nic><net name=\"mlx5_0\" dev=\"0\"/></nic></pci></pci></cpu></system>",
    );
    assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    write("bom.json", &format!("\u{feff}{}", begun_earlier(&before)));
    std::os::unix::fs::symlink("/dev/full", folder.join("full.json")).unwrap();
}

/// Exit code, and standard output and error together.
fn run(folder: &Path, line: &str) -> (i32, String) {
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("timeout");
    command.args([&LIMIT.to_string(), "bash", "-c", &format!("exec 2>&1; {line}")]).current_dir(folder);
    for (name, _) in std::env::vars() {
        if ["OMPI_", "PMI", "SLURM_", "NCCL_", "RANK", "WORLD_SIZE", "MASTER_", "CUDA_VISIBLE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    let output = command.env("PATH", path).output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn odd_inputs_end_in_time_with_the_right_code_and_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let on_gpus = Path::new("/proc/driver/nvidia").exists();
    let mut bad = Vec::new();
    for (index, &(line, code, said)) in CASES.iter().enumerate() {
        if on_gpus && line.starts_with("all_reduce_perf") {
            println!("| {} | `{line}` | | | skipped: this machine has GPUs |", index + 1);
            continue;
        }
        let line = line.replace("A ", &format!("{A} "));
        let line = if line.ends_with('A') { format!("{}{A}", &line[..line.len() - 1]) } else { line };
        let begun = Instant::now();
        let (found, text) = run(folder.path(), &line);
        let shown = text.lines().find(|line| line.contains(said)).unwrap_or_default();
        let never = NEVER.iter().find(|word| text.contains(**word));
        let good = found == code && !shown.is_empty() && never.is_none();
        let verdict = if good { "ok" } else { "BAD" };
        let seconds = begun.elapsed().as_secs_f64();
        println!("| {} | `{line}` | {found} | {seconds:.1} | {} | {verdict} |", index + 1, shown.trim());
        if !good {
            bad.push(format!("{line}: exit code {found} instead of {code}, '{said}' expected in: {text}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert_eq!(fs::read_to_string(folder.path().join("notes.md")).unwrap(), "# My notes\n");
    assert!(!folder.path().join("y.json").exists() && !folder.path().join("dry.json").exists());
}
