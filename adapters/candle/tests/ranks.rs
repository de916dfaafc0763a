//! Averages and sharded steps of several ranks, in threads of the test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer as _, ParamsAdamW, VarMap};
use collectives::job::{Group, Job};
use collectives::train::ReducerOptions;
use collectives::{ReduceOp, world};
use collectives_candle::{AdamW, Error, Reducer, Zero1, all_reduce, group};

/// Runs a function on several ranks, and returns their results.
fn on<R: Send>(ranks: usize, run: impl Fn(&Group) -> R + Sync) -> Vec<R> {
    let jobs = Job::new(world::single()).threads(ranks).unwrap();
    thread::scope(|scope| {
        let run = &run;
        let start = |job: Job| scope.spawn(move || run(&group(&job, &Device::Cpu).unwrap()));
        let threads: Vec<_> = jobs.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn variables(of: &[(&str, Tensor)]) -> VarMap {
    let map = VarMap::new();
    let mut data = map.data().lock().unwrap();
    for (name, tensor) in of {
        data.insert((*name).to_owned(), Var::from_tensor(tensor).unwrap());
    }
    drop(data);
    map
}

fn variable(map: &VarMap, name: &str) -> Var {
    map.data().lock().unwrap()[name].clone()
}

/// A store without gradients.
fn store() -> GradStore {
    Var::zeros((), DType::F32, &Device::Cpu).unwrap().backward().unwrap()
}

fn full(value: f64, shape: &[usize], dtype: DType) -> Tensor {
    (Tensor::ones(shape, dtype, &Device::Cpu).unwrap() * value).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

const TYPES: [(&str, DType); 4] =
    [("a", DType::F32), ("b", DType::F64), ("c", DType::BF16), ("d", DType::F16)];

#[test]
fn gradients_of_all_types_become_their_averages() {
    let results = on(3, |group| {
        let rank = group.rank() as f64;
        let map = variables(&TYPES.map(|(name, dtype)| (name, full(rank, &[2, 3], dtype))));
        let mut reducer = Reducer::new(group, &map).unwrap();
        let mut gradients = store();
        for (index, (name, dtype)) in TYPES.into_iter().enumerate() {
            gradients.insert(&variable(&map, name), full(rank * 2.0 + index as f64, &[2, 3], dtype));
        }
        reducer.average(0, &mut gradients).unwrap();
        TYPES.map(|(name, dtype)| {
            let var = variable(&map, name);
            let gradient = gradients.get(&var).unwrap();
            assert_eq!((gradient.dtype(), gradient.dims()), (dtype, &[2, 3][..]));
            (values(&var), values(gradient))
        })
    });
    for result in results {
        for (index, (value, gradient)) in result.into_iter().enumerate() {
            assert_eq!(value, [0.0; 6], "all ranks begin with rank 0's variables");
            assert_eq!(gradient, [2.0 + index as f64; 6]);
        }
    }
}

#[test]
fn gradients_that_are_not_contiguous_keep_their_order() {
    let results = on(2, |group| {
        let map = variables(&[("w", full(0.0, &[3, 2], DType::F32))]);
        let mut reducer = Reducer::new(group, &map).unwrap();
        let transposed =
            Tensor::arange(0.0_f32, 6.0, &Device::Cpu).unwrap().reshape((2, 3)).unwrap().t().unwrap();
        assert!(!transposed.is_contiguous());
        let mut gradients = store();
        gradients.insert(
            &variable(&map, "w"),
            (transposed + group.rank() as f64).unwrap().t().unwrap().contiguous().unwrap().t().unwrap(),
        );
        reducer.average(0, &mut gradients).unwrap();
        values(gradients.get(&variable(&map, "w")).unwrap())
    });
    assert_eq!(results, [[0.5, 3.5, 1.5, 4.5, 2.5, 5.5]; 2]);
}

#[test]
fn a_missing_gradient_is_zero_where_others_have_one_and_stays_missing_where_none_has() {
    let results = on(2, |group| {
        let zeros = full(0.0, &[2], DType::F32);
        let map = variables(&[("some", zeros.clone()), ("none", zeros.clone()), ("zero", zeros.clone())]);
        let mut reducer = Reducer::new(group, &map).unwrap();
        // The second step has other gradients than the first.
        [1, 0].map(|owner| {
            let mut gradients = store();
            if group.rank() == owner {
                gradients.insert(&variable(&map, "some"), full(3.0, &[2], DType::F32));
                gradients.insert(&variable(&map, "zero"), zeros.clone());
            }
            reducer.average(owner as u64, &mut gradients).unwrap();
            ["some", "none", "zero"].map(|name| gradients.get(&variable(&map, name)).map(values))
        })
    });
    for step in results.iter().flatten() {
        assert_eq!(step, &[Some(vec![1.5; 2]), None, Some(vec![0.0; 2])]);
    }
}

#[test]
fn ranks_with_different_models_are_told_and_can_go_on() {
    for error in on(2, |group| {
        let map = variables(&[("w", full(0.0, &[2 + group.rank()], DType::F32))]);
        let error = Reducer::new(group, &map).err().unwrap().to_string();
        Zero1::new(group, &map, ParamsAdamW::default()).err().unwrap();
        Reducer::new(group, &model()).unwrap();
        error
    }) {
        assert!(error.contains("\"w\" [2] on rank 0, \"w\" [3] on rank 1"), "{error}");
    }
}

#[test]
fn unfit_variables_and_gradients_are_refused() {
    let refused = |of: &[(&str, Tensor)]| {
        on(1, |group| Reducer::new(group, &variables(of)).err().unwrap().to_string()).remove(0)
    };
    assert!(refused(&[]).contains("the VarMap is empty"));
    let integers = Tensor::zeros(2, DType::U32, &Device::Cpu).unwrap();
    let error = refused(&[("count", integers.clone())]);
    assert!(error.starts_with("count has the type U32; gradients are averaged in f32"), "{error}");
    let minimum = ReducerOptions::default().op(ReduceOp::Min);
    let error = on(1, |group| Reducer::with_options(group, &model(), &minimum).err().unwrap().to_string());
    assert!(error[0].starts_with("the option op is min"), "{error:?}");
    let shared = Var::zeros(2, DType::F32, &Device::Cpu).unwrap().into_inner();
    let error = refused(&[("one", shared.clone()), ("two", shared)]);
    assert!(error.contains("are one variable"), "{error}");

    let error = on(1, |group| {
        let map = variables(&[("w", full(0.0, &[2], DType::F32))]);
        let mut gradients = store();
        gradients.insert(&variable(&map, "w"), full(0.0, &[3], DType::F32));
        Reducer::new(group, &map).unwrap().average(0, &mut gradients).unwrap_err().to_string()
    });
    assert!(
        error[0].contains("the gradient of w is [3] of F32, but the parameter is [2] of F32"),
        "{error:?}"
    );

    let error = on(1, |group| {
        let map = variables(&[("a", full(0.0, &[2], DType::F32)), ("b", full(0.0, &[2], DType::F64))]);
        Zero1::new(group, &map, ParamsAdamW::default()).err().unwrap().to_string()
    });
    assert!(error[0].contains("a is F32 and b is F64"), "{error:?}");
}

#[test]
fn a_rank_without_a_gradient_fails_the_sharded_step_on_all_ranks() {
    let errors = on(2, |group| {
        let map = variables(&[("w", full(1.0, &[2], DType::F32))]);
        let mut optimizer = Zero1::new(group, &map, ParamsAdamW::default()).unwrap();
        let mut gradients = store();
        if group.rank() == 0 {
            gradients.insert(&variable(&map, "w"), full(1.0, &[2], DType::F32));
        }
        (optimizer.step(0, &gradients).unwrap_err(), values(&variable(&map, "w")))
    });
    for (error, values) in errors {
        assert!(error.to_string().contains("w has no gradient"), "{error}");
        assert_eq!(values, [1.0; 2]);
    }
}

#[test]
fn a_variable_that_is_made_later_is_named_on_all_ranks() {
    let add = |map: &VarMap, name: &str| {
        let var = Var::from_tensor(&full(0.0, &[2], DType::F32)).unwrap();
        map.data().lock().unwrap().insert(name.to_owned(), var);
    };
    for is_sharded in [false, true] {
        let errors = on(2, |group| {
            let map = variables(&[("first", full(0.0, &[2], DType::F32))]);
            let mut gradients = store();
            gradients.insert(&variable(&map, "first"), full(1.0, &[2], DType::F32));
            let mut step: Box<dyn FnMut(u64) -> Result<(), Error>> = if is_sharded {
                let mut zero1 = Zero1::new(group, &map, ParamsAdamW::default()).unwrap();
                Box::new(move |step| zero1.step(step, &gradients))
            } else {
                let mut reducer = Reducer::new(group, &map).unwrap();
                Box::new(move |step| reducer.average(step, &mut gradients))
            };
            step(0).unwrap();
            if group.rank() == 1 {
                add(&map, "third");
                add(&map, "second");
            }
            step(1).unwrap_err()
        });
        assert!(errors[0].is_of_group() && !errors[1].is_of_group(), "{errors:?}");
        for error in errors {
            assert!(error.to_string().contains("the variable second was added"), "{error}");
            assert!(error.to_string().contains("make a new"), "{error}");
        }
    }
    on(1, |group| {
        let map = variables(&[("first", full(0.0, &[2], DType::F32))]);
        let mut adamw = AdamW::new(group, &map, ParamsAdamW::default()).unwrap();
        // A map locked by this thread is not a reason to wait.
        let locked = map.data().lock().unwrap();
        adamw.step(&store()).unwrap();
        drop(locked);
        add(&map, "second");
        let error = adamw.step(&store()).unwrap_err().to_string();
        assert!(
            error
                .contains("the variable second was added to the VarMap or replaced after the AdamW was made"),
            "{error}"
        );
    });
}

#[test]
fn a_variable_that_is_replaced_or_removed_is_named() {
    on(1, |group| {
        let of = |value: f64| full(value, &[2], DType::F32);
        let map = variables(&[("one", of(0.0)), ("two", of(0.0))]);
        let mut adamw = AdamW::new(group, &map, ParamsAdamW::default()).unwrap();
        let one = map.data().lock().unwrap().insert("one".to_owned(), Var::from_tensor(&of(1.0)).unwrap());
        let error = adamw.step(&store()).unwrap_err().to_string();
        assert!(error.contains("the variable one was added"), "{error}");
        map.data().lock().unwrap().insert("one".to_owned(), one.unwrap());
        adamw.step(&store()).unwrap();
        map.data().lock().unwrap().remove("two");
        let error = adamw.step(&store()).unwrap_err().to_string();
        assert!(error.contains("the variable two of the AdamW is no longer"), "{error}");
    });
}

/// The gradient of half the square of a variable is the variable itself.
#[test]
fn a_gradient_that_is_a_variable_is_read_before_the_sharded_step() {
    let step = |is_shared: bool| {
        let results = on(2, |group| {
            let ones = || full(1.0, &[3], DType::F32);
            let map = variables(&[("v", ones()), ("w", ones())]);
            let (v, w) = (variable(&map, "v"), variable(&map, "w"));
            let mut zero1 = Zero1::new(group, &map, ParamsAdamW::default()).unwrap();
            let mut gradients = store();
            gradients.insert(&v, if is_shared { w.as_detached_tensor() } else { ones() });
            gradients.insert(&w, if is_shared { w.as_tensor().clone() } else { ones() });
            zero1.step(0, &gradients).unwrap();
            (values(&v), values(&w))
        });
        assert_ne!(results[0].0, [1.0; 3]);
        results
    };
    let (sender, receiver) = mpsc::channel();
    // A step with a lock taken twice would never end.
    thread::spawn(move || sender.send([true, false].map(step)));
    let [shared, own] = receiver.recv_timeout(Duration::from_secs(60)).expect("the step hangs");
    assert_eq!(shared, own);
}

/// Returns the variables after steps with a rank's gradients, and the optimizer.
fn steps<O>(
    map: &VarMap,
    rank: usize,
    count: usize,
    mut optimizer: O,
    mut step: impl FnMut(&mut O, u64, GradStore),
) -> O {
    for number in 0..count {
        let mut gradients = store();
        for (index, name) in ["bias", "weight"].into_iter().enumerate() {
            let var = variable(map, name);
            let value = (number as f64 - 1.3) * (index as f64 + 0.5) + rank as f64;
            gradients.insert(&var, full(value, var.dims(), DType::F32));
        }
        step(&mut optimizer, number as u64, gradients);
    }
    optimizer
}

fn model() -> VarMap {
    let weight = Tensor::arange(0.0_f32, 10.0, &Device::Cpu).unwrap().reshape((2, 5)).unwrap();
    variables(&[("weight", weight), ("bias", full(0.25, &[3], DType::F32))])
}

fn all(map: &VarMap) -> Vec<f64> {
    ["bias", "weight"].into_iter().flat_map(|name| values(&variable(map, name))).collect()
}

fn assert_close(one: &[f64], other: &[f64]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert!((one - other).abs() <= 1e-5 * other.abs().max(1.0), "{one} is not {other}");
    }
}

#[test]
fn plain_and_sharded_steps_are_those_of_candle() {
    // The average of three ranks' gradients is the second rank's gradient.
    let params = ParamsAdamW { lr: 0.1, ..ParamsAdamW::default() };
    let expected = model();
    let adamw = candle_nn::AdamW::new(expected.all_vars(), params.clone()).unwrap();
    steps(&expected, 1, 4, adamw, |adamw, _, gradients| adamw.step(&gradients).unwrap());
    let expected = all(&expected);

    let results = on(3, |group| {
        let plain = model();
        let mut reducer = Reducer::new(group, &plain).unwrap();
        let adamw = AdamW::new(group, &plain, params.clone()).unwrap();
        let adamw = steps(&plain, group.rank(), 4, adamw, |adamw, number, mut gradients| {
            reducer.average(number, &mut gradients).unwrap();
            adamw.step(&gradients).unwrap();
        });
        let sharded = model();
        let zero1 = Zero1::new(group, &sharded, params.clone()).unwrap();
        let zero1 = steps(&sharded, group.rank(), 4, zero1, |zero1, number, gradients| {
            zero1.step(number, &gradients).unwrap();
        });
        // 13 elements of 4 bytes with two moments; shards of 5 elements.
        assert_eq!((adamw.state_bytes(), zero1.state_bytes()), (104, 40));
        let moments = |state: std::collections::HashMap<String, Tensor>| {
            let mut names: Vec<_> = state.keys().cloned().collect();
            names.sort();
            (names.clone(), names.iter().flat_map(|name| values(&state[name])).collect::<Vec<f64>>())
        };
        (all(&plain), all(&sharded), moments(adamw.state().unwrap()), moments(zero1.state().unwrap()))
    });
    for (plain, sharded, whole, gathered) in results {
        assert_close(&plain, &expected);
        assert_close(&sharded, &expected);
        assert_eq!(whole.0, gathered.0);
        assert_close(&whole.1, &gathered.1);
    }
}

#[test]
fn a_state_goes_on_with_another_number_of_ranks() {
    let params = ParamsAdamW { lr: 0.1, ..ParamsAdamW::default() };
    let whole = model();
    let expected = on(1, |group| {
        let zero1 = Zero1::new(group, &whole, params.clone()).unwrap();
        let step = |zero1: &mut Zero1, number, gradients| zero1.step(number, &gradients).unwrap();
        let zero1 = steps(&whole, 1, 3, zero1, step);
        let (state, saved) = (zero1.state().unwrap(), all(&whole));
        steps(&whole, 1, 2, zero1, step);
        (state, saved, all(&whole))
    });
    let (state, saved, expected) = &expected[0];
    for result in on(4, |group| {
        let map = model();
        let mut start = 0;
        for name in ["bias", "weight"] {
            let var = variable(&map, name);
            let part: Vec<f32> =
                saved[start..start + var.elem_count()].iter().map(|&value| value as f32).collect();
            var.set(&Tensor::from_vec(part, var.shape(), &Device::Cpu).unwrap()).unwrap();
            start += var.elem_count();
        }
        let mut zero1 = Zero1::new(group, &map, params.clone()).unwrap();
        let mut others = state.clone();
        others.remove("optimizer.first_moment.bias");
        let error = zero1.load_state(&others).unwrap_err().to_string();
        assert!(error.contains("no tensor optimizer.first_moment.bias"), "{error}");
        zero1.load_state(state).unwrap();
        steps(&map, 1, 2, zero1, |zero1, number, gradients| zero1.step(number, &gradients).unwrap());
        all(&map)
    }) {
        assert_close(&result, expected);
    }
}

#[test]
fn a_step_that_cannot_be_counted_is_refused() {
    on(1, |group| {
        let map = model();
        let mut adamw = AdamW::new(group, &map, ParamsAdamW::default()).unwrap();
        let mut state = adamw.state().unwrap();
        state.insert("optimizer.steps".to_owned(), Tensor::new(u32::MAX, &Device::Cpu).unwrap());
        adamw.load_state(&state).unwrap();
        let error = adamw.step(&store()).unwrap_err().to_string();
        assert!(error.contains("after 4294967295: load"), "{error}");
    });
}

#[test]
fn one_tensor_is_reduced() {
    let results = on(3, |group| {
        let tensor =
            Tensor::new(&[[1_f64, 2.0], [3.0, group.rank() as f64]], &Device::Cpu).unwrap().t().unwrap();
        values(&all_reduce(group, &tensor, ReduceOp::Sum).unwrap())
    });
    assert_eq!(results, [[3.0, 9.0, 6.0, 3.0]; 3]);
    let error = on(1, |group| {
        let tensor = Tensor::zeros(2, DType::I64, &Device::Cpu).unwrap();
        let error = all_reduce(group, &tensor, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::DType { dtype: DType::I64, .. }));
        error.to_string()
    });
    assert!(error[0].starts_with("all_reduce has the type I64"), "{error:?}");
}
