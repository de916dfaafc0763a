//! Deriving communicators: parts of one, one without some ranks, one with more ranks.

use std::sync::{Arc, atomic::Ordering};
use std::{ffi::c_int, ptr};

use cudarc::driver::CudaStream;
use nccl_sys::{
    NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, NCCL_SPLIT_NOCOLOR, Nccl, ncclComm_t, ncclConfig_t, ncclResult_t,
};

use super::handle::{CommunicatorState, Guards};
use super::{Communicator, Config, Pending, pending::Started};
use crate::nccl::library::{CallResult, Library};
use crate::nccl::{cuda, error::Error, nccl_group, unique_id::UniqueId};

const SPLIT: &str = "ncclCommSplit";
const SHRINK: &str = "ncclCommShrink";
const GROW: &str = "ncclCommGrow";

/// A rank's arguments of [`Communicator::split`]. The ranks of one color form a communicator, ordered by key.
#[derive(Clone, Debug)]
#[must_use = "it is a description for `Communicator::split`"]
pub struct Split {
    color: i32,
    key: i32,
    stream: Option<Arc<CudaStream>>,
    config: Option<Config>,
}

impl Split {
    /// Color, from 0 to 2147483647.
    pub const fn color(color: i32) -> Self {
        Self { color, key: 0, stream: None, config: None }
    }

    /// Key. Ranks with lower keys have lower numbers; equal keys keep the order of ranks. Default: 0.
    pub const fn key(mut self, key: i32) -> Self {
        self.key = key;
        self
    }

    /// Stream of the new communicator, on the same device. Default: the original one's.
    pub fn stream(mut self, stream: &Arc<CudaStream>) -> Self {
        self.stream = Some(Arc::clone(stream));
        self
    }

    /// Configuration of the new communicator. Default: the original one's.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = Some(config.clone());
        self
    }
}

/// Ranks to exclude in [`Communicator::shrink`].
#[derive(Clone, Debug)]
#[must_use = "it is a description for `Communicator::shrink`"]
pub struct Shrink {
    exclude: Vec<usize>,
    abort: bool,
    config: Option<Config>,
}

impl Shrink {
    /// Excludes these ranks. They work and have no operations in flight (`NCCL_SHRINK_DEFAULT`).
    pub fn without(ranks: &[usize]) -> Self {
        Self { exclude: ranks.to_vec(), abort: false, config: None }
    }

    /// Aborts operations in flight first, for dead ranks (`NCCL_SHRINK_ABORT`). The contents of the
    /// operations' buffers are then undefined, also on other ranks: operations may complete there. The old
    /// communicator is then [revoked](Communicator::revoke).
    pub const fn abort(mut self) -> Self {
        self.abort = true;
        self
    }

    /// Configuration of the new communicator. Default: the original one's.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = Some(config.clone());
        self
    }
}

/// Arguments of [`Communicator::grow`].
#[derive(Clone, Debug)]
#[must_use = "it is a description for `Communicator::grow`"]
pub struct Grow {
    size: usize,
    id: Option<UniqueId>,
    config: Option<Config>,
}

impl Grow {
    /// Total number of ranks.
    pub const fn to(size: usize) -> Self {
        Self { size, id: None, config: None }
    }

    /// Id of the new ranks, on the rank that [created](Communicator::grow_id) it.
    pub const fn id(mut self, id: &UniqueId) -> Self {
        self.id = Some(*id);
        self
    }

    /// Configuration of the new communicator. Default: the original one's.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = Some(config.clone());
        self
    }
}

impl Communicator {
    /// Creates a communicator of the ranks with the same color (`ncclCommSplit`, NCCL 2.18). All ranks call
    /// it, or [`split_none`](Self::split_none); see [`split_all`](Self::split_all) for several ranks in one
    /// thread.
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
    /// [`Error::Argument`] for a negative color; [`Error::Stream`], [`Error::WrongDevice`] for the stream;
    /// [`Error::TooOld`] for the configuration; [`Error::Nccl`]; [`Error::Deadline`]; [`Error::InsideGroup`];
    /// [`Error::Aborted`], [`Error::Unusable`].
    pub fn split(&self, split: &Split) -> Result<Self, Error> {
        self.split_pending(split)?.wait_for_rank()
    }

    /// Takes part in a [`split`](Self::split) of the other ranks without a communicator of its own.
    pub fn split_none(&self) -> Result<(), Error> {
        Pending::start(SPLIT, || self.start_split(None, &mut self.lock_handle()))?.wait_for_part().map(drop)
    }

    /// Like [`split`](Self::split), but does not wait on a non-blocking communicator. The communicator
    /// accepts no operations until the split is done.
    pub fn split_pending(&self, split: &Split) -> Result<Pending, Error> {
        Pending::start(SPLIT, || self.start_split(Some(split), &mut self.lock_handle()))
    }

    /// [`split`](Self::split) for several ranks in one thread, of the same library ([`Error::WrongLibrary`]).
    /// Returns their new communicators in order; `None` for a rank without arguments.
    pub fn split_all<'a>(
        ranks: impl IntoIterator<Item = (&'a Self, Option<Split>)>,
    ) -> Result<Vec<Option<Self>>, Error> {
        let pending =
            start_all(SPLIT, ranks, |rank, split, guards| rank.start_split(split.as_ref(), guards))?;
        pending.into_iter().map(Pending::wait_for_part).collect()
    }

    /// Creates a communicator without some ranks, on this one's stream (`ncclCommShrink`, NCCL 2.27). All
    /// remaining ranks call it with the same list.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error, Shrink};
    /// # fn example(communicator: Communicator) -> Result<(), Error> {
    /// // Rank 3 has died.
    /// let rest = communicator.shrink(&Shrink::without(&[3]).abort())?;
    /// communicator.abort_handle().abort()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty list, this rank, or an invalid one; [`Error::MissingSymbol`] before
    /// NCCL 2.27; otherwise the errors of [`split`](Self::split).
    pub fn shrink(&self, shrink: &Shrink) -> Result<Self, Error> {
        self.shrink_pending(shrink)?.wait_for_rank()
    }

    /// Non-blocking [`shrink`](Self::shrink): see [`split_pending`](Self::split_pending).
    pub fn shrink_pending(&self, shrink: &Shrink) -> Result<Pending, Error> {
        Pending::start(SHRINK, || self.start_shrink(shrink, &mut self.lock_handle()))
    }

    /// [`shrink`](Self::shrink) for several remaining ranks in one thread, of the same library
    /// ([`Error::WrongLibrary`]).
    pub fn shrink_all<'a>(
        ranks: impl IntoIterator<Item = &'a Self>,
        shrink: &Shrink,
    ) -> Result<Vec<Self>, Error> {
        let ranks = ranks.into_iter().map(|rank| (rank, ()));
        let pending = start_all(SHRINK, ranks, |rank, (), guards| rank.start_shrink(shrink, guards))?;
        pending.into_iter().map(Pending::wait_for_rank).collect()
    }

    /// Creates an id for one [`grow`](Self::grow), to be sent to the new ranks (`ncclCommGetUniqueId`, NCCL
    /// 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::Nccl`]; [`Error::InsideGroup`]; [`Error::Aborted`]
    /// and [`Error::Unusable`].
    pub fn grow_id(&self) -> Result<UniqueId, Error> {
        const OPERATION: &str = "ncclCommGetUniqueId";
        nccl_group::forbid_group(OPERATION)?;
        cuda::bind_context(&self.handle.context)?;
        let mut id = UniqueId::from_bytes([0; UniqueId::BYTES]).raw_id();
        self.handle.call_in_state(OPERATION, CommunicatorState::is_alive, |raw, comm| {
            // SAFETY: `call_in_state` holds the guard, and the handle is alive; writes one id.
            unsafe { raw.ncclCommGetUniqueId(comm, &mut id) }
        })?;
        Ok(UniqueId::from_raw(&id))
    }

    /// Creates a communicator with more ranks, on this one's stream (`ncclCommGrow`, NCCL 2.29). All ranks of
    /// this one call it and keep their numbers; the new ranks call [`Builder::join`](super::Builder::join) at
    /// the same time.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error, Grow, UniqueId};
    /// # fn example(
    /// #     communicator: &Communicator, send_to_the_new_rank: impl Fn(&UniqueId),
    /// # ) -> Result<(), Error> {
    /// let mut grow = Grow::to(communicator.size() + 1);
    /// if communicator.rank() == 0 {
    ///     let id = communicator.grow_id()?;
    ///     send_to_the_new_rank(&id);
    ///     grow = grow.id(&id);
    /// }
    /// let larger = communicator.grow(&grow)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Rank`] unless the size is larger than this communicator's; otherwise the errors of
    /// [`split`](Self::split).
    pub fn grow(&self, grow: &Grow) -> Result<Self, Error> {
        self.grow_pending(grow)?.wait_for_rank()
    }

    /// Non-blocking [`grow`](Self::grow): see [`split_pending`](Self::split_pending).
    pub fn grow_pending(&self, grow: &Grow) -> Result<Pending, Error> {
        Pending::start(GROW, || self.start_grow(grow, &mut self.lock_handle()))
    }

    fn lock_handle(&self) -> Guards<'_> {
        Guards::lock_all([&*self.handle])
    }

    fn start_split(&self, split: Option<&Split>, guards: &mut Guards<'_>) -> Started {
        let none = Split::color(NCCL_SPLIT_NOCOLOR);
        let &Split { color, key, ref stream, ref config } = split.unwrap_or(&none);
        if split.is_some() && color < 0 {
            let rule = "colors are 0 to 2147483647; ranks that do not take part have none";
            return Err(Error::bad_argument(SPLIT, format!("color {color}: {rule}")));
        }
        let stream = stream.as_ref().unwrap_or(&self.stream);
        cuda::check_stream(SPLIT, stream)?;
        self.expect_device(SPLIT, "stream", stream)?;
        let part = (SPLIT, i64::from(color));
        self.derive_communicator(part, stream, config.as_ref(), false, guards, |raw, parent, slot, config| {
            // SAFETY: see `derive_communicator`.
            Ok(unsafe { raw.ncclCommSplit(parent, color, key, slot, config) })
        })
    }

    fn start_shrink(&self, shrink: &Shrink, guards: &mut Guards<'_>) -> Started {
        let (Shrink { exclude, abort, config }, size) = (shrink, self.size());
        let own = "a rank cannot exclude itself: only the ranks that remain shrink a communicator";
        let rules = [
            (exclude.is_empty(), "there must be at least one"),
            (exclude.contains(&self.rank()), own),
            (exclude.iter().any(|&rank| rank >= size), "a rank to exclude does not exist"),
        ];
        if let Some((_, rule)) = rules.iter().find(|(broken, _)| *broken) {
            return Err(Error::bad_argument(SHRINK, format!("cannot exclude {exclude:?} of {size}: {rule}")));
        }
        let mut exclude: Vec<_> = exclude.iter().map(|&rank| rank as c_int).collect();
        exclude.sort_unstable();
        exclude.dedup();
        let flags = if *abort { NCCL_SHRINK_ABORT } else { NCCL_SHRINK_DEFAULT };
        let count = exclude.len() as c_int;
        self.derive_communicator(
            (SHRINK, 0),
            &self.stream,
            config.as_ref(),
            *abort,
            guards,
            |raw, parent, slot, config| {
                // SAFETY: see `derive_communicator`; the number of excluded ranks is right, and NCCL copies
                // them.
                unsafe {
                    raw.ncclCommShrink(parent, exclude.as_mut_ptr(), count, slot, config, flags as c_int)
                }
            },
        )
    }

    fn start_grow(&self, grow: &Grow, guards: &mut Guards<'_>) -> Started {
        let &Grow { size, ref id, ref config } = grow;
        let Some(raw_size) = c_int::try_from(size).ok().filter(|_| size > self.size()) else {
            return Err(Error::Rank { rank: self.size(), size });
        };
        let id = id.as_ref().map(UniqueId::raw_id);
        let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
        self.derive_communicator(
            (GROW, 0),
            &self.stream,
            config.as_ref(),
            false,
            guards,
            |raw, parent, slot, config| {
                // SAFETY: see `derive_communicator`; the id is null or lives on this stack.
                unsafe { raw.ncclCommGrow(parent, raw_size, id, -1, slot, config) }
            },
        )
    }

    /// Calls a function that derives a communicator from this one. Its arguments are this one's raw handle,
    /// the slot of the new one, valid until NCCL has finished, and the configuration or null. `number`
    /// distinguishes communicators created together. If the function stops this one's operations, it counts
    /// as revoked.
    fn derive_communicator(
        &self,
        (operation, number): (&'static str, i64),
        stream: &Arc<CudaStream>,
        config: Option<&Config>,
        stops_operations: bool,
        guards: &mut Guards<'_>,
        call: impl FnOnce(&'static Nccl, ncclComm_t, *mut ncclComm_t, *mut ncclConfig_t) -> CallResult,
    ) -> Started {
        let (library, parent) = (self.library(), &self.handle);
        cuda::bind_context(&parent.context)?;
        // Without a configuration, NCCL copies the parent's string pointers: the clone owns the strings too.
        let settings = config.unwrap_or(&parent.config).clone();
        let mut raw = settings.raw_config(library)?;
        let raw: *mut ncclConfig_t = if config.is_some() { &mut raw } else { ptr::null_mut() };
        // A revoked communicator can be split and shrunk, but not grown.
        let accepted = |state: CommunicatorState| {
            state.is_alive() || state == CommunicatorState::Revoked && operation != GROW
        };
        let (comm, state) = guards.comm_of(parent, accepted, operation)?;
        // Counted after the local checks: a call refused by this rank only is not a communicator of the
        // others.
        let derived = parent.derived.fetch_add(1, Ordering::Relaxed);
        let key = (parent.communicator_key, derived, operation, number);
        let child = Self::new_connecting(library, stream, settings, key);
        let code = call(library.raw(), comm, child.handle.slot.as_ptr(), raw)?;
        if stops_operations {
            // NCCL stops the operations of ranks at different steps: later ones would not match.
            *state = CommunicatorState::Revoked;
        }
        let before = *state;
        if code == ncclResult_t::ncclInProgress || !parent.is_blocking() {
            *state = CommunicatorState::Busy;
        }
        Pending::new(operation, child, code, Some((parent, before)))
    }

    /// The common library; `None` without communicators.
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

/// Starts several ranks of one thread in one NCCL group. NCCL derives each from its parent on a thread of its
/// own, and two of these must not use one parent.
fn start_all<'a, T>(
    operation: &'static str,
    ranks: impl IntoIterator<Item = (&'a Communicator, T)>,
    mut start: impl FnMut(&Communicator, T, &mut Guards<'_>) -> Started,
) -> Result<Vec<Pending>, Error> {
    nccl_group::forbid_group(operation)?;
    let ranks: Vec<_> = ranks.into_iter().collect();
    let library = Communicator::common_library(operation, ranks.iter().map(|(rank, _)| *rank))?;
    let parents: Vec<_> = ranks.iter().map(|(rank, _)| &*rank.handle).collect();
    if let Some(at) =
        (1..parents.len()).find(|&at| parents[..at].iter().any(|other| ptr::eq(*other, parents[at])))
    {
        let reason = format!("communicator {at} is in the list twice");
        return Err(Error::bad_argument(operation, reason));
    }
    Pending::start_group(library, parents, ranks, |(rank, part), guards| start(rank, part, guards))
}
