//! `Memory`: its views and its release.

use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, DeviceBuffer, Error, Graph, Memory, WindowKind};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::fake::{Fake, Knob};

#[test]
fn views_end_within_their_memory() {
    let fake = Fake::new();
    // Four numbers and a part of a fifth.
    let mut memory = fake.memory(&fake.stream(0), 18);
    let start = memory.slice::<u8>(..0).unwrap().address();
    let view = |range: (Bound<usize>, Bound<usize>)| {
        memory.slice::<f32>(range).map(|view| ((view.address() - start) / 4, view.len()))
    };
    for (from, to, expected) in [
        (Unbounded, Unbounded, (0, 4)),
        (Included(1), Included(3), (1, 3)),
        (Excluded(0), Excluded(3), (1, 2)),
        (Included(4), Excluded(4), (4, 0)),
        (Excluded(3), Unbounded, (4, 0)),
        (Unbounded, Excluded(0), (0, 0)),
    ] {
        assert_eq!(view((from, to)).unwrap(), expected, "{from:?} {to:?}");
    }
    for (from, to, wanted) in [
        (Included(0), Excluded(5), "0..5"),
        (Unbounded, Included(4), "0..5"),
        (Included(5), Unbounded, "5..4"),
        (Excluded(4), Unbounded, "5..4"),
        (Included(3), Excluded(2), "3..2"),
        (Unbounded, Included(usize::MAX), "0..18446744073709551615"),
        (Excluded(usize::MAX), Unbounded, "18446744073709551615..4"),
    ] {
        let error = view((from, to)).unwrap_err().to_string();
        assert_eq!(error, format!("a view of elements {wanted}: the memory has 4"));
    }
    let mut whole = memory.slice_mut::<f32>(..).unwrap();
    let part = whole.slice_mut(1..3).unwrap();
    assert_eq!((part.address() - start, part.len(), part.as_view().address()), (4, 2, part.address()));
    let (before, after) = part.split_at_mut(1).unwrap();
    assert_eq!(
        [(before.address(), before.len()), (after.address(), after.len())],
        [(start + 4, 1), (start + 8, 1)]
    );
    assert!(matches!(whole.slice_mut(..5), Err(Error::View { start: 0, end: 5, len: 4 })));
    let (before, after) = whole.slice(1..).unwrap().split_at(3).unwrap();
    assert_eq!(
        [(before.address(), before.len()), (after.address(), after.len())],
        [(start + 4, 3), (start + 16, 0)]
    );
    assert!(matches!(whole.split_at_mut(5), Err(Error::View { .. })));
}

/// A test that panics because a collective hangs must end.
#[test]
fn a_thread_that_panics_does_not_wait_for_memory() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let panics = |hanging: i32| {
        let mut memory = fake.memory(communicator.stream(), 8);
        fake.set(Knob::Hang, hanging);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), Sum).unwrap();
            let _dropped = memory;
            panic!("in the middle of the program");
        }));
        assert!(panicked.is_err());
        fake.log().split_off(1)
    };
    assert_eq!(panics(0), ["ncclMemFree m1"]);
    assert_eq!(panics(1), [""; 0], "neither waited for nor freed");
    communicator.abort_handle().abort().unwrap();
}

/// During a capture, CUDA refuses to wait for work and to allocate and free memory, and invalidates the
/// capture. (Before NCCL 2.19 the memory is CUDA's.)
#[test]
fn memory_is_allocated_and_freed_while_its_thread_captures_another_stream() {
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    ] {
        let fake = Fake::new();
        let (stream, other) = (fake.stream(0), fake.stream(0));
        other.begin_capture(mode).unwrap();
        for library in [fake.old_library(), fake.library()] {
            drop(Memory::alloc(library, &stream, 8).unwrap());
        }
        let log = fake.log();
        assert_eq!(log[1..4], ["cuMemAlloc m1", "synchronize s1", "cuMemFree m1"]);
        assert_eq!(log[4..], ["ncclMemAlloc m2", "synchronize s1", "ncclMemFree m2"]);
        other.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        // Operations on the captured stream are still refused.
        other.begin_capture(mode).unwrap();
        stream.synchronize().unwrap_err();
        other.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
    }
}

/// Captures of other streams do not affect a communicator's work.
#[test]
fn communicators_and_what_they_know_end_while_their_thread_captures_another_stream() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (memory, other) = (fake.memory(communicator.stream(), 8), fake.stream(0));
    let registration = communicator.register(&memory).unwrap();
    other.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    fake.log();
    drop(registration);
    drop(communicator.window(&memory, WindowKind::Symmetric).unwrap());
    communicator.close().unwrap();
    let window = "window comm1 m1 bytes 8 flags 1 as win1";
    let ended = ["deregister reg1 comm1", "synchronize s1", window, "deregister win1 comm1", "destroy comm1"];
    assert_eq!(fake.log(), ended);
    other.end_capture(CUgraphInstantiate_flags(0)).unwrap();
}

#[test]
fn memory_without_an_owner_is_not_freed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let mut memory = fake.memory(stream, 8);
    let address = memory.slice::<u8>(..).unwrap().address();
    // SAFETY: the memory lives longer.
    let borrowed = || unsafe { Memory::from_raw(address, 8, stream.clone(), ()) };
    let mut buffer = borrowed();
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut buffer.slice_mut::<f32>(..)?, Sum)
    });
    let (graph, during_a_capture): (Result<_, Error>, _) = (graph, borrowed());
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    fake.log();
    drop((buffer, during_a_capture));
    assert_eq!(fake.log(), [""; 0]);
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    graph.unwrap().launch().unwrap();
    fake.log();
    stream.memcpy_htod(&[1.0f32; 2], &mut memory.slice_mut(..).unwrap()).unwrap();
    drop(memory);
    assert_eq!(fake.log(), ["synchronize s1", "ncclMemFree m1"]);
}
