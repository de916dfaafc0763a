//! The runs of a plot, read from the result files.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use record::Run;

use super::{PlotArguments, text};

/// Reads the files, each as one run, or with `--side both` as one run per side. Returns the runs with their
/// labels.
///
/// # Errors
/// When a file cannot be read, has no such side, or when there are not as many labels as files.
pub(super) fn read_all(
    arguments: &PlotArguments,
    read: impl Fn(&Path) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<(String, Run)>> {
    let (files, labels) = (&arguments.files, &arguments.options.labels);
    record::files::check_names(files)?;
    ensure!(
        labels.is_empty() || labels.len() == files.len(),
        "there are {} for {}; give one --label per file, or none",
        text::count_text(labels.len(), "label"),
        text::count_text(files.len(), "file"),
    );
    let labels = if labels.is_empty() { file_labels(files) } else { labels.clone() };
    let (mut runs, mut failures) = (Vec::new(), Vec::new());
    for (file, label) in files.iter().zip(labels) {
        match read(file) {
            Ok(run) => runs.push((file, label, run)),
            Err(error) => failures.push(format!("{}: {error:#}", file.display())),
        }
    }
    if !failures.is_empty() {
        bail!(
            "{} cannot be read; name results of nccl-bench:\n  {}",
            text::count_text(failures.len(), "file"),
            failures.join("\n  ")
        );
    }
    let mut sides = Vec::new();
    for (file, label, run) in runs {
        let found = arguments.options.side.select_runs(run);
        ensure!(!found.is_empty(), "{} has no other side: it was not measured with --vs", file.display());
        sides.extend(found.into_iter().map(|(name, run)| match name {
            Some(name) => (format!("{label} ({name})"), run),
            None => (label.clone(), run),
        }));
    }
    Ok(sides)
}

/// Returns the names of the files without suffixes, or the paths of files with equal names.
fn file_labels(files: &[PathBuf]) -> Vec<String> {
    let stem = |file: &PathBuf| {
        let compressed = file.extension().is_some_and(|suffix| suffix == "gz" || suffix == "zst");
        let file = if compressed { &file.with_extension("") } else { file };
        file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
    };
    let label = |file: &PathBuf| {
        let name = stem(file);
        let alike = files.iter().any(|other| other != file && stem(other) == name);
        if alike { file.display().to_string() } else { name }
    };
    files.iter().map(label).collect()
}
