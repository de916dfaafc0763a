//! The plan of a run (`--dry-run`), without a GPU and without other ranks.

use std::fmt::Write as _;

use collectives::world::Started;

use engine::backend::RANKS_ALONE;
use engine::collective::{Collective, Counts, Participant};
use engine::data::traffic::Traffic;
use engine::request::{BackendChoice, Request, Roots, Size, Sweep};

use super::ParsedMeasurement;

/// Default largest size: that of GPUs with enough memory.
const MAX_BYTES: u64 = 4 << 30;

/// The plan.
pub(super) fn render(measurement: &ParsedMeasurement) -> String {
    plan(measurement, ranks(measurement))
}

/// The number of ranks: `--ranks`, or that of the processes that the launcher started, with their threads and GPUs.
fn ranks(ParsedMeasurement { arguments, request }: &ParsedMeasurement) -> usize {
    let processes = Started::detect().size.unwrap_or(1);
    let alone = match request.backend {
        BackendChoice::Fabric if processes == 1 => RANKS_ALONE,
        _ => 1,
    };
    let own = request.threads.unwrap_or(alone) * request.gpus.unwrap_or(1);
    arguments.ranks.unwrap_or(processes * own)
}

fn plan(ParsedMeasurement { arguments, request }: &ParsedMeasurement, ranks: usize) -> String {
    let max_bytes = request.max_bytes.unwrap_or(MAX_BYTES.max(request.min_bytes));
    let sweep = Sweep { min: request.min_bytes, max: max_bytes, step: request.step };
    let mut text = format!(
        "{ranks} rank{}; sizes from {} to {}; per size and placement: {} operations timed, {} verifications{}{}\n\
         Buffers of each rank: send {}, receive {}{}\n",
        if ranks == 1 { "" } else { "s" },
        Size(sweep.min),
        Size(sweep.max),
        request.iterations * request.aggregated * request.graph_launches.max(1) * request.rounds,
        request.checks,
        request.stream_checks.map(|rounds| format!(", {rounds} more on the stream")).unwrap_or_default(),
        if request.versus.is_some() { "; of both sides" } else { "" },
        Size(max_bytes),
        Size(max_bytes),
        if request.max_bytes.is_some() { "" } else { " (less where memory is short)" },
    );
    let guessed = arguments.ranks.or(request.gpus).or(request.threads).is_none();
    if guessed && request.backend.may_use_gpus() {
        text.push_str("Each GPU will be a rank; say how many with --ranks\n");
    }
    let files = arguments.output.iter().map(|output| &output.path).chain(&arguments.nccl_tests_json);
    let files: Vec<String> = files.map(|path| path.display().to_string()).collect();
    if !files.is_empty() {
        let _ = writeln!(text, "Nothing is measured, and nothing written to {}", files.join(", "));
    }
    text.extend(request.notes.iter().map(|note| format!("{note}\n")));
    for &collective in &request.collectives {
        text.push_str(&section(request, collective, ranks, sweep));
    }
    text
}

fn section(request: &Request, collective: Collective, ranks: usize, sweep: Sweep) -> String {
    if !collective.runs_over(ranks) {
        return format!("\n{collective}: left out, for it needs a power of two of ranks\n");
    }
    let ops: Vec<&str> = request.ops.iter().map(|op| op.name()).collect();
    let op = if collective.reduces() { format!(", {}", ops.join(" ")) } else { String::new() };
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
        for bytes in sweep.sizes() {
            let root = if let Roots::One(root) = request.roots { root } else { 0 };
            let participant = Participant { rank: root.min(ranks - 1), ranks, root: Some(root) };
            let traffic = (collective == Collective::AllToAllV)
                .then(|| Traffic::new(&request.variables.pattern, bytes, data_type, ranks));
            let counts = Counts::new(collective, bytes, data_type, participant, traffic.as_ref());
            let size = data_type.size();
            text.push_str(&format!(
                "{:>14} {:>14} {:>14} {:>14}  {}\n",
                counts.bytes(data_type),
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
            "nccl-bench allgather,hypercube -b 64 -e 256 --dry-run --ranks 6 -d double --check-on-stream 9";
        let text = render(&measurement(line));
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["192", "4", "32", "192", "double"]), "{text}");
        assert!(rows.contains(&vec!["0", "0", "0", "0", "double"]), "{text}");
        assert!(text.contains("hypercube: left out"), "{text}");
        assert!(text.contains("1 verifications, 9 more on the stream\n"), "{text}");
    }
}
