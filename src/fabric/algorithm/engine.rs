//! Carries out a schedule: posts the rounds of the segments in flight, and completes them as messages arrive.

use std::ptr;

use super::{Action, Buffer, Place, Round, Schedule};
use crate::fabric::Error;
use crate::fabric::reduction::Reduction;
use crate::fabric::transport::{Request, Transport};

/// How many times progress is asked for in vain before the other ranks are checked.
const POLLS_PER_CHECK: u32 = 1 << 12;

/// The caller's buffers of one operation.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
}

/// What one operation on all its segments has in common.
pub(crate) struct Operation<'a> {
    /// Counts the operations of the communicator: the same on every rank.
    pub(crate) sequence: u64,
    pub(crate) memory: Memory,
    /// For schedules that combine.
    pub(crate) reduction: Option<&'a Reduction>,
    /// Fails when another rank is known to have failed. Called when nothing has arrived for a while.
    pub(crate) check: &'a dyn Fn() -> Result<(), Error>,
}

/// Memory that operations use again and again: after the first of a size and kind, nothing is allocated.
#[derive(Default)]
pub(crate) struct Workspace {
    slots: Vec<Slot>,
    scratch: Vec<Line>,
}

/// A cache line, which is also the alignment of scratch memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A segment in flight.
#[derive(Default)]
struct Slot {
    /// The segment; none when there is none left.
    segment: Option<usize>,
    number: usize,
    round: Round,
    pending: Vec<Request>,
}

/// Carries out `schedule`. After an error requests may be in flight: the transport must be closed before any of the
/// operation's memory or the workspace is touched.
///
/// # Safety
/// The memory is as large as the schedule says and aligned for the element type of the reduction; nothing else
/// uses it until this returns, and, after an error or a panic, until the transport has been closed.
pub(crate) unsafe fn run<T: Transport, S: Schedule>(
    transport: &mut T,
    workspace: &mut Workspace,
    schedule: &S,
    operation: &Operation<'_>,
) -> Result<(), Error> {
    let segments = schedule.segments();
    let in_flight = schedule.in_flight().clamp(1, segments.max(1));
    let lines = schedule.scratch_len().div_ceil(size_of::<Line>());
    if workspace.scratch.len() < lines * in_flight {
        workspace.scratch.resize(lines * in_flight, Line([0; 64]));
    }
    if workspace.slots.len() < in_flight {
        workspace.slots.resize_with(in_flight, Slot::default);
    }
    let scratch = workspace.scratch.as_mut_ptr();
    let slots = &mut workspace.slots[..in_flight];

    let mut started = 0;
    let mut running = 0;
    for (index, slot) in slots.iter_mut().enumerate() {
        slot.segment = None;
        slot.pending.clear();
        // SAFETY: the scratch memory has `lines` lines for each slot.
        let scratch = unsafe { scratch.add(index * lines) }.cast::<u8>();
        if started < segments {
            slot.begin(started);
            started += 1;
            // SAFETY: as the caller promises; the scratch memory is the slot's own.
            unsafe { slot.post(transport, schedule, operation, scratch)? };
            running += 1;
        }
    }

    let mut idle: u32 = 0;
    while running > 0 {
        let mut moved = false;
        for (index, slot) in slots.iter_mut().enumerate() {
            if slot.segment.is_none() || !slot.is_complete(transport) {
                continue;
            }
            moved = true;
            // SAFETY: the scratch memory has `lines` lines for each slot.
            let scratch = unsafe { scratch.add(index * lines) }.cast::<u8>();
            // SAFETY: all messages of the round are complete; otherwise as the caller promises.
            unsafe { slot.act(operation, transport.size(), scratch) };
            slot.number += 1;
            if slot.number == schedule.rounds() {
                if started == segments {
                    slot.segment = None;
                    running -= 1;
                    continue;
                }
                slot.begin(started);
                started += 1;
            }
            // SAFETY: as the caller promises; the scratch memory is the slot's own.
            unsafe { slot.post(transport, schedule, operation, scratch)? };
        }
        if moved {
            idle = 0;
        } else {
            transport.progress()?;
            idle += 1;
            if idle == POLLS_PER_CHECK {
                idle = 0;
                (operation.check)()?;
            }
        }
    }
    Ok(())
}

impl Slot {
    fn begin(&mut self, segment: usize) {
        self.segment = Some(segment);
        self.number = 0;
    }

    /// Posts the messages of the current round and does what is to be done meanwhile.
    ///
    /// # Safety
    /// As [`run`]; `scratch` is the slot's own.
    unsafe fn post<T: Transport, S: Schedule>(
        &mut self,
        transport: &mut T,
        schedule: &S,
        operation: &Operation<'_>,
        scratch: *mut u8,
    ) -> Result<(), Error> {
        let Some(segment) = self.segment else { return Ok(()) };
        self.round.clear();
        schedule.round(segment, self.number, &mut self.round);
        let tag = tag(operation.sequence, segment, self.number);
        for transfer in &self.round.receives {
            // SAFETY: the schedule stays within the buffers and receives into each byte once; nothing touches it
            // before the request is done, or, if this fails, before the caller has closed the transport.
            let request = unsafe {
                let data = locate_mut(operation.memory, scratch, transfer.place);
                transport.post_receive(transfer.peer, tag, data, transfer.len)?
            };
            self.pending.push(request);
        }
        for transfer in &self.round.sends {
            // SAFETY: as above; the schedule changes nothing that it sends before the round is complete.
            let request = unsafe {
                let data = locate(operation.memory, scratch, transfer.place);
                transport.post_send(transfer.peer, tag, data, transfer.len)?
            };
            self.pending.push(request);
        }
        if let Some(action) = self.round.meanwhile {
            // SAFETY: the schedule promises that it touches nothing that messages of the round write.
            unsafe { perform(&action, operation, transport.size(), scratch) };
        }
        Ok(())
    }

    fn is_complete<T: Transport>(&mut self, transport: &mut T) -> bool {
        self.pending.retain(|&request| !transport.is_done(request));
        self.pending.is_empty()
    }

    /// Does what follows the round.
    ///
    /// # Safety
    /// As [`run`]; the messages of the round are complete; `scratch` is the slot's own.
    unsafe fn act(&self, operation: &Operation<'_>, ranks: usize, scratch: *mut u8) {
        for action in &self.round.then {
            // SAFETY: as promised by the caller.
            unsafe { perform(action, operation, ranks, scratch) };
        }
    }
}

/// Tells apart the messages between two ranks: 24 bits each of sequence and segment, and 16 of the round. Each
/// wraps around; messages in flight are never that far from each other.
fn tag(sequence: u64, segment: usize, number: usize) -> u64 {
    sequence << 40 | (segment as u64 & 0xff_ffff) << 16 | number as u64 & 0xffff
}

/// # Safety
/// As [`run`].
unsafe fn locate_mut(memory: Memory, scratch: *mut u8, place: Place) -> *mut u8 {
    let base = match place.buffer {
        Buffer::Source => memory.source.cast_mut(),
        Buffer::Target => memory.target,
        Buffer::Scratch => scratch,
    };
    // SAFETY: the schedule stays within its buffers.
    unsafe { base.add(place.offset) }
}

/// # Safety
/// As [`run`].
unsafe fn locate(memory: Memory, scratch: *mut u8, place: Place) -> *const u8 {
    // SAFETY: as promised by the caller.
    unsafe { locate_mut(memory, scratch, place) }.cast_const()
}

/// # Safety
/// As [`run`], with nothing in flight that writes what the action touches or reads what it writes.
unsafe fn perform(action: &Action, operation: &Operation<'_>, ranks: usize, scratch: *mut u8) {
    let memory = operation.memory;
    match *action {
        Action::Combine { out, a, b, len } => {
            if let Some(reduction) = operation.reduction {
                // SAFETY: the schedule keeps to what `combine` asks for.
                unsafe {
                    let out = locate_mut(memory, scratch, out);
                    reduction.combine(out, locate(memory, scratch, a), locate(memory, scratch, b), len);
                }
            }
        }
        Action::Finish { data, len } => {
            if let Some(reduction) = operation.reduction {
                // SAFETY: the schedule keeps to what `finish` asks for.
                unsafe { reduction.finish(locate_mut(memory, scratch, data), len, ranks) }
            }
        }
        Action::Copy { from, to, len } => {
            // SAFETY: both places are within their buffers.
            unsafe {
                let (from, to) = (locate(memory, scratch, from), locate_mut(memory, scratch, to));
                if from != to.cast_const() {
                    ptr::copy(from, to, len);
                }
            }
        }
    }
}
