//! Algorithms for gather.
//!
//! Costs for `p` ranks that contribute `n` bytes each, as messages on the critical path; the root receives (p-1) n
//! bytes. Only the root has a target.

use super::{Pipeline, Position, Round, Schedule, Spec, Tree, scratch, source, target};

/// Every rank sends its block to the root: 1 message of each, p-1 at the root.
pub(crate) struct Direct(pub(crate) Spec<Tree>);

// SAFETY: the root only receives, into blocks of the target that are not its own. Segments are disjoint.
unsafe impl Schedule for Direct {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let Tree { rank, ranks, root } = self.0.at;
        let block = self.0.bytes();
        let (start, len) = self.0.segments().span(segment);
        if rank != root {
            return round.send(root, source(start), len);
        }
        let at = Position { rank, ranks };
        for from in (1..ranks).map(|distance| at.above(distance)) {
            round.receive(from, target(from * block + start), len);
        }
        round.copy_meanwhile(source(start), target(rank * block + start), len);
    }
}

/// Up a binomial tree, in which every rank forwards its subtree's blocks: lg p messages, rounded up; blocks pass
/// through other ranks on their way.
pub(crate) struct Binomial(pub(crate) Spec<Tree>);

// SAFETY: receives into scratch memory behind the blocks that are there already, and sends those. One segment.
unsafe impl Schedule for Binomial {
    fn rounds(&self) -> usize {
        self.0.at.steps()
    }

    fn scratch_len(&self) -> usize {
        self.0.at.subtree(self.0.at.number()) * self.0.bytes()
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let (tree, block) = (self.0.at, self.0.bytes());
        let me = tree.number();
        if let Some(child) = tree.child(number) {
            round.receive(tree.rank_of(child), scratch((child - me) * block), tree.subtree(child) * block);
        }
        if let Some(parent) = tree.parent(number) {
            let blocks = if tree.has_children() { scratch(0) } else { source(0) };
            round.send(tree.rank_of(parent), blocks, tree.subtree(me) * block);
        }
        if number == 0 && tree.has_children() {
            round.copy_meanwhile(source(0), scratch(0), block);
        }
        if number + 1 == tree.steps() && tree.is_root() {
            let up = (tree.ranks - tree.root) * block;
            round.copy(scratch(0), target(tree.root * block), up);
            round.copy(scratch(up), target(0), tree.root * block);
        }
    }
}
