//! Context objects whose streams cudarc does not count, or that have none left: cudarc ignores the events of
//! buffers then.

use std::sync::Arc;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Memory, group};
use collectives::train::{Reducer, Zero1};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::fake::Fake;
use crate::jobs::on_gpus;
use crate::training::{options, parameters};

fn communicator(fake: &Fake, stream: &Arc<CudaStream>) -> Communicator {
    Communicator::builder(fake.library(), stream).rank(1, 2).id(&fake.id()).init().unwrap()
}

/// Memory of the default stream into which a stream that is gone copies.
pub(crate) fn copied(context: &Arc<CudaContext>) -> CudaSlice<f32> {
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

/// Another thread may drop the program's last counted stream at any time.
#[test]
fn events_are_tracked_without_a_stream_of_the_program() {
    let fake = Fake::new();
    // Buffers of a context object of their own.
    let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(0).unwrap());
    let mut communicator = communicator(&fake, &one.default_stream());
    let [counted_one, counted_two] = [&one, &two].map(|context| context.new_stream().unwrap());
    let mut data = two.default_stream().alloc_zeros::<f32>(8).unwrap();
    communicator.all_reduce_in_place(&mut data, Sum).unwrap();
    drop((counted_one, counted_two));
    assert!(one.is_in_multi_stream_mode() && two.is_in_multi_stream_mode());
    // On a stream of another context object.
    let three = CudaContext::new(0).unwrap();
    let counted = three.new_stream().unwrap();
    communicator.set_stream(&three.default_stream()).unwrap();
    communicator.all_reduce_in_place(&mut data, Sum).unwrap();
    drop(counted);
    assert!(three.is_in_multi_stream_mode());
    drop((data, communicator));
    assert!(!one.is_in_multi_stream_mode() && !two.is_in_multi_stream_mode());
}

#[test]
fn events_of_gradients_are_tracked_without_a_stream_of_the_program() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(0).unwrap();
        let counted = context.new_stream().unwrap();
        let gradient = context.default_stream().alloc_zeros::<f32>(8).unwrap();
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[8]), &options()).unwrap();
        let mut step = reducer.step(0).unwrap();
        step.ready(0, gradient.as_view()).unwrap();
        drop(counted);
        assert!(context.is_in_multi_stream_mode());
        step.wait().unwrap();
    });
}

/// On rank 0, a side stream reads a parameter of the other rank's shard, and the update drops that stream.
/// (The fake has one default stream, that of device 0.)
#[test]
fn parameters_are_written_after_reads_of_a_stream_that_the_update_drops() {
    let fake = Fake::new();
    on_gpus(&fake, 2, |group| {
        let context = CudaContext::new(group.rank()).unwrap();
        let side = context.new_stream().unwrap();
        let stream = if group.rank() == 0 { context.default_stream() } else { Arc::clone(&side) };
        let [mut first, mut second] = [1.0_f32, 2.0].map(|value| stream.clone_htod(&[value; 8]).unwrap());
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut saved = stream.alloc_zeros::<f32>(8).unwrap();
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8, 8]), &options()).unwrap();
        side.memcpy_dtod(&second, &mut saved).unwrap();
        let gradients = [gradient.as_view(), gradient.as_view()];
        let model = &mut [first.as_view_mut(), second.as_view_mut()];
        zero.step(0, &gradients, model, |_, _| {
            drop(side);
            Ok(())
        })
        .unwrap();
        group.barrier().unwrap();
        // cudarc alone would free its slices too early.
        context.synchronize().unwrap();
    });
    assert_eq!(fake.bugs(), [""; 0]);
}

#[test]
fn beside_a_capture_a_context_object_without_counted_streams_is_refused() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(0).unwrap();
        let data: CudaSlice<f32> = context.default_stream().alloc_zeros(8).unwrap();
        let captured = group.context().unwrap().new_stream().unwrap();
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let refused = group.all_reduce(data, Sum).wait().map(drop);
        assert!(matches!(refused, Err(collectives::Error::Buffer(_))), "{refused:?}");
        captured.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
        group.check().unwrap();
        let data: CudaSlice<f32> = context.default_stream().alloc_zeros(8).unwrap();
        group.all_reduce(data, Sum).wait().unwrap();
    });
}
