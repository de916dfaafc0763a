//! The folder for downloaded libraries and headers, kept between runs.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// `$NCCL_BENCH_WHEELS`, else `nccl-bench` in the user's cache folder. The tests look in the same place.
pub(crate) fn folder() -> Result<PathBuf> {
    if let Some(folder) = env::var_os("NCCL_BENCH_WHEELS").filter(|value| !value.is_empty()) {
        return Ok(folder.into());
    }
    let cache = match env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
            .join(".cache"),
    };
    Ok(cache.join("nccl-bench"))
}

/// The root folder of this repository.
pub(crate) fn repository() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the repository's root folder")
}
