//! Communicators and collectives over CUDA buffers, on NCCL.
//!
//! - [`Library`]: libnccl, found and loaded at run time.
//! - [`UniqueId`], [`Config`], [`Communicator`], [`Pending`]: how ranks come together.
//! - [`DeviceBuffer`], [`Memory`]: what the collectives work on: cudarc's slices and views, and NCCL's own memory.
//! - [`group()`]: several operations launched as one.
//! - [`AbortHandle`]: ends a communicator from another thread.
//! - [`functions`]: which of NCCL's functions is where.
//!
//! # What is checked, and what all ranks must agree on
//! What one rank's call can check is checked, by types where possible: that its buffers have the right lengths, types
//! and device, and that they live until NCCL is done with them. What no rank can check alone is that *all* ranks, of this
//! process or another, call the same operations in the same order with the same type, operator and length. That is for
//! the program to see to: where they do not, NCCL may hang or deliver wrong numbers, and where GPUs write into each
//! other's memory directly (NCCL before 2.23 within a process, registered buffers), a rank with a longer buffer may
//! write behind the end of another rank's.
//!
//! Operations on a stream that is being captured into a CUDA graph are refused, since a graph can be launched when its
//! buffers are long gone: [`Graph`] keeps them. A capture that another thread begins on the communicator's stream in the
//! very moment of a call cannot be seen: begin none while another thread uses the communicator. What cudarc's own
//! copies and kernels leave in a graph is cudarc's matter, with views of [`Memory`] as with its slices.
//!
//! # One process, every GPU
//! ```no_run
//! use collectives::{ReduceOp, nccl};
//! use cudarc::driver::CudaContext;
//!
//! let library = nccl::Library::load()?;
//! let streams = (0..nccl::device_count()?)
//!     .map(|device| Ok(CudaContext::new(device)?.new_stream()?))
//!     .collect::<Result<Vec<_>, cudarc::driver::DriverError>>()?;
//! let communicators = nccl::Communicator::init_all(library, &streams, &nccl::Config::new())?;
//! let mut buffers = streams
//!     .iter()
//!     .map(|stream| stream.clone_htod(&[1.0f32; 1024]))
//!     .collect::<Result<Vec<_>, _>>()?;
//! nccl::group(library, |group| {
//!     for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
//!         group.on(communicator).all_reduce_in_place(buffer, ReduceOp::Sum)?;
//!     }
//!     Ok(())
//! })?;
//! println!("{}", streams[0].clone_dtoh(&buffers[0])?[0]); // the number of GPUs
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod abort;
mod buffer;
mod call;
mod call_config;
mod collective;
mod communicator;
mod config;
pub mod cuda;
mod error;
mod graph;
mod group;
mod library;
mod membership;
mod memory;
mod operation;
mod parameters;
mod pending;
mod recorded;
mod reduction;
mod suspend;
mod unique_id;
mod window;

pub use abort::AbortHandle;
pub use buffer::{Access, DeviceBuffer, DeviceBufferMut, RawBuffer};
pub use call::{Call, Captured, Launch, Now};
pub use call_config::CallConfig;
pub use communicator::Communicator;
pub use config::Config;
pub use cuda::device_count;
pub use error::{Error, Needed, ResultCode};
pub use graph::{Capture, Graph};
pub use group::{Group, group, simulate};
pub use library::Library;
pub use membership::{ShrinkMode, SplitKey};
pub use memory::{Memory, MemoryView, MemoryViewMut};
pub use nccl_sys::{LoadError, MissingSymbol, Version};
pub use parameters::{Parameter, ParameterValue};
pub use pending::Pending;
pub use reduction::{Reduction, ScaledSum};
pub use suspend::MemoryStatistics;
pub use unique_id::UniqueId;
pub use window::{Registration, Signal, Window, WindowKind, windows};

/// Every function of NCCL's `nccl.h`, the version that brought it, and where it is in this module.
/// [`nccl_sys::Nccl`] has all of them as raw functions.
///
#[doc = include_str!("functions.md")]
#[cfg(doc)]
pub mod functions {}
