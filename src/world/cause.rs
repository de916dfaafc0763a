//! Distinguishing the failed rank from the ranks that observe the failure.

use super::{Error, World};
#[cfg(any(feature = "fabric", feature = "nccl"))]
use super::{Reason, Timeout, Wait};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for the world to name the failed rank. The memory of a killed process is released first
/// (libraries on other ranks notice this at once), and its connections are closed afterwards. The limit is
/// shorter than rank 0's stay after it has left ([`tcp`](super::tcp)): this rank's failure still reaches the
/// others.
const LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(1);

/// Returns the rank failure behind a communication library's error. Waits up to two seconds until `world` has
/// learned of it; `None` if no rank has failed.
///
/// If a rank dies, the library may fail on other ranks before their world learns of the death. A rank that
/// ends the job with the library's error would be reported as the failed rank, so call this first.
pub fn cause(world: &dyn World) -> Option<Error> {
    let by = Instant::now() + LIMIT;
    loop {
        let failed = world.check().err();
        if failed.is_some() || world.size() == 1 || Instant::now() >= by {
            return failed;
        }
        thread::sleep(POLL);
    }
}

/// Ends the job because an operation has waited for too long. Returns the timeout behind the end: the first
/// one of all ranks. It names no late ranks if the world does not find them within two seconds.
///
/// # Errors
/// If the job has failed for another reason.
#[cfg(any(feature = "fabric", feature = "nccl"))]
pub(crate) fn time_out(world: &dyn World, wait: Wait) -> Result<Timeout, Error> {
    let ended = if world.time_out(&wait) { cause(world) } else { None };
    let own = Timeout::new(wait, []);
    let ended = ended.or_else(|| {
        world.fail(Reason::TimedOut(own.clone()));
        world.check().err()
    });
    match ended {
        None => Ok(own),
        Some(Error::RankFailed { reason: Reason::TimedOut(timeout), .. }) => Ok(timeout),
        Some(error) => Err(error),
    }
}
