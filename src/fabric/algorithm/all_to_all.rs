//! Algorithms for all_to_all, with parts of one length or of any lengths.
//!
//! Costs for `p` ranks and `n` bytes in each rank's buffer, as messages on the critical path and bytes sent
//! by each rank.

use std::ops::Range;

use super::{Pipeline, Position, Round, Schedule, scratch, source, target};
use crate::fabric::selection::Algorithm;

/// Layout of the ranks' parts in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parts<'a> {
    /// Parts of this many bytes, one after the other.
    Equal(usize),
    /// Ranges of elements, one for each rank.
    Ranges { ranges: &'a [Range<usize>], element_size: usize },
}

impl Parts<'_> {
    /// Start of a rank's part, and its bytes.
    fn span(&self, rank: usize) -> (usize, usize) {
        match self {
            Self::Equal(len) => (rank * len, *len),
            Self::Ranges { ranges, element_size } => {
                (ranges[rank].start * element_size, ranges[rank].len() * element_size)
            }
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
    /// Segments of the longest part. Their number may differ between ranks: only the sender and the receiver
    /// of a part need the same segments of it.
    fn pipeline(&self) -> Pipeline {
        let longest = self.sent.longest().max(self.received.longest());
        Pipeline { segments: longest.div_ceil(self.segment.max(1)).max(1), in_flight: self.in_flight }
    }

    /// Start of a segment of a part, and its bytes.
    fn segment(&self, number: usize, (start, len): (usize, usize)) -> (usize, usize) {
        let offset = number.saturating_mul(self.segment.max(1)).min(len);
        (start + offset, self.segment.max(1).min(len - offset))
    }

    fn send(&self, to: usize, segment: usize, round: &mut Round) {
        let whole = self.sent.span(to);
        let (start, len) = self.segment(segment, whole);
        round.send_segment(to, source(start), len, whole.1);
    }

    fn receive(&self, from: usize, segment: usize, round: &mut Round) {
        let whole = self.received.span(from);
        let (start, len) = self.segment(segment, whole);
        round.receive_segment(from, target(start), len, whole.1);
    }

    /// Copies a segment of this rank's part for itself.
    fn keep(&self, segment: usize, round: &mut Round) {
        let (from, len) = self.segment(segment, self.sent.span(self.at.rank));
        let (to, _) = self.segment(segment, self.received.span(self.at.rank));
        round.copy_meanwhile(source(from), target(to), len);
    }
}

/// Returns the schedule of an algorithm. In place, every algorithm except Bruck's runs as [`in_one_buffer`].
pub(crate) fn schedule(algorithm: Algorithm, message: Message<'_>, in_place: bool) -> Schedule<Message<'_>> {
    let at = message.at;
    match (algorithm, message.received) {
        // The first round only sorts the parts by distance. SAFETY: sends one part of the scratch memory and
        // receives into another; the target is written after the last message.
        (Algorithm::Bruck, Parts::Equal(part)) => unsafe {
            let scratch_len = (at.ranks + 2 * (at.ranks / 2)) * part;
            Schedule::new(message, Pipeline::WHOLE, 1 + at.steps(), scratch_len, bruck)
        },
        // SAFETY: receives into scratch memory, a part for each peer, and copies from there when all is sent.
        // Segments are disjoint: segments of equal parts lie at the same places of all parts.
        (_, Parts::Equal(part)) if in_place => unsafe {
            Schedule::new(
                message,
                message.pipeline(),
                1,
                at.ranks * message.segment.max(1).min(part),
                in_one_buffer,
            )
        },
        // SAFETY: the same, with one segment.
        (_, Parts::Ranges { ranges, element_size }) if in_place => unsafe {
            let elements: usize = ranges.iter().map(|range| range.len()).sum();
            Schedule::new(message, Pipeline::WHOLE, 1, elements * element_size, in_one_buffer)
        },
        // SAFETY: sends from the source and receives into the target, both disjoint; parts do not overlap,
        // nor do segments.
        (Algorithm::Direct, _) => unsafe { Schedule::new(message, message.pipeline(), 1, 0, direct) },
        // Pairwise serves any number of ranks.
        // SAFETY: as for `direct`.
        (_, Parts::Equal(_)) => unsafe {
            Schedule::new(message, message.pipeline(), at.ranks - 1, 0, pairwise)
        },
        // Parts of different lengths have different numbers of segments: later segments overtake earlier
        // ones. SAFETY: as for `direct`.
        (_, Parts::Ranges { .. }) => unsafe {
            Schedule::new(message, message.pipeline(), at.ranks - 1, 0, pairwise).ordered()
        },
    }
}

/// Every rank sends to every other at once: 1 message to each, n (p-1)/p bytes.
fn direct(message: &Message<'_>, segment: usize, _number: usize, round: &mut Round) {
    let at = message.at;
    for distance in 1..at.ranks {
        message.receive(at.below(distance), segment, round);
        message.send(at.above(distance), segment, round);
    }
    message.keep(segment, round);
}

/// Every rank sends to the rank at growing distance above, and receives from the rank below: p-1 messages, n
/// (p-1)/p bytes.
fn pairwise(message: &Message<'_>, segment: usize, number: usize, round: &mut Round) {
    let at = message.at;
    message.receive(at.below(number + 1), segment, round);
    message.send(at.above(number + 1), segment, round);
    if number == 0 {
        message.keep(segment, round);
    }
}

/// [`direct`] in one buffer: received parts wait in scratch memory until all are sent. Equal parts are cut
/// into segments. Others are not: a received segment could overwrite an unsent part.
fn in_one_buffer(message: &Message<'_>, segment: usize, _number: usize, round: &mut Round) {
    let part = |parts: &Parts<'_>, rank: usize| match parts {
        Parts::Equal(_) => message.segment(segment, parts.span(rank)),
        Parts::Ranges { .. } => parts.span(rank),
    };
    let mut arrived = 0;
    for peer in 0..message.at.ranks {
        let (from, sent) = part(&message.sent, peer);
        let (to, received) = part(&message.received, peer);
        if peer == message.at.rank {
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

/// Bruck's algorithm, for parts of one length: every part travels the distance to its rank in steps of powers
/// of two, together with others: lg p messages, rounded up, n/2 lg p bytes.
fn bruck(message: &Message<'_>, _segment: usize, number: usize, round: &mut Round) {
    let (at, part) = (message.at, message.received.longest());
    let Position { rank, ranks, .. } = at;
    // Send and receive buffer in scratch memory, behind the parts. At most half of the distances have a given
    // bit.
    let packed = ranks * part;
    let arrived = packed + ranks / 2 * part;
    // Distances with bit `step` set.
    let travellers = |step: usize| (1..ranks).filter(move |distance| distance >> step & 1 == 1);
    if let Some(step) = number.checked_sub(1) {
        let len = travellers(step).count() * part;
        round.receive(at.below(1 << step), scratch(arrived), len);
        round.send(at.above(1 << step), scratch(packed), len);
        for (index, distance) in travellers(step).enumerate() {
            round.copy(scratch(arrived + index * part), scratch(distance * part), part);
        }
    } else {
        let up = (ranks - rank) * part;
        round.copy(source(rank * part), scratch(0), up);
        round.copy(source(0), scratch(up), rank * part);
    }
    if number < at.steps() {
        for (index, distance) in travellers(number).enumerate() {
            round.copy(scratch(distance * part), scratch(packed + index * part), part);
        }
    } else {
        for distance in 0..ranks {
            round.copy(scratch(distance * part), target(at.below(distance) * part), part);
        }
    }
}
