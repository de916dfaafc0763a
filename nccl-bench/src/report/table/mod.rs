//! The lines and columns of the text report, which parsers of nccl-tests' output can read.
//!
//! Only the first line names this program. Columns that nccl-tests does not have follow its own.

mod columns;
mod foot;
mod number;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

pub use columns::Columns;
pub(crate) use columns::binary_size;
pub use foot::{Foot, alltoallv_summary, failure_line};
pub use number::format_significant;

use record::nccl_tests::{
    TIME_FORMAT, is_enough, local_time, nccl_code, operator_cell, program_name, root_cell,
};
use record::{BackendLibrary, Blocking, Provenance, Rank, Run, Settings};

/// The line above all others when results also go to a file (`-J`).
pub fn json_notice(path: &Path) -> String {
    format!("# Writing JSON output to {}\n", path.display())
}

/// The first line, which names the program, and the library as nccl-tests does.
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

/// Comment lines, which nccl-tests does not have, with libraries and machine.
pub fn provenance_lines(provenance: &Provenance) -> String {
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
    if let Some(BackendLibrary { backend, library_version, library_path }) = versus {
        let _ = write!(text, "\n# Versus: {backend} {library_version} from {library_path}");
    }
    let _ = writeln!(text, "\n# World: {world}\n# System: {system}");
    if let Some(transport) = transport {
        let _ = writeln!(text, "# Transport: {transport}");
    }
    text
}

/// The first line of a collective.
pub fn title_line(collective: &str) -> String {
    format!("# Collective test starting: {}\n", program_name(collective))
}

/// The ranks in one line.
pub fn ranks_line(ranks: &[Rank]) -> String {
    let hosts: BTreeSet<&str> = ranks.iter().map(|rank| rank.host.as_str()).collect();
    format!("# Ranks: {}, on {} host(s)\n", ranks.len(), hosts.len())
}

/// The first lines of a collective: its name and the settings. `on_gpus` selects the clock of `-I`.
pub fn start_lines(collective: &str, settings: &Settings, on_gpus: bool) -> String {
    let (step, unit) = match (settings.step_factor, settings.step_bytes) {
        (Some(factor), _) => (factor, "factor"),
        (None, bytes) => (bytes.unwrap_or(0), "bytes"),
    };
    let mut text = title_line(collective);
    let _ = writeln!(
        text,
        "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} iters: {} \
         agg iters: {} validation: {} graph: {} unalign: {}",
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

/// The list of all ranks and their devices.
pub fn device_list(ranks: &[Rank]) -> String {
    let mut text = "#\n# Using devices\n".to_owned();
    for rank in ranks {
        let Rank {
            rank, job_rank, group, pid, host, device, pci, device_name, processors, numa_nodes, ..
        } = rank;
        let _ = write!(text, "#  Rank {rank:>2} Group {group:>2} Pid {pid:>6} on {host:>10} ");
        if let Some(ordinal) = device {
            let _ = write!(text, "device {ordinal:>2} ");
        }
        if let Some(pci) = pci {
            let _ = write!(text, "[{pci}] ");
        }
        text.push_str(device_name);
        // The lines of GPUs are those of nccl-tests.
        if device.is_none() {
            for (name, numbers) in [("processors", processors), ("NUMA", numa_nodes)] {
                let _ = numbers.as_ref().map(|numbers| write!(text, " {name} {numbers}"));
            }
        }
        if let Some(job_rank) = job_rank {
            let _ = write!(text, " (rank {job_rank} of the job)");
        }
        text.push('\n');
    }
    text
}

/// The lines about a reduced largest size, in bytes.
pub fn reduction_lines(max_bytes: u64) -> String {
    format!("#\n# Reducing maxBytes to {max_bytes} due to memory limitation\n")
}

#[cfg(test)]
mod tests;
