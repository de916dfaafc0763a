//! Groups: several operations, on any number of communicators, that NCCL launches as one.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use cudarc::driver::CudaStream;
use nccl_sys::{Nccl, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclSimInfo_t};

use super::abort::State;
use super::buffer::{DeviceBuffer, DeviceBufferMut};
use super::call::{Accesses, Buffers, Call, Launch, sealed};
use super::call_config::CallConfig;
use super::communicator::Communicator;
use super::cuda;
use super::error::Error;
use super::library::Library;
use super::operation::Operation;

const START: &str = "ncclGroupStart";
const END: &str = "ncclGroupEnd";
const SIMULATE: &str = "ncclGroupSimulateEnd";

type Later = Box<dyn FnOnce()>;

thread_local! {
    /// Whether this thread is between ncclGroupStart and ncclGroupEnd.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What has to wait until it no longer is.
    static AFTER: RefCell<Vec<Later>> = const { RefCell::new(Vec::new()) };
}

/// Refuses what must not happen inside a group.
#[inline]
pub(crate) fn forbid(operation: &'static str) -> Result<(), Error> {
    if INSIDE.get() { Err(Error::InsideGroup { operation }) } else { Ok(()) }
}

/// Runs it now, or at the end of the group that this thread is in.
pub(crate) fn after(action: impl FnOnce() + 'static) {
    if INSIDE.get() {
        AFTER.with_borrow_mut(|list| list.push(Box::new(action)));
    } else {
        action();
    }
}

/// Queues operations and launches them as one (`ncclGroupStart`, `ncclGroupEnd`): the way to use several communicators
/// in one thread, to send and receive at the same time, and to make NCCL overlap operations.
///
/// Nothing is launched before the closure has returned. When it returns an error or panics, nothing is launched at
/// all. (NCCL then reports the cancelled operations of *non-blocking* communicators through
/// [`Communicator::async_error`]; these communicators can only be dropped.) Communicators and buffers stay borrowed
/// until the group has ended. Dropping another communicator inside the closure takes effect after the group.
///
/// ```no_run
/// # use collectives::nccl::{self, Communicator, Error, Memory};
/// # fn example(communicator: &Communicator, mine: &Memory, theirs: &mut Memory) -> Result<(), Error> {
/// // Every rank sends to its right neighbour and receives from its left one.
/// let (rank, size) = (communicator.rank(), communicator.size());
/// let (outgoing, mut incoming) = (mine.slice::<f32>(0, 1024)?, theirs.slice_mut::<f32>(0, 1024)?);
/// nccl::group(communicator.library(), |group| {
///     group.on(communicator).send(&outgoing, (rank + 1) % size)?;
///     group.on(communicator).recv(&mut incoming, (rank + size - 1) % size)
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The closure's; [`Error::InsideGroup`] inside another group: see [`Group::nested`]; [`Error::Nccl`],
/// [`Error::Deadline`] or [`Error::Aborted`] when the launch fails.
pub fn group<'env, T>(
    library: Library,
    body: impl FnOnce(&Group<'env>) -> Result<T, Error>,
) -> Result<T, Error> {
    let group = Group::start(library)?;
    let value = body(&group)?;
    group.launch()?;
    Ok(value)
}

/// As [`group()`], but launches nothing: NCCL only estimates how long the operations would take together
/// (`ncclGroupSimulateEnd`, NCCL 2.22). No estimate where NCCL has none, on a communicator of one rank for example.
/// Communicators may connect in it, so all their ranks have to simulate the same. Of blocking communicators only.
///
/// ```no_run
/// # use collectives::{ReduceOp, nccl::{self, Communicator, Error, Memory}};
/// # fn example(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
/// let mut gradients = memory.slice_mut::<f32>(0, 1024)?;
/// let estimate = nccl::simulate(communicator.library(), |group| {
///     group.on(communicator).all_reduce_in_place(&mut gradients, ReduceOp::Sum)
/// })?;
/// println!("{estimate:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`group()`]; [`Error::MissingSymbol`] before NCCL 2.22.
pub fn simulate<'env>(
    library: Library,
    body: impl FnOnce(&Group<'env>) -> Result<(), Error>,
) -> Result<Option<Duration>, Error> {
    library.raw().require(SIMULATE)?;
    let group = Group::start(library)?;
    body(&group)?;
    group.simulate()
}

/// A group without buffers: for making communicators. Cancelled when the closure fails. NCCL's answer with the value:
/// ncclSuccess, or ncclInProgress.
pub(crate) fn raw<T>(
    library: Library,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<(ncclResult_t, T), Error> {
    let section = Section::start(library)?;
    let value = body()?;
    match section.end() {
        code @ (ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => Ok((code, value)),
        code => Err(library.failure(END, code)),
    }
}

/// The time between ncclGroupStart and ncclGroupEnd. Dropping it cancels what is queued.
struct Section {
    library: Library,
    open: Cell<bool>,
    /// NCCL's groups belong to a thread.
    thread: PhantomData<*const ()>,
}

impl Section {
    fn start(library: Library) -> Result<Self, Error> {
        forbid(START)?;
        // SAFETY: no arguments.
        let code = unsafe { library.raw().ncclGroupStart() };
        library.check(START, code)?;
        INSIDE.set(true);
        Ok(Self { library, open: Cell::new(true), thread: PhantomData })
    }

    /// Ends NCCL's group; what it launched, or that it launched nothing, is the answer.
    fn end(&self) -> ncclResult_t {
        // SAFETY: no arguments; closes the group that `start` opened on this thread.
        self.end_by(|raw| unsafe { raw.ncclGroupEnd() })
    }

    fn end_by(&self, end: impl FnOnce(&Nccl) -> ncclResult_t) -> ncclResult_t {
        self.open.set(false);
        let code = end(self.library.raw());
        INSIDE.set(false);
        code
    }

    /// NCCL has no call to cancel a group, but launches nothing when an operation in it was wrong: so one is made wrong.
    fn cancel(&self) {
        let (data_type, op) = (ncclDataType_t::ncclInt8, ncclRedOp_t::ncclSum);
        let (comm, stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: every NCCL refuses a null communicator before it looks at anything else.
        let _refused = unsafe {
            self.library.raw().ncclAllReduce(ptr::null(), ptr::null_mut(), 0, data_type, op, comm, stream)
        };
        let code = self.end();
        if code == ncclResult_t::ncclSuccess {
            tracing::error!("NCCL {} launched a cancelled group", self.library.version());
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if self.open.get() {
            self.cancel();
        }
        let actions = AFTER.with_borrow_mut(mem::take);
        actions.into_iter().for_each(|action| action());
    }
}

/// A level of NCCL's groups above the first. Ending it launches nothing.
struct Level(Library);

impl Level {
    fn start(library: Library) -> Result<Self, Error> {
        // SAFETY: no arguments; ended on this thread when this object is dropped.
        let code = unsafe { library.raw().ncclGroupStart() };
        library.check(START, code)?;
        Ok(Self(library))
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        // SAFETY: no arguments; the level was opened by `start` on this thread, and is not the outermost.
        let code = unsafe { self.0.raw().ncclGroupEnd() };
        if code != ncclResult_t::ncclSuccess {
            // The outermost end answers the same.
            tracing::debug!("{}", self.0.failure(END, code));
        }
    }
}

/// Takes operations until the closure of [`group()`] returns.
pub struct Group<'env> {
    library: Library,
    queued: RefCell<Queued<'env>>,
    /// The first error of a nested group.
    failed: RefCell<Option<Error>>,
    section: Section,
    /// Operations borrow for exactly `'env`, neither longer nor shorter.
    environment: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct Queued<'env> {
    /// Each communicator once, with the guard that keeps other threads from aborting it until the group has ended.
    communicators: Vec<(&'env Communicator, MutexGuard<'env, State>)>,
    accesses: Vec<Accesses<'env>>,
    foreign: Vec<(&'env Communicator, Arc<CudaStream>)>,
}

impl<'env> Group<'env> {
    fn start(library: Library) -> Result<Self, Error> {
        let section = Section::start(library)?;
        let (queued, failed) = (RefCell::default(), RefCell::default());
        Ok(Self { library, section, queued, failed, environment: PhantomData })
    }

    /// The collectives of a communicator, as part of the group.
    pub fn on<'g>(&'g self, communicator: &'env Communicator) -> Call<'env, &'g Self> {
        Call::new(communicator, self)
    }

    /// A group inside this one, which is launched with it: for functions that group operations and may be called inside
    /// a group or not. When it fails, this whole group is cancelled, even if the error is not passed on.
    ///
    /// # Errors
    /// The closure's.
    pub fn nested<T>(&self, body: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        let level = Level::start(self.library)?;
        let result = body(self);
        drop(level);
        result.inspect_err(|error| {
            self.failed.borrow_mut().get_or_insert_with(|| error.clone());
        })
    }

    /// Takes the communicator into the group.
    fn enter(&self, communicator: &'env Communicator, operation: &'static str) -> Result<(), Error> {
        if !ptr::eq(communicator.library().raw(), self.library.raw()) {
            return Err(Error::WrongLibrary { operation });
        }
        cuda::bind(&communicator.shared.context)?;
        cuda::refuse_captured(operation, &communicator.stream)?;
        let communicators = &mut self.queued.borrow_mut().communicators;
        if !communicators.iter().any(|(member, _)| ptr::eq(*member, communicator)) {
            let state = communicator.shared.lock();
            communicator.shared.handle(*state, operation)?;
            communicators.push((communicator, state));
        }
        Ok(())
    }

    fn simulate(&self) -> Result<Option<Duration>, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.refuse_captured()?;
        let mut info = ncclSimInfo_t::default();
        let code = self.section.end_by(|raw| {
            // SAFETY: closes the group that `start` opened on this thread; writes into one struct of ours.
            unsafe { raw.ncclGroupSimulateEnd(&mut info) }.unwrap_or(ncclResult_t::ncclInvalidUsage)
        });
        let result = self.library.check(SIMULATE, code);
        result.and(self.release(false))?;
        // In microseconds; negative where NCCL knows nothing.
        Ok(Duration::try_from_secs_f64(f64::from(info.estimatedTime) * 1e-6).ok())
    }

    fn launch(&self) -> Result<(), Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.refuse_captured()?;
        let code = self.section.end();
        let launched = match code {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            code => Err(self.library.failure(END, code)),
        };
        launched.and(self.release(code == ncclResult_t::ncclInProgress))
    }

    /// A capture may have begun since the operations were taken, or have drawn a stream in through a buffer's events.
    fn refuse_captured(&self) -> Result<(), Error> {
        let queued = self.queued.borrow();
        for (communicator, _guard) in &queued.communicators {
            cuda::bind(&communicator.shared.context)?;
            cuda::refuse_captured(END, &communicator.stream)?;
        }
        for (communicator, home) in &queued.foreign {
            cuda::bind(&communicator.shared.context)?;
            cuda::refuse_captured(END, home)?;
        }
        Ok(())
    }

    /// After NCCL's group has ended: lets abort handles in again, and orders other streams after NCCL's, whatever fails.
    fn release(&self, in_progress: bool) -> Result<(), Error> {
        let Queued { communicators, accesses, foreign } = self.queued.take();
        let members: Vec<_> = communicators.into_iter().map(|(communicator, _guard)| communicator).collect();
        let mut result = Ok(());
        if in_progress {
            // NCCL's own thread is still launching: what is ordered below has to come after that.
            for communicator in members {
                result = result.and(communicator.finish(END, ncclResult_t::ncclInProgress));
            }
        }
        drop(accesses);
        for (communicator, home) in foreign {
            result = result.and(communicator.lead(&home));
        }
        result
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if !self.section.open.get() {
            return;
        }
        self.section.cancel();
        if let Err(error) = self.release(false) {
            tracing::warn!("cancelling a group: {error}");
        }
    }
}

impl<'env> Launch<'env> for &Group<'env> {}
impl<'env> sealed::Launch<'env> for &Group<'env> {
    fn launch<S, R>(
        self,
        communicator: &'env Communicator,
        config: Option<&'env CallConfig>,
        operation: Operation,
        buffers: Buffers<'env, S, R>,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        let name = operation.name;
        self.enter(communicator, name)?;
        let (accesses, foreign) = communicator.access(name, buffers)?;
        let addresses = accesses.addresses(operation.offsets);
        // Before NCCL sees the operation: whatever it answers, the buffers stay until the group has ended.
        let mut queued = self.queued.borrow_mut();
        queued.foreign.extend(foreign.into_iter().flatten().map(|home| (communicator, home)));
        queued.accesses.push(accesses);
        drop(queued);
        // SAFETY: checked buffers, borrowed until the group has ended. `enter` has found the communicator alive, and the
        // guard in `queued` keeps it so.
        let code = unsafe { communicator.call_nccl(State::Alive, config, &operation, addresses) }?;
        if code == ncclResult_t::ncclInProgress { Ok(()) } else { self.library.check(name, code) }
    }
}
