//! Hanging streams, captures and graphs.

use std::thread;
use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstream};
use cudarc::driver::{DriverError, result};
use nccl_sys::*;

use super::{Across, CAPTURE, LINE, SUM, World};
use crate::IN_PROGRESS;
use crate::fake::{Fake, Knob};

#[test]
fn an_operation_hangs_until_it_is_aborted() {
    let fake = Fake::new();
    let world = Across(World::new(&fake, true));
    let world = &world;
    let other = world.0.stream.context().new_stream().unwrap();
    fake.set(Knob::Hang, 1);
    world.0.all_reduce(SUM);
    let event = world.0.stream.record_event(None).unwrap();
    other.wait(&event).unwrap();
    let busy = Err(DriverError(CUresult::CUDA_ERROR_NOT_READY));
    for stream in [&world.0.stream, &other] {
        // SAFETY: the stream lives.
        assert_eq!(unsafe { cudarc::driver::sys::cuStreamQuery(stream.cu_stream()) }.result(), busy);
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.synchronize());
        let log = world.0.fake.until("synchronize s2");
        assert_eq!(log, [&format!("launch {LINE}"), "e1 records s1", "s2 waits e1", "synchronize s2"]);
        // Time for it to return, if it does not wait.
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        // SAFETY: our own library.
        unsafe { world.0.nccl.ncclCommAbort(world.0.comm) };
        waiting.join().unwrap().unwrap();
    });
    world.0.stream.synchronize().unwrap();
    world.0.logs(&["abort comm1", "synchronize s1"]);
}

fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.err().unwrap().0
}

#[test]
fn a_capture_that_ends_before_nccl_is_done_is_detected() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    fake.set(Knob::NcclResult, IN_PROGRESS);
    world.stream.begin_capture(CAPTURE).unwrap();
    assert_eq!(world.all_reduce(SUM), ncclResult_t::ncclInProgress);
    world.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    world.bug("the capture of s1 ends while NCCL is busy with it");
}

#[test]
fn a_graph_repeats_what_was_captured() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let (nccl, stream) = (world.nccl, &world.stream);
    stream.begin_capture(CAPTURE).unwrap();
    // SAFETY: our own library.
    unsafe { nccl.ncclGroupStart() };
    world.all_reduce(SUM);
    // SAFETY: our own library.
    unsafe { nccl.ncclGroupEnd() };
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    graph.upload().unwrap();
    graph.launch().unwrap();
    world.all_reduce(SUM);
    let (capture, launch) = (format!("capture {LINE}"), format!("launch {LINE}"));
    world.logs(&[
        "begin capture s1",
        &capture,
        "end capture s1 graph1",
        "instantiate graph1",
        "upload graph1 on s1",
        "launch graph1 on s1",
        &launch,
        &launch,
    ]);
    stream.synchronize().unwrap();
    // SAFETY: our own library.
    unsafe { nccl.ncclMemFree(world.memory) }.unwrap();
    world.bug("m1 freed while a graph can use it");
    graph.launch().unwrap();
    world.bug("a graph uses m1 after it was freed");
    // SAFETY: our own library.
    unsafe { nccl.ncclCommDestroy(world.comm) };
    world.bug("while a graph uses it");
    drop(graph);
    world.logs(&["destroy graph1"]);
}

#[test]
fn the_hang_of_a_graph_ends_with_its_communicator() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    world.stream.begin_capture(CAPTURE).unwrap();
    world.all_reduce(SUM);
    let graph = world.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    fake.set(Knob::Hang, 1);
    graph.launch().unwrap();
    drop(graph);
    let query = |stream: CUstream| {
        // SAFETY: the stream lives.
        unsafe { cudarc::driver::sys::cuStreamQuery(stream) }
    };
    assert_eq!(query(world.stream.cu_stream()), CUresult::CUDA_ERROR_NOT_READY);
    // SAFETY: our own library.
    unsafe { world.nccl.ncclCommAbort(world.comm) };
    assert_eq!(query(world.stream.cu_stream()), CUresult::CUDA_SUCCESS);
    fake.log();
}

#[test]
fn what_a_capture_does_not_allow_invalidates_it() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let stream = &world.stream;
    let other = stream.context().new_stream().unwrap();
    let outside = other.record_event(None).unwrap();
    fake.log();
    let end = || code(stream.end_capture(CUgraphInstantiate_flags(0)));

    stream.begin_capture(CAPTURE).unwrap();
    assert_eq!(code(stream.wait(&outside)), CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(world.all_reduce(SUM), ncclResult_t::ncclUnhandledCudaError);
    assert_eq!(end(), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    world.logs(&["begin capture s1", "capture 1 is invalid: an event from outside", "end capture s1 fails"]);

    stream.begin_capture(CAPTURE).unwrap();
    assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    stream.begin_capture(CAPTURE).unwrap();
    // SAFETY: the allocation is refused.
    let refused = unsafe { result::malloc_sync(8) };
    assert_eq!(code(refused), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    // Another stream becomes part of the capture, and must be waited for.
    stream.begin_capture(CAPTURE).unwrap();
    let inside = stream.record_event(None).unwrap();
    other.wait(&inside).unwrap();
    assert_eq!(end(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_eq!(code(other.wait(&inside)), CUresult::CUDA_ERROR_CAPTURED_EVENT);

    stream.begin_capture(CAPTURE).unwrap();
    inside.record(stream).unwrap();
    other.wait(&inside).unwrap();
    let joined = other.record_event(None).unwrap();
    stream.wait(&joined).unwrap();
    assert!(stream.end_capture(CUgraphInstantiate_flags(0)).is_ok());
    fake.log();
}
