//! Ranks of tests.

use std::thread;

use super::{Handle, single, threads};

/// Runs `body` on a thread for each rank, and returns the results by rank.
pub(crate) fn on_ranks<T: Send>(ranks: usize, body: impl Fn(Handle) -> T + Sync) -> Vec<T> {
    let (worlds, body) = (threads(single(), ranks).unwrap(), &body);
    thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || body(world))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
