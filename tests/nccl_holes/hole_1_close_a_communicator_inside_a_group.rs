// E0505 E0597

use collectives::nccl::{Communicator, Error, Library, group};
use cudarc::driver::CudaSlice;

fn main() {}

fn test(library: Library, communicator: Communicator, a: &CudaSlice<f32>) -> Result<(), Error> {
    group(library, |group| {
        group.on(&communicator).send(a, 1)?;
        communicator.close()
    })
}
