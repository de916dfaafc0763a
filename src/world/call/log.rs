//! Log of reported calls, compared between ranks.

use super::mismatch::Mismatch;
use super::timeout::{Awaited, Wait};
use crate::world::Called;
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Approximate maximum size of the log, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Approximate size of a call without its text, in bytes.
const CALL_OVERHEAD: usize = 128;
/// Approximate size of a rank's highest number, in bytes.
const PLACE_BYTES: usize = 48;

/// First report of each call, by topic; oldest topic first.
#[derive(Debug, Default)]
pub(crate) struct CallLog(VecDeque<CallTopic>);

#[derive(Debug)]
struct CallTopic {
    topic: u64,
    /// Rank and text by place and number.
    calls: HashMap<(u64, u64), (usize, String)>,
    /// Highest number by rank and place.
    reached: HashMap<(usize, u64), u64>,
    bytes: usize,
}

impl CallLog {
    /// Records calls of a rank. Returns the first difference from the call of another rank.
    pub(crate) fn record_calls(&mut self, rank: usize, topic: u64, calls: Vec<Called>) -> Option<Mismatch> {
        if !self.has_topic(topic) {
            self.0.push_back(CallTopic { topic, calls: HashMap::new(), reached: HashMap::new(), bytes: 0 });
        }
        let known = self.0.iter_mut().find(|known| known.topic == topic)?;
        let mut differences = Vec::new();
        for Called { place, number, what } in calls {
            let reached = known.reached.entry((rank, place)).or_insert_with(|| {
                known.bytes += PLACE_BYTES;
                number
            });
            *reached = number.max(*reached);
            match known.calls.entry((place, number)) {
                Entry::Vacant(entry) => {
                    known.bytes += CALL_OVERHEAD + what.len();
                    entry.insert((rank, what));
                }
                Entry::Occupied(entry) if entry.get().0 != rank && entry.get().1 != what => {
                    differences.push(((number, place), entry.get().clone(), what));
                }
                Entry::Occupied(_) => {}
            }
        }
        self.evict_oldest(topic);
        let (_, other, own) = differences.into_iter().min_by_key(|&(call, ..)| call)?;
        let mut both = [other, (rank, own)];
        both.sort_unstable();
        let [(rank, called), (peer, another)] = both;
        Some(Mismatch { rank, called, peer, peer_called: Some(another) })
    }

    /// Returns the awaited ranks that have not reported their calls, nor later ones. Empty if the reports of
    /// the waiting rank were evicted: the reports of others may be gone as well.
    pub(crate) fn late_ranks(&self, wait: &Wait) -> BTreeSet<usize> {
        let Some(known) = self.0.iter().find(|known| known.topic == wait.topic) else {
            return BTreeSet::new();
        };
        let is_late = |awaited: &&Awaited| {
            let reached = known.reached.get(&(awaited.rank, awaited.place));
            reached.is_none_or(|&number| number < awaited.number)
        };
        let is_known = known.reached.keys().any(|(rank, _)| *rank == wait.rank);
        wait.awaited.iter().filter(|_| is_known).filter(is_late).map(|awaited| awaited.rank).collect()
    }

    pub(crate) fn has_topic(&self, topic: u64) -> bool {
        self.0.iter().any(|known| known.topic == topic)
    }

    /// Calls with the highest numbers of the newest topics, about `max` bytes in total, as rank, topic and
    /// calls.
    pub(crate) fn newest_calls(&self, max: usize) -> Vec<(usize, u64, Vec<Called>)> {
        let mut left = max;
        let mut found = Vec::new();
        for topic in self.0.iter().rev() {
            let mut calls: Vec<_> = topic.calls.iter().collect();
            calls.sort_unstable_by_key(|((place, number), _)| (Reverse(*number), *place));
            let mut by_rank: BTreeMap<usize, Vec<Called>> = BTreeMap::new();
            for (&(place, number), (rank, what)) in calls {
                let Some(rest) = left.checked_sub(CALL_OVERHEAD + what.len()) else { break };
                left = rest;
                by_rank.entry(*rank).or_default().push(Called { place, number, what: what.clone() });
            }
            found.extend(by_rank.into_iter().map(|(rank, calls)| (rank, topic.topic, calls)));
        }
        found
    }

    /// Evicts the oldest topics, and the current one last, while the log is too large. Waiting ranks report
    /// their calls again.
    fn evict_oldest(&mut self, current: u64) {
        while self.0.iter().map(|topic| topic.bytes).sum::<usize>() > MAX_BYTES {
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
    fn the_first_difference_names_both_ranks() {
        let mut call_log = CallLog::default();
        assert_eq!(call_log.record_calls(2, 7, calls(&[(1, "a"), (2, "b"), (3, "c")])), None);
        // Another communicator, equal calls, and calls reported by one rank only.
        assert_eq!(call_log.record_calls(1, 8, calls(&[(1, "x")])), None);
        assert_eq!(call_log.record_calls(3, 7, calls(&[(3, "c"), (4, "d")])), None);
        assert_eq!(call_log.record_calls(4, 7, calls(&[(9, "x")])), None);
        let error = call_log.record_calls(1, 7, calls(&[(4, "y"), (3, "x"), (2, "b")])).unwrap().to_string();
        assert!(error.starts_with("rank 1 called x while rank 2 called c; all ranks "), "{error}");
        let error = call_log.record_calls(5, 7, calls(&[(1, "b")])).unwrap().to_string();
        assert!(error.starts_with("rank 2 called a while rank 5 called b; "), "{error}");
    }

    #[test]
    fn ranks_that_have_not_reported_a_call_are_late() {
        let mut call_log = CallLog::default();
        let message = |place, number| Called { place, number, what: "a".to_owned() };
        assert_eq!(call_log.record_calls(0, 7, calls(&[(4, "d"), (5, "e"), (3, "c")])), None);
        // Reports may come in another order.
        assert_eq!(call_log.record_calls(0, 7, calls(&[(2, "b")])), None);
        assert_eq!(call_log.record_calls(1, 7, calls(&[(4, "d")])), None);
        assert_eq!(call_log.record_calls(2, 8, calls(&[(9, "x")])), None);
        assert_eq!(call_log.record_calls(4, 7, vec![message(11, 6), message(12, 2)]), None);
        let late = |rank, topic, awaited: &[(usize, u64, u64)]| {
            let awaited =
                awaited.iter().map(|&(rank, place, number)| Awaited { rank, place, number }).collect();
            let (operation, limit) = ("all_reduce".to_owned(), std::time::Duration::from_secs(1));
            call_log
                .late_ranks(&Wait { rank, topic, operation, limit, awaited })
                .into_iter()
                .collect::<Vec<_>>()
        };
        let nobody: [usize; 0] = [];
        let all = |number| [(4, 0, number), (2, 0, number), (1, 0, number), (0, 0, number)];
        assert_eq!(late(0, 7, &all(3)), [2, 4]);
        assert_eq!(late(0, 7, &all(4)), [2, 4]);
        assert_eq!(late(0, 7, &all(5)), [1, 2, 4]);
        assert_eq!(late(2, 8, &all(9)), [0, 1, 4]);
        assert_eq!(late(0, 7, &[(4, 11, 6), (4, 12, 2)]), nobody);
        assert_eq!(late(0, 7, &[(4, 11, 7), (4, 12, 3), (0, 12, 1)]), [0, 4]);
        assert_eq!(late(0, 7, &[]), nobody);
        // The waiting rank, or its communicator, is not known.
        assert_eq!(late(3, 7, &all(5)), nobody);
        assert_eq!(late(0, 9, &all(5)), nobody);
    }

    #[test]
    fn the_newest_calls_are_returned_up_to_the_limit() {
        let mut call_log = CallLog::default();
        assert_eq!(call_log.record_calls(2, 7, calls(&[(1, "a"), (2, "b")])), None);
        assert_eq!(call_log.record_calls(1, 8, calls(&[(4, "d"), (5, "e"), (3, "c")])), None);
        assert_eq!(call_log.record_calls(0, 8, calls(&[(6, "f")])), None);
        let call = CALL_OVERHEAD + 1;
        let newest = |max: usize| call_log.newest_calls(max);
        assert_eq!(newest(0), []);
        assert_eq!(newest(2 * call), [(0, 8, calls(&[(6, "f")])), (1, 8, calls(&[(5, "e")]))]);
        let five = newest(5 * call);
        assert_eq!(five[1], (1, 8, calls(&[(5, "e"), (4, "d"), (3, "c")])));
        assert_eq!(five[2], (2, 7, calls(&[(2, "b")])));
    }

    #[test]
    fn calls_are_kept_until_the_log_is_too_large() {
        let mut call_log = CallLog::default();
        assert_eq!(call_log.record_calls(0, 1, calls(&[(1, "a")])), None);
        assert_eq!(call_log.record_calls(0, 1, calls(&[(2, "b")])), None);
        assert_eq!(
            call_log.record_calls(0, 1, calls(&[(1, "another")])),
            None,
            "a rank does not differ from itself"
        );
        for topic in 10..100 {
            assert_eq!(call_log.record_calls(0, topic, calls(&[(1, "a")])), None);
        }
        assert!(call_log.record_calls(1, 99, calls(&[(1, "x")])).is_some());
        let error = call_log.record_calls(1, 1, calls(&[(1, "x")])).unwrap().to_string();
        assert!(error.starts_with("rank 0 called a while rank 1 called x; "), "{error}");
        let long = "x".repeat(MAX_BYTES / 3);
        for topic in 200..204 {
            assert_eq!(call_log.record_calls(0, topic, calls(&[(1, &long)])), None);
        }
        assert_eq!(call_log.0.iter().map(|topic| topic.topic).collect::<Vec<_>>(), [202, 203]);
        assert_eq!(call_log.record_calls(1, 1, calls(&[(1, "y")])), None);
        // More than there is room for, of one topic.
        let much: Vec<(u64, &str)> = (0..4).map(|number| (number, long.as_str())).collect();
        assert_eq!(call_log.record_calls(2, 300, calls(&much)), None);
        assert!(call_log.0.is_empty());
    }
}
