//! Groups of jobs, whose ranks are threads.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use collectives::job::{Group, Job};
use collectives::{Error, ReduceOp, world};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

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

/// Rank 0 drops a group whose operation is under way while the group's stream is being captured. The others
/// come late.
pub(crate) fn a_group_dropped_in_a_capture() {
    const LEN: usize = 1000;
    let gpus = Gpus::all();
    let (called, ended) = (Barrier::new(gpus.count), Barrier::new(gpus.count));
    on_groups(gpus, |group| {
        let part = group.split(Some(0)).unwrap().unwrap();
        // NCCL connects in the first operation, whose call waits for the other ranks.
        part.barrier().unwrap();
        let (rank, size, stream) = (part.rank(), part.size(), part.stream().unwrap().clone());
        let data = stream.clone_htod(&[1.0_f32; LEN]).unwrap();
        if rank > 0 {
            called.wait();
        }
        let work = part.all_reduce(data, ReduceOp::Sum);
        if rank == 0 {
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
            called.wait();
            drop(part);
            stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        }
        let data = work.wait().unwrap();
        assert_eq!(stream.clone_dtoh(&data).unwrap(), [size as f32; LEN]);
        ended.wait();
    });
}

/// A buffer of a context object without counted streams, whose earlier work CUDA cannot wait for beside a
/// capture on the device.
pub(crate) fn a_context_object_without_counted_streams() {
    on_groups(Gpus::all(), |group| {
        let context = CudaContext::new(group.context().unwrap().ordinal()).unwrap();
        let data = || context.default_stream().clone_htod(&[1.0_f32; 8]).unwrap();
        let (first, second) = (data(), data());
        let captured = group.context().unwrap().new_stream().unwrap();
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let refused = group.all_reduce(first, ReduceOp::Sum).wait().map(drop).unwrap_err();
        assert!(matches!(refused, Error::Buffer(_)), "{refused}");
        captured.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
        group.check().unwrap();
        let sum = group.all_reduce(second, ReduceOp::Sum).wait().unwrap();
        assert_eq!(context.default_stream().clone_dtoh(&sum).unwrap(), [group.size() as f32; 8]);
        let mut host = [1.0_f32; 1000];
        group.all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap();
        assert_eq!(host, [group.size() as f32; 1000]);
    });
}
