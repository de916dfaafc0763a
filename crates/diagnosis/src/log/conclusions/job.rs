//! Look-ups in a digest: the communicator of the job, the hosts and writers of ranks, and the places of
//! lines.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Evidence;
use crate::log::digest::{Communicator, Digest, Example, Position, RankProcess, Writer};
pub(super) use crate::words::{counted as count, ranks_in_words};

/// Largest number of examined groups of processes.
const GROUPS: usize = 64;

/// A digest with the job's main communicator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) digest: &'a Digest,
    /// The largest communicator, or the first of several.
    pub(super) main: Option<&'a Communicator>,
}

impl<'a> Job<'a> {
    pub(super) fn new(digest: &'a Digest) -> Self {
        let largest = digest.communicators.iter().map(|each| each.ranks).max();
        let main = digest.communicators.iter().find(|each| Some(each.ranks) == largest);
        Self { digest, main }
    }

    /// Returns the communicators that need a proof, at most [`GROUPS`]: the main one, and each further one
    /// not contained in these. Also returns the number of communicators above the limit. A communicator of a
    /// single rank adds nothing beside other communicators.
    pub(super) fn communicators_to_prove(&self) -> (Vec<&'a Communicator>, usize) {
        let mut all: Vec<&Communicator> = self.digest.communicators.iter().collect();
        all.sort_by_key(|each| std::cmp::Reverse(each.ranks));
        let mut groups: Vec<(&Communicator, BTreeSet<usize>)> = Vec::new();
        let mut more = 0;
        for communicator in all {
            let writers: BTreeSet<usize> =
                communicator.members.values().map(|member| member.writer).collect();
            let contains = |(other, theirs): &(&Communicator, BTreeSet<usize>)| {
                writers.is_subset(theirs) && (other.ranks > communicator.ranks || is_no_start(communicator))
            };
            if !groups.is_empty() && (communicator.ranks < 2 || groups.iter().any(contains)) {
                continue;
            }
            match groups.len() {
                GROUPS => more += 1,
                _ => groups.push((communicator, writers)),
            }
        }
        (groups.into_iter().map(|(communicator, _)| communicator).collect(), more)
    }

    /// Returns processes with NCCL and without a communicator in the log.
    pub(super) fn processes_without_communicator(&self) -> BTreeSet<(&'a str, u64)> {
        let members = self.digest.communicators.iter().flat_map(|each| each.members.values());
        let joined: BTreeSet<_> = members.filter_map(|member| self.process_of(member.writer)).collect();
        let loaded = self.digest.writers.iter().filter(|writer| writer.nccl.is_some() && writer.has_pid());
        let loaded = loaded.map(|writer| (writer.host.as_str(), writer.pid));
        loaded.filter(|process| !joined.contains(process)).collect()
    }

    pub(super) fn writer(&self, index: usize) -> Option<&'a Writer> {
        self.digest.writers.get(index)
    }

    /// Returns the host of a rank of a communicator, also by the head of nccl-tests, unless it is blanked.
    pub(super) fn host_of_rank(&self, communicator: &Communicator, rank: u32) -> Option<&'a str> {
        let member = communicator.members.get(&rank).and_then(|member| self.writer(member.writer));
        let host = || Some(self.head_of(communicator)?.get(&rank)?.host.as_str());
        member.filter(|writer| writer.names_host()).map(|writer| writer.host.as_str()).or_else(host)
    }

    /// Returns the head of nccl-tests, for the communicator of all its ranks.
    pub(super) fn head_of(&self, communicator: &Communicator) -> Option<&'a BTreeMap<u32, RankProcess>> {
        let ranks = self.digest.head.last_key_value().map(|(&rank, _)| rank + 1);
        (ranks == Some(communicator.ranks)).then_some(&self.digest.head)
    }

    /// Returns the ranks of these writers in the largest communicator, ascending. Lines of several ranks with
    /// blanked names have one writer.
    pub(super) fn ranks_of_writers(&self, writers: impl IntoIterator<Item = usize>) -> Vec<u32> {
        let mut ranks: BTreeSet<u32> = BTreeSet::new();
        for index in writers {
            let Some(writer) = self.writer(index) else { continue };
            ranks.extend(writer.rank);
            if writer.is_blanked() {
                let members = self.main.iter().flat_map(|main| &main.members);
                ranks.extend(members.filter(|(_, member)| member.writer == index).map(|(&rank, _)| rank));
            }
        }
        ranks.into_iter().collect()
    }

    /// Returns the process of a writer: host and number.
    pub(super) fn process_of(&self, writer: usize) -> Option<(&'a str, u64)> {
        self.writer(writer).map(|writer| (writer.host.as_str(), writer.pid))
    }

    /// Returns the process of a message: the process of its writer, or of the rank in a launcher's prefix.
    pub(super) fn process_of_message(&self, example: &Example) -> Option<(&'a str, u64)> {
        let of_rank = || Some(self.main?.members.get(&example.rank?)?.writer);
        self.process_of(example.writer.or_else(of_rank)?)
    }

    /// Returns all writers of the processes of these writers.
    pub(super) fn of_same_processes(&self, writers: &BTreeSet<usize>) -> BTreeSet<usize> {
        let process = |writer: &'a Writer| (writer.host.as_str(), writer.pid);
        let processes: BTreeSet<(&str, u64)> =
            writers.iter().filter_map(|&index| self.writer(index)).map(process).collect();
        let all = self.digest.writers.iter().enumerate();
        let same = all.filter(|(_, writer)| processes.contains(&process(writer))).map(|(index, _)| index);
        same.collect()
    }

    /// Returns the hosts of these writers.
    pub(super) fn hosts_of_writers(&self, writers: impl IntoIterator<Item = usize>) -> Vec<String> {
        let named =
            writers.into_iter().filter_map(|index| self.writer(index)).filter(|writer| writer.names_host());
        let hosts: BTreeSet<&str> = named.map(|writer| writer.host.as_str()).collect();
        hosts.into_iter().map(str::to_owned).collect()
    }

    /// Returns the name of an input.
    fn input_name(&self, position: Position) -> String {
        self.digest.inputs.get(position.input).map(|input| input.name.clone()).unwrap_or_default()
    }

    /// Returns a line of a writer as evidence.
    pub(super) fn cite_line(
        &self,
        position: Position,
        writer: Option<usize>,
        text: impl Into<String>,
    ) -> Evidence {
        let rank = match &self.ranks_of_writers(writer)[..] {
            [rank] => Some(*rank),
            _ => None,
        };
        let writer = writer.and_then(|index| self.writer(index));
        Evidence {
            place: self.input_name(position),
            line: (position.line > 0).then_some(position.line),
            rank,
            host: writer.filter(|writer| writer.names_host()).map(|writer| writer.host.clone()),
            text: text.into(),
        }
    }

    /// Returns an example of a message as evidence, with the rank of its writer, else the rank in a
    /// launcher's prefix.
    pub(super) fn cite_example(&self, example: &Example) -> Evidence {
        let evidence = self.cite_line(example.position, example.writer, example.text.clone());
        Evidence { rank: evidence.rank.or(example.rank), ..evidence }
    }

    /// Returns a fact about a writer, not shown by a single line, as evidence: the input without a line.
    pub(super) fn cite_writer(&self, writer: usize, text: impl Into<String>) -> Option<Evidence> {
        let first = self.writer(writer)?.first;
        Some(self.cite_line(Position { line: 0, ..first }, Some(writer), text))
    }

    /// Returns the writers' values, each with the indices of its writers.
    pub(super) fn group_writers<T: Ord>(
        &self,
        value: impl Fn(&'a Writer) -> Option<T>,
    ) -> BTreeMap<T, Vec<usize>> {
        let mut values: BTreeMap<T, Vec<usize>> = BTreeMap::new();
        for (index, writer) in self.digest.writers.iter().enumerate() {
            if let Some(value) = value(writer) {
                values.entry(value).or_default().push(index);
            }
        }
        values
    }

    /// Returns the variables of this name.
    pub(super) fn variables_named<'b>(
        &self,
        name: &'b str,
    ) -> impl Iterator<Item = &'a crate::log::digest::VariableSeen> + use<'a, 'b> {
        self.digest.variables.iter().filter(move |variable| variable.name == name)
    }
}

/// Returns the words for a communicator: with its id, or without one if the log has none.
pub(super) fn describe_communicator(id: &str) -> String {
    match id {
        "" => "a communicator without an id".to_owned(),
        id => format!("communicator {id}"),
    }
}

/// Returns true for a communicator that does not start the job again: a split, a communicator without a start
/// in the log, and one completed and connected by all its ranks.
fn is_no_start(communicator: &Communicator) -> bool {
    let members = || communicator.members.values();
    let is_whole = communicator.members.len() == communicator.ranks as usize
        && members().all(|member| member.complete && member.connected && !member.aborted);
    is_whole
        || communicator.made_by.contains("Split")
        || !members().any(|member| member.started || member.complete)
}

#[cfg(test)]
mod tests {
    use super::super::conclude;
    use super::super::tests::{examine, pair};
    use crate::examination::Health;
    use crate::knowledge::rules::Rules;
    use crate::log::Reader;

    fn without(text: &str, words: &str) -> String {
        text.lines().filter(|line| !line.contains(words)).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_second_start_of_the_same_processes_has_to_be_proven() {
        let first = pair("IB", "NET/IB/0/GDRDMA").text();
        let again = first.replace("0x77", "0x78");
        assert_eq!(examine(&(first.clone() + &again)).health(), Health::Healthy);
        for second in
            [without(&again, "b:101:101"), without(&again, "Connected"), without(&again, "COMPLETE")]
        {
            let found = examine(&(first.clone() + &second));
            assert_ne!(found.health(), Health::Healthy, "{second}");
            assert!(found.proof.is_empty(), "{:?}", found.proof);
        }
        // A split of all ranks begins no run.
        let split = without(&again, "Connected").replace("ncclCommInitRankConfig", "ncclCommSplit");
        assert_eq!(examine(&(first + &split)).health(), Health::Healthy);
    }

    #[test]
    fn communicators_that_overlap_have_to_be_proven_each() {
        let first = pair("IB", "NET/IB/0/GDRDMA").text();
        let of = |text: &str, one: &str, other: &str, id: &str| {
            text.replace("a:100:100 [0]", one).replace("b:101:101 [1]", other).replace("0x77", id)
        };
        let (a, c, d) = ("a:100:100 [0]", "c:100:100 [0]", "d:101:101 [1]");
        let pairs = first.clone() + &of(&first, c, d, "0x78");
        assert_eq!(examine(&pairs).health(), Health::CannotTell);
        for (via, health) in [("NET/IB/0/GDRDMA", Health::Healthy), ("NET/Socket/0", Health::Degraded)] {
            let across = of(&pair("IB", via).text(), a, c, "0x79");
            let across = across.replace("comm 0x0", "comm 0x5").replace("comm 0x1", "comm 0x6");
            let found = examine(&(pairs.clone() + &across));
            assert_eq!(found.health(), health, "{:?} {:?}", found.findings, found.unseen);
        }
    }

    #[test]
    fn a_process_without_a_communicator_is_not_proven() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let found = examine(&(text + "c:9:9 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"));
        assert_eq!(found.health(), Health::CannotTell);
        let says = "1 process loaded NCCL but joined no communicator, the first is 9 on c";
        assert!(found.unseen.iter().any(|line| line.starts_with(says)), "{:?}", found.unseen);
    }

    #[test]
    fn an_empty_file_of_a_rank_is_not_proven() {
        let text = pair("IB", "NET/IB/0/GDRDMA").text();
        let rules = Rules::built_in();
        let health = |files: &[&str]| {
            let mut reader = Reader::new(&rules);
            files.iter().for_each(|file| reader.read_stream("rank.log", file.as_bytes()));
            conclude(&reader.finish(), &rules).health()
        };
        let (one, other) = (without(&text, "b:101:101"), without(&text, "a:100:100"));
        assert_eq!(health(&[&one, &other]), Health::Healthy);
        assert_eq!(health(&[&one, &other, ""]), Health::CannotTell);
        // Files of standard output and error.
        assert_eq!(health(&[&one, "", &other, ""]), Health::Healthy);
        assert_eq!(health(&[&text, ""]), Health::Healthy);
    }

    #[test]
    fn advice_about_one_group_does_not_hide_what_is_worse_in_another() {
        let mut node = pair("Socket", "P2P/CUMEM/read").text();
        node = node.replace("nNodes 2", "nNodes 1").replace("b:", "a:");
        node.insert_str(0, "a:100:100 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.16.2\n");
        assert_eq!(examine(&node).health(), Health::Healthy);
        let other = pair("Socket", "NET/Socket/0").text();
        let other = other.replace("a:", "c:").replace("b:", "d:").replace("0x77", "0x78");
        assert_eq!(examine(&(node + &other)).health(), Health::Degraded);
    }
}
