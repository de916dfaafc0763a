//! Non-blocking communicators with delayed work of NCCL's own thread: nothing is ordered after it, freed or
//! read too early.

use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, Error, Split, WindowKind, group};

use crate::fake::{Fake, Knob, worker};

const LINE: &str = "all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";

fn non_blocking() -> Config {
    Config::new().blocking(false)
}

/// The worker starts once the layer has queried the state twice.
fn hold(fake: &Fake) {
    fake.set(Knob::Worker, worker::HELD);
    fake.set(Knob::WorkerPolls, 2);
}

#[test]
fn events_are_ordered_after_a_late_launch() {
    let fake = Fake::new();
    let communicator = fake.communicator(&non_blocking());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let (queue, launch) = (format!("queue {LINE}"), format!("launch {LINE}"));
    let order = ["e1 records s2", "s1 waits e1", &queue, &launch, "e1 records s1", "s2 waits e1"];
    hold(&fake);
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    assert_eq!(fake.log(), order);
    hold(&fake);
    group(|group| group.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    assert_eq!(fake.log(), order);
    drop(memory);
}

#[test]
fn a_deadline_drops_what_was_to_be_launched() {
    let fake = Fake::new();
    // The deadline does not apply to the creation.
    fake.set(Knob::Worker, worker::OFF);
    let communicator = fake.communicator(&non_blocking().deadline(Duration::from_millis(20)));
    let mut memory = fake.memory(communicator.stream(), 8);
    fake.set(Knob::Worker, worker::HELD);
    let error =
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: "ncclAllReduce", .. }), "{error}");
    drop(memory);
    let log = fake.log();
    let (queue, dropped) = (format!("queue {LINE}"), format!("drop {LINE}"));
    let end = ["comm1 waits for its worker", &dropped, "abort comm1", "synchronize s1", "ncclMemFree m1"];
    assert_eq!(log, [&[queue.as_str()], &end[..]].concat());
}

/// The watchdog is inside NCCL's abort, which waits for NCCL's thread, which still launches.
#[test]
fn a_call_returns_after_the_abort_of_another_thread() {
    let fake = Fake::new();
    let communicator = fake.communicator(&non_blocking());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 8);
    let handle = communicator.abort_handle();
    fake.set(Knob::Worker, worker::HELD_IN_ABORTS);
    thread::scope(|scope| {
        scope.spawn(|| {
            fake.until(&format!("queue {LINE}"));
            scope.spawn(|| handle.abort().unwrap());
            fake.until("comm1 waits for its worker");
            // Time for the call to return, if it does.
            thread::sleep(Duration::from_millis(50));
            fake.set(Knob::Worker, worker::RUNS);
        });
        let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum);
        assert!(matches!(result, Err(Error::Aborted { operation: "ncclAllReduce" })));
        drop(memory);
    });
    let log = fake.log();
    assert_eq!(log[..2], [format!("launch {LINE}"), "abort comm1".to_owned()]);
    assert_eq!(log.last().unwrap(), "ncclMemFree m1");
}

#[test]
fn late_handles_are_waited_for() {
    let fake = Fake::new();
    let communicator = fake.communicator(&non_blocking());
    let memory = fake.memory(communicator.stream(), 64);
    hold(&fake);
    assert!(communicator.window(&memory, WindowKind::Symmetric).unwrap().is_active());
    hold(&fake);
    let part = communicator.split(&Split::color(0)).unwrap();
    assert_eq!((part.rank(), part.size()), (1, 2));
    hold(&fake);
    communicator.finalize().unwrap();
}
