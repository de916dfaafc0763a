//! Programs that other wrappers accept and that read or write freed, foreign or mistyped memory: none compiles here.
//! Numbers in names are those of the holes that they show.

#![cfg(feature = "nccl")]

use collectives::nccl::{AbortHandle, Communicator, Library, Memory, Pending};

#[test]
fn none_compiles() {
    trybuild::TestCases::new().compile_fail("tests/nccl_holes/*.rs");
}

/// What hole 15 is about has a safe way: these move between threads, and the abort handle is shared by them.
#[test]
fn what_may_move_and_what_may_be_shared() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    moves::<Communicator>();
    moves::<Pending>();
    is_shared::<AbortHandle>();
    is_shared::<Library>();
    is_shared::<Memory>();
}
