// E0597

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(library: Library, communicator: Communicator, a: &CudaSlice<f32>) -> Result<(), Error> {
    group(|group| {
        group.nested(|group| {
            let mut b = a.clone();
            group.on(&communicator).all_reduce(a, &mut b, Sum)
        })
    })
}
