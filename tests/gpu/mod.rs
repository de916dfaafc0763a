//! How tests on GPUs run: one at a time, and counted as ignored, with the reason, where there are too few GPUs.

use std::panic::resume_unwind;
use std::thread;

use collectives::nccl::{self, Error};
use libtest_mimic::{Arguments, Completion, Trial};

/// A test that needs so many GPUs.
pub(crate) fn test(name: &str, gpus: usize, body: fn()) -> Trial {
    let thread = thread::Builder::new().name(name.to_owned());
    Trial::ignorable_test(name, move || match nccl::device_count() {
        Ok(found) if found >= gpus => {
            // In a thread of its own: no CUDA context is current there from the test before.
            thread.spawn(body)?.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok(Completion::Completed)
        }
        Ok(found) => Ok(Completion::ignored_with(format!("skipped: needs {gpus} GPUs, found {found}"))),
        // "no CUDA driver: ..." or "no CUDA device: ..."
        Err(error @ (Error::NoDriver { .. } | Error::NoDevice { .. })) => {
            Ok(Completion::ignored_with(format!("skipped: {error}")))
        }
        Err(error) => Err(error.into()),
    })
}

/// Tests named after their functions, by the number of GPUs that they need.
macro_rules! tests {
    ($($gpus:literal => [$($test:ident),+ $(,)?]),+ $(,)?) => {
        vec![$($($crate::gpu::test(stringify!($test), $gpus, $test)),+),+]
    };
}
pub(crate) use tests;

/// Runs the tests that the command line asks for and ends the process. Each uses all GPUs: more than one at a time
/// only if `--test-threads` says so.
pub(crate) fn run(tests: Vec<Trial>) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, tests).exit()
}
