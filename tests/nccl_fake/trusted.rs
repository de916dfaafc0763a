//! A subscriber of the program's log that panics, and errors that cudarc notes after a training step has
//! looked for them: neither lets memory be freed, or read, before it may be.

use std::sync::Arc;

use collectives::nccl::Memory;
use collectives::train::{Reducer, Zero1};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;
use crate::subscriber::EventSubscriber;
use crate::training::{compute, options, parameters};

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn panicking_log() -> EventSubscriber<impl Fn()> {
    EventSubscriber(|| panic!("this log panics"))
}

#[test]
fn host_memory_stays_while_a_copy_into_it_is_under_way() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let mut data = [1.0_f32; 8];
        fake.set(Knob::WaitsFail, 1);
        tracing::subscriber::with_default(panicking_log(), || {
            group.broadcast_in_place(&mut data, 0).unwrap_err();
        });
        fake.set(Knob::WaitsFail, 0);
        let fresh: Vec<Vec<f32>> = (0..64).map(|_| vec![2.0; 8]).collect();
        let context = group.context().unwrap();
        context.bind_to_thread().unwrap();
        cudarc::driver::result::ctx::synchronize().unwrap();
        assert!(fresh.iter().flatten().all(|&value| value == 2.0), "{fresh:?}");
    });
}

#[test]
fn buckets_stay_while_copies_into_them_are_under_way() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        // SAFETY: the reducer orders the streams.
        unsafe { group.context().unwrap().disable_event_tracking() };
        let stream = compute(group);
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[8, 8]), &options()).unwrap();
        reducer.step(0).unwrap().ready(0, gradient.as_view()).unwrap();
        stream.begin_capture(RELAXED).unwrap();
        tracing::subscriber::with_default(panicking_log(), || drop(reducer));
        stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

#[test]
fn memory_of_a_captured_stream_stays() {
    let fake = Fake::new();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let memory = Memory::try_from(stream.clone_htod(&[1.0_f32; 8]).unwrap()).unwrap();
    stream.begin_capture(RELAXED).unwrap();
    tracing::subscriber::with_default(panicking_log(), || drop(memory));
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    assert_eq!(fake.bugs(), [""; 0]);
    drop(Arc::clone(&stream));
}

#[test]
fn an_update_on_a_stream_whose_event_fails_is_waited_for() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (stream, other) = (compute(group), compute(group));
        let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut model = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(&[8]), &options()).unwrap();
        let mut step = |end: Result<(), collectives::Error>| {
            zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |mut values, _| {
                fake.set(Knob::EventsFail, 1);
                other.memcpy_dtod(&source, &mut values)?;
                fake.set(Knob::EventsFail, 0);
                end
            })
        };
        step(Ok(())).unwrap();
        assert_eq!(fake.bugs(), [""; 0]);
        step(Err(collectives::Error::Job("the update fails".to_owned()))).unwrap_err();
        drop(zero);
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

#[test]
fn a_read_of_an_average_whose_event_fails_is_waited_for() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let (stream, other) = (compute(group), compute(group));
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut read = other.alloc_zeros::<f32>(8).unwrap();
        let mut reducer: Reducer<CudaSlice<f32>> =
            Reducer::new(group, &parameters(&[8]), &options()).unwrap();
        let mut step = reducer.step(0).unwrap();
        step.ready(0, gradient.as_view()).unwrap();
        step.wait().unwrap();
        fake.set(Knob::EventsFail, 0b10);
        other.memcpy_dtod(&reducer.gradient(0).unwrap(), &mut read).unwrap();
        fake.set(Knob::EventsFail, 0);
        drop(reducer);
        assert_eq!(fake.bugs(), [""; 0]);
    });
}
