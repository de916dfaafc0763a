//! Files in the values of variables.

use std::path::Path;

use super::judge::Verdict;
use super::knowledge::VerdictKind;
use super::setting::Setting;
use crate::finding::Severity;

/// Variables with the name of a file of settings.
const INPUTS: [&str; 2] = ["NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"];

/// Variables with a plugin: a path, or a word for the search of the dynamic loader.
const PLUGINS: [&str; 6] = [
    "NCCL_ENV_PLUGIN",
    "NCCL_GIN_PLUGIN",
    "NCCL_NET_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_RMA_PLUGIN",
    "NCCL_TUNER_PLUGIN",
];

/// Variables with the name of an output file.
const OUTPUTS: [&str; 3] = ["NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE"];

/// The variable with libraries for the dynamic loader.
const PRELOAD: &str = "LD_PRELOAD";

/// Returns the files and folders required by a variable.
pub(super) fn find_named_files(setting: &Setting) -> Vec<&Path> {
    let (name, value) = (setting.name.as_str(), setting.value.as_str());
    if INPUTS.contains(&name) {
        return (!value.is_empty()).then(|| Path::new(value)).into_iter().collect();
    }
    if OUTPUTS.contains(&name) {
        // NCCL replaces %h and %p, also in the name of the folder.
        let folder = Path::new(value).parent().filter(|folder| !folder.to_string_lossy().contains('%'));
        return folder.filter(|folder| !folder.as_os_str().is_empty()).into_iter().collect();
    }
    let libraries: Vec<&str> = match name {
        PRELOAD => value.split([':', ' ']).collect(),
        _ if PLUGINS.contains(&name) => value.split(',').collect(),
        _ => Vec::new(),
    };
    // A name without a folder is searched by the dynamic loader, and the loader replaces `$LIB`.
    libraries.into_iter().filter(|file| file.contains('/') && !file.contains('$')).map(Path::new).collect()
}

/// Returns true for a variable with the name of an output file.
pub(super) fn is_output(name: &str) -> bool {
    OUTPUTS.contains(&name)
}

/// Returns the verdict about a variable with a missing file, or a missing folder of its file.
pub(super) fn judge_missing_file(setting: &Setting) -> Verdict {
    let name = setting.name.as_str();
    let on_all_hosts = format!("unset {name}, or give the absolute path of a file that is on all hosts");
    let folder = format!("create the folder on all hosts, or unset {name}");
    let (missing, severity, effect, remedy, source) = match name {
        "NCCL_GRAPH_FILE" => {
            ("a file", Severity::Broken, "the initialization fails", on_all_hosts, "src/graph/xml.cc")
        }
        "NCCL_DEBUG_FILE" => {
            let effect = "NCCL writes to the standard output instead";
            ("a file in a folder", Severity::Degraded, effect, folder, "src/debug.cc")
        }
        PRELOAD => {
            let effect = "the dynamic loader continues without it";
            ("a file", Severity::Degraded, effect, on_all_hosts, "manual page of ld.so")
        }
        _ if is_output(name) => {
            ("a file in a folder", Severity::Degraded, "nothing is written", folder, "src/graph/xml.cc")
        }
        _ => {
            let effect = "NCCL continues without it, and reports this only with NCCL_DEBUG=INFO";
            let source =
                if PLUGINS.contains(&name) { "src/plugin/plugin_open.cc" } else { "src/graph/xml.cc" };
            ("a file", Severity::Degraded, effect, on_all_hosts, source)
        }
    };
    Verdict {
        kind: VerdictKind::Invalid,
        severity: Some(severity),
        rule: "variable-file-missing".to_owned(),
        reason: format!("it names {missing} that does not exist: {effect}"),
        remedy: Some(remedy),
        source: Some(source.to_owned()),
    }
}
