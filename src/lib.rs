//! Collectives for Rust: NCCL over CUDA buffers and libfabric over host buffers, both loaded at run time.
//!
//! - [`world`]: who the ranks are: one process, threads, MPI, or a TCP rendezvous.
//! - `nccl` (feature `nccl`): communicators and collectives over CUDA buffers.
//! - `fabric` (feature `fabric`): endpoints, and communicators over host buffers, on libfabric.

pub mod build;
mod element;
pub mod world;

#[cfg(feature = "fabric")]
pub mod fabric;
#[cfg(feature = "nccl")]
pub mod nccl;

pub use element::{DataType, Element, ReduceOp, UnknownName};

/// The programs in README.md, compiled as tests.
#[cfg(all(doctest, feature = "fabric"))]
#[doc = include_str!("../README.md")]
struct Readme;
