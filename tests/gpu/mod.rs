//! How tests on GPUs run: one at a time, and counted as ignored, with the reason, where there are too few GPUs.

use std::panic::resume_unwind;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use collectives::nccl::{self, Collectives, Error};
use libtest_mimic::{Arguments, Completion, Trial};

/// No test takes that long. What hangs on a GPU cannot be ended but with the process.
const PATIENCE: Duration = Duration::from_secs(120);

/// A test that needs so many GPUs.
pub(crate) fn test(name: &str, gpus: usize, body: fn()) -> Trial {
    let own_name = name.to_owned();
    let thread = thread::Builder::new().name(name.to_owned());
    Trial::ignorable_test(name, move || match nccl::device_count() {
        Ok(found) if found >= gpus => {
            let (running, ended) = mpsc::channel::<()>();
            // In a thread of its own: no CUDA context is current there from the test before.
            let thread = thread.spawn(move || {
                let _until_the_end = running;
                body();
            })?;
            if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PATIENCE) {
                println!(
                    "{own_name} hangs since {PATIENCE:?}: the process ends, with all tests that are left"
                );
                process::exit(1);
            }
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
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
    ($($gpus:literal => [$($test:path),+ $(,)?]),+ $(,)?) => {
        vec![$($($crate::gpu::test(&stringify!($test).replace(' ', ""), $gpus, $test)),+),+]
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
