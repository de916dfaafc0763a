//! Revision and compiler behind a measurement. They come from the Makefile, since a build script of the
//! library would recompile it with every commit.

/// Revision and compiler: the environment variable `BENCH_BUILD` at build time, which the Makefile sets.
pub(crate) const DESCRIPTION: &str = match option_env!("BENCH_BUILD") {
    Some(description) => description,
    None => "unknown revision and compiler (build with make, or set BENCH_BUILD)",
};
