//! Ranks as threads, and a small module.

#![allow(dead_code)] // no test program uses all of it

use std::thread;

use burn_autodiff::Autodiff;
use burn_core as burn;
use burn_core::module::{Module, Param, ParamId};
use burn_core::tensor::backend::Backend;
use burn_core::tensor::{Int, Tensor, TensorData, activation};
use burn_ndarray::NdArray;
use burn_nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use collectives::job::{self, Group, Job};
use collectives::world;

pub(crate) type Cpu = Autodiff<NdArray>;

/// Runs `rank` on a thread for each of `ranks` ranks, and returns the results in rank order.
pub(crate) fn run<R: Send>(ranks: usize, rank: impl Fn(Group) -> R + Sync) -> Vec<R> {
    let jobs = Job::new(world::single()).threads(ranks).unwrap();
    thread::scope(|scope| {
        let threads = jobs.into_iter().map(|job| {
            let rank = &rank;
            scope.spawn(move || rank(job.group(job::Backend::Host).unwrap()))
        });
        let threads = threads.collect::<Vec<_>>();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A module with parameters of one and two dimensions, with a running average, and with integers.
#[derive(Module, Debug)]
pub(crate) struct Net<B: Backend> {
    pub(crate) hidden: Vec<Linear<B>>,
    pub(crate) norm: BatchNorm<B>,
    pub(crate) out: Linear<B>,
    pub(crate) count: Param<Tensor<B, 1, Int>>,
}

impl<B: Backend> Net<B> {
    pub(crate) fn new(width: usize, device: &B::Device) -> Self {
        Self {
            hidden: vec![
                LinearConfig::new(3, width).init(device),
                LinearConfig::new(width, width).init(device),
            ],
            norm: BatchNormConfig::new(width).init(device),
            out: LinearConfig::new(width, 1).init(device),
            count: Param::initialized(ParamId::new(), Tensor::from_data([1, 2, 3], device)),
        }
    }

    /// Without the normalisation: its averages depend on the division of a batch.
    pub(crate) fn forward(&self, input: Tensor<B, 2>) -> Tensor<B, 2> {
        let hidden = self.hidden.iter().fold(input, |value, layer| activation::tanh(layer.forward(value)));
        self.out.forward(hidden)
    }

    pub(crate) fn loss(&self, input: Tensor<B, 2>, target: Tensor<B, 2>) -> Tensor<B, 1> {
        (self.forward(input) - target).powi_scalar(2).mean()
    }
}

/// All numbers of a parameter.
pub(crate) fn values<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> Vec<f32> {
    tensor.to_data().to_vec::<f32>().unwrap()
}

/// A matrix of the given rows.
pub(crate) fn matrix<B: Backend>(rows: &[[f32; 3]], device: &B::Device) -> Tensor<B, 2> {
    Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), 3]), device)
}
