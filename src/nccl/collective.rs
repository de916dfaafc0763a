//! The collectives of a communicator, one at a time.

use std::ops::Range;

use super::buffer::{DeviceBuffer, DeviceBufferMut};
use super::communicator::Communicator;
use super::error::Error;
use super::reduction::Reduction;
use super::window::{Signal, Window};

/// # Collectives
/// Each returns when the operation is queued on the communicator's stream; the host does not wait for it. A buffer of
/// another stream is used after the work that is queued there, and work queued there later comes after the operation.
/// All ranks call the same collectives in the same order with the same type, operator, root and lengths.
///
/// The same methods, on [`Call`](super::Call), go into a [`group`](super::group()) or a [`Graph`](super::Graph), or
/// have a [`CallConfig`](super::CallConfig).
///
/// ## Errors
/// Of all of them, before anything is queued:
/// - [`Error::Length`]; [`Error::WrongDevice`]; [`Error::Rank`] for a root or peer that there is not;
///   [`Error::TooOld`] for 8-bit floating-point numbers before NCCL 2.24.
/// - [`Error::Stream`] for a buffer of a per-thread default stream, and while a stream of these is being captured into a
///   CUDA graph.
/// - [`Error::Misaligned`] for all_reduce, all_gather and reduce_scatter in symmetric windows before NCCL 2.30, where
///   the buffer or a rank's part begins at no multiple of 4 bytes.
/// - [`Error::InsideGroup`] inside a [`group`](super::group()): use [`Group::on`](super::Group::on).
/// - [`Error::Nccl`], [`Error::Aborted`], [`Error::Unusable`], [`Error::Deadline`] when NCCL could not queue it.
impl Communicator {
    /// Element `i` of `receive` becomes the reduction of element `i` of all ranks' `send` (`ncclAllReduce`).
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the same length; [`Error::WrongCommunicator`] for another communicator's
    /// operator.
    #[inline]
    pub fn all_reduce<'b, S, R, O>(&'b self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        self.call().all_reduce(send, receive, op)
    }

    /// As [`all_reduce`](Self::all_reduce), with the result in the place of the input.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[inline]
    pub fn all_reduce_in_place<'b, B, O>(&'b self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        self.call().all_reduce_in_place(buffer, op)
    }

    /// Element `i` of the root's `receive` becomes the reduction of element `i` of all ranks' `send` (`ncclReduce`).
    /// The other ranks need no `receive`, and theirs is left alone.
    ///
    /// ```no_run
    /// # use collectives::{ReduceOp, nccl::{Communicator, Error}};
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
    pub fn reduce<'b, S, R, O>(
        &'b self,
        send: &'b S,
        receive: Option<&'b mut R>,
        op: O,
        root: usize,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        self.call().reduce(send, receive, op, root)
    }

    /// As [`reduce`](Self::reduce), with the result in the place of the root's input. The other ranks' buffers are only
    /// read.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn reduce_in_place<'b, B, O>(&'b self, buffer: &'b mut B, op: O, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        self.call().reduce_in_place(buffer, op, root)
    }

    /// All ranks' `receive` become the root's `send` (`ncclBroadcast`). The other ranks need no `send`.
    ///
    /// # Errors
    /// [`Error::MissingBuffer`] for a root without `send`; [`Error::Length`] unless both have the same length.
    pub fn broadcast<'b, S, R>(
        &'b self,
        send: Option<&'b S>,
        receive: &'b mut R,
        root: usize,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().broadcast(send, receive, root)
    }

    /// All ranks' buffers become the root's (`ncclBroadcast`).
    ///
    /// # Errors
    /// See [above](#errors).
    pub fn broadcast_in_place<'b, B>(&'b self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().broadcast_in_place(buffer, root)
    }

    /// `receive` becomes all ranks' `send`, in rank order (`ncclAllGather`): rank `r`'s part begins at element
    /// `r * send.len()`.
    ///
    /// # Errors
    /// [`Error::Length`] unless `receive.len() == size * send.len()`.
    pub fn all_gather<'b, S, R>(&'b self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().all_gather(send, receive)
    }

    /// As [`all_gather`](Self::all_gather), with this rank's input at its own place in the buffer: from element
    /// `rank * (buffer.len() / size)` on.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`.
    pub fn all_gather_in_place<'b, B>(&'b self, buffer: &'b mut B) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().all_gather_in_place(buffer)
    }

    /// The reduction of all ranks' `send` is cut into one part for each rank, of `receive.len()` elements, and `receive`
    /// becomes this rank's (`ncclReduceScatter`).
    ///
    /// # Errors
    /// [`Error::Length`] unless `send.len() == size * receive.len()`; [`Error::WrongCommunicator`].
    pub fn reduce_scatter<'b, S, R, O>(&'b self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        self.call().reduce_scatter(send, receive, op)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with the result at this rank's own place in the input: from element
    /// `rank * (buffer.len() / size)` on. The rest of the buffer then holds anything.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`; [`Error::WrongCommunicator`].
    pub fn reduce_scatter_in_place<'b, B, O>(&'b self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        self.call().reduce_scatter_in_place(buffer, op)
    }

    /// Part `r` of `send` goes to rank `r`, and part `r` of `receive` comes from it (`ncclAlltoAll`, or sends and receives
    /// in a group before NCCL 2.28). There is one part of the same length for each rank.
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the same length, a multiple of `size`.
    pub fn all_to_all<'b, S, R>(&'b self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().all_to_all(send, receive)
    }

    /// As [`all_to_all`](Self::all_to_all), with parts of any lengths at any places (sends and receives in a group): the
    /// elements `send_parts[r]` go to rank `r`, and what rank `r` sends here arrives in `receive_parts[r]`, which has the
    /// same length. Where a part is empty, nothing is sent or received.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error};
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
    pub fn all_to_all_v<'b, S, R>(
        &'b self,
        send: &'b S,
        send_parts: &[Range<usize>],
        receive: &'b mut R,
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().all_to_all_v(send, send_parts, receive, receive_parts)
    }

    /// The root's `receive` becomes all ranks' `send`, in rank order (`ncclGather`, or sends and receives in a group before
    /// NCCL 2.28). The other ranks need no `receive`, and theirs is left alone.
    ///
    /// # Errors
    /// [`Error::MissingBuffer`] for a root without `receive`; [`Error::Length`] unless the root's
    /// `receive.len() == size * send.len()`.
    pub fn gather<'b, S, R>(
        &'b self,
        send: &'b S,
        receive: Option<&'b mut R>,
        root: usize,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().gather(send, receive, root)
    }

    /// As [`gather`](Self::gather), with every rank's input at its own place in a buffer of the root's length: from
    /// element `rank * (buffer.len() / size)` on. Only the root's buffer is written.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`.
    pub fn gather_in_place<'b, B>(&'b self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().gather_in_place(buffer, root)
    }

    /// The root's `send` is cut into one part for each rank, of `receive.len()` elements, and `receive` becomes this
    /// rank's (`ncclScatter`, or sends and receives in a group before NCCL 2.28). The other ranks need no `send`.
    ///
    /// # Errors
    /// [`Error::MissingBuffer`] for a root without `send`; [`Error::Length`] unless the root's
    /// `send.len() == size * receive.len()`.
    pub fn scatter<'b, S, R>(
        &'b self,
        send: Option<&'b S>,
        receive: &'b mut R,
        root: usize,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        self.call().scatter(send, receive, root)
    }

    /// As [`scatter`](Self::scatter), with every rank's result at its own place in a buffer of the root's length: from
    /// element `rank * (buffer.len() / size)` on. Nothing else is written.
    ///
    /// # Errors
    /// [`Error::Length`] unless the length is a multiple of `size`.
    pub fn scatter_in_place<'b, B>(&'b self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        self.call().scatter_in_place(buffer, root)
    }

    /// Sends the buffer to another rank, which receives it with [`recv`](Self::recv) of the same type and length
    /// (`ncclSend`). The stream waits for the other side: to send and receive at the same time, use a
    /// [`group`](super::group()).
    ///
    /// # Errors
    /// See [above](#errors).
    pub fn send<'b, S>(&'b self, buffer: &'b S, peer: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        self.call().send(buffer, peer)
    }

    /// Receives what another rank sends with [`send`](Self::send) (`ncclRecv`).
    ///
    /// # Errors
    /// See [above](#errors).
    pub fn recv<'b, R>(&'b self, buffer: &'b mut R, peer: usize) -> Result<(), Error>
    where
        R: DeviceBufferMut + ?Sized,
    {
        self.call().recv(buffer, peer)
    }

    /// Writes `source`, which lies in a window itself, into the window of the signal's peer, from byte `offset` on, and
    /// raises the signal there when it has arrived (`ncclPutSignal`, NCCL 2.29). The peer waits for it with
    /// [`wait_signals`](Self::wait_signals) and must not use that part of its window meanwhile.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::View`] when it would reach past the end of a window of this
    /// one's size; [`Error::WrongCommunicator`] for another communicator's window.
    pub fn put<'b, S>(
        &'b self,
        source: &'b S,
        window: &'b Window<'_>,
        offset: usize,
        signal: Signal,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        self.call().put(source, window, offset, signal)
    }

    /// Raises a signal at another rank, without data (`ncclSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.call().signal(signal)
    }

    /// Makes the stream wait until each of these signals has been raised so many times (`ncclWaitSignal`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::SignalCount`].
    pub fn wait_signals(&self, signals: &[(Signal, usize)]) -> Result<(), Error> {
        self.call().wait_signals(signals)
    }
}
