//! Circumstances of a run that can explain its values: settings, machines, libraries and ranks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::files::NCCL_TESTS;
use crate::run::Run;
use crate::settings::Settings;

/// Settings and circumstances that can affect a run's values, by the names of the native format and of
/// variables.
pub(super) fn run_circumstances(run: &Run) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for (part, left_out) in [
        (serde_json::to_value(&run.settings), Settings::HARMLESS),
        (serde_json::to_value(&run.provenance), &["environment", "library_path"]),
    ] {
        if let Ok(Value::Object(fields)) = part {
            let fields = fields.iter().filter(|(name, _)| !left_out.contains(&name.as_str()));
            for (name, value) in fields {
                match value {
                    Value::Object(of_pairs) if name == "pairs" => {
                        found.extend(of_pairs.iter().map(|(name, value)| (name.clone(), text(value))));
                    }
                    value => drop(found.insert(name.clone(), text(value))),
                }
            }
        }
    }
    found.extend(run.provenance.environment.clone());
    found.insert("hosts".to_owned(), host_names(run).join(", "));
    found.insert("ranks".to_owned(), devices_text(run));
    found.insert("program".to_owned(), run.program.clone());
    // Facts that another program did not record are not differences.
    found.retain(|_, value| !value.is_empty());
    found
}

/// The names of the machines.
pub(super) fn host_names(run: &Run) -> Vec<String> {
    let hosts: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.host.as_str()).collect();
    hosts.into_iter().map(str::to_owned).collect()
}

/// `8 x NVIDIA H200`
pub(super) fn devices_text(run: &Run) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for rank in &run.ranks {
        *counts.entry(&rank.device_name).or_default() += 1;
    }
    counts.iter().map(|(name, count)| format!("{count} x {name}")).collect::<Vec<_>>().join(", ")
}

/// Number of ranks of each group of a run, in the order of their numbers. Files of nccl-tests name one device
/// of each process, and files of this program in its format all.
pub(super) fn count_ranks(run: &Run) -> Vec<usize> {
    let processes: BTreeSet<_> = run.ranks.iter().map(|rank| (&rank.host, rank.pid)).collect();
    let names_one = run.program == NCCL_TESTS && processes.len() == run.ranks.len();
    let of_device = if names_one { run.settings.threads.saturating_mul(run.settings.gpus).max(1) } else { 1 };
    let mut groups = BTreeMap::new();
    for rank in &run.ranks {
        let count: &mut usize = groups.entry(rank.group).or_default();
        *count = count.saturating_add(of_device);
    }
    groups.into_values().filter(|&count| count > 0).collect()
}
