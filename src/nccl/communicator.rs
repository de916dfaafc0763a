//! Communicators: one rank's end of a group of GPUs.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaEvent, CudaStream, DriverError};
use nccl_sys::{Version, ncclResult_t};

use super::abort::{AbortHandle, Shared, Waiting};
use super::config::Config;
use super::cuda;
use super::error::Error;
use super::group;
use super::library::Library;
use super::pending::Pending;
use super::unique_id::UniqueId;

/// From here on NCCL accesses other ranks' buffers directly only when they are registered.
const DIRECT_ONLY_WHEN_REGISTERED: Version = Version::new(2, 23, 0);

/// One rank of a group of GPUs. It may move between threads, but only one uses it at a time; an [`AbortHandle`] may be
/// used by any.
///
/// All collectives run in the order of the calls on the communicator's stream. The host does not wait for them:
/// synchronise the stream, or use the buffers through cudarc, which orders its work after them.
///
/// Dropping it waits for its queued work and destroys it; when NCCL has reported an error, the deadline of
/// [`Config::deadline`] passes, or the thread is panicking, it is aborted instead. [`Communicator::close`] does the same
/// and returns the error. Ranks of one process may close one after the other, in one thread.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stream: Arc<CudaStream>,
    /// Orders work of other streams before and after NCCL's. Made when first needed.
    event: OnceCell<CudaEvent>,
    rank: usize,
    size: usize,
    /// How it ends when it is dropped.
    end: End,
}

/// What is left to do for a communicator that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It never came to life.
    Abort,
    Close,
    Nothing,
}

impl Communicator {
    /// Joins the communicator of this id as `rank` of `size`, on the device of the stream
    /// (`ncclCommInitRankConfig`). Returns when all ranks have joined; with [`Config::deadline`] and
    /// `Config::blocking(false)` at the latest then.
    ///
    /// # Errors
    /// - [`Error::Rank`], [`Error::ConfigTooNew`], [`Error::Stream`] (a per-thread default stream, or a context that is
    ///   not the device's primary one: NCCL uses that) before anything is started.
    /// - [`Error::Nccl`], [`Error::Deadline`] when connecting fails.
    /// - [`Error::InsideGroup`] inside a [`group`](super::group()): use [`Communicator::init_all`] for the ranks of
    ///   one thread.
    pub fn init(
        library: Library,
        stream: &Arc<CudaStream>,
        rank: usize,
        size: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Self, Error> {
        group::forbid(INIT)?;
        let (communicator, code) = Self::start(library, stream, rank, size, id, config)?;
        communicator.joined(code, config.limit())
    }

    /// As [`Communicator::init`], but returns at once: NCCL connects on a thread of its own. The communicator is
    /// non-blocking (`Config::blocking(false)`).
    ///
    /// # Errors
    /// As [`Communicator::init`], where the failure is seen at once.
    pub fn init_pending(
        library: Library,
        stream: &Arc<CudaStream>,
        rank: usize,
        size: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Pending, Error> {
        group::forbid(INIT)?;
        let config = config.clone().blocking(false);
        let (communicator, code) = Self::start(library, stream, rank, size, id, &config)?;
        if code != ncclResult_t::ncclInProgress {
            library.check(INIT, code)?;
        }
        Ok(Pending::new(INIT, communicator))
    }

    /// One communicator over all these streams, each of another device, in one thread: rank `i` is on `streams[i]`.
    ///
    /// # Errors
    /// As [`Communicator::init`].
    pub fn init_all(
        library: Library,
        streams: &[Arc<CudaStream>],
        config: &Config,
    ) -> Result<Vec<Self>, Error> {
        group::forbid(INIT)?;
        let id = UniqueId::new(library)?;
        let started = group::raw(library, || {
            let ranks = streams.iter().enumerate();
            let start = |(rank, stream)| {
                let (communicator, code) = Self::start(library, stream, rank, streams.len(), &id, config)?;
                if code != ncclResult_t::ncclInProgress {
                    library.check(INIT, code)?;
                }
                Ok(communicator)
            };
            ranks.map(start).collect()
        });
        let started: Vec<Self> = started?;
        // Non-blocking ones may still be connecting; whether they are is seen only now.
        let join = |communicator: Self| communicator.joined(ncclResult_t::ncclInProgress, config.limit());
        started.into_iter().map(join).collect()
    }

    /// Calls NCCL. A communicator that does not come to life aborts what there is of it when dropped.
    fn start(
        library: Library,
        stream: &Arc<CudaStream>,
        rank: usize,
        size: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<(Self, ncclResult_t), Error> {
        let (Ok(raw_rank), Ok(raw_size), true) = (i32::try_from(rank), i32::try_from(size), rank < size)
        else {
            return Err(Error::Rank { rank, size });
        };
        check_stream(stream)?;
        let context = stream.context();
        let shared = Shared::new(library, Arc::clone(context), config.clone());
        let mut raw = shared.config.raw(library)?;
        cuda::bind(context)?;
        if library.version() < DIRECT_ONLY_WHEN_REGISTERED {
            cuda::share_pool(context)?;
        }
        let communicator = Self {
            shared: Arc::clone(&shared),
            stream: Arc::clone(stream),
            event: OnceCell::new(),
            rank,
            size,
            end: End::Abort,
        };
        // SAFETY: the slot and the texts of the configuration live in `shared`, which outlives NCCL's object: whoever
        // drops the last handle has aborted or destroyed it first. The right device is current.
        let code = unsafe {
            library.raw().ncclCommInitRankConfig(shared.slot(), raw_size, id.raw(), raw_rank, &mut raw)
        };
        Ok((communicator, code))
    }

    fn joined(self, code: ncclResult_t, limit: Option<Duration>) -> Result<Self, Error> {
        match code {
            ncclResult_t::ncclInProgress => self.shared.settle(INIT, limit)?,
            code => self.shared.library.check(INIT, code)?,
        }
        Ok(self.ready())
    }

    /// All ranks have joined.
    pub(crate) fn ready(mut self) -> Self {
        self.end = End::Close;
        self
    }

    /// This rank's number, `0..size`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The stream on which the collectives run.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The library that the communicator belongs to.
    #[must_use]
    pub fn library(&self) -> Library {
        self.shared.library
    }

    /// Whether NCCL has seen a failure since (`ncclCommGetAsyncError`): another rank that died, or the network. Cheap:
    /// for polling loops while waiting for the stream.
    ///
    /// # Errors
    /// [`Error::Nccl`] with the failure: the communicator can only be dropped or aborted then. [`Error::Aborted`];
    /// [`Error::InsideGroup`].
    pub fn async_error(&self) -> Result<(), Error> {
        const OPERATION: &str = "an operation in the background";
        group::forbid("ncclCommGetAsyncError")?;
        match self.shared.progress("ncclCommGetAsyncError")? {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            code => Err(self.shared.library.failure(OPERATION, code)),
        }
    }

    /// A handle that ends the communicator from any thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(&self.shared)
    }

    /// Waits for the queued work and destroys the communicator (`ncclCommDestroy`).
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`] when the queued work failed, [`Error::Deadline`] when it did not finish within
    /// [`Config::deadline`]: it is aborted then. [`Error::Aborted`] when it was before.
    /// [`Error::InsideGroup`] inside a [`group`](super::group()): it is closed when the group ends.
    pub fn close(mut self) -> Result<(), Error> {
        group::forbid("ncclCommDestroy")?;
        self.end = End::Nothing;
        close(&self.shared, &self.stream)
    }

    /// Makes NCCL's stream wait for what is queued on `other`.
    #[cold]
    pub(crate) fn follow(&self, other: &CudaStream) -> Result<(), Error> {
        self.order(other, &self.stream).map_err(Error::cuda("cuStreamWaitEvent"))
    }

    /// Makes `other` wait for what is queued on NCCL's stream.
    #[cold]
    pub(crate) fn lead(&self, other: &CudaStream) -> Result<(), Error> {
        self.order(&self.stream, other).map_err(|error| {
            // Memory of `other` may be freed in its order from now on: NCCL has to be done with it.
            let _already_failing = cuda::wait(&self.stream);
            Error::Cuda { operation: "cuStreamWaitEvent", error }
        })
    }

    fn order(&self, first: &CudaStream, second: &CudaStream) -> Result<(), DriverError> {
        let event = match self.event.get() {
            Some(event) => event,
            None => {
                let event = self.stream.context().new_event(None)?;
                self.event.get_or_init(|| event)
            }
        };
        // A wait refers to the latest record before it, so one event serves any number of pairs.
        event.record(first)?;
        second.wait(event)
    }
}

/// NCCL's function that makes communicators.
const INIT: &str = "ncclCommInitRankConfig";

fn check_stream(stream: &CudaStream) -> Result<(), Error> {
    if !stream.context().is_primary() {
        let reason = "the stream's context is not its device's primary context, which NCCL uses; make it with \
                      CudaContext::new";
        return Err(Error::Stream { operation: INIT, reason });
    }
    cuda::refuse_per_thread(INIT, stream)
}

fn close(shared: &Shared, stream: &CudaStream) -> Result<(), Error> {
    match drain(shared, stream) {
        Ok(()) => shared.destroy(),
        Err(error) => {
            if let Err(second) = shared.abort("ncclCommAbort") {
                tracing::warn!("aborting a failed communicator: {second}");
            }
            Err(error)
        }
    }
}

/// Waits until the stream has no work left, as long as NCCL reports no error.
fn drain(shared: &Shared, stream: &CudaStream) -> Result<(), Error> {
    const OPERATION: &str = "closing the communicator";
    let mut waiting = Waiting::new(shared.config.limit());
    cuda::bind(&shared.context)?;
    loop {
        let idle = match shared.progress(OPERATION)? {
            ncclResult_t::ncclSuccess => true,
            ncclResult_t::ncclInProgress => false,
            code => return Err(shared.library.failure(OPERATION, code)),
        };
        // SAFETY: the stream is alive and its context current.
        match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
            CUresult::CUDA_SUCCESS if idle => return Ok(()),
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY => {}
            code => return Err(Error::Cuda { operation: "cuStreamQuery", error: DriverError(code) }),
        }
        waiting.pause().map_err(|limit| Error::Deadline { operation: OPERATION, limit })?;
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.end == End::Nothing {
            return;
        }
        let (end, shared, stream) = (self.end, Arc::clone(&self.shared), Arc::clone(&self.stream));
        group::after(move || {
            let result = if end == End::Abort || std::thread::panicking() {
                shared.abort("ncclCommAbort")
            } else {
                close(&shared, &stream)
            };
            match result {
                Ok(()) | Err(Error::Aborted { .. }) => {}
                Err(error) => tracing::warn!("dropping a communicator: {error}"),
            }
        });
    }
}
