//! Buffers that come back with the error of an operation that was refused.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use collectives::job::{Backend, DeviceMemory, Group, Job, WorkError};
use collectives::{Error, ReduceOp, world};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;

/// Memory of a stream of its own.
fn slice(group: &Group, values: &[f32]) -> CudaSlice<f32> {
    group.context().unwrap().new_stream().unwrap().clone_htod(values).unwrap()
}

fn values(slice: &CudaSlice<f32>) -> Vec<f32> {
    slice.stream().clone_dtoh(slice).unwrap()
}

/// The buffers of a refused operation.
#[track_caller]
fn returned<B>(result: Result<B, WorkError<B>>, reason: &str) -> B {
    let Err(WorkError { error, buffers }) = result else { panic!("not refused") };
    assert!(matches!(&error, Error::Buffer(text) if text.contains(reason)), "{error}");
    buffers.unwrap_or_else(|| panic!("no buffers with {error}"))
}

#[test]
fn refused_operations_return_their_buffers_as_they_were() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let data = returned(group.broadcast(slice(group, &[1.0, 2.0]), 3).wait_or_return(), "rank 3");
        let (part, whole) =
            returned(group.all_gather(data, slice(group, &[9.0; 3])).wait_or_return(), "needs");
        assert_eq!((values(&part), values(&whole)), (vec![1.0, 2.0], vec![9.0; 3]));
        let scattered = group.reduce_scatter(whole, part, ReduceOp::Sum).wait_or_return();
        let (whole, part) = returned(scattered, "needs");
        // The second one is on another device.
        let far = CudaContext::new(1).unwrap().new_stream().unwrap().clone_htod(&[5.0]).unwrap();
        let list = group.all_reduce_list(vec![whole, far], ReduceOp::Sum).wait_or_return();
        let list = returned(list, "device 1");
        assert_eq!(list.iter().map(values).collect::<Vec<_>>(), [vec![9.0; 3], vec![5.0]]);
        // The group can still be used, and the buffers.
        let sum = group.all_reduce(part, ReduceOp::Sum).wait_or_return().unwrap();
        assert_eq!(values(&sum), [1.0, 2.0]);
    });
}

#[test]
fn a_stream_that_is_captured_costs_no_buffer() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let data = slice(group, &[1.0, 2.0]);
        let stream = Arc::clone(data.stream());
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let data = returned(group.all_reduce(data, ReduceOp::Sum).wait_on_or_return(&stream), "captured");
        stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        assert_eq!(values(&data), [1.0, 2.0]);
        // The operation is under way, and has the memory.
        let work = group.all_reduce(data, ReduceOp::Sum);
        let stream = stream.context().new_stream().unwrap();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let Err(WorkError { error: Error::Buffer(_), buffers: None }) = work.wait_on_or_return(&stream)
        else {
            panic!("a captured stream has waited")
        };
        stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    });
}

#[test]
fn memory_of_another_library_comes_back() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (slice, owner) = (slice(group, &[1.0; 4]), Arc::new(()));
        let (address, _) = slice.device_ptr(slice.stream());
        let stream = Arc::clone(slice.stream());
        // SAFETY: the slice is dropped last.
        let memory = unsafe { DeviceMemory::<f32>::from_raw(address, 4, stream, Arc::clone(&owner)) };
        let memory = returned(group.broadcast(memory, 1).wait_or_return(), "rank 1");
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&owner), 1);
    });
}

/// NCCL may use the memory of an operation that has failed: it is freed in the order of its stream.
#[test]
fn a_failed_operation_keeps_its_buffers() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let data = slice(group, &[1.0; 4]);
        fake.set(Knob::NcclResult, crate::REMOTE_ERROR);
        let failed = group.all_reduce(data, ReduceOp::Sum).wait_or_return().unwrap_err();
        assert!(matches!(failed, WorkError { error: Error::Nccl(_), buffers: None }), "{failed}");
        let text = failed.to_string();
        let again = group.all_reduce(slice(group, &[1.0; 4]), ReduceOp::Sum).wait().unwrap_err();
        assert_eq!(again.to_string(), text);
    });
}

#[cfg(feature = "fabric")]
#[test]
fn memory_of_the_other_backend_comes_back() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let refused = group.all_gather(vec![1.0_f32], vec![2.0]).wait_or_return();
        assert_eq!(returned(refused, "the buffer is host memory"), (vec![1.0], vec![2.0]));
    });
    let group = Job::new(world::single()).group(Backend::Host).unwrap();
    let memory = fake.stream(0).clone_htod(&[3.0_f32]).unwrap();
    let refused = group.all_reduce_list(vec![memory], ReduceOp::Sum).wait_or_return();
    assert_eq!(values(&returned(refused, "the buffer is memory of a GPU")[0]), [3.0]);
}

#[test]
fn the_buffers_of_a_refused_future_can_be_taken() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let mut work = group.broadcast(slice(group, &[1.0, 2.0]), 3);
        for _ in 0..2 {
            let polled = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Err(Error::Buffer(_)))), "{polled:?}");
        }
        assert_eq!(values(&returned(work.wait_or_return(), "rank 3")), [1.0, 2.0]);
    });
}
