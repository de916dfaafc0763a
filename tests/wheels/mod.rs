//! Libraries that `cargo xtask wheels` has unpacked.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    clippy::expect_used,
    reason = "each test uses a part of this, and may fail loudly"
)]

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Where it keeps the versions of a library: `nccl`, `libfabric`.
pub(crate) fn folder(library: &str) -> PathBuf {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = named("NCCL_BENCH_WHEELS").unwrap_or_else(|| {
        let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
        cache.expect("HOME is set").join("nccl-bench")
    });
    root.join(library)
}

/// Where it keeps a version of NCCL.
pub(crate) fn nccl(version: &str) -> PathBuf {
    let folder = folder("nccl").join(version);
    let library = folder.join("lib/libnccl.so.2");
    assert!(library.exists(), "{} is missing: run `cargo xtask wheels nccl`", library.display());
    folder
}

/// Every libfabric there: one 2.x at least.
pub(crate) fn libfabrics() -> Vec<PathBuf> {
    let folder = folder("libfabric");
    let library = |version: &Path| version.join("libfabric.so.1");
    let versions = fs::read_dir(&folder).into_iter().flatten();
    let libraries: Vec<PathBuf> = versions
        .map(|entry| library(&entry.expect("readable").path()))
        .filter(|library| library.is_file())
        .collect();
    let folder = folder.display();
    assert!(!libraries.is_empty(), "no libfabric 2.x in {folder}: run `cargo xtask wheels libfabric`");
    libraries
}

/// As [`libfabrics`], with none for the machine's own before them.
pub(crate) fn each_libfabric() -> Vec<Option<PathBuf>> {
    [None].into_iter().chain(libfabrics().into_iter().map(Some)).collect()
}

/// A test for each version of NCCL, so that nextest loads one per process.
macro_rules! for_each_nccl {
    ($check:ident) => {
        #[test]
        fn nccl_2_18() {
            $check("2.18.3");
        }

        #[test]
        fn nccl_2_24() {
            $check("2.24.3");
        }

        #[test]
        fn nccl_2_28() {
            $check("2.28.9");
        }

        #[test]
        fn nccl_2_30() {
            $check("2.30.7");
        }

        #[test]
        fn nccl_2_32() {
            $check("2.32.3");
        }
    };
}
pub(crate) use for_each_nccl;
