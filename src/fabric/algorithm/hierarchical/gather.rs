//! gather; and scatter, which is a gather [backwards](super::super::scatter::Backwards).

use std::ops::Range;

use super::super::gather::Message;
use super::super::{Round, Schedule, Tree, scratch, source, target};
use super::{Levels, Rooted};
use crate::fabric::selection::Algorithm;

/// Every host's ranks give their blocks to one of them, and that one has them travel to the root together with those of
/// its host, or of several (binomial): h-1 messages between hosts, of which the root gets all, or lg h, rounded up. There
/// is one lane, however long the blocks are: all bytes go to one rank, whichever way.
///
/// The hosts are numbered from the root's on, around the end; a host's blocks go before those of the hosts with higher
/// numbers, in the order of its ranks' numbers. On the root's host that one is the root.
pub(crate) struct Hierarchical<'a> {
    pub(crate) levels: Levels<'a>,
    /// That of all ranks.
    pub(crate) message: Message,
}

impl<'a> Hierarchical<'a> {
    fn rooted(&self) -> Rooted<'a> {
        Rooted::new(self.levels.here, self.message.tree.root)
    }

    /// The hosts.
    fn tree(&self) -> Tree {
        let here = self.levels.here;
        Tree { rank: here.host, ranks: here.hosts.count(), root: self.rooted().host }
    }

    fn is_binomial(&self) -> bool {
        self.levels.between == Algorithm::Binomial
    }

    /// Rounds between hosts.
    fn steps(&self) -> usize {
        // Every host sends to the root's at once, which serves every number of hosts, unless the tree is asked for.
        if self.is_binomial() { self.tree().steps() } else { 1 }
    }

    /// The numbers of the hosts that send to this one at a step.
    fn children(&self, step: usize) -> Range<usize> {
        let tree = self.tree();
        if self.is_binomial() {
            tree.child(step).map_or(0..0, |child| child..child + 1)
        } else if tree.is_root() {
            1..tree.ranks
        } else {
            0..0
        }
    }

    /// The number of the host to which this one sends at a step.
    fn parent(&self, step: usize) -> Option<usize> {
        let tree = self.tree();
        if self.is_binomial() { tree.parent(step) } else { (!tree.is_root()).then_some(0) }
    }

    /// The numbers of the hosts whose blocks a host with this number sends.
    fn below(&self, number: usize) -> Range<usize> {
        number..number + if self.is_binomial() { self.tree().subtree(number) } else { 1 }
    }

    /// The numbers of the hosts whose blocks are put together in this rank's scratch memory: on the root, which has its own
    /// host's blocks where they belong, those of all others.
    fn kept(&self) -> Range<usize> {
        let tree = self.tree();
        if tree.is_root() { 1..tree.ranks } else { self.below(tree.number()) }
    }

    /// How many ranks the hosts with these numbers have.
    fn ranks(&self, numbers: Range<usize>) -> usize {
        let tree = self.tree();
        numbers.map(|number| self.levels.here.hosts.ranks_of(tree.rank_of(number)).len()).sum()
    }

    /// The blocks of this host's ranks come to the one that is number 0.
    fn inside(&self, (start, len): (usize, usize), round: &mut Round) {
        let (here, rooted, block) = (self.levels.here, self.rooted(), self.message.block);
        let first = rooted.rank_of(here.host, 0);
        if rooted.number(here.index) > 0 {
            return round.send(first, source(start), len);
        }
        let place = |number: usize, rank: usize| {
            if rooted.is_home() { target(rank * block + start) } else { scratch(number * len) }
        };
        for number in 1..here.neighbours().len() {
            let rank = rooted.rank_of(here.host, number);
            round.receive(rank, place(number, rank), len);
        }
        round.copy_meanwhile(source(start), place(0, first), len);
    }

    /// The blocks of hosts come to others, and in the last step to their places on the root.
    fn between(&self, (start, len): (usize, usize), step: usize, round: &mut Round) {
        let (rooted, tree, kept) = (self.rooted(), self.tree(), self.kept());
        if rooted.number(self.levels.here.index) > 0 {
            return;
        }
        let first = |number: usize| rooted.rank_of(tree.rank_of(number), 0);
        for child in self.children(step) {
            let place = scratch(self.ranks(kept.start..child) * len);
            round.receive(first(child), place, self.ranks(self.below(child)) * len);
        }
        if let Some(parent) = self.parent(step) {
            round.send(first(parent), scratch(0), self.ranks(kept.clone()) * len);
        }
        if step + 1 == self.steps() && tree.is_root() {
            let hosts = kept.map(|number| self.levels.here.hosts.ranks_of(tree.rank_of(number)));
            for (position, rank) in hosts.flatten().enumerate() {
                round.copy(scratch(position * len), target(rank * self.message.block + start), len);
            }
        }
    }
}

// SAFETY: receives into blocks of the target that are not the root's own, or into scratch memory behind the blocks that
// are there already, and sends those in later rounds. Segments are disjoint.
unsafe impl Schedule for Hierarchical<'_> {
    fn segments(&self) -> usize {
        self.message.segments().parts()
    }

    fn in_flight(&self) -> usize {
        self.message.in_flight
    }

    fn rounds(&self) -> usize {
        1 + self.steps()
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn scratch_len(&self) -> usize {
        if self.rooted().number(self.levels.here.index) > 0 {
            return 0;
        }
        self.ranks(self.kept()) * self.message.segments().largest()
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let part = self.message.segments().span(segment);
        match number.checked_sub(1) {
            None => self.inside(part, round),
            Some(step) => self.between(part, step, round),
        }
    }
}
