//! The text report: the lines and columns of nccl-tests, so that what reads its output reads ours.
//!
//! Only the first line names this program. Columns that nccl-tests does not have stand behind its own.

mod columns;
mod foot;
mod number;
#[cfg(test)]
pub(crate) mod sample;

use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;

pub use columns::Columns;
pub use foot::{Foot, MemoryUsage, Traffic, alltoallv_summary, failure};
pub use number::significant;

use crate::collective::Collective;
use crate::record::{Blocking, Library, Measurement, Outcome, Provenance, Rank, Run, Settings};

/// The share of the asked bandwidth (`NCCL_TESTS_MIN_BW`) that is enough.
const ENOUGH: f64 = 0.9;
/// How nccl-tests writes a time; with -S also the unit of that column.
const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";

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

/// The note that a whole run's mean bus bandwidth is lower than `NCCL_TESTS_MIN_BW` asks for.
#[must_use]
pub fn too_slow(run: &Run) -> Option<String> {
    let minimum = minimum_busbw(&run.provenance).filter(|_| run.outcome == Outcome::Complete)?;
    let mean = run.mean_busbw_gbps().unwrap_or(f64::NAN);
    (enough(mean, Some(minimum)) == Some(false)).then(|| {
        format!("NCCL_TESTS_MIN_BW is not reached: the mean busbw is {mean:.2} GB/s, and {minimum} GB/s less 10 % are asked for")
    })
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

/// The lines with which a collective begins: its name and the settings. `on_gpus` tells which clock `-I` reads.
#[must_use]
pub fn start(collective: &str, settings: &Settings, on_gpus: bool) -> String {
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
        let clock = if on_gpus { "CUDA event" } else { "host clock" };
        let _ = write!(text, "# Per-Iteration Report: {clock} timing; i_* uses max over process rows");
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

#[cfg(test)]
mod tests;
