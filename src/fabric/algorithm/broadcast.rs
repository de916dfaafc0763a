//! Algorithms for broadcast.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and bytes sent by the rank that sends most.
//! Only the root has a source.

use super::{Pipeline, Position, Round, Schedule, Spec, Tree, source, target};

impl Spec<Tree> {
    /// Location of the vector to send.
    fn have(&self, offset: usize) -> super::Location {
        if self.at.is_root() { source(offset) } else { target(offset) }
    }

    /// Copies the root's segment to its target.
    fn keep(&self, offset: usize, len: usize, round: &mut Round) {
        if self.at.is_root() {
            round.copy_meanwhile(source(offset), target(offset), len);
        }
    }
}

/// The root sends every rank the vector: 1 message to each; (p-1) n bytes.
pub(crate) struct Direct(pub(crate) Spec<Tree>);

// SAFETY: the root only sends, from the source; another rank only receives. Segments are disjoint.
unsafe impl Schedule for Direct {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let Tree { rank, ranks, root } = self.0.at;
        let (start, len) = self.0.segments().span(segment);
        if rank != root {
            return round.receive(root, target(start), len);
        }
        let at = Position { rank, ranks };
        for to in (1..ranks).map(|distance| at.above(distance)) {
            round.send(to, source(start), len);
        }
        self.0.keep(start, len, round);
    }
}

/// Down a binomial tree: lg p messages, rounded up; n lg p bytes.
///
/// The number of ranks with the vector doubles in every round: in round `k` the ranks up to `2^k` after the root send
/// it `2^k` ranks further. The ranks that send most are thus adjacent, and on hosts with more ranks than processors run
/// on different ones.
pub(crate) struct Binomial(pub(crate) Spec<Tree>);

// SAFETY: the root only sends, from the source; another rank receives in one round and sends in later ones. Segments
// are disjoint.
unsafe impl Schedule for Binomial {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        self.0.at.steps()
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let tree = self.0.at;
        let (start, len) = self.0.segments().span(segment);
        let (me, have) = (tree.number(), 1 << number);
        if (have..2 * have).contains(&me) {
            round.receive(tree.rank_of(me - have), target(start), len);
        } else if me < have && me + have < tree.ranks {
            round.send(tree.rank_of(me + have), self.0.have(start), len);
        }
        if number == 0 {
            self.0.keep(start, len, round);
        }
    }
}

/// Scatters the vector down a binomial tree and gathers it around a ring (van de Geijn): lg p + p-1 messages, less than
/// 2 n bytes. A rank that got more than its own chunk from the scatter does not receive that again.
pub(crate) struct Ring(pub(crate) Spec<Tree>);

impl Ring {
    /// True when a rank, by its number, has a chunk after the scatter.
    fn has(&self, number: usize, chunk: usize) -> bool {
        (number..number + self.0.at.subtree(number)).contains(&chunk)
    }
}

// SAFETY: the root only sends, from the source; another rank receives chunks into the target that it does not have yet,
// and sends those that it has. Segments are disjoint.
unsafe impl Schedule for Ring {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        self.0.at.steps() + self.0.at.ranks - 1
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let tree = self.0.at;
        let chunks = self.0.segments().part(segment, tree.ranks);
        let me = tree.number();
        if number == 0 {
            self.0.keep(chunks.start(0), chunks.len(0, tree.ranks), round);
        }
        if number < tree.steps() {
            let step = tree.steps() - 1 - number;
            let subtree = |number: usize| chunks.len(number, number + tree.subtree(number));
            if let Some(parent) = tree.parent(step) {
                round.receive(tree.rank_of(parent), target(chunks.start(me)), subtree(me));
            }
            if let Some(child) = tree.child(step) {
                round.send(tree.rank_of(child), self.0.have(chunks.start(child)), subtree(child));
            }
            return;
        }
        let step = number - tree.steps();
        let (before, after) = ((me + tree.ranks - 1) % tree.ranks, (me + 1) % tree.ranks);
        let give = (me + tree.ranks - step) % tree.ranks;
        let take = (before + tree.ranks - step) % tree.ranks;
        if !self.has(me, take) {
            round.receive(tree.rank_of(before), target(chunks.start(take)), chunks.len(take, take + 1));
        }
        if !self.has(after, give) {
            round.send(tree.rank_of(after), self.0.have(chunks.start(give)), chunks.len(give, give + 1));
        }
    }
}
