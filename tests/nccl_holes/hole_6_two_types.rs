// E0271

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(communicator: &Communicator, a: &CudaSlice<f32>, b: &mut CudaSlice<f64>) -> Result<(), Error> {
    communicator.all_reduce(a, b, Sum)
}
