//! The run of a draft.

use super::super::collective::list_possible;
use super::super::command::Command;
use super::super::table::{Check, Half, Printed, Row};
use super::{Draft, Part};
use crate::collective::{Collective, UNKNOWN_COLLECTIVE};
use crate::files::read::NCCL_TESTS;
use crate::files::read::nccl_tests::argument_settings;
use crate::nccl_tests::command_collective;
use crate::run::{Measurement, Placement, Provenance, Rank, Run, RunOutcome, SCHEMA_VERSION};
use crate::settings::Settings;

const ROUNDED: &str = "read from text: values are rounded, and environment, start and end are not known";
const NO_COMMAND: &str = "the text has no command line: options that its head does not have, such as -a and -R, \
                          are taken for unset";
const INFERRED: &str = "the text does not name the collective, and only one has such columns and bandwidths";
const NOT_NAMED: &str = "the text does not name the collective: write a line with its program above the table, as \
                         in $ all_gather_perf";
const NO_RANKS: &str = "the text does not list all devices: the number of ranks is not known";
const TOO_SLOW: &str = "the program calls the mean busbw too low (NCCL_TESTS_MIN_BW)";
const CPU_TIME: &str = "-C: times were computed from the bandwidths, and are absent where these have less than \
                        three digits";
const CUT_ROW: &str = "the last row has no end, and is left out";

impl Draft {
    /// Makes the run.
    pub(in crate::files::read::text) fn into_run(mut self) -> Run {
        self.end_row();
        let head = self.settings.clone().unwrap_or_default();
        let settings = self.settings.as_ref();
        let agrees = |command: &Command| settings.is_none_or(|settings| command.agrees_with(settings));
        self.command = self.command.take().filter(agrees);
        let ranks = self.take_ranks(&head);
        let group = ranks.first().map(|first| ranks.iter().filter(|rank| rank.group == first.group).count());
        let (collective, mut notes) = self.name_collective(group, &ranks);
        notes.extend(
            [
                Some(ROUNDED),
                self.command.is_none().then_some(NO_COMMAND),
                ranks.is_empty().then_some(NO_RANKS),
                self.is_too_low.then_some(TOO_SLOW),
                self.has_cpu_time().then_some(CPU_TIME),
                self.has_cut_row.then_some(CUT_ROW),
            ]
            .into_iter()
            .flatten()
            .map(str::to_owned),
        );
        notes.extend(self.describe_gap(&head));
        let cycles = self.number_cycles(&head);
        let measurements = self.make_measurements(&collective, group, &cycles, &head);
        let program = self.program.unwrap_or(if self.is_rccl { "rccl-tests" } else { NCCL_TESTS });
        let counted = cycles.iter().max().map_or(1, |last| last + 1);
        let command = self.command.as_ref().map(|command| command.arguments.clone()).unwrap_or_default();
        Run {
            schema_version: SCHEMA_VERSION,
            program: format!("{program} {}", self.program_version).trim_end().to_owned(),
            outcome: self.find_outcome(&head),
            started_at: String::new(),
            ended_at: None,
            provenance: Provenance {
                backend: self
                    .backend
                    .unwrap_or_else(|| if self.is_rccl { "rccl" } else { "nccl" }.to_owned()),
                library_version: self.library_version,
                ..Provenance::default()
            },
            settings: Settings {
                cycles: counted,
                blocking: self.blocking.unwrap_or_default(),
                parallel_init: self.parallel_init,
                per_iteration: self.skipped.is_some(),
                per_iteration_skip: self.skipped.unwrap_or(0),
                cpu_time: measurements.iter().any(|each| each.cpu_time_us.is_some()),
                threads: head.threads,
                gpus: head.gpus,
                min_bytes: head.min_bytes,
                max_bytes: head.max_bytes,
                step_factor: head.step_factor,
                step_bytes: head.step_bytes,
                iterations: head.iterations,
                aggregated: head.aggregated,
                warm_up: head.warm_up,
                checks: head.checks,
                graph_launches: head.graph_launches,
                unaligned: head.unaligned,
                ..argument_settings(&command)
            },
            ranks,
            measurements,
            notes,
            start_phases: Vec::new(),
            left_out: None,
            command,
        }
    }

    /// Returns the devices; none unless all are there. A process lists `threads * gpus` devices, and a long
    /// list is cut.
    fn take_ranks(&mut self, head: &Settings) -> Vec<Rank> {
        let ranks = std::mem::take(&mut self.ranks);
        let per_process = head.threads.saturating_mul(head.gpus).max(1);
        let is_whole = !self.has_damaged_device
            && ranks.iter().enumerate().all(|(index, rank)| rank.rank == index)
            && ranks.chunks(per_process).all(|of_process| {
                let first = &of_process[0];
                of_process.len() == per_process
                    && of_process.iter().all(|rank| (rank.pid, &rank.host) == (first.pid, &first.host))
            });
        if is_whole { ranks } else { Vec::new() }
    }

    /// Returns the name of the collective, and a note about its source.
    fn name_collective(&self, group: Option<usize>, ranks: &[Rank]) -> (String, Vec<String>) {
        if let Some(name) = self.start.as_ref().map(|name| command_collective(std::slice::from_ref(name)))
            && !name.is_empty()
        {
            return (name, Vec::new());
        }
        let Some(columns) = self.columns.as_ref().filter(|_| !self.rows.is_empty()) else {
            return (UNKNOWN_COLLECTIVE.to_owned(), Vec::new());
        };
        let mut possible = list_possible(columns, &self.rows, group);
        // nccl-tests has alltoallv since 2.19, and rccl-tests had it before.
        if self.is_before_2_18(ranks) {
            possible.retain(|&collective| collective != Collective::AllToAllV);
        }
        let of_command = self.command.as_ref().map(|command| command.collective);
        match (of_command.filter(|named| possible.contains(named)), &possible[..]) {
            (Some(named), _) => (named.collective_name().to_owned(), Vec::new()),
            (None, [only]) => (only.collective_name().to_owned(), vec![INFERRED.to_owned()]),
            (None, _) => (UNKNOWN_COLLECTIVE.to_owned(), vec![NOT_NAMED.to_owned()]),
        }
    }

    /// True for the text of nccl-tests before 2.18.
    fn is_before_2_18(&self, ranks: &[Rank]) -> bool {
        let is_of_nvidia =
            |rank: &Rank| ["NVIDIA ", "Tesla "].iter().any(|name| rank.device_name.starts_with(name));
        self.settings.is_some()
            && !self.has_unaligned
            && !self.is_rccl
            && !ranks.is_empty()
            && ranks.iter().all(is_of_nvidia)
    }

    fn has_cpu_time(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.halves).any(|half| half.cpu_time.is_some())
    }

    /// Returns the cycle of each row. The sizes of a type, operator and root are repeated in each cycle.
    fn number_cycles(&self, head: &Settings) -> Vec<usize> {
        let sizes = self.count_sizes(head);
        let (mut cycle, mut in_block) = (0, 0_u64);
        let mut cycles = Vec::with_capacity(self.rows.len());
        for (index, row) in self.rows.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &self.rows[before]);
            let table = |row: &Row| (row.data_type.clone(), row.op.clone(), row.root);
            if before.is_none_or(|before| table(before) != table(row)) {
                (cycle, in_block) = (0, 0);
            }
            let begins_again = match sizes {
                Some(sizes) => in_block > 0 && in_block.is_multiple_of(sizes),
                None => in_block > 0 && before.is_some_and(|before| row.bytes < before.bytes),
            };
            cycle += usize::from(begins_again);
            in_block += 1;
            cycles.push(cycle);
        }
        cycles
    }

    /// Returns the number of sizes of a cycle; `None` when the head does not have it.
    fn count_sizes(&self, head: &Settings) -> Option<u64> {
        let last = self.reduced_bytes.map_or(head.max_bytes, |reduced| reduced.min(head.max_bytes));
        let first = head.min_bytes.min(last);
        if first == 0 {
            return None;
        }
        match (head.step_factor, head.step_bytes) {
            (Some(factor), _) if factor > 1 => {
                let next = |size: &u64| size.checked_mul(factor).filter(|&size| size <= last);
                Some(std::iter::successors(Some(first), next).count() as u64)
            }
            (_, Some(step)) if step > 0 => Some((last - first) / step + 1),
            _ => None,
        }
    }

    fn make_measurements(
        &self,
        collective: &str,
        ranks: Option<usize>,
        cycles: &[usize],
        head: &Settings,
    ) -> Vec<Measurement> {
        let known: Option<Collective> = collective.parse().ok();
        let halves = self
            .rows
            .iter()
            .zip(cycles)
            .flat_map(|(row, &cycle)| row.halves.iter().map(move |half| (row, cycle, half)));
        let measurement = |(row, cycle, half): (&Row, usize, &Half)| {
            let (algbw_gbps, busbw_gbps) = find_bandwidths(row, half, known, ranks);
            Measurement {
                collective: collective.to_owned(),
                cycle,
                data_type: row.data_type.clone(),
                op: row.op.clone(),
                root: row.root,
                placement: half.placement,
                bytes: row.bytes,
                count: row.count,
                time_us: half
                    .time
                    .map_or_else(|| time_of_bandwidth(row.bytes, half.algbw), |time| time.value),
                cpu_time_us: half.cpu_time.map(|time| time.value),
                algbw_gbps,
                busbw_gbps,
                wrong: self.count_wrong(half, known),
                operations: head.iterations.saturating_mul(head.aggregated),
                ..Measurement::default()
            }
        };
        halves.map(measurement).collect()
    }

    /// Returns the number of wrong elements; `None` when nothing was verified, or the text does not tell.
    fn count_wrong(&self, half: &Half, collective: Option<Collective>) -> Option<u64> {
        match half.check {
            Check::NotAvailable => None,
            Check::Wrong(wrong) => Some(wrong),
            // The program does not verify this placement of some collectives.
            Check::Difference => {
                let is_verified = half.placement == Placement::OutOfPlace
                    || collective.is_some_and(Collective::has_in_place);
                (is_verified && self.is_right == Some(true)).then_some(0)
            }
        }
    }

    /// Returns the outcome that the text tells. A text that is not whole tells of no end.
    fn find_outcome(&self, head: &Settings) -> RunOutcome {
        let failed = |message: &str| RunOutcome::Failed { message: message.to_owned() };
        if self.is_right == Some(false) {
            return failed("it counts wrong values");
        }
        if let Some(message) = &self.failure {
            return failed(message);
        }
        let is_ended = self.is_right.is_some() && self.average.is_some();
        if is_ended && self.describe_gap(head).is_none() { RunOutcome::Complete } else { RunOutcome::Running }
    }

    /// Returns the gap of a text that has an end.
    fn describe_gap(&self, head: &Settings) -> Option<String> {
        if self.is_mixed {
            return Some("the tables of several writers are mixed in its text".to_owned());
        }
        let (Some(_), Some(average)) = (self.is_right, self.average) else { return None };
        if self.damaged_rows > 0 {
            return Some(format!("{} of the rows of its text cannot be read", self.damaged_rows));
        }
        // Older releases average the times of all threads, and print those of one.
        let is_comparable = head.threads <= 1 || self.part == Part::End;
        let lacks_rows = is_comparable && !self.has_average(average);
        lacks_rows
            .then(|| "its text lacks rows: they do not have the mean bus bandwidth at its end".to_owned())
    }

    /// Returns false when the rows have another mean than the program has printed.
    fn has_average(&self, average: f64) -> bool {
        let values: Vec<Printed> =
            self.rows.iter().flat_map(|row| &row.halves).map(|half| half.busbw).collect();
        let sum: f64 = values.iter().map(|busbw| busbw.value).sum();
        if !sum.is_finite() || !average.is_finite() {
            return true;
        }
        let count = values.len().max(1) as f64;
        let rounding = values.iter().map(|busbw| busbw.rounding).sum::<f64>() / count;
        // The mean has six digits.
        (sum / count - average).abs() <= rounding + 1e-5 * average.abs() + 1e-9
    }
}

/// Returns algorithm and bus bandwidth. They are computed from the time, which has more digits than small
/// bandwidths, unless the printed values contradict.
fn find_bandwidths(
    row: &Row,
    half: &Half,
    collective: Option<Collective>,
    ranks: Option<usize>,
) -> (f64, f64) {
    let printed = (half.algbw.value, half.busbw.value);
    let (Some(collective), Some(time)) = (collective, half.time) else { return printed };
    // A hypercube's algorithm bandwidth does not count the rank's own part.
    if collective == Collective::Hypercube || time.value <= 0.0 || !time.value.is_finite() {
        return printed;
    }
    let algbw = row.bytes as f64 / (time.value * 1e3);
    let error = algbw * time.rounding / time.value;
    if !half.algbw.agrees_with(algbw, error) {
        return printed;
    }
    let factor = ranks.map(|ranks| collective.bus_factor(ranks));
    match factor.filter(|factor| half.busbw.agrees_with(algbw * factor, error * factor)) {
        Some(factor) => (algbw, algbw * factor),
        None => (algbw, half.busbw.value),
    }
}

/// Returns microseconds; NaN where the bandwidth has too few digits.
fn time_of_bandwidth(bytes: u64, algbw: Printed) -> f64 {
    // GB/s are thousands of bytes per microsecond.
    if algbw.has_three_digits() { bytes as f64 / (algbw.value * 1e3) } else { f64::NAN }
}
