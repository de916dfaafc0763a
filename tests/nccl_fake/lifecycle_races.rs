//! Ends of communicators concurrent with other threads' calls, pending parts and graphs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, Grow, Signal, Split, WindowKind};

use crate::fake::{Fake, Knob, worker};

/// A communicator, and another on a stream of its own.
fn pair(fake: &Fake) -> (Communicator, Communicator) {
    let first = fake.communicator(&Config::new());
    let stream = first.stream().context().new_stream().unwrap();
    let second = first.split(&Split::color(0).stream(&stream)).unwrap();
    (first, second)
}

/// A launch that waits for another communicator must not come between the end of the work and that of a
/// registration.
#[test]
fn a_launch_and_the_close_of_its_communicator_exclude_each_other() {
    let fake = Fake::new();
    let (first, second) = pair(&fake);
    let [mut memory, mut other, mut third] =
        [&first, &second, &second].map(|each| fake.memory(each.stream(), 8));
    let registration = first.register(&memory).unwrap();
    let graph = Graph::capture(|capture| {
        capture.on(&first).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)?;
        capture.on(&second).all_reduce_in_place(&mut other.slice_mut::<f32>(..)?, Sum)
    })
    .unwrap();
    fake.log();
    fake.set(Knob::CallMillis, -1);
    thread::scope(|scope| {
        let (fake, graph) = (&fake, &graph);
        scope.spawn(move || {
            second.all_reduce_in_place(&mut third.slice_mut::<f32>(..).unwrap(), Sum).unwrap()
        });
        fake.until("inside NCCL");
        // Either order is valid: a launch before the close is waited for, one after it is refused.
        scope.spawn(move || graph.launch());
        scope.spawn(move || first.close().unwrap());
        // Time for both to reach the guard of the second: nothing shows that a thread waits for one.
        thread::sleep(Duration::from_millis(50));
        fake.set(Knob::CallMillis, 0);
    });
    assert!(matches!(graph.launch(), Err(Error::Aborted { .. })));
    drop(registration);
}

/// A launch that is waited for with the communicators locked could not be ended.
#[test]
fn a_launch_that_cannot_be_ordered_can_be_aborted() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 8);
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)
    })
    .unwrap();
    fake.log();
    fake.set(Knob::Hang, 1);
    fake.set(Knob::EventsFail, 0b10);
    let handle = communicator.abort_handle();
    thread::scope(|scope| {
        let watchdog = scope.spawn(|| {
            fake.until("synchronize s1");
            handle.abort()
        });
        assert!(matches!(graph.launch(), Err(Error::Cuda { operation: "cuStreamWaitEvent", .. })));
        watchdog.join().unwrap().unwrap();
    });
}

#[test]
fn a_graph_that_waits_for_signals_keeps_the_windows() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = fake.memory(communicator.stream(), 16);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    let graph =
        Graph::capture(|capture| capture.on(&communicator).wait_signals(&[(Signal::new(0), 1)])).unwrap();
    drop((window, memory));
    fake.log();
    graph.launch().unwrap();
    drop(graph);
    let log = fake.log();
    assert!(log.contains(&"deregister win1 comm1".to_owned()) && log.contains(&"ncclMemFree m1".to_owned()));
}

/// The buffers' streams are their own, whatever the communicator's stream is by then.
#[test]
fn a_graph_is_ordered_with_the_streams_of_its_buffers() {
    let fake = Fake::new();
    let mut communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (mut first, mut second) = (fake.memory(communicator.stream(), 8), fake.memory(&other, 8));
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut first.slice_mut::<f32>(..)?, Sum)?;
        communicator.set_stream(&other)?;
        capture.on(&communicator).all_reduce_in_place(&mut second.slice_mut::<f32>(..)?, Sum)
    })
    .unwrap();
    other.memcpy_htod(&[1.0f32; 2], &mut second.slice_mut(..).unwrap()).unwrap();
    graph.launch().unwrap();
    other.clone_dtoh(&second.slice::<f32>(..).unwrap()).unwrap();
    drop((first, second, graph));
}

/// NCCL may write the handle until another thread's abort is done.
#[test]
fn a_pending_part_that_is_dropped_waits_for_an_abort() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().blocking(false));
    fake.set(Knob::Worker, worker::HELD_IN_ABORTS);
    let pending = communicator.split_pending(&Split::color(0)).unwrap();
    let handle = communicator.abort_handle();
    thread::scope(|scope| {
        scope.spawn(|| handle.abort().unwrap());
        fake.until("comm1 waits for its worker");
        let dropped = scope.spawn(|| drop(pending));
        // Time for it to return, if it does not wait.
        thread::sleep(Duration::from_millis(30));
        assert!(!dropped.is_finished());
        fake.set(Knob::Worker, worker::RUNS);
    });
}

#[test]
fn a_communicator_that_a_part_is_made_from_takes_no_operations() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().blocking(false));
    let mut memory = fake.memory(communicator.stream(), 8);
    fake.set(Knob::Worker, worker::HELD);
    let pending = communicator.split_pending(&Split::color(0)).unwrap();
    let reason = "the communicator cannot be used: a communicator is being made from it: wait for the new \
                  communicator first";
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    let error = communicator.all_reduce_in_place(&mut view, Sum).unwrap_err();
    assert_eq!(error.to_string(), format!("ncclAllReduce: {reason}"));
    let error = communicator.split_pending(&Split::color(0)).map(drop).unwrap_err();
    assert_eq!(error.to_string(), format!("ncclCommSplit: {reason}"));
    fake.set(Knob::Worker, worker::RUNS);
    let part = pending.wait(Duration::from_secs(20)).unwrap();
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    part.all_reduce_in_place(&mut view, Sum).unwrap();
}

#[test]
fn a_part_that_is_made_outlives_its_parent() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    let pending = parent.split_pending(&Split::color(0)).unwrap();
    drop(parent);
    let part = pending.wait(Duration::from_secs(20)).unwrap();
    assert_eq!((part.rank(), part.size()), (1, 2));
}

/// A closed parent has finished the part; the state after an abort is unknown.
#[test]
fn a_part_outlives_its_parents_close_and_not_its_abort() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    let mut pending = parent.split_pending(&Split::color(0)).unwrap();
    drop(parent);
    assert!(pending.poll().unwrap());
    assert_eq!(pending.wait(Duration::ZERO).unwrap().size(), 2);

    let parent = fake.communicator(&Config::new());
    let mut pending = parent.split_pending(&Split::color(0)).unwrap();
    parent.abort_handle().abort().unwrap();
    assert!(matches!(pending.poll(), Err(Error::Aborted { operation: "ncclCommSplit" })));
    let result = pending.wait(Duration::from_secs(20));
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclCommSplit" })), "{result:?}");
    fake.log();
    drop(parent);
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL has finished with the parent, but not with the new communicator.
#[test]
fn what_grows_is_not_there_before_it_is_done_itself() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new().blocking(false));
    fake.set(Knob::Worker, worker::HELD);
    let mut pending = parent.grow_pending(&Grow::to(3)).unwrap();
    assert!(!pending.poll().unwrap());
    assert!(!pending.poll().unwrap(), "the parent has nothing to do with it any more");
    fake.set(Knob::Worker, worker::RUNS);
    assert_eq!(pending.wait(Duration::from_secs(20)).unwrap().size(), 3);
}

/// The result of a blocking communicator shows whether it is finished with the part.
#[test]
fn a_blocking_communicator_takes_operations_unless_nccl_goes_on_with_its_part() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    let done = communicator.split_pending(&Split::color(0)).unwrap();
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    fake.set(Knob::ManagementResult, crate::IN_PROGRESS);
    let under_way = communicator.split_pending(&Split::color(0)).unwrap();
    let result = communicator.all_reduce_in_place(&mut view, Sum);
    assert!(matches!(result, Err(Error::Unusable { operation: "ncclAllReduce", .. })), "{result:?}");
    under_way.wait(Duration::from_secs(20)).unwrap();
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    drop(done);
}

/// A launch after that would have no effect.
#[test]
fn a_graph_whose_communicator_could_not_be_finalized_is_not_launched() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)
    })
    .unwrap();
    communicator.suspend().unwrap();
    assert!(matches!(communicator.finalize(), Err(Error::Unusable { .. })));
    communicator.resume().unwrap();
    graph.launch().unwrap();
    fake.set(Knob::ManagementResult, 3);
    assert!(matches!(communicator.finalize(), Err(Error::Nccl { .. })));
    let error = graph.launch().unwrap_err().to_string();
    assert!(error.ends_with("it has been finalized: make a new one"), "{error}");
    assert!(!window.is_active());
    assert_eq!(window.address().unwrap(), 0);
}

#[test]
fn a_panic_aborts_before_it_waits_for_what_hangs() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let communicator = communicator;
        let _dropped_first = communicator.register(&memory).unwrap();
        fake.set(Knob::Hang, 1);
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), Sum).unwrap();
        panic!("in the middle of the program");
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log().last().unwrap(), "abort comm1");
}
