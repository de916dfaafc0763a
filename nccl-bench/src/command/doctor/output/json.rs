//! The examinations as JSON, described in `docs/results.md`.

use diagnosis::examination::{Examination, Health};
use serde::Serialize;

use crate::exit::ExitError;

/// Version of the format.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    program: &'static str,
    health: Health,
    verdict: String,
    examinations: Vec<JudgedExamination<'a>>,
}

#[derive(Serialize)]
struct JudgedExamination<'a> {
    health: Health,
    #[serde(flatten)]
    examination: &'a Examination,
}

/// Returns the whole text, with a line break at its end.
///
/// # Errors
/// Never in practice: all keys are texts.
pub(super) fn render_json(examinations: &[Examination]) -> Result<String, ExitError> {
    let part = |examination| JudgedExamination { health: Examination::health(examination), examination };
    let report = Report {
        schema_version: SCHEMA_VERSION,
        program: concat!("nccl-bench ", env!("CARGO_PKG_VERSION")),
        health: super::overall_health(examinations),
        verdict: super::verdict_line(examinations),
        examinations: examinations.iter().map(part).collect(),
    };
    let text = serde_json::to_string_pretty(&report);
    text.map(|text| text + "\n")
        .map_err(|error| ExitError::refused(format!("the report cannot be written as JSON: {error}")))
}
