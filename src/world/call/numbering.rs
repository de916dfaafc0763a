//! Numbering of ranks by process: error messages name ranks of the job, not processes.

use crate::world::{Error, Reason};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of ranks in each process of a world ([`threads`](crate::world::threads)). The ranks of process `p`
/// begin at `p * count`.
#[derive(Debug)]
pub(crate) struct Numbering(AtomicUsize);

impl Default for Numbering {
    fn default() -> Self {
        Self(AtomicUsize::new(1))
    }
}

impl Numbering {
    pub(crate) fn set_count(&self, count: usize) {
        self.0.store(count.max(1), Ordering::SeqCst);
    }

    pub(crate) fn first_rank(&self, process: usize) -> usize {
        process.saturating_mul(self.rank_count())
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns the text for the ranks that end with a process: `rank 3 ends`, `ranks 2 to 3 end`.
    pub(crate) fn ends_text(&self, process: usize) -> String {
        let (first, count) = (self.first_rank(process), self.rank_count());
        if count == 1 {
            format!("rank {first} ends")
        } else {
            format!("ranks {first} to {} end", first + count - 1)
        }
    }

    /// Returns the rank to name in a message about `process`, and the end of the message: `rank` if it
    /// belongs to the process; otherwise the first rank of the process, and a text with all of them.
    pub(crate) fn name_rank(&self, process: usize, rank: Option<usize>) -> (usize, String) {
        let (first, count) = (self.first_rank(process), self.rank_count());
        match rank.filter(|rank| rank / count == process) {
            Some(rank) => (rank, String::new()),
            None if count == 1 => (first, String::new()),
            None => (first, format!(" (the process of ranks {first} to {})", first + count - 1)),
        }
    }

    /// Returns the error for a failed process, or for its failed rank if known.
    pub(crate) fn failed_error(
        &self,
        process: usize,
        rank: Option<usize>,
        host: &str,
        reason: Reason,
    ) -> Error {
        let (rank, ranks) = self.name_rank(process, rank);
        Error::RankFailed { rank, host: host.to_owned(), reason: reason.with_suffix(&ranks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_and_not_processes() {
        let numbering = Numbering::default();
        let failed = |process, rank| {
            numbering.failed_error(process, rank, "a", Reason::Other("died".to_owned())).to_string()
        };
        assert_eq!(
            (failed(1, None), numbering.ends_text(1)),
            ("rank 1 on host a died".to_owned(), "rank 1 ends".to_owned())
        );
        numbering.set_count(2);
        assert_eq!(failed(1, None), "rank 2 on host a died (the process of ranks 2 to 3)");
        assert_eq!(failed(1, Some(3)), "rank 3 on host a died");
        // A process cannot blame the ranks of another.
        assert_eq!(failed(1, Some(1)), failed(1, None));
        assert_eq!((numbering.first_rank(2), numbering.ends_text(2)), (4, "ranks 4 to 5 end".to_owned()));
    }
}
