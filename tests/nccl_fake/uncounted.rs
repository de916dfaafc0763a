//! Context objects whose streams cudarc does not count, or that have none left: cudarc ignores the events of buffers then.

use std::sync::Arc;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Memory, group};
use collectives::train::Reducer;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::fake::Fake;
use crate::jobs::on_gpus;
use crate::training::{options, parameters};

fn communicator(fake: &Fake, stream: &Arc<CudaStream>) -> Communicator {
    Communicator::builder(fake.library(), stream).rank(1, 2).id(&fake.id()).init().unwrap()
}

/// Memory of the default stream into which a stream that is gone copies.
fn copied(context: &Arc<CudaContext>) -> CudaSlice<f32> {
    let loader = context.new_stream().unwrap();
    let source = loader.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut data = context.default_stream().alloc_zeros::<f32>(8).unwrap();
    loader.memcpy_dtod(&source, &mut data).unwrap();
    drop(source);
    drop(loader);
    assert!(!context.is_in_multi_stream_mode());
    data
}

#[test]
fn a_copy_of_a_stream_that_is_gone_comes_first() {
    for grouped in [false, true] {
        let fake = Fake::new();
        let context = CudaContext::new(0).unwrap();
        let communicator = communicator(&fake, &context.default_stream());
        let mut data = copied(&context);
        if grouped {
            group(|group| group.on(&communicator).all_reduce_in_place(&mut data, Sum)).unwrap();
        } else {
            communicator.all_reduce_in_place(&mut data, Sum).unwrap();
        }
        // Asserts that nothing races.
        fake.log();
        communicator.all_reduce_in_place(&mut data, Sum).unwrap();
        let later = context.new_stream().unwrap().clone_dtod(&data).unwrap();
        fake.log();
        drop((later, data, communicator));
        assert!(!context.is_in_multi_stream_mode(), "the communicator's stream is gone");
    }
}

#[test]
fn memory_is_adopted_after_a_copy_of_a_stream_that_is_gone() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let communicator = communicator(&fake, &context.default_stream());
    let mut memory = Memory::try_from(copied(&context)).unwrap();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), Sum).unwrap();
}

/// The communicator's context object has no stream, that of the buffer has two.
#[test]
fn a_use_is_recorded_where_the_communicators_stream_is_not_counted() {
    let fake = Fake::new();
    let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(0).unwrap());
    let communicator = communicator(&fake, &two.default_stream());
    let (stream, third) = (one.new_stream().unwrap(), one.new_stream().unwrap());
    let mut data = stream.clone_htod(&[1.0_f32; 8]).unwrap();
    communicator.all_reduce_in_place(&mut data, Sum).unwrap();
    let copy = third.clone_dtod(&data).unwrap();
    fake.log();
    drop((copy, data));
}

#[test]
fn a_group_and_a_reducer_wait_for_copies_of_streams_that_are_gone() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(0).unwrap();
        group.all_reduce(copied(&context), Sum).wait().unwrap();
        fake.log();
        let context = CudaContext::new(0).unwrap();
        let gradient = copied(&context);
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[8]), &options()).unwrap();
        let mut step = reducer.step(0).unwrap();
        step.ready(0, gradient.as_view()).unwrap();
        step.wait().unwrap();
        fake.log();
    });
}
