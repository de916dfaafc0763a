//! The measurements between two ranks, each side's part.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use collectives::fabric::Error;
use collectives::fabric::rdm::{Endpoint, Operation, Peer, Region, RemoteRegion, Scope};

use super::Test;

/// Tags of the messages that are measured, and of those around them.
const DATA: u64 = 1;
const READY: u64 = 2;
const ANSWER: u64 = 3;

/// One side of a pair.
pub(super) struct Side<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) peer: Peer,
    /// The one that starts, and whose clock counts.
    pub(super) first: bool,
    pub(super) test: Test,
    /// Messages in flight at a time, where that is what is measured.
    pub(super) window: usize,
    /// Of the second's region, where memory is read or written.
    pub(super) remote: Option<RemoteRegion>,
    /// The second's own.
    pub(super) region: Option<&'a Region>,
}

/// The byte at this place of a message that is verified: never that of memory nobody has written to, and seldom that of
/// another size.
fn byte(place: usize, size: usize) -> u8 {
    let mixed = (place as u64 ^ (size as u64) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    1 + ((mixed >> 56) % 255) as u8
}

fn wrong(found: impl Iterator<Item = u8>, size: usize) -> u64 {
    found.enumerate().filter(|&(place, found)| found != byte(place, size)).count() as u64
}

/// Tells the other that this side is ready, and waits for it to be.
fn ready(scope: &mut Scope<'_>, peer: Peer) -> Result<(), Error> {
    let theirs = scope.receive(peer, READY, &mut [])?;
    let mine = scope.send(peer, READY, &[])?;
    scope.wait(theirs)?;
    scope.wait(mine).map(drop)
}

fn finish(scope: &mut Scope<'_>, operation: Option<Operation>) -> Result<(), Error> {
    operation.map_or(Ok(()), |operation| scope.wait(operation).map(drop))
}

impl Side<'_> {
    /// Moves `size` bytes once and compares all of them; how many are wrong, on both sides alike.
    pub(super) fn verify(&mut self, size: usize) -> Result<u64, Error> {
        let data: Vec<u8> = (0..size).map(|place| byte(place, size)).collect();
        let mut found = vec![0; size];
        let Self { peer, first, test, remote, region, .. } = *self;
        let (mut there, mut here) = ([0; 8], 0);
        if test == Test::Read
            && let Some(region) = region
        {
            let bytes = region.bytes().iter().zip(&data);
            bytes.for_each(|(place, &byte)| place.store(byte, Ordering::Relaxed));
        }
        self.endpoint.scope(|scope| ready(scope, peer))?;
        match (test, remote, first) {
            (Test::Write, Some(remote), true) => {
                self.endpoint.scope(|scope| scope.write(peer, &data, remote, 0).map(drop))?;
            }
            (Test::Read, Some(remote), true) => {
                self.endpoint.scope(|scope| scope.read(peer, &mut found, remote, 0).map(drop))?;
                here = wrong(found.into_iter(), size);
            }
            (Test::Write | Test::Read, ..) => {}
            (Test::PingPong | Test::Bandwidth, ..) => {
                self.endpoint.scope(|scope| {
                    let received = scope.receive(peer, DATA, &mut found)?;
                    let sent = scope.send(peer, DATA, &data)?;
                    scope.wait(received)?;
                    scope.wait(sent).map(drop)
                })?;
                here = wrong(found.into_iter(), size);
            }
        }
        // The second looks when the first has written, and does its part while that reads.
        self.endpoint.scope(|scope| ready(scope, peer))?;
        if test == Test::Write
            && let Some(region) = region
        {
            here = wrong(region.bytes()[..size].iter().map(|byte| byte.load(Ordering::Relaxed)), size);
        }
        let mine = here.to_le_bytes();
        self.endpoint.scope(|scope| {
            let theirs = scope.receive(peer, ANSWER, &mut there)?;
            let sent = scope.send(peer, ANSWER, &mine)?;
            scope.wait(theirs)?;
            scope.wait(sent).map(drop)
        })?;
        Ok(here + u64::from_le_bytes(there))
    }

    /// Moves `size` bytes so many times, both ways or in windows; how long that took. `data` and `place` have room.
    pub(super) fn time(&mut self, data: &[u8], place: &[Cell<u8>], times: usize) -> Result<Duration, Error> {
        match (self.test, self.remote, self.first) {
            (Test::PingPong, ..) => self.pingpong(data, place, times),
            (Test::Bandwidth, _, true) => self.send_windows(data, times),
            (Test::Bandwidth, _, false) => self.receive_windows(place, times),
            (Test::Write, Some(remote), true) => {
                self.access_windows(times, |scope, peer| scope.write(peer, data, remote, 0))
            }
            (Test::Read, Some(remote), true) => {
                self.access_windows(times, |scope, peer| scope.read_cells(peer, place, remote, 0))
            }
            (Test::Write | Test::Read, ..) => self.be_accessed(),
        }
    }

    fn pingpong(&mut self, data: &[u8], place: &[Cell<u8>], times: usize) -> Result<Duration, Error> {
        let (peer, first) = (self.peer, self.first);
        self.endpoint.scope(|scope| {
            // A receive is always there before its message.
            let mut receive = Some(scope.receive_cells(peer, DATA, place)?);
            ready(scope, peer)?;
            let start = Instant::now();
            let mut sent = None;
            for left in (0..times).rev() {
                if first {
                    finish(scope, sent.take())?;
                    sent = Some(scope.send(peer, DATA, data)?);
                }
                finish(scope, receive.take())?;
                if left > 0 {
                    receive = Some(scope.receive_cells(peer, DATA, place)?);
                }
                if !first {
                    finish(scope, sent.take())?;
                    sent = Some(scope.send(peer, DATA, data)?);
                }
            }
            finish(scope, sent)?;
            Ok(start.elapsed())
        })
    }

    fn send_windows(&mut self, data: &[u8], times: usize) -> Result<Duration, Error> {
        let (peer, window) = (self.peer, self.window);
        let mut operations = Vec::with_capacity(window);
        self.endpoint.scope(|scope| {
            ready(scope, peer)?;
            let start = Instant::now();
            let mut left = times;
            while left > 0 {
                let now = left.min(window);
                left -= now;
                let answer = scope.receive(peer, ANSWER, &mut [])?;
                for _ in 0..now {
                    operations.push(scope.send(peer, DATA, data)?);
                }
                operations.drain(..).try_for_each(|operation| scope.wait(operation).map(drop))?;
                scope.wait(answer)?;
            }
            Ok(start.elapsed())
        })
    }

    fn receive_windows(&mut self, place: &[Cell<u8>], times: usize) -> Result<Duration, Error> {
        let (peer, window) = (self.peer, self.window);
        let mut operations = Vec::with_capacity(window);
        self.endpoint.scope(|scope| {
            let start = Instant::now();
            let mut left = times;
            for _ in 0..left.min(window) {
                operations.push(scope.receive_cells(peer, DATA, place)?);
            }
            ready(scope, peer)?;
            while left > 0 {
                left -= operations.len();
                operations.drain(..).try_for_each(|operation| scope.wait(operation).map(drop))?;
                // Those of the next window are there before its messages.
                for _ in 0..left.min(window) {
                    operations.push(scope.receive_cells(peer, DATA, place)?);
                }
                let answer = scope.send(peer, ANSWER, &[])?;
                scope.wait(answer)?;
            }
            Ok(start.elapsed())
        })
    }

    fn access_windows<'env>(
        &'env mut self,
        times: usize,
        access: impl Fn(&mut Scope<'env>, Peer) -> Result<Operation, Error>,
    ) -> Result<Duration, Error> {
        let (peer, window, writes) = (self.peer, self.window, self.test == Test::Write);
        let mut operations = Vec::with_capacity(window);
        self.endpoint.scope(|scope| {
            ready(scope, peer)?;
            let start = Instant::now();
            let mut left = times;
            while left > 0 {
                let now = left.min(window);
                left -= now;
                for _ in 0..now {
                    operations.push(access(scope, peer)?);
                }
                operations.drain(..).try_for_each(|operation| scope.wait(operation).map(drop))?;
            }
            let accessed = start.elapsed();
            ready(scope, peer)?;
            // What was written may only now have arrived; what was read was here.
            Ok(if writes { start.elapsed() } else { accessed })
        })
    }

    /// The part of the side whose memory is accessed: to make progress.
    fn be_accessed(&mut self) -> Result<Duration, Error> {
        let peer = self.peer;
        self.endpoint.scope(|scope| {
            ready(scope, peer)?;
            ready(scope, peer)?;
            Ok(Duration::ZERO)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_arrived_or_is_of_another_size_is_wrong() {
        for size in [1, 8, 1000] {
            let data: Vec<u8> = (0..size).map(|place| byte(place, size)).collect();
            assert_eq!(wrong(data.iter().copied(), size), 0);
            assert_eq!(wrong(vec![0; size].into_iter(), size), size as u64);
            let older = (0..size).map(|place| byte(place, size / 2));
            assert!(wrong(older, size) >= size as u64 * 9 / 10, "{size}");
            let mut damaged = data;
            damaged[size - 1] ^= 1;
            assert_eq!(wrong(damaged.into_iter(), size), 1);
        }
    }
}
