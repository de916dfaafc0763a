//! reduce.

use super::{Levels, RootedHosts};
use crate::fabric::algorithm::reduce;
use crate::fabric::algorithm::{
    Buffer, Pipeline, Round, Schedule, Spec, Split, Tree, scratch, source, target,
};
use crate::fabric::hosts::HostPosition;
use crate::fabric::selection::Algorithm;

/// Reduce-scatter inside the host, a reduce in each lane, and the lanes of the root's host send it their chunks: the
/// messages of the reduce between hosts, and 1/q of its bytes from each rank.
pub(crate) struct Hierarchical<'a> {
    pub(crate) levels: Levels<'a>,
    /// The operation of all ranks.
    pub(crate) spec: Spec<Tree>,
}

impl<'a> Hierarchical<'a> {
    fn rooted(&self) -> RootedHosts<'a> {
        RootedHosts::new(self.levels.here, self.spec.at.root)
    }

    /// A segment, cut into a chunk for each lane in use.
    fn chunks(&self, segment: usize) -> Split {
        self.levels.chunks(self.spec.segments(), segment)
    }

    /// Passes the schedule of a lane, for `count` elements, to `then`.
    fn lane<R>(&self, count: usize, then: impl FnOnce(&dyn Schedule) -> R) -> R {
        let HostPosition { hosts, host, .. } = self.levels.here;
        let tree = Tree { rank: host, ranks: hosts.count(), root: self.rooted().host };
        let spec = Spec { at: tree, count, segment: usize::MAX, in_flight: 1, ..self.spec };
        match self.levels.between {
            Algorithm::Pairwise => then(&reduce::Pairwise(spec)),
            // The tree, which serves every number of hosts.
            _ => then(&reduce::Binomial(spec)),
        }
    }

    /// Offset in scratch memory of the lane's result for the root. The host's reduction comes before it, receive
    /// buffers and the lane's scratch memory after it.
    fn result(&self) -> usize {
        self.chunks(0).largest()
    }
}

// SAFETY: receives into scratch memory behind the partial results; the lane's schedule has a part of its own. The root
// receives the other lanes' chunks of the target in the end. Segments are disjoint.
unsafe impl Schedule for Hierarchical<'_> {
    fn pipeline(&self) -> Pipeline {
        self.spec.pipeline()
    }

    fn rounds(&self) -> usize {
        self.lane(0, |lane| lane.rounds()) + 2
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn scratch_len(&self) -> usize {
        let chunks = self.chunks(0);
        let inside = chunks.largest() * (self.levels.here.neighbours().len() - 1);
        2 * self.result() + inside.max(self.lane(chunks.count(0), |lane| lane.scratch_len()))
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, rooted, chunks) = (self.levels.here, self.rooted(), self.chunks(segment));
        let (own, lanes) = (rooted.number(here.index), chunks.parts());
        let is_root = self.spec.at.is_root();
        let (start, len) = (|lane| chunks.start(lane), |lane| chunks.len(lane, lane + 1));
        let (result, others) = (self.result(), 2 * self.result());
        if number == 0 {
            for (position, other) in here.others().enumerate() {
                let (peer, lane) = (here.neighbours()[other], rooted.number(other));
                if lane < lanes {
                    round.send(peer, source(start(lane)), len(lane));
                }
                if own < lanes {
                    let arrived = scratch(others + position * len(own));
                    round.receive(peer, arrived, len(own));
                    let before = if position == 0 { source(start(own)) } else { scratch(0) };
                    round.combine(scratch(0), before, arrived, len(own));
                }
            }
            return;
        }
        if number + 1 < self.rounds() {
            if own < lanes {
                self.lane(chunks.count(own), |lane| lane.round(0, number - 1, round));
                let alone = here.neighbours().len() == 1;
                round.translate(
                    |host| rooted.rank_of(host, own),
                    |location| match location.buffer {
                        Buffer::Source if alone => source(start(own) + location.offset),
                        Buffer::Source => scratch(location.offset),
                        Buffer::Target if is_root => target(start(own) + location.offset),
                        Buffer::Target => scratch(result + location.offset),
                        Buffer::Scratch => scratch(others + location.offset),
                    },
                );
            }
            return;
        }
        if is_root {
            for lane in 1..lanes {
                round.receive(rooted.rank_of(here.host, lane), target(start(lane)), len(lane));
            }
        } else if rooted.is_home() && own < lanes {
            round.send(self.spec.at.root, scratch(result), len(own));
        }
    }
}
