//! Training with burn; gradients are averaged by burn's own collectives between processes, over WebSockets.
//!
//! Its collectives find a gradient's counterpart by the identity of its parameter, but this is random in each
//! process; and they have no broadcast between processes. So the ranks exchange their parameters by a file.

use std::env;
use std::fs;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use burn_collective::{
    CollectiveConfig, PeerId, ReduceOperation, finish_collective, register, start_global_orchestrator,
};
use burn_communication::Address;
use burn_core::module::Module as _;
use burn_core::record::{BinFileRecorder, FullPrecisionSettings};
use clap::Parser as _;
use collectives::job::{Backend, Job};
use compare::burn_net::{Cpu, Layers, Net};
use compare::{Options, Ranks as _, Training, measure};
use tokio::runtime::Runtime;

/// Port of the orchestrator; rank r has `PORT + 1 + r`.
const PORT: u16 = 29_650;

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

fn main() -> Result<()> {
    let options = Options::parse();
    // Of the measurement.
    let group = Job::from_environment()?.group(Backend::Host)?;
    let (rank, size) = (group.rank(), group.size());
    let layers = Layers::new(&options);
    // begin
    let recorder = BinFileRecorder::<FullPrecisionSettings>::new();
    let file = env::temp_dir().join("compare-burn-parameters.bin");
    if rank == 0 {
        layers.clone().save_file(&file, &recorder)?;
        thread::spawn(|| Runtime::new().map(|runtime| runtime.block_on(start_global_orchestrator(PORT))));
    }
    // end
    group.largest(0.0)?;
    // begin
    let layers = layers.load_file(&file, &recorder, &Default::default())?;
    let port = PORT + 1 + u16::try_from(rank)?;
    let address = |port| format!("ws://127.0.0.1:{port}").parse::<Address>().map_err(|error| anyhow!(error));
    let config = CollectiveConfig::default().with_num_devices(1).with_num_nodes(u32::try_from(size)?);
    let config = config.with_global_address(address(PORT)?).with_node_address(address(port)?);
    let (config, peer) = (config.with_data_service_port(port), PeerId::from(rank));
    register::<Cpu>(peer, Default::default(), config).map_err(|error| anyhow!("{error:?}"))?;
    // end
    if rank == 0 {
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    let mut averaged = Burn { net: Net::new(&options, layers), peer };
    let mut alone = Burn { net: Net::new(&options, Layers::new(&options)), peer };
    measure("burn_processes", &options, &group, &mut averaged, &mut alone)?;
    // begin
    finish_collective::<Cpu>(peer).map_err(|error| anyhow!("{error:?}"))?;
    // end
    Ok(())
}
