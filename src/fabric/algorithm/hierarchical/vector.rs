//! all_reduce, reduce and broadcast: each lane moves its chunk of the vector between hosts.

use super::Hierarchical;
use crate::fabric::algorithm::{
    Buffer, Location, Position, Round, Schedule, Spec, Split, scratch, source, target,
};
use crate::fabric::selection::Collective;

/// Smallest chunk of a lane, in bytes: below this the cost of a message does not depend on its length.
const LEAST: usize = 4 << 10;

/// Inside the host, then in each lane, then inside the host: the messages of the collective between hosts,
/// and 1/q of its bytes from each rank.
///
/// - all_reduce: reduce-scatter, all_reduce, all-gather.
/// - reduce: reduce-scatter, reduce, and the lanes of the root's host send it their chunks.
/// - broadcast: the root sends a chunk to each lane of its host, broadcast, all-gather.
pub(super) fn schedule(parameters: Hierarchical<'_>) -> Schedule<Hierarchical<'_>> {
    let chunks = parameters.chunks(0);
    let lane = parameters.lane(chunks.count(0));
    let scratch_len = match parameters.collective {
        Collective::Broadcast => 0,
        _ => {
            let inside = chunks.largest() * (parameters.here.neighbours().len() - 1);
            parameters.arrivals() + inside.max(lane.scratch_len)
        }
    };
    let pipeline = parameters.spec.pipeline();
    // SAFETY: the first round of a reduction receives into scratch memory behind the partial results, a part
    // for each rank of the host; the rounds of the lane are as the lane's schedule promises, within this
    // rank's chunk and a part of the scratch memory of its own. Otherwise each chunk of the target is
    // received once, and sent by a rank that has it; the root of a broadcast only sends, from the source.
    // Segments are disjoint.
    unsafe { Schedule::new(parameters, pipeline, lane.rounds + 2, scratch_len, round).ordered() }
}

/// On the root's host, ranks have numbers from the root on, around the end; on other hosts, number and index
/// are equal.
impl Hierarchical<'_> {
    /// The root's host, and its index there.
    fn root(&self) -> (usize, usize) {
        self.here.hosts.place(self.spec.at.root)
    }

    /// True on the root's host.
    fn is_home(&self) -> bool {
        self.here.host == self.root().0
    }

    /// Number of the rank with an index on this host, and of its lane if it has one.
    fn number(&self, index: usize) -> usize {
        let count = self.here.neighbours().len();
        if self.is_home() { (index + count - self.root().1) % count } else { index }
    }

    /// Rank with a number on a host.
    fn rank_of(&self, host: usize, number: usize) -> usize {
        let ((home, index), ranks) = (self.root(), self.here.hosts.ranks_of(host));
        if host == home { ranks[(index + number) % ranks.len()] } else { ranks[number] }
    }

    /// A segment, cut into a chunk for each lane in use: the same number in all segments.
    fn chunks(&self, segment: usize) -> Split {
        let segments = self.spec.segments();
        let lanes = (segments.largest() / LEAST).clamp(1, self.here.hosts.lanes.max(1));
        segments.part(segment, lanes)
    }

    /// The schedule of a lane, for `count` elements.
    fn lane(&self, count: usize) -> Schedule<Spec> {
        let at = Position { rank: self.here.host, ranks: self.here.hosts.count(), root: self.root().0 };
        let spec = Spec { at, count, segment: usize::MAX, in_flight: 1, ..self.spec };
        crate::fabric::algorithm::schedule(self.collective, self.between, spec)
    }

    /// Start of the lane's result in the scratch memory of a reduce, behind the reduction of its host.
    fn result(&self) -> usize {
        self.chunks(0).largest()
    }

    /// Start of the receive buffers in scratch memory: behind the results of a reduce. An all_reduce keeps
    /// its results in the target.
    fn arrivals(&self) -> usize {
        if self.collective == Collective::Reduce { 2 * self.result() } else { 0 }
    }

    /// Location of the host's partial result for this rank's chunk, at `start` in the vector.
    fn partial(&self, start: usize) -> Location {
        if self.collective == Collective::Reduce { scratch(0) } else { target(start) }
    }

    /// True on the root of a broadcast: its source is the vector.
    fn is_sender(&self) -> bool {
        self.collective == Collective::Broadcast && self.spec.at.is_root()
    }

    /// Maps a round of the lane's schedule to the ranks and the chunk of the lane.
    fn translate(&self, chunks: Split, round: &mut Round) {
        let own = self.number(self.here.index);
        let start = chunks.start(own);
        let input = match self.collective {
            Collective::Broadcast if self.is_sender() => source(start),
            Collective::Broadcast => target(start),
            _ if self.here.neighbours().len() == 1 => source(start),
            _ => self.partial(start),
        };
        let output = match self.collective {
            Collective::Reduce if !self.spec.at.is_root() => scratch(self.result()),
            _ => target(start),
        };
        if self.collective == Collective::Broadcast {
            // The root has copied its vector in the first round.
            round.meanwhile = None;
        }
        let arrivals = self.arrivals();
        round.translate(
            |host| self.rank_of(host, own),
            |location| {
                let base = match location.buffer {
                    Buffer::Source => input,
                    Buffer::Target => output,
                    Buffer::Scratch => scratch(arrivals),
                };
                Location { offset: base.offset + location.offset, ..base }
            },
        );
    }
}

fn round(parameters: &Hierarchical<'_>, segment: usize, number: usize, round: &mut Round) {
    let chunks = parameters.chunks(segment);
    let own = parameters.number(parameters.here.index);
    let lane = parameters.lane(if own < chunks.parts() { chunks.count(own) } else { 0 });
    if number == 0 {
        match parameters.collective {
            Collective::Broadcast => parameters.scatter(chunks, round),
            _ => parameters.reduce(chunks, round),
        }
    } else if number > lane.rounds {
        match parameters.collective {
            Collective::Reduce => parameters.collect(chunks, round),
            _ => parameters.gather(chunks, round),
        }
    } else if own < chunks.parts() {
        lane.fill(0, number - 1, round);
        parameters.translate(chunks, round);
    }
}

/// The rounds inside a host.
impl Hierarchical<'_> {
    /// Reduces each chunk to the rank of its lane.
    fn reduce(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.here, chunks.parts());
        let own = self.number(here.index);
        for (position, other) in here.others().enumerate() {
            let (peer, lane) = (here.neighbours()[other], self.number(other));
            if lane < lanes {
                let (start, len) = chunks.span(lane);
                round.send(peer, source(start), len);
            }
            if own < lanes {
                let (start, len) = chunks.span(own);
                let arrived = scratch(self.arrivals() + position * len);
                round.receive(peer, arrived, len);
                let partial = self.partial(start);
                let before = if position == 0 { source(start) } else { partial };
                round.combine(partial, before, arrived, len);
            }
        }
    }

    /// Sends the root's chunks to the ranks of their lanes.
    fn scatter(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.here, chunks.parts());
        let own = self.number(here.index);
        if self.spec.at.is_root() {
            for lane in 1..lanes {
                let (start, len) = chunks.span(lane);
                round.send(self.rank_of(here.host, lane), source(start), len);
            }
            let start = chunks.start(0);
            round.copy_meanwhile(source(start), target(start), chunks.len(0, lanes));
        } else if self.is_home() && own < lanes {
            let (start, len) = chunks.span(own);
            round.receive(self.spec.at.root, target(start), len);
        }
    }

    /// Sends each lane's chunk to all ranks without it.
    fn gather(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.here, chunks.parts());
        let own = self.number(here.index);
        for other in here.others() {
            let (peer, lane) = (here.neighbours()[other], self.number(other));
            let has_all = self.collective == Collective::Broadcast && peer == self.spec.at.root;
            if own < lanes && !has_all {
                let (start, len) = chunks.span(own);
                let have = if self.is_sender() { source(start) } else { target(start) };
                round.send(peer, have, len);
            }
            if lane < lanes && !self.is_sender() {
                let (start, len) = chunks.span(lane);
                round.receive(peer, target(start), len);
            }
        }
    }

    /// Sends the root the results of its host's lanes.
    fn collect(&self, chunks: Split, round: &mut Round) {
        let lanes = chunks.parts();
        let own = self.number(self.here.index);
        if self.spec.at.is_root() {
            for lane in 1..lanes {
                let (start, len) = chunks.span(lane);
                round.receive(self.rank_of(self.here.host, lane), target(start), len);
            }
        } else if self.is_home() && own < lanes {
            round.send(self.spec.at.root, scratch(self.result()), chunks.len(own, own + 1));
        }
    }
}
