//! The text of the OSU Micro-Benchmarks.
//!
//! It has no end, no number of ranks, and for some collectives the bytes of one rank's part as the size.

use super::collective::element_bytes;
use crate::collective::Collective;
use crate::run::{Measurement, Provenance, Run, RunOutcome, SCHEMA_VERSION};
use crate::settings::Settings;

const NO_END: &str = "the text of the OSU benchmarks has neither ranks nor an end: whether the run was complete \
                      is not known";
const OF_BANDWIDTH: &str = "times are the size divided by the bandwidth";
/// Name of a type that the text does not have.
const UNKNOWN_TYPE: &str = "unknown";

/// A line that is not a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OsuLine<'a> {
    /// The part of the title that names the library and the buffers, the test, and the version.
    Title { library: &'a str, test: &'a str, version: &'a str },
    /// Type of the elements, by MPI's name.
    DataType(&'a str),
    /// Columns of the table.
    Columns(Vec<&'a str>),
}

/// Recognizes a line. `None` for rows and for lines of other programs.
pub(super) fn read_osu_line(line: &str) -> Option<OsuLine<'_>> {
    let text = line.strip_prefix('#')?.trim();
    if let Some(title) = text.strip_prefix("OSU ") {
        let (library, rest) = title.split_once(' ')?;
        let (test, version) = rest.split_once(" Test")?;
        return Some(OsuLine::Title { library, test, version: version.trim().trim_start_matches('v') });
    }
    if let Some(name) = text.strip_prefix("Datatype:") {
        return Some(OsuLine::DataType(name.trim().trim_end_matches('.')));
    }
    let columns: Vec<&str> = text.split("  ").map(str::trim).filter(|name| !name.is_empty()).collect();
    (columns.len() > 1 && columns[0] == "Size").then_some(OsuLine::Columns(columns))
}

/// A column that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Size,
    Latency,
    Bandwidth,
    Iterations,
    Validation,
    Other,
}

/// The facts of a run so far.
#[derive(Debug)]
pub(super) struct OsuDraft {
    library: String,
    test: String,
    version: String,
    data_type: Option<String>,
    columns: Vec<Column>,
    measurements: Vec<Measurement>,
    damaged_rows: usize,
}

impl OsuDraft {
    pub(super) fn with_title(library: &str, test: &str, version: &str) -> Self {
        Self {
            library: library.to_owned(),
            test: test.to_owned(),
            version: version.to_owned(),
            data_type: None,
            columns: Vec::new(),
            measurements: Vec::new(),
            damaged_rows: 0,
        }
    }

    pub(super) fn add_data_type(&mut self, name: &str) {
        self.data_type = Some(match name {
            "MPI_CHAR" | "MPI_SIGNED_CHAR" => "int8".to_owned(),
            "MPI_UNSIGNED_CHAR" | "MPI_BYTE" => "uint8".to_owned(),
            "MPI_INT" => "int32".to_owned(),
            "MPI_FLOAT" => "float".to_owned(),
            "MPI_DOUBLE" => "double".to_owned(),
            other => other.to_ascii_lowercase(),
        });
    }

    pub(super) fn add_columns(&mut self, names: &[&str]) {
        self.columns = names.iter().map(|name| Column::from_name(name)).collect();
    }

    /// True when the table has columns that can be read.
    pub(super) fn has_table(&self) -> bool {
        self.columns.iter().any(|column| matches!(column, Column::Latency | Column::Bandwidth))
    }

    /// Adds a row; returns false for a line that is none. The end of the file in the middle of a line counts
    /// as a damaged row.
    pub(super) fn add_row(&mut self, line: &str, is_whole: bool) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [first, second, ..] = words[..] else { return false };
        if !self.has_table() || first.parse::<u64>().is_err() || second.parse::<f64>().is_err() {
            return false;
        }
        match self.read_row(&words).filter(|_| is_whole) {
            Some(measurement) => self.measurements.push(measurement),
            None => self.damaged_rows += 1,
        }
        true
    }

    fn read_row(&self, words: &[&str]) -> Option<Measurement> {
        if words.len() != self.columns.len() {
            return None;
        }
        let mut measurement =
            Measurement { time_us: f64::NAN, algbw_gbps: f64::NAN, ..Measurement::default() };
        for (column, word) in self.columns.iter().zip(words) {
            match column {
                Column::Size => measurement.bytes = word.parse().ok()?,
                Column::Latency => measurement.time_us = word.parse().ok()?,
                // MB/s are millions of bytes.
                Column::Bandwidth => measurement.algbw_gbps = word.parse::<f64>().ok()? / 1e3,
                Column::Iterations => measurement.operations = word.parse().ok()?,
                Column::Validation => measurement.wrong = Some(u64::from(*word != "Pass")),
                Column::Other => {}
            }
        }
        // GB/s are thousands of bytes per microsecond.
        let thousands = measurement.bytes as f64 / 1e3;
        if measurement.time_us.is_nan() {
            measurement.time_us = thousands / measurement.algbw_gbps;
        } else {
            measurement.algbw_gbps = thousands / measurement.time_us;
        }
        Some(measurement)
    }

    /// Makes the run.
    pub(super) fn into_run(self) -> Run {
        let name = self.name_test();
        let known: Option<Collective> = name.parse().ok();
        let data_type = self.data_type.unwrap_or_else(|| UNKNOWN_TYPE.to_owned());
        let element = element_bytes(&data_type);
        let is_bandwidth = self.columns.contains(&Column::Bandwidth);
        let measurements = self.measurements.into_iter().map(|each| Measurement {
            collective: name.clone(),
            data_type: data_type.clone(),
            op: known.filter(|known| known.is_reduction()).map(|_| "sum".to_owned()),
            count: element.map_or(0, |element| each.bytes / element),
            // Others need the number of ranks.
            busbw_gbps: match known {
                Some(Collective::Broadcast | Collective::Reduce) => each.algbw_gbps,
                _ => f64::NAN,
            },
            ..each
        });
        let library = self.library.split('-').next().unwrap_or_default().to_ascii_lowercase();
        let notes = [Some(NO_END), is_bandwidth.then_some(OF_BANDWIDTH)];
        Run {
            schema_version: SCHEMA_VERSION,
            program: format!("OSU Micro-Benchmarks {}", self.version).trim_end().to_owned(),
            command: Vec::new(),
            started_at: String::new(),
            ended_at: None,
            outcome: match self.damaged_rows {
                0 => RunOutcome::Running,
                count => {
                    RunOutcome::Failed { message: format!("{count} of the rows of its text cannot be read") }
                }
            },
            provenance: Provenance {
                backend: library.split('_').next().unwrap_or_default().to_owned(),
                ..Provenance::default()
            },
            settings: Settings { cycles: 1, ..Settings::default() },
            ranks: Vec::new(),
            measurements: measurements.collect(),
            notes: notes.into_iter().flatten().map(str::to_owned).collect(),
            start_phases: Vec::new(),
            left_out: None,
        }
    }

    /// Returns the collective where its size is that of nccl-tests: the bytes of the larger buffer. Other
    /// tests have the name of their program.
    fn name_test(&self) -> String {
        let is_mpi_call = self.library.contains('_');
        let name = match self.test.to_ascii_lowercase().as_str() {
            _ if is_mpi_call => "",
            "allreduce latency" => "allreduce",
            "broadcast latency" => "broadcast",
            "reduce latency" => "reduce",
            "reduce_scatter latency" => "reducescatter",
            "allgather latency" => "osu_allgather",
            "all-to-all personalized exchange latency" => "osu_alltoall",
            "all-to-allv personalized exchange latency" => "osu_alltoallv",
            "gather latency" => "osu_gather",
            "scatter latency" => "osu_scatter",
            "latency" => "osu_latency",
            "bandwidth" => "osu_bw",
            "bi-directional bandwidth" => "osu_bibw",
            "multi latency" => "osu_multi_lat",
            "multiple bandwidth / message rate" => "osu_mbw_mr",
            _ => "",
        };
        if !name.is_empty() {
            return name.to_owned();
        }
        let of_call = if is_mpi_call { self.library.split('-').next().unwrap_or_default() } else { "" };
        let words: Vec<&str> = of_call
            .split('_')
            .chain(self.test.split(|letter: char| !letter.is_ascii_alphanumeric()))
            .filter(|word| !word.is_empty())
            .collect();
        format!("osu_{}", words.join("_").to_ascii_lowercase())
    }
}

impl Column {
    fn from_name(name: &str) -> Self {
        match name {
            "Size" => Self::Size,
            "Avg Latency(us)" | "Latency (us)" | "Latency(us)" => Self::Latency,
            "Bandwidth (MB/s)" | "MB/s" => Self::Bandwidth,
            "Iterations" => Self::Iterations,
            "Validation" => Self::Validation,
            _ => Self::Other,
        }
    }
}
