//! Communicators: one rank's end of a group of GPUs.

mod builder;
mod config;
mod handle;
mod lifecycle;
mod pending;
mod split;
mod suspend;

use std::{cell::OnceCell, ffi::c_int, hash::Hash, sync::Arc, thread};

use cudarc::driver::{CudaEvent, CudaStream};
use nccl_sys::{NCCL_REVOKE_DEFAULT, Nccl, ncclComm_t, ncclResult_t};

use super::{cuda, error::Error, library::Library, nccl_group};

pub use builder::Builder;
pub use config::Config;
pub(crate) use handle::{Guards, Handle, Object, RegisteredMemory, State, overlap};
pub use lifecycle::AbortHandle;
pub use pending::Pending;
pub use split::{Grow, Shrink, Split};
pub use suspend::MemoryStatistics;

/// One rank of a group of GPUs. It may move between threads, but only one uses it at a time; any may use an [`AbortHandle`].
///
/// All [collectives](super::Collectives) run in the order of the calls on the communicator's stream. The host does not wait for
/// them: synchronise the stream, or use the buffers through cudarc, which orders its work after them.
///
/// Dropping it waits for its queued work and destroys it, after its graphs, windows and registrations. It is aborted instead,
/// with a warning in the log, when NCCL has reported an error, when [`Config::deadline`] passes, and while its stream is being
/// captured into a CUDA graph, which waiting would break; and without one when the thread is panicking. [`Communicator::close`]
/// does the same and returns the error. One thread may close several ranks, one after the other.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) handle: Arc<Handle>,
    pub(crate) stream: Arc<CudaStream>,
    /// Orders work of other streams before and after NCCL's. Made when first needed.
    event: OnceCell<Arc<CudaEvent>>,
    rank: usize,
    /// 0 until all ranks have joined.
    size: usize,
}

impl Communicator {
    /// One whose handle NCCL has yet to write. `key` is the same for all its ranks, and for no other communicator.
    fn connecting(library: Library, stream: &Arc<CudaStream>, config: Config, key: impl Hash) -> Self {
        let (handle, stream) = (Handle::new(library, stream, config, key), Arc::clone(stream));
        Self { handle, stream, event: OnceCell::new(), rank: 0, size: 0 }
    }

    /// All ranks have joined.
    fn connected(mut self) -> Result<Self, Error> {
        self.rank = self.ask("ncclCommUserRank", Nccl::ncclCommUserRank)?;
        self.size = self.ask("ncclCommCount", Nccl::ncclCommCount)?;
        Ok(self)
    }

    fn ask(
        &self,
        operation: &'static str,
        function: unsafe fn(&Nccl, ncclComm_t, *mut c_int) -> ncclResult_t,
    ) -> Result<usize, Error> {
        let mut value = 0;
        self.handle.call(operation, State::exists, |raw, comm| {
            // SAFETY: `call` holds the guard, and the handle is alive; the three functions that are passed write one int.
            Ok(unsafe { function(raw, comm, &mut value) })
        })?;
        Ok(usize::try_from(value).unwrap_or(0))
    }

    /// This rank's number, `0..size`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The stream on which the collectives run.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// NCCL's own handle, for functions that this crate does not have (`ncclComm_t`). It must not be destroyed, nor used at the
    /// same time by two threads, or after the communicator has ended; null while NCCL is still connecting.
    #[must_use]
    pub fn as_raw(&self) -> ncclComm_t {
        self.handle.raw_handle()
    }

    /// The library that the communicator belongs to.
    #[must_use]
    pub fn library(&self) -> Library {
        self.handle.library
    }

    /// The number of the CUDA device, as NCCL knows it (`ncclCommCuDevice`).
    ///
    /// # Errors
    /// [`Error::InsideGroup`]; [`Error::Aborted`]; [`Error::Nccl`].
    pub fn device(&self) -> Result<usize, Error> {
        const OPERATION: &str = "ncclCommCuDevice";
        nccl_group::forbid(OPERATION)?;
        self.ask(OPERATION, Nccl::ncclCommCuDevice)
    }

    /// Moves it to another stream of its device, after what is queued on the old one, where graphs captured before stay.
    ///
    /// # Errors
    /// [`Error::Stream`], [`Error::WrongDevice`], [`Error::Cuda`]: it stays on its stream then. [`Error::InsideGroup`].
    pub fn set_stream(&mut self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        const OPERATION: &str = "moving a communicator to another stream";
        nccl_group::forbid(OPERATION)?;
        cuda::check_stream(OPERATION, stream)?;
        self.expect_device(OPERATION, "stream", stream)?;
        cuda::bind(&self.handle.context)?;
        cuda::refuse_captured(OPERATION, &self.stream)?;
        cuda::refuse_captured(OPERATION, stream)?;
        self.make_wait(stream)?;
        self.stream = Arc::clone(stream);
        self.handle.add_stream(stream);
        Ok(())
    }

    /// The failure that NCCL has seen since, if any (`ncclCommGetAsyncError`), of a rank or the network. Cheap enough to poll.
    ///
    /// # Errors
    /// [`Error::Nccl`]: the communicator can only be dropped or aborted then. [`Error::Aborted`]; [`Error::InsideGroup`].
    pub fn async_error(&self) -> Result<(), Error> {
        nccl_group::forbid("ncclCommGetAsyncError")?;
        self.handle.is_finished("an operation in the background").map(drop)
    }

    /// A handle that ends the communicator from any thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.handle))
    }

    /// Stops all operations of this rank, queued, running or hanging, but keeps the communicator, so that it can be split or
    /// shrunk (`ncclCommRevoke`, NCCL 2.28.7). Buffers of stopped operations hold anything. All ranks that go on call it.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.28.7; [`Error::InsideGroup`]; [`Error::Nccl`]; [`Error::Deadline`];
    /// [`Error::Aborted`] and [`Error::Unusable`].
    pub fn revoke(&self) -> Result<(), Error> {
        self.handle.change("ncclCommRevoke", State::Alive, State::Revoked, |raw, comm| {
            // SAFETY: `change` holds the guard, and the handle is alive.
            unsafe { raw.ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT as c_int) }
        })
    }

    /// Waits until all ranks' queued work is done and frees what is only needed for operations (`ncclCommFinalize`): all ranks
    /// call it, and the communicator can only be closed or aborted afterwards, whatever NCCL answers. Its graphs, windows,
    /// registrations and scaled sums end first. [`close`](Self::close) alone does both; this is to see errors before.
    ///
    /// # Errors
    /// [`Error::InsideGroup`]; [`Error::Nccl`]; [`Error::Deadline`]; [`Error::Aborted`] and [`Error::Unusable`].
    /// [`Error::Stream`] while a stream of it is being captured and anything has to end first: nothing has changed then, or, where
    /// the capture began meanwhile, only its graphs have ended.
    pub fn finalize(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommFinalize";
        nccl_group::forbid(OPERATION)?;
        let _released = self.handle.wait_in_state(OPERATION, State::Finalized, || {
            let nothing = self.handle.objects().is_empty();
            // NCCL waits for the queued work itself.
            if nothing { Ok(Vec::new()) } else { self.handle.drain_and_release(OPERATION) }
        })?;
        self.handle.change(OPERATION, State::Finalized, State::Finalized, |raw, comm| {
            // SAFETY: `change` holds the guard, and the handle is alive.
            Ok(unsafe { raw.ncclCommFinalize(comm) })
        })
    }

    /// Waits for the queued work and destroys the communicator (`ncclCommDestroy`), after its graphs, windows and registrations.
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`] when the queued work failed, [`Error::Deadline`] when it took longer than
    /// [`Config::deadline`], [`Error::Stream`] while a stream of it is being captured into a CUDA graph, which waiting would
    /// break: it is aborted then. [`Error::Aborted`] when it was before.
    pub fn close(self) -> Result<(), Error> {
        self.handle.close()
    }

    /// Refuses what is on another device, or in another of its contexts.
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

    /// Makes NCCL's stream wait for what is queued on `other`.
    #[cold]
    pub(crate) fn wait_for(&self, other: &CudaStream) -> Result<(), Error> {
        cuda::order(&*self.event()?, other, &self.stream)
    }

    /// Makes `other` wait for what is queued on NCCL's stream.
    #[cold]
    pub(crate) fn make_wait(&self, other: &CudaStream) -> Result<(), Error> {
        cuda::make_wait(&*self.event()?, &self.stream, other)
    }

    /// The event that orders streams. A wait refers to the latest record before it, so one serves any number of pairs.
    pub(crate) fn event(&self) -> Result<Arc<CudaEvent>, Error> {
        if let Some(event) = self.event.get() {
            return Ok(Arc::clone(event));
        }
        let event = self.stream.context().new_event(None).map_err(Error::cuda("cuEventCreate"))?;
        Ok(Arc::clone(self.event.get_or_init(|| Arc::new(event))))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.handle.is_ending() {
            return;
        }
        let closes = self.size > 0 && !thread::panicking();
        match if closes { self.handle.close() } else { self.handle.abort() } {
            Ok(()) | Err(Error::Aborted { .. }) => {}
            Err(error) => tracing::warn!("dropping a communicator: {error}"),
        }
    }
}
