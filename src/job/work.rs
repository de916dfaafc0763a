//! Operations under way.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::dispatch::with_backend;
use super::under_way::UnderWay as _;
use super::work_error::{FailedWork, WorkError};
use crate::Error;

/// An operation of a [`Group`](super::Group) under way. It returns its buffers: by [`wait`](Work::wait), as a
/// future, or on GPUs by `wait_on` a stream.
///
/// Operations of a group run in the order of the calls. Dropping a `Work` does not stop the operation, and
/// waits for it only on a GPU without memory pools; its buffers are freed afterwards. After an error they are
/// freed, too, unless it is returned with them: [`wait_or_return`](Work::wait_or_return).
#[must_use = "without waiting, the result and the error of the operation are lost"]
pub struct Work<B> {
    state: WorkState<B>,
}

pub(super) enum WorkState<B> {
    /// The result, until it is taken.
    Ready(Option<Result<B, FailedWork<B>>>),
    /// The result that a progress thread delivers.
    #[cfg(feature = "fabric")]
    Host(std::sync::Arc<super::slot::ResultSlot<B>>),
    #[cfg(feature = "nccl")]
    Gpu(super::gpu_operation::GpuOperation<B>),
}

impl<B> From<WorkState<B>> for Work<B> {
    fn from(state: WorkState<B>) -> Self {
        Self { state }
    }
}

impl<B> Work<B> {
    /// An operation that has not begun, with the buffers that nothing uses.
    pub(super) fn not_begun(failed: FailedWork<B>) -> Self {
        WorkState::Ready(Some(Err(failed))).into()
    }

    /// Waits until the operation is complete, and returns its buffers. Spins for a short time, and then
    /// sleeps.
    ///
    /// # Errors
    /// [`Error::RankFailed`], [`Error::Mismatch`], [`Error::TimedOut`] and the errors of the backend, which
    /// have stopped the group; [`Error::Buffer`] for buffers that do not fit, after which the group can still
    /// be used; on hosts, [`Error::Job`] in a waker that the group calls, whose operations it would stop. The
    /// buffers are freed then.
    pub fn wait(self) -> Result<B, Error> {
        Ok(self.wait_for_result()?)
    }

    fn wait_for_result(self) -> Result<B, FailedWork<B>> {
        with_backend!(
            WorkState,
            self.state,
            operation => operation.wait_for_result(),
            WorkState::Ready(result) => result.wait_for_result()
        )
    }

    /// Like [`wait`](Self::wait), with an error that has the buffers where the operation does not use them:
    ///
    /// - An operation that was refused ([`Error::Buffer`], [`Error::Job`]) returns them as they were.
    /// - On hosts, an operation that has failed returns them, too, with undefined contents.
    /// - On GPUs, an operation that has failed may still use them: they are freed in the order of their
    ///   streams.
    ///
    /// ```
    /// # use collectives::{Error, job::{Backend, Job}, world};
    /// # let group = Job::new(world::single()).group(Backend::Host)?;
    /// // There is no rank 7.
    /// let refused = group.broadcast(vec![1.0_f32; 3], 7).wait_or_return().unwrap_err();
    /// assert!(matches!(refused.error, Error::Buffer(_)));
    /// assert_eq!(refused.buffers, Some(vec![1.0; 3]));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// After a future has returned an error, this returns the error again, with the buffers.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub fn wait_or_return(self) -> Result<B, WorkError<B>> {
        Ok(self.wait_for_result()?)
    }

    /// Makes a stream of the device wait for the operation, and returns its buffers without waiting on the
    /// host: work that is queued on the stream afterwards reads the result. If the group stops before the
    /// operation is complete, that work reads undefined contents, and the error is returned by a later
    /// operation.
    ///
    /// A copy from device to pageable host memory holds a lock of the CUDA context until the stream has come
    /// to it. If another thread of the process is then to call an operation of another group, for which
    /// another rank waits in the same way, all wait forever: where threads use several groups, wait for the
    /// operation ([`wait`](Self::wait)) or for the stream before such a copy, or copy to pinned memory.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait), as far as they are known yet; [`Error::Buffer`] for host memory, for
    /// which only the host can wait, and for a stream that is being captured.
    #[cfg(feature = "nccl")]
    pub fn wait_on(self, stream: &cudarc::driver::CudaStream) -> Result<B, Error> {
        Ok(self.order_result(stream)?)
    }

    #[cfg(feature = "nccl")]
    fn order_result(self, stream: &cudarc::driver::CudaStream) -> Result<B, FailedWork<B>> {
        with_backend!(
            WorkState,
            self.state,
            operation => operation.wait_on(stream),
            WorkState::Ready(result) => result.wait_on(stream)
        )
    }

    /// Like [`wait_on`](Self::wait_on), with an error that has the buffers of an operation that was refused.
    /// If only the wait is refused, the operation uses them, and they are freed afterwards.
    ///
    /// # Errors
    /// Those of [`wait_on`](Self::wait_on).
    #[cfg(feature = "nccl")]
    pub fn wait_on_or_return(self, stream: &cudarc::driver::CudaStream) -> Result<B, WorkError<B>> {
        Ok(self.order_result(stream)?)
    }

    /// True once the operation is complete or has failed, so that [`wait`](Self::wait) returns at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        with_backend!(WorkState, &self.state, operation => operation.is_done(), WorkState::Ready(_) => true)
    }
}

/// No field is pinned.
impl<B> Unpin for Work<B> {}

impl<B> Future for Work<B> {
    type Output = Result<B, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut self.get_mut().state;
        let polled = with_backend!(
            WorkState,
            state,
            operation => operation.poll_result(context.waker()),
            WorkState::Ready(result) => result.poll_result(context.waker())
        );
        polled.map_err(|failed| {
            let error = failed.error.clone();
            *state = WorkState::Ready(Some(Err(failed)));
            error
        })
    }
}

impl<B> fmt::Debug for Work<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Work").field("done", &self.is_done()).finish()
    }
}
