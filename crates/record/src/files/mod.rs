//! The files of results: native JSON, JSON Lines, CSV and Markdown, and reading them again.
//!
//! docs/results.md describes them. A file is written to a temporary name in its folder and then renamed, so that a
//! full disk or a reader never sees half a file in place of an older one. Only JSON Lines grows during the run: it has
//! all measurements when the process is killed.

mod csv;
#[cfg(test)]
mod documentation;
mod json;
mod json_lines;
mod markdown;
pub mod nccl_tests;
mod read;
pub mod replacement;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) use read::read_each;
pub use read::{ReadError, ReadProblem, read};

use crate::run::{Measurement, Run};
use json_lines::JsonLines;

/// A file to write (`--output`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Path of the file.
    pub path: PathBuf,
    /// Format, chosen by the suffix.
    pub format: Format,
}

/// The formats of result files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The whole [`Run`] (`.json`).
    Json,
    /// The same, a line per measurement, written as it comes (`.jsonl`).
    JsonLines,
    /// A row per measurement (`.csv`).
    Csv,
    /// Tables for people (`.md`).
    Markdown,
}

impl Format {
    /// All formats, with the suffixes that select them.
    const SUFFIXES: [(&'static str, Self); 4] =
        [("json", Self::Json), ("jsonl", Self::JsonLines), ("csv", Self::Csv), ("md", Self::Markdown)];
}

/// A file name whose suffix names no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' does not say by its suffix what to write: .json (all of a run), .jsonl (the same, line by line while it \
         runs), .csv (a row per measurement) or .md (Markdown tables)"
)]
pub struct UnknownSuffix(String);

impl FromStr for Output {
    type Err = UnknownSuffix;

    fn from_str(text: &str) -> Result<Self, UnknownSuffix> {
        let path = PathBuf::from(text);
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        let format = Format::SUFFIXES.iter().find(|(known, _)| suffix.as_deref() == Some(known));
        match format {
            Some(&(_, format)) => Ok(Self { path, format }),
            None => Err(UnknownSuffix(text.to_owned())),
        }
    }
}

/// Files that cannot be written, each with its reason.
#[derive(Debug, thiserror::Error)]
pub struct WriteError {
    /// The files that were not written, with their reasons; at least one.
    pub failures: Vec<(PathBuf, io::Error)>,
}

impl WriteError {
    /// Returns `Ok` when there are no failures.
    fn unless_empty(failures: Vec<(PathBuf, io::Error)>) -> Result<(), Self> {
        if failures.is_empty() { Ok(()) } else { Err(Self { failures }) }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (path, reason)) in self.failures.iter().enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(formatter, "{separator}cannot write {}: {reason}", path.display())?;
        }
        Ok(())
    }
}

/// The result files of a run, on the process of rank 0.
#[derive(Debug, Default)]
pub struct Files {
    files: Vec<OutputFile>,
}

#[derive(Debug)]
struct OutputFile {
    output: Output,
    /// The replaced file: `output.path` with links resolved.
    target: PathBuf,
    /// The open file of JSON Lines, from the start of the run on.
    lines: Option<JsonLines>,
}

impl Files {
    /// Checks that every file can be written, before anything is measured. Nothing is replaced yet.
    ///
    /// # Errors
    /// When one is a folder or named twice, its folder is missing or not writable, or the disk is full. All such files
    /// are named.
    pub fn open(outputs: &[Output]) -> Result<Self, WriteError> {
        let mut files: Vec<OutputFile> = Vec::new();
        let mut failures = Vec::new();
        for output in outputs {
            let target = replacement::check(&output.path).and_then(|target| {
                let twice = files.iter().any(|file| file.target == target);
                if twice { Err(io::Error::other("it is named twice")) } else { Ok(target) }
            });
            match target {
                Ok(target) => files.push(OutputFile { output: output.clone(), target, lines: None }),
                Err(reason) => failures.push((output.path.clone(), reason)),
            }
        }
        WriteError::unless_empty(failures).map(|()| Self { files })
    }

    /// Returns true when `path` names one of the files, with links resolved.
    pub fn replaces(&self, path: &std::path::Path) -> bool {
        replacement::resolve(path).is_ok_and(|target| self.files.iter().any(|file| file.target == target))
    }

    /// Replaces all files by the unfinished record, so that files of an earlier run cannot be mistaken for this one's,
    /// however it ends. `run` has no measurements yet.
    ///
    /// # Errors
    /// When one cannot be written; the older file is still there then.
    pub fn start(&mut self, run: &Run) -> Result<(), WriteError> {
        self.each(
            |file| if file.output.format == Format::JsonLines { file.start(run) } else { file.write(run) },
        )
    }

    /// Adds a measurement to the files of JSON Lines, flushed at once.
    ///
    /// # Errors
    /// When one cannot be written; it then ends with the measurement before.
    pub fn measurement(&mut self, measurement: &Measurement) -> Result<(), WriteError> {
        self.each(|file| file.lines.as_mut().map_or(Ok(()), |lines| lines.measurement(measurement)))
    }

    /// Writes all files with the outcome of `run`. JSON Lines gets the lines that it lacks, because
    /// [`start`](Self::start) was not called or the disk was full.
    ///
    /// # Errors
    /// When some cannot be written; the others are. A file that cannot be replaced keeps its older content.
    pub fn finish(mut self, run: &Run) -> Result<(), WriteError> {
        // The fastest first: a launcher may kill the process within a second.
        self.files.sort_by_key(|file| file.output.format != Format::JsonLines);
        self.each(|file| match file.output.format {
            Format::JsonLines => file.finish_lines(run),
            _ => file.write(run),
        })
    }

    /// Calls `act` for all files, even when it fails for one.
    fn each(&mut self, mut act: impl FnMut(&mut OutputFile) -> io::Result<()>) -> Result<(), WriteError> {
        let act = |file: &mut OutputFile| act(file).err().map(|reason| (file.output.path.clone(), reason));
        WriteError::unless_empty(self.files.iter_mut().filter_map(act).collect())
    }
}

impl OutputFile {
    /// Replaces the file by the whole run.
    fn write(&self, run: &Run) -> io::Result<()> {
        replacement::write(&self.target, |out| match self.output.format {
            Format::Json => json::write(run, out),
            Format::Csv => csv::write(run, out),
            Format::Markdown => markdown::write(run, out),
            Format::JsonLines => json_lines::write(run, out),
        })
    }

    /// Ends the file of JSON Lines, or writes it again if it was removed or emptied meanwhile.
    fn finish_lines(&mut self, run: &Run) -> io::Result<()> {
        match &mut self.lines {
            Some(lines) if lines.are_in(&self.target)? => lines.finish(run),
            _ => self.write(run),
        }
    }

    fn start(&mut self, run: &Run) -> io::Result<()> {
        let header = json_lines::header(run)?;
        let file = replacement::begin(&self.target, |out| out.write_all(&header))?;
        self.lines = Some(JsonLines::after(file, header.len() as u64));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::run::{Outcome, Placement};

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
        files
            .start(&Run {
                measurements: Vec::new(),
                outcome: Outcome::Running,
                ended_at: None,
                notes: Vec::new(),
                ..run.clone()
            })
            .unwrap();
        for measurement in &run.measurements {
            files.measurement(measurement).unwrap();
        }
    }

    #[test]
    fn the_suffix_chooses_the_format_and_an_unknown_one_is_explained() {
        for (name, format) in [
            ("a.json", Format::Json),
            ("folder.csv/a.jsonl", Format::JsonLines),
            ("a.b.CSV", Format::Csv),
            ("./a.md", Format::Markdown),
        ] {
            assert_eq!(name.parse(), Ok(Output { path: PathBuf::from(name), format }));
        }
        for name in ["a.txt", "a", "json", ".json", "a.json/", "", "a.", "/"] {
            match name.parse::<Output>() {
                Ok(found) => assert_eq!((name, found.format), ("a.json/", Format::Json)),
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
        let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full());
        let mut files = Files::open(&outputs(folder.path(), &ALL)).unwrap();
        assert_eq!(names(folder.path()), [""; 0]);
        drive(&mut files, &run);
        files.finish(&run).unwrap();
        assert_eq!(names(folder.path()), ALL);
        for name in ["run.json", "run.jsonl"] {
            assert_eq!(read(&folder.path().join(name)).unwrap(), run, "{name}");
        }
        assert!(fs::read_to_string(folder.path().join("run.csv")).unwrap().contains("allreduce,float,sum,"));
        assert!(fs::read_to_string(folder.path().join("run.md")).unwrap().contains("## allreduce float sum"));
    }

    #[test]
    fn files_of_an_earlier_run_are_not_taken_for_those_of_a_killed_one() {
        let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full());
        let content = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        for name in ALL {
            fs::write(folder.path().join(name), "older").unwrap();
        }
        let mut files = Files::open(&outputs(folder.path(), &ALL)).unwrap();
        assert!(ALL.iter().all(|name| content(name) == "older"));
        drive(&mut files, &run);
        // The process is killed here: the measurements are there, and the outcome is not.
        assert!(!content("run.csv").contains("allreduce,float"), "{}", content("run.csv"));
        assert!(content("run.md").contains("Not ended, or killed"), "{}", content("run.md"));
        let json: serde_json::Value = serde_json::from_str(&content("run.json")).unwrap();
        assert_eq!(json["outcome"]["state"], "running");
        assert_eq!(content("run.jsonl").lines().count(), 1 + run.measurements.len());
        let killed = read(&folder.path().join("run.jsonl")).unwrap();
        assert_eq!((killed.outcome, &killed.measurements), (Outcome::Running, &run.measurements));
        files.finish(&run).unwrap();
        assert!(ALL.iter().all(|name| content(name) != "older"));
    }

    #[test]
    fn lines_that_were_removed_or_emptied_meanwhile_are_written_again() {
        let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full());
        let path = folder.path().join("run.jsonl");
        let harm: [fn(&Path); 2] =
            [|path| fs::remove_file(path).unwrap(), |path| fs::write(path, "").unwrap()];
        for harm in harm {
            let mut files = Files::open(&outputs(folder.path(), &["run.jsonl"])).unwrap();
            drive(&mut files, &run);
            harm(&path);
            files.measurement(&run.measurements[0]).unwrap();
            files.finish(&run).unwrap();
            assert_eq!(read(&path).unwrap(), run);
        }
        let mut files = Files::open(&outputs(folder.path(), &["run.jsonl"])).unwrap();
        drive(&mut files, &run);
        fs::write(folder.path().join("other"), "another run").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        let error = files.finish(&run).unwrap_err().to_string();
        assert!(error.ends_with("run.jsonl: another program has replaced it during the run; name a file of its own for each run"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "another run");
    }

    #[test]
    fn an_interrupted_run_and_one_that_never_began_are_written_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let full = crate::sample::full();
        let interrupted = Run {
            outcome: Outcome::Interrupted { signal: "SIGINT".to_owned() },
            measurements: full.measurements[..1].to_vec(),
            ..full.clone()
        };
        let mut files = Files::open(&outputs(folder.path(), &ALL)).unwrap();
        drive(&mut files, &interrupted);
        files.finish(&interrupted).unwrap();
        for name in ["run.json", "run.jsonl"] {
            assert_eq!(read(&folder.path().join(name)).unwrap(), interrupted, "{name}");
        }

        let failed = Run {
            outcome: Outcome::Failed { message: "rank 3 on node-2: NCCL is missing".to_owned() },
            measurements: Vec::new(),
            ..full
        };
        Files::open(&outputs(folder.path(), &ALL)).unwrap().finish(&failed).unwrap();
        for name in ["run.json", "run.jsonl"] {
            let problem = read(&folder.path().join(name)).unwrap_err().to_string();
            assert!(problem.contains("no measurement: the run failed: rank 3 on node-2"), "{problem}");
            let content = fs::read(folder.path().join(name)).unwrap();
            assert_eq!(super::read::parse(&content).unwrap(), failed, "{name}");
        }
    }

    #[test]
    fn all_files_that_cannot_be_written_are_named_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("folder.json")).unwrap();
        let asked = outputs(folder.path(), &["folder.json", "missing/run.csv", "run.md", "../x/../run.md"]);
        let mut asked = asked;
        asked[3].path = folder.path().join("folder.json/../run.md");
        let error = Files::open(&asked).unwrap_err();
        assert_eq!(error.failures.len(), 3);
        let message = error.to_string();
        for part in ["folder.json: it is a folder; ", "missing does not exist; ", "run.md: it is named twice"]
        {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(names(folder.path()), ["folder.json"]);
    }

    #[test]
    fn one_file_that_fails_at_the_end_does_not_cost_the_others() {
        let (folder, run) = (tempfile::tempdir().unwrap(), crate::sample::full());
        let mut files = Files::open(&outputs(folder.path(), &["run.json", "run.csv", "run.md"])).unwrap();
        drive(&mut files, &run);
        // Nothing that is renamed replaces a folder with something in it, not even by root.
        fs::remove_file(folder.path().join("run.json")).unwrap();
        fs::create_dir_all(folder.path().join("run.json/occupied")).unwrap();
        let error = files.finish(&run).unwrap_err();
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
            read(&path).unwrap_err().to_string()
        };
        let json = include_str!("../../tests/data/run.json");
        let jsonl = {
            let run = crate::sample::full();
            String::from_utf8(json_lines::header(&run).unwrap()).unwrap()
        };
        let newer = json.replacen("\"schema_version\": 1", "\"schema_version\": 7", 1);
        for (content, expected) in [
            ("", "it is no result file"),
            ("# nccl-bench allreduce\n", "it is not JSON"),
            ("{\"a\": 1}", "JSON of another kind"),
            ("[1, 2]", "it is"),
            ("{\"a\": b}", "it is not JSON: expected value"),
            (
                newer.as_str(),
                "it has version 7 of the format, and this program knows 1; read it with a newer",
            ),
            (&json[..json.len() / 2], "it ends in the middle; the program that wrote it was stopped"),
            (&json.replacen("\"bytes\"", "\"bites\"", 1), "it is damaged: missing field `bytes`"),
            (&jsonl, "it has no measurement: the run has not got that far, or was killed"),
            (&jsonl[..jsonl.len() / 2], "it ends in the middle"),
            (&format!("{jsonl}{{\"kind\": \"meas\n{{}}\n"), "line 2 is damaged: "),
            (&format!("{jsonl}{{\"kind\": \"measurement\"}}\n"), "line 2 is damaged: missing field"),
            (&format!("{jsonl}\n{jsonl}"), "line 3 is damaged: another run begins"),
            (&jsonl.replacen("\"schema_version\":1", "\"schema_version\":2", 1), "it has version 2"),
        ] {
            let message = problem(content);
            assert!(message.contains(expected) && message.contains("file: "), "{expected}: {message}");
        }
        let message = read(&folder.path().join("none.json")).unwrap_err().to_string();
        assert!(message.contains("none.json: it cannot be read: No such file"), "{message}");
        let message = read(folder.path()).unwrap_err().to_string();
        assert!(message.contains("it cannot be read: Is a directory"), "{message}");
    }

    #[test]
    fn fields_and_lines_of_later_programs_are_passed_over() {
        let run = crate::sample::full();
        let json = include_str!("../../tests/data/run.json");
        let more = json.replacen("\"program\"", "\"colour\": \"blue\",\n  \"program\"", 1);
        assert_eq!(super::read::parse(more.as_bytes()).unwrap(), run);
        let mut lines = json_lines::header(&run).unwrap();
        lines.extend(b"{\"kind\": \"colour\", \"blue\": true}\n");
        assert_eq!(super::read::parse(&lines).unwrap().measurements, []);
    }

    fn measurements() -> impl Strategy<Value = Vec<Measurement>> {
        let number = || prop_oneof![any::<f64>().prop_filter("finite", |value| value.is_finite()), Just(0.1)];
        let one =
            (".*", any::<u64>(), number(), proptest::option::of(number()), any::<bool>(), any::<usize>());
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
            ..crate::sample::measurement("allreduce", Placement::InPlace, 8, 1.0)
        });
        proptest::collection::vec(one, 1..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_was_written_is_read_again(measurements in measurements(), message in ".*") {
            let folder = tempfile::tempdir().unwrap();
            let outcome = Outcome::Failed { message: message.clone() };
            let run = Run { measurements, outcome, notes: vec![message], ..crate::sample::full() };
            let mut files = Files::open(&outputs(folder.path(), &ALL)).unwrap();
            drive(&mut files, &run);
            files.finish(&run).unwrap();
            for name in ["run.json", "run.jsonl"] {
                prop_assert_eq!(&read(&folder.path().join(name)).unwrap(), &run);
            }
        }
    }
}
