//! The collectives.

use std::{ffi::c_int, ops::Range};

use nccl_sys::ncclWaitSignalDesc_t;

use super::buffers::Buffers;
use super::call::{Call, Immediate, Launch};
use super::kind::{Kind, PUT, WAIT_SIGNAL};
use super::reduction::Reduction;
use crate::nccl::communicator::Communicator;
use crate::nccl::error::Error;
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut, Memory, Signal, Window};

/// The collectives: of a [`Communicator`], and of a [`Call`] that goes into a [`group`](super::group()) or a
/// [`Graph`](crate::nccl::Graph), or has a [`CallConfig`](super::CallConfig). Bring it into scope to call them.
///
/// Each returns when the operation is queued on the communicator's stream; the host does not wait for it. A buffer of another
/// stream is used after the work that is queued there, and work queued there later comes after the operation. All ranks call the
/// same collectives in the same order with the same type, operator, root and lengths.
///
/// # Errors
/// Every method returns these before anything is queued:
/// - [`Error::Length`] for buffers with other lengths than the method says; [`Error::Argument`] for a root without the buffer
///   that only the root needs; [`Error::Rank`] for a root or peer that there is not; [`Error::WrongDevice`];
///   [`Error::WrongCommunicator`] for another communicator's operator; [`Error::TooOld`] for 8-bit floating-point numbers before
///   NCCL 2.24.
/// - [`Error::Stream`] for a buffer of a per-thread default stream, and while a stream of these is being captured into a CUDA
///   graph.
/// - [`Error::Misaligned`] for all_reduce, all_gather and reduce_scatter in symmetric windows before NCCL 2.30, where the buffer
///   or a rank's part begins at no multiple of 4 bytes.
/// - [`Error::Cuda`] when cudarc has noted an error in the context, which unorders its events: the call did nothing, or its work
///   is done.
/// - [`Error::NotOwned`] in a graph for a buffer without an owner.
/// - [`Error::InsideGroup`] inside a [`group`](super::group()): use [`Group::on`](super::Group::on).
/// - [`Error::Nccl`], [`Error::Aborted`], [`Error::Unusable`], [`Error::Deadline`] when NCCL could not queue it.
pub trait Collectives<'b>: Sized {
    /// The way to NCCL.
    type Launch: Launch<'b>;

    /// The call that these methods complete, for code that is the same for calls at once, in a group and in a graph: it is
    /// generic in the [`Launch`].
    fn call(self) -> Call<'b, Self::Launch>;

    /// Element `i` of `receive` becomes the reduction of element `i` of all ranks' `send`, which has the same length
    /// (`ncclAllReduce`).
    #[inline]
    fn all_reduce<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.out_of_place(Kind::AllReduce(op), Some(send), Some(receive), operator)
    }

    /// [`all_reduce`](Self::all_reduce) with the result in the place of the input.
    #[inline]
    fn all_reduce_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.in_place(Kind::AllReduce(op), buffer, operator)
    }

    /// Element `i` of the root's `receive` becomes the reduction of element `i` of all ranks' `send` (`ncclReduce`). Both have
    /// the same length. The other ranks need no `receive`, and theirs is left alone.
    ///
    /// ```no_run
    /// # use collectives::{ReduceOp, nccl::{Collectives, Communicator, Error}};
    /// # use cudarc::driver::CudaSlice;
    /// # fn example(communicator: &Communicator, send: &CudaSlice<f32>, sum: &mut CudaSlice<f32>) -> Result<(), Error> {
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
        call.out_of_place(Kind::Reduce(op, root), Some(send), receive, operator)
    }

    /// [`reduce`](Self::reduce) with the result in the place of the root's input. The other ranks' buffers are only read.
    fn reduce_in_place<B, O>(self, buffer: &'b mut B, op: O, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.in_place(Kind::Reduce(op, root), buffer, operator)
    }

    /// All ranks' `receive` become the root's `send`, which has the same length (`ncclBroadcast`). The other ranks need no
    /// `send`.
    fn broadcast<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(Kind::Broadcast(root), send, Some(receive), None)
    }

    /// All ranks' buffers become the root's (`ncclBroadcast`).
    fn broadcast_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().in_place(Kind::Broadcast(root), buffer, None)
    }

    /// `receive` becomes all ranks' `send`, in rank order (`ncclAllGather`): rank `r`'s part begins at element `r * send.len()`,
    /// and `receive.len() == size * send.len()`.
    fn all_gather<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(Kind::AllGather, Some(send), Some(receive), None)
    }

    /// [`all_gather`](Self::all_gather) with this rank's input at its own place in the buffer, whose length is a multiple of
    /// `size`: from element `rank * (buffer.len() / size)` on.
    fn all_gather_in_place<B: DeviceBufferMut + ?Sized>(self, buffer: &'b mut B) -> Result<(), Error> {
        self.call().in_place(Kind::AllGather, buffer, None)
    }

    /// The reduction of all ranks' `send` is cut into one part for each rank, of `receive.len()` elements, and `receive` becomes
    /// this rank's (`ncclReduceScatter`): `send.len() == size * receive.len()`.
    fn reduce_scatter<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.out_of_place(Kind::ReduceScatter(op), Some(send), Some(receive), operator)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with the result at this rank's own place in the input, whose length is a multiple
    /// of `size`: from element `rank * (buffer.len() / size)` on. The rest of the buffer then holds anything.
    fn reduce_scatter_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        let call = self.call();
        let (op, operator) = op.resolve(call.communicator);
        call.in_place(Kind::ReduceScatter(op), buffer, operator)
    }

    /// Part `r` of `send` goes to rank `r`, and part `r` of `receive` comes from it (`ncclAlltoAll`, or sends and receives in a
    /// group before NCCL 2.28). There is one part of the same length for each rank: both have the same length, a multiple of
    /// `size`.
    fn all_to_all<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(Kind::AllToAll, Some(send), Some(receive), None)
    }

    /// [`all_to_all`](Self::all_to_all) with parts of any lengths at any places (sends and receives in a group): the elements
    /// `send_parts[r]` go to rank `r`, and what rank `r` sends here arrives in `receive_parts[r]`, which has the same length.
    /// Where a part is empty, nothing is sent or received.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Collectives, Communicator, Error};
    /// # use cudarc::driver::CudaSlice;
    /// # fn example(communicator: &Communicator, send: &CudaSlice<f32>, receive: &mut CudaSlice<f32>) -> Result<(), Error> {
    /// // Of two ranks, rank 0 keeps 10 elements and sends 30; rank 1 sends 5 and keeps 50.
    /// let (to, from) = if communicator.rank() == 0 { ([0..10, 10..40], [0..10, 10..15]) } else { ([0..5, 5..55], [0..30, 30..80]) };
    /// communicator.all_to_all_v(send, &to, receive, &from)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] unless there is one part for each rank, within its buffer, and no two receive parts overlap.
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
        let exchanges = call.exchanges((send_parts, send.len()), (receive_parts, receive.len()))?;
        call.submit(Kind::AllToAllV(exchanges), 0, Buffers::new(Some(send), Some(receive), None))
    }

    /// The root's `receive` becomes all ranks' `send`, in rank order (`ncclGather`, or sends and receives in a group before NCCL
    /// 2.28): `receive.len() == size * send.len()`. The other ranks need no `receive`, and theirs is not written; but where the
    /// root's is in a symmetric window, all pass theirs, of the same length and at the same place of the window: NCCL hangs
    /// otherwise where it uses the GPUs' copy engines ([`Config::cta_policy`](crate::nccl::Config::cta_policy)).
    fn gather<S, R>(self, send: &'b S, receive: Option<&'b mut R>, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(Kind::Gather(root), Some(send), receive, None)
    }

    /// [`gather`](Self::gather) with every rank's input at its own place in a buffer of the root's length, a multiple of `size`:
    /// from element `rank * (buffer.len() / size)` on. Only the root's buffer is written.
    fn gather_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().in_place(Kind::Gather(root), buffer, None)
    }

    /// The root's `send` is cut into one part for each rank, of `receive.len()` elements, and `receive` becomes this rank's
    /// (`ncclScatter`, or sends and receives in a group before NCCL 2.28): `send.len() == size * receive.len()`. The other ranks
    /// need no `send`.
    fn scatter<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().out_of_place(Kind::Scatter(root), send, Some(receive), None)
    }

    /// [`scatter`](Self::scatter) with every rank's result at its own place in a buffer of the root's length, a multiple of
    /// `size`: from element `rank * (buffer.len() / size)` on. Nothing else is written.
    fn scatter_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().in_place(Kind::Scatter(root), buffer, None)
    }

    /// Sends the buffer to another rank, which receives it with [`recv`](Self::recv) of the same type and length (`ncclSend`).
    /// The stream waits for the other side: to send and receive at the same time, use a [`group`](super::group()).
    fn send<S: DeviceBuffer + ?Sized>(self, buffer: &'b S, peer: usize) -> Result<(), Error> {
        self.call().submit(Kind::Send(peer), buffer.len(), Buffers::send_only(Some(buffer)))
    }

    /// Receives what another rank sends with [`send`](Self::send) (`ncclRecv`).
    fn recv<R: DeviceBufferMut + ?Sized>(self, buffer: &'b mut R, peer: usize) -> Result<(), Error> {
        self.call().submit(Kind::Recv(peer), buffer.len(), Buffers::in_place(buffer, None))
    }

    /// Writes `source`, which lies in a window itself, into the window of the signal's peer, from element `offset` on, and raises
    /// the signal there when it has arrived (`ncclPutSignal`, NCCL 2.29). The peer waits for it with
    /// [`wait_signals`](Self::wait_signals).
    ///
    /// # Safety
    /// Until the data has arrived, the peer keeps its window and the communicator, and uses that part of the window for nothing
    /// else: this rank cannot see to that.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::View`] when it would reach past the end of a window of this one's
    /// size; [`Error::WrongCommunicator`] for another communicator's window.
    unsafe fn put<S: DeviceBuffer + ?Sized>(
        self,
        source: &'b S,
        window: &'b Window,
        offset: usize,
        signal: Signal,
    ) -> Result<(), Error> {
        let call = self.call();
        let (window, offset) = window.target::<S::Element>(PUT, call.communicator, offset, source.len())?;
        call.submit(Kind::Put(signal, window, offset), source.len(), Buffers::send_only(Some(source)))
    }

    /// Raises a signal at another rank, without data (`ncclSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29.
    fn signal(self, signal: Signal) -> Result<(), Error> {
        self.call().submit(Kind::Signal(signal), 0, Buffers::send_only(None::<&Memory>))
    }

    /// Makes the stream wait until each of these signals has been raised so many times (`ncclWaitSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::Argument`].
    fn wait_signals(self, signals: &[(Signal, usize)]) -> Result<(), Error> {
        let call = self.call();
        let wrong = |count| {
            let reason = format!("{count} signals to wait for; between 1 and 2147483647 are possible");
            Error::argument(WAIT_SIGNAL, reason)
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
        call.submit(Kind::WaitSignals(descriptions), 0, Buffers::send_only(None::<&Memory>))
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
