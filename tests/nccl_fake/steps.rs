//! Comparison of the steps in which the ranks of a group are.

use std::sync::Barrier;
use std::time::Duration;

use collectives::job::Group;
use collectives::train::{Parameter, Reducer, Zero1};
use collectives::{Error, ReduceOp};
use cudarc::driver::CudaSlice;

use crate::fake::{Fake, Knob, aborts};
use crate::jobs::on_gpus;
use crate::training::{compute, options, parameters};

/// Does a step of each kind; the host waits for nothing. Returns the texts of their first operations, without
/// the number.
fn each_kind(group: &Group, kind: usize, number: u64) -> Result<[String; 2], Error> {
    let stream = compute(group);
    let gradient = stream.clone_htod(&[1.0_f32; 8])?;
    let parameters: Vec<Parameter> = parameters(&[8]);
    if kind == 0 {
        let mut reducer: Reducer<CudaSlice<f32>> = Reducer::new(group, &parameters, &options())?;
        let mut step = reducer.step(number)?;
        step.ready(0, gradient.as_view())?;
        step.wait()?;
        stream.synchronize()?;
        return Ok([
            "all_reduce of 8 float, avg for bucket 0 of reducer 0 in step ".to_owned(),
            String::new(),
        ]);
    }
    let mut model = stream.clone_htod(&[1.0_f32; 8])?;
    let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters, &options())?;
    zero.step(number, &[gradient.as_view()], &mut [model.as_view_mut()], |_, _| Ok(()))?;
    stream.synchronize()?;
    Ok(["reduce_scatter of 4 float, avg for step ".to_owned(), " of Zero1 0".to_owned()])
}

#[test]
fn a_rank_in_another_step_is_noticed_when_the_first_operation_has_ended() {
    for kind in 0..2 {
        let fake = Fake::new();
        fake.set(Knob::MovesData, aborts::MISLEAD);
        let errors = on_gpus(&fake, 2, |group| {
            let [before, after] = each_kind(group, kind, 5).unwrap();
            group.check().unwrap();
            // The second rank leaves out step 6. The error of the other rank can come first.
            _ = each_kind(group, kind, 6 + group.rank() as u64);
            let error = group.check().unwrap_err();
            assert_eq!(group.barrier().unwrap_err().to_string(), error.to_string());
            (error, before, after)
        });
        for (error, before, after) in errors {
            let Error::Mismatch { called, peer_called: Some(other), .. } = &error else {
                panic!("{error:?}")
            };
            let number = |text: &str| {
                let text = text.replace("reducer 1", "reducer 0").replace("Zero1 1", "Zero1 0");
                text.strip_prefix(&before)?.strip_suffix(&after)?.parse::<u64>().ok()
            };
            assert_eq!((number(called), number(other)), (Some(6), Some(7)), "{error}");
        }
    }
}

/// A group of one rank compares nothing, and other operations are not compared.
#[test]
fn steps_are_compared_once_each() {
    for (ranks, expected) in [(1, 0), (2, 2 * 3)] {
        let fake = Fake::new();
        on_gpus(&fake, ranks, |group| {
            let stream = compute(group);
            let gradients = [8, 8].map(|len| stream.clone_htod(&vec![1.0_f32; len]).unwrap());
            let options = options().first_bucket_bytes(4).bucket_bytes(4);
            let mut reducer: Reducer<CudaSlice<f32>> =
                Reducer::new(group, &parameters(&[8, 8]), &options).unwrap();
            assert_eq!(reducer.buckets(), 2);
            for number in 0..3 {
                let mut step = reducer.step(number).unwrap();
                for (index, gradient) in gradients.iter().enumerate() {
                    step.ready(index, gradient.as_view()).unwrap();
                }
                step.wait().unwrap();
            }
            let memory = stream.clone_htod(&[1_u64; 2]).unwrap();
            group.all_reduce(memory, ReduceOp::Sum).wait().unwrap();
        });
        let log = fake.log();
        let is_compared =
            |line: &&String| line.starts_with("launch ") && line.contains("count 2 type 5 op 2 ");
        assert_eq!(log.iter().filter(is_compared).count(), expected, "{log:#?}");
    }
}

#[test]
fn comparing_steps_does_not_keep_the_host() {
    let fake = Fake::new();
    let together = Barrier::new(2);
    on_gpus(&fake, 2, |group| {
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
        group.barrier().unwrap();
        together.wait();
        fake.set(Knob::Hang, 100);
        (1..4).for_each(|number| step(number).unwrap());
        group.check().unwrap();
        together.wait();
        group.set_timeout(Some(Duration::from_millis(300)));
        let error = group.barrier().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    });
    fake.set(Knob::Hang, 0);
}
