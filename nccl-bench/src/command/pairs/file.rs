//! The files of a search: everything in JSON, and a drawing of the matrix.

use std::path::PathBuf;

use judge::pairs::Conclusion;
use record::RunOutcome;
use record::provenance::now_utc;
use serde::Serialize;

use super::PairsArguments;
use super::report::{describe_measurements, make_matrix};
use super::results::{Facts, MeasuredRound, State};
use super::sentences::list_sentences;
use super::units::{NamedUnit, Units};
use crate::command::doctor::output::matrix::draw_picture;
use crate::command::output_file::Maker;

/// Mark of the files. A later run may replace a file with this mark.
const MARK: &str = "made by nccl-bench pairs";

/// Version of the JSON file.
const SCHEMA_VERSION: u32 = 1;

/// Colours of the drawing.
const STYLE: &str = "<style>text{font:12px system-ui,sans-serif;fill:#1c2127}.middle{text-anchor:middle}\
.end{text-anchor:end}.nothing{fill:#edf0f3}.fastest{fill:#2b8a5b}.staged{fill:#e0a92e}.slow{fill:#c23b4c}\
.on-fastest,.on-slow{fill:#fff}.lines{stroke:#fff;fill:none}</style>";

const MAKER: Maker = Maker {
    mark: MARK,
    product: "file of pairs",
    advice: "name another file",
    input: "holds results of pairs",
};

/// The content of the JSON file.
#[derive(Serialize)]
struct PairsFile<'a> {
    mark: &'static str,
    schema_version: u32,
    #[serde(flatten)]
    facts: &'a Facts,
    ended_at: String,
    outcome: &'a RunOutcome,
    unit: &'static str,
    units: &'a [NamedUnit],
    rounds: &'a [MeasuredRound],
    conclusion: &'a Conclusion,
    /// The conclusion in words.
    sentences: Vec<String>,
}

/// Refuses to replace files that this command has not written.
///
/// # Errors
/// When a file must not be replaced.
pub(super) fn refuse_unrelated(arguments: &PairsArguments) -> anyhow::Result<()> {
    let paths = arguments.output.iter().chain(&arguments.svg);
    paths.into_iter().try_for_each(|path| MAKER.refuse_unrelated(path, arguments.force, &[]))
}

/// Writes the files that are asked for.
///
/// # Errors
/// When one cannot be written.
pub(super) fn write_files(
    arguments: &PairsArguments,
    state: &State,
    units: &Units,
    conclusion: &Conclusion,
    outcome: &RunOutcome,
) -> anyhow::Result<()> {
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    if let Some(path) = &arguments.output {
        let content = PairsFile {
            mark: MARK,
            schema_version: SCHEMA_VERSION,
            facts: &state.facts,
            ended_at: now_utc(),
            outcome,
            unit: units.unit.unit_name(),
            units: &units.units,
            rounds: &state.rounds,
            conclusion,
            sentences: list_sentences(state, units, conclusion, outcome),
        };
        files.push((path.clone(), serde_json::to_string_pretty(&content)? + "\n"));
    }
    if let Some(path) = &arguments.svg {
        let picture =
            draw_picture(&make_matrix(state, units, conclusion), &describe_measurements(state, units));
        let picture = picture.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
        let drawing = picture.replacen(">\n", &format!(">\n{STYLE}\n"), 1);
        files.push((path.clone(), format!("<!-- {MARK} -->\n{drawing}")));
    }
    MAKER.write_all(&files, arguments.force, &[])
}
