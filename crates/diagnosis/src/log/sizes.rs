//! The number of ranks and their processes, in lines other than NCCL's: the head of nccl-tests, and variables
//! of launchers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};

use super::channel::MOST_RANKS;
use super::digest::{Communicator, Digest, RankProcess, Writer};
use super::source::is_blanked_host;
use super::text;

/// Largest number of ranks of a head.
const HEAD: usize = 16_384;

/// A row of the head of nccl-tests: `#  Rank  3 Group  0 Pid    200 on      hostb device  1 [0xae] NVIDIA`.
/// Versions before 2.13 write no group.
static ROW: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?-u)# +Rank +(\d+) (?:Group +(\d+) )?Pid +(\d+) on +(\S+)").ok());

/// The number of ranks in a variable of a launcher, or in a cut line: `world_size=8`, `nranks 8`. Variables
/// about a group of ranks have other names: `LOCAL_WORLD_SIZE`.
static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(?-u)(?:^|[^\w.-])(?:world_size|WORLD_SIZE|nranks)["'=: ]{1,4}(\d+)(?:[^\w.]|$)"#).ok()
});

/// Words of [`ROW`] and [`NUMBER`], for one fast search.
static WORDS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new("(?-u) Pid |world_size|WORLD_SIZE|nranks").ok());

/// The facts about the number of ranks.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// The numbers in variables.
    numbers: BTreeSet<u32>,
    /// Processes by rank, of the head of nccl-tests.
    head: BTreeMap<u32, RankProcess>,
    /// True for heads of several jobs, or with groups of ranks.
    is_mixed: bool,
    /// Hosts of the processes that each name themselves rank 0, if there are several.
    lone_tests: BTreeSet<String>,
}

impl Sizes {
    /// Notes the facts of a line of another program.
    pub(super) fn note_line(&mut self, line: &[u8]) {
        if !WORDS.as_ref().is_some_and(|words| words.is_match(line)) {
            return;
        }
        if let Some((rank, group, process)) = parse_row(line).filter(|_| self.head.len() < HEAD) {
            let known = self.head.entry(rank).or_insert_with(|| process.clone());
            self.is_mixed |= *known != process || group > 0;
            if rank == 0 && *known != process && self.lone_tests.len() < 16 {
                self.lone_tests.extend([known.host.clone(), process.host]);
            }
        }
        if let Some(found) = NUMBER.as_ref().and_then(|number| number.captures(line))
            && let Some(number) = parse_group(&found, 1).filter(|_| self.numbers.len() < 2)
        {
            self.numbers.insert(number);
        }
    }

    /// Gives the number of ranks to the communicator without one, and the processes to the digest.
    pub(super) fn move_into_digest(self, digest: &mut Digest) {
        let highest = self.head.last_key_value().map(|(&rank, _)| rank).filter(|_| !self.is_mixed);
        let head = highest.map(|rank| rank + 1);
        let number = self.numbers.first().copied().filter(|_| self.numbers.len() == 1);
        let mut guessed = digest.communicators.iter_mut().filter(|each| each.is_size_guessed);
        if let (Some(communicator), None) = (guessed.next(), guessed.next())
            && let Some(ranks) =
                [head, number].into_iter().flatten().find(|ranks| *ranks >= communicator.ranks)
        {
            (communicator.ranks, communicator.is_size_guessed) = (ranks, false);
        }
        if highest.is_none() && self.head.len() == 1 {
            digest.lone_tests = self.lone_tests;
        }
        let contradicts = |each: &Communicator| each.is_head_wrong(&self.head, &digest.writers);
        let of_head = digest.communicators.iter().filter(|each| Some(each.ranks) == head);
        if head.is_some() && !of_head.into_iter().any(contradicts) {
            digest.head = self.head;
        }
    }
}

impl Communicator {
    /// Returns true if a rank has another process than the head of nccl-tests.
    fn is_head_wrong(&self, head: &BTreeMap<u32, RankProcess>, writers: &[Writer]) -> bool {
        self.members.iter().any(|(rank, member)| {
            let Some((process, writer)) = head.get(rank).zip(writers.get(member.writer)) else {
                return false;
            };
            writer.names_host() && !is_blanked_host(&process.host) && writer.host != process.host
                || writer.has_pid() && writer.pid != process.pid
        })
    }
}

/// Returns the rank, the group, and the process of a row of the head.
fn parse_row(line: &[u8]) -> Option<(u32, u32, RankProcess)> {
    let found = ROW.as_ref()?.captures(line)?;
    let (pid, _) = text::parse_number(found.get(3)?.as_bytes())?;
    let process = RankProcess { host: text::name(found.get(4)?.as_bytes()), pid };
    Some((parse_group(&found, 1)?, parse_group(&found, 2).unwrap_or(0), process))
}

/// Returns a number of ranks.
fn parse_group(found: &Captures<'_>, group: usize) -> Option<u32> {
    let (number, _) = text::parse_small_number(found.get(group)?.as_bytes())?;
    (number < MOST_RANKS).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(lines: &[&str]) -> Sizes {
        let mut sizes = Sizes::default();
        lines.iter().for_each(|line| sizes.note_line(line.as_bytes()));
        sizes
    }

    #[test]
    fn the_head_of_nccl_tests_is_read_in_all_forms() {
        for line in [
            "#  Rank  3 Group  0 Pid   2391 on         vm device  1 [0000:00:07] NVIDIA H200",
            "#   Rank  3 Pid   2391 on         vm device  1 [0x07] NVIDIA H200",
            "0: #  Rank  3 Group  0 Pid   2391 on         vm device  1 [0x07] NVIDIA H200",
        ] {
            let read = sizes(&[line]);
            let process = RankProcess { host: "vm".to_owned(), pid: 2391 };
            assert_eq!((read.head, read.is_mixed), (BTreeMap::from([(3, process)]), false), "{line}");
        }
        for line in ["# Rank x Pid 1 on vm", "Rank 3 Pid 1 on vm", "#  Rank  3 Pid on vm", " Pid "] {
            assert!(sizes(&[line]).head.is_empty(), "{line}");
        }
        let lone = sizes(&["# Rank 0 Pid 1 on a device", "# Rank 0 Pid 2 on b device"]);
        assert!(lone.is_mixed);
        let mut digest = Digest::default();
        lone.move_into_digest(&mut digest);
        assert_eq!(digest.lone_tests, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert!(sizes(&["# Rank 0 Group 1 Pid 1 on a device"]).is_mixed);
    }

    #[test]
    fn a_number_of_ranks_is_that_of_the_job() {
        for line in [
            "WORLD_SIZE=8",
            "export WORLD_SIZE=\"8\"",
            "world_size: 8, rank: 3",
            "{'world_size': 8}",
            "[Gloo] nranks 8",
            "distributed with world_size=8 rank=0 local_rank=0",
        ] {
            assert_eq!(sizes(&[line]).numbers, BTreeSet::from([8]), "{line}");
        }
        for line in [
            "LOCAL_WORLD_SIZE=8",
            "dp_world_size=8",
            "world_size",
            "world_size=x",
            "world_size=8.5",
            "world_size8",
        ] {
            assert!(sizes(&[line]).numbers.is_empty(), "{line}");
        }
    }
}
