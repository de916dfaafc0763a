//! Sharded optimizers against the same ones with the whole state on every rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

use collectives::Error;
use collectives::train::{ReducerOptions, Wire, Zero1};

use super::{assert_close, bits, gradients, means, on_every_rank, parameters};

const STEPS: usize = 6;

/// SGD with momentum, or Adam, for some elements.
#[derive(Clone)]
struct Optimizer {
    adam: bool,
    first: Vec<f64>,
    second: Vec<f64>,
    steps: i32,
}

impl Optimizer {
    fn new(adam: bool, len: usize) -> Self {
        Self { adam, first: vec![0.0; len], second: vec![0.0; len], steps: 0 }
    }

    /// The changes of the values for these gradients.
    fn changes(&mut self, gradients: impl IntoIterator<Item = f64>) -> Vec<f64> {
        self.steps += 1;
        let (adam, steps) = (self.adam, self.steps);
        let state = self.first.iter_mut().zip(&mut self.second);
        let change = |(gradient, (first, second)): (f64, (&mut f64, &mut f64))| {
            if !adam {
                *first = 0.9 * *first + gradient;
                return -0.05 * *first;
            }
            *first = 0.9 * *first + 0.1 * gradient;
            *second = 0.999 * *second + 0.001 * gradient * gradient;
            let mean = *first / (1.0 - 0.9_f64.powi(steps));
            let square = *second / (1.0 - 0.999_f64.powi(steps));
            -0.01 * mean / (square.sqrt() + 1e-8)
        };
        gradients.into_iter().zip(state).map(change).collect()
    }
}

/// The parameters after all steps of one optimizer with the whole state, in `f64`.
fn whole(adam: bool, ranks: usize, lens: &[usize]) -> Vec<f64> {
    let total = lens.iter().sum();
    let mut model = vec![0.5; total];
    let mut optimizer = Optimizer::new(adam, total);
    for step in 0..STEPS {
        let changes = optimizer.changes(means(ranks, step, lens).concat());
        model.iter_mut().zip(changes).for_each(|(value, change)| *value += change);
    }
    model
}

/// The parameters of all ranks after all steps with a sharded state.
fn sharded(adam: bool, ranks: usize, lens: &[usize], options: &ReducerOptions) -> Vec<Vec<f32>> {
    let total: usize = lens.iter().sum();
    on_every_rank(ranks, |group| {
        let mut zero: Zero1 = Zero1::new(group, &parameters(lens), options).unwrap();
        assert_eq!(zero.shard_len(), total.div_ceil(ranks));
        let mut optimizer = Optimizer::new(adam, zero.shard_len());
        let mut model: Vec<Vec<f32>> = lens.iter().map(|&len| vec![0.5; len]).collect();
        for step in 0..STEPS {
            let mine = gradients(group.rank(), step, lens);
            let views: Vec<&[f32]> = mine.iter().map(Vec::as_slice).collect();
            let mut targets: Vec<&mut [f32]> = model.iter_mut().map(Vec::as_mut_slice).collect();
            let len = zero.shard_len();
            let padding = zero.shard().len()..len;
            zero.step(step as u64, &views, &mut targets, |values, gradients| {
                assert_eq!((values.len(), gradients.len()), (len, len));
                assert!(gradients[padding.clone()].iter().all(|&gradient| gradient == 0.0));
                let changes = optimizer.changes(gradients.iter().map(|&gradient| f64::from(gradient)));
                values.iter_mut().zip(changes).for_each(|(value, change)| *value += change as f32);
                // Padding has no meaning.
                values[padding.clone()].fill(f32::NAN);
                Ok(())
            })
            .unwrap();
        }
        model.concat()
    })
}

#[test]
fn a_sharded_optimizer_agrees_with_a_whole_one() {
    for (ranks, lens) in [
        (1, &[33, 5, 0, 2][..]),
        (2, &[33, 5, 0, 2]),
        (3, &[33, 5, 0, 2]),
        (4, &[1025, 1, 7]),
        (4, &[2, 1]),
        (3, &[1]),
    ] {
        for adam in [false, true] {
            let expected = whole(adam, ranks, lens);
            let replicas = sharded(adam, ranks, lens, &ReducerOptions::default());
            for replica in &replicas {
                assert_close(replica, &expected, 2e-5, &format!("{lens:?} on {ranks} ranks, Adam {adam}"));
                assert_eq!(bits(replica), bits(&replicas[0]));
            }
        }
    }
}

#[test]
fn gradients_travel_with_half_the_bytes_and_parameters_are_not_rounded() {
    let lens = [100, 29];
    let expected = whole(false, 3, &lens);
    let replicas = sharded(false, 3, &lens, &ReducerOptions::default().wire(Wire::Bf16));
    for replica in &replicas {
        assert_close(replica, &expected, 0.02, "bfloat16 gradients");
        assert_eq!(bits(replica), bits(&replicas[0]));
    }
    // More than the 8 bits of bfloat16.
    assert!(replicas[0].iter().any(|value| value.to_bits() & 0xFFFF != 0));
}

#[test]
fn an_update_that_fails_fails_the_step_on_all_ranks() {
    let errors = on_every_rank(3, |group| {
        let mut zero: Zero1 = Zero1::new(group, &parameters(&[9]), &ReducerOptions::default()).unwrap();
        let mut model = [0.0; 9];
        let error = zero.step(0, &[&[1.0; 9]], &mut [&mut model], |_, _| match group.rank() {
            1 => Err(Error::Job("the loss is NaN".to_owned())),
            _ => Ok(()),
        });
        let error = error.unwrap_err();
        let again = zero.step(0, &[&[1.0; 9]], &mut [&mut model], |_, _| Ok(())).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        error
    });
    assert_eq!(errors[1].to_string(), "the loss is NaN");
    for rank in [0, 2] {
        let Error::RankFailed { rank: 1, reason, .. } = &errors[rank] else { panic!("{:?}", errors[rank]) };
        assert!(reason.to_string().contains("the update of its shard: the loss is NaN"), "{reason}");
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused_and_the_step_can_be_tried_again() {
    on_every_rank(2, |group| {
        let mut zero: Zero1 = Zero1::new(group, &parameters(&[2, 3]), &ReducerOptions::default()).unwrap();
        let (mut a, mut b) = ([0.0; 2], [0.0; 3]);
        let error = zero.step(0, &[&[1.0; 2]], &mut [&mut a, &mut b], |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().starts_with("1 gradients for a model of 2 parameters"), "{error}");
        let error = zero.step(0, &[&[1.0; 2], &[1.0; 4]], &mut [&mut a, &mut b], |_, _| Ok(())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "one of the gradients has 4 elements, but the shape of parameter \"p1\" is [3]"
        );
        zero.step(0, &[&[1.0; 2], &[1.0; 3]], &mut [&mut a, &mut b], |values, gradients| {
            values.copy_from_slice(gradients);
            Ok(())
        })
        .unwrap();
        assert_eq!((a, b), ([1.0; 2], [1.0; 3]));
    });
}

#[test]
fn an_update_that_panics_fails_the_step_on_all_ranks() {
    let told = Barrier::new(2);
    let errors = on_every_rank(2, |group| {
        let mut zero: Zero1 = Zero1::new(group, &parameters(&[4]), &ReducerOptions::default()).unwrap();
        let mut values = [0.0; 4];
        if group.rank() == 1 {
            let step = zero.step(0, &[&[1.0; 4]], &mut [&mut values], |_, _| Ok(()));
            told.wait();
            return step.unwrap_err().to_string();
        }
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            zero.step(0, &[&[1.0; 4]], &mut [&mut values], |_, _| panic!("this update panics"))
        }));
        assert!(panicked.is_err());
        // The program goes on, and calls nothing.
        told.wait();
        zero.step(0, &[&[1.0; 4]], &mut [&mut values], |_, _| Ok(())).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "a step of this optimizer has panicked");
    assert!(
        errors[1].contains("rank 0") && errors[1].contains("update of its shard panicked"),
        "{}",
        errors[1]
    );
}
