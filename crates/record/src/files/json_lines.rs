//! JSON Lines: the run, a line per measurement as soon as it is taken, and the outcome.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::replacement::REPLACED;
use super::reserve::{is_no_space, shorten_run};
use crate::run::{LeftOut, Measurement, Provenance, Rank, Run, RunOutcome, StartPhase};
use crate::settings::Settings;

/// The first line: the run without its measurements.
#[derive(Serialize)]
struct Header<'a> {
    kind: &'static str,
    schema_version: u32,
    program: &'a str,
    command: &'a [String],
    started_at: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<&'a str>,
    outcome: &'a RunOutcome,
    provenance: &'a Provenance,
    settings: &'a Settings,
    ranks: &'a [Rank],
    #[serde(skip_serializing_if = "<[StartPhase]>::is_empty")]
    start_phases: &'a [StartPhase],
    notes: &'a [String],
}

#[derive(Serialize)]
struct MeasurementLine<'a> {
    kind: &'static str,
    #[serde(flatten)]
    measurement: &'a Measurement,
}

/// The line after the ranks have connected.
#[derive(Serialize, Deserialize)]
pub(super) struct ConnectedLine {
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) start_phases: Vec<StartPhase>,
    #[serde(default)]
    pub(super) notes: Vec<String>,
}

/// The last line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct EndLine {
    kind: String,
    pub(super) outcome: RunOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<String>,
    #[serde(default)]
    pub(super) notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<LeftOut>,
    pub(super) summary: EndSummary,
}

/// Summary of the file, for readers of the last line only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct EndSummary {
    pub(super) measurements: usize,
    /// Measurements with wrong data; absent when nothing was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wrong_measurements: Option<usize>,
    /// Absent without measurements, or when a bandwidth is not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_busbw_gbps: Option<f64>,
}

impl EndSummary {
    fn from_run(run: &Run) -> Self {
        let verified = run.measurements.iter().any(|each| each.wrong.is_some());
        Self {
            measurements: run.measurements.len(),
            wrong_measurements: verified
                .then(|| run.measurements.iter().filter(|each| each.is_wrong()).count()),
            mean_busbw_gbps: run.mean_busbw_gbps().filter(|mean| mean.is_finite()),
        }
    }
}

/// The first line of a file.
pub(super) fn header_line(run: &Run) -> io::Result<Vec<u8>> {
    serialize_line(&Header {
        kind: "run",
        schema_version: run.schema_version,
        program: &run.program,
        command: &run.command,
        started_at: &run.started_at,
        ended_at: run.ended_at.as_deref(),
        outcome: &run.outcome,
        provenance: &run.provenance,
        settings: &run.settings,
        ranks: &run.ranks,
        start_phases: &run.start_phases,
        notes: &run.notes,
    })
}

fn serialize_line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(text)
}

/// Writes a whole run that has ended.
pub(super) fn write_lines(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&header_line(run)?)?;
    for measurement in &run.measurements {
        out.write_all(&serialize_line(&MeasurementLine { kind: "measurement", measurement })?)?;
    }
    out.write_all(&end_line(run)?)
}

/// The last line of a run that has ended.
fn end_line(run: &Run) -> io::Result<Vec<u8>> {
    serialize_line(&EndLine {
        kind: "end".to_owned(),
        outcome: run.outcome.clone(),
        ended_at: run.ended_at.clone(),
        notes: run.notes.clone(),
        left_out: run.left_out,
        summary: EndSummary::from_run(run),
    })
}

/// Writer of a file of JSON Lines after its header.
#[derive(Debug)]
pub(super) struct JsonLines {
    out: File,
    /// Bytes of whole lines.
    length: u64,
    /// Where the line of each measurement begins.
    starts: Vec<u64>,
    /// The transport in the lines written.
    transport: Option<String>,
    /// The times of the start in the lines written.
    start_phases: Vec<StartPhase>,
    /// True when another process has changed the file's length.
    damaged: bool,
}

impl JsonLines {
    /// Continues after the header of `run`, of `length` bytes.
    pub(super) fn after_header(out: File, length: u64, run: &Run) -> Self {
        let Run { start_phases, provenance, .. } = run;
        let transport = provenance.transport.clone();
        Self {
            out,
            length,
            starts: Vec::new(),
            transport,
            start_phases: start_phases.clone(),
            damaged: false,
        }
    }

    /// Adds the transport and the times of the start, unless the lines have them, with the notes so far.
    ///
    /// # Errors
    /// See [`add_measurement`](Self::add_measurement).
    pub(super) fn add_connected(&mut self, run: &Run) -> io::Result<()> {
        let transport = run.provenance.transport.clone();
        if self.transport == transport && self.start_phases == run.start_phases {
            return Ok(());
        }
        self.add_line(&serialize_line(&ConnectedLine {
            kind: "connected".to_owned(),
            transport: transport.clone(),
            start_phases: run.start_phases.clone(),
            notes: run.notes.clone(),
        })?)?;
        self.transport = transport;
        self.start_phases.clone_from(&run.start_phases);
        Ok(())
    }

    /// Adds a measurement.
    ///
    /// # Errors
    /// When it cannot be written: then the file ends with the line before.
    pub(super) fn add_measurement(&mut self, measurement: &Measurement) -> io::Result<()> {
        let start = self.length;
        self.add_line(&serialize_line(&MeasurementLine { kind: "measurement", measurement })?)?;
        self.starts.push(start);
        Ok(())
    }

    /// Adds the missing measurements and the last line. On a full disk the last line replaces as many
    /// measurements as it needs the space of.
    ///
    /// # Errors
    /// See [`add_measurement`](Self::add_measurement).
    pub(super) fn finish_file(&mut self, run: &Run) -> io::Result<()> {
        let added = self.add_rest(run);
        if let Err(error) = &added
            && is_no_space(error)
        {
            self.end_shortened(run, error)?;
        }
        self.out.sync_all().and(added)
    }

    fn add_rest(&mut self, run: &Run) -> io::Result<()> {
        self.add_connected(run)?;
        let missing = run.measurements.get(self.starts.len()..).unwrap_or_default();
        missing.iter().try_for_each(|measurement| self.add_measurement(measurement))?;
        self.add_line(&end_line(run)?)
    }

    /// Adds the last line of a run that has lost its last measurements for this reason.
    fn end_shortened(&mut self, run: &Run, reason: &io::Error) -> io::Result<()> {
        let full = self.length;
        loop {
            if self.starts.len() < run.measurements.len() {
                let last = end_line(&shorten_run(run, self.starts.len(), reason))?;
                // More would not help: the file system cannot write at all.
                let is_enough = full - self.length > last.len() as u64;
                if self.add_line(&last).is_ok() || is_enough {
                    return Ok(());
                }
            }
            let Some(start) = self.starts.pop() else { return Ok(()) };
            self.length = start;
            self.cut_rest()?;
        }
    }

    /// Removes what is behind the whole lines.
    fn cut_rest(&mut self) -> io::Result<()> {
        self.out.set_len(self.length)?;
        self.out.seek(SeekFrom::Start(self.length)).map(drop)
    }

    fn add_line(&mut self, line: &[u8]) -> io::Result<()> {
        self.damaged |= self.out.metadata()?.len() != self.length;
        if let Err(error) = self.out.write_all(line) {
            // Removes an incomplete line. If this fails too, readers ignore the line.
            let _ = self.cut_rest();
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Returns true when the file of this name has all lines written so far; false when it was removed or
    /// truncated.
    ///
    /// # Errors
    /// When another file has its name.
    pub(super) fn are_in(&self, path: &Path) -> io::Result<bool> {
        let there = match path.metadata() {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let own = self.out.metadata()?;
        if (there.dev(), there.ino()) != (own.dev(), own.ino()) {
            return Err(io::Error::other(REPLACED));
        }
        Ok(own.len() == self.length && !self.damaged)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::files::read::parse_text;
    use crate::sample;

    /// The whole file of a run, as it is written while it runs.
    pub(in crate::files) fn whole(run: &Run) -> String {
        let header =
            header_line(&Run { measurements: Vec::new(), outcome: RunOutcome::Running, ..run.clone() })
                .unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header).unwrap();
        let mut lines = JsonLines::after_header(file, header.len() as u64, run);
        lines.add_measurement(&run.measurements[0]).unwrap();
        lines.finish_file(run).unwrap();
        lines.out.rewind().unwrap();
        io::read_to_string(lines.out).unwrap()
    }

    #[test]
    fn the_lines_are_those_that_the_documentation_shows() {
        let run = sample::full_run();
        let text = whole(&run);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
        let middle = vec!["measurement"; run.measurements.len()];
        assert_eq!(kinds, [&["run"], &middle[..], &["end"]].concat());
        assert_eq!(lines[0].get("measurements"), None);
        let end = lines.last().unwrap();
        let count = run.measurements.len();
        let mean = run.mean_busbw_gbps().unwrap();
        let summary =
            serde_json::json!({"measurements": count, "wrong_measurements": 1, "mean_busbw_gbps": mean});
        assert_eq!(end["summary"], summary);
        assert_eq!(end["outcome"], serde_json::json!({"state": "complete"}));
    }

    #[test]
    fn a_file_cut_anywhere_has_its_whole_lines() {
        let run = sample::full_run();
        let content = whole(&run).into_bytes();
        let starts: Vec<usize> =
            content.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        for cut in starts[1]..content.len() {
            let found = parse_text(&content[..cut]).unwrap();
            // A line whose newline alone is missing is whole.
            let whole = starts.iter().filter(|&&start| start <= cut + 1).count() - 1;
            let measured = whole.min(run.measurements.len());
            assert_eq!(found.measurements, run.measurements[..measured], "cut at {cut}");
            let ended = whole > run.measurements.len();
            assert_eq!(found.outcome == RunOutcome::Complete, ended, "cut at {cut}");
            assert!(ended || found.outcome == RunOutcome::Running, "cut at {cut}");
        }
    }
}
