//! Two ranks that called different operations. The text travels between ranks as the reason of a failure.

use std::fmt;

/// The end of the text, after the two calls.
const RULE: &str = "; all ranks call the same operations in the same order with the same lengths";

/// The call that a rank reports when it leaves.
pub(crate) const LEFT: &str = "nothing more, and left";
/// The addition for it.
const LEFT_EARLY: &str = "; the rank that left had fewer steps, or an error of its own: see its output";

/// Two ranks that called different operations at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) rank: usize,
    pub(crate) called: String,
    pub(crate) peer: usize,
    /// `None` if it is not known, because an earlier call differs.
    pub(crate) peer_called: Option<String>,
}

/// Stands for a peer's call that is not known.
const EARLIER: &str = "something else in an operation before";

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, called, peer, peer_called } = self;
        formatter.write_str(&Self::text(*rank, called, *peer, peer_called.as_deref()))
    }
}

impl Mismatch {
    /// The text, from the parts.
    pub(crate) fn text(rank: usize, called: &str, peer: usize, peer_called: Option<&str>) -> String {
        let peer_called = peer_called.unwrap_or(EARLIER);
        let has_left = called == LEFT || peer_called == LEFT;
        let left = if has_left { LEFT_EARLY } else { "" };
        format!("rank {rank} called {called} while rank {peer} called {peer_called}{RULE}{left}")
    }

    /// Finds a mismatch in the reason of a failure, which may have an operation's name before it.
    pub(crate) fn find(text: &str) -> Option<Self> {
        let (calls, _) = text.split_once(RULE)?;
        let (one, other) = calls.split_once(" while rank ")?;
        let (before, called) = one.split_once(" called ")?;
        let rank = before.rsplit_once("rank ").map_or(before, |(_, rank)| rank).parse().ok()?;
        let (peer, peer_called) = other.split_once(" called ")?;
        let peer_called = (peer_called != EARLIER).then(|| peer_called.to_owned());
        Some(Self { rank, called: called.to_owned(), peer: peer.parse().ok()?, peer_called })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_is_found_in_the_reason_of_a_failure() {
        let parts = Mismatch {
            rank: 12,
            called: "send/recv of 5 int32 from rank 2 to rank 7".to_owned(),
            peer: 3,
            peer_called: Some("barrier".to_owned()),
        };
        let earlier = Mismatch { peer_called: None, ..parts.clone() };
        let left = Mismatch { peer_called: Some(LEFT.to_owned()), ..parts.clone() };
        assert!(left.to_string().ends_with(LEFT_EARLY) && !earlier.to_string().ends_with(LEFT_EARLY));
        for mismatch in [parts, earlier, left] {
            assert_eq!(Mismatch::find(&mismatch.to_string()), Some(mismatch.clone()));
            let reason = format!("failed: all_reduce: {mismatch}");
            assert_eq!(Mismatch::find(&reason), Some(mismatch));
        }
        assert_eq!(Mismatch::find("died: its connection closed"), None);
        assert_eq!(Mismatch::find("rank x called a while rank 1 called b"), None);
    }
}
