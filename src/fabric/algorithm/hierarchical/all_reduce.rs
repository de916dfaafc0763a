//! all_reduce.

use super::Levels;
use crate::fabric::algorithm::all_reduce;
use crate::fabric::algorithm::{
    Buffer, Pipeline, Position, Round, Schedule, Spec, Split, scratch, source, target,
};
use crate::fabric::selection::Algorithm;

/// Reduce-scatter inside the host, an all_reduce in each lane, all-gather inside the host: the messages of the
/// all_reduce between hosts, and 1/q of its bytes from each rank.
pub(crate) struct Hierarchical<'a> {
    pub(crate) levels: Levels<'a>,
    /// The operation of all ranks.
    pub(crate) spec: Spec<Position>,
}

impl Hierarchical<'_> {
    /// A segment, cut into a chunk for each lane in use.
    fn chunks(&self, segment: usize) -> Split {
        self.levels.chunks(self.spec.segments(), segment)
    }

    /// Passes the schedule of a lane, for `count` elements, to `then`.
    fn lane<R>(&self, count: usize, then: impl FnOnce(&dyn Schedule) -> R) -> R {
        let here = self.levels.here;
        let at = Position { rank: here.host, ranks: here.hosts.count() };
        let spec = Spec { at, count, segment: usize::MAX, in_flight: 1, ..self.spec };
        match self.levels.between {
            Algorithm::Direct => then(&all_reduce::Direct(spec)),
            Algorithm::RecursiveDoubling => then(&all_reduce::RecursiveDoubling(spec)),
            Algorithm::Pairwise => then(&all_reduce::Pairwise(spec)),
            Algorithm::Rabenseifner => then(&all_reduce::Rabenseifner(spec)),
            // The ring, which serves every number of hosts.
            _ => then(&all_reduce::Ring(spec)),
        }
    }

    /// Reduce-scatter inside the host.
    fn reduce(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.levels.here, chunks.parts());
        let ranks = here.neighbours();
        for to in here.others().filter(|&to| to < lanes) {
            round.send(ranks[to], source(chunks.start(to)), chunks.len(to, to + 1));
        }
        if here.index < lanes {
            let (mine, len) = (chunks.start(here.index), chunks.len(here.index, here.index + 1));
            for (number, from) in here.others().enumerate() {
                round.receive(ranks[from], scratch(number * len), len);
                let before = if number == 0 { source(mine) } else { target(mine) };
                round.combine(target(mine), before, scratch(number * len), len);
            }
        }
    }

    /// All-gather inside the host.
    fn gather(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.levels.here, chunks.parts());
        let ranks = here.neighbours();
        for other in here.others() {
            if here.index < lanes {
                let len = chunks.len(here.index, here.index + 1);
                round.send(ranks[other], target(chunks.start(here.index)), len);
            }
            if other < lanes {
                round.receive(ranks[other], target(chunks.start(other)), chunks.len(other, other + 1));
            }
        }
    }
}

// SAFETY: the first round receives into scratch memory, a part for each rank of the host; those of the lane are as the
// lane's schedule promises, within this rank's chunk, and the last receives chunks of the target that are not this
// rank's, while it sends its own. Segments are disjoint.
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
        inside.max(self.lane(chunks.count(0), |lane| lane.scratch_len()))
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let here = self.levels.here;
        let chunks = self.chunks(segment);
        if number == 0 {
            return self.reduce(chunks, round);
        }
        if number + 1 == self.rounds() {
            return self.gather(chunks, round);
        }
        if here.index >= chunks.parts() {
            return;
        }
        self.lane(chunks.count(here.index), |lane| lane.round(0, number - 1, round));
        let start = chunks.start(here.index);
        let alone = here.neighbours().len() == 1;
        round.translate(
            |host| here.hosts.ranks_of(host)[here.index],
            |location| match location.buffer {
                Buffer::Scratch => location,
                Buffer::Source if alone => source(start + location.offset),
                // What the ranks of the host have been reduced to.
                Buffer::Source | Buffer::Target => target(start + location.offset),
            },
        );
    }
}
