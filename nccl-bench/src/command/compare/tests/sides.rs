//! Sides of several runs (`--before`, `--after`).

use super::*;

/// Compares several runs on each side, each with one time.
pub(super) fn sides_compared(
    before: &[Run],
    after: &[Run],
    more: &[&str],
) -> (Result<bool, CompareError>, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut line = vec!["compare".to_owned()];
    for (side, runs) in [("before", before), ("after", after)] {
        line.push(format!("--{side}"));
        for (index, run) in runs.iter().enumerate() {
            let path = folder.path().join(format!("{side}{index}.json"));
            let started_at = format!("2026-11-22T08:30:{index:02}.123Z {side}");
            fs::write(&path, serde_json::to_string(&Run { started_at, ..run.clone() }).unwrap()).unwrap();
            line.push(path.to_str().unwrap().to_owned());
        }
    }
    line.extend(more.iter().map(|&each| each.to_owned()));
    let arguments = CommandLine::try_parse_from(line).unwrap().arguments;
    let mut out = Vec::new();
    let verdict = compare_files(&arguments, &mut out);
    let text = String::from_utf8(out).unwrap();
    (verdict, text.replace(&format!("{}/", folder.path().display()), ""))
}

fn runs_of(times: &[f64]) -> Vec<Run> {
    times.iter().map(|&time| run_of(&[time])).collect()
}

#[track_caller]
fn of_sides(before: &[f64], after: &[f64], more: &[&str], expected: bool) -> String {
    let (found, text) = sides_compared(&runs_of(before), &runs_of(after), more);
    assert_eq!(found.unwrap(), expected, "{text}");
    text
}

#[test]
fn several_runs_are_slower_only_where_that_is_significant() {
    let before = [10.0, 10.1, 9.9, 10.2];
    let text = of_sides(&before, &[11.0, 11.2, 11.1, 11.4], &[], false);
    // Without an overlap, 2 of the 70 choices of 4 from 8 differ as much.
    assert!(text.contains("      8  out-of-place  10.05  11.15  1.109  0.029  B slower"), "{text}");
    assert!(text.contains("FAIL: B is slower than A by more than 5% in 2 of 2 rows"), "{text}");
    assert!(text.contains("before0.json, before1.json, before2.json, before3.json"), "{text}");

    // Medians 10 % apart, from runs with differences as large.
    let text = of_sides(&[9.0, 12.0, 10.0, 10.0], &[11.0, 9.5, 11.0, 13.0], &[], true);
    assert!(
        text.contains("Note: 2 of 2 rows differ by more than 5%, and not significantly (p >= 0.05)"),
        "{text}"
    );
    assert!(!text.contains("slower\n") && !text.contains("FAIL"), "{text}");

    // Significant, and within the threshold.
    let text = of_sides(&before, &[10.3, 10.31, 10.32, 10.33], &[], true);
    assert!(text.contains("0.029"), "{text}");
    let text = of_sides(&[11.0, 11.2, 11.1, 11.4], &before, &[], true);
    assert!(text.contains("B is faster than A by more than 5% in 2 of 2 rows"), "{text}");
}

#[test]
fn too_few_runs_cannot_tell() {
    for after in [[10.0, 10.0, 10.0], [20.0, 20.0, 20.0]] {
        let text = of_sides(&[10.0, 10.0, 10.0], &after, &[], false);
        let words = "CANNOT TELL: with 3 runs of A and 3 of B, no difference can be significant (p < 0.05) \
                     in 2 of 2 rows";
        assert!(text.contains(words), "{text}");
        assert!(
            text.contains("too few runs\n") && !text.contains("FAIL") && !text.contains("PASS"),
            "{text}"
        );
    }
    let text = of_sides(&[1.0, 1.0, 1.0], &[2.0; 5], &["--format", "json"], false);
    let found: Value = serde_json::from_str(&text).unwrap();
    // 2 of the 56 choices of 3 from 8.
    assert_eq!(found["rows"][0]["test"]["has_too_few"], false);
    assert!((found["rows"][0]["test"]["p"].as_f64().unwrap() - 2.0 / 56.0).abs() < 1e-12, "{text}");
    assert_eq!(found["files"][1]["runs"], 5);
    assert_eq!(found["verdicts"][0]["slower"], serde_json::json!([0, 1]));
}

#[test]
fn each_of_several_runs_has_to_be_whole_and_right() {
    let before = runs_of(&[10.0, 10.0, 10.0, 10.0]);
    let mut after = before.clone();
    after[2].outcome = RunOutcome::Interrupted { signal: "SIGTERM".to_owned() };
    after[3].measurements.truncate(1);
    let (found, text) = sides_compared(&before, &after, &[]);
    assert!(!found.unwrap(), "{text}");
    assert!(text.contains("FAIL: after2.json was interrupted by SIGTERM"), "{text}");
    assert!(text.contains("FAIL: after3.json lacks allreduce float sum (1 row)"), "{text}");

    let mut after = before.clone();
    after[1].measurements[0].wrong = Some(3);
    let (found, text) = sides_compared(&before, &after, &[]);
    assert!(!found.unwrap(), "{text}");
    assert!(text.contains("  allreduce float sum, 8 bytes out-of-place: 3 wrong elements"), "{text}");
}

#[test]
fn sides_that_cannot_be_tested_are_refused() {
    let one = &runs_of(&[10.0])[0];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.json");
    fs::write(&path, serde_json::to_string(one).unwrap()).unwrap();
    let path = path.to_str().unwrap();
    // The same file by another name, the same run in another file, and one file beyond the limit of the test.
    let by_link = folder.path().join("link.json");
    std::os::unix::fs::symlink(path, &by_link).unwrap();
    let copy = folder.path().join("copy.json");
    fs::copy(path, &copy).unwrap();
    let (by_link, copy) = (by_link.to_str().unwrap(), copy.to_str().unwrap());
    let many = [&["--before", path, "--after"][..], &[copy; matching::MAX_RUNS + 1]].concat();
    let parsed = |line: &[&str]| CommandLine::try_parse_from([&["compare"], line].concat());
    for line in [&["--before", path][..], &["--after", path], &[path, "--before", path, "--after", path], &[]]
    {
        assert!(parsed(line).is_err(), "{line:?}");
    }
    for (line, told) in [
        (&["--before", path, path, "--after", path][..], "is named twice: each run counts once"),
        (&["--before", path, "--after", by_link], "is named twice: each run counts once"),
        (&["--before", path, "--after", copy], "are of the same run: each run counts once; remove one"),
        (&many, "at most 20 runs can be on each side"),
        (&["--before", path, "--after", path, "--side", "both"], "--side own or --side other"),
    ] {
        let error = compare_files(&parsed(line).unwrap().arguments, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
        assert_eq!(code(error), 2);
    }
}
