//! Copies of an allocation's memory, queued by cudarc on other streams than the allocation's own.

use std::iter;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::{CudaStream, DriverError, SyncOnDrop};

use crate::lock::lock;
use crate::nccl::cuda;
use crate::nccl::error::Error;

/// The streams of the copies: a list that only grows, since copies borrow its elements.
///
/// cudarc lends a stream for the duration of a call, and queues the copy after the ordering call. So the host
/// waits for the copy when cudarc drops the result of [`begin_copy`](Self::begin_copy). cudarc's own object
/// of the stream would not wait while an error is noted in its context; each stream has a second object here,
/// and nobody else notes errors there. If the wait fails, its error is noted there, and the memory is neither
/// used any more nor freed.
#[derive(Debug, Default)]
pub(super) struct Copies(OnceLock<Box<CopyStream>>);

#[derive(Debug)]
struct CopyStream {
    /// The second object. Used only while the first one is borrowed.
    stream: Arc<CudaStream>,
    /// The error of a wait, once a thread has seen it.
    failure: Mutex<Option<DriverError>>,
    next: Copies,
}

impl Copies {
    /// Orders a copy, about to be queued on `stream`, after the work of `own`. Dropping the result waits for
    /// the copy.
    ///
    /// # Errors
    /// If one of the streams is being captured, or another capture forbids this thread to wait; for a context
    /// other than the device's primary one; the errors of [`refuse_pending`](Self::refuse_pending).
    pub(super) fn begin_copy<'a>(
        &'a self,
        own: &CudaStream,
        stream: &'a CudaStream,
    ) -> Result<SyncOnDrop<'a>, DriverError> {
        self.refuse_pending()?;
        let second = self.second_object(stream)?;
        wait_for_own(own, stream).map_err(cuda::driver_error)?;
        Ok(SyncOnDrop::sync_stream(second))
    }

    fn second_object(&self, stream: &CudaStream) -> Result<&Arc<CudaStream>, DriverError> {
        let mut place = &self.0;
        loop {
            match place.get() {
                Some(known) if *known.stream == *stream => return Ok(&known.stream),
                Some(other) => place = &other.next.0,
                None => {
                    // SAFETY: used only by the result of `begin_copy`; it borrows the stream.
                    let stream = unsafe { cuda::second_object(stream) }?;
                    // Another thread may have been first: the loop continues from its element.
                    let (failure, next) = (Mutex::default(), Self::default());
                    let _ = place.set(Box::new(CopyStream { stream, failure, next }));
                }
            }
        }
    }

    /// Refuses if a copy may still be under way, because the wait for it has failed. The stream cannot be
    /// waited for later: it may have been destroyed, and its handle used for another one.
    ///
    /// # Errors
    /// The error of the wait.
    #[inline]
    pub(super) fn refuse_pending(&self) -> Result<(), DriverError> {
        if self.0.get().is_some() { self.check_each() } else { Ok(()) }
    }

    #[cold]
    fn check_each(&self) -> Result<(), DriverError> {
        iter::successors(self.0.get(), |known| known.next.0.get()).try_for_each(|known| {
            // Held while the error is taken: another thread would see none meanwhile.
            let mut failure = lock(&known.failure);
            if failure.is_none() {
                *failure = known.stream.context().check_err().err();
            }
            failure.map_or(Ok(()), Err)
        })
    }
}

/// Waits for `own`, if both streams can be waited for now. The context of `stream` is current afterwards, as
/// cudarc expects.
fn wait_for_own(own: &CudaStream, stream: &CudaStream) -> Result<(), Error> {
    // Waiting would invalidate the capture.
    for stream in [stream, own] {
        cuda::bind_context(stream.context())?;
        cuda::refuse_captured(cuda::COPY, stream)?;
    }
    // Like the later wait for the copy: if a capture elsewhere forbids that wait, it forbids this one.
    cuda::wait_unrelaxed(own)?;
    cuda::bind_context(stream.context())
}
