//! Memory that the library frees while cudarc has noted an error, or in a context object whose streams cudarc
//! does not count: cudarc's drop waits for no event then.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::job::{Backend, Group, Job, Work};
use collectives::nccl::{self, Memory};
use collectives::train::{Reducer, Zero1};
use collectives::world::{self, Called, Position, Reason, World};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};

use crate::fake::{Fake, Knob};
use crate::jobs::{on_gpus, with_groups};
use crate::training::{compute, options, parameters};
use crate::uncounted::copied;

const UNKNOWN: DriverError = DriverError(CUresult::CUDA_ERROR_UNKNOWN);

/// A world of the program that notes an error in a context object, once it is armed, when the library reports
/// its last call or a failure. A subscriber of the log could do it as well.
struct Noting {
    inner: world::Handle,
    armed: Mutex<Option<Arc<CudaContext>>>,
}

impl Noting {
    fn note_error(&self) {
        if let Some(context) = &*self.armed.lock().unwrap() {
            context.record_err::<()>(Err(UNKNOWN));
        }
    }
}

impl World for Noting {
    fn position(&self) -> Position {
        self.inner.position()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.inner.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.inner.all_gather(mine)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.inner)
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        self.note_error();
        self.inner.compare(rank, topic, calls);
    }

    fn fail(&self, reason: Reason) {
        self.note_error();
        self.inner.fail(reason);
    }

    fn abort(&self, code: i32, _message: &str) -> ! {
        std::process::exit(code)
    }
}

fn group_of_noting_world(fake: &Fake) -> (Arc<Noting>, Group) {
    let world = Arc::new(Noting { inner: world::single(), armed: Mutex::new(None) });
    let job = Job::new(Arc::clone(&world) as world::Handle);
    let group = job.group_on_gpu(fake.library(), &CudaContext::new(0).unwrap()).unwrap();
    (world, group)
}

/// The end of a group runs code of the program, which may note an error: the buckets are freed before it.
#[test]
fn averages_that_are_read_are_not_freed_at_the_end_of_the_group() {
    let fake = Fake::new();
    let (world, group) = group_of_noting_world(&fake);
    let context = Arc::clone(group.context().unwrap());
    let (stream, other) = (compute(&group), compute(&group));
    let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut read = other.alloc_zeros::<f32>(8).unwrap();
    let mut reducer: Reducer<CudaSlice<f32>> = Reducer::new(&group, &parameters(&[8]), &options()).unwrap();
    let mut step = reducer.step(0).unwrap();
    step.ready(0, gradient.as_view()).unwrap();
    step.wait().unwrap();
    drop(group);
    // On a stream that is ordered by cudarc's events.
    other.memcpy_dtod(&reducer.gradient(0).unwrap(), &mut read).unwrap();
    *world.armed.lock().unwrap() = Some(context);
    drop(reducer);
    assert_eq!(fake.bugs(), [""; 0]);
}

/// The same with a shard that the update of a step writes on a stream of its own.
#[test]
fn shards_that_are_written_are_not_freed_at_the_end_of_the_group() {
    let fake = Fake::new();
    let (world, group) = group_of_noting_world(&fake);
    let context = Arc::clone(group.context().unwrap());
    let (stream, other) = (compute(&group), compute(&group));
    let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
    let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut model = stream.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(&group, &parameters(&[8]), &options()).unwrap();
    drop(group);
    let stepped = zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |mut values, _| {
        other.memcpy_dtod(&source, &mut values)?;
        Err(collectives::Error::Job("the update fails".to_owned()))
    });
    stepped.unwrap_err();
    *world.armed.lock().unwrap() = Some(context);
    drop(zero);
    assert_eq!(fake.bugs(), [""; 0]);
}

/// An operation that fails before it waits for its buffer: the buffer is freed before the world is told.
#[test]
fn the_buffer_of_a_failed_operation_is_freed_after_its_uses() {
    let fake = Fake::new();
    let (world, group) = group_of_noting_world(&fake);
    let (stream, other) = (compute(&group), compute(&group));
    let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut buffer = stream.clone_htod(&[2.0_f32; 8]).unwrap();
    other.memcpy_dtod(&source, &mut buffer).unwrap();
    *world.armed.lock().unwrap() = Some(Arc::clone(group.context().unwrap()));
    // The order of the buffer's stream with the group's fails.
    fake.set(Knob::EventsFail, 1);
    let failed = group.all_reduce(buffer, Sum).wait_or_return();
    fake.set(Knob::EventsFail, 0);
    assert!(failed.is_err());
    drop(failed);
    assert_eq!(fake.bugs(), [""; 0]);
    drop(group);
}

/// The operation waits for another thread's call of the group, and the group fails meanwhile. The error is
/// noted in the buffer's own context object, so that the other call does not take it.
#[test]
fn the_buffer_of_an_operation_that_does_not_begin_is_freed_after_its_uses() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(group.context().unwrap().ordinal()).unwrap();
        let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
        let first = compute(group).clone_htod(&[1.0_f32; 8]).unwrap();
        let mut buffer = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        group.barrier().unwrap();
        group.set_timeout(Some(Duration::from_millis(300)));
        fake.set(Knob::CallMillis, -1);
        thread::scope(|scope| {
            scope.spawn(move || drop(group.all_reduce(first, Sum)));
            fake.until("inside NCCL");
            other.memcpy_dtod(&source, &mut buffer).unwrap();
            scope.spawn(|| {
                while group.check().is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
                // Before the operation learns of the failure, and drops its buffers.
                context.record_err::<()>(Err(UNKNOWN));
                fake.set(Knob::CallMillis, 0);
            });
            let failed = group.all_reduce(buffer, Sum).wait_or_return();
            assert!(failed.is_err());
        });
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

/// The operation waits for an earlier read on a third stream, and the buffer's own stream does not.
#[test]
fn a_buffer_that_was_read_is_not_freed_when_its_operation_is_dropped() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (stream, other) = (compute(group), compute(group));
        let part = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let whole = stream.alloc_zeros::<f32>(8).unwrap();
        let _copy = other.clone_dtod(&part).unwrap();
        let work = group.all_gather(part, whole);
        group.context().unwrap().record_err::<()>(Err(UNKNOWN));
        drop(work);
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

/// A capture of the group's stream by a program that still has the stream when the group ends.
#[test]
fn the_memory_of_compared_steps_is_not_freed_in_a_capture() {
    let fake = Fake::new();
    with_groups(&fake, 2, |group| {
        let gradient = compute(&group).clone_htod(&[1.0_f32; 8]).unwrap();
        let mut reducer = Reducer::<CudaSlice<f32>>::new(&group, &parameters(&[8]), &options()).unwrap();
        let mut step = reducer.step(0).unwrap();
        step.ready(0, gradient.as_view()).unwrap();
        step.wait().unwrap();
        drop(reducer);
        group.barrier().unwrap();
        let stream = Arc::clone(group.stream().unwrap());
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        drop(group);
        let _noted = stream.context().check_err();
        stream.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap();
    });
    assert!(!fake.log().iter().any(|line| line.starts_with("capture free")));
    assert_eq!(fake.bugs(), [""; 0]);
}

type Loss = fn(Work<CudaSlice<f32>>, &CudaStream);

/// Ways to lose the buffer of a refused operation.
const LOSSES: [Loss; 4] = [
    |work, _| _ = work.wait().unwrap_err(),
    |work, stream| _ = work.wait_on(stream).unwrap_err(),
    |work, _| drop(work),
    |work, _| {
        let mut work = pin!(work);
        let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Err(collectives::Error::Buffer(_)))));
    },
];

#[test]
fn the_buffer_of_a_refused_operation_is_freed_after_its_uses() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = group.context().unwrap();
        for lose in LOSSES {
            let (stream, other) = (compute(group), compute(group));
            let part = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let _copy = other.clone_dtod(&part).unwrap();
            // There is no rank 7.
            let refused = group.broadcast(part, 7);
            context.record_err::<()>(Err(UNKNOWN));
            lose(refused, &stream);
            assert_eq!(context.check_err(), Err(UNKNOWN));
        }
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

/// The error is taken before the group refuses the buffer.
#[test]
fn a_buffer_that_is_refused_for_an_error_is_freed_after_its_copy() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(group.context().unwrap().ordinal()).unwrap();
        let data = copied(&context);
        context.record_err::<()>(Err(UNKNOWN));
        let refused = group.all_reduce(data, Sum).wait().map(drop);
        assert!(matches!(refused, Err(collectives::Error::Buffer(_))), "{refused:?}");
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

/// The release does not wait for the context, which a capture forbids.
#[test]
fn a_refused_buffer_without_counted_streams_is_freed_after_its_copy() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(group.context().unwrap().ordinal()).unwrap();
        for lose in LOSSES {
            let data = copied(&context);
            let captured = compute(group);
            captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            lose(group.broadcast(data, 7), group.stream().unwrap());
            captured.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap();
        }
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

#[cfg(feature = "fabric")]
#[test]
fn buffers_of_gpus_in_a_group_over_hosts_are_freed_after_their_copies() {
    let fake = Fake::new();
    let group = Job::new(world::single()).group(Backend::Host).unwrap();
    let context = CudaContext::new(0).unwrap();
    let mut copies = (0..8).map(|_| copied(&context));
    let mut next = || copies.next().unwrap();
    drop(group.all_reduce(next(), Sum));
    drop(group.broadcast(next(), 0));
    drop(group.all_gather(next(), next()));
    drop(group.reduce_scatter(next(), next(), Sum));
    drop(group.all_reduce_list(vec![next(), next()], Sum));
    assert_eq!(fake.bugs(), [""; 0]);
}

#[test]
fn a_buffer_without_counted_streams_is_freed_after_its_copy_in_a_stopped_group() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(group.context().unwrap().ordinal()).unwrap();
        fake.set(Knob::EventsFail, 1);
        group.barrier().unwrap_err();
        fake.set(Knob::EventsFail, 0);
        let failed = group.all_reduce(copied(&context), Sum).wait_or_return();
        assert_eq!(failed.unwrap_err().to_string(), group.check().unwrap_err().to_string());
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

/// Nothing orders the release after the copy: the stream that is made for this cannot be used.
#[test]
fn a_buffer_whose_release_cannot_be_ordered_is_leaked() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let context = CudaContext::new(group.context().unwrap().ordinal()).unwrap();
        let refused = group.broadcast(copied(&context), 7);
        fake.log();
        fake.set(Knob::EventsFail, 1);
        refused.wait().unwrap_err();
        let log = fake.log();
        assert!(!log.iter().any(|line| line.starts_with("free")), "{log:#?}");
    });
}

/// The adoption waits for the context, which a capture forbids.
#[test]
fn a_slice_that_is_not_adopted_is_freed_after_its_copy() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    // The first stream of a context object waits for all work.
    let captured = CudaContext::new(0).unwrap().new_stream().unwrap();
    let data = copied(&context);
    captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let refused = Memory::try_from(data);
    assert!(matches!(refused, Err(nccl::Error::Stream { .. })), "{refused:?}");
    assert_eq!(fake.bugs(), [""; 0]);
    captured.end_capture(CUgraphInstantiate_flags(0)).map(drop).unwrap_err();
}
