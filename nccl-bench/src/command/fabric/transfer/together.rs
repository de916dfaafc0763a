//! Several endpoints at once, each in a thread of its own.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use collectives::fabric::rdm;

use super::measure::Side;
use super::memory::{Data, Device, Place};
use super::report::Row;
use super::{Arguments, BYTES, Kind, LEAST_TRANSFERS, MOST_TRANSFERS, Test};
use engine::supervision::Stop;

/// Bytes of a large page.
const LARGE_PAGE: usize = 2 << 20;

/// What one endpoint sends and receives in the host's memory.
pub(super) struct Buffers {
    data: Vec<u8>,
    place: Vec<u8>,
    len: usize,
}

impl Buffers {
    /// Room for so many bytes.
    pub(super) fn new(len: usize) -> Self {
        let [data, place] = [1, 0].map(|byte| vec![byte; len + LARGE_PAGE]);
        Self { data, place, len }
    }

    /// What is sent, and where it arrives.
    fn parts(&mut self, size: usize) -> (Data<'_>, Place<'_>) {
        let Self { data, place, len } = self;
        let place = rdm::shared(&mut at_page(place, *len)[..size]);
        (Data::Host(&at_page(data, *len)[..size]), Place::Host(place))
    }
}

/// The part of the memory that begins with a page, if possible one of those that transparent huge pages make.
fn at_page(memory: &mut [u8], len: usize) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(LARGE_PAGE).min(memory.len() - len);
    &mut memory[start..start + len]
}

/// What one endpoint has measured.
struct Measured {
    wrong: Option<u64>,
    /// Of each round.
    times: Vec<Duration>,
}

/// How many transfers a round has that nobody has asked for.
fn transfers(bytes: u64, rounds: u64, window: u64) -> u64 {
    let in_a_round = BYTES / bytes.max(1);
    (in_a_round / rounds).max(in_a_round.min(window)).clamp(LEAST_TRANSFERS, MOST_TRANSFERS)
}

/// One size between two ranks, on both of them, over all their endpoints; nothing on others, which have no sides.
pub(super) fn measure(
    sides: &mut [Side<'_>],
    buffers: &mut [Buffers],
    arguments: &Arguments,
    bytes: u64,
) -> Result<Option<Row>, Stop> {
    let Some(Kind { test, window, .. }) = sides.first().map(|side| side.kind) else { return Ok(None) };
    let size = usize::try_from(bytes)?;
    let transfers = arguments.transfers.unwrap_or_else(|| transfers(bytes, arguments.rounds, window as u64));
    let transfers = usize::try_from(transfers)?;
    let warm_up = usize::try_from(arguments.warm_up)?;
    let rounds = warm_up + usize::try_from(arguments.rounds)?;
    let check = arguments.check > 0;

    let barrier = Barrier::new(sides.len());
    let one = |side: &mut Side<'_>, buffers: &mut Buffers| -> Result<Measured, Stop> {
        let (data, place) = match &side.device {
            Some(device) => device.parts(size),
            None => buffers.parts(size),
        };
        let bound = side.device.as_ref().map_or(Ok(()), Device::bind);
        let wrong = bound.and_then(|()| check.then(|| side.verify(size)).transpose());
        let mut measured = wrong.map(|wrong| Measured { wrong, times: Vec::new() });
        for _ in 0..rounds {
            // Who has failed comes here, too, so that nobody waits for it.
            barrier.wait();
            let timed = match &mut measured {
                Ok(measured) => side.time(data, place, transfers).map(|time| measured.times.push(time)),
                Err(_) => continue,
            };
            if let Err(error) = timed {
                measured = Err(error.into());
            }
        }
        measured
    };
    let all: Vec<Result<Measured, Stop>> = thread::scope(|scope| {
        let mut pairs = sides.iter_mut().zip(buffers);
        let first = pairs.next();
        let others: Vec<_> = pairs.map(|(side, buffers)| scope.spawn(|| one(side, buffers))).collect();
        let first = first.map(|(side, buffers)| one(side, buffers));
        let others = others
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        first.into_iter().chain(others).collect()
    });
    let all: Vec<Measured> = all.into_iter().collect::<Result<_, _>>()?;

    let slowest = |round: usize| all.iter().filter_map(|one| one.times.get(round)).max().copied();
    let times = (warm_up..rounds).filter_map(slowest);
    let times: Vec<f64> = times.map(|time| time.as_secs_f64()).collect();
    let wrong = check.then(|| all.iter().filter_map(|one| one.wrong).sum());
    // There and back are two transfers.
    let both_ways = if test == Test::PingPong { 2 } else { 1 };
    Ok(Some(Row::new(bytes, transfers * both_ways, &times, wrong)))
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
