//! all_reduce, reduce and broadcast: each lane moves its chunk of the vector between hosts.

use super::Hierarchical;
use crate::fabric::algorithm::{
    BufferKind, Location, RankPosition, Round, Schedule, Spec, Split, scratch_at, source_at, target_at,
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
pub(super) fn build_schedule(parameters: Hierarchical<'_>) -> Schedule<Hierarchical<'_>> {
    let chunks = parameters.segment_chunks(0);
    let lane = parameters.lane_schedule(chunks.element_count(0));
    let scratch_len = match parameters.collective {
        Collective::Broadcast => 0,
        _ => {
            let inside = chunks.largest_bytes() * (parameters.here.neighbour_ranks().len() - 1);
            parameters.arrivals_start() + inside.max(lane.scratch_len)
        }
    };
    let pipeline = parameters.spec.segment_pipeline();
    // SAFETY: the first round of a reduction receives into scratch memory behind the partial results, a part
    // for each rank of the host; the rounds of the lane are as the lane's schedule promises, within this
    // rank's chunk and a part of the scratch memory of its own. Otherwise each chunk of the target is
    // received once, and sent by a rank that has it; the root of a broadcast only sends, from the source.
    // Segments are disjoint.
    unsafe { Schedule::new(parameters, pipeline, lane.rounds + 2, scratch_len, fill_round).into_ordered() }
}

/// On the root's host, ranks have numbers from the root on, around the end; on other hosts, number and index
/// are equal.
impl Hierarchical<'_> {
    /// The root's host, and its index there.
    fn root_place(&self) -> (usize, usize) {
        self.here.hosts.host_and_index(self.spec.at.root)
    }

    /// True on the root's host.
    fn is_home(&self) -> bool {
        self.here.host == self.root_place().0
    }

    /// Number of the rank with an index on this host, and of its lane if it has one.
    fn lane_number(&self, index: usize) -> usize {
        let count = self.here.neighbour_ranks().len();
        if self.is_home() { (index + count - self.root_place().1) % count } else { index }
    }

    /// Rank with a number on a host.
    fn rank_of(&self, host: usize, number: usize) -> usize {
        let ((home, index), ranks) = (self.root_place(), self.here.hosts.ranks_of(host));
        if host == home { ranks[(index + number) % ranks.len()] } else { ranks[number] }
    }

    /// A segment, cut into a chunk for each lane in use: the same number in all segments.
    fn segment_chunks(&self, segment: usize) -> Split {
        let segments = self.spec.vector_segments();
        let lanes = (segments.largest_bytes() / LEAST).clamp(1, self.here.hosts.lanes.max(1));
        segments.split_part(segment, lanes)
    }

    /// The schedule of a lane, for `count` elements.
    fn lane_schedule(&self, count: usize) -> Schedule<Spec> {
        let at = RankPosition {
            rank: self.here.host,
            ranks: self.here.hosts.host_count(),
            root: self.root_place().0,
        };
        let spec = Spec { at, count, segment: usize::MAX, in_flight: 1, ..self.spec };
        crate::fabric::algorithm::build_schedule(self.collective, self.between, spec)
    }

    /// Start of the lane's result in the scratch memory of a reduce, behind the reduction of its host.
    fn result_start(&self) -> usize {
        self.segment_chunks(0).largest_bytes()
    }

    /// Start of the receive buffers in scratch memory: behind the results of a reduce. An all_reduce keeps
    /// its results in the target.
    fn arrivals_start(&self) -> usize {
        if self.collective == Collective::Reduce { 2 * self.result_start() } else { 0 }
    }

    /// Location of the host's partial result for this rank's chunk, at `start` in the vector.
    fn partial_location(&self, start: usize) -> Location {
        if self.collective == Collective::Reduce { scratch_at(0) } else { target_at(start) }
    }

    /// True on the root of a broadcast: its source is the vector.
    fn is_sender(&self) -> bool {
        self.collective == Collective::Broadcast && self.spec.at.is_root()
    }

    /// Maps a round of the lane's schedule to the ranks and the chunk of the lane.
    fn translate_round(&self, chunks: Split, round: &mut Round) {
        let own = self.lane_number(self.here.index);
        let start = chunks.part_start(own);
        let input = match self.collective {
            Collective::Broadcast if self.is_sender() => source_at(start),
            Collective::Broadcast => target_at(start),
            _ if self.here.neighbour_ranks().len() == 1 => source_at(start),
            _ => self.partial_location(start),
        };
        let output = match self.collective {
            Collective::Reduce if !self.spec.at.is_root() => scratch_at(self.result_start()),
            _ => target_at(start),
        };
        if self.collective == Collective::Broadcast {
            // The root has copied its vector in the first round.
            round.meanwhile = None;
        }
        let arrivals = self.arrivals_start();
        round.translate_all(
            |host| self.rank_of(host, own),
            |location| {
                let base = match location.buffer {
                    BufferKind::Source => input,
                    BufferKind::Target => output,
                    BufferKind::Scratch => scratch_at(arrivals),
                };
                Location { offset: base.offset + location.offset, ..base }
            },
        );
    }
}

fn fill_round(parameters: &Hierarchical<'_>, segment: usize, number: usize, round: &mut Round) {
    let chunks = parameters.segment_chunks(segment);
    let own = parameters.lane_number(parameters.here.index);
    let lane =
        parameters.lane_schedule(if own < chunks.part_count() { chunks.element_count(own) } else { 0 });
    if number == 0 {
        match parameters.collective {
            Collective::Broadcast => parameters.scatter_chunks(chunks, round),
            _ => parameters.reduce_chunks(chunks, round),
        }
    } else if number > lane.rounds {
        match parameters.collective {
            Collective::Reduce => parameters.collect_results(chunks, round),
            _ => parameters.gather_chunks(chunks, round),
        }
    } else if own < chunks.part_count() {
        lane.fill_round(0, number - 1, round);
        parameters.translate_round(chunks, round);
    }
}

/// The rounds inside a host.
impl Hierarchical<'_> {
    /// Reduces each chunk to the rank of its lane.
    fn reduce_chunks(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.here, chunks.part_count());
        let own = self.lane_number(here.index);
        for (position, other) in here.other_indices().enumerate() {
            let (peer, lane) = (here.neighbour_ranks()[other], self.lane_number(other));
            if lane < lanes {
                let (start, len) = chunks.part_span(lane);
                round.send_message(peer, source_at(start), len);
            }
            if own < lanes {
                let (start, len) = chunks.part_span(own);
                let arrived = scratch_at(self.arrivals_start() + position * len);
                round.receive_message(peer, arrived, len);
                let partial = self.partial_location(start);
                let before = if position == 0 { source_at(start) } else { partial };
                round.combine_after(partial, before, arrived, len);
            }
        }
    }

    /// Sends the root's chunks to the ranks of their lanes.
    fn scatter_chunks(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.here, chunks.part_count());
        let own = self.lane_number(here.index);
        if self.spec.at.is_root() {
            for lane in 1..lanes {
                let (start, len) = chunks.part_span(lane);
                round.send_message(self.rank_of(here.host, lane), source_at(start), len);
            }
            let start = chunks.part_start(0);
            round.copy_meanwhile(source_at(start), target_at(start), chunks.parts_bytes(0, lanes));
        } else if self.is_home() && own < lanes {
            let (start, len) = chunks.part_span(own);
            round.receive_message(self.spec.at.root, target_at(start), len);
        }
    }

    /// Sends each lane's chunk to all ranks without it.
    fn gather_chunks(&self, chunks: Split, round: &mut Round) {
        let (here, lanes) = (self.here, chunks.part_count());
        let own = self.lane_number(here.index);
        for other in here.other_indices() {
            let (peer, lane) = (here.neighbour_ranks()[other], self.lane_number(other));
            let has_all = self.collective == Collective::Broadcast && peer == self.spec.at.root;
            if own < lanes && !has_all {
                let (start, len) = chunks.part_span(own);
                let have = if self.is_sender() { source_at(start) } else { target_at(start) };
                round.send_message(peer, have, len);
            }
            if lane < lanes && !self.is_sender() {
                let (start, len) = chunks.part_span(lane);
                round.receive_message(peer, target_at(start), len);
            }
        }
    }

    /// Sends the root the results of its host's lanes.
    fn collect_results(&self, chunks: Split, round: &mut Round) {
        let lanes = chunks.part_count();
        let own = self.lane_number(self.here.index);
        if self.spec.at.is_root() {
            for lane in 1..lanes {
                let (start, len) = chunks.part_span(lane);
                round.receive_message(self.rank_of(self.here.host, lane), target_at(start), len);
            }
        } else if self.is_home() && own < lanes {
            round.send_message(
                self.spec.at.root,
                scratch_at(self.result_start()),
                chunks.parts_bytes(own, own + 1),
            );
        }
    }
}
