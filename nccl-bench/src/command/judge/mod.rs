//! `nccl-bench judge`: does this machine reach what it should?

mod text;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use clap::{ArgMatches, Args as _, FromArgMatches as _, ValueEnum};
use judge::expectation::{Expectation, known_expectations, parse_expectations};
use judge::{Grade, Nics, Told, Verdict, judge_run};
use record::{Run, files};
use serde::Serialize;

use super::{Command, Context};
use crate::exit::{ExitError, print_text};
pub(super) use text::comment_lines;
use text::render_verdict;

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Judge;

const EXAMPLES: &str = "\
Examples:
  nccl-bench all --output pod.json && nccl-bench judge pod.json
  nccl-bench judge all_reduce.json --nics 8x400 --nvls on
  nccl-bench judge pod.json --expect site.toml --format json

The ceiling follows from the links of the GPUs and from --nics. Typical values are
those that equal machines reached, with their sources; a machine without such a
value is UNKNOWN. Values of a run are also compared with each other.

Exit codes: 0 PASS; 1 WARN; 2 FAIL, also wrong arguments and files that cannot be
read; 3 UNKNOWN. Of several runs the worst counts, and all must be known to pass.";

/// The arguments of `nccl-bench judge`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct JudgeArguments {
    /// Results of nccl-bench, nccl-tests or rccl-tests: files, also compressed (.gz, .zst), text of the
    /// terminal, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Facts and expectations.
    #[command(flatten)]
    pub basis: JudgeBasis,

    /// Output format
    #[arg(long, value_enum, default_value_t = VerdictFormat::Text)]
    pub format: VerdictFormat,
}

/// Facts and expectations that a verdict is based on.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct JudgeBasis {
    /// Expectations of this site, in the format of expectations.toml; they take precedence
    #[arg(long, value_name = "FILE", help_heading = "Verdict", hide_short_help = true)]
    pub expect: Option<PathBuf>,

    /// NICs of each host: number and rate in Gbit/s, as in 8x400
    #[arg(long, value_name = "NxRATE", help_heading = "Verdict", hide_short_help = true)]
    pub nics: Option<Nics>,

    /// NVLink SHARP is in use (on) or not (off), whatever the results tell
    #[arg(
        long,
        value_name = "STATE",
        value_enum,
        hide_possible_values = true,
        help_heading = "Verdict",
        hide_short_help = true
    )]
    pub nvls: Option<NvlsState>,
}

/// State of NVLink SHARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NvlsState {
    /// In use
    On,
    /// Not in use, or not there
    Off,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerdictFormat {
    /// A table and sentences
    Text,
    /// The whole verdict
    Json,
}

/// The verdict about a run of a file.
#[derive(Serialize)]
struct FileVerdict {
    file: PathBuf,
    #[serde(flatten)]
    verdict: Verdict,
}

impl Command for Judge {
    fn define_command(&self) -> clap::Command {
        JudgeArguments::augment_args(clap::Command::new("judge"))
            .about("Judge results: what should this machine reach, and does it?")
    }

    fn run_command(&self, matches: &ArgMatches, _context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = JudgeArguments::from_arg_matches(matches)?;
        let basis = arguments.basis.load_basis()?;
        files::check_names(&arguments.files).map_err(|error| ExitError::refused(error.to_string()))?;
        let mut verdicts = Vec::new();
        for file in &arguments.files {
            let runs = files::read_runs(file).map_err(|error| ExitError::refused(error.to_string()))?;
            for run in runs {
                verdicts.push(FileVerdict { file: file.clone(), verdict: basis.judge_run(&run) });
            }
        }
        print_text(&match arguments.format {
            VerdictFormat::Text => render_verdicts(&verdicts),
            VerdictFormat::Json => render_json(&verdicts)?,
        })
        .map_err(refuse_output)?;
        let grades = verdicts.iter().map(|each| each.verdict.grade);
        Ok(exit_code(&grades.collect::<Vec<_>>()))
    }
}

/// Gives an error of standard output another exit code than a WARN.
fn refuse_output(error: ExitError) -> ExitError {
    match error {
        ExitError::Output(error) if error.kind() != ErrorKind::BrokenPipe => {
            ExitError::refused(format!("the verdict cannot be printed: {error}"))
        }
        other => other,
    }
}

fn render_verdicts(verdicts: &[FileVerdict]) -> String {
    let render = |each: &FileVerdict| render_verdict(&each.file.display().to_string(), &each.verdict);
    verdicts.iter().map(render).collect::<Vec<_>>().join("\n")
}

fn render_json(verdicts: &[FileVerdict]) -> Result<String, ExitError> {
    let text =
        serde_json::to_string_pretty(verdicts).map_err(|error| ExitError::refused(error.to_string()))?;
    Ok(text + "\n")
}

/// Returns the exit code of several grades.
fn exit_code(grades: &[Grade]) -> u8 {
    let worst = grades.iter().max().copied().unwrap_or(Grade::Unknown);
    match worst {
        Grade::Fail => 2,
        Grade::Warn => 1,
        Grade::Pass if !grades.contains(&Grade::Unknown) => 0,
        Grade::Pass | Grade::Unknown => 3,
    }
}

/// Facts and expectations, read and checked.
#[derive(Clone, Debug)]
pub(super) struct LoadedBasis {
    told: Told,
    /// Expectations of the site.
    site: Vec<Expectation>,
}

impl JudgeBasis {
    /// Returns true when an option is given.
    pub(super) fn is_given(&self) -> bool {
        self.expect.is_some() || self.nics.is_some() || self.nvls.is_some()
    }

    /// Reads the site's expectations.
    ///
    /// # Errors
    /// When the file cannot be read or has wrong entries.
    pub(super) fn load_basis(&self) -> Result<LoadedBasis, ExitError> {
        let mut site = Vec::new();
        if let Some(path) = &self.expect {
            let refused = |problem: String| ExitError::refused(format!("{}: {problem}", path.display()));
            let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
            site = parse_expectations(&text).map_err(|error| refused(error.to_string()))?;
        }
        let told = Told { nics: self.nics, nvls: self.nvls.map(|state| state == NvlsState::On) };
        Ok(LoadedBasis { told, site })
    }
}

impl LoadedBasis {
    /// Judges a run.
    pub(super) fn judge_run(&self, run: &Run) -> Verdict {
        judge_run(run, self.told, &[&self.site, known_expectations()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_runs_the_worst_grade_counts_and_an_unknown_one_is_no_pass() {
        use Grade::{Fail, Pass, Unknown, Warn};
        for (grades, code) in [
            (&[Pass, Pass][..], 0),
            (&[Pass, Warn, Unknown], 1),
            (&[Warn, Fail], 2),
            (&[Pass, Unknown], 3),
            (&[Unknown], 3),
            (&[], 3),
        ] {
            assert_eq!(exit_code(grades), code, "{grades:?}");
        }
    }
}
