//! Errors that cudarc notes in one context object and takes for those of another: the record of a use binds
//! the context object of the event, and is skipped after an error there.

use collectives::job::Group;
use collectives::train::{Reducer, Wire, Zero1};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, DriverError};
use std::sync::Arc;

use crate::fake::Fake;
use crate::jobs::on_gpus;
use crate::training::{options, parameters};

const UNKNOWN: DriverError = DriverError(CUresult::CUDA_ERROR_UNKNOWN);

/// Notes an error of unrelated code in the group's context object.
fn note_error(group: &Group) {
    group.context().unwrap().record_err::<()>(Err(UNKNOWN));
}

/// A second context object of the group's device.
fn second_object(group: &Group) -> Arc<CudaContext> {
    CudaContext::new(group.context().unwrap().ordinal()).unwrap()
}

#[test]
fn averages_that_are_read_are_not_freed() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let own = second_object(group);
        let (stream, other) = (own.new_stream().unwrap(), own.new_stream().unwrap());
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut read = other.alloc_zeros::<f32>(8).unwrap();
        let mut reducer = Reducer::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options()).unwrap();
        let mut step = reducer.step(0).unwrap();
        step.ready(0, gradient.as_view()).unwrap();
        step.wait().unwrap();
        note_error(group);
        other.memcpy_dtod(&reducer.gradient(0).unwrap(), &mut read).unwrap();
        drop(reducer);
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

#[test]
fn shards_that_a_failed_update_writes_are_not_freed() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let own = second_object(group);
        let (stream, other) = (own.new_stream().unwrap(), own.new_stream().unwrap());
        let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
        let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut model = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut zero = Zero1::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options()).unwrap();
        let stepped = zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |mut values, _| {
            note_error(group);
            other.memcpy_dtod(&source, &mut values)?;
            Err(collectives::Error::Job("the update fails".to_owned()))
        });
        stepped.unwrap_err();
        drop(zero);
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

/// Their handles are equal.
#[test]
fn default_streams_of_two_context_objects_are_both_registered() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let [one, two] = [0; 2].map(|_| second_object(group));
        let other = two.new_stream().unwrap();
        let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
        let gradient = one.default_stream().clone_htod(&[1.0_f32; 8]).unwrap();
        let mut model = two.default_stream().clone_htod(&[1.0_f32; 8]).unwrap();
        let mut zero = Zero1::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options()).unwrap();
        let _stepped = zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |mut values, _| {
            note_error(group);
            Ok(other.memcpy_dtod(&source, &mut values)?)
        });
        assert_eq!(fake.bugs(), [""; 0]);
        drop(zero);
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

#[test]
fn an_error_of_unrelated_code_does_not_end_a_step() {
    let fake = Fake::new();
    for options in [options(), options().wire(Wire::Bf16)] {
        on_gpus(&fake, 2, |group| {
            let own = second_object(group);
            let stream = own.new_stream().unwrap();
            let gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut model = stream.clone_htod(&[1.0_f32; 8]).unwrap();
            let mut reducer = Reducer::<CudaSlice<f32>>::new(group, &parameters(&[8, 8]), &options).unwrap();
            note_error(group);
            let mut step = reducer.step(0).unwrap();
            step.ready(1, gradient.as_view()).unwrap();
            note_error(group);
            step.ready_zero(0).unwrap();
            step.wait().unwrap();
            let mut zero = Zero1::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options).unwrap();
            note_error(group);
            zero.step(0, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| Ok(())).unwrap();
            group.check().unwrap();
        });
    }
}
