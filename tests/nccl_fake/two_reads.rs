//! Reads of one slice on two streams, or writes of its halves: cudarc keeps the event of the last read, and
//! of the last write, only.

use std::sync::Barrier;
use std::thread;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, group};
use collectives::train::{Reducer, Wire};
use cudarc::driver::{CudaContext, CudaSlice};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;
use crate::training::{options, parameters};

/// By cudarc alone.
#[test]
fn a_copy_on_another_stream_is_waited_for() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let slice = own.clone_htod(&[1.0_f32; 8]).unwrap();
    let copy = other.clone_dtod(&slice).unwrap();
    drop(slice);
    assert_eq!(fake.bugs(), [""; 0]);
    drop(copy);
}

#[test]
fn a_collective_that_reads_keeps_the_order_of_an_earlier_read_before_the_drop() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context();
    let other = context.new_stream().unwrap();
    let slice = communicator.stream().clone_htod(&[1.0_f32; 8]).unwrap();
    let mut sum = communicator.stream().alloc_zeros::<f32>(8).unwrap();
    let copy = other.clone_dtod(&slice).unwrap();
    communicator.all_reduce(&slice, &mut sum, Sum).unwrap();
    drop(slice);
    assert_eq!(fake.bugs(), [""; 0]);
    drop((copy, sum));
}

#[test]
fn a_collective_that_reads_keeps_the_order_of_an_earlier_read_before_a_write() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context();
    let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut slice = own.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut sum = own.alloc_zeros::<f32>(8).unwrap();
    let copy = other.clone_dtod(&slice).unwrap();
    communicator.all_reduce(&slice, &mut sum, Sum).unwrap();
    communicator.all_reduce_in_place(&mut slice, Sum).unwrap();
    assert_eq!(fake.bugs(), [""; 0]);
    drop((copy, sum));
}

#[test]
fn reads_of_two_threads_are_both_kept() {
    let fake = Fake::new();
    let mut communicators = [0; 2].map(|_| fake.communicator(&Config::new()));
    let own = communicators[0].stream().context().new_stream().unwrap();
    let together = Barrier::new(2);
    for _ in 0..50 {
        let slice = own.clone_htod(&[1.0_f32; 8]).unwrap();
        thread::scope(|scope| {
            for communicator in &mut communicators {
                let (slice, together) = (&slice, &together);
                scope.spawn(move || {
                    let mut sum = communicator.stream().alloc_zeros::<f32>(8).unwrap();
                    together.wait();
                    communicator.all_reduce(slice, &mut sum, Sum).unwrap();
                });
            }
        });
        drop(slice);
        assert_eq!(fake.bugs(), [""; 0]);
    }
}

#[test]
fn a_part_of_a_group_is_freed_after_an_earlier_read() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = group.context().unwrap();
        let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let [gathered, reduced] = [0; 2].map(|_| own.clone_htod(&[1.0_f32; 8]).unwrap());
        let [whole, part] = [0; 2].map(|_| own.alloc_zeros::<f32>(8).unwrap());
        let copies = [&gathered, &reduced].map(|slice| other.clone_dtod(slice).unwrap());
        let (gathered, whole) = group.all_gather(gathered, whole).wait().unwrap();
        let (reduced, part) = group.reduce_scatter(reduced, part, Sum).wait().unwrap();
        drop((gathered, reduced));
        assert_eq!(fake.bugs(), [""; 0]);
        drop((copies, whole, part));
    });
}

#[test]
fn a_gradient_is_freed_after_an_earlier_read() {
    let fake = Fake::new();
    for options in [options(), options().wire(Wire::Bf16)] {
        on_gpus(&fake, 1, |group| {
            let context = group.context().unwrap();
            let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
            let mut reducer: Reducer<CudaSlice<f32>> =
                Reducer::new(group, &parameters(&[8]), &options).unwrap();
            let gradient = own.clone_htod(&[1.0_f32; 8]).unwrap();
            let copy = other.clone_dtod(&gradient).unwrap();
            let mut step = reducer.step(0).unwrap();
            step.ready(0, gradient.as_view()).unwrap();
            drop(gradient);
            step.wait().unwrap();
            assert_eq!(fake.bugs(), [""; 0]);
            drop(copy);
        });
    }
}

#[test]
fn halves_that_are_written_in_one_group_are_both_waited_for() {
    let fake = Fake::new();
    let (one, two) = (fake.communicator(&Config::new()), fake.communicator(&Config::new()));
    let context = one.stream().context();
    let (own, third) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut slice = own.clone_htod(&[1.0_f32; 8]).unwrap();
    let (mut first, mut second) = slice.split_at_mut(4);
    group(|group| {
        group.on(&one).all_reduce_in_place(&mut first, Sum)?;
        group.on(&two).all_reduce_in_place(&mut second, Sum)
    })
    .unwrap();
    let copy = third.clone_dtod(&slice).unwrap();
    assert_eq!(fake.bugs(), [""; 0]);
    drop((copy, slice));
}

#[test]
fn halves_that_two_threads_write_are_both_waited_for() {
    let fake = Fake::new();
    let mut communicators = [0; 2].map(|_| fake.communicator(&Config::new()));
    let context = communicators[0].stream().context();
    let (own, third) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let together = Barrier::new(2);
    fake.set(Knob::CallMillis, 2);
    for _ in 0..20 {
        let mut slice = own.clone_htod(&[1.0_f32; 8]).unwrap();
        let (first, second) = slice.split_at_mut(4);
        thread::scope(|scope| {
            for (communicator, mut half) in communicators.iter_mut().zip([first, second]) {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    communicator.all_reduce_in_place(&mut half, Sum).unwrap();
                });
            }
        });
        let copy = third.clone_dtod(&slice).unwrap();
        assert_eq!(fake.bugs(), [""; 0]);
        drop((copy, slice));
    }
    fake.set(Knob::CallMillis, 0);
}
