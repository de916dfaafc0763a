//! The text report: the lines and columns of nccl-tests, so that what reads its output reads ours.
//!
//! Only the first line names this program. Columns that nccl-tests does not have stand behind its own.

use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::collective::Collective;
use crate::record::{Algorithm, Blocking, Library, Measurement, Provenance, Rank, Run, Settings, Versus};
use crate::statistics::Statistics;

/// The share of the asked bandwidth (`NCCL_TESTS_MIN_BW`) that is enough.
const ENOUGH: f64 = 0.9;
/// How nccl-tests writes a time; with -S also the unit of that column.
const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";
/// A cell without a value.
const ABSENT: &str = "N/A";

/// The name of nccl-tests' program for a collective, by the collective's name on our command line. A name that is
/// none is returned as it is.
#[must_use]
pub fn program(collective: &str) -> &str {
    collective.parse::<Collective>().map_or(collective, |known| known.nccl_tests_name())
}

/// The operator's cell. nccl-tests prints one for sendrecv, which reduces nothing, and a blank one for hypercube.
#[must_use]
pub fn operator(measurement: &Measurement) -> &str {
    match (measurement.op.as_deref(), measurement.collective.as_str()) {
        (Some(op), _) => op,
        (None, "sendrecv") => "sum",
        (None, "hypercube") => "",
        (None, _) => "none",
    }
}

/// The root's cell, which is also a string in nccl-tests' JSON: -1 where there is none.
#[must_use]
pub fn root(measurement: &Measurement) -> String {
    format!("{:>6}", measurement.root.map_or_else(|| "-1".to_owned(), |root| root.to_string()))
}

/// NCCL's number for a version: 22809 for `2.28.9`. `None` for what is no version of three numbers.
#[must_use]
pub fn nccl_code(version: &str) -> Option<u32> {
    let mut numbers = version.split('.').map(|part| {
        part.split(|letter: char| !letter.is_ascii_digit())
            .next()
            .and_then(|digits| digits.parse::<u32>().ok())
    });
    let [major, minor, patch] = [numbers.next()??, numbers.next()??, numbers.next()??];
    major.checked_mul(10_000)?.checked_add(minor.checked_mul(100)?)?.checked_add(patch)
}

/// The bus bandwidth in GB/s that the environment asks for (`NCCL_TESTS_MIN_BW`).
#[must_use]
pub fn minimum_busbw(provenance: &Provenance) -> Option<f64> {
    provenance.environment.get("NCCL_TESTS_MIN_BW")?.trim().parse().ok()
}

/// Whether a mean bus bandwidth is at least 90 % of what was asked for; `None` when nothing was. The mean of no
/// measurement, which is no number, is not enough.
#[must_use]
pub fn enough(mean_busbw: f64, minimum: Option<f64>) -> Option<bool> {
    minimum.map(|minimum| mean_busbw >= minimum * ENOUGH)
}

/// A time in UTC as nccl-tests writes it, in `zone`; what is no time is returned as it is.
#[must_use]
pub fn local_time(utc: &str, zone: &TimeZone) -> String {
    match utc.parse::<Timestamp>() {
        Ok(time) => time.to_zoned(zone.clone()).strftime(TIME_FORMAT).to_string(),
        Err(_) => utc.to_owned(),
    }
}

/// The line above all others when results also go to a file (`-J`).
#[must_use]
pub fn json_notice(path: &Path) -> String {
    format!("# Writing JSON output to {}\n", path.display())
}

/// The first line, which names the program, and the library as nccl-tests does.
#[must_use]
pub fn version_line(run: &Run) -> String {
    let (name, version) = run.program.split_once(' ').unwrap_or((&run.program, ""));
    let Provenance { backend, library_version, .. } = &run.provenance;
    let code = (backend == "nccl").then(|| nccl_code(library_version)).flatten();
    match code {
        Some(code) => format!("# {name} version {version} nccl-library={code}\n"),
        None if library_version.is_empty() => format!("# {name} version {version}\n"),
        None => format!("# {name} version {version} {backend}-library={library_version}\n"),
    }
}

/// Lines that nccl-tests does not have: what the run uses and where. Each is a comment.
#[must_use]
pub fn provenance(provenance: &Provenance) -> String {
    let Provenance {
        backend,
        library_version,
        library_path,
        cuda_driver,
        transport,
        world,
        system,
        versus,
        ..
    } = provenance;
    let mut text = format!("# Backend: {backend} {library_version} from {library_path}");
    if let Some(driver) = cuda_driver {
        let _ = write!(text, "; CUDA driver {driver}");
    }
    if let Some(Library { backend, library_version, library_path }) = versus {
        let _ = write!(text, "\n# Versus: {backend} {library_version} from {library_path}");
    }
    let _ = writeln!(text, "\n# World: {world}\n# System: {system}");
    if let Some(transport) = transport {
        let _ = writeln!(text, "# Transport: {transport}");
    }
    text
}

/// The lines with which a collective begins: its name and the settings.
#[must_use]
pub fn start(collective: &str, settings: &Settings) -> String {
    let (step, unit) = match (settings.step_factor, settings.step_bytes) {
        (Some(factor), _) => (factor, "factor"),
        (None, bytes) => (bytes.unwrap_or(0), "bytes"),
    };
    let mut text = format!(
        "# Collective test starting: {}\n\
         # nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} iters: {} \
         agg iters: {} validation: {} graph: {} unalign: {}\n",
        program(collective),
        settings.threads,
        settings.gpus,
        settings.min_bytes,
        settings.max_bytes,
        settings.warm_up,
        settings.iterations,
        settings.aggregated,
        settings.checks,
        settings.graph_launches,
        settings.unaligned
    );
    text.push_str(match settings.blocking {
        Blocking::No => "",
        Blocking::WaitAndBarrier => "# Blocking Enabled: wait and barrier after each inner iteration (-m) \n",
        Blocking::Wait => "# Blocking Enabled: wait after each inner iteration (-m), no barrier \n",
        Blocking::Outer => {
            "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier \n"
        }
    });
    if settings.per_iteration {
        text.push_str("# Per-Iteration Report: CUDA event timing; i_* uses max over process rows");
        if settings.per_iteration_skip > 0 {
            let _ = write!(text, "; summary skips first {} iterations", settings.per_iteration_skip);
        }
        text.push_str(" \n");
    }
    if settings.parallel_init {
        text.push_str("# Parallel Init Enabled: threads call into NcclInitRank concurrently \n");
    }
    text
}

/// The list of all ranks and what each runs on.
#[must_use]
pub fn devices(ranks: &[Rank]) -> String {
    let mut text = "#\n# Using devices\n".to_owned();
    for rank in ranks {
        let Rank { rank, group, pid, host, device, pci, device_name } = rank;
        let _ = write!(text, "#  Rank {rank:>2} Group {group:>2} Pid {pid:>6} on {host:>10} ");
        if let Some(ordinal) = device {
            let _ = write!(text, "device {ordinal:>2} ");
        }
        if let Some(pci) = pci {
            let _ = write!(text, "[{pci}] ");
        }
        let _ = writeln!(text, "{device_name}");
    }
    text
}

/// The lines that say that the largest size does not fit and what became of it, in bytes.
#[must_use]
pub fn reduced(max_bytes: u64) -> String {
    format!("#\n# Reducing maxBytes to {max_bytes} due to memory limitation\n")
}

/// Which columns the table has beside those that are always there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The first rank's time to enqueue stands in the place of the time (`-C`).
    pub cpu_time: bool,
    /// What the iterations' own times say stands behind each placement (`-I`).
    pub per_iteration: bool,
    /// When the row was measured (`-S`).
    pub time_stamps: bool,
    /// Minimum, median and 99th percentile of both placements; nccl-tests does not have them.
    pub statistics: bool,
    /// The other side's time and bus bandwidth, and the ratios to it, of both placements (`--vs`).
    pub versus: bool,
    /// Algorithm, protocol and channels that NCCL chose; nccl-tests does not have it.
    pub algorithm: bool,
}

impl Columns {
    /// Those of nccl-tests that the settings ask for.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        Self {
            cpu_time: settings.cpu_time,
            per_iteration: settings.per_iteration,
            time_stamps: settings.time_stamps,
            statistics: false,
            versus: false,
            algorithm: false,
        }
    }

    /// The columns' names and units.
    #[must_use]
    pub fn head(self) -> String {
        let placements = if self.per_iteration {
            "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
        } else {
            "           out-of-place                       in-place          "
        };
        let time = if self.cpu_time { "cputime" } else { "time" };
        let names = self.named(
            ["size", "count", "type", "redop", "root"],
            [time, "algbw", "busbw", "#wrong"],
            ["i_min", "i_max", "i_p99", "i_cv%"],
            "timestamp",
        );
        let units = self.named(
            ["(B)", "(elements)", "", "", ""],
            ["(us)", "(GB/s)", "(GB/s)", ""],
            ["(us)", "(us)", "(us)", "(%)"],
            TIME_FORMAT,
        );
        let twice = |half: &[&str]| cells(half.iter().chain(half));
        let over = |text: &str, columns: usize| format!("{text:^width$}", width = 9 * columns);
        let lines = [
            (
                format!("#{:51}{placements}", ""),
                over("out-of-place", 3) + &over("in-place", 3),
                over("versus, out-of-place", 4) + &over("versus, in-place", 4),
                "",
            ),
            (
                names,
                twice(&["min", "median", "p99"]),
                twice(&["time", "busbw", "ratio", "best"]),
                "algo/proto/channels",
            ),
            (units, twice(&["(us)"; 3]), twice(&["(us)", "(GB/s)", "", ""]), ""),
        ];
        let mut text = "#\n".to_owned();
        for (line, statistics, versus, algorithm) in lines {
            text.push_str(&self.extended(line, &statistics, &versus, algorithm));
            text.push('\n');
        }
        text
    }

    /// A line of names or units.
    fn named(self, first: [&str; 5], half: [&str; 4], iterations: [&str; 4], time_stamp: &str) -> String {
        let [size, count, data_type, op, root] = first;
        let [time, algbw, busbw, wrong] = half;
        let mut half = format!("  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}");
        if self.per_iteration {
            half.extend(iterations.map(|name| format!("  {name:>7}")));
        }
        let time_stamp = if self.time_stamps { format!("{time_stamp:>19}") } else { String::new() };
        format!("# {size:>10}  {count:>12}  {data_type:>8}  {op:>6}  {root:>6}{half}{half} {time_stamp}")
    }

    /// A row, without the end of the line. A placement that was not measured has `N/A` in its cells.
    /// The time stamp is in `zone`. Empty without any measurement.
    #[must_use]
    pub fn row(
        self,
        out_of_place: Option<&Measurement>,
        in_place: Option<&Measurement>,
        zone: &TimeZone,
    ) -> String {
        let placements = [out_of_place, in_place];
        let (Some(first), Some(last)) = (out_of_place.or(in_place), in_place.or(out_of_place)) else {
            return String::new();
        };
        let mut row = format!(
            "{:>12}  {:>12}  {:>8}  {:>6}  {}",
            first.bytes,
            first.count,
            first.data_type,
            operator(first),
            root(first)
        );
        for placement in placements {
            row.push_str(&self.half(placement));
        }
        if self.time_stamps {
            let _ = write!(row, "{:>21}", local_time(&last.measured_at, zone));
        }
        let number = |value: Option<f64>| value.map_or_else(|| ABSENT.to_owned(), |value| float(value, 7));
        let statistics = placements.map(|measurement| {
            let found = measurement.and_then(|measurement| measurement.statistics.as_ref());
            let of = |value: fn(&Statistics) -> f64| number(found.map(value));
            cells(&[of(|all| all.min_us), of(|all| all.median_us), of(|all| all.p99_us)])
        });
        let versus = placements.map(|measurement| {
            let found = measurement.and_then(|measurement| measurement.versus.as_ref());
            let of = |value: fn(&Versus) -> f64| number(found.map(value));
            let (ratio, best) = (of(|found| found.ratio), of(|found| found.best_ratio));
            cells(&[of(|found| found.time_us), of(|found| found.busbw_gbps), ratio, best])
        });
        self.extended(row, &statistics.concat(), &versus.concat(), &algorithms(placements))
    }

    /// One placement's columns.
    fn half(self, measurement: Option<&Measurement>) -> String {
        let number = |value: Option<f64>, width: usize| match value {
            Some(value) => float(value, width),
            None => format!("{ABSENT:>width$}"),
        };
        let time =
            measurement.and_then(|found| if self.cpu_time { found.cpu_time_us } else { Some(found.time_us) });
        let wrong = measurement.and_then(|found| found.wrong);
        let mut half = format!(
            "  {}  {}  {}{}",
            number(time, 7),
            number(measurement.map(|found| found.algbw_gbps), 6),
            number(measurement.map(|found| found.busbw_gbps), 6),
            // nccl-tests makes this cell a column narrower where it has no number.
            wrong.map_or_else(
                || format!("    {ABSENT}"),
                |wrong| format!("  {:>6}", significant(wrong as f64))
            )
        );
        if self.per_iteration {
            let statistics = measurement.and_then(|found| found.statistics.as_ref());
            let values: [fn(&Statistics) -> f64; 4] =
                [|all| all.min_us, |all| all.max_us, |all| all.p99_us, Statistics::variation_percent];
            half.extend(values.map(|value| format!("  {}", number(statistics.map(value), 7))));
        }
        half
    }

    /// A line of nccl-tests with what stands behind its columns.
    fn extended(self, mut line: String, statistics: &str, versus: &str, algorithm: &str) -> String {
        if self.statistics || self.versus || self.algorithm {
            let width = 52
                + 2 * (33 + if self.per_iteration { 36 } else { 0 })
                + if self.time_stamps { 21 } else { 1 };
            line = format!("{line:<width$}");
        }
        if self.statistics {
            line.push_str(statistics);
        }
        if self.versus {
            line.push_str(versus);
        }
        if self.algorithm {
            let _ = write!(line, "  {algorithm:>20}");
        }
        line
    }
}

/// Columns of our own.
fn cells<T: std::fmt::Display>(cells: impl IntoIterator<Item = T>) -> String {
    cells.into_iter().map(|cell| format!("  {cell:>7}")).collect()
}

/// What NCCL chose for a row: `ring/ll128/16`; of both placements, where they differ; `-` for what is not known.
fn algorithms(placements: [Option<&Measurement>; 2]) -> String {
    let [outer, inner] = placements.map(|measurement| {
        measurement.and_then(|measurement| measurement.algorithm.as_ref()).map(|chosen| {
            let Algorithm { algorithm, protocol, channels } = chosen;
            let channels = channels.map_or_else(|| "-".to_owned(), |channels| channels.to_string());
            format!("{algorithm}/{}/{channels}", protocol.as_deref().unwrap_or("-"))
        })
    });
    match (outer, inner) {
        (Some(outer), Some(inner)) if outer != inner => format!("{outer}|{inner}"),
        (outer, inner) => outer.or(inner).unwrap_or_else(|| "-".to_owned()),
    }
}

/// GPU memory that a run took: the most of all ranks, in bytes. It can shrink, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// By making communicators.
    pub initialization: i64,
    /// By the buffers and their registration.
    pub buffers: i64,
    /// By NCCL while it ran.
    pub collective: i64,
}

/// What stands below the rows.
#[derive(Clone, Copy, Debug)]
pub struct Foot<'a> {
    /// Which collective ended, by its name on the command line.
    pub collective: &'a str,
    /// Pairs of rank and measurement with wrong data.
    pub failed_checks: u64,
    /// The mean of all bus bandwidths, in GB/s; no number when nothing was measured.
    pub mean_busbw_gbps: f64,
    /// What it had to be: see [`minimum_busbw`].
    pub minimum_busbw_gbps: Option<f64>,
    /// With `--vs`, what the ratios to the other side say: its backend, and the text.
    pub ratios: Option<(&'a str, &'a str)>,
    /// With `-M`, the memory that it took.
    pub memory: Option<MemoryUsage>,
    /// What the library said last, where it said something.
    pub error: Option<&'a str>,
}

impl Foot<'_> {
    /// The lines.
    #[must_use]
    pub fn render(&self) -> String {
        let line = |name: &str, value: String| format!("# {name:<20} : {value}\n");
        let wrong = if self.failed_checks == 0 { "OK" } else { "FAILED" };
        let verdict = match enough(self.mean_busbw_gbps, self.minimum_busbw_gbps) {
            None => "",
            Some(true) => "OK",
            Some(false) => "FAILED",
        };
        let mut text = line("Out of bounds values", format!("{} {wrong}", self.failed_checks))
            + &line("Avg bus bandwidth", format!("{} {verdict}", significant(self.mean_busbw_gbps)));
        if let Some((versus, ratios)) = self.ratios {
            text.push_str(&line(&format!("Time over {versus}"), ratios.to_owned()));
        }
        let _ = write!(text, "#\n# Collective test concluded: {}\n", program(self.collective));
        if let Some(MemoryUsage { initialization, buffers, collective }) = self.memory {
            let total = initialization.saturating_add(buffers).saturating_add(collective);
            let [initialization, buffers, collective, total] =
                [initialization, buffers, collective, total].map(memory);
            text.push_str(&line(
                "GPU memory usage",
                format!(
                    "Initialization {initialization} | User-Allocated {buffers} | Collective {collective} \
                     | Total  {total}"
                ),
            ));
        }
        text.push_str("#\n");
        if let Some(error) = self.error {
            let _ = write!(text, "# error: {error}");
        }
        text.push('\n');
        text
    }
}

/// Bytes in three digits or so, in binary units.
fn memory(bytes: i64) -> String {
    let (mut amount, mut units) = (bytes as f64, ["B", "KB", "MB", "GB"].iter());
    let mut unit = units.next();
    while amount.abs() >= 1024.0 && units.len() > 0 {
        amount /= 1024.0;
        unit = units.next();
    }
    let decimals = match amount.abs() {
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{amount:.decimals$} {}", unit.copied().unwrap_or_default())
}

/// Where the counts of an alltoallv come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// More to ranks that are farther away.
    Generated {
        /// Bytes over all peers, before rounding.
        total_bytes: u64,
        /// How much more: 0 is the same to all, 1 is nothing to itself.
        spread: f64,
    },
    /// Read from a file.
    Matrix {
        /// Its rows, which can be more than there are ranks.
        dimension: usize,
        /// What its numbers were multiplied by.
        scale: f64,
    },
}

/// What each rank of an alltoallv moved (`NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY`): `bytes` are those that each rank sends
/// and receives. Lines without the `# ` of a comment.
#[must_use]
pub fn alltoallv_summary(traffic: Traffic, time_us: f64, bytes: &[(u64, u64)]) -> String {
    let ranks = bytes.len();
    let mode = match traffic {
        Traffic::Generated { total_bytes, spread } => {
            format!("mode=generated nranks={ranks} total_bytes={total_bytes} spread={spread:.3}")
        }
        Traffic::Matrix { dimension, scale } => {
            format!("mode=matrix nranks={ranks} matrix_dim={dimension} scale={scale:.3}")
        }
    };
    let mut text = format!("NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: {mode} time_usec={time_us:.2}\n");
    for (rank, &(sent, received)) in bytes.iter().enumerate() {
        let algbw = sent.max(received) as f64 / 1e3 / time_us;
        let busbw = algbw * (ranks as f64 - 1.0) / ranks as f64;
        let _ = writeln!(
            text,
            "  rank={rank} send_bytes={sent} recv_bytes={received} alg_bw={algbw:.2} bus_bw={busbw:.2}"
        );
    }
    text
}

/// A number in `width` columns with as many of two decimals as fit, else in scientific notation.
fn float(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:>width$.decimals$}").to_lowercase();
        if text.len() <= width {
            return text;
        }
    }
    format!("{:>width$}", scientific(value, usize::from(width >= 7)))
}

/// C's `%.{decimals}e`: an exponent of at least two digits, with its sign.
fn scientific(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text.to_lowercase(),
    }
}

/// C's `%g`: six significant digits without trailing zeros.
#[must_use]
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let rounded = format!("{value:.5e}");
    let exponent: i32 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{value:.*}", usize::try_from(5 - exponent).unwrap_or(0)));
    }
    let text = scientific(value, 5);
    text.split_once('e').map_or(text.clone(), |(mantissa, exponent)| format!("{}e{exponent}", trim(mantissa)))
}

/// What the reports' tests show.
#[cfg(test)]
pub(crate) mod sample {
    use crate::record::{
        Average, Blocking, Measurement, Outcome, Placement, Provenance, Rank, Registration, Run,
        SCHEMA_VERSION, Settings,
    };

    /// Two processes with two ranks each that measured nothing.
    pub(crate) fn run() -> Run {
        let rank = |rank: usize, pid: u32, host: &str| Rank {
            rank,
            group: 0,
            pid,
            host: host.to_owned(),
            device: Some(rank % 2),
            pci: Some(format!("0000:{:02x}:00", 0x18 + rank % 2)),
            device_name: "NVIDIA H200".to_owned(),
        };
        Run {
            schema_version: SCHEMA_VERSION,
            program: "nccl-bench 1.2.3".to_owned(),
            command: vec!["nccl-bench".to_owned(), "allreduce".to_owned()],
            started_at: "2026-11-20T14:57:55.250Z".to_owned(),
            ended_at: Some("2026-11-20T14:58:11.750Z".to_owned()),
            outcome: Outcome::Complete,
            provenance: Provenance {
                backend: "nccl".to_owned(),
                library_version: "2.28.9".to_owned(),
                library_path: "/usr/lib/libnccl.so.2".to_owned(),
                cuda_driver: Some("13.0".to_owned()),
                versus: None,
                transport: None,
                world: "mpirun (Open MPI), 2 processes".to_owned(),
                system: "Linux 6.8.0 x86_64".to_owned(),
                environment: [("NCCL_DEBUG".to_owned(), "WARN".to_owned())].into(),
            },
            settings: Settings {
                threads: 1,
                gpus: 2,
                min_bytes: 8,
                max_bytes: 16,
                step_factor: Some(2),
                step_bytes: None,
                iterations: 20,
                aggregated: 1,
                warm_up: 1,
                cycles: 1,
                checks: 1,
                average: Average::Mean,
                blocking: Blocking::No,
                graph_launches: 0,
                registration: Registration::None,
                unaligned: 0,
                per_iteration: false,
                per_iteration_skip: 0,
                parallel_init: false,
                cpu_time: false,
                time_stamps: false,
                cta_policy: None,
                default_stream: false,
                until_stable: None,
                budget_seconds: None,
                rounds: None,
            },
            ranks: vec![
                rank(0, 11, "node01"),
                rank(1, 11, "node01"),
                rank(2, 22, "node02"),
                rank(3, 22, "node02"),
            ],
            measurements: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn measurement(collective: &str, placement: Placement) -> Measurement {
        Measurement {
            collective: collective.to_owned(),
            cycle: 0,
            data_type: "float".to_owned(),
            op: None,
            root: None,
            placement,
            bytes: 1024,
            count: 256,
            time_us: 10.0,
            cpu_time_us: None,
            algbw_gbps: 50.0,
            busbw_gbps: 75.0,
            wrong: Some(0),
            operations: 20,
            rounds_us: Vec::new(),
            versus: None,
            statistics: None,
            per_iteration: None,
            per_rank: Vec::new(),
            algorithm: None,
            mismatches: Vec::new(),
            measured_at: "2026-11-20T14:58:00.000Z".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Placement;

    #[test]
    fn numbers_print_as_c_prints_them() {
        for (value, expected) in [
            (9.87, "   9.87"),
            (99999.96, " 100000"),
            (10357.4, "10357.4"),
            (9_999_999.6, "1.0e+07"),
            (f64::NAN, "    nan"),
            (f64::INFINITY, "    inf"),
        ] {
            assert_eq!(float(value, 7), expected);
        }
        assert_eq!(float(1e7, 6), " 1e+07");
        for (value, expected) in [
            (0.0, "0"),
            (118.406_4, "118.406"),
            (999_999.0, "999999"),
            (12_345_678.0, "1.23457e+07"),
            (1_000_000.0, "1e+06"),
            (0.000_012_5, "1.25e-05"),
            (123.5, "123.5"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(significant(value), expected);
        }
    }

    #[test]
    fn memory_has_about_three_digits() {
        for (bytes, expected) in [
            (0, "0.00 B"),
            (1023, "1023 B"),
            (1024, "1.00 KB"),
            (20 << 20, "20.0 MB"),
            (403_701_760, "385 MB"),
            (-(3 << 29), "-1.50 GB"),
            (4 << 40, "4096 GB"),
        ] {
            assert_eq!(memory(bytes), expected);
        }
    }

    #[test]
    fn ncclls_number_of_a_version() {
        for (version, code) in [
            ("2.28.9", Some(22809)),
            ("2.18.1+cuda12.2", Some(21801)),
            ("2.28", None),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(nccl_code(version), code, "{version}");
        }
    }

    #[test]
    fn ninety_percent_of_the_asked_bandwidth_are_enough_and_no_number_is_not() {
        assert_eq!(enough(90.0, Some(100.0)), Some(true));
        assert_eq!(enough(89.0, Some(100.0)), Some(false));
        assert_eq!(enough(f64::NAN, Some(100.0)), Some(false));
        assert_eq!(enough(f64::NAN, None), None);
    }

    #[test]
    fn an_operator_is_shown_as_the_program_of_nccl_tests_shows_it() {
        let mut measurement = sample::measurement("sendrecv", Placement::OutOfPlace);
        assert_eq!(operator(&measurement), "sum");
        for (collective, expected) in [("allgather", "none"), ("hypercube", ""), ("alltoallv", "none")] {
            measurement.collective = collective.to_owned();
            assert_eq!(operator(&measurement), expected);
        }
        measurement.op = Some("prod".to_owned());
        assert_eq!(operator(&measurement), "prod");
    }

    #[test]
    fn own_columns_stand_behind_the_thirteen_and_under_their_names() {
        let mut first = sample::measurement("allreduce", Placement::OutOfPlace);
        let mut second = sample::measurement("allreduce", Placement::InPlace);
        first.statistics = Statistics::of(&[1.0, 2.0, 4.0]);
        (first.wrong, second.wrong) = (None, None);
        let ring =
            Algorithm { algorithm: "ring".to_owned(), protocol: Some("ll".to_owned()), channels: Some(16) };
        first.algorithm = Some(ring.clone());
        second.versus = Some(Versus {
            time_us: 12.5,
            algbw_gbps: 40.0,
            busbw_gbps: 60.0,
            rounds_us: Vec::new(),
            wrong: None,
            mismatches: Vec::new(),
            ratio: 0.8,
            best_ratio: 0.75,
        });
        for columns in [
            Columns::default(),
            Columns { time_stamps: true, ..Columns::default() },
            Columns { per_iteration: true, ..Columns::default() },
        ] {
            let plain = columns.row(Some(&first), Some(&second), &TimeZone::UTC);
            let columns = Columns { statistics: true, versus: true, algorithm: true, ..columns };
            let row = columns.row(Some(&first), Some(&second), &TimeZone::UTC);
            let own = row.strip_prefix(&plain).unwrap();
            let own: Vec<&str> = own.split_whitespace().collect();
            let (none, versus) = (["N/A"; 4], ["12.50", "60.00", "0.80", "0.75"]);
            assert_eq!(own[..6], ["1.00", "2.00", "4.00", "N/A", "N/A", "N/A"]);
            assert_eq!(own[6..], [&none[..], &versus, &["ring/ll/16"]].concat());
            let head = columns.head();
            let lines: Vec<&str> = head.lines().collect();
            let all = [("median", "2.00"), ("best", "0.75"), ("algo/proto/channels", "ring/ll/16")];
            for (name, value) in all {
                let found = if name == "best" { lines[2].rfind(name) } else { lines[2].find(name) };
                let end = found.unwrap() + name.len();
                assert!(row[..end].ends_with(value), "{head}{row}");
            }
            assert!(lines[3].trim_end().ends_with("(us)   (GB/s)"), "{head}");
            let over = lines[1].find("versus, in-place").unwrap();
            assert!(row.rfind("N/A").unwrap() < over && over < row.find("60.00").unwrap(), "{head}{row}");
        }
        second.algorithm = Some(Algorithm { protocol: None, channels: None, ..ring });
        let columns = Columns { algorithm: true, ..Columns::default() };
        let row = columns.row(Some(&first), Some(&second), &TimeZone::UTC);
        assert!(row.ends_with("  ring/ll/16|ring/-/-"), "{row}");
    }

    #[test]
    fn devices_without_an_ordinal_have_their_name_alone() {
        let mut ranks = sample::run().ranks;
        ranks.truncate(1);
        (ranks[0].device, ranks[0].pci, ranks[0].device_name) = (None, None, "host memory".to_owned());
        assert!(devices(&ranks).ends_with("\n#  Rank  0 Group  0 Pid     11 on     node01 host memory\n"));
    }

    #[test]
    fn the_first_line_names_the_library_as_its_backend_does() {
        let mut run = sample::run();
        assert_eq!(version_line(&run), "# nccl-bench version 1.2.3 nccl-library=22809\n");
        run.provenance.backend = "fabric".to_owned();
        run.provenance.library_version = "1.22.0".to_owned();
        assert_eq!(version_line(&run), "# nccl-bench version 1.2.3 fabric-library=1.22.0\n");
    }

    #[test]
    fn an_alltoallv_summary_has_each_ranks_share() {
        let generated = Traffic::Generated { total_bytes: 4096, spread: 1.0 };
        assert_eq!(
            alltoallv_summary(generated, 2.0, &[(1000, 3000), (2000, 0)]),
            "NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=generated nranks=2 total_bytes=4096 spread=1.000 time_usec=2.00\n\
             \x20 rank=0 send_bytes=1000 recv_bytes=3000 alg_bw=1.50 bus_bw=0.75\n\
             \x20 rank=1 send_bytes=2000 recv_bytes=0 alg_bw=1.00 bus_bw=0.50\n"
        );
        let matrix = Traffic::Matrix { dimension: 8, scale: 0.5 };
        assert!(alltoallv_summary(matrix, 1.0, &[(16, 16)]).starts_with(
            "NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=matrix nranks=1 matrix_dim=8 scale=0.500 time_usec=1.00\n"
        ));
    }

    #[test]
    fn times_are_in_the_zone_that_is_asked_for() {
        let zone = TimeZone::fixed(jiff::tz::offset(-7));
        assert_eq!(local_time("2026-11-22T03:30:00.123Z", &zone), "2026-11-21 20:30:00");
        assert_eq!(local_time("yesterday", &zone), "yesterday");
    }
}
