//! Communicators and collectives over CUDA buffers, on NCCL.
//!
//! # Limits of the checks
//! Safe code cannot make NCCL or a GPU use freed memory, strings or handles, with these exceptions:
//! - *All* ranks of a communicator must call the same operations in the same order with the same type, root,
//!   lengths and settings, and group the same collectives together: NCCL sorts the collectives of a group by
//!   size. Buffers accessed by other ranks (both of an all-reduce, the receive buffers of all-gather and
//!   all-to-all, the send buffers of reduce-scatter) must be at the same offset of the same symmetric
//!   [window](Window), or all [registered](Communicator::register), or all neither. Windows created together
//!   by ranks must have the same size and the same offset in their memory, and either all ranks or none have
//!   dropped an earlier one. Ranks in one [`group`](group()) or [`Graph`] are compared
//!   ([`Error::Disagreement`]), if the creation of their communicator and all earlier calls have succeeded on
//!   all of them, and none has [joined](Builder::join) it. Ranks of other threads and processes cannot be
//!   compared: if they differ, NCCL may hang or return wrong results. If GPUs write into each other's memory
//!   directly (NCCL before 2.23 within a process, registered buffers, windows), a rank with a longer buffer
//!   or another offset may write outside of another rank's. One-sided writes ([`put`](Collectives::put)) are
//!   `unsafe` for the same reason. Three things are never compared: the offsets of windows in their memory,
//!   windows dropped by only some ranks, and the receive buffers of a scatter or gather with copy engines
//!   ([`Config::cta_policy`]); these must also be at the same offset.
//! - If *another thread* begins to capture a communicator's stream into a CUDA graph during a call, the
//!   call's work becomes part of the graph, and the graph does not keep its buffers. A capture begun before
//!   the call is refused; CUDA has no way to prevent one from beginning. A call can be long: a
//!   [`group`](group()), or a list of [`Prepared`] operations. Graphs of this module are captured on private
//!   streams.
//! - If the last owner of a registration or window is dropped *on another thread* during a call on its
//!   memory, NCCL may use it after it is deregistered.
//! - cudarc's own copies between devices, its reads of one slice on several streams, and errors recorded by
//!   it and taken by another thread: see `docs/limits.md`.
//!
//! # Communicators
//! [`Library`] is libnccl, loaded at run time; [`functions`] maps NCCL's functions to this module. A
//! [`Communicator`] is one rank of a group of GPUs: its number is [`rank`](Communicator::rank), of
//! [`size`](Communicator::size) ranks. It is bound to one CUDA stream, and so to one device. There are three
//! ways to create one per GPU; a job may mix the first two.
//!
//! | ranks | bootstrap | `examples/` |
//! |---|---|---|
//! | threads | one thread creates a [`UniqueId`], all pass it to [`Communicator::builder`] | `nccl_threads` |
//! | processes | the same; send the id through [`world`](crate::world) or by other means | `nccl_processes` |
//! | all in one thread | [`Communicator::init_all`]; operations are in a [`group`](group()) | `nccl_group` |
//!
//! For small operations, one thread for all GPUs takes several times as long as a thread or process per GPU.
//!
//! [`Config`] has NCCL's settings. Communicators can be derived from others: [`split`](Communicator::split)
//! into parts, [`shrink`](Communicator::shrink) to the live ranks, and [`grow`](Communicator::grow) by new
//! ranks. [`suspend`](Communicator::suspend) releases a communicator's device memory temporarily. Split and
//! shrink have variants for several ranks in one thread ([`split_all`](Communicator::split_all)), and all
//! three have non-blocking ones ([`split_pending`](Communicator::split_pending)).
//!
//! # Collectives
//! The trait [`Collectives`] has all-reduce, reduce, broadcast, all-gather, reduce-scatter, all-to-all (also
//! with parts of different lengths), gather, scatter, send and receive. Most have an in-place variant.
//! Lengths are in elements, and the buffers determine the type: any [`Element`](crate::Element), an integer
//! or floating-point number of 8 to 64 bits. The operator is a [`ReduceOp`](crate::ReduceOp) or a
//! [`ScaledSum`] (it multiplies each rank's input by a factor of its own). A call through
//! [`Communicator::with`] has its own settings ([`CallConfig`]).
//!
//! [`group()`] launches several operations together, of one or several communicators, or none if its closure
//! fails. It is needed for several ranks in one thread, and to send and receive at the same time.
//! [`Group::nested`] is for functions called inside a group or not; [`simulate()`] returns NCCL's estimate of
//! the duration instead of launching.
//!
//! # Memory, registrations and windows
//! Collectives read any [`DeviceBuffer`] and write any [`DeviceBufferMut`]: cudarc's `CudaSlice`, `CudaView`
//! and `CudaViewMut`, and views of [`Memory`], allocated by NCCL or adopted ([`Memory::from_raw`], unsafe,
//! takes an address).
//!
//! A [`Memory`] has shared ownership with its [`Registration`]s ([`Communicator::register`]), [`Window`]s
//! ([`Communicator::window`]), [`Graph`]s and [`Prepared`] operations; these also own NCCL's handles. They
//! have no lifetimes: a struct may hold a communicator, its memory and its windows, and they may be dropped
//! in any order on any thread. A forgotten one leaks its memory only. Registrations avoid intermediate
//! copies; all ranks can access a window.
//!
//! # Prepared operations
//! [`Communicator::prepare`] checks operations once, and [`Communicator::queue`] passes them to NCCL any
//! number of times, with new values in their memory: for loops that repeat the same operations, if the host
//! bounds the time. A list costs little more than NCCL's own calls. A [`Graph`] launches all its operations
//! at the cost of one kernel, but takes longer to make, and supports fewer communicators.
//!
//! # CUDA graphs
//! [`Graph::capture`] creates a CUDA graph of collectives. [`Graph::launch`] launches it any number of times,
//! with new values in its memory. Capture graphs with other kernels and copies through cudarc, with
//! [`Communicator::captured`]. It is unsafe, since nothing keeps their buffers. All other operations on a
//! captured stream are refused.
//!
//! # Streams and order
//! A communicator's operations run on its stream in the order of the calls, and the host does not wait for
//! them: synchronise the stream, or copy the result through cudarc. If a buffer belongs to another stream of
//! the device, the operation is ordered after earlier work queued there, and before later work queued there.
//! So buffers may be used and dropped right after the call. Per-thread default streams are refused.
//! [`Communicator::set_stream`] moves a communicator to another stream.
//!
//! # Failures, deadlines and watchdogs
//! Every [`Error`] names the operation, NCCL's message, and a solution. Arguments are checked before anything
//! is queued. Later failures, on another rank or in the network, are returned by
//! [`Communicator::async_error`]: record an event on the stream, poll until it is complete, and abort on a
//! timeout.
//!
//! - If a rank is missing, the others wait forever. With `Config::blocking(false)` NCCL works on a thread of
//!   its own, and calls wait for at most [`Config::deadline`]. Then the communicator is aborted.
//! - [`Builder::init_pending`] returns immediately: a [`Pending`] can be polled, waited for with a limit, and
//!   aborted.
//! - An [`AbortHandle`] ends a communicator, with its queued work and graphs, from any thread: see
//!   `examples/nccl_watchdog.rs`.
//! - [`Communicator::revoke`] stops queued and hanging work but keeps the communicator: it can then be
//!   shrunk.
//! - [`Communicator::close`] waits for queued work and returns its error. Dropping does the same and logs the
//!   error.
//!
//! # Versions of NCCL
//! The library is chosen at run time, from 2.18 on. A function that it lacks returns [`Error::MissingSymbol`]
//! with both versions and the file; a setting or type that it would ignore or misread returns
//! [`Error::TooOld`]. Items document their required version. Before 2.28, all-to-all, gather and scatter are
//! composed of sends and receives in a group, and before 2.19 [`Memory`] comes from CUDA, without a
//! difference for the caller. Unknown result codes keep their number. [`Library::parameters`] returns NCCL's
//! settings from the environment.

mod allocation;
mod communicator;
pub mod cuda;
mod error;
mod graph;
mod library;
mod memory;
pub(crate) mod nccl_group;
mod operation;
mod parameters;
mod settings;
mod unique_id;

pub use communicator::{
    AbortHandle, Builder, Communicator, Config, Grow, MemoryStatistics, Pending, Shrink, Split,
};
pub use cuda::device_count;
pub use error::{Error, Needed, ResultCode};
pub use graph::{Capture, Graph};
pub use library::{Library, SYMMETRIC_RACE};
pub use memory::{
    Access, DeviceBuffer, DeviceBufferMut, Memory, MemoryView, MemoryViewMut, Owner, Registration, Signal,
    Window, WindowKind, windows,
};
pub use nccl_sys::{LoadError, MissingSymbol, Version};
pub use operation::{
    Call, CallConfig, Collectives, Group, Immediate, Launch, Preparation, Prepared, Reduction, ScaledSum,
    group, simulate,
};
pub use unique_id::UniqueId;

pub(crate) use memory::{begin_write, queue_read};

/// All functions of NCCL's `nccl.h`: the first version of each one, and its place in this module.
/// [`nccl_sys::Nccl`] has the raw functions.
///
#[doc = include_str!("functions.md")]
#[cfg(doc)]
pub mod functions {}
