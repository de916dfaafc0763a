//! JSON Lines: the run, a line per measurement as soon as it is taken, and the outcome.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::run::{Measurement, Outcome, Provenance, Rank, Run, Settings};

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
    outcome: &'a Outcome,
    provenance: &'a Provenance,
    settings: &'a Settings,
    ranks: &'a [Rank],
    notes: &'a [String],
}

#[derive(Serialize)]
struct MeasurementLine<'a> {
    kind: &'static str,
    #[serde(flatten)]
    measurement: &'a Measurement,
}

/// The last line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct EndLine {
    kind: String,
    pub(super) outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<String>,
    #[serde(default)]
    pub(super) notes: Vec<String>,
    summary: Summary,
}

/// Summary of the file, for readers of the last line only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Summary {
    measurements: usize,
    /// Measurements with wrong data; absent when nothing was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong_measurements: Option<usize>,
    /// Absent without measurements, or when a bandwidth is not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_busbw_gbps: Option<f64>,
}

impl Summary {
    fn of(run: &Run) -> Self {
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
pub(super) fn header(run: &Run) -> io::Result<Vec<u8>> {
    let Run {
        schema_version,
        program,
        command,
        started_at,
        ended_at,
        outcome,
        provenance,
        settings,
        ranks,
        measurements: _,
        notes,
    } = run;
    line(&Header {
        kind: "run",
        schema_version: *schema_version,
        program,
        command,
        started_at,
        ended_at: ended_at.as_deref(),
        outcome,
        provenance,
        settings,
        ranks,
        notes,
    })
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(text)
}

/// Writes a whole run that has ended.
pub(super) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&header(run)?)?;
    for measurement in &run.measurements {
        out.write_all(&line(&MeasurementLine { kind: "measurement", measurement })?)?;
    }
    out.write_all(&end(run)?)
}

/// The last line of a run that has ended.
fn end(run: &Run) -> io::Result<Vec<u8>> {
    line(&EndLine {
        kind: "end".to_owned(),
        outcome: run.outcome.clone(),
        ended_at: run.ended_at.clone(),
        notes: run.notes.clone(),
        summary: Summary::of(run),
    })
}

/// An output that can be truncated.
pub(super) trait Truncate: Write {
    /// Keeps the first `length` bytes, and continues to write there.
    fn truncate(&mut self, length: u64) -> io::Result<()>;

    /// Current length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Writes to the storage what the system has buffered.
    fn keep(&mut self) -> io::Result<()>;
}

impl Truncate for File {
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.seek(SeekFrom::Start(length)).map(drop)
    }

    fn length(&self) -> io::Result<u64> {
        self.metadata().map(|found| found.len())
    }

    fn keep(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Writer of a file of JSON Lines after its header.
#[derive(Debug)]
pub(super) struct JsonLines<W> {
    out: W,
    /// Bytes of whole lines.
    length: u64,
    /// Number of measurements written.
    measurements: usize,
    /// True when another process has changed the file's length.
    damaged: bool,
}

impl<W: Truncate> JsonLines<W> {
    /// Continues after a header of `length` bytes.
    pub(super) fn after(out: W, length: u64) -> Self {
        Self { out, length, measurements: 0, damaged: false }
    }

    /// Adds a measurement.
    ///
    /// # Errors
    /// When it cannot be written: then the file ends with the line before.
    pub(super) fn measurement(&mut self, measurement: &Measurement) -> io::Result<()> {
        self.add(&line(&MeasurementLine { kind: "measurement", measurement })?)?;
        self.measurements += 1;
        Ok(())
    }

    /// Adds the missing measurements and the last line.
    ///
    /// # Errors
    /// See [`measurement`](Self::measurement).
    pub(super) fn finish(&mut self, run: &Run) -> io::Result<()> {
        let missing = run.measurements.get(self.measurements..).unwrap_or_default();
        missing.iter().try_for_each(|measurement| self.measurement(measurement))?;
        self.add(&end(run)?)?;
        self.out.keep()
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        self.damaged |= self.out.length()? != self.length;
        if let Err(error) = self.out.write_all(line).and_then(|()| self.out.flush()) {
            // Removes an incomplete line. If this fails too, readers ignore the line.
            let _ = self.out.truncate(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

impl JsonLines<File> {
    /// Returns true when the file of this name has all lines written so far; false when it was removed or truncated.
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
            return Err(io::Error::other(
                "another program has replaced it during the run; name a file of its own for each run",
            ));
        }
        Ok(own.len() == self.length && !self.damaged)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::files::read::parse;
    use crate::sample;

    /// A disk with room for `room` bytes.
    #[derive(Default)]
    struct Disk {
        content: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.room - self.content.len());
            if fits == 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            self.content.extend(&bytes[..fits]);
            Ok(fits)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Truncate for Disk {
        fn truncate(&mut self, length: u64) -> io::Result<()> {
            self.content.truncate(usize::try_from(length).unwrap());
            Ok(())
        }

        fn length(&self) -> io::Result<u64> {
            Ok(self.content.len() as u64)
        }

        fn keep(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn begun(run: &Run, room: usize) -> JsonLines<Disk> {
        let content =
            header(&Run { measurements: Vec::new(), outcome: Outcome::Running, ..run.clone() }).unwrap();
        let length = content.len() as u64;
        JsonLines::after(Disk { content, room }, length)
    }

    #[test]
    fn a_full_disk_cuts_no_line_in_two_and_the_end_goes_on_when_there_is_room() {
        let run = sample::full();
        let whole =
            line(&MeasurementLine { kind: "measurement", measurement: &run.measurements[0] }).unwrap();
        let mut lines = begun(&run, 0);
        // Room for the first measurement and all but one byte of it again.
        lines.out.room = lines.out.content.len() + 2 * whole.len() - 1;
        lines.measurement(&run.measurements[0]).unwrap();
        let kept = lines.out.content.clone();
        let error = lines.measurement(&run.measurements[0]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(lines.out.content, kept);

        let found = parse(&kept).unwrap();
        assert_eq!((found.outcome, &found.measurements[..]), (Outcome::Running, &run.measurements[..1]));

        lines.out.room = 1 << 20;
        lines.finish(&run).unwrap();
        assert_eq!(parse(&lines.out.content).unwrap(), run);
    }

    /// The whole file of a run.
    pub(in crate::files) fn whole(run: &Run) -> String {
        let mut lines = begun(run, 1 << 20);
        lines.finish(run).unwrap();
        String::from_utf8(lines.out.content).unwrap()
    }

    #[test]
    fn the_lines_are_those_that_the_documentation_shows() {
        let run = sample::full();
        let mut lines = begun(&run, 1 << 20);
        lines.measurement(&run.measurements[0]).unwrap();
        lines.finish(&run).unwrap();
        let text = String::from_utf8(lines.out.content).unwrap();
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
        let run = sample::full();
        let mut lines = begun(&run, 1 << 20);
        lines.finish(&run).unwrap();
        let content = lines.out.content;
        let starts: Vec<usize> =
            content.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        for cut in starts[1]..content.len() {
            let found = parse(&content[..cut]).unwrap();
            // A line whose newline alone is missing is whole.
            let whole = starts.iter().filter(|&&start| start <= cut + 1).count() - 1;
            let measured = whole.min(run.measurements.len());
            assert_eq!(found.measurements, run.measurements[..measured], "cut at {cut}");
            let ended = whole > run.measurements.len();
            assert_eq!(found.outcome == Outcome::Complete, ended, "cut at {cut}");
            assert!(ended || found.outcome == Outcome::Running, "cut at {cut}");
        }
    }
}
