//! `cargo xtask host-ratios <folder>`: a Markdown table of best times from several runs of `host_collectives.sh`.
//!
//! The folder has one folder per run, each with the same text tables: `<mpi>-<transport>-<ranks>.txt`. Times of a
//! size are the best of all runs, on both sides.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Best times in microseconds of MPI and of the host backend, by collective and size.
type Best = BTreeMap<(String, u64), (f64, f64)>;

/// Reads the folder's runs whose names start with `runs`, and returns the tables.
pub(crate) fn run(folder: &Path, runs: &str) -> Result<String> {
    let mut cases: BTreeMap<String, (usize, Best)> = BTreeMap::new();
    for run in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let run = run?;
        if !run.file_name().to_string_lossy().starts_with(runs) || !run.path().is_dir() {
            continue;
        }
        for file in fs::read_dir(run.path())? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "txt") {
                let name =
                    path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let (count, best) = cases.entry(name).or_default();
                *count += 1;
                read(&fs::read_to_string(&path)?, best).with_context(|| path.display().to_string())?;
            }
        }
    }
    ensure!(!cases.is_empty(), "{} has no runs named {runs}*", folder.display());
    let mut text = String::new();
    for (name, (count, best)) in &cases {
        let _ = writeln!(text, "## {name}, best of {count} runs\n\n{}", table(best));
    }
    Ok(text)
}

fn read(text: &str, best: &mut Best) -> Result<()> {
    for line in text.lines().filter(|line| line.starts_with("all_")) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        ensure!(fields.len() >= 8, "a row with {} fields: {line}", fields.len());
        let entry =
            best.entry((fields[0].to_owned(), fields[1].parse()?)).or_insert((f64::INFINITY, f64::INFINITY));
        entry.0 = entry.0.min(fields[2].parse()?);
        entry.1 = entry.1.min(fields[4].parse()?);
    }
    Ok(())
}

fn table(best: &Best) -> String {
    let mut text =
        "| collective | bytes | MPI (us) | ours (us) | ours / MPI |\n|---|---|---|---|---|\n".to_owned();
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for ((collective, bytes), (mpi, ours)) in best {
        let _ = writeln!(text, "| {collective} | {bytes} | {mpi:.2} | {ours:.2} | {:.2} |", ours / mpi);
        ratios.entry(collective).or_default().push(ours / mpi);
    }
    for (collective, ratios) in ratios {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let largest = ratios.iter().copied().fold(f64::NAN, f64::max);
        let _ = writeln!(text, "\n{collective}: geometric mean {mean:.2}, largest {largest:.2}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_all_runs_counts_on_both_sides() {
        let mut best = Best::new();
        read("# times\nall_reduce 8 2.00 2.5 4.00 5 2 2 board\n", &mut best).unwrap();
        read("all_reduce 8 4.00 4.5 1.00 5 2 2 board\n", &mut best).unwrap();
        assert_eq!(best[&("all_reduce".to_owned(), 8)], (2.0, 1.0));
        assert!(table(&best).contains("| all_reduce | 8 | 2.00 | 1.00 | 0.50 |"));
        assert!(read("all_reduce 8\n", &mut best).is_err());
    }
}
