//! Runner of tests on GPUs: one at a time, and counted as ignored, with the reason, if there are too few
//! GPUs.

use std::env;
use std::panic::resume_unwind;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use collectives::nccl::{self, Error, Library, Version};
use libtest_mimic::{Arguments, Completion, Trial};

/// Maximum duration of a test. Work that hangs on a GPU can only be ended with the process.
const PATIENCE: Duration = Duration::from_secs(120);

/// Lets several ranks share a GPU.
const SHARE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";
/// Number of ranks that share the GPUs then.
const RANKS: &str = "COLLECTIVES_TEST_RANKS";

/// Number of ranks of a test that uses the whole machine: one per GPU. If the environment and the loaded NCCL
/// let ranks share GPUs, at least two, or the number in the environment.
pub(crate) fn ranks() -> Result<usize, Error> {
    let gpus = nccl::device_count()?;
    if env::var(SHARE).is_ok_and(|value| value == "1") && Library::load()?.version() >= Version::new(2, 30, 0)
    {
        let asked = env::var(RANKS).ok().and_then(|text| text.parse().ok());
        return Ok(asked.unwrap_or(2).max(gpus));
    }
    Ok(gpus)
}

/// A test that needs this number of GPUs, or ranks that share fewer.
pub(crate) fn test(name: &str, gpus: usize, body: fn()) -> Trial {
    ignorable(name, body, move || {
        let found = ranks()?;
        Ok((found < gpus).then(|| format!("needs {gpus} GPUs, found {found}")))
    })
}

/// A test whose ranks cannot share a GPU, and the reason.
#[allow(dead_code, reason = "not every program has such tests")]
pub(crate) fn unshared_test(name: &str, reason: &'static str, body: fn()) -> Trial {
    ignorable(name, body, move || Ok((ranks()? > nccl::device_count()?).then(|| reason.to_owned())))
}

/// A test that is ignored for a reason that is found at its start.
fn ignorable(
    name: &str,
    body: fn(),
    obstacle: impl FnOnce() -> Result<Option<String>, Error> + Send + 'static,
) -> Trial {
    let own_name = name.to_owned();
    let thread = thread::Builder::new().name(name.to_owned());
    Trial::ignorable_test(name, move || match obstacle() {
        Ok(None) => {
            let (running, ended) = mpsc::channel::<()>();
            // In a thread of its own, which has no current CUDA context of an earlier test.
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
        Ok(Some(reason)) => Ok(Completion::ignored_with(format!("skipped: {reason}"))),
        // "no CUDA driver: ..." or "no CUDA device: ..."
        Err(error @ (Error::NoDriver { .. } | Error::NoDevice { .. })) => {
            Ok(Completion::ignored_with(format!("skipped: {error}")))
        }
        Err(error) => Err(error.into()),
    })
}

/// Tests by name, and the number of GPUs that they need.
macro_rules! tests {
    ($($gpus:literal => [$($test:path),+ $(,)?]),+ $(,)?) => {
        vec![$($($crate::gpu::test(&stringify!($test).replace(' ', ""), $gpus, $test)),+),+]
    };
}
pub(crate) use tests;

/// Runs the tests that the command line selects, and exits. Each uses all GPUs: more than one at a time only
/// with `--test-threads`.
pub(crate) fn run(tests: Vec<Trial>) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, tests).exit()
}
