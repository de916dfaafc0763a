//! Measurement with several endpoints in parallel, each in its own thread.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use collectives::fabric::rdm::{self, Destination, Source};

use super::measure::Side;
use super::memory::Device;
use super::options::{Test, TestOptions};
use super::report::SizeResult;
use engine::supervision::{Stop, explain_missing_thread};

/// Default number of bytes that a size moves in all rounds, within these numbers of transfers. But each round
/// fills a window, with up to as many bytes.
const BYTES: u64 = 256 << 20;
const MIN_TRANSFERS: u64 = 2;
const MAX_TRANSFERS: u64 = 1000;

const HUGE_PAGE: usize = 2 << 20;

/// Host memory of one endpoint: source and destination.
pub(super) struct Buffers {
    source: Vec<u8>,
    destination: Vec<u8>,
    len: usize,
}

impl Buffers {
    pub(super) fn new(len: usize) -> Self {
        let [source, destination] = [1, 0].map(|byte| vec![byte; len + HUGE_PAGE]);
        Self { source, destination, len }
    }

    fn parts(&mut self, size: usize) -> (Source<'_>, Destination<'_>) {
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

struct Measured {
    wrong: Option<u64>,
    times: Vec<Duration>,
}

/// Default number of transfers in a round.
fn transfers(bytes: u64, rounds: u64, window: u64) -> u64 {
    let in_a_round = BYTES / bytes.max(1);
    (in_a_round / rounds).max(in_a_round.min(window)).clamp(MIN_TRANSFERS, MAX_TRANSFERS)
}

/// Measures one size between two ranks over all their endpoints; `None` on ranks outside the pair, which have
/// no sides.
pub(super) fn measure(
    sides: &mut [Side<'_>],
    buffers: &mut [Buffers],
    bytes: u64,
) -> Result<Option<SizeResult>, Stop> {
    let Some(TestOptions { arguments, test, window, .. }) = sides.first().map(|side| side.options) else {
        return Ok(None);
    };
    let size = usize::try_from(bytes)?;
    let transfers = arguments.transfers.unwrap_or_else(|| transfers(bytes, arguments.rounds, window as u64));
    let transfers = usize::try_from(transfers)?;
    let warm_up = usize::try_from(arguments.warm_up)?;
    let rounds = warm_up + usize::try_from(arguments.rounds)?;
    let check = arguments.check > 0;

    let barrier = Barrier::new(sides.len());
    let one = |(side, buffers): (&mut Side<'_>, &mut Buffers)| -> Result<Measured, Stop> {
        let (source, destination) = match &side.device {
            Some(device) => device.parts(size),
            None => buffers.parts(size),
        };
        let bound = side.device.as_ref().map_or(Ok(()), Device::bind);
        let wrong = bound.and_then(|()| check.then(|| side.verify(size)).transpose());
        let mut measured = wrong.map(|wrong| Measured { wrong, times: Vec::new() });
        for _ in 0..rounds {
            // A failed thread takes part, too, so that no other waits for it.
            barrier.wait();
            let timed = match &mut measured {
                Ok(measured) => {
                    side.time(source, destination, transfers).map(|time| measured.times.push(time))
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

    let slowest = |round: usize| all.iter().filter_map(|one| one.times.get(round)).max().copied();
    let times = (warm_up..rounds).filter_map(slowest);
    let times: Vec<f64> = times.map(|time| time.as_secs_f64()).collect();
    let wrong = check.then(|| all.iter().filter_map(|one| one.wrong).sum());
    // There and back are two transfers.
    let both_ways = if test == Test::PingPong { 2 } else { 1 };
    Ok(Some(SizeResult::new(bytes, transfers * both_ways, &times, wrong)))
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

    #[test]
    fn a_round_fills_its_window_where_that_is_not_too_much() {
        let by_size =
            [(8, 1000), (100 << 10, 262), (1 << 20, 64), (4 << 20, 64), (16 << 20, 16), (1 << 30, 2)];
        for (bytes, expected) in by_size {
            assert_eq!(transfers(bytes, 10, 64), expected, "{bytes}");
        }
        // One at a time, as of a pingpong.
        assert_eq!([0, 1 << 20, 16 << 20].map(|bytes| transfers(bytes, 10, 1)), [1000, 25, 2]);
        assert_eq!(transfers(1 << 20, 1, 64), 256);
    }
}
