//! Conclusions about the kernel's messages.

use super::{KernelMessage, KernelMessages};
use crate::examination::{Body, Section};
use crate::finding::{Action, Evidence, Finding, Role, Severity};
use crate::knowledge::rules::Rules;
use crate::knowledge::texts::compose_finding;
use crate::words::{join_list, or_dash};

/// Returns a finding for each kind of message except harmless ones. `uptime` is in seconds.
pub(crate) fn judge_messages(messages: &KernelMessages, uptime: Option<f64>, rules: &Rules) -> Vec<Finding> {
    messages.kinds.iter().filter_map(|message| describe_messages(messages, message, uptime, rules)).collect()
}

/// Beginnings of the names of rules about GPUs, NVLink, NVIDIA's driver and NCCL.
const OF_GPUS: [&str; 8] = ["xid-", "sxid-", "gpu-", "nvlink-", "nvidia-", "peermem-", "dma-buf-", "nccl-"];

/// Returns true for a message about GPUs, NVLink, NVIDIA's driver or NCCL.
pub(crate) fn is_about_gpus(message: &KernelMessage) -> bool {
    let has_rule = |rule: &String| OF_GPUS.iter().any(|start| rule.starts_with(start));
    message.rule.as_ref().is_some_and(has_rule) || super::read::names_gpu_error(&message.text)
}

/// Returns true for a message about a process. After its end the host is as good as before.
fn is_about_process(message: &KernelMessage, action: Action) -> bool {
    let words = ["pid", "process", "segfault", "traps: ", "task ", "name="];
    action == Action::None && words.iter().any(|word| message.text.contains(word))
}

/// Returns `6456.471 s after the start, 2.1 h ago`.
fn describe_time(message: &KernelMessage, uptime: Option<f64>) -> Option<String> {
    let (first, last) = (message.first?, message.last?);
    let ago = uptime.map(|now| now - last).filter(|ago| *ago >= 0.0).map(|ago| match ago {
        ..100.0 => format!(", {ago:.0} s ago"),
        ..6000.0 => format!(", {:.0} min ago", ago / 60.0),
        _ => format!(", {:.1} h ago", ago / 3600.0),
    });
    let last = if message.count > 1 { format!(" to {last:.0} s") } else { String::new() };
    Some(format!("[{first:.0} s{last} after the start{}] ", ago.unwrap_or_default()))
}

fn describe_messages(
    messages: &KernelMessages,
    message: &KernelMessage,
    uptime: Option<f64>,
    rules: &Rules,
) -> Option<Finding> {
    let on = if message.devices.is_empty() {
        String::new()
    } else {
        format!(" ({})", join_list(&message.devices))
    };
    let rule = message.rule.as_deref().and_then(|name| rules.rule_by_id(name));
    let mut finding = match rule {
        Some(rule) if matches!(rule.role, Role::Harmless | Role::Confirmation) => return None,
        Some(rule) => Finding {
            cause: rule.cause.clone(),
            remedy: rule.remedy.clone(),
            action: rule.action,
            source: Some(rule.source.clone()).filter(|source| !source.is_empty()),
            ..Finding::new(&rule.id, rule.severity, format!("{}{on}", rule.diagnosis))
        },
        None => {
            let name = super::read::error_name(&message.text);
            compose_finding("unknown-kernel-error", &[("name", &name), ("on", &on)])
        }
    };
    if is_about_process(message, finding.action) && (finding.severity < Severity::Unknown || rule.is_some()) {
        finding.severity = Severity::Advice;
    }
    finding.occurrences = message.count;
    finding.evidence.push(Evidence {
        place: messages.place.clone().unwrap_or_default(),
        text: format!("{}{}", describe_time(message, uptime).unwrap_or_default(), message.text),
        ..Evidence::default()
    });
    Some(finding)
}

/// Returns the table of messages.
pub(crate) fn message_sections(messages: &KernelMessages) -> Vec<Section> {
    if messages.kinds.is_empty() {
        return Vec::new();
    }
    let seconds = |time: Option<f64>| or_dash(time.map(|seconds| format!("{seconds:.1}")));
    let row = |message: &KernelMessage| {
        vec![message.count.to_string(), seconds(message.first), seconds(message.last), message.text.clone()]
    };
    let columns = ["times", "first (s since boot)", "last (s since boot)", "message"];
    vec![Section {
        title: "Messages of the kernel".to_owned(),
        body: Body::Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: messages.kinds.iter().map(row).collect(),
        },
    }]
}
