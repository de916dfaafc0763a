//! Telling the rank that failed from those that noticed it.

use super::{Error, World};
use std::thread;
use std::time::{Duration, Instant};

/// How long a rank that has lost another waits for the world to name it. A process that is killed gives its memory back
/// first, which other processes' libraries notice at once, and closes its connections afterwards. Shorter than the three
/// seconds for which rank 0 still listens when it has left ([`tcp`](super::tcp)), so that the others hear of this rank.
const LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(1);

/// Which rank's failure is behind an error of a library that carries data between ranks, as far as `world` learns it
/// within two seconds; `None` when no rank has failed.
///
/// When a rank dies, a library may fail on the others before their world has noticed. Whoever ended the job with the
/// library's error would be taken for the rank that failed, so it asks here first.
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
