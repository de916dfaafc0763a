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
