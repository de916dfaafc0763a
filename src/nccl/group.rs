//! Groups: several operations, on any number of communicators, that NCCL launches as one.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::{Arc, MutexGuard};

use cudarc::driver::CudaStream;
use nccl_sys::{ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::abort::State;
use super::buffer::{Access, DeviceBuffer, DeviceBufferMut};
use super::collective::{ALL_GATHER, Foreign, Operation};
use super::communicator::Communicator;
use super::cuda;
use super::error::Error;
use super::library::Library;
use crate::ReduceOp;

const START: &str = "ncclGroupStart";
const END: &str = "ncclGroupEnd";

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
/// in one thread, and to make NCCL overlap operations.
///
/// Nothing is launched before the closure has returned. When it returns an error or panics, nothing is launched at
/// all. (NCCL then reports the cancelled operations of *non-blocking* communicators through
/// [`Communicator::async_error`]; these communicators can only be dropped.) Communicators and buffers stay borrowed
/// until the group has ended. Dropping another communicator inside the closure takes effect after the group.
///
/// # Errors
/// The closure's; [`Error::InsideGroup`] inside another group; [`Error::Nccl`], [`Error::Deadline`] or
/// [`Error::Aborted`] when the launch fails.
pub fn group<'env, T>(
    library: Library,
    body: impl FnOnce(&Group<'env>) -> Result<T, Error>,
) -> Result<T, Error> {
    let section = Section::start(library)?;
    let group = Group { library, section, queued: RefCell::new(Queued::default()), environment: PhantomData };
    let value = body(&group)?;
    group.launch()?;
    Ok(value)
}

/// A group without buffers: for making communicators. Cancelled when the closure fails.
pub(crate) fn raw<T>(library: Library, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let section = Section::start(library)?;
    let value = body()?;
    match section.end() {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(value),
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
        self.open.set(false);
        // SAFETY: no arguments; closes the group that `start` opened on this thread.
        let code = unsafe { self.library.raw().ncclGroupEnd() };
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

/// Takes operations until the closure of [`group`] returns.
pub struct Group<'env> {
    library: Library,
    queued: RefCell<Queued<'env>>,
    section: Section,
    /// Operations borrow for exactly `'env`, neither longer nor shorter.
    environment: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct Queued<'env> {
    /// Each communicator once, with the guard that keeps other threads from aborting it until the group has ended.
    communicators: Vec<(&'env Communicator, MutexGuard<'env, State>)>,
    accesses: Vec<Access<'env>>,
    foreign: Vec<(&'env Communicator, Arc<CudaStream>)>,
}

impl<'env> Group<'env> {
    /// [`Communicator::all_reduce`] as part of the group.
    ///
    /// # Errors
    /// As there; [`Error::WrongLibrary`] for a communicator of another libnccl.
    pub fn all_reduce<S, R>(
        &self,
        communicator: &'env Communicator,
        send: &'env S,
        receive: &'env mut R,
        op: ReduceOp,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        let operation = communicator.all_reduce_operation::<S::Element>(send.len(), receive.len(), op)?;
        self.out_of_place(communicator, operation, send, receive)
    }

    /// [`Communicator::all_reduce_in_place`] as part of the group.
    ///
    /// # Errors
    /// As there; [`Error::WrongLibrary`] for a communicator of another libnccl.
    pub fn all_reduce_in_place<B>(
        &self,
        communicator: &'env Communicator,
        buffer: &'env mut B,
        op: ReduceOp,
    ) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        let operation = communicator.all_reduce_operation::<B::Element>(buffer.len(), buffer.len(), op)?;
        self.in_place(communicator, operation, buffer, 0)
    }

    /// [`Communicator::all_gather`] as part of the group.
    ///
    /// # Errors
    /// As there; [`Error::WrongLibrary`] for a communicator of another libnccl.
    pub fn all_gather<S, R>(
        &self,
        communicator: &'env Communicator,
        send: &'env S,
        receive: &'env mut R,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut<Element = S::Element> + ?Sized,
    {
        let operation = communicator.all_gather_operation::<S::Element>(send.len(), receive.len())?;
        self.out_of_place(communicator, operation, send, receive)
    }

    /// [`Communicator::all_gather_in_place`] as part of the group.
    ///
    /// # Errors
    /// As there; [`Error::WrongLibrary`] for a communicator of another libnccl.
    pub fn all_gather_in_place<B>(
        &self,
        communicator: &'env Communicator,
        buffer: &'env mut B,
    ) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        let part = communicator.part(ALL_GATHER, buffer.len())?;
        let operation = communicator.all_gather_operation::<B::Element>(part, buffer.len())?;
        self.in_place(communicator, operation, buffer, communicator.own_part::<B::Element>(part))
    }

    fn out_of_place<S, R>(
        &self,
        communicator: &'env Communicator,
        operation: Operation,
        send: &'env S,
        receive: &'env mut R,
    ) -> Result<(), Error>
    where
        S: DeviceBuffer + ?Sized,
        R: DeviceBufferMut + ?Sized,
    {
        let stream = self.enter(communicator, operation)?;
        let first = communicator.admit(operation.name, "send buffer", send)?;
        let second = communicator.admit(operation.name, "receive buffer", receive)?;
        let (source, target) = (send.read(stream), receive.write(stream));
        let addresses = (source.address(), target.address());
        self.keep(communicator, [first, second], [source, target]);
        self.enqueue(communicator, operation, addresses)
    }

    fn in_place<B>(
        &self,
        communicator: &'env Communicator,
        operation: Operation,
        buffer: &'env mut B,
        offset: u64,
    ) -> Result<(), Error>
    where
        B: DeviceBufferMut + ?Sized,
    {
        let stream = self.enter(communicator, operation)?;
        let foreign = communicator.admit(operation.name, "buffer", buffer)?;
        let target = buffer.write(stream);
        let addresses = (target.address() + offset, target.address());
        self.keep(communicator, [foreign], [target]);
        self.enqueue(communicator, operation, addresses)
    }

    /// Takes the communicator into the group.
    fn enter(
        &self,
        communicator: &'env Communicator,
        operation: Operation,
    ) -> Result<&'env CudaStream, Error> {
        if !ptr::eq(communicator.library().raw(), self.library.raw()) {
            return Err(Error::WrongLibrary { operation: operation.name });
        }
        cuda::bind(&communicator.shared.context)?;
        cuda::refuse_captured(operation.name, &communicator.stream)?;
        let communicators = &mut self.queued.borrow_mut().communicators;
        if !communicators.iter().any(|(member, _)| ptr::eq(*member, communicator)) {
            let state = communicator.shared.lock();
            communicator.shared.handle(*state, operation.name)?;
            communicators.push((communicator, state));
        }
        Ok(&communicator.stream)
    }

    /// Keeps the buffers' addresses valid, and remembers whose streams have to wait, until the group has ended.
    fn keep<const N: usize, const M: usize>(
        &self,
        communicator: &'env Communicator,
        foreign: [Foreign; N],
        accesses: [Access<'env>; M],
    ) {
        let mut queued = self.queued.borrow_mut();
        queued.foreign.extend(foreign.into_iter().flatten().map(|home| (communicator, home)));
        queued.accesses.extend(accesses);
    }

    fn enqueue(
        &self,
        communicator: &'env Communicator,
        operation: Operation,
        (source, target): (u64, u64),
    ) -> Result<(), Error> {
        let shared = &communicator.shared;
        // `enter` has found it alive, and the guard that it took keeps it so.
        let handle = shared.handle(State::Alive, operation.name)?;
        // SAFETY: the addresses are those of checked buffers, borrowed until the group has ended; the handle is alive
        // and the guard in `queued` keeps other threads out until then, too.
        let code =
            unsafe { operation.call(self.library.raw(), source, target, handle, &communicator.stream) };
        if code == ncclResult_t::ncclInProgress { Ok(()) } else { self.library.check(operation.name, code) }
    }

    fn launch(&self) -> Result<(), Error> {
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
