// E0277

use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<i32>) -> Result<(), Error> {
    let half: f32 = 0.5;
    let sum = communicator.scaled_sum(half)?;
    communicator.all_reduce_in_place(a, &sum)
}
