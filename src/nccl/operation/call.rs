//! Calls of collectives: checks of what is passed, and the ways to NCCL.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use super::call_config::CallConfig;
use super::reduction::Operator;
use super::submit::{Buffers, IN_PLACE, RECEIVE, SEND};
use super::{ALL_TO_ALL_V, Exchange, Kind, Operation, Ranks, require_type};
use crate::Element;
use crate::nccl::communicator::Communicator;
use crate::nccl::error::{Error, Needed};
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut};

/// A collective call in the making: on which communicator, with which settings, and where it goes. Its methods are the
/// [collectives](super::Collectives).
///
/// From [`Communicator::with`] (with settings of its own), [`Group::on`](super::Group::on),
/// [`Capture::on`](crate::nccl::Capture::on) and [`Communicator::captured`].
#[derive(Clone, Copy, Debug)]
#[must_use = "this is a call without a collective"]
pub struct Call<'b, L = Immediate> {
    pub(super) communicator: &'b Communicator,
    config: Option<&'b CallConfig>,
    launch: L,
}

/// The destination of a collective: NCCL, at once, or a group or graph. Sealed.
pub trait Launch<'b>: sealed::Launch<'b> {}

pub(crate) mod sealed {
    use super::{Buffers, DeviceBuffer, DeviceBufferMut, Error, Submission};

    pub trait Launch<'b>: Copy {
        /// Takes a checked operation.
        fn launch(
            self,
            submission: Submission<'b>,
            buffers: Buffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
        ) -> Result<(), Error>;
    }
}

/// An operation whose arguments have been checked.
#[doc(hidden)]
pub struct Submission<'b> {
    pub(crate) communicator: &'b Communicator,
    pub(crate) config: Option<&'b CallConfig>,
    pub(crate) operation: Operation,
}

/// Calls NCCL immediately.
#[derive(Clone, Copy, Debug)]
pub struct Immediate;

/// Calls NCCL immediately, while the communicator's stream is being captured into a graph.
#[derive(Clone, Copy, Debug)]
pub struct Captured;

impl Communicator {
    /// Collectives with settings of their own for one call. All ranks use the same.
    pub fn with<'b>(&'b self, config: &'b CallConfig) -> Call<'b> {
        Call::new(self, Immediate).with(config)
    }

    /// Collectives on a stream that is being captured into a CUDA graph by other means than
    /// [`Graph::capture`](crate::nccl::Graph::capture), which keeps all of the following itself:
    ///
    /// # Safety
    /// Until the graph, and every graph that is made of it, is destroyed, the communicator is not dropped or aborted, the
    /// buffers stay allocated, and nothing else accesses them while the graph runs. Buffers of cudarc whose events are
    /// tracked make the stream wait for events outside the capture, which ends it: turn that off first
    /// (`CudaContext::disable_event_tracking`).
    ///
    /// ```no_run
    /// # use collectives::{ReduceOp, nccl::{Collectives, Communicator}};
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

impl<'b, L: Launch<'b>> Call<'b, L> {
    /// A collective from one buffer to another. Where only the root needs one of them, it may be missing on others.
    #[inline(always)]
    pub(super) fn out_of_place<S, R>(
        self,
        kind: Kind,
        mut send: Option<&'b S>,
        mut receive: Option<&'b mut R>,
        operator: Option<&'b Arc<Operator>>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        let (name, parts) = (kind.name(), kind.parts());
        if let Some(root) = kind.root().map(|root| root as usize) {
            let (buffer, missing) =
                if kind.root_sends() { (SEND, send.is_none()) } else { (RECEIVE, receive.is_none()) };
            if self.communicator.rank() != root {
                match kind {
                    // NCCL's copy engines find the root's window by this one.
                    Kind::Gather(_) if receive.as_deref().map(R::len) == self.times_size(send) => {}
                    Kind::Gather(_) | Kind::Reduce(..) => receive = None,
                    _ => send = None,
                }
            } else if missing {
                return Err(Error::argument(name, format!("rank {root} is the root and needs a {buffer}")));
            }
        }
        let (sent, received) = (send.map(S::len), receive.as_deref().map(R::len));
        let whole = if parts.send { None } else { sent };
        let count = match whole.or(received.filter(|_| !parts.receive)) {
            Some(count) => count,
            None => self.part(name, SEND, sent.unwrap_or_default())?,
        };
        self.expect(name, SEND, count, parts.send, sent)?;
        self.expect(name, RECEIVE, count, parts.receive, received)?;
        self.submit(kind, count, Buffers::new(send, receive, operator))
    }

    /// A collective whose result takes the place of its input.
    #[inline(always)]
    pub(super) fn in_place<B: DeviceBufferMut + ?Sized>(
        self,
        kind: Kind,
        buffer: &'b mut B,
        operator: Option<&'b Arc<Operator>>,
    ) -> Result<(), Error> {
        let parts = kind.parts();
        let len = buffer.len();
        let count = if parts.send || parts.receive { self.part(kind.name(), IN_PLACE, len)? } else { len };
        let own = (self.communicator.rank() * count * size_of::<B::Element>()) as u64;
        let mut buffers = Buffers::written(buffer, operator);
        buffers.offsets.source = if parts.receive { own } else { 0 };
        buffers.offsets.target = if parts.send { own } else { 0 };
        self.submit(kind, count, buffers)
    }

    /// Hands an operation on, with `count` in the meaning of NCCL's function.
    #[inline(always)]
    pub(super) fn submit<S: DeviceBuffer + ?Sized>(
        self,
        kind: Kind,
        count: usize,
        buffers: Buffers<'b, S, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        if self.communicator.size() == 1 {
            return self.submit_alone(kind, count, buffers);
        }
        self.hand_on(kind.name(), kind, count, buffers)
    }

    /// An operation of a single rank, whose reductions are not always copies.
    #[cold]
    fn submit_alone<S: DeviceBuffer + ?Sized>(
        self,
        kind: Kind,
        count: usize,
        buffers: Buffers<'b, S, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        let name = kind.name();
        self.hand_on(name, if kind.scales() { kind.of_one_rank() } else { kind }, count, buffers)
    }

    #[inline(always)]
    fn hand_on<S: DeviceBuffer + ?Sized>(
        self,
        name: &'static str,
        kind: Kind,
        count: usize,
        buffers: Buffers<'b, S, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        let Self { communicator, config, launch } = self;
        require_type::<S::Element>(communicator.library())?;
        // Both came from NCCL's ints.
        let ranks = Ranks { own: communicator.rank() as c_int, size: communicator.size() as c_int };
        let operation = Operation { name, kind, count, data_type: S::Element::DATA_TYPE, ranks };
        if config.is_some() && !operation.is_collective() {
            let reason = "it takes no CallConfig: only collectives that are one function of NCCL do";
            return Err(Error::argument(name, reason));
        }
        if buffers.operator.is_some_and(|operator| !Arc::ptr_eq(&operator.communicator, &communicator.handle))
        {
            return Err(Error::WrongCommunicator { operation: name, object: "scaled sum" });
        }
        launch.launch(Submission { communicator, config, operation }, buffers)
    }

    fn times_size(&self, send: Option<&(impl DeviceBuffer + ?Sized)>) -> Option<usize> {
        send.and_then(|send| send.len().checked_mul(self.communicator.size()))
    }

    /// Another rank's number as NCCL takes it.
    pub(super) fn rank(&self, rank: usize) -> Result<c_int, Error> {
        let size = self.communicator.size();
        if rank < size { Ok(rank as c_int) } else { Err(Error::Rank { rank, size }) }
    }

    /// The number of elements of each rank's part in a buffer that holds one part for each rank.
    fn part(&self, operation: &'static str, buffer: &'static str, found: usize) -> Result<usize, Error> {
        let size = self.communicator.size();
        if found.is_multiple_of(size) {
            return Ok(found / size);
        }
        Err(Error::Length { operation, buffer, needed: Needed::MultipleOf(size), found })
    }

    /// Refuses a buffer with another length than `count`, or, of parts, `count` for each rank.
    #[inline(always)]
    fn expect(
        &self,
        operation: &'static str,
        buffer: &'static str,
        count: usize,
        parts: bool,
        found: Option<usize>,
    ) -> Result<(), Error> {
        let needed = if parts { count.checked_mul(self.communicator.size()) } else { Some(count) };
        match found {
            Some(found) if needed != Some(found) => {
                // A product that overflows is more than any buffer has.
                let needed = Needed::Exactly(needed.unwrap_or(usize::MAX));
                Err(Error::Length { operation, buffer, needed, found })
            }
            _ => Ok(()),
        }
    }

    /// The parts of a send and a receive buffer, of these lengths, for each rank.
    pub(super) fn exchanges(
        &self,
        (send, sent): (&[Range<usize>], usize),
        (receive, received): (&[Range<usize>], usize),
    ) -> Result<Box<[Exchange]>, Error> {
        let (own, size) = (self.communicator.rank(), self.communicator.size());
        check_parts(SEND, send, sent, size)?;
        check_parts(RECEIVE, receive, received, size)?;
        // Two ranks' data in one place would be a mixture of both.
        let mut order: Vec<_> = (0..).zip(receive).filter(|(_, part)| !part.is_empty()).collect();
        order.sort_by_key(|(_, part)| part.start);
        if let Some(pair) = order.windows(2).find(|pair| pair[1].1.start < pair[0].1.end) {
            let ((first, one), (second, other)) = (pair[0], pair[1]);
            return wrong_parts(
                RECEIVE,
                &format!("rank {first}'s {one:?} and rank {second}'s {other:?} overlap"),
            );
        }
        let (sent, received) = (send[own].len(), receive[own].len());
        if sent != received {
            let reason = format!("rank {own} sends itself {sent} elements and receives {received}");
            return wrong_parts(RECEIVE, &reason);
        }
        let pairs = send.iter().cloned().zip(receive.iter().cloned());
        Ok(pairs.map(|(send, receive)| Exchange { send, receive }).collect())
    }
}

fn wrong_parts<T>(buffer: &'static str, reason: &str) -> Result<T, Error> {
    Err(Error::argument(ALL_TO_ALL_V, format!("the parts of the {buffer}: {reason}")))
}

/// Refuses parts that are not one for each rank, or not within a buffer of `len` elements.
fn check_parts(buffer: &'static str, parts: &[Range<usize>], len: usize, size: usize) -> Result<(), Error> {
    if parts.len() != size {
        return wrong_parts(buffer, &format!("there are {} for {size} ranks", parts.len()));
    }
    match (0..).zip(parts).find(|(_, part)| part.start > part.end || part.end > len) {
        Some((rank, part)) => {
            wrong_parts(buffer, &format!("rank {rank}'s is {part:?} of a buffer with {len} elements"))
        }
        None => Ok(()),
    }
}
