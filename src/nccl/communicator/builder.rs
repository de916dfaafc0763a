//! Creation of a communicator.

use std::{ffi::c_int, ptr, sync::Arc};

use cudarc::driver::CudaStream;
use nccl_sys::{Nccl, Version, ncclComm_t, ncclConfig_t};

use super::{Communicator, Config, Pending, pending::Started};
use crate::nccl::library::{CallResult, Library};
use crate::nccl::{cuda, error::Error, nccl_group, unique_id::UniqueId};

/// First NCCL that accesses other ranks' buffers directly only if they are registered.
const DIRECT_ONLY_WHEN_REGISTERED: Version = Version::new(2, 23, 0);

const INIT: &str = "ncclCommInitRankConfig";
const GROW: &str = "ncclCommGrow";

/// Builder of a communicator, from [`Communicator::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `init`, `init_pending` or `join`"]
pub struct Builder<'a> {
    library: Library,
    stream: &'a Arc<CudaStream>,
    rank: usize,
    size: usize,
    ids: Vec<UniqueId>,
    config: Config,
}

impl Communicator {
    /// Builds a communicator on the device of the stream. By default it has a single rank.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use collectives::nccl::{Communicator, Config, Error, Library, UniqueId};
    /// # use cudarc::driver::CudaStream;
    /// # fn example(
    /// #     library: Library, stream: &Arc<CudaStream>, rank: usize, size: usize, id: &UniqueId,
    /// # ) -> Result<(), Error> {
    /// let communicator = Communicator::builder(library, stream).rank(rank, size).id(id).init()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(library: Library, stream: &Arc<CudaStream>) -> Builder<'_> {
        Builder { library, stream, rank: 0, size: 1, ids: Vec::new(), config: Config::new() }
    }

    /// Creates a communicator per stream in one thread: rank `i` is on `streams[i]`, each on a device of its
    /// own. See [`Builder::init`].
    pub fn init_all(
        library: Library,
        streams: &[Arc<CudaStream>],
        config: &Config,
    ) -> Result<Vec<Self>, Error> {
        nccl_group::forbid_group(INIT)?;
        let id = UniqueId::new(library)?;
        let size = streams.len();
        let rank = |(rank, stream)| Self::builder(library, stream).rank(rank, size).id(&id).config(config);
        let ranks: Vec<_> = streams.iter().enumerate().map(rank).collect();
        // Non-blocking ones may still be connecting after the end of the group.
        let pending = Pending::start_group(Some(library), [], ranks, |rank, _| rank.start_init())?;
        pending.into_iter().map(Pending::wait_for_rank).collect()
    }
}

impl Builder<'_> {
    /// This rank and the number of ranks.
    pub fn rank(mut self, rank: usize, size: usize) -> Self {
        (self.rank, self.size) = (rank, size);
        self
    }

    /// Id for the ranks to find each other. A single rank needs none.
    pub fn id(mut self, id: &UniqueId) -> Self {
        self.ids.push(*id);
        self
    }

    /// Several [ids](Self::id), each created by another rank, for a faster connection of thousands of ranks
    /// (`ncclCommInitRankScalable`, NCCL 2.23). All ranks pass the same ids in the same order.
    pub fn ids(mut self, ids: &[UniqueId]) -> Self {
        self.ids.extend(ids);
        self
    }

    /// Configuration.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = config.clone();
        self
    }

    /// Joins the communicator (`ncclCommInitRankConfig`) and waits for the other ranks; see
    /// [`Config::deadline`].
    ///
    /// # Errors
    /// - Before anything is started: [`Error::Rank`]; [`Error::Argument`] for the number of ids;
    ///   [`Error::TooOld`]; [`Error::Stream`] for a per-thread default stream, or a context other than the
    ///   device's primary one (NCCL uses this one); [`Error::MissingSymbol`] for several ids before NCCL
    ///   2.23; [`Error::InsideGroup`]: see [`Communicator::init_all`].
    /// - [`Error::Nccl`], [`Error::Deadline`] if connecting fails.
    pub fn init(self) -> Result<Communicator, Error> {
        Pending::start(INIT, || self.start_init())?.wait_for_rank()
    }

    /// Like [`init`](Self::init), but returns immediately: NCCL connects on a thread of its own
    /// (`Config::blocking(false)`).
    pub fn init_pending(mut self) -> Result<Pending, Error> {
        self.config = self.config.blocking(false);
        Pending::start(INIT, || self.start_init())
    }

    /// Joins a [growing](Communicator::grow) communicator as a new rank, with the id of
    /// [`Communicator::grow_id`] (`ncclCommGrow`, NCCL 2.29). Errors are those of [`init`](Self::init).
    pub fn join(self) -> Result<Communicator, Error> {
        nccl_group::forbid_group(GROW)?;
        let [id] = self.ids[..] else { return Err(self.wrong_ids(GROW)) };
        let ((rank, size), id) = (self.raw_rank()?, id.raw_id());
        let call = |raw: &Nccl, slot, config: &mut ncclConfig_t| {
            // SAFETY: see `start_with`; a joining rank has no communicator yet.
            unsafe { raw.ncclCommGrow(ptr::null_mut(), size, &id, rank, slot, config) }
        };
        Pending::start(GROW, || self.start_with(GROW, call))?.wait_for_rank()
    }

    fn start_init(mut self) -> Started {
        let (rank, size) = self.raw_rank()?;
        if self.ids.is_empty() && self.size == 1 {
            self.ids.push(UniqueId::new(self.library)?);
        }
        if self.ids.is_empty() || self.ids.len() > self.size {
            return Err(self.wrong_ids(INIT));
        }
        let mut ids: Vec<_> = self.ids.iter().map(UniqueId::raw_id).collect();
        let count = ids.len() as c_int;
        let name = if count == 1 { INIT } else { "ncclCommInitRankScalable" };
        // SAFETY: see `start_with`; the number of ids is right and at most the number of ranks, and NCCL
        // copies them.
        self.start_with(name, |raw, slot, config| unsafe {
            match ids[..] {
                [id] => Ok(raw.ncclCommInitRankConfig(slot, size, id, rank, config)),
                _ => raw.ncclCommInitRankScalable(slot, size, rank, count, ids.as_mut_ptr(), config),
            }
        })
    }

    fn wrong_ids(&self, operation: &'static str) -> Error {
        let (count, size) = (self.ids.len(), self.size);
        let rule = "there must be at least one, at most one for each rank, and exactly one for a \
                    communicator that grows";
        Error::bad_argument(operation, format!("{count} unique ids for {size} ranks: {rule}"))
    }

    fn raw_rank(&self) -> Result<(c_int, c_int), Error> {
        let &Self { rank, size, .. } = self;
        match (c_int::try_from(rank), c_int::try_from(size)) {
            (Ok(raw_rank), Ok(raw_size)) if rank < size => Ok((raw_rank, raw_size)),
            _ => Err(Error::Rank { rank, size }),
        }
    }

    /// If creation fails, dropping the communicator aborts it.
    fn start_with(
        self,
        name: &'static str,
        call: impl FnOnce(&'static Nccl, *mut ncclComm_t, &mut ncclConfig_t) -> CallResult,
    ) -> Started {
        let Self { library, stream, .. } = self;
        cuda::check_stream(name, stream)?;
        let mut raw = self.config.raw_config(library)?;
        cuda::bind_context(stream.context())?;
        if library.version() < DIRECT_ONLY_WHEN_REGISTERED {
            cuda::share_pool(stream.context())?;
        }
        let communicator = Communicator::new_connecting(library, stream, self.config, self.ids);
        // The handle, with the slot and the configuration's strings, outlives NCCL's object. The right device
        // is current.
        let code = call(library.raw(), communicator.handle.slot.as_ptr(), &mut raw)?;
        Pending::new(name, communicator, code, None)
    }
}
