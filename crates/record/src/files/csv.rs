//! CSV (RFC 4180): a row per measurement, which repeats the provenance, so that each row can be read by
//! itself.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::run::{Measurement, Run, RunOutcome};
use crate::settings::Settings;

/// The columns before those of the settings, in order, each with the JSON pointer of its value in
/// [`shared_values`]. Names end with the unit, if any: microseconds, GB/s.
const FIRST: &[(&str, &str)] = &[
    ("collective", "/measurement/collective"),
    ("data_type", "/measurement/data_type"),
    ("op", "/measurement/op"),
    ("root", "/measurement/root"),
    ("placement", "/measurement/placement"),
    ("bytes", "/measurement/bytes"),
    ("count", "/measurement/count"),
    ("cycle", "/measurement/cycle"),
    ("time_us", "/measurement/time_us"),
    ("cpu_time_us", "/measurement/cpu_time_us"),
    ("algbw_gbps", "/measurement/algbw_gbps"),
    ("busbw_gbps", "/measurement/busbw_gbps"),
    ("wrong", "/measurement/wrong"),
    ("operations", "/measurement/operations"),
    ("samples", "/measurement/statistics/samples"),
    ("min_us", "/measurement/statistics/min_us"),
    ("median_us", "/measurement/statistics/median_us"),
    ("mean_us", "/measurement/statistics/mean_us"),
    ("p95_us", "/measurement/statistics/p95_us"),
    ("p99_us", "/measurement/statistics/p99_us"),
    ("max_us", "/measurement/statistics/max_us"),
    ("deviation_us", "/measurement/statistics/deviation_us"),
    ("algorithm", "/measurement/algorithm/algorithm"),
    ("protocol", "/measurement/algorithm/protocol"),
    ("channels", "/measurement/algorithm/channels"),
    ("measured_at", "/measurement/measured_at"),
    ("run", "/run"),
    ("program", "/program"),
    ("started_at", "/started_at"),
    ("outcome", "/outcome/state"),
    ("backend", "/provenance/backend"),
    ("library_version", "/provenance/library_version"),
    ("cuda_driver", "/provenance/cuda_driver"),
    ("transport", "/provenance/transport"),
    ("device_name", "/device_name"),
    ("ranks", "/ranks"),
    ("hosts", "/hosts"),
];

/// The columns after those of the settings.
const LAST: &[(&str, &str)] = &[
    ("vs_backend", "/provenance/versus/backend"),
    ("vs_library_version", "/provenance/versus/library_version"),
    ("vs_time_us", "/measurement/versus/time_us"),
    ("vs_algbw_gbps", "/measurement/versus/algbw_gbps"),
    ("vs_busbw_gbps", "/measurement/versus/busbw_gbps"),
    ("vs_wrong", "/measurement/versus/wrong"),
    ("ratio", "/measurement/versus/ratio"),
    ("best_ratio", "/measurement/versus/best_ratio"),
    ("group", "/measurement/group"),
    ("first_rank", "/measurement/pair/0"),
    ("second_rank", "/measurement/pair/1"),
    ("window", "/settings/pairs/window"),
    ("endpoints", "/settings/pairs/endpoints"),
];

/// The columns in order, with their places.
pub(super) fn list_columns() -> Vec<(&'static str, String)> {
    let fixed = |&(name, place): &(&'static str, &str)| (name, place.to_owned());
    let of_settings = Settings::COLUMNS.iter().map(|&name| (name, format!("/settings/{name}")));
    FIRST.iter().map(fixed).chain(of_settings).chain(LAST.iter().map(fixed)).collect()
}

pub(super) fn write_csv(run: &Run, out: impl Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let columns = list_columns();
    writer.write_record(columns.iter().map(|(name, _)| name))?;
    let mut row = shared_values(run)?;
    let mut write = |measurement: Option<&Measurement>| -> io::Result<()> {
        row["measurement"] = measurement.map(serde_json::to_value).transpose()?.unwrap_or_default();
        if let Some(group) = measurement.and_then(|measurement| measurement.group) {
            row["ranks"] = run.ranks.iter().filter(|rank| rank.group == group).count().into();
        }
        let cells = columns.iter().map(|(_, place)| row.pointer(place).map(cell_text).unwrap_or_default());
        writer.write_record(cells)?;
        Ok(())
    };
    for measurement in &run.measurements {
        write(Some(measurement))?;
    }
    // Without measurements, no row has the outcome.
    if run.measurements.is_empty() && run.outcome != RunOutcome::Complete {
        write(None)?;
    }
    writer.flush()
}

/// The values that are equal in all rows, as in JSON, with a summary of the ranks.
fn shared_values(run: &Run) -> io::Result<Value> {
    let devices: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.device_name.as_str()).collect();
    let hosts: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let first = run.ranks.first().map(|rank| format!(" {} {}", rank.host, rank.pid)).unwrap_or_default();
    Ok(json!({
        "run": format!("{}{first}", run.started_at),
        "program": run.program,
        "started_at": run.started_at,
        "outcome": serde_json::to_value(&run.outcome)?,
        "provenance": serde_json::to_value(&run.provenance)?,
        "settings": serde_json::to_value(&run.settings)?,
        "device_name": devices.into_iter().collect::<Vec<_>>().join("; "),
        "ranks": run.ranks.len(),
        "hosts": hosts.len(),
    }))
}

/// The text of a cell. Numbers have all digits; one that is not finite is null, and its cell is empty.
fn cell_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or(f64::NAN).to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn table(run: &Run) -> Vec<std::collections::BTreeMap<String, String>> {
        let mut out = Vec::new();
        write_csv(run, &mut out).unwrap();
        csv::Reader::from_reader(&out[..]).deserialize().map(Result::unwrap).collect()
    }

    #[test]
    fn each_row_stands_alone_and_each_value_is_in_its_column() {
        let mut run = sample::full_run();
        run.ranks[1].host = "node,\"2\"".to_owned();
        run.ranks[1].device_name = "NVIDIA H100, 80 GB".to_owned();
        let rows = table(&run);
        assert_eq!(rows.len(), run.measurements.len());
        let first: Vec<(&str, &str)> =
            list_columns().iter().map(|&(column, _)| (column, rows[0][column].as_str())).collect();
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
                ("group", ""),
                ("first_rank", ""),
                ("second_rank", ""),
                ("window", "64"),
                ("endpoints", "2"),
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
        let mut run = sample::full_run();
        (run.measurements[0].time_us, run.measurements[0].busbw_gbps) = (f64::NAN, f64::INFINITY);
        let rows = table(&run);
        assert_eq!((rows[0]["time_us"].as_str(), rows[0]["busbw_gbps"].as_str()), ("", ""));
    }

    #[test]
    fn a_run_without_measurements_has_the_head_alone() {
        let mut run = sample::full_run();
        let names: Vec<&str> = list_columns().into_iter().map(|(name, _)| name).collect();
        run.measurements.clear();
        let mut out = Vec::new();
        write_csv(&run, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), names.join(",") + "\n");
        // A failure before the first measurement is in the file as well.
        let failed = Run { outcome: RunOutcome::Failed { message: "rank 1 ended".to_owned() }, ..run };
        let mut out = Vec::new();
        write_csv(&failed, &mut out).unwrap();
        let mut reader = csv::Reader::from_reader(&out[..]);
        let outcome = names.iter().position(|name| *name == "outcome").unwrap();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!((rows.len(), &rows[0][0], &rows[0][outcome]), (1, "", "failed"));
    }
}
