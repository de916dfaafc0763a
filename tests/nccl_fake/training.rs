//! Training on GPUs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use collectives::Error;
use collectives::half::bf16;
use collectives::job::Group;
use collectives::train::{Parameter, Reducer, ReducerOptions, Wire, Zero1};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;

const LENS: [usize; 4] = [40, 3, 17, 200];

pub(crate) fn parameters(lens: &[usize]) -> Vec<Parameter> {
    lens.iter().enumerate().map(|(index, &len)| Parameter::new(format!("p{index}"), [len])).collect()
}

/// Two buckets for [`LENS`].
pub(crate) fn options() -> ReducerOptions {
    ReducerOptions::default().first_bucket_bytes(400).bucket_bytes(4000)
}

/// A stream of the program on the group's device.
pub(crate) fn compute(group: &Group) -> Arc<CudaStream> {
    group.context().unwrap().new_stream().unwrap()
}

fn values(rank: usize, step: usize, parameter: usize) -> Vec<f32> {
    (0..LENS[parameter]).map(|element| (rank * 1000 + step * 100 + parameter * 10 + element) as f32).collect()
}

/// The average of all ranks' values.
fn means(ranks: usize, step: usize, parameter: usize) -> Vec<f32> {
    values(0, step, parameter).into_iter().map(|value| value + 500.0 * (ranks - 1) as f32).collect()
}

fn gradients(stream: &Arc<CudaStream>, rank: usize, step: usize) -> Vec<CudaSlice<f32>> {
    (0..LENS.len()).map(|index| stream.clone_htod(&values(rank, step, index)).unwrap()).collect()
}

/// Three steps, of which the second and third have another order of the buckets, with and without a zero.
fn steps(group: &Group) {
    let stream = compute(group);
    let mut reducer: Reducer<CudaSlice<f32>> = Reducer::new(group, &parameters(&LENS), &options()).unwrap();
    assert_eq!(reducer.buckets(), 2);
    for step in 0..3 {
        let mine = gradients(&stream, group.rank(), step);
        let mut current = reducer.step(step as u64).unwrap();
        if step == 1 {
            current.ready_zero(1).unwrap();
        }
        for (index, gradient) in mine.iter().enumerate().filter(|&(index, _)| step != 1 || index != 1) {
            current.ready(index, gradient.as_view()).unwrap();
        }
        drop(mine);
        current.wait().unwrap();
        assert_eq!(reducer.buckets(), if step == 0 { 2 } else { 1 });
        for index in 0..LENS.len() {
            let average = stream.clone_dtoh(&reducer.gradient(index).unwrap()).unwrap();
            let expected = match (step, index) {
                (1, 1) => vec![0.0; LENS[1]],
                _ => means(group.size(), step, index),
            };
            assert_eq!(average, expected, "step {step}, parameter {index}");
        }
    }
}

#[test]
fn gradients_are_copied_and_reduced_in_the_order_of_the_streams() {
    let fake = Fake::new();
    on_gpus(&fake, 2, steps);
    let log = fake.log();
    // On two ranks: two buckets, then one in each step, since the largest gradient is ready last, and a
    // comparison of the steps in each. The order is broadcast once.
    let launched =
        |name: &str| log.iter().filter(|line| line.starts_with(&format!("launch {name} "))).count();
    assert_eq!((launched("all_reduce"), launched("broadcast")), (8 + 6, 2), "{log:#?}");
}

#[test]
fn streams_are_ordered_without_the_events_of_cudarc() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        // SAFETY: the streams are ordered by the reducer, which this test shows.
        unsafe { group.context().unwrap().disable_event_tracking() };
        steps(group);
    });
    fake.log();
}

#[test]
fn several_streams_of_the_program_are_ordered_too() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        // SAFETY: as above.
        unsafe { group.context().unwrap().disable_event_tracking() };
        // Only copies inside of the device, for which the host does not wait.
        let streams = [compute(group), compute(group)];
        let memory = || streams.each_ref().map(|stream| stream.clone_htod(&[1.0_f32; 8]).unwrap());
        let (gradients, mut reads, mut model) = (memory(), memory(), memory());
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[8, 8]), &options()).unwrap();
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8]), &options()).unwrap();
        for step in 0..4 {
            let mut current = reducer.step(step).unwrap();
            for index in 0..2 {
                current.ready(index, gradients[(index + step as usize) % 2].as_view()).unwrap();
            }
            current.wait().unwrap();
            for (stream, read) in streams.iter().zip(&mut reads) {
                for index in 0..2 {
                    stream.memcpy_dtod(&reducer.gradient(index).unwrap(), read).unwrap();
                }
            }
        }
        // Apart from the other steps, which order the streams too.
        for step in 0..3 {
            let mut targets = [model[1].as_view_mut()];
            zero.step(step, &[gradients[0].as_view()], &mut targets, |mut shard, gradient| {
                streams[0].memcpy_dtod(&gradient, &mut shard)?;
                Ok(())
            })
            .unwrap();
        }
        for stream in &streams {
            stream.synchronize().unwrap();
        }
    });
    fake.log();
}

#[test]
fn averages_replace_the_gradients() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = compute(group);
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&LENS), &options()).unwrap();
        let mut mine = gradients(&stream, 0, 0);
        let mut views: Vec<_> = mine.iter_mut().map(|gradient| gradient.as_view_mut()).collect();
        reducer.average(0, &mut views).unwrap();
        for (index, gradient) in mine.iter().enumerate() {
            assert_eq!(stream.clone_dtoh(gradient).unwrap(), values(0, 0, index));
        }
    });
    fake.log();
}

#[test]
fn waiting_does_not_keep_the_host() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = compute(group);
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[8]), &options()).unwrap();
        let mut step = |number: u64| {
            let mut step = reducer.step(number)?;
            step.ready(0, gradient.as_view())?;
            step.wait()
        };
        step(0).unwrap();
        group.set_timeout(Some(Duration::from_millis(300)));
        fake.set(Knob::Hang, 1);
        // The reduction hangs.
        step(1).unwrap();
        let error = group.barrier().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
        let error = step(2).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    });
    fake.set(Knob::Hang, 0);
    fake.log();
}

#[test]
fn a_sharded_step_reduces_updates_and_gathers() {
    let fake = Fake::new();
    on_gpus(&fake, 2, |group| {
        let stream = compute(group);
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&LENS), &options()).unwrap();
        assert_eq!(zero.shard_len(), 130);
        let all: Vec<f32> = (0..LENS.len()).flat_map(|index| values(7, 0, index)).collect();
        for step in 0..2 {
            let mine = gradients(&stream, group.rank(), 0);
            let mut model = gradients(&stream, 7, 0);
            let views: Vec<_> = mine.iter().map(|gradient| gradient.as_view()).collect();
            let mut targets: Vec<_> = model.iter_mut().map(|parameter| parameter.as_view_mut()).collect();
            let own = zero.shard();
            zero.step(step, &views, &mut targets, |mut shard, gradients| {
                assert_eq!((shard.len(), gradients.len()), (130, 130));
                assert_eq!(stream.clone_dtoh(&shard).unwrap(), all[own.clone()]);
                stream.memcpy_dtod(&gradients, &mut shard)?;
                Ok(())
            })
            .unwrap();
            // Read by the program's stream, after the copies of the group's.
            for parameter in &model {
                stream.clone_dtoh(parameter).unwrap();
            }
        }
    });
    let log = fake.log();
    let launched: Vec<_> = log
        .iter()
        .filter_map(|line| line.strip_prefix("launch "))
        .filter_map(|line| line.split(' ').next())
        .filter(|name| ["reduce_scatter", "all_gather"].contains(name))
        .collect();
    assert_eq!(launched.iter().filter(|name| **name == "reduce_scatter").count(), 4, "{log:#?}");
}

#[test]
fn memory_of_another_device_is_refused() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[8]), &options()).unwrap();
        let other = CudaContext::new(1).unwrap().new_stream().unwrap();
        let gradient = other.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut step = reducer.step(0).unwrap();
        let error = step.ready(0, gradient.as_view()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "memory of device 1 in a group on device 0: use memory of the group's device"
        );
        let right = compute(group).clone_htod(&[1.0_f32; 8]).unwrap();
        step.ready(0, right.as_view()).unwrap();
        step.wait().unwrap();
    });
    fake.log();
}

/// Gradients are rounded, and the streams ordered without cudarc's events.
#[test]
fn gradients_travel_in_half_as_many_bytes() {
    let fake = Fake::new();
    let options = options().wire(Wire::Bf16);
    on_gpus(&fake, 1, |group| {
        // SAFETY: as above.
        unsafe { group.context().unwrap().disable_event_tracking() };
        let stream = compute(group);
        let exact =
            |index: usize| values(0, 7, index).into_iter().map(|value| value * 1.01).collect::<Vec<_>>();
        let rounded =
            |index| exact(index).into_iter().map(|value| bf16::from_f32(value).to_f32()).collect::<Vec<_>>();
        assert_ne!(exact(3), rounded(3));
        let mine: Vec<_> = (0..LENS.len()).map(|index| stream.clone_htod(&exact(index)).unwrap()).collect();

        let mut reducer: Reducer<CudaSlice<f32>> = Reducer::new(group, &parameters(&LENS), &options).unwrap();
        for step in 0..3 {
            let mut current = reducer.step(step).unwrap();
            for (index, gradient) in mine.iter().enumerate() {
                match (step, index) {
                    (1, 2) => current.ready_zero(index).unwrap(),
                    _ => current.ready(index, gradient.as_view()).unwrap(),
                }
            }
            current.wait().unwrap();
            for index in 0..LENS.len() {
                let average = stream.clone_dtoh(&reducer.gradient(index).unwrap()).unwrap();
                let expected = if (step, index) == (1, 2) { vec![0.0; LENS[2]] } else { rounded(index) };
                assert_eq!(average, expected, "step {step}, parameter {index}");
            }
        }

        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&LENS), &options).unwrap();
        let mut model = gradients(&stream, 7, 0);
        for step in 0..2 {
            let views: Vec<_> = mine.iter().map(|gradient| gradient.as_view()).collect();
            let mut targets: Vec<_> = model.iter_mut().map(|parameter| parameter.as_view_mut()).collect();
            zero.step(step, &views, &mut targets, |mut shard, gradients| {
                Ok(stream.memcpy_dtod(&gradients, &mut shard)?)
            })
            .unwrap();
            for (index, parameter) in model.iter().enumerate() {
                assert_eq!(stream.clone_dtoh(parameter).unwrap(), rounded(index));
            }
        }
    });
    let log = fake.log();
    // In bfloat16.
    let reduced: Vec<_> = log
        .iter()
        .filter(|line| line.contains("launch all_reduce") || line.contains("launch reduce_scatter"))
        .collect();
    assert!(reduced.len() > 5 && reduced.iter().all(|line| line.contains(" type 9 ")), "{log:#?}");
}

/// Nothing is converted.
#[test]
fn bfloat16_gradients_travel_as_they_are() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let options = options().wire(Wire::Bf16);
        let mut reducer = Reducer::<CudaSlice<bf16>>::new(group, &parameters(&[8]), &options).unwrap();
        let gradient = compute(group).clone_htod(&[bf16::ONE; 8]).unwrap();
        let mut step = reducer.step(0).unwrap();
        step.ready(0, gradient.as_view()).unwrap();
        step.wait().unwrap();
    });
    let log = fake.log();
    assert!(!log.iter().any(|line| line.contains("module")), "{log:#?}");
}

#[test]
fn too_little_memory_leaves_the_group_usable() {
    let fake = Fake::new();
    let together = Barrier::new(2);
    on_gpus(&fake, 2, |group| {
        together.wait();
        fake.set(Knob::NoMemory, 1);
        let refused = Reducer::<CudaSlice<f32>>::new(group, &parameters(&LENS), &options()).unwrap_err();
        let also = Zero1::<CudaSlice<f32>>::new(group, &parameters(&LENS), &options()).unwrap_err();
        together.wait();
        fake.set(Knob::NoMemory, 0);
        for error in [refused, also] {
            let Error::Job(text) = &error else { panic!("{error:?}") };
            assert!(text.starts_with("memory for "), "{text}");
        }
        together.wait();
        steps(group);
    });
}

/// Without the events of cudarc, the optimizer alone orders the streams.
#[test]
fn memory_of_a_sharded_step_that_fails_outlives_the_work_of_its_update() {
    for panics in [false, true] {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            // SAFETY: all memory of this test is used and freed on one stream, or by the optimizer.
            unsafe { group.context().unwrap().disable_event_tracking() };
            let stream = compute(group);
            let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut value = stream.clone_htod(&[2.0_f32; 8]).unwrap();
            let mut optimizer =
                Zero1::<CudaSlice<f32>>::new(group, &[Parameter::new("p", [8])], &options()).unwrap();
            let mut step = || {
                optimizer.step(
                    0,
                    &[gradient.as_view()],
                    &mut [value.as_view_mut()],
                    |mut values, gradients| {
                        stream.memcpy_dtod(&gradients, &mut values)?;
                        if panics {
                            panic!("this update panics");
                        }
                        Err(Error::Job("the loss is NaN".to_owned()))
                    },
                )
            };
            let first = catch_unwind(AssertUnwindSafe(&mut step));
            assert_eq!(first.is_err(), panics);
            let again = step().unwrap_err().to_string();
            assert!(again.contains(if panics { "has panicked" } else { "the loss is NaN" }), "{again}");
        });
        fake.log();
    }
}

/// A failed registration of a gradient's stream is known to all ranks.
#[test]
fn an_error_of_cuda_in_a_call_of_the_reducer_reaches_the_other_ranks() {
    let fake = Fake::new();
    let waits = Barrier::new(2);
    let errors = on_gpus(&fake, 2, |group| {
        let stream = compute(group);
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[40]), &options()).unwrap();
        let gradient = stream.clone_htod(&[1.0_f32; 40]).unwrap();
        if group.rank() == 0 {
            let mut step = reducer.step(0).unwrap();
            step.ready(0, gradient.as_view()).unwrap();
            waits.wait();
            // Records no event meanwhile.
            waits.wait();
            return step.wait().and_then(|()| group.barrier()).unwrap_err();
        }
        waits.wait();
        fake.set(Knob::EventsFail, 1);
        let mut step = reducer.step(0).unwrap();
        let error = step.ready(0, gradient.as_view()).unwrap_err();
        fake.set(Knob::EventsFail, 0);
        waits.wait();
        assert_eq!(step.ready(0, gradient.as_view()).unwrap_err().to_string(), error.to_string());
        error
    });
    assert!(matches!(&errors[1], Error::Cuda(_)), "{errors:?}");
    assert!(matches!(&errors[0], Error::RankFailed { rank: 1, .. }), "{errors:?}");
}

#[test]
fn a_gradient_of_a_stream_under_capture_is_refused() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let stream = compute(group);
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[40]), &options()).unwrap();
        let gradient = stream.clone_htod(&[2.0_f32; 40]).unwrap();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let mut step = reducer.step(0).unwrap();
        let refused = step.ready(0, gradient.as_view()).unwrap_err();
        assert!(matches!(&refused, Error::Buffer(text) if text.contains("captured")), "{refused:?}");
        stream
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
            .unwrap();
        step.ready(0, gradient.as_view()).unwrap();
        step.wait().unwrap();
        assert_eq!(stream.clone_dtoh(&reducer.gradient(0).unwrap()).unwrap(), [2.0; 40]);
    });
}
