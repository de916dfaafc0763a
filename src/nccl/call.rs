//! Calls of collectives and their checks.

use std::ffi::c_int;
use std::ops::Range;

use nccl_sys::ncclWaitSignalDesc_t;

use super::buffer::{DeviceBuffer, DeviceBufferMut};
use super::call_config::CallConfig;
use super::communicator::Communicator;
use super::error::{Error, Needed};
use super::launch::{Buffers, Captured, IN_PLACE, Launch, Now, RECEIVE, SEND};
use super::operation::{Exchange, Handle, Kind, Offsets, Operation, Ranks, require_type};
use super::reduction::{Reduction, Scalar};
use super::window::{Signal, Window};
use crate::Element;

/// A collective call in the making: on which communicator, with which settings, and where it goes. Its methods are the
/// collectives, the same as [`Communicator`]'s.
///
/// From [`Communicator::with`] (with settings of its own), [`Group::on`](super::Group::on),
/// [`Capture::on`](super::Capture::on) and [`Communicator::captured`].
#[derive(Clone, Copy, Debug)]
#[must_use = "this is a call without a collective"]
pub struct Call<'b, L = Now> {
    communicator: &'b Communicator,
    config: Option<&'b CallConfig>,
    launch: L,
}

impl Communicator {
    /// Collectives with settings of their own for one call. All ranks use the same.
    pub fn with<'b>(&'b self, config: &'b CallConfig) -> Call<'b> {
        self.call().with(config)
    }

    /// Collectives on a stream that is being captured into a CUDA graph by other means than
    /// [`Graph::capture`](super::Graph::capture), which keeps all of the following itself:
    ///
    /// # Safety
    /// Until the graph, and every graph that is made of it, is destroyed, the communicator is not dropped or aborted, the
    /// buffers stay allocated, and nothing else accesses them while the graph runs. Buffers of cudarc whose events are
    /// tracked make the stream wait for events outside the capture, which ends it: turn that off first
    /// (`CudaContext::disable_event_tracking`).
    ///
    /// ```no_run
    /// # use collectives::{ReduceOp, nccl::Communicator};
    /// # use cudarc::driver::{CudaSlice, DriverError, sys::{CUgraphInstantiate_flags, CUstreamCaptureMode}};
    /// # type Failure = Box<dyn std::error::Error>;
    /// # fn example(communicator: &Communicator, gradients: &mut CudaSlice<f32>) -> Result<(), Failure> {
    /// let stream = communicator.stream();
    /// stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    /// // Kernels that compute gradients ...
    /// // SAFETY: communicator and buffer outlive the graph, and nothing uses the buffer while it runs.
    /// unsafe { communicator.captured() }.all_reduce_in_place(gradients, ReduceOp::Avg)?;
    /// // Kernels that use their mean ...
    /// if let Some(graph) = stream.end_capture(CUgraphInstantiate_flags(0))? {
    ///     graph.launch()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn captured(&self) -> Call<'_, Captured> {
        Call::new(self, Captured)
    }

    /// The collectives as a [`Call`], for code that is the same for calls at once, in a group and in a graph: it is generic
    /// in the [`Launch`].
    #[inline]
    pub fn call(&self) -> Call<'_> {
        Call::new(self, Now)
    }
}

impl<'b, L> Call<'b, L> {
    #[inline]
    pub(crate) fn new(communicator: &'b Communicator, launch: L) -> Self {
        Self { communicator, config: None, launch }
    }

    /// With settings for this call. All ranks use the same.
    pub fn with(mut self, config: &'b CallConfig) -> Self {
        self.config = Some(config);
        self
    }
}

// The collectives. What they do and return is said once, at Communicator's methods of the same names.
impl<'b, L: Launch<'b>> Call<'b, L> {
    /// As [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn all_reduce<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        const NAME: &str = "ncclAllReduce";
        expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        let op = op.resolve(NAME, self.communicator)?;
        let operation = self.operation::<S::Element>(NAME, Kind::AllReduce(op.op), send.len())?;
        self.submit(operation, Some(send), Some(receive), op.scalar)
    }

    /// As [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn all_reduce_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        const NAME: &str = "ncclAllReduce";
        let op = op.resolve(NAME, self.communicator)?;
        let operation = self.operation::<B::Element>(NAME, Kind::AllReduce(op.op), buffer.len())?;
        self.submit(operation, None::<&B>, Some(buffer), op.scalar)
    }

    /// As [`Communicator::reduce`].
    ///
    /// # Errors
    /// As there.
    pub fn reduce<S, R, O>(
        self,
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
        const NAME: &str = "ncclReduce";
        let raw_root = self.rank(root)?;
        let receive = self.at_root(NAME, RECEIVE, root, receive)?;
        if let Some(receive) = &receive {
            expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        }
        let op = op.resolve(NAME, self.communicator)?;
        let operation = self.operation::<S::Element>(NAME, Kind::Reduce(op.op, raw_root), send.len())?;
        self.submit(operation, Some(send), receive, op.scalar)
    }

    /// As [`Communicator::reduce_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn reduce_in_place<B, O>(self, buffer: &'b mut B, op: O, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        const NAME: &str = "ncclReduce";
        let raw_root = self.rank(root)?;
        let op = op.resolve(NAME, self.communicator)?;
        let operation = self.operation::<B::Element>(NAME, Kind::Reduce(op.op, raw_root), buffer.len())?;
        self.submit(operation, None::<&B>, Some(buffer), op.scalar)
    }

    /// As [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As there.
    pub fn broadcast<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclBroadcast";
        let raw_root = self.rank(root)?;
        let send = self.at_root(NAME, SEND, root, send)?;
        if let Some(send) = send {
            expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        }
        let operation = self.operation::<R::Element>(NAME, Kind::Broadcast(raw_root), receive.len())?;
        self.submit(operation, send, Some(receive), None)
    }

    /// As [`Communicator::broadcast_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn broadcast_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        let raw_root = self.rank(root)?;
        let kind = Kind::Broadcast(raw_root);
        let operation = self.operation::<B::Element>("ncclBroadcast", kind, buffer.len())?;
        self.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// As [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As there.
    pub fn all_gather<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclAllGather";
        expect(NAME, RECEIVE, self.times_size(send.len()), receive.len())?;
        let operation = self.operation::<S::Element>(NAME, Kind::AllGather, send.len())?;
        self.submit(operation, Some(send), Some(receive), None)
    }

    /// As [`Communicator::all_gather_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn all_gather_in_place<B>(self, buffer: &'b mut B) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        const NAME: &str = "ncclAllGather";
        let part = self.part(NAME, IN_PLACE, buffer.len())?;
        let mut operation = self.operation::<B::Element>(NAME, Kind::AllGather, part)?;
        operation.offsets.source = self.own_part::<B::Element>(part);
        self.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// As [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// As there.
    pub fn reduce_scatter<S, R, O>(self, send: &'b S, receive: &'b mut R, op: O) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
        O: Reduction<'b, S::Element>,
    {
        const NAME: &str = "ncclReduceScatter";
        expect(NAME, SEND, self.times_size(receive.len()), send.len())?;
        let op = op.resolve(NAME, self.communicator)?;
        let kind = Kind::ReduceScatter(op.op);
        let operation = self.operation::<S::Element>(NAME, kind, receive.len())?;
        self.submit(operation, Some(send), Some(receive), op.scalar)
    }

    /// As [`Communicator::reduce_scatter_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn reduce_scatter_in_place<B, O>(self, buffer: &'b mut B, op: O) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
        O: Reduction<'b, B::Element>,
    {
        const NAME: &str = "ncclReduceScatter";
        let part = self.part(NAME, IN_PLACE, buffer.len())?;
        let op = op.resolve(NAME, self.communicator)?;
        let mut operation = self.operation::<B::Element>(NAME, Kind::ReduceScatter(op.op), part)?;
        operation.offsets.target = self.own_part::<B::Element>(part);
        self.submit(operation, None::<&B>, Some(buffer), op.scalar)
    }

    /// As [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// As there.
    pub fn all_to_all<S, R>(self, send: &'b S, receive: &'b mut R) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclAlltoAll";
        let part = self.part(NAME, SEND, send.len())?;
        expect(NAME, RECEIVE, Some(send.len()), receive.len())?;
        let operation = self.operation::<S::Element>(NAME, Kind::AllToAll(self.ranks()), part)?;
        self.submit(operation, Some(send), Some(receive), None)
    }

    /// As [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    /// As there.
    pub fn all_to_all_v<S, R>(
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
        self.check_parts(NAME, SEND, send_parts, send.len())?;
        self.check_parts(NAME, RECEIVE, receive_parts, receive.len())?;
        check_disjoint(NAME, receive_parts)?;
        let own = self.communicator.rank();
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
        let operation = self.operation::<S::Element>(NAME, Kind::AllToAllV(exchanges), 0)?;
        self.submit(operation, Some(send), Some(receive), None)
    }

    /// As [`Communicator::gather`].
    ///
    /// # Errors
    /// As there.
    pub fn gather<S, R>(self, send: &'b S, receive: Option<&'b mut R>, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclGather";
        let raw_root = self.rank(root)?;
        let receive = self.at_root(NAME, RECEIVE, root, receive)?;
        if let Some(receive) = &receive {
            expect(NAME, RECEIVE, self.times_size(send.len()), receive.len())?;
        }
        let kind = Kind::Gather(raw_root, self.ranks());
        let operation = self.operation::<S::Element>(NAME, kind, send.len())?;
        self.submit(operation, Some(send), receive, None)
    }

    /// As [`Communicator::gather_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn gather_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        const NAME: &str = "ncclGather";
        let raw_root = self.rank(root)?;
        let part = self.part(NAME, IN_PLACE, buffer.len())?;
        let mut operation = self.operation::<B::Element>(NAME, Kind::Gather(raw_root, self.ranks()), part)?;
        operation.offsets.source = self.own_part::<B::Element>(part);
        self.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// As [`Communicator::scatter`].
    ///
    /// # Errors
    /// As there.
    pub fn scatter<S, R>(self, send: Option<&'b S>, receive: &'b mut R, root: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        const NAME: &str = "ncclScatter";
        let raw_root = self.rank(root)?;
        let send = self.at_root(NAME, SEND, root, send)?;
        if let Some(send) = send {
            expect(NAME, SEND, self.times_size(receive.len()), send.len())?;
        }
        let kind = Kind::Scatter(raw_root, self.ranks());
        let operation = self.operation::<R::Element>(NAME, kind, receive.len())?;
        self.submit(operation, send, Some(receive), None)
    }

    /// As [`Communicator::scatter_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn scatter_in_place<B>(self, buffer: &'b mut B, root: usize) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        const NAME: &str = "ncclScatter";
        let raw_root = self.rank(root)?;
        let part = self.part(NAME, IN_PLACE, buffer.len())?;
        let kind = Kind::Scatter(raw_root, self.ranks());
        let mut operation = self.operation::<B::Element>(NAME, kind, part)?;
        operation.offsets.target = self.own_part::<B::Element>(part);
        self.submit(operation, None::<&B>, Some(buffer), None)
    }

    /// As [`Communicator::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send<S>(self, buffer: &'b S, peer: usize) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        let kind = Kind::Send(self.rank(peer)?);
        let operation = self.operation::<S::Element>("ncclSend", kind, buffer.len())?;
        self.submit_read(operation, Some(buffer))
    }

    /// As [`Communicator::recv`].
    ///
    /// # Errors
    /// As there.
    pub fn recv<R>(self, buffer: &'b mut R, peer: usize) -> Result<(), Error>
    where
        R: DeviceBufferMut + ?Sized,
    {
        let kind = Kind::Recv(self.rank(peer)?);
        let operation = self.operation::<R::Element>("ncclRecv", kind, buffer.len())?;
        self.submit(operation, None::<&R>, Some(buffer), None)
    }

    /// As [`Communicator::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put<S>(
        self,
        source: &'b S,
        window: &'b Window<'_>,
        offset: usize,
        signal: Signal,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        const NAME: &str = "ncclPutSignal";
        let peer = self.rank(signal.peer)?;
        let raw = window.target::<S::Element>(NAME, self.communicator, offset, source.len())?;
        let (index, context) = (signal.index, signal.context);
        let kind = Kind::Put { peer, window: Handle(raw), offset, index, context };
        let operation = self.operation::<S::Element>(NAME, kind, source.len())?;
        self.submit_read(operation, Some(source))
    }

    /// As [`Communicator::signal`].
    ///
    /// # Errors
    /// As there.
    pub fn signal(self, signal: Signal) -> Result<(), Error> {
        let peer = self.rank(signal.peer)?;
        let kind = Kind::Signal { peer, index: signal.index, context: signal.context };
        let operation = self.operation::<u8>("ncclSignal", kind, 0)?;
        self.submit_read(operation, None::<&super::MemoryView<'b, u8>>)
    }

    /// As [`Communicator::wait_signals`].
    ///
    /// # Errors
    /// As there.
    pub fn wait_signals(self, signals: &[(Signal, usize)]) -> Result<(), Error> {
        const NAME: &str = "ncclWaitSignal";
        if signals.is_empty() {
            return Err(Error::SignalCount { count: 0 });
        }
        let describe = |&(signal, count): &(Signal, usize)| {
            let times = c_int::try_from(count).ok().filter(|&times| times > 0);
            let count = times.ok_or(Error::SignalCount { count })?;
            let (peer, index, context) = (self.rank(signal.peer)?, signal.index, signal.context);
            Ok(ncclWaitSignalDesc_t { opCnt: count, peer, sigIdx: index, ctx: context })
        };
        let descriptions = signals.iter().map(describe).collect::<Result<_, Error>>()?;
        let operation = self.operation::<u8>(NAME, Kind::WaitSignals(descriptions), 0)?;
        self.submit_read(operation, None::<&super::MemoryView<'b, u8>>)
    }

    #[inline]
    fn operation<T: Element>(
        &self,
        name: &'static str,
        kind: Kind,
        count: usize,
    ) -> Result<Operation, Error> {
        require_type::<T>(self.communicator.library())?;
        Ok(Operation { name, kind, count, data_type: T::DATA_TYPE, offsets: Offsets::default() })
    }

    #[inline]
    fn submit<S, R>(
        self,
        operation: Operation,
        send: Option<&'b S>,
        receive: Option<&'b mut R>,
        scalar: Option<&'b dyn Scalar>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        if self.config.is_some() && !operation.takes_config() {
            return Err(Error::NoCallConfig { operation: operation.name });
        }
        self.launch.launch(self.communicator, self.config, operation, Buffers { send, receive, scalar })
    }

    fn submit_read<S>(self, operation: Operation, send: Option<&'b S>) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        self.submit(operation, send, None::<&mut super::MemoryViewMut<'b, u8>>, None)
    }

    fn ranks(&self) -> Ranks {
        // Both came from NCCL's ints.
        Ranks { own: self.communicator.rank() as c_int, size: self.communicator.size() as c_int }
    }

    /// Another rank's number as NCCL takes it.
    fn rank(&self, rank: usize) -> Result<c_int, Error> {
        let size = self.communicator.size();
        if rank < size { Ok(rank as c_int) } else { Err(Error::Rank { rank, size }) }
    }

    /// A buffer that only the root needs, and has to have.
    fn at_root<B>(
        &self,
        operation: &'static str,
        buffer: &'static str,
        root: usize,
        given: Option<B>,
    ) -> Result<Option<B>, Error> {
        if self.communicator.rank() != root {
            return Ok(None);
        }
        match given {
            Some(given) => Ok(Some(given)),
            None => Err(Error::MissingBuffer { operation, buffer, rank: root }),
        }
    }

    fn times_size(&self, len: usize) -> Option<usize> {
        len.checked_mul(self.communicator.size())
    }

    /// The number of elements of each rank's part in a buffer that holds one part for each rank.
    fn part(&self, operation: &'static str, buffer: &'static str, len: usize) -> Result<usize, Error> {
        let size = self.communicator.size();
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        Err(Error::Length { operation, buffer, needed: Needed::MultipleOf(size), found: len })
    }

    /// The byte offset of this rank's part.
    fn own_part<T>(&self, part: usize) -> u64 {
        (self.communicator.rank() * part * size_of::<T>()) as u64
    }

    fn check_parts(
        &self,
        operation: &'static str,
        buffer: &'static str,
        parts: &[Range<usize>],
        len: usize,
    ) -> Result<(), Error> {
        let size = self.communicator.size();
        let wrong = |reason: String| Err(Error::Parts { operation, buffer, reason });
        if parts.len() != size {
            return wrong(format!("there are {} for {size} ranks", parts.len()));
        }
        match (0..).zip(parts).find(|(_, part)| part.start > part.end || part.end > len) {
            Some((rank, part)) => wrong(format!("rank {rank}'s is {part:?} of a buffer with {len} elements")),
            None => Ok(()),
        }
    }
}

/// Two ranks' data in one place would be a mixture of both.
fn check_disjoint(operation: &'static str, parts: &[Range<usize>]) -> Result<(), Error> {
    let mut order: Vec<_> = (0..).zip(parts).filter(|(_, part)| !part.is_empty()).collect();
    order.sort_by_key(|(_, part)| part.start);
    match order.windows(2).find(|pair| pair[1].1.start < pair[0].1.end) {
        Some(pair) => {
            let ((first, one), (second, other)) = (pair[0], pair[1]);
            let reason = format!("rank {first}'s {one:?} and rank {second}'s {other:?} overlap");
            Err(Error::Parts { operation, buffer: RECEIVE, reason })
        }
        None => Ok(()),
    }
}

#[inline]
fn expect(
    operation: &'static str,
    buffer: &'static str,
    needed: Option<usize>,
    found: usize,
) -> Result<(), Error> {
    if needed == Some(found) {
        return Ok(());
    }
    // A product that overflows is more than any buffer has.
    let needed = Needed::Exactly(needed.unwrap_or(usize::MAX));
    Err(Error::Length { operation, buffer, needed, found })
}
