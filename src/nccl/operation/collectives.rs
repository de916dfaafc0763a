//! The collectives.

use std::ffi::c_int;
use std::ops::Range;

use nccl_sys::ncclWaitSignalDesc_t;

use super::call::{Call, check_disjoint, expect};
use super::reduction::Reduction;
use super::submit::{IN_PLACE, Immediate, Launch, RECEIVE, SEND};
use super::{Exchange, Handle, Kind};
use crate::nccl::communicator::Communicator;
use crate::nccl::error::Error;
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut, MemoryView, Signal, Window};

/// The collectives: of a [`Communicator`], and of a [`Call`] that goes into a [`group`](super::group()) or a
/// [`Graph`](crate::nccl::Graph), or has a [`CallConfig`](super::CallConfig). Bring it into scope to call them.
///
/// Each returns when the operation is queued on the communicator's stream; the host does not wait for it. A buffer of
/// another stream is used after the work that is queued there, and work queued there later comes after the operation.
/// All ranks call the same collectives in the same order with the same type, operator, root and lengths.
///
/// # Errors
/// Of all of them, before anything is queued:
/// - [`Error::Length`]; [`Error::WrongDevice`]; [`Error::Rank`] for a root or peer that there is not;
///   [`Error::TooOld`] for 8-bit floating-point numbers before NCCL 2.24.
/// - [`Error::Stream`] for a buffer of a per-thread default stream, and while a stream of these is being captured into a
///   CUDA graph.
/// - [`Error::Misaligned`] for all_reduce, all_gather and reduce_scatter in symmetric windows before NCCL 2.30, where
///   the buffer or a rank's part begins at no multiple of 4 bytes.
/// - [`Error::Cuda`] when cudarc has noted an error in the context, which unorders its events: the call did nothing, or its work is
///   done.
/// - [`Error::NotOwned`] in a graph for a buffer without an owner.
/// - [`Error::InsideGroup`] inside a [`group`](super::group()): use [`Group::on`](super::Group::on).
/// - [`Error::Nccl`], [`Error::Aborted`], [`Error::Unusable`], [`Error::Deadline`] when NCCL could not queue it.
pub trait Collectives<'b>: Sized {
    /// The way to NCCL.
    type Launch: Launch<'b>;

    /// The call that these methods complete, for code that is the same for calls at once, in a group and in a graph: it is
    /// generic in the [`Launch`].
    fn call(self) -> Call<'b, Self::Launch>;

    /// Element `i` of `receive` becomes the reduction of element `i` of all ranks' `send` (`ncclAllReduce`).
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the same length; [`Error::WrongCommunicator`] for another communicator's
    /// operator.
    #[inline]
    fn all_reduce<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        const NAME: &str = "ncclAllReduce";
        let call = self.call();
        expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        let op = op.resolve(NAME, call.communicator)?;
        let operation = call.operation::<S::Element>(NAME, Kind::AllReduce(op.op), send.len())?;
        call.submit(operation, Some(send), Some(receive), op.scalar)
    }

    /// As [`all_reduce`](Self::all_reduce), with the result in the place of the input.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[inline]
    fn all_reduce_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        const NAME: &str = "ncclAllReduce";
        let call = self.call();
        let op = op.resolve(NAME, call.communicator)?;
        let operation = call.operation::<B::Element>(NAME, Kind::AllReduce(op.op), buffer.len())?;
        call.submit(operation, None::<&B>, Some(buffer), op.scalar)
    }

    /// Element `i` of the root's `receive` becomes the reduction of element `i` of all ranks' `send` (`ncclReduce`).
    /// The other ranks need no `receive`, and theirs is left alone.
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
    ///
    /// # Errors
    /// [`Error::MissingBuffer`] for a root without `receive`; otherwise as [`all_reduce`](Self::all_reduce).
    fn reduce<S, R, O>(self, send: &'b S, receive: Option<&'b mut R>, op: O, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        const NAME: &str = "ncclReduce";
        let call = self.call();
        let raw_root = call.rank(root)?;
        let receive = call.at_root(NAME, RECEIVE, root, receive)?;
        if let Some(receive) = &receive {
            expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        }
        let op = op.resolve(NAME, call.communicator)?;
        let operation = call.operation::<S::Element>(NAME, Kind::Reduce(op.op, raw_root), send.len())?;
        call.submit(operation, Some(send), receive, op.scalar)
    }

    /// As [`reduce`](Self::reduce), with the result in the place of the root's input. The other ranks' buffers are only
    /// read.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    fn reduce_in_place<B, O>(self, buffer: &'b mut B, op: O, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        const NAME: &str = "ncclReduce";
        let call = self.call();
        let raw_root = call.rank(root)?;
        let op = op.resolve(NAME, call.communicator)?;
        let operation = call.operation::<B::Element>(NAME, Kind::Reduce(op.op, raw_root), buffer.len())?;
        call.submit(operation, None::<&B>, Some(buffer), op.scalar)
    }

    /// All ranks' `receive` become the root's `send` (`ncclBroadcast`). The other ranks need no `send`.
    ///
    /// # Errors
    /// [`Error::MissingBuffer`] for a root without `send`; [`Error::Length`] unless both have the same length.
    fn broadcast<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclBroadcast";
        let call = self.call();
        let raw_root = call.rank(root)?;
        let send = call.at_root(NAME, SEND, root, send)?;
        if let Some(send) = send {
            expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        }
        let operation = call.operation::<R::Element>(NAME, Kind::Broadcast(raw_root), receive.len())?;
        call.submit(operation, send, Some(receive), None)
    }

    /// All ranks' buffers become the root's (`ncclBroadcast`).
    ///
    /// # Errors
    /// See [above](Collectives#errors).
    fn broadcast_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        let call = self.call();
        let raw_root = call.rank(root)?;
        let kind = Kind::Broadcast(raw_root);
        let operation = call.operation::<B::Element>("ncclBroadcast", kind, buffer.len())?;
        call.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// `receive` becomes all ranks' `send`, in rank order (`ncclAllGather`): rank `r`'s part begins at element
    /// `r * send.len()`.
    ///
    /// # Errors
    /// [`Error::Length`] unless `receive.len() == size * send.len()`.
    fn all_gather<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclAllGather";
        let call = self.call();
        expect(NAME, RECEIVE, call.times_size(send.len()), receive.len())?;
        let operation = call.operation::<S::Element>(NAME, Kind::AllGather, send.len())?;
        call.submit(operation, Some(send), Some(receive), None)
    }

    /// As [`all_gather`](Self::all_gather), with this rank's input at its own place in the buffer: from element
    /// `rank * (buffer.len() / size)` on.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`.
    fn all_gather_in_place<B>(self, buffer: &'b mut B) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        const NAME: &str = "ncclAllGather";
        let call = self.call();
        let part = call.part(NAME, IN_PLACE, buffer.len())?;
        let mut operation = call.operation::<B::Element>(NAME, Kind::AllGather, part)?;
        operation.offsets.source = call.own_part::<B::Element>(part);
        call.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// The reduction of all ranks' `send` is cut into one part for each rank, of `receive.len()` elements, and `receive`
    /// becomes this rank's (`ncclReduceScatter`).
    ///
    /// # Errors
    /// [`Error::Length`] unless `send.len() == size * receive.len()`; [`Error::WrongCommunicator`].
    fn reduce_scatter<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        const NAME: &str = "ncclReduceScatter";
        let call = self.call();
        expect(NAME, SEND, call.times_size(receive.len()), send.len())?;
        let op = op.resolve(NAME, call.communicator)?;
        let kind = Kind::ReduceScatter(op.op);
        let operation = call.operation::<S::Element>(NAME, kind, receive.len())?;
        call.submit(operation, Some(send), Some(receive), op.scalar)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with the result at this rank's own place in the input: from element
    /// `rank * (buffer.len() / size)` on. The rest of the buffer then holds anything.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`; [`Error::WrongCommunicator`].
    fn reduce_scatter_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        const NAME: &str = "ncclReduceScatter";
        let call = self.call();
        let part = call.part(NAME, IN_PLACE, buffer.len())?;
        let op = op.resolve(NAME, call.communicator)?;
        let mut operation = call.operation::<B::Element>(NAME, Kind::ReduceScatter(op.op), part)?;
        operation.offsets.target = call.own_part::<B::Element>(part);
        call.submit(operation, None::<&B>, Some(buffer), op.scalar)
    }

    /// Part `r` of `send` goes to rank `r`, and part `r` of `receive` comes from it (`ncclAlltoAll`, or sends and receives
    /// in a group before NCCL 2.28). There is one part of the same length for each rank.
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the same length, a multiple of `size`.
    fn all_to_all<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclAlltoAll";
        let call = self.call();
        let part = call.part(NAME, SEND, send.len())?;
        expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        let operation = call.operation::<S::Element>(NAME, Kind::AllToAll(call.ranks()), part)?;
        call.submit(operation, Some(send), Some(receive), None)
    }

    /// As [`all_to_all`](Self::all_to_all), with parts of any lengths at any places (sends and receives in a group): the
    /// elements `send_parts[r]` go to rank `r`, and what rank `r` sends here arrives in `receive_parts[r]`, which has the
    /// same length. Where a part is empty, nothing is sent or received.
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
    /// [`Error::Parts`] unless there is one part for each rank, within its buffer, and no two receive parts overlap.
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
        const NAME: &str = "all_to_all_v (ncclSend, ncclRecv)";
        let call = self.call();
        call.check_parts(NAME, SEND, send_parts, send.len())?;
        call.check_parts(NAME, RECEIVE, receive_parts, receive.len())?;
        check_disjoint(NAME, receive_parts)?;
        let own = call.communicator.rank();
        if send_parts[own].len() != receive_parts[own].len() {
            let (sent, received) = (send_parts[own].len(), receive_parts[own].len());
            let reason = format!("rank {own} sends itself {sent} elements and receives {received}");
            return Err(Error::Parts { operation: NAME, buffer: RECEIVE, reason });
        }
        let exchange = |(send, receive): (&Range<usize>, &Range<usize>)| Exchange {
            send: send.clone(),
            receive: receive.clone(),
        };
        let exchanges = send_parts.iter().zip(receive_parts).map(exchange).collect();
        let operation = call.operation::<S::Element>(NAME, Kind::AllToAllV(exchanges), 0)?;
        call.submit(operation, Some(send), Some(receive), None)
    }

    /// The root's `receive` becomes all ranks' `send`, in rank order (`ncclGather`, or sends and receives in a group before
    /// NCCL 2.28). The other ranks need no `receive`, and theirs is left alone.
    ///
    /// # Errors
    /// [`Error::MissingBuffer`] for a root without `receive`; [`Error::Length`] unless the root's
    /// `receive.len() == size * send.len()`.
    fn gather<S, R>(self, send: &'b S, receive: Option<&'b mut R>, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclGather";
        let call = self.call();
        let raw_root = call.rank(root)?;
        let receive = call.at_root(NAME, RECEIVE, root, receive)?;
        if let Some(receive) = &receive {
            expect(NAME, RECEIVE, call.times_size(send.len()), receive.len())?;
        }
        let kind = Kind::Gather(raw_root, call.ranks());
        let operation = call.operation::<S::Element>(NAME, kind, send.len())?;
        call.submit(operation, Some(send), receive, None)
    }

    /// As [`gather`](Self::gather), with every rank's input at its own place in a buffer of the root's length: from
    /// element `rank * (buffer.len() / size)` on. Only the root's buffer is written.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`.
    fn gather_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        const NAME: &str = "ncclGather";
        let call = self.call();
        let raw_root = call.rank(root)?;
        let part = call.part(NAME, IN_PLACE, buffer.len())?;
        let mut operation = call.operation::<B::Element>(NAME, Kind::Gather(raw_root, call.ranks()), part)?;
        operation.offsets.source = call.own_part::<B::Element>(part);
        call.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// The root's `send` is cut into one part for each rank, of `receive.len()` elements, and `receive` becomes this
    /// rank's (`ncclScatter`, or sends and receives in a group before NCCL 2.28). The other ranks need no `send`.
    ///
    /// # Errors
    /// [`Error::MissingBuffer`] for a root without `send`; [`Error::Length`] unless the root's
    /// `send.len() == size * receive.len()`.
    fn scatter<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclScatter";
        let call = self.call();
        let raw_root = call.rank(root)?;
        let send = call.at_root(NAME, SEND, root, send)?;
        if let Some(send) = send {
            expect(NAME, SEND, call.times_size(receive.len()), send.len())?;
        }
        let kind = Kind::Scatter(raw_root, call.ranks());
        let operation = call.operation::<R::Element>(NAME, kind, receive.len())?;
        call.submit(operation, send, Some(receive), None)
    }

    /// As [`scatter`](Self::scatter), with every rank's result at its own place in a buffer of the root's length: from
    /// element `rank * (buffer.len() / size)` on. Nothing else is written.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`.
    fn scatter_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        const NAME: &str = "ncclScatter";
        let call = self.call();
        let raw_root = call.rank(root)?;
        let part = call.part(NAME, IN_PLACE, buffer.len())?;
        let kind = Kind::Scatter(raw_root, call.ranks());
        let mut operation = call.operation::<B::Element>(NAME, kind, part)?;
        operation.offsets.target = call.own_part::<B::Element>(part);
        call.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// Sends the buffer to another rank, which receives it with [`recv`](Self::recv) of the same type and length
    /// (`ncclSend`). The stream waits for the other side: to send and receive at the same time, use a
    /// [`group`](super::group()).
    ///
    /// # Errors
    /// See [above](Collectives#errors).
    fn send<S>(self, buffer: &'b S, peer: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        let call = self.call();
        let kind = Kind::Send(call.rank(peer)?);
        let operation = call.operation::<S::Element>("ncclSend", kind, buffer.len())?;
        call.submit_read(operation, Some(buffer))
    }

    /// Receives what another rank sends with [`send`](Self::send) (`ncclRecv`).
    ///
    /// # Errors
    /// See [above](Collectives#errors).
    fn recv<R>(self, buffer: &'b mut R, peer: usize) -> Result<(), Error>
    where
        R: DeviceBufferMut + ?Sized,
    {
        let call = self.call();
        let kind = Kind::Recv(call.rank(peer)?);
        let operation = call.operation::<R::Element>("ncclRecv", kind, buffer.len())?;
        call.submit(operation, None::<&R>, Some(buffer), None)
    }

    /// Writes `source`, which lies in a window itself, into the window of the signal's peer, from element `offset` on, and
    /// raises the signal there when it has arrived (`ncclPutSignal`, NCCL 2.29). The peer waits for it with
    /// [`wait_signals`](Self::wait_signals).
    ///
    /// # Safety
    /// Until the data has arrived, the peer keeps its window and the communicator, and uses that part of the window for
    /// nothing else: this rank cannot see to that.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::View`] when it would reach past the end of a window of this
    /// one's size; [`Error::WrongCommunicator`] for another communicator's window.
    unsafe fn put<S>(
        self,
        source: &'b S,
        window: &'b Window,
        offset: usize,
        signal: Signal,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        const NAME: &str = "ncclPutSignal";
        let call = self.call();
        let peer = call.rank(signal.peer)?;
        let (raw, offset) = window.target::<S::Element>(NAME, call.communicator, offset, source.len())?;
        let (index, context) = (signal.index, signal.context);
        let kind = Kind::Put { peer, window: Handle(raw), offset, index, context };
        let operation = call.operation::<S::Element>(NAME, kind, source.len())?;
        call.submit_read(operation, Some(source))
    }

    /// Raises a signal at another rank, without data (`ncclSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29.
    fn signal(self, signal: Signal) -> Result<(), Error> {
        let call = self.call();
        let peer = call.rank(signal.peer)?;
        let kind = Kind::Signal { peer, index: signal.index, context: signal.context };
        let operation = call.operation::<u8>("ncclSignal", kind, 0)?;
        call.submit_read(operation, None::<&MemoryView<'b, u8>>)
    }

    /// Makes the stream wait until each of these signals has been raised so many times (`ncclWaitSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::SignalCount`].
    fn wait_signals(self, signals: &[(Signal, usize)]) -> Result<(), Error> {
        const NAME: &str = "ncclWaitSignal";
        let call = self.call();
        if signals.is_empty() {
            return Err(Error::SignalCount { count: 0 });
        }
        let describe = |&(signal, count): &(Signal, usize)| {
            let times = c_int::try_from(count).ok().filter(|&times| times > 0);
            let count = times.ok_or(Error::SignalCount { count })?;
            let (peer, index, context) = (call.rank(signal.peer)?, signal.index, signal.context);
            Ok(ncclWaitSignalDesc_t { opCnt: count, peer, sigIdx: index, ctx: context })
        };
        let descriptions = signals.iter().map(describe).collect::<Result<_, Error>>()?;
        let operation = call.operation::<u8>(NAME, Kind::WaitSignals(descriptions), 0)?;
        call.submit_read(operation, None::<&MemoryView<'b, u8>>)
    }
}

impl<'b> Collectives<'b> for &'b Communicator {
    type Launch = Immediate;

    #[inline]
    fn call(self) -> Call<'b> {
        Call::new(self, Immediate)
    }
}

impl<'b, L: Launch<'b>> Collectives<'b> for Call<'b, L> {
    type Launch = L;

    #[inline]
    fn call(self) -> Self {
        self
    }
}
