//! Settings of a run that measures pairs of ranks.

use serde::{Deserialize, Serialize};

/// Settings that only the tests of a pair of ranks have, after defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairSettings {
    /// The test, by the name that its measurements have: `bw`.
    pub test: String,
    /// Kind of messages; absent for remote memory access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Messages>,
    /// Transfers in flight at a time; absent for a ping-pong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Data moves in both directions; of a ping-pong in turn.
    pub both_ways: bool,
    /// End of the timed interval; absent except for remote memory access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Bytes up to which transfers are injected; absent when none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inject_bytes: Option<usize>,
    /// The provider promises to move GPU memory directly; absent for host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
    /// Method of waiting.
    pub completion: Completion,
    /// Nanoseconds between two polls of a waiting rank.
    pub pause_ns: u64,
    /// Endpoints of each rank, which are measured at the same time.
    pub endpoints: usize,
    /// The endpoints of a rank share one domain.
    pub shared_domain: bool,
}

impl PairSettings {
    /// The test in one line: `bw over tcp, window 64, injected up to 128 bytes`.
    pub(crate) fn describe_test(&self, provider: &str) -> String {
        let several = self.endpoints > 1;
        let parts = [
            Some(format!("{} over {provider}", self.test)),
            self.window.map(|window| format!("window {window}")),
            (self.both_ways && self.window.is_some()).then(|| "both ways".to_owned()),
            (self.messages == Some(Messages::Plain)).then(|| "messages without tags".to_owned()),
            (self.until == Some(Until::Completed)).then(|| "until completed".to_owned()),
            self.inject_bytes.map(|longest| format!("injected up to {longest} bytes")),
            self.direct.map(|direct| match direct {
                true => "GPUs' memory, directly".to_owned(),
                false => "GPUs' memory, directly or through host memory: the provider does not specify it"
                    .to_owned(),
            }),
            (self.completion == Completion::Block).then(|| "blocking".to_owned()),
            (self.pause_ns > 0).then(|| format!("pauses of {} ns while waiting", self.pause_ns)),
            several.then(|| format!("{} endpoints", self.endpoints)),
            (several && self.shared_domain).then(|| "on a shared domain".to_owned()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Kind of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Messages {
    /// With a tag, which receives match (fi_tsend)
    Tagged,
    /// Without a tag, received in order (fi_send)
    Plain,
}

/// End of the timed interval of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// The other rank's answer: all data has arrived
    Arrived,
    /// The local completion of all writes, as in fi_rma_bw: some may still be in flight, short ones in this
    /// rank's memory
    Completed,
}

/// Method of waiting for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Completion {
    /// Polls the completion queue (fi_cq_read)
    Poll,
    /// Lets the provider wait until something completes, asleep or polling (fi_cq_sread)
    Block,
}
