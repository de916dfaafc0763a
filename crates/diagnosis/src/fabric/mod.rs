//! What libfabric offers on this host, and why something is missing.

mod entry;
pub mod reasons;

pub use entry::{Entry, Link, Nic};
