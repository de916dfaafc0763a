//! Algorithms for scatter.
//!
//! Costs for `p` ranks that get `n` bytes each, as messages on the critical path; the root sends (p-1) n bytes. Only
//! the root has a source.

use super::{Position, Round, Schedule, Split, Tree, scratch, source, target};

/// What a scatter schedule is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) tree: Tree,
    /// Bytes of each rank's block.
    pub(crate) block: usize,
    /// The most bytes of a segment of a block.
    pub(crate) segment: usize,
    /// Segments in flight together.
    pub(crate) in_flight: usize,
}

/// The root sends each rank its block: 1 message to each.
pub(crate) struct Direct(pub(crate) Message);

// SAFETY: the root only sends; its own block of the source, which in place is the target, it does not send. Segments
// are disjoint.
unsafe impl Schedule for Direct {
    fn segments(&self) -> usize {
        Split::into_segments(self.0.block, 1, self.0.segment).parts()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight
    }

    fn rounds(&self) -> usize {
        1
    }

    fn scratch_len(&self) -> usize {
        0
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let Message { tree: Tree { rank, ranks, root }, block, .. } = self.0;
        let segments = Split::into_segments(block, 1, self.0.segment);
        let (start, len) = (segments.start(segment), segments.len(segment, segment + 1));
        if rank != root {
            return round.receive(root, target(start), len);
        }
        let at = Position { rank, ranks };
        for to in (1..ranks).map(|distance| at.above(distance)) {
            round.send(to, source(to * block + start), len);
        }
        round.copy_meanwhile(source(rank * block + start), target(start), len);
    }
}

/// Down a binomial tree, in which every rank gets its subtree's blocks: lg p messages, rounded up; the bytes pass
/// through more ranks than the two that they concern.
pub(crate) struct Binomial(pub(crate) Message);

// SAFETY: the root only sends, from scratch memory; another rank receives there in one round and sends in later ones.
// One segment.
unsafe impl Schedule for Binomial {
    fn segments(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        1
    }

    /// The first is for the root to put the blocks into the order of the tree.
    fn rounds(&self) -> usize {
        1 + self.0.tree.steps()
    }

    fn scratch_len(&self) -> usize {
        self.0.tree.subtree(self.0.tree.number()) * self.0.block
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let Message { tree, block, .. } = self.0;
        let me = tree.number();
        if number == 0 {
            if tree.is_root() {
                let up = (tree.ranks - tree.root) * block;
                round.copy(source(tree.root * block), scratch(0), up);
                round.copy(source(0), scratch(up), tree.root * block);
            }
            return;
        }
        let step = tree.steps() - number;
        if let Some(parent) = tree.parent(step) {
            round.receive(tree.rank_of(parent), scratch(0), tree.subtree(me) * block);
        }
        if let Some(child) = tree.child(step) {
            round.send(tree.rank_of(child), scratch((child - me) * block), tree.subtree(child) * block);
        }
        if step == 0 {
            round.copy(scratch(0), target(0), block);
        }
    }
}
