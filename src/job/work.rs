//! Operations under way.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::slot::Slot;
use crate::Error;
use std::sync::Arc;

/// An operation of a [`Group`](super::Group) under way. It returns its buffers: by [`wait`](Work::wait), or as a future.
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
    Host(Arc<Slot<B>>),
}

impl<B> Work<B> {
    pub(crate) fn ready(result: Result<B, Error>) -> Self {
        Self { state: State::Ready(Some(result)) }
    }

    pub(crate) fn host(slot: Arc<Slot<B>>) -> Self {
        Self { state: State::Host(slot) }
    }

    /// Waits until the operation is complete, and returns its buffers. Spins shortly, and then sleeps.
    ///
    /// # Errors
    /// [`Error::RankFailed`], [`Error::Mismatch`], [`Error::TimedOut`] and the errors of the backend, which have stopped the
    /// group; [`Error::Buffer`] for buffers that do not fit, after which the group can still be used. The buffers are freed
    /// in all cases.
    pub fn wait(self) -> Result<B, Error> {
        match self.state {
            State::Ready(result) => result.unwrap_or_else(|| Err(taken())),
            State::Host(slot) => slot.wait(),
        }
    }

    /// True once the operation is complete or has failed, so that [`wait`](Self::wait) returns at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Ready(_) => true,
            State::Host(slot) => slot.is_done(),
        }
    }
}

/// The error of a future that is polled after its end.
fn taken() -> Error {
    Error::Job("this operation has returned its result before: do not poll it again".to_owned())
}

/// No field is pinned.
impl<B> Unpin for Work<B> {}

impl<B> Future for Work<B> {
    type Output = Result<B, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().state {
            State::Ready(result) => Poll::Ready(result.take().unwrap_or_else(|| Err(taken()))),
            State::Host(slot) => {
                slot.poll(context.waker()).map(|result| result.unwrap_or_else(|| Err(taken())))
            }
        }
    }
}

impl<B> fmt::Debug for Work<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Work").field("done", &self.is_done()).finish()
    }
}
