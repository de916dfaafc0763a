//! Limits that several modules check.

/// The longest name of a host, identity of a host or key of a job, in bytes.
pub(crate) const MAX_NAME: usize = 255;
/// The most ranks of a job: more than any has, and a list of them still fits into a frame.
pub(crate) const MAX_RANKS: usize = 1 << 18;
