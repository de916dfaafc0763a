//! Comparison of the processes' settings, before anything is opened or measured.
//!
//! Ranks that were started with different options would wait for each other forever. So every process sends
//! its options to all others, and all refuse alike.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use collectives::world::{self, World};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gather::gather_json;
use crate::request::{Names, SYMMETRIC_FENCE};
use crate::supervision::{Stop, number_ranges};

/// Most distinct command lines that a refusal shows.
const MOST_SHOWN: usize = 8;

/// Refusal for a process whose first message has another prefix.
pub const ANOTHER_COMMAND: &str =
    "runs a different command or nccl-bench version; start all processes with the same one";

/// Longest value that is sent as it is, in bytes.
const MOST_COMPARED: usize = 256;

/// The options of one process.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    host: String,
    /// The command line, preceded by the variables that are set: those of nccl-tests, and
    /// [`SYMMETRIC_FENCE`].
    command: String,
    /// Options and variables that must be equal, by name.
    options: BTreeMap<String, Value>,
    /// Reason for which this process cannot run.
    problem: Option<String>,
}

/// Returns `own` when every process has the same options and none has a problem. `own` is the result of this
/// process's preparation. `prefix` begins its first message, and distinguishes other requests, commands and
/// versions. The `options` must be equal, by the name of their field.
///
/// # Errors
/// [`Stop::Refused`], with the same text on every process.
pub(crate) fn agree_on_options<T>(
    world: &world::Handle,
    prefix: &str,
    options: BTreeMap<String, Value>,
    names: Names,
    command: &[String],
    own: Result<T, Stop>,
) -> Result<T, Stop> {
    // A failure ends the job by itself.
    if let Err(Stop::Failed(_)) = own {
        return own;
    }
    let problem = own.as_ref().err().and_then(Stop::refusal_text);
    let options: BTreeMap<String, Value> =
        options.into_iter().map(|(name, value)| (name, shorten_value(value))).collect();
    // A digest is enough in the usual case of equal options.
    let digest = match &problem {
        None => format!("{prefix} {:016x}", hash_text(&serde_json::to_string(&options)?)),
        Some(_) => format!("{prefix} problem"),
    };
    let digests = world.all_gather(digest.as_bytes())?;
    if let Some(index) = digests.iter().position(|other| !other.starts_with(prefix.as_bytes())) {
        return Err(Stop::Refused(format!("process {index} {ANOTHER_COMMAND}")));
    }
    if problem.is_none() && digests.iter().all(|other| *other == digests[0]) {
        return own;
    }
    let asked = Asked { host: world::host().name, command: describe_command(command), options, problem };
    let all = gather_json(&**world, &asked)?;
    match problem_of(&all).or_else(|| describe_difference(&all, names)) {
        Some(refusal) => Err(Stop::Refused(refusal)),
        None => own,
    }
}

/// The libraries and devices that one process found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Discovery<T> {
    /// The name of the process's host.
    pub host: String,
    /// Identity of the machine, whose GPUs its processes share, whatever NCCL takes for a host
    /// (`NCCL_HOSTID`).
    pub machine: String,
    /// The search's result, or the reason for which nothing can be used.
    pub result: Result<T, String>,
}

/// Sends this process's result to all others. Returns the results of all processes, in rank order.
pub(crate) fn exchange_discoveries<T>(
    process: &dyn World,
    result: Result<T, String>,
) -> anyhow::Result<Vec<Discovery<T>>>
where
    T: Serialize + DeserializeOwned,
{
    gather_json(process, &Discovery { host: world::host().name, machine: world::machine(), result })
}

/// Returns a value, or the hash of a long one, such as a matrix of all ranks.
fn shorten_value(value: Value) -> Value {
    let text = value.to_string();
    if text.len() <= MOST_COMPARED { value } else { hash_text(&text).into() }
}

/// Hashes a text with FNV-1a, whose result does not depend on the compiler.
fn hash_text(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The command line, preceded by the variables that are set: those of nccl-tests, and [`SYMMETRIC_FENCE`].
fn describe_command(command: &[String]) -> String {
    let mut variables: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("NCCL_TESTS_") || name == SYMMETRIC_FENCE)
        .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
        .collect();
    variables.sort();
    variables.extend(command.iter().cloned());
    variables.join(" ")
}

/// The problem of the first process that has one, with its number unless it is process 0.
fn problem_of(all: &[Asked]) -> Option<String> {
    let (index, asked) = all.iter().enumerate().find(|(_, asked)| asked.problem.is_some())?;
    let problem = asked.problem.as_deref()?;
    // Rank 0 prints it, so its own needs no location.
    Some(if index == 0 {
        problem.to_owned()
    } else {
        format!("process {index} on {}: {problem}", asked.host)
    })
}

/// Describes the options in which processes differ, and their command lines.
fn describe_difference(all: &[Asked], names: Names) -> Option<String> {
    let first = all.first()?;
    let mut differing: BTreeSet<String> = BTreeSet::new();
    let mut groups: Vec<(&Asked, Vec<usize>)> = Vec::new();
    for (index, asked) in all.iter().enumerate() {
        match groups.iter_mut().find(|(known, _)| known.options == asked.options) {
            Some((_, members)) => members.push(index),
            None => groups.push((asked, vec![index])),
        }
        let known = first.options.keys().chain(asked.options.keys());
        let differs = |name: &&String| first.options.get(*name) != asked.options.get(*name);
        differing.extend(known.filter(differs).map(|name| names.field_name(name)));
    }
    if groups.len() < 2 {
        return None;
    }
    let what = differing.into_iter().collect::<Vec<_>>().join(", ");
    let mut text = format!("the processes were started with different options; they differ in {what}:");
    for (asked, members) in groups.iter().take(MOST_SHOWN) {
        let _ = write!(text, "\n  {} on {}: {}", processes_text(members), asked.host, asked.command);
    }
    if groups.len() > MOST_SHOWN {
        let _ = write!(text, "\n  and {} more command lines", groups.len() - MOST_SHOWN);
    }
    text.push_str("\nGive every process the same options and the same NCCL_TESTS_ variables");
    Some(text)
}

/// `process 1`, `processes 0, 2-5`.
fn processes_text(members: &[usize]) -> String {
    let noun = if members.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}", number_ranges(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(options: &[(&str, u64)], command: &str) -> Asked {
        Asked {
            host: "node1".to_owned(),
            command: command.to_owned(),
            options: options.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect(),
            problem: None,
        }
    }

    #[test]
    fn processes_that_differ_are_shown_with_what_each_was_asked_for() {
        let names = Names(|field| if field == "iterations" { "-n".to_owned() } else { field.to_owned() });
        let ask = |iterations, command| asked(&[("checks", 1), ("iterations", iterations)], command);
        let twenty = || ask(20, "nccl-bench allreduce");
        assert_eq!(describe_difference(&[twenty(), twenty()], names), None);
        let all = [twenty(), ask(21, "nccl-bench allreduce -n 21"), twenty(), twenty()];
        assert_eq!(
            describe_difference(&all, names).unwrap(),
            "the processes were started with different options; they differ in -n:\n  \
             processes 0, 2-3 on node1: nccl-bench allreduce\n  \
             process 1 on node1: nccl-bench allreduce -n 21\n\
             Give every process the same options and the same NCCL_TESTS_ variables"
        );
        // Another version of the program may lack an option.
        let text =
            describe_difference(&[twenty(), asked(&[("iterations", 20)], "nccl-bench")], names).unwrap();
        assert!(text.contains("they differ in checks:"), "{text}");
    }

    #[test]
    fn a_problem_of_another_process_is_told_with_its_place() {
        let mut all = [asked(&[], "nccl-bench allreduce"), asked(&[], "nccl-bench allreduce")];
        assert_eq!(problem_of(&all), None);
        all[1].problem = Some("no room".to_owned());
        assert_eq!(problem_of(&all).unwrap(), "process 1 on node1: no room");
        all[0].problem = Some("no file".to_owned());
        assert_eq!(problem_of(&all).unwrap(), "no file");
    }
}
