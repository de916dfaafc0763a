//! Watchdogs: aborts from another thread while the owner waits, is inside NCCL, or holds graphs.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, Error, Graph};

use crate::IN_PROGRESS;
use crate::fake::{Fake, Knob};

const LINE: &str = "all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";

#[test]
fn hole_13_a_watchdog_ends_a_collective_that_hangs() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let handle = communicator.abort_handle();
    fake.set(Knob::Hang, 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("synchronize s1");
            handle.abort().unwrap();
        });
        communicator.all_reduce_in_place(&mut view, Sum).unwrap();
        communicator.stream().synchronize().unwrap();
    });
    assert_eq!(fake.log(), ["abort comm1"]);
    let result = communicator.all_reduce_in_place(&mut view, Sum);
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclAllReduce" })));
    // The memory waits for its stream, which does not hang any more.
    drop(memory);
    drop(communicator);
    assert_eq!(fake.log(), ["synchronize s1", "ncclMemFree m1"]);
}

#[test]
fn hole_14_a_watchdog_ends_what_nccls_own_thread_is_doing() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().blocking(false));
    let mut memory = fake.memory(communicator.stream(), 8);
    let handle = communicator.abort_handle();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let launch = format!("launch {LINE}");
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            fake.until(&launch);
            handle.abort().unwrap();
        });
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum)
    });
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclAllReduce" })), "{result:?}");
    assert_eq!(fake.log(), ["abort comm1"]);
}

#[test]
fn a_watchdog_waits_for_a_thread_inside_nccl_and_then_says_that_it_is_busy() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let handle = communicator.abort_handle();
    fake.set(Knob::CallMillis, -1);
    thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("inside NCCL");
            let error = handle.abort().unwrap_err();
            assert_eq!(
                error.to_string(),
                "ncclCommAbort: a thread is inside a blocking NCCL call with this communicator since 5s; NCCL can only \
                 abort it once that call returns. Non-blocking communicators (Config::blocking) can be aborted at any \
                 time"
            );
            assert_eq!(fake.log(), [""; 0]);
            fake.set(Knob::CallMillis, 0);
        });
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    });
    handle.abort().unwrap();
    assert_eq!(fake.log(), ["leaving NCCL", &format!("launch {LINE}"), "abort comm1"]);
}

/// NCCL's abort waits until the graphs are gone, and their owner must not wait for it meanwhile.
#[test]
fn a_watchdog_waits_until_the_owner_has_dropped_its_graphs() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph =
        Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    fake.log();
    let handle = communicator.abort_handle();
    let (says, hears) = mpsc::channel();
    fake.set(Knob::Hang, 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("synchronize s1");
            handle.abort().unwrap();
            says.send(fake.log()).unwrap();
        });
        graph.launch().unwrap();
        // Released by the beginning of the abort.
        communicator.stream().synchronize().unwrap();
        assert!(matches!(graph.launch(), Err(Error::Aborted { operation: "cuGraphLaunch" })));
        assert!(matches!(communicator.async_error(), Err(Error::Aborted { .. })));
        assert!(matches!(communicator.finalize(), Err(Error::Unusable { .. } | Error::Aborted { .. })));
        // A second watchdog has nothing to do.
        communicator.abort_handle().abort().unwrap();
        assert!(hears.recv_timeout(Duration::from_millis(20)).is_err(), "the first still waits");
        drop(graph);
        let log = hears.recv().unwrap();
        assert_eq!(log, ["abort comm1 waits for its graphs", "destroy graph1", "abort comm1"]);
    });
    drop(communicator);
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL would wait for the graph, and nobody else can drop it.
#[test]
fn an_abort_in_the_thread_of_a_graph_is_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph =
        Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    let error = communicator.abort_handle().abort().unwrap_err();
    assert!(matches!(error, Error::Unusable { operation: "ncclCommAbort", .. }), "{error}");
    graph.launch().unwrap();
    drop(graph);
    fake.log();
    communicator.abort_handle().abort().unwrap();
    assert_eq!(fake.log(), ["abort comm1"]);
}
