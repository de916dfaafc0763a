//! Markdown: provenance, and a table for each collective, type, operator and root.

use std::collections::BTreeSet;
use std::io::{self, Write};

use crate::matching::TableKey;
use crate::nccl_tests::too_slow;
use crate::ratios::Ratios;
use crate::run::{BackendLibrary, Measurement, Outcome, Placement, Run, Versus};

pub(super) fn write(run: &Run, mut out: impl Write) -> io::Result<()> {
    let mut collectives: Vec<&str> = Vec::new();
    for measurement in &run.measurements {
        if !collectives.contains(&measurement.collective.as_str()) {
            collectives.push(&measurement.collective);
        }
    }
    let title = if collectives.is_empty() { "no measurement".to_owned() } else { collectives.join(", ") };
    writeln!(out, "# nccl-bench: {}\n", plain(&title))?;
    writeln!(out, "**{}**\n", plain(&verdict(run)))?;
    for (what, value) in provenance(run) {
        writeln!(out, "- {what}: {value}")?;
    }
    for note in &run.notes {
        writeln!(out, "- Note: {}", plain(note))?;
    }
    let tables = tables(run);
    if !tables.is_empty() {
        writeln!(out, "\nTimes in microseconds per operation, bandwidths in GB/s (1e9 bytes per second).")?;
    }
    let second_pass =
        !run.settings.per_iteration && run.measurements.iter().any(|each| each.statistics.is_some());
    if second_pass {
        writeln!(
            out,
            "`i_med` and `i_p99`: the slowest rank's time of single operations, in a second pass where each \
             is timed; `time` is the mean of the first pass."
        )?;
    }
    for table in tables {
        table.write(&mut out)?;
    }
    Ok(())
}

/// Outcome, verification and mean bandwidth in one line.
fn verdict(run: &Run) -> String {
    let ended = match &run.outcome {
        Outcome::Running => "Not ended, or killed".to_owned(),
        Outcome::Complete => "Complete".to_owned(),
        Outcome::Interrupted { signal } => format!("Interrupted by {signal}"),
        Outcome::Failed { message } => format!("Failed: {message}"),
    };
    let wrong = run.measurements.iter().filter(|each| each.is_wrong()).count();
    let verified = run.measurements.iter().filter(|each| each.wrong.is_some()).count();
    let all = run.measurements.len();
    let data = match (wrong, verified) {
        (0, 0) => "data not verified".to_owned(),
        (0, _) if verified == all => "all data right".to_owned(),
        (0, _) => format!("{verified} of them verified, all data right"),
        (_, _) => format!("WRONG DATA in {wrong} of them"),
    };
    let mean = run.mean_busbw_gbps().map(|mean| format!(", mean busbw {} GB/s", number(mean)));
    let slow = if too_slow(run).is_some() { ", TOO SLOW" } else { "" };
    format!("{ended}; {}, {data}{}{slow}", counted(all, "measurement"), mean.unwrap_or_default())
}

fn provenance(run: &Run) -> Vec<(&'static str, String)> {
    let found = &run.provenance;
    let mut list = vec![
        ("Program", plain(&run.program)),
        ("Command", code(&run.command.join(" "))),
        ("Started", plain(&run.started_at)),
    ];
    let library = format!("{} {} ({})", found.backend, found.library_version, found.library_path);
    list.push(("Library", plain(library.trim_end_matches(" ()"))));
    list.extend(found.versus.as_ref().map(|versus| {
        let BackendLibrary { backend, library_version, library_path } = versus;
        ("Versus", plain(format!("{backend} {library_version} ({library_path})").trim_end_matches(" ()")))
    }));
    list.extend(found.cuda_driver.as_deref().map(|version| ("CUDA driver", plain(version))));
    list.extend(found.transport.as_deref().map(|transport| ("Transport", plain(transport))));
    let hosts: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let hosts_named = hosts.iter().copied().collect::<Vec<_>>().join(", ");
    let ranks = format!(
        "{} on {} ({hosts_named}): {}",
        counted(run.ranks.len(), "rank"),
        counted(hosts.len(), "host"),
        run.devices()
    );
    list.push(("Ranks", plain(&ranks)));
    let others = [("World", &found.world), ("System", &found.system)];
    list.extend(
        others.into_iter().filter(|(_, text)| !text.is_empty()).map(|(what, text)| (what, plain(text))),
    );
    let settings = &run.settings;
    let mut counts = match run.describe_pairs() {
        Some(pairs) => vec![pairs, counted(settings.warm_up, "warm-up round")],
        None => vec![
            counted(settings.iterations, "iteration"),
            format!("{} per iteration", counted(settings.aggregated, "operation")),
            counted(settings.warm_up, "warm-up operation"),
        ],
    };
    counts.push(counted(settings.checks, "verification"));
    counts.extend(
        settings.stream_checks.map(|rounds| format!("{} on the stream", counted(rounds, "verification"))),
    );
    counts.extend(settings.rounds.map(|rounds| counted(rounds, "round")));
    list.push(("Settings", counts.join(", ")));
    let environment: Vec<String> =
        found.environment.iter().map(|(name, value)| code(&format!("{name}={value}"))).collect();
    if !environment.is_empty() {
        list.push(("Environment", environment.join(", ")));
    }
    list
}

struct Table<'a> {
    key: TableKey,
    /// The measurements of a size in both placements, if they exist.
    rows: Vec<[Option<&'a Measurement>; 2]>,
}

fn tables(run: &Run) -> Vec<Table<'_>> {
    let mut tables: Vec<Table<'_>> = Vec::new();
    for measurement in &run.measurements {
        let key = TableKey::of(measurement);
        let index = tables.iter().position(|table| table.key == key).unwrap_or_else(|| {
            tables.push(Table { key, rows: Vec::new() });
            tables.len() - 1
        });
        tables[index].add(measurement);
    }
    tables
}

impl<'a> Table<'a> {
    /// Adds a measurement. In place shares the row of out of place of the same size and cycle, measured just
    /// before.
    fn add(&mut self, measurement: &'a Measurement) {
        match (measurement.placement, self.rows.last_mut()) {
            (Placement::InPlace, Some([Some(before), place @ None]))
                if (before.bytes, before.cycle) == (measurement.bytes, measurement.cycle) =>
            {
                *place = Some(measurement);
            }
            (Placement::InPlace, _) => self.rows.push([None, Some(measurement)]),
            (Placement::OutOfPlace, _) => self.rows.push([Some(measurement), None]),
        }
    }

    fn write(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "\n## {}\n", plain(&self.key.name()))?;

        let all = || self.measurements();
        let cycles = all().any(|each| each.cycle > 0);
        let statistics = all().any(|each| each.statistics.is_some());
        let versus = all().any(|each| each.versus.is_some());
        let algorithms = all().any(|each| each.algorithm.is_some());
        let mut head = vec!["bytes".to_owned(), "count".to_owned()];
        head.extend(cycles.then(|| "cycle".to_owned()));
        for placement in ["out-of-place", "in-place"] {
            head.push(format!("{placement} time"));
            if statistics {
                head.extend(["i_med", "i_p99"].map(str::to_owned));
            }
            head.extend(["algbw", "busbw", "wrong"].map(str::to_owned));
            if versus {
                head.extend(["versus time", "busbw", "wrong", "ratio", "best"].map(str::to_owned));
            }
        }
        head.extend(algorithms.then(|| "algorithm".to_owned()));
        let rule: Vec<&str> =
            head.iter().map(|name| if name == "algorithm" { "---" } else { "---:" }).collect();
        line(&mut out, &head)?;
        line(&mut out, &rule)?;
        for row in &self.rows {
            let Some(any) = row[0].or(row[1]) else { continue };
            let mut cells = vec![any.bytes.to_string(), any.count.to_string()];
            cells.extend(cycles.then(|| any.cycle.to_string()));
            for measurement in row {
                cells.extend(half(*measurement, statistics, versus));
            }
            if algorithms {
                let named: Vec<String> = row.iter().flatten().filter_map(|each| algorithm(each)).collect();
                cells.push(match &named[..] {
                    [first, second] if first == second => plain(first),
                    named => plain(&named.join(", ")),
                });
            }
            line(&mut out, &cells)?;
        }
        self.write_ratios(&mut out)?;
        self.write_mismatches(&mut out)
    }

    fn measurements(&self) -> impl Iterator<Item = &'a Measurement> {
        self.rows.iter().flatten().flatten().copied()
    }

    fn write_ratios(&self, mut out: impl Write) -> io::Result<()> {
        let mut ratios = Ratios::default();
        self.measurements().for_each(|measurement| ratios.add(measurement));
        match ratios.summary() {
            Some(summary) => writeln!(out, "\nTime over the other side's: {}", plain(&summary)),
            None => Ok(()),
        }
    }

    fn write_mismatches(&self, mut out: impl Write) -> io::Result<()> {
        for measurement in self.measurements() {
            let theirs = measurement.versus.iter().flat_map(|versus| &versus.mismatches);
            let both = measurement.mismatches.iter().map(|found| ("", found));
            for (side, mismatch) in both.chain(theirs.map(|found| (" versus", found))) {
                let place = measurement.placement.name();
                let text = format!(
                    "WRONG{side} {} bytes {place}: rank {} has {} wrong elements; the first: {}",
                    measurement.bytes, mismatch.rank, mismatch.wrong, mismatch.first
                );
                writeln!(out, "\n{}", plain(&text))?;
            }
        }
        Ok(())
    }
}

fn half(measurement: Option<&Measurement>, statistics: bool, versus: bool) -> Vec<String> {
    let Some(found) = measurement else {
        return vec![String::new(); 4 + if statistics { 2 } else { 0 } + if versus { 5 } else { 0 }];
    };
    let mut cells = vec![number(found.time_us)];
    if statistics {
        let of = |value: fn(&crate::statistics::Statistics) -> f64| {
            found.statistics.as_ref().map(|statistics| number(value(statistics))).unwrap_or_default()
        };
        cells.extend([of(|found| found.median_us), of(|found| found.p99_us)]);
    }
    cells.extend([number(found.algbw_gbps), number(found.busbw_gbps)]);
    cells.push(wrong(found.wrong));
    if versus {
        cells.extend(found.versus.as_ref().map_or_else(Default::default, other_half));
    }
    cells
}

fn other_half(found: &Versus) -> [String; 5] {
    let (ratio, best) = (number(found.ratio), number(found.best_ratio));
    [number(found.time_us), number(found.busbw_gbps), wrong(found.wrong), ratio, best]
}

fn wrong(elements: Option<u64>) -> String {
    elements.map_or_else(|| "N/A".to_owned(), |elements| elements.to_string())
}

/// `ring ll128, 16 channels`
fn algorithm(measurement: &Measurement) -> Option<String> {
    let found = measurement.algorithm.as_ref()?;
    let protocol = found.protocol.as_ref().map(|protocol| format!(" {protocol}")).unwrap_or_default();
    let channels = found.channels.map(|channels| format!(" x{channels}")).unwrap_or_default();
    Some(format!("{}{protocol}{channels}", found.algorithm))
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A time or bandwidth with its significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        absolute if !absolute.is_finite() => "-".to_owned(),
        absolute if absolute < 1.0 => format!("{value:.4}"),
        absolute if absolute < 1000.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

fn line(out: &mut impl Write, cells: &[impl AsRef<str>]) -> io::Result<()> {
    for cell in cells {
        write!(out, "| {} ", cell.as_ref())?;
    }
    writeln!(out, "|")
}

/// Text without Markdown syntax, on one line.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '&' | '~' => {
                plain.extend(['\\', letter])
            }
            letter if letter.is_control() => plain.push(' '),
            letter => plain.push(letter),
        }
    }
    plain
}

/// Text as code, on one line.
fn code(text: &str) -> String {
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if longest > 0 { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn text(run: &Run) -> String {
        let mut out = Vec::new();
        write(run, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_text_is_as_it_should_be() {
        let mut run = sample::full();
        let pairs = run.settings.pairs.take();
        assert_eq!(text(&run), include_str!("../../tests/data/run.md"));
        run.settings.pairs = pairs;
        let settings = "\n- Settings: bw over nvlink, window 64, injected up to 128 bytes, GPUs' memory, \
                        directly, pauses of 2000 ns while waiting, 2 endpoints, 5 warm-up rounds, 1 \
                        verification, ";
        assert!(text(&run).contains(settings), "{}", text(&run));
    }

    #[test]
    fn the_verdict_is_that_of_the_run() {
        let mut run = sample::full();
        assert!(text(&run).contains("\n**Complete; 4 measurements, WRONG DATA in 1 of them, mean busbw 6"));
        run.measurements.retain(|each| each.wrong == Some(0));
        run.outcome = Outcome::Interrupted { signal: "SIGINT".to_owned() };
        assert!(
            text(&run)
                .contains("\n**Interrupted by SIGINT; 2 measurements, all data right, mean busbw 83.89")
        );
        run.measurements[0].wrong = None;
        assert!(text(&run).contains("2 measurements, 1 of them verified, all data right"));
        run.measurements.clear();
        run.outcome = Outcome::Failed { message: "rank 3 on node_2 is *gone*\nand | more".to_owned() };
        let text = text(&run);
        let verdict =
            r"**Failed: rank 3 on node\_2 is \*gone\* and \| more; 0 measurements, data not verified**";
        assert!(text.contains(verdict), "{text}");
        assert!(!text.contains("## "), "{text}");
    }

    #[test]
    fn text_cannot_leave_its_code() {
        assert_eq!(code("a b"), "`a b`");
        assert_eq!(code("a ``b` c"), "``` a ``b` c ```");
    }
}
