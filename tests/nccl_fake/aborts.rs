//! Watchdogs: aborts from another thread while the owner waits, is inside NCCL, or holds graphs.

use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, Error, Graph, Split};

use crate::IN_PROGRESS;
use crate::fake::{Fake, Knob, worker};

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
    // The memory waits for its stream, which no longer hangs.
    drop(memory);
    drop(communicator);
    assert_eq!(fake.log(), ["synchronize s1", "ncclMemFree m1"]);
}

#[test]
fn hole_14_a_watchdog_aborts_work_of_nccls_own_thread() {
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
fn a_watchdog_waits_for_a_thread_inside_nccl_and_then_returns_busy() {
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
                "ncclCommAbort: a thread has been inside a blocking NCCL call with this communicator for \
                 5s; NCCL can only abort it once that call returns. Non-blocking communicators \
                 (Config::blocking) can be aborted at any time"
            );
            assert_eq!(fake.log(), [""; 0]);
            fake.set(Knob::CallMillis, 0);
        });
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    });
    handle.abort().unwrap();
    assert_eq!(fake.log(), ["leaving NCCL", &format!("launch {LINE}"), "abort comm1"]);
}

/// NCCL uses the memory until the abort is done.
#[test]
fn registered_memory_is_freed_after_the_abort_of_another_thread() {
    for dropped_first in [false, true] {
        let fake = Fake::new();
        let communicator = fake.communicator(&Config::new().blocking(false));
        let memory = fake.memory(communicator.stream(), 8);
        let registration = communicator.register(&memory).unwrap();
        fake.set(Knob::Worker, worker::HELD_IN_ABORTS);
        let pending = communicator.split_pending(&Split::color(0)).unwrap();
        let handle = communicator.abort_handle();
        fake.log();
        thread::scope(|scope| {
            let drops = move || drop((registration, memory));
            let abort = || {
                scope.spawn(|| handle.abort().unwrap());
                fake.until("comm1 waits for its worker");
            };
            if dropped_first {
                scope.spawn(drops);
                fake.until_polled();
                abort();
            } else {
                abort();
                scope.spawn(drops);
            }
            // Time to free the memory if the abort is not waited for.
            thread::sleep(Duration::from_millis(30));
            fake.set(Knob::Worker, worker::RUNS);
        });
        assert_eq!(fake.log(), ["abort comm1", "synchronize s1", "ncclMemFree m1"]);
        drop(pending);
    }
}

/// NCCL's abort waits until the graphs are destroyed, so they end before it, whoever owns them.
#[test]
fn a_watchdog_ends_the_graphs_of_the_owner() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph =
        Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    fake.log();
    let handle = communicator.abort_handle();
    fake.set(Knob::Hang, 1);
    thread::scope(|scope| {
        let watchdog = scope.spawn(|| {
            fake.until("synchronize s1");
            handle.abort().unwrap();
        });
        graph.launch().unwrap();
        // Released by the abort.
        communicator.stream().synchronize().unwrap();
        watchdog.join().unwrap();
    });
    assert!(matches!(graph.launch(), Err(Error::Aborted { operation: "cuGraphLaunch" })));
    assert!(matches!(communicator.async_error(), Err(Error::Aborted { .. })));
    assert!(matches!(communicator.finalize(), Err(Error::Aborted { .. })));
    // A second watchdog has no effect.
    communicator.abort_handle().abort().unwrap();
    let log = fake.log();
    assert_eq!(log, ["destroy graph1", "abort comm1"]);
    drop(graph);
    drop(communicator);
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_abort_in_the_thread_of_a_graph_ends_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph =
        Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    fake.log();
    communicator.abort_handle().abort().unwrap();
    assert_eq!(fake.log(), ["destroy graph1", "abort comm1"]);
    assert!(matches!(graph.launch(), Err(Error::Aborted { operation: "cuGraphLaunch" })));
}
