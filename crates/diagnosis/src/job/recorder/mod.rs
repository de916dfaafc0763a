//! Flight recorder dumps of PyTorch: ranks that have not called a collective, and ranks with different
//! collectives.

mod compare;
pub mod dump;
mod groups;
mod judge;
mod pickle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::malformed::Malformed;
use crate::examination::{Body, Examination, Section};
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use dump::Dump;
use groups::GroupRecord;

/// Largest number of printed rows of a table.
const MOST_ROWS: usize = 64;

/// Reads dumps, and judges them. Dumps of several jobs are not judged.
///
/// The rank of a dump is in the file's name.
pub fn examine_dumps(paths: &[PathBuf]) -> Examination {
    let mut files: BTreeMap<u32, Vec<&Path>> = BTreeMap::new();
    let mut unread = Vec::new();
    for path in paths {
        match dump::rank_of(path) {
            Some(rank) => files.entry(rank).or_default().push(path),
            None => unread.push(describe_unreadable_dump(
                path,
                &Malformed::new("its name has no rank; name it like `nccl_trace_rank_3`"),
            )),
        }
    }
    if let Some((rank, same)) = files.iter().find(|(_, same)| same.len() > 1) {
        let names: Vec<String> = same.iter().map(|path| path.display().to_string()).collect();
        return several_jobs(format!("{} files are of rank {rank}: {}", same.len(), names.join(", ")));
    }
    let mut dumps: BTreeMap<u32, Dump> = BTreeMap::new();
    for (rank, path) in files.iter().filter_map(|(rank, same)| Some((*rank, *same.first()?))) {
        match dump::read_dump(path) {
            Ok(dump) => _ = dumps.insert(rank, dump),
            Err(fault) => unread.push(describe_unreadable_dump(path, &fault)),
        }
    }
    if let Some(difference) = describe_several_jobs(&dumps) {
        return several_jobs(difference);
    }
    let mut examination = judge_dumps(&dumps);
    examination.findings.extend(unread);
    examination.sort_findings();
    examination
}

/// Describes dumps with different groups of all ranks, or with a group that lacks the rank of the dump.
fn describe_several_jobs(dumps: &BTreeMap<u32, Dump>) -> Option<String> {
    let mut worlds = dumps.iter().filter_map(|(rank, dump)| {
        let world = dump.pg_config.values().find(|group| group.desc == "default_pg")?;
        Some((*rank, world.ranks.as_str()))
    });
    let (first, ranks) = worlds.next()?;
    let (other, others) = worlds.find(|(_, others)| *others != ranks)?;
    let count = |text| dump::parse_ranks(text).len();
    Some(format!(
        "the dump of rank {first} is of a job with {} ranks, but the dump of rank {other} of a job with {}",
        count(ranks),
        count(others)
    ))
}

/// Returns the examination of dumps of several jobs.
fn several_jobs(difference: String) -> Examination {
    let mut examination = Examination::new("job");
    examination.findings.push(compose_finding("recorder-several-jobs", &[("difference", &difference)]));
    examination.unseen.push("The state of the job: dumps of several jobs are not compared.".to_owned());
    examination
}

/// Judges the dumps of ranks.
pub fn judge_dumps(dumps: &BTreeMap<u32, Dump>) -> Examination {
    let mut examination = Examination::new("job");
    let groups = groups::collect_groups(dumps);
    let conclusions = judge::conclude_from_groups(&groups, dumps);
    examination.findings = conclusions.findings;
    examination.proof = conclusions.proof.into_iter().collect();
    examination.unseen = conclusions.unseen;
    examination.unseen.push(
        "The dumps show the state when they were written, without operations before the oldest record."
            .to_owned(),
    );
    examination.sections = vec![dumps_section(dumps), groups_section(&groups)];
    examination.facts = facts_as_json(dumps, &groups);
    examination.sort_findings();
    examination
}

fn describe_unreadable_dump(path: &Path, fault: &Malformed) -> Finding {
    let finding = compose_finding("recorder-unreadable", &[("path", &path.display()), ("fault", &fault)]);
    finding.with_evidence(path.display().to_string(), fault.to_string())
}

fn dumps_section(dumps: &BTreeMap<u32, Dump>) -> Section {
    let rows = dumps.iter().take(MOST_ROWS).map(|(rank, dump)| {
        vec![
            rank.to_string(),
            dump.version.clone(),
            dump.comm_lib_version.clone().unwrap_or_default(),
            dump.entries.len().to_string(),
        ]
    });
    build_table("Dumps", &["rank", "version", "NCCL", "operations"], rows.collect())
}

fn groups_section(groups: &[GroupRecord<'_>]) -> Section {
    let mut rows = Vec::new();
    for group in groups {
        for (rank, record) in &group.records {
            let open =
                record.first_open().map(|(sequence, entry)| format!("{} {sequence}", compare::name(entry)));
            rows.push(vec![
                group.title(),
                rank.to_string(),
                record.last.map(|last| last.to_string()).unwrap_or_default(),
                open.unwrap_or_default(),
            ]);
        }
        rows.extend(
            group
                .without_dump()
                .into_iter()
                .map(|rank| vec![group.title(), rank.to_string(), "no dump".to_owned(), String::new()]),
        );
    }
    rows.truncate(MOST_ROWS);
    build_table("Collectives", &["group", "rank", "last called", "first not complete"], rows)
}

fn build_table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Section {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Section { title: title.to_owned(), body: Body::Table { columns, rows } }
}

fn facts_as_json(dumps: &BTreeMap<u32, Dump>, groups: &[GroupRecord<'_>]) -> serde_json::Value {
    let dumps: Vec<_> = dumps
        .iter()
        .map(|(rank, dump)| {
            json!({
                "rank": rank,
                "version": dump.version,
                "nccl_version": dump.comm_lib_version,
                "operations": dump.entries.len(),
                "groups": dump.pg_config,
                "progress": dump.pg_status,
            })
        })
        .collect();
    let groups: Vec<_> = groups
        .iter()
        .map(|group| {
            let ranks: Vec<_> = group
                .records
                .iter()
                .map(|(rank, record)| {
                    let open = record.first_open();
                    json!({
                        "rank": rank,
                        "last_called": record.last,
                        "first_not_complete": open.map(|(sequence, _)| sequence),
                        "entry": open.map(|(_, entry)| entry),
                    })
                })
                .collect();
            json!({
                "name": group.name,
                "description": group.description,
                "ranks": ranks,
                "without_dump": group.without_dump(),
            })
        })
        .collect();
    json!({ "flight_recorder": { "dumps": dumps, "groups": groups } })
}

#[cfg(test)]
mod tests;
