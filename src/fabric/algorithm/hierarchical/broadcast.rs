//! broadcast.

use super::{Levels, RootedHosts};
use crate::fabric::algorithm::broadcast;
use crate::fabric::algorithm::{Buffer, Pipeline, Round, Schedule, Spec, Split, Tree, source, target};
use crate::fabric::hosts::HostPosition;
use crate::fabric::selection::Algorithm;

/// The root sends a chunk to each lane of its host, every lane broadcasts its chunk, and the ranks of each host
/// exchange their chunks: the messages of the broadcast between hosts, and 1/q of its bytes from each rank.
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
            Algorithm::Ring => then(&broadcast::Ring(spec)),
            // The tree, which serves every number of hosts.
            _ => then(&broadcast::Binomial(spec)),
        }
    }
}

// SAFETY: the root only sends, from the source. Another rank receives each chunk once, its lane's first, and sends that
// when it has it. Segments are disjoint.
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

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let (here, rooted, chunks) = (self.levels.here, self.rooted(), self.chunks(segment));
        let (own, lanes) = (rooted.number(here.index), chunks.parts());
        let is_root = self.spec.at.is_root();
        let (start, len) = (|lane| chunks.start(lane), |lane| chunks.len(lane, lane + 1));
        if number == 0 {
            if is_root {
                for lane in 1..lanes {
                    round.send(rooted.rank_of(here.host, lane), source(start(lane)), len(lane));
                }
                round.copy_meanwhile(source(start(0)), target(start(0)), chunks.len(0, lanes));
            } else if rooted.is_home() && own < lanes {
                round.receive(self.spec.at.root, target(start(own)), len(own));
            }
            return;
        }
        if number + 1 < self.rounds() {
            if own < lanes {
                self.lane(chunks.count(own), |lane| lane.round(0, number - 1, round));
                // All of the root's has been copied.
                round.meanwhile = None;
                round.translate(
                    |host| rooted.rank_of(host, own),
                    |location| match location.buffer {
                        Buffer::Source if is_root => source(start(own) + location.offset),
                        _ => target(start(own) + location.offset),
                    },
                );
            }
            return;
        }
        for other in here.others() {
            let (peer, lane) = (here.neighbours()[other], rooted.number(other));
            if own < lanes && peer != self.spec.at.root {
                let have = if is_root { source(start(own)) } else { target(start(own)) };
                round.send(peer, have, len(own));
            }
            if lane < lanes && !is_root {
                round.receive(peer, target(start(lane)), len(lane));
            }
        }
    }
}
