//! Groups of jobs, whose ranks are threads.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use collectives::job::{Group, Job};
use collectives::{Error, ReduceOp, world};
use cudarc::driver::CudaContext;

use crate::gpus::Gpus;
use crate::shape::gpu::Gpu;
use crate::shape::{messages_at_once, works};

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
        works::<Gpu>(group);
        let part = group.split(Some(group.rank() as u32 % 2)).unwrap().unwrap();
        works::<Gpu>(&part);
        let messages = part.all_gather_bytes(&vec![7; group.rank()]).unwrap();
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), part.ranks());
        drop(part);
        works::<Gpu>(group);
        messages_at_once(group);
    });
}

/// Rank 0 does not come to an operation.
pub(crate) fn a_missing_rank() {
    let (gpus, limit) = (Gpus::all(), Duration::from_secs(3));
    let ended = Barrier::new(gpus.count);
    on_groups(gpus, |group| {
        works::<Gpu>(group);
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
        works::<Gpu>(group);
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
