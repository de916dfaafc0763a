//! `cargo xtask ratios <folder>...`: Markdown tables of time ratios from the text tables that `run-gpu compare` wrote, of
//! several folders as if all rounds were in one.
//!
//! Files are named `<mode>-<program>-<round>.txt`, and have a section for each collective. Times of a size are medians
//! over the rounds. Results from before there were modes (`<collective>-nccl-bench-np-<round>.txt`) are kept as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

/// Times in microseconds by size and placement (0 out of place, 1 in place), one per round.
type Times = BTreeMap<(u64, usize), Vec<f64>>;
/// Those of each collective, by nccl-tests' name of its program.
type Collectives = BTreeMap<String, Times>;

/// From this size on, in bytes, what a launch costs hardly counts.
const LARGE: u64 = 1 << 20;

const PROGRAMS: [&str; 2] = ["nccl-bench", "nccl-tests"];

/// Reads the folders and returns the tables: a summary of all, then all sizes.
pub(crate) fn run(folders: &[PathBuf]) -> Result<String> {
    let mut modes = BTreeSet::new();
    for folder in folders {
        for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some(mode) = name.strip_suffix("-nccl-tests-1.txt") {
                modes.insert(mode.to_owned());
            }
        }
    }
    let mut summary =
        "| mode | program | rounds | geometric mean | largest from 1 MiB on | largest below | by round | nccl-tests' rounds | from 1 MiB on |\n\
                       |---|---|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let mut sizes = String::new();
    for mode in &modes {
        let [ours, theirs] = PROGRAMS.map(|program| read(folders, &format!("{mode}-{program}")));
        let (ours, theirs) = (ours?, theirs?);
        for (collective, times) in &ours {
            let Some(theirs) = theirs.get(collective) else { continue };
            let ratios = Ratios::of(times, theirs);
            let _ = writeln!(summary, "| {mode} | {collective} | {}", ratios.summary());
            let _ = writeln!(sizes, "\n## {collective}, {mode}\n\n{}", ratios.table());
        }
    }
    if sizes.is_empty() {
        bail!("there are no files to compare");
    }
    Ok(format!(
        "Times of nccl-bench over those of nccl-tests, of medians over the rounds. To tell what such a ratio means: *by \
         round* is the geometric mean of all sizes of each round by itself, their mean and its standard error; the last two \
         columns compare nccl-tests with itself, its slowest round over its fastest, by the geometric mean of all sizes, and \
         the largest such ratio of one size from 1 MiB on.\n\n{summary}{sizes}"
    ))
}

fn read(folders: &[PathBuf], prefix: &str) -> Result<Collectives> {
    let mut all = Collectives::new();
    for folder in folders {
        for round in 1.. {
            let path = folder.join(format!("{prefix}-{round}.txt"));
            let Ok(text) = fs::read_to_string(&path) else { break };
            let sections = sections(&text).with_context(|| format!("reading {}", path.display()))?;
            for (collective, rows) in sections {
                let times = all.entry(collective).or_default();
                for (key, time) in rows {
                    times.entry(key).or_default().push(time);
                }
            }
        }
    }
    Ok(all)
}

/// The rows of a section: size, placement, time in microseconds.
type Rows = Vec<((u64, usize), f64)>;

/// The tables of a text, each with its program's name. Rows of size 0 move nothing and have no time to compare.
fn sections(text: &str) -> Result<Vec<(String, Rows)>> {
    let mut sections: Vec<(String, Rows)> = Vec::new();
    for line in text.lines() {
        if let Some(program) = line.strip_prefix("# Collective test starting: ") {
            sections.push((program.trim().to_owned(), Vec::new()));
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let Some(size) = fields.first().and_then(|field| field.parse::<u64>().ok()) else { continue };
        let Some((_, rows)) = sections.last_mut() else { continue };
        // The operator's column can be blank.
        let Some(start) = fields.len().checked_sub(8).filter(|&start| start >= 4) else {
            bail!("a row with {} fields: {line}", fields.len());
        };
        if size == 0 {
            continue;
        }
        for placement in [0, 1] {
            let half = &fields[start + 4 * placement..];
            if !matches!(half[3], "0" | "N/A") {
                bail!("a row with wrong data: {line}");
            }
            rows.push(((size, placement), half[0].parse()?));
        }
    }
    sections.retain(|(_, rows)| !rows.is_empty());
    if sections.is_empty() {
        bail!("no rows");
    }
    Ok(sections)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// The medians of both, of each size and placement that both have.
struct Ratios {
    rounds: usize,
    /// Logarithm of the geometric mean of each round's own ratios.
    by_round: Vec<f64>,
    spread: Spread,
    medians: BTreeMap<(u64, usize), (f64, f64)>,
}

/// How much the rounds of one program differ: the slowest over the fastest.
struct Spread {
    /// By the geometric mean of all sizes.
    all: f64,
    /// Of the large size where they differ most.
    large: f64,
}

impl Spread {
    fn of(times: &Times, rounds: usize) -> Self {
        let means: Vec<f64> = (0..rounds)
            .map(|round| {
                times.values().filter_map(|times| times.get(round)).map(|time| time.ln()).sum::<f64>()
            })
            .map(|sum| (sum / times.len() as f64).exp())
            .collect();
        let large = times
            .iter()
            .filter(|((size, _), _)| *size >= LARGE)
            .map(|(_, times)| slowest_over_fastest(times));
        Self { all: slowest_over_fastest(&means), large: large.fold(f64::NAN, f64::max) }
    }
}

fn slowest_over_fastest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::NAN, f64::max) / times.iter().copied().fold(f64::NAN, f64::min)
}

impl Ratios {
    fn of(ours: &Times, theirs: &Times) -> Self {
        let both = ours.iter().filter_map(|(key, ours)| Some((*key, (ours, theirs.get(key)?))));
        let rounds = both.clone().map(|(_, (ours, theirs))| ours.len().min(theirs.len())).min().unwrap_or(0);
        let round = |round: usize| {
            let ratios = both.clone().map(|(_, (ours, theirs))| (ours[round] / theirs[round]).ln());
            mean(&ratios.collect::<Vec<_>>())
        };
        let by_round = (0..rounds).map(round).collect();
        let medians = both.map(|(key, (ours, theirs))| (key, (median(ours), median(theirs)))).collect();
        Self { rounds, by_round, medians, spread: Spread::of(theirs, rounds) }
    }

    fn largest(&self, keep: fn(u64) -> bool) -> f64 {
        let kept = self.medians.iter().filter(|((size, _), _)| keep(*size));
        kept.map(|(_, (ours, theirs))| ours / theirs).fold(f64::NAN, f64::max)
    }

    fn summary(&self) -> String {
        let logarithms: Vec<f64> = self.medians.values().map(|(ours, theirs)| (ours / theirs).ln()).collect();
        let by_round = mean(&self.by_round);
        let squares = self.by_round.iter().map(|ratio| (ratio - by_round).powi(2)).sum::<f64>();
        let error = (squares / (self.rounds as f64 - 1.0) / self.rounds as f64).sqrt();
        format!(
            "{} | {:.4} | {:.3} | {:.3} | {:.3} +- {error:.3} | {:.3} | {:.3} |",
            self.rounds,
            mean(&logarithms).exp(),
            self.largest(|size| size >= LARGE),
            self.largest(|size| size < LARGE),
            by_round.exp(),
            self.spread.all,
            self.spread.large
        )
    }

    fn table(&self) -> String {
        let mut text = "| size (B) | nccl-bench, out (us) | nccl-tests, out (us) | ratio | nccl-bench, in (us) | nccl-tests, in (us) | ratio |\n\
                        |---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
        let sizes: BTreeSet<u64> = self.medians.keys().map(|&(size, _)| size).collect();
        for size in sizes {
            let _ = write!(text, "| {size} |");
            for placement in [0, 1] {
                match self.medians.get(&(size, placement)) {
                    Some((ours, theirs)) => {
                        let _ = write!(text, " {ours:.2} | {theirs:.2} | {:.3} |", ours / theirs);
                    }
                    None => text.push_str(" | | |"),
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians() {
        let times = |values: &[f64]| Times::from([((8, 0), values.to_vec()), ((1 << 20, 0), vec![3.0; 3])]);
        let ratios = Ratios::of(&times(&[1.0, 9.0, 2.0]), &times(&[4.0, 4.0, 100.0]));
        assert!(ratios.table().contains("| 8 | 2.00 | 4.00 | 0.500 |"), "{}", ratios.table());
        assert_eq!(ratios.summary(), "3 | 0.7071 | 1.000 | 0.500 | 0.473 +- 0.682 | 5.000 | 1.000 |");
    }

    #[test]
    fn a_text_has_a_section_for_each_program() {
        let row = |op, wrong| {
            format!("  8  2  float  {op}  -1  9.87  0.00  0.00  {wrong}  9.52  0.00  0.00  N/A\n")
        };
        let text = format!(
            "# Collective test starting: all_reduce_perf\n{}# Collective test starting: hypercube_perf\n{}",
            row("sum", 0),
            row("", 0)
        );
        let rows = vec![((8, 0), 9.87), ((8, 1), 9.52)];
        let expected = [("all_reduce_perf".to_owned(), rows.clone()), ("hypercube_perf".to_owned(), rows)];
        assert_eq!(sections(&text).unwrap(), expected);
        assert!(sections(&format!("# Collective test starting: x\n{}", row("sum", 3))).is_err());
        assert!(sections("# nothing\n").is_err());
    }
}
