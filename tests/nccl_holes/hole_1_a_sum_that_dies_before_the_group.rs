// E0597

use collectives::nccl::{Collectives, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(
    library: Library,
    sums: &[f32],
    communicator: &Communicator,
    a: &mut CudaSlice<f32>,
) -> Result<(), Error> {
    group(|group| {
        let sum = communicator.scaled_sum(sums[0])?;
        group.on(communicator).all_reduce_in_place(a, &sum)
    })
}
