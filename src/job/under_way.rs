//! The contract between the handle of an operation and the backend that carries it out.

use std::task::{Poll, Waker};

use super::work_error::FailedWork;
use crate::Error;

/// An operation that has begun and owns the buffers `B`. It returns them once; later it returns
/// [`Error::result_taken`].
pub(super) trait UnderWay<B>: Sized {
    /// True once the operation is complete or has failed.
    fn is_done(&self) -> bool;

    /// Waits on the host until the operation is done.
    fn wait_for_result(self) -> Result<B, FailedWork<B>>;

    /// Makes a stream wait for the operation. On hosts it refuses that: only the host can wait.
    #[cfg(feature = "nccl")]
    fn wait_on(self, _: &cudarc::driver::CudaStream) -> Result<B, FailedWork<B>> {
        Err(Error::Buffer("a stream cannot wait for host memory: use Work::wait".to_owned()).into())
    }

    /// Returns the result, or wakes `waker` once the operation is done.
    fn poll_result(&mut self, waker: &Waker) -> Poll<Result<B, FailedWork<B>>>;
}

/// The result of an operation that is done, until it is taken.
impl<B> UnderWay<B> for Option<Result<B, FailedWork<B>>> {
    fn is_done(&self) -> bool {
        true
    }

    fn wait_for_result(self) -> Result<B, FailedWork<B>> {
        self.unwrap_or_else(|| Err(Error::result_taken().into()))
    }

    #[cfg(feature = "nccl")]
    fn wait_on(self, _: &cudarc::driver::CudaStream) -> Result<B, FailedWork<B>> {
        self.wait_for_result()
    }

    fn poll_result(&mut self, _: &Waker) -> Poll<Result<B, FailedWork<B>>> {
        Poll::Ready(self.take().wait_for_result())
    }
}
