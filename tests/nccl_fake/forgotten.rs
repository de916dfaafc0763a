//! Guards that a program forgets (`mem::forget`, a cycle of `Rc`s), so that their borrows end and they are never dropped:
//! nothing is freed under NCCL's hands.

use std::mem;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, Graph, WindowKind};

use crate::fake::Fake;

#[test]
fn buffers_of_a_forgotten_graph_are_freed_after_its_last_launch() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let graph =
        Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    fake.log();
    graph.launch().unwrap();
    mem::forget(graph);
    drop(memory);
    let log = fake.log();
    let at =
        |line: &str| log.iter().position(|each| each == line).unwrap_or_else(|| panic!("{line}: {log:#?}"));
    let launched = at("launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0");
    let (records, waits, freed) = (at("e1 records s1"), at("s2 waits e1"), at("ncclMemFree m1"));
    assert!(launched < records && records < waits && waits < freed, "{log:#?}");
    // NCCL waits for the graph when the communicator ends.
    mem::forget(communicator);
}

#[test]
fn memory_whose_registration_was_forgotten_is_never_freed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    drop(communicator.register(&mut memory).unwrap());
    mem::forget(communicator.register(&mut memory).unwrap());
    fake.log();
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn memory_whose_window_was_forgotten_is_never_freed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    mem::forget(communicator.window(&mut memory, WindowKind::Symmetric).unwrap());
    fake.log();
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
}
