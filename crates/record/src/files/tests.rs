use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::run::{Placement, RunOutcome};

fn outputs(folder: &Path, names: &[&str]) -> Vec<Output> {
    names.iter().map(|name| folder.join(name).to_str().unwrap().parse().unwrap()).collect()
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const ALL: [&str; 4] = ["run.csv", "run.json", "run.jsonl", "run.md"];

/// Writes the files as rank 0 does.
fn drive(files: &mut Files, run: &Run) {
    let mut begun = Run {
        measurements: Vec::new(),
        outcome: RunOutcome::Running,
        ended_at: None,
        notes: Vec::new(),
        ..run.clone()
    };
    // Not known before the ranks are connected.
    begun.provenance.transport = None;
    files.start_run(&begun).unwrap();
    begun.provenance.transport = run.provenance.transport.clone();
    files.add_connected(&begun).unwrap();
    for measurement in &run.measurements {
        files.add_measurement(measurement).unwrap();
    }
}

#[test]
fn the_suffix_chooses_the_format_and_an_unknown_one_is_explained() {
    for (name, format) in [
        ("a.json", FileFormat::Json),
        ("folder.csv/a.jsonl", FileFormat::JsonLines),
        ("a.b.CSV", FileFormat::Csv),
        ("./a.md", FileFormat::Markdown),
    ] {
        assert_eq!(name.parse(), Ok(Output { path: PathBuf::from(name), format }));
    }
    for name in ["a.txt", "a", "json", ".json", "a.json/", "", "a.", "/"] {
        match name.parse::<Output>() {
            Ok(found) => assert_eq!((name, found.format), ("a.json/", FileFormat::Json)),
            Err(error) => {
                let message = error.to_string();
                let all = [".json ", ".jsonl ", ".csv ", ".md "];
                assert!(all.iter().all(|suffix| message.contains(suffix)), "{name}: {message}");
            }
        }
    }
}

#[test]
fn all_files_of_a_run_are_written_and_nothing_else() {
    let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full_run());
    let mut files = Files::open_outputs(&outputs(folder.path(), &ALL), false).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
    drive(&mut files, &run);
    files.finish_run(&run).unwrap();
    assert_eq!(names(folder.path()), ALL);
    for name in ["run.json", "run.jsonl"] {
        assert_eq!(read_run(&folder.path().join(name)).unwrap(), run, "{name}");
    }
    assert!(fs::read_to_string(folder.path().join("run.csv")).unwrap().contains("allreduce,float,sum,"));
    assert!(fs::read_to_string(folder.path().join("run.md")).unwrap().contains("## allreduce float sum"));
}

#[test]
fn files_of_an_earlier_run_are_not_taken_for_those_of_a_killed_one() {
    let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full_run());
    let content = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    for name in ALL {
        fs::write(folder.path().join(name), "older").unwrap();
    }
    let mut files = Files::open_outputs(&outputs(folder.path(), &ALL), true).unwrap();
    assert!(ALL.iter().all(|name| content(name) == "older"));
    drive(&mut files, &run);
    // The process is killed here: the measurements are present, and the outcome is not.
    assert!(!content("run.csv").contains("allreduce,float"), "{}", content("run.csv"));
    assert!(content("run.md").contains("Not ended, or killed"), "{}", content("run.md"));
    let json: serde_json::Value = serde_json::from_str(&content("run.json")).unwrap();
    assert_eq!(json["outcome"]["state"], "running");
    assert_eq!(content("run.jsonl").lines().count(), 2 + run.measurements.len());
    let killed = read_run(&folder.path().join("run.jsonl")).unwrap();
    assert_eq!((killed.outcome, &killed.measurements), (RunOutcome::Running, &run.measurements));
    assert_eq!(killed.provenance, run.provenance);
    files.finish_run(&run).unwrap();
    assert!(ALL.iter().all(|name| content(name) != "older"));
}

#[test]
fn a_file_of_another_program_is_replaced_only_by_force() {
    let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full_run());
    let path = |name: &str| folder.path().join(name);
    for name in ALL {
        fs::write(path(name), "# Notes\n").unwrap();
    }
    let error = Files::open_outputs(&outputs(folder.path(), &ALL), false).unwrap_err();
    assert_eq!(error.failures.len(), ALL.len());
    assert!(
        error.to_string().contains("run.md: it exists and is not a result file of nccl-bench"),
        "{error}"
    );
    assert!(error.to_string().ends_with("or use --force to replace it"), "{error}");
    assert!(ALL.iter().all(|name| fs::read(path(name)).unwrap() == b"# Notes\n"));
    Files::open_outputs(&outputs(folder.path(), &ALL), true).unwrap().finish_run(&run).unwrap();
    // Each is a result now, in any format, and an empty file holds nothing.
    fs::copy(path("run.csv"), path("run.json")).unwrap();
    fs::write(path("run.md"), "").unwrap();
    Files::open_outputs(&outputs(folder.path(), &ALL), false).unwrap().finish_run(&run).unwrap();
    assert_eq!(read_run(&path("run.json")).unwrap(), run);
}

#[test]
fn lines_that_were_removed_or_emptied_meanwhile_are_written_again() {
    let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full_run());
    let path = folder.path().join("run.jsonl");
    let harm: [fn(&Path); 2] = [|path| fs::remove_file(path).unwrap(), |path| fs::write(path, "").unwrap()];
    for harm in harm {
        let mut files = Files::open_outputs(&outputs(folder.path(), &["run.jsonl"]), false).unwrap();
        drive(&mut files, &run);
        harm(&path);
        files.add_measurement(&run.measurements[0]).unwrap();
        files.finish_run(&run).unwrap();
        assert_eq!(read_run(&path).unwrap(), run);
    }
}

#[test]
fn what_another_program_has_written_meanwhile_is_not_replaced() {
    let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full_run());
    let other = folder.path().join("other");
    let overwrite = |path: &Path| fs::write(path, "another run").unwrap();
    let replace = |path: &Path| {
        overwrite(&other);
        fs::rename(&other, path).unwrap();
    };
    for name in ALL {
        let path = folder.path().join(name);
        let changes: &[&dyn Fn(&Path)] =
            if name == "run.jsonl" { &[&replace] } else { &[&replace, &overwrite] };
        for change in changes {
            let _ = fs::remove_file(&path);
            let mut files = Files::open_outputs(&outputs(folder.path(), &[name]), false).unwrap();
            drive(&mut files, &run);
            change(&path);
            let error = files.finish_run(&run).unwrap_err().to_string();
            let expected =
                "another program has replaced it during the run; name a file of its own for each run";
            assert!(error.ends_with(&format!("{name}: {expected}")), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "another run");
        }
    }
}

/// One of two runs begun at the same time is refused before it measures.
#[test]
fn a_run_that_ended_while_another_began_is_not_replaced() {
    let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full_run());
    for name in ALL {
        let open = || Files::open_outputs(&outputs(folder.path(), &[name]), false).unwrap();
        let [mut first, mut second] = [open(), open()];
        drive(&mut first, &run);
        first.finish_run(&run).unwrap();
        let whole = fs::read(folder.path().join(name)).unwrap();
        let error = second.start_run(&run).unwrap_err().to_string();
        assert!(error.contains("another program has replaced it"), "{error}");
        second.finish_run(&run).unwrap_err();
        assert_eq!(fs::read(folder.path().join(name)).unwrap(), whole);
    }
}

#[test]
fn an_interrupted_run_and_one_that_never_began_are_written_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let full = crate::sample::full_run();
    let interrupted = Run {
        outcome: RunOutcome::Interrupted { signal: "SIGINT".to_owned() },
        measurements: full.measurements[..1].to_vec(),
        ..full.clone()
    };
    let mut files = Files::open_outputs(&outputs(folder.path(), &ALL), false).unwrap();
    drive(&mut files, &interrupted);
    files.finish_run(&interrupted).unwrap();
    for name in ["run.json", "run.jsonl"] {
        assert_eq!(read_run(&folder.path().join(name)).unwrap(), interrupted, "{name}");
    }

    let failed = Run {
        outcome: RunOutcome::Failed { message: "rank 3 on node-2: NCCL is missing".to_owned() },
        measurements: Vec::new(),
        ..full
    };
    Files::open_outputs(&outputs(folder.path(), &ALL), false).unwrap().finish_run(&failed).unwrap();
    for name in ["run.json", "run.jsonl"] {
        let problem = read_run(&folder.path().join(name)).unwrap_err().to_string();
        assert!(problem.contains("no measurement: the run failed: rank 3 on node-2"), "{problem}");
        let content = fs::read(folder.path().join(name)).unwrap();
        assert_eq!(super::read::parse_text(&content).unwrap(), failed, "{name}");
    }
}

#[test]
fn all_files_that_cannot_be_written_are_named_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("folder.json")).unwrap();
    let asked = outputs(folder.path(), &["folder.json", "missing/run.csv", "run.md", "../x/../run.md"]);
    let mut asked = asked;
    asked[3].path = folder.path().join("folder.json/../run.md");
    let error = Files::open_outputs(&asked, false).unwrap_err();
    assert_eq!(error.failures.len(), 3);
    let message = error.to_string();
    for part in ["folder.json: it is a folder; ", "missing does not exist; ", "run.md: it is named twice"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(names(folder.path()), ["folder.json"]);
}

#[test]
fn one_file_that_fails_at_the_end_does_not_cost_the_others() {
    let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full_run());
    let mut files =
        Files::open_outputs(&outputs(folder.path(), &["run.json", "run.csv", "run.md"]), false).unwrap();
    drive(&mut files, &run);
    // No rename replaces a folder with content, not even by root.
    fs::remove_file(folder.path().join("run.json")).unwrap();
    fs::create_dir_all(folder.path().join("run.json/occupied")).unwrap();
    let error = files.finish_run(&run).unwrap_err();
    assert_eq!(error.failures.len(), 1);
    assert!(error.to_string().starts_with("cannot write "), "{error}");
    assert_eq!(names(folder.path()), ["run.csv", "run.json", "run.md"]);
}

#[test]
fn what_is_no_result_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let problem = |content: &str| {
        fs::write(&path, content).unwrap();
        read_run(&path).unwrap_err().to_string()
    };
    let json = include_str!("../../tests/data/run.json");
    let jsonl = {
        let run = crate::sample::full_run();
        String::from_utf8(json_lines::header_line(&run).unwrap()).unwrap()
    };
    let left_out = "\"left_out\": {\"measurements\": 2, \"wrong_measurements\": 0}, \"measurements\"";
    let left_out = json.replacen("\"measurements\"", left_out, 1);
    let whole = json_lines::tests::whole(&crate::sample::full_run());
    let (count, _) = whole.rsplit_once("\"wrong_measurements\":").unwrap();
    let miscounted = format!("{count}\"wrong_measurements\":77{}", "}}\n");
    let uncounted = json.replace("83.88608, \"wrong\": 3", "83.88608, \"wrong\": 0");
    let twice = json.replacen("\"rank\": 1,", "\"rank\": 0,", 1);
    let text = json.replacen("\"time_us\": 2", "\"time_us\": \"3\", \"other\": 2", 1);
    let newer = json.replacen("\"schema_version\": 1", "\"schema_version\": 7", 1);
    for (content, expected) in [
        ("", "it is not a result file"),
        ("# nccl-bench allreduce\n", "it is text without such a table"),
        ("{\"a\": 1}", "JSON of another kind"),
        ("[1, 2]", "it is"),
        ("{\"a\": b}", "it is not JSON: expected value"),
        (newer.as_str(), "it has version 7 of the format, but this program knows 1; read it with a newer"),
        (&json[..json.len() / 2], "it ends in the middle; the program that wrote it was stopped"),
        (&json.replacen("\"bytes\"", "\"bites\"", 1), "it is damaged: missing field `bytes`"),
        (&jsonl, "it has no measurement: the run has not reached its first measurement, or was killed"),
        (&jsonl[..jsonl.len() / 2], "it ends in the middle"),
        (&format!("{jsonl}{{\"kind\": \"meas\n{{}}\n"), "line 2 is damaged: "),
        (&format!("{jsonl}{{\"kind\": \"measurement\"}}\n"), "line 2 is damaged: missing field"),
        (&format!("{jsonl}\n{jsonl}"), "line 3 is damaged: another run begins"),
        (&json.replacen("\"ended_at\"", "\"other\"", 1), "its run is complete, but has no `ended_at`"),
        (&left_out, "its run is complete, but measurements are missing"),
        (&twice, "it names a rank twice, or omits a rank"),
        (&text, "'3' is text, not a number"),
        (&uncounted, "a measurement lists ranks with wrong elements, but counts none"),
        (&miscounted, "it ends a run with a different number of wrong measurements than the "),
        (&jsonl.replacen("\"schema_version\":1", "\"schema_version\":2", 1), "it has version 2"),
        (&jsonl.replacen("\"schema_version\":1", "\"schema_version\":0", 1), "it has version 0"),
    ] {
        let message = problem(content);
        assert!(message.contains(expected) && message.contains("file: "), "{expected}: {message}");
    }
    // A line of the middle is lost, and lines behind the end.
    let whole = json_lines::tests::whole(&crate::sample::full_run());
    let lines: Vec<&str> = whole.lines().collect();
    let without = |lost: usize| {
        let kept = lines.iter().enumerate().filter(|(index, _)| *index != lost);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    let taken = crate::sample::full_run().measurements.len();
    let expected = format!("it ends a run of {taken} measurements, but {} are in the file", taken - 1);
    let message = problem(&without(lines.len() - 2));
    assert!(message.contains(&expected), "{message}");
    for line in &lines[lines.len() - 2..] {
        let message = problem(&format!("{whole}{line}\n"));
        assert!(message.contains("is damaged: it follows the end of the run"), "{message}");
    }
    let message = read_run(&folder.path().join("none.json")).unwrap_err().to_string();
    assert!(message.contains("none.json: it cannot be read: No such file"), "{message}");
    let message = read_run(folder.path()).unwrap_err().to_string();
    assert!(message.contains("it cannot be read: Is a directory"), "{message}");
}

#[test]
fn fields_and_lines_of_later_programs_are_passed_over() {
    let run = crate::sample::full_run();
    let json = include_str!("../../tests/data/run.json");
    let more = json.replacen("\"program\"", "\"colour\": \"blue\",\n  \"program\"", 1);
    assert_eq!(super::read::parse_text(more.as_bytes()).unwrap(), run);
    let mut lines = json_lines::header_line(&run).unwrap();
    lines.extend(b"{\"kind\": \"colour\", \"blue\": true}\n");
    assert_eq!(super::read::parse_text(&lines).unwrap().measurements, []);
}

fn measurements() -> impl Strategy<Value = Vec<Measurement>> {
    let number = || prop_oneof![any::<f64>().prop_filter("finite", |value| value.is_finite()), Just(0.1)];
    let one = (".*", any::<u64>(), number(), proptest::option::of(number()), any::<bool>(), any::<usize>());
    let one = one.prop_map(|(name, bytes, time_us, cpu_time_us, in_place, operations)| Measurement {
        collective: name.clone(),
        placement: if in_place { Placement::InPlace } else { Placement::OutOfPlace },
        cpu_time_us,
        operations,
        wrong: in_place.then_some(bytes),
        count: bytes,
        bytes,
        time_us,
        op: in_place.then_some(name),
        ..crate::sample::sample_measurement("allreduce", Placement::InPlace, 8, 1.0)
    });
    proptest::collection::vec(one, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_written_is_read_again(measurements in measurements(), message in ".*") {
        let folder = tempfile::tempdir().unwrap();
        let outcome = RunOutcome::Failed { message: message.clone() };
        let run = Run { measurements, outcome, notes: vec![message], ..crate::sample::full_run() };
        let mut files = Files::open_outputs(&outputs(folder.path(), &ALL), false).unwrap();
        drive(&mut files, &run);
        files.finish_run(&run).unwrap();
        for name in ["run.json", "run.jsonl"] {
            prop_assert_eq!(&read_run(&folder.path().join(name)).unwrap(), &run);
        }
    }
}
