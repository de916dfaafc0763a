//! Tests of `compare`.

mod output;
mod sides;
mod text;

use std::fs;
use std::path::Path;

use clap::Parser;
use serde_json::Value;

use super::*;
use record::{LeftOut, Measurement, Placement, Run, RunOutcome};
use record::{files, sample};

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    arguments: CompareArguments,
}

const ALL_REDUCE: &str = include_str!("../../../../crates/record/tests/data/all_reduce.json");

/// Returns a run of allreduce in both placements with these times, from 8 bytes on.
fn run_of(times: &[f64]) -> Run {
    let measurement = |(index, &time_us): (usize, &f64)| {
        [Placement::OutOfPlace, Placement::InPlace]
            .map(|placement| sample::sample_measurement("allreduce", placement, 8 << index, time_us))
            .map(|measurement| Measurement { stable: Some(true), ..measurement })
    };
    Run { measurements: times.iter().enumerate().flat_map(measurement).collect(), ..sample::full_run() }
}

/// Returns the exit code of the program.
fn code(error: CompareError) -> u8 {
    match ExitError::from(error) {
        ExitError::Stopped(stop) => stop.code(),
        other => panic!("{other:?} is no refusal"),
    }
}

fn compared(runs: &[Run], more: &[&str]) -> (Result<bool, CompareError>, String) {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<String> = runs
        .iter()
        .enumerate()
        .map(|(index, run)| {
            let path = folder.path().join(format!("{index}.json"));
            // Each file has a run of its own.
            let started_at = format!("2026-11-2{index}T08:30:00.000Z");
            fs::write(&path, serde_json::to_string(&Run { started_at, ..run.clone() }).unwrap()).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    files_compared(&paths.iter().map(String::as_str).collect::<Vec<_>>(), more)
}

fn files_compared(paths: &[&str], more: &[&str]) -> (Result<bool, CompareError>, String) {
    let line = ["compare"].iter().chain(paths).chain(more);
    let arguments = CommandLine::try_parse_from(line).unwrap().arguments;
    let mut out = Vec::new();
    let verdict = compare_files(&arguments, &mut out);
    (verdict, String::from_utf8(out).unwrap())
}

/// Returns the text of another, later run.
fn begun_later(text: &str) -> String {
    text.replacen("T08:30:", "T09:30:", 1).replacen("14:57:55", "15:57:55", 1)
}

#[track_caller]
fn verdict(runs: &[Run], more: &[&str], expected: bool) -> String {
    let (found, text) = compared(runs, more);
    assert_eq!(found.unwrap(), expected, "{text}");
    text
}

#[test]
fn an_operator_of_what_does_not_reduce_is_ignored() {
    let [mut with, mut without] = [run_of(&[10.0]), run_of(&[10.0])];
    for measurement in with.measurements.iter_mut().chain(&mut without.measurements) {
        measurement.collective = "sendrecv".to_owned();
    }
    for measurement in &mut without.measurements {
        measurement.op = None;
    }
    let text = verdict(&[with, without], &[], true);
    assert!(text.contains("\nsendrecv float: time") && text.contains("(2 rows)"), "{text}");
}

#[test]
fn a_run_against_itself_passes() {
    let text = verdict(&[run_of(&[10.0, 20.0]), run_of(&[10.0, 20.0])], &["--threshold", "0%"], true);
    assert!(text.contains("PASS: B is nowhere slower than A by more than 0% (4 rows)"), "{text}");
    assert!(!text.contains("Not the same") && !text.contains("Only in") && !text.contains("Note"), "{text}");
}

#[test]
fn a_run_is_not_compared_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, lines) = (path("a.json"), path("a.jsonl"));
    let outputs = [json.parse().unwrap(), lines.parse().unwrap()];
    files::Files::open_outputs(&outputs, false).unwrap().finish_run(&run_of(&[10.0])).unwrap();
    for (files, reason) in [
        ([&json, &json], "a.json is named twice"),
        ([&json, &lines], "are of the same run: each run counts once"),
    ] {
        let error = files_compared(&files.map(String::as_str), &[]).0.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(code(error), 2);
    }
}

#[test]
fn only_what_is_beyond_the_threshold_fails_and_the_worst_comes_first() {
    let first = run_of(&[10.0, 20.0, 40.0]);
    // Exactly 5 % slower, 25 % faster.
    verdict(&[first.clone(), run_of(&[10.5, 15.0, 40.0])], &[], true);
    let text = verdict(&[first.clone(), run_of(&[10.51, 15.0, 44.0])], &[], false);
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("FAIL")).collect();
    assert_eq!(
        lines,
        [
            "FAIL: B is slower than A by more than 5% in 4 of 6 rows; the worst:",
            "  B/A 1.100  allreduce float sum, 32 bytes out-of-place: 40.00 -> 44.00 us",
            "  B/A 1.100  allreduce float sum, 32 bytes in-place: 40.00 -> 44.00 us",
            "  B/A 1.051  allreduce float sum, 8 bytes out-of-place: 10.00 -> 10.51 us",
            "  B/A 1.051  allreduce float sum, 8 bytes in-place: 10.00 -> 10.51 us",
            "B is faster than A by more than 5% in 2 of 6 rows",
        ]
    );
    verdict(&[first.clone(), run_of(&[10.51, 15.0, 44.0])], &["--threshold", "10%"], true);
    let text = verdict(&[first, run_of(&[10.51, 15.0, 44.0])], &["--metric", "busbw"], false);
    // Two bytes per nanosecond and so on: 32 B / 40 us is 0.0008 GB/s.
    assert!(
        text.contains("B/A 0.909  allreduce float sum, 32 bytes out-of-place: 0.0008 -> 0.0007 GB/s"),
        "{text}"
    );
    assert!(text.contains("in 4 of 6 rows"), "{text}");
}

#[test]
fn of_several_cycles_the_median_counts() {
    let mut second = run_of(&[10.0]);
    for (cycle, time) in [(1, 500.0), (2, 10.2)] {
        let again = run_of(&[time]).measurements.into_iter();
        second.measurements.extend(again.map(|each| Measurement { cycle, ..each }));
    }
    let text = verdict(&[run_of(&[10.0]), second], &[], true);
    assert!(text.contains("10.00  10.20  1.020"), "{text}");
}

#[test]
fn geometric_means_are_those_of_the_ratios() {
    let (mut first, mut second) = (run_of(&[10.0, 10.0]), run_of(&[20.0, 5.0]));
    let gather = |time| sample::sample_measurement("allgather", Placement::OutOfPlace, 8, time);
    first.measurements.push(gather(10.0));
    second.measurements.push(gather(10.0 * 32.0));
    let text = verdict(&[first, second], &["--format", "json"], false);
    let found: Value = serde_json::from_str(&text).unwrap();
    let means: Vec<(Option<&str>, f64, u64)> = found["means"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mean| {
            let ratio = mean["ratios"][0].as_f64().unwrap();
            (mean["collective"].as_str(), (ratio * 1e9).round() / 1e9, mean["rows"][0].as_u64().unwrap())
        })
        .collect();
    assert_eq!(means, [(Some("allreduce"), 1.0, 4), (Some("allgather"), 32.0, 1), (None, 2.0, 5)]);
    assert_eq!(found["verdicts"][0]["pass"], false);
    assert_eq!(found["rows"][4]["values"], serde_json::json!([10.0, 320.0]));
    assert_eq!(found["rows"][4]["collective"], "allgather");
}

#[test]
fn wrong_data_is_a_failure_in_either_run_however_fast() {
    let right = run_of(&[10.0]);
    let mut wrong = run_of(&[5.0]);
    wrong.measurements[1].wrong = Some(3);
    for more in [&["--threshold", "1000%"][..], &["--threshold", "1000%", "--partial"]] {
        let text = verdict(&[right.clone(), wrong.clone()], more, false);
        let named = "FAIL: B has wrong data:\n  allreduce float sum, 8 bytes in-place: 3 wrong elements\n";
        assert!(text.contains(named) && !text.contains("PASS"), "{text}");
        let text = verdict(&[wrong.clone(), right.clone()], more, false);
        assert!(text.contains(&named.replace("B has", "A has")) && !text.contains("PASS"), "{text}");
    }
    // In the measurements left out of the file.
    let left_out = Some(LeftOut { measurements: 2, wrong_measurements: 1 });
    let outcome = RunOutcome::Failed { message: "the disk is full".to_owned() };
    let text = verdict(&[right.clone(), Run { left_out, outcome, ..right.clone() }], &["--partial"], false);
    assert!(text.contains("FAIL: B has wrong data:\n  1 measurement(s) missing in the file"), "{text}");
    // Wrong in one cycle of several, and on the other side of --vs.
    let mut again = run_of(&[10.0]);
    let wrong_then = wrong.measurements[1].clone();
    again.measurements.push(Measurement { cycle: 1, ..wrong_then });
    verdict(&[right.clone(), again], &[], false);
    let mut beside = run_of(&[10.0]);
    if let Some(versus) = &mut beside.measurements[0].versus {
        versus.wrong = Some(1);
    }
    verdict(&[right.clone(), beside.clone()], &[], false);
    beside.measurements[0].wrong = None;
    verdict(&[right, beside], &[], false);
}

#[test]
fn a_run_that_is_not_whole_passes_only_where_a_part_will_do() {
    let whole = run_of(&[10.0, 20.0]);
    let failed = RunOutcome::Failed { message: "rank 3 on node-2 is gone".to_owned() };
    let interrupted = RunOutcome::Interrupted { signal: "SIGINT".to_owned() };
    for (outcome, said) in [
        (failed, "the run of B failed: rank 3 on node-2 is gone"),
        (interrupted, "B was interrupted by SIGINT"),
        (RunOutcome::Running, "B has not ended, or was killed"),
    ] {
        let runs = [whole.clone(), Run { outcome, ..run_of(&[10.0, 20.0]) }];
        let text = verdict(&runs, &[], false);
        let hint = "  --partial compares the rows that both A and B have";
        assert!(text.contains(&format!("FAIL: {said}\n{hint}\n")) && !text.contains("PASS"), "{text}");
        let text = verdict(&runs, &["--partial"], true);
        assert!(text.contains(&format!("Not whole: {said}\nPASS for what was compared: B is ")), "{text}");
        let [one, other] = runs;
        let text = verdict(&[other, one], &[], false);
        let said = said.replacen("B ", "A ", 1).replace("of B", "of A");
        assert!(text.contains(&format!("FAIL: {said}")), "{text}");
    }
    let json = verdict(&[whole.clone(), run_of(&[10.0])], &["--format", "json"], false);
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&found["partial"], &found["verdicts"][0]["pass"]), (&false.into(), &false.into()));
    assert_eq!(found["verdicts"][0]["missing"], serde_json::json!(["allreduce float sum (2 rows)"]));
    // With --partial, a slower row still fails.
    let text = verdict(&[whole, run_of(&[12.0])], &["--partial"], false);
    assert!(text.contains("B is slower") && !text.contains("PASS"), "{text}");
}

#[test]
fn what_only_one_run_has_fails_the_comparison_on_either_side() {
    let (long, short) = (run_of(&[10.0, 20.0]), run_of(&[10.0]));
    for (runs, said) in [
        ([long.clone(), short.clone()], "only in A, not in B: allreduce float sum (2 rows)"),
        ([short, long], "only in B, not in A: allreduce float sum (2 rows)"),
    ] {
        let text = verdict(&runs, &[], false);
        assert!(text.contains(&format!("\nFAIL: {said}\n")) && !text.contains("PASS"), "{text}");
        let text = verdict(&runs, &["--partial"], true);
        assert!(text.contains(&format!("\nNot whole: {said}\nPASS for what was compared: ")), "{text}");
        assert!(text.contains("(2 rows)\n"), "{text}");
    }
}

#[test]
fn files_that_end_in_the_middle_are_compared_only_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = run_of(&[10.0, 20.0, 40.0]);
    let [json, lines] = [path("whole.json"), path("whole.jsonl")];
    let outputs = [json.parse().unwrap(), lines.parse().unwrap()];
    files::Files::open_outputs(&outputs, false).unwrap().finish_run(&run).unwrap();
    let cut = |from: &str, name: &str, marker: &str, at: usize| {
        let text = fs::read_to_string(from).unwrap();
        let end = text.match_indices(marker).nth(at).unwrap().0;
        let cut = path(name);
        fs::write(&cut, begun_later(&text[..end])).unwrap();
        cut
    };
    // JSON cut after its second measurement, JSON Lines without their last line, and nccl-tests' JSON cut in
    // its third row.
    let cut_json = cut(&json, "cut.json", "\"collective\"", 2);
    let cut_lines = cut(&lines, "cut.jsonl", "\"collective\"", 2);
    let unended = cut(&lines, "unended.jsonl", "{\"kind\":\"end\"", 0);
    let real = path("real.json");
    fs::write(&real, ALL_REDUCE).unwrap();
    let cut_real = cut(&real, "cut_real.json", "\"out_of_place\"", 2);
    for (whole, cut, rows, refused) in [
        (&json, &cut_json, 2, true),
        (&json, &cut_lines, 2, false),
        (&json, &unended, 6, false),
        (&real, &cut_real, 4, true),
    ] {
        let (found, text) = files_compared(&[whole, cut], &[]);
        if refused {
            let error = found.unwrap_err();
            assert!(error.to_string().contains("it ends in the middle"), "{error}");
            assert_eq!(code(error), 2);
        } else {
            assert!(!found.unwrap(), "{text}");
            assert!(text.contains("FAIL: B has not ended, or was killed\n"), "{text}");
        }
        let (found, text) = files_compared(&[whole, cut], &["--partial"]);
        assert!(found.unwrap(), "{text}");
        assert!(text.contains("Not whole: B has not ended, or was killed\n"), "{text}");
        let pass =
            format!("PASS for what was compared: B is nowhere slower than A by more than 5% ({rows} rows)");
        assert!(text.contains(&pass), "{text}");
    }
}

#[test]
fn what_makes_the_comparison_doubtful_is_said() {
    let (first, mut second) = (run_of(&[10.0, 20.0]), run_of(&[10.0]));
    second.provenance.library_version = "2.29.2".to_owned();
    second.provenance.environment = [("NCCL_PROTO".to_owned(), "LL".to_owned())].into();
    second.ranks.pop();
    second.settings.iterations = 5;
    second.settings.cycles = 9;
    second.measurements.push(sample::sample_measurement("allgather", Placement::InPlace, 8, 1.0));
    second.measurements[0].wrong = None;
    let text = verdict(&[first, second], &["--partial"], false);
    let differences: Vec<String> = text
        .lines()
        .skip_while(|line| !line.starts_with("Not the same"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        differences,
        [
            "A B",
            "NCCL_ALGO ring -",
            "NCCL_PROTO - LL",
            "iterations 20 5",
            "library_version 2.28.9 2.29.2",
            "ranks 2 x NVIDIA H200 1 x NVIDIA H200",
        ]
    );
    for line in [
        "Not whole: only in A, not in B: allreduce float sum (2 rows)",
        "Not whole: only in B, not in A: allgather float (1 row)",
        "Note: B did not verify the data of 1 of its 3 measurements",
        "FAIL: A was measured with 2 ranks, B with 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn rows_that_were_not_verified_fail_where_verification_is_required() {
    let (first, mut second) = (run_of(&[10.0]), run_of(&[10.0]));
    verdict(&[first.clone(), second.clone()], &["--require-verified"], true);
    let mut in_place = run_of(&[10.0]);
    for measurement in &mut in_place.measurements {
        measurement.collective = "alltoall".to_owned();
        measurement.wrong = measurement.wrong.filter(|_| measurement.placement != Placement::InPlace);
    }
    let mut later = in_place.clone();
    later.started_at.push('Z');
    verdict(&[in_place, later], &["--require-verified"], true);
    second.measurements[1].wrong = None;
    let said = "did not verify the data of 1 of its 2 measurements";
    let text = verdict(&[first.clone(), second.clone()], &[], true);
    assert!(text.contains(&format!("Note: B {said}")), "{text}");
    for (runs, letter) in [([first.clone(), second.clone()], "B"), ([second, first], "A")] {
        for more in [&["--require-verified"][..], &["--require-verified", "--partial"]] {
            let text = verdict(&runs, more, false);
            assert!(text.contains(&format!("FAIL: {letter} {said}")) && !text.contains("PASS"), "{text}");
        }
    }
}

#[test]
fn the_exit_codes_are_those_of_the_documentation() {
    let documented = include_str!("../../../../docs/results.md");
    let table = documented.split("| exit code | |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<String> = table.lines().skip(2).map(str::to_owned).collect();
    assert_eq!(rows, EXIT_CODES.map(|(code, text)| format!("| {code} | {text} |")));
    let help = after_help();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (code, text) in EXIT_CODES {
        assert!(words.contains(&format!("{code} {text}")), "{help}");
    }
}

#[test]
fn each_of_several_files_is_compared_with_the_first() {
    let runs = [run_of(&[10.0]), run_of(&[10.0]), run_of(&[20.0])];
    let text = verdict(&runs, &[], false);
    assert!(text.contains("10.00  10.00  1.000  20.00  2.000  C slower"), "{text}");
    assert!(text.contains("PASS: B is nowhere") && text.contains("FAIL: C is slower"), "{text}");
    assert_eq!(matching::file_letter(25) + &matching::file_letter(26) + &matching::file_letter(53), "ZA1B2");
}

#[test]
fn values_that_are_no_numbers_are_left_out_and_counted() {
    let (first, mut second) = (run_of(&[10.0, 20.0]), run_of(&[10.0, 20.0]));
    second.measurements[0].time_us = f64::NAN;
    let text = verdict(&[first.clone(), second.clone()], &[], false);
    let said = "of the common rows, 1 have a number above 0 on one side only";
    assert!(text.contains(&format!("FAIL: {said}")), "{text}");
    let text = verdict(&[first.clone(), second.clone()], &["--partial"], true);
    assert!(text.contains(&format!("Not whole: {said}")) && text.contains("(3 rows)"), "{text}");
    let text = verdict(&[second.clone(), second.clone()], &[], true);
    assert!(text.contains("Note: of the common rows, 1 are skipped: no number above 0\nPASS: "), "{text}");

    for measurement in &mut second.measurements {
        measurement.busbw_gbps = 0.0;
    }
    let error = compared(&[first, second], &["--metric", "busbw"]).0.unwrap_err();
    assert!(error.to_string().contains("no bus bandwidth above 0 in common; for a single rank"), "{error}");
    assert_eq!(code(error), 2);
}

#[test]
fn bad_input_is_named_and_nothing_is_printed() {
    let (first, mut second) = (run_of(&[10.0]), run_of(&[10.0]));
    second.measurements.iter_mut().for_each(|each| each.data_type = "half".to_owned());
    let (found, text) = compared(&[first, second], &[]);
    let error = found.unwrap_err();
    let message = error.to_string();
    assert!(
        message
            .contains("the first has allreduce float sum (2 rows), the second allreduce half sum (2 rows)")
    );
    assert_eq!((code(error), text.as_str()), (2, ""));

    let folder = tempfile::tempdir().unwrap();
    let text_file = folder.path().join("table.txt");
    fs::write(&text_file, "# nccl-bench\n").unwrap();
    let missing = folder.path().join("missing.json");
    let paths: Vec<&str> = [&text_file, &missing].iter().map(|path| path.to_str().unwrap()).collect();
    let error = files_compared(&paths, &[]).0.unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("table.txt: it is not a result file") && message.contains("missing.json: it cannot")
    );
    assert_eq!(code(error), 2);
}

#[test]
fn the_command_line_says_what_is_wrong_with_it() {
    let parse = |line: &[&str]| CommandLine::try_parse_from(line).map(|line| line.arguments.threshold);
    assert_eq!(parse(&["compare", "a", "b"]).unwrap(), Threshold(0.05));
    for (text, share) in [("5%", 0.05), ("0.5 %", 0.005), ("7%", 0.07), ("0%", 0.0)] {
        assert_eq!(parse(&["compare", "a", "b", "--threshold", text]).unwrap(), Threshold(share));
    }
    for text in ["-1%", "five", "nan", "inf", "", "%"] {
        let message = parse(&["compare", "a", "b", "--threshold", text]).unwrap_err().to_string();
        assert!(message.contains("is not a share in percent"), "{message}");
    }
    for text in ["0.05", "5", "0"] {
        let message = parse(&["compare", "a", "b", "--threshold", text]).unwrap_err().to_string();
        assert!(message.contains(&format!("'{text}' has no percent sign")), "{message}");
    }
    assert!(parse(&["compare"]).is_err());
    let printed = [0.05, 0.005, 0.07, 0.0].map(|share| Threshold(share).to_string());
    assert_eq!(printed, ["5%", "0.5%", "7%", "0%"]);
}

#[test]
fn the_other_side_of_a_run_is_compared_when_it_is_asked_for() {
    // Each operation of the other side takes twice as long.
    let (one, two) = (run_of(&[10.0, 20.0]), run_of(&[10.0, 22.0]));
    let text = verdict(std::slice::from_ref(&one), &["--side", "both"], false);
    let parts = ["0.json (nccl)", "0.json (mpi)", "Open MPI 4.1.4"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert!(text.contains("B is slower than A by more than 5% in 4 of 4 rows"), "{text}");
    let text = verdict(&[one.clone(), two.clone()], &["--side", "other"], false);
    assert!(text.contains("B/A 1.100  allreduce float sum, 16 bytes in-place: 40.00 -> 44.00 us"), "{text}");
    // The first is twice as fast as its other side, and the second hardly slower.
    let text = verdict(&[one.clone(), two.clone()], &["--side", "both", "--format", "csv"], false);
    assert_eq!(text.lines().count(), 1 + 4 * 3, "{text}");
    let (found, text) = compared(std::slice::from_ref(&one), &[]);
    let error = found.unwrap_err();
    assert!(error.to_string().contains("--side both") && text.is_empty(), "{error}{text}");
    assert_eq!(code(error), 2);
    let mut alone = two;
    alone.provenance.versus = None;
    let error = compared(&[one, alone], &["--side", "other"]).0.unwrap_err();
    assert!(error.to_string().contains("1.json has no other side"), "{error}");
    assert_eq!(code(error), 2);
}

#[test]
fn files_of_nccl_tests_are_compared_with_those_of_nccl_bench() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (real, slow, own) = (path("a.json"), path("b.json"), path("own.jsonl"));
    fs::write(&real, ALL_REDUCE).unwrap();
    // The time of the last row, in place: 40976.488013 before.
    fs::write(&slow, begun_later(ALL_REDUCE).replacen("40976.488013", "50000.000000", 1)).unwrap();
    let (found, text) = files_compared(&[&real, &slow], &[]);
    assert!(!found.unwrap());
    let worst = "  B/A 1.220  allreduce float sum, 8589934592 bytes in-place: 40976 -> 50000 us\n";
    assert!(text.contains(&format!("in 1 of 62 rows; the worst:\n{worst}")), "{text}");
    let nccl_tests = files::read_run(Path::new(&real)).unwrap();
    let (program, started_at) = ("nccl-bench 0.1.0".to_owned(), "2026-11-21T08:30:00.000Z".to_owned());
    let run = Run { program, started_at, ..nccl_tests };
    files::Files::open_outputs(&[own.parse().unwrap()], false).unwrap().finish_run(&run).unwrap();
    let (found, text) = files_compared(&[&real, &own], &["--threshold", "0%"]);
    assert!(found.unwrap(), "{text}");
    assert!(text.contains("nccl-tests") && text.contains("8 x NVIDIA H200"), "{text}");
}
