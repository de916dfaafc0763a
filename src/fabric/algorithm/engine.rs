//! Runs a schedule: posts the rounds of the segments in flight, and completes them as messages arrive.

use std::ops::Range;
use std::ptr;

use super::{Action, BufferKind, Location, Pipeline, Round, Schedule, Transfer};
use crate::fabric::Error;
use crate::fabric::calls::of_length;
use crate::fabric::reduction::Reduction;
use crate::fabric::transport::{MessageRequest, Transport};

/// The caller's buffers of one operation.
#[derive(Clone, Copy)]
pub(crate) struct OperationMemory {
    pub(crate) source: *const u8,
    pub(crate) source_len: usize,
    pub(crate) target: *mut u8,
    pub(crate) target_len: usize,
}

impl OperationMemory {
    /// Two buffers.
    pub(crate) fn out_of_place<E>(source: &[E], target: &mut [E]) -> Self {
        Self {
            source: source.as_ptr().cast(),
            source_len: size_of_val(source),
            target: target.as_mut_ptr().cast(),
            target_len: size_of_val(target),
        }
    }

    /// True when both buffers begin at one address: they are one, or empty.
    pub(crate) fn is_in_place(&self) -> bool {
        self.source == self.target.cast_const()
    }

    /// Two ranges of the elements of one buffer. Both must lie within it.
    pub(crate) fn in_place<E>(data: &mut [E], source: Range<usize>, target: Range<usize>) -> Self {
        debug_assert!(source.end <= data.len() && target.end <= data.len());
        // Both of one pointer: neither invalidates the other.
        let start = data.as_mut_ptr();
        Self {
            source: start.wrapping_add(source.start).cast_const().cast(),
            source_len: source.len() * size_of::<E>(),
            target: start.wrapping_add(target.start).cast(),
            target_len: target.len() * size_of::<E>(),
        }
    }
}

/// All the memory of a segment.
#[derive(Clone, Copy)]
struct SlotBuffers {
    memory: OperationMemory,
    scratch: *mut u8,
    scratch_len: usize,
}

impl SlotBuffers {
    /// # Safety
    /// `len` bytes from the location on are within the buffer.
    unsafe fn locate_bytes(&self, location: Location, len: usize) -> *mut u8 {
        let (base, available) = match location.buffer {
            BufferKind::Source => (self.memory.source.cast_mut(), self.memory.source_len),
            BufferKind::Target => (self.memory.target, self.memory.target_len),
            BufferKind::Scratch => (self.scratch, self.scratch_len),
        };
        debug_assert!(location.offset + len <= available, "{location:?} + {len} ends after {available}");
        // SAFETY: within the buffer, as the caller promises.
        unsafe { base.add(location.offset) }
    }
}

/// Signatures of an operation, for the tags of the messages sent and received.
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
    sent: u64,
    received: u64,
}

impl Sequence {
    /// Set in the signatures of messages between two ranks.
    const PAIR: u64 = 1 << 21;

    /// A collective. The signature is the same on every rank.
    pub(crate) fn of_collective(signature: u64) -> Self {
        let signature = signature & !Self::PAIR;
        Self { sent: signature, received: signature }
    }

    /// Messages between two ranks. Each signature is the same on both.
    pub(crate) fn of_pair(sent: u64, received: u64) -> Self {
        Self { sent: sent | Self::PAIR, received: received | Self::PAIR }
    }
}

/// Parameters of an operation, shared by its segments.
pub(crate) struct OperationContext<'a> {
    pub(crate) sequence: Sequence,
    pub(crate) memory: OperationMemory,
    /// For schedules that combine.
    pub(crate) reduction: Option<&'a Reduction>,
}

/// Reused memory of operations: after the first operation of a size and kind, nothing is allocated.
#[derive(Default)]
pub(crate) struct Workspace {
    slots: Vec<SegmentSlot>,
    scratch: Vec<CacheLine>,
}

/// A cache line: the alignment of scratch memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A segment in flight.
#[derive(Default)]
struct SegmentSlot {
    /// The segment; none when no segment is left.
    segment: Option<usize>,
    number: usize,
    round: Round,
    pending: Vec<MessageRequest>,
}

/// Runs `schedule`. After an error requests may be in flight: the transport must be closed before any of the
/// operation's memory or the workspace is touched.
///
/// # Safety
/// The memory is as large as the schedule says and aligned for the element type of the reduction; nothing
/// else uses it until this returns, and, after an error or a panic, until the transport has been closed.
pub(crate) unsafe fn run_schedule<T: Transport, P>(
    transport: &mut T,
    workspace: &mut Workspace,
    schedule: &Schedule<P>,
    operation: &OperationContext<'_>,
) -> Result<(), Error> {
    let Pipeline { segments, in_flight } = schedule.pipeline;
    // Ranks may have different numbers of segments, but not different orders.
    let stagger = in_flight.max(1);
    let in_flight = stagger.min(segments.max(1));
    let lines = schedule.scratch_len.div_ceil(size_of::<CacheLine>());
    if workspace.scratch.len() < lines * in_flight {
        workspace.scratch.resize(lines * in_flight, CacheLine([0; 64]));
    }
    if workspace.slots.len() < in_flight {
        workspace.slots.resize_with(in_flight, SegmentSlot::default);
    }
    let scratch = workspace.scratch.as_mut_ptr();
    let buffers = |index: usize| SlotBuffers {
        memory: operation.memory,
        // SAFETY: the scratch memory has `lines` lines for each slot.
        scratch: unsafe { scratch.add(index * lines) }.cast::<u8>(),
        scratch_len: lines * size_of::<CacheLine>(),
    };
    let slots = &mut workspace.slots[..in_flight];

    let rounds = schedule.rounds;
    let order = schedule.is_ordered.then_some(RoundOrder { rounds, stagger });
    for slot in &mut *slots {
        slot.segment = None;
        slot.pending.clear();
    }
    let mut started = 0;
    let mut ended = 0;
    while ended < segments {
        let mut progressed = false;
        for index in 0..in_flight {
            let waiting = (started < segments).then_some(started);
            if let Some(segment) = slots[index].segment {
                let next = slots[index].number + 1;
                if !slots[index].is_complete(transport)
                    || next < rounds && !may_begin(order, slots, waiting, (segment, next))
                {
                    continue;
                }
                progressed = true;
                let slot = &mut slots[index];
                for action in &slot.round.then {
                    // SAFETY: all messages of the round are complete; otherwise as the caller promises.
                    unsafe { run_action(action, operation, transport.size(), buffers(index)) };
                }
                if next < rounds {
                    slot.number = next;
                    // SAFETY: as the caller promises; the scratch memory is the slot's own.
                    unsafe { slot.post_round(transport, schedule, operation, buffers(index))? };
                    continue;
                }
                slot.segment = None;
                ended += 1;
            }
            if let Some(segment) = waiting
                && may_begin(order, slots, waiting, (segment, 0))
            {
                progressed = true;
                started += 1;
                let slot = &mut slots[index];
                (slot.segment, slot.number) = (Some(segment), 0);
                // SAFETY: as the caller promises; the scratch memory is the slot's own.
                unsafe { slot.post_round(transport, schedule, operation, buffers(index))? };
            }
        }
        if !progressed {
            transport.wait_for_completion()?;
        }
    }
    Ok(())
}

/// Order of the starts of all rounds, the same on all ranks; for ordered schedules.
///
/// A network may delay all messages from one rank to another behind an unexpected one (TCP does if it is
/// long, or if there are many). With the same order of rounds, ranks post receives in the order of the sends,
/// and no message is delayed forever.
#[derive(Clone, Copy)]
struct RoundOrder {
    rounds: usize,
    /// Distance of the rounds of one segment: the plan's segments in flight, the same on every rank.
    stagger: usize,
}

impl RoundOrder {
    /// Staggers the segments, to keep those in flight in different rounds.
    fn order_key(self, (segment, number): (usize, usize)) -> (usize, usize) {
        (segment * self.rounds + number * self.stagger, segment)
    }
}

/// True when all earlier rounds have begun. `waiting` is the first segment that has begun no round.
fn may_begin(
    order: Option<RoundOrder>,
    slots: &[SegmentSlot],
    waiting: Option<usize>,
    entry: (usize, usize),
) -> bool {
    let Some(order) = order else { return true };
    let next = slots.iter().filter_map(|slot| Some((slot.segment?, slot.number + 1)));
    let key = order.order_key(entry);
    next.filter(|(_, number)| *number < order.rounds)
        .chain(waiting.map(|segment| (segment, 0)))
        .all(|other| key <= order.order_key(other))
}

impl SegmentSlot {
    /// Posts the messages of the current round and runs its overlapped action.
    ///
    /// # Safety
    /// Does the same as [`run_schedule`]; the scratch memory is the slot's own.
    unsafe fn post_round<T: Transport, P>(
        &mut self,
        transport: &mut T,
        schedule: &Schedule<P>,
        operation: &OperationContext<'_>,
        buffers: SlotBuffers,
    ) -> Result<(), Error> {
        let Some(segment) = self.segment else { return Ok(()) };
        self.round.clear_all();
        schedule.fill_round(segment, self.number, &mut self.round);
        // A receive does not match a segment of a message of another length. The transport mixes in the
        // segment's own length; the same hash of the whole length would cancel it.
        let tag = |sequence: u64, transfer: &Transfer| {
            message_tag(
                sequence ^ of_length(transfer.whole.wrapping_mul(3)) << 5,
                segment,
                transfer.part,
                self.number,
            )
        };
        for transfer in &self.round.receives {
            // SAFETY: the schedule stays within the buffers and receives into each byte once; nothing touches
            // it before the request is done, or, if this fails, before the caller has closed the transport.
            let request = unsafe {
                let data = buffers.locate_bytes(transfer.location, transfer.len);
                let tag = tag(operation.sequence.received, transfer);
                transport.post_receive(transfer.peer, tag, data, transfer.len)?
            };
            self.pending.push(request);
        }
        for transfer in &self.round.sends {
            // SAFETY: as above; the schedule changes nothing that it sends before the round is complete.
            let request = unsafe {
                let data = buffers.locate_bytes(transfer.location, transfer.len).cast_const();
                let tag = tag(operation.sequence.sent, transfer);
                transport.post_send(transfer.peer, tag, data, transfer.len)?
            };
            self.pending.push(request);
        }
        if let Some(action) = self.round.meanwhile {
            // SAFETY: the schedule promises not to touch memory written by messages of the round.
            unsafe { run_action(&action, operation, transport.size(), buffers) };
        }
        Ok(())
    }

    fn is_complete<T: Transport>(&mut self, transport: &mut T) -> bool {
        self.pending.retain(|&request| !transport.is_done(request));
        self.pending.is_empty()
    }
}

/// Tag of a message between two ranks: 22 bits of the sequence, 14 of the segment, 10 of the message's index
/// within a round and 16 of the round; two bits remain for the transport. Each number wraps around: messages
/// in flight are never that far apart, and messages with one tag match in the order of the sends.
fn message_tag(sequence: u64, segment: usize, part: usize, number: usize) -> u64 {
    let within = (segment as u64 & 0x3fff) << 26 | (part as u64 & 0x3ff) << 16 | number as u64 & 0xffff;
    (sequence & 0x3f_ffff) << 40 | within
}

/// # Safety
/// Requires what [`run_schedule`] does, and no message in flight to memory touched by the action, or from
/// memory it writes.
unsafe fn run_action(action: &Action, operation: &OperationContext<'_>, ranks: usize, buffers: SlotBuffers) {
    match *action {
        Action::Combine { out, a, b, len } => {
            if let Some(reduction) = operation.reduction {
                // SAFETY: the schedule stays within its buffers and meets the requirements of
                // `combine_elements`.
                unsafe {
                    let (out, a, b) = (
                        buffers.locate_bytes(out, len),
                        buffers.locate_bytes(a, len),
                        buffers.locate_bytes(b, len),
                    );
                    reduction.combine_elements(out, a.cast_const(), b.cast_const(), len);
                }
            }
        }
        Action::Finish { data, len } => {
            if let Some(reduction) = operation.reduction {
                // SAFETY: the schedule stays within its buffers and meets the requirements of
                // `finish_average`.
                unsafe { reduction.finish_average(buffers.locate_bytes(data, len), len, ranks) }
            }
        }
        Action::Copy { from, to, len } => {
            // SAFETY: the schedule stays within its buffers.
            unsafe {
                let (from, to) = (buffers.locate_bytes(from, len), buffers.locate_bytes(to, len));
                if from != to {
                    ptr::copy(from.cast_const(), to, len);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sequence, message_tag};

    #[test]
    fn tags_differ_and_leave_two_bits() {
        assert_eq!(message_tag(u64::MAX, usize::MAX, usize::MAX, usize::MAX), u64::MAX >> 2);
        let mut tags: Vec<u64> = Vec::new();
        for sequence in [1, 2, 1 << 21] {
            for segment in [0, 1, 1 << 13] {
                for part in [0, 1, 1 << 9] {
                    tags.extend([0, 1, 1 << 15].map(|number| message_tag(sequence, segment, part, number)));
                }
            }
        }
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 81);
    }

    #[test]
    fn messages_of_a_pair_never_have_a_tag_of_a_collective() {
        for sequence in [0, 1, 1 << 20, 1 << 21, u64::MAX] {
            let pair = Sequence::of_pair(sequence, 5);
            for other in [0, 1, 1 << 20, 1 << 21, u64::MAX] {
                let collective = Sequence::of_collective(other);
                assert_eq!(collective.sent, collective.received);
                for tags in [pair.sent, pair.received] {
                    assert_ne!(message_tag(tags, 0, 0, 0), message_tag(collective.sent, 0, 0, 0));
                }
            }
        }
        let (first, second) = (Sequence::of_pair(1, 2), Sequence::of_pair(2, 1));
        assert_eq!(first.sent, second.received);
        assert_ne!(first.sent, second.sent);
    }
}
