//! Communicators from communicators: parts of one, one without some ranks, one with more.

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::{
    MissingSymbol, NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, NCCL_SPLIT_NOCOLOR, Nccl, ncclComm_t,
    ncclConfig_t, ncclResult_t, ncclUniqueId,
};

use super::builder::pending;
use super::config::Config;
use super::handle::{Handle, State, unusable};
use super::pending::Pending;
use super::{Communicator, check_stream};
use crate::nccl::cuda;
use crate::nccl::error::Error;
use crate::nccl::library::Library;
use crate::nccl::section;
use crate::nccl::unique_id::UniqueId;

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

/// A rank's part in [`Communicator::split`]: the ranks of one color form a communicator, ordered by key.
#[derive(Clone, Debug)]
#[must_use = "it is a description for `Communicator::split`"]
pub struct Split {
    color: i32,
    key: i32,
    stream: Option<Arc<CudaStream>>,
    config: Option<Config>,
}

impl Split {
    /// The part of this color, from 0 to 2147483647.
    pub const fn color(color: i32) -> Self {
        Self { color, key: 0, stream: None, config: None }
    }

    /// Ranks with lower keys have lower numbers; equal ones keep their order. 0 without it.
    pub const fn key(mut self, key: i32) -> Self {
        self.key = key;
        self
    }

    /// The stream of the new communicator, on the same device. Without it, it has the one that is split.
    pub fn stream(mut self, stream: &Arc<CudaStream>) -> Self {
        self.stream = Some(Arc::clone(stream));
        self
    }

    /// The settings of the new communicator. Without them it has those of the one that is split.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = Some(config.clone());
        self
    }
}

// Without a configuration, all of these inherit the communicator's.
impl Communicator {
    /// A communicator of the ranks with the same color (`ncclCommSplit`, NCCL 2.18). All ranks call it, or
    /// [`split_none`](Self::split_none); see [`split_all`](Self::split_all) for several ranks in one thread.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error, Split};
    /// # fn example(communicator: &Communicator) -> Result<(), Error> {
    /// let half = (communicator.rank() * 2 / communicator.size()) as i32;
    /// let half = communicator.split(&Split::color(half))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Color`] for a negative color; [`Error::Stream`] and [`Error::WrongDevice`] for the stream; [`Error::TooOld`]
    /// for the configuration; [`Error::Nccl`]; [`Error::Deadline`]; [`Error::InsideGroup`]; [`Error::Aborted`] and
    /// [`Error::Unusable`].
    pub fn split(&self, split: &Split) -> Result<Self, Error> {
        self.split_pending(split)?.join()
    }

    /// Takes no part in a [`split`](Self::split) of the other ranks.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn split_none(&self) -> Result<(), Error> {
        section::forbid(SPLIT)?;
        pending(|started| self.start_split(None, started))?.join_part().map(drop)
    }

    /// Like [`split`](Self::split), but returns at once where this communicator is non-blocking. Until it has finished, this
    /// communicator takes no operations.
    ///
    /// # Errors
    /// As [`split`](Self::split), where the failure is seen at once.
    pub fn split_pending(&self, split: &Split) -> Result<Pending, Error> {
        section::forbid(SPLIT)?;
        pending(|started| self.start_split(Some(split), started))
    }

    /// [`split`](Self::split) for several ranks in one thread: each communicator with its part, in order; none for one that
    /// takes no part.
    ///
    /// # Errors
    /// As [`split`](Self::split); [`Error::WrongLibrary`] for communicators of different libraries.
    pub fn split_all<'a>(
        ranks: impl IntoIterator<Item = (&'a Self, Option<Split>)>,
    ) -> Result<Vec<Option<Self>>, Error> {
        section::forbid(SPLIT)?;
        let ranks: Vec<_> = ranks.into_iter().collect();
        let Some(library) = Self::common_library(SPLIT, ranks.iter().map(|(rank, _)| *rank))? else {
            return Ok(Vec::new());
        };
        // Those of a group that fails are dropped when it has been cancelled.
        let mut started = Vec::new();
        section::grouped(library, || {
            ranks.iter().try_for_each(|(rank, split)| rank.start_split(split.as_ref(), &mut started))
        })?;
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
        self.shrink_pending(exclude, mode, config)?.join()
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
        section::forbid(SHRINK)?;
        pending(|started| self.start_shrink(exclude, mode, config, started))
    }

    /// [`shrink`](Self::shrink) for several remaining ranks in one thread.
    ///
    /// # Errors
    /// As [`shrink`](Self::shrink).
    pub fn shrink_all<'a>(
        ranks: impl IntoIterator<Item = &'a Self>,
        exclude: &[usize],
        mode: ShrinkMode,
        config: Option<&Config>,
    ) -> Result<Vec<Self>, Error> {
        section::forbid(SHRINK)?;
        let ranks: Vec<_> = ranks.into_iter().collect();
        let Some(library) = Self::common_library(SHRINK, ranks.iter().copied())? else {
            return Ok(Vec::new());
        };
        let mut started = Vec::new();
        section::grouped(library, || {
            ranks.iter().try_for_each(|rank| rank.start_shrink(exclude, mode, config, &mut started))
        })?;
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
        section::forbid(OPERATION)?;
        cuda::bind(&self.handle.context)?;
        let mut id = UniqueId::from_bytes([0; UniqueId::BYTES]).raw();
        self.handle.call(OPERATION, |raw, handle| {
            // SAFETY: `call` holds the guard, and the handle is alive; writes one id.
            unsafe { raw.ncclCommGetUniqueId(handle, &mut id) }
        })?;
        Ok(UniqueId::from_raw(&id))
    }

    /// A communicator with more ranks, `size` in all, on this one's stream (`ncclCommGrow`, NCCL 2.29). All ranks of this
    /// one call it and keep their numbers, the one that made the id with that id; the new ones call
    /// [`Builder::join`](super::Builder::join) at the same time.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error, UniqueId};
    /// # fn example(communicator: &Communicator, send_to_the_new_rank: impl Fn(&UniqueId)) -> Result<(), Error> {
    /// let size = communicator.size();
    /// let id = if communicator.rank() == 0 { Some(communicator.grow_id()?) } else { None };
    /// id.iter().for_each(send_to_the_new_rank);
    /// // There: Communicator::builder(library, &stream).rank(size, size + 1).id(&id).join()?
    /// let larger = communicator.grow(size + 1, id.as_ref(), None)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Rank`] when `size` is not more than this communicator's; otherwise as [`split`](Self::split).
    pub fn grow(&self, size: usize, id: Option<&UniqueId>, config: Option<&Config>) -> Result<Self, Error> {
        self.grow_pending(size, id, config)?.join()
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
        section::forbid(GROW)?;
        pending(|started| self.start_grow(size, id, config, started))
    }

    fn start_split(&self, split: Option<&Split>, started: &mut Vec<Pending>) -> Result<(), Error> {
        let none = Split::color(NCCL_SPLIT_NOCOLOR);
        let &Split { color, key, ref stream, ref config } = split.unwrap_or(&none);
        if split.is_some() && color < 0 {
            return Err(Error::Color { color });
        }
        let stream = stream.as_ref().unwrap_or(&self.stream);
        check_stream(SPLIT, stream)?;
        self.expect_device(SPLIT, "stream", stream)?;
        let part = (SPLIT, i64::from(color));
        self.derive(part, stream, config.as_ref(), started, |raw, parent, slot, config| {
            // SAFETY: see `derive`.
            Ok(unsafe { raw.ncclCommSplit(parent, color, key, slot, config) })
        })
    }

    fn start_shrink(
        &self,
        exclude: &[usize],
        mode: ShrinkMode,
        config: Option<&Config>,
        started: &mut Vec<Pending>,
    ) -> Result<(), Error> {
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
        self.derive((SHRINK, 0), &self.stream, config, started, |raw, parent, slot, config| {
            // SAFETY: see `derive`; there are so many excluded ranks, which NCCL copies.
            unsafe { raw.ncclCommShrink(parent, exclude.as_mut_ptr(), count, slot, config, flags as c_int) }
        })
    }

    fn start_grow(
        &self,
        size: usize,
        id: Option<&UniqueId>,
        config: Option<&Config>,
        started: &mut Vec<Pending>,
    ) -> Result<(), Error> {
        let Some(raw_size) = c_int::try_from(size).ok().filter(|_| size > self.size()) else {
            return Err(Error::Rank { rank: self.size(), size });
        };
        let id = id.map(UniqueId::raw);
        let id: *const ncclUniqueId = id.as_ref().map_or(ptr::null(), ptr::from_ref);
        self.derive((GROW, 0), &self.stream, config, started, |raw, parent, slot, config| {
            // SAFETY: see `derive`; the id is null or lives on this stack.
            unsafe { raw.ncclCommGrow(parent, raw_size, id, -1, slot, config) }
        })
    }

    /// Calls a function that makes a communicator from this one: with NCCL's handle of this one, the place for the new
    /// handle, which stays until NCCL has finished, and the configuration, or null. The communicator comes into `started`
    /// whatever NCCL answers. The number tells communicators apart that are made together.
    fn derive(
        &self,
        (operation, number): (&'static str, i64),
        stream: &Arc<CudaStream>,
        config: Option<&Config>,
        started: &mut Vec<Pending>,
        call: impl FnOnce(
            &'static Nccl,
            ncclComm_t,
            *mut ncclComm_t,
            *mut ncclConfig_t,
        ) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<(), Error> {
        let (library, parent) = (self.library(), &self.handle);
        cuda::bind(&parent.context)?;
        // NCCL copies the parent's pointers to texts where there is no configuration: the clone owns them, too.
        let settings = config.unwrap_or(&parent.config).clone();
        let mut raw = settings.raw(library)?;
        let raw: *mut ncclConfig_t = if config.is_some() { &mut raw } else { ptr::null_mut() };
        let mut state = parent.lock();
        // A revoked communicator lives on in its parts, but takes no new ranks.
        let usable = *state == State::Alive || *state == State::Revoked && operation != GROW;
        if !usable {
            return Err(unusable(*state, operation));
        }
        // Counted where all ranks come to it: what only this rank refuses is no communicator of the others.
        let mut hasher = DefaultHasher::new();
        (parent.clique, parent.count_derived(), operation, number).hash(&mut hasher);
        let handle = Handle::new(library, stream, settings, hasher.finish());
        let slot = handle.slot();
        let child = Self::unborn(handle, stream, self.rank(), self.size());
        let code = call(library.raw(), parent.existing(*state, operation)?, slot, raw)?;
        let before = *state;
        if code == ncclResult_t::ncclInProgress || !parent.config.is_blocking() {
            *state = State::Busy;
        }
        drop(state);
        started.push(Pending::derived(operation, child, parent, before));
        if code == ncclResult_t::ncclInProgress { Ok(()) } else { library.check(operation, code) }
    }
}

impl Communicator {
    /// The library of all of these; none where there are none.
    pub(crate) fn common_library<'a>(
        operation: &'static str,
        mut communicators: impl Iterator<Item = &'a Self>,
    ) -> Result<Option<Library>, Error> {
        let Some(first) = communicators.next() else { return Ok(None) };
        let other = |communicator: &Self| !ptr::eq(communicator.library().raw(), first.library().raw());
        if communicators.any(other) {
            return Err(Error::WrongLibrary { operation });
        }
        Ok(Some(first.library()))
    }
}
