//! Collectives over the shared segment, in pieces up to the size of its buffers.
//!
//! Data in the segment is a copy, so a buffer may be overwritten as soon as its piece is written there: in
//! place is the same as out of place. All ranks take part in every operation of the segment, in the same
//! order, if only with an empty piece.

use std::mem;
use std::ptr;

use super::{HostCollectives, RunningOperation};
use crate::fabric::Error;
use crate::fabric::algorithm::Split;
use crate::fabric::algorithm::engine::OperationMemory;
use crate::fabric::reduction::Reduction;
use crate::fabric::selection::Collective;
use crate::fabric::shared_memory::segment::{CAPACITY, ProgressCall, SharedSegment, Waiting};
use crate::fabric::transport::Transport;

/// Maximum bytes of a part for copying all parts together, this rank's own included.
const SHORT_PART: usize = 512;

impl<T: Transport> HostCollectives<T> {
    pub(super) fn barrier_in_shared_memory(&mut self) -> Result<(), Error> {
        self.run_in_shared_memory("barrier", |shared, progress| {
            // SAFETY: no bytes.
            unsafe { shared.write(ptr::null(), 0, progress)? };
            (0..shared.ranks()).try_for_each(|rank| shared.read(rank, progress).map(drop))
        })
    }

    /// Runs a collective (but all_to_all_v) in pieces of at most `segment` bytes.
    ///
    /// # Safety
    /// The contract of [`run_collective`](Self::run_collective); `reduction` fits the elements; none if
    /// nothing is reduced.
    // As `run_collective`, its caller.
    #[inline(always)]
    pub(super) unsafe fn run_on_board(
        &mut self,
        collective: Collective,
        memory: OperationMemory,
        reduction: Option<&Reduction>,
        root: Option<usize>,
        segment: usize,
    ) -> Result<(), Error> {
        let name = collective.name();
        // SAFETY: as promised by the caller.
        unsafe {
            match (collective, reduction) {
                (Collective::AllReduce, Some(reduction)) => {
                    self.all_reduce_in_shared_memory(name, memory, reduction, segment)
                }
                (Collective::ReduceScatter, Some(reduction)) => {
                    self.reduce_scatter_in_shared_memory(name, memory, reduction, segment)
                }
                (_, Some(reduction)) => {
                    let receives = root == Some(self.rank);
                    self.reduce_in_shared_memory(name, memory, reduction, receives, segment)
                }
                (_, None) => self.move_in_shared_memory(collective, memory, root, segment),
            }
        }
    }

    /// Runs a collective without a reduction. The senders write a block, or a part for each rank; the
    /// receivers read the block of one sender, or the blocks of all in rank order.
    ///
    /// # Safety
    /// The contract of [`run_collective`](Self::run_collective).
    unsafe fn move_in_shared_memory(
        &mut self,
        collective: Collective,
        memory: OperationMemory,
        root: Option<usize>,
        segment: usize,
    ) -> Result<(), Error> {
        let OperationMemory { source, source_len, target, target_len } = memory;
        let (own, ranks) = (self.rank, self.ranks);
        let has_parts = matches!(collective, Collective::Scatter | Collective::AllToAll);
        let from_root = matches!(collective, Collective::Broadcast | Collective::Scatter);
        // Without a root, every rank sends and receives like one.
        let root = root.unwrap_or(own);
        let is_root = root == own;
        let block = match collective {
            Collective::Broadcast | Collective::Scatter => target_len,
            Collective::AllToAll => source_len / ranks,
            _ => source_len,
        };
        let sent_stride = if has_parts { block } else { 0 };
        let received_stride = if from_root { 0 } else { block };
        // The ranks to read from.
        let (first, last) = match (from_root, is_root) {
            (true, false) => (root..root + 1, 0..0),
            (false, true) => (own + 1..ranks, 0..own),
            _ => (0..0, 0..0),
        };
        let pieces = message_pieces(block, if has_parts { share_per_rank(segment, ranks) } else { segment });
        self.run_in_shared_memory(collective.name(), |shared, progress| {
            for (start, len) in pieces.part_spans() {
                let message_offset = if has_parts { own * len } else { 0 };
                // SAFETY: pieces lie within their blocks, as promised by the caller, and the pieces of one
                // write fit in a message. Data overwritten in place is in the shared segment by then.
                unsafe {
                    let (source, target) = (source.wrapping_add(start), target.wrapping_add(start));
                    if from_root && !is_root {
                        shared.write(ptr::null(), 0, progress)?;
                    } else if has_parts {
                        write_parts(shared, own, source, block, len, progress)?;
                    } else {
                        shared.write(source, len, progress)?;
                    }
                    if is_root {
                        copy_own(source.add(own * sent_stride), target.add(own * received_stride), len);
                    }
                    for rank in first.clone().chain(last.clone()) {
                        let message = shared.read(rank, progress)?.add(message_offset);
                        target.add(rank * received_stride).copy_from_nonoverlapping(message, len);
                    }
                }
            }
            Ok(())
        })
    }

    /// Reduces all sources in rank order, on ranks with `receives`.
    ///
    /// # Safety
    /// The contract of [`run_collective`](Self::run_collective), with a target on receiving ranks.
    unsafe fn reduce_in_shared_memory(
        &mut self,
        name: &'static str,
        memory: OperationMemory,
        reduction: &Reduction,
        receives: bool,
        segment: usize,
    ) -> Result<(), Error> {
        let OperationMemory { source, source_len, target, .. } = memory;
        let pieces = pieces_of_elements(source_len, reduction, segment);
        self.run_in_shared_memory(name, |shared, progress| {
            for (start, len) in pieces.part_spans() {
                // SAFETY: pieces lie within the source, and fit in a message.
                unsafe { shared.write(source.add(start), len, progress)? };
                if !receives {
                    continue;
                }
                let first = shared.read(0, progress)?;
                // SAFETY: the target is as long as the source.
                let target = unsafe { target.add(start) };
                for rank in 1..shared.ranks() {
                    let message = shared.read(rank, progress)?;
                    let before = if rank == 1 { first } else { target.cast_const() };
                    // SAFETY: messages in the segment are aligned and have this many bytes, unchanged before
                    // the next operation; the target is disjoint from them.
                    unsafe { reduction.combine_elements(target, before, message, len) };
                }
                // SAFETY: the target is borrowed by this operation.
                unsafe { reduction.finish_average(target, len, shared.ranks()) };
            }
            Ok(())
        })
    }

    /// # Safety
    /// The contract of [`run_collective`](Self::run_collective).
    unsafe fn reduce_scatter_in_shared_memory(
        &mut self,
        name: &'static str,
        memory: OperationMemory,
        reduction: &Reduction,
        segment: usize,
    ) -> Result<(), Error> {
        let OperationMemory { source, target, target_len: block, .. } = memory;
        let own = self.rank;
        let pieces = pieces_of_elements(block, reduction, share_per_rank(segment, self.ranks));
        self.run_in_shared_memory(name, |shared, progress| {
            for (start, len) in pieces.part_spans() {
                // SAFETY: pieces lie within their blocks, as promised by the caller, and the pieces of all
                // ranks fit in a message.
                unsafe {
                    let (source, target) = (source.add(start), target.add(start));
                    write_parts(shared, own, source, block, len, progress)?;
                    let window =
                        PartialReduction { target, own: source.add(own * block), offset: own * len, len };
                    window.reduce_part(shared, own, reduction, progress)?;
                }
            }
            Ok(())
        })
    }

    /// Reduces a vector for all ranks. If it fits in one message, and is not to be cut, every rank reduces
    /// it. Otherwise each rank reduces its part of every piece, and publishes it in a separate operation
    /// after the next piece is written.
    ///
    /// # Safety
    /// The contract of [`run_collective`](Self::run_collective).
    unsafe fn all_reduce_in_shared_memory(
        &mut self,
        name: &'static str,
        memory: OperationMemory,
        reduction: &Reduction,
        segment: usize,
    ) -> Result<(), Error> {
        let OperationMemory { source, source_len, target, .. } = memory;
        if source_len <= CAPACITY && segment > CAPACITY {
            // SAFETY: as promised by the caller.
            return unsafe { self.reduce_in_shared_memory(name, memory, reduction, true, segment) };
        }
        let (own, ranks) = (self.rank, self.ranks);
        let pieces = pieces_of_elements(source_len, reduction, segment);
        self.run_in_shared_memory(name, |shared, progress| {
            for piece in 0..=pieces.part_count() {
                if piece < pieces.part_count() {
                    let (start, len) = pieces.part_span(piece);
                    let (place, window_len) = pieces.split_part(piece, ranks).part_span(own);
                    // SAFETY: pieces, and their windows, lie within the buffers, and pieces fit in a message.
                    unsafe {
                        shared.write(source.add(start), len, progress)?;
                        let (target, source) = (target.add(place), source.add(place));
                        let window =
                            PartialReduction { target, own: source, offset: place - start, len: window_len };
                        window.reduce_part(shared, own, reduction, progress)?;
                    }
                }
                if let Some(reduced) = piece.checked_sub(1) {
                    let windows = pieces.split_part(reduced, ranks);
                    let (place, len) = windows.part_span(own);
                    // SAFETY: as above; of the piece before, all sources are in the shared segment.
                    unsafe {
                        shared.write(target.add(place), len, progress)?;
                        for rank in other_ranks(own, ranks) {
                            let (place, len) = windows.part_span(rank);
                            target.add(place).copy_from_nonoverlapping(shared.read(rank, progress)?, len);
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Runs operations in the segment; the transport makes progress and checks the other ranks meanwhile.
    fn run_in_shared_memory(
        &mut self,
        name: &'static str,
        operation: impl FnOnce(&mut SharedSegment, ProgressCall<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = self.history;
        self.record_call();
        let (Some(mut transport), Some(shared)) = (self.transport.take(), self.shared.as_mut()) else {
            return Err(Error::Closed { operation: name });
        };
        shared.begin_call(self.call, before);
        let running = RunningOperation(shared);
        let result = operation(&mut *running.0, &mut |waiting| {
            transport.make_progress()?;
            if waiting == Waiting::Sleeping { transport.check_ranks() } else { Ok(()) }
        });
        mem::forget(running);
        self.finish_operation(name, transport, result)
    }
}

/// The part of a piece reduced by this rank.
struct PartialReduction {
    target: *mut u8,
    /// This rank's input: the target, or disjoint from it.
    own: *const u8,
    /// Offset in the other ranks' messages.
    offset: usize,
    len: usize,
}

impl PartialReduction {
    /// Reduces the part over all ranks.
    ///
    /// # Safety
    /// The addresses have `len` bytes each, aligned for the reduction's elements, as is the offset; every
    /// message of the operation contains the range.
    unsafe fn reduce_part(
        self,
        shared: &mut SharedSegment,
        rank: usize,
        reduction: &Reduction,
        progress: ProgressCall<'_>,
    ) -> Result<(), Error> {
        let Self { target, own, offset, len } = self;
        let mut before = own;
        for other in other_ranks(rank, shared.ranks()) {
            let message = shared.read(other, progress)?;
            // SAFETY: messages in the segment are aligned, and they do not change before the next operation;
            // they are apart from this rank's memory.
            unsafe { reduction.combine_elements(target, before, message.add(offset), len) };
            before = target.cast_const();
        }
        // SAFETY: as promised by the caller.
        unsafe { reduction.finish_average(target, len, shared.ranks()) };
        Ok(())
    }
}

/// Writes `len` bytes for each rank, of parts at intervals of `stride` bytes; skips this rank's own unless
/// all are copied together.
///
/// # Safety
/// They can be read, and fit in a message.
unsafe fn write_parts(
    shared: &mut SharedSegment,
    own: usize,
    source: *const u8,
    stride: usize,
    len: usize,
    progress: ProgressCall<'_>,
) -> Result<(), Error> {
    let ranks = shared.ranks();
    let fill = |message: *mut u8| {
        // SAFETY: as promised by the caller.
        unsafe {
            if stride == len && len <= SHORT_PART {
                message.copy_from_nonoverlapping(source, ranks * len);
                return;
            }
            for rank in other_ranks(own, ranks) {
                message.add(rank * len).copy_from_nonoverlapping(source.add(rank * stride), len);
            }
        }
    };
    // SAFETY: as promised by the caller.
    unsafe { shared.write_with(ranks * len, fill, progress) }
}

/// Copies this rank's own part, unless it is in place.
///
/// # Safety
/// Both have `len` bytes, and are the same or disjoint.
pub(super) unsafe fn copy_own(source: *const u8, target: *mut u8, len: usize) {
    if source != target.cast_const() {
        // SAFETY: as promised by the caller.
        unsafe { target.copy_from_nonoverlapping(source, len) };
    }
}

/// The other ranks, from the next one on.
fn other_ranks(own: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (own + 1..ranks).chain(0..own)
}

/// Bytes of a message for each rank.
fn share_per_rank(segment: usize, ranks: usize) -> usize {
    segment.min(CAPACITY) / ranks
}

/// Pieces of at most `segment` bytes that fit in a message.
fn message_pieces(len: usize, segment: usize) -> Split {
    Split::into_segments(len, 1, segment.clamp(1, CAPACITY))
}

/// The same, cut between elements.
fn pieces_of_elements(len: usize, reduction: &Reduction, segment: usize) -> Split {
    let element_size = reduction.element_size();
    Split::into_segments(len / element_size, element_size, segment.min(CAPACITY))
}
