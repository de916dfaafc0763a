//! Calls of collectives: their checks, and the three ways they go: to NCCL at once, into a group, into a graph.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::{Version, ncclResult_t, ncclWaitSignalDesc_t};

use super::abort::State;
use super::buffer::{Access, DeviceBuffer, DeviceBufferMut};
use super::call_config::CallConfig;
use super::communicator::Communicator;
use super::cuda;
use super::error::{Error, Needed};
use super::inside;
use super::operation::{Exchange, Handle, Kind, Offsets, Operation, Ranks, Site, require_type};
use super::reduction::{Reduction, Scalar};
use super::window::{Signal, Window};
use crate::Element;

pub(crate) const SEND: &str = "send buffer";
pub(crate) const RECEIVE: &str = "receive buffer";
pub(crate) const IN_PLACE: &str = "buffer";

/// The stream of a buffer, when it is not the communicator's.
pub(crate) type Foreign = Option<Arc<CudaStream>>;

/// The buffers of an operation. Without `send`, both of NCCL's addresses are in `receive`; without `receive`, NCCL
/// writes nothing.
#[doc(hidden)]
pub struct Buffers<'b, S: ?Sized, R: ?Sized> {
    pub(crate) send: Option<&'b S>,
    pub(crate) receive: Option<&'b mut R>,
    /// What the operator reads.
    pub(crate) scalar: Option<&'b dyn Scalar>,
}

/// Where a collective goes. Sealed.
pub trait Launch<'b>: sealed::Launch<'b> {}

pub(crate) mod sealed {
    use super::{Buffers, CallConfig, Communicator, DeviceBuffer, DeviceBufferMut, Error, Operation};

    pub trait Launch<'b>: Copy {
        /// Takes a checked operation.
        fn launch<S, R>(
            self,
            communicator: &'b Communicator,
            config: Option<&'b CallConfig>,
            operation: Operation,
            buffers: Buffers<'b, S, R>,
        ) -> Result<(), Error>
        where
            S: DeviceBuffer + ?Sized,
            R: DeviceBufferMut + ?Sized;
    }
}

/// To NCCL, at once.
#[derive(Clone, Copy, Debug)]
pub struct Now;

/// To NCCL, at once, while the communicator's stream is being captured into a graph.
#[derive(Clone, Copy, Debug)]
pub struct Captured;

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

    #[inline]
    pub(crate) fn call(&self) -> Call<'_> {
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

/// The accesses to an operation's buffers, valid as long as the buffers are borrowed.
pub(crate) struct Accesses<'b> {
    send: Option<Access<'b>>,
    receive: Option<Access<'b>>,
    scalar: Option<Access<'b>>,
}

impl Accesses<'_> {
    /// NCCL's two addresses.
    #[inline]
    pub(crate) fn addresses(&self, offsets: Offsets) -> (u64, u64) {
        let target = self.receive.as_ref().map_or(0, Access::address);
        let source = self.send.as_ref().map_or(target, Access::address);
        (source + offsets.source, target + offsets.target)
    }

    /// Whether the stream may have been made to wait for events of a buffer.
    #[inline]
    fn ordered(&self) -> bool {
        // Not a loop: the compiler does not see through one.
        self.send.as_ref().is_some_and(Access::ordered)
            || self.receive.as_ref().is_some_and(Access::ordered)
            || self.scalar.as_ref().is_some_and(Access::ordered)
    }
}

/// The streams of an operation's buffers, where they are not the communicator's.
pub(crate) type Foreigners = [Foreign; 3];

impl Communicator {
    /// Checks where the buffers are, orders NCCL's stream after theirs, and takes their addresses.
    #[inline(always)]
    pub(crate) fn access<'b, S, R>(
        &'b self,
        operation: &'static str,
        buffers: Buffers<'b, S, R>,
    ) -> Result<(Accesses<'b>, Foreigners), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        let Buffers { send, receive, scalar } = buffers;
        let mut foreign = Foreigners::default();
        if let Some(send) = send {
            foreign[0] = self.admit(operation, SEND, send.stream())?;
        }
        if let Some(receive) = &receive {
            let name = if send.is_some() { RECEIVE } else { IN_PLACE };
            foreign[1] = self.admit(operation, name, receive.stream())?;
        }
        if let Some(scalar) = scalar {
            foreign[2] = self.admit(operation, "scalar", scalar.home())?;
        }
        let accesses = Accesses {
            send: send.map(|send| send.read(&self.stream)),
            receive: receive.map(|receive| receive.write(&self.stream)),
            scalar: scalar.map(|scalar| scalar.read_scalar(&self.stream)),
        };
        Ok((accesses, foreign))
    }

    /// Checks that a buffer is on this communicator's device, and makes NCCL's stream wait for the buffer's.
    #[inline]
    pub(crate) fn admit(
        &self,
        operation: &'static str,
        name: &'static str,
        home: &Arc<CudaStream>,
    ) -> Result<Foreign, Error> {
        if Arc::ptr_eq(home, &self.stream) { Ok(None) } else { self.admit_other(operation, name, home) }
    }

    fn admit_other(
        &self,
        operation: &'static str,
        name: &'static str,
        home: &Arc<CudaStream>,
    ) -> Result<Foreign, Error> {
        self.expect_device(operation, name, home)?;
        if **home == *self.stream {
            return Ok(None);
        }
        cuda::refuse_per_thread(operation, home)?;
        // Waiting for a captured stream would draw the communicator's own into the capture.
        cuda::refuse_captured(operation, home)?;
        self.follow(home)?;
        Ok(Some(Arc::clone(home)))
    }

    /// NCCL's two addresses of an operation.
    ///
    /// # Errors
    /// Where the loaded NCCL is known to go wrong: seen with 2.28.9, and not any more with 2.30.7.
    #[inline]
    pub(crate) fn addresses(
        &self,
        operation: &Operation,
        accesses: &Accesses<'_>,
    ) -> Result<(u64, u64), Error> {
        let (source, target) = accesses.addresses(operation.offsets);
        // All ranks must come to the same answer, so that what counts is not where this rank's own part lies: in place,
        // rank 0's part begins with the buffer, and the others' follow it.
        let first = if accesses.send.is_some() { source } else { target - operation.offsets.target };
        let part = (operation.count * operation.data_type.size()) as u64;
        let places = match operation.kind {
            Kind::AllReduce(_) => first,
            Kind::AllGather if accesses.send.is_some() => first,
            Kind::AllGather | Kind::ReduceScatter(_) => first | part,
            _ => 0,
        };
        if !places.is_multiple_of(4) {
            self.refuse_misaligned(operation.name, first)?;
        }
        Ok((source, target))
    }

    #[cold]
    fn refuse_misaligned(&self, operation: &'static str, address: u64) -> Result<(), Error> {
        let loaded = self.library().version();
        if loaded < Version::new(2, 30, 0) && self.shared.in_a_window(address) {
            return Err(Error::Misaligned { operation, loaded });
        }
        Ok(())
    }

    /// Calls NCCL's function for an operation.
    ///
    /// # Safety
    /// The addresses are those of buffers that were checked and are still borrowed; the caller holds the guard of the
    /// communicator's state, which is `state`.
    #[inline(always)]
    pub(crate) unsafe fn call_nccl(
        &self,
        state: State,
        config: Option<&CallConfig>,
        operation: &Operation,
        (source, target): (u64, u64),
    ) -> Result<ncclResult_t, Error> {
        let shared = &*self.shared;
        let handle = shared.handle(state, operation.name)?;
        let (source, target) = (source as *const _, target as *mut _);
        let site = Site { source, target, handle, stream: &self.stream };
        match config {
            // SAFETY: by the contract above; the handle is alive.
            None => Ok(unsafe { operation.call(shared.raw(), site) }?),
            Some(config) => {
                let config = config.raw(shared.library)?;
                // SAFETY: as above; the configuration's text outlives the call.
                Ok(unsafe { operation.call_configured(shared.raw(), site, &config) }?)
            }
        }
    }

    /// What to do after a call that did not simply succeed.
    #[cold]
    pub(crate) fn finish(&self, operation: &'static str, code: ncclResult_t) -> Result<(), Error> {
        if code == ncclResult_t::ncclInProgress {
            return self.shared.settle(operation, self.shared.config.limit());
        }
        self.shared.library.check(operation, code)
    }

    /// The rest of a call that goes to NCCL at once, from the checks of the stream on.
    #[inline(always)]
    fn launch_now<'b, S, R>(
        &'b self,
        config: Option<&CallConfig>,
        operation: &Operation,
        buffers: Buffers<'b, S, R>,
        captured: bool,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        inside::forbid(operation.name)?;
        cuda::bind(&self.shared.context)?;
        if !captured {
            cuda::refuse_captured(operation.name, &self.stream)?;
        }
        let (accesses, foreign) = self.access(operation.name, buffers)?;
        let result = {
            // A buffer that waits for events draws the stream into the capture of the stream that recorded them, if
            // there is one. The others cost no second question.
            if !captured && accesses.ordered() {
                cuda::refuse_captured(operation.name, &self.stream)?;
            }
            let addresses = self.addresses(operation, &accesses)?;
            let state = self.shared.lock();
            // SAFETY: checked buffers, borrowed until `accesses` is dropped; the guard is held.
            let code = unsafe { self.call_nccl(*state, config, operation, addresses) };
            drop(state);
            match code {
                Ok(ncclResult_t::ncclSuccess) => Ok(()),
                Ok(code) => self.finish(operation.name, code),
                Err(error) => Err(error),
            }
        };
        drop(accesses);
        if let [None, None, None] = foreign {
            return result;
        }
        // Whatever NCCL answered: something may have been queued.
        foreign.into_iter().flatten().fold(result, |result, home| result.and(self.lead(&home)))
    }
}

impl Launch<'_> for Now {}
impl<'b> sealed::Launch<'b> for Now {
    #[inline]
    fn launch<S, R>(
        self,
        communicator: &'b Communicator,
        config: Option<&'b CallConfig>,
        operation: Operation,
        buffers: Buffers<'b, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        communicator.launch_now(config, &operation, buffers, false)
    }
}

impl Launch<'_> for Captured {}
impl<'b> sealed::Launch<'b> for Captured {
    fn launch<S, R>(
        self,
        communicator: &'b Communicator,
        config: Option<&'b CallConfig>,
        operation: Operation,
        buffers: Buffers<'b, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        communicator.launch_now(config, &operation, buffers, true)
    }
}
