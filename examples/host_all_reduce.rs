//! Averages a vector over the memory of all ranks of a job, without a GPU.
//!
//! ```text
//! cargo run --example host_all_reduce                                       # one rank
//! torchrun --no-python --nproc-per-node 4 target/debug/examples/host_all_reduce
//! ```

use collectives::{ReduceOp, fabric, world};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = world::from_environment(&world::Options::from_environment()?)?;
    let (rank, size) = (world.rank(), world.size());
    let mut communicator = fabric::Communicator::new(world, &fabric::Options::default())?;

    let mut gradients = vec![rank as f32; 1 << 20];
    communicator.all_reduce_in_place(&mut gradients, ReduceOp::Avg)?;

    // The mean of 0, 1, ..., size - 1.
    assert_eq!(gradients[0], (size - 1) as f32 / 2.0);
    println!("rank {rank} of {size}: mean {} ({})", gradients[0], communicator.describe());
    Ok(())
}
