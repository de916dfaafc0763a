//! The program with a limit on the length of its files, in place of a full disk, and with other files of
//! nccl-tests (`-J`) that cannot be written.
//!
//! Its one rank is connected by libfabric's `tcp`: `shm` needs long files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The beginning of the table's last line when the run is not whole.
const FAILED: &str = "# Test failure: FAILED: this run is not whole: ";

/// Lets no file of this process grow beyond so many bytes: the write that meets the limit says so.
fn limit_files(bytes: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid struct for the call to fill.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = bytes;
    // SAFETY: `limit` is a valid struct, which the call only reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: ignoring a signal runs no code of this process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    Ok(())
}

/// A measurement of so many sizes in this folder, where no file may be longer than this.
fn prepare(folder: &Path, limit: u64, sizes: u64, outputs: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    command.args("allreduce --backend fabric --provider tcp --world single -t 1 -n 1 -b 8 -i 8".split(' '));
    command.args(["-e", &(8 * sizes).to_string()]).args(outputs.split(' ')).current_dir(folder);
    // SAFETY: `limit_files` only makes calls that are allowed between `fork` and `exec`, and allocates
    // nothing.
    unsafe { command.pre_exec(move || limit_files(limit)) };
    command
}

/// [`prepare`]d, to its end.
fn measure(folder: &Path, limit: u64, sizes: u64, outputs: &str) -> Output {
    prepare(folder, limit, sizes, outputs).output().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn no_room_for_the_file_of_nccl_tests_is_said_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let ended = measure(folder.path(), 100, 1, "-J run.json");
    let error = "error: -J run.json: cannot be created: File too large (os error 27)\n";
    assert_eq!(
        (ended.status.code(), text(&ended.stdout), text(&ended.stderr)),
        (Some(2), "".into(), error.into())
    );
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_file_of_nccl_tests_that_cannot_be_is_said_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    for (path, why) in [
        ("missing/run.json", "cannot be created: No such file or directory"),
        ("/proc/self/run.json", "cannot be created: "),
        ("run.txt", "the name must end in .json"),
    ] {
        let ended = measure(folder.path(), 1 << 20, 1, &format!("-J {path}"));
        let error = text(&ended.stderr);
        assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(2), "".into()), "{error}");
        assert!(error.starts_with(&format!("error: -J {path}: {why}")), "{error}");
        assert_eq!(names(folder.path()), [""; 0], "{path}");
    }
}

#[test]
fn a_disk_that_fills_leaves_what_was_measured_in_the_file_of_nccl_tests() {
    let folder = tempfile::tempdir().unwrap();
    let json =
        |name| -> Value { serde_json::from_slice(&fs::read(folder.path().join(name)).unwrap()).unwrap() };
    let ended = measure(folder.path(), 48 << 10, 1000, "-J run.json");
    let error = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{error}");
    let said = "cannot write run.json: File too large (os error 27)";
    assert_eq!((error.lines().count(), error.matches(said).count()), (1, 1), "{error}");
    // The run ended at the first measurement for which there was no space.
    let shown = text(&ended.stdout);
    let rows = shown.lines().filter(|line| line.starts_with("  ")).count();
    assert!(rows > 10 && rows < 1000, "{rows}");
    assert!(shown.lines().last().is_some_and(|line| line.starts_with(FAILED)), "{shown}");
    assert_eq!(names(folder.path()), ["run.json"]);
    let kept = json("run.json");
    assert!(kept["errors"][0].as_str().unwrap().contains(said), "{}", kept["errors"]);
    assert_eq!(kept["end_time"], Value::Null);
    let results = kept["results"].as_array().unwrap().len();
    assert!((rows - 1..=rows + 1).contains(&results), "{results} of {rows} rows");

    // With room enough the same is the whole run.
    let ended = measure(folder.path(), 1 << 20, 100, "-J run.json");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(names(folder.path()), ["run.json", "run.json.0"]);
    let whole = json("run.json.0");
    assert_eq!((&whole["errors"][0], whole["end_time"].is_string()), (&"".into(), true));
    assert_eq!(whole["results"].as_array().unwrap().len(), 100);
}

#[test]
fn a_table_says_last_that_a_file_was_not_written() {
    for output in ["-J gone/run.json", "--output gone/run.json", "--output gone/run.jsonl"] {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");
        fs::create_dir(&gone).unwrap();
        let mut running = prepare(folder.path(), u64::MAX >> 1, 1000, output);
        let mut running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The files are open. The run does not end before the table is read, which is longer than a pipe.
        let mut shown = BufReader::new(running.stdout.take().unwrap());
        let mut table = String::new();
        while !table.contains(" out-of-place ") {
            assert_ne!(shown.read_line(&mut table).unwrap(), 0, "{table}");
        }
        fs::remove_dir_all(&gone).unwrap();
        shown.read_to_string(&mut table).unwrap();
        let ended = running.wait_with_output().unwrap();
        let error = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{error}");
        assert!(error.contains("cannot write gone/run.json"), "{error}");
        let rows = table.lines().filter(|line| line.starts_with("  ")).count();
        assert_eq!(rows, 1000, "{table}");
        let last = table.lines().last().unwrap();
        assert!(last.starts_with(&format!("{FAILED}cannot write gone/run.json")), "{last}");
    }
}

#[test]
fn a_disk_that_fills_is_said_once_and_what_was_measured_is_kept() {
    for name in ["run.json", "run.jsonl", "run.csv"] {
        let folder = tempfile::tempdir().unwrap();
        let ended = measure(folder.path(), 48 << 10, 1000, &format!("--output {name}"));
        let error = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{error}");
        let said = format!("nccl-bench: cannot write {name}: File too large (os error 27)");
        assert_eq!((error.lines().count(), error.matches(&said).count()), (1, 1), "{error}");
        assert_eq!(names(folder.path()), [name]);
        let kept = fs::read_to_string(folder.path().join(name)).unwrap();
        if name == "run.jsonl" {
            let end: Value = serde_json::from_str(kept.lines().last().unwrap()).unwrap();
            assert_eq!((&end["kind"], &end["outcome"]["state"]), (&"end".into(), &"failed".into()), "{end}");
        }
        let kept =
            kept.lines().filter(|line| line.contains("out_of_place") || line.contains("in_place")).count();
        // The run ended at the first measurement for which there was no space.
        let rows = text(&ended.stdout).lines().filter(|line| line.starts_with("  ")).count();
        assert!(rows > 10 && rows < 1000, "{rows}");
        // In JSON Lines the last line has replaced a few.
        let fewest = if name == "run.jsonl" { 2 * rows - 5 } else { 2 * rows - 1 };
        assert!((fewest..=2 * rows + 2).contains(&kept), "{name}: {kept} of {rows} rows with two each");
    }
}
