//! Splits a communicator: the GPUs of this machine with even numbers and those with odd ones, each in reverse
//! order.
//!
//! ```text
//! cargo run --release --example nccl_split
//! ```

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Config, Library, Split};
use cudarc::driver::CudaContext;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let streams = (0..gpus).map(|gpu| CudaContext::new(gpu)?.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let all = Communicator::init_all(library, &streams, &Config::new())?;

    // One thread has all ranks; with a thread or process per rank, each calls Communicator::split.
    let split = |rank: usize| Split::color((rank % 2) as i32).key((gpus - rank) as i32);
    let parts = Communicator::split_all(all.iter().map(|each| (each, Some(split(each.rank())))))?;
    // All take part, so there is a communicator per rank.
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    assert_eq!(parts.len(), gpus);

    let values = streams.iter().enumerate().map(|(rank, stream)| stream.clone_htod(&[rank as u32]));
    let mut sums = values.collect::<Result<Vec<_>, _>>()?;
    nccl::group(|group| {
        let mut ranks = parts.iter().zip(&mut sums);
        ranks.try_for_each(|(part, sum)| group.on(part).all_reduce_in_place(sum, ReduceOp::Sum))
    })?;

    for (rank, part) in parts.iter().enumerate() {
        let members: Vec<_> = (rank % 2..gpus).step_by(2).collect();
        let before = members.iter().filter(|&&member| member > rank).count();
        assert_eq!((part.rank(), part.size()), (before, members.len()), "rank {rank}");
        let sum: usize = members.iter().sum();
        assert_eq!(streams[rank].clone_dtoh(&sums[rank])?, [sum as u32], "rank {rank}");
        println!("rank {rank} of {gpus} is rank {} of {} and has the sum {sum}", part.rank(), part.size());
    }
    Ok(())
}
