//! Calls of collectives: argument checks and submission.

use std::{ops::Range, sync::Arc};

use super::buffers::{CallBuffers, IN_PLACE, RECEIVE, SEND};
use super::call_config::CallConfig;
use super::kind::{ALL_TO_ALL_V, NcclOperation, OperationKind, PeerExchange, require_type};
use super::reduction::Operator;
use crate::Element;
use crate::nccl::communicator::Communicator;
use crate::nccl::error::{Error, Needed};
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut};

/// A communicator with call settings and a destination. Its methods are the
/// [collectives](super::Collectives).
///
/// From [`Communicator::with`] (settings for one call), [`Group::on`](super::Group::on),
/// [`Capture::on`](crate::nccl::Capture::on) and [`Communicator::captured`].
#[derive(Clone, Copy, Debug)]
#[must_use = "this is a call without a collective"]
pub struct Call<'b, L = Immediate> {
    pub(super) communicator: &'b Communicator,
    config: Option<&'b CallConfig>,
    launch: L,
}

/// Destination of a collective: NCCL immediately, a group, prepared operations or a graph. Sealed.
pub trait Launch<'b>: sealed::Launch<'b> {}

impl<'b, L: sealed::Launch<'b>> Launch<'b> for L {}

pub(crate) mod sealed {
    use super::{CallBuffers, DeviceBuffer, DeviceBufferMut, Error, Submission};

    pub trait Launch<'b>: Copy {
        /// Submits a checked operation.
        fn launch(
            self,
            submission: Submission<'b>,
            buffers: CallBuffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
        ) -> Result<(), Error>;
    }
}

/// An operation with checked arguments.
#[doc(hidden)]
pub struct Submission<'b> {
    pub(crate) communicator: &'b Communicator,
    pub(crate) config: Option<&'b CallConfig>,
    pub(crate) operation: NcclOperation,
}

/// Calls NCCL immediately.
#[derive(Clone, Copy, Debug)]
pub struct Immediate {
    /// True if the communicator's stream may be captured into a graph.
    pub(super) captured: bool,
}

impl Communicator {
    /// Returns the collectives with settings for one call. All ranks use the same.
    pub fn with<'b>(&'b self, config: &'b CallConfig) -> Call<'b> {
        Call::new(self, Immediate { captured: false }).with(config)
    }

    /// Returns the collectives for a stream during its capture into a CUDA graph by other means than
    /// [`Graph::capture`](crate::nccl::Graph::capture). `Graph::capture` ensures all of the following itself:
    ///
    /// # Safety
    /// Until the graph and every graph created from it are destroyed, the communicator must not be dropped or
    /// aborted, the buffers must stay allocated, and nothing else may access them while the graph runs. Event
    /// tracking of cudarc's buffers makes the stream wait for events outside the capture; this ends the
    /// capture. Disable event tracking first (`CudaContext::disable_event_tracking`).
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
    pub unsafe fn captured(&self) -> Call<'_> {
        Call::new(self, Immediate { captured: true })
    }
}

impl<'b, L> Call<'b, L> {
    #[inline]
    pub(crate) fn new(communicator: &'b Communicator, launch: L) -> Self {
        Self { communicator, config: None, launch }
    }

    /// Sets the settings of this call. All ranks use the same.
    pub fn with(mut self, config: &'b CallConfig) -> Self {
        self.config = Some(config);
        self
    }
}

impl<'b, L: Launch<'b>> Call<'b, L> {
    /// Submits a collective from one buffer to another. A buffer needed only by the root may be missing on
    /// others.
    #[inline(always)]
    pub(super) fn out_of_place<S, R>(
        self,
        kind: OperationKind,
        mut send: Option<&'b S>,
        mut receive: Option<&'b mut R>,
        operator: Option<&'b Arc<Operator>>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        let (name, size) = (kind.function_name(), self.communicator.size());
        self.check_rank(kind.root_rank())?;
        if let Some(root) = kind.root_rank() {
            if self.communicator.rank() == root {
                let (buffer, missing) =
                    if kind.root_sends() { (SEND, send.is_none()) } else { (RECEIVE, receive.is_none()) };
                if missing {
                    return Err(Error::bad_argument(
                        name,
                        format!("rank {root} is the root and needs a {buffer}"),
                    ));
                }
            } else {
                let gathered = send.and_then(|send| send.len().checked_mul(size));
                match kind {
                    // NCCL's copy engines find the root's window by this address.
                    OperationKind::Gather(_) if receive.as_deref().map(R::len) == gathered => {}
                    OperationKind::Gather(_) | OperationKind::Reduce(..) => receive = None,
                    _ => send = None,
                }
            }
        }
        let (sent, received) = (send.map(S::len), receive.as_deref().map(R::len));
        let whole = if kind.sends_parts() { None } else { sent };
        let count = match whole.or(received.filter(|_| !kind.receives_parts())) {
            Some(count) => count,
            None => self.part_len(name, SEND, sent.unwrap_or_default())?,
        };
        let needed = |parts| if parts { count.checked_mul(size) } else { Some(count) };
        expect_len(name, SEND, needed(kind.sends_parts()), sent)?;
        expect_len(name, RECEIVE, needed(kind.receives_parts()), received)?;
        self.submit_operation(kind, count, CallBuffers::new(send, receive, operator))
    }

    /// Submits a collective whose result replaces its input.
    #[inline(always)]
    pub(super) fn in_place<B: DeviceBufferMut + ?Sized>(
        self,
        kind: OperationKind,
        buffer: &'b mut B,
        operator: Option<&'b Arc<Operator>>,
    ) -> Result<(), Error> {
        self.check_rank(kind.root_rank())?;
        let (sends, receives) = (kind.sends_parts(), kind.receives_parts());
        let len = buffer.len();
        let count = if sends || receives { self.part_len(kind.function_name(), IN_PLACE, len)? } else { len };
        let own = (self.communicator.rank() * count * size_of::<B::Element>()) as u64;
        let mut buffers = CallBuffers::in_place(buffer, operator);
        buffers.offsets = (if receives { own } else { 0 }, if sends { own } else { 0 });
        self.submit_operation(kind, count, buffers)
    }

    /// Submits an operation, with the `count` of NCCL's function.
    #[inline(always)]
    pub(super) fn submit_operation<S: DeviceBuffer + ?Sized>(
        self,
        kind: OperationKind,
        count: usize,
        buffers: CallBuffers<'b, S, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        let Self { communicator, config, launch } = self;
        let (rank, size, data_type) = (communicator.rank(), communicator.size(), S::Element::DATA_TYPE);
        let is_scale = size == 1 && buffers.operator.is_some();
        let operation = NcclOperation { kind, count, data_type, rank, size, is_scale };
        self.check_rank(operation.kind.peer_rank())?;
        require_type::<S::Element>(communicator.library())?;
        if config.is_some() && !operation.is_collective() {
            let reason = "it does not take a CallConfig: only collectives with an NCCL function of their \
                          own do";
            return Err(Error::bad_argument(operation.operation_name(), reason));
        }
        if buffers.operator.is_some_and(|operator| !Arc::ptr_eq(&operator.communicator, &communicator.handle))
        {
            return Err(Error::WrongCommunicator {
                operation: operation.operation_name(),
                object: "scaled sum",
            });
        }
        launch.launch(Submission { communicator, config, operation }, buffers)
    }

    #[inline]
    pub(super) fn check_rank(&self, rank: Option<usize>) -> Result<(), Error> {
        let size = self.communicator.size();
        rank.filter(|&rank| rank >= size).map_or(Ok(()), |rank| Err(Error::Rank { rank, size }))
    }

    /// Length of each rank's part in a buffer with one part per rank.
    fn part_len(&self, operation: &'static str, buffer: &'static str, found: usize) -> Result<usize, Error> {
        let size = self.communicator.size();
        if found.is_multiple_of(size) {
            return Ok(found / size);
        }
        Err(Error::Length { operation, buffer, needed: Needed::MultipleOf(size), found })
    }

    /// Checks the parts of a send and a receive buffer of these lengths, one per rank.
    pub(super) fn check_exchanges(
        &self,
        (send, sent): (&[Range<usize>], usize),
        (receive, received): (&[Range<usize>], usize),
    ) -> Result<Box<[PeerExchange]>, Error> {
        let (own, size) = (self.communicator.rank(), self.communicator.size());
        check_parts(SEND, send, sent, size)?;
        check_parts(RECEIVE, receive, received, size)?;
        // Overlapping parts would mix the data of two ranks.
        let mut order: Vec<_> = (0..).zip(receive).filter(|(_, part)| !part.is_empty()).collect();
        order.sort_by_key(|(_, part)| part.start);
        for pair in order.windows(2) {
            let ((first, one), (second, other)) = (pair[0], pair[1]);
            if other.start < one.end {
                let reason = format!("rank {first}'s {one:?} and rank {second}'s {other:?} overlap");
                return Err(wrong_parts(RECEIVE, &reason));
            }
        }
        let (sent, received) = (send[own].len(), receive[own].len());
        if sent != received {
            let reason = format!("rank {own} sends itself {sent} elements and receives {received}");
            return Err(wrong_parts(RECEIVE, &reason));
        }
        let pairs = send.iter().cloned().zip(receive.iter().cloned());
        Ok(pairs.map(|(send, receive)| PeerExchange { send, receive }).collect())
    }
}

/// Refuses a buffer of another length. `needed` is `None` if the length overflows.
#[inline(always)]
fn expect_len(
    operation: &'static str,
    buffer: &'static str,
    needed: Option<usize>,
    found: Option<usize>,
) -> Result<(), Error> {
    match found {
        Some(found) if needed != Some(found) => {
            let needed = Needed::Exactly(needed.unwrap_or(usize::MAX));
            Err(Error::Length { operation, buffer, needed, found })
        }
        _ => Ok(()),
    }
}

fn check_parts(buffer: &'static str, parts: &[Range<usize>], len: usize, size: usize) -> Result<(), Error> {
    if parts.len() != size {
        return Err(wrong_parts(buffer, &format!("there are {} for {size} ranks", parts.len())));
    }
    let outside = (0..).zip(parts).find(|(_, part)| part.start > part.end || part.end > len);
    outside.map_or(Ok(()), |(rank, part)| {
        Err(wrong_parts(
            buffer,
            &format!("the part of rank {rank} is {part:?}, but the buffer has {len} elements"),
        ))
    })
}

fn wrong_parts(buffer: &'static str, reason: &str) -> Error {
    Error::bad_argument(ALL_TO_ALL_V, format!("the parts of the {buffer}: {reason}"))
}
