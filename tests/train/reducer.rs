//! Averages of gradients.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use collectives::half::{bf16, f16};
use collectives::train::{Parameter, Reducer, ReducerOptions, Wire};
use collectives::{ReduceOp, job::Group};

use super::counting::allocations;
use super::{assert_close, bits, gradients, means, on_every_rank, parameters};

const LENS: [usize; 7] = [1000, 3, 0, 4097, 1, 257, 64];

/// Small buckets: several for [`LENS`].
fn options() -> ReducerOptions {
    ReducerOptions::default().first_bucket_bytes(256).bucket_bytes(2048)
}

fn reducer(group: &Group, options: &ReducerOptions) -> Reducer {
    Reducer::new(group, &parameters(&LENS), options).unwrap()
}

#[test]
fn replicas_keep_the_same_bits_for_20_steps() {
    let replicas = on_every_rank(3, |group| {
        let mut reducer = reducer(group, &options());
        let mut model: Vec<Vec<f32>> = LENS.iter().map(|&len| vec![0.5; len]).collect();
        for step in 0..20 {
            let mine = gradients(group.rank(), step, &LENS);
            let mut current = reducer.step(step as u64).unwrap();
            // Another order on each rank, and in each step.
            for index in 0..LENS.len() {
                let index = (index + group.rank() + step) % LENS.len();
                current.ready(index, &mine[index]).unwrap();
            }
            current.wait().unwrap();
            let expected = means(3, step, &LENS);
            for (index, values) in model.iter_mut().enumerate() {
                let average = reducer.gradient(index).unwrap();
                assert_close(average, &expected[index], 1e-6, &format!("step {step}, parameter {index}"));
                values.iter_mut().zip(average).for_each(|(value, gradient)| *value -= 0.1 * gradient);
            }
        }
        model.concat()
    });
    assert!(replicas[0].iter().any(|&value| value != 0.5));
    for replica in &replicas {
        assert_eq!(bits(replica), bits(&replicas[0]));
    }
}

#[test]
fn reductions_run_before_wait() {
    // Rank 0 waits only after rank 1 has all averages.
    let (sender, receiver) = mpsc::channel();
    let (sender, receiver) = (Mutex::new(sender), Mutex::new(receiver));
    on_every_rank(2, |group| {
        let mut reducer = reducer(group, &options());
        let mut step = reducer.step(0).unwrap();
        for (index, gradient) in gradients(group.rank(), 0, &LENS).iter().enumerate() {
            step.ready(index, gradient).unwrap();
        }
        // It ends with an agreement of all ranks.
        step.wait().unwrap();
        let mut step = reducer.step(1).unwrap();
        for (index, gradient) in gradients(group.rank(), 1, &LENS).iter().enumerate() {
            step.ready(index, gradient).unwrap();
        }
        if group.rank() == 0 {
            receiver.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        }
        step.wait().unwrap();
        if group.rank() == 1 {
            sender.lock().unwrap().send(()).unwrap();
        }
    });
}

#[test]
fn gradients_are_averaged_in_place() {
    on_every_rank(2, |group| {
        let mut reducer = reducer(group, &options());
        assert_eq!(reducer.buckets(), 3, "{reducer:?}");
        for step in 0..3 {
            let mut mine = gradients(group.rank(), step as usize, &LENS);
            let mut views: Vec<&mut [f32]> = mine.iter_mut().map(Vec::as_mut_slice).collect();
            reducer.average(step, &mut views).unwrap();
            for (index, expected) in means(2, step as usize, &LENS).iter().enumerate() {
                assert_close(&mine[index], expected, 1e-6, &format!("step {step}, parameter {index}"));
            }
        }
    });
}

#[test]
fn another_order_on_rank_0_rearranges_the_buckets_of_all_ranks() {
    let buckets = on_every_rank(2, |group| {
        // In reverse order: 10 and 600, then 1000. In that of rank 0: 1000, then 600, then 10.
        let lens = [1000, 600, 10];
        let mut reducer: Reducer = Reducer::new(group, &parameters(&lens), &options()).unwrap();
        let mut buckets = vec![];
        for step in 0..3 {
            let mine = gradients(group.rank(), step, &lens);
            let order = if group.rank() == 0 { [0, 1, 2] } else { [2, 1, 0] };
            let mut current = reducer.step(step as u64).unwrap();
            for index in order {
                current.ready(index, &mine[index]).unwrap();
            }
            current.wait().unwrap();
            buckets.push(reducer.buckets());
            for (index, expected) in means(2, step, &lens).iter().enumerate() {
                let average = reducer.gradient(index).unwrap();
                assert_close(average, expected, 1e-6, &format!("step {step}, parameter {index}"));
            }
        }
        buckets
    });
    assert_eq!(buckets, vec![vec![2, 3, 3]; 2]);
}

#[test]
fn a_parameter_without_gradient_counts_as_zero() {
    on_every_rank(3, |group| {
        let mut reducer: Reducer = Reducer::new(group, &parameters(&[4, 2]), &options()).unwrap();
        for step in 0..2 {
            let mut current = reducer.step(step).unwrap();
            current.ready(1, &[3.0, 6.0]).unwrap();
            // The second time, the bucket has the averages of the first step.
            if group.rank() == 1 {
                current.ready(0, &[3.0; 4]).unwrap();
            } else {
                current.ready_zero(0).unwrap();
            }
            current.wait().unwrap();
            assert_eq!(reducer.gradient(0).unwrap(), [1.0; 4], "step {step}");
            assert_eq!(reducer.gradient(1).unwrap(), [3.0, 6.0], "step {step}");
        }
    });
}

#[test]
fn half_as_many_bytes_on_the_wire_round_each_gradient() {
    let replicas = on_every_rank(3, |group| {
        let mut reducer = reducer(group, &options().wire(Wire::Bf16));
        let mut all = vec![];
        for step in 0..3 {
            let mut mine = gradients(group.rank(), step as usize, &LENS);
            let mut views: Vec<&mut [f32]> = mine.iter_mut().map(Vec::as_mut_slice).collect();
            reducer.average(step, &mut views).unwrap();
            for (index, expected) in means(3, step as usize, &LENS).iter().enumerate() {
                // 8 bits of fraction; sums of up to 3.
                assert_close(&mine[index], expected, 0.02, &format!("step {step}, parameter {index}"));
                assert!(mine[index].iter().all(|&value| bf16::from_f32(value).to_f32() == value));
            }
            all.extend(mine.concat());
        }
        all
    });
    assert_eq!(bits(&replicas[0]), bits(&replicas[1]));
    assert_eq!(bits(&replicas[0]), bits(&replicas[2]));
}

#[test]
fn other_types_and_operators() {
    on_every_rank(2, |group| {
        let one = [Parameter::new("p", [3])];
        let rank = group.rank() as f32;
        let sum = ReducerOptions::default().op(ReduceOp::Sum);
        let mut doubles = Reducer::<Vec<f64>>::new(group, &one, &sum).unwrap();
        // More bits than f32 has.
        let small = 0.5_f64.powi(40);
        let mut data = [f64::from(rank) + small; 3];
        doubles.average(0, &mut [&mut data]).unwrap();
        assert_eq!(data, [1.0 + 2.0 * small; 3]);

        let mut halves = Reducer::<Vec<f16>>::new(group, &one, &sum).unwrap();
        let mut data = [f16::from_f32(rank + 0.5); 3];
        halves.average(0, &mut [&mut data]).unwrap();
        assert_eq!(data, [f16::from_f32(2.0); 3]);

        for wire in [Wire::Same, Wire::Bf16] {
            let mut halves = Reducer::<Vec<bf16>>::new(group, &one, &sum.clone().wire(wire)).unwrap();
            let mut data = [bf16::from_f32(rank + 0.5); 3];
            halves.average(0, &mut [&mut data]).unwrap();
            assert_eq!(data, [bf16::from_f32(2.0); 3]);
        }
    });
}

#[test]
fn a_model_without_parameters_has_steps_too() {
    on_every_rank(2, |group| {
        let mut reducer: Reducer = Reducer::new(group, &[], &options()).unwrap();
        reducer.average(0, &mut []).unwrap();
        reducer.step(1).unwrap().wait().unwrap();
        let mut empty: Reducer = Reducer::new(group, &parameters(&[0, 0]), &options()).unwrap();
        empty.average(0, &mut [&mut [], &mut []]).unwrap();
        assert_eq!(empty.gradient(1).unwrap(), [0.0; 0]);
    });
}

/// The first step records an order, which the second arranges.
#[test]
fn later_steps_reuse_the_memory_of_the_second() {
    for wire in [Wire::Same, Wire::Bf16] {
        on_every_rank(2, |group| {
            let mut reducer = reducer(group, &options().wire(wire));
            let mine = gradients(group.rank(), 0, &LENS);
            let mut places = vec![];
            for step in 0..5 {
                let mut starts = 0;
                let mut current = reducer.step(step as u64).unwrap();
                for (index, gradient) in mine.iter().enumerate() {
                    let before = allocations();
                    current.ready(index, gradient).unwrap();
                    starts += usize::from(allocations() > before);
                }
                current.wait().unwrap();
                let place = |index| reducer.gradient(index).unwrap().as_ptr().addr();
                places.push((0..LENS.len()).map(place).collect::<Vec<_>>());
                if step >= 2 {
                    // Only operations allocate: their own bookkeeping.
                    assert!(starts <= reducer.buckets(), "{starts} calls allocate memory");
                    assert_eq!(places[step], places[1], "step {step}");
                }
            }
        });
    }
}
