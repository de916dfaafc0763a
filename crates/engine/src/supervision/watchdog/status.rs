//! The status of a rank, and the message about late ranks.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::COLLECT;

/// Maximum number of ranks named in a message with their devices.
const MOST_NAMED: usize = 8;

/// Name of the watched process or rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum WatchedName {
    /// A process without ranks so far, by its number.
    Process(usize),
    /// A rank of the job.
    Rank(usize),
}

impl WatchedName {
    fn kind_name(self) -> &'static str {
        match self {
            Self::Process(_) => "process",
            Self::Rank(_) => "rank",
        }
    }

    fn watched_number(self) -> usize {
        let (Self::Process(number) | Self::Rank(number)) = self;
        number
    }
}

impl fmt::Display for WatchedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.kind_name(), self.watched_number())
    }
}

/// The current step of a rank, or of a process without ranks so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankStatus {
    pub(super) name: WatchedName,
    /// Host and device: `node1 (GPU 3)`.
    pub(super) location: String,
    pub(super) number: u64,
    pub(super) step: String,
    /// Time since the step began; `None` when the step has no time limit.
    pub(super) age: Option<Duration>,
    /// Time since the process of this rank sent this status.
    #[serde(skip)]
    pub(super) heard: Duration,
}

impl RankStatus {
    /// Returns a line for [`World::note`](collectives::world::World::note). The world prints it unchanged
    /// when one of its own barriers is late.
    pub(super) fn note_line(&self) -> String {
        let age = self.age.map_or_else(|| "-".to_owned(), |age| format!("{} ms", age.as_millis()));
        format!("{} on {} | step {} | {age} | {}\n", self.name, self.location, self.number, self.step)
    }

    /// Replaces control characters, because texts from other processes are printed.
    pub(super) fn into_printable(self) -> Self {
        let clean = |text: String| text.replace(char::is_control, " ");
        Self { location: clean(self.location), step: clean(self.step), ..self }
    }

    pub(super) fn is_late(&self, limit: Duration) -> bool {
        self.age.is_some_and(|age| age > limit)
    }

    /// Returns true if its process has sent nothing while rank 0's process waited for notes. Its step is then
    /// the last known one.
    fn is_silent(&self) -> bool {
        self.heard > COLLECT
    }
}

/// Describes the stuck ranks, and the ranks that wait for them. The ranks in the earliest step are stuck; the
/// others cannot continue without them. A silent rank may be in a later step than its last known one.
pub(super) fn explain_lateness(ranks: &[RankStatus], limit: Duration) -> String {
    let mut ranks: Vec<&RankStatus> = ranks.iter().collect();
    ranks.sort_by_key(|rank| (rank.number, rank.heard.as_secs()));
    let limit = limit.as_secs_f64();
    let Some(earliest) = ranks.first().map(|rank| rank.number) else {
        return format!("nothing was done within {limit} s");
    };
    let (silent, heard): (Vec<_>, Vec<_>) = ranks.into_iter().partition(|rank| rank.is_silent());
    let mut heard = heard.chunk_by(|one, other| one.number == other.number).peekable();
    let mut parts = Vec::new();
    if silent.first().is_some_and(|rank| rank.number == earliest) {
        parts.push(format!("no progress within {limit} s: {}", last_heard(&silent)));
    } else if let Some(stuck) = heard.next() {
        let is_all = heard.peek().is_none() && silent.is_empty();
        let step = &stuck[0].step;
        parts.push(match (stuck, is_all) {
            ([one], _) => format!("{} on {} did not finish {step} within {limit} s", one.name, one.location),
            (several, true) => {
                format!("no rank has finished {step} within {limit} s: {}", list_with_locations(several))
            }
            (several, false) => {
                format!("these did not finish {step} within {limit} s: {}", list_with_locations(several))
            }
        });
        if !silent.is_empty() {
            parts.push(last_heard(&silent));
        }
    }
    for group in heard {
        let verb = if group.len() == 1 { "waits" } else { "wait" };
        parts.push(format!("{} {verb} in {}", list_as_ranges(group), group[0].step));
    }
    parts.join("; ")
}

/// Returns the last known steps of silent ranks, in order of the steps:
/// `rank 1 on a (GPU 1) was last heard 7 s ago, in a barrier`.
fn last_heard(silent: &[&RankStatus]) -> String {
    let alike = |one: &&RankStatus, other: &&RankStatus| {
        one.number == other.number && one.heard.as_secs() == other.heard.as_secs()
    };
    let mut parts = Vec::new();
    let mut left = silent.len();
    for group in silent.chunk_by(alike).take(MOST_NAMED) {
        let verb = if group.len() == 1 { "was" } else { "were" };
        let (age, step) = (group[0].heard.as_secs(), &group[0].step);
        parts.push(format!("{} {verb} last heard {age} s ago, in {step}", list_with_locations(group)));
        left -= group.len();
    }
    if left > 0 {
        parts.push(format!("and {left} more"));
    }
    parts.join("; ")
}

/// Returns ranks with their locations: `rank 1 on a (GPU 1), rank 2 on a (GPU 2), and 14 more`.
fn list_with_locations(group: &[&RankStatus]) -> String {
    let mut names: Vec<String> =
        group.iter().take(MOST_NAMED).map(|rank| format!("{} on {}", rank.name, rank.location)).collect();
    if group.len() > MOST_NAMED {
        names.push(format!("and {} more", group.len() - MOST_NAMED));
    }
    names.join(", ")
}

/// Returns ranks as ranges of numbers: `rank 0-2, 5`.
fn list_as_ranges(group: &[&RankStatus]) -> String {
    let mut names: Vec<WatchedName> = group.iter().map(|rank| rank.name).collect();
    names.sort_unstable();
    let kinds = names.chunk_by(|one, other| one.kind_name() == other.kind_name()).map(|same| {
        let numbers: Vec<usize> = same.iter().map(|name| name.watched_number()).collect();
        format!("{} {}", same[0].kind_name(), number_ranges(&numbers))
    });
    kinds.collect::<Vec<_>>().join(", ")
}

/// Returns ascending numbers as ranges: `0, 2-5`.
pub fn number_ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, other| one + 1 == *other);
    let ranges = runs.map(|run| match run {
        [only] => only.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(rank: usize, number: u64, step: &str) -> RankStatus {
        RankStatus {
            name: WatchedName::Rank(rank),
            location: format!("node{} (GPU {})", rank / 4, rank % 4),
            number,
            step: step.to_owned(),
            age: Some(Duration::from_millis(30_250)),
            heard: Duration::from_millis(900),
        }
    }

    fn explained(ranks: &[RankStatus]) -> String {
        explain_lateness(ranks, Duration::from_secs(30))
    }

    #[test]
    fn the_rank_that_is_behind_is_told_from_those_that_wait() {
        let mut ranks: Vec<RankStatus> = (0..8).map(|rank| status(rank, 18, "allreduce")).collect();
        ranks[3] = status(3, 17, "initialising NCCL");
        assert_eq!(
            explained(&ranks),
            "rank 3 on node0 (GPU 3) did not finish initialising NCCL within 30 s; rank 0-2, 4-7 wait in \
             allreduce"
        );
        ranks[5] = status(5, 19, "a barrier");
        assert!(
            explained(&ranks).ends_with("; rank 0-2, 4, 6-7 wait in allreduce; rank 5 waits in a barrier")
        );
        ranks[6] = status(6, 17, "initialising NCCL");
        assert!(explained(&ranks).starts_with(
            "these did not finish initialising NCCL within 30 s: rank 3 on node0 (GPU 3), rank 6 on node1 \
             (GPU 2); rank 0-2, 4, 7 wait"
        ));
    }

    #[test]
    fn ranks_that_are_stuck_together_are_all_named() {
        let ranks: Vec<RankStatus> = (0..2).map(|rank| status(rank, 18, "allreduce")).collect();
        assert_eq!(
            explained(&ranks),
            "no rank has finished allreduce within 30 s: rank 0 on node0 (GPU 0), rank 1 on node0 (GPU 1)"
        );
        let ranks: Vec<RankStatus> = (0..20).map(|rank| status(rank, 18, "allreduce")).collect();
        assert!(explained(&ranks).ends_with("rank 7 on node1 (GPU 3), and 12 more"));
        assert_eq!(explained(&[]), "nothing was done within 30 s");
    }

    #[test]
    fn the_step_of_a_silent_rank_is_the_last_one_that_is_known() {
        let silent = |rank, number, step, seconds| RankStatus {
            heard: Duration::from_secs(seconds),
            ..status(rank, number, step)
        };
        // It may have continued to the others' step, or be in the same one.
        for number in [16, 18] {
            let ranks =
                [status(0, 18, "allreduce"), silent(1, number, "filling", 33), status(2, 18, "allreduce")];
            assert_eq!(
                explained(&ranks),
                "no progress within 30 s: rank 1 on node0 (GPU 1) was last heard 33 s ago, in filling; \
                 rank 0, 2 wait in allreduce"
            );
        }
        let ranks = [
            silent(5, 16, "filling", 31),
            silent(4, 16, "filling", 33),
            silent(6, 16, "filling", 33),
            silent(1, 17, "a barrier", 33),
            status(0, 18, "allreduce"),
        ];
        assert_eq!(
            explained(&ranks),
            "no progress within 30 s: rank 5 on node1 (GPU 1) was last heard 31 s ago, in filling; rank 4 on \
             node1 (GPU 0), rank 6 on node1 (GPU 2) were last heard 33 s ago, in filling; rank 1 on node0 \
             (GPU 1) was last heard 33 s ago, in a barrier; rank 0 waits in allreduce"
        );
        // Not the rank that makes the others wait.
        let ranks = [status(0, 17, "filling"), silent(1, 18, "a barrier", 3), status(2, 18, "a barrier")];
        assert_eq!(
            explained(&ranks),
            "rank 0 on node0 (GPU 0) did not finish filling within 30 s; rank 1 on node0 (GPU 1) was last \
             heard 3 s ago, in a barrier; rank 2 waits in a barrier"
        );
        let ranks: Vec<RankStatus> =
            (0..10).map(|rank| silent(rank, 17, "filling", 10 + rank as u64)).collect();
        assert!(
            explained(&ranks).ends_with("last heard 17 s ago, in filling; and 2 more"),
            "{}",
            explained(&ranks)
        );
    }

    #[test]
    fn processes_that_have_no_ranks_yet_are_behind_ranks() {
        let mut ranks = vec![status(0, 1001, "a barrier")];
        ranks.push(RankStatus { name: WatchedName::Process(1), ..status(4, 1, "loading") });
        assert!(explained(&ranks).starts_with("process 1 on node1 (GPU 0) did not finish loading"));
        ranks[1].number = 1002;
        assert!(explained(&ranks).ends_with("; process 1 waits in loading"));
    }
}
