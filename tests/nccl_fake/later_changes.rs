//! Streams whose use changes after they were checked: they are captured, come to a reducer late, or miss an
//! event.

use std::sync::Arc;

use collectives::job::Group;
use collectives::nccl::{self, Collectives, Config, Signal, WindowKind};
use collectives::train::{Reducer, Wire, Zero1};
use collectives::{Error, ReduceOp};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;
use crate::training::{compute, options, parameters};

const NO_FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags(0);

fn reducer(group: &Group, lens: &[usize]) -> Reducer<CudaSlice<f32>> {
    Reducer::new(group, &parameters(lens), &options()).unwrap()
}

/// The averages are read on the first stream while the third step copies gradients of another one.
#[test]
fn a_stream_that_comes_to_a_reducer_late_waits_for_reads_on_other_streams() {
    for is_own in [false, true] {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            // SAFETY: the reducer orders the streams.
            unsafe { group.context().unwrap().disable_event_tracking() };
            let first = compute(group);
            let late = if is_own { group.stream().unwrap().clone() } else { compute(group) };
            let gradient = first.clone_htod(&[1.0_f32; 8]).unwrap();
            let late_gradient = late.clone_htod(&[2.0_f32; 8]).unwrap();
            let mut read = first.clone_htod(&[0.0_f32; 8]).unwrap();
            let mut reducer = reducer(group, &[8, 8]);
            for number in 0..2 {
                let mut step = reducer.step(number).unwrap();
                (0..2).for_each(|index| step.ready(index, gradient.as_view()).unwrap());
                step.wait().unwrap();
            }
            first.memcpy_dtod(&reducer.gradient(1).unwrap(), &mut read).unwrap();
            let mut step = reducer.step(2).unwrap();
            let order = if is_own { [1, 0] } else { [0, 1] };
            for index in order {
                let gradient = if index == 1 { &late_gradient } else { &gradient };
                step.ready(index, gradient.as_view()).unwrap();
            }
            step.wait().unwrap();
        });
        // Asserts that nothing races.
        fake.log();
    }
}

/// CUDA refuses to query events in the thread of a capture.
#[test]
fn operations_are_queried_during_captures_of_other_streams() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = compute(group);
        let work = group.all_reduce(stream.clone_htod(&[1.0_f32; 8]).unwrap(), ReduceOp::Sum);
        let captured = compute(group);
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        _ = work.is_done();
        captured.end_capture(NO_FLAGS).unwrap();
        work.wait().unwrap();
        group.check().unwrap();
    });
    fake.log();
}

#[test]
fn a_bucket_under_way_is_leaked_while_the_groups_stream_is_captured() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let gradient = compute(group).clone_htod(&[1.0_f32; 8]).unwrap();
        let mut reducer = reducer(group, &[8]);
        reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
        let own = group.stream().unwrap();
        own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        drop(reducer);
        own.end_capture(NO_FLAGS).unwrap();
        group.check().unwrap();
    });
}

/// Memory of `stream` into which `other` copies, whose event cudarc cannot record.
pub(crate) fn copy_without_event(
    fake: &Fake,
    stream: &Arc<CudaStream>,
    other: &Arc<CudaStream>,
) -> CudaSlice<f32> {
    let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut buffer = stream.clone_htod(&[2.0_f32; 8]).unwrap();
    fake.set(Knob::EventsFail, 1);
    other.memcpy_dtod(&source, &mut buffer).unwrap();
    fake.set(Knob::EventsFail, 0);
    buffer
}

/// cudarc has noted that it could not record the event of a copy into the buffer.
#[test]
fn a_buffer_without_its_event_is_refused() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (stream, other) = (compute(group), compute(group));
        let buffer = copy_without_event(&fake, &stream, &other);
        let refused = group.all_reduce(buffer, ReduceOp::Sum).wait_or_return().unwrap_err();
        assert!(matches!(refused.error, Error::Buffer(_)), "{refused:?}");
        // As the error asks for.
        other.synchronize().unwrap();
        let reduced = group.all_reduce(refused.buffers.unwrap(), ReduceOp::Sum).wait().unwrap();
        assert_eq!(reduced.len(), 8);
        group.barrier().unwrap();
    });
}

/// The copies of a step wait for the whole device, and the error stays noted.
#[test]
fn a_step_waits_for_gradients_without_their_events() {
    for (is_own, wire) in [(true, Wire::Same), (false, Wire::Same), (true, Wire::Bf16)] {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            let own = group.context().unwrap();
            let context = if is_own { Arc::clone(own) } else { CudaContext::new(0).unwrap() };
            let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
            let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
            let [mut gradient, mut model] = [2.0_f32, 3.0].map(|each| stream.clone_htod(&[each; 8]).unwrap());
            let options = options().wire(wire);
            let mut reducer: Reducer<CudaSlice<f32>> =
                Reducer::new(group, &parameters(&[8]), &options).unwrap();
            let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8]), &options).unwrap();
            for number in 0..2 {
                let without_event = |buffer: &mut CudaSlice<f32>| {
                    fake.set(Knob::EventsFail, 1);
                    other.memcpy_dtod(&source, buffer).unwrap();
                    fake.set(Knob::EventsFail, 0);
                };
                without_event(&mut gradient);
                let mut step = reducer.step(number).unwrap();
                step.ready(0, gradient.as_view()).unwrap();
                step.wait().unwrap();
                // Asserts that nothing races.
                fake.log();
                context.check_err().unwrap_err();
                without_event(&mut gradient);
                zero.step(number, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| Ok(())).unwrap();
                context.check_err().unwrap_err();
                without_event(&mut model);
                zero.step(number + 8, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| Ok(()))
                    .unwrap();
                fake.log();
                context.check_err().unwrap_err();
            }
            group.check().unwrap();
        });
    }
}

/// cudarc notes it in the program's own object of the context.
#[test]
fn a_buffer_of_another_context_object_without_its_event_is_refused() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(0).unwrap();
        let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let buffer = copy_without_event(&fake, &stream, &other);
        let refused = group.all_reduce(buffer, ReduceOp::Sum).wait_or_return().unwrap_err();
        assert!(matches!(refused.error, Error::Buffer(_)), "{refused:?}");
        other.synchronize().unwrap();
        let reduced = group.all_reduce(refused.buffers.unwrap(), ReduceOp::Sum).wait().unwrap();
        // An error of unrelated code does not stop the job either.
        context.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_UNKNOWN)));
        let list = group.all_reduce_list(vec![reduced], ReduceOp::Sum).wait_or_return().unwrap_err();
        assert!(matches!(list.error, Error::Buffer(_)), "{list:?}");
        assert_eq!(list.buffers.unwrap().len(), 1);
        group.barrier().unwrap();
    });
}

#[test]
fn a_collective_is_refused_when_another_context_object_lacks_an_event() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = CudaContext::new(0).unwrap();
    let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut buffer = stream.clone_htod(&[2.0_f32; 8]).unwrap();
    fake.set(Knob::EventsFail, 1);
    other.memcpy_dtod(&source, &mut buffer).unwrap();
    fake.set(Knob::EventsFail, 0);
    fake.log();
    let refused = communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum);
    assert!(matches!(refused, Err(nccl::Error::Cuda { .. })), "{refused:?}");
    assert!(!fake.log().iter().any(|line| line.contains("launch")));
    other.synchronize().unwrap();
    communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
}

#[test]
fn signals_are_not_waited_for_while_a_windows_stream_is_captured() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let prepared: Result<_, nccl::Error> =
        communicator.prepare(|prepare| prepare.wait_signals(&[(Signal::new(0), 1)]));
    let prepared = prepared.unwrap();
    let other = communicator.stream().context().new_stream().unwrap();
    let memory = fake.memory(&other, 32);
    let _window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    other.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    fake.log();
    let queued = communicator.queue(&prepared);
    assert!(matches!(queued, Err(nccl::Error::Stream { .. })), "{queued:?}");
    assert!(!fake.log().iter().any(|line| line.contains("launch")));
    other.end_capture(NO_FLAGS).unwrap();
}
