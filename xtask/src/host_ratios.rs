//! `cargo xtask host-ratios <folder>`: Markdown tables of best times from the files that `tools/host_collectives.sh`
//! wrote.
//!
//! The folder has files `<library>-<transport>-<ranks>.json`, or folders of them, one per run. Times of a size are the
//! best of all rounds of all runs. The host backend was measured in turn with each MPI library, and is compared with what
//! it took itself beside that library; with Gloo, which runs by itself, what it took at its best.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Best times in microseconds of a library and of the host backend beside it.
#[derive(Clone, Copy, Debug)]
struct Best {
    theirs: f64,
    ours: f64,
}

/// By collective and size, then by library.
type Case = BTreeMap<(String, u64), BTreeMap<String, Best>>;

/// Reads the folder and returns the tables, one for each transport and number of ranks.
pub(crate) fn run(folder: &Path) -> Result<String> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for path in files(folder)? {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (library, case) = name.split_once('-').with_context(|| format!("{name} names no transport"))?;
        let text = fs::read_to_string(&path)?;
        read(&text, library, cases.entry(case.to_owned()).or_default())
            .with_context(|| path.display().to_string())?;
    }
    ensure!(!cases.is_empty(), "{} has no files <library>-<transport>-<ranks>.json", folder.display());
    let mut text = String::new();
    for (name, case) in &cases {
        let _ = writeln!(text, "## {name}\n\n{}", table(case));
    }
    Ok(text)
}

/// The JSON files of a folder and of the folders in it.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(self::files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(text: &str, library: &str, case: &mut Case) -> Result<()> {
    let report: Value = serde_json::from_str(text)?;
    for row in report["results"].as_array().context("no results")? {
        let collective = row["collective"].as_str().context("a result without a collective")?;
        let bytes = row["bytes"].as_u64().context("a result without bytes")?;
        let theirs = best(&row[if library == "gloo" { "gloo_us" } else { "mpi_us" }]);
        ensure!(theirs.is_finite(), "{collective} of {bytes} bytes has no times of {library}");
        // With --tune there is more than one plan, of which none is what the program would take.
        let plans = row["ours_us"].as_object();
        ensure!(plans.is_none_or(|plans| plans.len() == 1), "times of more than one plan");
        let ours = plans.and_then(|plans| plans.values().next()).map_or(f64::INFINITY, best);
        let libraries = case.entry((collective.to_owned(), bytes)).or_default();
        let entry = libraries
            .entry(library.to_owned())
            .or_insert(Best { theirs: f64::INFINITY, ours: f64::INFINITY });
        entry.theirs = entry.theirs.min(theirs);
        entry.ours = entry.ours.min(ours);
    }
    Ok(())
}

/// Infinite when there are none.
fn best(times: &Value) -> f64 {
    let times = times.as_array().into_iter().flatten().filter_map(Value::as_f64);
    times.fold(f64::INFINITY, f64::min)
}

fn table(case: &Case) -> String {
    let libraries: BTreeSet<&str> =
        case.values().flat_map(|libraries| libraries.keys().map(String::as_str)).collect();
    let mut text = "| collective | bytes | ours (us) |".to_owned();
    for library in &libraries {
        let _ = write!(text, " {library} (us) | ours / {library} |");
    }
    let _ = writeln!(text, " ours / fastest |");
    let _ = writeln!(text, "{}", "|---".repeat(4 + 2 * libraries.len()) + "|");
    // The ratio to each library, and to the fastest of all, by collective.
    let mut ratios: BTreeMap<&str, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for ((collective, bytes), times) in case {
        let ours = times.values().map(|times| times.ours).fold(f64::INFINITY, f64::min);
        let _ = write!(text, "| {collective} | {bytes} | {ours:.2} |");
        let ratio = |times: &Best| if times.ours.is_finite() { times.ours } else { ours } / times.theirs;
        for &library in &libraries {
            match times.get(library) {
                Some(times) => {
                    let _ = write!(text, " {:.2} | {:.2} |", times.theirs, ratio(times));
                    let of = ratios.entry(collective).or_default();
                    of.entry(library).or_default().push(ratio(times));
                }
                None => text.push_str(" | |"),
            }
        }
        let fastest = times.values().map(ratio).fold(f64::NAN, f64::max);
        let _ = writeln!(text, " {fastest:.2} |");
        ratios.entry(collective).or_default().entry("the fastest").or_default().push(fastest);
    }
    for (collective, libraries) in ratios {
        let _ = write!(text, "\n{collective}: geometric mean (largest) of ours /");
        let summaries: Vec<_> =
            libraries.iter().map(|(library, ratios)| format!("{library} {}", summary(ratios))).collect();
        let _ = writeln!(text, " {}.", summaries.join(", "));
    }
    text
}

fn summary(ratios: &[f64]) -> String {
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let largest = ratios.iter().copied().fold(f64::NAN, f64::max);
    format!("{mean:.2} ({largest:.2})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_all_runs_counts_and_the_fastest_library_is_what_ours_is_held_against() {
        let mut case = Case::new();
        let row = |theirs: &str, ours: &str| {
            format!(r#"{{"results": [{{"collective": "all_reduce", "bytes": 8, {theirs}{ours}}}]}}"#)
        };
        let ours = |times: &str| format!(r#", "ours_us": {{"board": {times}}}"#);
        read(&row(r#""mpi_us": [2.5, 2.0]"#, &ours("[5, 4.0]")), "openmpi", &mut case).unwrap();
        read(&row(r#""mpi_us": [4.0]"#, &ours("[1.0, 1.5]")), "openmpi", &mut case).unwrap();
        read(&row(r#""mpi_us": [1.0]"#, &ours("[1.5]")), "mpich", &mut case).unwrap();
        read(&row(r#""gloo_us": [100.0]"#, ""), "gloo", &mut case).unwrap();
        let text = table(&case);
        assert!(
            text.contains("| all_reduce | 8 | 1.00 | 100.00 | 0.01 | 1.00 | 1.50 | 2.00 | 0.50 | 1.50 |"),
            "{text}"
        );
        assert!(text.contains("the fastest 1.50 (1.50)"), "{text}");
        assert!(read(&row(r#""mpi_us": []"#, ""), "mpich", &mut case).is_err());
        let two = r#", "ours_us": {"board": [1], "ring": [2]}"#;
        assert!(read(&row(r#""mpi_us": [1.0]"#, two), "mpich", &mut case).is_err());
    }
}
