//! Settings of a run.

use serde::{Deserialize, Serialize};

use crate::pairs::PairSettings;

/// Settings of a run, after defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Host threads per process (`-t`).
    pub threads: usize,
    /// GPUs per thread (`-g`).
    pub gpus: usize,
    /// Smallest size in bytes (`-b`).
    pub min_bytes: u64,
    /// Largest size in bytes (`-e`), before the limit of memory.
    pub max_bytes: u64,
    /// Factor from one size to the next (`-f`); absent with `step_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_factor: Option<u64>,
    /// Bytes added from one size to the next (`-i`); absent with `step_factor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_bytes: Option<u64>,
    /// Timed iterations (`-n`).
    pub iterations: usize,
    /// Operations per iteration, in one group (`-m`).
    pub aggregated: usize,
    /// Warm-up operations per size (`-w`).
    pub warm_up: usize,
    /// Runs of the whole sweep (`-N`); 0: until it is ended.
    pub cycles: usize,
    /// Verifications per size and placement (`-c`).
    pub checks: usize,
    /// Rounds of the check on the stream per size and placement, eager, and as many or a few more in a CUDA
    /// graph (`--check-on-stream`); absent without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_checks: Option<usize>,
    /// Reduction of the ranks' times to one (`-a`).
    pub average: Average,
    /// When the host waits for completion (`-z`).
    pub blocking: Blocking,
    /// Launches of a CUDA graph of all iterations (`-G`); 0: no graph.
    pub graph_launches: usize,
    /// Registration of the buffers with NCCL (`-R`).
    pub registration: Registration,
    /// Elements by which the buffers are shifted (`-u`).
    pub unaligned: usize,
    /// Each iteration was timed on its own by CUDA events (`-I`).
    pub per_iteration: bool,
    /// Samples left out of the statistics (`-K`).
    pub per_iteration_skip: usize,
    /// Threads initialise NCCL by themselves (`-p`).
    pub parallel_init: bool,
    /// The time of the host is reported, too (`-C`).
    pub cpu_time: bool,
    /// Rows have a time stamp (`-S`).
    pub time_stamps: bool,
    /// NCCL's `CTAPolicy` (`-x`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cta_policy: Option<u32>,
    /// Everything ran on the legacy default stream (`-y`).
    pub default_stream: bool,
    /// Rounds of the timed iterations, of which the median counts; absent for one, and with `until_stable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// Relative precision of the median at which the iterations ended: 0.01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_stable: Option<f64>,
    /// Time limit of one size, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_seconds: Option<f64>,
    /// Settings of the tests of a pair of ranks; absent for collectives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairSettings>,
}

impl Settings {
    /// The settings that are columns of CSV, in order.
    pub(crate) const COLUMNS: &[&str] = &[
        "iterations",
        "aggregated",
        "warm_up",
        "average",
        "blocking",
        "graph_launches",
        "registration",
        "unaligned",
        "cta_policy",
        "rounds",
    ];

    /// The settings that affect the set of rows or additional reports, but not the meaning of a row's value:
    /// runs that differ in them alone are compared without a remark.
    pub(crate) const HARMLESS: &[&str] = &[
        "min_bytes",
        "step_factor",
        "step_bytes",
        "cycles",
        "checks",
        "stream_checks",
        "cpu_time",
        "time_stamps",
        "per_iteration_skip",
    ];

    /// The defaults of a run of collectives: 8 bytes and more, each size twice the last, 20 iterations, one
    /// verification. `threads`, `gpus` and `max_bytes` are those of a run.
    pub fn of_collectives() -> Self {
        Self {
            min_bytes: 8,
            step_factor: Some(2),
            iterations: 20,
            aggregated: 1,
            warm_up: 1,
            cycles: 1,
            checks: 1,
            average: Average::Mean,
            ..Self::default()
        }
    }

    /// Number of timed operations of a measurement that neither `until_stable` nor the budget ends.
    pub fn count_operations(&self) -> usize {
        let rounds = self.rounds.unwrap_or(1);
        [self.iterations, self.aggregated, self.graph_launches.max(1), rounds]
            .into_iter()
            .fold(1, usize::saturating_mul)
    }
}

/// Reduction of the ranks' times to one (`-a`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// Time of the first rank.
    #[default]
    Rank0,
    /// Mean.
    Mean,
    /// The shortest.
    Min,
    /// The longest.
    Max,
}

/// When the host waits for the GPU (`-z`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blocking {
    /// After all iterations.
    #[default]
    No,
    /// After each operation, for all ranks.
    WaitAndBarrier,
    /// After each operation, for its own rank.
    Wait,
    /// After each iteration, for all ranks; the time is without that of the barrier.
    Outer,
}

/// Registration of the buffers with NCCL (`-R`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Registration {
    /// None.
    #[default]
    None,
    /// Each rank registers its own (`ncclCommRegister`).
    Local,
    /// All ranks register them together (`ncclCommWindowRegister`).
    Symmetric,
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use crate::sample;

    #[test]
    fn columns_and_harmless_settings_are_fields() {
        let fields = serde_json::to_value(sample::full_run().settings).unwrap();
        for name in Settings::COLUMNS.iter().chain(Settings::HARMLESS) {
            assert!(fields.get(name).is_some(), "there is no setting {name}");
        }
    }
}
