//! `nccl-bench versus` and `--starts`, with programs of made-up times, and with ranks over host memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod program;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use program::{err, nccl_bench, out};
use record::sample::row::{bare_measurement, bare_run};
use record::{Measurement, Placement, Run};
use serde_json::Value;

/// Two ranks over host memory, measured in an instant.
const HOST: &str = "allreduce --backend fabric -t 2 -b 8 -e 32 -n 2";

/// A side's program: its folder has the result file of each of its starts, `1.json`, `2.json`, ...
struct FakeProgram {
    folder: tempfile::TempDir,
}

/// Copies the next result file to the file of `--output` or `-J`. Without one, it fails with code 3; instead
/// of one it can find `wait`, and then sleeps.
const SCRIPT: &str = r#"#!/bin/sh
folder=$(dirname "$0")
number=$(($(cat "$folder/count" 2>/dev/null || echo 0) + 1))
echo "$number" >"$folder/count"
echo "$@ X=$X NCCL_LIBRARY=$NCCL_LIBRARY" >>"$folder/arguments"
while [ "$1" != --output ] && [ "$1" != -J ]; do shift; done
if [ -e "$folder/$number.wait" ]; then echo $$ >"$folder/pid" && mv "$folder/pid" "$folder/waiting"; exec sleep 1000; fi
[ -e "$folder/$number.json" ] || { echo "the GPU fell off" >&2; exit 3; }
cp "$folder/$number.json" "$2"
"#;

impl FakeProgram {
    /// Makes a program with the name of this project's.
    fn new(runs: &[Run]) -> Self {
        Self::with_name("nccl-bench", runs.iter().map(|run| serde_json::to_string(run).unwrap()))
    }

    fn with_name(name: &str, results: impl Iterator<Item = String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (index, result) in results.enumerate() {
            fs::write(folder.path().join(format!("{}.json", index + 1)), result).unwrap();
        }
        let script = folder.path().join(name);
        fs::write(&script, SCRIPT).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("name"), name).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(fs::read_to_string(self.folder.path().join("name")).unwrap())
    }

    /// Number of its starts.
    fn count(&self) -> usize {
        fs::read_to_string(self.folder.path().join("count")).map_or(0, |text| text.trim().parse().unwrap())
    }

    /// Command line of its first start, and its variable X.
    fn first_arguments(&self) -> String {
        let all = fs::read_to_string(self.folder.path().join("arguments")).unwrap();
        all.lines().next().unwrap().to_owned()
    }
}

/// Returns the run of a start in which every row takes so many microseconds, times its number.
fn run_with(time_us: f64, rows: u32) -> Run {
    let row = |row: u32| Measurement {
        bytes: 8 << row,
        time_us: time_us * f64::from(row + 1),
        ..bare_measurement("allreduce", Placement::OutOfPlace)
    };
    Run { measurements: (0..rows).map(row).collect(), ..bare_run() }
}

/// Returns eight starts around a mean, within 0.7 % of it.
fn steady(mean: f64, rows: u32) -> Vec<Run> {
    let places = [0.0, 0.5, -0.35, 0.2, -0.1, -0.5, 0.35, 0.1];
    places.map(|place| run_with(mean * (1.0 + 0.007 * place), rows)).to_vec()
}

fn versus_command(a: &FakeProgram, b: &FakeProgram, options: &str) -> Command {
    let mut command = nccl_bench("versus");
    command.arg("--a-program").arg(a.path()).arg("--b-program").arg(b.path());
    command.args(options.split_whitespace()).args(["--", "allreduce", "-e", "1M"]);
    command
}

fn versus(a: &FakeProgram, b: &FakeProgram, options: &str) -> Output {
    versus_command(a, b, options).output().unwrap()
}

/// Returns the report as JSON.
fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Returns the states of all rows and of the overall result, each once.
fn states(report: &Value) -> Vec<String> {
    let comparison = &report["comparison"];
    let rows = comparison["rows"].as_array().unwrap().iter().chain([&comparison["overall"]]);
    let mut states: Vec<String> =
        rows.map(|row| row["outcome"]["state"].as_str().unwrap_or_default().to_owned()).collect();
    states.sort_unstable();
    states.dedup();
    states
}

#[test]
fn equal_sides_have_no_difference() {
    let (a, b) = (FakeProgram::new(&steady(10.0, 20)), FakeProgram::new(&steady(10.001, 20)));
    let output = versus(&a, &b, "--fail-if-slower");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = out(&output);
    assert!(text.contains("Overall: no difference (within 0."), "{text}");
    assert!(text.contains("slower: 0, faster: 0, no difference: 20, cannot tell: 0"), "{text}");
    assert_eq!((a.count(), b.count()), (8, 8));
}

#[test]
fn a_slower_side_is_slower_in_every_row() {
    let slower = || FakeProgram::new(&steady(10.5, 20));
    let faster = || FakeProgram::new(&steady(10.0, 20));
    let output = versus(&faster(), &slower(), "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(out(&output).contains("Overall: B is slower by 5.0 %"), "{}", out(&output));
    let output = versus(&faster(), &slower(), "--format json --fail-if-slower");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = report(&output);
    assert_eq!(states(&found), ["slower"]);
    let row = &found["comparison"]["rows"][3];
    let by = row["outcome"]["by"].as_f64().unwrap();
    assert!((by - 0.05).abs() < 0.005 && row["bytes"] == 64 && row["placement"] == "out_of_place", "{row}");
    assert_eq!(row["a"]["times_us"].as_array().unwrap().len(), 8);
    let output = versus(&slower(), &faster(), "--format markdown --fail-if-slower");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(out(&output).contains("Overall: B is faster by 4.8 %"), "{}", out(&output));
    let output = versus(&faster(), &slower(), "--threshold 10% --fail-if-slower");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(out(&output).contains("Overall: no difference (within 5."), "{}", out(&output));
}

#[test]
fn two_speeds_are_reported_and_are_no_equality() {
    let mixed = |slow: &[usize]| {
        let start = |index| run_with(if slow.contains(&index) { 9.0 } else { 6.0 } + 0.01 * index as f64, 4);
        FakeProgram::new(&(0..8).map(start).collect::<Vec<_>>())
    };
    let output = versus(&mixed(&[1, 4, 6]), &mixed(&[0, 1, 3, 6, 7]), "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = out(&output);
    assert!(text.contains("6.04 us or 9.04 us: A was slow in 3 of 8 starts, B in 5 of 8"), "{text}");
    assert!(text.contains("the shares do not differ significantly"), "{text}");
    assert!(text.contains("Overall: cannot tell: no significant difference, but starts differ by"), "{text}");
    assert!(!text.contains("no difference (within"), "{text}");
    let output = versus(&mixed(&[1, 4, 6]), &mixed(&[0, 1, 3, 6, 7]), "--fail-if-slower");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn a_failed_start_fails_the_comparison() {
    let (a, b) = (FakeProgram::new(&steady(10.0, 4)), FakeProgram::new(&steady(10.0, 4)[..5]));
    let output = versus(&a, &b, "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = out(&output);
    assert!(text.contains("FAIL: start 11 of 16, side B: exit code 3\n  | the GPU fell off\n"), "{text}");
    assert!(!text.contains("no difference (within"), "{text}");
    assert_eq!((a.count(), b.count()), (5, 6), "no start follows a failed one");
    let output = versus(&FakeProgram::new(&steady(10.0, 4)), &FakeProgram::new(&[]), "--format csv");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("error: start 2 of 16, side B: exit code 3"), "{}", err(&output));
}

#[test]
fn wrong_data_fails_the_comparison() {
    let mut runs = steady(10.0, 4);
    runs[2].measurements[1].wrong = Some(7);
    let output = versus(&FakeProgram::new(&steady(10.0, 4)), &FakeProgram::new(&runs), "--format json");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = report(&output);
    assert_eq!(found["outcome"]["failure"]["kind"], "wrong_data");
    let rows = &found["outcome"]["failure"]["rows"][0];
    assert_eq!(rows, "allreduce float, 16 bytes out-of-place: 7 wrong elements");
    assert!(!states(&found).contains(&"no_difference".to_owned()), "{found}");
}

#[test]
fn an_unfinished_start_and_one_without_rows_fail() {
    let mut unfinished = steady(10.0, 4);
    unfinished[0].outcome = record::RunOutcome::Interrupted { signal: "SIGTERM".to_owned() };
    for (runs, reason) in [
        (unfinished, "its run was ended by SIGTERM"),
        (vec![run_with(10.0, 0)], "nothing was to be measured"),
    ] {
        let output = versus(&FakeProgram::new(&steady(10.0, 4)), &FakeProgram::new(&runs), "");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(out(&output).contains(reason), "{}", out(&output));
    }
}

#[test]
fn rows_and_ranks_that_differ_fail_the_comparison() {
    let (a, b) = (FakeProgram::new(&steady(10.0, 6)), FakeProgram::new(&steady(10.0, 4)));
    let output = versus(&a, &b, "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = out(&output);
    assert!(text.contains("FAIL: only in A, not in B: allreduce float, 128 bytes out-of-place; "), "{text}");
    assert!(text.contains("geometric mean of 4 rows"), "{text}");
    let mut runs = steady(10.0, 4);
    runs.iter_mut().for_each(|run| run.ranks.truncate(2));
    let output = versus(&FakeProgram::new(&steady(10.0, 4)), &FakeProgram::new(&runs), "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(out(&output).contains("FAIL: not all starts had the same number of ranks"), "{}", out(&output));
}

#[test]
fn every_start_must_use_the_library_of_its_side() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnccl.so.2");
    fs::write(&library, "").unwrap();
    let library = library.to_str().unwrap();
    let option = format!("--b-library {library}");
    let (a, b) = (FakeProgram::new(&steady(10.0, 4)), FakeProgram::new(&steady(10.0, 4)));
    let output = versus(&a, &b, &option);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = out(&output);
    assert!(text.contains("side B: it used nccl 2.28.9 (/usr/lib/libnccl.so.2) instead of"), "{text}");
    let mut runs = steady(10.0, 4);
    runs.iter_mut().for_each(|run| run.provenance.library_path = library.to_owned());
    let (a, b) = (FakeProgram::new(&steady(10.0, 4)), FakeProgram::new(&runs));
    let output = versus(&a, &b, &option);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(out(&output).contains(&format!("nccl 2.28.9 ({library})")), "{}", out(&output));
    assert!(!out(&output).contains("both sides used the same"), "{}", out(&output));
    assert!(a.first_arguments().ends_with("NCCL_LIBRARY="), "{}", a.first_arguments());
    assert!(b.first_arguments().ends_with(&format!("NCCL_LIBRARY={library}")), "{}", b.first_arguments());
}

/// Waits until a file exists.
fn await_file(path: &Path) {
    let by = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < by, "{} is missing", path.display());
        thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt(child: &Child) {
    let process = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: `kill` touches no memory; the process has not been waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(process, libc::SIGINT) }, 0);
}

#[test]
fn an_interrupted_comparison_reports_what_it_has() {
    let (a, b) = (FakeProgram::new(&steady(10.0, 4)), FakeProgram::new(&steady(10.0, 4)));
    // The sixth start of A is the twelfth of all: A B B A A B B A A B B A.
    fs::write(a.folder.path().join("6.wait"), "").unwrap();
    let mut command = versus_command(&a, &b, "");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let waiting = a.folder.path().join("waiting");
    await_file(&waiting);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let text = out(&output);
    assert!(text.contains("INCOMPLETE: ended by SIGINT after 11 of 16 starts"), "{text}");
    assert!(
        text.contains("Overall: cannot tell: no significant difference, but starts are missing"),
        "{text}"
    );
    assert!(!text.contains("no difference (within"), "{text}");
    let process: libc::pid_t = fs::read_to_string(&waiting).unwrap().trim().parse().unwrap();
    // SAFETY: signal 0 only asks for the process.
    assert_eq!(unsafe { libc::kill(process, 0) }, -1, "the start has ended as well");
}

#[test]
fn the_order_is_balanced_and_variables_reach_the_program() {
    let (a, b) = (FakeProgram::new(&steady(10.0, 1)), FakeProgram::new(&steady(10.0, 1)));
    let output = versus(&a, &b, "--starts 5 --b-env X=3 --launcher env");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!((a.count(), b.count()), (5, 5));
    assert!(!out(&output).contains("Note: "), "{}", out(&output));
    assert!(a.first_arguments().starts_with("allreduce -e 1M --output /"), "{}", a.first_arguments());
    assert!(a.first_arguments().ends_with(" X= NCCL_LIBRARY="), "{}", a.first_arguments());
    assert!(b.first_arguments().ends_with(" X=3 NCCL_LIBRARY="), "{}", b.first_arguments());
}

#[test]
fn a_library_that_makes_no_difference_is_noted() {
    let (a, b) = (FakeProgram::new(&steady(10.0, 1)), FakeProgram::new(&steady(10.0, 1)));
    let output = versus(&a, &b, "--b-env LD_LIBRARY_PATH=/nowhere");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let note = "Note: the variables select libraries, but both sides used the same: nccl 2.28.9 (/usr/lib/";
    assert!(out(&output).contains(note), "{}", out(&output));
}

#[test]
fn few_starts_are_announced_and_leave_the_overall_test() {
    let (a, b) = (FakeProgram::new(&steady(10.0, 20)), FakeProgram::new(&steady(10.5, 20)));
    let output = versus(&a, &b, "--starts 5");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        err(&output).contains("note: with 5 starts of each side and 20 rows, no difference"),
        "{output:?}"
    );
    assert!(err(&output).contains("--starts 8 allows it"), "{output:?}");
    let text = out(&output);
    assert!(text.contains("Overall: B is slower by 5."), "{text}");
    assert!(text.contains("slower: 0, faster: 0, no difference: 0, cannot tell: 20"), "{text}");
}

#[test]
fn programs_of_nccl_tests_are_read_from_their_json() {
    const ALL_REDUCE: &str = include_str!("../../crates/record/tests/data/all_reduce.json");
    let side = || FakeProgram::with_name("all_reduce_perf", (0..5).map(|_| ALL_REDUCE.to_owned()));
    let (a, b) = (side(), side());
    let mut command = nccl_bench("versus --starts 5 --format json");
    command.arg("--a-program").arg(a.path()).arg("--b-program").arg(b.path()).args(["--", "-b", "8"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(a.first_arguments().starts_with("-b 8 -J /"), "{}", a.first_arguments());
    assert_eq!(states(&report(&output)), ["no_difference"]);
}

#[test]
fn everything_is_written_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("versus.json");
    let side = || FakeProgram::new(&steady(10.0, 2));
    let options = format!("--format csv --output {}", file.display());
    let output = versus(&side(), &side(), &options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<String> = out(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(
        lines[0].starts_with("collective,data_type,op,") && lines[0].ends_with(",result,value"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("allreduce,float,,,,out_of_place,8,8,"), "{lines:?}");
    assert!(lines[3].starts_with("overall,,,,,,,8,") && lines[3].contains(",no_difference,"), "{lines:?}");
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(written["comparison"]["starts"], serde_json::json!([8, 8]));
    assert_eq!(versus(&side(), &side(), &options).status.code(), Some(0), "its own file is replaced");
    fs::write(&file, "mine").unwrap();
    let (a, b) = (side(), side());
    let output = versus(&a, &b, &options);
    assert_eq!((output.status.code(), a.count()), (Some(2), 0), "{output:?}");
    assert!(err(&output).contains("is not a comparison of starts of nccl-bench"), "{output:?}");
}

#[test]
fn impossible_requests_are_refused_before_the_first_start() {
    for (line, reason) in [
        ("versus -- doctor", "'doctor' measures no collective"),
        ("versus -- allreduce -b 1X", "its unit is unknown"),
        ("versus -- allreduce --nonsense", "--nonsense"),
        ("versus -- allreduce,bogus", "'bogus' is not a collective"),
        ("versus -- -b 8", "begin the arguments with one"),
        ("versus -- allreduce --output x.json", "--output is for the comparison"),
        ("versus -- allreduce --dry-run", "--dry-run measures nothing"),
        ("versus -- allreduce --starts 3", "--starts is for the comparison"),
        ("versus --starts 4 -- allreduce", "from 5 to 32"),
        ("versus --starts 33 -- allreduce", "from 5 to 32"),
        ("versus --threshold 2 -- allreduce", "has no percent sign"),
        ("versus --a-library /nowhere/libnccl.so.2 -- allreduce", "there is no such file"),
        ("versus --a-library /tmp -- allreduce", "there is no such file"),
        ("versus --a-env NCCL_ALGO -- allreduce", "write a name and a value"),
        ("versus --b-env =Ring -- allreduce", "write a name and a value"),
        ("versus --launcher no-such-mpirun -- allreduce", "there is no program 'no-such-mpirun'"),
        ("versus --launcher ' -- allreduce", "missing closing quote"),
        ("versus --b-program python3 -- allreduce", "the results of this program cannot be read"),
        ("versus --b-program /nowhere/nccl-bench -- allreduce", "there is no program '/nowhere/nccl-bench'"),
        ("versus --b-program ./all_reduce_perf -- allreduce", "takes no command 'allreduce'"),
        ("versus --output /nowhere/x.json -- allreduce", "the folder /nowhere does not exist"),
        ("versus --output x.csv -- allreduce", "must end in .json"),
        ("versus", "<ARGUMENTS>"),
        ("allreduce --starts 0", "write a whole number from 1"),
        ("allreduce --launcher mpirun", "--starts"),
        ("allreduce --starts 2 --launcher no-such-mpirun", "there is no program 'no-such-mpirun'"),
    ] {
        let output = program::run(line);
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""), "{line}: {output:?}");
        assert!(err(&output).contains(reason), "{line}: no '{reason}' in {}", err(&output));
    }
}

#[test]
fn a_launcher_of_several_processes_is_refused() {
    for line in ["versus -- allreduce", "allreduce --starts 2"] {
        for (rank, message) in [("0", "--launcher 'mpirun -np 2'"), ("1", "")] {
            let mut command = nccl_bench(line);
            command.env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", "2");
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
            assert_eq!(err(&output).is_empty(), message.is_empty(), "{line}: {output:?}");
            assert!(err(&output).contains(message), "{line}: {output:?}");
        }
    }
}

#[test]
fn ranks_over_host_memory_are_compared_with_themselves() {
    let output = program::run(&format!("versus --starts 5 --format json -- {HOST}"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = report(&output);
    assert_eq!(found["outcome"]["state"], "complete");
    let rows = found["comparison"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "three sizes in two placements: {found}");
    for side in ["a", "b"] {
        assert!(rows.iter().all(|row| row[side]["times_us"].as_array().unwrap().len() == 5), "{found}");
        assert_eq!(found[side]["devices"], serde_json::json!(["2 x host memory"]));
    }
}

#[test]
fn a_measurement_in_several_starts_has_medians_and_numbered_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let output = program::run(&format!("{HOST} --starts 3 --output {}", file.display()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = out(&output);
    assert!(text.starts_with("# 3 of 3 starts: 2 x host memory, fabric "), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("-place")).count(), 6, "{text}");
    assert!(text.contains("median"), "{text}");
    let mut times: Vec<f64> = (1..=3)
        .map(|number| {
            let path = folder.path().join(format!("run-{number}.json"));
            record::files::read_run(&path).unwrap().measurements[0].time_us
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    assert!(!file.exists());
    let row = text.lines().find(|line| line.contains("-place")).unwrap();
    let median: f64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!((median / times[1] - 1.0).abs() < 0.01, "{row}: {times:?}");
}

#[test]
fn a_failed_start_of_several_has_its_exit_code() {
    let output = program::run(&format!("{HOST} --starts 3 --inject-fault 0:0"));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(
        err(&output).contains("FAIL: start 1 of 3: wrong data\n  allreduce float sum, 8 bytes"),
        "{output:?}"
    );
    let output = program::run(&format!("{HOST} --starts 3 --provider no-such-provider"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(err(&output).contains("FAIL: start 1 of 3: exit code 2\n  | error: "), "{output:?}");
}
