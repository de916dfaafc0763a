//! Algorithms for reduce.
//!
//! Costs for `p` ranks and `n` bytes, as messages on the critical path and bytes sent by each rank. Only the root has a
//! target; the others keep partial results in scratch memory.

use super::{Pipeline, Position, Round, Schedule, Spec, Tree, scratch, source, target};

/// Up a binomial tree, in which every rank combines its children's with its own: lg p messages, rounded up; n bytes.
pub(crate) struct Binomial(pub(crate) Spec<Tree>);

// SAFETY: receives into scratch memory beside what it keeps and sends there. Segments are disjoint.
unsafe impl Schedule for Binomial {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        self.0.at.steps()
    }

    fn scratch_len(&self) -> usize {
        2 * self.0.segments().largest()
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let tree = self.0.at;
        let segments = self.0.segments();
        let (start, len) = segments.span(segment);
        let partial = if tree.is_root() { target(start) } else { scratch(0) };
        let arrived = scratch(segments.largest());
        if let Some(child) = tree.child(number) {
            round.receive(tree.rank_of(child), arrived, len);
            round.combine(partial, if number == 0 { source(start) } else { partial }, arrived, len);
        }
        if let Some(parent) = tree.parent(number) {
            let whole = if tree.has_children() { partial } else { source(start) };
            round.send(tree.rank_of(parent), whole, len);
        }
        if tree.is_root() && number + 1 == tree.steps() {
            round.finish(target(start), len);
        }
    }
}

/// Every rank reduces one chunk, received from all others, and sends it to the root: 2 messages, n bytes.
pub(crate) struct Pairwise(pub(crate) Spec<Tree>);

// SAFETY: the first round receives into scratch memory, a part for each peer; in the second the root receives chunks
// of the target that are not its own and sends nothing. Segments are disjoint.
unsafe impl Schedule for Pairwise {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        2
    }

    fn scratch_len(&self) -> usize {
        self.0.segments().part(0, self.0.at.ranks).largest() * (self.0.at.ranks - 1)
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let Tree { rank, ranks, root } = self.0.at;
        let at = Position { rank, ranks };
        let chunks = self.0.segments().part(segment, ranks);
        let (mine, len) = (chunks.start(rank), chunks.len(rank, rank + 1));
        if number == 1 {
            if rank != root {
                return round.send(root, scratch(0), len);
            }
            for from in (1..ranks).map(|distance| at.below(distance)) {
                round.receive(from, target(chunks.start(from)), chunks.len(from, from + 1));
            }
            return;
        }
        for distance in 1..ranks {
            let to = at.above(distance);
            round.receive(at.below(distance), scratch((distance - 1) * len), len);
            round.send(to, source(chunks.start(to)), chunks.len(to, to + 1));
        }
        let whole = if rank == root {
            round.combine(target(mine), source(mine), scratch(0), len);
            target(mine)
        } else {
            round.combine(scratch(0), scratch(0), source(mine), len);
            scratch(0)
        };
        for other in 1..ranks - 1 {
            round.combine(whole, whole, scratch(other * len), len);
        }
        round.finish(whole, len);
    }
}
