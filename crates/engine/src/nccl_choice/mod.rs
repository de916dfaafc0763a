//! The algorithm, protocol and channels that NCCL selected.
//!
//! There are two sources. [`profiler`] is a plugin inside this program: it costs nothing while operations are
//! timed, and is always active. [`log`] is NCCL's log, which costs time, and so is optional
//! (`--show-algorithm`):
//!
//! | operation | reported by the profiler | reported by the log |
//! |---|---|---|
//! | a collective by an algorithm | from 2.24, channels from 2.27 on | from 2.20, channels from 2.24 on |
//! | a broadcast | as above, but not in 2.29 and 2.30 | as above |
//! | sends and receives | from 2.24 on, with their channels from 2.27 on | never |
//! | a symmetric kernel (`-R 2`) | never | from 2.27 on |
//! | copy engines (`-R 2 -x 2`, from 2.28 on) | from 2.29 on | from 2.29 on |
//! | a graph (`-G`) of one host | from 2.27 on | as outside of a graph |
//! | a single rank's copy | never | never |
//!
//! The table follows NCCL's source, 2.23 to 2.30.

mod captured;
pub mod log;
pub mod profiler;
mod settings;

use std::io;

pub use captured::{CapturedLog, LogPlace};
pub use log::Log;
pub use settings::own_variables;

use record::Algorithm;

/// NCCL's choice for operations of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The collective, by its name on the command line: `allreduce`. NCCL's log lacks it in 2.20 to 2.22, and
    /// so do sends and receives.
    pub collective: Option<String>,
    /// Size of each operation.
    pub bytes: Bytes,
    /// Algorithm, protocol and channels.
    pub algorithm: Algorithm,
}

/// A size as NCCL reports it, which depends on its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// The count that the function takes, times the size of an element: for an allgather what a rank sends.
    Count(u64),
    /// Bytes of the larger buffer of a rank; for operations that are launched together, the sum of theirs.
    Larger(u64),
    /// A part of the operation, a send or a receive, of whatever size.
    Part,
}

/// The operations whose choice is looked up.
#[derive(Clone, Copy, Debug)]
pub struct OperationKey<'a> {
    /// The collective, by its name on the command line: `allreduce`.
    pub collective: &'a str,
    /// The count that NCCL's function takes, times the size of an element.
    pub count_bytes: u64,
    /// Ranks of the communicator.
    pub ranks: usize,
    /// Number of operations in a group (`aggregated`).
    pub aggregated: usize,
}

impl OperationKey<'_> {
    fn is_of(&self, choice: &Choice) -> bool {
        let named = choice.collective.as_deref().is_none_or(|name| name == self.collective);
        let sized = match choice.bytes {
            Bytes::Count(bytes) => bytes == self.count_bytes,
            Bytes::Larger(bytes) => {
                let parts = match self.collective {
                    "allgather" | "reducescatter" => self.ranks as u64,
                    _ => 1,
                };
                let larger = self.count_bytes.saturating_mul(parts);
                (1..=self.aggregated.max(1) as u64).any(|times| larger.checked_mul(times) == Some(bytes))
            }
            Bytes::Part => true,
        };
        named && sized
    }
}

/// An algorithm of copy engines, which use neither a protocol nor channels.
fn copy_engine_algorithm(name: &str) -> Algorithm {
    Algorithm { algorithm: name.to_owned(), protocol: None, channels: None }
}

/// Counts a choice among `choices`, which have their numbers of operations, in the order of the last
/// operation.
fn count_choice(choices: &mut Vec<(Choice, u64)>, choice: Choice) {
    let known = choices.iter().position(|(other, _)| *other == choice);
    let operations = known.map_or(0, |index| choices.remove(index).1);
    choices.push((choice, operations + 1));
}

/// NCCL's choice for `operation`: the most frequent one, and of equally frequent ones the last.
pub fn find_algorithm(choices: &[(Choice, u64)], operation: &OperationKey<'_>) -> Option<Algorithm> {
    choices
        .iter()
        .filter(|(choice, _)| operation.is_of(choice))
        .max_by_key(|(_, times)| *times)
        .map(|(choice, _)| choice.algorithm.clone())
}

/// Sources of NCCL's choices: the profiler, and perhaps the log.
#[derive(Debug, Default)]
pub struct ChoiceSources {
    log: Option<Log>,
}

impl ChoiceSources {
    /// Has NCCL report its choices to this process: to the profiler, and to the log if that is requested.
    /// Also returns a note when choices will be missing.
    ///
    /// Call it in `main`, before NCCL is loaded and before any thread starts. Only the process of rank 0
    /// needs it.
    pub fn start_sources(with_log: bool) -> (Self, Option<String>) {
        let profiled = profiler::request_plugin();
        match with_log.then(Log::start_log).transpose() {
            Ok(log) => (Self { log }, None),
            Err(why) if profiled => {
                let note = format!(
                    "NCCL's choices are taken from the profiler only; NCCL's log cannot be read: {why:#}"
                );
                (Self::default(), Some(note))
            }
            Err(why) => (Self::default(), Some(format!("NCCL's choices are not known: {why:#}"))),
        }
    }

    /// Discards the choices so far. Call it before each measurement: before its first operation, but after
    /// NCCL has started.
    pub fn discard_choices(&mut self) -> io::Result<()> {
        profiler::clear_choices();
        self.log.as_mut().map_or(Ok(()), Log::skip_lines)
    }

    /// NCCL's choice for an operation since [`discard_choices`](Self::discard_choices).
    ///
    /// The profiler has precedence. The log is read when the profiler has no complete choice.
    pub fn chosen_algorithm(&mut self, operation: &OperationKey<'_>) -> io::Result<Option<Algorithm>> {
        let recorded = find_algorithm(&profiler::recorded_choices(), operation);
        if recorded.as_ref().is_some_and(|recorded| recorded.channels.is_some()) {
            return Ok(recorded);
        }
        let Some(log) = &mut self.log else { return Ok(recorded) };
        Ok(find_algorithm(&log.read_choices()?, operation).or(recorded))
    }
}

#[cfg(test)]
mod tests {
    use super::log::parse_line;
    use super::*;

    #[test]
    fn a_choice_belongs_to_the_operation_of_its_collective_and_size() {
        let choices = |lines: &[(&str, u64)]| -> Vec<(Choice, u64)> {
            lines
                .iter()
                .map(|(text, times)| (parse_line(&format!("NCCL INFO {text}")).unwrap(), *times))
                .collect()
        };
        let gather = OperationKey { collective: "allgather", count_bytes: 1024, ranks: 8, aggregated: 1 };
        let name = |lines: &[(&str, u64)], operation: &OperationKey<'_>| {
            find_algorithm(&choices(lines), operation).map(|it| it.algorithm)
        };
        // From 2.24 on the bytes that a rank sends, before that those of the result.
        let new = ("AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}", 1);
        let old = ("AllGather: 8192 Bytes -> Algo 6 proto 2 time 1.0", 1);
        assert_eq!(name(&[new], &gather).as_deref(), Some("ring"));
        assert_eq!(name(&[old], &gather).as_deref(), Some("pat"));
        assert_eq!(name(&[new], &OperationKey { count_bytes: 8192, ..gather }), None);
        assert_eq!(name(&[new], &OperationKey { collective: "allreduce", ..gather }), None);
        assert_eq!(name(&[old], &OperationKey { ranks: 4, ..gather }), None);
        // Older versions log a group's sum, once.
        let group = ("8192 Bytes -> Algo 0 proto 0 time 1.0", 1);
        let reduce = OperationKey { collective: "allreduce", count_bytes: 2048, ranks: 8, aggregated: 4 };
        assert_eq!(name(&[group], &reduce).as_deref(), Some("tree"));
        assert_eq!(name(&[group], &OperationKey { aggregated: 3, ..reduce }), None);
        // The most frequent choice counts, of equally frequent ones the last.
        let tree = "AllGather: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}";
        assert_eq!(name(&[(new.0, 20), (tree, 1)], &gather).as_deref(), Some("ring"));
        assert_eq!(name(&[(new.0, 1), (tree, 1)], &gather).as_deref(), Some("tree"));
    }

    #[test]
    fn the_log_adds_what_the_profiler_is_not_told() {
        use std::io::Write as _;

        let _turn = profiler::tests::turn();
        let (log, variables) = Log::prepare_log(&|_| None).unwrap();
        let mut nccl = std::fs::OpenOptions::new().write(true).truncate(true).open(&variables[2].1).unwrap();
        let mut sources = ChoiceSources { log: Some(log) };
        let operation = OperationKey { collective: "allreduce", count_bytes: 64, ranks: 8, aggregated: 1 };
        let mut chosen = |recorded: &[(&str, Option<u32>)], logged: &str| {
            sources.discard_choices().unwrap();
            for (algorithm, channels) in recorded {
                profiler::tests::tell("AllReduce", 16, algorithm, *channels);
            }
            nccl.write_all(logged.as_bytes()).unwrap();
            sources.chosen_algorithm(&operation).unwrap().map(|found| (found.algorithm, found.channels))
        };
        let found = |algorithm: &str, channels| Some((algorithm.to_owned(), channels));
        let log = "NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}\n";
        let kernel = "NCCL INFO AllReduce [Symmetric]: 64 Bytes -> Kernel AllReduce_AGxLL_R nchannels 2 \
                      nthreads 8 nWorks 1\n";
        assert_eq!(chosen(&[], ""), None);
        assert_eq!(chosen(&[("TREE", Some(2))], ""), found("tree", Some(2)));
        assert_eq!(chosen(&[("TREE", Some(2))], log), found("tree", Some(2)));
        assert_eq!(chosen(&[("RING", None)], log), found("ring", Some(4)));
        assert_eq!(chosen(&[("RING", None)], ""), found("ring", None));
        assert_eq!(chosen(&[], kernel), found("AllReduce_AGxLL_R", Some(2)));
        // Earlier choices do not count.
        assert_eq!(chosen(&[], ""), None);
    }
}
