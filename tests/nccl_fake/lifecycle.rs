//! Closing, dropping and aborting communicators.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, ResultCode};
use cudarc::driver::DriverError;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, REMOTE_ERROR};

#[test]
fn hole_13_dropping_waits_for_the_work_and_then_destroys() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum).unwrap();
    fake.log();
    fake.set(Knob::StreamBusy, 250);
    drop(communicator);
    assert_eq!(fake.log(), ["destroy comm1"]);
    drop(memory);
    assert_eq!(fake.log(), ["synchronize s1", "ncclMemFree m1"]);
}

#[test]
fn hole_13_after_an_asynchronous_error_it_is_aborted_instead() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    let error = communicator.async_error().unwrap_err();
    assert!(error.to_string().contains("ncclRemoteError (6)"), "{error}");
    drop(communicator);
    assert_eq!(fake.log(), ["abort comm1"]);

    fake.set(Knob::AsyncResult, 0);
    let communicator = fake.communicator(&Config::new());
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    let error = communicator.close().unwrap_err();
    assert!(matches!(error, Error::Nccl { code: ResultCode(6), .. }));
    assert_eq!(fake.log(), ["abort comm2"]);
}

#[test]
fn closing_keeps_the_deadline() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().deadline(Duration::from_millis(20)));
    fake.set(Knob::StreamBusy, i32::MAX);
    assert!(matches!(communicator.close(), Err(Error::Deadline { .. })));
    assert_eq!(fake.log(), ["abort comm1"]);
}

#[test]
fn memory_is_waited_for_even_when_cudarc_has_noted_a_failure() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let memory = fake.memory(&stream, 64);
    // cudarc's own synchronize would return this error and not wait.
    stream.context().record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
    drop(memory);
    let log = fake.log();
    assert_eq!(log[0], "synchronize s1");
    assert_eq!(log.len(), 2, "{log:#?}");
    assert!(stream.context().check_err().is_err(), "still noted");
}

#[test]
fn hole_13_a_panic_aborts() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _owned = communicator;
        panic!("while it is in use");
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), ["abort comm1"]);
}

#[test]
fn hole_14_an_operation_in_progress_is_waited_for_before_anything_is_ordered_after_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().deadline(Duration::from_millis(30)));
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    fake.log();
    let error = communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: "ncclAllReduce", .. }), "{error}");
    // NCCL no longer uses the buffer when the call returns.
    assert_eq!(
        fake.log(),
        [
            "e1 records s2",
            "s1 waits e1",
            "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0",
            "abort comm1",
            "e1 records s1",
            "s2 waits e1",
        ]
    );
    assert!(matches!(communicator.async_error(), Err(Error::Aborted { .. })));
    drop(communicator);
    assert_eq!(fake.log(), [""; 0], "aborted once");
}

/// See `exclusion::operations_exclude_an_abort` for an abort that waits for a thread inside NCCL.
#[test]
fn an_aborted_communicator_is_aborted_once_and_accepts_no_operations() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let handle = communicator.abort_handle();
    handle.abort().unwrap();
    handle.clone().abort().unwrap();
    assert_eq!(fake.log(), ["abort comm1"]);
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum);
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclAllReduce" })));
    assert!(matches!(communicator.close(), Err(Error::Aborted { .. })));
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_abort_handle_outlives_its_communicator() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let handle = communicator.abort_handle();
    communicator.close().unwrap();
    handle.abort().unwrap();
    assert_eq!(fake.log(), ["destroy comm1"]);
}

const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Querying a stream that is being captured would end the capture.
#[test]
fn the_end_of_a_communicator_does_not_affect_a_capture_of_its_stream() {
    let close = |communicator: Communicator| {
        let error = communicator.close().unwrap_err();
        assert!(matches!(error, Error::Stream { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("closing the communicator: the stream is being captured"), "{text}");
    };
    for end in [close, drop as fn(Communicator)] {
        let fake = Fake::new();
        let communicator = fake.communicator(&Config::new());
        let stream = communicator.stream().clone();
        stream.begin_capture(MODE).unwrap();
        fake.log();
        end(communicator);
        assert_eq!(fake.log(), ["abort comm1"]);
        stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    }
}

/// The same for a capture of a previous stream.
#[test]
fn nothing_changes_if_a_captured_stream_would_have_to_be_waited_for() {
    let fake = Fake::new();
    let mut communicator = fake.communicator(&Config::new());
    let before = communicator.stream().clone();
    let mut memory = fake.memory(&before, 8);
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, ReduceOp::Sum)
    })
    .unwrap();
    communicator.set_stream(&before.context().new_stream().unwrap()).unwrap();
    before.begin_capture(MODE).unwrap();
    fake.log();
    let refused = |result: Result<(), Error>, name: &str| {
        assert!(matches!(result, Err(Error::Stream { operation, .. }) if operation == name), "{result:?}");
    };
    refused(communicator.finalize(), "ncclCommFinalize");
    refused(communicator.suspend(), "ncclCommSuspend");
    assert_eq!(fake.log(), [""; 0]);
    before.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    graph.launch().unwrap();
    communicator.suspend().unwrap();
    communicator.resume().unwrap();
    communicator.finalize().unwrap();
    communicator.close().unwrap();
    let ends = fake.log().into_iter().filter(|line| line.ends_with("comm1") || line.ends_with("flags 1"));
    assert_eq!(
        ends.collect::<Vec<_>>(),
        ["suspend comm1 flags 1", "resume comm1", "finalize comm1", "destroy comm1"]
    );
}
