//! What ranks have said that they called, and whether it is the same.

use crate::world::{Called, Error};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// About how many bytes are kept of all topics.
const MOST_BYTES: usize = 64 << 20;
/// What a call takes beside its text.
const OF_A_CALL: usize = 128;

/// What was said first of each call, by topic, the oldest topic first.
#[derive(Debug, Default)]
pub(crate) struct Ledger(VecDeque<Topic>);

#[derive(Debug)]
struct Topic {
    topic: u64,
    /// By place and number: who said what.
    said: HashMap<(u64, u64), (usize, String)>,
    bytes: usize,
}

/// A call that a rank has not made as another did.
struct Difference {
    /// Number and place, of which the lowest is told.
    call: (u64, u64),
    other: (usize, String),
    own: String,
}

impl Ledger {
    /// Notes what a rank has called; the first difference to what another has, if there is one.
    pub(crate) fn note(&mut self, rank: usize, topic: u64, calls: Vec<Called>) -> Option<Error> {
        if !self.knows(topic) {
            self.0.push_back(Topic { topic, said: HashMap::new(), bytes: 0 });
        }
        let known = self.0.iter_mut().find(|known| known.topic == topic)?;
        let mut first: Option<Difference> = None;
        for Called { place, number, what } in calls {
            match known.said.get(&(place, number)) {
                None => {
                    known.bytes += OF_A_CALL + what.len();
                    known.said.insert((place, number), (rank, what));
                }
                Some((other, told)) if *other != rank && *told != what => {
                    let call = (number, place);
                    if first.as_ref().is_none_or(|before| call < before.call) {
                        first = Some(Difference { call, other: (*other, told.clone()), own: what });
                    }
                }
                Some(_) => {}
            }
        }
        self.forget(topic);
        let Difference { other, own, .. } = first?;
        let own = (rank, own);
        let ((first, one), (second, another)) = if own.0 < other.0 { (own, other) } else { (other, own) };
        Some(Error::Mismatch(format!(
            "rank {first} called {one} while rank {second} called {another}; all ranks call the same operations in the \
             same order with the same lengths"
        )))
    }

    /// True when something was noted of a topic.
    pub(crate) fn knows(&self, topic: u64) -> bool {
        self.0.iter().any(|known| known.topic == topic)
    }

    /// The calls with the highest numbers of the newest topics, about `most` bytes in all: who said them, and the topic.
    pub(crate) fn newest(&self, most: usize) -> Vec<(usize, u64, Vec<Called>)> {
        let mut left = most;
        let mut found = Vec::new();
        for topic in self.0.iter().rev() {
            let mut calls: Vec<_> = topic.said.iter().collect();
            calls.sort_unstable_by_key(|((place, number), _)| (Reverse(*number), *place));
            let mut by_rank: BTreeMap<usize, Vec<Called>> = BTreeMap::new();
            for (&(place, number), (rank, what)) in calls {
                let Some(rest) = left.checked_sub(OF_A_CALL + what.len()) else { break };
                left = rest;
                by_rank.entry(*rank).or_default().push(Called { place, number, what: what.clone() });
            }
            found.extend(by_rank.into_iter().map(|(rank, calls)| (rank, topic.topic, calls)));
        }
        found
    }

    /// Forgets the oldest topics where there is too much, but the current one last: what its ranks wait for, they say again.
    fn forget(&mut self, current: u64) {
        while self.0.iter().map(|topic| topic.bytes).sum::<usize>() > MOST_BYTES {
            let oldest = self.0.iter().position(|topic| topic.topic != current).unwrap_or(0);
            self.0.remove(oldest);
        }
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
    fn the_newest_calls_are_passed_on_as_far_as_there_is_room() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.note(2, 7, calls(&[(1, "a"), (2, "b")])), None);
        assert_eq!(ledger.note(1, 8, calls(&[(4, "d"), (5, "e"), (3, "c")])), None);
        assert_eq!(ledger.note(0, 8, calls(&[(6, "f")])), None);
        let call = OF_A_CALL + 1;
        let newest = |most: usize| ledger.newest(most);
        assert_eq!(newest(0), []);
        assert_eq!(newest(2 * call), [(0, 8, calls(&[(6, "f")])), (1, 8, calls(&[(5, "e")]))]);
        let five = newest(5 * call);
        assert_eq!(five[1], (1, 8, calls(&[(5, "e"), (4, "d"), (3, "c")])));
        assert_eq!(five[2], (2, 7, calls(&[(2, "b")])));
    }

    #[test]
    fn what_was_said_is_kept_until_there_is_too_much() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.note(0, 1, calls(&[(1, "a")])), None);
        assert_eq!(ledger.note(0, 1, calls(&[(2, "b")])), None);
        assert_eq!(ledger.note(0, 1, calls(&[(1, "another")])), None, "a rank does not differ from itself");
        for topic in 10..100 {
            assert_eq!(ledger.note(0, topic, calls(&[(1, "a")])), None);
        }
        assert!(ledger.note(1, 99, calls(&[(1, "x")])).is_some());
        let error = ledger.note(1, 1, calls(&[(1, "x")])).unwrap().to_string();
        assert!(error.starts_with("rank 0 called a while rank 1 called x; "), "{error}");
        let long = "x".repeat(MOST_BYTES / 3);
        for topic in 200..204 {
            assert_eq!(ledger.note(0, topic, calls(&[(1, &long)])), None);
        }
        assert_eq!(ledger.0.iter().map(|topic| topic.topic).collect::<Vec<_>>(), [202, 203]);
        assert_eq!(ledger.note(1, 1, calls(&[(1, "y")])), None);
        // More than there is room for, of one topic.
        let much: Vec<(u64, &str)> = (0..4).map(|number| (number, long.as_str())).collect();
        assert_eq!(ledger.note(2, 300, calls(&much)), None);
        assert!(ledger.0.is_empty());
    }
}
