// E0277

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<bool>) -> Result<(), Error> {
    communicator.all_reduce_in_place(a, Sum)
}
