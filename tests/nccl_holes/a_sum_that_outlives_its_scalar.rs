// E0505

use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, scalar: CudaSlice<f32>, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    let sum = communicator.scaled_sum_on_device(&scalar)?;
    drop(scalar);
    communicator.all_reduce_in_place(a, &sum)
}
