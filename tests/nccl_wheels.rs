//! The safe NCCL layer on the real libnccl of several versions, as far as it goes without a GPU.
//!
//! `cargo xtask wheels nccl` fetches the libraries.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests
#![cfg(feature = "nccl")]

use std::env;

use collectives::nccl::{Error, Library, UniqueId};
use nccl_sys::Nccl;

mod wheels;

fn library(version: &str) -> Library {
    let path = wheels::nccl(version).join("lib/libnccl.so.2");
    // SAFETY: NVIDIA's own library.
    Library::from_raw(Box::leak(Box::new(unsafe { Nccl::from_path(path) }.unwrap())))
}

fn check(version: &str) {
    let library = library(version);
    assert_eq!(library.version().to_string(), version);

    let (first, second) = (UniqueId::new(library).unwrap(), UniqueId::new(library).unwrap());
    assert_ne!(first, second);
    assert_eq!(UniqueId::from_bytes(*first.as_bytes()), first);
}

wheels::for_each_nccl!(check);

/// The parameters that documentation and examples name are there.
#[test]
fn parameters_of_nccl_2_32() {
    let library = library("2.32.3");
    let listed = library.parameters().unwrap();
    let file = library.parameter("NCCL_DEBUG_FILE").unwrap();
    assert!(listed.contains(&("NCCL_DEBUG_FILE".to_owned(), file)), "{listed:?}");
    let set = env::var("NCCL_DEBUG_SUBSYS");
    let subsystems = library.parameter("NCCL_DEBUG_SUBSYS").unwrap();
    assert_eq!(subsystems, set.as_deref().unwrap_or("INIT,ENV,BOOTSTRAP"));
    assert!(matches!(library.parameter("NCCL_NO_SUCH_PARAMETER"), Err(Error::Nccl { .. })));
}
