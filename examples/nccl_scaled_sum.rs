//! Weighted sums over all GPUs of this machine: with a weight that is known when the operator is created, and
//! one in device memory, where kernels can change it.
//!
//! ```text
//! cargo run --release --example nccl_scaled_sum
//! ```

use collectives::nccl::{self, Collectives, Communicator, Config, Library};
use cudarc::driver::CudaContext;

const LEN: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let streams = (0..gpus).map(|gpu| CudaContext::new(gpu)?.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let communicators = Communicator::init_all(library, &streams, &Config::new())?;
    let (mut values, mut scalars) = (Vec::new(), Vec::new());
    for stream in &streams {
        values.push(stream.clone_htod(&[2.0_f32; LEN])?);
        scalars.push(stream.clone_htod(&[0.5_f32])?);
    }

    // Rank r's values have weight r + 1.
    let weight = |communicator: &Communicator| (communicator.rank() + 1) as f32;
    let sums = communicators.iter().map(|each| each.scaled_sum(weight(each)));
    let sums = sums.collect::<Result<Vec<_>, _>>()?;
    nccl::group(|group| {
        let mut ranks = values.iter_mut().zip(&communicators).zip(&sums);
        ranks.try_for_each(|((values, each), sum)| group.on(each).all_reduce_in_place(values, sum))
    })?;
    // 2 * (1 + 2 + ... + gpus)
    let weighted = (gpus * (gpus + 1)) as f32;
    for (stream, values) in streams.iter().zip(&values) {
        assert_eq!(stream.clone_dtoh(values)?, [weighted; LEN]);
    }

    let sums = communicators.iter().zip(&scalars).map(|(each, scalar)| each.scaled_sum_on_device(scalar));
    let sums = sums.collect::<Result<Vec<_>, _>>()?;
    nccl::group(|group| {
        let mut ranks = values.iter_mut().zip(&communicators).zip(&sums);
        ranks.try_for_each(|((values, each), sum)| group.on(each).all_reduce_in_place(values, sum))
    })?;
    for (stream, values) in streams.iter().zip(&values) {
        assert_eq!(stream.clone_dtoh(values)?, [weighted * 0.5 * gpus as f32; LEN]);
    }
    println!("{gpus} GPUs: every one has the sum by weights, {weighted}, and half of all such sums");
    Ok(())
}
