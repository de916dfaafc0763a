//! Scaled sums: program-defined operators, which NCCL keeps per communicator.

use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, Memory, Needed, group};
use collectives::{Element, ReduceOp};
use float8::{F8E4M3, F8E5M2};
use half::f16;

use crate::fake::{Fake, Knob};
use crate::subscriber::EventSubscriber;

#[test]
fn a_scalar_of_the_host_is_copied_and_the_operator_destroyed_when_dropped() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let half = communicator.scaled_sum(0.5f32).unwrap();
    let byte = communicator.scaled_sum(-3i8).unwrap();
    let wide = communicator.scaled_sum(half::bf16::from_f32(2.0)).unwrap();
    let mut view = memory.slice_mut::<f32>(..4).unwrap();
    communicator.all_reduce_in_place(&mut view, &half).unwrap();
    communicator.reduce_in_place(&mut view, &half, 0).unwrap();
    communicator.reduce_scatter_in_place(&mut view, &half).unwrap();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<i8>(..2).unwrap(), &byte).unwrap();
    assert_eq!(format!("{byte:?}"), "ScaledSum { op: 6, .. }");
    drop((half, byte, wide));
    assert_eq!(
        fake.log(),
        [
            "scaled_sum comm1 type 7 scalar 0000003f as op5",
            "scaled_sum comm1 type 0 scalar fd as op6",
            "scaled_sum comm1 type 9 scalar 0040 as op7",
            "launch all_reduce comm1 m1->m1 count 4 type 7 op 5 s1 device 0",
            "launch reduce comm1 m1->m1 count 4 type 7 op 5 root 0 s1 device 0",
            "launch reduce_scatter comm1 m1->m1+8 count 2 type 7 op 5 s1 device 0",
            "launch all_reduce comm1 m1->m1 count 2 type 0 op 6 s1 device 0",
            "destroy op5 comm1",
            "destroy op6 comm1",
            "destroy op7 comm1",
        ]
    );
    communicator.close().unwrap();
}

#[test]
fn a_scalar_of_the_device_is_one_element_and_is_read_where_it_lies() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (mut memory, scalars) =
        (fake.memory(communicator.stream(), 16), fake.memory(communicator.stream(), 16));
    for len in [0, 2] {
        let result = communicator.scaled_sum_on_device(&scalars.slice::<f64>(..len).unwrap()).map(drop);
        let exactly_one = |error: &Error| {
            matches!(error, Error::Length { buffer: "scalar", needed: Needed::Exactly(1), found, .. }
                if *found == len)
        };
        assert!(result.as_ref().is_err_and(exactly_one), "{result:?}");
    }
    let elsewhere = fake.memory(&fake.stream(1), 8);
    let result = communicator.scaled_sum_on_device(&elsewhere.slice::<f64>(..1).unwrap()).map(drop);
    assert!(matches!(result, Err(Error::WrongDevice { buffer: "scalar", expected: 0, found: 1, .. })));
    assert_eq!(fake.log(), [""; 0]);

    let scalar = scalars.slice::<f64>(1..2).unwrap();
    let op = communicator.scaled_sum_on_device(&scalar).unwrap();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f64>(..2).unwrap(), &op).unwrap();
    drop(op);
    assert_eq!(
        fake.log(),
        [
            "scaled_sum comm1 type 8 scalar m2+8 as op5",
            "launch all_reduce comm1 m1->m1 count 2 type 8 op 5 s1 device 0",
            "destroy op5 comm1",
        ]
    );
}

/// The scalar may be written before and after every use, on its own stream.
#[test]
fn a_scalar_of_another_stream_is_ordered_before_and_after_every_use() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (mut memory, scalars) = (fake.memory(communicator.stream(), 16), fake.memory(&other, 4));
    let scalar = scalars.slice::<f32>(..1).unwrap();
    let (before, after) = (["e1 records s2", "s1 waits e1"], ["e1 records s1", "s2 waits e1"]);
    let op = communicator.scaled_sum_on_device(&scalar).unwrap();
    assert_eq!(fake.log(), ["scaled_sum comm1 type 7 scalar m2 as op5"]);

    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let launch = ["launch all_reduce comm1 m1->m1 count 2 type 7 op 5 s1 device 0"];
    communicator.all_reduce_in_place(&mut view, &op).unwrap();
    assert_eq!(fake.log(), [&before[..], &launch, &after].concat());
    group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut view, &op)?;
        assert_eq!(fake.log(), before);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), [&launch[..], &after].concat());
    // In a graph, before and after each launch.
    let graph =
        Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, &op)).unwrap();
    let log = fake.log();
    assert!(!log.iter().any(|line| line.contains("waits")), "{log:#?}");
    graph.launch().unwrap();
    let log: Vec<_> = fake.log().iter().map(|line| line.replace("e2", "e1")).collect();
    assert_eq!(log[..3], ["e1 records s2", "s1 waits e1", "launch graph1 on s1"]);
    assert_eq!(log[4..], after);
    // The operator ends before its scalar, which the graph keeps.
    drop(op);
    drop(scalars);
    assert_eq!(fake.log(), ["destroy op5 comm1"]);
    drop(graph);
    assert_eq!(fake.log(), ["destroy graph1", "synchronize s2", "ncclMemFree m2"]);
}

#[test]
fn an_operator_is_of_one_communicator() {
    let fake = Fake::new();
    let (first, second) = (fake.communicator(&Config::new()), fake.communicator(&Config::new()));
    let mut memory = fake.memory(second.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let op = first.scaled_sum(1.0f32).unwrap();
    fake.log();
    let refused = |result: Result<(), Error>, operation: &str| {
        let wanted = format!("{operation}: the scaled sum was made with another communicator");
        assert_eq!(result.unwrap_err().to_string(), wanted);
    };
    refused(second.all_reduce_in_place(&mut view, &op), "ncclAllReduce");
    refused(second.reduce_in_place(&mut view, &op, 1), "ncclReduce");
    refused(second.reduce_scatter_in_place(&mut view, &op), "ncclReduceScatter");
    refused(group(|group| group.on(&second).all_reduce_in_place(&mut view, &op)), "ncclAllReduce");
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_operator_dropped_in_a_group_is_destroyed_immediately() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let scalars = fake.memory(communicator.stream(), 4);
    let scalar = scalars.slice::<f32>(..1).unwrap();
    let (used, dropped) =
        (communicator.scaled_sum(1.0f32).unwrap(), communicator.scaled_sum(2.0f32).unwrap());
    fake.log();
    group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut view, &used)?;
        drop(dropped);
        let refused = communicator.scaled_sum(3.0f32).map(drop);
        assert!(matches!(refused, Err(Error::InsideGroup { operation: "ncclRedOpCreatePreMulSum" })));
        let refused = communicator.scaled_sum_on_device(&scalar).map(drop);
        assert!(matches!(refused, Err(Error::InsideGroup { .. })));
        assert_eq!(fake.log(), ["destroy op6 comm1"]);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 5 s1 device 0"]);
}

#[test]
fn after_an_abort_no_operator_is_made_used_or_destroyed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let op = communicator.scaled_sum(1.0f32).unwrap();
    communicator.abort_handle().abort().unwrap();
    fake.log();
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), &op);
    assert!(matches!(result, Err(Error::Aborted { .. })));
    assert!(matches!(communicator.scaled_sum(1.0f32), Err(Error::Aborted { .. })));
    drop(op);
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn monarch_7_no_operator_is_made_for_a_type_that_nccl_does_not_have() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let error = old.scaled_sum(F8E4M3::from_bits(0x38)).unwrap_err();
    assert!(matches!(error, Error::TooOld { what: "f8e4m3", .. }), "{error}");
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_operator_that_nccl_refuses_is_an_error() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    fake.set(Knob::ManagementResult, 3);
    let error = communicator.scaled_sum(1.0f32).unwrap_err().to_string();
    assert!(error.starts_with("ncclRedOpCreatePreMulSum failed with ncclInternalError (3)"), "{error}");
    let scalars = fake.memory(communicator.stream(), 4);
    fake.set(Knob::ManagementResult, 3);
    assert!(communicator.scaled_sum_on_device(&scalars.slice::<f32>(..1).unwrap()).is_err());
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL copies an operator into an operation when it is called, which is after the closure.
#[test]
fn an_operator_that_is_dropped_in_a_capture_lasts_until_nccl_has_copied_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let scalars = fake.memory(communicator.stream(), 8);
    fake.log();
    let graph = Graph::capture(|capture| {
        let sum = communicator.scaled_sum(2.0f32)?;
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, &sum)?;
        let scalar = scalars.slice::<f32>(..1)?;
        let sum = communicator.scaled_sum_on_device(&scalar)?;
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(2..4)?, &sum)
    })
    .unwrap();
    let log = fake.log();
    let at = |start: &str| {
        log.iter().position(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {log:#?}"))
    };
    assert!(at("capture all_reduce") < at("destroy op"), "{log:#?}");
    assert_eq!(log.iter().filter(|line| line.starts_with("destroy op")).count(), 2);
    // The scalar in device memory is read whenever the graph runs.
    drop(scalars);
    graph.launch().unwrap();
    let slice = communicator.stream().alloc_zeros::<f32>(1).unwrap();
    let refused = communicator.scaled_sum_on_device(&slice).map(drop);
    assert!(matches!(refused, Err(Error::NotOwned { operation: "ncclRedOpCreatePreMulSum" })));
}

/// NCCL would scale it with a kernel that does not support all types and skips elements of some lengths.
#[test]
fn the_average_of_a_single_rank_is_a_copy() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let mut memory = fake.memory(&stream, 16);
    for (size, op) in [(1, 0), (2, 4)] {
        let communicator =
            Communicator::builder(fake.library(), &stream).rank(0, size).id(&fake.id()).init().unwrap();
        fake.log();
        let mut view = memory.slice_mut::<F8E4M3>(..4).unwrap();
        communicator.all_reduce_in_place(&mut view, ReduceOp::Avg).unwrap();
        communicator.reduce_in_place(&mut view, ReduceOp::Avg, 0).unwrap();
        group(|group| group.on(&communicator).reduce_scatter_in_place(&mut view, ReduceOp::Avg)).unwrap();
        let log = fake.log();
        let averages = log.iter().filter(|line| line.contains(&format!("type 10 op {op} "))).count();
        assert_eq!(averages, 3, "{log:#?}");
    }
}

#[test]
fn what_does_not_scale_is_the_same_for_a_single_rank() {
    let fake = Fake::new();
    let alone = Communicator::builder(fake.library(), &fake.stream(0)).init().unwrap();
    let mut memory = fake.memory(alone.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    fake.log();
    alone.all_reduce_in_place(&mut view, ReduceOp::Max).unwrap();
    alone.broadcast_in_place(&mut view, 0).unwrap();
    let lines =
        ["all_reduce comm1 m1->m1 count 2 type 7 op 2", "broadcast comm1 m1->m1 count 2 type 7 op -1 root 0"];
    assert_eq!(fake.log(), lines.map(|line| format!("launch {line} s1 device 0")));
}

/// The fake detects elements that NCCL's kernel for a single rank skips.
#[test]
fn a_single_rank_scales_every_element_or_none() {
    const BYTES: usize = 600_000;
    fn scale<T: Element>(fake: &Fake, communicator: &Communicator, memory: &mut Memory, scalar: T) {
        let sum = communicator.scaled_sum(scalar).unwrap();
        let (mut calls, mut split) = (0, 0);
        for count in (0..2_000).chain((2_000..BYTES / size_of::<T>()).step_by(37)) {
            let mut view = memory.slice_mut::<T>(..count).unwrap();
            fake.log();
            communicator.all_reduce_in_place(&mut view, &sum).unwrap();
            let log = fake.log();
            let counts = log.iter().map(|line| {
                let words: Vec<_> = line.split(' ').collect();
                assert_eq!(words[..3], ["launch", "all_reduce", "comm1"], "{log:#?}");
                words[5].parse::<usize>().unwrap()
            });
            assert_eq!(counts.sum::<usize>(), count, "{log:#?}");
            assert!(log.len() <= 2, "{log:#?}");
            calls += 1;
            split += log.len() - 1;
        }
        assert!(0 < split && split < calls / 4, "{split} of {calls} were split");
    }
    let fake = Fake::new();
    let stream = fake.stream(0);
    let alone = Communicator::builder(fake.library_2_28(), &stream).init().unwrap();
    let mut memory = fake.memory(&stream, BYTES);
    scale(&fake, &alone, &mut memory, 2i8);
    scale(&fake, &alone, &mut memory, f16::ONE);
    scale(&fake, &alone, &mut memory, 2.0f32);
    scale(&fake, &alone, &mut memory, 2.0f64);

    // 4096 elements are four packs for each of two blocks; one is left over.
    let sum = alone.scaled_sum(2.0f32).unwrap();
    let [send, mut receive] = [&stream; 2].map(|stream| fake.memory(stream, 20_000));
    let (send, mut receive) =
        (send.slice::<f32>(..4_097).unwrap(), receive.slice_mut::<f32>(..4_097).unwrap());
    fake.log();
    group(|group| group.on(&alone).reduce(&send, Some(&mut receive), &sum, 0)).unwrap();
    assert_eq!(
        fake.log(),
        [
            "launch all_reduce comm1 m2->m3 count 4096 type 7 op 9 s1 device 0",
            "launch all_reduce comm1 m2+16384->m3+16384 count 1 type 7 op 9 s1 device 0",
        ]
    );
}

#[test]
fn a_newer_library_scales_every_element_of_a_single_rank_itself() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let alone = Communicator::builder(fake.library(), &stream).init().unwrap();
    let sum = alone.scaled_sum(2.0f32).unwrap();
    let mut memory = fake.memory(&stream, 4 * 4_097);
    fake.log();
    alone.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), &sum).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 4097 type 7 op 5 s1 device 0"]);
}

#[test]
fn scaled_sums_that_nccl_has_not_for_a_single_rank_are_refused() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let alone = Communicator::builder(fake.library(), &stream).init().unwrap();
    fake.log();
    assert_eq!(
        alone.scaled_sum(F8E4M3::from_f32(1.0)).unwrap_err().to_string(),
        "ncclRedOpCreatePreMulSum: NCCL does not scale f8e4m3 over a single rank: scale in a kernel of your \
         own"
    );
    let scalar = fake.memory(&stream, 1);
    let refused = alone.scaled_sum_on_device(&scalar.slice::<F8E5M2>(..).unwrap()).map(drop);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("NCCL does not scale f8e5m2 over a single rank"), "{text}");
    assert_eq!(fake.log(), [""; 0]);
    let pair = fake.communicator(&Config::new());
    drop(pair.scaled_sum(F8E4M3::from_f32(1.0)).unwrap());
}

#[test]
fn the_log_of_an_operator_that_nccl_keeps_may_end_the_communicator() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let sum = communicator.scaled_sum(1.0f32).unwrap();
    fake.set(Knob::DisposalResult, 3);
    fake.log();
    let handle = communicator.abort_handle();
    let log = EventSubscriber(move || handle.abort().unwrap());
    tracing::subscriber::with_default(log, || drop(sum));
    assert_eq!(fake.log(), ["abort comm1"]);
}

#[test]
fn an_operator_may_outlive_its_communicator_in_a_capture() {
    let fake = Fake::new();
    let mut memory = fake.memory(&fake.stream(0), 8);
    let result = Graph::capture(|capture| {
        let communicator = fake.communicator(&Config::new());
        let sum = communicator.scaled_sum(2.0f32)?;
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, &sum)
    });
    assert!(matches!(result, Err(Error::Aborted { .. })), "{result:?}");
    let log = fake.log();
    let created = "scaled_sum comm1 type 7 scalar 00000040 as op5";
    assert_eq!(log[log.len() - 3..], [created, "destroy op5 comm1", "destroy comm1"]);
}
