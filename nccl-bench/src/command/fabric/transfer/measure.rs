//! The measurements between two ranks, each side's part.
//!
//! What is timed is what fabtests' programs time, so that the two compare. Receives are there before their messages, but
//! are posted while the other side has something to do. Short messages are injected, without a completion of their own:
//! a window of messages ends with the receiver's answer, one of accesses with an access that is not injected. Where only their
//! completion counts, all of a window are injected, and nothing bounds how many the provider keeps in memory.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use collectives::fabric::Error;
use collectives::fabric::rdm::{self, Endpoint, Operation, Peer, Region, RemoteRegion, Scope};

use super::memory::{Data, Device, Place};
use super::{Kind, Test};
use engine::supervision::Stop;

/// Tags of the messages around those that are measured.
const READY: u64 = 2;
const ANSWER: u64 = 3;
const FAREWELL: u64 = 4;

/// One side of a pair.
pub(super) struct Side<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) peer: Peer,
    /// The one that starts, and whose clock counts.
    pub(super) first: bool,
    pub(super) kind: Kind,
    /// Up to how many bytes are injected, if any.
    pub(super) inject: Option<usize>,
    /// The other's region, where this side reads or writes memory.
    pub(super) remote: Option<RemoteRegion>,
    /// Whether the other accesses this side's.
    pub(super) accessed: bool,
    /// This side's own, where the other does and it is the host's.
    pub(super) region: Option<&'a Region>,
    /// Where data is, if not in the host's memory.
    pub(super) device: Option<Device>,
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
    pub(super) fn verify(&mut self, size: usize) -> Result<u64, Stop> {
        let bytes: Vec<u8> = (0..size).map(|place| byte(place, size)).collect();
        let mut found = vec![0; size];
        let Self { peer, remote, region, .. } = *self;
        let device = self.device.clone();
        let Kind { test, plain, .. } = self.kind;
        let injected = self.injects(size);
        let (mut there, mut here) = ([0; 8], 0);
        let shared = rdm::shared(&mut found);
        let (data, place) = match &device {
            Some(device) => {
                device.prepare(test, &bytes)?;
                device.parts(size)
            }
            None => (Data::Host(&bytes), Place::Host(shared)),
        };
        if test == Test::Read
            && let Some(region) = region
        {
            let bytes = region.bytes().iter().zip(&bytes);
            bytes.for_each(|(place, &byte)| place.store(byte, Ordering::Relaxed));
        }
        if test == Test::Write
            && let Some(region) = region
        {
            // The pair before may have left the same there.
            region.bytes()[..size].iter().for_each(|place| place.store(0, Ordering::Relaxed));
        }
        self.endpoint.scope(|scope| ready(scope, peer))?;
        match (test, remote) {
            (Test::Write, Some(remote)) => self.endpoint.scope(|scope| {
                let written = data.write(scope, peer, remote, injected)?;
                // What is injected has no completion: that of a write after it stands for both.
                let written = match written {
                    None => data.first().write(scope, peer, remote, false)?,
                    written => written,
                };
                finish(scope, written)
            })?,
            (Test::Read, Some(remote)) => {
                self.endpoint.scope(|scope| place.read(scope, peer, remote).map(drop))?;
            }
            (Test::Write | Test::Read, None) => {}
            (Test::PingPong | Test::Bandwidth, _) => self.endpoint.scope(|scope| {
                let received = place.receive(scope, peer, plain)?;
                let sent = data.send(scope, peer, injected, plain)?;
                scope.wait(received)?;
                finish(scope, sent)
            })?,
        }
        if !test.is_remote() || test == Test::Read && remote.is_some() {
            let found = match &device {
                Some(device) => device.received(size)?,
                None => found,
            };
            here = wrong(found.into_iter(), size);
        }
        // Who is written to looks when that is done, and does its part while the other reads.
        self.endpoint.scope(|scope| ready(scope, peer))?;
        match (test, region, &device) {
            (Test::Write, Some(region), _) => {
                here = wrong(region.bytes()[..size].iter().map(|byte| byte.load(Ordering::Relaxed)), size);
            }
            (Test::Write, None, Some(device)) if self.accessed => {
                here = wrong(device.written(size)?.into_iter(), size);
            }
            _ => {}
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

    /// Moves data so many times, both ways or in windows; how long that took.
    pub(super) fn time(&mut self, data: Data<'_>, place: Place<'_>, times: usize) -> Result<Duration, Error> {
        match (self.kind.test, self.remote, self.first) {
            (Test::PingPong, ..) => self.pingpong(data, place, times),
            (Test::Bandwidth, _, true) => self.send_windows(data, times),
            (Test::Bandwidth, _, false) => self.receive_windows(place, times),
            (Test::Write, Some(remote), _) => {
                let (injected, completed) = (self.injects(data.len()), self.kind.completed);
                self.access_windows(times, |scope, peer, last| {
                    data.write(scope, peer, remote, injected && (completed || !last))
                })
            }
            (Test::Read, Some(remote), _) => {
                self.access_windows(times, |scope, peer, _| place.read(scope, peer, remote).map(Some))
            }
            (Test::Write | Test::Read, None, _) => self.be_accessed(),
        }
    }

    /// Ends it: all that was sent has arrived.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        self.endpoint.farewell(&[self.peer], FAREWELL)
    }

    fn injects(&self, size: usize) -> bool {
        self.inject.is_some_and(|longest| size <= longest)
    }

    /// The clock runs from the first message to the last one's arrival.
    fn pingpong(&mut self, data: Data<'_>, place: Place<'_>, times: usize) -> Result<Duration, Error> {
        let (peer, first, injected) = (self.peer, self.first, self.injects(data.len()));
        let plain = self.kind.plain;
        // One receive waits for the next message, another one is there for that after it.
        let mut receives = VecDeque::with_capacity(2);
        self.endpoint.scope(|scope| {
            let mut left = times;
            while left > 0 && receives.len() < 2 {
                receives.push_back(place.receive(scope, peer, plain)?);
                left -= 1;
            }
            ready(scope, peer)?;
            let start = Instant::now();
            let mut sent = None;
            for _ in 0..times {
                if !first {
                    finish(scope, receives.pop_front())?;
                }
                finish(scope, sent.take())?;
                sent = data.send(scope, peer, injected, plain)?;
                if left > 0 && receives.len() < 2 {
                    receives.push_back(place.receive(scope, peer, plain)?);
                    left -= 1;
                }
                if first {
                    finish(scope, receives.pop_front())?;
                }
            }
            finish(scope, sent)?;
            let elapsed = start.elapsed();
            // What was injected last may still need this side to move it.
            ready(scope, peer)?;
            Ok(elapsed)
        })
    }

    /// The clock runs from the first message to the answer to the last window.
    fn send_windows(&mut self, data: Data<'_>, times: usize) -> Result<Duration, Error> {
        let (peer, injected) = (self.peer, self.injects(data.len()));
        let Kind { window, plain, .. } = self.kind;
        let mut operations = Vec::with_capacity(window);
        self.endpoint.scope(|scope| {
            ready(scope, peer)?;
            let start = Instant::now();
            let mut left = times;
            while left > 0 {
                let now = left.min(window);
                left -= now;
                for _ in 0..now {
                    operations.extend(data.send(scope, peer, injected, plain)?);
                }
                let answer = scope.receive(peer, ANSWER, &mut [])?;
                operations.drain(..).try_for_each(|operation| scope.wait(operation).map(drop))?;
                scope.wait(answer)?;
            }
            Ok(start.elapsed())
        })
    }

    fn receive_windows(&mut self, place: Place<'_>, times: usize) -> Result<Duration, Error> {
        let peer = self.peer;
        let Kind { window, plain, .. } = self.kind;
        // There is room for others beside them.
        let ahead = times.min(window).min((self.endpoint.most_receives() / 2).max(1));
        let mut operations = VecDeque::with_capacity(ahead);
        self.endpoint.scope(|scope| {
            let start = Instant::now();
            for _ in 0..ahead {
                operations.push_back(place.receive(scope, peer, plain)?);
            }
            ready(scope, peer)?;
            let mut posted = ahead;
            let mut answer = None;
            for received in 1..=times {
                finish(scope, operations.pop_front())?;
                if received % window == 0 || received == times {
                    finish(scope, answer.take())?;
                    answer = Some(scope.send(peer, ANSWER, &[])?);
                }
                // Receives of the next window are posted while this one's messages arrive.
                if posted < times {
                    operations.push_back(place.receive(scope, peer, plain)?);
                    posted += 1;
                }
            }
            finish(scope, answer)?;
            Ok(start.elapsed())
        })
    }

    /// The clock runs from the first access to the last one's completion. Of writing it runs until the other side has
    /// answered, as what was written may only then have arrived, if that is not asked for otherwise.
    ///
    /// A window of writes is waited for before the next one. Of reads only a quarter is: when ranks read from each other over
    /// TCP, short ones were measured to be faster so.
    fn access_windows<'env>(
        &'env mut self,
        times: usize,
        access: impl Fn(&mut Scope<'env>, Peer, bool) -> Result<Option<Operation>, Error>,
    ) -> Result<Duration, Error> {
        let peer = self.peer;
        let Kind { test, window, completed, .. } = self.kind;
        let arrival = test == Test::Write && !completed;
        let at_once = if test == Test::Read { window.div_ceil(4) } else { window };
        let mut operations = VecDeque::with_capacity(window);
        self.endpoint.scope(|scope| {
            ready(scope, peer)?;
            let start = Instant::now();
            for started in 1..=times {
                let ends = started % window == 0 || started == times;
                operations.extend(access(scope, peer, ends)?);
                if operations.is_empty() && ends {
                    scope.progress()?;
                }
                if operations.len() == window || ends && test == Test::Write {
                    let first = operations.drain(..at_once.min(operations.len()));
                    first.into_iter().try_for_each(|operation| scope.wait(operation).map(drop))?;
                }
            }
            operations.drain(..).try_for_each(|operation| scope.wait(operation).map(drop))?;
            let accessed = start.elapsed();
            ready(scope, peer)?;
            Ok(if arrival { start.elapsed() } else { accessed })
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
