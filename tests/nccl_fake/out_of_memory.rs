//! Allocations that fail on a device without memory pools, where memory is freed at once, while an error of
//! other code is noted in the group's context object. Memory allocated before is not freed under its work.

use std::sync::atomic::{AtomicUsize, Ordering};

use collectives::job::Group;
use collectives::train::{Reducer, Wire, Zero1};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, DriverError};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;
use crate::training::{compute, options, parameters};

type Reducing = Reducer<CudaSlice<f32>>;

/// Calls `call` once for each of its allocations, which fails. `call` calls its second argument when the
/// allocations begin. Returns the number of allocations.
fn fail_each_allocation(call: impl Fn(&Group, &dyn Fn()) + Sync) -> usize {
    let failures = AtomicUsize::new(0);
    for number in 1.. {
        let fake = Fake::new();
        fake.set(Knob::NoPools, 1);
        on_gpus(&fake, 1, |group| {
            let context = group.context().unwrap();
            call(group, &|| {
                context.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_UNKNOWN)));
                fake.log();
                fake.set(Knob::FailingAlloc, number);
            });
            fake.set(Knob::FailingAlloc, 0);
            let log = fake.log();
            failures
                .fetch_add(log.iter().filter(|line| *line == "cuMemAlloc fails").count(), Ordering::Relaxed);
            while context.check_err().is_err() {}
        });
        if failures.load(Ordering::Relaxed) < number as usize {
            break;
        }
    }
    failures.into_inner()
}

#[test]
fn buckets_of_a_reducer_are_not_freed_while_they_are_cleared() {
    let make = |wire| {
        fail_each_allocation(|group, begin| {
            begin();
            let options = options().first_bucket_bytes(32).bucket_bytes(32).wire(wire);
            _ = Reducing::new(group, &parameters(&[8, 8, 8]), &options);
        })
    };
    assert_eq!([Wire::Same, Wire::Bf16].map(make), [3, 6]);
}

#[test]
fn shards_are_not_freed_while_they_are_cleared() {
    let make = |wire| {
        fail_each_allocation(|group, begin| {
            begin();
            _ = Zero1::<CudaSlice<f32>>::new(group, &parameters(&[8, 8]), &options().wire(wire));
        })
    };
    assert_eq!([Wire::Same, Wire::Bf16].map(make), [3, 5]);
}

#[test]
fn a_message_is_not_freed_while_it_is_copied() {
    let allocations = fail_each_allocation(|group, begin| {
        let part = group.split(Some(0)).unwrap().unwrap();
        begin();
        _ = part.all_gather_bytes(b"a message");
    });
    // The message and those of all ranks, once for the lengths.
    assert_eq!(allocations, 4);
}

#[test]
fn buckets_of_a_new_layout_are_not_freed_while_they_are_cleared() {
    let allocations = fail_each_allocation(|group, begin| {
        let stream = compute(group);
        let gradients = [8, 4, 8, 4].map(|len| stream.clone_htod(&vec![1.0_f32; len]).unwrap());
        let options = options().first_bucket_bytes(16).bucket_bytes(32);
        let mut reducer = Reducing::new(group, &parameters(&[8, 4, 8, 4]), &options).unwrap();
        let mut step = reducer.step(0).unwrap();
        for index in [0, 2, 1, 3] {
            step.ready(index, gradients[index].as_view()).unwrap();
        }
        step.wait().unwrap();
        begin();
        _ = reducer.step(1).unwrap().ready(0, gradients[0].as_view());
        while group.context().unwrap().check_err().is_err() {}
    });
    assert_eq!(allocations, 3);
}
