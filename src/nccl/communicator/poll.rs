//! Polling.

use std::thread;
use std::time::{Duration, Instant};

/// Asks until there is an answer, or until the limit has passed, which is the error then. At first it does not sleep, since
/// most waits are short.
pub(crate) fn poll<T>(limit: Option<Duration>, mut ask: impl FnMut() -> Option<T>) -> Result<T, Duration> {
    let started = Instant::now();
    let mut attempts = 0u32;
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if let Some(limit) = limit.filter(|&limit| started.elapsed() >= limit) {
            return Err(limit);
        }
        attempts = attempts.saturating_add(1);
        match attempts {
            0..100 => thread::yield_now(),
            100..200 => thread::sleep(Duration::from_micros(50)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}
