//! Prepared operations: ownership of their buffers, order of streams, groups, states of the communicator, and
//! refusals.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Memory, MemoryViewMut, Prepared, ResultCode, Signal,
    WindowKind, group,
};
use cudarc::driver::CudaContext;

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, not_allowed};

type Result<T = ()> = std::result::Result<T, Error>;

const LAUNCH: &str = "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";
const QUEUE: &str = "queueing prepared operations";

/// Sums of the first two numbers of the memory, one after the other.
fn sums(communicator: &Communicator, memory: &mut Memory, count: usize) -> Prepared {
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let sums = communicator
        .prepare(|prepare| (0..count).try_for_each(|_| prepare.all_reduce_in_place(&mut view, Sum)));
    let prepared: Result<_> = sums;
    prepared.unwrap()
}

#[test]
fn memory_is_owned_until_the_prepared_operations_are_dropped() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let prepared = sums(&communicator, &mut memory, 2);
    drop(memory);
    for _ in 0..2 {
        communicator.queue(&prepared).unwrap();
        assert_eq!(fake.log(), [LAUNCH; 2]);
    }
    drop(prepared);
    assert_eq!(fake.log(), ["synchronize s1", "ncclMemFree m1"]);
}

/// Prepared operations can move to another thread, as their communicator and memory can.
#[test]
fn prepared_operations_move_between_threads() {
    fn moves<T: Send + Sync + 'static>() {}
    moves::<Prepared>();
}

#[test]
fn the_program_uses_the_memory_between_the_calls() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let prepared = sums(&communicator, &mut memory, 1);
    for _ in 0..2 {
        let stream = communicator.stream();
        stream.memcpy_htod(&[1.0f32; 2], &mut memory.slice_mut(..2).unwrap()).unwrap();
        fake.log();
        communicator.queue(&prepared).unwrap();
        assert_eq!(fake.log(), [LAUNCH]);
        stream.clone_dtoh(&memory.slice::<f32>(..2).unwrap()).unwrap();
    }
}

#[test]
fn streams_of_buffers_are_ordered_before_and_after_each_call() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 8);
    let prepared = sums(&communicator, &mut memory, 2);
    assert_eq!(fake.log(), [""; 0]);
    let expected = ["e1 records s2", "s1 waits e1", LAUNCH, LAUNCH, "e1 records s1", "s2 waits e1"];
    for _ in 0..2 {
        communicator.queue(&prepared).unwrap();
        assert_eq!(fake.log(), expected);
    }
    // After an operation that NCCL has refused too: the one before is queued.
    thread::scope(|scope| {
        fake.set(Knob::CallMillis, -1);
        scope.spawn(|| {
            fake.until("inside NCCL");
            fake.set(Knob::NcclResult, 5);
            fake.set(Knob::CallMillis, 0);
        });
        let result = communicator.queue(&prepared);
        assert!(matches!(result, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(5), .. })));
    });
    let log = fake.log();
    assert_eq!(log[log.len() - 2..], expected[4..]);
    drop(memory);
    drop(prepared);
    assert_eq!(fake.log(), ["synchronize s2", "ncclMemFree m1"]);
}

#[test]
fn operations_follow_the_communicator_to_another_stream() {
    let fake = Fake::new();
    let mut communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let prepared = sums(&communicator, &mut memory, 1);
    let other = communicator.stream().context().new_stream().unwrap();
    communicator.set_stream(&other).unwrap();
    fake.log();
    communicator.queue(&prepared).unwrap();
    // The memory is still that of the first stream.
    let launch = LAUNCH.replace("s1", "s2");
    let expected = ["e1 records s1", "s2 waits e1", &launch, "e1 records s2", "s1 waits e1"];
    assert_eq!(fake.log(), expected);
}

#[test]
fn a_group_is_one_entry_and_a_part_can_be_queued() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 8), fake.memory(communicator.stream(), 8)];
    let [first, second] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());
    let (first, mut second) = (first, second);
    let prepared = communicator.prepare(|prepare| {
        let exchange = |group: &collectives::nccl::Preparation<'_>, second: &mut MemoryViewMut<'_, f32>| {
            group.send(&first, 0)?;
            group.recv(second, 0)
        };
        prepare.group(|group| exchange(group, &mut second))?;
        prepare.all_reduce_in_place(&mut second, Sum)?;
        // Nothing is queued for an empty group.
        prepare.group(|_| Ok::<_, Error>(()))?;
        // A group in a group is a part of it.
        prepare.group(|group| group.group(|group| exchange(group, &mut second)))
    });
    let prepared: Prepared = prepared.unwrap();
    assert_eq!(format!("{prepared:?}"), "Prepared { len: 3, .. }");
    let exchange = [
        "launch send comm1 m1->null count 2 type 7 op -1 peer 0 s1 device 0",
        "launch recv comm1 null->m2 count 2 type 7 op -1 peer 0 s1 device 0",
    ];
    let reduce = ["launch all_reduce comm1 m2->m2 count 2 type 7 op 0 s1 device 0"];
    communicator.queue(&prepared).unwrap();
    assert_eq!(fake.log(), [&exchange[..], &reduce, &exchange].concat());
    communicator.queue_range(&prepared, 1..).unwrap();
    assert_eq!(fake.log(), [&reduce[..], &exchange].concat());
    communicator.queue_range(&prepared, 1..=1).unwrap();
    assert_eq!(fake.log(), reduce);
    communicator.queue_range(&prepared, 3..3).unwrap();
    for range in [2..4, 4..4, 4..usize::MAX] {
        let past = format!("{QUEUE}: the range reaches past the end of the 3 entries");
        not_allowed(communicator.queue_range(&prepared, range), &past);
    }
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn an_empty_list_queues_nothing() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let prepared = communicator.prepare(|_| Ok::<_, Error>(())).unwrap();
    assert!(prepared.is_empty());
    communicator.queue(&prepared).unwrap();
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL cancels the whole group.
#[test]
fn a_group_in_which_nccl_fails_launches_nothing() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let prepared =
        communicator.prepare(|prepare| prepare.group(|group| group.all_reduce_in_place(&mut view, Sum)));
    let prepared: Prepared = prepared.unwrap();
    fake.set(Knob::NcclResult, 5);
    let result = communicator.queue(&prepared);
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(5), .. })));
    assert_eq!(fake.log(), ["group of 0 cancelled"]);
    communicator.queue(&prepared).unwrap();
    assert_eq!(fake.log(), [LAUNCH]);
}

#[test]
fn an_operator_and_its_scalar_are_owned() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (mut memory, scalars) = (fake.memory(communicator.stream(), 8), fake.memory(&other, 4));
    let scalar = scalars.slice::<f32>(..1).unwrap();
    let sum = communicator.scaled_sum_on_device(&scalar).unwrap();
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let prepared: Result<_> = communicator.prepare(|prepare| prepare.all_reduce_in_place(&mut view, &sum));
    let prepared = prepared.unwrap();
    drop(sum);
    drop(scalars);
    fake.log();
    communicator.queue(&prepared).unwrap();
    let launch = LAUNCH.replace("op 0", "op 5");
    assert_eq!(fake.log(), ["e1 records s2", "s1 waits e1", &launch, "e1 records s1", "s2 waits e1"]);
    drop(prepared);
    assert_eq!(fake.log(), ["destroy op5 comm1", "synchronize s2", "ncclMemFree m2"]);
}

/// NCCL's kernel for it runs on the current device, and skips elements of some lengths.
#[test]
fn a_scaled_sum_of_a_single_rank_runs_on_its_device() {
    let fake = Fake::new();
    let alone = fake.rank(fake.old_library(), 0, 1, &Config::new());
    let mut memory = Memory::alloc(fake.old_library(), alone.stream(), 4 * 4097).unwrap();
    let mut view = memory.slice_mut::<f32>(..4097).unwrap();
    let sum = alone.scaled_sum(2.0f32).unwrap();
    let prepared: Result<_> = alone.prepare(|prepare| prepare.all_reduce_in_place(&mut view, &sum));
    let prepared = prepared.unwrap();
    fake.log();
    alone.all_reduce_in_place(&mut view, &sum).unwrap();
    let expected = fake.log();
    assert_eq!(expected.len(), 2, "{expected:#?}");
    CudaContext::new(1).unwrap().bind_to_thread().unwrap();
    alone.queue(&prepared).unwrap();
    assert_eq!(fake.log(), expected);
}

#[test]
fn operations_of_another_communicator_are_refused() {
    let fake = Fake::new();
    let (first, second) = (fake.communicator(&Config::new()), fake.communicator(&Config::new()));
    let mut memory = fake.memory(first.stream(), 8);
    let prepared = sums(&first, &mut memory, 1);
    let error = second.queue(&prepared).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{QUEUE}: the list of prepared operations was made with another communicator")
    );
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn nothing_is_prepared_or_queued_inside_a_group() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let prepared = sums(&communicator, &mut memory, 1);
    group(|_| {
        assert!(matches!(communicator.queue(&prepared), Err(Error::InsideGroup { operation: QUEUE })));
        let made = communicator.prepare(|_| Ok::<_, Error>(())).map(drop);
        assert!(matches!(made, Err(Error::InsideGroup { operation: "preparing operations" })));
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), [""; 0]);
}

/// A graph would use the memory after the prepared operations are dropped.
#[test]
fn captured_streams_are_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (mut own, mut foreign) = (fake.memory(communicator.stream(), 8), fake.memory(&other, 8));
    let lists = [sums(&communicator, &mut own, 2), sums(&communicator, &mut foreign, 2)];
    // The communicator's stream, and the one of the second list's buffer.
    for (captured, list) in [(1, 0), (1, 1), (2, 1)] {
        fake.set(Knob::Captured, captured);
        let result = communicator.queue(&lists[list]);
        assert!(matches!(result, Err(Error::Stream { operation: QUEUE, .. })), "{captured}: {result:?}");
        assert_eq!(fake.log(), [""; 0]);
    }
    fake.set(Knob::Captured, 2);
    communicator.queue(&lists[0]).unwrap();
    fake.set(Knob::Captured, 0);
    communicator.queue(&lists[1]).unwrap();
}

#[test]
fn preparing_does_what_calls_do_before_anything_is_queued() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut slice = communicator.stream().alloc_zeros::<f32>(2).unwrap();
    let mut memory = fake.memory(communicator.stream(), 16);
    let (mut view, mut elsewhere) = (memory.slice_mut::<f32>(..3).unwrap(), fake.memory(&fake.stream(1), 8));
    let error = |result: Result<Prepared>| result.unwrap_err();
    let length = communicator.prepare(|prepare| prepare.all_gather_in_place(&mut view));
    assert!(matches!(error(length), Error::Length { operation: "ncclAllGather", .. }));
    let owner = communicator.prepare(|prepare| prepare.all_reduce_in_place(&mut slice, Sum));
    assert!(matches!(error(owner), Error::NotOwned { operation: "ncclAllReduce" }));
    let device = communicator.prepare(|prepare| prepare.all_reduce_in_place(&mut elsewhere, Sum));
    assert!(matches!(error(device), Error::WrongDevice { .. }));
    let overlap = communicator.prepare(|prepare| {
        prepare.group(|group| {
            group.all_reduce_in_place(&mut view.slice_mut(..2)?, Sum)?;
            group.all_reduce_in_place(&mut view.slice_mut(1..3)?, Sum)
        })
    });
    let overlap = error(overlap).to_string();
    assert!(overlap.contains("another operation of the group writes"), "{overlap}");
    let ignored = communicator.prepare(|prepare| {
        let failed: Result = prepare.group(|_| Err(Error::Rank { rank: 7, size: 2 }));
        assert!(failed.is_err());
        prepare.all_reduce_in_place(&mut view, Sum)
    });
    not_allowed(ignored, "preparing operations: cancelled, because a group in it failed or panicked");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        communicator.prepare(|prepare| {
            prepare.all_reduce_in_place(&mut view, Sum)?;
            if view.slice(..).is_ok() { panic!("in the middle") } else { Ok::<_, Error>(()) }
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn states_of_the_communicator_apply() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let prepared = sums(&communicator, &mut memory, 1);
    communicator.suspend().unwrap();
    let result = communicator.queue(&prepared);
    assert!(matches!(result, Err(Error::Unusable { operation: "ncclAllReduce", .. })), "{result:?}");
    communicator.resume().unwrap();
    fake.log();
    communicator.queue(&prepared).unwrap();
    assert_eq!(fake.log(), [LAUNCH]);
    communicator.finalize().unwrap();
    let result = communicator.queue(&prepared);
    assert!(matches!(result, Err(Error::Unusable { operation: "ncclAllReduce", .. })), "{result:?}");
    communicator.abort_handle().abort().unwrap();
    let result = communicator.queue(&prepared);
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclAllReduce" })), "{result:?}");
    let made = communicator.prepare(|prepare| prepare.all_reduce_in_place(&mut memory, Sum));
    assert!(matches!(made, Err(Error::Aborted { .. })));
}

#[test]
fn a_communicator_ends_before_its_prepared_operations() {
    let fake = Fake::new();
    for ended_by in [drop, |communicator: Communicator| communicator.close().unwrap()] {
        let communicator = fake.communicator(&Config::new());
        let mut memory = fake.memory(communicator.stream(), 8);
        let sum = communicator.scaled_sum(2.0f32).unwrap();
        let prepared: Result<_> = communicator.prepare(|prepare| {
            let mut view = memory.slice_mut::<f32>(..2)?;
            prepare.group(|group| group.all_reduce_in_place(&mut view, &sum))
        });
        let prepared = prepared.unwrap();
        communicator.queue(&prepared).unwrap();
        drop((memory, sum));
        fake.log();
        ended_by(communicator);
        let log = fake.log();
        assert!(log.iter().any(|line| line.starts_with("destroy comm")), "{log:#?}");
        assert!(!log.iter().any(|line| line.starts_with("ncclMemFree")), "{log:#?}");
        // On any thread.
        thread::spawn(move || drop(prepared)).join().unwrap();
        assert!(fake.log().iter().any(|line| line.starts_with("ncclMemFree")));
    }
}

/// The watchdog polls, while the list goes from one operation to the next at once.
#[test]
fn a_list_lets_an_abort_go_first_between_two_operations() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let prepared = sums(&communicator, &mut memory, 3);
    let handle = communicator.abort_handle();
    fake.set(Knob::CallMillis, -1);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("inside NCCL");
            let watchdog = scope.spawn(|| handle.abort().unwrap());
            while !watchdog.is_finished() && !format!("{handle:?}").contains("aborts: 1") {
                thread::yield_now();
            }
            fake.set(Knob::CallMillis, 0);
        });
        communicator.queue(&prepared)
    });
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclAllReduce" })), "{result:?}");
    assert_eq!(fake.log(), ["leaving NCCL", LAUNCH, "abort comm1"]);
}

#[test]
fn each_operation_of_a_non_blocking_communicator_is_waited_for() {
    let fake = Fake::new();
    let config = Config::new().blocking(false).deadline(Duration::from_millis(20));
    let communicator = fake.communicator(&config);
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let prepared = communicator.prepare(|prepare| {
        prepare.all_reduce_in_place(&mut view, Sum)?;
        prepare.group(|group| group.all_reduce_in_place(&mut view, Sum))
    });
    let prepared: Prepared = prepared.unwrap();
    communicator.queue(&prepared).unwrap();
    assert_eq!(fake.log(), [LAUNCH; 2]);
    for entry in 0..2 {
        fake.set(Knob::NcclResult, IN_PROGRESS);
        communicator.queue_range(&prepared, entry..=entry).unwrap();
        assert_eq!(fake.log(), [LAUNCH]);
    }
    fake.set(Knob::NcclResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let result = communicator.queue(&prepared);
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclAllReduce", .. })), "{result:?}");
    assert_eq!(fake.log(), [LAUNCH, "abort comm1"]);
}

#[test]
fn a_window_that_is_written_to_lasts_and_windows_that_came_later_are_ordered() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = fake.memory(communicator.stream(), 16);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    let prepared: Result<_> = communicator.prepare(|prepare| {
        // SAFETY: the other rank is a fake.
        unsafe { prepare.put(&memory.slice::<f32>(..2)?, &window, 2, Signal::new(0)) }?;
        prepare.wait_signals(&[(Signal::new(0), 1)])
    });
    let prepared = prepared.unwrap();
    let other = communicator.stream().context().new_stream().unwrap();
    let later = fake.memory(&other, 16);
    let later_window = communicator.window(&later, WindowKind::Symmetric).unwrap();
    drop(window);
    fake.log();
    communicator.queue(&prepared).unwrap();
    let log = fake.log();
    assert!(log[0].starts_with("launch put comm1 m1->win1+8"), "{log:#?}");
    assert!(log[1].starts_with("launch wait"), "{log:#?}");
    assert!(log[2].ends_with("records s1") && log[3].starts_with("s2 waits"), "{log:#?}");
    drop(prepared);
    assert_eq!(fake.log(), ["deregister win1 comm1"]);
    drop(later_window);
}

/// NCCL looks for windows at each call.
#[test]
fn a_window_that_came_later_is_fenced_and_its_misaligned_places_are_refused() {
    let fake = Fake::new();
    let communicator = fake.rank(fake.library_2_28(), 1, 2, &Config::new());
    let mut memory = Memory::alloc(communicator.library(), communicator.stream(), 16).unwrap();
    let mut view = memory.slice_mut::<u8>(..).unwrap();
    let prepared = communicator.prepare(|prepare| {
        prepare.all_reduce_in_place(&mut view.slice_mut(..8)?, Sum)?;
        prepare.group(|group| group.all_reduce_in_place(&mut view.slice_mut(8..)?, Sum))?;
        prepare.all_reduce_in_place(&mut view.slice_mut(1..)?, Sum)?;
        prepare.group(|group| group.all_gather_in_place(&mut view.slice_mut(..6)?))
    });
    let prepared: Prepared = prepared.unwrap();
    communicator.queue(&prepared).unwrap();
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    fake.log();
    communicator.queue_range(&prepared, ..2).unwrap();
    let log = fake.log();
    let starts: Vec<_> = log.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["a", "launch", "a", "launch"], "{log:#?}");
    for entry in 2..4 {
        let result = communicator.queue_range(&prepared, entry..=entry);
        assert!(matches!(result, Err(Error::Misaligned { .. })), "{entry}: {result:?}");
    }
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));
    drop(window);
}
