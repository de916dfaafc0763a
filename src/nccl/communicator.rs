//! Communicators: one rank's end of a group of GPUs.

use std::cell::OnceCell;
use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaEvent, CudaStream, DriverError};
use nccl_sys::{MissingSymbol, NCCL_REVOKE_DEFAULT, Nccl, Version, ncclComm_t, ncclConfig_t, ncclResult_t};

use super::abort::{AbortHandle, Shared, State, Waiting};
use super::config::Config;
use super::cuda;
use super::error::Error;
use super::group;
use super::inside;
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
    /// - [`Error::Rank`], [`Error::TooOld`], [`Error::Stream`] (a per-thread default stream, or a context that is
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
        inside::forbid(INIT)?;
        Self::start(library, stream, rank, size, config, with_id(id))?.join()
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
        inside::forbid(INIT)?;
        Self::start(library, stream, rank, size, &config.clone().blocking(false), with_id(id))
    }

    /// As [`Communicator::init`], with several ids, each made by another rank: thousands of ranks find each other faster
    /// than through one (`ncclCommInitRankScalable`, NCCL 2.23). All ranks pass the same ids in the same order.
    ///
    /// # Errors
    /// As [`Communicator::init`]; [`Error::MissingSymbol`] before NCCL 2.23; [`Error::Ids`] for no id or more ids than
    /// ranks.
    pub fn init_scalable(
        library: Library,
        stream: &Arc<CudaStream>,
        rank: usize,
        size: usize,
        ids: &[UniqueId],
        config: &Config,
    ) -> Result<Self, Error> {
        inside::forbid(INIT_SCALABLE)?;
        let mut raw_ids: Vec<_> = ids.iter().map(UniqueId::raw).collect();
        let count = i32::try_from(ids.len()).ok().filter(|_| (1..=size).contains(&ids.len()));
        let count = count.ok_or(Error::Ids { count: ids.len(), size })?;
        let init = Init {
            name: INIT_SCALABLE,
            call: |raw: &Nccl, Place { slot, rank, size }: Place, config: &mut _| {
                // SAFETY: see `start`; there are so many ids, which NCCL copies.
                unsafe { raw.ncclCommInitRankScalable(slot, size, rank, count, raw_ids.as_mut_ptr(), config) }
            },
        };
        Self::start(library, stream, rank, size, config, init)?.join()
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
        inside::forbid(INIT)?;
        let id = UniqueId::new(library)?;
        let (_, started): (_, Vec<Pending>) = group::raw(library, || {
            let ranks = streams.iter().enumerate();
            let size = streams.len();
            let start = |(rank, stream)| Self::start(library, stream, rank, size, config, with_id(&id));
            ranks.map(start).collect()
        })?;
        // Non-blocking ones may still be connecting; whether they are is seen only now.
        started.into_iter().map(Pending::join).collect()
    }

    /// Calls NCCL. A communicator that does not come to life aborts what there is of it when dropped.
    pub(crate) fn start<F>(
        library: Library,
        stream: &Arc<CudaStream>,
        rank: usize,
        size: usize,
        config: &Config,
        init: Init<F>,
    ) -> Result<Pending, Error>
    where
        F: FnOnce(&'static Nccl, Place, &mut ncclConfig_t) -> Result<ncclResult_t, MissingSymbol>,
    {
        let (Ok(raw_rank), Ok(raw_size), true) = (c_int::try_from(rank), c_int::try_from(size), rank < size)
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
        let communicator = Self::unborn(shared, stream, rank, size);
        // The slot and the texts of the configuration live in `shared`, which outlives NCCL's object: whoever drops the
        // last handle has aborted or destroyed it first. The right device is current.
        let place = Place { slot: communicator.shared.slot(), rank: raw_rank, size: raw_size };
        let code = (init.call)(library.raw(), place, &mut raw)?;
        if code != ncclResult_t::ncclInProgress {
            library.check(init.name, code)?;
        }
        Ok(Pending::new(init.name, communicator))
    }

    /// One whose handle NCCL has yet to write.
    pub(crate) fn unborn(shared: Arc<Shared>, stream: &Arc<CudaStream>, rank: usize, size: usize) -> Self {
        Self { shared, stream: Arc::clone(stream), event: OnceCell::new(), rank, size, end: End::Abort }
    }

    /// All ranks have joined.
    pub(crate) fn ready(mut self) -> Self {
        self.end = End::Close;
        self
    }

    /// All ranks have joined: NCCL says which of them this is.
    pub(crate) fn ready_as_nccl_says(mut self) -> Result<Self, Error> {
        self.rank = self.ask("ncclCommUserRank", Nccl::ncclCommUserRank)?;
        self.size = self.ask("ncclCommCount", Nccl::ncclCommCount)?;
        Ok(self.ready())
    }

    fn ask(
        &self,
        operation: &'static str,
        function: unsafe fn(&Nccl, ncclComm_t, *mut c_int) -> ncclResult_t,
    ) -> Result<usize, Error> {
        let mut value = 0;
        // SAFETY: `ask` holds the guard, and the handle is alive; the three functions that are passed write one int.
        self.shared.ask(operation, |raw, handle| Ok(unsafe { function(raw, handle, &mut value) }))?;
        Ok(usize::try_from(value).unwrap_or(0))
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

    /// NCCL's own handle, for functions that this crate does not have (`ncclComm_t`). It must not be destroyed, nor used
    /// at the same time by two threads, or after the communicator has ended; null while NCCL is still connecting.
    #[must_use]
    pub fn as_raw(&self) -> ncclComm_t {
        self.shared.made()
    }

    /// The library that the communicator belongs to.
    #[must_use]
    pub fn library(&self) -> Library {
        self.shared.library
    }

    /// The number of the CUDA device, as NCCL knows it (`ncclCommCuDevice`).
    ///
    /// # Errors
    /// [`Error::InsideGroup`]; [`Error::Aborted`]; [`Error::Nccl`].
    pub fn device(&self) -> Result<usize, Error> {
        const OPERATION: &str = "ncclCommCuDevice";
        inside::forbid(OPERATION)?;
        self.ask(OPERATION, Nccl::ncclCommCuDevice)
    }

    /// Moves it to another stream of the same device. Work that is queued on the old one comes first.
    ///
    /// # Errors
    /// [`Error::Stream`], [`Error::WrongDevice`], [`Error::Cuda`]: the communicator is closed then.
    pub fn on_stream(mut self, stream: &Arc<CudaStream>) -> Result<Self, Error> {
        const OPERATION: &str = "moving a communicator to another stream";
        inside::forbid(OPERATION)?;
        check_stream(stream)?;
        self.expect_device(OPERATION, "stream", stream)?;
        cuda::bind(&self.shared.context)?;
        cuda::refuse_captured(OPERATION, &self.stream)?;
        cuda::refuse_captured(OPERATION, stream)?;
        self.lead(stream)?;
        self.stream = Arc::clone(stream);
        Ok(self)
    }

    /// Whether NCCL has seen a failure since (`ncclCommGetAsyncError`): another rank that died, or the network. Cheap:
    /// for polling loops while waiting for the stream.
    ///
    /// # Errors
    /// [`Error::Nccl`] with the failure: the communicator can only be dropped or aborted then. [`Error::Aborted`];
    /// [`Error::InsideGroup`].
    pub fn async_error(&self) -> Result<(), Error> {
        const OPERATION: &str = "an operation in the background";
        inside::forbid("ncclCommGetAsyncError")?;
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

    /// Stops all operations of this rank, queued, running or hanging, but keeps the communicator, so that it can be split
    /// or shrunk (`ncclCommRevoke`, NCCL 2.28.7). Buffers of stopped operations hold anything. All ranks that go on call
    /// it.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.28.7; [`Error::InsideGroup`]; [`Error::Nccl`]; [`Error::Deadline`];
    /// [`Error::Aborted`] and [`Error::Unusable`].
    pub fn revoke(&self) -> Result<(), Error> {
        self.shared.change("ncclCommRevoke", &[State::Alive], State::Revoked, |raw, handle| {
            // SAFETY: `change` holds the guard, and the handle is alive.
            Ok(unsafe { raw.ncclCommRevoke(handle, NCCL_REVOKE_DEFAULT as c_int) }?)
        })
    }

    /// Waits until all ranks' queued work is done and frees what is only needed for operations (`ncclCommFinalize`): all
    /// ranks call it, and the communicator can only be closed afterwards. [`close`](Self::close) alone does both; this
    /// is for those who want to know that all is well before they close.
    ///
    /// # Errors
    /// [`Error::Unusable`] as long as there are graphs of the communicator; [`Error::InsideGroup`]; [`Error::Nccl`];
    /// [`Error::Deadline`]; [`Error::Aborted`].
    pub fn finalize(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommFinalize";
        if self.shared.has_graphs() {
            let reason = "there are CUDA graphs of it: drop them first";
            return Err(Error::Unusable { operation: OPERATION, reason });
        }
        self.shared.change(OPERATION, &[State::Alive], State::Finalized, |raw, handle| {
            // SAFETY: `change` holds the guard, and the handle is alive.
            Ok(unsafe { raw.ncclCommFinalize(handle) })
        })
    }

    /// Waits for the queued work and destroys the communicator (`ncclCommDestroy`).
    ///
    /// # Errors
    /// [`Error::Nccl`] or [`Error::Cuda`] when the queued work failed, [`Error::Deadline`] when it did not finish within
    /// [`Config::deadline`]: it is aborted then. [`Error::Aborted`] when it was before.
    /// [`Error::InsideGroup`] inside a [`group`](super::group()): it is closed when the group ends.
    pub fn close(mut self) -> Result<(), Error> {
        inside::forbid("ncclCommDestroy")?;
        self.end = End::Nothing;
        close(&self.shared, &self.stream)
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
const INIT_SCALABLE: &str = "ncclCommInitRankScalable";

/// Where NCCL shall write the new handle, and which rank it is for.
pub(crate) struct Place {
    pub(crate) slot: *mut ncclComm_t,
    pub(crate) rank: c_int,
    pub(crate) size: c_int,
}

/// A function of NCCL that makes a communicator.
pub(crate) struct Init<F> {
    pub(crate) name: &'static str,
    pub(crate) call: F,
}

/// With the id that another rank has sent.
fn with_id(
    id: &UniqueId,
) -> Init<impl FnOnce(&'static Nccl, Place, &mut ncclConfig_t) -> Result<ncclResult_t, MissingSymbol>> {
    let id = id.raw();
    let call = move |raw: &'static Nccl, Place { slot, rank, size }: Place, config: &mut ncclConfig_t| {
        // SAFETY: see `Communicator::start`.
        Ok(unsafe { raw.ncclCommInitRankConfig(slot, size, id, rank, config) })
    };
    Init { name: INIT, call }
}

fn check_stream(stream: &CudaStream) -> Result<(), Error> {
    if !stream.context().is_primary() {
        let reason = "the stream's context is not its device's primary context, which NCCL uses; make it with \
                      CudaContext::new";
        return Err(Error::Stream { operation: INIT, reason });
    }
    cuda::refuse_per_thread(INIT, stream)
}

fn close(shared: &Shared, stream: &CudaStream) -> Result<(), Error> {
    drain_or_abort(shared, stream)?;
    shared.destroy()
}

/// As [`drain`], but a communicator that fails is aborted.
pub(crate) fn drain_or_abort(shared: &Shared, stream: &CudaStream) -> Result<(), Error> {
    drain(shared, stream).inspect_err(|_| {
        if let Err(second) = shared.abort("ncclCommAbort") {
            tracing::warn!("aborting a failed communicator: {second}");
        }
    })
}

/// Waits until the stream has no work left, as long as NCCL reports no error.
pub(crate) fn drain(shared: &Shared, stream: &CudaStream) -> Result<(), Error> {
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
        inside::after(move || {
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
