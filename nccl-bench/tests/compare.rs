//! `nccl-bench compare` on long files, pipes, and endless input.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use flate2::write::GzEncoder;
use serde_json::{Value, json};

/// Limit on the program's heap and stacks. The code of a program without optimization alone can take 60 MB of
/// address space.
const MEMORY: u64 = 16 << 20;
/// Length of files that do not fit into this memory: a file that is read as a whole takes several times its
/// length.
const LONG: usize = 12 << 20;

/// Compares with [`MEMORY`] and at most a minute of processor time.
fn compare(files: &[&Path], more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    command.arg("compare").args(files).args(more);
    // SAFETY: `limit` only makes calls that are allowed between `fork` and `exec`, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            limit(libc::RLIMIT_DATA, MEMORY)?;
            limit(libc::RLIMIT_CPU, 60)
        })
    };
    command.output().unwrap()
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: `limit` is a valid struct, which the call only reads.
    if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file of nccl-tests.
const ALL_REDUCE: &str = include_str!("../../crates/record/tests/data/all_reduce.json");

/// The file of another run, which began later.
fn begun_later(text: &str) -> String {
    text.replacen("14:57:55", "15:57:55", 1)
}

/// A run without its measurements, and one measurement of it with the times of many ranks and iterations.
fn sample() -> (Value, Value) {
    let mut run: Value =
        serde_json::from_str(include_str!("../../crates/record/tests/data/run.json")).unwrap();
    let measurements = run.as_object_mut().unwrap().remove("measurements").unwrap();
    let mut measurement = measurements[0].clone();
    measurement["wrong"] = 0.into();
    measurement.as_object_mut().unwrap().retain(|name, _| name != "mismatches" && name != "versus");
    measurement["per_rank"] = json!(vec![json!({"time_us": 12.25}); 200]);
    measurement["per_iteration"] = json!({"skipped": 0, "times_us": vec![12.5; 200]});
    run["outcome"] = json!({"state": "complete"});
    (run, measurement)
}

/// Number of measurements in a long file.
fn count(measurement: &Value) -> usize {
    LONG / measurement.to_string().len() + 1
}

/// The measurement of a cycle, of one of sixteen sizes.
fn numbered(measurement: &mut Value, index: usize) -> &Value {
    measurement["bytes"] = (8_u64 << (index % 16)).into();
    measurement["cycle"] = (index / 16).into();
    measurement
}

fn long_lines(path: &Path) {
    let (mut run, mut measurement) = sample();
    run["started_at"] = "2026-11-23T08:30:00.000Z".into();
    let mut out = BufWriter::new(File::create(path).unwrap());
    run["kind"] = "run".into();
    writeln!(out, "{run}").unwrap();
    measurement["kind"] = "measurement".into();
    let count = count(&measurement);
    for index in 0..count {
        writeln!(out, "{}", numbered(&mut measurement, index)).unwrap();
    }
    let summary = json!({"measurements": count});
    let ended_at = "2026-11-23T08:31:00.000Z";
    let outcome = json!({"state": "complete"});
    let end = json!({"kind": "end", "outcome": outcome, "ended_at": ended_at, "summary": summary});
    writeln!(out, "{end}").unwrap();
}

/// With its measurements first: the order of fields does not matter.
fn long_json(path: &Path) {
    let (run, mut measurement) = sample();
    let mut out = BufWriter::new(File::create(path).unwrap());
    write!(out, "{{\"measurements\": [").unwrap();
    for index in 0..count(&measurement) {
        let separator = if index > 0 { "," } else { "" };
        write!(out, "{separator}{}", numbered(&mut measurement, index)).unwrap();
    }
    write!(out, "],{}", &run.to_string()[1..]).unwrap();
}

/// A file of nccl-tests with repeated rows, as with `-N`.
fn long_nccl_tests(path: &Path, sample: &str) {
    let start = sample.find("\"results\":[").unwrap() + "\"results\":[".len();
    let end = start + sample[start..].find(']').unwrap();
    let mut out = BufWriter::new(File::create(path).unwrap());
    write!(out, "{}", &sample[..end]).unwrap();
    for _ in 0..LONG / (end - start) {
        write!(out, ",{}", &sample[start..end]).unwrap();
    }
    write!(out, "{}", &sample[end..]).unwrap();
}

#[test]
fn long_files_are_compared_in_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [lines, json, nccl_tests, later] =
        ["long.jsonl", "long.json", "nccl_tests.json", "later.json"].map(path);
    long_lines(&lines);
    long_json(&json);
    long_nccl_tests(&nccl_tests, ALL_REDUCE);
    long_nccl_tests(&later, &begun_later(ALL_REDUCE));
    for long in [&lines, &json, &nccl_tests, &later] {
        assert!(fs::metadata(long).unwrap().len() > LONG as u64 / 10 * 9, "{}", long.display());
    }
    for (files, rows) in [([&json, &lines], 16), ([&nccl_tests, &later], 62)] {
        let output = compare(&files.map(PathBuf::as_path), &[]);
        let table = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{table}{}", text(&output.stderr));
        assert!(
            table.contains(&format!("PASS: B is nowhere slower than A by more than 5% ({rows} rows)")),
            "{table}"
        );
    }
}

#[test]
fn what_has_no_end_is_refused_and_a_pipe_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.json");
    fs::write(&whole, ALL_REDUCE).unwrap();
    for device in ["/dev/zero", "/dev/null", "/dev/tty"] {
        let output = compare(&[&whole, Path::new(device)], &[]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error
                .contains(&format!("{device}: it is a device; name a file, a pipe, or - for standard input")),
            "{error}"
        );
    }
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (endless, code, said) in
        [(false, 0, "PASS: B is nowhere slower"), (true, 2, "pipe: it is not a result file")]
    {
        let output = thread::scope(|scope| {
            scope.spawn(|| {
                let mut out = File::options().write(true).open(&pipe).unwrap();
                if endless {
                    // Until the pipe is closed.
                    while out.write_all(&[0; 4096]).is_ok() {}
                } else {
                    out.write_all(begun_later(ALL_REDUCE).as_bytes()).unwrap();
                }
            });
            compare(&[&whole, &pipe], &[])
        });
        let told = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(said), "{told}");
    }
}

#[test]
fn a_killed_run_does_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (mut run, mut measurement) = sample();
    let [whole, killed] = ["whole.json", "killed.jsonl"].map(path);
    let all: Vec<Value> = (0..16).map(|index| numbered(&mut measurement, index).clone()).collect();
    run["kind"] = "run".into();
    let started_at = run["started_at"].take();
    run["started_at"] = "2026-11-23T08:30:00.000Z".into();
    run["outcome"] = json!({"state": "running"});
    measurement["kind"] = "measurement".into();
    fs::write(&killed, format!("{run}\n{}\n", numbered(&mut measurement, 0))).unwrap();
    run["started_at"] = started_at;
    run["measurements"] = all.into();
    run["outcome"] = json!({"state": "complete"});
    fs::write(&whole, run.to_string().replace("\"kind\":\"run\",", "")).unwrap();

    let output = compare(&[&whole, &killed], &[]);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for line in [
        "FAIL: B has not ended, or was killed",
        "FAIL: only in A, not in B: allreduce float sum (15 rows)",
        "  --partial compares the rows that both A and B have",
    ] {
        assert!(told.lines().any(|found| found == line), "{line}\n{told}");
    }
    assert!(!told.contains("PASS"), "{told}");
    let output = compare(&[&whole, &killed], &["--partial"]);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(
        told.contains("PASS for what was compared: B is nowhere slower than A by more than 5% (1 rows)"),
        "{told}"
    );
}

#[test]
fn standard_input_and_compressed_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("whole.json"), ALL_REDUCE).unwrap();
    fs::write(path("later.json"), begun_later(ALL_REDUCE)).unwrap();
    let mut encoder = GzEncoder::new(File::create(path("run.json.gz")).unwrap(), flate2::Compression::fast());
    encoder.write_all(ALL_REDUCE.as_bytes()).unwrap();
    encoder.finish().unwrap();
    let run = |arguments: &[&str], input: &str| {
        Command::new(env!("CARGO_BIN_EXE_nccl-bench"))
            .args(arguments)
            .current_dir(folder.path())
            .stdin(File::open(path(input)).unwrap())
            .output()
            .unwrap()
    };
    for (files, input) in [
        (["-", "whole.json"], "later.json"),
        (["later.json", "-"], "run.json.gz"),
        (["run.json.gz", "later.json"], "whole.json"),
    ] {
        let output = run(&["compare", files[0], files[1]], input);
        let told = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(told.contains("PASS: B is nowhere slower than A by more than 5% (62 rows)"), "{told}");
    }
    for command in ["compare", "plot"] {
        let output = run(&[command, "-", "-"], "whole.json");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("-: standard input is named twice, and can be read once"), "{error}");
    }
    let output = run(&["plot", "run.json.gz", "-"], "whole.json");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(path("nccl-bench.html")).unwrap();
    assert!(page.contains(">run</"), "the label has no suffix");
}

/// Files of nccl-tests name one device of each process.
#[test]
fn ranks_of_nccl_tests_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("one.json"), ALL_REDUCE).unwrap();
    let two = begun_later(ALL_REDUCE).replacen("\"ngpus\":1,", "\"ngpus\":2,", 1);
    fs::write(path("two.json"), two).unwrap();
    let output = compare(&[&path("one.json"), &path("two.json")], &[]);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("FAIL: A was measured with 8 ranks, B with 16\n"), "{told}");
}

#[test]
fn an_output_that_nobody_reads_is_not_a_failed_comparison() {
    let folder = tempfile::tempdir().unwrap();
    let [first, later] = ["first.json", "later.json"].map(|name| folder.path().join(name));
    fs::write(&first, ALL_REDUCE).unwrap();
    fs::write(&later, begun_later(ALL_REDUCE)).unwrap();
    for format in ["text", "markdown", "csv", "json"] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
        command.arg("compare").args([&first, &later]).args(["--format", format]).stdout(writer);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{format}: {}", text(&output.stderr));
    }
}
