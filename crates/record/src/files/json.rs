//! Native JSON: the serialised [`Run`].

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::run::{Measurement, Run};

/// Number of levels with line breaks: the run's fields, and their fields. So a measurement is one line.
const LEVELS: usize = 2;

pub(super) fn write_json(run: &Run, mut out: impl Write) -> io::Result<()> {
    run.serialize(&mut Serializer::with_formatter(&mut out, Lines::default()))?;
    out.write_all(b"\n")
}

/// Returns the number of bytes of a measurement in the file of a run.
pub(super) fn count_bytes(measurement: &Measurement) -> u64 {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, Lines { level: LEVELS, filled: true });
    measurement.serialize(&mut serializer).map_or(0, |()| text.len() as u64)
}

/// A JSON formatter with line breaks in the outer levels only.
#[derive(Default)]
struct Lines {
    level: usize,
    /// True when the current array or object has an element.
    filled: bool,
}

impl Lines {
    fn begin_level<W: Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.filled = false;
        out.write_all(bracket)
    }

    fn begin_item<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        match (first, self.level <= LEVELS) {
            (true, true) => {}
            (true, false) => return Ok(()),
            (false, true) => out.write_all(b",")?,
            (false, false) => return out.write_all(b", "),
        }
        self.new_line(out)
    }

    fn end_level<W: Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.filled && self.level < LEVELS {
            self.new_line(out)?;
        }
        self.filled = true;
        out.write_all(bracket)
    }

    fn new_line<W: Write + ?Sized>(&self, out: &mut W) -> io::Result<()> {
        out.write_all(b"\n")?;
        (0..self.level).try_for_each(|_| out.write_all(b"  "))
    }
}

impl Formatter for Lines {
    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin_level(out, b"[")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end_level(out, b"]")
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin_level(out, b"{")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end_level(out, b"}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn text(run: &Run) -> String {
        let mut out = Vec::new();
        write_json(run, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_schema_does_not_change_unnoticed() {
        // If it must change: a new field needs a default for older files, any other change a new
        // SCHEMA_VERSION.
        assert_eq!(text(&sample::full_run()), include_str!("../../tests/data/run.json"));
    }

    #[test]
    fn a_file_of_this_schema_is_read_as_it_was_meant() {
        let found: Run = serde_json::from_str(include_str!("../../tests/data/run.json")).unwrap();
        assert_eq!(found, sample::full_run());
    }

    #[test]
    fn a_measurement_is_a_line_and_an_empty_list_is_short() {
        let mut run = sample::full_run();
        let lines = text(&run).lines().filter(|line| line.contains("\"collective\"")).count();
        assert_eq!(lines, run.measurements.len());
        run.measurements.clear();
        assert!(text(&run).contains("\n  \"measurements\": [],\n"), "{}", text(&run));
    }

    #[test]
    fn a_measurement_is_as_long_as_its_line() {
        let run = sample::full_run();
        let text = text(&run);
        let lines = text.lines().filter(|line| line.contains("\"collective\""));
        let lengths: Vec<u64> = lines.map(|line| line.trim().trim_end_matches(',').len() as u64).collect();
        assert_eq!(lengths, run.measurements.iter().map(count_bytes).collect::<Vec<_>>());
    }

    #[test]
    fn no_number_makes_invalid_json() {
        let mut run = sample::full_run();
        for (measurement, value) in run.measurements.iter_mut().zip([f64::NAN, f64::INFINITY]) {
            measurement.time_us = value;
            measurement.cpu_time_us = Some(value);
            measurement.algbw_gbps = value;
            measurement.busbw_gbps = value;
            measurement.statistics = crate::statistics::Statistics::from_times(&[value]);
            measurement.per_iteration = Some(crate::run::PerIteration {
                skipped: 0,
                times_us: vec![value],
                processes_us: vec![vec![value]],
            });
            measurement.per_rank =
                vec![crate::run::RankTimes { time_us: value, statistics: measurement.statistics }];
        }
        let found: Run = serde_json::from_str(&text(&run)).unwrap();
        for measurement in found.measurements.iter().take(2) {
            assert!(measurement.time_us.is_nan() && measurement.busbw_gbps.is_nan());
            assert_eq!(measurement.cpu_time_us, None);
            assert!(measurement.statistics.unwrap().p99_us.is_nan());
            let times = measurement.per_iteration.as_ref().unwrap();
            assert!(times.times_us[0].is_nan() && times.processes_us[0][0].is_nan());
            assert!(measurement.per_rank[0].time_us.is_nan());
        }
    }
}
