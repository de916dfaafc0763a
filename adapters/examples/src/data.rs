//! Paths of data files.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Version of scikit-learn's wheel, as in xtask/src/wheels.rs.
const SCIKIT_LEARN: &str = "1.7.2";

/// Returns the folder of the data: the given one, or the one in the cache of `cargo xtask wheels`.
pub(crate) fn folder(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = match (set("NCCL_BENCH_WHEELS"), set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(wheels), ..) => wheels,
        (None, Some(cache), _) => cache.join("nccl-bench"),
        (None, None, Some(home)) => home.join(".cache").join("nccl-bench"),
        (None, None, None) => {
            anyhow::bail!("no home folder is known: name the folder of the data with --data")
        }
    };
    Ok(cache.join("scikit-learn").join(SCIKIT_LEARN))
}

/// Reads a file. The error for a missing file says how to get it.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| {
        format!(
            "cannot read {}: get it with `cargo xtask wheels scikit-learn`, or name its folder with --data",
            path.display()
        )
    })
}
