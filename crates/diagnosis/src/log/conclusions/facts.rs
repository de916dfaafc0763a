//! The facts of a log, for people and for programs.

use serde_json::{Value, json};

use super::job::{Job, count, ranks_in_words};
use super::ranks::format_cuda_version;
use super::startup::Start;
use super::transport::{MATRIX, Ways, describe_size};
use crate::examination::{Body, Section};
use crate::log::digest::{Communicator, Digest};

/// Largest number of rows of a table.
const ROWS: usize = 64;

/// Returns the sections for people.
pub(super) fn log_sections(job: &Job<'_>, ways: Option<&Ways<'_>>) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |title: &str, body: Body| sections.push(Section { title: title.to_owned(), body });
    add("Job", Body::Facts(summarize_job(job)));
    if let Some(ways) = ways.filter(|ways| !ways.pairs.is_empty() || !ways.linked.is_empty()) {
        let too_large = || {
            let pairs = count(ways.pairs.len(), "pair");
            Body::Lines(vec![format!(
                "There are more than {MATRIX} ranks, too many for a table; --json lists the {pairs} of the \
                 log."
            )])
        };
        let body = ways.draw_matrix().map_or_else(too_large, Body::Matrix);
        add("Transport from each rank (row) to each rank (column)", body);
    }
    if let Some(start) = job.main.and_then(Start::new) {
        add("Start", Body::Facts(start_facts(&start)));
    }
    let ranks = rank_rows(job);
    if !ranks.is_empty() {
        let columns = ["rank", "host", "process", "GPU", "NCCL", "network", "state"];
        add("Ranks", build_table(&columns, ranks));
    }
    if job.digest.communicators.len() > 1 {
        let columns = ["communicator", "made by", "ranks", "nodes", "channels", "connections"];
        add(
            "Communicators",
            build_table(&columns, job.digest.communicators.iter().map(communicator_row).collect()),
        );
    }
    if !job.digest.variables.is_empty() {
        add("Variables", build_table(&["name", "value", "set by", "ranks"], variable_rows(job)));
    }
    if !job.digest.diagnostics.is_empty() {
        let lines = job.digest.diagnostics.iter().map(|line| format!("[{}] {}", line.status, line.text));
        add("NCCL's own diagnostics", Body::Lines(lines.take(ROWS).collect()));
    }
    sections
}

fn build_table(columns: &[&str], mut rows: Vec<Vec<String>>) -> Body {
    let more = rows.len().saturating_sub(ROWS);
    if more > 0 {
        rows.truncate(ROWS);
        let mut last = vec![String::new(); columns.len()];
        if let Some(cell) = last.first_mut() {
            *cell = format!("and {more} more");
        }
        rows.push(last);
    }
    Body::Table { columns: columns.iter().map(|&name| name.to_owned()).collect(), rows }
}

fn summarize_job(job: &Job<'_>) -> Vec<(String, String)> {
    let join = |values: Vec<String>| values.join(", ");
    let mut facts: Vec<(&str, String)> = Vec::new();
    let inputs = &job.digest.inputs;
    let lines: u64 = inputs.iter().map(|input| input.lines).sum();
    let nccl: u64 = inputs.iter().map(|input| input.nccl_lines).sum();
    let names = match &inputs[..] {
        [input] => input.name.clone(),
        several => count(several.len(), "file"),
    };
    facts.push(("log", format!("{names}: {lines} lines, {nccl} of NCCL")));
    let versions = job.group_writers(|writer| {
        Some(format!("{}{}", writer.nccl.as_ref()?, writer.nccl_build.as_deref().unwrap_or("")))
    });
    let mut versions: Vec<String> = versions.into_keys().collect();
    if versions.is_empty() {
        versions.extend(job.digest.versions.iter().map(ToString::to_string));
    }
    facts.push(("NCCL", join(versions)));
    facts.push((
        "aws-ofi-nccl",
        join(
            job.group_writers(|writer| writer.plugin.as_ref().map(ToString::to_string)).into_keys().collect(),
        ),
    ));
    facts.push((
        "libfabric",
        join(
            job.group_writers(|writer| writer.libfabric.as_ref().map(ToString::to_string))
                .into_keys()
                .collect(),
        ),
    ));
    facts.push((
        "CUDA of the driver",
        join(job.group_writers(|writer| writer.driver.map(format_cuda_version)).into_keys().collect()),
    ));
    facts.push(("network", join(job.group_writers(|writer| writer.network.clone()).into_keys().collect())));
    let devices: std::collections::BTreeSet<&String> =
        job.digest.writers.iter().flat_map(|writer| &writer.devices).collect();
    facts.push(("devices", join(devices.into_iter().take(16).cloned().collect())));
    facts.push((
        "bootstrap",
        join(job.group_writers(|writer| writer.bootstrap.clone()).into_keys().take(4).collect()),
    ));
    if let Some(main) = job.main {
        let mut hosts = super::paths::hosts_of_members(job, main);
        let of_head = job.head_of(main).into_iter().flatten();
        hosts.extend(of_head.filter_map(|(&rank, _)| job.host_of_rank(main, rank)));
        facts.push(("ranks", format!("{} in the log of {}", main.members.len(), describe_size(main))));
        let nodes = main
            .nodes
            .map(|nodes| format!("; {} for NCCL", count(nodes as usize, "node")))
            .unwrap_or_default();
        let named: Vec<&str> = hosts.iter().take(8).copied().collect();
        let more = if hosts.len() > named.len() { ", ..." } else { "" };
        facts.push(("hosts", format!("{}{more}{nodes}", named.join(", "))));
        facts.push(("channels", describe_channels(main)));
        facts.push(("rings", describe_rings(main)));
        let choices: Vec<String> =
            main.choices.iter().map(|(name, number)| format!("{name} ({number})")).collect();
        facts.push(("algorithms", join(choices)));
    }
    let owned = facts.into_iter().filter(|(_, value)| !value.is_empty());
    owned.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn describe_channels(communicator: &Communicator) -> String {
    let text = |number: Option<u32>, name: &str| number.map(|number| format!("{number} {name}"));
    let parts =
        [text(communicator.channels, "for collectives"), text(communicator.nvls_channels, "for NVLS")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn describe_rings(communicator: &Communicator) -> String {
    let Some(ring) = communicator.rings.first() else { return String::new() };
    let shown: Vec<String> = ring.iter().take(16).map(u32::to_string).collect();
    let more = if ring.len() > shown.len() { " ..." } else { "" };
    let trees = if communicator.trees { "; trees" } else { "" };
    match communicator.rings.len() {
        1 => format!("{}{more}{trees}", shown.join(" ")),
        number => format!("{number} orders, the first {}{more}{trees}", shown.join(" ")),
    }
}

fn start_facts(start: &Start) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    if let Some((seconds, rank)) = start.total {
        facts.push(("total".to_owned(), format!("{seconds:.2} s on rank {rank}")));
    }
    let phases: Vec<String> = start
        .phases
        .iter()
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(name, seconds)| format!("{name} {seconds:.2} s"))
        .collect();
    if !phases.is_empty() {
        facts.push(("phases".to_owned(), phases.join(", ")));
    }
    if let Some((seconds, rank)) = start.wait {
        let text = start.explain_wait().unwrap_or_else(|| format!("{seconds:.2} s on rank {rank}"));
        facts.push(("wait for others".to_owned(), text));
    }
    facts
}

fn rank_rows(job: &Job<'_>) -> Vec<Vec<String>> {
    let Some(main) = job.main else { return Vec::new() };
    let row = |(rank, member): (&u32, &crate::log::digest::Member)| {
        let writer = job.writer(member.writer);
        let text = |value: Option<String>| value.unwrap_or_default();
        let gpu = match (member.nvml, member.bus_id.as_deref()) {
            (Some(nvml), Some(bus)) => format!("{nvml} ({bus})"),
            (_, bus) => bus.unwrap_or_default().to_owned(),
        };
        let state = match member {
            member if member.aborted => "aborted",
            member if member.destroyed => "finished",
            member if member.connected => "connected",
            member if member.complete => "started",
            _ => "starting",
        };
        vec![
            rank.to_string(),
            text(writer.map(|writer| writer.host.clone())),
            text(writer.filter(|writer| writer.has_pid()).map(|writer| writer.pid.to_string())),
            gpu,
            text(writer.and_then(|writer| writer.nccl.as_ref().map(ToString::to_string))),
            text(writer.and_then(|writer| writer.network.clone())),
            state.to_owned(),
        ]
    };
    let silent = job.head_of(main).into_iter().flatten();
    let silent = silent.filter(|(rank, _)| !main.members.contains_key(rank)).map(|(rank, process)| {
        let mut row = vec![rank.to_string(), process.host.clone(), process.pid.to_string()];
        row.resize(6, String::new());
        row.push("not in the log".to_owned());
        row
    });
    let mut rows: Vec<Vec<String>> = main.members.iter().map(row).chain(silent).collect();
    rows.sort_by_key(|row| row.first().and_then(|rank| rank.parse::<u32>().ok()));
    rows
}

fn communicator_row(communicator: &Communicator) -> Vec<String> {
    let number = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
    vec![
        if communicator.id.is_empty() { "without an id".to_owned() } else { communicator.id.clone() },
        communicator.made_by.clone(),
        format!("{} of {}", communicator.members.len(), describe_size(communicator)),
        number(communicator.nodes),
        number(communicator.channels),
        communicator.connections.len().to_string(),
    ]
}

fn variable_rows(job: &Job<'_>) -> Vec<Vec<String>> {
    let row = |variable: &crate::log::digest::VariableSeen| {
        let ranks = job.ranks_of_writers(job.of_same_processes(&variable.writers));
        let is_whole = |main: &Communicator| ranks.len() == main.ranks as usize && !main.is_size_guessed;
        let all = job.main.is_some_and(is_whole);
        let ranks = match &ranks[..] {
            [] => String::new(),
            _ if all => "all".to_owned(),
            some => ranks_in_words(some),
        };
        let by = if variable.by_plugin { "plugin" } else { "environment" };
        vec![variable.name.clone(), variable.value.clone(), by.to_owned(), ranks]
    };
    job.digest.variables.iter().map(row).collect()
}

/// Returns the facts for programs: the digest, without its messages. The findings contain the messages.
pub(super) fn facts_as_json(digest: &Digest, ways: Option<&Ways<'_>>) -> Value {
    let transports = ways.map(|ways| {
        let pair = |(&(from, to), way): (&(u32, u32), &super::transport::Way)| {
            json!({ "from": from, "to": to, "way": way.short_text(), "words": way.long_text() })
        };
        json!({
            "ranks": ways.communicator.ranks,
            "pairs": ways.pairs.iter().map(pair).collect::<Vec<_>>(),
            "nvlink_pairs": ways.linked.len(),
        })
    });
    json!({
        "inputs": digest.inputs,
        "writers": digest.writers,
        "communicators": digest.communicators,
        "variables": digest.variables,
        "diagnostics": digest.diagnostics,
        "transport": transports,
    })
}
