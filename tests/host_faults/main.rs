//! Ranks of host communicators that die or whose calls differ: errors of the other ranks, and leftovers.
//!
//! The tests start this program again, once per rank, with `HOST_FAULT` set: then it is a rank (see `rank`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

mod death;
#[allow(dead_code, reason = "shared with the tests of the world, which use all of it")]
#[path = "../world/job.rs"]
mod job;
mod mismatch;
mod rank;
mod rdm;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if let Ok(fault) = std::env::var("HOST_FAULT") {
        match fault.strip_prefix("rdm ") {
            Some(provider) => rdm::run(provider),
            None => rank::run(&fault),
        }
        return;
    }
    let trials = death::TESTS.iter().chain(mismatch::TESTS).chain(rdm::TESTS).map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
