//! Communicators and collectives over CUDA buffers, on NCCL.
//!
//! - [`Library`]: libnccl, found and loaded at run time.
//! - [`UniqueId`], [`Config`], [`Communicator`], [`Pending`]: how ranks come together.
//! - [`DeviceBuffer`], [`Memory`]: what the collectives work on: cudarc's slices and views, and NCCL's own memory.
//! - [`group()`]: several operations launched as one.
//! - [`AbortHandle`]: ends a communicator from another thread.
//!
//! # What is checked, and what all ranks must agree on
//! Within a process no safe call can make the GPU touch memory that is freed, too short, of another type or of
//! another device: lengths, devices and lifetimes are checked, by types where possible. What no rank can check
//! alone is that *all* ranks call the same operations in the same order with the same type, operator and length.
//! Where they do not, NCCL may hang or deliver wrong numbers; and where GPUs write into each other's memory directly, a
//! rank with a longer buffer may write behind the end of another rank's.
//!
//! Nor does this layer see what a CUDA graph does that captured a collective: the buffers must outlive its last launch,
//! as with cudarc's own operations.
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
//!         group.all_reduce_in_place(communicator, buffer, ReduceOp::Sum)?;
//!     }
//!     Ok(())
//! })?;
//! println!("{}", streams[0].clone_dtoh(&buffers[0])?[0]); // the number of GPUs
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod abort;
mod buffer;
mod collective;
mod communicator;
mod config;
pub mod cuda;
mod error;
mod group;
mod library;
mod memory;
mod pending;
mod unique_id;

pub use abort::AbortHandle;
pub use buffer::{Access, DeviceBuffer, DeviceBufferMut};
pub use communicator::Communicator;
pub use config::Config;
pub use cuda::device_count;
pub use error::{Error, Needed, ResultCode};
pub use group::{Group, group};
pub use library::Library;
pub use memory::{Memory, MemoryView, MemoryViewMut};
pub use nccl_sys::{LoadError, MissingSymbol, Version};
pub use pending::Pending;
pub use unique_id::UniqueId;
