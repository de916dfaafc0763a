//! Algorithms for all_to_all, with parts of one length or of any lengths.
//!
//! Costs for `p` ranks and `n` bytes in each rank's buffer, as messages on the critical path and bytes sent
//! by each rank.

use std::ops::Range;

use super::{Pipeline, RankPosition, Round, Schedule, scratch_at, source_at, target_at};
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
    fn part_span(&self, rank: usize) -> (usize, usize) {
        match self {
            Self::Equal(len) => (rank * len, *len),
            Self::Ranges { ranges, element_size } => {
                (ranges[rank].start * element_size, ranges[rank].len() * element_size)
            }
        }
    }

    /// Bytes of the longest part.
    fn longest_bytes(&self) -> usize {
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
pub(crate) struct AllToAllSpec<'a> {
    pub(crate) at: RankPosition,
    /// Parts of the source, by destination.
    pub(crate) sent: Parts<'a>,
    /// Parts of the target, by origin.
    pub(crate) received: Parts<'a>,
    /// Largest segment of a part, in bytes.
    pub(crate) segment: usize,
    /// Largest number of segments in flight.
    pub(crate) in_flight: usize,
}

impl AllToAllSpec<'_> {
    /// Segments of the longest part. Their number may differ between ranks: only the sender and the receiver
    /// of a part need the same segments of it.
    fn part_pipeline(&self) -> Pipeline {
        let longest = self.sent.longest_bytes().max(self.received.longest_bytes());
        Pipeline { segments: longest.div_ceil(self.segment.max(1)).max(1), in_flight: self.in_flight }
    }

    /// Start of a segment of a part, and its bytes.
    fn segment_span(&self, number: usize, (start, len): (usize, usize)) -> (usize, usize) {
        let offset = number.saturating_mul(self.segment.max(1)).min(len);
        (start + offset, self.segment.max(1).min(len - offset))
    }

    fn add_send(&self, to: usize, segment: usize, round: &mut Round) {
        let whole = self.sent.part_span(to);
        let (start, len) = self.segment_span(segment, whole);
        round.send_segment(to, source_at(start), len, whole.1);
    }

    fn add_receive(&self, from: usize, segment: usize, round: &mut Round) {
        let whole = self.received.part_span(from);
        let (start, len) = self.segment_span(segment, whole);
        round.receive_segment(from, target_at(start), len, whole.1);
    }

    /// Copies a segment of this rank's part for itself.
    fn copy_own_segment(&self, segment: usize, round: &mut Round) {
        let (from, len) = self.segment_span(segment, self.sent.part_span(self.at.rank));
        let (to, _) = self.segment_span(segment, self.received.part_span(self.at.rank));
        round.copy_meanwhile(source_at(from), target_at(to), len);
    }
}

/// Returns the schedule of an algorithm. In place, every algorithm except Bruck's runs as [`in_one_buffer`].
pub(crate) fn build_schedule(
    algorithm: Algorithm,
    message: AllToAllSpec<'_>,
    in_place: bool,
) -> Schedule<AllToAllSpec<'_>> {
    let at = message.at;
    match (algorithm, message.received) {
        // The first round only sorts the parts by distance. SAFETY: sends one part of the scratch memory and
        // receives into another; the target is written after the last message.
        (Algorithm::Bruck, Parts::Equal(part)) => unsafe {
            let scratch_len = (at.ranks + 2 * (at.ranks / 2)) * part;
            Schedule::new(message, Pipeline::WHOLE, 1 + at.tree_steps(), scratch_len, fill_bruck_round)
        },
        // SAFETY: receives into scratch memory, a part for each peer, and copies from there when all is sent.
        // Segments are disjoint: segments of equal parts lie at the same places of all parts.
        (_, Parts::Equal(part)) if in_place => unsafe {
            Schedule::new(
                message,
                message.part_pipeline(),
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
        (Algorithm::Direct, _) => unsafe {
            Schedule::new(message, message.part_pipeline(), 1, 0, fill_direct_round)
        },
        // Pairwise serves any number of ranks.
        // SAFETY: as for `fill_direct_round`.
        (_, Parts::Equal(_)) => unsafe {
            Schedule::new(message, message.part_pipeline(), at.ranks - 1, 0, fill_pairwise_round)
        },
        // Parts of different lengths have different numbers of segments: later segments overtake earlier
        // ones. SAFETY: as for `fill_direct_round`.
        (_, Parts::Ranges { .. }) => unsafe {
            Schedule::new(message, message.part_pipeline(), at.ranks - 1, 0, fill_pairwise_round)
                .into_ordered()
        },
    }
}

/// Every rank sends to every other at once: 1 message to each, n (p-1)/p bytes.
fn fill_direct_round(message: &AllToAllSpec<'_>, segment: usize, _number: usize, round: &mut Round) {
    let at = message.at;
    for distance in 1..at.ranks {
        message.add_receive(at.rank_below(distance), segment, round);
        message.add_send(at.rank_above(distance), segment, round);
    }
    message.copy_own_segment(segment, round);
}

/// Every rank sends to the rank at growing distance above, and receives from the rank below: p-1 messages, n
/// (p-1)/p bytes.
fn fill_pairwise_round(message: &AllToAllSpec<'_>, segment: usize, number: usize, round: &mut Round) {
    let at = message.at;
    message.add_receive(at.rank_below(number + 1), segment, round);
    message.add_send(at.rank_above(number + 1), segment, round);
    if number == 0 {
        message.copy_own_segment(segment, round);
    }
}

/// [`fill_direct_round`] in one buffer: received parts wait in scratch memory until all are sent. Equal parts
/// are cut into segments. Others are not: a received segment could overwrite an unsent part.
fn in_one_buffer(message: &AllToAllSpec<'_>, segment: usize, _number: usize, round: &mut Round) {
    let part = |parts: &Parts<'_>, rank: usize| match parts {
        Parts::Equal(_) => message.segment_span(segment, parts.part_span(rank)),
        Parts::Ranges { .. } => parts.part_span(rank),
    };
    let mut arrived = 0;
    for peer in 0..message.at.ranks {
        let (from, sent) = part(&message.sent, peer);
        let (to, received) = part(&message.received, peer);
        if peer == message.at.rank {
            if from == to {
                continue;
            }
            round.copy_meanwhile(source_at(from), scratch_at(arrived), received);
        } else {
            round.send_message(peer, source_at(from), sent);
            round.receive_message(peer, scratch_at(arrived), received);
        }
        round.copy_after(scratch_at(arrived), target_at(to), received);
        arrived += received;
    }
}

/// Bruck's algorithm, for parts of one length: every part travels the distance to its rank in steps of powers
/// of two, together with others: lg p messages, rounded up, n/2 lg p bytes.
fn fill_bruck_round(message: &AllToAllSpec<'_>, _segment: usize, number: usize, round: &mut Round) {
    let (at, part) = (message.at, message.received.longest_bytes());
    let RankPosition { rank, ranks, .. } = at;
    // Send and receive buffer in scratch memory, behind the parts. At most half of the distances have a given
    // bit.
    let packed = ranks * part;
    let arrived = packed + ranks / 2 * part;
    // Distances with bit `step` set.
    let travellers = |step: usize| (1..ranks).filter(move |distance| distance >> step & 1 == 1);
    if let Some(step) = number.checked_sub(1) {
        let len = travellers(step).count() * part;
        round.receive_message(at.rank_below(1 << step), scratch_at(arrived), len);
        round.send_message(at.rank_above(1 << step), scratch_at(packed), len);
        for (index, distance) in travellers(step).enumerate() {
            round.copy_after(scratch_at(arrived + index * part), scratch_at(distance * part), part);
        }
    } else {
        let up = (ranks - rank) * part;
        round.copy_after(source_at(rank * part), scratch_at(0), up);
        round.copy_after(source_at(0), scratch_at(up), rank * part);
    }
    if number < at.tree_steps() {
        for (index, distance) in travellers(number).enumerate() {
            round.copy_after(scratch_at(distance * part), scratch_at(packed + index * part), part);
        }
    } else {
        for distance in 0..ranks {
            round.copy_after(scratch_at(distance * part), target_at(at.rank_below(distance) * part), part);
        }
    }
}
