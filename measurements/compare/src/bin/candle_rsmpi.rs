//! Training with candle; gradients are averaged by hand with rsmpi.

use anyhow::{Context as _, Result};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use clap::Parser as _;
use compare::candle_net::Net;
use compare::{Options, Ranks, Training, measure};
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Root as _};

// begin
fn average(world: &SimpleCommunicator, variables: &[Var], gradients: &mut GradStore) -> Result<()> {
    let mut mine = Vec::new();
    for var in variables {
        let gradient = gradients.get(var).context("a variable has no gradient")?;
        mine.extend(gradient.flatten_all()?.to_vec1::<f32>()?);
    }
    let mut sum = vec![0f32; mine.len()];
    world.all_reduce_into(&mine[..], &mut sum[..], SystemOperation::sum());
    let ranks = world.size() as f32;
    sum.iter_mut().for_each(|value| *value /= ranks);
    let mut rest = &sum[..];
    for var in variables {
        let (average, others) = rest.split_at(var.elem_count());
        gradients.insert(var, Tensor::from_slice(average, var.shape(), &Device::Cpu)?);
        rest = others;
    }
    Ok(())
}
// end

struct Candle<'a> {
    net: Net,
    variables: Vec<Var>,
    world: &'a SimpleCommunicator,
}

impl Training for Candle<'_> {
    fn step(&mut self, is_averaged: bool) -> Result<()> {
        let mut gradients = self.net.backward()?;
        if is_averaged {
            // begin
            average(self.world, &self.variables, &mut gradients)?;
            // end
        }
        self.net.update(&gradients)
    }

    fn parameters(&self) -> Result<Vec<f32>> {
        self.net.parameters()
    }
}

struct Mpi<'a>(&'a SimpleCommunicator);

impl Ranks for Mpi<'_> {
    fn rank(&self) -> usize {
        self.0.rank() as usize
    }

    fn size(&self) -> usize {
        self.0.size() as usize
    }

    fn largest(&self, value: f64) -> Result<f64> {
        let mut largest = value;
        self.0.all_reduce_into(&value, &mut largest, SystemOperation::max());
        Ok(largest)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (net, alone) = (Net::new(&options)?, Net::new(&options)?);
    // begin
    let universe = mpi::initialize().context("MPI is initialised already")?;
    let world = universe.world();
    // A VarMap has its variables in a random order.
    let data = net.variables.data().lock().ok().context("a thread has panicked")?.clone();
    let mut sorted: Vec<_> = data.into_iter().collect();
    sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
    let variables: Vec<Var> = sorted.into_iter().map(|(_, var)| var).collect();
    for var in &variables {
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        world.process_at_rank(0).broadcast_into(&mut values[..]);
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
    }
    // end
    let mut averaged = Candle { net, variables, world: &world };
    let mut alone = Candle { net: alone, variables: Vec::new(), world: &world };
    measure("candle_rsmpi", &options, &Mpi(&world), &mut averaged, &mut alone)
}
