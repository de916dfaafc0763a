//! The columns of the table: its head and its rows.

use std::fmt::Write as _;

use jiff::tz::TimeZone;

use super::number::{format_float, format_significant};
use super::{TIME_FORMAT, local_time, operator_cell, root_cell};
use record::statistics::Statistics;
use record::{Algorithm, Measurement, Run, Versus};

/// A cell without a value.
const ABSENT: &str = "N/A";

/// A size in the largest binary unit that divides it: `64K`, `1536K`, `4G`.
pub(crate) fn binary_size(bytes: u64) -> String {
    let units = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    let unit = units.into_iter().find(|&(_, factor)| bytes > 0 && bytes.is_multiple_of(factor));
    unit.map_or_else(|| bytes.to_string(), |(letter, factor)| format!("{}{letter}", bytes / factor))
}

/// The optional columns of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The first rank's time to enqueue, in place of the time (`-C`).
    pub cpu_time: bool,
    /// Statistics of the single iterations, after each placement (`-I`).
    pub per_iteration: bool,
    /// The time of day of the row (`-S`).
    pub time_stamps: bool,
    /// Minimum, median and 99th percentile of both placements, which nccl-tests does not have. They have the
    /// names of `-I`'s columns, since they are of single iterations, not of those behind the column `time`.
    pub statistics: bool,
    /// The baseline's time and bus bandwidth, and the ratios to it, of both placements (`--vs`).
    pub versus: bool,
    /// Algorithm, protocol and channels that NCCL chose; nccl-tests does not have it.
    pub algorithm: bool,
    /// The group of the row (`NCCL_TESTS_SPLIT`); nccl-tests does not have it.
    pub group: bool,
    /// Sizes as `64K`, and fewer comment lines (`--brief`).
    pub brief: bool,
}

impl Columns {
    /// The columns that the settings and the baseline of a run select.
    pub fn of_run(run: &Run) -> Self {
        Self {
            cpu_time: run.settings.cpu_time,
            per_iteration: run.settings.per_iteration,
            time_stamps: run.settings.time_stamps,
            versus: run.provenance.versus.is_some(),
            group: run.ranks.iter().any(|rank| rank.group != run.ranks[0].group),
            ..Self::default()
        }
    }

    /// The columns' names and units.
    pub fn format_head(self) -> String {
        let placements = if self.per_iteration {
            "              out-of-place (+ per-iteration)                                in-place (+ \
             per-iteration)"
        } else {
            "           out-of-place                       in-place          "
        };
        let time = if self.cpu_time { "cputime" } else { "time" };
        let names = self.format_names(
            ["size", "count", "type", "redop", "root"],
            [time, "algbw", "busbw", "#wrong"],
            ["i_min", "i_max", "i_p99", "i_cv%"],
            "timestamp",
        );
        let units = self.format_names(
            ["(B)", "(elements)", "", "", ""],
            ["(us)", "(GB/s)", "(GB/s)", ""],
            ["(us)", "(us)", "(us)", "(%)"],
            TIME_FORMAT,
        );
        let twice = |half: &[&str]| pad_cells(half.iter().chain(half));
        let over = |text: &str, columns: usize| format!("{text:^width$}", width = 9 * columns);
        let lines = [
            (
                format!("#{:51}{placements}", ""),
                over("out-of-place", 3) + &over("in-place", 3),
                over("versus, out-of-place", 4) + &over("versus, in-place", 4),
                ["", ""],
            ),
            (
                names,
                twice(&["i_min", "i_med", "i_p99"]),
                twice(&["time", "busbw", "ratio", "best"]),
                ["algo/proto/channels", "group"],
            ),
            (units, twice(&["(us)"; 3]), twice(&["(us)", "(GB/s)", "", ""]), ["", ""]),
        ];
        let mut text = if self.brief { "" } else { "#\n" }.to_owned();
        for (line, statistics, versus, last) in lines {
            text.push_str(&self.extend_line(line, &statistics, &versus, last));
            text.push('\n');
        }
        text
    }

    /// A line of names or units.
    fn format_names(
        self,
        first: [&str; 5],
        half: [&str; 4],
        iterations: [&str; 4],
        time_stamp: &str,
    ) -> String {
        let [size, count, data_type, op, root] = first;
        let [time, algbw, busbw, wrong] = half;
        let mut half = format!("  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}");
        if self.per_iteration {
            half.extend(iterations.map(|name| format!("  {name:>7}")));
        }
        let time_stamp = if self.time_stamps { format!("{time_stamp:>19}") } else { String::new() };
        format!("# {size:>10}  {count:>12}  {data_type:>8}  {op:>6}  {root:>6}{half}{half} {time_stamp}")
    }

    /// A row, without the end of the line. A placement that was not measured has `N/A` in its cells.
    /// The time stamp is in `zone`. Empty without any measurement.
    pub fn format_row(
        self,
        out_of_place: Option<&Measurement>,
        in_place: Option<&Measurement>,
        zone: &TimeZone,
    ) -> String {
        let placements = [out_of_place, in_place];
        let (Some(first), Some(last)) = (out_of_place.or(in_place), in_place.or(out_of_place)) else {
            return String::new();
        };
        let mut row = format!(
            "{:>12}  {:>12}  {:>8}  {:>6}  {}",
            if self.brief { binary_size(first.bytes) } else { first.bytes.to_string() },
            first.count,
            first.data_type,
            operator_cell(first),
            root_cell(first)
        );
        for placement in placements {
            row.push_str(&self.placement_cells(placement));
        }
        if self.time_stamps {
            let _ = write!(row, "{:>21}", local_time(&last.measured_at, zone));
        }
        let number =
            |value: Option<f64>| value.map_or_else(|| ABSENT.to_owned(), |value| format_float(value, 7));
        let statistics = placements.map(|measurement| {
            let found = measurement.and_then(|measurement| measurement.statistics.as_ref());
            let of = |value: fn(&Statistics) -> f64| number(found.map(value));
            pad_cells(&[of(|all| all.min_us), of(|all| all.median_us), of(|all| all.p99_us)])
        });
        let versus = placements.map(|measurement| {
            let found = measurement.and_then(|measurement| measurement.versus.as_ref());
            let of = |value: fn(&Versus) -> f64| number(found.map(value));
            let (ratio, best) = (of(|found| found.ratio), of(|found| found.best_ratio));
            pad_cells(&[of(|found| found.time_us), of(|found| found.busbw_gbps), ratio, best])
        });
        let group = first.group.map_or_else(|| ABSENT.to_owned(), |group| group.to_string());
        self.extend_line(row, &statistics.concat(), &versus.concat(), [&algorithms_cell(placements), &group])
    }

    /// One placement's columns.
    fn placement_cells(self, measurement: Option<&Measurement>) -> String {
        let number = |value: Option<f64>, width: usize| match value {
            Some(value) => format_float(value, width),
            None => format!("{ABSENT:>width$}"),
        };
        let time =
            measurement.and_then(|found| if self.cpu_time { found.cpu_time_us } else { Some(found.time_us) });
        let wrong = measurement.and_then(|found| found.wrong);
        let mut half = format!(
            "  {}  {}  {}{}",
            number(time, 7),
            number(measurement.map(|found| found.algbw_gbps), 6),
            number(measurement.map(|found| found.busbw_gbps), 6),
            // nccl-tests makes this cell a column narrower where it has no number.
            wrong.map_or_else(
                || format!("    {ABSENT}"),
                |wrong| format!("  {:>6}", format_significant(wrong as f64))
            )
        );
        if self.per_iteration {
            let statistics = measurement.and_then(|found| found.statistics.as_ref());
            let values: [fn(&Statistics) -> f64; 4] =
                [|all| all.min_us, |all| all.max_us, |all| all.p99_us, Statistics::variation_percent];
            half.extend(values.map(|value| format!("  {}", number(statistics.map(value), 7))));
        }
        half
    }

    /// A line of nccl-tests, with additional columns appended. The last are the algorithm and the group.
    fn extend_line(
        self,
        mut line: String,
        statistics: &str,
        versus: &str,
        [algorithm, group]: [&str; 2],
    ) -> String {
        if self.statistics || self.versus || self.algorithm || self.group {
            let width = 52
                + 2 * (33 + if self.per_iteration { 36 } else { 0 })
                + if self.time_stamps { 21 } else { 1 };
            line = format!("{line:<width$}");
        }
        if self.statistics {
            line.push_str(statistics);
        }
        if self.versus {
            line.push_str(versus);
        }
        if self.algorithm {
            let _ = write!(line, "  {algorithm:>20}");
        }
        if self.group {
            let _ = write!(line, "  {group:>7}");
        }
        line
    }
}

/// Pads cells to the width of a column.
fn pad_cells<T: std::fmt::Display>(cells: impl IntoIterator<Item = T>) -> String {
    cells.into_iter().map(|cell| format!("  {cell:>7}")).collect()
}

/// NCCL's choice for a row: `ring/ll128/16`, of both placements where they differ, with `-` for unknown
/// parts.
fn algorithms_cell(placements: [Option<&Measurement>; 2]) -> String {
    let [outer, inner] = placements.map(|measurement| {
        measurement.and_then(|measurement| measurement.algorithm.as_ref()).map(|chosen| {
            let Algorithm { algorithm, protocol, channels } = chosen;
            let channels = channels.map_or_else(|| "-".to_owned(), |channels| channels.to_string());
            format!("{algorithm}/{}/{channels}", protocol.as_deref().unwrap_or("-"))
        })
    });
    match (outer, inner) {
        (Some(outer), Some(inner)) if outer != inner => format!("{outer}|{inner}"),
        (outer, inner) => outer.or(inner).unwrap_or_else(|| "-".to_owned()),
    }
}
