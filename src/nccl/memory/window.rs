//! Windows: memory that all ranks of a communicator can access.

use std::{ffi::c_int, sync::Arc};

use cudarc::driver::sys::CUdeviceptr;
use nccl_sys::{NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_DEFAULT, NCCL_WIN_STRICT_ORDERING, Version, ncclWindow_t};

use super::buffer::DeviceBuffer;
use super::registered::{Functions, Registered};
use super::view::checked_range;
use crate::Element;
use crate::nccl::communicator::{Communicator, CommunicatorState, Guards, ranges_overlap};
use crate::nccl::error::{Error, each_first_error};
use crate::nccl::{cuda, library::Library, nccl_group};

const WINDOW: &str = "ncclCommWindowRegister";

static FUNCTIONS: Functions = Functions {
    register_name: WINDOW,
    deregister_name: "ncclCommWindowDeregister",
    // SAFETY: by the contract of the field, equal to this function's.
    deregister: |raw, communicator, window| unsafe {
        raw.ncclCommWindowDeregister(communicator, window.cast())
    },
};

/// Kind of a window. NCCL 2.27.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowKind {
    /// `NCCL_WIN_DEFAULT`.
    Plain,
    /// `NCCL_WIN_COLL_SYMMETRIC`: NCCL's fastest kernels and one-sided operations. All ranks pass the same
    /// offsets of the same window to a collective: NCCL computes the addresses of other ranks' buffers from a
    /// rank's own offset.
    #[default]
    Symmetric,
    /// Adds `NCCL_WIN_STRICT_ORDERING`: one-sided operations arrive in order. NCCL 2.29.
    SymmetricOrdered,
}

impl WindowKind {
    fn raw_flags(self, library: Library) -> Result<c_int, Error> {
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

/// Memory that all ranks of a communicator can access, from [`Communicator::window`]. Collectives on the
/// memory use NCCL's fastest kernels; other ranks write into it with [`put`](crate::nccl::Collectives::put).
///
/// Owns the memory together with the [`Memory`](super::Memory). Views of the latter are passed to
/// collectives. Deregistered (`ncclCommWindowDeregister`) like a [`Registration`](super::Registration).
///
/// ```no_run
/// # use collectives::nccl::{Collectives, Communicator, Error, Memory, Signal, WindowKind};
/// # fn example(communicator: &Communicator, memory: &Memory) -> Result<(), Error> {
/// // Every rank writes its first 1024 numbers behind those of its right neighbour.
/// let (rank, size) = (communicator.rank(), communicator.size());
/// let window = communicator.window(memory, WindowKind::Symmetric)?;
/// let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
/// // SAFETY: all ranks keep their windows until all have waited, and read the numbers only then.
/// unsafe { communicator.put(&memory.slice::<f32>(..1024)?, &window, 1024, Signal::new(right)) }?;
/// communicator.wait_signals(&[(Signal::new(left), 1)])?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Window {
    registered: Arc<Registered>,
    flags: c_int,
}

impl Communicator {
    /// Registers memory as a window of all ranks (`ncclCommWindowRegister`, NCCL 2.27), once the work queued
    /// on the memory's stream is done. All ranks call it together, each with memory of the same size: a
    /// [`Memory`](super::Memory), or a view at the same offset of one; see [`windows`] for several ranks in
    /// one thread.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.27; [`Error::Argument`] for memory in another symmetric window
    /// of the communicator; [`Error::Stream`] while the memory's stream is being captured;
    /// [`Error::Deadline`]; otherwise the errors of [`register`](Self::register).
    pub fn window<B: DeviceBuffer + ?Sized>(&self, buffer: &B, kind: WindowKind) -> Result<Window, Error> {
        let window = Window::new(self, buffer, kind)?;
        window.start_registration(&mut Guards::lock_all([&*self.handle]))?;
        window.finish_registration()?;
        Ok(window)
    }
}

/// Registers windows of several communicators of one thread together, each with its memory. Returns them in
/// order.
///
/// # Errors
/// The errors of [`Communicator::window`]; [`Error::WrongLibrary`] for communicators of different libraries;
/// [`Error::Disagreement`] for ranks of one communicator with memory of different sizes.
pub fn windows<'a, B: DeviceBuffer + ?Sized + 'a>(
    memories: impl IntoIterator<Item = (&'a Communicator, &'a B)>,
    kind: WindowKind,
) -> Result<Vec<Window>, Error> {
    nccl_group::forbid_group(WINDOW)?;
    let (communicators, buffers): (Vec<_>, Vec<_>) = memories.into_iter().unzip();
    let library = Communicator::common_library(WINDOW, communicators.iter().copied())?;
    let Some(library) = library else { return Ok(Vec::new()) };
    let pairs = communicators.into_iter().zip(buffers);
    let windows = pairs.map(|(communicator, buffer)| Window::new(communicator, buffer, kind));
    let windows = windows.collect::<Result<Vec<_>, _>>()?;
    refuse_different_sizes(&windows)?;
    if kind != WindowKind::Plain {
        refuse_overlaps(&windows)?;
    }
    // NCCL uses the communicators until the group has ended.
    let mut guards = Guards::lock_all(windows.iter().map(|window| &*window.registered.communicator));
    let grouped = nccl_group::run_calls(library, nccl_group::END, || {
        windows.iter().try_for_each(|window| window.start_registration(&mut guards))
    });
    drop(guards);
    grouped?;
    // Each one, in spite of errors: NCCL may write into every window until it is done with it.
    each_first_error(&windows, Window::finish_registration)?;
    Ok(windows)
}

/// Refuses windows of different sizes, created together by ranks of one communicator, the n-th of each.
fn refuse_different_sizes(windows: &[Window]) -> Result<(), Error> {
    let handle = |window: &Window| Arc::as_ptr(&window.registered.communicator);
    let created_together = |index: usize| {
        let own = handle(&windows[index]);
        let earlier = windows[..index].iter().filter(|other| handle(other) == own).count();
        (windows[index].registered.communicator.communicator_key, earlier)
    };
    for (index, one) in windows.iter().enumerate() {
        let differs = |&other: &usize| {
            created_together(other) == created_together(index) && windows[other].bytes() != one.bytes()
        };
        if let Some(other) = (0..index).find(differs) {
            let reason = format!("a window of {} bytes and one of {}", windows[other].bytes(), one.bytes());
            return Err(Error::Disagreement { operation: WINDOW, reason });
        }
    }
    Ok(())
}

/// Refuses symmetric windows of one communicator, made together, that share memory.
fn refuse_overlaps(windows: &[Window]) -> Result<(), Error> {
    for (index, Window { registered: one, .. }) in windows.iter().enumerate() {
        let overlaps = |Window { registered: other, .. }: &Window| {
            Arc::ptr_eq(&one.communicator, &other.communicator)
                && ranges_overlap(one.address_range(), other.address_range())
        };
        if windows[..index].iter().any(overlaps) {
            return Err(Error::bad_argument(WINDOW, OVERLAP));
        }
    }
    Ok(())
}

const OVERLAP: &str = "the memory is in another symmetric window of the communicator";

/// Refuses memory of another symmetric window: NCCL does not define which one it uses.
fn refuse_overlap(communicator: &Communicator, registered: &Registered) -> Result<(), Error> {
    let known = communicator.handle.registered_at(registered.address_range());
    if known.iter().any(|(memory, _)| memory.symmetric && memory.raw != 0) {
        return Err(Error::bad_argument(WINDOW, OVERLAP));
    }
    Ok(())
}

impl Window {
    fn new<B: DeviceBuffer + ?Sized>(
        communicator: &Communicator,
        buffer: &B,
        kind: WindowKind,
    ) -> Result<Self, Error> {
        let symmetric = kind != WindowKind::Plain;
        let registered = Registered::new(communicator, buffer, symmetric, &FUNCTIONS)?;
        if symmetric {
            refuse_overlap(communicator, &registered)?;
        }
        let library = communicator.library();
        library.raw().require(WINDOW)?;
        let flags = kind.raw_flags(library)?;
        // The memory's zeroes and earlier writes come before writes of other ranks.
        cuda::refuse_captured(WINDOW, buffer.stream())?;
        cuda::wait_for_stream(buffer.stream())?;
        if symmetric {
            communicator.handle.prepare_fence(&communicator.stream)?;
        }
        Ok(Self { registered, flags })
    }

    /// Calls NCCL. It writes its handle before the communicator reports success;
    /// [finish](Self::finish_registration) waits for the handle.
    fn start_registration(&self, guards: &mut Guards<'_>) -> Result<(), Error> {
        let ((address, bytes), slot) =
            (self.registered.address_and_bytes(), self.registered.slot.as_ptr().cast());
        let handle = &*self.registered.communicator;
        let (comm, _) = guards.comm_of(handle, CommunicatorState::is_alive, WINDOW)?;
        self.registered.number_window();
        if handle.is_blocking() {
            // While the guard is held: a graph keeps the memory known to NCCL when it is captured.
            self.registered.add_to_communicator();
        }
        // SAFETY: the guard is held, and the handle is alive; the length is the memory's; the slot lives
        // until the callers have waited for NCCL.
        let code =
            unsafe { handle.library.raw().ncclCommWindowRegister(comm, address, bytes, slot, self.flags) }?;
        handle.library.accept_code(WINDOW, code).map(drop)
    }

    fn finish_registration(&self) -> Result<(), Error> {
        let handle = &*self.registered.communicator;
        handle.wait_for_nccl(WINDOW, handle.config.deadline)?;
        if !handle.is_blocking() {
            self.registered.add_to_communicator();
        }
        Ok(())
    }

    /// True if NCCL has created a window, and the communicator is not finalized or closed. If the GPUs cannot
    /// access each other's memory, NCCL creates none, without an error: collectives still work,
    /// [`put`](crate::nccl::Collectives::put) does not.
    pub fn is_active(&self) -> bool {
        self.registered.is_active()
    }

    /// Size of the window in bytes.
    pub fn bytes(&self) -> usize {
        self.registered.address_and_bytes().1
    }

    /// NCCL's address of the window's memory on this rank (`ncclWinGetUserPtr`, NCCL 2.29); 0 for an inactive
    /// window.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29; [`Error::Nccl`]; [`Error::Aborted`].
    pub fn address(&self) -> Result<CUdeviceptr, Error> {
        const OPERATION: &str = "ncclWinGetUserPtr";
        if !self.is_active() {
            return Ok(0);
        }
        let mut address = std::ptr::null_mut();
        self.registered.communicator.call_in_state(
            OPERATION,
            CommunicatorState::allows_queries,
            |raw, handle| {
                // SAFETY: `call_in_state` holds the guard, and the handle is alive; writes one pointer.
                unsafe { raw.ncclWinGetUserPtr(handle, self.registered.raw_handle().cast(), &mut address) }
            },
        )?;
        Ok(address as CUdeviceptr)
    }

    /// Checks a write of `len` elements at element `offset` of another rank's window, and returns NCCL's
    /// handle and the offset in bytes.
    pub(crate) fn check_put<T: Element>(
        &self,
        operation: &'static str,
        communicator: &Communicator,
        offset: usize,
        len: usize,
    ) -> Result<(ncclWindow_t, usize), Error> {
        if !Arc::ptr_eq(&self.registered.communicator, &communicator.handle) {
            return Err(Error::WrongCommunicator { operation, object: "window" });
        }
        if !self.is_active() {
            let reason = "NCCL made no window for the memory here (Window::is_active)";
            return Err(Error::bad_argument(operation, reason));
        }
        checked_range(offset..offset.saturating_add(len), self.bytes() / size_of::<T>())?;
        Ok((self.registered.raw_handle().cast(), offset * size_of::<T>()))
    }
}

/// A signal to or from another rank, for one-sided operations to report completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The other rank.
    pub peer: usize,
    /// Number of the signal (`sigIdx`): see [`Config::rma_signals`](crate::nccl::Config::rma_signals).
    pub index: i32,
    /// Number of the context (`ctx`): see [`Config::rma_contexts`](crate::nccl::Config::rma_contexts).
    pub context: i32,
}

impl Signal {
    /// First signal of the first context, to or from this rank.
    #[must_use]
    pub const fn new(peer: usize) -> Self {
        Self { peer, index: 0, context: 0 }
    }
}
