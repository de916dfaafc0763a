//! Waits that memory depends on, and streams that change after they were checked: copies of host memory,
//! reducers, sharded optimizers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use collectives::nccl;
use collectives::train::{Reducer, Zero1};
use collectives::{Error, ReduceOp, job::Group};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, result};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;
use crate::training::{compute, options, parameters};

const UNKNOWN: DriverError = DriverError(CUresult::CUDA_ERROR_UNKNOWN);

fn begin_capture(stream: &CudaStream) {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
}

/// Ends a capture, which must be valid.
fn end_capture(stream: &Arc<CudaStream>) {
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
}

fn reducer(group: &Group, lens: &[usize]) -> Reducer<CudaSlice<f32>> {
    Reducer::new(group, &parameters(lens), &options()).unwrap()
}

/// Notes errors in the context on another thread during `body`, as failed drops of cudarc's objects do.
fn while_errors_are_noted<R>(context: &CudaContext, body: impl FnOnce() -> R) -> R {
    let ends = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                context.record_err::<()>(Err(UNKNOWN));
                // Valgrind runs one thread at a time: without a pause it may run no other thread.
                thread::sleep(Duration::from_micros(10));
            }
        });
        let result = catch_unwind(AssertUnwindSafe(body));
        ends.store(true, Ordering::Relaxed);
        result
    });
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The copy back has been queued, and cudarc has noted an error.
#[test]
fn host_memory_is_returned_after_its_copies() {
    for fails in [0, 0b1000] {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            let mut data = [1.0_f32; 8];
            fake.log();
            fake.set(Knob::EventsFail, fails);
            let result = group.all_reduce_in_place(&mut data, ReduceOp::Sum);
            fake.set(Knob::EventsFail, 0);
            let log = fake.log();
            // A stream of the library's own.
            let copied = log.iter().rposition(|line| line.starts_with("s3 waits")).unwrap();
            assert!(log[copied..].contains(&"synchronize s3".to_owned()), "{result:?}: {log:#?}");
            assert_eq!(result.is_err(), fails != 0, "{result:?}");
        });
    }
}

#[test]
fn host_memory_is_not_written_when_the_end_of_its_copies_is_not_known() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let mut data = [1.0_f32; 8];
        fake.set(Knob::WaitsFail, 1);
        let error = group.broadcast_in_place(&mut data, 0).unwrap_err();
        fake.set(Knob::WaitsFail, 0);
        data.fill(2.0);
        compute(group).synchronize().unwrap();
        assert_eq!(data, [2.0; 8], "the copy back is done now");
        assert!(matches!(error, Error::Cuda(_)), "{error:?}");
        assert_eq!(group.barrier().unwrap_err().to_string(), error.to_string());
    });
}

/// A copy in a graph would use the memory at each launch of the graph.
#[test]
fn copies_of_host_memory_do_not_become_part_of_a_graph() {
    let fake = Fake::new();
    on_gpus(&fake, 2, |group| {
        let part = group.split(Some(0)).unwrap().unwrap();
        let stream = part.stream().unwrap();
        begin_capture(stream);
        fake.log();
        let refused = [
            part.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum).unwrap_err(),
            part.broadcast_in_place(&mut [1.0_f32], 0).unwrap_err(),
            part.all_gather_bytes(b"name").unwrap_err(),
            part.barrier().unwrap_err(),
        ];
        end_capture(stream);
        for error in refused {
            assert!(matches!(&error, Error::Buffer(text) if text.contains("captured")), "{error:?}");
        }
        part.barrier().unwrap();
    });
    let log = fake.log();
    assert!(!log.iter().any(|line| line.starts_with("capture ")), "{log:#?}");
}

/// An event that orders the program's stream before the release of a bucket fails. cudarc's wait would return
/// an error that was noted meanwhile.
#[test]
fn buckets_are_freed_after_the_copies_into_them() {
    for waits_fail in [false, true] {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            let context = group.context().unwrap();
            // SAFETY: the reducer orders the streams, which this test shows.
            unsafe { context.disable_event_tracking() };
            let stream = compute(group);
            let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut reducer = reducer(group, &[8, 8]);
            reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
            fake.log();
            fake.set(Knob::EventsFail, 1);
            fake.set(Knob::WaitsFail, waits_fail.into());
            context.record_err::<()>(Err(UNKNOWN));
            drop(reducer);
            fake.set(Knob::WaitsFail, 0);
            let log = fake.log();
            let waited = log.contains(&"synchronize s2".to_owned());
            let freed = log.iter().filter(|line| line.starts_with("free m")).count();
            assert_eq!((waited, freed), if waits_fail { (false, 0) } else { (true, 1) }, "{log:#?}");
            assert!(context.check_err().is_err(), "the error stays noted for the code that it concerns");
        });
    }
}

#[test]
fn per_thread_default_streams_are_refused() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = group.context().unwrap().per_thread_stream();
        let of_thread = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let gradient = compute(group).clone_htod(&[1.0_f32; 8]).unwrap();
        let is_refused = |result: Result<(), Error>| {
            let Err(Error::Buffer(text)) = result else { panic!("{result:?}") };
            assert!(text.contains("per-thread default stream"), "{text}");
        };
        let mut reducer = reducer(group, &[8]);
        is_refused(reducer.step(0).unwrap().ready(0, of_thread.as_view()));
        reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
        reducer.step(0).unwrap().wait().unwrap();

        let mut model = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8]), &options()).unwrap();
        is_refused(zero.step(0, &[of_thread.as_view()], &mut [model.as_view_mut()], |_, _| Ok(())));
        is_refused(zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| Ok(())));
    });
}

/// The stream was registered before.
#[test]
fn a_capture_that_begins_after_ready_stays_the_programs() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (stream, second) = (compute(group), compute(group));
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let other = second.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut reducer = reducer(group, &[8, 8]);
        reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
        begin_capture(&stream);
        for refused in [
            reducer.step(0).unwrap().ready(1, other.as_view()),
            reducer.step(0).unwrap().ready_zero(1),
            reducer.step(0).unwrap().wait(),
        ] {
            assert!(matches!(&refused, Err(Error::Buffer(text)) if text.contains("captured")), "{refused:?}");
        }
        end_capture(&stream);
        reducer.step(0).unwrap().ready(1, other.as_view()).unwrap();
        reducer.step(0).unwrap().wait().unwrap();
        assert_eq!(stream.clone_dtoh(&reducer.gradient(1).unwrap()).unwrap(), [1.0; 8]);
        group.barrier().unwrap();
    });
}

#[test]
fn a_reducer_that_is_dropped_during_a_capture_leaks_its_memory() {
    let fake = Fake::new();
    // The program's stream, and the group's own.
    for index in 0..2 {
        on_gpus(&fake, 1, |group| {
            let stream = compute(group);
            let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut reducer = reducer(group, &[8, 8]);
            reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
            let captured = [&stream, group.stream().unwrap()][index];
            begin_capture(captured);
            fake.log();
            drop(reducer);
            let log = fake.log();
            assert!(!log.iter().any(|line| line.contains("free m") || line.contains("invalid")), "{log:#?}");
            end_capture(captured);
            group.check().unwrap();
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_capture_that_an_update_begins_stays_the_programs() {
    let fake = Fake::new();
    for index in 0..2 {
        on_gpus(&fake, 1, |group| {
            let stream = compute(group);
            let captured = [&stream, group.stream().unwrap()][index];
            let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut model = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8]), &options()).unwrap();
            let step = zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| {
                begin_capture(captured);
                Ok(())
            });
            // The other ranks wait for this rank's shard, so that this is no refusal.
            assert!(matches!(&step, Err(Error::Buffer(text)) if text.contains("captured")), "{step:?}");
            fake.log();
            drop(zero);
            let log = fake.log();
            assert!(!log.iter().any(|line| line.contains("free m") || line.contains("invalid")), "{log:#?}");
            end_capture(captured);
        });
    }
}

#[test]
fn an_error_that_other_code_has_noted_is_not_the_groups() {
    let fake = Fake::new();
    // Of one rank, steps are not compared.
    on_gpus(&fake, 2, |group| {
        let (context, stream) = (group.context().unwrap(), compute(group));
        let memory = || stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let noted = || context.record_err::<()>(Err(UNKNOWN));
        let stays = || assert_eq!(context.check_err().unwrap_err(), UNKNOWN);
        let (gradient, mut model) = (memory(), memory());

        let work = group.all_reduce(memory(), ReduceOp::Sum);
        noted();
        let reduced = work.wait_on(&stream).unwrap();
        stays();
        noted();
        // It may be the error of an event of the buffer.
        let refused = group.all_reduce(reduced, ReduceOp::Sum).wait_or_return().unwrap_err();
        assert!(matches!(refused.error, Error::Buffer(_)), "{refused:?}");
        context.check_err().unwrap();
        let reduced = group.all_reduce(refused.buffers.unwrap(), ReduceOp::Sum).wait().unwrap();
        assert_eq!(reduced.len(), 8);
        noted();
        group.barrier().unwrap();
        group.all_reduce_in_place(&mut [1.0_f32; 8], ReduceOp::Sum).unwrap();
        stays();

        noted();
        let mut reducer = reducer(group, &[8, 8]);
        reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
        reducer.step(0).unwrap().ready_zero(1).unwrap();
        reducer.step(0).unwrap().wait().unwrap();
        drop(reducer);
        stays();
        noted();
        let options = options().wire(collectives::train::Wire::Bf16);
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8]), &options).unwrap();
        let step = zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| {
            stays();
            noted();
            Ok(())
        });
        step.unwrap();
        drop(zero);
        stays();
        group.check().unwrap();
    });
}

/// The calls of the group itself that cudarc makes take an error of another thread for their own. Whatever is
/// noted, nothing races.
#[test]
fn errors_of_other_threads_do_not_hide_waits() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = compute(group);
        // SAFETY: the group orders the streams.
        unsafe { group.context().unwrap().disable_event_tracking() };
        let memory = stream.alloc_zeros::<f32>(8).unwrap();
        // The communicator has an event from now on: only its creation is a call of cudarc.
        let mut memory = group.all_reduce(memory, ReduceOp::Sum).wait().unwrap();
        while_errors_are_noted(group.context().unwrap(), || {
            for _ in 0..100 {
                memory = group.all_reduce(memory, ReduceOp::Sum).wait_on(&stream).unwrap();
                memory = group.all_reduce(memory, ReduceOp::Sum).wait().unwrap();
            }
            _ = group.all_reduce_in_place(&mut [1.0_f32; 8], ReduceOp::Sum);
        });
    });
}

#[test]
fn a_step_inside_of_an_nccl_group_is_refused_and_can_go_on() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = compute(group);
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut model = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut reducer = reducer(group, &[8]);
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8]), &options()).unwrap();
        let grouped: Result<(), nccl::Error> = nccl::group(|_| {
            let mut targets = [model.as_view_mut()];
            let refused = [
                reducer.step(0).unwrap().ready(0, gradient.as_view()),
                reducer.step(0).unwrap().ready_zero(0),
                reducer.step(0).unwrap().wait(),
                zero.step(0, &[gradient.as_view()], &mut targets, |_, _| Ok(())),
            ];
            for result in refused {
                assert!(matches!(&result, Err(Error::Job(text)) if text.contains("group")), "{result:?}");
            }
            Ok(())
        });
        grouped.unwrap();
        group.check().unwrap();
        reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
        reducer.step(0).unwrap().wait().unwrap();
        zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| Ok(())).unwrap();
    });
}

/// A default stream is that of the current context, and a new thread has none.
#[test]
fn default_streams_are_checked_in_their_own_context() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = group.context().unwrap().default_stream();
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let work = group.all_reduce(compute(group).clone_htod(&[1.0_f32; 8]).unwrap(), ReduceOp::Sum);
        let mut reducer = reducer(group, &[8]);
        thread::scope(|scope| {
            scope.spawn(|| work.wait_on(&stream).map(drop).unwrap());
            scope.spawn(|| reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap());
        });
        let memory = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        // SAFETY: a thread may have no context.
        unsafe { result::ctx::set_current(std::ptr::null_mut()) }.unwrap();
        group.all_reduce(memory, ReduceOp::Sum).wait().unwrap();
        reducer.step(0).unwrap().wait().unwrap();
    });
}
