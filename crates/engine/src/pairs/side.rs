//! One side of the measurements between two ranks.
//!
//! The timed interval is that of fabtests' programs, so that results can be compared. Receives are posted
//! before their messages arrive, while the other side works. Short messages are injected and have no
//! completion: a window of messages ends with the receiver's answer, a window of accesses with an access that
//! is not injected. With [`Until::Completed`] all accesses of a window are injected, and the provider may
//! keep any number of them in memory.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use collectives::fabric::Error;
use collectives::fabric::rdm::{
    self, Destination, Endpoint, Operation, Peer, Region, RemoteRegion, Scope, Source,
};

use record::{Messages, Until};

use super::memory::{GpuPart, RegisteredGpu};
use super::request::{PairRequest, Test};
use crate::supervision::Stop;

/// Tag of the measured messages, and those of the messages around them.
const DATA: u64 = 1;
const READY: u64 = 2;
const ANSWER: u64 = 3;
const FAREWELL: u64 = 4;

/// One side of a pair.
pub(super) struct Side<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) peer: Peer,
    /// True for the side that starts, and whose clock is reported.
    pub(super) first: bool,
    pub(super) request: &'a PairRequest,
    /// Longest injected message in bytes; `None` where nothing is injected.
    pub(super) inject: Option<usize>,
    /// The other side's region and the offset in it, where this side accesses it.
    pub(super) remote: Option<(RemoteRegion, u64)>,
    /// True when the other side accesses this side's memory.
    pub(super) accessed: bool,
    /// This side's region in host memory, where the other side accesses it.
    pub(super) region: Option<&'a Region>,
    /// The GPU memory with the data; `None` for host memory.
    pub(super) device: Option<RegisteredGpu>,
}

/// The expected byte at an index of a verified message: never 0, the value of memory that was not written,
/// and seldom that of a message of another size.
fn expected_byte(place: usize, size: usize) -> u8 {
    let mixed = (place as u64 ^ (size as u64) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    1 + ((mixed >> 56) % 255) as u8
}

/// The wrong bytes of one side.
#[derive(Default)]
pub(super) struct WrongBytes {
    /// Their number.
    pub(super) count: u64,
    /// The first of them.
    pub(super) first: Option<String>,
}

impl WrongBytes {
    fn find_wrong(found: impl Iterator<Item = u8>, size: usize) -> Self {
        let mut wrong = found.enumerate().filter(|&(place, found)| found != expected_byte(place, size));
        let first = wrong.next().map(|(place, found)| {
            format!("element {place}: expected {:#04x}, found {found:#04x}", expected_byte(place, size))
        });
        Self { count: u64::from(first.is_some()) + wrong.count() as u64, first }
    }
}

/// Synchronises the two sides.
fn synchronise_sides(scope: &mut Scope<'_>, peer: Peer) -> Result<(), Error> {
    let theirs = scope.receive(peer, READY, &mut [])?;
    let mine = scope.send(peer, READY, &[])?;
    scope.wait(theirs)?;
    scope.wait(mine).map(drop)
}

fn await_operation(scope: &mut Scope<'_>, operation: Option<Operation>) -> Result<(), Error> {
    operation.map_or(Ok(()), |operation| scope.wait(operation).map(drop))
}

/// Sends data. An injected message is complete on return: `None`.
fn send_data<'env>(
    scope: &mut Scope<'env>,
    peer: Peer,
    tag: Option<u64>,
    data: Source<'env>,
    injected: bool,
) -> Result<Option<Operation>, Error> {
    match data {
        Source::Host(data) if injected => scope.inject(peer, tag, data).map(|()| None),
        data => scope.send(peer, tag, data).map(Some),
    }
}

/// Writes data into the other rank's memory. An injected write is complete on return: `None`.
fn write_data<'env>(
    scope: &mut Scope<'env>,
    data: Source<'env>,
    (region, offset): (RemoteRegion, u64),
    injected: bool,
) -> Result<Option<Operation>, Error> {
    match data {
        Source::Host(data) if injected => scope.inject_write(data, region, offset).map(|()| None),
        data => scope.write(data, region, offset).map(Some),
    }
}

impl Side<'_> {
    /// Moves `size` bytes once, and returns the wrong bytes of this side.
    pub(super) fn verify_size(&mut self, size: usize) -> Result<WrongBytes, Stop> {
        let bytes: Vec<u8> = (0..size).map(|index| expected_byte(index, size)).collect();
        let mut received = vec![0; size];
        let device = self.device.clone();
        let (source, destination) = match &device {
            Some(device) => {
                device.prepare_test(self.request.test, &bytes)?;
                device.transfer_parts(size)
            }
            None => (Source::Host(&bytes), Destination::Host(rdm::shared(&mut received))),
        };
        self.fill_region(&bytes);
        let peer = self.peer;
        self.endpoint.scope(|scope| synchronise_sides(scope, peer))?;
        self.transfer_once(source, destination)?;
        let test = self.request.test;
        let mut wrong = WrongBytes::default();
        if !test.is_remote() || test == Test::Read && self.remote.is_some() {
            let received = match &device {
                Some(device) => device.read_gpu_part(GpuPart::Destination, size)?,
                None => received,
            };
            wrong = WrongBytes::find_wrong(received.into_iter(), size);
        }
        // All writes are complete now. Until then, the side that is read makes progress here.
        self.endpoint.scope(|scope| synchronise_sides(scope, peer))?;
        if test == Test::Write && self.accessed {
            wrong = self.wrong_writes(size)?;
        }
        Ok(wrong)
    }

    /// Fills this side's region in host memory: with `bytes` to be read, or with zeros to be written, since a
    /// previous pair may have left the same bytes there.
    fn fill_region(&self, bytes: &[u8]) {
        let Some(region) = self.region else { return };
        let reads = self.request.test == Test::Read;
        for (place, &byte) in region.bytes().iter().zip(bytes) {
            place.store(if reads { byte } else { 0 }, Ordering::Relaxed);
        }
    }

    fn transfer_once(&mut self, source: Source<'_>, destination: Destination<'_>) -> Result<(), Error> {
        let (peer, tag, injected) = (self.peer, self.message_tag(), self.is_injected(source));
        match (self.request.test, self.remote) {
            (Test::Write, Some(remote)) => self.endpoint.scope(|scope| {
                let written = write_data(scope, source, remote, injected)?;
                // An injected write has no completion; that of a later write stands for both.
                let written = match (written, source) {
                    (None, Source::Host(data)) => {
                        write_data(scope, Source::Host(&data[..data.len().min(1)]), remote, false)?
                    }
                    (written, _) => written,
                };
                await_operation(scope, written)
            }),
            (Test::Read, Some((region, offset))) => {
                self.endpoint.scope(|scope| scope.read(destination, region, offset).map(drop))
            }
            (Test::Write | Test::Read, None) => Ok(()),
            (Test::PingPong | Test::Bandwidth, _) => self.endpoint.scope(|scope| {
                let received = scope.receive(peer, tag, destination)?;
                let sent = send_data(scope, peer, tag, source, injected)?;
                scope.wait(received)?;
                await_operation(scope, sent)
            }),
        }
    }

    /// The wrong bytes that the other side has written.
    fn wrong_writes(&self, size: usize) -> Result<WrongBytes, Stop> {
        Ok(match (self.region, &self.device) {
            (Some(region), _) => {
                let written = region.bytes()[..size].iter().map(|byte| byte.load(Ordering::Relaxed));
                WrongBytes::find_wrong(written, size)
            }
            (None, Some(device)) => {
                WrongBytes::find_wrong(device.read_gpu_part(GpuPart::Target, size)?.into_iter(), size)
            }
            (None, None) => WrongBytes::default(),
        })
    }

    /// Performs `times` transfers and returns the elapsed time.
    pub(super) fn time_transfers(
        &mut self,
        source: Source<'_>,
        destination: Destination<'_>,
        times: usize,
    ) -> Result<Duration, Error> {
        match (self.request.test, self.remote, self.first) {
            (Test::PingPong, ..) => self.time_pingpong(source, destination, times),
            (Test::Bandwidth, _, true) => self.send_windows(source, times),
            (Test::Bandwidth, _, false) => self.receive_windows(destination, times),
            (Test::Write, Some(remote), _) => {
                let (injected, completed) =
                    (self.is_injected(source), self.request.until == Until::Completed);
                self.access_windows(times, |scope, last| {
                    write_data(scope, source, remote, injected && (completed || !last))
                })
            }
            (Test::Read, Some((region, offset)), _) => {
                self.access_windows(times, |scope, _| scope.read(destination, region, offset).map(Some))
            }
            (Test::Write | Test::Read, None, _) => self.be_accessed(),
        }
    }

    /// Completes all messages of the pair.
    pub(super) fn complete_messages(&mut self) -> Result<(), Error> {
        self.endpoint.farewell(&[self.peer], FAREWELL)
    }

    fn is_injected(&self, source: Source<'_>) -> bool {
        matches!((source, self.inject), (Source::Host(data), Some(longest)) if data.len() <= longest)
    }

    /// The tag of the measured messages, if they have one.
    fn message_tag(&self) -> Option<u64> {
        (self.request.messages == Messages::Tagged).then_some(DATA)
    }

    /// Timed from the first message to the arrival of the last.
    fn time_pingpong(
        &mut self,
        source: Source<'_>,
        destination: Destination<'_>,
        times: usize,
    ) -> Result<Duration, Error> {
        let (peer, tag, first, injected) =
            (self.peer, self.message_tag(), self.first, self.is_injected(source));
        // One receive for the next message, and one for the message after it.
        let mut receives = VecDeque::with_capacity(2);
        self.endpoint.scope(|scope| {
            let mut left = times;
            while left > 0 && receives.len() < 2 {
                receives.push_back(scope.receive(peer, tag, destination)?);
                left -= 1;
            }
            synchronise_sides(scope, peer)?;
            let start = Instant::now();
            let mut sent = None;
            for _ in 0..times {
                if !first {
                    await_operation(scope, receives.pop_front())?;
                }
                await_operation(scope, sent.take())?;
                sent = send_data(scope, peer, tag, source, injected)?;
                if left > 0 && receives.len() < 2 {
                    receives.push_back(scope.receive(peer, tag, destination)?);
                    left -= 1;
                }
                if first {
                    await_operation(scope, receives.pop_front())?;
                }
            }
            await_operation(scope, sent)?;
            let elapsed = start.elapsed();
            // The last injected message may need progress on this side.
            synchronise_sides(scope, peer)?;
            Ok(elapsed)
        })
    }

    /// Timed from the first message to the answer to the last window.
    fn send_windows(&mut self, source: Source<'_>, times: usize) -> Result<Duration, Error> {
        let (peer, tag, window) = (self.peer, self.message_tag(), self.request.window);
        let injected = self.is_injected(source);
        let mut operations = Vec::with_capacity(window);
        self.endpoint.scope(|scope| {
            synchronise_sides(scope, peer)?;
            let start = Instant::now();
            let mut left = times;
            while left > 0 {
                let now = left.min(window);
                left -= now;
                for _ in 0..now {
                    operations.extend(send_data(scope, peer, tag, source, injected)?);
                }
                let answer = scope.receive(peer, ANSWER, &mut [])?;
                operations.drain(..).try_for_each(|operation| scope.wait(operation).map(drop))?;
                scope.wait(answer)?;
            }
            Ok(start.elapsed())
        })
    }

    fn receive_windows(&mut self, destination: Destination<'_>, times: usize) -> Result<Duration, Error> {
        let (peer, tag, window) = (self.peer, self.message_tag(), self.request.window);
        // Leaves space for other receives.
        let ahead = times.min(window).min((self.endpoint.most_receives() / 2).max(1));
        let mut operations = VecDeque::with_capacity(ahead);
        self.endpoint.scope(|scope| {
            let start = Instant::now();
            for _ in 0..ahead {
                operations.push_back(scope.receive(peer, tag, destination)?);
            }
            synchronise_sides(scope, peer)?;
            let mut posted = ahead;
            let mut answer = None;
            for received in 1..=times {
                await_operation(scope, operations.pop_front())?;
                if received % window == 0 || received == times {
                    await_operation(scope, answer.take())?;
                    answer = Some(scope.send(peer, ANSWER, &[])?);
                }
                // Receives of the next window are posted while this one's messages arrive.
                if posted < times {
                    operations.push_back(scope.receive(peer, tag, destination)?);
                    posted += 1;
                }
            }
            await_operation(scope, answer)?;
            Ok(start.elapsed())
        })
    }

    /// Timed from the first access to the completion of the last. Writes are timed to the answer of the other
    /// side, since their data may arrive after their completion, except with [`Until::Completed`].
    ///
    /// A window of writes is completed before the next one starts. Of reads only a quarter is: short reads in
    /// both directions over TCP were measured to be faster this way.
    fn access_windows<'env>(
        &'env mut self,
        times: usize,
        access: impl Fn(&mut Scope<'env>, bool) -> Result<Option<Operation>, Error>,
    ) -> Result<Duration, Error> {
        let peer = self.peer;
        let &PairRequest { test, window, until, .. } = self.request;
        let arrival = test == Test::Write && until == Until::Arrived;
        let at_once = if test == Test::Read { window.div_ceil(4) } else { window };
        let mut operations = VecDeque::with_capacity(window);
        self.endpoint.scope(|scope| {
            synchronise_sides(scope, peer)?;
            let start = Instant::now();
            for started in 1..=times {
                let ends = started % window == 0 || started == times;
                operations.extend(access(scope, ends)?);
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
            synchronise_sides(scope, peer)?;
            Ok(if arrival { start.elapsed() } else { accessed })
        })
    }

    /// The part of the side whose memory is accessed: to make progress.
    fn be_accessed(&mut self) -> Result<Duration, Error> {
        let peer = self.peer;
        self.endpoint.scope(|scope| {
            synchronise_sides(scope, peer)?;
            synchronise_sides(scope, peer)?;
            Ok(Duration::ZERO)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_arrived_or_is_of_another_size_is_wrong() {
        let count = |found: Vec<u8>, size| WrongBytes::find_wrong(found.into_iter(), size).count;
        for size in [1, 8, 1000] {
            let data: Vec<u8> = (0..size).map(|place| expected_byte(place, size)).collect();
            assert_eq!(count(data.clone(), size), 0);
            assert_eq!(count(vec![0; size], size), size as u64);
            let older = (0..size).map(|place| expected_byte(place, size / 2)).collect();
            assert!(count(older, size) >= size as u64 * 9 / 10, "{size}");
            let mut damaged = data;
            damaged[size - 1] ^= 1;
            let (right, found) = (expected_byte(size - 1, size), damaged[size - 1]);
            let wrong = WrongBytes::find_wrong(damaged.into_iter(), size);
            let first = format!("element {}: expected {right:#04x}, found {found:#04x}", size - 1);
            assert_eq!((wrong.count, wrong.first), (1, Some(first)));
        }
    }
}
