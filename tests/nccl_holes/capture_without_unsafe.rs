// E0133

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<f32>) -> Result<(), Error> {
    communicator.captured().all_reduce_in_place(a, Sum)
}
