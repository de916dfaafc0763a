//! Ranks that crash, hang or are interrupted: whoever is left names them and ends, in time and with the right
//! code.
//!
//! Real processes over libfabric and host memory. Some tests start this program again as a rank
//! (`FAILURE_STEPS`), to have a rank hang at a place of their choice. The only assertion about time is that a
//! job does not hang.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

mod crashes;
mod doctor;
mod early_signals;
mod hangs;
mod logs;
#[cfg(feature = "mpi")]
mod mpirun;
#[path = "../../../tests/port/mod.rs"]
mod port;
mod process;
mod signals;
mod threads;

use std::env;

use libtest_mimic::{Arguments, Trial};

/// Tests with their names.
pub(crate) type Tests = &'static [(&'static str, fn())];

/// The tests of these functions.
macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}
pub(crate) use tests;

fn main() {
    if let Ok(steps) = env::var("FAILURE_STEPS") {
        hangs::rank(&steps);
        return;
    }
    let tests = [
        signals::TESTS,
        crashes::TESTS,
        hangs::TESTS,
        doctor::TESTS,
        early_signals::TESTS,
        threads::TESTS,
        logs::TESTS,
        #[cfg(feature = "mpi")]
        mpirun::TESTS,
    ];
    let trials = tests.concat().into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
