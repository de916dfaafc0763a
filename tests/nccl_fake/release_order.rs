//! Releases of memory whose waits fail, or are for several buffers: a failed wait hides the next one.

use std::mem;
use std::sync::Arc;

use collectives::ReduceOp::Sum;
use collectives::nccl::{self, Memory};
use collectives::train::Reducer;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr as _, SyncOnDrop};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;
use crate::later_changes::copy_without_event;
use crate::training::{compute, options, parameters};
use crate::uncounted::copied;

fn begin_capture(stream: &Arc<CudaStream>) {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
}

/// Ends a capture, which may have failed.
fn end_capture(stream: &Arc<CudaStream>) {
    let _graph = stream.end_capture(CUgraphInstantiate_flags(0));
    let _noted = stream.context().check_err();
}

fn count_frees(log: &[String]) -> usize {
    log.iter().filter(|line| line.starts_with("free ")).count()
}

/// Memory of the default stream into which a stream that is gone copies, and which a capture has read since.
fn copied_and_captured(one: &Arc<CudaContext>, two: &Arc<CudaContext>) -> (CudaSlice<f32>, Arc<CudaStream>) {
    let mut saved = two.default_stream().alloc_zeros::<f32>(8).unwrap();
    let captured = two.new_stream().unwrap();
    let data = copied(one);
    begin_capture(&captured);
    captured.memcpy_dtod(&data, &mut saved).unwrap();
    // The graph uses it.
    mem::forget(saved);
    (data, captured)
}

#[test]
fn a_buffer_beside_one_of_a_captured_stream_is_freed_after_a_read() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (captured, stream, other) = (compute(group), compute(group), compute(group));
        let part = captured.clone_htod(&[1.0_f32; 8]).unwrap();
        let whole = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let _copy = other.clone_dtod(&whole).unwrap();
        begin_capture(&captured);
        fake.log();
        let refused = group.all_gather(part, whole).wait().map(drop);
        assert!(matches!(refused, Err(collectives::Error::Buffer(_))), "{refused:?}");
        // The other one is leaked, and the capture goes on.
        assert_eq!(count_frees(&fake.log()), 1);
        captured.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap();
    });
}

#[test]
fn a_buffer_beside_one_of_a_captured_stream_is_freed_after_a_write() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (captured, stream, other) = (compute(group), compute(group), compute(group));
        let first = captured.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut second = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let source = other.clone_htod(&[2.0_f32; 8]).unwrap();
        other.memcpy_dtod(&source, &mut second).unwrap();
        begin_capture(&captured);
        fake.log();
        drop(group.all_reduce_list(vec![first, second], Sum));
        assert_eq!(count_frees(&fake.log()), 1);
        end_capture(&captured);
    });
}

/// No stream is counted when the capture reads the buffer, so the wait of the capture's end has no event.
#[test]
fn a_buffer_beside_one_that_an_ended_capture_has_read_is_freed_after_a_read() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(group.context().unwrap().ordinal()).unwrap();
        let first = context.default_stream().alloc_zeros::<f32>(8).unwrap();
        let mut saved = context.default_stream().alloc_zeros::<f32>(8).unwrap();
        let [captured, stream, other] = [0; 3].map(|_| context.new_stream().unwrap());
        begin_capture(&captured);
        captured.memcpy_dtod(&first, &mut saved).unwrap();
        end_capture(&captured);
        let second = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let _copy = other.clone_dtod(&second).unwrap();
        context.check_err().unwrap();
        fake.log();
        let refused = group.all_reduce_list(vec![first, second], Sum).wait().map(drop);
        assert!(matches!(refused, Err(collectives::Error::Buffer(_))), "{refused:?}");
        assert_eq!(count_frees(&fake.log()), 1);
    });
}

/// The failed wait for the captured read hides the wait for the copy.
#[test]
fn a_buffer_that_an_ended_capture_has_read_is_not_freed_under_a_copy() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let [one, two] = [0; 2].map(|_| CudaContext::new(group.context().unwrap().ordinal()).unwrap());
        let (data, captured) = copied_and_captured(&one, &two);
        end_capture(&captured);
        one.check_err().unwrap();
        group.broadcast(data, 7).wait().map(drop).unwrap_err();
        assert_eq!(fake.bugs(), [""; 0]);
        one.check_err().unwrap();
    });
}

#[test]
fn a_slice_that_a_capture_has_read_is_not_freed_under_a_copy() {
    for ended in [true, false] {
        let fake = Fake::new();
        let [one, two] = [0; 2].map(|_| CudaContext::new(0).unwrap());
        let (data, captured) = copied_and_captured(&one, &two);
        if ended {
            end_capture(&captured);
        }
        let refused = Memory::try_from(data).map(drop);
        assert!(matches!(refused, Err(nccl::Error::Cuda { .. } | nccl::Error::Stream { .. })), "{refused:?}");
        let bugs = fake.bugs();
        end_capture(&captured);
        assert_eq!(bugs, [""; 0], "ended {ended}");
    }
}

/// The slice's stream waits for a captured read, and becomes part of the capture.
#[test]
fn a_slice_whose_stream_joins_a_capture_is_not_adopted() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let (own, captured) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    // SAFETY: the fake has no values. No write is recorded, which a capture could not wait for.
    let [slice, mut saved] = [&own, &captured].map(|stream| unsafe { stream.alloc::<f32>(8) }.unwrap());
    begin_capture(&captured);
    captured.memcpy_dtod(&slice, &mut saved).unwrap();
    let refused = Memory::try_from(slice).map(drop);
    assert!(matches!(refused, Err(nccl::Error::Stream { .. })), "{refused:?}");
    end_capture(&captured);
    assert!(!fake.log().iter().any(|line| line.contains("free")));
}

/// The same for a buffer that is dropped: the graph would free it.
#[test]
fn a_buffer_whose_stream_joins_a_capture_is_leaked() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (own, captured) = (compute(group), compute(group));
        // SAFETY: as above.
        let [buffer, mut saved] = [&own, &captured].map(|stream| unsafe { stream.alloc::<f32>(8) }.unwrap());
        begin_capture(&captured);
        captured.memcpy_dtod(&buffer, &mut saved).unwrap();
        drop(group.broadcast(buffer, 7));
        let log = fake.log();
        assert!(!log.iter().any(|line| line.contains("free")), "{log:#?}");
        end_capture(&captured);
    });
}

#[test]
fn a_buffer_that_is_refused_for_a_lost_event_is_not_freed_under_its_use() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (stream, other) = (compute(group), compute(group));
        let refused = group.all_reduce(copy_without_event(&fake, &stream, &other), Sum).wait().map(drop);
        assert!(matches!(refused, Err(collectives::Error::Buffer(_))), "{refused:?}");
        assert_eq!(fake.bugs(), [""; 0]);
        let returned = group.all_reduce(copy_without_event(&fake, &stream, &other), Sum).wait_or_return();
        let buffer = returned.unwrap_err().buffers.unwrap();
        other.synchronize().unwrap();
        fake.log();
        drop(buffer);
        assert_eq!(count_frees(&fake.log()), 1);
    });
}

#[test]
fn a_slice_that_is_refused_for_a_lost_event_is_not_freed_under_its_use() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let refused = Memory::try_from(copy_without_event(&fake, &stream, &other)).map(drop);
    assert!(matches!(refused, Err(nccl::Error::Cuda { .. })), "{refused:?}");
    assert_eq!(fake.bugs(), [""; 0]);
}

/// The event of the reads of one bucket is recorded in a capture, and another bucket is still read.
#[test]
fn averages_beside_some_that_a_capture_has_read_are_freed_after_a_read() {
    for (captured_one, read_one) in [(0, 1), (1, 0)] {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            let [stream, captured, other] = [0; 3].map(|_| compute(group));
            let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut saved = other.alloc_zeros::<f32>(8).unwrap();
            let options = options().first_bucket_bytes(32).bucket_bytes(32);
            let mut reducer = Reducer::<CudaSlice<f32>>::new(group, &parameters(&[8, 8]), &options).unwrap();
            let mut step = reducer.step(0).unwrap();
            step.ready(1, gradient.as_view()).unwrap();
            step.ready(0, gradient.as_view()).unwrap();
            step.wait().unwrap();
            let view = reducer.gradient(captured_one).unwrap();
            let (_, used) = view.device_ptr(&stream);
            begin_capture(&captured);
            if let SyncOnDrop::Record(Some((event, _))) = &used {
                event.record(&captured).unwrap();
            }
            mem::forget(used);
            end_capture(&captured);
            other.memcpy_dtod(&reducer.gradient(read_one).unwrap(), &mut saved).unwrap();
            group.context().unwrap().check_err().unwrap();
            drop(reducer);
            assert_eq!(fake.bugs(), [""; 0], "{captured_one} is captured");
        });
    }
}

/// Without memory pools, memory is freed at once and not by its stream.
#[test]
fn a_device_without_memory_pools_frees_a_buffer_after_the_operation() {
    for (waits_fail, frees) in [(0, 1), (1, 0)] {
        let fake = Fake::new();
        fake.set(Knob::NoPools, 1);
        on_gpus(&fake, 1, |group| {
            let buffer = compute(group).clone_htod(&[1.0_f32; 8]).unwrap();
            let work = group.all_reduce(buffer, Sum);
            fake.log();
            fake.set(Knob::WaitsFail, waits_fail);
            drop(work);
            fake.set(Knob::WaitsFail, 0);
            let log = fake.log();
            assert_eq!(log.iter().filter(|line| line.contains("cuMemFree")).count(), frees, "{log:?}");
        });
    }
}

#[test]
fn a_device_without_memory_pools_frees_adopted_memory_after_its_use() {
    for (waits_fail, frees) in [(0, 1), (1, 0)] {
        let fake = Fake::new();
        fake.set(Knob::NoPools, 1);
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let memory = Memory::try_from(stream.clone_htod(&[1.0_f32; 8]).unwrap()).unwrap();
        fake.set(Knob::WaitsFail, waits_fail);
        drop(memory);
        fake.set(Knob::WaitsFail, 0);
        let log = fake.log();
        assert_eq!(log.iter().filter(|line| line.contains("cuMemFree")).count(), frees, "{log:?}");
    }
}
