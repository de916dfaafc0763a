//! Messages of the kernel about GPUs and network devices.

mod findings;
mod read;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(super) use findings::{is_about_gpus, judge_messages, message_sections};
pub(super) use read::read_messages;

/// Relevant messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelMessages {
    /// The file of the messages, or `None` if none could be read.
    pub place: Option<String>,
    /// True if all messages since the start of the kernel were read, or as many as the kernel keeps.
    pub complete: bool,
    /// Kinds of messages, in the order of their first one.
    pub kinds: Vec<KernelMessage>,
}

/// Messages of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelMessage {
    /// Name of its rule, or `None` for a message without a rule.
    pub rule: Option<String>,
    /// The first message.
    pub text: String,
    /// Seconds from the start of the kernel to the first one.
    pub first: Option<f64>,
    /// Seconds from the start of the kernel to the last one.
    pub last: Option<f64>,
    /// Number of messages.
    pub count: u64,
    /// Devices in the messages: places on the PCI bus.
    pub devices: Vec<String>,
}
