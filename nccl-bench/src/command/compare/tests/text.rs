//! Texts of nccl-tests in place of result files.

use std::fs;

use super::{ALL_REDUCE, code, files_compared};

const TEXT: &str = include_str!("../../../../tests/data/all_reduce_mpi.txt");
const ALL_GATHER: &str = include_str!("../../../../tests/data/all_gather_mpi.txt");
const THREADS: &str = include_str!("../../../../tests/data/all_reduce_t8.txt");

/// Compares files with these contents. Returns the exit code, with the output or the error.
fn compare_texts(contents: &[&str], more: &[&str]) -> (u8, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |index: usize| folder.path().join(format!("{index}.log")).to_str().unwrap().to_owned();
    let paths: Vec<String> = (0..contents.len()).map(path).collect();
    for (path, content) in paths.iter().zip(contents) {
        fs::write(path, content).unwrap();
    }
    let (found, text) = files_compared(&paths.iter().map(String::as_str).collect::<Vec<_>>(), more);
    match found {
        Ok(passes) => (u8::from(!passes), text),
        Err(error) => {
            let message = error.to_string();
            (code(error), message)
        }
    }
}

/// Returns the text of a run with the same values in other processes.
fn start_again(text: &str) -> String {
    text.replace(" Pid   2", " Pid   9")
}

#[test]
fn the_text_and_the_json_of_a_run_are_equal() {
    let (code, text) = compare_texts(&[ALL_REDUCE, TEXT], &["--threshold", "0.1%"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("nccl-tests 2.19.6") && text.contains("PASS"), "{text}");
    let slow = TEXT.replacen("40976.5  209.63  366.85", "50000.0  171.80  300.65", 1);
    // The printed mean is that of the rows.
    let slow = slow.replacen("127.577", "126.509", 1);
    let (code, text) = compare_texts(&[ALL_REDUCE, &slow], &[]);
    let worst = "  B/A 1.220  allreduce float sum, 8589934592 bytes in-place: 40976 -> 50000 us\n";
    assert!(code == 1 && text.contains(&format!("in 1 of 62 rows; the worst:\n{worst}")), "{text}");
}

#[test]
fn the_collectives_of_a_log_are_one_source() {
    let prefixed: String = ALL_GATHER.lines().map(|line| format!("[1,0]<stdout>:{line}\n")).collect();
    let log = format!("$ ./run.sh\n{TEXT}{prefixed}");
    let (code, text) =
        compare_texts(&[&start_again(&format!("{TEXT}{ALL_GATHER}")), &log], &["--threshold", "0%"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("allgather float") && text.contains("allreduce float sum"), "{text}");
    let (code, text) = compare_texts(&[&log, TEXT], &[]);
    assert!(code == 1 && text.contains("allgather float (54 rows)"), "{text}");
}

#[test]
fn runs_of_a_log_that_are_no_single_source_are_refused() {
    let nameless: String =
        THREADS.lines().filter(|line| !line.contains("_perf")).map(|line| format!("{line}\n")).collect();
    let unknown = nameless.replace("     sum ", "    none ");
    for (log, expected) in [
        (
            format!("{TEXT}{TEXT}"),
            "allreduce float sum, 8 bytes out-of-place is in its runs 1 and 2: give each run a file of its own",
        ),
        (
            format!("{TEXT}{}", ALL_GATHER.replace("iters: 20", "iters: 50")),
            "its runs differ in iterations (20; 50): give each run a file of its own",
        ),
        (unknown, "its text does not name the collective of a table: write a line with the program above it"),
    ] {
        let (code, message) = compare_texts(&[&log, TEXT], &[]);
        assert!(code == 2 && message.contains(expected), "{message}");
    }
}

#[test]
fn a_cut_text_does_not_pass() {
    let cut = &TEXT[..TEXT.find("# Out of bounds").unwrap()];
    let again = start_again(TEXT);
    let (code, text) = compare_texts(&[&again, cut], &[]);
    assert!(code == 1 && text.contains("B has not ended, or was killed"), "{text}");
    let (code, text) = compare_texts(&[&again, cut], &["--partial"]);
    assert_eq!(code, 0, "{text}");
    let head = &ALL_GATHER[..ALL_GATHER.find("#       size").unwrap()];
    let (code, text) = compare_texts(&[&again, &format!("{TEXT}{head}")], &[]);
    assert!(code == 1 && text.contains("B has not ended, or was killed"), "{text}");
}

#[test]
fn an_unknown_number_of_ranks_is_noted() {
    let without: String =
        TEXT.lines().filter(|line| !line.starts_with("#  Rank")).map(|line| format!("{line}\n")).collect();
    let (code, text) = compare_texts(&[TEXT, &without], &[]);
    assert!(code == 0 && text.contains("Note: the number of ranks of B is not known"), "{text}");
    assert!(!text.contains("ranks of A is not known"), "{text}");
}

#[test]
fn a_text_counts_once_as_a_run_of_a_side() {
    // Only the lines of the run count.
    let copy = format!("a line\n{TEXT}");
    let (code, message) = compare_texts(&[TEXT, &copy], &[]);
    assert!(code == 2 && message.contains("are of the same run"), "{message}");
}
