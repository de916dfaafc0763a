//! Look-ups in a digest: the communicator of the job, the hosts and writers of ranks, and the places of lines.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Evidence;
use crate::log::digest::{Communicator, Digest, Example, Position, Writer};
pub(super) use crate::words::{counted as count, ranks as ranks_in_words};

/// Largest number of groups of processes that are examined.
const GROUPS: usize = 64;

/// A digest with the communicator that stands for the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) digest: &'a Digest,
    /// The largest communicator; the first of several.
    pub(super) main: Option<&'a Communicator>,
}

impl<'a> Job<'a> {
    pub(super) fn new(digest: &'a Digest) -> Self {
        let largest = digest.communicators.iter().map(|each| each.ranks).max();
        let main = digest.communicators.iter().find(|each| Some(each.ranks) == largest);
        Self { digest, main }
    }

    /// The communicators that stand for the processes: the main one, and the largest one of each further group of processes,
    /// at most [`GROUPS`]; and the number of the others. A group of one rank has nothing to say beside others.
    pub(super) fn groups(&self) -> (Vec<&'a Communicator>, usize) {
        let mut all: Vec<&Communicator> = self.digest.communicators.iter().collect();
        all.sort_by_key(|each| std::cmp::Reverse(each.ranks));
        let mut seen: BTreeSet<(&str, u64)> = BTreeSet::new();
        let mut groups = Vec::new();
        let mut more = 0;
        for communicator in all {
            let processes = communicator.members.values().filter_map(|member| self.process_of(member.writer));
            let processes: BTreeSet<(&str, u64)> = processes.collect();
            let is_main = groups.is_empty();
            if is_main || (communicator.ranks > 1 && !processes.is_empty() && processes.is_disjoint(&seen)) {
                match groups.len() {
                    GROUPS => more += 1,
                    _ => groups.push(communicator),
                }
            }
            seen.extend(processes);
        }
        (groups, more)
    }

    pub(super) fn writer(&self, index: usize) -> Option<&'a Writer> {
        self.digest.writers.get(index)
    }

    /// The host of a rank of a communicator.
    pub(super) fn host(&self, communicator: &Communicator, rank: u32) -> Option<&'a str> {
        let member = communicator.members.get(&rank)?;
        self.writer(member.writer).map(|writer| writer.host.as_str())
    }

    /// The ranks of these writers in the largest communicator, ascending.
    pub(super) fn ranks(&self, writers: impl IntoIterator<Item = usize>) -> Vec<u32> {
        let ranks: BTreeSet<u32> = writers
            .into_iter()
            .filter_map(|index| self.writer(index).and_then(|writer| writer.rank))
            .collect();
        ranks.into_iter().collect()
    }

    /// The process of a writer: host and number.
    pub(super) fn process_of(&self, writer: usize) -> Option<(&'a str, u64)> {
        self.writer(writer).map(|writer| (writer.host.as_str(), writer.pid))
    }

    /// The process that wrote a message: that of its writer, or of the rank in a launcher's prefix.
    pub(super) fn process(&self, example: &Example) -> Option<(&'a str, u64)> {
        let of_rank = || Some(self.main?.members.get(&example.rank?)?.writer);
        self.process_of(example.writer.or_else(of_rank)?)
    }

    /// All writers of the processes of these writers.
    pub(super) fn of_same_processes(&self, writers: &BTreeSet<usize>) -> BTreeSet<usize> {
        let process = |writer: &'a Writer| (writer.host.as_str(), writer.pid);
        let processes: BTreeSet<(&str, u64)> =
            writers.iter().filter_map(|&index| self.writer(index)).map(process).collect();
        let all = self.digest.writers.iter().enumerate();
        let same = all.filter(|(_, writer)| processes.contains(&process(writer))).map(|(index, _)| index);
        same.collect()
    }

    /// The hosts of these writers.
    pub(super) fn hosts(&self, writers: impl IntoIterator<Item = usize>) -> Vec<String> {
        let hosts: BTreeSet<&str> = writers
            .into_iter()
            .filter_map(|index| self.writer(index).map(|writer| writer.host.as_str()))
            .collect();
        hosts.into_iter().filter(|host| !host.is_empty()).map(str::to_owned).collect()
    }

    /// The name of an input.
    fn input(&self, position: Position) -> String {
        self.digest.inputs.get(position.input).map(|input| input.name.clone()).unwrap_or_default()
    }

    /// A line of a writer as evidence.
    pub(super) fn evidence(
        &self,
        position: Position,
        writer: Option<usize>,
        text: impl Into<String>,
    ) -> Evidence {
        let writer = writer.and_then(|index| self.writer(index));
        Evidence {
            place: self.input(position),
            line: (position.line > 0).then_some(position.line),
            rank: writer.and_then(|writer| writer.rank),
            host: writer.map(|writer| writer.host.clone()).filter(|host| !host.is_empty()),
            text: text.into(),
        }
    }

    /// An example of a message as evidence. The rank is that of its writer, or the one that a launcher's prefix names.
    pub(super) fn example(&self, example: &Example) -> Evidence {
        let evidence = self.evidence(example.position, example.writer, example.text.clone());
        Evidence { rank: evidence.rank.or(example.rank), ..evidence }
    }

    /// A fact about a writer that no single line shows, as evidence: the input without a line.
    pub(super) fn fact(&self, writer: usize, text: impl Into<String>) -> Option<Evidence> {
        let first = self.writer(writer)?.first;
        Some(self.evidence(Position { line: 0, ..first }, Some(writer), text))
    }

    /// The values that writers have, each with the indices of its writers.
    pub(super) fn values<T: Ord>(&self, value: impl Fn(&'a Writer) -> Option<T>) -> BTreeMap<T, Vec<usize>> {
        let mut values: BTreeMap<T, Vec<usize>> = BTreeMap::new();
        for (index, writer) in self.digest.writers.iter().enumerate() {
            if let Some(value) = value(writer) {
                values.entry(value).or_default().push(index);
            }
        }
        values
    }

    /// The variables of this name.
    pub(super) fn variables<'b>(
        &self,
        name: &'b str,
    ) -> impl Iterator<Item = &'a crate::log::digest::VariableSeen> + use<'a, 'b> {
        self.digest.variables.iter().filter(move |variable| variable.name == name)
    }
}
