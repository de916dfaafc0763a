//! Sums a vector over all GPUs of this machine: a thread and a communicator per GPU.
//!
//! ```text
//! cargo run --release --example nccl_threads
//! ```

use std::thread;

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Library, UniqueId};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    // One rank creates the id and passes it to all, here threads of one process.
    let id = UniqueId::new(library)?;
    println!("{gpus} GPUs, NCCL {} from {}", library.version(), library.path().display());

    let sums = thread::scope(|scope| {
        let ranks: Vec<_> = (0..gpus)
            .map(|rank| {
                scope.spawn(move || -> Result<f32, Failure> {
                    let stream = CudaContext::new(rank)?.new_stream()?;
                    let communicator =
                        Communicator::builder(library, &stream).rank(rank, gpus).id(&id).init()?;
                    let mut values = stream.clone_htod(&vec![(rank + 1) as f32; 1 << 20])?;
                    communicator.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
                    let last = stream.clone_dtoh(&values)?[(1 << 20) - 1];
                    communicator.close()?;
                    Ok(last)
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|_| Err("a rank's thread panicked".into())))
            .collect::<Result<Vec<_>, _>>()
    })?;

    // 1 + 2 + ... + gpus, on every GPU.
    assert!(sums.iter().all(|&sum| sum == (gpus * (gpus + 1) / 2) as f32), "{sums:?}");
    println!("every GPU has the sum {}", sums[0]);
    Ok(())
}
