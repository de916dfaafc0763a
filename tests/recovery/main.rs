//! Ranks that are left after a failure go on: real processes that are killed, stopped, leave, or do not call.
//!
//! The tests start this program again, once per rank, with `RECOVERY_FATES` set: then it is a rank (see
//! `rank`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

#[allow(dead_code, reason = "shared with the tests of the world, which use all of it")]
#[path = "../world/job.rs"]
mod job;
mod play;
mod rank;
mod tests;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if let Ok(fates) = std::env::var("RECOVERY_FATES") {
        rank::run(&fates);
        return;
    }
    let trials = tests::TESTS.iter().map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
