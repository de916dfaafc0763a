//! Operations under way.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "fabric")]
use std::sync::Arc;

#[cfg(feature = "nccl")]
use super::gpu_operation::GpuOperation;
#[cfg(feature = "fabric")]
use super::slot::ResultSlot;
use crate::Error;

/// An operation of a [`Group`](super::Group) under way. It returns its buffers: by [`wait`](Work::wait), as a future, or on GPUs by
/// `wait_on` a stream.
///
/// Operations of a group run in the order of the calls. Dropping a `Work` neither stops the operation nor waits for it; its
/// buffers are freed afterwards.
#[must_use = "without waiting, the result and the error of the operation are lost"]
pub struct Work<B> {
    state: State<B>,
}

enum State<B> {
    /// The result, until it is taken.
    Ready(Option<Result<B, Error>>),
    /// The result that a progress thread delivers.
    #[cfg(feature = "fabric")]
    Host(Arc<ResultSlot<B>>),
    #[cfg(feature = "nccl")]
    Gpu(GpuOperation<B>),
}

impl<B> Work<B> {
    pub(crate) fn ready(result: Result<B, Error>) -> Self {
        Self { state: State::Ready(Some(result)) }
    }

    #[cfg(feature = "nccl")]
    pub(crate) fn gpu(operation: GpuOperation<B>) -> Self {
        Self { state: State::Gpu(operation) }
    }

    #[cfg(feature = "fabric")]
    pub(crate) fn host(slot: Arc<ResultSlot<B>>) -> Self {
        Self { state: State::Host(slot) }
    }

    /// Waits until the operation is complete, and returns its buffers. Spins for a short time, and then sleeps.
    ///
    /// # Errors
    /// [`Error::RankFailed`], [`Error::Mismatch`], [`Error::TimedOut`] and the errors of the backend, which have stopped the
    /// group; [`Error::Buffer`] for buffers that do not fit, after which the group can still be used; on hosts,
    /// [`Error::Job`] in a waker that the group calls, whose operations it would stop. The buffers are freed in all cases.
    pub fn wait(self) -> Result<B, Error> {
        match self.state {
            State::Ready(result) => result.unwrap_or_else(|| Err(Error::taken())),
            #[cfg(feature = "fabric")]
            State::Host(slot) => slot.wait(),
            #[cfg(feature = "nccl")]
            State::Gpu(operation) => operation.wait(),
        }
    }

    /// Makes a stream of the device wait for the operation, and returns its buffers without waiting on the host: work that is
    /// queued on the stream afterwards reads the result. If the group stops before the operation is complete, that work reads
    /// undefined contents, and the error is returned by a later operation.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait), as far as they are known yet; [`Error::Buffer`] for host memory, for which only the host can
    /// wait, and for a stream that is being captured.
    #[cfg(feature = "nccl")]
    pub fn wait_on(self, stream: &cudarc::driver::CudaStream) -> Result<B, Error> {
        match self.state {
            State::Ready(result) => result.unwrap_or_else(|| Err(Error::taken())),
            #[cfg(feature = "fabric")]
            State::Host(_) => {
                Err(Error::Buffer("a stream cannot wait for host memory: use Work::wait".to_owned()))
            }
            State::Gpu(operation) => operation.wait_on(stream),
        }
    }

    /// True once the operation is complete or has failed, so that [`wait`](Self::wait) returns at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Ready(_) => true,
            #[cfg(feature = "fabric")]
            State::Host(slot) => slot.is_done(),
            #[cfg(feature = "nccl")]
            State::Gpu(operation) => operation.is_done(),
        }
    }
}

/// No field is pinned.
impl<B> Unpin for Work<B> {}

impl<B> Future for Work<B> {
    type Output = Result<B, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().state {
            #[cfg(feature = "nccl")]
            State::Gpu(operation) => operation.poll(context.waker()),
            State::Ready(result) => Poll::Ready(result.take().unwrap_or_else(|| Err(Error::taken()))),
            #[cfg(feature = "fabric")]
            State::Host(slot) => {
                slot.poll(context.waker()).map(|result| result.unwrap_or_else(|| Err(Error::taken())))
            }
        }
    }
}

impl<B> fmt::Debug for Work<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Work").field("done", &self.is_done()).finish()
    }
}
