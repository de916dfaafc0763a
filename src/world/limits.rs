//! Limits of a world.

/// Maximum length of a host name, host identity or job key, in bytes.
pub(crate) const MAX_NAME: usize = 255;
/// Maximum number of ranks of a job, whose list fits into a frame.
pub(crate) const MAX_RANKS: usize = 1 << 18;
