//! Registrations and windows that are made while a graph is recorded, after the operations that use them.

use collectives::nccl::Registration;

use super::*;

/// NCCL finds them when the graph is captured.
#[test]
fn a_graph_keeps_windows_and_registrations_that_are_newer_than_its_operations() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (first, mut second) = (fake.memory(communicator.stream(), 8), fake.memory(communicator.stream(), 8));
    let unused = fake.memory(communicator.stream(), 8);
    let mut made = None;
    let graph: Result<_, Error> = Graph::capture(|capture| {
        let send = first.slice::<f32>(..2)?;
        capture.on(&communicator).all_reduce(&send, &mut second.slice_mut::<f32>(..2)?, Sum)?;
        let window = communicator.window(&first, WindowKind::Symmetric)?;
        made = Some((window, communicator.register(&second)?, communicator.register(&unused)?));
        Ok(())
    });
    let graph = graph.unwrap();
    fake.log();
    drop::<Option<(_, Registration, Registration)>>(made);
    // Asserts that the graph uses nothing that has ended.
    assert_eq!(fake.log(), ["deregister reg2 comm1"]);
    graph.launch().unwrap();
    fake.log();
    drop(graph);
    let log = fake.log();
    assert_eq!(log[0], "destroy graph1");
    for ended in ["deregister win1 comm1", "deregister reg1 comm1"] {
        assert!(log.contains(&ended.to_owned()), "{log:#?}");
    }
}

#[test]
fn misaligned_offsets_in_newer_windows_are_refused() {
    let fake = Fake::new();
    for (offset, is_refused) in [(2, true), (4, false)] {
        let communicator = fake.rank(fake.library_2_28(), 1, 2, &Config::new());
        let memory = || Memory::alloc(communicator.library(), communicator.stream(), 64).unwrap();
        let (send, mut receive) = (memory(), memory());
        let mut windows = Vec::new();
        let graph: Result<_, Error> = Graph::capture(|capture| {
            let part = send.slice::<u8>(offset..offset + 3)?;
            capture.on(&communicator).all_gather(&part, &mut receive.slice_mut::<u8>(1..7)?)?;
            for memory in [&send, &receive] {
                windows.push(communicator.window(memory, WindowKind::Symmetric)?);
            }
            Ok(())
        });
        match graph {
            Err(Error::Misaligned { operation: "ncclAllGather", .. }) => assert!(is_refused),
            other => assert!(!is_refused, "{other:?}"),
        }
        communicator.all_reduce_in_place(&mut receive.slice_mut::<f32>(..1).unwrap(), Sum).unwrap();
    }
}

/// The windows are newer than the prepared operations, and gone before the second call.
#[test]
fn prepared_operations_need_no_newer_windows() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut window = None;
    let prepared: Result<_, Error> = communicator.prepare(|prepare| {
        prepare.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, Sum)?;
        window = Some(communicator.window(&memory, WindowKind::Symmetric)?);
        Ok(())
    });
    let prepared = prepared.unwrap();
    let registered = communicator.register(&memory).unwrap();
    for made in [Some((window, registered)), None] {
        communicator.queue(&prepared).unwrap();
        drop(made);
    }
    let log = fake.log();
    assert_eq!(log.iter().filter(|line| line.starts_with("launch")).count(), 2, "{log:#?}");
}
