//! Communicators and collectives over CUDA buffers, on NCCL.
//!
//! # What this layer cannot check
//! Safe code cannot make NCCL or a GPU use memory, texts or handles that are gone, with these exceptions:
//! - *All* ranks of a communicator call the same operations in the same order with the same type, root and lengths. Ranks that
//!   are in one [`group`](group()) or [`Graph`] are compared ([`Error::Disagreement`]), if the calls that made their communicator
//!   and those before it have succeeded on all of them, and none has [joined](Builder::join) it. Those of other threads and
//!   processes cannot be seen: where they differ, NCCL may hang or deliver wrong numbers, and where GPUs write into each other's
//!   memory directly (NCCL before 2.23 within a process, registered buffers, windows), a rank with a longer buffer may write
//!   behind the end of another rank's. One-sided writes ([`put`](Collectives::put)) are `unsafe` for the same reason.
//! - A capture into a CUDA graph that *another thread* begins on a communicator's stream while a call on it is under way takes
//!   the call's work into that graph, which keeps no buffers. A capture that began before the call is refused; CUDA offers no way
//!   to keep one from beginning. Graphs of this layer are captured on streams of their own.
//! - cudarc's own copies between devices, and errors that cudarc notes and another thread takes: see `docs/limits.md`.
//!
//! # Communicators
//! [`Library`] is libnccl, found and loaded at run time. [`functions`] lists where each function of NCCL is. A [`Communicator`]
//! is one rank's end of a group of GPUs: a number, [`rank`](Communicator::rank), of [`size`](Communicator::size), bound to one
//! CUDA stream, and so to one device. There are three ways to have one for each GPU; a job may mix the first two.
//!
//! | ranks are | they come together by | `examples/` |
//! |---|---|---|
//! | threads | one makes a [`UniqueId`], all pass it to [`Communicator::builder`] | `nccl_threads` |
//! | processes | the same; the id's bytes travel by [`world`](crate::world) or any other way | `nccl_processes` |
//! | all in one thread | [`Communicator::init_all`]; their operations go into a [`group`](group()) | `nccl_group` |
//!
//! One thread that drives all GPUs takes several times as long for small operations as a thread or process for each.
//!
//! [`Config`] has NCCL's settings. More communicators come from one that there is: [`split`](Communicator::split) it into parts,
//! [`shrink`](Communicator::shrink) it to those ranks that still live, [`grow`](Communicator::grow) it by new ones.
//! [`suspend`](Communicator::suspend) gives a communicator's device memory back for a while. Split and shrink have variants for
//! several ranks in one thread ([`split_all`](Communicator::split_all)), all three one that does not wait
//! ([`split_pending`](Communicator::split_pending)).
//!
//! # Collectives
//! They are the methods of the trait [`Collectives`]: all-reduce, reduce, broadcast, all-gather, reduce-scatter, all-to-all (also
//! with parts of different lengths), gather, scatter, send and receive. Most have a variant in place. Lengths are in elements,
//! and the type is the buffers': whatever is an [`Element`](crate::Element), so 8-bit to 64-bit integers and 8-bit to 64-bit
//! floating-point numbers. The operator is a [`ReduceOp`](crate::ReduceOp), or a [`ScaledSum`]: each rank's input times a number
//! of its own. With [`Communicator::with`] one call has settings of its own ([`CallConfig`]).
//!
//! [`group()`] launches several operations as one, of one communicator or of many, or nothing when its closure fails: needed
//! where one thread has several ranks, and where a rank sends and receives at the same time. [`Group::nested`] is for functions
//! that are called inside a group or not; [`simulate()`] asks NCCL for an estimate of the time instead of launching.
//!
//! # Memory, registrations and windows
//! Collectives take any [`DeviceBuffer`], and write to any [`DeviceBufferMut`]: cudarc's `CudaSlice`, `CudaView` and
//! `CudaViewMut`; [`Memory`] of NCCL's own allocator, or adopted ([`Memory::from_raw`] takes an address, unsafe); and its views.
//!
//! A [`Memory`] has shared ownership: a [`Registration`] ([`Communicator::register`], so that collectives need no copies of their
//! own), a [`Window`] that all ranks can reach ([`Communicator::window`]) and a [`Graph`] own it together with the program, and
//! NCCL's handles with it. They are values without lifetimes: a struct may hold a communicator, its memory and its windows, which
//! may be dropped in any order, on any thread. One that is forgotten leaks its memory, and nothing else.
//!
//! # CUDA graphs
//! [`Graph::capture`] makes a CUDA graph of collectives, which [`Graph::launch`] then launches any number of times, with new
//! values in its memory between. Graphs that also have kernels and copies are captured through cudarc, with
//! [`Communicator::captured`], which is unsafe since nothing keeps their buffers. All else on a captured stream is refused.
//!
//! # Streams and order
//! A communicator's operations run on its stream in the order of the calls, and the host does not wait for them: synchronise the
//! stream, or copy the result through cudarc. Where a buffer belongs to another stream of the device, the operation comes after
//! what is queued there, and what is queued there later comes after the operation; where it is the communicator's own, nothing
//! has to be done. So buffers may be used and dropped right after the call. Per-thread default streams are refused.
//! [`Communicator::set_stream`] moves a communicator to another stream.
//!
//! # Failures, deadlines and watchdogs
//! Every [`Error`] names the operation, what NCCL said, and what to do. What can be checked is checked before anything is queued.
//! What fails later, on another rank or in the network, [`Communicator::async_error`] tells: record an event on the stream, ask
//! until it is complete, and abort when that takes too long.
//!
//! - A rank that never comes makes the others wait for ever. With `Config::blocking(false)` NCCL works on a thread of its own,
//!   and calls wait no longer than [`Config::deadline`]; at the deadline the communicator is aborted.
//! - [`Builder::init_pending`] returns at once: a [`Pending`] can be polled, waited for with a limit, and aborted.
//! - An [`AbortHandle`] ends a communicator, with its queued work and graphs, from any thread: see `examples/nccl_watchdog.rs`.
//! - [`Communicator::revoke`] stops what is queued or hangs but keeps the communicator, so that it can be shrunk.
//! - [`Communicator::close`] waits for queued work and returns its error. Dropping does the same and logs it.
//!
//! # Older and newer versions of NCCL
//! The library is chosen at run time, from 2.18 on, and this module offers what it has. A function that it lacks answers
//! [`Error::MissingSymbol`], which names both versions and the file; a setting or a type that it would ignore or misread
//! [`Error::TooOld`]. Every item says from which version it needs. Before 2.28 all-to-all, gather and scatter are sends and
//! receives in a group, before 2.19 [`Memory`] comes from CUDA: neither makes a difference to the caller. A result code that this
//! build does not know keeps its number. [`Library::parameters`] asks for the settings that NCCL took from the environment.

mod allocation;
mod communicator;
pub mod cuda;
mod error;
mod graph;
mod library;
mod memory;
mod nccl_group;
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
    Call, CallConfig, Collectives, Group, Immediate, Launch, Reduction, ScaledSum, group, simulate,
};
pub use unique_id::UniqueId;

/// Every function of NCCL's `nccl.h`, the version that brought it, and where it is here. [`nccl_sys::Nccl`] has the raw ones.
///
#[doc = include_str!("functions.md")]
#[cfg(doc)]
pub mod functions {}
