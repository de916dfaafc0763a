//! Communicators.

mod builder;
mod config;
mod handle;
mod lifecycle;
mod pending;
mod split;
mod suspend;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{cell::OnceCell, ffi::c_int, hash::Hash, thread};

use cudarc::driver::{CudaEvent, CudaStream};
use nccl_sys::{NCCL_REVOKE_DEFAULT, Nccl, ncclComm_t, ncclResult_t};

use super::{cuda, error::Error, library::Library, nccl_group};
use crate::log;

pub use builder::Builder;
pub use config::Config;
pub(crate) use handle::{CommunicatorState, Guards, Handle, Object, RegisteredMemory, ranges_overlap};
pub use lifecycle::AbortHandle;
pub use pending::Pending;
pub use split::{Grow, Shrink, Split};
pub use suspend::MemoryStatistics;

/// One rank of a communicator over GPUs. It may move between threads, but only one thread uses it at a time;
/// any thread may use an [`AbortHandle`].
///
/// All [collectives](super::Collectives) run in the order of the calls on the communicator's stream. The host
/// does not wait for them: synchronise the stream, or use the buffers through cudarc (it orders its work
/// after them).
///
/// Dropping it waits for its queued work and destroys it, after its graphs, windows and registrations. It is
/// aborted instead, with a warning in the log, if NCCL has reported an error, [`Config::deadline`] passes, or
/// its stream is being captured into a CUDA graph (a wait would invalidate the graph); and without a warning
/// if the thread is panicking. [`Communicator::close`] does the same and returns the error. One thread may
/// close several ranks, one after the other.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) handle: Arc<Handle>,
    pub(crate) stream: Arc<CudaStream>,
    /// Orders work of other streams before and after NCCL's. Created on first use.
    event: OnceCell<Arc<CudaEvent>>,
    rank: usize,
    /// 0 until all ranks have joined.
    size: usize,
}

impl Communicator {
    /// Creates a communicator whose handle NCCL has not written yet. `key` is the same for all its ranks, and
    /// unique among communicators.
    fn new_connecting(library: Library, stream: &Arc<CudaStream>, config: Config, key: impl Hash) -> Self {
        let (handle, stream) = (Handle::new(library, stream, config, key), Arc::clone(stream));
        Self { handle, stream, event: OnceCell::new(), rank: 0, size: 0 }
    }

    /// Reads rank and size, once all ranks have joined.
    fn into_connected(mut self) -> Result<Self, Error> {
        self.rank = self.query_count("ncclCommUserRank", Nccl::ncclCommUserRank)?;
        self.size = self.query_count("ncclCommCount", Nccl::ncclCommCount)?;
        // Reads the environment now that NCCL has.
        let _cached = self.handle.is_blocking();
        Ok(self)
    }

    fn query_count(
        &self,
        operation: &'static str,
        function: unsafe fn(&Nccl, ncclComm_t, *mut c_int) -> ncclResult_t,
    ) -> Result<usize, Error> {
        let mut value = 0;
        self.handle.call_in_state(operation, CommunicatorState::allows_queries, |raw, comm| {
            // SAFETY: `call_in_state` holds the guard, and the handle is alive; the passed functions write
            // one int.
            Ok(unsafe { function(raw, comm, &mut value) })
        })?;
        Ok(usize::try_from(value).unwrap_or(0))
    }

    /// This rank, `0..size`.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Stream of the collectives.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// NCCL's handle (`ncclComm_t`), for functions missing in this crate. It must not be destroyed, used by
    /// two threads at the same time, or used after the communicator has ended. Null while NCCL is connecting.
    pub fn as_raw(&self) -> ncclComm_t {
        self.handle.raw_handle()
    }

    /// Library of the communicator.
    pub fn library(&self) -> Library {
        self.handle.library
    }

    /// CUDA device number, from NCCL (`ncclCommCuDevice`).
    ///
    /// # Errors
    /// [`Error::InsideGroup`]; [`Error::Aborted`]; [`Error::Nccl`].
    pub fn device(&self) -> Result<usize, Error> {
        const OPERATION: &str = "ncclCommCuDevice";
        nccl_group::forbid_group(OPERATION)?;
        self.query_count(OPERATION, Nccl::ncclCommCuDevice)
    }

    /// Moves the communicator to another stream of its device, ordered after the queued work of the previous
    /// one. Graphs captured before stay on the previous stream; prepared operations are queued on the new
    /// one.
    ///
    /// # Errors
    /// [`Error::Stream`], [`Error::WrongDevice`], [`Error::Cuda`]: the stream is unchanged then.
    /// [`Error::InsideGroup`].
    pub fn set_stream(&mut self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        const OPERATION: &str = "moving a communicator to another stream";
        nccl_group::forbid_group(OPERATION)?;
        cuda::check_stream(OPERATION, stream)?;
        self.expect_device(OPERATION, "stream", stream)?;
        cuda::bind_context(&self.handle.context)?;
        cuda::refuse_captured(OPERATION, &self.stream)?;
        cuda::refuse_captured(OPERATION, stream)?;
        self.make_wait(stream)?;
        self.stream = Arc::clone(stream);
        self.handle.tracks_own.store(false, Ordering::Relaxed);
        self.handle.add_stream(stream);
        Ok(())
    }

    /// Returns an asynchronous error of a rank or the network, if NCCL has detected one
    /// (`ncclCommGetAsyncError`). Cheap enough to poll.
    ///
    /// # Errors
    /// [`Error::Nccl`]: the communicator can only be dropped or aborted then. [`Error::Aborted`];
    /// [`Error::InsideGroup`].
    pub fn async_error(&self) -> Result<(), Error> {
        nccl_group::forbid_group("ncclCommGetAsyncError")?;
        self.handle.is_finished("an operation in the background").map(drop)
    }

    /// Handle for aborting the communicator from any thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.handle))
    }

    /// Stops all operations of this rank, queued, running or hanging, and keeps the communicator: it can then
    /// be split or shrunk (`ncclCommRevoke`, NCCL 2.28.7). The contents of buffers of stopped operations are
    /// undefined, also on other ranks: operations may complete there. All remaining ranks call it.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.28.7; [`Error::InsideGroup`]; [`Error::Nccl`];
    /// [`Error::Deadline`]; [`Error::Aborted`] and [`Error::Unusable`].
    pub fn revoke(&self) -> Result<(), Error> {
        self.handle.change_state(
            "ncclCommRevoke",
            CommunicatorState::Alive,
            CommunicatorState::Revoked,
            |raw, comm| {
                // SAFETY: `change_state` holds the guard, and the handle is alive.
                unsafe { raw.ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT as c_int) }
            },
        )
    }

    /// Waits until all ranks' queued work is done and frees resources needed only by operations
    /// (`ncclCommFinalize`). All ranks call it. Afterwards the communicator can only be closed or aborted,
    /// even after an error. Its graphs, windows, registrations and scaled sums end first.
    /// [`close`](Self::close) finalizes too; call this to see errors earlier.
    ///
    /// # Errors
    /// [`Error::InsideGroup`]; [`Error::Nccl`]; [`Error::Deadline`]; [`Error::Aborted`] and
    /// [`Error::Unusable`]. [`Error::Stream`] while one of its streams is being captured and dependent
    /// objects have to end first: nothing has changed then, or, if the capture began during the call, only
    /// its graphs have ended.
    pub fn finalize(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommFinalize";
        nccl_group::forbid_group(OPERATION)?;
        let _released = self.handle.wait_in_state(OPERATION, CommunicatorState::Finalized, || {
            let nothing = self.handle.live_objects().is_empty();
            // NCCL waits for the queued work itself.
            if nothing { Ok(Vec::new()) } else { self.handle.drain_and_release(OPERATION) }
        })?;
        self.handle.change_state(
            OPERATION,
            CommunicatorState::Finalized,
            CommunicatorState::Finalized,
            |raw, comm| {
                // SAFETY: `change_state` holds the guard, and the handle is alive.
                Ok(unsafe { raw.ncclCommFinalize(comm) })
            },
        )
    }

    /// Waits for the queued work and destroys the communicator (`ncclCommDestroy`), after its graphs, windows
    /// and registrations.
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`] if the queued work has failed, [`Error::Deadline`] if it took
    /// longer than [`Config::deadline`], [`Error::Stream`] while one of its streams is being captured into a
    /// CUDA graph (a wait would invalidate the graph): the communicator is aborted then. [`Error::Aborted`]
    /// if it was aborted before.
    pub fn close(self) -> Result<(), Error> {
        self.handle.close_communicator()
    }

    /// Waits for the queued work. [`Error::Stream`] while a stream is being captured: a wait is not possible
    /// then.
    pub(crate) fn drain_work(&self) -> Result<(), Error> {
        self.handle.drain_work(lifecycle::CLOSING)
    }

    /// Refuses an object on another device or in another context of the device.
    pub(crate) fn expect_device(
        &self,
        operation: &'static str,
        buffer: &'static str,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let (own, other) = (self.stream.context(), stream.context());
        if own == other {
            return Ok(());
        }
        let (expected, found) = (own.ordinal(), other.ordinal());
        Err(Error::WrongDevice { operation, buffer, expected, found })
    }

    /// Makes `other` wait for the queued work of NCCL's stream.
    #[cold]
    pub(crate) fn make_wait(&self, other: &CudaStream) -> Result<(), Error> {
        cuda::make_wait(&*self.order_event()?, &self.stream, other)
    }

    /// Event for ordering streams. A wait refers to the latest record before it, so one event serves any
    /// number of pairs.
    pub(crate) fn order_event(&self) -> Result<Arc<CudaEvent>, Error> {
        if let Some(event) = self.event.get() {
            return Ok(Arc::clone(event));
        }
        let context = self.stream.context();
        let event = cuda::own_result(context, || context.new_event(None));
        let event = event.map_err(Error::of_cuda("cuEventCreate"))?;
        Ok(Arc::clone(self.event.get_or_init(|| Arc::new(event))))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.handle.is_ending() {
            return;
        }
        let closes = self.size > 0 && !thread::panicking();
        match if closes { self.handle.close_communicator() } else { self.handle.abort_communicator() } {
            Ok(()) | Err(Error::Aborted { .. }) => {}
            Err(error) => log::warn(format_args!("dropping a communicator: {error}")),
        }
    }
}
