//! Averages of gradients, and equal parameters, over ranks in threads.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

mod ranks;

use burn_core::module::{Module, Param, RunningState};
use burn_core::tensor::{Int, Tensor, TensorData};
use burn_optim::GradientsParams;
use collectives::Error;
use collectives::train::ReducerOptions;
use collectives_burn::{Reducer, broadcast};

use ranks::{Cpu, Net, matrix, run, values};

type Inner = burn_ndarray::NdArray;

/// Gradients of two layers: `value` in every weight, and `value` times its index in every bias.
fn gradients(net: &Net<Cpu>, value: f32) -> GradientsParams {
    let mut gradients = GradientsParams::new();
    for layer in net.hidden.iter().chain([&net.out]) {
        let weight = Tensor::<Inner, 2>::full(layer.weight.val().dims(), value, &Default::default());
        gradients.register(layer.weight.id, weight);
        let bias = layer.bias.as_ref().unwrap();
        let numbers = (0..bias.val().dims()[0]).map(|index| value * index as f32).collect::<Vec<_>>();
        gradients.register(bias.id, Tensor::<Inner, 1>::from_floats(numbers.as_slice(), &Default::default()));
    }
    gradients
}

fn without_norm(net: Net<Cpu>) -> Net<Cpu> {
    Net { norm: net.norm.no_grad(), ..net }
}

#[test]
fn every_gradient_becomes_the_average_in_its_own_shape() {
    for bucket_bytes in [1, 100, 1 << 20] {
        let options = ReducerOptions::default().bucket_bytes(bucket_bytes).first_bucket_bytes(bucket_bytes);
        run(3, |group| {
            let net = without_norm(Net::<Cpu>::new(5, &Default::default()));
            let mut reducer = Reducer::with_options(&group, &net, &options).unwrap();
            for step in 1..4_usize {
                // The average of the ranks 0, 1, 2 is 1.
                let own = gradients(&net, (group.rank() * step) as f32);
                let averages = reducer.average(step as u64, &net, own).unwrap();
                assert_eq!(averages.len(), 6);
                for layer in net.hidden.iter().chain([&net.out]) {
                    let weight = averages.get::<Inner, 2>(layer.weight.id).unwrap();
                    assert_eq!(weight.dims(), layer.weight.val().dims());
                    assert!(values(&weight).iter().all(|&value| value == step as f32), "{weight}");
                    let bias = averages.get::<Inner, 1>(layer.bias.as_ref().unwrap().id).unwrap();
                    let expected = (0..bias.dims()[0]).map(|index| (step * index) as f32).collect::<Vec<_>>();
                    assert_eq!(values(&bias), expected);
                }
            }
        });
    }
}

#[test]
fn gradients_of_other_modules_stay() {
    run(2, |group| {
        let net = without_norm(Net::<Cpu>::new(4, &Default::default()));
        let other = Param::<Tensor<Cpu, 1>>::from_data([1.0, 2.0], &Default::default());
        let mut reducer = Reducer::new(&group, &net).unwrap();
        let mut own = gradients(&net, 1.0);
        own.register(
            other.id,
            Tensor::<Inner, 1>::from_floats([group.rank() as f32, 8.0], &Default::default()),
        );
        let averages = reducer.average(0, &net, own).unwrap();
        assert_eq!(values(&averages.get::<Inner, 1>(other.id).unwrap()), [group.rank() as f32, 8.0]);
    });
}

#[test]
fn a_parameter_without_a_gradient_is_named_on_all_ranks() {
    run(2, |group| {
        let net = Net::<Cpu>::new(4, &Default::default());
        let mut reducer = Reducer::new(&group, &net).unwrap();
        let input = matrix::<Cpu>(&[[1.0, 2.0, 3.0]], &Default::default());
        let some = GradientsParams::from_grads(net.forward(input).sum().backward(), &net);
        let mut all = gradients(&net, 1.0);
        for parameter in [&net.norm.gamma, &net.norm.beta] {
            let zeros = Tensor::<Inner, 1>::zeros(parameter.val().dims(), &Default::default());
            all.register(parameter.id, zeros);
        }
        let own = if group.rank() == 0 { some } else { all };
        let error = reducer.average(0, &net, own).unwrap_err();
        assert_eq!(matches!(error, Error::Job(_)), group.rank() == 0, "{error:?}");
        assert_eq!(matches!(error, Error::RankFailed { rank: 0, .. }), group.rank() == 1, "{error:?}");
        assert!(error.to_string().contains("parameter norm.gamma has no gradient"), "{error}");
    });
}

#[test]
fn a_layer_that_is_unfrozen_later_is_named_on_all_ranks() {
    run(2, |group| {
        let net = without_norm(Net::<Cpu>::new(4, &Default::default()));
        let out = net.out.clone();
        let frozen = Net { out, ..net.no_grad() };
        let mut reducer = Reducer::new(&group, &frozen).unwrap();
        let input = || matrix::<Cpu>(&[[1.0, 2.0, group.rank() as f32]], &Default::default());
        let own = GradientsParams::from_grads(frozen.forward(input()).sum().backward(), &frozen);
        assert_eq!(reducer.average(0, &frozen, own).unwrap().len(), 2);

        let mut net = frozen;
        if group.rank() == 1 {
            let weight = net.hidden[1].weight.clone().set_require_grad(true);
            net.hidden[1].weight = weight;
        }
        let own = GradientsParams::from_grads(net.forward(input()).sum().backward(), &net);
        let error = reducer.average(1, &net, own).unwrap_err();
        assert_eq!(matches!(error, Error::Job(_)), group.rank() == 1, "{error:?}");
        assert_eq!(matches!(error, Error::RankFailed { rank: 1, .. }), group.rank() == 0, "{error:?}");
        let error = error.to_string();
        assert!(error.contains("parameter hidden.1.weight is trained"), "{error}");
        assert!(error.contains("make a new Reducer"), "{error}");
    });
}

#[test]
fn a_gradient_of_a_frozen_parameter_is_refused() {
    run(1, |group| {
        let net = without_norm(Net::<Cpu>::new(4, &Default::default()));
        let mut reducer = Reducer::new(&group, &net).unwrap();
        let mut own = gradients(&net, 1.0);
        own.register(net.norm.gamma.id, Tensor::<Inner, 1>::ones([4], &Default::default()));
        let error = reducer.average(0, &net, own).unwrap_err().to_string();
        assert!(error.contains("parameter norm.gamma is trained"), "{error}");
    });
}

#[test]
fn ranks_with_other_parameters_are_told_the_first_difference() {
    let errors = run(2, |group| {
        let net = Net::<Cpu>::new(4 + group.rank(), &Default::default());
        (
            Reducer::new(&group, &net).unwrap_err().to_string(),
            broadcast(&group, net, 0).unwrap_err().to_string(),
        )
    });
    for (of_reducer, of_broadcast) in errors {
        assert!(of_reducer.contains("hidden.0.weight"), "{of_reducer}");
        assert!(of_broadcast.contains("hidden.0.weight of [3, 4], F32, but rank 1 has"), "{of_broadcast}");
    }
}

#[test]
fn all_ranks_begin_with_the_parameters_of_the_root() {
    let nets = run(3, |group| {
        let mut net = Net::<Cpu>::new(4, &Default::default());
        let rank = group.rank() as i32;
        let numbers = TensorData::from([rank, 7, rank * 9]);
        net.count =
            Param::initialized(net.count.id, Tensor::<Cpu, 1, Int>::from_data(numbers, &Default::default()));
        net.norm.running_mean = RunningState::new(Tensor::full([4], rank as f32, &Default::default()));
        let ids = (net.out.weight.id, net.count.id);
        let net = broadcast(&group, without_norm(net), 2).unwrap();
        assert_eq!(ids, (net.out.weight.id, net.count.id));
        assert!(net.out.weight.val().is_require_grad());
        assert!(!net.norm.gamma.val().is_require_grad());
        assert_eq!(values(&net.norm.running_mean.value_sync()), [2.0; 4]);
        assert_eq!(net.count.val().into_data().iter::<i64>().collect::<Vec<_>>(), [2, 7, 18]);
        let layers = net.hidden.iter().chain([&net.out]);
        layers
            .flat_map(|each| [values(&each.weight.val()), values(&each.bias.as_ref().unwrap().val())])
            .collect::<Vec<_>>()
    });
    assert!(nets[0].iter().flatten().any(|&value| value != 0.0));
    assert_eq!(nets[0], nets[2]);
    assert_eq!(nets[1], nets[2]);
}
