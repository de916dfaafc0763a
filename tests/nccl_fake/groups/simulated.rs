//! Simulated groups.

use super::*;

#[test]
fn a_simulated_group_is_estimated_and_not_launched() {
    let fake = Fake::new();
    let ([first, second], mut memory) = pair(&fake);
    let other = first.stream().context().new_stream().unwrap();
    let mut foreign = fake.memory(&other, 8);
    let [mut mine, _] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());
    let mut theirs = foreign.slice_mut::<f32>(..2).unwrap();
    fake.set(Knob::SimulatedMicros, 42);
    let estimate = simulate(|group| {
        group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
        group.nested(|group| group.on(&second).all_reduce_in_place(&mut theirs, ReduceOp::Sum))
    });
    assert_eq!(estimate.unwrap(), Some(Duration::from_micros(42)));
    let log = fake.log();
    assert_eq!(log.iter().filter(|line| line.starts_with("launch")).count(), 0, "{log:#?}");
    assert_eq!(log[2], "simulate 2 operations");
    // Operations that NCCL has no function for.
    fake.set(Knob::SimulatedMicros, -1);
    let mut mine = memory[0].slice_mut::<f32>(..2).unwrap();
    let estimate = simulate(|group| group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum));
    assert_eq!(estimate.unwrap(), None);
    assert_eq!(fake.log(), ["simulate 1 operations"]);
    assert_eq!(simulate(|_| Ok::<_, Error>(())).unwrap(), None);
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL would launch the operations.
#[test]
fn a_simulation_on_a_non_blocking_communicator_is_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().blocking(false));
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    fake.log();
    let result = simulate(|group| group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum));
    let wanted =
        "ncclAllReduce: not possible in a simulation on a non-blocking communicator: NCCL would launch it";
    assert_eq!(result.unwrap_err().to_string(), wanted);
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL copies a single rank's data immediately in any group.
#[test]
fn a_simulated_group_leaves_out_single_ranks() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let alone = Communicator::builder(fake.library(), &stream).init().unwrap();
    let ([first, _], [mut memory, _]) = pair(&fake);
    let mut own = fake.memory(&stream, 8);
    let [mut mine, mut theirs] = [&mut own, &mut memory].map(|memory| memory.slice_mut::<f32>(..2).unwrap());
    fake.set(Knob::SimulatedMicros, -1);
    fake.log();
    let result = simulate(|group| group.on(&alone).all_reduce_in_place(&mut mine, ReduceOp::Sum));
    assert_eq!(result.unwrap(), None);
    assert_eq!(fake.log(), ["simulate 0 operations"]);
    let result = simulate(|group| {
        group.on(&alone).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
        group.on(&first).all_reduce_in_place(&mut theirs, ReduceOp::Sum)
    });
    assert_eq!(result.unwrap(), None);
    assert_eq!(fake.log(), ["simulate 1 operations"]);
}

#[test]
fn a_simulated_group_that_fails_estimates_nothing() {
    let fake = Fake::new();
    let ([first, second], mut memory) = pair(&fake);
    let [mut mine, mut theirs] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());
    let result = simulate(|group| {
        group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
        drop(second);
        Err(Error::Rank { rank: 7, size: 2 })
    });
    assert!(matches!(result, Err(Error::Rank { rank: 7, .. })));
    assert_eq!(fake.log(), ["destroy comm2"]);

    let result = simulate(|group| {
        group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
        let _ignored: Result<(), _> = group.nested(|_| Err(Error::Rank { rank: 8, size: 2 }));
        Ok::<_, Error>(())
    });
    not_allowed(result, CANCELLED);
    fake.set(Knob::NcclResult, 5);
    let result = simulate(|group| group.on(&first).all_reduce_in_place(&mut theirs, ReduceOp::Sum));
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(5), .. })));
    assert_eq!(fake.log(), ["group of 0 cancelled"]);

    // NCCL would treat the ranks as connected.
    let view = theirs.as_view();
    let result = simulate(|group| group.on(&first).send(&view, 0));
    assert_eq!(
        result.unwrap_err().to_string(),
        "ncclSend: not possible in a simulation: NCCL would treat unconnected ranks as connected"
    );
    let result = simulate(|group| group.on(&first).scatter_in_place(&mut mine, 0));
    let text = "ncclScatter: not possible in a simulation: NCCL would treat unconnected ranks as connected";
    not_allowed(result, text);
    assert_eq!(fake.log(), [""; 0]);

    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let result = simulate(|group| group.on(&old).all_reduce_in_place(&mut theirs, ReduceOp::Sum));
    assert!(matches!(result, Err(Error::MissingSymbol(_))), "{result:?}");
    group(|_| {
        assert!(matches!(simulate(|_| Ok::<_, Error>(())), Err(Error::InsideGroup { .. })));
        Ok::<_, Error>(())
    })
    .unwrap();
    first.all_reduce_in_place(&mut mine, ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), [line(1, 1)]);
}
