//! The report, as text, CSV, Markdown and JSON.

use super::*;

#[test]
fn rows_that_are_not_stable_are_marked() {
    let (before, mut after) = (run_of(&[10.0, 20.0]), run_of(&[10.0, 20.0]));
    assert!(!verdict(&[before.clone(), before.clone()], &[], true).contains("not stable"));
    after.measurements[0].stable = Some(false);
    let runs = [before.clone(), after.clone(), before.clone()];
    let text = verdict(&runs, &[], true);
    assert!(text.contains("1.000  B not stable\n"), "{text}");
    assert_eq!(text.matches("Note: 1 of the rows of B are NOT STABLE").count(), 1, "{text}");
    let found: Value = serde_json::from_str(&verdict(&runs, &["--format", "json"], true)).unwrap();
    let unstable: Vec<&Value> =
        found["rows"].as_array().unwrap().iter().map(|row| &row["unstable"]).collect();
    let (none, of_b) = (serde_json::json!([]), serde_json::json!([1]));
    assert_eq!(unstable, [&of_b, &none, &none, &none]);
    let csv = verdict(&runs, &["--format", "csv"], true);
    let marks: Vec<bool> = csv.lines().skip(1).map(|line| line.ends_with(",true")).collect();
    // Two lines for each row: B, and C, which has no mark.
    assert_eq!(marks, [true, false, false, false, false, false, false, false], "{csv}");

    after.measurements[0].time_us = 20.0;
    let text = verdict(&[after.clone(), before.clone()], &["--threshold", "99%"], true);
    assert!(text.contains("0.500  A not stable\n"), "{text}");
    let text = verdict(&[before.clone(), after.clone()], &[], false);
    assert!(text.contains("2.000  B slower; B not stable\n"), "{text}");
    let (_, text) = sides::sides_compared(&vec![before; 4], &vec![after; 4], &[]);
    assert!(text.contains("Note: 1 of the rows of B are NOT STABLE"), "{text}");
}

#[test]
fn the_table_shows_both_sides() {
    let text = verdict(&[run_of(&[10.0, 2000.0]), run_of(&[12.0, 2000.4])], &[], false);
    let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("allreduce")).take(6).collect();
    assert_eq!(
        table,
        [
            "allreduce float sum: time per operation in microseconds",
            "  bytes  placement         A      B    B/A",
            "      8  out-of-place  10.00  12.00  1.200  B slower",
            "      8  in-place      10.00  12.00  1.200  B slower",
            "     16  out-of-place   2000   2000  1.000",
            "     16  in-place       2000   2000  1.000",
        ]
    );
}

#[test]
fn runs_of_two_machines_name_the_machines() {
    let (first, mut second) = (run_of(&[10.0]), run_of(&[10.0]));
    second.ranks[0].host = "node-7".to_owned();
    second.ranks[1].host = "node-3".to_owned();
    let text = verdict(&[first.clone(), second.clone()], &[], true);
    let line = text.lines().find(|line| line.trim_start().starts_with("hosts")).unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["hosts", "node-1", "node-3,", "node-7"],
        "{text}"
    );
    let json: Value = serde_json::from_str(&verdict(&[first, second], &["--format", "json"], true)).unwrap();
    assert_eq!(json["files"][1]["hosts"], serde_json::json!(["node-3", "node-7"]));
}

#[test]
fn csv_has_a_row_for_each_row_and_file() {
    let runs = [run_of(&[10.0]), run_of(&[10.0]), run_of(&[20.0])];
    let text = verdict(&runs, &["--format", "csv"], false);
    let rows: Vec<std::collections::BTreeMap<String, String>> =
        csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 4);
    let last = &rows[3];
    for (column, value) in [
        ("collective", "allreduce"),
        ("placement", "in_place"),
        ("bytes", "8"),
        ("first_time_us", "10"),
        ("other_time_us", "20"),
        ("ratio", "2"),
        ("slower", "true"),
    ] {
        assert_eq!(last[column], value, "{column}");
    }
    assert!(last["other"].ends_with("2.json") && rows[2]["other"].ends_with("1.json"));
    assert_eq!(rows[2]["slower"], "false");
}

#[test]
fn markdown_has_tables_of_equal_width() {
    let text = verdict(&[run_of(&[10.0]), run_of(&[12.0])], &["--format", "markdown"], false);
    let table = "\
## allreduce float sum: time per operation in microseconds

| bytes | placement    |     A |     B |   B/A |          |
| ----: | ------------ | ----: | ----: | ----: | -------- |
|     8 | out-of-place | 10.00 | 12.00 | 1.200 | B slower |
";
    assert!(text.contains(table), "{text}");
}

#[test]
fn a_closed_pipe_is_an_error_and_no_verdict() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    fs::write(&path, ALL_REDUCE).unwrap();
    let other = folder.path().join("b.json");
    fs::write(&other, super::begun_later(ALL_REDUCE)).unwrap();
    for format in
        [ComparisonFormat::Text, ComparisonFormat::Markdown, ComparisonFormat::Csv, ComparisonFormat::Json]
    {
        let files = vec![path.clone(), other.clone()];
        let threshold = Threshold(0.05);
        let arguments = CompareArguments {
            before: Vec::new(),
            after: Vec::new(),
            files,
            side: SelectedSide::Own,
            threshold,
            metric: Metric::Time,
            partial: false,
            require_verified: false,
            format,
        };
        let error = compare_files(&arguments, &mut Closed).unwrap_err();
        assert!(
            matches!(&error, CompareError::Output(inner) if inner.kind() == io::ErrorKind::BrokenPipe),
            "{error:?}"
        );
    }
}
