//! Measurement with several endpoints in parallel, each in its own thread.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use collectives::fabric::rdm::{self, Destination, Source};

use serde::{Deserialize, Serialize};

use super::memory::RegisteredGpu;
use super::request::PairRequest;
use super::side::{Side, WrongBytes};
use crate::supervision::{Stop, explain_missing_thread};

/// Default number of bytes that a size moves in all rounds, within these numbers of transfers. But each round
/// fills a window, with up to as many bytes.
const BYTES: u64 = 256 << 20;
const MIN_TRANSFERS: u64 = 2;
const MAX_TRANSFERS: u64 = 1000;

const HUGE_PAGE: usize = 2 << 20;

/// Host memory of one endpoint: source and destination.
pub(super) struct EndpointBuffers {
    source: Vec<u8>,
    destination: Vec<u8>,
    len: usize,
}

impl EndpointBuffers {
    pub(super) fn new(len: usize) -> Self {
        let [source, destination] = [1, 0].map(|byte| vec![byte; len + HUGE_PAGE]);
        Self { source, destination, len }
    }

    fn buffer_parts(&mut self, size: usize) -> (Source<'_>, Destination<'_>) {
        let Self { source, destination, len } = self;
        let destination = rdm::shared(&mut at_page(destination, *len)[..size]);
        (Source::Host(&at_page(source, *len)[..size]), Destination::Host(destination))
    }
}

/// The part of `memory` that starts at a huge page, if there is one.
fn at_page(memory: &mut [u8], len: usize) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(HUGE_PAGE).min(memory.len() - len);
    &mut memory[start..start + len]
}

/// One side's result of a size.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SideResult {
    /// Time of each round, of the slowest endpoint; empty except on the side whose clock counts.
    pub(super) nanoseconds: Vec<u64>,
    /// Number of wrong bytes; `None` when the size was not verified.
    pub(super) wrong: Option<u64>,
    /// The first wrong byte.
    pub(super) first: String,
}

struct Measured {
    wrong: Option<WrongBytes>,
    times: Vec<Duration>,
}

/// Number of transfers in a round, or of round trips of a ping-pong.
pub(super) fn count_transfers(request: &PairRequest, bytes: u64) -> u64 {
    let in_a_round = BYTES / bytes.max(1);
    let usual = (in_a_round / request.rounds).max(in_a_round.min(request.window as u64));
    request.transfers.unwrap_or(usual.clamp(MIN_TRANSFERS, MAX_TRANSFERS))
}

/// Measures one size between two ranks over all their endpoints. Does nothing on ranks outside the pair:
/// they have no sides.
pub(super) fn measure_size(
    sides: &mut [Side<'_>],
    buffers: &mut [EndpointBuffers],
    bytes: u64,
) -> Result<SideResult, Stop> {
    let Some(request) = sides.first().map(|side| side.request) else { return Ok(SideResult::default()) };
    let size = usize::try_from(bytes)?;
    let transfers = usize::try_from(count_transfers(request, bytes))?;
    let warm_up = usize::try_from(request.warm_up)?;
    let rounds = warm_up + usize::try_from(request.rounds)?;
    let reports = sides[0].first;

    let barrier = Barrier::new(sides.len());
    let one = |(side, buffers): (&mut Side<'_>, &mut EndpointBuffers)| -> Result<Measured, Stop> {
        let (source, destination) = match &side.device {
            Some(device) => device.transfer_parts(size),
            None => buffers.buffer_parts(size),
        };
        let bound = side.device.as_ref().map_or(Ok(()), RegisteredGpu::bind_context);
        let wrong = bound.and_then(|()| request.check.then(|| side.verify_size(size)).transpose());
        let mut measured = wrong.map(|wrong| Measured { wrong, times: Vec::new() });
        for _ in 0..rounds {
            // A failed thread takes part, too, so that no other waits for it.
            barrier.wait();
            let timed = match &mut measured {
                Ok(measured) => {
                    side.time_transfers(source, destination, transfers).map(|time| measured.times.push(time))
                }
                Err(_) => continue,
            };
            if let Err(error) = timed {
                measured = Err(error.into());
            }
        }
        measured
    };
    let all = on_threads(sides.iter_mut().zip(buffers), &one)?;

    let slowest = |round: usize| all.iter().filter_map(|one| one.times.get(round)).max();
    let times = (warm_up..rounds).filter(|_| reports).filter_map(slowest);
    let found = || all.iter().filter_map(|one| one.wrong.as_ref());
    Ok(SideResult {
        nanoseconds: times.map(|time| time.as_nanos() as u64).collect(),
        wrong: request.check.then(|| found().map(|wrong| wrong.count).sum()),
        first: found().find_map(|wrong| wrong.first.clone()).unwrap_or_default(),
    })
}

/// Calls `one` for each item: for the first on this thread, for each other on one of its own. None begins
/// before all threads are there, since they wait for each other.
fn on_threads<I: Send, T: Send>(
    mut items: impl Iterator<Item = I>,
    one: &(impl Fn(I) -> Result<T, Stop> + Sync),
) -> Result<Vec<T>, Stop> {
    let first = items.next();
    thread::scope(|scope| {
        let mut others = Vec::new();
        for (number, item) in (1..).zip(items) {
            let name = format!("endpoint {number}");
            let (start, started) = mpsc::channel::<()>();
            let body = move || {
                started.recv().map_err(anyhow::Error::from)?;
                one(item)
            };
            let thread = thread::Builder::new().name(name.clone()).spawn_scoped(scope, body);
            others.push((start, thread.map_err(|error| explain_missing_thread(&name, &error))?));
        }
        for (start, _) in &others {
            // A thread that cannot take it has panicked, and says so below.
            let _ = start.send(());
        }
        let first = first.map(one);
        let others = others
            .into_iter()
            .map(|(_, thread)| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        first.into_iter().chain(others).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::Test;

    #[test]
    fn a_round_fills_its_window_where_that_is_not_too_much() {
        let count = |test, rounds, window, bytes| {
            count_transfers(&PairRequest { rounds, window, ..PairRequest::new(test) }, bytes)
        };
        let by_size =
            [(8, 1000), (100 << 10, 262), (1 << 20, 64), (4 << 20, 64), (16 << 20, 16), (1 << 30, 2)];
        for (bytes, expected) in by_size {
            assert_eq!(count(Test::Bandwidth, 10, 64, bytes), expected, "{bytes}");
        }
        let one_at_a_time = [0, 1 << 20, 16 << 20].map(|bytes| count(Test::PingPong, 10, 1, bytes));
        assert_eq!(one_at_a_time, [1000, 25, 2]);
        assert_eq!(count(Test::Bandwidth, 1, 64, 1 << 20), 256);
        let asked = PairRequest { transfers: Some(5000), ..PairRequest::new(Test::Bandwidth) };
        assert_eq!(count_transfers(&asked, 8), 5000);
    }
}
