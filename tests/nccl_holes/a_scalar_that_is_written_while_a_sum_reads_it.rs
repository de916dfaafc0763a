// E0502

use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, mut scalar: CudaSlice<f32>) -> Result<(), Error> {
    let sum = communicator.scaled_sum_on_device(&scalar)?;
    communicator.all_reduce_in_place(&mut scalar, &sum)
}
