//! The safe NCCL layer on the real libnccl of several versions, as far as it goes without a GPU.
//!
//! `cargo xtask wheels nccl` fetches the libraries.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests
#![cfg(feature = "nccl")]

use collectives::nccl::{Collectives, Error, Library, UniqueId, group};
use nccl_sys::Nccl;

mod wheels;

fn library(version: &str) -> Library {
    let path = wheels::folder("nccl").join(version).join("lib/libnccl.so.2");
    assert!(path.exists(), "{} is missing: run `cargo xtask wheels nccl`", path.display());
    // SAFETY: NVIDIA's own library.
    Library::from_raw(Box::leak(Box::new(unsafe { Nccl::from_path(path) }.unwrap())))
}

/// One test for each version, so that nextest loads one per process.
fn check(version: &str) {
    let library = library(version);
    assert_eq!(library.version().to_string(), version);

    let (first, second) = (UniqueId::new(library).unwrap(), UniqueId::new(library).unwrap());
    assert_ne!(first, second);
    assert_eq!(UniqueId::from_bytes(*first.as_bytes()), first);

    // A cancelled group leaves the thread as it was: the next ones start and end.
    assert_eq!(group(|_| Ok(1)).unwrap(), 1);
    for _ in 0..2 {
        let cancelled: Result<(), _> = group(|_| Err(Error::Rank { rank: 2, size: 1 }));
        assert!(matches!(cancelled, Err(Error::Rank { rank: 2, size: 1 })));
        assert_eq!(group(|_| Ok(2)).unwrap(), 2);
    }
}

#[test]
fn nccl_2_18() {
    check("2.18.3");
}

#[test]
fn nccl_2_24() {
    check("2.24.3");
}

#[test]
fn nccl_2_28() {
    check("2.28.9");
}

#[test]
fn nccl_2_30() {
    check("2.30.7");
}

#[test]
fn nccl_2_32() {
    check("2.32.3");
}

/// The parameters that documentation and examples name are there, of these types.
#[test]
fn parameters_of_nccl_2_32() {
    let library = library("2.32.3");
    let listed = library.parameters().unwrap();
    let file = library.parameter("NCCL_DEBUG_FILE").unwrap();
    assert!(listed.contains(&("NCCL_DEBUG_FILE".to_owned(), file.text().unwrap())), "{listed:?}");
    assert!(matches!(file.get::<u64>(), Err(Error::Nccl { .. })));
    let subsystems = library.parameter("NCCL_DEBUG_SUBSYS").unwrap();
    let mask: u64 = subsystems.get().unwrap();
    assert_ne!(mask, 0);
    assert_eq!(subsystems.bytes().unwrap(), mask.to_ne_bytes());
    assert!(matches!(subsystems.text(), Err(Error::Nccl { .. })));
    assert!(matches!(library.parameter("NCCL_NO_SUCH_PARAMETER"), Err(Error::Nccl { .. })));
}
