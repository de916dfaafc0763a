//! Worlds between real processes.
//!
//! The tests start this program again, once per rank, with `WORLD_STEPS` set: it then joins a world and runs
//! those steps instead of tests (see `rank`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

mod job;
#[cfg(feature = "mpi")]
mod mpi;
mod rank;
mod rendezvous;
mod tcp;
mod threads;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if let Ok(steps) = std::env::var("WORLD_STEPS") {
        rank::run(&steps);
        return;
    }
    let mut tests: Vec<(&str, fn())> = Vec::new();
    tests.extend(tcp::TESTS);
    tests.extend(rendezvous::TESTS);
    tests.extend(threads::TESTS);
    #[cfg(feature = "mpi")]
    tests.extend(mpi::TESTS);
    let trials = tests.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
