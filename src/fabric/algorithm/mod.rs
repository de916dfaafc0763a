//! Collective algorithms, as schedules of rounds.
//!
//! A message is cut into segments, and each segment goes through the same rounds. In a round a rank posts
//! receives and sends, and when they are complete it combines or copies the received data. The engine keeps
//! several segments in flight, to overlap the combination of one with the transfer of others. A schedule is a
//! function of rank, number of ranks, size, segment and round, so every rank knows its peers' rounds without
//! communication.
//!
//! Most algorithms are from R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective
//! Communication Operations in MPICH" (2005), and from J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D.
//! Weathersby, "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems"
//! (1997).
//!
//! The order of an element's combinations depends only on the number of ranks, the algorithm and the
//! element's position. The result is then copied to all ranks, or every rank combines in the same order: all
//! ranks get the same bits (except for a NaN's payload).

mod all_gather;
mod all_reduce;
pub(crate) mod all_to_all;
pub(crate) mod barrier;
mod broadcast;
pub(crate) mod engine;
pub(crate) mod exchange;
mod gather;
pub(crate) mod hierarchical;
mod position;
mod reduce;
mod reduce_scatter;
mod scatter;
mod spec;
mod split;

pub(crate) use position::RankPosition;
pub(crate) use spec::Spec;
pub(crate) use split::Split;

use crate::fabric::selection::{Algorithm, Collective};

/// A buffer of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferKind {
    /// This rank's input. In place it is part or all of `Target`, or `Target` is part of it.
    Source,
    /// The result.
    Target,
    /// Scratch memory of the segment.
    Scratch,
}

/// A position in a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) buffer: BufferKind,
    pub(crate) offset: usize,
}

pub(crate) const fn source_at(offset: usize) -> Location {
    Location { buffer: BufferKind::Source, offset }
}

pub(crate) const fn target_at(offset: usize) -> Location {
    Location { buffer: BufferKind::Target, offset }
}

pub(crate) const fn scratch_at(offset: usize) -> Location {
    Location { buffer: BufferKind::Scratch, offset }
}

/// A message to or from a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) peer: usize,
    pub(crate) location: Location,
    pub(crate) len: usize,
    /// Index among the round's messages from one rank to another.
    pub(crate) part: usize,
    /// Bytes of the whole message that this segment belongs to, if ranks may disagree on them; otherwise 0.
    pub(crate) whole: usize,
}

/// An operation on a rank's own memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// `out = a op b`. `b` overlaps neither of the others; `a` is `out` or does not overlap it.
    Combine { out: Location, a: Location, b: Location, len: usize },
    /// Completes an average: divides by the number of ranks.
    Finish { data: Location, len: usize },
    /// Copies, unless both locations are the same memory.
    Copy { from: Location, to: Location, len: usize },
}

/// One round of one segment on one rank. Transfers and actions of no bytes are skipped, also on the peer.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) receives: Vec<Transfer>,
    pub(crate) sends: Vec<Transfer>,
    /// Runs while the messages are in flight; touches no memory written by them.
    pub(crate) meanwhile: Option<Action>,
    /// Run when all messages of the round are complete.
    pub(crate) then: Vec<Action>,
}

impl Round {
    fn clear_all(&mut self) {
        self.receives.clear();
        self.sends.clear();
        self.meanwhile = None;
        self.then.clear();
    }

    fn receive_message(&mut self, peer: usize, location: Location, len: usize) {
        self.receive_part(peer, 0, location, len);
    }

    fn send_message(&mut self, peer: usize, location: Location, len: usize) {
        self.send_part(peer, 0, location, len);
    }

    /// Receives one of several messages from a rank, with index `part`.
    fn receive_part(&mut self, peer: usize, part: usize, location: Location, len: usize) {
        if len > 0 {
            self.receives.push(Transfer { peer, location, len, part, whole: 0 });
        }
    }

    /// Receives a segment of a message of `whole` bytes.
    fn receive_segment(&mut self, peer: usize, location: Location, len: usize, whole: usize) {
        if len > 0 {
            self.receives.push(Transfer { peer, location, len, part: 0, whole });
        }
    }

    /// Sends a segment of a message of `whole` bytes.
    fn send_segment(&mut self, peer: usize, location: Location, len: usize, whole: usize) {
        if len > 0 {
            self.sends.push(Transfer { peer, location, len, part: 0, whole });
        }
    }

    /// Sends one of several messages to a rank, with index `part`.
    fn send_part(&mut self, peer: usize, part: usize, location: Location, len: usize) {
        if len > 0 {
            self.sends.push(Transfer { peer, location, len, part, whole: 0 });
        }
    }

    fn copy_after(&mut self, from: Location, to: Location, len: usize) {
        if len > 0 {
            self.then.push(Action::Copy { from, to, len });
        }
    }

    /// Copies while the messages are in flight; at most once in a round.
    fn copy_meanwhile(&mut self, from: Location, to: Location, len: usize) {
        if len > 0 {
            self.meanwhile = Some(Action::Copy { from, to, len });
        }
    }

    fn combine_after(&mut self, out: Location, a: Location, b: Location, len: usize) {
        if len > 0 {
            self.then.push(Action::Combine { out, a, b, len });
        }
    }

    /// Combines `own` with all arrivals, in order; copies it if there are none.
    fn combine_all(
        &mut self,
        out: Location,
        own: Location,
        arrived: impl Iterator<Item = Location>,
        len: usize,
    ) {
        let mut before = own;
        for location in arrived {
            self.combine_after(out, before, location, len);
            before = out;
        }
        if before == own {
            self.copy_after(own, out, len);
        }
    }

    fn finish_after(&mut self, data: Location, len: usize) {
        if len > 0 {
            self.then.push(Action::Finish { data, len });
        }
    }

    /// Sends every other rank its part of the source, receives this rank's part from all of them, and reduces
    /// it to `out`. `part` returns the start and the length of a rank's part in the source, in bytes.
    /// Received parts lie one after the other in scratch memory; `out` may be the place of the first.
    fn reduce_own(&mut self, at: RankPosition, part: impl Fn(usize) -> (usize, usize), out: Location) {
        let (mine, len) = part(at.rank);
        for distance in 1..at.ranks {
            let to = at.rank_above(distance);
            let (start, theirs) = part(to);
            let arrived = scratch_at((distance - 1) * len);
            self.receive_message(at.rank_below(distance), arrived, len);
            self.send_message(to, source_at(start), theirs);
            match distance {
                1 if out == arrived => self.combine_after(out, out, source_at(mine), len),
                1 => self.combine_after(out, source_at(mine), arrived, len),
                _ => self.combine_after(out, out, arrived, len),
            }
        }
        self.finish_after(out, len);
    }

    /// Maps the ranks and locations of another schedule's round, written for some of the ranks and a part of
    /// the buffers.
    fn translate_all(&mut self, rank: impl Fn(usize) -> usize, location: impl Fn(Location) -> Location) {
        for transfer in self.receives.iter_mut().chain(&mut self.sends) {
            transfer.peer = rank(transfer.peer);
            transfer.location = location(transfer.location);
        }
        for action in self.then.iter_mut().chain(&mut self.meanwhile) {
            match action {
                Action::Combine { out, a, b, .. } => {
                    [*out, *a, *b] = [location(*out), location(*a), location(*b)];
                }
                Action::Finish { data, .. } => *data = location(*data),
                Action::Copy { from, to, .. } => [*from, *to] = [location(*from), location(*to)],
            }
        }
    }
}

/// Segments of a message, and their maximum number in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    pub(crate) segments: usize,
    pub(crate) in_flight: usize,
}

impl Pipeline {
    /// An uncut message.
    const WHOLE: Self = Self { segments: 1, in_flight: 1 };
}

/// An algorithm for one operation on one rank, with parameters of type `P`.
pub(crate) struct Schedule<P> {
    parameters: P,
    pipeline: Pipeline,
    /// Rounds of each segment: the same on every rank.
    rounds: usize,
    /// True when all ranks must begin the rounds of all segments in one order: needed if a rank can
    /// receive messages of a later round while it still waits in an earlier one.
    is_ordered: bool,
    /// Bytes of scratch memory per segment, aligned to 64 bytes.
    scratch_len: usize,
    round: RoundFunction<P>,
}

/// Fills an empty round with this rank's messages and actions. Arguments: parameters, number of the segment,
/// number of the round, and the round.
type RoundFunction<P> = fn(&P, usize, usize, &mut Round);

impl<P> Schedule<P> {
    /// # Safety
    /// In every round, the memory received, sent and touched meanwhile must be as [`Round`] requires, lie
    /// within the engine's buffers (`scratch_len` for the scratch memory), and be aligned for the element
    /// type where it is combined; no two receives overlap, and none overlaps a send of the same round.
    /// Segments in flight together touch disjoint memory.
    unsafe fn new(
        parameters: P,
        pipeline: Pipeline,
        rounds: usize,
        scratch_len: usize,
        round: RoundFunction<P>,
    ) -> Self {
        Self { parameters, pipeline, rounds, is_ordered: false, scratch_len, round }
    }

    fn into_ordered(self) -> Self {
        Self { is_ordered: true, ..self }
    }

    /// Fills `round`, empty before, with this rank's messages and actions in round `number` of a segment.
    fn fill_round(&self, segment: usize, number: usize, round: &mut Round) {
        (self.round)(&self.parameters, segment, number, round);
    }
}

/// Returns the schedule of an algorithm without hierarchy, for all collectives except those in
/// [`all_to_all`].
pub(crate) fn build_schedule(collective: Collective, algorithm: Algorithm, spec: Spec) -> Schedule<Spec> {
    match collective {
        Collective::AllReduce => all_reduce::build_schedule(algorithm, spec),
        Collective::ReduceScatter => reduce_scatter::build_schedule(algorithm, spec),
        Collective::Broadcast => broadcast::build_schedule(algorithm, spec),
        Collective::Reduce => reduce::build_schedule(algorithm, spec),
        Collective::Gather => gather::build_schedule(algorithm, spec),
        Collective::Scatter => scatter::build_schedule(algorithm, spec),
        Collective::AllGather => all_gather::build_schedule(algorithm, spec),
        Collective::AllToAll | Collective::AllToAllV => unreachable!("{collective} has schedules of its own"),
    }
}
