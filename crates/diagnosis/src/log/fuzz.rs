//! Fuzz target of the reader of logs. `cargo fuzz` calls it (`fuzz/`), and the tests with a corpus and
//! mutated logs.

#![allow(clippy::unwrap_used, reason = "this is all tests")]

use super::Reader;
use super::conclusions::conclude;
use crate::knowledge::rules::Rules;

/// Reads the bytes as a log, also in two files split at a position from the first byte, checks the digest,
/// and draws the conclusions.
pub fn check_log(data: &[u8]) {
    let rules = Rules::built_in();
    let middle = data.first().map_or(0, |byte| data.len() * usize::from(*byte) / 256);
    let mut reader = Reader::new(&rules);
    reader.read_stream("whole", data);
    reader.read_stream("first", &data[..middle]);
    reader.read_stream("second", &data[middle..]);
    let digest = reader.finish();
    assert_eq!(digest.inputs.len(), 3);
    for input in &digest.inputs {
        assert!(input.nccl_lines <= input.lines && (input.problem.is_some() || input.lines <= input.bytes));
    }
    let writers = digest.writers.len();
    for communicator in &digest.communicators {
        assert!(
            communicator
                .members
                .iter()
                .all(|(rank, member)| *rank < communicator.ranks && member.writer < writers)
        );
        for ((from, to), connection) in &communicator.connections {
            assert!(*from.max(to) < communicator.ranks && !connection.transports.is_empty());
            assert!(connection.transports.values().all(|channels| (1..=128).contains(channels)));
        }
    }
    for hit in &digest.hits {
        assert!(rules.rule_by_id(&hit.rule).is_some() && hit.count >= hit.examples.len() as u64);
        assert!(hit.writers.iter().all(|writer| *writer < writers));
    }
    assert!(digest.unknown.iter().all(|unknown| unknown.count > 0 && !unknown.examples.is_empty()));
    serde_json::to_string(&digest).unwrap();
    conclude(&digest, &rules);
    // Only one input can have several jobs.
    let mut reader = Reader::new(&rules);
    reader.read_stream("whole", data);
    conclude(&reader.finish(), &rules);
}
