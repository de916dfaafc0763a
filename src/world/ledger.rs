//! What ranks have said that they called, and whether it is the same.

use super::{Called, Error};
use std::collections::HashMap;

/// How many topics of a rank are kept.
const MOST_TOPICS: usize = 4;

/// The last that each rank has said in each topic.
#[derive(Debug, Default)]
pub(super) struct Ledger(Vec<Said>);

#[derive(Debug)]
struct Said {
    rank: usize,
    topic: u64,
    calls: Vec<Called>,
}

impl Ledger {
    /// Notes what a rank has called; the first difference to what another has, if there is one.
    pub(super) fn note(&mut self, rank: usize, topic: u64, calls: Vec<Called>) -> Option<Error> {
        let known: HashMap<(u64, u64), &str> =
            calls.iter().map(|call| ((call.place, call.number), call.what.as_str())).collect();
        let others = self.0.iter().filter(|said| said.topic == topic && said.rank != rank);
        let differences = others.flat_map(|said| {
            let different =
                |call: &&Called| known.get(&(call.place, call.number)).is_some_and(|own| *own != call.what);
            said.calls.iter().filter(different).map(|call| (said.rank, call))
        });
        let first = differences.min_by_key(|(rank, call)| (call.number, call.place, *rank));
        let error = first.and_then(|(other, call)| {
            let own = (rank, *known.get(&(call.place, call.number))?);
            let other = (other, call.what.as_str());
            let ((first, one), (second, another)) = if own.0 < other.0 { (own, other) } else { (other, own) };
            Some(Error::Mismatch(format!(
                "rank {first} called {one} while rank {second} called {another}; all ranks call the same operations in \
                 the same order with the same lengths"
            )))
        });
        self.0.retain(|said| (said.rank, said.topic) != (rank, topic));
        if self.0.iter().filter(|said| said.rank == rank).count() >= MOST_TOPICS
            && let Some(oldest) = self.0.iter().position(|said| said.rank == rank)
        {
            self.0.remove(oldest);
        }
        self.0.push(Said { rank, topic, calls });
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(calls: &[(u64, &str)]) -> Vec<Called> {
        calls.iter().map(|&(number, what)| Called { place: 0, number, what: what.to_owned() }).collect()
    }

    #[test]
    fn the_first_difference_is_told_with_both_ranks() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.note(2, 7, calls(&[(1, "a"), (2, "b"), (3, "c")])), None);
        // Another communicator, the same calls, and none that both know.
        assert_eq!(ledger.note(1, 8, calls(&[(1, "x")])), None);
        assert_eq!(ledger.note(3, 7, calls(&[(3, "c"), (4, "d")])), None);
        assert_eq!(ledger.note(4, 7, calls(&[(9, "x")])), None);
        let error = ledger.note(1, 7, calls(&[(4, "y"), (3, "x"), (2, "b")])).unwrap().to_string();
        assert!(error.starts_with("rank 1 called x while rank 2 called c; all ranks "), "{error}");
        let error = ledger.note(5, 7, calls(&[(1, "b")])).unwrap().to_string();
        assert!(error.starts_with("rank 2 called a while rank 5 called b; "), "{error}");
    }

    #[test]
    fn what_a_rank_says_replaces_what_it_said_and_old_topics_go() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.note(0, 1, calls(&[(1, "a")])), None);
        assert_eq!(ledger.note(0, 1, calls(&[(2, "b")])), None);
        assert_eq!(ledger.note(1, 1, calls(&[(1, "x")])), None, "rank 0 says no more what call 1 was");
        for topic in 10..100 {
            assert_eq!(ledger.note(0, topic, calls(&[(1, "a")])), None);
        }
        assert_eq!(ledger.0.iter().filter(|said| said.rank == 0).count(), MOST_TOPICS);
        assert!(ledger.note(1, 99, calls(&[(1, "x")])).is_some());
    }
}
