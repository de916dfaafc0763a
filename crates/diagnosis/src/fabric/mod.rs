//! The interfaces of libfabric on this host, and reasons for missing ones.

mod entry;
pub mod reasons;

pub use entry::{Entry, Link, Nic};
