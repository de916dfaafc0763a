//! Collectives for Rust: NCCL over CUDA buffers and libfabric over host buffers, both loaded at run time.
//!
//! - [`job`](job/index.html): a job under any launcher, and groups of its ranks with the same collectives
//!   over host memory or GPUs. The collectives run beside the program until it waits for them. Start here for
//!   training.
//! - [`train`](train/index.html): averages of gradients, overlapping with the backward pass, and optimizer
//!   state divided among the ranks.
//! - [`nccl`](nccl/index.html) (feature `nccl`, on): communicators, collectives, groups, windows and CUDA
//!   graphs over buffers of [cudarc](https://docs.rs/cudarc). Its page explains all concepts.
//! - [`fabric`](fabric/index.html) (feature `fabric`, on): endpoints, and communicators over host buffers, on
//!   libfabric. The feature `serde` (off) serialises the results of its discovery.
//! - [`world`]: the ranks of a job: one process, threads, MPI (feature `mpi`, off), or a TCP rendezvous.
//! - [`Element`], [`DataType`], [`ReduceOp`]: element types and reduction operators of all backends.
//!
//! A program builds and starts without CUDA, NCCL and libfabric: a missing library is an error with
//! installation advice. Each call checks its own rank's buffers: lengths, types, devices and lifetimes.
//!
//! # Two GPUs with a thread each
//! Every rank has a vector, and receives the mean of both.
#![cfg_attr(feature = "nccl", doc = "```no_run")]
#![cfg_attr(not(feature = "nccl"), doc = "```ignore")]
//! use collectives::ReduceOp;
//! use collectives::nccl::{self, Collectives, Communicator, Library, UniqueId};
//! use cudarc::driver::CudaContext;
//!
//! type Failure = Box<dyn std::error::Error + Send + Sync>;
//!
//! fn main() -> Result<(), Failure> {
//!     if nccl::device_count()? < 2 {
//!         return Err("this program needs two GPUs".into());
//!     }
//!     let library = Library::load()?;
//!     let id = UniqueId::new(library)?;
//!     let one_rank = |rank: usize| -> Result<f32, Failure> {
//!         let stream = CudaContext::new(rank)?.new_stream()?;
//!         let communicator = Communicator::builder(library, &stream).rank(rank, 2).id(&id).init()?;
//!         let mut gradients = stream.clone_htod(&[rank as f32; 1024])?;
//!         communicator.all_reduce_in_place(&mut gradients, ReduceOp::Avg)?;
//!         Ok(stream.clone_dtoh(&gradients)?[0])
//!     };
//!     let means = std::thread::scope(|scope| {
//!         let ranks = [0, 1].map(|rank| scope.spawn(move || one_rank(rank)));
//!         ranks.map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".into())))
//!     });
//!     means.into_iter().try_for_each(|mean| Ok(println!("the mean is {}", mean?))) // 0.5, twice
//! }
//! ```
//! The program's `Cargo.toml` also needs cudarc, because its types are part of this crate's interface:
//! `cudarc = { version = "0.19", default-features = false }`. cudarc chooses the version of the CUDA API: the
//! version of the `nvcc` on the `PATH`, otherwise the newest, or the version of one of its features, such as
//! `cuda-12000`.
//!
//! The repository's `examples/` has a complete program for each concept.

mod element;
mod error;
mod hash;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub mod job;
mod lock;
mod log;
mod name;
#[cfg(any(feature = "fabric", feature = "nccl"))]
mod purpose;
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub mod train;
pub mod world;

#[cfg(feature = "fabric")]
pub mod fabric;
#[cfg(feature = "nccl")]
pub mod nccl;

#[cfg(all(test, feature = "fabric"))]
#[path = "../tests/wheels/mod.rs"]
mod wheels;

#[cfg(feature = "nccl")]
pub use cudarc;
pub use element::{DataType, Element, ReduceOp};
pub use error::Error;
pub use name::UnknownName;
pub use {float8, half};

/// The programs in README.md, compiled as tests.
#[cfg(all(doctest, feature = "nccl", feature = "fabric"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The programs of the guide, compiled as tests.
#[cfg(all(doctest, feature = "nccl", feature = "fabric"))]
#[doc = include_str!("../docs/guide/en/training.md")]
struct Guide;
