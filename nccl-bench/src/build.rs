//! The identity of this build, part of every result.

/// Version and git revision: `0.1.0 (1a2b3c4d5e6f)`. The revision ends in `-dirty` when a source differed
/// from the commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_REVISION"), ")");
