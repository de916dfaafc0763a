//! The text report on standard output, printed by rank 0 while the sweep runs.

use std::fmt::Debug;
use std::io::{self, Write};

use engine::backend::MemoryUse;
use jiff::tz::TimeZone;

use super::Report;
use super::table::{self, Columns, Foot};
use record::ratios::Ratios;
use record::{Measurement, Placement, RankMismatch, Run, Settings};

/// Maximum number of ranks with wrong data that a row names.
const NAMED_RANKS: usize = 8;

/// Explains the columns of `--stats`, whose values may all be above or below `time`.
const STATISTICS: &str = "i_*: the slowest rank's time of each operation, in a second pass where each is \
                          timed; time: the mean of the first pass";

/// Writes a section per collective: a head, rows as their measurements arrive, a foot.
#[derive(Debug)]
pub struct TextReport<W> {
    out: W,
    settings: Settings,
    /// The baseline's backend (`--vs`).
    versus: Option<String>,
    on_gpus: bool,
    columns: Columns,
    minimum_busbw: Option<f64>,
    zone: TimeZone,
    /// The collective whose first lines are already printed, above the list of devices.
    announced: Option<String>,
    section: SectionTotals,
    /// Rows that are not finished, one for each group at most.
    pending: Vec<PendingRow>,
}

/// A row of which the first placement has been measured.
#[derive(Debug)]
struct PendingRow {
    out_of_place: Measurement,
    /// Comments below the row.
    notes: Vec<String>,
}

/// The content of a section's foot.
#[derive(Debug, Default)]
struct SectionTotals {
    collective: String,
    measurements: usize,
    /// `None` until something has been verified.
    failed_checks: Option<u64>,
    busbw_sum: f64,
    ratios: Ratios,
}

impl<W: Write> TextReport<W> {
    /// Writes the lines that need no communicators to `out`: versions, the run's notes, the settings with the
    /// first `collective`, and the devices. Time stamps are in `zone`.
    pub fn start_report(
        mut out: W,
        run: &Run,
        collective: &str,
        columns: Columns,
        zone: TimeZone,
    ) -> io::Result<Self> {
        let mut text = table::version_line(run);
        if !columns.brief {
            text.push_str(&table::provenance_lines(&run.provenance));
        }
        text.extend(run.notes.iter().map(|note| comment_lines(note)));
        let on_gpus = run.provenance.backend == "nccl";
        if columns.brief {
            text.push_str(&table::ranks_line(&run.ranks));
            text.push_str(&table::title_line(collective));
        } else {
            text.push_str(&table::start_lines(collective, &run.settings, on_gpus));
            text.push_str(&table::device_list(&run.ranks));
        }
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(Self {
            out,
            settings: run.settings.clone(),
            on_gpus,
            columns,
            versus: run.provenance.versus.as_ref().map(|versus| versus.backend.clone()),
            minimum_busbw: record::nccl_tests::minimum_busbw(&run.provenance),
            zone,
            announced: Some(collective.to_owned()),
            section: SectionTotals::default(),
            pending: Vec::new(),
        })
    }

    /// Takes the row of a group that is not finished.
    fn take_pending(&mut self, group: Option<usize>) -> Option<PendingRow> {
        let index = self.pending.iter().position(|row| row.out_of_place.group == group)?;
        Some(self.pending.remove(index))
    }

    /// Writes all rows that are not finished.
    fn end_rows(&mut self, before: &str) -> io::Result<()> {
        for row in std::mem::take(&mut self.pending) {
            self.write_row(before, Some(&row.out_of_place), None, &row.notes)?;
        }
        Ok(())
    }

    /// Writes a row and the comments below it.
    fn write_row(
        &mut self,
        before: &str,
        out_of_place: Option<&Measurement>,
        in_place: Option<&Measurement>,
        notes: &[String],
    ) -> io::Result<()> {
        let mut text = format!("{before}{}\n", self.columns.format_row(out_of_place, in_place, &self.zone));
        text.extend(notes.iter().map(|note| comment_lines(note)));
        self.write_text(&text)
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

impl<W: Write + Debug + Send> Report for TextReport<W> {
    /// Begins a collective's section with the settings, unless [`TextReport::start_report`] has just printed
    /// them, and the columns' names. `reduced_to` is the largest size in bytes where memory did not allow the
    /// requested one.
    fn begin_section(&mut self, collective: &str, reduced_to: Option<u64>) -> io::Result<()> {
        let mut text = String::new();
        if self.announced.take().as_deref() != Some(collective) {
            text.push_str(&if self.columns.brief {
                table::title_line(collective)
            } else {
                table::start_lines(collective, &self.settings, self.on_gpus)
            });
        }
        text.push_str(&reduced_to.map(table::reduction_lines).unwrap_or_default());
        if self.columns.statistics && !self.settings.per_iteration {
            text.push_str(&comment_lines(STATISTICS));
        }
        text.push_str(&self.columns.format_head());
        self.section = SectionTotals { collective: collective.to_owned(), ..SectionTotals::default() };
        self.write_text(&text)
    }

    /// Takes one placement's measurement. The row is written when both are there, or when the next row
    /// begins, with the wrong elements below.
    fn write_measurement(&mut self, measurement: &Measurement) -> io::Result<()> {
        let pending = self.take_pending(measurement.group);
        self.section.measurements += 1;
        if measurement.wrong.is_some() {
            *self.section.failed_checks.get_or_insert(0) += measurement.failed_checks();
        }
        self.section.busbw_sum += measurement.busbw_gbps;
        self.section.ratios.add_measurement(measurement);
        let mut notes: Vec<String> =
            wrong_lines("", measurement.placement, &measurement.mismatches).collect();
        if let Some(versus) = &measurement.versus {
            let side = self.versus.as_ref().map(|versus| format!("{versus} ")).unwrap_or_default();
            notes.extend(wrong_lines(&side, measurement.placement, &versus.mismatches));
        }
        if measurement.stable == Some(false) {
            notes.push(format!(
                "NOT STABLE {}: {} round(s) were too few for a median with the precision of --until-stable; \
                 give a longer --budget",
                measurement.placement.placement_words(),
                measurement.rounds_us.len().max(1)
            ));
        }
        let all = self.settings.count_operations();
        if self.settings.budget_seconds.is_some()
            && measurement.stable.is_none()
            && measurement.operations < all
        {
            notes.push(format!(
                "CUT SHORT {}: {} of {all} operations fitted into --budget",
                measurement.placement.placement_words(),
                measurement.operations
            ));
        }
        match measurement.placement {
            Placement::OutOfPlace => {
                if let Some(row) = pending {
                    self.write_row("", Some(&row.out_of_place), None, &row.notes)?;
                }
                self.pending.push(PendingRow { out_of_place: measurement.clone(), notes });
                Ok(())
            }
            Placement::InPlace => {
                let (out_of_place, mut before) = pending.map(|row| (row.out_of_place, row.notes)).unzip();
                before.get_or_insert_default().append(&mut notes);
                let notes = before.unwrap_or_default();
                self.write_row("", out_of_place.as_ref(), Some(measurement), &notes)
            }
        }
    }

    /// Writes lines as comments, below the last row, once that is finished.
    fn write_comment(&mut self, lines: &str) -> io::Result<()> {
        match self.pending.last_mut() {
            Some(row) => row.notes.push(lines.to_owned()),
            None => self.write_text(&comment_lines(lines))?,
        }
        Ok(())
    }

    /// Ends the section. `memory` is the memory use (`-M`).
    fn end_section(&mut self, memory: Option<MemoryUse>) -> io::Result<()> {
        self.end_rows("")?;
        let section = std::mem::take(&mut self.section);
        let ratios = section.ratios.summary_text();
        let foot = Foot {
            collective: &section.collective,
            brief: self.columns.brief,
            failed_checks: section.failed_checks,
            mean_busbw_gbps: section.busbw_sum / section.measurements as f64,
            minimum_busbw_gbps: self.minimum_busbw,
            ratios: self.versus.as_deref().zip(ratios.as_deref()),
            memory,
        };
        self.write_text(&(foot.failure_lines() + &foot.render_foot()))
    }

    /// Ends the report of an incomplete run with the reason, and omits the foot, which scripts take for
    /// success. An incomplete row becomes a comment, which parsers skip.
    fn stop_report(&mut self, why: &str) -> io::Result<()> {
        self.end_rows("# Unfinished row: ")?;
        let wrong = match self.section.failed_checks {
            Some(failed @ 1..) => format!(", and {failed} checks found wrong data"),
            _ => String::new(),
        };
        // A message of several lines stays a comment.
        let why = why.lines().collect::<Vec<_>>().join("\n# ");
        self.write_text(&table::failure_line(&format!("this run is not whole{wrong}: {why}")))
    }
}

/// Turns lines into comments.
fn comment_lines(lines: &str) -> String {
    lines.lines().map(|line| format!("# {line}\n")).collect()
}

/// Wrong elements, one line per rank: `WRONG out of place: rank 1 has 3 wrong elements; the first: ...`, and
/// of the baseline `WRONG mpi out of place: ...`.
fn wrong_lines(
    side: &str,
    placement: Placement,
    mismatches: &[RankMismatch],
) -> impl Iterator<Item = String> {
    let placement = placement.placement_words();
    let named = mismatches.iter().take(NAMED_RANKS).map(move |found| {
        format!(
            "WRONG {side}{placement}: rank {} has {} wrong elements; the first: {}",
            found.rank, found.wrong, found.first
        )
    });
    let unnamed = mismatches.len().saturating_sub(NAMED_RANKS);
    named.chain((unnamed > 0).then(|| format!("WRONG {side}{placement}: so have {unnamed} more ranks")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use record::sample::row as sample;

    fn start<W: Write>(out: W, run: &Run) -> io::Result<TextReport<W>> {
        TextReport::start_report(out, run, "allreduce", Columns::of_run(run), TimeZone::UTC)
    }

    fn report(out: &mut Vec<u8>) -> TextReport<&mut Vec<u8>> {
        start(out, &sample::bare_run()).unwrap()
    }

    fn both(collective: &str) -> [Measurement; 2] {
        [Placement::OutOfPlace, Placement::InPlace]
            .map(|placement| sample::bare_measurement(collective, placement))
    }

    fn text(out: Vec<u8>) -> String {
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_collective_has_a_section_with_its_own_foot() {
        let mut out = Vec::new();
        let mut report = report(&mut out);
        for (collective, busbw, reduced) in [("allreduce", 75.0, None), ("allgather", 25.0, Some(8))] {
            report.begin_section(collective, reduced).unwrap();
            for mut measurement in both(collective) {
                measurement.busbw_gbps = busbw;
                report.write_measurement(&measurement).unwrap();
            }
            report.end_section(None).unwrap();
        }
        let text = text(out);
        assert_eq!(text.matches("# Using devices\n").count(), 1, "{text}");
        let sections: Vec<&str> = text.split("# Collective test starting: ").collect();
        let [first, all_reduce, all_gather] = sections[..] else { panic!("{text}") };
        assert_eq!(first.lines().count(), 4);
        for (section, name, mean) in
            [(all_reduce, "all_reduce_perf", "75"), (all_gather, "all_gather_perf", "25")]
        {
            assert!(section.starts_with(&format!("{name}\n# nThread 1 nGpus 2 minBytes 8 ")), "{section}");
            assert!(section.contains(&format!("# Avg bus bandwidth    : {mean} \n")), "{section}");
            assert!(
                section.ends_with(&format!("#\n# Collective test concluded: {name}\n#\n\n")),
                "{section}"
            );
            assert_eq!(
                section.lines().filter(|line| line.starts_with("        1024 ")).count(),
                1,
                "{section}"
            );
        }
        assert!(!all_reduce.contains("Reducing"), "{all_reduce}");
        assert!(
            all_gather.contains("\n#\n# Reducing maxBytes to 8 due to memory limitation\n#\n#  "),
            "{all_gather}"
        );
    }

    #[test]
    fn a_budget_that_cut_the_operations_is_said_below_the_row() {
        let mut run = record::sample::full_run();
        (run.settings.until_stable, run.settings.rounds, run.settings.budget_seconds) =
            (None, Some(5), Some(0.1));
        let all = run.settings.count_operations();
        assert_eq!(all % (5 * run.settings.iterations), 0);
        for (budget, operations, expected) in
            [(Some(0.1), 1, true), (Some(0.1), all, false), (None, 1, false)]
        {
            run.settings.budget_seconds = budget;
            let mut out = Vec::new();
            let mut report = start(&mut out, &run).unwrap();
            let [mut first, second] = both("allreduce");
            (first.operations, first.stable) = (operations, None);
            report.write_measurement(&first).unwrap();
            report.write_measurement(&Measurement { operations: all, ..second }).unwrap();
            report.end_section(None).unwrap();
            let note = format!("\n# CUT SHORT out of place: 1 of {all} operations fitted into --budget\n");
            let text = text(out);
            assert_eq!(text.contains(&note), expected, "{budget:?} {operations}: {text}");
            assert!(!text.contains("CUT SHORT in place"), "{text}");
        }
    }

    #[test]
    fn wrong_data_and_comments_go_below_the_row() {
        let mut out = Vec::new();
        let mut report = report(&mut out);
        report.begin_section("allreduce", None).unwrap();
        let [mut first, second] = both("allreduce");
        first.wrong = Some(30);
        first.mismatches = (0..10)
            .map(|rank| RankMismatch {
                rank,
                wrong: 3,
                first: format!("element {rank}: expected 1, found 2"),
            })
            .collect();
        report.write_measurement(&first).unwrap();
        report.write_comment("one\ntwo").unwrap();
        report.write_measurement(&second).unwrap();
        report.write_comment("three").unwrap();
        report.end_section(None).unwrap();
        let text = text(out);
        let (_, rows) = text.rsplit_once("         \n").unwrap();
        let lines: Vec<&str> = rows.lines().collect();
        assert!(lines[0].starts_with("        1024 ") && lines[0].split_whitespace().count() == 13, "{rows}");
        assert_eq!(
            lines[1],
            "# WRONG out of place: rank 0 has 3 wrong elements; the first: element 0: expected 1, found 2"
        );
        assert_eq!(lines[9], "# WRONG out of place: so have 2 more ranks");
        assert_eq!(lines[10..13], ["# one", "# two", "# three"]);
        assert_eq!(lines[13], "# Test failure: FAILED: 10 checks found wrong data");
        assert_eq!(lines[14], "# Out of bounds values : 10 FAILED");
        assert_eq!(text.matches("out-of-place").count(), 1, "in the table's head alone: {text}");
    }

    #[test]
    fn a_row_that_is_not_finished_is_no_row() {
        let mut out = Vec::new();
        let mut report = report(&mut out);
        report.begin_section("allreduce", None).unwrap();
        report.write_measurement(&both("allreduce")[0]).unwrap();
        report.stop_report("rank 1 ended:\nit was killed").unwrap();
        let text = text(out);
        assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
        let end: Vec<&str> = text.lines().rev().take(3).collect();
        assert_eq!(
            end[..2],
            ["# it was killed", "# Test failure: FAILED: this run is not whole: rank 1 ended:"]
        );
        for success in ["OK", "Out of bounds", "bandwidth", "concluded"] {
            assert!(!text.contains(success), "{text}");
        }
        assert!(end[2].starts_with("# Unfinished row:         1024 ") && end[2].contains("10.00"), "{text}");
    }

    #[test]
    fn a_placement_that_was_left_out_has_cells_without_numbers() {
        let mut out = Vec::new();
        let mut report = report(&mut out);
        report.begin_section("allreduce", None).unwrap();
        let [first, second] = both("allreduce");
        report.write_measurement(&first).unwrap();
        report.write_measurement(&first).unwrap();
        report.write_measurement(&second).unwrap();
        report.write_measurement(&second).unwrap();
        let text = text(out);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().skip(5).collect())
            .collect();
        let (numbers, none) = (["10.00", "50.00", "75.00", "0"], ["N/A"; 4]);
        assert_eq!(rows, [[numbers, none].concat(), [numbers, numbers].concat(), [none, numbers].concat()]);
    }

    #[test]
    fn what_only_this_program_has_follows_the_first_line() {
        let mut run = sample::bare_run();
        run.notes.push("element 5 of rank 1 is damaged".to_owned());
        let mut out = Vec::new();
        start(&mut out, &run).unwrap();
        let own = "# Backend: nccl 2.28.9 from /usr/lib/libnccl.so.2; CUDA driver 13.0\n\
                   # World: mpirun (Open MPI), 2 processes\n\
                   # System: Linux 6.8.0 x86_64\n\
                   # element 5 of rank 1 is damaged\n";
        let expected = format!("{}{own}# Collective test starting: ", table::version_line(&run));
        let text = text(out);
        assert!(text.starts_with(&expected), "{text}");
    }

    #[test]
    fn a_closed_pipe_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut report = start(ours, &sample::bare_run()).unwrap();
        drop(theirs);
        let error = report.begin_section("allreduce", None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
