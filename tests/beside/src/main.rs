//! Averages tensors of candle and gradients of burn over the GPUs of a job, in one program, and checks them.
//! Needs a GPU for each rank and a toolkit of CUDA to build:
//!
//! ```text
//! mpirun -np 2 cargo run --release --manifest-path tests/beside/Cargo.toml
//! ```

use std::error::Error;

use burn_autodiff::Autodiff;
use burn_core::tensor::Tensor as BurnTensor;
use burn_cuda::Cuda;
use burn_nn::LinearConfig;
use burn_optim::GradientsParams;
use candle_core::{Device, Tensor};
use collectives::ReduceOp;
use collectives::job::{Backend, Job};

type Training = Autodiff<Cuda>;

const ROWS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::from_environment()?;
    let device = collectives_candle::device(&job, true)?;
    let Device::Cuda(gpu) = &device else { return Err("the device is no GPU".into()) };
    let value = (job.rank() + 1) as f32;
    let mean = (job.size() + 1) as f32 / 2.0;

    let group = collectives_candle::group(&job, &device)?;
    let tensor = Tensor::full(value, 1000, &device)?;
    let averages = collectives_candle::all_reduce(&group, &tensor, ReduceOp::Avg)?.to_vec1::<f32>()?;
    check("candle", &averages, mean)?;

    // The same GPU; the gradients pass through host memory.
    let device = beside::burn_device(gpu);
    let hosts = job.group(Backend::Host)?;
    let module = LinearConfig::new(3, 2).init::<Training>(&device);
    let mut reducer = collectives_burn::Reducer::new(&hosts, &module)?;
    let input = BurnTensor::<Training, 2>::full([ROWS, 3], value, &device);
    let gradients = GradientsParams::from_grads(module.forward(input).sum().backward(), &module);
    let averages = reducer.average(0, &module, gradients)?;
    let weight = averages.get::<Cuda, 2>(module.weight.id).ok_or("the weight has no gradient")?;
    let weight = weight.to_data().to_vec::<f32>().map_err(|error| format!("{error:?}"))?;
    check("burn", &weight, ROWS as f32 * mean)?;
    println!("rank {} of {}: {}; {}", job.rank(), job.size(), group.describe(), hosts.describe());
    Ok(())
}

fn check(framework: &str, averages: &[f32], expected: f32) -> Result<(), String> {
    match averages.iter().find(|&&average| average != expected) {
        Some(wrong) => Err(format!("{framework}: {wrong} instead of {expected}")),
        None => Ok(println!("{framework}: {} averages of {expected}", averages.len())),
    }
}
