//! A verdict as text.

use judge::ceiling::{Bound, Link};
use judge::expectation::Trust;
use judge::verdict::{CollectiveVerdict, Comparison, Obstacle, Reason, Row};
use judge::{Machine, Verdict};

use crate::command::doctor::output::layout::{align_columns, plain_line};
use crate::report::table::binary_size;

/// A cell without a value.
const ABSENT: &str = "-";
/// Width of the text.
const WIDTH: usize = 100;

/// Returns the verdict about a run of a file.
pub(super) fn render_verdict(file: &str, verdict: &Verdict) -> String {
    let mut text = format!("{}: {}\n", plain_line(file), verdict.grade.grade_word());
    text += &format!("{}\n\n", describe_machine(&verdict.machine));
    for line in align_columns(&table_rows(verdict)) {
        text += &format!("{line}\n");
    }
    let mut remarks = list_reasons(verdict);
    remarks.extend(list_variables(verdict));
    remarks.extend(list_ceilings(verdict));
    remarks.extend(list_sources(verdict));
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        let options = textwrap::Options::new(WIDTH)
            .initial_indent("- ")
            .subsequent_indent("  ")
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        text += &format!("{}\n", textwrap::fill(&plain_line(&remark), options));
    }
    text
}

/// Returns the verdict in lines for comments below a table.
pub(in crate::command) fn comment_lines(verdict: &Verdict) -> Vec<String> {
    let reasons = list_reasons(verdict).into_iter().chain(list_variables(verdict));
    let lines = std::iter::once(format!("Verdict: {}", verdict.grade.grade_word())).chain(reasons);
    lines.map(|line| plain_line(&line)).collect()
}

fn describe_machine(machine: &Machine) -> String {
    let ranks = machine.ranks.map_or("an unknown number of ranks".to_owned(), |ranks| {
        let noun = if ranks == 1 { "rank" } else { "ranks" };
        format!("{ranks} {noun}")
    });
    let device = machine.gpu_name.as_deref().map_or(String::new(), |name| format!(" on {name}"));
    let hosts = match machine.hosts {
        None => String::new(),
        Some(1) => ", one host".to_owned(),
        Some(hosts) => format!(", {hosts} hosts"),
    };
    let nvls = match machine.nvls {
        Some(true) => ", NVLS in use",
        Some(false) if machine.gpu.is_some_and(|kind| kind.nvls) => ", NVLS not in use",
        None if machine.gpu.is_some_and(|kind| kind.nvls) => ", NVLS unknown (--nvls)",
        _ => "",
    };
    let nics = match machine.nics {
        Some(nics) => format!(", {} NICs of {} Gbit/s", nics.count, nics.gbits.round()),
        None if machine.hosts.is_some_and(|hosts| hosts > 1) => ", NICs unknown (--nics)".to_owned(),
        None => String::new(),
    };
    let nccl = machine.nccl.map_or(String::new(), |version| format!(", NCCL {version}"));
    plain_line(&format!("{ranks}{device}{hosts}{nvls}{nics}{nccl}"))
}

fn table_rows(verdict: &Verdict) -> Vec<Vec<String>> {
    let head = ["collective", "verdict", "size", "GB/s", "typical", "least", "ceiling", "of ceiling"];
    let rows = verdict.collectives.iter().map(|each| {
        let row = each.comparison.as_ref().map(|compared| &compared.row).or(each.best.as_ref());
        let number = |value: Option<f64>| value.map_or(ABSENT.to_owned(), |value| format!("{value:.1}"));
        let expected = each.comparison.as_ref().map(|compared| compared.expected);
        let ceiling = each.ceiling.as_ref().map(|ceiling| ceiling.busbw_gbps);
        let share = row.zip(ceiling).map(|(row, ceiling)| row.busbw_gbps / ceiling * 100.0);
        vec![
            each.collective.clone(),
            each.grade.grade_word().to_owned(),
            row.map_or(ABSENT.to_owned(), |row| binary_size(row.key.bytes)),
            number(row.map(|row| row.busbw_gbps)),
            number(expected.map(|expected| expected.typical_gbps)),
            number(expected.map(|expected| expected.least_gbps)),
            number(ceiling),
            share.map_or(ABSENT.to_owned(), |share| format!("{share:.0} %")),
        ]
    });
    std::iter::once(head.map(str::to_owned).to_vec()).chain(rows).collect()
}

/// Returns the reasons in sentences; equal ones of several collectives once.
fn list_reasons(verdict: &Verdict) -> Vec<String> {
    let mut remarks: Vec<(String, Vec<&str>)> = Vec::new();
    for each in &verdict.collectives {
        for reason in &each.reasons {
            let sentence = describe_reason(reason, each.comparison.as_ref());
            match remarks.iter_mut().find(|(other, _)| *other == sentence) {
                Some((_, names)) => names.push(&each.collective),
                None => remarks.push((sentence, vec![&each.collective])),
            }
        }
    }
    let of_run = verdict.reasons.iter().map(|reason| describe_reason(reason, None));
    of_run.chain(remarks.into_iter().map(|(text, names)| format!("{}: {text}", names.join(", ")))).collect()
}

fn describe_reason(reason: &Reason, comparison: Option<&Comparison>) -> String {
    match reason {
        Reason::WrongData { measurements } => {
            format!("data is wrong in {measurements} of the measurements")
        }
        Reason::RunFailed => "the run failed".to_owned(),
        Reason::NotWhole => {
            "the results are not whole: the run was interrupted, or the file was cut".to_owned()
        }
        Reason::NotVerified => "no data was verified".to_owned(),
        Reason::UnusableValues { measurements } => {
            format!("{measurements} of the measurements have no usable time or bandwidth")
        }
        Reason::AboveCeiling { row, ceiling_gbps } => format!(
            "{} is above the ceiling of {ceiling_gbps:.1} GB/s: the measurement is wrong, or the machine is \
             not the one described",
            at_size(row)
        ),
        Reason::BelowExpectation => describe_shortfall(comparison),
        Reason::FewNvLinks { active, usual } => {
            format!("a GPU has {active} active NVLinks instead of {usual}: see nccl-bench doctor host")
        }
        Reason::NotOverNvLink { row, nvlink_gbps, host_gbps } => format!(
            "{}: no more than a link to the host carries ({host_gbps:.1} GB/s). The NVLinks ({nvlink_gbps:.1} GB/s) \
             are not used: see nccl-bench doctor",
            at_size(row)
        ),
        Reason::OneNic { row, sent_gbits } => format!(
            "{}: each host sends about {sent_gbits:.0} Gbit/s, no more than one of its NICs carries: see \
             nccl-bench doctor",
            at_size(row)
        ),
        Reason::SlowNetwork { row, sent_gbits } => format!(
            "{}: each host sends about {sent_gbits:.0} Gbit/s, little for such GPUs; NCCL may use TCP, or one \
             NIC of several. Tell the NICs (--nics), and see nccl-bench doctor",
            at_size(row)
        ),
        Reason::FarBelowFastest { row, typical_gbps, nics } => format!(
            "{}: less than half of the {typical_gbps:.0} GB/s of equal hosts with {} NICs of {} Gbit/s. Tell the \
             NICs (--nics)",
            at_size(row),
            nics.count,
            nics.gbits.round()
        ),
        Reason::SlowHostLink { row, host_gbps } => format!(
            "{}: less than 30 % of what the link of a GPU to its host carries ({host_gbps:.1} GB/s); the data \
             may pass through host memory, or the link be narrow: see nccl-bench doctor",
            at_size(row)
        ),
        Reason::WithoutNvls { row, typical_gbps } => {
            let with = typical_gbps
                .map_or(String::new(), |typical| format!(" With it, {typical:.0} GB/s are typical."));
            format!(
                "{} is typical without NVLS, and the results do not tell if it was in use.{with} Tell it with \
                 --nvls",
                at_size(row)
            )
        }
        Reason::Dip { before, after } => {
            format!("the bandwidth falls from {} to {}", at_size(before), at_size(after))
        }
        Reason::PlacementsDiffer { ratio } => {
            format!("in place the bandwidth is {ratio:.2} of the bandwidth out of place")
        }
        Reason::RanksDiffer { rank, ratio } => {
            format!("rank {rank} takes {ratio:.2} times as long as the fastest rank")
        }
        Reason::DirectionsDiffer { pair: [from, to], ratio } => format!(
            "from rank {from} to rank {to} the bandwidth is {ratio:.2} times the bandwidth in the other direction"
        ),
        Reason::NotCompared { obstacle } => describe_missing(*obstacle).to_owned(),
    }
}

fn describe_shortfall(comparison: Option<&Comparison>) -> String {
    let Some((row, expected)) = comparison.and_then(|compared| compared.farthest.as_ref()) else {
        return "the bandwidth is below the expected one".to_owned();
    };
    let (below, rows) = comparison.map_or((0, 0), |compared| (compared.below, compared.rows));
    let low_trust = match comparison.map(|compared| compared.trust) {
        Some(Trust::Low) => ". The source is a single report, so this is no failure",
        _ => "",
    };
    format!(
        "{} instead of at least {:.1} GB/s; {below} of {rows} compared rows are below the least expected \
         bandwidth{low_trust}",
        at_size(row),
        expected.least_gbps
    )
}

const fn describe_missing(obstacle: Obstacle) -> &'static str {
    match obstacle {
        Obstacle::OtherLibrary => "not compared: values are known for NCCL only",
        Obstacle::UnknownRanks => "not compared: the results do not list the ranks",
        Obstacle::UnknownGpu => "not compared: the GPUs differ, or are of no known kind",
        Obstacle::SymmetricMemory => {
            "not compared: values are known for plain memory, not for symmetric windows"
        }
        Obstacle::SharedGpus => "not compared: ranks share GPUs",
        Obstacle::SingleRank => "not compared: a single rank has no bus bandwidth",
        Obstacle::Groups => "not compared: values are known for all ranks together, not for groups",
        Obstacle::UnknownCollective => {
            "not compared: pairs of ranks measured, or the collective is not known"
        }
        Obstacle::UnknownNics => "not compared: the NICs are not known (--nics)",
        Obstacle::NoExpectation => "not compared: no value of an equal machine is known (--expect)",
        Obstacle::SmallSizes => {
            "not compared: the sizes are smaller than those of known values; measure up to 16G"
        }
    }
}

/// Returns a bandwidth with its size: `365.5 GB/s at 4G`.
fn at_size(row: &Row) -> String {
    format!("{:.1} GB/s at {}", row.busbw_gbps, binary_size(row.key.bytes))
}

/// Returns the variables that lower the bandwidth, if anything is to explain.
fn list_variables(verdict: &Verdict) -> Option<String> {
    let names: Vec<String> =
        verdict.variables.iter().map(|variable| format!("{}={}", variable.name, variable.value)).collect();
    let needs_explanation = verdict.collectives.iter().flat_map(|each| &each.reasons).any(Reason::is_low);
    (needs_explanation && !names.is_empty())
        .then(|| format!("set in the environment, and lowering the bandwidth: {}", names.join(", ")))
}

/// Returns the derivation of each ceiling, equal ones of several collectives once.
fn list_ceilings(verdict: &Verdict) -> Vec<String> {
    let mut derived: Vec<(String, Vec<&str>)> = Vec::new();
    for each in &verdict.collectives {
        let Some(bound) = each.ceiling.as_ref().and_then(|ceiling| ceiling.bounds.first()) else { continue };
        let sentence = describe_bound(bound);
        match derived.iter_mut().find(|(other, _)| *other == sentence) {
            Some((_, names)) => names.push(&each.collective),
            None => derived.push((sentence, vec![&each.collective])),
        }
    }
    derived.into_iter().map(|(text, names)| format!("ceiling of {}: {text}", names.join(", "))).collect()
}

fn describe_bound(bound: &Bound) -> String {
    let link = match bound.link {
        Link::NvLink => "the NVLinks of a GPU",
        Link::NvLinkAndHost => "the NVLinks of a GPU and its link to the host",
        Link::HostLink => "the link of a GPU to its host",
        Link::Network => "all NICs of a host",
    };
    let reduction = if bound.may_reduce { ", if switches reduce" } else { "" };
    let rate = format!("{:.1} GB/s in one direction of {link}{reduction}", bound.link_gbps);
    if bound.factor == 1.0 {
        rate
    } else {
        format!("{:.1} GB/s = {:.3} x {rate}", bound.busbw_gbps, bound.factor)
    }
}

/// Returns the sources of the expectations, each once.
fn list_sources(verdict: &Verdict) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    for compared in verdict.collectives.iter().filter_map(|each: &CollectiveVerdict| each.comparison.as_ref())
    {
        let trust = match compared.trust {
            Trust::High => "high",
            Trust::Medium => "medium",
            Trust::Low => "low",
        };
        let source = format!("typical: {}, {}; trust {trust}", compared.source, compared.date);
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    sources
}
