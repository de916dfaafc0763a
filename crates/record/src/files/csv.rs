//! CSV (RFC 4180): a row per measurement, which repeats the provenance, so that each row can be read by itself.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use crate::run::{Measurement, Outcome, Placement, Run, Versus};

/// The columns, in order. Names end with the unit, if any: microseconds, GB/s.
pub(super) const COLUMNS: [&str; 55] = [
    "collective",
    "data_type",
    "op",
    "root",
    "placement",
    "bytes",
    "count",
    "cycle",
    "time_us",
    "cpu_time_us",
    "algbw_gbps",
    "busbw_gbps",
    "wrong",
    "operations",
    "samples",
    "min_us",
    "median_us",
    "mean_us",
    "p95_us",
    "p99_us",
    "max_us",
    "deviation_us",
    "algorithm",
    "protocol",
    "channels",
    "measured_at",
    "run",
    "program",
    "started_at",
    "outcome",
    "backend",
    "library_version",
    "cuda_driver",
    "transport",
    "device_name",
    "ranks",
    "hosts",
    "iterations",
    "aggregated",
    "warm_up",
    "average",
    "blocking",
    "graph_launches",
    "registration",
    "unaligned",
    "cta_policy",
    "rounds",
    "vs_backend",
    "vs_library_version",
    "vs_time_us",
    "vs_algbw_gbps",
    "vs_busbw_gbps",
    "vs_wrong",
    "ratio",
    "best_ratio",
];

pub(super) fn write(run: &Run, out: impl Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(COLUMNS)?;
    let common = common(run);
    for measurement in &run.measurements {
        let (row, versus) = (row(measurement), versus(measurement));
        writer.write_record(row.iter().chain(&common).chain(&versus))?;
    }
    // Without measurements, no row has the outcome.
    if run.measurements.is_empty() && run.outcome != Outcome::Complete {
        let (row, versus) = (<[String; 26]>::default(), <[String; 6]>::default());
        writer.write_record(row.iter().chain(&common).chain(&versus))?;
    }
    writer.flush()
}

/// Columns of a measurement, up to `measured_at`.
fn row(measurement: &Measurement) -> [String; 26] {
    let statistics = measurement.statistics.as_ref();
    let of = |value: fn(&crate::statistics::Statistics) -> f64| optional(statistics.map(value), number);
    let algorithm = measurement.algorithm.as_ref();
    [
        measurement.collective.clone(),
        measurement.data_type.clone(),
        measurement.op.clone().unwrap_or_default(),
        optional(measurement.root, text),
        placement(measurement.placement).to_owned(),
        measurement.bytes.to_string(),
        measurement.count.to_string(),
        measurement.cycle.to_string(),
        number(measurement.time_us),
        optional(measurement.cpu_time_us, number),
        number(measurement.algbw_gbps),
        number(measurement.busbw_gbps),
        optional(measurement.wrong, text),
        measurement.operations.to_string(),
        optional(statistics.map(|found| found.samples), text),
        of(|found| found.min_us),
        of(|found| found.median_us),
        of(|found| found.mean_us),
        of(|found| found.p95_us),
        of(|found| found.p99_us),
        of(|found| found.max_us),
        of(|found| found.deviation_us),
        optional(algorithm.map(|found| found.algorithm.clone()), text),
        optional(algorithm.and_then(|found| found.protocol.clone()), text),
        optional(algorithm.and_then(|found| found.channels), text),
        measurement.measured_at.clone(),
    ]
}

/// Columns of the baseline (`--vs`), the last ones.
fn versus(measurement: &Measurement) -> [String; 6] {
    let found = measurement.versus.as_ref();
    let of = |value: fn(&Versus) -> f64| optional(found.map(value), number);
    [
        of(|found| found.time_us),
        of(|found| found.algbw_gbps),
        of(|found| found.busbw_gbps),
        optional(found.and_then(|found| found.wrong), text),
        of(|found| found.ratio),
        of(|found| found.best_ratio),
    ]
}

/// Columns that are equal in all rows, from `run` to `vs_library_version`.
fn common(run: &Run) -> [String; 23] {
    let (provenance, settings) = (&run.provenance, &run.settings);
    let devices: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.device_name.as_str()).collect();
    let hosts: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let first = run.ranks.first().map(|rank| format!(" {} {}", rank.host, rank.pid)).unwrap_or_default();
    [
        format!("{}{first}", run.started_at),
        run.program.clone(),
        run.started_at.clone(),
        outcome(&run.outcome).to_owned(),
        provenance.backend.clone(),
        provenance.library_version.clone(),
        provenance.cuda_driver.clone().unwrap_or_default(),
        provenance.transport.clone().unwrap_or_default(),
        devices.into_iter().collect::<Vec<_>>().join("; "),
        run.ranks.len().to_string(),
        hosts.len().to_string(),
        settings.iterations.to_string(),
        settings.aggregated.to_string(),
        settings.warm_up.to_string(),
        name(&settings.average),
        name(&settings.blocking),
        settings.graph_launches.to_string(),
        name(&settings.registration),
        settings.unaligned.to_string(),
        optional(settings.cta_policy, text),
        optional(settings.rounds, text),
        optional(provenance.versus.as_ref().map(|versus| versus.backend.clone()), text),
        optional(provenance.versus.as_ref().map(|versus| versus.library_version.clone()), text),
    ]
}

/// Name of the placement in JSON.
fn placement(placement: Placement) -> &'static str {
    match placement {
        Placement::OutOfPlace => "out_of_place",
        Placement::InPlace => "in_place",
    }
}

fn outcome(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Running => "running",
        Outcome::Complete => "complete",
        Outcome::Interrupted { .. } => "interrupted",
        Outcome::Failed { .. } => "failed",
    }
}

/// Name of an option's value in JSON.
fn name(choice: &impl Serialize) -> String {
    match serde_json::to_value(choice) {
        Ok(Value::String(name)) => name,
        _ => String::new(),
    }
}

/// A number with all digits; empty when it is not finite.
fn number(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { String::new() }
}

fn text(value: impl ToString) -> String {
    value.to_string()
}

fn optional<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn table(run: &Run) -> Vec<std::collections::BTreeMap<String, String>> {
        let mut out = Vec::new();
        write(run, &mut out).unwrap();
        csv::Reader::from_reader(&out[..]).deserialize().map(Result::unwrap).collect()
    }

    #[test]
    fn each_row_stands_alone_and_each_value_is_in_its_column() {
        let mut run = sample::full();
        run.ranks[1].host = "node,\"2\"".to_owned();
        run.ranks[1].device_name = "NVIDIA H100, 80 GB".to_owned();
        let rows = table(&run);
        assert_eq!(rows.len(), run.measurements.len());
        let first: Vec<(&str, &str)> =
            COLUMNS.iter().map(|&column| (column, rows[0][column].as_str())).collect();
        assert_eq!(
            first,
            [
                ("collective", "allreduce"),
                ("data_type", "float"),
                ("op", "sum"),
                ("root", ""),
                ("placement", "out_of_place"),
                ("bytes", "1048576"),
                ("count", "262144"),
                ("cycle", "0"),
                ("time_us", "12.5"),
                ("cpu_time_us", "3.125"),
                ("algbw_gbps", "83.88608"),
                ("busbw_gbps", "83.88608"),
                ("wrong", "0"),
                ("operations", "40"),
                ("samples", "3"),
                ("min_us", "12.5"),
                ("median_us", "12.5"),
                ("mean_us", "13.541666666666666"),
                ("p95_us", "15.625"),
                ("p99_us", "15.625"),
                ("max_us", "15.625"),
                ("deviation_us", "1.473139127471974"),
                ("algorithm", "ring"),
                ("protocol", "ll128"),
                ("channels", "16"),
                ("measured_at", "2026-11-22T08:30:01.500Z"),
                ("run", "2026-11-22T08:30:00.123Z node-1 4000"),
                ("program", "nccl-bench 0.1.0 (1a2b3c4d5e6f)"),
                ("started_at", "2026-11-22T08:30:00.123Z"),
                ("outcome", "complete"),
                ("backend", "nccl"),
                ("library_version", "2.28.9"),
                ("cuda_driver", "13.0"),
                ("transport", "nvlink"),
                ("device_name", "NVIDIA H100, 80 GB; NVIDIA H200"),
                ("ranks", "2"),
                ("hosts", "2"),
                ("iterations", "20"),
                ("aggregated", "1"),
                ("warm_up", "5"),
                ("average", "mean"),
                ("blocking", "no"),
                ("graph_launches", "0"),
                ("registration", "none"),
                ("unaligned", "0"),
                ("cta_policy", "1"),
                ("rounds", "2"),
                ("vs_backend", "mpi"),
                ("vs_library_version", "Open MPI 4.1.4"),
                ("vs_time_us", "25"),
                ("vs_algbw_gbps", "41.94304"),
                ("vs_busbw_gbps", "41.94304"),
                ("vs_wrong", "0"),
                ("ratio", "0.5"),
                ("best_ratio", "0.6666666666666666"),
            ]
        );
        assert_eq!((rows[1]["placement"].as_str(), rows[1]["wrong"].as_str()), ("in_place", "3"));
        assert_eq!((rows[2]["root"].as_str(), rows[2]["op"].as_str()), ("1", ""));
        let absent =
            ["cpu_time_us", "wrong", "samples", "p99_us", "algorithm", "channels", "vs_time_us", "ratio"];
        assert!(absent.iter().all(|&column| rows[3][column].is_empty()), "{:?}", rows[3]);
    }

    #[test]
    fn what_is_no_number_is_empty() {
        let mut run = sample::full();
        (run.measurements[0].time_us, run.measurements[0].busbw_gbps) = (f64::NAN, f64::INFINITY);
        let rows = table(&run);
        assert_eq!((rows[0]["time_us"].as_str(), rows[0]["busbw_gbps"].as_str()), ("", ""));
    }

    #[test]
    fn a_run_without_measurements_has_the_head_alone() {
        let mut run = sample::full();
        run.measurements.clear();
        let mut out = Vec::new();
        write(&run, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), COLUMNS.join(",") + "\n");
        // A failure before the first measurement is in the file as well.
        let failed = Run { outcome: Outcome::Failed { message: "rank 1 ended".to_owned() }, ..run };
        let mut out = Vec::new();
        write(&failed, &mut out).unwrap();
        let mut reader = csv::Reader::from_reader(&out[..]);
        let outcome = COLUMNS.iter().position(|name| *name == "outcome").unwrap();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!((rows.len(), &rows[0][0], &rows[0][outcome]), (1, "", "failed"));
    }
}
