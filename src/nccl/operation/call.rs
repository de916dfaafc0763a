//! Calls of collectives and their checks.

use std::ffi::c_int;
use std::ops::Range;

use super::call_config::CallConfig;
use super::reduction::Scalar;
use super::submit::{Buffers, Captured, Immediate, Launch, RECEIVE};
use super::{Kind, Offsets, Operation, Ranks, require_type};
use crate::Element;
use crate::nccl::communicator::Communicator;
use crate::nccl::error::{Error, Needed};
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut, MemoryViewMut};

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
    #[inline]
    pub(super) fn operation<T: Element>(
        &self,
        name: &'static str,
        kind: Kind,
        count: usize,
    ) -> Result<Operation, Error> {
        require_type::<T>(self.communicator.library())?;
        Ok(Operation { name, kind, count, data_type: T::DATA_TYPE, offsets: Offsets::default() })
    }

    #[inline]
    pub(super) fn submit<S, R>(
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

    pub(super) fn submit_read<S>(self, operation: Operation, send: Option<&'b S>) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
    {
        self.submit(operation, send, None::<&mut MemoryViewMut<'b, u8>>, None)
    }

    pub(super) fn ranks(&self) -> Ranks {
        // Both came from NCCL's ints.
        Ranks { own: self.communicator.rank() as c_int, size: self.communicator.size() as c_int }
    }

    /// Another rank's number as NCCL takes it.
    pub(super) fn rank(&self, rank: usize) -> Result<c_int, Error> {
        let size = self.communicator.size();
        if rank < size { Ok(rank as c_int) } else { Err(Error::Rank { rank, size }) }
    }

    /// A buffer that only the root needs, and has to have.
    pub(super) fn at_root<B>(
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

    pub(super) fn times_size(&self, len: usize) -> Option<usize> {
        len.checked_mul(self.communicator.size())
    }

    /// The number of elements of each rank's part in a buffer that holds one part for each rank.
    pub(super) fn part(
        &self,
        operation: &'static str,
        buffer: &'static str,
        len: usize,
    ) -> Result<usize, Error> {
        let size = self.communicator.size();
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        Err(Error::Length { operation, buffer, needed: Needed::MultipleOf(size), found: len })
    }

    /// The byte offset of this rank's part.
    pub(super) fn own_part<T>(&self, part: usize) -> u64 {
        (self.communicator.rank() * part * size_of::<T>()) as u64
    }

    pub(super) fn check_parts(
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
pub(super) fn check_disjoint(operation: &'static str, parts: &[Range<usize>]) -> Result<(), Error> {
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
pub(super) fn expect(
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
