//! Guards that a program leaks (`mem::forget`, a cycle of `Rc`s), so that they are never dropped: NCCL uses
//! no freed memory, and the communicator still ends.

use std::mem;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, Graph, WindowKind};

use crate::fake::{Fake, Knob};

#[test]
fn a_forgotten_graph_keeps_its_buffers_and_ends_with_its_communicator() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().deadline(std::time::Duration::from_secs(10)));
    let mut memory = fake.memory(communicator.stream(), 8);
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, Sum)
    })
    .unwrap();
    graph.launch().unwrap();
    mem::forget(graph);
    drop(memory);
    fake.log();
    drop(communicator);
    assert_eq!(fake.log(), ["destroy graph1", "destroy comm1"], "the memory is not freed");
}

/// Later work of cudarc and others on a third stream is ordered after the launches.
#[test]
fn a_third_stream_is_ordered_after_each_launch_of_a_forgotten_graph() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context().clone();
    let (other, third) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut memory = fake.memory(&other, 8);
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, Sum)
    })
    .unwrap();
    fake.log();
    graph.launch().unwrap();
    mem::forget(graph);
    let log = fake.log();
    let [records, waits, graph1, launched, records_again, waits_again] = &log[..] else { panic!("{log:#?}") };
    assert!(records.ends_with("records s2") && waits.starts_with("s1 waits"), "{log:#?}");
    assert!(graph1 == "launch graph1 on s1" && launched.starts_with("launch all_reduce"), "{log:#?}");
    assert!(records_again.ends_with("records s1") && waits_again.starts_with("s2 waits"), "{log:#?}");
    // The host waits for the memory's stream, and so for the launch, before cudarc's copy, and for the copy.
    third.clone_dtoh(&memory.slice::<f32>(..2).unwrap()).unwrap();
    assert_eq!(fake.log(), ["synchronize s2", "synchronize s3"]);
}

#[test]
fn memory_whose_registration_was_forgotten_is_never_freed() {
    let fake = Fake::new();
    let (communicator, other) = (fake.communicator(&Config::new()), fake.communicator(&Config::new()));
    let memory = fake.memory(communicator.stream(), 64);
    drop(communicator.register(&memory).unwrap());
    mem::forget(communicator.register(&memory).unwrap());
    // Another registration of the same memory, with this communicator or another, makes no difference.
    drop(communicator.register(&memory).unwrap());
    drop(other.register(&memory).unwrap());
    fake.log();
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
    drop(communicator);
    assert_eq!(fake.log(), ["deregister reg2 comm1", "destroy comm1"]);
}

#[test]
fn memory_whose_window_was_forgotten_is_never_freed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = fake.memory(communicator.stream(), 64);
    mem::forget(communicator.window(&memory, WindowKind::Symmetric).unwrap());
    // A window that cannot be created makes no difference.
    fake.set(Knob::ManagementResult, 4);
    assert!(communicator.window(&memory, WindowKind::Symmetric).is_err());
    fake.log();
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
    drop(communicator);
    assert_eq!(fake.log(), ["deregister win1 comm1", "destroy comm1"]);
}

#[test]
fn registered_memory_of_a_leaked_communicator_is_never_freed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = fake.memory(communicator.stream(), 64);
    mem::forget(communicator.register(&memory).unwrap());
    mem::forget(communicator);
    fake.log();
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
}
