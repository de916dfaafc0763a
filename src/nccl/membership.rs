//! Communicators from communicators: parts of one, one without some ranks, one with more.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::{
    MissingSymbol, NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, NCCL_SPLIT_NOCOLOR, Nccl, ncclComm_t,
    ncclConfig_t, ncclResult_t, ncclUniqueId,
};

use super::abort::{Shared, State, unusable};
use super::communicator::{Communicator, Init, Place};
use super::config::Config;
use super::cuda;
use super::error::Error;
use super::group;
use super::inside;
use super::library::Library;
use super::pending::Pending;
use super::unique_id::UniqueId;

const SPLIT: &str = "ncclCommSplit";
const SHRINK: &str = "ncclCommShrink";
const GROW: &str = "ncclCommGrow";

/// What [`Communicator::shrink`] does about operations that have not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkMode {
    /// The excluded ranks are well, and nothing is in flight (`NCCL_SHRINK_DEFAULT`).
    Default,
    /// Ends what is in flight first: for ranks that have died (`NCCL_SHRINK_ABORT`). Buffers of ended operations hold
    /// anything.
    Abort,
}

/// A rank's place in [`Communicator::split`]: the ranks of one color form a communicator, ordered by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitKey {
    /// 0 to 2147483647; none for a rank that does not take part.
    pub color: Option<i32>,
    /// Lower keys have lower ranks; equal ones keep their order.
    pub key: i32,
}

// The configuration of all of these: none inherits the communicator's.
impl Communicator {
    /// A communicator of the ranks with the same color, on this one's stream; none for ranks without a color
    /// (`ncclCommSplit`, NCCL 2.18). All ranks call it. Without a configuration it has this communicator's. See
    /// [`split_all`](Self::split_all) for several ranks in one thread.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error};
    /// # fn example(communicator: &Communicator) -> Result<(), Error> {
    /// let half = (communicator.rank() * 2 / communicator.size()) as i32;
    /// let half = communicator.split(Some(half), 0, None)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Color`] for a negative color; [`Error::TooOld`] for the configuration; [`Error::Nccl`];
    /// [`Error::Deadline`]; [`Error::InsideGroup`]; [`Error::Aborted`] and [`Error::Unusable`].
    pub fn split(
        &self,
        color: Option<i32>,
        key: i32,
        config: Option<&Config>,
    ) -> Result<Option<Self>, Error> {
        inside::forbid(SPLIT)?;
        self.start_split(SplitKey { color, key }, config)?.join_part()
    }

    /// As [`split`](Self::split) for a rank that takes part, but returns at once where this communicator is non-blocking.
    /// Until it has finished, this communicator takes no operations.
    ///
    /// # Errors
    /// As [`split`](Self::split), where the failure is seen at once.
    pub fn split_pending(&self, color: i32, key: i32, config: Option<&Config>) -> Result<Pending, Error> {
        inside::forbid(SPLIT)?;
        self.start_split(SplitKey { color: Some(color), key }, config)
    }

    /// [`split`](Self::split) for several ranks in one thread: each communicator with its color and key, in order.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn split_all<'a>(
        library: Library,
        ranks: impl IntoIterator<Item = (&'a Self, SplitKey)>,
        config: Option<&Config>,
    ) -> Result<Vec<Option<Self>>, Error> {
        let start = |(communicator, key): (&Self, SplitKey)| communicator.start_split(key, config);
        let (_, started): (_, Vec<_>) = group::raw(library, || ranks.into_iter().map(start).collect())?;
        started.into_iter().map(Pending::join_part).collect()
    }

    /// A communicator without some ranks, on this one's stream (`ncclCommShrink`, NCCL 2.27). All other ranks call it,
    /// with the same list; the excluded ones, if they still live, do not. Without a configuration it has this
    /// communicator's.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error, ShrinkMode};
    /// # fn example(communicator: Communicator) -> Result<(), Error> {
    /// // Rank 3 has died.
    /// let rest = communicator.shrink(&[3], ShrinkMode::Abort, None)?;
    /// communicator.abort_handle().abort()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Exclude`] for an empty list, this rank, or one that there is not; [`Error::MissingSymbol`] before NCCL
    /// 2.27; otherwise as [`split`](Self::split).
    pub fn shrink(
        &self,
        exclude: &[usize],
        mode: ShrinkMode,
        config: Option<&Config>,
    ) -> Result<Self, Error> {
        inside::forbid(SHRINK)?;
        self.start_shrink(exclude, mode, config)?.join()
    }

    /// As [`shrink`](Self::shrink), but returns at once where this communicator is non-blocking.
    ///
    /// # Errors
    /// As [`shrink`](Self::shrink), where the failure is seen at once.
    pub fn shrink_pending(
        &self,
        exclude: &[usize],
        mode: ShrinkMode,
        config: Option<&Config>,
    ) -> Result<Pending, Error> {
        inside::forbid(SHRINK)?;
        self.start_shrink(exclude, mode, config)
    }

    /// [`shrink`](Self::shrink) for several remaining ranks in one thread.
    ///
    /// # Errors
    /// As [`shrink`](Self::shrink).
    pub fn shrink_all<'a>(
        library: Library,
        ranks: impl IntoIterator<Item = &'a Self>,
        exclude: &[usize],
        mode: ShrinkMode,
        config: Option<&Config>,
    ) -> Result<Vec<Self>, Error> {
        let start = |communicator: &Self| communicator.start_shrink(exclude, mode, config);
        let (_, started): (_, Vec<_>) = group::raw(library, || ranks.into_iter().map(start).collect())?;
        started.into_iter().map(Pending::join).collect()
    }

    /// An id by which new ranks find this communicator, for one [`grow`](Self::grow) (`ncclCommGetUniqueId`, NCCL 2.29).
    /// One rank makes it and sends it to the new ones.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::Nccl`]; [`Error::InsideGroup`]; [`Error::Aborted`] and
    /// [`Error::Unusable`].
    pub fn grow_id(&self) -> Result<UniqueId, Error> {
        const OPERATION: &str = "ncclCommGetUniqueId";
        inside::forbid(OPERATION)?;
        cuda::bind(&self.shared.context)?;
        let mut id = UniqueId::from_bytes([0; UniqueId::BYTES]).raw();
        self.shared.call(OPERATION, |raw, handle| {
            // SAFETY: `call` holds the guard, and the handle is alive; writes one id.
            unsafe { raw.ncclCommGetUniqueId(handle, &mut id) }
        })?;
        Ok(UniqueId::from_raw(&id))
    }

    /// A communicator with more ranks, `size` in all, on this one's stream (`ncclCommGrow`, NCCL 2.29). All ranks of this
    /// one call it and keep their numbers, the one that made the id with that id; the new ones call
    /// [`join`](Self::join) at the same time.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error, UniqueId};
    /// # fn example(communicator: &Communicator, send_to_the_new_rank: impl Fn(&UniqueId)) -> Result<(), Error> {
    /// let size = communicator.size();
    /// let id = if communicator.rank() == 0 { Some(communicator.grow_id()?) } else { None };
    /// id.iter().for_each(send_to_the_new_rank);
    /// // There: Communicator::join(library, &stream, size, size + 1, &id, &config)
    /// let larger = communicator.grow(size + 1, id.as_ref(), None)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Rank`] when `size` is not more than this communicator's; otherwise as [`split`](Self::split).
    pub fn grow(&self, size: usize, id: Option<&UniqueId>, config: Option<&Config>) -> Result<Self, Error> {
        inside::forbid(GROW)?;
        self.start_grow(size, id, config)?.join()
    }

    /// As [`grow`](Self::grow), but returns at once where this communicator is non-blocking.
    ///
    /// # Errors
    /// As [`grow`](Self::grow), where the failure is seen at once.
    pub fn grow_pending(
        &self,
        size: usize,
        id: Option<&UniqueId>,
        config: Option<&Config>,
    ) -> Result<Pending, Error> {
        inside::forbid(GROW)?;
        self.start_grow(size, id, config)
    }

    /// Joins a communicator that grows, as the new rank `rank` of `size` (`ncclCommGrow`, NCCL 2.29), with the id of
    /// [`grow_id`](Self::grow_id).
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn join(
        library: Library,
        stream: &Arc<CudaStream>,
        rank: usize,
        size: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Self, Error> {
        inside::forbid(GROW)?;
        let id = id.raw();
        let call = |raw: &Nccl, Place { slot, rank, size }: Place, config: &mut ncclConfig_t| {
            // SAFETY: see `Communicator::start`; a rank that joins has no communicator yet.
            unsafe { raw.ncclCommGrow(ptr::null_mut(), size, &id, rank, slot, config) }
        };
        Self::start(library, stream, rank, size, config, Init { name: GROW, call })?.join()
    }

    fn start_split(&self, key: SplitKey, config: Option<&Config>) -> Result<Pending, Error> {
        let SplitKey { color, key } = key;
        if let Some(color) = color.filter(|&color| color < 0) {
            return Err(Error::Color { color });
        }
        let color = color.unwrap_or(NCCL_SPLIT_NOCOLOR);
        self.derive(SPLIT, config, |raw, parent, slot, config| {
            // SAFETY: see `derive`.
            Ok(unsafe { raw.ncclCommSplit(parent, color, key, slot, config) })
        })
    }

    fn start_shrink(
        &self,
        exclude: &[usize],
        mode: ShrinkMode,
        config: Option<&Config>,
    ) -> Result<Pending, Error> {
        let size = self.size();
        let wrong = |reason| Err(Error::Exclude { ranks: exclude.to_vec(), size, reason });
        if exclude.is_empty() {
            return wrong("there must be at least one");
        }
        if exclude.contains(&self.rank()) {
            return wrong("a rank cannot exclude itself: only the ranks that remain shrink a communicator");
        }
        if exclude.iter().any(|&rank| rank >= size) {
            return wrong("there is no such rank");
        }
        let mut exclude: Vec<_> = exclude.iter().map(|&rank| rank as c_int).collect();
        exclude.sort_unstable();
        exclude.dedup();
        let flags = match mode {
            ShrinkMode::Default => NCCL_SHRINK_DEFAULT,
            ShrinkMode::Abort => NCCL_SHRINK_ABORT,
        };
        let count = exclude.len() as c_int;
        self.derive(SHRINK, config, |raw, parent, slot, config| {
            // SAFETY: see `derive`; there are so many excluded ranks, which NCCL copies.
            unsafe { raw.ncclCommShrink(parent, exclude.as_mut_ptr(), count, slot, config, flags as c_int) }
        })
    }

    fn start_grow(
        &self,
        size: usize,
        id: Option<&UniqueId>,
        config: Option<&Config>,
    ) -> Result<Pending, Error> {
        let Some(raw_size) = c_int::try_from(size).ok().filter(|_| size > self.size()) else {
            return Err(Error::Rank { rank: self.size(), size });
        };
        let id = id.map(UniqueId::raw);
        let id: *const ncclUniqueId = id.as_ref().map_or(ptr::null(), ptr::from_ref);
        self.derive(GROW, config, |raw, parent, slot, config| {
            // SAFETY: see `derive`; the id is null or lives on this stack.
            unsafe { raw.ncclCommGrow(parent, raw_size, id, -1, slot, config) }
        })
    }

    /// Calls a function that makes a communicator from this one: with NCCL's handle of this one, the place for the new
    /// handle, which stays until NCCL has finished, and the configuration, or null.
    fn derive(
        &self,
        operation: &'static str,
        config: Option<&Config>,
        call: impl FnOnce(
            &'static Nccl,
            ncclComm_t,
            *mut ncclComm_t,
            *mut ncclConfig_t,
        ) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<Pending, Error> {
        let library = self.library();
        let inherited = || match self.shared.config.limit() {
            Some(limit) => Config::new().deadline(limit),
            None => Config::new(),
        };
        let settings = config.cloned().unwrap_or_else(inherited);
        cuda::bind(&self.shared.context)?;
        let shared = Shared::new(library, Arc::clone(&self.shared.context), settings);
        let mut raw = shared.config.raw(library)?;
        let raw: *mut ncclConfig_t = if config.is_some() { &mut raw } else { ptr::null_mut() };
        let slot = shared.slot();
        let child = Self::unborn(shared, self.stream(), self.rank(), self.size());
        let state = self.shared.lock();
        // A revoked communicator lives on in its parts, but takes no new ranks.
        let usable = *state == State::Alive || *state == State::Revoked && operation != GROW;
        if !usable {
            return Err(unusable(*state, operation));
        }
        let parent = self.shared.existing(*state, operation)?;
        let code = call(library.raw(), parent, slot, raw)?;
        drop(state);
        if code != ncclResult_t::ncclInProgress {
            library.check(operation, code)?;
        }
        Ok(Pending::derived(operation, child, &self.shared))
    }
}
