//! Algorithms for all_to_all, with parts of one length or of any lengths.
//!
//! Costs for `p` ranks and `n` bytes in each rank's buffer, as messages on the critical path and bytes sent by each
//! rank.

use std::ops::Range;

use super::{Pipeline, Position, Round, Schedule, scratch, source, target};

/// Layout of the ranks' parts in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parts<'a> {
    /// Parts of this many bytes, one after the other.
    Equal(usize),
    /// Ranges of elements, one for each rank.
    Ranges { ranges: &'a [Range<usize>], element_size: usize },
}

impl Parts<'_> {
    fn start(&self, rank: usize) -> usize {
        match self {
            Self::Equal(len) => rank * len,
            Self::Ranges { ranges, element_size } => ranges[rank].start * element_size,
        }
    }

    fn len(&self, rank: usize) -> usize {
        match self {
            Self::Equal(len) => *len,
            Self::Ranges { ranges, element_size } => ranges[rank].len() * element_size,
        }
    }

    /// Bytes of the longest part.
    fn longest(&self) -> usize {
        match self {
            Self::Equal(len) => *len,
            Self::Ranges { ranges, element_size } => {
                ranges.iter().map(|range| range.len()).max().unwrap_or(0) * element_size
            }
        }
    }

    /// Bytes of all parts.
    fn total(&self, ranks: usize) -> usize {
        (0..ranks).map(|rank| self.len(rank)).sum()
    }
}

/// Parameters of an all_to_all schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) at: Position,
    /// Parts of the source, by destination.
    pub(crate) sent: Parts<'a>,
    /// Parts of the target, by origin.
    pub(crate) received: Parts<'a>,
    /// Largest segment of a part, in bytes.
    pub(crate) segment: usize,
    /// Largest number of segments in flight.
    pub(crate) in_flight: usize,
}

impl Message<'_> {
    /// Number of segments of the longest part. It may differ between ranks: only the two that share a part need to
    /// agree on its segments.
    fn segments(&self) -> usize {
        self.sent.longest().max(self.received.longest()).div_ceil(self.segment.max(1)).max(1)
    }

    fn pipeline(&self) -> Pipeline {
        Pipeline { segments: self.segments(), in_flight: self.in_flight }
    }

    /// Start of a segment of a part of `len` bytes, relative to the part, and its bytes.
    fn segment(&self, number: usize, len: usize) -> (usize, usize) {
        let start = number.saturating_mul(self.segment.max(1)).min(len);
        (start, self.segment.max(1).min(len - start))
    }

    fn send(&self, to: usize, segment: usize, round: &mut Round) {
        let (start, len) = self.segment(segment, self.sent.len(to));
        round.send(to, source(self.sent.start(to) + start), len);
    }

    fn receive(&self, from: usize, segment: usize, round: &mut Round) {
        let (start, len) = self.segment(segment, self.received.len(from));
        round.receive(from, target(self.received.start(from) + start), len);
    }

    /// Copies a segment of this rank's part for itself.
    fn keep(&self, segment: usize, round: &mut Round) {
        let rank = self.at.rank;
        let (start, len) = self.segment(segment, self.sent.len(rank));
        let (from, to) = (self.sent.start(rank) + start, self.received.start(rank) + start);
        round.copy_meanwhile(source(from), target(to), len);
    }
}

/// Every rank sends to every other at once: 1 message to each, n (p-1)/p bytes.
pub(crate) struct Direct<'a>(pub(crate) Message<'a>);

// SAFETY: sends of the source and receives into the target, which are disjoint; parts do not overlap, nor do segments.
unsafe impl Schedule for Direct<'_> {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let at = self.0.at;
        for distance in 1..at.ranks {
            self.0.receive(at.below(distance), segment, round);
            self.0.send(at.above(distance), segment, round);
        }
        self.0.keep(segment, round);
    }
}

/// Every rank sends to the one at growing distance above, and receives from the one below: p-1 messages, n (p-1)/p
/// bytes.
pub(crate) struct Pairwise<'a>(pub(crate) Message<'a>);

// SAFETY: as for `Direct`.
unsafe impl Schedule for Pairwise<'_> {
    fn pipeline(&self) -> Pipeline {
        self.0.pipeline()
    }

    fn rounds(&self) -> usize {
        self.0.at.ranks - 1
    }

    /// Parts of different lengths have different numbers of segments, so that later segments overtake earlier ones.
    fn is_ordered(&self) -> bool {
        matches!(self.0.sent, Parts::Ranges { .. })
    }

    fn round(&self, segment: usize, number: usize, round: &mut Round) {
        let at = self.0.at;
        self.0.receive(at.below(number + 1), segment, round);
        self.0.send(at.above(number + 1), segment, round);
        if number == 0 {
            self.0.keep(segment, round);
        }
    }
}

/// [`Direct`] in one buffer: received parts wait in scratch memory until all are sent. Equal parts are cut into segments.
/// Others are not: a received segment could overwrite a part that is sent later.
pub(crate) struct InPlace<'a>(pub(crate) Message<'a>);

impl InPlace<'_> {
    /// Start of a segment of a part, relative to the buffer, and its bytes.
    fn part(&self, parts: &Parts<'_>, rank: usize, segment: usize) -> (usize, usize) {
        let (start, len) = match parts {
            Parts::Equal(len) => self.0.segment(segment, *len),
            Parts::Ranges { .. } => (0, parts.len(rank)),
        };
        (parts.start(rank) + start, len)
    }
}

// SAFETY: receives into scratch memory, a part for each peer, and copies from there when all is sent. Segments are
// disjoint: those of equal parts lie at the same places of all parts, and of others there is one.
unsafe impl Schedule for InPlace<'_> {
    fn pipeline(&self) -> Pipeline {
        match self.0.sent {
            Parts::Equal(_) => self.0.pipeline(),
            Parts::Ranges { .. } => Pipeline::WHOLE,
        }
    }

    fn scratch_len(&self) -> usize {
        match self.0.received {
            Parts::Equal(len) => self.0.at.ranks * self.0.segment.max(1).min(len),
            Parts::Ranges { .. } => self.0.received.total(self.0.at.ranks),
        }
    }

    fn round(&self, segment: usize, _number: usize, round: &mut Round) {
        let Position { rank, ranks } = self.0.at;
        let mut arrived = 0;
        for peer in 0..ranks {
            let (from, sent) = self.part(&self.0.sent, peer, segment);
            let (to, received) = self.part(&self.0.received, peer, segment);
            if peer == rank {
                if from == to {
                    continue;
                }
                round.copy_meanwhile(source(from), scratch(arrived), received);
            } else {
                round.send(peer, source(from), sent);
                round.receive(peer, scratch(arrived), received);
            }
            round.copy(scratch(arrived), target(to), received);
            arrived += received;
        }
    }
}

/// Bruck's algorithm, for parts of one length: every part travels the distance to its rank in steps of powers of two,
/// together with others: lg p messages, rounded up, n/2 lg p bytes.
pub(crate) struct Bruck {
    pub(crate) at: Position,
    /// Bytes of a part.
    pub(crate) part: usize,
}

impl Bruck {
    /// Distances whose binary representation has bit `step`.
    fn travellers(&self, step: usize) -> impl Iterator<Item = usize> + use<> {
        (1..self.at.ranks).filter(move |distance| distance >> step & 1 == 1)
    }

    /// Start of the send buffer in scratch memory, behind the parts. At most half of the distances have a given bit.
    fn packed(&self) -> usize {
        self.at.ranks * self.part
    }

    /// Start of the receive buffer in scratch memory.
    fn arrived(&self) -> usize {
        self.packed() + self.at.ranks / 2 * self.part
    }

    fn pack(&self, step: usize, round: &mut Round) {
        for (index, distance) in self.travellers(step).enumerate() {
            round.copy(scratch(distance * self.part), scratch(self.packed() + index * self.part), self.part);
        }
    }
}

// SAFETY: sends one part of the scratch memory and receives into another; the target is written after the last message.
// One segment.
unsafe impl Schedule for Bruck {
    /// The first round only sorts the parts by distance.
    fn rounds(&self) -> usize {
        1 + self.at.ranks.next_power_of_two().ilog2() as usize
    }

    fn scratch_len(&self) -> usize {
        self.arrived() + self.at.ranks / 2 * self.part
    }

    fn round(&self, _segment: usize, number: usize, round: &mut Round) {
        let Position { rank, ranks } = self.at;
        if number == 0 {
            let up = (ranks - rank) * self.part;
            round.copy(source(rank * self.part), scratch(0), up);
            round.copy(source(0), scratch(up), rank * self.part);
            return self.pack(0, round);
        }
        let step = number - 1;
        let len = self.travellers(step).count() * self.part;
        round.receive(self.at.below(1 << step), scratch(self.arrived()), len);
        round.send(self.at.above(1 << step), scratch(self.packed()), len);
        for (index, distance) in self.travellers(step).enumerate() {
            round.copy(scratch(self.arrived() + index * self.part), scratch(distance * self.part), self.part);
        }
        if number + 1 < self.rounds() {
            return self.pack(step + 1, round);
        }
        for distance in 0..ranks {
            round.copy(scratch(distance * self.part), target(self.at.below(distance) * self.part), self.part);
        }
    }
}
