//! Training with burn; gradients are averaged by `collectives-burn`.

use anyhow::Result;
use clap::Parser as _;
use collectives::job::{Backend, Job};
use collectives_burn::{Reducer, broadcast};
use compare::burn_net::{Layers, Net};
use compare::{Options, Training, measure};

struct Burn {
    net: Net,
    reducer: Reducer,
    steps: u64,
}

impl Training for Burn {
    fn step(&mut self, is_averaged: bool) -> Result<()> {
        let mut gradients = self.net.backward()?;
        self.steps += 1;
        if is_averaged {
            // begin
            gradients = self.reducer.average(self.steps, self.net.layers()?, gradients)?;
            // end
        }
        self.net.update(gradients)
    }

    fn parameters(&self) -> Result<Vec<f32>> {
        self.net.parameters()
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (layers, alone) = (Layers::new(&options), Layers::new(&options));
    // begin
    let group = Job::from_environment()?.group(Backend::Host)?;
    let layers = broadcast(&group, layers, 0)?;
    let reducer = Reducer::new(&group, &layers)?;
    // end
    let mut alone = Burn { reducer: Reducer::new(&group, &alone)?, net: Net::new(&options, alone), steps: 0 };
    let mut averaged = Burn { net: Net::new(&options, layers), reducer, steps: 0 };
    measure("burn_ours", &options, &group, &mut averaged, &mut alone)
}
