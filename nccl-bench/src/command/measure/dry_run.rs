//! The plan of a run (`--dry-run`), without a GPU and without other ranks.

use std::fmt::Write as _;

use collectives::world::Started;

use engine::backend::{RANKS_ALONE, missing_gpus};
use engine::bench::{HostPlan, check_ranks};
use engine::collective::{Collective, Counts, Participant};
use engine::data::traffic::Traffic;
use engine::groups::Groups;
use engine::request::{BackendChoice, Request, Roots, Size, Sweep};
use engine::supervision::Stop;

use super::{MeasureArguments, ParsedMeasurement};

/// Default largest size: that of GPUs with enough memory.
const MAX_BYTES: u64 = 4 << 30;

/// The plan.
///
/// # Errors
/// The refusal of the run.
pub(super) fn render_plan(measurement: &ParsedMeasurement) -> Result<String, Stop> {
    let request = &measurement.request;
    let may_use_gpus = request.backend.may_use_gpus();
    let missing = if may_use_gpus { missing_gpus() } else { None };
    let missing = missing.as_deref().map(|reason| reason.lines().next().unwrap_or(reason));
    let needs_gpus = request.backend == BackendChoice::Nccl || request.asks_for_gpus.is_some();
    if may_use_gpus && (needs_gpus || missing.is_none()) {
        return plan_on_gpus(measurement, missing);
    }
    let alone = if request.backend == BackendChoice::Mpi { 1 } else { RANKS_ALONE };
    let (ranks, here) = count_ranks(measurement, alone);
    let groups = plan_groups(measurement, ranks, alone)?;
    let HostPlan { request, max_bytes, buffers } = HostPlan::new(request, ranks, &groups, here)?;
    let note = missing.map_or_else(String::new, |reason| {
        format!("Host memory, because no GPU can be used: {reason}; --backend nccl plans a run on GPUs\n")
    });
    Ok(plan_text(&measurement.arguments, &request, &groups, max_bytes, buffers, &note))
}

/// The plan for GPUs. `missing` is the reason why this machine's cannot be used.
fn plan_on_gpus(measurement: &ParsedMeasurement, missing: Option<&str>) -> Result<String, Stop> {
    let ParsedMeasurement { arguments, request } = measurement;
    let (ranks, _) = count_ranks(measurement, 1);
    let groups = plan_groups(measurement, ranks, 1)?;
    let is_guessed = arguments.ranks.or(request.gpus).or(request.threads).is_none();
    let mut note = missing.map_or_else(String::new, |reason| {
        format!("For another machine, because no GPU can be used here: {reason}\n")
    });
    if is_guessed {
        note.push_str("Each GPU will be a rank; give their number with --ranks\n");
    } else {
        check_ranks(request, ranks, &groups)?;
    }
    if request.max_bytes.is_none() {
        note.push_str("The largest size is smaller if GPU memory is short\n");
    }
    let max_bytes = request.max_bytes.unwrap_or(MAX_BYTES.max(request.settings.min_bytes));
    Ok(plan_text(arguments, request, &groups, max_bytes, [max_bytes; 2], &note))
}

/// The number of ranks: `--ranks`, or that of the processes that the launcher started, with their threads and
/// GPUs; and how many of them are known to share this host. `alone` is the default number of a single
/// process.
fn count_ranks(ParsedMeasurement { arguments, request }: &ParsedMeasurement, alone: usize) -> (usize, usize) {
    let processes = Started::detect().size.unwrap_or(1);
    let alone = if processes == 1 { alone } else { 1 };
    let own = request.threads.unwrap_or(alone) * request.gpus.unwrap_or(1);
    let ranks = arguments.ranks.unwrap_or(processes * own);
    (ranks, if processes == 1 { ranks } else { own })
}

/// The groups of `ranks` ranks, in processes with the requested number of threads and GPUs. `alone` is the
/// default number of ranks of a single process.
fn plan_groups(
    ParsedMeasurement { arguments, request }: &ParsedMeasurement,
    ranks: usize,
    alone: usize,
) -> Result<Groups, Stop> {
    if request.variables.split.is_none() {
        return Ok(Groups::of_all(ranks));
    }
    let is_alone = arguments.ranks.is_none() && Started::detect().size.unwrap_or(1) == 1;
    let threads = request.threads.unwrap_or(if is_alone { alone } else { 1 });
    let of_process = threads * request.gpus.unwrap_or(1);
    if !ranks.is_multiple_of(of_process) {
        return Err(Stop::Refused(format!(
            "--ranks {ranks}: each process has {of_process} ranks (-t, -g), and NCCL_TESTS_SPLIT divides \
             processes; give a multiple of {of_process}"
        )));
    }
    Groups::new(request, ranks / of_process, of_process)
}

fn plan_text(
    arguments: &MeasureArguments,
    request: &Request,
    groups: &Groups,
    max_bytes: u64,
    [send, receive]: [u64; 2],
    note: &str,
) -> String {
    let settings = &request.settings;
    let sweep = Sweep { min: settings.min_bytes, max: max_bytes, step: request.size_step() };
    let ranks: usize = groups.group_sizes().sum();
    let in_groups = match groups.group_count() {
        1 => String::new(),
        count => {
            format!(" in {count} groups, with the counts of the smallest, of {}", groups.smallest_size())
        }
    };
    let mut text = format!(
        "{ranks} rank{}{in_groups}; sizes from {} to {}; per size and placement: {} operations timed, {} \
         verifications{}{}\n\
         Buffers of each rank: send {}, receive {}\n{note}",
        if ranks == 1 { "" } else { "s" },
        Size(sweep.min),
        Size(sweep.max),
        settings.count_operations(),
        settings.checks,
        settings.stream_checks.map(|rounds| format!(", {rounds} more on the stream")).unwrap_or_default(),
        if request.versus.is_some() { "; of both sides" } else { "" },
        Size(send),
        Size(receive),
    );
    let files = arguments.output.iter().map(|output| &output.path).chain(&arguments.nccl_tests_json);
    let files: Vec<String> = files.map(|path| path.display().to_string()).collect();
    if !files.is_empty() {
        let _ = writeln!(text, "Nothing is measured, and nothing is written to {}", files.join(", "));
    }
    text.extend(request.notes.iter().map(|note| format!("{note}\n")));
    for &collective in &request.collectives {
        text.push_str(&section_text(request, collective, groups.smallest_size(), sweep));
    }
    text
}

fn section_text(request: &Request, collective: Collective, ranks: usize, sweep: Sweep) -> String {
    if !collective.runs_over(ranks) {
        return format!("\n{collective}: skipped, because it needs 2, 4, 8, ... ranks\n");
    }
    let ops: Vec<&str> = request.ops.iter().map(|op| op.operator_name()).collect();
    let op = if collective.is_reduction() { format!(", {}", ops.join(" ")) } else { String::new() };
    let root = match request.roots {
        _ if !collective.has_root() => String::new(),
        Roots::One(root) => format!(", root {root}"),
        Roots::All => format!(", each of {ranks} roots"),
    };
    let mut text = format!("\n{collective}{op}{root}\n");
    for &data_type in &request.data_types {
        text.push_str(&format!(
            "{:>14} {:>14} {:>14} {:>14}  {}\n",
            "size (B)", "count", "sent (B)", "received (B)", "type"
        ));
        for bytes in sweep.list_sizes() {
            let root = if let Roots::One(root) = request.roots { root } else { 0 };
            let participant = Participant { rank: root.min(ranks - 1), ranks, root: Some(root) };
            let traffic = (collective == Collective::AllToAllV)
                .then(|| Traffic::new(&request.variables.pattern, bytes, data_type, ranks));
            let counts = Counts::new(collective, bytes, data_type, participant, traffic.as_ref());
            let size = data_type.size();
            text.push_str(&format!(
                "{:>14} {:>14} {:>14} {:>14}  {}\n",
                counts.largest_bytes(data_type),
                counts.parameter,
                counts.send * size,
                counts.receive * size,
                data_type.name()
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::measurement;

    #[test]
    fn a_dry_run_shows_what_each_rank_moves() {
        let line =
            "nccl-bench all --backend nccl -b 64 -e 256 --dry-run --ranks 6 -d double --check-on-stream 9";
        let text = render_plan(&measurement(line)).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["192", "4", "32", "192", "double"]), "{text}");
        assert!(rows.contains(&vec!["0", "0", "0", "0", "double"]), "{text}");
        assert!(text.contains("hypercube: skipped"), "{text}");
        assert!(text.contains("1 verifications, 9 more on the stream\n"), "{text}");
    }

    #[test]
    fn a_dry_run_over_host_memory_has_its_limits_and_refusals() {
        let planned = |options: &str| {
            render_plan(&measurement(&format!("nccl-bench {options} --backend fabric --dry-run")))
        };
        let text = planned("allreduce,alltoall -o all").unwrap();
        assert!(text.starts_with("2 ranks; sizes from 8 to 64M;"), "{text}");
        assert!(text.contains("\nmulsum is skipped") && !text.contains("GPU"), "{text}");
        assert!(text.contains("\nallreduce, sum prod max min avg\n"), "{text}");
        let reduced = planned("allreduce -e 900T").unwrap();
        assert!(reduced.contains("-e is reduced to what fits into the host memory of"), "{reduced}");
        assert!(!reduced.contains("900T"), "{reduced}");
        for (options, reason) in [
            ("hypercube -t 3", "hypercube needs 2, 4, 8, ... ranks, but there are 3"),
            ("broadcast -r 2", "-r 2: there are 2 ranks"),
            (
                "allgather --algo recursive-doubling -t 3",
                "the algorithm does not support all_gather on 3 ranks; omit it, or",
            ),
            ("allreduce -G 1", "-G (CUDA graphs): only NCCL over GPUs"),
            ("alltoall -e 8", "gives no rank an element among 2 ranks"),
            ("allreduce -b 900T -e 900T", "does not fit"),
        ] {
            let Err(Stop::Refused(text)) = planned(options) else { panic!("{options} is not refused") };
            assert!(text.contains(reason), "{options}: {text}");
        }
        let on_gpus = render_plan(&measurement("nccl-bench hypercube --backend nccl --dry-run --ranks 3"));
        assert!(matches!(on_gpus, Err(Stop::Refused(text)) if text.contains("but there are 3")));
    }
}
