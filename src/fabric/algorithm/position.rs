//! A rank's place in a ring or a tree.

/// A rank among all ranks.
///
/// The ranks form a ring, and a binomial tree with numbers from the root on, around the end. The parent of a
/// number is the number without its lowest bit; at step `s` the numbers with `s` as their lowest bit
/// communicate with their parents. The numbers of a subtree are consecutive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankPosition {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Root of the tree; not used by collectives without a root.
    pub(crate) root: usize,
}

impl RankPosition {
    /// The rank `distance` above this one, around the end.
    pub(crate) fn rank_above(&self, distance: usize) -> usize {
        (self.rank + distance) % self.ranks
    }

    /// The rank `distance` (at most the number of ranks) below this one, around the end.
    pub(crate) fn rank_below(&self, distance: usize) -> usize {
        (self.rank + self.ranks - distance) % self.ranks
    }

    /// Binary logarithm of the number of ranks, rounded up: number of steps in the tree.
    pub(crate) fn tree_steps(&self) -> usize {
        self.ranks.next_power_of_two().ilog2() as usize
    }

    pub(crate) fn is_root(&self) -> bool {
        self.rank == self.root
    }

    /// This rank's number in the tree: 0 for the root.
    pub(crate) fn tree_number(&self) -> usize {
        self.rank_below(self.root)
    }

    /// The rank with a number in the tree.
    pub(crate) fn rank_of(&self, number: usize) -> usize {
        (self.root + number) % self.ranks
    }

    /// Number of the parent, if this rank communicates with it at this step.
    pub(crate) fn parent_at(&self, step: usize) -> Option<usize> {
        let number = self.tree_number();
        (number > 0 && number.trailing_zeros() as usize == step).then(|| number - (1 << step))
    }

    /// Number of the child communicating with this rank at this step, if any.
    pub(crate) fn child_at(&self, step: usize) -> Option<usize> {
        let (number, distance) = (self.tree_number(), 1 << step);
        (number.is_multiple_of(2 * distance) && number + distance < self.ranks).then_some(number + distance)
    }

    /// True when this rank has children. The first of them then communicates at step 0.
    pub(crate) fn has_children(&self) -> bool {
        self.child_at(0).is_some()
    }

    /// Number of ranks in the subtree of a number, itself included.
    pub(crate) fn subtree_size(&self, number: usize) -> usize {
        if number == 0 { self.ranks } else { (1 << number.trailing_zeros()).min(self.ranks - number) }
    }
}
