//! Parser of nccl-tests' text.

use std::fmt;
use std::str::FromStr;

use engine::backend::MemoryUse;
use record::statistics::Statistics;
use record::{
    Average, Blocking, Measurement, Placement, Provenance, Rank, Registration, Run, RunOutcome,
    SCHEMA_VERSION, Settings,
};

/// nccl-tests' programs, with the names of their collectives.
pub(crate) const PROGRAMS: [(&str, &str); 11] = [
    ("all_reduce_perf", "allreduce"),
    ("all_gather_perf", "allgather"),
    ("reduce_scatter_perf", "reducescatter"),
    ("broadcast_perf", "broadcast"),
    ("reduce_perf", "reduce"),
    ("alltoall_perf", "alltoall"),
    ("alltoallv_perf", "alltoallv"),
    ("gather_perf", "gather"),
    ("scatter_perf", "scatter"),
    ("sendrecv_perf", "sendrecv"),
    ("hypercube_perf", "hypercube"),
];

/// The content of a text of nccl-tests.
pub(crate) struct Found {
    pub(crate) run: Run,
    pub(crate) failed_checks: u64,
    pub(crate) mean: f64,
    pub(crate) memory: Option<MemoryUse>,
}

impl Found {
    pub(crate) fn parse(text: &str) -> Self {
        let settings = settings(text);
        let collective = collective(between(text, "# Collective test starting: ", "\n"));
        let mut run = run(settings);
        run.ranks = text.lines().filter(|line| line.starts_with("#  Rank")).map(rank).collect();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            run.measurements.extend(row(line, collective, &run.settings));
        }
        let (mean, verdict) = between(text, "# Avg bus bandwidth    : ", "\n").split_once(' ').unwrap();
        let minimum = match verdict {
            "" => None,
            "OK" => Some("0"),
            "FAILED" => Some("1e9"),
            other => panic!("{other}"),
        };
        let minimum = minimum.map(|minimum| ("NCCL_TESTS_MIN_BW".to_owned(), minimum.to_owned()));
        run.provenance.environment.extend(minimum);
        let count = between(text, "# Out of bounds values : ", " ");
        Self {
            run,
            failed_checks: count.parse().unwrap(),
            mean: mean.parse().unwrap(),
            // Only in the made-up texts.
            memory: text.contains("GPU memory usage").then_some(MemoryUse {
                initialization: 1_288_490_189,
                buffers: 403_701_760,
                operations: 0,
            }),
        }
    }
}

pub(crate) fn settings(text: &str) -> Settings {
    let (step, unit) = between(text, "step: ", ")").split_once('(').unwrap();
    let step: u64 = step.parse().unwrap();
    let (_, below_warm_up) = text.split_once("warmup ").unwrap();
    let (_, behind_warm_up) = below_warm_up.split_once(": ").unwrap();
    let blocking = match between(text, "graph: ", "# Using devices") {
        lines if lines.contains("wait and barrier after each inner") => Blocking::WaitAndBarrier,
        lines if lines.contains("wait after each inner") => Blocking::Wait,
        lines if lines.contains("wait and barrier after each outer") => Blocking::Outer,
        lines => {
            assert!(!lines.contains("Blocking"), "{lines}");
            Blocking::No
        }
    };
    Settings {
        threads: after(text, "nThread"),
        gpus: after(text, "nGpus"),
        min_bytes: after(text, "minBytes"),
        max_bytes: after(text, "maxBytes"),
        step_factor: (unit == "factor").then_some(step),
        step_bytes: (unit == "bytes").then_some(step),
        iterations: after(behind_warm_up, " iters:"),
        aggregated: after(text, "agg iters:"),
        warm_up: after(text, "warmup iters:"),
        cycles: 1,
        checks: after(text, "validation:"),
        average: Average::Mean,
        blocking,
        graph_launches: after(text, "graph:"),
        registration: Registration::None,
        unaligned: after(text, "unalign:"),
        per_iteration: text.contains("# Per-Iteration Report"),
        per_iteration_skip: match text.contains("summary skips first") {
            true => after(text, "summary skips first"),
            false => 0,
        },
        parallel_init: text.contains("# Parallel Init Enabled"),
        cpu_time: text.contains(" cputime "),
        time_stamps: text.contains(" timestamp\n"),
        cta_policy: None,
        default_stream: false,
        ..Settings::default()
    }
}

pub(crate) fn run(settings: Settings) -> Run {
    Run {
        schema_version: SCHEMA_VERSION,
        program: "nccl-bench 1.2.3".to_owned(),
        command: Vec::new(),
        started_at: "2026-11-20T14:57:55Z".to_owned(),
        ended_at: None,
        outcome: RunOutcome::Running,
        provenance: Provenance {
            backend: "nccl".to_owned(),
            library_version: "2.28.9".to_owned(),
            ..Provenance::default()
        },
        settings,
        ranks: Vec::new(),
        start_phases: Vec::new(),
        measurements: Vec::new(),
        notes: Vec::new(),
        left_out: None,
    }
}

pub(crate) fn rank(line: &str) -> Rank {
    Rank {
        rank: after(line, "Rank"),
        group: after(line, "Group"),
        pid: after(line, "Pid"),
        host: after(line, " on "),
        device: Some(after(line, "device")),
        pci: Some(between(line, "[", "]").to_owned()),
        device_name: line.split_once("] ").unwrap().1.to_owned(),
        ..Rank::default()
    }
}

/// Both placements of a row. The first columns are cut by their place: one of them can be blank.
pub(crate) fn row(line: &str, collective: &str, settings: &Settings) -> [Measurement; 2] {
    let column = |from: usize, to: usize| line[from..to].trim();
    let op = column(38, 44);
    let mut measurement = Measurement {
        collective: collective.to_owned(),
        bytes: column(0, 12).parse().unwrap(),
        count: column(14, 26).parse().unwrap(),
        data_type: column(28, 36).to_owned(),
        // The operator of sendrecv has no meaning.
        op: (!["none", ""].contains(&op) && collective != "sendrecv").then(|| op.to_owned()),
        root: column(46, 52).parse().ok(),
        operations: settings.iterations,
        ..Measurement::default()
    };
    let fields: Vec<&str> = line[52..].split_whitespace().collect();
    let (halves, stamp) = fields.split_at(if settings.per_iteration { 16 } else { 8 });
    if let [date, time] = stamp {
        measurement.measured_at = format!("{date}T{time}Z");
    }
    let halves: Vec<&[&str]> = halves.chunks(halves.len() / 2).collect();
    [(Placement::OutOfPlace, halves[0]), (Placement::InPlace, halves[1])].map(|(placement, cells)| {
        let number = |index: usize| cells[index].parse::<f64>().unwrap();
        Measurement {
            placement,
            // The cell has one of the two values. The other must not be printed.
            time_us: if settings.cpu_time { -1.0 } else { number(0) },
            cpu_time_us: Some(if settings.cpu_time { number(0) } else { -1.0 }),
            algbw_gbps: number(1),
            busbw_gbps: number(2),
            wrong: (cells[3] != "N/A").then(|| number(3) as u64),
            statistics: settings.per_iteration.then(|| Statistics {
                samples: settings.iterations,
                min_us: number(4),
                max_us: number(5),
                p99_us: number(6),
                mean_us: 100.0,
                deviation_us: number(7),
                median_us: -1.0,
                p95_us: -1.0,
            }),
            ..measurement.clone()
        }
    })
}

pub(crate) fn collective(program: &str) -> &'static str {
    PROGRAMS.iter().find(|(name, _)| *name == program).unwrap().1
}

/// The text between the first `start` and the `end` after it.
pub(crate) fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no '{start}' in: {text}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no '{end}' behind '{start}' in: {text}")).0
}

/// The word behind `label`.
pub(crate) fn after<T: FromStr>(text: &str, label: &str) -> T
where
    T::Err: fmt::Debug,
{
    let (_, rest) = text.split_once(label).unwrap_or_else(|| panic!("no '{label}' in: {text}"));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}
