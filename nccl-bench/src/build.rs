//! What this build is: every result carries it.

/// Version and git revision: `0.1.0 (1a2b3c4d5e6f)`. `-dirty` follows the revision when it was built from other sources
/// than those of the revision.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("NCCL_BENCH_REVISION"), ")");
