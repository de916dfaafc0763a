// E0597 E0505

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(
    library: Library,
    communicator: Communicator,
    a: CudaSlice<f32>,
    mut b: CudaSlice<f32>,
) -> Result<(), Error> {
    group(|group| {
        group.on(&communicator).all_reduce(&a, &mut b, Sum)?;
        drop(a);
        Ok(())
    })
}
