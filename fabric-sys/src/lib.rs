//! Raw bindings to libfabric, loaded at run time.
//!
//! Building needs no libfabric, no C compiler and no libclang. [`Fabric::load`] finds `libfabric.so.1` when
//! the program runs; its error lists every attempted location and how to install libfabric.
//!
//! libfabric exports a few functions: the methods of [`Fabric`]. All other calls go through tables of
//! function pointers in its objects; in C they are inline functions of the headers, here functions of the
//! same names: [`fi_domain`], [`fi_tsend`], [`fi_cq_read`], ...
//!
//! # Rules that keep one binary working with every libfabric from 1.17 on
//! The types here are from libfabric 1.22. Structs and tables grow at their end from release to release, so:
//! - Request [`Fabric::api_version`], never [`Fabric::version`]: a library writes as much as the requested
//!   version knows into memory of the application.
//! - Allocate hints with [`Fabric::fi_dupinfo`] of a null pointer, never yourself.
//! - Put attribute structs and error entries of your own into [`Padded`].
//! - Read structs allocated by the library field by field through their pointers; do not make references to
//!   them or copy them whole. Libraries older than 1.20 do not have `max_ep_auth_key` of [`fi_domain_attr`].
//! - Set only capability and mode bits with a constant in this crate: newer libraries give them new meanings.
//!   A query may set all mode bits if nothing is opened with its result.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all
)]
mod bindings;
mod error;
mod inlines;
mod library;
mod padded;
mod search;
mod signals;

pub use bindings::*;
pub use error::{Attempt, LoadError};
pub use inlines::*;
pub use library::{Fabric, KNOWN_VERSION, MINIMUM_VERSION, Version};
pub use padded::Padded;

/// `FI_ADDR_UNSPEC`: no particular address; a receive from anyone.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;

/// `FI_ADDR_NOTAVAIL`: the address could not be inserted, or the sender is not known.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
