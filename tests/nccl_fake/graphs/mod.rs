//! CUDA graphs of collectives: capture, launch, release, and states after failures.

use std::panic::{AssertUnwindSafe, catch_unwind};

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Graph, Memory, MemoryView, ResultCode, Signal, Split,
    WindowKind, group,
};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{CudaStream, DriverError};

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, not_allowed};

const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const LINE: &str = "all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";

#[track_caller]
fn captures_nothing(stream: &CudaStream) {
    let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    assert_eq!(stream.capture_status().unwrap(), none);
}

/// A graph of one all_reduce.
macro_rules! graph_of {
    ($fake:expr, $communicator:expr, $view:expr) => {
        Graph::capture(|capture| capture.on($communicator).all_reduce_in_place($view, Sum))
    };
}

mod failures;
mod windows;

#[test]
fn a_graph_is_captured_privately_launched_often_and_destroyed_before_its_buffers() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let slice = communicator.stream().alloc_zeros::<f32>(2).unwrap();
    let (send, mut receive) = (fake.memory(&other, 16), Memory::try_from(slice).unwrap());
    fake.log();
    let graph = Graph::capture(|capture| {
        let (two, mut all) = (send.slice::<f32>(..2)?, receive.slice_mut::<f32>(..)?);
        capture.on(&communicator).all_reduce(&two, &mut all, Sum)
    })
    .unwrap();
    // On a private stream, ordered after nothing.
    let line = "all_reduce comm1 m2->m1 count 2 type 7 op 0 s4 device 0";
    assert_eq!(
        fake.log(),
        [
            "begin capture s4",
            &format!("capture {line}"),
            "end capture s4 graph1",
            "instantiate graph1",
            "upload graph1 on s4",
            "synchronize s4",
        ]
    );
    // New values between the launches: each launch is ordered after the stream of the other buffer, and
    // before its later work.
    for _ in 0..2 {
        communicator.stream().memcpy_htod(&[1.0f32; 2], &mut receive.slice_mut(..).unwrap()).unwrap();
        fake.log();
        graph.launch().unwrap();
        let launch = format!("launch {line}");
        let log = fake.log();
        let [first, second, third, fourth, last_but_one, last] = &log[..] else { panic!("{log:#?}") };
        assert!(first.ends_with("records s2") && second.starts_with("s1 waits"), "{log:#?}");
        assert_eq!((third.as_str(), fourth), ("launch graph1 on s1", &launch));
        assert!(last_but_one.ends_with("records s1") && last.starts_with("s2 waits"), "{log:#?}");
    }
    drop((send, receive));
    assert_eq!(fake.log(), [""; 0], "the graph has them");
    drop(graph);
    let log = fake.log();
    assert_eq!(log[..3], ["destroy graph1", "synchronize s2", "ncclMemFree m2"]);
    assert!(log[3..].contains(&"free m1 on s1".to_owned()), "{log:#?}");
    drop(communicator);
    assert_eq!(fake.log(), ["destroy comm1"]);
}

#[test]
fn a_buffer_without_an_owner_is_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let mut slice = stream.alloc_zeros::<f32>(2).unwrap();
    let memory = fake.memory(stream, 8);
    fake.log();
    let wanted = "ncclAllReduce: the buffer has no owner that keeps it allocated: use a Memory \
                  (Memory::try_from adopts a CudaSlice, Memory::from_raw any memory)";
    let error = graph_of!(fake, &communicator, &mut slice).map(drop).unwrap_err();
    assert_eq!(error.to_string(), wanted);
    assert_eq!(fake.log(), [""; 0]);
    let address = memory.slice::<f32>(..).unwrap().address();
    // SAFETY: the owner keeps the memory.
    let mut raw = unsafe { Memory::from_raw(address, 8, stream.clone(), memory) };
    let graph = graph_of!(fake, &communicator, &mut raw.slice_mut::<f32>(..).unwrap()).unwrap();
    drop(raw);
    fake.log();
    drop(graph);
    assert_eq!(fake.log(), ["destroy graph1", "synchronize s1", "ncclMemFree m2"]);
}

/// A launch accesses registered memory and windows, which the graph keeps like the memory.
#[test]
fn registrations_and_windows_last_as_long_as_graphs_of_their_memory() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 8), fake.memory(communicator.stream(), 8)];
    let window = communicator.window(&memory[0], WindowKind::Symmetric).unwrap();
    let registration = communicator.register(&memory[1]).unwrap();
    let [first, second] = &mut memory;
    let graph = Graph::capture(|capture| {
        let send = first.slice::<f32>(..2)?;
        capture.on(&communicator).all_reduce(&send, &mut second.slice_mut::<f32>(..2)?, Sum)
    })
    .unwrap();
    drop((window, registration));
    fake.log();
    graph.launch().unwrap();
    assert_eq!(fake.log().len(), 2);
    drop(graph);
    assert_eq!(fake.log(), ["destroy graph1", "deregister win1 comm1", "deregister reg1 comm1"]);
}

#[test]
fn several_communicators_make_one_graph_for_each_device() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let communicators = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    // Two more on the first stream: they share its graph.
    let second = communicators[0].split(&Split::color(0)).unwrap();
    let mut memory: Vec<_> =
        [&streams[0], &streams[1], &streams[0]].map(|stream| fake.memory(stream, 8)).into();
    let mut views: Vec<_> = memory.iter_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap()).collect();
    fake.log();
    let graph = Graph::capture(|capture| {
        let [first, other, third] = views.as_mut_slice() else { panic!("three") };
        capture.group(|capture| {
            capture.on(&communicators[0]).all_reduce_in_place(first, Sum)?;
            // A nested group makes no difference.
            capture.group(|capture| capture.on(&communicators[1]).all_reduce_in_place(other, Sum))
        })?;
        capture.on(&second).all_reduce_in_place(third, Sum)
    })
    .unwrap();
    let line = |comm, memory, stream, device| {
        format!("all_reduce comm{comm} m{memory}->m{memory} count 2 type 7 op 0 s{stream} device {device}")
    };
    let lines = [line(1, 1, 3, 0), line(2, 2, 4, 1), line(3, 3, 3, 0)];
    let [first, other, third] = lines.each_ref().map(|line| format!("capture {line}"));
    assert_eq!(
        fake.log(),
        [
            "begin capture s3",
            "begin capture s4",
            &first,
            &other,
            &third,
            "end capture s3 graph1",
            "instantiate graph1",
            "upload graph1 on s3",
            "synchronize s3",
            "end capture s4 graph2",
            "instantiate graph2",
            "upload graph2 on s4",
            "synchronize s4",
        ]
    );
    graph.launch().unwrap();
    let [first, other, third] = lines.each_ref().map(|line| format!("launch {line}"));
    let launched = ["launch graph1 on s1", &first, &third, "launch graph2 on s2", &other];
    assert_eq!(fake.log(), launched);
    assert_eq!(format!("{graph:?}"), "Graph { devices: 2, .. }");
    drop(graph);
    assert_eq!(fake.log(), ["destroy graph1", "destroy graph2"]);
}

#[test]
fn ranks_of_one_communicator_that_share_a_device_are_refused() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(0)];
    let communicators = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    let mut memories = streams.each_ref().map(|stream| fake.memory(stream, 8));
    fake.log();
    let graph = Graph::capture(|capture| {
        capture.group(|capture| {
            communicators.iter().zip(&mut memories).try_for_each(|(communicator, memory)| {
                capture.on(communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)
            })
        })
    });
    let error = graph.map(drop).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }) && error.to_string().contains("share a GPU"), "{error}");
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_empty_graph_does_nothing() {
    let fake = Fake::new();
    let graph = Graph::capture(|_| Ok::<_, Error>(())).unwrap();
    graph.launch().unwrap();
    drop(graph);
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn ending_or_suspending_a_communicator_ends_or_suspends_its_graphs() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph = graph_of!(fake, &communicator, &mut view).unwrap();
    communicator.suspend().unwrap();
    let refused = |wanted: &str| {
        let error = graph.launch().unwrap_err().to_string();
        assert_eq!(error, format!("cuGraphLaunch: the communicator cannot be used: {wanted}"));
    };
    refused("it is suspended: resume it first");
    communicator.resume().unwrap();
    graph.launch().unwrap();
    communicator.revoke().unwrap();
    refused("its operations have been stopped: split or shrink it, or make a new one");
    drop(graph);
    fake.log();
    communicator.close().unwrap();
    assert_eq!(fake.log(), ["destroy comm1"]);

    let communicator = fake.communicator(&Config::new());
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph = graph_of!(fake, &communicator, &mut view).unwrap();
    fake.log();
    communicator.finalize().unwrap();
    assert_eq!(fake.log(), ["destroy graph2", "finalize comm2"]);
    assert!(matches!(graph.launch(), Err(Error::Unusable { .. })));
    communicator.close().unwrap();
    assert!(matches!(graph.launch(), Err(Error::Aborted { .. })));
}

#[test]
fn a_graph_refuses_communicators_of_another_library() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let mut memory = [fake.memory(communicator.stream(), 8), fake.memory(other.stream(), 8)];
    let [mine, theirs] = &mut memory;
    let result = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut mine.slice_mut::<f32>(..2)?, Sum)?;
        capture.on(&other).all_reduce_in_place(&mut theirs.slice_mut::<f32>(..2)?, Sum)
    });
    assert!(matches!(result, Err(Error::WrongLibrary { .. })));
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn a_users_capture_accepts_collectives_through_captured_only() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let mut memory = fake.memory(stream, 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    stream.begin_capture(MODE).unwrap();
    // SAFETY: the graph is dropped before communicator and buffer.
    unsafe { communicator.captured() }.all_reduce_in_place(&mut view, Sum).unwrap();
    // SAFETY: nothing is captured.
    let wrong = unsafe { communicator.captured() }.send(&view.as_view(), 2);
    assert!(matches!(wrong, Err(Error::Rank { .. })));
    group(|_| {
        // SAFETY: nothing is captured.
        let refused = unsafe { communicator.captured() }.broadcast_in_place(&mut view, 0);
        assert!(matches!(refused, Err(Error::InsideGroup { .. })));
        Ok::<_, Error>(())
    })
    .unwrap();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    graph.launch().unwrap();
    assert_eq!(
        fake.log(),
        [
            "begin capture s1",
            &format!("capture {LINE}"),
            "end capture s1 graph1",
            "instantiate graph1",
            "launch graph1 on s1",
            &format!("launch {LINE}"),
        ]
    );
    drop(graph);

    // A buffer of another stream would be waited for outside the capture.
    let other = fake.memory(&stream.context().new_stream().unwrap(), 8);
    stream.begin_capture(MODE).unwrap();
    let theirs: MemoryView<'_, f32> = other.slice(..2).unwrap();
    // SAFETY: nothing is captured.
    let result = unsafe { communicator.captured() }.send(&theirs, 0);
    assert!(matches!(result, Err(Error::Cuda { operation: "cuStreamWaitEvent", .. })), "{result:?}");
    assert!(stream.end_capture(CUgraphInstantiate_flags(0)).is_err());
}

/// Operations on one memory keep the order of the calls, whatever the communicators' streams are.
#[test]
fn collectives_of_one_device_keep_their_order() {
    let fake = Fake::new();
    let first = fake.communicator(&Config::new());
    let other = first.stream().context().new_stream().unwrap();
    let second = first.split(&Split::color(0).stream(&other)).unwrap();
    let mut memory = fake.memory(first.stream(), 8);
    fake.log();
    let graph = Graph::capture(|capture| {
        for communicator in [&first, &second, &first] {
            capture.on(communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, Sum)?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    fake.log();
    graph.launch().unwrap();
    let log = fake.log();
    let launched: Vec<_> = log
        .iter()
        .filter_map(|line| line.strip_prefix("launch all_reduce comm"))
        .map(|line| &line[..1])
        .collect();
    assert_eq!(launched, ["1", "2", "1"], "{log:#?}");
    // Ordered before and after the second communicator's stream.
    assert!(log[0].ends_with("records s2") && log[1].starts_with("s1 waits"), "{log:#?}");
    assert!(log.last().unwrap().starts_with("s2 waits"), "{log:#?}");
    drop((graph, memory));
}

#[test]
fn a_graph_keeps_the_window_that_it_writes_into() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (from, to) = (fake.memory(communicator.stream(), 16), fake.memory(communicator.stream(), 16));
    let windows = [&from, &to].map(|memory| communicator.window(memory, WindowKind::Symmetric).unwrap());
    let graph = Graph::capture(|capture| {
        // SAFETY: the fake does nothing with it.
        unsafe { capture.on(&communicator).put(&from.slice::<f32>(..2)?, &windows[1], 0, Signal::new(0)) }
    })
    .unwrap();
    drop((windows, from, to));
    fake.log();
    graph.launch().unwrap();
    drop(graph);
    let log = fake.log();
    assert_eq!(log.iter().filter(|line| line.starts_with("deregister")).count(), 2, "{log:#?}");
    assert_eq!(log.iter().filter(|line| line.starts_with("ncclMemFree")).count(), 2, "{log:#?}");
}
