//! What this build is: every result carries it.

/// Git revision that was built, with `-dirty` when the checkout had changes.
pub const GIT_REVISION: &str = env!("COLLECTIVES_GIT_REVISION");
/// Output of `rustc --version`.
pub const COMPILER: &str = env!("COLLECTIVES_COMPILER");
/// Target triple.
pub const TARGET: &str = env!("COLLECTIVES_TARGET");
/// Cargo profile: `release` or `debug`.
pub const PROFILE: &str = env!("COLLECTIVES_PROFILE");
/// Features of this crate, separated by commas.
pub const FEATURES: &str = env!("COLLECTIVES_FEATURES");
/// This crate's version with the git revision: `0.1.0 (1a2b3c4d5e6f)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("COLLECTIVES_GIT_REVISION"), ")");
