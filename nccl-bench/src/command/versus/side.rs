//! One side of a comparison: its command line, and what its starts have shown.

use std::path::{Path, PathBuf};

use clap::FromArgMatches as _;
use judge::versus::Side;
use record::Run;
use record::matching::RunRows;

use super::arguments::VersusArguments;
use crate::command::measure::{ALL, MeasureArguments, collectives};
use crate::command::starts::{ResultSource, StartCommand, StartFailure, find_program, split_words};
use crate::exit::ExitError;

/// The variable with the path of NCCL's library.
const LIBRARY_VARIABLE: &str = "NCCL_LIBRARY";

/// One side of a comparison.
#[derive(Debug)]
pub(super) struct ComparedSide {
    pub(super) command: StartCommand,
    /// The library that every start must use.
    pub(super) library: Option<PathBuf>,
    /// The starts so far.
    pub(super) runs: Vec<RunRows>,
}

impl ComparedSide {
    /// Makes a side from the arguments.
    ///
    /// # Errors
    /// When the arguments are impossible.
    pub(super) fn new(
        side: Side,
        arguments: &VersusArguments,
        root: &clap::Command,
    ) -> Result<Self, ExitError> {
        let options = SideOptions::new(side, arguments);
        let launcher = arguments.launcher.as_deref().map(|text| split_words("--launcher", text)).transpose();
        let launcher = launcher.map_err(ExitError::refused)?.unwrap_or_default();
        let is_this = options.program.is_none();
        let (program, source) = options.find_program().map_err(ExitError::refused)?;
        check_arguments(&options, &program, source, arguments).map_err(ExitError::refused)?;
        if is_this {
            check_measurement(&arguments.arguments, root)?;
        }
        let library = options.find_library(source).map_err(ExitError::refused)?;
        let mut variables = options.check_variables().map_err(ExitError::refused)?;
        variables.extend(library.iter().map(|path| format!("{LIBRARY_VARIABLE}={}", path.display())));
        check_words(&launcher, &variables, &program).map_err(ExitError::refused)?;
        let command =
            StartCommand { launcher, variables, program, arguments: arguments.arguments.clone(), source };
        Ok(Self { command, library, runs: Vec::new() })
    }

    /// Checks that a start used the library of this side, and keeps its results.
    pub(super) fn add_run(&mut self, rows: RunRows) -> Result<(), StartFailure> {
        if let Some(wanted) = &self.library {
            check_library(wanted, &rows.run)?;
        }
        self.runs.push(rows);
        Ok(())
    }
}

/// The options of one side.
struct SideOptions<'a> {
    letter: char,
    library: Option<&'a Path>,
    variables: &'a [String],
    program: Option<&'a str>,
}

impl<'a> SideOptions<'a> {
    fn new(side: Side, arguments: &'a VersusArguments) -> Self {
        let (library, variables, program) = match side {
            Side::A => (&arguments.a_library, &arguments.a_env, &arguments.a_program),
            Side::B => (&arguments.b_library, &arguments.b_env, &arguments.b_program),
        };
        Self {
            letter: side.letter().to_ascii_lowercase(),
            library: library.as_deref(),
            variables,
            program: program.as_deref(),
        }
    }

    /// Returns the words of the program, and how its results are read.
    fn find_program(&self) -> Result<(Vec<String>, ResultSource), String> {
        let option = format!("--{}-program", self.letter);
        let Some(text) = self.program else {
            let own =
                std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
            let own =
                own.to_str().ok_or("the path of this program is not UTF-8: move it to another folder")?;
            return Ok((vec![own.to_owned()], ResultSource::OwnJson));
        };
        let words = split_words(&option, text)?;
        let source = words.first().and_then(|program| ResultSource::of_program(program)).ok_or_else(|| {
            format!(
                "{option} {text}: the results of this program cannot be read; name an nccl-bench, or a program \
                 of nccl-tests that has -J, such as all_reduce_perf"
            )
        })?;
        Ok((words, source))
    }

    /// Returns the whole path of the library.
    fn find_library(&self, source: ResultSource) -> Result<Option<PathBuf>, String> {
        let Some(path) = self.library else { return Ok(None) };
        let (letter, shown) = (self.letter, path.display());
        if source != ResultSource::OwnJson {
            return Err(format!(
                "--{letter}-library is for nccl-bench: the programs of nccl-tests do not read {LIBRARY_VARIABLE}; \
                 use --{letter}-env LD_LIBRARY_PATH=FOLDER"
            ));
        }
        if !path.is_file() {
            return Err(format!(
                "--{letter}-library {shown}: there is no such file; name libnccl.so.2 itself"
            ));
        }
        let whole =
            std::path::absolute(path).map_err(|error| format!("--{letter}-library {shown}: {error}"))?;
        if whole.to_str().is_none() {
            return Err(format!("--{letter}-library {shown}: the path is not UTF-8; use another one"));
        }
        Ok(Some(whole))
    }

    fn check_variables(&self) -> Result<Vec<String>, String> {
        let letter = self.letter;
        for variable in self.variables {
            match variable.split_once('=') {
                None | Some(("", _)) => {
                    return Err(format!(
                        "--{letter}-env {variable}: write a name and a value, as in NCCL_ALGO=Ring"
                    ));
                }
                Some((LIBRARY_VARIABLE, _)) if self.library.is_some() => {
                    return Err(format!(
                        "--{letter}-env {LIBRARY_VARIABLE} and --{letter}-library exclude each other"
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(self.variables.to_vec())
    }
}

/// Checks that the common arguments fit the program.
fn check_arguments(
    options: &SideOptions<'_>,
    program: &[String],
    source: ResultSource,
    arguments: &VersusArguments,
) -> Result<(), String> {
    let first = arguments.arguments.first().map_or("", String::as_str);
    if source == ResultSource::NcclTestsJson && !first.starts_with('-') {
        return Err(format!(
            "{} takes no command '{first}': name it with the other program, as in --a-program 'nccl-bench {first}' \
             --b-program ./all_reduce_perf -- -b 8 -e 1M",
            program.first().map_or("", String::as_str)
        ));
    }
    if source == ResultSource::OwnJson && program.len() == 1 && first.starts_with('-') {
        return Err(format!(
            "side {} measures no collective: begin the arguments with one, as in -- allreduce {first} ..., or name \
             it with the program, as in --{}-program 'nccl-bench allreduce'",
            options.letter.to_ascii_uppercase(),
            options.letter
        ));
    }
    Ok(())
}

/// Checks the arguments of this program's measurement.
fn check_measurement(words: &[String], root: &clap::Command) -> Result<(), ExitError> {
    let first = words.first().map_or("", String::as_str);
    // As on the command line, where a list of collectives stands for `all`.
    let command = if first.contains(',') { ALL } else { first };
    if command != ALL && command.parse::<engine::collective::Collective>().is_err() {
        return Err(ExitError::refused(format!(
            "'{first}' measures no collective: begin the arguments with one, as in -- allreduce -b 8 -e 1M"
        )));
    }
    if first.contains(',') {
        collectives(first).map_err(ExitError::refused)?;
    }
    let line = ["nccl-bench", command].into_iter().chain(words.iter().skip(1).map(String::as_str));
    let matches = root.clone().try_get_matches_from(line)?;
    let (_, matches) = matches.subcommand().ok_or_else(|| ExitError::refused("a command is missing"))?;
    let measurement = MeasureArguments::from_arg_matches(matches)?;
    let wrong = [
        (!measurement.output.is_empty(), "--output is for the comparison: write it before the --"),
        (measurement.starts.is_some(), "--starts is for the comparison: write it before the --"),
        (measurement.dry_run, "--dry-run measures nothing: leave it out"),
    ];
    match wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, refusal)) => Err(ExitError::refused(refusal)),
        None => Ok(()),
    }
}

/// Checks that the command line can be started.
fn check_words(launcher: &[String], variables: &[String], program: &[String]) -> Result<(), String> {
    let name = program.first().map_or("", String::as_str);
    // With a launcher, the program may be missing on this host.
    let first = launcher.first().map_or(name, String::as_str);
    if find_program(first).is_none() {
        return Err(format!("there is no program '{first}': check its path"));
    }
    if !variables.is_empty() && name.contains('=') {
        return Err(format!(
            "the path of the program, {name}, must not contain '=': move it to another folder"
        ));
    }
    Ok(())
}

/// Checks that a run used this library of NCCL.
fn check_library(wanted: &Path, run: &Run) -> Result<(), StartFailure> {
    let used = &run.provenance;
    let resolve = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if used.backend == "nccl" && resolve(Path::new(&used.library_path)) == resolve(wanted) {
        return Ok(());
    }
    let used = format!("{} {} ({})", used.backend, used.library_version, used.library_path);
    Err(StartFailure::OtherLibrary { wanted: wanted.to_owned(), used })
}
