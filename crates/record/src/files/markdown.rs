//! Markdown: provenance, and a table for each collective, type, operator and root.

use std::collections::BTreeSet;
use std::io::{self, Write};

use crate::matching::TableKey;
use crate::nccl_tests::too_slow;
use crate::ratios::Ratios;
use crate::run::{BackendLibrary, Measurement, Placement, Run, RunOutcome, Versus};

pub(super) fn write_markdown(run: &Run, mut out: impl Write) -> io::Result<()> {
    let mut collectives: Vec<&str> = Vec::new();
    for measurement in &run.measurements {
        if !collectives.contains(&measurement.collective.as_str()) {
            collectives.push(&measurement.collective);
        }
    }
    let title = if collectives.is_empty() { "no measurement".to_owned() } else { collectives.join(", ") };
    writeln!(out, "# nccl-bench: {}\n", plain_text(&title))?;
    writeln!(out, "**{}**\n", plain_text(&verdict_line(run)))?;
    for (what, value) in list_provenance(run) {
        writeln!(out, "- {what}: {value}")?;
    }
    for note in &run.notes {
        writeln!(out, "- Note: {}", plain_text(note))?;
    }
    let tables = group_tables(run);
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
        table.write_table(&mut out)?;
    }
    Ok(())
}

/// Outcome, verification and mean bandwidth in one line.
fn verdict_line(run: &Run) -> String {
    let ended = match &run.outcome {
        RunOutcome::Running => "Not ended, or killed".to_owned(),
        RunOutcome::Complete => "Complete".to_owned(),
        RunOutcome::Interrupted { signal } => format!("Interrupted by {signal}"),
        RunOutcome::Failed { message } => format!("Failed: {message}"),
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
    let mean = run.mean_busbw_gbps().map(|mean| format!(", mean busbw {} GB/s", number_text(mean)));
    let slow = if too_slow(run).is_some() { ", TOO SLOW" } else { "" };
    format!("{ended}; {}, {data}{}{slow}", count_text(all, "measurement"), mean.unwrap_or_default())
}

fn list_provenance(run: &Run) -> Vec<(&'static str, String)> {
    let found = &run.provenance;
    let mut list = vec![
        ("Program", plain_text(&run.program)),
        ("Command", code_text(&run.command.join(" "))),
        ("Started", plain_text(&run.started_at)),
    ];
    let library = format!("{} {} ({})", found.backend, found.library_version, found.library_path);
    list.push(("Library", plain_text(library.trim_end_matches(" ()"))));
    list.extend(found.versus.as_ref().map(|versus| {
        let BackendLibrary { backend, library_version, library_path } = versus;
        (
            "Versus",
            plain_text(format!("{backend} {library_version} ({library_path})").trim_end_matches(" ()")),
        )
    }));
    list.extend(found.cuda_driver.as_deref().map(|version| ("CUDA driver", plain_text(version))));
    list.extend(found.transport.as_deref().map(|transport| ("Transport", plain_text(transport))));
    let hosts: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let hosts_named = hosts.iter().copied().collect::<Vec<_>>().join(", ");
    let ranks = format!(
        "{} on {} ({hosts_named}): {}",
        count_text(run.ranks.len(), "rank"),
        count_text(hosts.len(), "host"),
        run.devices_text()
    );
    list.push(("Ranks", plain_text(&ranks)));
    let others = [("World", &found.world), ("System", &found.system)];
    list.extend(
        others.into_iter().filter(|(_, text)| !text.is_empty()).map(|(what, text)| (what, plain_text(text))),
    );
    let settings = &run.settings;
    let mut counts = match run.describe_pairs() {
        Some(pairs) => vec![pairs, count_text(settings.warm_up, "warm-up round")],
        None => vec![
            count_text(settings.iterations, "iteration"),
            format!("{} per iteration", count_text(settings.aggregated, "operation")),
            count_text(settings.warm_up, "warm-up operation"),
        ],
    };
    counts.push(count_text(settings.checks, "verification"));
    counts.extend(
        settings.stream_checks.map(|rounds| format!("{} on the stream", count_text(rounds, "verification"))),
    );
    counts.extend(settings.rounds.map(|rounds| count_text(rounds, "round")));
    list.push(("Settings", counts.join(", ")));
    let environment: Vec<String> =
        found.environment.iter().map(|(name, value)| code_text(&format!("{name}={value}"))).collect();
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

fn group_tables(run: &Run) -> Vec<Table<'_>> {
    let mut tables: Vec<Table<'_>> = Vec::new();
    for measurement in &run.measurements {
        let key = TableKey::from_measurement(measurement);
        let index = tables.iter().position(|table| table.key == key).unwrap_or_else(|| {
            tables.push(Table { key, rows: Vec::new() });
            tables.len() - 1
        });
        tables[index].add_measurement(measurement);
    }
    tables
}

impl<'a> Table<'a> {
    /// Adds a measurement. In place shares the row of out of place of the same size and cycle, measured just
    /// before.
    fn add_measurement(&mut self, measurement: &'a Measurement) {
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

    fn write_table(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "\n## {}\n", plain_text(&self.key.table_name()))?;

        let all = || self.iter_measurements();
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
        write_cells(&mut out, &head)?;
        write_cells(&mut out, &rule)?;
        for row in &self.rows {
            let Some(any) = row[0].or(row[1]) else { continue };
            let mut cells = vec![any.bytes.to_string(), any.count.to_string()];
            cells.extend(cycles.then(|| any.cycle.to_string()));
            for measurement in row {
                cells.extend(half_cells(*measurement, statistics, versus));
            }
            if algorithms {
                let named: Vec<String> =
                    row.iter().flatten().filter_map(|each| algorithm_text(each)).collect();
                cells.push(match &named[..] {
                    [first, second] if first == second => plain_text(first),
                    named => plain_text(&named.join(", ")),
                });
            }
            write_cells(&mut out, &cells)?;
        }
        self.write_ratios(&mut out)?;
        self.write_mismatches(&mut out)
    }

    fn iter_measurements(&self) -> impl Iterator<Item = &'a Measurement> {
        self.rows.iter().flatten().flatten().copied()
    }

    fn write_ratios(&self, mut out: impl Write) -> io::Result<()> {
        let mut ratios = Ratios::default();
        self.iter_measurements().for_each(|measurement| ratios.add_measurement(measurement));
        match ratios.summary_text() {
            Some(summary) => writeln!(out, "\nTime over the other side's: {}", plain_text(&summary)),
            None => Ok(()),
        }
    }

    fn write_mismatches(&self, mut out: impl Write) -> io::Result<()> {
        for measurement in self.iter_measurements() {
            let theirs = measurement.versus.iter().flat_map(|versus| &versus.mismatches);
            let both = measurement.mismatches.iter().map(|found| ("", found));
            for (side, mismatch) in both.chain(theirs.map(|found| (" versus", found))) {
                let place = measurement.placement.placement_name();
                let text = format!(
                    "WRONG{side} {} bytes {place}: rank {} has {} wrong elements; the first: {}",
                    measurement.bytes, mismatch.rank, mismatch.wrong, mismatch.first
                );
                writeln!(out, "\n{}", plain_text(&text))?;
            }
        }
        Ok(())
    }
}

fn half_cells(measurement: Option<&Measurement>, statistics: bool, versus: bool) -> Vec<String> {
    let Some(found) = measurement else {
        return vec![String::new(); 4 + if statistics { 2 } else { 0 } + if versus { 5 } else { 0 }];
    };
    let mut cells = vec![number_text(found.time_us)];
    if statistics {
        let of = |value: fn(&crate::statistics::Statistics) -> f64| {
            found.statistics.as_ref().map(|statistics| number_text(value(statistics))).unwrap_or_default()
        };
        cells.extend([of(|found| found.median_us), of(|found| found.p99_us)]);
    }
    cells.extend([number_text(found.algbw_gbps), number_text(found.busbw_gbps)]);
    cells.push(wrong_cell(found.wrong));
    if versus {
        cells.extend(found.versus.as_ref().map_or_else(Default::default, other_half));
    }
    cells
}

fn other_half(found: &Versus) -> [String; 5] {
    let (ratio, best) = (number_text(found.ratio), number_text(found.best_ratio));
    [number_text(found.time_us), number_text(found.busbw_gbps), wrong_cell(found.wrong), ratio, best]
}

fn wrong_cell(elements: Option<u64>) -> String {
    elements.map_or_else(|| "N/A".to_owned(), |elements| elements.to_string())
}

/// `ring ll128, 16 channels`
fn algorithm_text(measurement: &Measurement) -> Option<String> {
    let found = measurement.algorithm.as_ref()?;
    let protocol = found.protocol.as_ref().map(|protocol| format!(" {protocol}")).unwrap_or_default();
    let channels = found.channels.map(|channels| format!(" x{channels}")).unwrap_or_default();
    Some(format!("{}{protocol}{channels}", found.algorithm))
}

fn count_text(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A time or bandwidth with its significant digits.
fn number_text(value: f64) -> String {
    match value.abs() {
        absolute if !absolute.is_finite() => "-".to_owned(),
        absolute if absolute < 1.0 => format!("{value:.4}"),
        absolute if absolute < 1000.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

fn write_cells(out: &mut impl Write, cells: &[impl AsRef<str>]) -> io::Result<()> {
    for cell in cells {
        write!(out, "| {} ", cell.as_ref())?;
    }
    writeln!(out, "|")
}

/// Text without Markdown syntax, on one line.
fn plain_text(text: &str) -> String {
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
fn code_text(text: &str) -> String {
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
        write_markdown(run, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_text_is_as_it_should_be() {
        let mut run = sample::full_run();
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
        let mut run = sample::full_run();
        assert!(text(&run).contains("\n**Complete; 4 measurements, WRONG DATA in 1 of them, mean busbw 6"));
        run.measurements.retain(|each| each.wrong == Some(0));
        run.outcome = RunOutcome::Interrupted { signal: "SIGINT".to_owned() };
        assert!(
            text(&run)
                .contains("\n**Interrupted by SIGINT; 2 measurements, all data right, mean busbw 83.89")
        );
        run.measurements[0].wrong = None;
        assert!(text(&run).contains("2 measurements, 1 of them verified, all data right"));
        run.measurements.clear();
        run.outcome = RunOutcome::Failed { message: "rank 3 on node_2 is *gone*\nand | more".to_owned() };
        let text = text(&run);
        let verdict =
            r"**Failed: rank 3 on node\_2 is \*gone\* and \| more; 0 measurements, data not verified**";
        assert!(text.contains(verdict), "{text}");
        assert!(!text.contains("## "), "{text}");
    }

    #[test]
    fn text_cannot_leave_its_code() {
        assert_eq!(code_text("a b"), "`a b`");
        assert_eq!(code_text("a ``b` c"), "``` a ``b` c ```");
    }
}
