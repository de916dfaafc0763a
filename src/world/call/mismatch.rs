//! Different calls of two ranks.

use std::fmt;

/// The end of the text, after the two calls.
const RULE: &str = "; all ranks call the same operations in the same order with the same lengths";

/// The call reported by a rank when it leaves.
pub(crate) const LEFT: &str = "nothing more, and left";
/// The addition for it.
const LEFT_EARLY: &str = "; the rank that left had fewer steps, or an error of its own: see its output";

/// Text for an unknown call of the peer.
const EARLIER: &str = "something else in an earlier operation";

/// Different calls of two ranks at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// One of the ranks.
    pub rank: usize,
    /// Its call: `all_reduce of 100 float, sum`.
    pub called: String,
    /// The other rank.
    pub peer: usize,
    /// The other rank's call; `None` if it is not known, because an earlier call differs.
    pub peer_called: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, called, peer, peer_called } = self;
        formatter.write_str(&Self::mismatch_text(*rank, called, *peer, peer_called.as_deref()))
    }
}

impl Mismatch {
    /// The text, from the parts.
    pub(crate) fn mismatch_text(rank: usize, called: &str, peer: usize, peer_called: Option<&str>) -> String {
        let has_left = called == LEFT || peer_called == Some(LEFT);
        let peer_called = peer_called.unwrap_or(EARLIER);
        let left = if has_left { LEFT_EARLY } else { "" };
        format!("rank {rank} called {called} while rank {peer} called {peer_called}{RULE}{left}")
    }

    /// Replaces ranks of a group by ranks of its job.
    #[cfg(any(feature = "fabric", feature = "nccl"))]
    pub(crate) fn renumber_ranks(self, rank_in_job: impl Fn(usize) -> usize) -> Self {
        Self { rank: rank_in_job(self.rank), peer: rank_in_job(self.peer), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_both_calls_and_a_rank_that_left_early() {
        let mismatch = Mismatch {
            rank: 12,
            called: "send/recv of 5 int32 from rank 2 to rank 7".to_owned(),
            peer: 3,
            peer_called: Some("barrier".to_owned()),
        };
        assert_eq!(
            mismatch.to_string(),
            format!(
                "rank 12 called send/recv of 5 int32 from rank 2 to rank 7 while rank 3 called barrier{RULE}"
            )
        );
        let earlier = Mismatch { peer_called: None, ..mismatch.clone() };
        assert!(earlier.to_string().ends_with(&format!("rank 3 called {EARLIER}{RULE}")), "{earlier}");
        let left = Mismatch { peer_called: Some(LEFT.to_owned()), ..mismatch };
        assert!(left.to_string().ends_with(LEFT_EARLY), "{left}");
    }
}
