//! Training with candle; gradients are averaged by `collectives-candle`.

use anyhow::Result;
use candle_core::Device;
use clap::Parser as _;
use collectives::job::Job;
use collectives_candle::Reducer;
use compare::candle_net::Net;
use compare::{Options, Training, measure};

struct Candle {
    net: Net,
    reducer: Reducer,
    steps: u64,
}

impl Training for Candle {
    fn step(&mut self, is_averaged: bool) -> Result<()> {
        let mut gradients = self.net.backward()?;
        self.steps += 1;
        if is_averaged {
            // begin
            self.reducer.average(self.steps, &mut gradients)?;
            // end
        }
        self.net.update(&gradients)
    }

    fn parameters(&self) -> Result<Vec<f32>> {
        self.net.parameters()
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (net, alone) = (Net::new(&options)?, Net::new(&options)?);
    // begin
    let job = Job::from_environment()?;
    let group = collectives_candle::group(&job, &Device::Cpu)?;
    let reducer = Reducer::new(&group, &net.variables)?;
    // end
    let mut alone = Candle { reducer: Reducer::new(&group, &alone.variables)?, net: alone, steps: 0 };
    measure("candle_ours", &options, &group, &mut Candle { net, reducer, steps: 0 }, &mut alone)
}
