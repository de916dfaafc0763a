use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use super::{Backend, Group, HostMemory, Job, WorkError};
use crate::{Error, ReduceOp, world};

/// Runs `body` on a thread for each rank, and returns the results by rank.
fn on_ranks<T: Send>(ranks: usize, body: impl Fn(&Job) -> T + Sync) -> Vec<T> {
    world::on_ranks(ranks, |world| body(&Job::new(world)))
}

fn on_groups<T: Send>(ranks: usize, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    on_ranks(ranks, |job| body(&job.group(Backend::Host).unwrap()))
}

fn is_shared<T: Send + Sync>() {}

#[test]
fn jobs_groups_and_operations_are_used_from_several_threads() {
    is_shared::<Job>();
    is_shared::<Group>();
    is_shared::<super::Work<Vec<f32>>>();
    is_shared::<Error>();
}

#[test]
fn operations_that_own_their_buffers_return_them_in_order() {
    let last = on_groups(3, |group| {
        let rank = group.rank() as f32;
        let sum = group.all_reduce(vec![rank; 1001], ReduceOp::Sum);
        let root = group.broadcast(vec![group.rank() as u64; 7], 2);
        let gathered = group.all_gather(vec![rank; 2], vec![0.0; 6]);
        let scattered = group.reduce_scatter(vec![1.0_f64, 2.0, 3.0], vec![0.0], ReduceOp::Sum);
        let dropped = group.all_reduce(vec![1_u8; 100], ReduceOp::Max);
        drop(dropped);
        assert_eq!(scattered.wait().unwrap().1, [3.0 * (rank as f64 + 1.0)]);
        assert!(sum.is_done() && root.is_done() && gathered.is_done());
        assert_eq!(gathered.wait().unwrap().1, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(root.wait().unwrap(), [2; 7]);
        assert_eq!(sum.wait().unwrap(), vec![3.0; 1001]);
        let mut value = [rank];
        group.all_reduce_in_place(&mut value, ReduceOp::Max).unwrap();
        group.barrier().unwrap();
        value[0]
    });
    assert_eq!(last, [2.0; 3]);
}

#[test]
fn one_rank_has_its_results_at_once() {
    on_groups(1, |group| {
        let reduced = group.all_reduce(vec![3.0_f32; 5], ReduceOp::Avg);
        let gathered = group.all_gather(vec![7_u8; 2], vec![0; 2]);
        let refused = group.broadcast(vec![0_u8], 1);
        assert!(reduced.is_done() && gathered.is_done() && refused.is_done());
        assert_eq!(reduced.wait().unwrap(), [3.0; 5]);
        assert_eq!(gathered.wait().unwrap().1, [7; 2]);
        assert!(matches!(refused.wait(), Err(Error::Buffer(_))));
    });
}

#[test]
fn blocking_operations_come_after_those_under_way() {
    on_groups(2, |group| {
        for round in 0..50_u32 {
            let works: Vec<_> = (0..5).map(|_| group.all_reduce(vec![round; 5000], ReduceOp::Sum)).collect();
            let mut value = [round; 3];
            group.broadcast_in_place(&mut value, 1).unwrap();
            assert!(works.iter().all(super::Work::is_done));
            for work in works {
                assert_eq!(work.wait().unwrap(), vec![2 * round; 5000]);
            }
        }
    });
}

#[test]
fn lists_of_any_lengths_are_reduced_in_one_operation() {
    for scale in [1, 100_000] {
        on_groups(3, |group| {
            let list: Vec<Vec<f32>> =
                [3, 0, 7, 1].iter().map(|&n| vec![group.rank() as f32 + n as f32; n * scale]).collect();
            let list = group.all_reduce_list(list, ReduceOp::Avg).wait().unwrap();
            assert_eq!(list.iter().map(Vec::len).collect::<Vec<_>>(), [3 * scale, 0, 7 * scale, scale]);
            assert!(list[0].iter().all(|&x| x == 4.0) && list[2].iter().all(|&x| x == 8.0));
            assert!(list[3].iter().all(|&x| x == 2.0));
            assert!(group.all_reduce_list(Vec::<Vec<u8>>::new(), ReduceOp::Sum).wait().unwrap().is_empty());
        });
    }
}

#[test]
fn lists_of_other_lengths_are_not_mixed() {
    let errors = on_groups(3, |group| {
        let lengths = if group.rank() == 1 { [4, 4] } else { [3, 5] };
        group.all_reduce_list(lengths.map(|n| vec![1.0_f32; n]).into(), ReduceOp::Sum).wait().unwrap_err()
    });
    for error in errors {
        let Error::Mismatch { rank: 0, called, peer: 1, peer_called: Some(other) } = &error else {
            panic!("{error}")
        };
        assert!(
            called.starts_with("all_reduce_list of 2 buffers with 8 elements") && called != other,
            "{error}"
        );
    }
}

#[test]
fn bytes_of_any_length_are_gathered() {
    on_groups(3, |group| {
        let mine = vec![group.rank() as u8; 5 * group.rank()];
        let all = group.all_gather_bytes(&mine).unwrap();
        assert_eq!(all, [vec![], vec![1; 5], vec![2; 10]]);
    });
}

#[test]
fn a_group_is_split_by_color_and_again() {
    let parts = on_groups(5, |group| {
        let color = (group.rank() != 3).then_some(group.rank() as u32 % 2);
        let part = group.split(color).unwrap();
        // The parts and the whole at the same time.
        let whole = group.all_reduce(vec![1_i32; 3], ReduceOp::Sum);
        let ranks = part.as_ref().map(|part| {
            let sum = part.all_reduce(vec![group.rank() as i64; 4], ReduceOp::Sum).wait().unwrap();
            assert_eq!(sum, vec![part.ranks().iter().sum::<usize>() as i64; 4]);
            let again = part.split(Some(part.rank() as u32 / 2)).unwrap().unwrap();
            let all = again.all_gather_bytes(&[group.rank() as u8]).unwrap().concat();
            assert_eq!(all.iter().map(|&rank| usize::from(rank)).collect::<Vec<_>>(), again.ranks());
            (part.rank(), part.ranks().to_vec(), again.ranks().to_vec())
        });
        assert_eq!(whole.wait().unwrap(), [5; 3]);
        ranks
    });
    let even = |rank, again: &[usize]| Some((rank, vec![0, 2, 4], again.to_vec()));
    assert_eq!(parts, [even(0, &[0, 2]), Some((0, vec![1], vec![1])), even(1, &[0, 2]), None, even(2, &[4])]);
}

#[test]
fn refused_buffers_leave_the_group_usable() {
    on_groups(2, |group| {
        let refused = group.all_gather(vec![1.0_f32; 2], vec![0.0; 5]).wait();
        assert!(matches!(refused, Err(Error::Buffer(_))), "{refused:?}");
        let refused = group.broadcast(vec![1.0_f32; 2], 2).wait().unwrap_err().to_string();
        assert!(refused.starts_with("broadcast: "), "{refused}");
        assert_eq!(group.all_reduce(vec![1_u32; 9], ReduceOp::Sum).wait().unwrap(), [2; 9]);
    });
}

#[test]
fn buffers_come_back_with_the_error() {
    on_groups(2, |group| {
        let WorkError { error, buffers } = group.broadcast(vec![1.0_f32; 2], 2).wait_or_return().unwrap_err();
        assert!(matches!(error, Error::Buffer(_)), "{error}");
        let data = buffers.unwrap();
        let refused = group.all_gather(data, vec![7.0; 5]).wait_or_return().unwrap_err();
        assert_eq!(refused.buffers, Some((vec![1.0; 2], vec![7.0; 5])));
        let list = vec![vec![1_u8; 3], vec![2; group.rank() + 1]];
        let failed = group.all_reduce_list(list, ReduceOp::Sum).wait_or_return().unwrap_err();
        assert!(matches!(failed.error, Error::Mismatch { .. }), "{failed}");
        assert_eq!(failed.buffers.unwrap().len(), 2, "after a failure, too");
        // The group has stopped, and this one does not begin.
        let failed = group.all_reduce(vec![5_u64; 3], ReduceOp::Sum).wait_or_return().unwrap_err();
        assert_eq!(failed.buffers, Some(vec![5; 3]));
    });
}

#[test]
fn the_buffers_of_a_refused_future_can_be_taken() {
    on_groups(1, |group| {
        let mut work = group.broadcast(vec![1.0_f32; 2], 2);
        for _ in 0..2 {
            let polled = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Err(Error::Buffer(_)))), "{polled:?}");
        }
        assert_eq!(work.wait_or_return().unwrap_err().buffers, Some(vec![1.0; 2]));
    });
}

#[test]
fn ranks_that_call_different_operations_read_both_calls() {
    for part in [false, true] {
        let errors = on_groups(3, |group| {
            let color = u32::from(group.rank() != 0);
            let group = if part { group.split(Some(color)).unwrap().unwrap() } else { group.clone() };
            let last = group.rank() + 1 == group.size();
            let first = if last {
                group.broadcast(vec![1.0_f32; 5], 0).wait()
            } else {
                group.all_reduce(vec![1.0_f32; 5], ReduceOp::Sum).wait()
            };
            let again = group.barrier();
            (first.map(drop), again)
        });
        // Rank 0 is alone in its part.
        for (first, again) in errors.into_iter().skip(usize::from(part)) {
            let (Err(error), Err(again)) = (first, again) else { panic!("there must be errors") };
            assert_eq!(error.to_string(), again.to_string());
            let Error::Mismatch { rank, called, peer, peer_called: Some(other) } = error else {
                panic!("{error}")
            };
            let mut calls = [(rank, called), (peer, other)];
            calls.sort_unstable();
            let others = usize::from(part);
            assert!(calls[0].0 >= others && calls[0].0 < 2, "{calls:?}");
            assert_eq!(calls[0].1, "all_reduce of 5 float, sum");
            assert_eq!(calls[1], (2, "broadcast of 5 float, root 0".to_owned()));
        }
    }
}

#[test]
fn a_failed_rank_tells_its_reason() {
    let errors = on_groups(3, |group| {
        if group.rank() == 1 {
            Job::new(Arc::clone(group.world())).fail("step 7: the loss is NaN");
            return None;
        }
        group.all_reduce(vec![1.0_f32; 100_000], ReduceOp::Sum).wait().err()
    });
    for error in [&errors[0], &errors[2]] {
        let Some(Error::RankFailed { rank: 1, reason, .. }) = error else { panic!("{error:?}") };
        assert_eq!(*reason, "step 7: the loss is NaN".into());
    }
}

#[test]
fn a_failed_rank_does_not_hide_its_reason_by_a_later_call() {
    let errors = on_groups(3, |group| {
        let job = Job::new(Arc::clone(group.world()));
        if group.rank() == 1 {
            job.fail("the loss is NaN");
            return group.barrier().unwrap_err();
        }
        group.all_reduce(vec![1.0_f32; 100], ReduceOp::Sum).wait().unwrap_err()
    });
    for error in errors {
        assert_eq!(
            error.to_string(),
            format!("rank 1 on host {} failed: the loss is NaN", world::host().name)
        );
    }
}

#[test]
fn futures_and_dropped_groups_end_in_order() {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    on_groups(2, |group| {
        let mut work = pin!(group.all_reduce(vec![2.0_f32; 300_000], ReduceOp::Prod));
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut context = Context::from_waker(&waker);
        let data = loop {
            match work.as_mut().poll(&mut context) {
                Poll::Ready(data) => break data.unwrap(),
                Poll::Pending => thread::park(),
            }
        };
        assert_eq!(data, vec![4.0; 300_000]);
        assert!(matches!(work.as_mut().poll(&mut context), Poll::Ready(Err(Error::Job(_)))));
    });
    let works = on_ranks(2, |job| job.group(Backend::Host).unwrap().all_reduce(vec![1_u8; 9], ReduceOp::Sum));
    assert!(works.into_iter().all(|work| work.is_done() && work.wait().unwrap() == [2; 9]));
}

#[test]
fn a_rank_that_panics_ends_the_operations_of_the_others() {
    let jobs = Job::new(world::single()).threads(2).unwrap();
    let mut ranks = jobs.into_iter().map(|job| {
        thread::spawn(move || {
            let group = job.group(Backend::Host).unwrap();
            let work = group.all_reduce(vec![1.0_f32; 9], ReduceOp::Sum);
            assert_eq!(work.wait().unwrap(), [2.0; 9]);
            let work = group.all_reduce(vec![1.0_f32; 9], ReduceOp::Sum);
            assert!(group.rank() != 0, "rank 0 panics, and its operation is under way or complete");
            work.wait().map(drop).and_then(|()| group.barrier())
        })
    });
    let (first, second) = (ranks.next().unwrap(), ranks.next().unwrap());
    drop(ranks);
    assert!(first.join().is_err());
    let error = second.join().unwrap().unwrap_err();
    let Error::RankFailed { rank: 0, reason, .. } = &error else { panic!("{error}") };
    assert!(reason.to_string().ends_with("its thread panicked"), "{reason}");
}

/// A panic's payload, or the owner of a buffer.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("this drop panics");
    }
}

/// Waits for an operation of its group, and panics.
struct BadWaker(Group, mpsc::Sender<Result<Vec<i32>, Error>>);

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        self.1.send(self.0.all_reduce(vec![1], ReduceOp::Sum).wait()).unwrap();
        std::panic::panic_any(PanicsWhenDropped);
    }
}

#[test]
fn code_of_the_program_cannot_stop_the_progress_thread() {
    let polled = Barrier::new(2);
    on_groups(2, |group| {
        if group.rank() == 1 {
            polled.wait();
            group.all_reduce(vec![1_u8], ReduceOp::Sum).wait().unwrap();
            assert_eq!(group.all_reduce(vec![1], ReduceOp::Sum).wait().unwrap(), [2], "that of the waker");
            group.all_reduce(vec![1; 5], ReduceOp::Sum).wait().unwrap();
            return group.barrier().unwrap();
        }
        let (sender, waited) = mpsc::channel();
        let waker = Arc::new(BadWaker(group.clone(), sender)).into();
        let mut work = pin!(group.all_reduce(vec![1_u8], ReduceOp::Sum));
        assert!(work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        polled.wait();
        let error = waited.recv().unwrap().unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("a waker of a future"), "{error}");
        let elements = Box::leak(Box::new([1_i32; 5]));
        // SAFETY: nothing else uses the elements, which stay allocated.
        let buffer = unsafe { HostMemory::from_raw(elements.as_mut_ptr(), 5, PanicsWhenDropped) };
        drop(group.all_reduce(buffer, ReduceOp::Sum));
        group.barrier().unwrap();
    });
}

/// Drops a group once another thread is about to drop one.
struct DropsWhenWoken(Mutex<Option<Group>>, Arc<Barrier>, mpsc::Sender<()>);

impl Wake for DropsWhenWoken {
    fn wake(self: Arc<Self>) {
        self.1.wait();
        drop(self.0.lock().unwrap().take());
        self.2.send(()).unwrap();
    }
}

#[test]
fn wakers_of_two_groups_can_drop_each_other() {
    let polled = Barrier::new(2);
    on_ranks(2, |job| {
        let groups = [(); 2].map(|()| job.group(Backend::Host).unwrap());
        if job.rank() == 1 {
            polled.wait();
            return groups
                .iter()
                .for_each(|group| drop(group.all_reduce(vec![1_u8], ReduceOp::Sum).wait().unwrap()));
        }
        let (both, (sender, dropped)) = (Arc::new(Barrier::new(2)), mpsc::channel());
        let wakers =
            [(); 2].map(|()| Arc::new(DropsWhenWoken(Mutex::default(), both.clone(), sender.clone())));
        let mut works = [0, 1].map(|this| groups[this].all_reduce(vec![1_u8], ReduceOp::Sum));
        for (work, waker) in works.iter_mut().zip(&wakers) {
            let waker = Arc::clone(waker).into();
            assert!(pin!(work).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        for (group, waker) in groups.into_iter().rev().zip(&wakers) {
            *waker.0.lock().unwrap() = Some(group);
        }
        polled.wait();
        for _ in 0..2 {
            dropped.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    });
}

#[test]
fn ranks_that_make_groups_of_different_backends_can_make_another() {
    let errors = on_ranks(3, |job| {
        let backend = if job.rank() == 2 { Backend::Auto } else { Backend::Host };
        let error = job.group(backend).unwrap_err();
        job.group(Backend::Host).unwrap().barrier().unwrap();
        error
    });
    for error in errors {
        let Error::Mismatch { rank: 0, called, peer: 2, peer_called: Some(other) } = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (called.as_str(), other.as_str()),
            ("group with Backend::Host", "group with Backend::Auto")
        );
    }
}

#[test]
fn automatic_groups_say_where_they_run_and_why() {
    let groups = on_ranks(2, |job| {
        let group = job.group(Backend::Auto).unwrap();
        group.barrier().unwrap();
        let refused = match group.backend() {
            Backend::Host => job.group(Backend::Gpu).err().map(|error| error.to_string()),
            _ => None,
        };
        (group.backend(), group.describe(), refused)
    });
    let (backend, description, refused) = &groups[0];
    assert_eq!(groups[1].0, *backend);
    if *backend == Backend::Host {
        let (_, reason) = description.split_once("; not GPUs: ").unwrap();
        assert!(!reason.contains('\n') && !reason.ends_with(':'), "{reason}");
        let refused = refused.as_ref().unwrap();
        assert!(refused.starts_with(&format!("Backend::Gpu: {reason}")), "{refused}");
    }
}

/// Threads of a rank split one group at the same time; the parts of the ranks belong together in any order.
#[test]
fn threads_split_a_group_at_the_same_time() {
    for _ in 0..20 {
        on_groups(2, |group| {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let part = group.split(Some(0)).unwrap().unwrap();
                        assert_eq!(part.ranks(), [0, 1]);
                        let sum = part.all_reduce(vec![part.rank() as u32; 1000], ReduceOp::Sum);
                        assert_eq!(sum.wait().unwrap(), [1; 1000]);
                    });
                }
            });
        });
    }
}
