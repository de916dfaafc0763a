// E0277

use collectives::ReduceOp::Max;
use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &mut CudaSlice<char>) -> Result<(), Error> {
    communicator.all_reduce_in_place(a, Max)
}
