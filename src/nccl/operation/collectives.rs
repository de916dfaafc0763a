//! The collectives.

use std::{ffi::c_int, ops::Range};

use nccl_sys::ncclWaitSignalDesc_t;

use super::buffers::CallBuffers;
use super::call::{Call, Immediate, Launch};
use super::kind::{OperationKind, PUT, PeerWindow, WAIT_SIGNAL};
use super::reduction::Reduction;
use crate::nccl::communicator::Communicator;
use crate::nccl::error::Error;
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut, Memory, Signal, Window};

/// The collectives of a [`Communicator`], of a [`Preparation`](super::Preparation), and of a [`Call`] of a
/// [`group`](super::group()), a [`Graph`](crate::nccl::Graph) or with a [`CallConfig`](super::CallConfig).
/// Import the trait to call them.
///
/// Each method returns once the operation is queued on the communicator's stream, without waiting for it. If
/// a buffer belongs to another stream, the operation is ordered after earlier work queued there, and before
/// later work queued there. All ranks call the same collectives in the same order with the same type,
/// operator, root and lengths.
///
/// # Errors
/// All methods return these errors before anything is queued:
/// - [`Error::Length`] for buffers of other lengths than documented; [`Error::Argument`] for a root without
///   the buffer needed only by the root; [`Error::Rank`] for an invalid root or peer; [`Error::WrongDevice`];
///   [`Error::WrongCommunicator`] for another communicator's operator; [`Error::TooOld`] for 8-bit
///   floating-point numbers before NCCL 2.24.
/// - [`Error::Stream`] for a buffer of a per-thread default stream, and while one of the streams is being
///   captured into a CUDA graph.
/// - [`Error::Misaligned`] for all_reduce, all_gather and reduce_scatter in symmetric windows before NCCL
///   2.30, if the offset of the buffer or rank's part that is read is not a multiple of 4 bytes.
/// - [`Error::Cuda`] if cudarc has recorded an error in the context (its events no longer order work then):
///   the call had no effect, or its work is done.
/// - [`Error::NotOwned`] in a graph, and for prepared operations, for a buffer without an owner.
/// - [`Error::InsideGroup`] inside a [`group`](super::group()): use [`Group::on`](super::Group::on).
/// - [`Error::Nccl`], [`Error::Aborted`], [`Error::Unusable`], [`Error::Deadline`] if NCCL could not queue
///   it.
pub trait Collectives<'b>: Sized {
    /// Destination of the calls.
    type Launch: Launch<'b>;

    /// Returns the call, to be completed by these methods. Code generic over [`Launch`] works for immediate
    /// calls, groups, prepared operations and graphs.
    fn call(self) -> Call<'b, Self::Launch>;

    /// Sets element `i` of `receive` to the reduction of element `i` of all ranks' `send` (`ncclAllReduce`).
    /// Both have the same length.
    #[inline]
    fn all_reduce<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.out_of_place(OperationKind::AllReduce(op), Some(send), Some(receive), operator)
    }

    /// In-place [`all_reduce`](Self::all_reduce).
    #[inline]
    fn all_reduce_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.in_place(OperationKind::AllReduce(op), buffer, operator)
    }

    /// Sets element `i` of the root's `receive` to the reduction of element `i` of all ranks' `send`
    /// (`ncclReduce`). Both have the same length. The other ranks need no `receive`; it is not written.
    ///
    /// ```no_run
    /// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error}};
    /// # use cudarc::driver::CudaSlice;
    /// # fn example(
    /// #     communicator: &Communicator, send: &CudaSlice<f32>, sum: &mut CudaSlice<f32>,
    /// # ) -> Result<(), Error> {
    /// let root = 0;
    /// let receive = (communicator.rank() == root).then_some(sum);
    /// communicator.reduce(send, receive, ReduceOp::Sum, root)?;
    /// # Ok(())
    /// # }
    /// ```
    fn reduce<S, R, O>(self, send: &'b S, receive: Option<&'b mut R>, op: O, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.out_of_place(OperationKind::Reduce(op, root), Some(send), receive, operator)
    }

    /// In-place [`reduce`](Self::reduce). The other ranks' buffers are only read.
    fn reduce_in_place<B, O>(self, buffer: &'b mut B, op: O, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.in_place(OperationKind::Reduce(op, root), buffer, operator)
    }

    /// Copies the root's `send` to all ranks' `receive`, of the same length (`ncclBroadcast`). The other
    /// ranks need no `send`.
    fn broadcast<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(OperationKind::Broadcast(root), send, Some(receive), None)
    }

    /// Copies the root's buffer to the buffers of all ranks (`ncclBroadcast`).
    fn broadcast_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().in_place(OperationKind::Broadcast(root), buffer, None)
    }

    /// Concatenates all ranks' `send` in `receive`, in rank order (`ncclAllGather`): rank `r`'s part begins
    /// at element `r * send.len()`, and `receive.len() == size * send.len()`.
    fn all_gather<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(OperationKind::AllGather, Some(send), Some(receive), None)
    }

    /// In-place [`all_gather`](Self::all_gather): this rank's input is its own part of the buffer, from
    /// element `rank * (buffer.len() / size)` on. The length of the buffer is a multiple of `size`.
    fn all_gather_in_place<B: DeviceBufferMut + ?Sized>(self, buffer: &'b mut B) -> Result<(), Error> {
        self.call().in_place(OperationKind::AllGather, buffer, None)
    }

    /// Reduces all ranks' `send`, splits the result into one part of `receive.len()` elements per rank, and
    /// stores this rank's part in `receive` (`ncclReduceScatter`): `send.len() == size * receive.len()`.
    fn reduce_scatter<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.out_of_place(OperationKind::ReduceScatter(op), Some(send), Some(receive), operator)
    }

    /// In-place [`reduce_scatter`](Self::reduce_scatter): the result is stored in this rank's own part of the
    /// input, from element `rank * (buffer.len() / size)` on. The length of the buffer is a multiple of
    /// `size`. The contents of the other parts are undefined afterwards.
    fn reduce_scatter_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.in_place(OperationKind::ReduceScatter(op), buffer, operator)
    }

    /// Sends part `r` of `send` to rank `r`, and receives part `r` of `receive` from it (`ncclAlltoAll`, or
    /// sends and receives in a group before NCCL 2.28). Each buffer has one part per rank, all of the same
    /// length: both have the same length, a multiple of `size`.
    fn all_to_all<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(OperationKind::AllToAll, Some(send), Some(receive), None)
    }

    /// [`all_to_all`](Self::all_to_all) with parts of any lengths and offsets (sends and receives in a
    /// group): the elements `send_parts[r]` are sent to rank `r`, and the elements from rank `r` are stored
    /// in `receive_parts[r]`, of the same length. Nothing is sent or received for an empty part.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Collectives, Communicator, Error};
    /// # use cudarc::driver::CudaSlice;
    /// # fn example(
    /// #     communicator: &Communicator, send: &CudaSlice<f32>, receive: &mut CudaSlice<f32>,
    /// # ) -> Result<(), Error> {
    /// // Of two ranks, rank 0 keeps 10 elements and sends 30; rank 1 sends 5 and keeps 50.
    /// let (to, from) = match communicator.rank() {
    ///     0 => ([0..10, 10..40], [0..10, 10..15]),
    ///     _ => ([0..5, 5..55], [0..30, 30..80]),
    /// };
    /// communicator.all_to_all_v(send, &to, receive, &from)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] unless there is one part per rank, within its buffer, and receive parts do not
    /// overlap.
    fn all_to_all_v<S, R>(
        self,
        send: &'b S,
        send_parts: &[Range<usize>],
        receive: &'b mut R,
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        let call = self.call();
        let exchanges = call.check_exchanges((send_parts, send.len()), (receive_parts, receive.len()))?;
        call.submit_operation(
            OperationKind::AllToAllV(exchanges),
            0,
            CallBuffers::new(Some(send), Some(receive), None),
        )
    }

    /// Concatenates all ranks' `send` in the root's `receive`, in rank order (`ncclGather`, or sends and
    /// receives in a group before NCCL 2.28): `receive.len() == size * send.len()`. The other ranks need no
    /// `receive`; it is not written. However, if the root's is in a symmetric window, all ranks must pass
    /// theirs, of the same length and at the same offset in the window: otherwise NCCL hangs if it uses the
    /// GPUs' copy engines ([`Config::cta_policy`](crate::nccl::Config::cta_policy)).
    fn gather<S, R>(self, send: &'b S, receive: Option<&'b mut R>, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(OperationKind::Gather(root), Some(send), receive, None)
    }

    /// In-place [`gather`](Self::gather): every rank's input is its own part of a buffer of the root's
    /// length, from element `rank * (buffer.len() / size)` on. The length is a multiple of `size`. Only the
    /// root's buffer is written.
    fn gather_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().in_place(OperationKind::Gather(root), buffer, None)
    }

    /// Splits the root's `send` into one part of `receive.len()` elements per rank, and stores this rank's
    /// part in `receive` (`ncclScatter`, or sends and receives in a group before NCCL 2.28): `send.len() ==
    /// size * receive.len()`. The other ranks need no `send`.
    fn scatter<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(OperationKind::Scatter(root), send, Some(receive), None)
    }

    /// In-place [`scatter`](Self::scatter): every rank's result is stored in its own part of a buffer of the
    /// root's length, from element `rank * (buffer.len() / size)` on. The length is a multiple of `size`.
    /// Nothing else is written.
    fn scatter_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().in_place(OperationKind::Scatter(root), buffer, None)
    }

    /// Sends the buffer to another rank (`ncclSend`). The peer calls [`recv`](Self::recv) with the same type
    /// and length. The stream waits for the other side: to send and receive at the same time, use a
    /// [`group`](super::group()).
    fn send<S: DeviceBuffer + ?Sized>(self, buffer: &'b S, peer: usize) -> Result<(), Error> {
        self.call().submit_operation(
            OperationKind::Send(peer),
            buffer.len(),
            CallBuffers::send_only(Some(buffer)),
        )
    }

    /// Receives the elements that another rank [sends](Self::send) (`ncclRecv`).
    fn recv<R: DeviceBufferMut + ?Sized>(self, buffer: &'b mut R, peer: usize) -> Result<(), Error> {
        self.call().submit_operation(
            OperationKind::Recv(peer),
            buffer.len(),
            CallBuffers::in_place(buffer, None),
        )
    }

    /// Writes `source` into the window of the signal's peer, from element `offset` on, and raises the signal
    /// there once the data has arrived (`ncclPutSignal`, NCCL 2.29). `source` must be in a window. The peer
    /// waits for it with [`wait_signals`](Self::wait_signals).
    ///
    /// # Safety
    /// Until the data has arrived, the peer must keep its window and the communicator, and must not use this
    /// part of the window otherwise. This rank cannot check it. The same holds for each launch of a graph,
    /// and each queueing of a prepared operation.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::View`] if it would reach past the end of a window
    /// of this rank's size; [`Error::WrongCommunicator`] for another communicator's window.
    unsafe fn put<S: DeviceBuffer + ?Sized>(
        self,
        source: &'b S,
        window: &'b Window,
        offset: usize,
        signal: Signal,
    ) -> Result<(), Error> {
        let call = self.call();
        let (window, offset) =
            window.check_put::<S::Element>(PUT, call.communicator, offset, source.len())?;
        call.submit_operation(
            OperationKind::Put(signal, PeerWindow(window), offset),
            source.len(),
            CallBuffers::send_only(Some(source)),
        )
    }

    /// Raises a signal at another rank, without data (`ncclSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29.
    fn signal(self, signal: Signal) -> Result<(), Error> {
        self.call().submit_operation(
            OperationKind::Signal(signal),
            0,
            CallBuffers::send_only(None::<&Memory>),
        )
    }

    /// Makes the stream wait until each of these signals has been raised the given number of times
    /// (`ncclWaitSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::Argument`].
    fn wait_signals(self, signals: &[(Signal, usize)]) -> Result<(), Error> {
        let call = self.call();
        let wrong = |count| {
            let reason = format!("{count} signals to wait for; between 1 and 2147483647 are possible");
            Error::bad_argument(WAIT_SIGNAL, reason)
        };
        if signals.is_empty() {
            return Err(wrong(0));
        }
        let describe = |&(Signal { peer, index, context }, count): &(Signal, usize)| {
            let times = c_int::try_from(count).ok().filter(|&times| times > 0).ok_or_else(|| wrong(count))?;
            call.check_rank(Some(peer))?;
            Ok(ncclWaitSignalDesc_t { opCnt: times, peer: peer as c_int, sigIdx: index, ctx: context })
        };
        let descriptions = signals.iter().map(describe).collect::<Result<_, Error>>()?;
        call.submit_operation(
            OperationKind::WaitSignals(descriptions),
            0,
            CallBuffers::send_only(None::<&Memory>),
        )
    }
}

impl<'b> Collectives<'b> for &'b Communicator {
    type Launch = Immediate;

    #[inline]
    fn call(self) -> Call<'b> {
        Call::new(self, Immediate { captured: false })
    }
}

impl<'b, L: Launch<'b>> Collectives<'b> for Call<'b, L> {
    type Launch = L;

    #[inline]
    fn call(self) -> Self {
        self
    }
}
