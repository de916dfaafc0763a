// E0597 E0505

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(library: Library, communicator: Communicator, mut a: CudaSlice<f32>) -> Result<(), Error> {
    group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut a, Sum)?;
        drop(communicator);
        Ok(())
    })
}
