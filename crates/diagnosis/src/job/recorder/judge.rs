//! Judgement of flight recorder dumps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use super::compare::{CallProperty, Mismatch, first_mismatch, name};
use super::dump::{Dump, EntryState};
use super::groups::GroupRecord;
use crate::finding::{Evidence, Finding};
use crate::knowledge::texts::compose_finding;
use crate::words::{capitalize, plural, ranks_in_words};

/// The finding about ranks that have not called a collective.
const ABSENT: &str = "recorder-not-arrived";

/// Conclusions from dumps.
#[derive(Debug, Default)]
pub(super) struct DumpConclusions {
    /// The findings.
    pub findings: Vec<Finding>,
    /// Sentence that proves the completion of all recorded operations.
    pub proof: Option<String>,
    /// Sentences about facts missing in the dumps.
    pub unseen: Vec<String>,
}

/// Concludes from the collectives of all groups.
pub(super) fn conclude_from_groups(
    groups: &[GroupRecord<'_>],
    dumps: &BTreeMap<u32, Dump>,
) -> DumpConclusions {
    let mut conclusions = DumpConclusions::default();
    let mut late = Vec::new();
    for group in groups {
        if let Some(mismatch) = first_mismatch(group) {
            conclusions.findings.push(mismatch_finding(group, &mismatch));
        } else if let Some(absence) = not_arrived(group) {
            late.push((group, absence));
        } else if let Some(finding) = find_stuck_collective(group) {
            conclusions.findings.push(finding);
        }
    }
    let is_explained = !conclusions.findings.is_empty();
    let (roots, followers): (Vec<_>, Vec<_>) = late.into_iter().partition(|(group, absence)| {
        absence.behind.iter().any(|rank| !waits_elsewhere(groups, group, *rank))
    });
    let has_root = !roots.is_empty() || is_explained;
    conclusions
        .findings
        .extend(roots.iter().map(|(group, absence)| absence_finding(ABSENT, group, absence, groups)));
    for (group, absence) in followers {
        match conclusions.findings.first_mut().filter(|_| has_root) {
            Some(root) => {
                let follower = absence_finding(ABSENT, group, &absence, groups);
                let text = format!("as a consequence: {}", follower.diagnosis);
                root.evidence.push(Evidence::at_place("flight recorder", text));
            }
            None => conclusions.findings.push(absence_finding("recorder-circle", group, &absence, groups)),
        }
    }
    conclusions.findings.extend(point_to_point(dumps));
    absent_dumps(groups, &mut conclusions);
    if conclusions.findings.is_empty() && conclusions.unseen.is_empty() {
        conclusions.proof = state_proof(groups, dumps.len());
    }
    conclusions
}

fn mismatch_finding(group: &GroupRecord<'_>, mismatch: &Mismatch) -> Finding {
    let Mismatch { sequence, operation, property, values } = mismatch;
    let each: Vec<String> =
        values.iter().map(|(value, ranks)| format!("{value} on {}", ranks_in_words(ranks))).collect();
    let id = match property {
        CallProperty::Operation => "recorder-mismatch",
        CallProperty::Size => "recorder-mismatch/size",
        CallProperty::Type => "recorder-mismatch/type",
    };
    let texts: [(&str, &dyn Display); 4] = [
        ("operation", operation),
        ("sequence", sequence),
        ("group", &group.title()),
        ("each", &each.join("; ")),
    ];
    let mut finding = compose_finding(id, &texts);
    // The ranks outside the largest group, or all ranks if the two largest groups have equal size.
    let is_even = values.len() > 1 && values[0].1.len() == values[1].1.len();
    let suspects = values.iter().skip(usize::from(!is_even)).flat_map(|(_, ranks)| ranks);
    finding.ranks = suspects.copied().collect::<BTreeSet<_>>().into_iter().collect();
    for (value, ranks) in values.iter().take(8) {
        finding.evidence.extend(ranks.first().map(|&rank| cite_place(group, rank, *sequence, value)));
    }
    finding
}

/// A collective not called by some ranks.
struct Absent {
    sequence: i64,
    operation: String,
    behind: Vec<u32>,
    waiting: Vec<u32>,
}

/// Finds the first collective with a waiting rank, not called by another rank.
fn not_arrived(group: &GroupRecord<'_>) -> Option<Absent> {
    let least = group.records.values().map(|record| record.last).min()??;
    let sequence = least.saturating_add(1);
    let open = |rank: &u32| group.records[rank].is_open(sequence);
    let behind: Vec<u32> = group
        .records
        .iter()
        .filter(|(_, record)| record.last.is_some_and(|last| last < sequence))
        .map(|(rank, _)| *rank)
        .collect();
    let waiting: Vec<u32> = group.records.keys().filter(|rank| open(rank)).copied().collect();
    // If it is complete on a rank, the dumps are of different times.
    let is_complete = group
        .records
        .values()
        .any(|record| record.collectives.contains_key(&sequence) && !record.is_open(sequence));
    let operation =
        name(group.records.get(waiting.first()?)?.collectives.get(&sequence)?.first()?).to_owned();
    (!behind.is_empty() && !is_complete).then_some(Absent { sequence, operation, behind, waiting })
}

/// Checks that a rank is in an incomplete collective of another group.
fn waits_elsewhere(groups: &[GroupRecord<'_>], group: &GroupRecord<'_>, rank: u32) -> bool {
    groups
        .iter()
        .filter(|other| !std::ptr::eq(*other, group))
        .filter_map(|other| other.records.get(&rank))
        .any(|record| record.first_open().is_some())
}

fn absence_finding(
    id: &str,
    group: &GroupRecord<'_>,
    absent: &Absent,
    groups: &[GroupRecord<'_>],
) -> Finding {
    let Absent { sequence, operation, behind, waiting } = absent;
    let roots: Vec<u32> =
        behind.iter().filter(|rank| !waits_elsewhere(groups, group, **rank)).copied().collect();
    let roots = if roots.is_empty() { behind.clone() } else { roots };
    let mut finding = compose_finding(
        id,
        &[
            ("roots", &capitalize(&ranks_in_words(&roots))),
            ("has", &plural(roots.len(), "has", "have")),
            ("operation", &operation),
            ("sequence", &sequence),
            ("group", &group.title()),
            ("waiting", &ranks_in_words(waiting)),
            ("wait", &plural(waiting.len(), "waits", "wait")),
        ],
    );
    for &rank in roots.iter().take(8) {
        let last = group.records.get(&rank).and_then(|record| record.last).unwrap_or(0);
        let state = match group.records.get(&rank).is_some_and(|record| record.is_open(last)) {
            true => "called, and not complete",
            false => "called",
        };
        finding.evidence.push(cite_place(group, rank, last, &format!("last collective {last} {state}")));
    }
    finding.evidence.extend(waiting.first().map(|&rank| cite_place(group, rank, *sequence, "waits")));
    finding.ranks = roots;
    finding
}

/// Finds an incomplete collective called by all ranks with a dump.
fn find_stuck_collective(group: &GroupRecord<'_>) -> Option<Finding> {
    let (sequence, operation) = group
        .records
        .values()
        .filter_map(|record| record.first_open())
        .map(|(sequence, entry)| (sequence, name(entry).to_owned()))
        .min()?;
    let open: Vec<u32> =
        group.records.iter().filter(|(_, record)| record.is_open(sequence)).map(|(rank, _)| *rank).collect();
    let done: Vec<u32> = group
        .records
        .iter()
        .filter(|(_, record)| record.collectives.contains_key(&sequence) && !record.is_open(sequence))
        .map(|(rank, _)| *rank)
        .collect();
    let absent = group.without_dump();
    let id = if absent.is_empty() { "recorder-stuck-inside" } else { "recorder-dump-missing" };
    let complete = match done.is_empty() {
        true => String::new(),
        false => format!(", and is complete on {}", ranks_in_words(&done)),
    };
    let values: [(&str, &dyn Display); 8] = [
        ("operation", &operation),
        ("sequence", &sequence),
        ("group", &group.title()),
        ("open", &ranks_in_words(&open)),
        ("complete", &complete),
        ("absent", &capitalize(&ranks_in_words(&absent))),
        ("has", &plural(absent.len(), "has", "have")),
        ("it", &plural(absent.len(), "it", "one of them")),
    ];
    let mut finding = compose_finding(id, &values);
    finding.ranks = absent;
    finding.evidence.extend(open.first().map(|&rank| cite_place(group, rank, sequence, "not complete")));
    Some(finding)
}

/// Returns the finding about incomplete sends and receives.
fn point_to_point(dumps: &BTreeMap<u32, Dump>) -> Option<Finding> {
    let mut ranks = Vec::new();
    let mut count = 0_u64;
    for (&rank, dump) in dumps {
        let open =
            dump.entries.iter().filter(|entry| entry.is_p2p && entry.state != EntryState::Completed).count();
        if open > 0 {
            ranks.push(rank);
            count += open as u64;
        }
    }
    let first = *ranks.first()?;
    let entry =
        dumps[&first].entries.iter().find(|entry| entry.is_p2p && entry.state != EntryState::Completed)?;
    let mut finding =
        compose_finding("recorder-point-to-point", &[("count", &count), ("ranks", &ranks_in_words(&ranks))]);
    finding.occurrences = count;
    finding.evidence.push(Evidence {
        place: entry.location.clone().unwrap_or_else(|| "flight recorder".to_owned()),
        rank: Some(first),
        text: entry.profiling_name.clone(),
        ..Evidence::default()
    });
    finding.ranks = ranks;
    Some(finding)
}

/// Reports the absent dumps, if no finding does.
fn absent_dumps(groups: &[GroupRecord<'_>], conclusions: &mut DumpConclusions) {
    let absent: BTreeSet<u32> = groups.iter().flat_map(GroupRecord::without_dump).collect();
    let absent: Vec<u32> = absent.into_iter().collect();
    if !absent.is_empty() {
        let has = if absent.len() == 1 { "has" } else { "have" };
        let text =
            format!("{} {has} no dump: not given, or ended before it was written.", ranks_in_words(&absent));
        conclusions.unseen.push(capitalize(&text));
    }
}

fn state_proof(groups: &[GroupRecord<'_>], dumps: usize) -> Option<String> {
    let count: usize = groups
        .iter()
        .filter_map(|group| group.records.values().map(|record| record.collectives.len()).max())
        .sum();
    let used = groups
        .iter()
        .filter(|group| group.records.values().any(|record| !record.collectives.is_empty()))
        .count();
    (count > 0)
        .then(|| format!("all {count} collectives of {used} groups that {dumps} ranks recorded are complete"))
}

/// Returns the place of a collective in the program.
fn cite_place(group: &GroupRecord<'_>, rank: u32, sequence: i64, text: &str) -> Evidence {
    let entry = group.records.get(&rank).and_then(|record| record.collectives.get(&sequence)?.first());
    let location = entry.and_then(|entry| entry.location.clone());
    Evidence {
        place: location.unwrap_or_else(|| "flight recorder".to_owned()),
        rank: Some(rank),
        text: match entry {
            Some(entry) => format!("rank {rank}, {} {sequence}: {text}", name(entry)),
            None => format!("rank {rank}: {text}"),
        },
        ..Evidence::default()
    }
}
