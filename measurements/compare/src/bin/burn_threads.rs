//! Training with burn; gradients are averaged by burn's own collectives between threads of one process.

use std::thread;

use anyhow::{Context as _, Result, anyhow};
use burn_collective::{CollectiveConfig, PeerId, ReduceOperation, finish_collective, register};
use burn_core::module::Module as _;
use clap::Parser as _;
use collectives::job::{Backend, Group, Job};
use collectives::world;
use compare::burn_net::{Backward, Cpu, Layers, Net};
use compare::{Options, Training, measure};

const THREADS: usize = 2;

struct Burn {
    net: Net,
    peer: PeerId,
}

impl Training for Burn {
    fn step(&mut self, is_averaged: bool) -> Result<()> {
        let mut gradients = self.net.backward()?;
        if is_averaged {
            // begin
            let averages = gradients.all_reduce::<Cpu>(self.peer, ReduceOperation::Mean);
            gradients = averages.map_err(|error| anyhow!("{error:?}"))?;
            // end
        }
        self.net.update(gradients)
    }

    fn parameters(&self) -> Result<Vec<f32>> {
        self.net.parameters()
    }
}

fn train(options: &Options, group: &Group, layers: Layers<Backward>) -> Result<()> {
    // begin
    let peer = PeerId::from(group.rank());
    let config = CollectiveConfig::default().with_num_devices(group.size());
    register::<Cpu>(peer, Default::default(), config).map_err(|error| anyhow!("{error:?}"))?;
    // end
    let mut averaged = Burn { net: Net::new(options, layers), peer };
    let mut alone = Burn { net: Net::new(options, Layers::new(options)), peer };
    measure("burn_threads", options, group, &mut averaged, &mut alone)?;
    // begin
    finish_collective::<Cpu>(peer).map_err(|error| anyhow!("{error:?}"))?;
    // end
    Ok(())
}

/// The ranks of the measurement are threads of this process.
fn main() -> Result<()> {
    let options = Options::parse();
    let layers = Layers::new(&options);
    let jobs = Job::new(world::single()).threads(THREADS)?;
    thread::scope(|scope| {
        let (options, layers) = (&options, &layers);
        let mut threads = Vec::new();
        for job in jobs {
            // begin
            let layers = layers.clone().fork(&Default::default());
            threads.push(scope.spawn(move || train(options, &job.group(Backend::Host)?, layers)));
            // end
        }
        for thread in threads {
            // begin
            thread.join().ok().context("a rank has panicked")??;
            // end
        }
        Ok(())
    })
}
