//! The results between two ranks, as a table or JSON.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{Completion, Messages, Until};

/// The version of the JSON's format.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// All results, as in the JSON.
#[derive(Debug, Serialize)]
pub(super) struct TransferDocument {
    pub(super) schema_version: u32,
    pub(super) program: String,
    pub(super) command: Vec<String>,
    pub(super) started_at: String,
    pub(super) test: &'static str,
    pub(super) library: String,
    pub(super) provider: String,
    pub(super) messages: Option<Messages>,
    pub(super) window: Option<usize>,
    pub(super) both_ways: bool,
    pub(super) pause_ns: u64,
    pub(super) until: Option<Until>,
    pub(super) inject: Option<usize>,
    pub(super) memory: &'static str,
    pub(super) direct: Option<bool>,
    pub(super) completion: Completion,
    pub(super) endpoints: usize,
    pub(super) shared_domain: bool,
    pub(super) pairs: Vec<Pair>,
}

impl TransferDocument {
    /// The test in one line: `bw over net, window 64, injected up to 128 bytes`.
    pub(super) fn summary(&self) -> String {
        let several = self.endpoints > 1;
        let parts = [
            Some(format!("{} over {}", self.test, self.provider)),
            self.window.map(|window| format!("window {window}")),
            (self.both_ways && self.window.is_some()).then(|| "both ways".to_owned()),
            (self.messages == Some(Messages::Plain)).then(|| "messages without tags".to_owned()),
            (self.until == Some(Until::Completed)).then(|| "until completed".to_owned()),
            self.inject.map(|longest| format!("injected up to {longest} bytes")),
            self.direct.map(|direct| match direct {
                true => "GPUs' memory, directly".to_owned(),
                false => {
                    "GPUs' memory, directly or by way of the host's: the provider does not promise".to_owned()
                }
            }),
            (self.completion == Completion::Block).then(|| "blocking".to_owned()),
            (self.pause_ns > 0).then(|| format!("pauses of {} ns while waiting", self.pause_ns)),
            several.then(|| format!("{} endpoints", self.endpoints)),
            (several && self.shared_domain).then(|| "on a shared domain".to_owned()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The results of two ranks.
#[derive(Debug, Serialize)]
pub(super) struct Pair {
    pub(super) ranks: [usize; 2],
    pub(super) hosts: [String; 2],
    pub(super) addresses: [String; 2],
    pub(super) domains: [Vec<String>; 2],
    pub(super) rows: Vec<SizeResult>,
}

/// The result of one size. Times are microseconds per transfer: half of a round trip, or a round divided by
/// its transfers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SizeResult {
    pub(super) bytes: u64,
    pub(super) transfers: usize,
    pub(super) rounds: usize,
    pub(super) min_us: f64,
    pub(super) median_us: f64,
    pub(super) max_us: f64,
    /// Number of wrong bytes; `None` when the size was not verified.
    pub(super) wrong: Option<u64>,
}

impl SizeResult {
    /// Makes a result from the elapsed seconds of each round, at least one.
    pub(super) fn new(bytes: u64, transfers: usize, times: &[f64], wrong: Option<u64>) -> Self {
        let mut us: Vec<f64> = times.iter().map(|seconds| seconds * 1e6 / transfers as f64).collect();
        us.sort_by(f64::total_cmp);
        let middle = us.len() / 2;
        let median = if us.len() % 2 == 1 { us[middle] } else { f64::midpoint(us[middle - 1], us[middle]) };
        let (min_us, max_us) = (us[0], us[us.len() - 1]);
        Self { bytes, transfers, rounds: us.len(), min_us, median_us: median, max_us, wrong }
    }

    /// Bandwidth of all endpoints together in GB/s, from the median time.
    fn bandwidth(&self, endpoints: usize) -> f64 {
        (self.bytes * endpoints as u64) as f64 / (self.median_us * 1e3)
    }

    pub(super) fn line(&self, endpoints: usize) -> String {
        let wrong = self.wrong.map_or_else(|| "-".to_owned(), |wrong| wrong.to_string());
        format!(
            "{:>12} {:>10} {:>10.2} {:>10.2} {:>10.2} {:>9.3} {:>8}\n",
            self.bytes,
            self.transfers * self.rounds * endpoints,
            self.median_us,
            self.min_us,
            self.max_us,
            self.bandwidth(endpoints),
            wrong
        )
    }
}

/// The head of a pair's table.
pub(super) fn head(pair: &Pair) -> String {
    let mut text = "#\n".to_owned();
    let both = pair.ranks.iter().zip(&pair.hosts).zip(&pair.addresses).zip(&pair.domains);
    for (((rank, host), address), domains) in both {
        let _ = writeln!(text, "# Rank {rank} on {host}, {}: {address}", domains.join(", "));
    }
    let _ = writeln!(
        text,
        "{:>12} {:>10} {:>10} {:>10} {:>10} {:>9} {:>8}",
        "#  size (B)", "transfers", "time (us)", "min", "max", "GB/s", "#wrong"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_median_of_its_rounds() {
        let row = SizeResult::new(1000, 10, &[40e-6, 10e-6, 20e-6], Some(0));
        assert_eq!((row.min_us, row.median_us, row.max_us, row.rounds), (1.0, 2.0, 4.0, 3));
        assert_eq!(
            row.line(1).split_whitespace().collect::<Vec<_>>(),
            ["1000", "30", "2.00", "1.00", "4.00", "0.500", "0"]
        );
        let of_three = row.line(3);
        assert_eq!(
            of_three.split_whitespace().collect::<Vec<_>>()[1..6],
            ["90", "2.00", "1.00", "4.00", "1.500"]
        );
        assert_eq!(SizeResult::new(8, 1, &[2e-6, 4e-6], None).median_us, 3.0);
        assert!(SizeResult::new(8, 1, &[2e-6], None).line(1).trim_end().ends_with(" -"));
    }
}
