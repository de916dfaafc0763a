//! Sums a vector over all GPUs of this machine: a thread and a communicator per GPU.

use std::thread;

use collectives::{ReduceOp, nccl};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let gpus = nccl::device_count()?;
    let library = nccl::Library::load()?;
    let id = nccl::UniqueId::new(library)?;
    println!("{gpus} GPUs, NCCL {} from {}", library.version(), library.path().display());

    let sums = thread::scope(|scope| {
        let ranks: Vec<_> = (0..gpus)
            .map(|rank| {
                scope.spawn(move || -> Result<f32, Failure> {
                    let stream = CudaContext::new(rank)?.new_stream()?;
                    let config = nccl::Config::new();
                    let communicator = nccl::Communicator::init(library, &stream, rank, gpus, &id, &config)?;
                    let mut values = stream.clone_htod(&vec![rank as f32; 1 << 20])?;
                    communicator.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
                    let first = stream.clone_dtoh(&values)?[0];
                    communicator.close()?;
                    Ok(first)
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|_| Err("a rank's thread panicked".into())))
            .collect::<Result<Vec<_>, _>>()
    })?;

    // 0 + 1 + ... + (gpus - 1), on every GPU.
    assert!(sums.iter().all(|&sum| sum == (gpus * (gpus - 1) / 2) as f32), "{sums:?}");
    println!("every GPU has the sum {}", sums[0]);
    Ok(())
}
