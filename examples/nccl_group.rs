//! One thread drives all GPUs of this machine: a group launches operations of all communicators together. An
//! error in a group cancels all of it.
//!
//! ```text
//! cargo run --release --example nccl_group
//! ```

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Config, Error, Group, Library};
use cudarc::driver::{CudaContext, CudaSlice};

const LEN: usize = 1024;

/// A function that needs a group and may be called inside one.
fn share_numbers<'env>(
    group: &Group<'env>,
    communicators: &'env [Communicator],
    numbers: &'env mut [CudaSlice<u32>],
) -> Result<(), Error> {
    group.nested(|group| {
        let mut ranks = communicators.iter().zip(numbers);
        ranks.try_for_each(|(communicator, numbers)| group.on(communicator).all_gather_in_place(numbers))
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let streams = (0..gpus).map(|gpu| CudaContext::new(gpu)?.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let communicators = Communicator::init_all(library, &streams, &Config::new())?;

    let mut sums = Vec::new();
    // A number per rank; each rank knows its own.
    let mut numbers = Vec::new();
    for (rank, stream) in streams.iter().enumerate() {
        sums.push(stream.clone_htod(&[1.0_f32; LEN])?);
        let mut known = vec![0; gpus];
        known[rank] = 10 + rank as u32;
        numbers.push(stream.clone_htod(&known)?);
    }

    nccl::group(|group| {
        for (communicator, sum) in communicators.iter().zip(&mut sums) {
            group.on(communicator).all_reduce_in_place(sum, ReduceOp::Sum)?;
        }
        share_numbers(group, &communicators, &mut numbers)
    })?;

    // An invalid rank: the operations before the error are not launched either.
    let cancelled = nccl::group(|group| {
        for (communicator, sum) in communicators.iter().zip(&mut sums) {
            group.on(communicator).all_reduce_in_place(sum, ReduceOp::Sum)?;
        }
        group.on(&communicators[0]).recv(&mut numbers[0], gpus)
    });
    assert!(matches!(cancelled, Err(Error::Rank { .. })), "{cancelled:?}");

    for (rank, stream) in streams.iter().enumerate() {
        assert_eq!(stream.clone_dtoh(&sums[rank])?, [gpus as f32; LEN]);
        assert_eq!(stream.clone_dtoh(&numbers[rank])?, (10..10 + gpus as u32).collect::<Vec<_>>());
    }
    println!("{gpus} GPUs: every one has the sum {gpus} and the numbers of all");
    Ok(())
}
