//! Findings from the counts of launched operations.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use super::progress::{
    LaunchProgress, RankMember, Standstill, counts_text, find_standstill, group_by_counts, member_of,
};
use super::words::RankNames;
use crate::finding::{Evidence, Finding};
use crate::job::status::{Format, JobCommunicator, Status};
use crate::knowledge::texts::compose_finding;
use crate::words::{capitalize, join_list, plural};

const SOURCE: &str = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html";

/// Conclusions from the counts.
#[derive(Debug, Default)]
pub(super) struct CountConclusions {
    /// The findings.
    pub findings: Vec<Finding>,
    /// Sentence that proves operations on all ranks.
    pub proof: Option<String>,
    /// Sentence about incomparable ranks.
    pub unseen: Option<String>,
}

/// Concludes from the counts of two answers.
pub(super) fn conclude_from_counts(
    first: &Status,
    last: &Status,
    interval: Duration,
    rank_names: &RankNames<'_>,
) -> CountConclusions {
    let progress = LaunchProgress::between_answers(first, last);
    let seconds = format!("{:.1} s", interval.as_secs_f64());
    let stands: Vec<Standstill<'_>> = last
        .communicators
        .iter()
        .filter(|communicator| progress.is_still(communicator) && is_unchanged(first, last, communicator))
        .filter_map(find_standstill)
        .collect();
    let mut conclusions = CountConclusions::default();
    if progress.has_restarted {
        let text = "Communicators were destroyed or created again between the answers: their counts are not \
                    comparable.";
        conclusions.unseen = Some(text.to_owned());
    }
    let is_certain = last.format == Format::Json || last.communicator_count() == 1;
    let (reported, followers) = sort_out(&stands);
    for (stand, roots) in reported {
        conclusions.findings.push(build_finding(stand, &roots, &seconds, is_certain, rank_names));
    }
    if conclusions.findings.is_empty() && !stands.is_empty() {
        conclusions.findings.push(describe_circle(&stands, &seconds, rank_names));
    }
    append_followers(&mut conclusions.findings, &followers);
    conclusions.findings.extend(find_unnamed_differences(first, last));
    if conclusions.findings.is_empty() {
        judge_progress(&mut conclusions, &progress, last, &seconds, rank_names);
    }
    conclusions
}

/// Checks that a communicator of a text answer had the same differences before: the text shows nothing else.
fn is_unchanged(first: &Status, last: &Status, communicator: &JobCommunicator) -> bool {
    last.format == Format::Json
        || first
            .find_communicator(&communicator.identity)
            .is_some_and(|before| group_by_counts(before) == group_by_counts(communicator))
}

/// Separates the communicators in which the job waits for a rank from communicators waiting as a consequence.
/// The first ones come with their awaited ranks.
fn sort_out<'a, 'b>(
    stands: &'b [Standstill<'a>],
) -> (Vec<(&'b Standstill<'a>, Vec<u32>)>, Vec<&'b Standstill<'a>>) {
    let mut candidates: Vec<(&Standstill<'_>, Vec<u32>)> =
        stands.iter().enumerate().map(|(index, stand)| (stand, root_ranks(stands, index))).collect();
    // First come communicators with only awaited ranks behind, the smallest first.
    candidates.sort_by_key(|(stand, roots)| (roots.len() != stand.behind.len(), stand.communicator.size));
    let mut named: BTreeSet<RankMember> = BTreeSet::new();
    let (mut reported, mut followers) = (Vec::new(), Vec::new());
    for (stand, roots) in candidates {
        let awaited: BTreeSet<RankMember> = members_of_ranks(stand, &roots).into_iter().collect();
        if stand.is_conflict || !awaited.is_subset(&named) {
            named.extend(awaited);
            reported.push((stand, roots));
        } else {
            followers.push(stand);
        }
    }
    (reported, followers)
}

/// Returns the awaited ranks: ranks behind that do not wait in another communicator.
fn root_ranks(stands: &[Standstill<'_>], index: usize) -> Vec<u32> {
    let waiting: BTreeSet<RankMember> = stands
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != index)
        .flat_map(|(_, stand)| members_of_ranks(stand, &stand.ahead))
        .collect();
    let stand = &stands[index];
    let is_root = |number: &&u32| {
        stand
            .communicator
            .rank(**number)
            .is_none_or(|rank| !waiting.contains(&member_of(stand.communicator, rank)))
    };
    stand.behind.iter().filter(is_root).copied().collect()
}

fn members_of_ranks(stand: &Standstill<'_>, numbers: &[u32]) -> Vec<RankMember> {
    let ranks = numbers.iter().filter_map(|number| stand.communicator.rank(*number));
    ranks.map(|rank| member_of(stand.communicator, rank)).collect()
}

fn names_of_ranks(stand: &Standstill<'_>, numbers: &[u32], rank_names: &RankNames<'_>) -> Vec<String> {
    let place = |number: u32| stand.communicator.rank(number).and_then(|rank| rank.place.as_ref());
    numbers.iter().map(|&number| rank_names.name(stand.communicator, number, place(number))).collect()
}

/// Returns the finding about ranks that have not arrived, or called other operations.
fn build_finding(
    stand: &Standstill<'_>,
    roots: &[u32],
    seconds: &str,
    is_certain: bool,
    rank_names: &RankNames<'_>,
) -> Finding {
    let size = stand.communicator.size;
    let within = rank_names.within_communicator(&stand.communicator.identity, size);
    let is_minority = stand.behind.len() * 2 <= size as usize;
    let (id, suspects) = match is_minority {
        _ if stand.is_conflict => ("job-different-operations", &stand.ahead[..]),
        true if is_certain => ("job-not-arrived", roots),
        true => ("job-not-arrived/uncertain", roots),
        false => ("job-few-ahead", &stand.ahead[..]),
    };
    let ahead = stand.ahead.len();
    let values: [(&str, &dyn Display); 9] = [
        ("within", &within),
        ("seconds", &seconds),
        ("ranks", &capitalize(&join_list(&names_of_ranks(stand, suspects, rank_names)))),
        ("has", &plural(suspects.len(), "has", "have")),
        ("awaited", &stand.awaited.join(" and ")),
        ("ahead", &ahead),
        ("wait", &plural(ahead, "rank launched and waits", "ranks launched and wait")),
        ("behind", &stand.behind.len()),
        ("size", &size),
    ];
    let mut finding = compose_finding(id, &values);
    complete_finding(&mut finding, stand, suspects, rank_names);
    finding
}

/// Adds remedy, ranks, hosts and evidence.
fn complete_finding(
    finding: &mut Finding,
    stand: &Standstill<'_>,
    suspects: &[u32],
    rank_names: &RankNames<'_>,
) {
    let places = suspects.iter().filter_map(|number| stand.communicator.rank(*number)?.place.as_ref());
    let places: Vec<_> = places.filter(|place| place.pid >= 0).collect();
    let (pid, host) = match places.first() {
        Some(place) => (place.pid.to_string(), format!("On {}", place.host)),
        None => ("PID".to_owned(), "On its host".to_owned()),
    };
    finding.remedy = Some(format!(
        "{host}: `py-spy dump --pid {pid}` shows where it is (without Python: `gdb -p {pid} -batch -ex \
         'thread apply all bt'`). Where some ranks may take this long (a checkpoint, an evaluation), ask \
         again with `--interval 60`."
    ));
    finding.ranks = suspects
        .iter()
        .filter_map(|&number| {
            let place = stand.communicator.rank(number).and_then(|rank| rank.place.as_ref());
            rank_names.number_in_largest(stand.communicator, number, place)
        })
        .collect();
    finding.ranks.sort_unstable();
    finding.hosts =
        places.iter().map(|place| place.host.clone()).collect::<BTreeSet<_>>().into_iter().collect();
    for (counts, numbers) in group_by_counts(stand.communicator).into_iter().take(8) {
        let who = match numbers[..] {
            [one] => format!("Rank {one}"),
            _ => format!("{} ranks", numbers.len()),
        };
        let rank = numbers.first().copied().filter(|_| numbers.len() == 1);
        let host = rank
            .and_then(|number| stand.communicator.rank(number)?.place.as_ref())
            .map(|place| place.host.clone());
        finding.evidence.push(Evidence {
            place: "RAS".to_owned(),
            line: None,
            rank,
            host,
            text: format!(
                "communicator {}: {who} launched {}",
                stand.communicator.identity,
                counts_text(counts)
            ),
        });
    }
    finding.source = Some(SOURCE.to_owned());
}

/// Returns the finding about communicators with all late ranks waiting in another one.
fn describe_circle(stands: &[Standstill<'_>], seconds: &str, rank_names: &RankNames<'_>) -> Finding {
    let each: Vec<String> = stands
        .iter()
        .map(|stand| {
            let behind = join_list(&names_of_ranks(stand, &stand.behind, rank_names));
            format!("communicator {} waits for {behind}", stand.communicator.identity)
        })
        .collect();
    let mut finding = compose_finding(
        "job-circle",
        &[("stands", &stands.len()), ("seconds", &seconds), ("each", &each.join("; "))],
    );
    if let Some(stand) = stands.first() {
        complete_finding(&mut finding, stand, &stand.behind, rank_names);
    }
    finding
}

/// Adds the communicators that wait for the same ranks, or for ranks waiting for these.
fn append_followers(findings: &mut [Finding], followers: &[&Standstill<'_>]) {
    let Some(root) = findings.iter_mut().find(|finding| finding.rule == "job-not-arrived") else { return };
    for stand in followers.iter().take(8) {
        let text = format!(
            "communicator {} of {} ranks waits as a consequence: {} {} not launched {}",
            stand.communicator.identity,
            stand.communicator.size,
            stand.behind.len(),
            plural(stand.behind.len(), "rank has", "ranks have"),
            stand.awaited.join(" and ")
        );
        root.evidence.push(Evidence::at_place("RAS", text));
    }
}

/// Returns findings about differences without named ranks in a text answer.
fn find_unnamed_differences(first: &Status, last: &Status) -> Vec<Finding> {
    let lasting = last.communicators.iter().filter(|now| {
        let before = first.find_communicator(&now.identity);
        !now.unnamed_differences.is_empty()
            && before.is_some_and(|before| before.unnamed_differences == now.unnamed_differences)
    });
    let finding = |communicator: &JobCommunicator| {
        compose_finding(
            "job-counts-differ",
            &[
                ("identity", &communicator.identity),
                ("unnamed_differences", &communicator.unnamed_differences.join("; ")),
            ],
        )
    };
    lasting.map(finding).collect()
}

/// Judges ranks without differences: they run, they stand, or some of them do.
fn judge_progress(
    conclusions: &mut CountConclusions,
    progress: &LaunchProgress,
    last: &Status,
    seconds: &str,
    rank_names: &RankNames<'_>,
) {
    let total = progress.launched.len();
    let moving = progress.count_moving();
    let is_complete = last.communicators.iter().all(|each| each.missing_count == 0);
    let is_known = last.format == Format::Json
        || rank_names.largest.is_some_and(|each| each.ranks.len() == each.size as usize);
    if total > 0 && moving == total && is_complete && is_known {
        let least = progress.launched.values().min().copied().unwrap_or(0);
        let most = progress.launched.values().max().copied().unwrap_or(0);
        let operations =
            if least == most { format!("{most}") } else { format!("between {least} and {most}") };
        conclusions.proof = Some(format!("all {total} ranks launched {operations} operations in {seconds}"));
        return;
    }
    if total == 0 || last.format == Format::Text {
        conclusions.findings.extend(find_missing_counts(last));
        return;
    }
    let finding = if !progress.unknown.is_empty() {
        growth_unknown(progress, total, seconds)
    } else if moving == 0 {
        no_progress(last, total, seconds, rank_names)
    } else {
        describe_partial_progress(progress, last, seconds, rank_names)
    };
    conclusions.findings.push(finding);
}

fn growth_unknown(progress: &LaunchProgress, total: usize, seconds: &str) -> Finding {
    let count = progress.unknown.len();
    compose_finding(
        "job-growth-unknown",
        &[
            ("count", &count),
            ("total", &total),
            ("verb", &plural(count, "was", "were")),
            ("seconds", &seconds),
        ],
    )
}

fn no_progress(last: &Status, total: usize, seconds: &str, rank_names: &RankNames<'_>) -> Finding {
    let counts = rank_names
        .largest
        .and_then(|largest| largest.ranks.first())
        .map(|rank| format!(" ({} in the largest communicator)", counts_text(&rank.counts)));
    let all = if total == 1 { "The only rank has".to_owned() } else { format!("All {total} ranks have") };
    let several = last.communicators.len() > 1;
    compose_finding(
        "job-no-progress",
        &[
            ("all", &all),
            ("counts", &counts.unwrap_or_default()),
            ("each", &if several { " in each communicator" } else { "" }),
            ("seconds", &seconds),
        ],
    )
}

fn describe_partial_progress(
    progress: &LaunchProgress,
    last: &Status,
    seconds: &str,
    rank_names: &RankNames<'_>,
) -> Finding {
    let mut still = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    for communicator in &last.communicators {
        for rank in &communicator.ranks {
            if progress.launched.get(&member_of(communicator, rank)).is_some_and(|launched| *launched == 0) {
                still.insert(rank_names.name(communicator, rank.rank, rank.place.as_ref()));
                numbers.extend(rank_names.number_in_largest(communicator, rank.rank, rank.place.as_ref()));
            }
        }
    }
    let names: Vec<String> = still.into_iter().collect();
    let mut finding = compose_finding(
        "job-partly-still",
        &[
            ("names", &capitalize(&join_list(&names))),
            ("seconds", &seconds),
            ("moving", &progress.count_moving()),
            ("total", &progress.launched.len()),
        ],
    );
    finding.ranks = numbers.into_iter().collect();
    finding
}

/// Returns the finding about a text answer without counts.
fn find_missing_counts(last: &Status) -> Option<Finding> {
    let count = last.communicator_count();
    if count == 0 {
        return Some(compose_finding("job-no-communicator", &[]));
    }
    Some(compose_finding(
        "job-counts-hidden",
        &[
            ("nccl_version", &last.nccl_version),
            ("count", &count),
            ("verb", &plural(usize::try_from(count).unwrap_or(usize::MAX), "communicator", "communicators")),
        ],
    ))
}
