//! The error of an operation, with its buffers.

use std::fmt;

use super::held::HeldBuffers;
use crate::Error;

/// The error of an operation, with its buffers if nothing uses them: from
/// [`Work::wait_or_return`](super::Work::wait_or_return). Converts into [`Error`].
pub struct WorkError<B> {
    /// The error.
    pub error: Error,
    /// The buffers; `None` if the operation may use them, and for a result that was taken before.
    pub buffers: Option<B>,
}

/// A [`WorkError`] that the program does not have yet: dropping it drops the buffers after their uses.
pub(crate) struct FailedWork<B> {
    pub(crate) error: Error,
    buffers: Option<Box<HeldBuffers<B>>>,
}

impl<B> FailedWork<B> {
    pub(crate) fn new(error: Error, buffers: HeldBuffers<B>) -> Self {
        Self { error, buffers: Some(Box::new(buffers)) }
    }
}

impl<B> From<Error> for FailedWork<B> {
    fn from(error: Error) -> Self {
        Self { error, buffers: None }
    }
}

impl<B> From<FailedWork<B>> for Error {
    fn from(failed: FailedWork<B>) -> Self {
        failed.error
    }
}

impl<B> From<FailedWork<B>> for WorkError<B> {
    fn from(FailedWork { error, buffers }: FailedWork<B>) -> Self {
        Self { error, buffers: buffers.and_then(|mut held| held.take()) }
    }
}

impl<B> From<WorkError<B>> for Error {
    fn from(failed: WorkError<B>) -> Self {
        failed.error
    }
}

impl<B> fmt::Debug for WorkError<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, formatter)
    }
}

impl<B> fmt::Display for WorkError<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, formatter)
    }
}

impl<B> std::error::Error for WorkError<B> {}
