//! A simulated cluster: the bandwidth of a pair is the lower one of its nodes, times a factor of the edge,
//! with normal noise.

use judge::pairs::{Conclusion, Options, Pair, PairResult, Part, Purpose, Search};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, Normal};

/// Repeats of a pair in a round.
const REPEATS: usize = 5;

/// A cluster with slow parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Slow nodes, each with the share by which it is slow.
    pub(crate) slow_nodes: Vec<(usize, f64)>,
    /// Slow edges, each with the share by which it is slow.
    pub(crate) slow_edges: Vec<(Pair, f64)>,
    /// Standard deviation of a pair's bandwidth from round to round, as a share; the repeats of a round have
    /// half of it between each other.
    pub(crate) noise: f64,
    /// The slow parts are as fast as the others during the confirmation.
    pub(crate) recovers: bool,
    /// Rounds of the survey.
    pub(crate) rounds: usize,
}

/// Result of a search in a simulated cluster.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    /// The conclusion.
    pub(crate) conclusion: Conclusion,
    /// Rounds of the whole search.
    pub(crate) rounds: usize,
    /// Measured pairs of all rounds.
    pub(crate) pairs: usize,
}

impl Cluster {
    /// The slow parts.
    pub(crate) fn slow_parts(&self) -> Vec<Part> {
        let nodes = self.slow_nodes.iter().map(|&(node, _)| Part::Node(node));
        nodes.chain(self.slow_edges.iter().map(|&(edge, _)| Part::Edge(edge))).collect()
    }

    /// Searches with the noise of this seed.
    pub(crate) fn search(&self, seed: u64) -> Simulated {
        let mut random = StdRng::seed_from_u64(seed);
        let normal = Normal::new(0.0, 1.0).expect("a finite deviation");
        let options = Options { rounds: self.rounds, ..Options::default() };
        let mut search = Search::new(self.nodes, options).expect("at least two nodes");
        let (mut rounds, mut pairs) = (0, 0);
        while let Some(round) = search.next_round() {
            let is_healthy = self.recovers && round.purpose == Purpose::Confirmation;
            let mut measure = |&pair: &Pair| {
                let rate = if is_healthy { 1.0 } else { self.rate(pair) };
                let mut noise = |deviation: f64| 1.0 + deviation * normal.sample(&mut random);
                let rate = rate * noise(self.noise);
                PairResult {
                    pair,
                    bandwidths: (0..REPEATS).map(|_| rate * noise(self.noise / 2.0)).collect(),
                }
            };
            let results: Vec<PairResult> = round.pairs.iter().map(&mut measure).collect();
            search.record_round(&results).expect("the pairs of the round");
            rounds += 1;
            pairs += results.len();
        }
        Simulated { conclusion: search.conclude(), rounds, pairs }
    }

    fn rate(&self, pair: Pair) -> f64 {
        let slow = self.slow_nodes.iter().filter(|(node, _)| pair.contains(node));
        let nodes = slow.map(|&(_, share)| 1.0 - share).fold(1.0, f64::min);
        let edges = self.slow_edges.iter().filter(|(edge, _)| *edge == pair);
        edges.fold(nodes, |rate, &(_, share)| rate * (1.0 - share))
    }
}
