//! The safe NCCL layer on a fake NCCL and a fake CUDA driver that record what was queued, launched, freed and when.
//! Numbers in names are those of the holes in other wrappers that the layer closes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests
#![cfg(feature = "nccl")]

mod fake;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use collectives::nccl::{Communicator, Config, Error, Memory, Needed, ResultCode, device_count, group};
use collectives::{DataType, Element, ReduceOp};
use cudarc::driver::{CudaContext, DeviceRepr, ValidAsZeroBits};
use fake::{Fake, Knob};
use half::{bf16, f16};

const IN_PROGRESS: i32 = 7;
const REMOTE_ERROR: i32 = 6;

fn all_reduce_of<T: Element>(
    fake: &Fake,
    communicator: &Communicator,
    memory: [&mut Memory; 2],
) -> Vec<String> {
    let [send, receive] = memory;
    for op in ReduceOp::ALL {
        let mut view = receive.slice_mut::<T>(0, 3).unwrap();
        communicator.all_reduce(&send.slice::<T>(0, 3).unwrap(), &mut view, op).unwrap();
    }
    fake.log()
}

#[test]
fn every_type_and_operator_arrives_as_nccl_numbers_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut send = fake.memory(communicator.stream(), 64);
    let mut receive = fake.memory(communicator.stream(), 64);
    macro_rules! check {
        ($($type:ty => $number:literal),*) => {$({
            let log = all_reduce_of::<$type>(&fake, &communicator, [&mut send, &mut receive]);
            let line = |op| format!(
                "launch all_reduce comm1 m1->m2 count 3 type {} op {op} s1 device 0", $number
            );
            assert_eq!(log, [0, 1, 2, 3, 4].map(line));
        })*};
    }
    check!(i8 => 0, u8 => 1, i32 => 2, u32 => 3, i64 => 4, u64 => 5, f16 => 6, f32 => 7, f64 => 8, bf16 => 9);
    assert_eq!(DataType::ALL.len(), 10);
}

#[test]
fn all_gather_passes_its_part_and_in_place_its_own_place() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let send = fake.memory(communicator.stream(), 64);
    let mut receive = fake.memory(communicator.stream(), 64);
    let part = send.slice::<f64>(0, 3).unwrap();
    communicator.all_gather(&part, &mut receive.slice_mut::<f64>(0, 6).unwrap()).unwrap();
    communicator.all_gather_in_place(&mut receive.slice_mut::<f64>(0, 6).unwrap()).unwrap();
    communicator.all_reduce_in_place(&mut receive.slice_mut::<i8>(0, 5).unwrap(), ReduceOp::Max).unwrap();
    assert_eq!(
        fake.log(),
        [
            "launch all_gather comm1 m1->m2 count 3 type 8 op -1 s1 device 0",
            // Rank 1: its three doubles begin at byte 24.
            "launch all_gather comm1 m2+24->m2 count 3 type 8 op -1 s1 device 0",
            "launch all_reduce comm1 m2->m2 count 5 type 0 op 2 s1 device 0",
        ]
    );
}

#[test]
fn hole_6_wrong_lengths_are_refused_before_nccl_sees_them() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let (send, mut receive) = (fake.memory(stream, 64), fake.memory(stream, 64));
    let error = |result: Result<(), Error>| match result.unwrap_err() {
        Error::Length { needed, found, .. } => (needed, found),
        other => panic!("{other}"),
    };
    let four = send.slice::<f32>(0, 4).unwrap();
    let mut three = receive.slice_mut::<f32>(0, 3).unwrap();
    assert_eq!(error(communicator.all_reduce(&four, &mut three, ReduceOp::Sum)), (Needed::Exactly(4), 3));
    assert_eq!(error(communicator.all_gather(&four, &mut three)), (Needed::Exactly(8), 3));
    assert_eq!(error(communicator.all_gather_in_place(&mut three)), (Needed::MultipleOf(2), 3));
    let refused =
        group(fake.library(), |group| group.all_reduce(&communicator, &four, &mut three, ReduceOp::Sum));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "ncclAllReduce: the receive buffer has 3 elements and needs exactly 4"
    );
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));
}

#[test]
fn views_stay_inside_their_memory_and_start_on_an_element() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let mut memory = fake.memory(&stream, 64);
    assert_eq!(
        memory.slice::<u64>(56, 1).unwrap().address() - memory.slice::<u64>(0, 0).unwrap().address(),
        56
    );
    assert!(memory.slice::<u64>(64, 0).is_ok());
    for (offset, len) in [(56, 2), (4, 1), (0, 9), (72, 0), (8, usize::MAX), (usize::MAX - 7, 1)] {
        assert!(matches!(memory.slice::<u64>(offset, len), Err(Error::View { .. })), "{offset} {len}");
        assert!(matches!(memory.slice_mut::<u64>(offset, len), Err(Error::View { .. })), "{offset} {len}");
    }
}

#[test]
fn hole_12_other_devices_and_contexts_are_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = fake.stream(1);
    let mut memory = fake.memory(&other, 64);
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum);
    assert_eq!(
        result.unwrap_err().to_string(),
        "ncclAllReduce: the buffer is in a context of device 1, the communicator in the primary context of device 0"
    );

    let own = CudaContext::new_non_primary(0, 0).unwrap().new_stream().unwrap();
    let mut memory = Memory::alloc(fake.library(), &own, 64).unwrap();
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum);
    assert!(matches!(result, Err(Error::WrongDevice { .. })));
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));

    let init = |stream| Communicator::init(fake.library(), stream, 0, 1, &fake.id(), &Config::new());
    assert!(matches!(init(&own), Err(Error::Stream { .. })));
    let per_thread = CudaContext::new(0).unwrap().per_thread_stream();
    assert!(matches!(init(&per_thread), Err(Error::Stream { .. })));
}

#[test]
fn hole_12_a_communicator_is_made_and_used_on_its_own_device() {
    let fake = Fake::new();
    let (first, second) = (fake.stream(0), fake.stream(1));
    fake.log();
    let make = |stream, rank| Communicator::init(fake.library(), stream, rank, 2, &fake.id(), &Config::new());
    let communicators = [make(&first, 0).unwrap(), make(&second, 1).unwrap()];
    assert_eq!(fake.log(), ["init comm1 rank 0/2 device 0", "init comm2 rank 1/2 device 1"]);
    let mut memory = fake.memory(&first, 64);
    // Device 1 is current after the second one was made.
    communicators[0].all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0"]);
}

#[test]
fn hole_20_a_buffer_of_another_stream_is_ordered_before_and_after() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (send, mut receive) = (fake.memory(&other, 64), fake.memory(communicator.stream(), 64));
    let mut view = receive.slice_mut::<f32>(0, 2).unwrap();
    communicator.all_reduce(&send.slice::<f32>(0, 2).unwrap(), &mut view, ReduceOp::Sum).unwrap();
    drop(send);
    assert_eq!(
        fake.log(),
        [
            "e1 records s2",
            "s1 waits e1",
            "launch all_reduce comm1 m1->m2 count 2 type 7 op 0 s1 device 0",
            "e1 records s1",
            "s2 waits e1",
            "synchronize s2",
            "ncclMemFree m1",
        ]
    );
}

#[test]
fn hole_20_other_streams_wait_even_when_nccl_fails() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    fake.set(Knob::NcclResult, 5);
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum);
    assert!(matches!(result, Err(Error::Nccl { .. })));
    assert_eq!(fake.log(), ["e1 records s2", "s1 waits e1", "e1 records s1", "s2 waits e1"]);
}

#[test]
fn when_streams_cannot_be_ordered_the_host_waits() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    let mut view = memory.slice_mut::<f32>(0, 2).unwrap();
    communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap();
    fake.log();
    let fails = |result| assert!(matches!(result, Err(Error::Cuda { operation: "cuStreamWaitEvent", .. })));
    // Before the operation: nothing is launched.
    fake.set(Knob::EventFails, 1);
    fails(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum));
    assert_eq!(fake.log(), [""; 0]);
    // After it.
    fake.set(Knob::EventFails, 2);
    fails(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum));
    let launch = "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";
    assert_eq!(fake.log(), ["e1 records s2", "s1 waits e1", launch, "synchronize s1"]);
}

#[test]
fn a_buffer_of_the_same_stream_costs_no_driver_call() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum).unwrap();
    assert_eq!(fake.log().len(), 1);
}

#[test]
fn cudarc_buffers_are_freed_after_nccl_has_used_them() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let send = other.clone_htod(&[1.0f32, 2.0]).unwrap();
    let mut receive = other.alloc_zeros::<f32>(2).unwrap();
    fake.log();
    communicator.all_reduce(&send, &mut receive, ReduceOp::Sum).unwrap();
    drop(send);
    let log = fake.log();
    let at = |wanted: &str| log.iter().position(|line| line.starts_with(wanted)).unwrap();
    // cudarc has its own events; ours is the last that was made.
    assert!(at("s1 waits e5") < at("launch"), "{log:#?}");
    assert!(at("launch") < at("s2 waits e5"), "{log:#?}");
    assert!(at("s2 waits e5") < at("free m1 on s2"), "{log:#?}");
    let view = communicator.all_gather(&receive.slice(0..1), &mut other.alloc_zeros::<f32>(2).unwrap());
    assert!(view.is_ok());
}

#[test]
fn copies_go_both_ways_through_memory() {
    fn round_trip<T: Element + DeviceRepr + ValidAsZeroBits>(fake: &Fake, values: &[T]) {
        let stream = fake.stream(0);
        let mut memory = fake.memory(&stream, 64);
        assert_eq!(stream.clone_dtoh(&memory.slice::<T>(0, 2).unwrap()).unwrap(), vec![T::default(); 2]);
        stream.memcpy_htod(values, &mut memory.slice_mut::<T>(16, values.len()).unwrap()).unwrap();
        assert_eq!(stream.clone_dtoh(&memory.slice::<T>(16, values.len()).unwrap()).unwrap(), values);
        // Another stream is waited for, before and after.
        let other = stream.context().new_stream().unwrap();
        fake.log();
        assert_eq!(other.clone_dtoh(&memory.slice::<T>(16, 1).unwrap()).unwrap(), values[..1]);
        let log = fake.log();
        assert_eq!(log.len(), 3, "{log:#?}");
        assert!(
            log[0].ends_with("records s1") && log[1].starts_with("s2 waits") && log[2] == "synchronize s2"
        );
    }
    round_trip(&Fake::new(), &[1.5f32, -2.0, 3.25]);
    round_trip(&Fake::new(), &[7u8, 8]);
}

#[test]
fn a_group_launches_at_its_end_over_all_communicators() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let communicators = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    let mut memory: Vec<_> = streams.iter().map(|stream| fake.memory(stream, 64)).collect();
    let mut views: Vec<_> = memory.iter_mut().map(|memory| memory.slice_mut::<f32>(0, 2).unwrap()).collect();
    let answer = group(fake.library(), |group| {
        for (communicator, view) in communicators.iter().zip(&mut views) {
            group.all_reduce_in_place(communicator, view, ReduceOp::Sum)?;
        }
        assert_eq!(fake.log(), [""; 0], "nothing is launched inside the group");
        Ok(42)
    });
    assert_eq!(answer.unwrap(), 42);
    assert_eq!(
        fake.log(),
        [
            "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0",
            "launch all_reduce comm2 m2->m2 count 2 type 7 op 0 s2 device 1",
        ]
    );
}

#[test]
fn hole_1_events_of_a_group_come_after_the_launch() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (send, mut receive) = (fake.memory(&other, 64), fake.memory(communicator.stream(), 64));
    let part = send.slice::<f32>(0, 2).unwrap();
    let mut all = receive.slice_mut::<f32>(0, 4).unwrap();
    group(fake.library(), |group| group.all_gather(&communicator, &part, &mut all)).unwrap();
    assert_eq!(
        fake.log(),
        [
            "e1 records s2",
            "s1 waits e1",
            "launch all_gather comm1 m1->m2 count 2 type 7 op -1 s1 device 0",
            "e1 records s1",
            "s2 waits e1",
        ]
    );
}

#[test]
fn hole_5_an_error_inside_a_group_cancels_it_and_not_the_next() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 64), fake.memory(communicator.stream(), 64)];
    let [first, second] = &mut memory;
    let mut view = first.slice_mut::<f32>(0, 2).unwrap();
    let result: Result<(), Error> = group(fake.library(), |group| {
        group.all_reduce_in_place(&communicator, &mut view, ReduceOp::Sum)?;
        Err(Error::Rank { rank: 9, size: 3 })
    });
    assert!(matches!(result, Err(Error::Rank { rank: 9, size: 3 })), "the closure's own error");
    assert_eq!(fake.log(), ["group of 1 cancelled"]);

    // NCCL refuses one operation: its error comes back, and NCCL launches nothing either, even when it is ignored.
    fake.set(Knob::NcclResult, 5);
    let mut view = first.slice_mut::<f32>(0, 2).unwrap();
    let mut other = second.slice_mut::<f32>(0, 2).unwrap();
    let result = group(fake.library(), |group| {
        let refused = group.all_reduce_in_place(&communicator, &mut view, ReduceOp::Sum);
        assert!(matches!(refused, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(5), .. })));
        group.all_reduce_in_place(&communicator, &mut other, ReduceOp::Sum)
    });
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclGroupEnd", code: ResultCode(5), .. })));
    assert_eq!(fake.log(), ["group of 1 cancelled"]);

    let mut view = first.slice_mut::<f32>(0, 2).unwrap();
    group(fake.library(), |group| group.all_reduce_in_place(&communicator, &mut view, ReduceOp::Sum))
        .unwrap();
    assert_eq!(fake.log().len(), 1);
    assert!(communicator.async_error().is_ok());
}

#[test]
fn hole_5_a_panic_inside_a_group_cancels_it_and_not_the_next() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(0, 2).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        group(fake.library(), |group| -> Result<(), Error> {
            group.all_reduce_in_place(&communicator, &mut view, ReduceOp::Sum)?;
            panic!("in the middle of the group");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), ["group of 1 cancelled"]);
    // Neither the thread nor the communicator is left inside a group.
    communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0"]);
}

#[test]
fn holes_2_and_4_nothing_else_happens_inside_a_group() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (spare, closing) = (fake.communicator(&Config::new()), fake.communicator(&Config::new()));
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(0, 2).unwrap();
    let stream = communicator.stream();
    let (library, id, config) = (fake.library(), fake.id(), Config::new());
    let refused =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::InsideGroup { .. })), "{result:?}");
    group(library, |_| {
        refused(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum));
        refused(communicator.async_error());
        refused(communicator.abort_handle().abort());
        refused(group(library, |_| Ok(())));
        refused(Communicator::init(library, stream, 0, 1, &id, &config).map(drop));
        refused(Communicator::init_pending(library, stream, 0, 1, &id, &config).map(drop));
        refused(Communicator::init_all(library, &[], &config).map(drop));
        refused(closing.close());
        drop(spare);
        assert_eq!(fake.log(), [""; 0], "both are destroyed after the group");
        Ok(())
    })
    .unwrap();
    assert_eq!(fake.log(), ["destroy comm3", "destroy comm2"]);
}

#[test]
fn a_group_refuses_communicators_of_another_library() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(0, 2).unwrap();
    let result =
        group(fake.old_library(), |group| group.all_reduce_in_place(&communicator, &mut view, ReduceOp::Sum));
    assert!(matches!(result, Err(Error::WrongLibrary { .. })));
    assert_eq!(fake.log(), ["group of 0 cancelled"]);
}

#[test]
fn hole_13_dropping_waits_for_the_work_and_then_destroys() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum).unwrap();
    fake.log();
    fake.set(Knob::StreamBusy, 250);
    drop(communicator);
    assert_eq!(fake.log(), ["destroy comm1"]);
    // Every query before the destruction was answered "not ready".
    fake.set(Knob::StreamBusy, 0);
    drop(memory);
    assert_eq!(fake.log(), ["synchronize s1", "ncclMemFree m1"]);
}

#[test]
fn hole_13_after_an_asynchronous_error_it_is_aborted_instead() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    let error = communicator.async_error().unwrap_err();
    assert!(error.to_string().contains("ncclRemoteError (6)"), "{error}");
    drop(communicator);
    assert_eq!(fake.log(), ["abort comm1"]);

    fake.set(Knob::AsyncResult, 0);
    let communicator = fake.communicator(&Config::new());
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    let error = communicator.close().unwrap_err();
    assert!(matches!(error, Error::Nccl { code: ResultCode(6), .. }));
    assert_eq!(fake.log(), ["abort comm2"]);
}

#[test]
fn closing_keeps_the_deadline() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().deadline(Duration::from_millis(20)));
    fake.set(Knob::StreamBusy, i32::MAX);
    assert!(matches!(communicator.close(), Err(Error::Deadline { .. })));
    assert_eq!(fake.log(), ["abort comm1"]);
}

#[test]
fn hole_13_a_panic_aborts() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _owned = communicator;
        panic!("while it is in use");
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), ["abort comm1"]);
}

#[test]
fn hole_14_an_initialisation_that_never_completes_meets_its_deadline() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let start =
        || Communicator::init_pending(fake.library(), &stream, 0, 2, &fake.id(), &Config::new()).unwrap();
    let mut pending = start();
    assert_eq!(fake.log(), ["init comm1 rank 0/2 device 0 non-blocking"]);
    assert!(!pending.poll().unwrap());
    let error = pending.wait(Duration::from_millis(30)).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: "ncclCommInitRankConfig", .. }), "{error}");
    assert_eq!(fake.log(), ["abort comm1"]);

    drop(start());
    assert_eq!(fake.log(), ["init comm2 rank 0/2 device 0 non-blocking", "abort comm2"]);

    let config = Config::new().blocking(false).deadline(Duration::from_millis(30));
    let result = Communicator::init(fake.library(), &stream, 0, 2, &fake.id(), &config);
    assert!(matches!(result, Err(Error::Deadline { .. })));
    assert_eq!(fake.log(), ["init comm3 rank 0/2 device 0 non-blocking", "abort comm3"]);
}

#[test]
fn hole_14_a_pending_communicator_comes_to_life_fails_or_is_aborted() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let start = || {
        fake.set(Knob::AsyncResult, IN_PROGRESS);
        Communicator::init_pending(fake.library(), &stream, 0, 2, &fake.id(), &Config::new()).unwrap()
    };
    let mut pending = start();
    fake.set(Knob::AsyncResult, 0);
    assert!(pending.poll().unwrap());
    let communicator = pending.wait(Duration::ZERO).unwrap();
    assert_eq!((communicator.rank(), communicator.size()), (0, 2));
    communicator.close().unwrap();

    let mut pending = start();
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    assert!(matches!(pending.poll(), Err(Error::Nccl { code: ResultCode(6), .. })));
    drop(pending);

    let pending = start();
    pending.abort_handle().abort().unwrap();
    assert!(matches!(pending.wait(Duration::from_secs(60)), Err(Error::Aborted { .. })));
    let ends: Vec<_> = fake.log().into_iter().filter(|line| !line.starts_with("init")).collect();
    assert_eq!(ends, ["destroy comm1", "abort comm2", "abort comm3"]);
}

#[test]
fn hole_14_an_operation_in_progress_is_waited_for_before_anything_is_ordered_after_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().deadline(Duration::from_millis(30)));
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    let mut view = memory.slice_mut::<f32>(0, 2).unwrap();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    fake.log();
    let error = communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: "ncclAllReduce", .. }), "{error}");
    // NCCL no longer uses the buffer when the call returns.
    assert_eq!(
        fake.log(),
        [
            "e1 records s2",
            "s1 waits e1",
            "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0",
            "abort comm1",
            "e1 records s1",
            "s2 waits e1",
        ]
    );
    assert!(matches!(communicator.async_error(), Err(Error::Aborted { .. })));
    drop(communicator);
    assert_eq!(fake.log(), [""; 0], "aborted once");
}

#[test]
fn a_group_in_progress_is_waited_for() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().deadline(Duration::from_millis(30)));
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(0, 2).unwrap();
    let result = group(fake.library(), |group| {
        group.all_reduce_in_place(&communicator, &mut view, ReduceOp::Sum)?;
        fake.set(Knob::NcclResult, IN_PROGRESS);
        fake.set(Knob::AsyncResult, IN_PROGRESS);
        Ok(())
    });
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclGroupEnd", .. })));
    assert_eq!(fake.log()[1..], ["abort comm1"]);
}

#[test]
fn an_abort_waits_until_no_thread_is_inside_nccl() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let handle = communicator.abort_handle();
    fake.set(Knob::CallMillis, 100);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            handle.abort().unwrap();
            handle.clone().abort().unwrap();
        });
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum).unwrap();
    });
    assert_eq!(
        fake.log(),
        ["leaving NCCL", "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0", "abort comm1"]
    );
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum);
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclAllReduce" })));
    assert!(matches!(communicator.close(), Err(Error::Aborted { .. })));
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_abort_waits_until_the_group_has_ended() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(0, 2).unwrap();
    let handle = communicator.abort_handle();
    thread::scope(|scope| {
        group(fake.library(), |group| {
            group.all_reduce_in_place(&communicator, &mut view, ReduceOp::Sum)?;
            scope.spawn(|| handle.abort().unwrap());
            thread::sleep(Duration::from_millis(50));
            assert_eq!(fake.log(), [""; 0]);
            Ok(())
        })
        .unwrap();
    });
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0", "abort comm1"]);
}

#[test]
fn an_abort_handle_outlives_its_communicator() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let handle = communicator.abort_handle();
    communicator.close().unwrap();
    handle.abort().unwrap();
    assert_eq!(fake.log(), ["destroy comm1"]);
}

#[test]
fn a_failed_initialisation_leaves_nothing_behind() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    fake.set(Knob::InitResult, 2);
    let result = Communicator::init(fake.library(), &streams[0], 0, 2, &fake.id(), &Config::new());
    assert_eq!(
        result.unwrap_err().to_string(),
        "ncclCommInitRankConfig failed with ncclSystemError (2): fake words (NCCL's last warning: the fake was told to \
         fail); a system call failed: check shared memory, limits and the network"
    );
    assert_eq!(fake.log(), ["init comm1 rank 0/2 device 0", "abort comm1"]);

    fake.set(Knob::InitResult, 2);
    let result = Communicator::init_all(fake.library(), &streams, &Config::new());
    assert!(matches!(result, Err(Error::Nccl { code: ResultCode(2), .. })));
    assert_eq!(fake.log(), ["init comm2 rank 0/2 device 0", "group of 0 cancelled", "abort comm2"]);
}

#[test]
fn ranks_outside_the_size_are_refused() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    for (rank, size) in [(2, 2), (0, 0), (0, 1 << 31), (1 << 32, 1 << 33)] {
        let result = Communicator::init(fake.library(), &stream, rank, size, &fake.id(), &Config::new());
        assert!(matches!(result, Err(Error::Rank { .. })), "{rank} {size}");
    }
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn settings_reach_nccl_and_those_of_newer_versions_are_refused() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let init = |library, config: &Config| Communicator::init(library, &stream, 0, 1, &fake.id(), config);
    let config = Config::new().network("Socket").nvlink_centric_sched(true).name("ours");
    drop(init(fake.library(), &config).unwrap());
    assert_eq!(fake.log()[0], "init comm1 rank 0/1 device 0 over Socket");
    let error = init(fake.old_library(), &config).unwrap_err().to_string();
    assert!(
        error.starts_with("Config::nvlink_centric_sched needs NCCL 2.28; loaded 2.18.3 from /"),
        "{error}"
    );
    let error = init(fake.old_library(), &Config::new().name("ours")).unwrap_err();
    assert!(matches!(error, Error::ConfigTooNew { field: "name", .. }));
    assert!(matches!(init(fake.library(), &Config::new().network("a\0b")), Err(Error::ConfigText { .. })));
    drop(init(fake.old_library(), &Config::new().network("Socket").split_share(true)).unwrap());
}

#[test]
fn hole_11_unknown_result_codes_are_errors() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    for code in [8, 9, 4711] {
        fake.set(Knob::NcclResult, code);
        let result =
            communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(0, 2).unwrap(), ReduceOp::Sum);
        match result.unwrap_err() {
            Error::Nccl { code: ResultCode(seen), .. } => assert_eq!(seen, code.cast_unsigned()),
            other => panic!("{other}"),
        }
    }
    fake.set(Knob::AsyncResult, 4711);
    let error = communicator.async_error().unwrap_err().to_string();
    assert!(error.contains("code 4711, unknown to this build"), "{error}");
}

#[test]
fn a_library_without_a_function_answers_instead_of_failing() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    fake.log();
    drop(Memory::alloc(fake.old_library(), &stream, 64).unwrap());
    assert_eq!(fake.log(), ["cuMemAlloc m1", "synchronize s1", "cuMemFree m1"]);
    drop(Memory::alloc(fake.library(), &stream, 0).unwrap());
    assert_eq!(fake.log(), ["ncclMemAlloc m2", "synchronize s1", "ncclMemFree m2"]);

    let broken = fake.broken().to_string();
    assert!(broken.contains("ncclCommSplit"), "{broken}");
    assert!(broken.contains("pip install nvidia-nccl-cu12"), "{broken}");
    let ancient = &fake.ancient().attempts()[0];
    assert_eq!(ancient.reason, "NCCL 2.14.3 is older than 2.18, the oldest that is supported");
}

#[test]
fn devices_are_counted() {
    let _fake = Fake::new();
    assert_eq!(device_count().unwrap(), 4);
}
