//! The JSON that nccl-tests writes (`-J`, version 3), read as a [`Run`].
//!
//! It differs from native JSON: numbers that are not finite can be bare words, which are not valid JSON;
//! booleans and the root are strings; `-a`, `-R`, `-z`, `-N` and others are only in the command line.

use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::NCCL_TESTS;
use super::error::ReadProblem;
use crate::collective::Collective;
use crate::files::nccl_tests::{Config, DeviceEntry, Document, Half, Row, Times, VERSION};
use crate::nccl_tests::command_collective;
use crate::provenance;
use crate::run::{Measurement, PerIteration, Placement, Provenance, Rank, Run, RunOutcome, SCHEMA_VERSION};
use crate::settings::{Average, Blocking, Registration, Settings};
use crate::statistics::Statistics;

/// Returns true when a text begins like a file of nccl-tests.
pub(super) fn is_nccl_tests(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{\"version\":")
}

/// Fails when the file has an unsupported version.
pub(super) fn known_version(fields: &Map<String, Value>) -> Result<(), ReadProblem> {
    match fields.get("version").and_then(Value::as_u64) {
        None | Some(VERSION) => Ok(()),
        Some(found) => Err(ReadProblem::Damaged(format!(
            "it has version {found} of nccl-tests' JSON, and this program reads version {VERSION}"
        ))),
    }
}

/// Properties of measurements that rows do not contain.
pub(super) struct Head {
    collective: String,
    aggregated: usize,
}

/// Returns true when `fields` have the fields that rows depend on.
pub(super) fn has_head(fields: &Map<String, Value>) -> bool {
    fields.get("config").is_some_and(Value::is_object) && fields.get("args").is_some_and(Value::is_array)
}

/// Reads the fields that rows depend on.
pub(super) fn read_head(fields: &Map<String, Value>) -> Result<Head, serde_json::Error> {
    let args = Vec::<String>::deserialize(&fields["args"])?;
    let config = Config::deserialize(&fields["config"])?;
    Ok(Head { collective: command_collective(&args), aggregated: config.aggregated_iterations })
}

impl Head {
    /// The measurements of a row. Their cycle is the row's number, until [`number_cycles`].
    pub(super) fn row_measurements(&self, number: usize, row: &Row) -> impl Iterator<Item = Measurement> {
        let halves = [
            (Placement::OutOfPlace, &row.out_of_place, &row.out_of_place_per_iter),
            (Placement::InPlace, &row.in_place, &row.in_place_per_iter),
        ];
        let collective = match row.experiment_name.parse::<Collective>() {
            Ok(named) => named.collective_name(),
            Err(_) => &self.collective,
        };
        halves.into_iter().filter_map(move |(placement, half, times)| {
            Some(Measurement {
                collective: collective.to_owned(),
                cycle: number,
                operations: row.actual_iterations * self.aggregated,
                ..half_measurement(row, placement, half.as_ref()?, times.as_ref())
            })
        })
    }
}

/// Converts row numbers to cycles: rows do not have their cycle, but each cycle has the same number of rows.
/// An endless run (0) never writes a complete file.
pub(super) fn number_cycles(measurements: &mut [Measurement], rows: usize, cycles: usize) {
    let rows_per_cycle = if cycles > 0 && rows.is_multiple_of(cycles) { rows / cycles } else { rows };
    for measurement in measurements {
        measurement.cycle /= rows_per_cycle.max(1);
    }
}

/// Makes a run, without measurements, from the other fields.
pub(super) fn make_run(fields: Map<String, Value>) -> Result<Run, ReadProblem> {
    known_version(&fields)?;
    let file: Document = serde_json::from_value(Value::Object(fields))
        .map_err(|error| ReadProblem::Damaged(format!("it is not as nccl-tests writes it: {error}")))?;
    let command = CommandLine(&file.args);
    let config = &file.config;
    let messages: Vec<&str> =
        file.errors.iter().map(|error| error.trim()).filter(|error| !error.is_empty()).collect();
    let ended_at = file.end_time.as_deref().map(convert_time);
    let mut notes =
        vec!["read from the JSON of nccl-tests: times of day are local, without their zone".to_owned()];
    notes.extend(messages.iter().map(|message| format!("NCCL's last error: {message}")));
    let is_wrong = file.out_of_bounds.okay == "false" || file.out_of_bounds.count > Some(0);
    let per_process = config.nthreads * config.ngpus;
    if per_process > 1 {
        notes.push(format!(
            "nccl-tests names only the first of {per_process} GPUs of each process: the number of ranks is \
             not known"
        ));
    }
    if command.option_number("-C", "--report_cputime").is_some_and(|value| value > 0) {
        notes.push(
            "-C: times were computed from the bandwidths, which have few digits for small sizes".to_owned(),
        );
    }
    let variables = file.env.iter().filter_map(|variable| variable.split_once('='));
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(Run {
        schema_version: SCHEMA_VERSION,
        program: NCCL_TESTS.to_owned(),
        command: file.args.clone(),
        started_at: convert_time(&file.start_time),
        outcome: match &ended_at {
            Some(_) if is_wrong => RunOutcome::Failed { message: "it counts wrong values".to_owned() },
            Some(_) => RunOutcome::Complete,
            None if messages.is_empty() => RunOutcome::Failed { message: "it has no end time".to_owned() },
            None => RunOutcome::Failed { message: messages.join("; ") },
        },
        ended_at,
        provenance: Provenance {
            backend: if file.nccl_version.is_some() { "nccl" } else { "fabric" }.to_owned(),
            library_version: file.nccl_version.map(library_version).unwrap_or_default(),
            environment: provenance::choose_variables(variables),
            ..Provenance::default()
        },
        settings: make_settings(config, &file.args),
        ranks: config.devices.iter().map(make_rank).collect(),
        start_phases: Vec::new(),
        measurements: Vec::new(),
        notes,
        left_out: None,
    })
}

/// The measurement of one placement of a row, without the properties of [`Head`].
fn half_measurement(row: &Row, placement: Placement, half: &Half, times: Option<&Times>) -> Measurement {
    let per_iteration = times.map(|times| PerIteration {
        skipped: times.skipped_iterations,
        times_us: times.times_us.clone(),
        processes_us: times.per_process_max_times_us.clone(),
    });
    let counted = per_iteration.as_ref().and_then(|times| times.times_us.get(times.skipped..));
    let root = row.root.trim().parse().ok();
    Measurement {
        group: row.group,
        data_type: row.data_type.trim().to_owned(),
        op: Some(row.redop.trim().to_owned()).filter(|op| !op.is_empty() && op != "none"),
        root,
        placement,
        bytes: row.size,
        count: row.count,
        time_us: match (half.time, half.cpu_time) {
            (Some(time), _) => time,
            // GB/s are thousands of bytes per microsecond.
            (None, Some(_)) => row.size as f64 / (half.alg_bw * 1e3),
            (None, None) => f64::NAN,
        },
        cpu_time_us: half.cpu_time,
        algbw_gbps: half.alg_bw,
        busbw_gbps: half.bus_bw,
        wrong: half.nwrong.map(|wrong| wrong as u64),
        statistics: counted.and_then(Statistics::from_times),
        per_iteration,
        ..Measurement::default()
    }
}

fn make_settings(config: &Config, args: &[String]) -> Settings {
    Settings {
        threads: config.nthreads,
        gpus: config.ngpus,
        min_bytes: config.minimum_bytes,
        max_bytes: config.maximum_bytes,
        step_factor: config.step_factor,
        step_bytes: config.step_bytes,
        iterations: config.iterations,
        aggregated: config.aggregated_iterations,
        warm_up: config.warmup_iters,
        checks: config.validation,
        graph_launches: config.graph,
        per_iteration: config.per_iter_timing == "true",
        per_iteration_skip: config.per_iter_skip,
        parallel_init: config.parallel_init == "true",
        ..argument_settings(args)
    }
}

/// Returns the settings that only the arguments of nccl-tests have. The others have no meaning.
pub(super) fn argument_settings(args: &[String]) -> Settings {
    let command = CommandLine(args);
    let flag = |short, long| command.option_number(short, long).is_some_and(|value| value != 0);
    let cycles = command.option_number("-N", "--run_cycles").unwrap_or(1);
    Settings {
        cycles: usize::try_from(cycles).unwrap_or(0),
        average: match command.option_number("-a", "--average") {
            Some(0) => Average::Rank0,
            Some(2) => Average::Min,
            Some(3) => Average::Max,
            _ => Average::Mean,
        },
        blocking: match command.option_number("-z", "--blocking") {
            Some(1) => Blocking::WaitAndBarrier,
            Some(2) => Blocking::Wait,
            Some(3) => Blocking::Outer,
            _ => Blocking::No,
        },
        registration: match command.option_number("-R", "--local_register") {
            None | Some(0) => Registration::None,
            Some(2) => Registration::Symmetric,
            Some(_) => Registration::Local,
        },
        unaligned: command
            .option_number("-u", "--unalign")
            .and_then(|by| usize::try_from(by).ok())
            .unwrap_or(0),
        cpu_time: flag("-C", "--report_cputime"),
        time_stamps: flag("-S", "--report_timestamps"),
        cta_policy: command.option_number("-x", "--cta_policy").and_then(|policy| u32::try_from(policy).ok()),
        default_stream: flag("-y", "--stream_null"),
        ..Settings::default()
    }
}

fn make_rank(device: &DeviceEntry) -> Rank {
    Rank {
        rank: device.rank,
        group: device.group,
        pid: device.pid,
        host: device.hostname.clone(),
        device: device.device,
        pci: device.device_hex.clone(),
        device_name: device.device_info.clone(),
        ..Rank::default()
    }
}

/// The arguments, for settings that the file has nowhere else.
struct CommandLine<'a>(&'a [String]);

impl CommandLine<'_> {
    /// The value of an option in any of the forms of getopt: `-R 2`, `-R2`, `--local_register 2`,
    /// `--local_register=2`. The last one counts.
    fn option_number(&self, short: &str, long: &str) -> Option<i64> {
        let value = |index: usize| {
            let argument = self.0[index].as_str();
            if argument == short || argument == long {
                return self.0.get(index + 1).map(String::as_str);
            }
            match argument.strip_prefix(long) {
                Some(rest) => rest.strip_prefix('='),
                None => argument.strip_prefix(short),
            }
        };
        (0..self.0.len()).rev().find_map(value)?.trim().parse().ok()
    }
}

/// Converts `2026-11-20 14:57:55` to RFC 3339 without a zone, which is not known.
fn convert_time(text: &str) -> String {
    text.trim().replacen(' ', "T", 1)
}

/// Converts a version number: `22809` is 2.28.9. Before 2.9 it had one digit less.
pub(super) fn library_version(code: u64) -> String {
    let major = if code < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", code / major, code % major / 100, code % 100)
}

#[cfg(test)]
mod tests;
