//! Memory that NCCL knows beforehand: registered with one communicator, or a window that all its ranks can reach.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys::CUdeviceptr;
use nccl_sys::{
    MissingSymbol, NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_DEFAULT, NCCL_WIN_STRICT_ORDERING, Nccl, Version,
    ncclComm_t, ncclResult_t, ncclWindow_t, ncclWindow_vidmem,
};

use super::communicator::{Communicator, drain, drain_or_abort};
use super::cuda;
use super::error::Error;
use super::group;
use super::inside;
use super::library::Library;
use super::memory::{Memory, MemoryView, MemoryViewMut};
use crate::Element;

/// Memory that is registered with a communicator (`ncclCommRegister`, NCCL 2.19): its collectives can read and write it
/// without copies of their own. Its views go into collectives like the memory's own. Dropping it waits for the
/// communicator's work and takes the registration back (`ncclCommDeregister`).
#[derive(Debug)]
pub struct Registration<'a> {
    communicator: &'a Communicator,
    memory: &'a mut Memory,
    handle: *mut c_void,
}

impl Communicator {
    /// Registers memory with this communicator; a local operation.
    ///
    /// ```no_run
    /// # use collectives::{ReduceOp, nccl::{Communicator, Error, Memory}};
    /// # fn example(communicator: &Communicator) -> Result<(), Error> {
    /// let mut memory = Memory::alloc(communicator.library(), communicator.stream(), 1 << 20)?;
    /// let mut registered = communicator.register(&mut memory)?;
    /// communicator.all_reduce_in_place(&mut registered.slice_mut::<f32>(0, 1 << 18)?, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.19; [`Error::WrongDevice`]; [`Error::InsideGroup`]; [`Error::Nccl`];
    /// [`Error::Aborted`] and [`Error::Unusable`].
    pub fn register<'a>(&'a self, memory: &'a mut Memory) -> Result<Registration<'a>, Error> {
        const OPERATION: &str = "ncclCommRegister";
        inside::forbid(OPERATION)?;
        let (address, bytes) = self.reachable(OPERATION, memory)?;
        let mut handle = ptr::null_mut();
        self.shared.call(OPERATION, |raw, communicator| {
            // SAFETY: `call` holds the guard, and the handle is alive; the memory has so many bytes; writes one pointer.
            unsafe { raw.ncclCommRegister(communicator, address, bytes, &mut handle) }
        })?;
        memory.set_known(true);
        Ok(Registration { communicator: self, memory, handle })
    }

    /// Makes memory a window that all ranks of the communicator can reach (`ncclCommWindowRegister`, NCCL 2.27), after
    /// the work that is queued on the memory's stream. All ranks call it together, each with memory of the same size; see
    /// [`windows`] for several ranks in one thread.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.27; otherwise as [`register`](Self::register), and [`Error::Deadline`].
    pub fn window<'a>(&'a self, memory: &'a mut Memory, kind: WindowKind) -> Result<Window<'a>, Error> {
        inside::forbid(WINDOW)?;
        let window = Window::none(self, memory);
        window.start(kind)?;
        // On a non-blocking communicator NCCL answers ncclSuccess before it is done, too.
        self.shared.settle(WINDOW, self.shared.config.limit())?;
        Ok(window)
    }

    /// The address and size of memory on this communicator's device.
    fn reachable(&self, operation: &'static str, memory: &Memory) -> Result<(*mut c_void, usize), Error> {
        cuda::bind(&self.shared.context)?;
        self.expect_device(operation, "memory", memory.stream())?;
        Ok((memory.address() as *mut c_void, memory.bytes()))
    }
}

/// Takes memory back from NCCL when its guard is dropped, after the work that may use it; inside a group after that. When
/// the work fails, the communicator is aborted, and ends all that belongs to it. Only one with graphs is not, since NCCL
/// waits for them, and only this thread can drop them: NCCL keeps the memory then, which is never freed.
fn take_back(
    operation: &'static str,
    communicator: &Communicator,
    memory: &Memory,
    call: impl FnOnce(&'static Nccl, ncclComm_t) -> Result<ncclResult_t, MissingSymbol> + 'static,
) {
    let (shared, stream) = (Arc::clone(&communicator.shared), Arc::clone(&communicator.stream));
    let known = memory.known();
    inside::after(move || {
        let drain = if shared.has_graphs() { drain } else { drain_or_abort };
        let drained = drain(&shared, &stream);
        let result = drained.and_then(|()| {
            let state = shared.lock();
            let handle = shared.existing(*state, operation)?;
            let code = call(shared.raw(), handle)?;
            drop(state);
            match code {
                ncclResult_t::ncclInProgress => shared.settle(operation, shared.config.limit()),
                code => shared.library.check(operation, code),
            }
        });
        if result.is_ok() || shared.is_aborted() {
            known.store(false, Ordering::Relaxed);
        }
        match result {
            Ok(()) | Err(Error::Aborted { .. }) => {}
            Err(error) => tracing::warn!("{operation}: {error}"),
        }
    });
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let handle = self.handle;
        take_back("ncclCommDeregister", self.communicator, self.memory, move |raw, communicator| {
            // SAFETY: the communicator is alive, the handle is one of its registrations, and no work uses it any more.
            unsafe { raw.ncclCommDeregister(communicator, handle) }
        });
    }
}

const WINDOW: &str = "ncclCommWindowRegister";

/// What a window is for. NCCL 2.27.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowKind {
    /// `NCCL_WIN_DEFAULT`.
    Plain,
    /// `NCCL_WIN_COLL_SYMMETRIC`: every rank uses the same offsets in it, which NCCL's fastest kernels and one-sided
    /// operations need.
    #[default]
    Symmetric,
    /// `NCCL_WIN_STRICT_ORDERING` in addition: one-sided operations arrive in order. NCCL 2.29.
    SymmetricOrdered,
}

impl WindowKind {
    fn flags(self, library: Library) -> Result<c_int, Error> {
        let flags = match self {
            Self::Plain => NCCL_WIN_DEFAULT,
            Self::Symmetric => NCCL_WIN_COLL_SYMMETRIC,
            Self::SymmetricOrdered => {
                library.require("WindowKind::SymmetricOrdered", Version::new(2, 29, 0))?;
                NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING
            }
        };
        Ok(flags as c_int)
    }
}

/// Memory that all ranks of a communicator can reach. Its views go into collectives like the memory's own; with
/// [`Communicator::put`] other ranks write into it. Dropping it waits for the communicator's work and takes the window
/// back (`ncclCommWindowDeregister`): see to it that no other rank still writes then.
///
/// ```no_run
/// # use collectives::nccl::{Communicator, Error, Memory, Signal, WindowKind};
/// # fn example(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
/// // Every rank writes its first 1024 numbers behind those of its right neighbour.
/// let (rank, size) = (communicator.rank(), communicator.size());
/// let window = communicator.window(memory, WindowKind::Symmetric)?;
/// let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
/// communicator.put(&window.slice::<f32>(0, 1024)?, &window, 4096, Signal::new(right))?;
/// communicator.wait_signals(&[(Signal::new(left), 1)])?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Window<'a> {
    communicator: &'a Communicator,
    memory: &'a mut Memory,
    /// Where NCCL writes its handle, from a thread of its own where the communicator is non-blocking.
    slot: AtomicPtr<ncclWindow_vidmem>,
}

/// Windows of several communicators of one thread, made together: each communicator's with its memory, in order.
///
/// # Errors
/// As [`Communicator::window`].
pub fn windows<'a>(
    library: Library,
    memories: impl IntoIterator<Item = (&'a Communicator, &'a mut Memory)>,
    kind: WindowKind,
) -> Result<Vec<Window<'a>>, Error> {
    let windows: Vec<_> =
        memories.into_iter().map(|(communicator, memory)| Window::none(communicator, memory)).collect();
    // NCCL writes the handles when the group ends, or later: until then the windows stay where they are.
    group::raw(library, || windows.iter().try_for_each(|window| window.start(kind)))?;
    // Each, whatever the others say: NCCL writes into every window until it is done with that one.
    let mut settled = Ok(());
    for window in &windows {
        let shared = &window.communicator.shared;
        settled = settled.and(shared.settle(WINDOW, shared.config.limit()));
    }
    settled.map(|()| windows)
}

impl<'a> Window<'a> {
    fn none(communicator: &'a Communicator, memory: &'a mut Memory) -> Self {
        memory.set_known(true);
        Self { communicator, memory, slot: AtomicPtr::default() }
    }

    fn raw(&self) -> ncclWindow_t {
        self.slot.load(Ordering::Acquire)
    }

    /// Calls NCCL, which writes the handle into `self` before the communicator reports success.
    fn start(&self, kind: WindowKind) -> Result<(), Error> {
        let communicator = self.communicator;
        let flags = kind.flags(communicator.library())?;
        let (address, bytes) = communicator.reachable(WINDOW, self.memory)?;
        // The memory's zeroes, and whatever was written into it, come before what other ranks write.
        cuda::refuse_captured(WINDOW, self.memory.stream())?;
        cuda::wait(self.memory.stream())?;
        let shared = &communicator.shared;
        let state = shared.lock();
        let raw = shared.handle(*state, WINDOW)?;
        let slot = self.slot.as_ptr();
        // SAFETY: the handle is alive and the guard keeps other threads out; the memory has so many bytes; `self` stays
        // where it is until the callers have waited for NCCL.
        let code = unsafe { shared.raw().ncclCommWindowRegister(raw, address, bytes, slot, flags) }?;
        if code != ncclResult_t::ncclInProgress {
            shared.library.check(WINDOW, code)?;
        }
        if kind != WindowKind::Plain {
            shared.add_window(self.addresses());
        }
        Ok(())
    }

    fn addresses(&self) -> Range<u64> {
        self.memory.address()..self.memory.address() + self.memory.bytes() as u64
    }

    /// Whether NCCL made a window of it. Where the GPUs cannot reach each other's memory it does not, without an error:
    /// collectives work as ever, [`Communicator::put`] does not.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.raw().is_null()
    }

    /// The address that NCCL knows the window's memory by on this rank (`ncclWinGetUserPtr`, NCCL 2.29).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::Nccl`]; [`Error::Aborted`].
    pub fn address(&self) -> Result<CUdeviceptr, Error> {
        const OPERATION: &str = "ncclWinGetUserPtr";
        let mut address = ptr::null_mut();
        self.communicator.shared.ask(OPERATION, |raw, handle| {
            // SAFETY: `ask` holds the guard, and the handle is alive; writes one pointer.
            unsafe { raw.ncclWinGetUserPtr(handle, self.raw(), &mut address) }
        })?;
        Ok(address as CUdeviceptr)
    }

    /// The handle for a write of `len` elements at byte `offset` of another rank's part, which has this one's size.
    pub(crate) fn target<T: Element>(
        &self,
        operation: &'static str,
        communicator: &Communicator,
        offset: usize,
        len: usize,
    ) -> Result<ncclWindow_t, Error> {
        if !ptr::eq(self.communicator, communicator) {
            return Err(Error::WrongCommunicator { operation, object: "window" });
        }
        // The same bounds as a view's.
        self.memory.slice::<T>(offset, len)?;
        Ok(self.raw())
    }
}

macro_rules! views {
    ($($type:ident),*) => {$(
        impl $type<'_> {
            /// The memory's size in bytes.
            #[must_use]
            pub fn bytes(&self) -> usize {
                self.memory.bytes()
            }

            /// As [`Memory::slice`].
            ///
            /// # Errors
            /// As there.
            pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<MemoryView<'_, T>, Error> {
                self.memory.slice(offset, len)
            }

            /// As [`Memory::slice_mut`].
            ///
            /// # Errors
            /// As there.
            pub fn slice_mut<T: Element>(
                &mut self,
                offset: usize,
                len: usize,
            ) -> Result<MemoryViewMut<'_, T>, Error> {
                self.memory.slice_mut(offset, len)
            }
        }
    )*};
}

views!(Registration, Window);

impl Drop for Window<'_> {
    fn drop(&mut self) {
        self.communicator.shared.remove_window(&self.addresses());
        let window = self.raw();
        if window.is_null() {
            return self.memory.set_known(false);
        }
        take_back("ncclCommWindowDeregister", self.communicator, self.memory, move |raw, communicator| {
            // SAFETY: the communicator is alive, the window is one of its own, and no work of this rank uses it.
            unsafe { raw.ncclCommWindowDeregister(communicator, window) }
        });
    }
}

/// A signal to or from another rank: what one-sided operations use to say that they are done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    pub(crate) peer: usize,
    pub(crate) index: c_int,
    pub(crate) context: c_int,
}

impl Signal {
    /// The first signal of the first context, to or from this rank.
    #[must_use]
    pub const fn new(peer: usize) -> Self {
        Self { peer, index: 0, context: 0 }
    }

    /// Another signal than the first (`sigIdx`): see [`Config::rma_signals`](super::Config::rma_signals).
    #[must_use]
    pub const fn index(mut self, index: i32) -> Self {
        self.index = index;
        self
    }

    /// Another context than the first (`ctx`): see [`Config::rma_contexts`](super::Config::rma_contexts).
    #[must_use]
    pub const fn context(mut self, context: i32) -> Self {
        self.context = context;
        self
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, index, context } = self;
        write!(formatter, "Signal(rank {peer}, index {index}, context {context})")
    }
}
