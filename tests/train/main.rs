//! Training over host memory: ranks that are threads of the test.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::thread;

use collectives::job::{Backend, Group, Job};
use collectives::train::Parameter;
use collectives::world;

#[path = "../counting/mod.rs"]
mod counting;
mod reducer;
mod refusals;
#[path = "../shapes/mod.rs"]
mod shape;
mod shapes;
mod zero1;

/// Runs `body` on each of `ranks` ranks, and returns its results in rank order.
fn on_every_rank<R: Send>(ranks: usize, body: impl Fn(&Group) -> R + Sync) -> Vec<R> {
    let jobs = Job::new(world::single()).threads(ranks).unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                let body = &body;
                scope.spawn(move || body(&job.group(Backend::Host).unwrap()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Parameters of these numbers of elements.
fn parameters(lens: &[usize]) -> Vec<Parameter> {
    lens.iter().enumerate().map(|(index, &len)| Parameter::new(format!("p{index}"), [len])).collect()
}

/// A value between -1 and 1 that differs between ranks, steps, parameters and elements.
fn value(rank: usize, step: usize, parameter: usize, element: usize) -> f32 {
    let seed = ((rank * 31 + step) * 37 + parameter) * 41 + element;
    ((seed as f32) * 12.9898).sin()
}

/// The gradients of all parameters of these numbers of elements.
fn gradients(rank: usize, step: usize, lens: &[usize]) -> Vec<Vec<f32>> {
    lens.iter()
        .enumerate()
        .map(|(parameter, &len)| (0..len).map(|element| value(rank, step, parameter, element)).collect())
        .collect()
}

/// The mean over the ranks of the gradients of [`gradients`], computed in `f64`.
fn means(ranks: usize, step: usize, lens: &[usize]) -> Vec<Vec<f64>> {
    let mean = |parameter, element| {
        (0..ranks).map(|rank| f64::from(value(rank, step, parameter, element))).sum::<f64>() / ranks as f64
    };
    lens.iter()
        .enumerate()
        .map(|(parameter, &len)| (0..len).map(|element| mean(parameter, element)).collect())
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn assert_close(values: &[f32], expected: &[f64], tolerance: f64, subject: &str) {
    assert_eq!(values.len(), expected.len(), "{subject}");
    for (element, (&value, &expected)) in values.iter().zip(expected).enumerate() {
        let error = (f64::from(value) - expected).abs();
        assert!(error <= tolerance, "{subject}, element {element}: {value}, expected {expected}");
    }
}
