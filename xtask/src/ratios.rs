//! `cargo xtask ratios <folder>`: a Markdown table of time ratios from the text tables that `run-gpu` wrote.
//!
//! Files are named `<collective>-<program>-<mode>-<round>.txt`. Times of a size are medians over the rounds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Times in microseconds by size and placement (0 out of place, 1 in place), one per round.
type Times = BTreeMap<(u64, usize), Vec<f64>>;

/// One comparison: the first program's time over the second's.
const COMPARISONS: [(&str, &str, &str); 2] = [
    ("nccl-bench-np", "nccl-tests-np", "nccl-bench against nccl-tests, a process per GPU each"),
    ("nccl-bench-g", "nccl-bench-np", "nccl-bench in one process against nccl-bench with a process per GPU"),
];

/// Reads the folder and returns the tables.
pub(crate) fn run(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for collective in ["allreduce", "allgather"] {
        for (ours, theirs, title) in COMPARISONS {
            let (ours, theirs) = (
                read(folder, &format!("{collective}-{ours}"))?,
                read(folder, &format!("{collective}-{theirs}"))?,
            );
            if !ours.is_empty() && !theirs.is_empty() {
                let _ = writeln!(text, "## {collective}: {title}\n\n{}", table(&ours, &theirs));
            }
        }
    }
    if text.is_empty() {
        bail!("{} has no files to compare", folder.display());
    }
    Ok(text)
}

fn read(folder: &Path, prefix: &str) -> Result<Times> {
    let mut times = Times::new();
    for round in 1.. {
        let path = folder.join(format!("{prefix}-{round}.txt"));
        let Ok(text) = fs::read_to_string(&path) else { break };
        let rows = rows(&text).with_context(|| format!("reading {}", path.display()))?;
        for (key, time) in rows {
            times.entry(key).or_default().push(time);
        }
    }
    Ok(times)
}

/// The times of a text table. Rows of size 0 move nothing and have no time to compare.
fn rows(text: &str) -> Result<Vec<((u64, usize), f64)>> {
    let mut rows = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let Some(size) = fields.first().and_then(|field| field.parse::<u64>().ok()) else { continue };
        if fields.len() < 13 {
            bail!("a row with {} fields: {line}", fields.len());
        }
        if size == 0 {
            continue;
        }
        for (placement, time, wrong) in [(0, 5, 8), (1, 9, 12)] {
            if fields[wrong] != "0" {
                bail!("a row with wrong data: {line}");
            }
            rows.push(((size, placement), fields[time].parse()?));
        }
    }
    if rows.is_empty() {
        bail!("no rows");
    }
    Ok(rows)
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

fn table(ours: &Times, theirs: &Times) -> String {
    let mut text = "| size (B) | first, out (us) | second, out (us) | ratio | first, in (us) | second, in (us) | ratio |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_owned();
    let mut ratios = Vec::new();
    let sizes: std::collections::BTreeSet<u64> = ours.keys().map(|&(size, _)| size).collect();
    for size in sizes {
        let _ = write!(text, "| {size} |");
        for placement in [0, 1] {
            let (Some(ours), Some(theirs)) = (ours.get(&(size, placement)), theirs.get(&(size, placement)))
            else {
                text.push_str(" | | |");
                continue;
            };
            let (ours, theirs) = (median(ours), median(theirs));
            ratios.push((size, ours / theirs));
            let _ = write!(text, " {ours:.2} | {theirs:.2} | {:.3} |", ours / theirs);
        }
        text.push('\n');
    }
    let worst = |keep: fn(u64) -> bool| {
        ratios.iter().filter(|(size, _)| keep(*size)).map(|&(_, ratio)| ratio).fold(f64::NAN, f64::max)
    };
    let mean = (ratios.iter().map(|(_, ratio)| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let rounds = ours.values().chain(theirs.values()).map(Vec::len).min().unwrap_or(0);
    let _ = writeln!(
        text,
        "\nMedians of {rounds} rounds. Geometric mean of the ratios {mean:.4}; largest from 1 MiB on {:.3}, below {:.3}.",
        worst(|size| size >= 1 << 20),
        worst(|size| size < 1 << 20)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians() {
        let times = |values: &[f64]| Times::from([((8, 0), values.to_vec())]);
        let text = table(&times(&[1.0, 9.0, 2.0]), &times(&[4.0, 4.0, 100.0]));
        assert!(text.contains("| 8 | 2.00 | 4.00 | 0.500 |"), "{text}");
        assert!(text.contains("3 rounds. Geometric mean of the ratios 0.5000"), "{text}");
    }

    #[test]
    fn wrong_data_and_empty_tables_are_refused() {
        let row = |wrong| format!("  8  2  float  sum  -1  9.87  0.00  0.00  {wrong}  9.52  0.00  0.00  0\n");
        assert_eq!(rows(&row(0)).unwrap(), [((8, 0), 9.87), ((8, 1), 9.52)]);
        assert!(rows(&row(3)).is_err());
        assert!(rows("# nothing\n").is_err());
    }
}
