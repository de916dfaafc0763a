//! The request: a test, the pairs of ranks, sizes, repetitions, and the endpoints.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use record::{Completion, Messages, Until};
use serde_json::{Value, json};

use crate::request::{Names, SizeStep, Sweep};

/// A test between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// A message there and back.
    PingPong,
    /// Messages one way.
    Bandwidth,
    /// Writes to remote memory.
    Write,
    /// Reads of remote memory.
    Read,
}

impl Test {
    /// Name in the record.
    pub const fn test_name(self) -> &'static str {
        match self {
            Self::PingPong => "pingpong",
            Self::Bandwidth => "bw",
            Self::Write => "rma write",
            Self::Read => "rma read",
        }
    }

    /// True for remote memory access.
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::Write | Self::Read)
    }
}

/// Memory of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairMemory {
    /// Host memory.
    Host,
    /// The memory of this GPU, or of the GPU that has the rank's number on its host.
    Cuda(Option<usize>),
}

impl FromStr for PairMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let what = "it is host, cuda, or cuda:N for the GPU of this number".to_owned();
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            None if text == "cuda" => Ok(Self::Cuda(None)),
            Some(("cuda", number)) => number.parse().map(|number| Self::Cuda(Some(number))).map_err(|_| what),
            _ => Err(what),
        }
    }
}

/// A test of pairs of ranks, one pair after the other.
///
/// All processes of a job run equal requests.
#[derive(Clone, Debug)]
pub struct PairRequest {
    /// The test.
    pub test: Test,
    /// Name and version of the program, for the record.
    pub program: String,
    /// The command line, for the record.
    pub command: Vec<String>,
    /// Names of the fields in messages.
    pub names: Names,
    /// The pairs, in order: ranks of the job, first the one whose clock counts. Other ranks wait.
    pub pairs: Vec<[usize; 2]>,
    /// Ranks of each process, each with a thread of its own.
    pub threads: usize,
    /// The observer of this process receives the events, as that of rank 0's process always does.
    pub reports: bool,
    /// libfabric provider.
    pub provider: String,
    /// Smallest size in bytes, at least 1.
    pub min_bytes: u64,
    /// Largest size in bytes, at least `min_bytes`.
    pub max_bytes: u64,
    /// Step from one size to the next.
    pub step: SizeStep,
    /// Transfers of each endpoint in a round, round trips of a ping-pong; `None`: as many as fit the size.
    pub transfers: Option<u64>,
    /// Rounds per size, at least 1.
    pub rounds: u64,
    /// Untimed rounds before.
    pub warm_up: u64,
    /// Verify each size.
    pub check: bool,
    /// Transfers in flight at a time, at least 1.
    pub window: usize,
    /// Kind of messages.
    pub messages: Messages,
    /// Both ranks access the other's memory.
    pub both_ways: bool,
    /// End of the timed interval of writes.
    pub until: Until,
    /// Inject short messages and writes.
    pub inject: bool,
    /// Memory of the data.
    pub memory: PairMemory,
    /// Method of waiting.
    pub completion: Completion,
    /// Time between two polls of a rank that waits.
    pub pause: Duration,
    /// Endpoints of each rank, at least one for each of `domains`. Each is used by a thread of its own.
    pub endpoints: usize,
    /// The endpoints of a rank share a domain. Not for remote memory access.
    pub shared_domain: bool,
    /// The provider's domains to use in turn; empty: its first.
    pub domains: Vec<String>,
    /// The local address to bind to; `None`: the provider's choice.
    pub source: Option<String>,
    /// Time without progress after which a rank fails.
    pub timeout: Duration,
}

impl PairRequest {
    /// Pause between polls with several messages in flight: over `shm`, short messages took two thirds of the
    /// time with it.
    pub const PAUSE: Duration = Duration::from_micros(2);

    /// A request for `test` between ranks 0 and 1 with the defaults of the program: 8 bytes to 16 MiB of host
    /// memory over `tcp`, ten rounds, verified.
    pub fn new(test: Test) -> Self {
        Self {
            test,
            program: concat!("nccl-bench-engine ", env!("CARGO_PKG_VERSION")).to_owned(),
            command: Vec::new(),
            names: Names::default(),
            pairs: vec![[0, 1]],
            threads: 1,
            reports: false,
            provider: "tcp".to_owned(),
            min_bytes: 8,
            max_bytes: 16 << 20,
            step: SizeStep::Factor(2),
            transfers: None,
            rounds: 10,
            warm_up: 1,
            check: true,
            window: if test == Test::PingPong { 1 } else { 64 },
            messages: Messages::Tagged,
            both_ways: false,
            until: Until::Arrived,
            inject: true,
            memory: PairMemory::Host,
            completion: Completion::Poll,
            pause: if test == Test::Bandwidth { Self::PAUSE } else { Duration::ZERO },
            endpoints: 1,
            shared_domain: false,
            domains: Vec::new(),
            source: None,
            timeout: Duration::from_secs(30),
        }
    }

    /// Checks what no ranks could measure.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub fn check_values(&self) -> Result<(), String> {
        let problem = if self.pairs.is_empty() || self.pairs.iter().any(|[one, other]| one == other) {
            "the list of pairs is empty, or a rank is paired with itself"
        } else if self.min_bytes == 0 || self.max_bytes < self.min_bytes {
            "the smallest size is 0, or above the largest"
        } else if !self.step.is_advancing() {
            "a step factor is at least 2, and a step at least 1 byte"
        } else if self.transfers == Some(0) || self.rounds == 0 || self.window == 0 || self.threads == 0 {
            "transfers, rounds, the window and threads are at least 1"
        } else if self.endpoints < self.domains.len().max(1) {
            "each domain needs an endpoint"
        } else {
            return Ok(());
        };
        Err(problem.to_owned())
    }

    /// The options that must be equal on all processes, by name.
    pub(crate) fn compared_options(&self) -> serde_json::Result<BTreeMap<String, Value>> {
        // All fields are named, so that a new one cannot be forgotten.
        #[rustfmt::skip]
        let Self {
            test, program: _, command: _, names: _, pairs, threads, reports: _, provider, min_bytes,
            max_bytes, step, transfers, rounds, warm_up, check, window, messages, both_ways, until, inject: _,
            memory, completion: _, pause: _, endpoints, shared_domain: _, domains: _, source: _, timeout: _,
        } = self;
        let is_on_host = *memory == PairMemory::Host;
        let options = json!({
            "test": test.test_name(), "pairs": pairs, "threads": threads, "provider": provider,
            "min_bytes": min_bytes, "max_bytes": max_bytes, "step": format!("{step:?}"),
            "transfers": transfers, "rounds": rounds, "warm_up": warm_up, "check": check, "window": window,
            "messages": messages, "both_ways": both_ways, "until": until, "memory": is_on_host,
            "endpoints": endpoints,
        });
        serde_json::from_value(options)
    }

    /// The sizes, in bytes.
    pub(crate) fn list_sizes(&self) -> impl Iterator<Item = u64> {
        Sweep { min: self.min_bytes, max: self.max_bytes, step: self.step }.list_sizes()
    }

    /// The ranks of all pairs, in ascending order, each once.
    pub(crate) fn list_ranks(&self) -> Vec<usize> {
        let mut ranks = self.pairs.concat();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}
