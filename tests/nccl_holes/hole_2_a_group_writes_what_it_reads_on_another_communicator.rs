// E0502

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(
    library: Library,
    first: &Communicator,
    second: &Communicator,
    mut a: CudaSlice<f32>,
    mut b: CudaSlice<f32>,
) -> Result<(), Error> {
    group(|group| {
        group.on(first).all_reduce(&a, &mut b, Sum)?;
        group.on(second).all_reduce_in_place(&mut a, Sum)
    })
}
