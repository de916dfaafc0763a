//! CUDA graphs of collectives: what is captured, launched and freed, and what is left when something fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, MemoryView, ResultCode, group};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{CudaStream, DriverError};

use crate::IN_PROGRESS;
use crate::fake::{Fake, Knob};

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

#[test]
fn a_graph_is_launched_often_and_destroyed_before_anything_else() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (send, mut receive) = (fake.memory(&other, 16), communicator.stream().alloc_zeros::<f32>(2).unwrap());
    let two = send.slice::<f32>(..2).unwrap();
    fake.log();
    let graph =
        Graph::capture(|capture| capture.on(&communicator).all_reduce(&two, &mut receive, Sum)).unwrap();
    // Streams and cudarc's events are waited for outside the capture.
    let line = "all_reduce comm1 m1->m2 count 2 type 7 op 0 s1 device 0";
    let log = fake.log();
    let begin = log.iter().position(|line| line == "begin capture s1").unwrap();
    assert!(log[..begin].contains(&"s1 waits e3".to_owned()), "{log:#?}");
    assert_eq!(
        log[begin + 1..],
        [
            format!("capture {line}").as_str(),
            "end capture s1 graph1",
            "instantiate graph1",
            "upload graph1 on s1"
        ]
    );
    // After each launch comes the stream of the other buffer.
    for _ in 0..2 {
        graph.launch().unwrap();
        let launch = format!("launch {line}");
        assert_eq!(fake.log(), ["launch graph1 on s1", &launch, "e3 records s1", "s2 waits e3"]);
    }
    drop(graph);
    let log = fake.log();
    assert_eq!(log[0], "destroy graph1");
    assert_eq!(log[1..], ["e2 records s1"], "cudarc's: the buffer has been written");
    drop(receive);
    drop(communicator);
    let log = fake.log();
    assert_eq!(log.last().unwrap(), "destroy comm1", "{log:#?}");
}

#[test]
fn several_communicators_and_streams_make_one_graph_each() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let communicators = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    // Two more on the first stream: they share its graph.
    let second = communicators[0].split(Some(0), 0, None).unwrap().unwrap();
    let mut memory: Vec<_> =
        [&streams[0], &streams[1], &streams[0]].map(|stream| fake.memory(stream, 8)).into();
    let mut views: Vec<_> = memory.iter_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap()).collect();
    fake.log();
    let graph = Graph::capture(|capture| {
        let [first, other, third] = views.as_mut_slice() else { panic!("three") };
        capture.group(|capture| {
            capture.on(&communicators[0]).all_reduce_in_place(first, Sum)?;
            // A group in a group changes nothing.
            capture.group(|capture| capture.on(&communicators[1]).all_reduce_in_place(other, Sum))
        })?;
        capture.on(&second).all_reduce_in_place(third, Sum)
    })
    .unwrap();
    let line = |comm, memory, stream, device| {
        format!("all_reduce comm{comm} m{memory}->m{memory} count 2 type 7 op 0 s{stream} device {device}")
    };
    let lines = [line(1, 1, 1, 0), line(2, 2, 2, 1), line(3, 3, 1, 0)];
    let [first, other, third] = lines.each_ref().map(|line| format!("capture {line}"));
    assert_eq!(
        fake.log(),
        [
            "begin capture s1",
            "begin capture s2",
            &first,
            &other,
            &third,
            "end capture s1 graph1",
            "instantiate graph1",
            "upload graph1 on s1",
            "end capture s2 graph2",
            "instantiate graph2",
            "upload graph2 on s2",
        ]
    );
    // SAFETY: nothing is launched.
    assert_eq!(unsafe { graph.cuda_graphs() }.len(), 2);
    graph.launch().unwrap();
    let [first, other, third] = lines.each_ref().map(|line| format!("launch {line}"));
    let launched = ["launch graph1 on s1", &first, &third, "launch graph2 on s2", &other];
    assert_eq!(fake.log(), launched);
    assert_eq!(format!("{graph:?}"), "Graph { streams: 2, .. }");
    drop(graph);
    assert_eq!(fake.log(), ["destroy graph1", "destroy graph2"]);
}

#[test]
fn a_graph_of_nothing_does_nothing() {
    let fake = Fake::new();
    let graph = Graph::capture(|_| Ok(())).unwrap();
    graph.launch().unwrap();
    drop(graph);
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_error_or_a_panic_in_the_closure_captures_nothing() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let result = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut view, Sum)?;
        Err(Error::Rank { rank: 7, size: 2 })
    })
    .map(drop);
    assert!(matches!(result, Err(Error::Rank { rank: 7, .. })));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        Graph::capture(|capture| {
            capture.group(|capture| {
                capture.on(&communicator).all_reduce_in_place(&mut view, Sum)?;
                panic!("in the middle of the capture")
            })
        })
        .map(drop)
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), [""; 0]);
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    assert_eq!(fake.log(), [format!("launch {LINE}")]);
}

#[test]
fn when_nccl_fails_in_a_capture_it_ends_and_nothing_is_left_of_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 8), fake.memory(communicator.stream(), 8)];
    let [mut first, mut second] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());

    fake.set(Knob::NcclResult, 5);
    let result = graph_of!(fake, &communicator, &mut first).map(drop);
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(5), .. })));
    assert_eq!(
        fake.log(),
        [
            "begin capture s1",
            "end capture s1 graph1",
            "instantiate graph1",
            "upload graph1 on s1",
            "destroy graph1"
        ]
    );

    // In a group, after one that was accepted.
    let result = Graph::capture(|capture| {
        capture.group(|capture| {
            capture.on(&communicator).all_reduce_in_place(&mut first, Sum)?;
            fake.set(Knob::NcclResult, 5);
            capture.on(&communicator).all_reduce_in_place(&mut second, Sum)
        })
    })
    .map(drop);
    assert!(matches!(result, Err(Error::Nccl { code: ResultCode(5), .. })));
    let log = fake.log();
    assert_eq!(log[1..3], ["group of 0 cancelled", "end capture s1 graph2"]);
    captures_nothing(communicator.stream());

    let graph = graph_of!(fake, &communicator, &mut first).unwrap();
    graph.launch().unwrap();
    assert_eq!(fake.log().last().unwrap(), &format!("launch {LINE}"));
}

/// cudarc's own functions answer with a failure that it has noted before, and do nothing then.
#[test]
fn a_capture_ends_even_when_cudarc_has_noted_a_failure_meanwhile() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let context = communicator.stream().context().clone();
    fake.set(Knob::CallMillis, -1);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("inside NCCL");
            context.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
            fake.set(Knob::CallMillis, 0);
        });
        graph_of!(fake, &communicator, &mut view).map(drop)
    });
    let operation = "cuStreamEndCapture";
    let noted = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(
        matches!(result, Err(Error::Cuda { operation: seen, error }) if seen == operation && error == noted)
    );
    captures_nothing(communicator.stream());
    let log = fake.log();
    assert_eq!(log.last().unwrap(), "destroy graph1", "{log:#?}");
}

#[test]
fn a_capture_of_somebody_else_is_left_alone() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let mut memory = fake.memory(stream, 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let captured = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Stream { .. })), "{result:?}");
        let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        assert_eq!(stream.capture_status().unwrap(), active);
    };
    stream.begin_capture(MODE).unwrap();
    captured(graph_of!(fake, &communicator, &mut view).map(drop));
    assert!(stream.end_capture(CUgraphInstantiate_flags(0)).is_ok());

    // Begun after the operation was recorded.
    captured(
        Graph::capture(|capture| {
            capture.on(&communicator).all_reduce_in_place(&mut view, Sum)?;
            stream.begin_capture(MODE).unwrap();
            Ok(())
        })
        .map(drop),
    );
    assert!(stream.end_capture(CUgraphInstantiate_flags(0)).is_ok());

    // Of two streams the first is not begun either.
    let second = fake.rank(fake.library(), 0, 2, &Config::new());
    let mut other = fake.memory(second.stream(), 8);
    let mut theirs = other.slice_mut::<f32>(..2).unwrap();
    captured(
        Graph::capture(|capture| {
            capture.on(&second).all_reduce_in_place(&mut theirs, Sum)?;
            capture.on(&communicator).all_reduce_in_place(&mut view, Sum)?;
            stream.begin_capture(MODE).unwrap();
            Ok(())
        })
        .map(drop),
    );
    captures_nothing(second.stream());
    assert!(stream.end_capture(CUgraphInstantiate_flags(0)).is_ok());
}

#[test]
fn non_blocking_communicators_are_refused_when_nccl_is_done_with_them() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().blocking(false));
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let refused = |result: Result<(), Error>| {
        let wanted = "capturing collectives into a CUDA graph: communicators of CUDA graphs must be blocking \
                      (Config::blocking, NCCL_COMM_BLOCKING)";
        assert_eq!(result.unwrap_err().to_string(), wanted);
        captures_nothing(communicator.stream());
        assert_eq!(fake.log().last().unwrap(), "destroy graph1");
    };
    fake.set(Knob::NcclResult, IN_PROGRESS);
    refused(graph_of!(fake, &communicator, &mut view).map(drop));
    assert!(communicator.async_error().is_ok());
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    drop(communicator);
    assert_eq!(fake.log(), [&format!("launch {LINE}"), "destroy comm1"]);
}

#[test]
fn graphs_are_made_and_launched_outside_groups_and_captures() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let mut memory = fake.memory(stream, 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph = graph_of!(fake, &communicator, &mut view).unwrap();
    fake.log();
    group(|_| {
        assert!(matches!(graph.launch(), Err(Error::InsideGroup { operation: "cuGraphLaunch" })));
        let made = Graph::capture(|_| Ok(())).map(drop);
        assert!(matches!(made, Err(Error::InsideGroup { .. })));
        Ok(())
    })
    .unwrap();
    assert_eq!(fake.log(), [""; 0]);
    stream.begin_capture(MODE).unwrap();
    assert!(matches!(graph.launch(), Err(Error::Stream { operation: "cuGraphLaunch", .. })));
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));
    // Operations of the communicator go on beside its graphs.
    graph.launch().unwrap();
    assert_eq!(fake.log(), ["launch graph1 on s1", &format!("launch {LINE}")]);
}

#[test]
fn what_ends_or_suspends_a_communicator_ends_or_suspends_its_graphs() {
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
    let error = communicator.finalize().unwrap_err().to_string();
    assert_eq!(
        error,
        "ncclCommFinalize: the communicator cannot be used: there are CUDA graphs of it: drop them first"
    );
    communicator.revoke().unwrap();
    refused("it has been revoked: split or shrink it, or make a new one");
    drop(graph);
    fake.log();
    communicator.close().unwrap();
    assert_eq!(fake.log(), ["destroy comm1"]);

    let communicator = fake.communicator(&Config::new());
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    drop(graph_of!(fake, &communicator, &mut view).unwrap());
    communicator.finalize().unwrap();
}

#[test]
fn a_graph_refuses_communicators_of_another_library() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let result = Graph::capture(fake.old_library(), |capture| {
        capture.on(&communicator).all_reduce_in_place(&mut view, Sum)
    });
    assert!(matches!(result, Err(Error::WrongLibrary { .. })));
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn a_capture_of_ones_own_takes_collectives_where_it_is_said_so() {
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
        Ok(())
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
