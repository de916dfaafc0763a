//! Failed and refused captures.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};

use super::*;

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
        .map(|_: Graph| ())
        .map_err(|error: Error| error)
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), [""; 0]);
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    assert_eq!(fake.log(), [format!("launch {LINE}")]);
}

#[test]
fn a_failed_group_cancels_the_capture_even_if_its_error_is_ignored() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let result = Graph::capture(|capture| {
        let ignored: Result<(), _> = capture.group(|_| Err(Error::Rank { rank: 7, size: 2 }));
        assert!(ignored.is_err());
        capture.on(&communicator).all_reduce_in_place(&mut view, Sum)
    });
    let text = "cancelled, because a group in it failed or panicked";
    not_allowed(result, &format!("capturing collectives into a CUDA graph: {text}"));
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn a_capture_in_which_nccl_fails_is_discarded() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 8), fake.memory(communicator.stream(), 8)];
    let [mut first, mut second] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());

    fake.set(Knob::NcclResult, 5);
    let result = graph_of!(fake, &communicator, &mut first).map(drop);
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(5), .. })));
    assert_eq!(fake.log(), ["begin capture s2", "end capture s2 graph1", "destroy graph1"]);

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
    assert_eq!(log[1..3], ["group of 0 cancelled", "end capture s3 graph2"]);
    captures_nothing(communicator.stream());

    let graph = graph_of!(fake, &communicator, &mut first).unwrap();
    graph.launch().unwrap();
    assert!(fake.log().contains(&"launch graph3 on s1".to_owned()));
}

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
        graph_of!(fake, &communicator, &mut view)
    });
    let noted = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(matches!(result, Err(Error::Cuda { error, .. }) if error == noted));
    let log = fake.log();
    assert_eq!(log[log.len() - 2..], ["end capture s2 graph1", "destroy graph1"]);
    // Before a launch, too.
    let graph = graph_of!(fake, &communicator, &mut view).unwrap();
    fake.log();
    context.record_err::<()>(Err(noted));
    assert!(matches!(graph.launch(), Err(Error::Cuda { error, .. }) if error == noted));
    assert_eq!(fake.log(), [""; 0]);
}

/// The program's own captures on the communicator's stream do not affect the layer's.
#[test]
fn a_users_capture_is_not_affected() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let mut memory = fake.memory(stream, 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    stream.begin_capture(MODE).unwrap();
    let graph = graph_of!(fake, &communicator, &mut view).unwrap();
    let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_eq!(stream.capture_status().unwrap(), active);
    assert!(matches!(graph.launch(), Err(Error::Stream { operation: "cuGraphLaunch", .. })));
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    graph.launch().unwrap();
}

#[test]
fn non_blocking_communicators_are_refused_before_anything_is_captured() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new().blocking(false));
    // A part inherits it, whatever NCCL returns at the moment.
    let part = parent.split(&Split::color(0)).unwrap();
    let pending = Communicator::builder(fake.library(), parent.stream()).init_pending().unwrap();
    let pending = pending.wait(std::time::Duration::from_secs(10)).unwrap();
    let mut memory = fake.memory(parent.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    fake.log();
    for communicator in [&parent, &part, &pending] {
        let error = graph_of!(fake, communicator, &mut view).map(drop).unwrap_err();
        assert_eq!(error.to_string(), NON_BLOCKING);
    }
    assert_eq!(fake.log(), [""; 0]);
    let blocking = parent.split(&Split::color(0).config(&Config::new())).unwrap();
    graph_of!(fake, &blocking, &mut view).unwrap();
}

const NON_BLOCKING: &str = "capturing collectives into a CUDA graph: communicators must be blocking \
                            (Config::blocking, NCCL_COMM_BLOCKING)";

/// NCCL's own settings make it non-blocking in a way that cannot be detected.
#[test]
fn a_capture_that_nccl_goes_on_with_is_waited_for_and_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    fake.log();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    let error = graph_of!(fake, &communicator, &mut view).map(drop).unwrap_err();
    assert_eq!(error.to_string(), NON_BLOCKING);
    let log = fake.log();
    assert!(!log.iter().any(|line| line.starts_with("instantiate")), "{log:#?}");
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    drop(communicator);
    assert_eq!(fake.log(), [&format!("launch {LINE}"), "destroy comm1"]);
}

#[test]
fn graphs_are_captured_and_launched_outside_groups_and_captures() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let mut memory = fake.memory(stream, 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph = graph_of!(fake, &communicator, &mut view).unwrap();
    fake.log();
    group(|_| {
        assert!(matches!(graph.launch(), Err(Error::InsideGroup { operation: "cuGraphLaunch" })));
        let made = Graph::capture(|_| Ok::<_, Error>(())).map(drop);
        assert!(matches!(made, Err(Error::InsideGroup { .. })));
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), [""; 0]);
    stream.begin_capture(MODE).unwrap();
    assert!(matches!(graph.launch(), Err(Error::Stream { operation: "cuGraphLaunch", .. })));
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));
    // Operations of the communicator run beside its graphs.
    graph.launch().unwrap();
    assert_eq!(fake.log()[0], "launch graph1 on s1");
}

/// A subscriber of the log that launches a graph.
struct Launching {
    graph: Arc<Graph>,
    launched: mpsc::Sender<Result<(), Error>>,
}

impl tracing::Subscriber for Launching {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, _: &Event<'_>) {
        self.launched.send(self.graph.launch()).unwrap();
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_graph_that_cannot_be_destroyed_is_logged_without_its_lock() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph = Arc::new(graph_of!(fake, &communicator, &mut view).unwrap());
    let (launched, launches) = mpsc::channel();
    let (closed, end) = mpsc::channel();
    fake.set(Knob::DisposalResult, 1);
    // Not scoped: a thread that waits for its own lock never ends.
    thread::spawn(move || {
        let close = || communicator.close();
        closed.send(tracing::subscriber::with_default(Launching { graph, launched }, close)).unwrap();
    });
    end.recv_timeout(Duration::from_secs(60)).expect("the subscriber waits for the graph's lock").unwrap();
    assert!(matches!(launches.recv().unwrap(), Err(Error::Unusable { operation: "cuGraphLaunch", .. })));
    fake.log();
}
