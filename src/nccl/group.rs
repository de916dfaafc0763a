//! Groups: several operations, on any number of communicators, that NCCL launches as one.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ptr;
use std::time::Duration;

use nccl_sys::{Nccl, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclSimInfo_t};

use super::buffer::{DeviceBuffer, DeviceBufferMut};
use super::call::Call;
use super::call_config::CallConfig;
use super::communicator::Communicator;
use super::error::Error;
use super::inside::Inside;
use super::launch::{Buffers, Launch, sealed};
use super::library::Library;
use super::operation::Operation;
use super::recorded::Recorded;

const START: &str = "ncclGroupStart";
const END: &str = "ncclGroupEnd";
const SIMULATE: &str = "ncclGroupSimulateEnd";

/// Queues operations and launches them as one (`ncclGroupStart`, `ncclGroupEnd`): the way to use several communicators
/// in one thread, to send and receive at the same time, and to make NCCL overlap operations.
///
/// Nothing goes to NCCL before the closure has returned. When it returns an error or panics, nothing does at all.
/// Communicators and buffers stay borrowed until the group has ended. Dropping another communicator inside the closure
/// takes effect after the group.
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
    let _inside = Inside::enter(START)?;
    let group = Group::new(library, false);
    let value = body(&group)?;
    // SAFETY: no arguments; closes NCCL's group of this thread.
    group.run(END, |raw| unsafe { raw.ncclGroupEnd() })?;
    Ok(value)
}

/// As [`group()`], but launches nothing: NCCL only estimates how long the operations would take together
/// (`ncclGroupSimulateEnd`, NCCL 2.22). No estimate where NCCL has none, on a communicator of one rank for example. All
/// ranks simulate the same, since NCCL may connect them for it. Only collectives with an algorithm: all_reduce, reduce,
/// broadcast, all_gather, reduce_scatter; and only on blocking communicators.
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
/// As [`group()`]; [`Error::MissingSymbol`] before NCCL 2.22; [`Error::NotSimulated`] for sends, receives, and what NCCL
/// makes of them: after a simulation of those, NCCL (up to 2.30 at least) takes ranks for connected that are not.
pub fn simulate<'env>(
    library: Library,
    body: impl FnOnce(&Group<'env>) -> Result<(), Error>,
) -> Result<Option<Duration>, Error> {
    library.raw().require(SIMULATE)?;
    let _inside = Inside::enter(START)?;
    let group = Group::new(library, true);
    body(&group)?;
    let mut info = ncclSimInfo_t::default();
    group.run(SIMULATE, |raw| {
        // SAFETY: closes NCCL's group of this thread; writes into one struct of ours.
        unsafe { raw.ncclGroupSimulateEnd(&mut info) }.unwrap_or(ncclResult_t::ncclInvalidUsage)
    })?;
    // In microseconds; negative where NCCL knows nothing.
    Ok(Duration::try_from_secs_f64(f64::from(info.estimatedTime) * 1e-6).ok())
}

/// A group without buffers: for making communicators. Cancelled when the closure fails. NCCL's answer with the value:
/// ncclSuccess, or ncclInProgress.
pub(crate) fn raw<T>(
    library: Library,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<(ncclResult_t, T), Error> {
    let _inside = Inside::enter(START)?;
    let section = Section::start(library)?;
    let value = body()?;
    // SAFETY: no arguments; closes NCCL's group of this thread.
    let code = section.end(END, |raw| unsafe { raw.ncclGroupEnd() })?;
    Ok((code, value))
}

/// The time between ncclGroupStart and ncclGroupEnd. Dropping it cancels what is queued.
pub(crate) struct Section {
    library: Library,
    open: bool,
    /// NCCL's groups belong to a thread.
    thread: PhantomData<*const ()>,
}

impl Section {
    pub(crate) fn start(library: Library) -> Result<Self, Error> {
        // SAFETY: no arguments.
        let code = unsafe { library.raw().ncclGroupStart() };
        library.check(START, code)?;
        Ok(Self { library, open: true, thread: PhantomData })
    }

    /// Ends NCCL's group; ncclSuccess or ncclInProgress.
    pub(crate) fn end(
        mut self,
        operation: &'static str,
        end: impl FnOnce(&Nccl) -> ncclResult_t,
    ) -> Result<ncclResult_t, Error> {
        self.open = false;
        match end(self.library.raw()) {
            code @ (ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => Ok(code),
            code => Err(self.library.failure(operation, code)),
        }
    }
}

impl Drop for Section {
    /// NCCL has no call to cancel a group, but launches nothing when an operation in it was wrong: so one is made wrong.
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let raw = self.library.raw();
        let (data_type, op) = (ncclDataType_t::ncclInt8, ncclRedOp_t::ncclSum);
        let (comm, stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: every NCCL refuses a null communicator before it looks at anything else. Closes the group that `start`
        // opened on this thread.
        let code = unsafe {
            let _refused = raw.ncclAllReduce(ptr::null(), ptr::null_mut(), 0, data_type, op, comm, stream);
            raw.ncclGroupEnd()
        };
        if code == ncclResult_t::ncclSuccess {
            tracing::error!("NCCL {} launched a cancelled group", self.library.version());
        }
    }
}

/// A group in a group or capture, which fails as a whole when this fails or panics.
pub(crate) fn nested<T>(
    failed: &RefCell<Option<Error>>,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let before = failed.replace(Some(Error::Cancelled { operation: START }));
    // A panic leaves it at that.
    let result = body();
    // A group in this one may have failed and its error been swallowed.
    let inner = failed.take().filter(|error| !matches!(error, Error::Cancelled { .. }));
    *failed.borrow_mut() = before.or(inner).or_else(|| result.as_ref().err().cloned());
    result
}

/// Takes operations until the closure of [`group()`] returns.
pub struct Group<'env> {
    library: Library,
    simulated: bool,
    recorded: RefCell<Recorded<'env>>,
    /// The first error of a nested group.
    failed: RefCell<Option<Error>>,
    /// Operations borrow for exactly `'env`, neither longer nor shorter.
    environment: PhantomData<&'env mut &'env ()>,
}

impl<'env> Group<'env> {
    fn new(library: Library, simulated: bool) -> Self {
        let (recorded, failed) = (RefCell::default(), RefCell::default());
        Self { library, simulated, recorded, failed, environment: PhantomData }
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
        nested(&self.failed, || body(self))
    }

    /// Hands all operations to NCCL, and orders other streams after them, whatever NCCL answers.
    fn run(self, name: &'static str, end: impl FnOnce(&Nccl) -> ncclResult_t) -> Result<(), Error> {
        if let Some(error) = self.failed.into_inner() {
            return Err(error);
        }
        let mut recorded = self.recorded.into_inner();
        recorded.refuse_captured(name)?;
        let guards = recorded.lock(name)?;
        let section = Section::start(self.library)?;
        // SAFETY: the guards are held, and what is recorded lives to the end of this function, by when NCCL has queued
        // the operations.
        let called = recorded.steps.iter().try_for_each(|step| unsafe { step.call() }.map(drop));
        let ended = called.and_then(|()| section.end(name, end));
        drop(guards);
        let settled = match ended {
            // NCCL's own thread is still launching: what is ordered below has to come after that.
            Ok(ncclResult_t::ncclInProgress) => recorded.settle(name),
            ended => ended.map(drop),
        };
        recorded.release();
        settled.and(recorded.lead())
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
        if self.simulated && operation.is_point_to_point() {
            return Err(Error::NotSimulated { operation: operation.name });
        }
        self.recorded.borrow_mut().record(self.library, communicator, config, operation, buffers)
    }
}
