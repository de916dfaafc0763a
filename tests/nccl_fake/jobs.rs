//! Groups of jobs on GPUs.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};

use collectives::job::{Backend, Buffer, DeviceMemory, Group, Job};
#[cfg(feature = "fabric")]
use collectives::train::{Parameter, Reducer, ReducerOptions};
use collectives::{Element, Error, ReduceOp, world};
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, DeviceRepr, ValidAsZeroBits};

use crate::REMOTE_ERROR;
use crate::fake::{Fake, Knob, aborts};

/// Runs `body` on a thread for each rank, which owns a group on a device of its own. Operations wait for all
/// ranks.
pub(crate) fn with_groups<T: Send>(fake: &Fake, ranks: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let jobs = Job::new(world::single()).threads(ranks).unwrap();
    let library = fake.library();
    fake.set(Knob::MovesData, aborts::MISLEAD);
    let start = |job: Job| {
        let context = CudaContext::new(job.local_rank()).unwrap();
        body(job.group_on_gpu(library, &context).unwrap())
    };
    let start = &start;
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || start(job))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Like [`with_groups`], with a group that outlives `body`.
pub(crate) fn on_gpus<T: Send>(fake: &Fake, ranks: usize, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    with_groups(fake, ranks, |group| body(&group))
}

fn memory<T: Element + DeviceRepr + ValidAsZeroBits>(group: &Group, len: usize) -> CudaSlice<T> {
    group.stream().unwrap().alloc_zeros(len).unwrap()
}

#[test]
fn operations_run_in_order_and_return_their_buffers() {
    let fake = Fake::new();
    on_gpus(&fake, 2, |group| {
        assert_eq!((group.backend(), group.size()), (Backend::Gpu, 2));
        assert_eq!(group.context().unwrap().ordinal(), group.rank());
        let all_reduce = group.all_reduce(memory::<f32>(group, 5), ReduceOp::Avg);
        let broadcast = group.broadcast(memory::<u8>(group, 3), 1);
        let gather = group.all_gather(memory::<f64>(group, 2), memory(group, 4));
        let scatter = group.reduce_scatter(memory::<i32>(group, 6), memory(group, 3), ReduceOp::Sum);
        let list = group.all_reduce_list(vec![memory::<f32>(group, 1), memory(group, 7)], ReduceOp::Sum);
        drop(group.all_reduce(memory::<i64>(group, 1), ReduceOp::Max));
        assert_eq!(list.wait().unwrap().iter().map(CudaSlice::len).collect::<Vec<_>>(), [1, 7]);
        assert_eq!((all_reduce.wait().unwrap().len(), broadcast.wait().unwrap().len()), (5, 3));
        let compute = group.context().unwrap().new_stream().unwrap();
        assert_eq!(gather.wait_on(&compute).unwrap().1.len(), 4);
        assert_eq!(scatter.wait().unwrap().1.len(), 3);
    });
    let log = fake.log();
    for operation in ["all_reduce", "broadcast", "all_gather", "reduce_scatter"] {
        assert!(
            log.iter().filter(|line| line.starts_with(&format!("launch {operation} "))).count() >= 2,
            "{operation}: {log:#?}"
        );
    }
    assert!(log.iter().filter(|line| line.starts_with("destroy")).count() == 2, "{log:#?}");
}

#[test]
fn memory_of_another_library_is_used_where_it_is() {
    let fake = Fake::new();
    on_gpus(&fake, 2, |group| {
        let (stream, owner) = (group.stream().unwrap(), Arc::new(()));
        let slice = memory::<f32>(group, 16);
        let (address, _) = slice.device_ptr(stream);
        // SAFETY: parts of the slice, which is dropped last, and whose stream is the group's.
        let part = |start: u64, len| unsafe {
            DeviceMemory::<f32>::from_raw(address + 4 * start, len, Arc::clone(stream), Arc::clone(&owner))
        };
        let reduced = group.all_reduce(part(0, 3), ReduceOp::Sum);
        let gathered = group.all_gather(part(4, 2), part(6, 4));
        let list = group.all_reduce_list(vec![part(10, 1), part(11, 2)], ReduceOp::Avg);
        assert_eq!(Arc::strong_count(&owner), 6);
        assert_eq!(
            format!("{:?}", reduced.wait().unwrap()),
            format!("DeviceMemory(3 elements at {address:#x})")
        );
        assert_eq!(gathered.wait().unwrap().1.len(), 4);
        assert_eq!(list.wait().unwrap().len(), 2);
        assert_eq!(Arc::strong_count(&owner), 1);
    });
}

#[test]
fn refused_buffers_leave_the_group_usable() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let refused = group.all_gather(memory::<f32>(group, 2), memory(group, 3)).wait().unwrap_err();
        assert!(matches!(refused, Error::Buffer(_)), "{refused}");
        assert_eq!(group.all_reduce(memory::<f32>(group, 2), ReduceOp::Sum).wait().unwrap().len(), 2);
    });
}

#[cfg(feature = "fabric")]
#[test]
fn memory_of_the_other_backend_is_refused() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let host = group.all_reduce(vec![1.0_f32], ReduceOp::Sum).wait().unwrap_err().to_string();
        assert!(host.starts_with("all_reduce: the buffer is host memory"), "{host}");
        let options = ReducerOptions::default();
        let host = Reducer::<Vec<f32>>::new(group, &[Parameter::new("p", [8])], &options).unwrap_err();
        assert!(host.to_string().starts_with("gradients in host memory, but a group over GPUs"), "{host}");
        assert_eq!(group.all_reduce(memory::<f32>(group, 2), ReduceOp::Sum).wait().unwrap().len(), 2);
    });
    let job = Job::new(world::single());
    let group = job.group(Backend::Host).unwrap();
    let stream = fake.stream(0);
    // SAFETY: as above.
    let memory = unsafe { stream.alloc::<f32>(2) }.unwrap();
    let device = group.broadcast(memory, 0).wait().unwrap_err().to_string();
    assert!(device.starts_with("broadcast: the buffer is memory of a GPU"), "{device}");
}

#[test]
fn a_group_is_split_by_color() {
    let fake = Fake::new();
    let parts = on_gpus(&fake, 3, |group| {
        let part = group.split((group.rank() != 1).then_some(7)).unwrap()?;
        part.all_reduce(memory::<f32>(&part, 5), ReduceOp::Sum).wait().unwrap();
        Some((part.rank(), part.ranks().to_vec()))
    });
    assert_eq!(parts, [Some((0, vec![0, 2])), None, Some((1, vec![0, 2]))]);
}

#[test]
fn host_memory_is_copied_to_the_gpu_and_back() {
    let fake = Fake::new();
    on_gpus(&fake, 2, |group| {
        assert_eq!(group.all_gather_bytes(&vec![3; group.rank()]).unwrap(), [vec![], vec![3]]);
        let alone = group.split(Some(group.rank() as u32)).unwrap().unwrap();
        let mut values = [group.rank() as f64, 0.5, f64::MAX];
        let before = values;
        alone.all_reduce_in_place(&mut values, ReduceOp::Avg).unwrap();
        alone.broadcast_in_place(&mut values, 0).unwrap();
        assert_eq!(values, before);
        alone.all_reduce_in_place::<f32>(&mut [], ReduceOp::Sum).unwrap();
        assert_eq!(alone.all_gather_bytes(&[7; 5]).unwrap(), [[7; 5]]);
        assert_eq!(alone.all_gather_bytes(&[]).unwrap(), [[0; 0]]);
        alone.barrier().unwrap();
        let refused = alone.broadcast_in_place(&mut values, 1).unwrap_err();
        assert!(matches!(refused, Error::Buffer(_)), "{refused}");
    });
}

#[test]
fn a_missing_rank_is_noticed_after_the_timeout() {
    let fake = Fake::new();
    let limit = Duration::from_millis(300);
    let errors = on_gpus(&fake, 1, |group| {
        group.set_timeout(Some(limit));
        group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum).wait().unwrap();
        fake.set(Knob::Hang, 1);
        let start = Instant::now();
        let error = group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum).wait().unwrap_err();
        assert!(start.elapsed() >= limit);
        (error, group.barrier().is_err())
    });
    let (Error::TimedOut { operation, limit: found, late }, true) = &errors[0] else { panic!("{errors:?}") };
    assert_eq!((operation.as_str(), *found, late.len()), ("all_reduce of 5 float, sum", limit, 0));
    fake.set(Knob::Hang, 0);
    assert!(fake.log().iter().any(|line| line.starts_with("abort")));
}

/// Rank 1 does not call the operation until the others have failed; the group has the ranks 1, 2 and 3 of the
/// job.
#[test]
fn all_ranks_name_the_ranks_that_are_late() {
    let fake = Fake::new();
    let (limit, others) = (Duration::from_secs(3), Barrier::new(3));
    let errors = on_gpus(&fake, 4, |group| {
        let part = group.split((group.rank() != 0).then_some(1)).unwrap()?;
        part.set_timeout(Some(limit));
        if part.rank() == 0 {
            others.wait();
        }
        let error = part.all_reduce(memory::<f32>(&part, 5), ReduceOp::Sum).wait().unwrap_err();
        if part.rank() != 0 {
            others.wait();
        }
        Some(error)
    });
    assert!(errors[0].is_none());
    for error in errors.iter().skip(1) {
        let Some(Error::TimedOut { operation, limit: found, late }) = error else { panic!("{errors:?}") };
        assert_eq!((operation.as_str(), *found), ("all_reduce of 5 float, sum", limit));
        assert_eq!(late, &[(1, world::host().name)]);
    }
}

#[test]
fn a_failed_rank_ends_the_operations_of_the_others() {
    let fake = Fake::new();
    let errors = on_gpus(&fake, 2, |group| {
        if group.rank() == 1 {
            group.world().fail("step 7: the loss is NaN".into());
            return None;
        }
        group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum).wait().err()
    });
    let Some(Error::RankFailed { rank: 1, reason, .. }) = &errors[0] else { panic!("{errors:?}") };
    assert_eq!(*reason, "step 7: the loss is NaN".into());
}

/// The group's own allocations, before anything is sent.
#[test]
fn a_rank_without_memory_ends_the_operations_of_the_others() {
    for call in [|group: &Group| group.barrier(), |group: &Group| group.broadcast_in_place(&mut [0.0_f32], 0)]
    {
        let fake = Fake::new();
        fake.set(Knob::Hang, 2);
        let waits = Barrier::new(2);
        let errors = on_gpus(&fake, 2, |group| {
            if group.rank() == 0 {
                let work = group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum);
                waits.wait();
                return work.wait().map(drop).unwrap_err();
            }
            // While it is under way, a thread of the group asks the world for failures, which has this rank's
            // own, too.
            let under_way = group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum);
            waits.wait();
            fake.set(Knob::NoMemory, 1);
            let error = call(group).unwrap_err();
            fake.set(Knob::NoMemory, 0);
            assert_eq!(under_way.wait().unwrap_err().to_string(), error.to_string());
            assert_eq!(group.check().unwrap_err().to_string(), error.to_string());
            assert_eq!(group.barrier().unwrap_err().to_string(), error.to_string());
            assert!(group.world().check().is_err());
            error
        });
        assert!(matches!(&errors[1], Error::Cuda(_)), "{errors:?}");
        let Error::RankFailed { rank: 1, reason, .. } = &errors[0] else { panic!("{errors:?}") };
        assert!(reason.to_string().contains("OUT_OF_MEMORY"), "{reason}");
    }
}

#[test]
fn a_copy_that_blocks_the_driver_does_not_delay_the_end() {
    let fake = Fake::new();
    fake.set(Knob::BlockingCopies, 1);
    let errors = on_gpus(&fake, 2, |group| {
        if group.rank() == 1 {
            fake.until("cuEventQuery waits for a copy");
            group.world().fail("step 7: the loss is NaN".into());
            return None;
        }
        let compute = group.context().unwrap().new_stream().unwrap();
        let loss = group.all_reduce(memory::<f32>(group, 1), ReduceOp::Sum).wait_on(&compute).unwrap();
        let start = Instant::now();
        compute.clone_dtoh(&loss).unwrap();
        // Unless NCCL's work is aborted, the fake ends the copy after 20 s.
        assert!(start.elapsed() < Duration::from_secs(15));
        group.all_reduce(loss, ReduceOp::Sum).wait().err()
    });
    let Some(Error::RankFailed { rank: 1, reason, .. }) = &errors[0] else { panic!("{errors:?}") };
    assert_eq!(*reason, "step 7: the loss is NaN".into());
}

#[test]
fn ranks_that_call_different_operations_read_both_calls() {
    let fake = Fake::new();
    let errors = on_gpus(&fake, 2, |group| match group.rank() {
        0 => group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum).wait().map(drop).unwrap_err(),
        _ => group.broadcast(memory::<f32>(group, 5), 0).wait().map(drop).unwrap_err(),
    });
    for error in errors {
        let Error::Mismatch { rank: 0, called, peer: 1, peer_called: Some(other) } = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (called.as_str(), other.as_str()),
            ("all_reduce of 5 float, sum", "broadcast of 5 float, root 0")
        );
    }
}

#[test]
fn bytes_that_other_ranks_do_not_gather_are_noticed() {
    for timeout in [None, Some(Duration::from_millis(200))] {
        let fake = Fake::new();
        let errors = on_gpus(&fake, 2, |group| {
            group.set_timeout(timeout.filter(|_| group.rank() == 1));
            match group.rank() {
                0 => group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum).wait().map(drop).unwrap_err(),
                _ => group.all_gather_bytes(b"name").unwrap_err(),
            }
        });
        // The timeout has the calls compared early. Rank 0 may report its call too late for that on a busy
        // machine.
        if let (Some(_), Error::TimedOut { operation, late, .. }) = (timeout, &errors[1]) {
            assert_eq!((operation.as_str(), late[0].0), ("all_gather_bytes", 0));
            assert_eq!(errors[0].to_string(), errors[1].to_string());
            continue;
        }
        for error in errors {
            let Error::Mismatch { rank: 0, called, peer: 1, peer_called: Some(other) } = &error else {
                panic!("{error}")
            };
            assert_eq!((called.as_str(), other.as_str()), ("all_reduce of 5 float, sum", "all_gather_bytes"));
        }
    }
}

#[test]
fn a_rank_that_left_is_named() {
    let fake = Fake::new();
    let errors = on_gpus(&fake, 2, |group| {
        (group.rank() == 0).then(|| group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum).wait().map(drop))
    });
    let Some(Err(Error::Mismatch { called, peer: 1, peer_called: Some(left), .. })) = &errors[0] else {
        panic!("{errors:?}")
    };
    assert_eq!((called.as_str(), left.as_str()), ("all_reduce of 5 float, sum", "nothing more, and left"));
}

#[test]
fn an_error_of_nccl_reaches_the_other_ranks() {
    let fake = Fake::new();
    let errors = on_gpus(&fake, 1, |group| {
        fake.set(Knob::Hang, 1);
        let work = group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum);
        fake.set(Knob::AsyncResult, REMOTE_ERROR);
        work.wait().unwrap_err()
    });
    fake.set(Knob::AsyncResult, 0);
    assert!(matches!(&errors[0], Error::Nccl(_)), "{errors:?}");
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn an_operation_is_a_future() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        fake.set(Knob::Hang, 1);
        group.set_timeout(Some(Duration::from_millis(200)));
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut context = Context::from_waker(&waker);
        let mut hangs = pin!(group.all_reduce(memory::<f32>(group, 5), ReduceOp::Sum));
        let error = loop {
            match hangs.as_mut().poll(&mut context) {
                Poll::Ready(result) => break result.unwrap_err(),
                Poll::Pending => thread::park(),
            }
        };
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    });
}

/// Drops a group when it is woken.
struct Leave {
    group: Mutex<Option<Group>>,
    thread: thread::Thread,
}

impl Wake for Leave {
    fn wake(self: Arc<Self>) {
        drop(self.group.lock().unwrap().take());
        self.thread.unpark();
    }
}

#[test]
fn a_waker_can_drop_the_last_handle() {
    let fake = Fake::new();
    fake.set(Knob::Hang, 1);
    let world = world::single();
    let group =
        Job::new(Arc::clone(&world)).group_on_gpu(fake.library(), &CudaContext::new(0).unwrap()).unwrap();
    group.set_timeout(Some(Duration::from_millis(200)));
    let mut work = Box::pin(group.all_reduce(memory::<f32>(&group, 5), ReduceOp::Sum));
    let waker = Arc::new(Leave { group: Mutex::new(Some(group)), thread: thread::current() });
    let error = loop {
        match work.as_mut().poll(&mut Context::from_waker(&Arc::clone(&waker).into())) {
            Poll::Ready(result) => break result.unwrap_err(),
            Poll::Pending => thread::park(),
        }
    };
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    drop((work, waker));
    let start = Instant::now();
    while Arc::strong_count(&world) > 1 {
        assert!(start.elapsed() < Duration::from_secs(30), "the threads of the group do not end");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Thread 2 of rank 0 queues a second operation while thread 1 waits for the first. Rank 1 calls the second
/// one once thread 1 has returned.
#[test]
fn an_operation_on_host_memory_does_not_wait_for_later_ones() {
    let fake = Fake::new();
    let (queued, returned) = (Barrier::new(2), Barrier::new(2));
    on_gpus(&fake, 2, |group| {
        let second = || group.all_reduce(memory::<f32>(group, 3), ReduceOp::Sum);
        let mut host = [1.0_f32; 4];
        if group.rank() == 1 {
            queued.wait();
            group.all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
            returned.wait();
            second().wait().unwrap();
            return;
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                group.all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
                assert_eq!(host, [2.0; 4]);
                returned.wait();
            });
            // The group asks while an operation is being called or under way: the second one comes after it.
            fake.until_polled();
            let work = second();
            queued.wait();
            work.wait().unwrap();
        });
    });
}
