//! Streams that are being captured into a CUDA graph: everything is refused and nothing is queued, since
//! later launches of the graph would use buffers that nothing keeps alive.

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Config, Error, Memory, group};
use cudarc::driver::DevicePtr;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::fake::{Fake, Knob};

/// The default stream is ordered with a captured one.
const DEFAULT: i32 = -1;

fn refused(result: Result<(), Error>, operation: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Stream { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!(
            "{operation}: the stream is being captured into a CUDA graph, and a graph does not keep buffers \
             alive: end the capture first, and use Graph::capture, or Communicator::captured (unsafe)"
        )
    );
}

#[test]
fn single_operations_are_refused_until_the_capture_ends() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    fake.set(Knob::Captured, 1);
    refused(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum), "ncclAllReduce");
    refused(communicator.all_gather_in_place(&mut view), "ncclAllGather");
    assert_eq!(fake.log(), [""; 0]);
    fake.set(Knob::Captured, 0);
    communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0"]);
}

#[test]
fn the_default_stream_is_refused_while_a_stream_ordered_with_it_is_captured() {
    let fake = Fake::new();
    let stream = cudarc::driver::CudaContext::new(0).unwrap().default_stream();
    let communicator = collectives::nccl::Communicator::builder(fake.library(), &stream)
        .rank(0, 1)
        .id(&fake.id())
        .init()
        .unwrap();
    let mut memory = fake.memory(&stream, 64);
    fake.set(Knob::Captured, DEFAULT);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    refused(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum), "ncclAllReduce");
    assert_eq!(fake.log(), [""; 0]);
    fake.set(Knob::Captured, 0);
}

#[test]
fn a_captured_stream_of_a_buffer_does_not_draw_the_communicators_in() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    fake.set(Knob::Captured, 2);
    refused(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum), "ncclAllReduce");
    refused(
        group(|group| group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)),
        "ncclAllReduce",
    );
    // No event and no wait: the communicator's stream is unchanged.
    assert_eq!(fake.log(), [""; 0]);
    fake.set(Knob::Captured, 0);
}

#[test]
fn an_event_of_a_third_captured_stream_draws_the_communicators_in_and_is_noticed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let third = communicator.stream().context().new_stream().unwrap();
    let mut buffer = communicator.stream().alloc_zeros::<f32>(2).unwrap();
    fake.set(Knob::Captured, 2);
    // Reading it in the capture records the buffer's event there.
    drop(buffer.device_ptr(&third));
    fake.log();
    refused(communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum), "ncclAllReduce");
    let log = fake.log();
    assert!(!log.iter().any(|line| line.starts_with("launch")), "{log:#?}");

    fake.set(Knob::Captured, 2);
    drop(buffer.device_ptr(&third));
    fake.log();
    refused(
        group(|group| group.on(&communicator).all_reduce_in_place(&mut buffer, ReduceOp::Sum)),
        "ncclAllReduce",
    );
    let log = fake.log();
    assert!(!log.iter().any(|line| line.starts_with("launch")), "{log:#?}");
    fake.set(Knob::Captured, 0);
}

#[test]
fn grouped_operations_are_refused_whenever_the_capture_begins() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    fake.set(Knob::Captured, 1);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    refused(
        group(|group| group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)),
        "ncclAllReduce",
    );
    assert_eq!(fake.log(), [""; 0]);

    fake.set(Knob::Captured, 0);
    let result = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)?;
        fake.set(Knob::Captured, 1);
        Ok::<_, Error>(())
    });
    refused(result, "ncclGroupEnd");
    assert_eq!(fake.log(), [""; 0]);

    // The buffer's stream, which the communicator's stream has waited for already.
    fake.set(Knob::Captured, 0);
    let mut foreign = fake.memory(&communicator.stream().context().new_stream().unwrap(), 8);
    let mut theirs = foreign.slice_mut::<f32>(..2).unwrap();
    let result = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut theirs, ReduceOp::Sum)?;
        fake.set(Knob::Captured, 2);
        Ok::<_, Error>(())
    });
    refused(result, "ncclGroupEnd");
    assert_eq!(fake.log(), ["e1 records s2", "s1 waits e1"]);

    // The next group works.
    fake.set(Knob::Captured, 0);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    group(|group| group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0"]);
}

#[test]
fn memory_is_neither_made_nor_freed_in_a_capture() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let memory = fake.memory(&stream, 64);
    fake.set(Knob::Captured, 1);
    refused(Memory::alloc(fake.library(), &stream, 64).map(drop), "ncclMemAlloc");
    // Earlier queued work may still use it, and cannot be waited for now.
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
    fake.set(Knob::Captured, 0);
}

/// Ends a group after a capture began in its closure, which then returns `end`. A copy of another stream into
/// the slice, queued before, is still known to cudarc when it frees the slice: the fake would report the
/// race.
fn capture_in_a_group(end: Result<(), Error>) -> Result<(), Error> {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context();
    let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut slice = own.alloc_zeros::<f32>(8).unwrap();
    other.memcpy_dtod(&source, &mut slice).unwrap();
    let result = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        communicator.stream().begin_capture(mode).unwrap();
        end
    });
    communicator.stream().end_capture(CUgraphInstantiate_flags(0)).unwrap();
    drop(slice);
    assert_eq!(fake.bugs(), [""; 0]);
    result
}

#[test]
fn a_group_that_is_refused_in_a_capture_keeps_the_events_of_its_buffers() {
    refused(capture_in_a_group(Ok(())), "ncclGroupEnd");
}

#[test]
fn a_group_whose_closure_fails_in_a_capture_keeps_the_events_of_its_buffers() {
    let result = capture_in_a_group(Err(Error::Rank { rank: 7, size: 2 }));
    assert!(matches!(result, Err(Error::Rank { rank: 7, size: 2 })), "{result:?}");
}
