//! Groups of jobs, whose ranks are threads.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use collectives::job::{Backend, Group, Job};
use collectives::{Error, ReduceOp, world};
use cudarc::driver::CudaContext;

use crate::gpus::Gpus;

/// Runs `body` on a thread for each rank.
pub(crate) fn on_groups(gpus: Gpus, body: impl Fn(&Group) + Sync) {
    let jobs = Job::new(world::single()).threads(gpus.count).unwrap();
    thread::scope(|scope| {
        for job in jobs {
            let body = &body;
            scope.spawn(move || {
                let context = CudaContext::new(gpus.device(job.local_rank())).unwrap();
                body(&job.group_on_gpu(gpus.library, &context).unwrap());
            });
        }
    });
}

/// All operations, with buffers of the group's stream and of another one, and a group of every second rank.
pub(crate) fn operations() {
    on_groups(Gpus::all(), |group| {
        works(group);
        let part = group.split(Some(group.rank() as u32 % 2)).unwrap().unwrap();
        works(&part);
        let messages = part.all_gather_bytes(&vec![7; group.rank()]).unwrap();
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), part.ranks());
        drop(part);
        works(group);
        messages_of_two_groups(group);
    });
}

/// Messages of two groups of all ranks, on a thread for each.
fn messages_of_two_groups(group: &Group) {
    let other = group.split(Some(0)).unwrap().unwrap();
    let expected = |first: u8| (0..group.size()).map(|rank| vec![first; rank]).collect::<Vec<_>>();
    thread::scope(|scope| {
        for (group, first) in [(group, 1), (&other, 2)] {
            let expected = &expected;
            scope.spawn(move || {
                for _ in 0..50 {
                    let messages = group.all_gather_bytes(&vec![first; group.rank()]).unwrap();
                    assert_eq!(messages, expected(first));
                }
            });
        }
    });
}

fn works(group: &Group) {
    let (rank, size) = (group.rank(), group.size());
    assert_eq!(group.backend(), Backend::Gpu);
    let mean = (size - 1) as f32 / 2.0;
    let own = group.stream().unwrap();
    let compute = group.context().unwrap().new_stream().unwrap();
    for stream in [own, &compute] {
        let gradients = stream.clone_htod(&vec![rank as f32; 100_003]).unwrap();
        let reduced = group.all_reduce(gradients, ReduceOp::Avg).wait_on(&compute).unwrap();
        assert_eq!(compute.clone_dtoh(&reduced).unwrap(), vec![mean; 100_003]);
        let lengths = [3, 1000, 17];
        let list =
            lengths.iter().map(|&length| stream.clone_htod(&vec![rank as f32; length]).unwrap()).collect();
        let list = group.all_reduce_list(list, ReduceOp::Avg).wait().unwrap();
        for (buffer, length) in list.iter().zip(lengths) {
            assert_eq!(stream.clone_dtoh(buffer).unwrap(), vec![mean; length]);
        }
        let part = stream.clone_htod(&[rank as i32; 2]).unwrap();
        let whole = stream.alloc_zeros::<i32>(2 * size).unwrap();
        let (_, whole) = group.all_gather(part, whole).wait().unwrap();
        let gathered = stream.clone_dtoh(&whole).unwrap();
        assert!(
            gathered.iter().enumerate().all(|(index, &value)| value as usize == index / 2),
            "{gathered:?}"
        );
        let part = stream.alloc_zeros::<i32>(2).unwrap();
        let (_, part) = group.reduce_scatter(whole, part, ReduceOp::Sum).wait().unwrap();
        assert_eq!(stream.clone_dtoh(&part).unwrap(), [(rank * size) as i32; 2]);
        let root = group.broadcast(part, size - 1).wait().unwrap();
        assert_eq!(stream.clone_dtoh(&root).unwrap(), [((size - 1) * size) as i32; 2]);
    }
    let mut values = vec![rank as f64; 1001];
    group.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
    assert_eq!(values, vec![(size * (size - 1) / 2) as f64; 1001]);
    let mut values = [rank as u8; 5];
    group.broadcast_in_place(&mut values, size - 1).unwrap();
    assert_eq!(values, [(size - 1) as u8; 5]);
    group.barrier().unwrap();
}

/// Rank 0 does not come to an operation.
pub(crate) fn a_missing_rank() {
    let (gpus, limit) = (Gpus::all(), Duration::from_secs(3));
    let ended = Barrier::new(gpus.count);
    on_groups(gpus, |group| {
        works(group);
        group.set_timeout(Some(limit));
        if group.rank() > 0 {
            let start = Instant::now();
            let gradients = group.stream().unwrap().alloc_zeros::<f32>(1000).unwrap();
            let error = group.all_reduce(gradients, ReduceOp::Sum).wait().map(drop).unwrap_err();
            assert!(start.elapsed() < Duration::from_millis(3500), "{:?}", start.elapsed());
            assert!(error.to_string().contains("all_reduce of 1000 float, sum"), "{error}");
            assert!(group.barrier().is_err());
        }
        ended.wait();
    });
}

/// The last rank leaves before an operation of the others.
pub(crate) fn a_rank_that_left() {
    on_groups(Gpus::all(), |group| {
        works(group);
        if group.rank() + 1 < group.size() {
            let gradients = group.stream().unwrap().alloc_zeros::<f32>(1000).unwrap();
            let error = group.all_reduce(gradients, ReduceOp::Sum).wait().map(drop).unwrap_err();
            let Error::Mismatch { called, peer_called: Some(other), .. } = &error else { panic!("{error}") };
            let calls = [called, other];
            assert!(calls.iter().any(|call| *call == "all_reduce of 1000 float, sum"), "{error}");
            assert!(calls.iter().any(|call| *call == "nothing more, and left"), "{error}");
        }
    });
}
