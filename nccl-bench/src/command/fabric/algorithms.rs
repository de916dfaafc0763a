//! `nccl-bench fabric algorithms`: the fabric backend's table of algorithms.

use std::io::{self, Write};

use collectives::fabric::{Collective, Medium, RULES, Rule};
use serde::Serialize;

use engine::request::Size;
use engine::request::fabric_collective;

const EXAMPLES: &str = "\
Examples:
  nccl-bench fabric algorithms                         the whole table
  nccl-bench fabric algorithms allreduce --ranks 8     the algorithms of 8 ranks, by size
  nccl-bench fabric algorithms --medium hosts          several hosts with several ranks each
  nccl-bench fabric algorithms --json                  for programs

The first line that fits decides. Sizes are bytes: of a rank's block for all_gather and gather, of the
vector or all blocks together for other collectives. On several hosts with several ranks each, the lines
of 'hosts' come first, then the lines of 'network'. board needs memory that all ranks share.
--algo selects another algorithm: nccl-bench allreduce --backend fabric --algo ring.";

/// The arguments of `nccl-bench fabric algorithms`.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct FabricAlgorithmsArguments {
    /// Only these collectives: allreduce or all_reduce, ...
    #[arg(value_name = "COLLECTIVE", value_delimiter = ',', value_parser = fabric_collective)]
    pub collectives: Vec<Collective>,

    /// Only the algorithms of N ranks; in the lines of hosts, of N hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub ranks: Option<u32>,

    /// Only the algorithms for this medium: shared-memory, network or hosts
    #[arg(long, value_name = "MEDIUM")]
    pub medium: Option<Medium>,

    /// JSON: an array with an object for each line
    #[arg(long)]
    pub json: bool,
}

/// A printed line of the table; `None` for no limit.
#[derive(Debug, PartialEq, Serialize)]
struct Line {
    collective: &'static str,
    medium: &'static str,
    /// Maximum number of ranks, or of hosts for the medium `hosts`.
    ranks: Option<usize>,
    /// Maximum size in bytes.
    bytes: Option<usize>,
    algorithm: &'static str,
    /// The algorithm of `hierarchical` between hosts.
    between: Option<&'static str>,
    /// Bytes of a segment; `None` for undivided messages.
    segment: Option<usize>,
    in_flight: usize,
}

impl Line {
    fn from_rule(rule: &Rule) -> Self {
        let limited = |limit: usize| (limit < usize::MAX).then_some(limit);
        let sized = rule.collective != Collective::AllToAllV;
        Self {
            collective: rule.collective.name(),
            medium: rule.medium.name(),
            ranks: limited(rule.ranks),
            bytes: limited(rule.bytes).filter(|_| sized),
            algorithm: rule.plan.algorithm.name(),
            between: rule.plan.between.map(|between| between.name()),
            segment: limited(rule.plan.segment),
            in_flight: rule.plan.in_flight,
        }
    }
}

/// Returns the lines for the arguments. With a number of ranks, only lines in use for some size.
fn select_lines(arguments: &FabricAlgorithmsArguments) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut covered: Option<(Collective, Medium, usize)> = None;
    for rule in RULES {
        let asked = arguments.collectives.is_empty() || arguments.collectives.contains(&rule.collective);
        if !asked || arguments.medium.is_some_and(|medium| medium != rule.medium) {
            continue;
        }
        if let Some(ranks) = arguments.ranks.map(|ranks| ranks as usize) {
            let serves = rule.medium == Medium::Hosts || rule.plan.algorithm.serves(rule.collective, ranks);
            if ranks > rule.ranks || !serves {
                continue;
            }
            let same = |(collective, medium, _): &(Collective, Medium, usize)| {
                (*collective, *medium) == (rule.collective, rule.medium)
            };
            if covered.filter(same).is_some_and(|(_, _, bytes)| rule.bytes <= bytes) {
                continue;
            }
            covered = Some((rule.collective, rule.medium, rule.bytes));
        }
        lines.push(Line::from_rule(rule));
    }
    lines
}

/// Prints the table.
///
/// # Errors
/// When `out` cannot be written.
pub fn print_algorithms(arguments: &FabricAlgorithmsArguments, out: &mut impl Write) -> io::Result<()> {
    let lines = select_lines(arguments);
    if arguments.json {
        serde_json::to_writer_pretty(&mut *out, &lines)?;
        return writeln!(out);
    }
    let up_to = |limit: Option<String>| limit.map_or_else(|| "any".to_owned(), |limit| format!("<= {limit}"));
    writeln!(
        out,
        "{:<14} {:<13} {:>7} {:>9}  {:<19} {:<18} segments",
        "collective", "medium", "ranks", "bytes", "algorithm", "between hosts"
    )?;
    for line in lines {
        let segments = line.segment.map_or_else(
            || "-".to_owned(),
            |segment| format!("{} x {}", line.in_flight, Size(segment as u64)),
        );
        writeln!(
            out,
            "{:<14} {:<13} {:>7} {:>9}  {:<19} {:<18} {segments}",
            line.collective,
            line.medium,
            up_to(line.ranks.map(|ranks| ranks.to_string())),
            up_to(line.bytes.map(|bytes| Size(bytes as u64).to_string())),
            line.algorithm,
            line.between.unwrap_or("-"),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(arguments: &FabricAlgorithmsArguments) -> String {
        let mut out = Vec::new();
        print_algorithms(arguments, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_whole_table_has_every_rule() {
        let text = text(&FabricAlgorithmsArguments::default());
        assert_eq!(text.lines().count(), RULES.len() + 1);
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        for collective in Collective::ALL {
            assert!(text.lines().any(|line| line.starts_with(&format!("{collective} "))), "{text}");
        }
    }

    /// For a number of ranks the lines of a collective and medium reach further and further, to the largest
    /// size. But the lines of hosts may end where a network's lines continue.
    #[test]
    fn for_a_number_of_ranks_each_line_decides_for_some_size() {
        for ranks in [2, 3, 8, 100] {
            for medium in Medium::ALL {
                for collective in Collective::ALL {
                    let (collectives, medium) = (vec![collective], Some(medium));
                    let lines = select_lines(&FabricAlgorithmsArguments {
                        collectives,
                        ranks: Some(ranks),
                        medium,
                        json: false,
                    });
                    let reach: Vec<usize> =
                        lines.iter().map(|line| line.bytes.unwrap_or(usize::MAX)).collect();
                    assert!(
                        reach.is_sorted_by(|before, after| before < after),
                        "{collective} {ranks} {lines:?}"
                    );
                    let ends = medium == Some(Medium::Hosts);
                    assert!(ends || reach.last() == Some(&usize::MAX), "{collective} {ranks}");
                }
            }
        }
    }

    /// Every collective with the hierarchical algorithm has lines for hosts, for every number of hosts.
    #[test]
    fn the_lines_of_hosts_are_hierarchical() {
        for ranks in [2, 8, 9, 1000] {
            for collective in Collective::ALL {
                let (collectives, medium) = (vec![collective], Some(Medium::Hosts));
                let lines = select_lines(&FabricAlgorithmsArguments {
                    collectives,
                    ranks: Some(ranks),
                    medium,
                    json: false,
                });
                assert!(lines.iter().all(|line| line.algorithm == "hierarchical"), "{collective} {lines:?}");
                assert_eq!(
                    lines.is_empty(),
                    !collectives::fabric::Algorithm::Hierarchical.serves(collective, 8),
                    "{collective}"
                );
            }
        }
    }

    #[test]
    fn as_json_what_has_no_limit_is_null() {
        let (collectives, medium) = (vec![Collective::AllReduce], Some(Medium::Hosts));
        let arguments = FabricAlgorithmsArguments { collectives, ranks: Some(1000), medium, json: true };
        let lines: serde_json::Value = serde_json::from_str(&text(&arguments)).unwrap();
        let last = lines.as_array().unwrap().last().unwrap();
        assert_eq!(last["algorithm"], "hierarchical");
        assert!(last["between"].is_string() && last["bytes"].is_null() && last["ranks"].is_null(), "{last}");
    }
}
