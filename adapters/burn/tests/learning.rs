//! Two ranks with half a batch each learn as one rank with all of it.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

mod ranks;

use burn_core::module::Module;
use burn_optim::{AdamConfig, GradientsParams, Optimizer};
use collectives::job::Group;
use collectives_burn::{Reducer, broadcast};

use ranks::{Cpu, Net, matrix, run, values};

const BATCH: usize = 8;
const STEPS: usize = 60;

/// Input and target of an example.
fn example(number: usize) -> ([f32; 3], f32) {
    let value = |factor: usize| ((number * factor) % 17) as f32 / 17.0 - 0.5;
    let input = [value(3), value(5), value(7)];
    (input, input[0] * input[1] - input[2])
}

/// Losses of the whole batch by step, and all parameters at the end.
fn train(group: &Group, net: Net<Cpu>) -> (Vec<f32>, Vec<f32>) {
    let device = Default::default();
    let mut net = broadcast(group, net, 0).unwrap();
    let mut reducer = Reducer::new(group, &net).unwrap();
    let mut optimizer = AdamConfig::new().init::<Cpu, Net<Cpu>>();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let own = (0..BATCH).filter(|number| number % group.size() == group.rank());
        let (inputs, targets): (Vec<_>, Vec<_>) =
            own.map(|number| example(step % 4 * BATCH + number)).unzip();
        let targets =
            burn_core::tensor::Tensor::<Cpu, 1>::from_floats(targets.as_slice(), &device).unsqueeze_dim(1);
        let loss = net.loss(matrix(&inputs, &device), targets);
        let mut mean = [loss.clone().into_scalar()];
        group.all_reduce_in_place(&mut mean, collectives::ReduceOp::Avg).unwrap();
        losses.push(mean[0]);
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        let gradients = reducer.average(step as u64, &net, gradients).unwrap();
        net = optimizer.step(0.02, net, gradients);
    }
    let layers = net.hidden.iter().chain([&net.out]);
    let parameters =
        layers.flat_map(|each| [values(&each.weight.val()), values(&each.bias.as_ref().unwrap().val())]);
    (losses, parameters.flatten().collect())
}

#[test]
fn two_ranks_learn_as_one() {
    let net = Net::<Cpu>::new(8, &Default::default());
    let net = Net { norm: net.norm.no_grad(), ..net };
    // burn makes the numbers at the first use: earlier clones have others.
    assert!(net.num_params() > 0);
    let start = net.clone();
    let [(losses, alone)] = run(1, move |group| train(&group, start.clone())).try_into().unwrap();
    // Rank 1 begins with other parameters: the broadcast replaces them.
    let both = run(2, move |group| {
        let other = Net::<Cpu>::new(8, &Default::default());
        let other = Net { norm: other.norm.no_grad(), ..other };
        train(&group, if group.rank() == 0 { net.clone() } else { other })
    });
    assert_eq!(both[0].1, both[1].1, "the ranks have equal parameters");
    let epoch = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (epoch(&losses[..4]), epoch(&losses[STEPS - 4..]));
    assert!(last < first / 4.0, "the loss falls from {first} to {last}");
    for (step, (one, two)) in losses.iter().zip(&both[0].0).enumerate() {
        assert!(
            (one - two).abs() < 1e-4 + 1e-2 * one,
            "step {step}: the loss is {one} with one rank, {two} with two"
        );
    }
    let difference = alone.iter().zip(&both[0].1).map(|(one, two)| (one - two).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-2, "parameters differ by {difference}");
}
