//! Time of the start, and the late ranks.

use std::fmt::Display;

use super::job::{Job, count, ranks_in_words};
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::log::digest::Communicator;

/// Shortest reported wait, in seconds.
const LONG_S: f64 = 5.0;

/// The start of a communicator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Start {
    /// The longest time of a rank, in seconds, and the rank.
    pub(super) total: Option<(f64, u32)>,
    /// The longest time by phase, in seconds.
    pub(super) phases: Vec<(String, f64)>,
    /// The longest wait for other ranks, in seconds, and the waiting rank.
    pub(super) wait: Option<(f64, u32)>,
    /// Ranks of the log with less than a tenth of this wait: they came last.
    pub(super) late: Vec<u32>,
    /// Number of ranks missing in the log.
    pub(super) absent: u32,
}

impl Start {
    /// Returns the start of a communicator, if the log has times.
    pub(super) fn new(communicator: &Communicator) -> Option<Self> {
        let longest = |select: &dyn Fn(u32) -> Option<f64>| {
            let times = communicator.members.keys().filter_map(|&rank| Some((select(rank)?, rank)));
            times.max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let timing = |rank: u32, phase: &str| communicator.members.get(&rank)?.timings.get(phase).copied();
        let boot = |rank: u32, phase: &str| communicator.members.get(&rank)?.bootstrap.get(phase).copied();
        let total = longest(&|rank| timing(rank, "total")).or_else(|| longest(&|rank| boot(rank, "total")));
        let wait = longest(&|rank| boot(rank, "recv"));
        total.or(wait)?;
        let mut phases: Vec<(String, f64)> = Vec::new();
        let names: std::collections::BTreeSet<&String> =
            communicator.members.values().flat_map(|member| member.timings.keys()).collect();
        for name in names.into_iter().filter(|name| *name != "total") {
            phases.extend(longest(&|rank| timing(rank, name)).map(|(seconds, _)| (name.clone(), seconds)));
        }
        phases.sort_by(|a, b| b.1.total_cmp(&a.1));
        let late = wait.map(|(longest, _)| {
            let ranks = communicator.members.keys().copied();
            ranks.filter(|&rank| boot(rank, "recv").is_some_and(|seconds| seconds < longest / 10.0)).collect()
        });
        let present = u32::try_from(communicator.members.len()).unwrap_or(u32::MAX);
        let absent = communicator.ranks.saturating_sub(present);
        let absent = if communicator.is_size_guessed { 0 } else { absent };
        Some(Self { total, phases, wait, late: late.unwrap_or_default(), absent })
    }

    /// Returns the explanation of a long wait.
    pub(super) fn explain_wait(&self) -> Option<String> {
        let (seconds, rank) = self.wait.filter(|(seconds, _)| *seconds >= LONG_S)?;
        Some(match (&self.late[..], self.absent) {
            ([], 0) => {
                format!("rank {rank} waited {seconds:.1} s for other ranks; the log does not show for which")
            }
            ([], absent) => format!(
                "rank {rank} waited {seconds:.1} s for ranks that came late; the logs of {} are not here",
                count(absent as usize, "other rank")
            ),
            (late, 0) => {
                format!("rank {rank} waited {seconds:.1} s for {}, which came last", ranks_in_words(late))
            }
            (late, absent) => format!(
                "rank {rank} waited {seconds:.1} s; of the ranks in this log, {} came last; {} are not here",
                ranks_in_words(late),
                count(absent as usize, "other log")
            ),
        })
    }
}

/// Returns findings about a slow start.
pub(super) fn find_slow_start(job: &Job<'_>) -> Option<Finding> {
    let communicator = job.main?;
    let start = Start::new(communicator)?;
    if let Some(explanation) = start.explain_wait() {
        let (seconds, rank) = start.wait?;
        let writer = communicator.members.get(&rank)?.writer;
        let text = format!("Bootstrap timings: recv {seconds:.2} s");
        return Some(Finding {
            ranks: start.late.clone(),
            evidence: job.cite_writer(writer, text).into_iter().collect(),
            ..compose_finding("late-ranks", &[("explanation", &explanation)])
        });
    }
    let (seconds, rank) = start.total.filter(|(seconds, _)| *seconds >= 2.0 * LONG_S)?;
    let (phase, longest) = start.phases.first()?;
    let id = match phase.as_str() {
        "kernels" => "slow-start/kernels",
        "topo" => "slow-start/topology",
        _ => "slow-start",
    };
    let values: [(&str, &dyn Display); 4] = [
        ("total", &format!("{seconds:.1}")),
        ("rank", &rank),
        ("longest", &format!("{longest:.1}")),
        ("phase", phase),
    ];
    Some(Finding { ranks: vec![rank], ..compose_finding(id, &values) })
}
