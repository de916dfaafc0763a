//! Sums a vector over all GPUs of a job: a process and a communicator per GPU, started by any launcher.
//!
//! ```text
//! cargo run --release --example nccl_processes                              # one rank
//! torchrun --no-python --nproc-per-node 8 target/release/examples/nccl_processes
//! ```

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Library, UniqueId, cuda};
use collectives::world;
use cudarc::driver::CudaContext;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cudarc panics without a driver.
    cuda::available().map_err(|error| format!("needs a GPU: {error}"))?;
    let world = world::from_environment(&world::Options::from_environment()?)?;
    let (rank, size) = (world.rank(), world.size());
    let library = Library::load()?;
    // Rank 0 creates the id, and the world sends its bytes to all.
    let mine = if rank == 0 { UniqueId::new(library)?.as_bytes().to_vec() } else { Vec::new() };
    let id = world.all_gather(&mine)?.swap_remove(0);
    let id = UniqueId::from_bytes(id.try_into().map_err(|_| "rank 0 has sent no id")?);

    let stream = CudaContext::new(world.local_rank())?.new_stream()?;
    let communicator = Communicator::builder(library, &stream).rank(rank, size).id(&id).init()?;
    let mut values = stream.clone_htod(&vec![(rank + 1) as f32; 1 << 20])?;
    communicator.all_reduce_in_place(&mut values, ReduceOp::Sum)?;

    // The sum of 1, 2, ..., size.
    let sum = stream.clone_dtoh(&values)?[(1 << 20) - 1];
    assert_eq!(sum, (size * (size + 1) / 2) as f32);
    println!("rank {rank} of {size}: {sum}");
    communicator.close()?;
    Ok(())
}
