//! What a measurement was built from. The library's own build script would have it compiled again with each commit.

/// Revision and compiler, from the variable `BENCH_BUILD` of the build, which the Makefile sets.
pub(crate) const DESCRIPTION: &str = match option_env!("BENCH_BUILD") {
    Some(description) => description,
    None => "unknown revision and compiler (build with make, or set BENCH_BUILD)",
};
