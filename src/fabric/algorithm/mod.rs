//! Collective algorithms, as schedules of rounds.
//!
//! A message is cut into segments, and each segment goes through the same rounds on its own: in a round a rank
//! posts receives and sends, and when they are complete combines or copies what came. The engine keeps several
//! segments in flight, so that one is combined while others are on their way. A schedule says what a rank does in
//! a round; it is a plain function of rank, number of ranks, size, segment and round, so every rank knows what its
//! peers do without being told.
//!
//! Most algorithms are those of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication
//! Operations in MPICH" (2005), and of J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient
//! Algorithms for All-to-All Communications in Multiport Message-Passing Systems" (1997).
//!
//! Every element of a reduction is combined in one order that depends on the number of ranks, the algorithm and
//! the element's position only, and then copied, or combined in the same order on every rank: all ranks get the
//! same bits (a NaN's payload aside).

pub(crate) mod all_gather;
pub(crate) mod all_reduce;
pub(crate) mod all_to_all;
pub(crate) mod barrier;
pub(crate) mod broadcast;
pub(crate) mod engine;
pub(crate) mod exchange;
pub(crate) mod gather;
pub(crate) mod hierarchical;
mod position;
pub(crate) mod reduce;
pub(crate) mod reduce_scatter;
pub(crate) mod scatter;
mod spec;
mod split;

pub(crate) use position::{Position, Tree};
pub(crate) use spec::Spec;
pub(crate) use split::Split;

/// One of the buffers of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// What this rank contributes. In place it is a part of, or all of, `Target`, or `Target` is a part of it.
    Source,
    /// The result.
    Target,
    /// The segment's own scratch memory.
    Scratch,
}

/// A position in a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) buffer: Buffer,
    pub(crate) offset: usize,
}

pub(crate) const fn source(offset: usize) -> Location {
    Location { buffer: Buffer::Source, offset }
}

pub(crate) const fn target(offset: usize) -> Location {
    Location { buffer: Buffer::Target, offset }
}

pub(crate) const fn scratch(offset: usize) -> Location {
    Location { buffer: Buffer::Scratch, offset }
}

/// A message to or from a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) peer: usize,
    pub(crate) location: Location,
    pub(crate) len: usize,
    /// Which of the round's messages from one rank to another it is.
    pub(crate) part: usize,
}

/// What a rank does with its own memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// `out = a op b`. `b` overlaps neither of the others; `a` is `out` or does not overlap it.
    Combine { out: Location, a: Location, b: Location, len: usize },
    /// Ends an average: divides by the number of ranks.
    Finish { data: Location, len: usize },
    /// Copies; nothing when both places are the same memory.
    Copy { from: Location, to: Location, len: usize },
}

/// One round of one segment on one rank. Transfers and actions of no bytes are left out on both sides.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) receives: Vec<Transfer>,
    pub(crate) sends: Vec<Transfer>,
    /// Done while the messages are on their way; touches nothing that they write.
    pub(crate) meanwhile: Option<Action>,
    /// Done when all messages have arrived and all that were sent may be overwritten.
    pub(crate) then: Vec<Action>,
}

impl Round {
    fn clear(&mut self) {
        self.receives.clear();
        self.sends.clear();
        self.meanwhile = None;
        self.then.clear();
    }

    fn receive(&mut self, peer: usize, location: Location, len: usize) {
        self.receive_part(peer, 0, location, len);
    }

    fn send(&mut self, peer: usize, location: Location, len: usize) {
        self.send_part(peer, 0, location, len);
    }

    /// For several messages from one rank: `part` tells them apart.
    fn receive_part(&mut self, peer: usize, part: usize, location: Location, len: usize) {
        if len > 0 {
            self.receives.push(Transfer { peer, location, len, part });
        }
    }

    /// For several messages to one rank.
    fn send_part(&mut self, peer: usize, part: usize, location: Location, len: usize) {
        if len > 0 {
            self.sends.push(Transfer { peer, location, len, part });
        }
    }

    fn copy(&mut self, from: Location, to: Location, len: usize) {
        if len > 0 {
            self.then.push(Action::Copy { from, to, len });
        }
    }

    /// Copies while the messages are on their way: once in a round.
    fn copy_meanwhile(&mut self, from: Location, to: Location, len: usize) {
        if len > 0 {
            self.meanwhile = Some(Action::Copy { from, to, len });
        }
    }

    fn combine(&mut self, out: Location, a: Location, b: Location, len: usize) {
        if len > 0 {
            self.then.push(Action::Combine { out, a, b, len });
        }
    }

    fn finish(&mut self, data: Location, len: usize) {
        if len > 0 {
            self.then.push(Action::Finish { data, len });
        }
    }

    /// Turns a round that another schedule has written for a few ranks and a part of the buffers into one for this
    /// schedule's.
    fn translate(&mut self, rank: impl Fn(usize) -> usize, location: impl Fn(Location) -> Location) {
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

/// Segments of a message, and how many of them may be in flight together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    pub(crate) segments: usize,
    pub(crate) in_flight: usize,
}

impl Pipeline {
    /// A message that is not cut.
    const WHOLE: Self = Self { segments: 1, in_flight: 1 };
}

/// An algorithm for one operation on one rank.
///
/// # Safety
/// In every round, what is received, what is sent and what is touched meanwhile must be as [`Round`] says, lie
/// within the buffers that the engine is given (`scratch_len` for the scratch memory), and be aligned for the
/// element type where it is combined; no two receives overlap, and none overlaps a send of the same round.
/// Segments in flight together touch disjoint memory.
pub(crate) unsafe trait Schedule {
    /// How the message is cut into segments; as a whole, unless an algorithm says otherwise.
    fn pipeline(&self) -> Pipeline {
        Pipeline::WHOLE
    }

    /// How many rounds each segment goes through: the same on every rank.
    fn rounds(&self) -> usize {
        1
    }

    /// Whether all ranks must begin the rounds of all segments in one order: where a rank waits for some ranks in a round
    /// and others may be rounds ahead meanwhile, and send it what it has not asked for.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Bytes of scratch memory that a segment needs, aligned to 64 bytes.
    fn scratch_len(&self) -> usize {
        0
    }

    /// Writes what this rank does in a round of a segment into `round`, which is empty.
    fn round(&self, segment: usize, number: usize, round: &mut Round);
}
