//! Copies of training whose events cannot be recorded. The program takes the noted errors before it uses its
//! memory on other streams, as the limits ask for.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use collectives::Error;
use collectives::job::Group;
use collectives::train::{Reducer, Wire, Zero1};
use cudarc::driver::{CudaSlice, CudaStream};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;
use crate::training::{compute, options, parameters};

fn take_noted(group: &Group) {
    let context = group.context().unwrap();
    while context.check_err().is_err() {}
}

/// Memory of the program, and an idle stream on which it uses the memory after a failure.
struct Program {
    memory: CudaSlice<f32>,
    other: std::sync::Arc<CudaStream>,
    /// Memory of `other`.
    others: CudaSlice<f32>,
}

impl Program {
    fn new(group: &Group) -> Self {
        let (stream, other) = (compute(group), compute(group));
        let [memory, others] = [&stream, &other].map(|stream| stream.clone_htod(&[1.0_f32; 8]).unwrap());
        Self { memory, other, others }
    }
}

/// Calls `call` for each of the events whose record can fail in it, and then `use_memory` if it has failed.
/// Asserts that the fakes have found no mistake.
fn fail_each_record<S>(
    prepare: impl Fn(&Group, &mut Program) -> S + Sync,
    call: impl Fn(&mut S, &mut Program) -> Result<(), Error> + Sync,
    use_memory: impl Fn(&mut Program) + Sync,
) {
    let (failures, is_last) = (AtomicUsize::new(0), AtomicBool::new(false));
    for event in 0..31 {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            let mut program = Program::new(group);
            let mut state = prepare(group, &mut program);
            fake.set(Knob::EventsFail, 1 << event);
            let result = call(&mut state, &mut program);
            is_last.store(fake.get(Knob::EventsFail) != 0, Ordering::Relaxed);
            fake.set(Knob::EventsFail, 0);
            let Err(error) = result else { return };
            failures.fetch_add(1, Ordering::Relaxed);
            take_noted(group);
            use_memory(&mut program);
            assert_eq!(fake.bugs(), [""; 0], "event {event}: {error}");
        });
        if is_last.load(Ordering::Relaxed) {
            break;
        }
    }
    assert!(is_last.into_inner() && failures.into_inner() > 0);
}

fn overwrite_after_a_failed_ready(wire: Wire) {
    fail_each_record(
        |group, _| Reducer::new(group, &parameters(&[8]), &options().wire(wire)).unwrap(),
        |reducer: &mut Reducer<CudaSlice<f32>>, program| reducer.step(0)?.ready(0, program.memory.as_view()),
        |program| program.other.memcpy_dtod(&program.others, &mut program.memory).unwrap(),
    );
}

#[test]
fn a_gradient_is_not_read_any_more_after_a_failed_ready() {
    overwrite_after_a_failed_ready(Wire::Same);
}

#[test]
fn a_gradient_is_not_rounded_any_more_after_a_failed_ready() {
    overwrite_after_a_failed_ready(Wire::Bf16);
}

#[test]
fn a_gradient_is_not_written_any_more_after_a_failed_average() {
    fail_each_record(
        |group, program| {
            let mut reducer = Reducer::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options()).unwrap();
            reducer.average(0, &mut [program.memory.as_view_mut()]).unwrap();
            // Only the next copy into the gradient can be under way on its stream.
            program.memory.stream().synchronize().unwrap();
            group.stream().unwrap().synchronize().unwrap();
            reducer
        },
        |reducer, program| reducer.average(1, &mut [program.memory.as_view_mut()]),
        |program| program.other.memcpy_dtod(&program.memory, &mut program.others).unwrap(),
    );
}

#[test]
fn a_parameter_is_not_written_any_more_after_a_failed_step() {
    fail_each_record(
        |group, program| {
            let gradient = program.memory.stream().clone_htod(&[1.0_f32; 8]).unwrap();
            (Zero1::new(group, &parameters(&[8]), &options()).unwrap(), gradient)
        },
        |(zero, gradient): &mut (Zero1<CudaSlice<f32>>, _), program| {
            let (gradients, parameters) = ([gradient.as_view()], &mut [program.memory.as_view_mut()]);
            zero.step(0, &gradients, parameters, |_, _| Ok(()))
        },
        |program| program.other.memcpy_dtod(&program.memory, &mut program.others).unwrap(),
    );
}

/// An update that writes its shard on another stream without an event, and then fails or panics.
fn drop_after_an_update(panics: bool) {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        let Program { mut memory, other, others } = Program::new(group);
        let gradient = memory.stream().clone_htod(&[1.0_f32; 8]).unwrap();
        let mut zero = Zero1::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options()).unwrap();
        let step = || {
            zero.step(0, &[gradient.as_view()], &mut [memory.as_view_mut()], |mut values, _| {
                fake.set(Knob::EventsFail, 1);
                other.memcpy_dtod(&others, &mut values)?;
                fake.set(Knob::EventsFail, 0);
                if panics {
                    resume_unwind(Box::new("the update panics"));
                }
                Err(Error::Job("the update fails".to_owned()))
            })
        };
        let ended = catch_unwind(AssertUnwindSafe(step));
        assert_eq!(ended.is_err(), panics);
        take_noted(group);
        drop(zero);
        assert_eq!(fake.bugs(), [""; 0]);
    });
}

#[test]
fn shards_that_a_failed_update_still_writes_are_not_freed() {
    drop_after_an_update(false);
}

#[test]
fn shards_that_an_update_still_writes_after_its_panic_are_not_freed() {
    drop_after_an_update(true);
}
