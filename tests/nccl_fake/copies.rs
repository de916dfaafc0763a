//! Copies of `Memory` that cudarc queues on another stream than the memory's own, s1. The fake detects copies
//! that are not ordered with the work of that stream, or under way when the memory is freed.

use std::sync::Arc;
use std::thread;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, Memory};
use cudarc::driver::sys::{CUdeviceptr, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError, SyncOnDrop, result,
};

use crate::fake::{Fake, Knob};

const UNKNOWN: CUresult = CUresult::CUDA_ERROR_UNKNOWN;
const REFUSED: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A slice in whose use another event takes place: cudarc asks for the addresses of the source and then of
/// the target before it queues a copy.
struct Meanwhile<F>(CudaSlice<f32>, F);

impl<F> DeviceSlice<f32> for Meanwhile<F> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.0.stream()
    }
}

impl<F: Fn()> DevicePtr<f32> for Meanwhile<F> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let place = self.0.device_ptr(stream);
        self.1();
        place
    }
}

impl<F: Fn()> DevicePtrMut<f32> for Meanwhile<F> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let place = self.0.device_ptr_mut(stream);
        self.1();
        place
    }
}

/// Notes an error, as a drop of cudarc's does that fails.
fn note(context: &CudaContext) {
    context.record_err::<()>(Err(DriverError(UNKNOWN)));
}

/// Eight numbers, their stream s1, and another one.
fn memory(fake: &Fake) -> (Memory, Arc<CudaStream>, Arc<CudaStream>) {
    let own = fake.stream(0);
    let other = own.context().new_stream().unwrap();
    (fake.memory(&own, 32), own, other)
}

/// The error is noted before cudarc waits for the copy, which it then does not do.
#[test]
fn a_copy_is_waited_for_although_an_error_is_noted_meanwhile() {
    let fake = Fake::new();
    let (memory, own, other) = memory(&fake);
    let mut target = Meanwhile(other.alloc_zeros::<f32>(8).unwrap(), || note(own.context()));
    fake.log();
    other.memcpy_dtod(&memory.slice::<f32>(..).unwrap(), &mut target).unwrap();
    drop(memory);
    let log = fake.log();
    let ends = log.iter().position(|line| line == "synchronize s2");
    assert!(
        ends.is_some_and(|end| log[end..] == ["synchronize s2", "synchronize s1", "ncclMemFree m1"]),
        "{log:#?}"
    );
    assert_eq!(own.context().check_err(), Err(DriverError(UNKNOWN)), "the error of others stays noted");
}

/// The error is noted before cudarc orders the copy after the memory's stream, which it then does not do.
#[test]
fn a_copy_is_ordered_after_the_memorys_stream_although_an_error_is_noted() {
    let fake = Fake::new();
    let (mut memory, own, other) = memory(&fake);
    let source = Meanwhile(other.clone_htod(&[3.0_f32; 8]).unwrap(), || note(own.context()));
    own.memset_zeros(&mut memory.slice_mut::<f32>(..).unwrap()).unwrap();
    other.memcpy_dtod(&source, &mut memory.slice_mut::<f32>(..).unwrap()).unwrap();
    // What was queued last is what is there.
    own.context().check_err().unwrap_err();
    assert_eq!(own.clone_dtoh(&memory.slice::<f32>(..).unwrap()).unwrap(), [3.0; 8]);
}

#[test]
fn a_copy_needs_no_event() {
    let fake = Fake::new();
    let (memory, _, other) = memory(&fake);
    let mut target = other.alloc_zeros::<f32>(8).unwrap();
    // Of those that cudarc records for the copy and the slice, the first one fails.
    fake.set(Knob::EventsFail, 0b1);
    other.memcpy_dtod(&memory.slice::<f32>(..).unwrap(), &mut target).unwrap();
    drop(memory);
    fake.set(Knob::EventsFail, 0);
    fake.log();
}

/// Neither stream's capture is invalidated, and no graph gets the memory's address.
#[test]
fn a_copy_is_refused_while_one_of_its_streams_is_captured() {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    for captured in ["own", "other"] {
        let fake = Fake::new();
        let (mut memory, own, other) = memory(&fake);
        let stream = if captured == "own" { &own } else { &other };
        stream.begin_capture(mode).unwrap();
        let copies = [
            other.memcpy_htod(&[1.0_f32; 8], &mut memory.slice_mut(..).unwrap()),
            other.context().check_err(),
            other.memset_zeros(&mut memory.slice_mut::<f32>(..).unwrap()),
            other.context().check_err(),
            other.clone_dtoh(&memory.slice::<f32>(..).unwrap()).map(drop),
            other.context().check_err(),
        ];
        let noted = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        for pair in copies.chunks_exact(2) {
            assert_eq!(pair, [Err(DriverError(REFUSED)), Err(DriverError(noted))], "{captured}");
        }
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        assert!(graph.is_some(), "{captured}");
        drop((graph, memory));
        fake.log();
    }
}

/// CUDA would refuse to wait for the copy.
#[test]
fn a_copy_is_refused_while_another_capture_forbids_to_wait_for_it() {
    let fake = Fake::new();
    let (memory, own, other) = memory(&fake);
    let mut slice = other.alloc_zeros::<f32>(8).unwrap();
    let third = own.context().new_stream().unwrap();
    third.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let copied = other.memcpy_dtod(&memory.slice::<f32>(..).unwrap(), &mut slice);
    assert_eq!(copied, Err(DriverError(REFUSED)));
    other.context().check_err().unwrap_err();
    third.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
    other.memcpy_dtod(&memory.slice::<f32>(..).unwrap(), &mut slice).unwrap();
    drop(memory);
    assert_eq!(fake.log().last().unwrap(), "ncclMemFree m1");
}

/// A capture begins that forbids to wait, after the copy was ordered.
#[test]
fn memory_whose_copy_could_not_be_waited_for_is_not_freed() {
    let fake = Fake::new();
    let (memory, own, other) = memory(&fake);
    let third = own.context().new_stream().unwrap();
    let capture = || third.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let mut target = Meanwhile(other.alloc_zeros::<f32>(8).unwrap(), capture);
    let view = memory.slice::<f32>(..).unwrap();
    other.memcpy_dtod(&view, &mut target).unwrap();
    third.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
    // The other stream may be gone from now on, so that nothing can wait for the copy any more.
    for stream in [&other, &own, &other] {
        assert_eq!(stream.memcpy_dtod(&view, &mut target.0), Err(DriverError(REFUSED)));
        own.context().check_err().unwrap_err();
    }
    fake.log();
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
}

/// cudarc calls the driver after the addresses are known, in the context of the copy's stream.
#[test]
fn the_context_of_the_copy_is_current_on_any_thread() {
    let fake = Fake::new();
    let (mut memory, own, _) = memory(&fake);
    let far = fake.stream(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let source = Meanwhile(far.clone_htod(&[2.0_f32; 8]).unwrap(), || ());
            far.memcpy_htod(&[2.0_f32; 8], &mut memory.slice_mut::<f32>(..).unwrap()).unwrap();
            assert_eq!(result::ctx::get_current(), Ok(Some(far.context().cu_ctx())));
            drop(source);
        });
    });
    assert_eq!(own.clone_dtoh(&memory.slice::<f32>(..).unwrap()).unwrap(), [2.0; 8]);
    drop(memory);
    fake.log();
}

#[test]
fn slices_of_streams_that_differ_between_threads_or_contexts_are_not_adopted() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let slice = context.per_thread_stream().alloc_zeros::<f32>(8).unwrap();
    let error = Memory::try_from(slice).unwrap_err();
    assert!(matches!(error, Error::Stream { operation: "Memory::try_from", .. }), "{error}");
    assert!(error.to_string().contains("a different stream on every thread"), "{error}");
    let own_context = CudaContext::new_non_primary(0, 0).unwrap();
    let slice = own_context.default_stream().alloc_zeros::<f32>(8).unwrap();
    let error = Memory::try_from(slice).unwrap_err();
    assert!(error.to_string().contains("primary context"), "{error}");
    fake.log();
}

#[test]
fn memory_whose_copy_could_not_be_waited_for_is_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let own = Arc::clone(communicator.stream());
    let other = own.context().new_stream().unwrap();
    let mut memory = fake.memory(&own, 32);
    let prepared = communicator
        .prepare(|prepare| prepare.all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum))
        .unwrap();
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)
    })
    .unwrap();
    let third = own.context().new_stream().unwrap();
    let capture = || third.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let mut target = Meanwhile(other.alloc_zeros::<f32>(8).unwrap(), capture);
    other.memcpy_dtod(&memory.slice::<f32>(..).unwrap(), &mut target).unwrap();
    third.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
    let immediate = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), Sum);
    for refused in [immediate, communicator.queue(&prepared), graph.launch()] {
        assert!(matches!(refused, Err(Error::Stream { .. })), "{refused:?}");
    }
    assert_eq!(fake.bugs(), [""; 0]);
}

#[test]
fn a_failed_wait_is_known_to_all_threads() {
    let fake = Fake::new();
    let own = fake.stream(0);
    // On the memory's stream, so that the refused calls log nothing.
    let communicators =
        [0; 2].map(|_| Communicator::builder(fake.library(), &own).rank(1, 2).id(&fake.id()).init().unwrap());
    let other = own.context().new_stream().unwrap();
    let memory = &fake.memory(&own, 32);
    let outputs = [0; 2].map(|_| fake.memory(&own, 32));
    let third = own.context().new_stream().unwrap();
    let capture = || third.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let mut target = Meanwhile(other.alloc_zeros::<f32>(8).unwrap(), capture);
    other.memcpy_dtod(&memory.slice::<f32>(..).unwrap(), &mut target).unwrap();
    third.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
    thread::scope(|scope| {
        for (communicator, mut output) in communicators.into_iter().zip(outputs) {
            scope.spawn(move || {
                for _ in 0..20_000 {
                    let mut output = output.slice_mut::<f32>(..).unwrap();
                    communicator.all_reduce(&memory.slice::<f32>(..).unwrap(), &mut output, Sum).unwrap_err();
                }
            });
        }
    });
}
